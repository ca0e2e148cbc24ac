"""What a carried buffer contains when: its states, and the writes between them.

A loop that changes a buffer in place passes it on as a carry. Inside an iteration every
write makes a new *state* of it, from the carry's parameter to what is yielded:

    for i in 1..n carry(%c = %a) {              states %c, %d
      %p = select %c, i - 1                     a read of state %c
      %d = select_scatter %c, %t, i             a write of [i..i]
      yield %d }

A part that is read of a state *survives* if no write that follows touches it, neither
in this iteration nor in a later one: then the loop's result still has it. This is
proven with the boxes of reads and writes (`boxes.py`) and what is known of the index:
a later one is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..ir import dims
from ..ir.access import part_type, view_of
from ..ir.dims import Dim, Facts, Symbol
from ..ir.func import Block, Node, Operand, Value, walk
from ..ir.op import Kind, Zero
from ..ir.verify import loop_facts
from .boxes import Bounds, Box, apart, box_of, moved
from .rules import same_place
from .scope import defined_symbol

LATER = Symbol("@later")
Boxes: TypeAlias = tuple[Box, ...]
Chain: TypeAlias = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """What makes the next state of a carry, at a position in the body."""

    node: Node
    position: int
    before: Value
    after: Value
    boxes: Boxes


@dataclass(slots=True)
class _Path:
    """A carry's states, each with the writes that follow it in the iteration."""

    start: Value
    writes: Boxes = ()  # of one iteration
    after: dict[Value, Boxes] = field(default_factory=dict)
    steps: list[Write] = field(default_factory=list)  # last one first


class Contents:
    """The states of the carries of a `for`, and what survives in its results."""

    def __init__(self, loop: Node, facts: Facts) -> None:
        self.loop = loop
        self.bounds = Bounds.of(loop)
        (self.body,) = loop.regions
        self.facts = facts.having(*loop_facts(loop))
        self.local = symbols_inside(self.body)
        self.carry: dict[Value, int] = {}
        self.after: dict[Value, Boxes] = {}
        self.writes: dict[int, Boxes] = {}
        self.paths: dict[int, list[Write]] = {}
        self.makers = {v: n for n in self.body.nodes for v in n.results}
        for k, p in enumerate(self.body.params):
            y = self.body.results[k]
            if p.type.shape and isinstance(y, Value) and y is not p:
                path = self.path(self.body, y, (), ())
                if path is not None and path.start is p:
                    self.writes[k], self.paths[k] = path.writes, path.steps
                    self.after.update(path.after)
                    self.carry.update(dict.fromkeys(path.after, k))
        self.branched()
        self.places = self.placed()

    def branched(self) -> None:
        """Note what is made of states on the side, to be read only."""
        for node in self.body.nodes:
            if node.op.kind is not Kind.SCATTER or node.result in self.carry:
                continue
            base = node.operands[0]
            if isinstance(base, Value) and base in self.carry:
                own = tuple(
                    box_of(c, (), self.local) for c in written(node, self.makers)
                )
                self.carry[node.result] = self.carry[base]
                self.after[node.result] = (*own, *self.after[base])

    def placed(self) -> dict[Value, list[Chain]]:
        """Return where values are put: the views of states that show them."""
        found: dict[Value, list[Chain]] = {}
        for node in self.body.nodes:
            if node.op.kind is not Kind.SCATTER or node.result not in self.carry:
                continue
            later: list[Box] = []
            for chain in reversed(written(node, self.makers)):
                box = box_of(chain, (), self.local)
                place = place_of(chain, node.result)
                new = chain[-1].operands[1]
                if place is not None and isinstance(new, Value):
                    if all(apart(box, w, self.facts) for w in later):
                        found.setdefault(new, []).append(place)
                later.append(box)
        return found

    def final(self, state: Value) -> Value:
        """Return the loop's result that a state becomes."""
        return self.loop.results[self.carry[state]]

    def trips(self) -> Dim:
        """Return about how many iterations the loop has."""
        a = self.loop.attrs
        gap = dims.add(a["stop"], dims.mul(a["start"], -1))
        return dims.floordiv(gap, a["step"])

    # States and writes ------------------------------------------------------------

    def path(
        self, block: Block, end: Value, follow: Boxes, inner: tuple[Bounds, ...]
    ) -> _Path | None:
        """Follow a buffer back to the value that enters `block`.

        `follow` is written after it; `inner` are the loops around, innermost first.
        """
        makers = self.makers
        if block is not self.body:
            makers = {v: n for n in block.nodes for v in n.results}
        found = _Path(end)
        found.after[end] = follow
        while found.start in makers:
            node = makers[found.start]
            k = node.results.index(found.start)
            new = self.before(node, k, makers, follow, inner)
            if new is None:
                return None
            end, found.start = found.start, new.start
            k = block.nodes.index(node)
            found.steps.append(Write(node, k, new.start, end, new.writes))
            found.writes += new.writes
            follow = (*new.writes, *follow)
            found.after.update(new.after)
            found.after[found.start] = follow
        return found

    def before(
        self,
        node: Node,
        k: int,
        makers: Mapping[Value, Node],
        follow: Boxes,
        inner: tuple[Bounds, ...],
    ) -> _Path | None:
        """Return what result `k` of a node is made from, and what was written."""
        match node.op.kind:
            case Kind.SCATTER if isinstance(node.operands[0], Value):
                boxes = (box_of(c, inner, self.local) for c in written(node, makers))
                return _Path(node.operands[0], tuple(boxes))
            case Kind.FOR | Kind.WHILE:
                return self.through_loop(node, k, inner)
            case Kind.COND:
                return self.through_branches(node, k, follow, inner)
            case _:
                return None

    def through_loop(
        self, node: Node, k: int, inner: tuple[Bounds, ...]
    ) -> _Path | None:
        if k >= len(node.operands):  # stacked by a `while`
            return None
        start, end = node.operands[k], node.regions[-1].results[k]
        param = node.regions[0].params[k]
        if not (isinstance(start, Value) and isinstance(end, Value)):
            return None
        nodes = tuple(n for r in node.regions for n in r.nodes)
        over = Bounds.of(node) if node.op.kind is Kind.FOR else None
        around = inner if over is None else (over, *inner)
        path = self.path(Block((), nodes), end, (), around)
        if path is None or path.start is not param:
            return None
        return _Path(start, path.writes)

    def through_branches(
        self, node: Node, k: int, follow: Boxes, inner: tuple[Bounds, ...]
    ) -> _Path | None:
        found: _Path | None = None
        for region in node.regions:
            end = region.results[k]
            if not isinstance(end, Value):
                return None
            path = self.path(region, end, follow, inner)
            if path is None or (found is not None and found.start is not path.start):
                return None
            if found is None:
                found = path
            else:
                found.writes += path.writes
                found.after.update(path.after)
        return found

    # What survives ----------------------------------------------------------------

    def survives(self, state: Value, box: Box) -> bool:
        """Tell whether the loop's result still has what was in a part of a state."""
        if not all(apart(box, w, self.facts) for w in self.after[state]):
            return False
        writes = self.writes[self.carry[state]]
        later = self.later()
        if later is None:
            return not writes
        values, facts = later
        return all(apart(box, moved(w, values), facts) for w in writes)

    def later(self) -> tuple[Mapping[Symbol, Dim], Facts] | None:
        """Return the index of a later iteration, and what is known of it."""
        a = self.loop.attrs
        index, step = dims.as_symbol(a["index"]), a["step"]
        if index is None or not isinstance(step, int):
            return None
        then = dims.symbol(LATER.name)
        gap = dims.add(then, dims.mul(a["index"], -1))
        ahead = dims.add(dims.mul(gap, 1 if step > 0 else -1), -abs(step))
        values: Mapping[Symbol, Dim] = {index: then}
        known = (dims.substitute(d, values) for d in loop_facts(self.loop))
        return values, self.facts.having(*known, ahead)


def written(node: Node, makers: Mapping[Value, Node]) -> list[Chain]:
    """Return the writes that a scatter is made of, each a chain of scatters.

    A write through a view of a view scatters into the part that it then puts back.
    """
    return _written((node,), makers)


def _written(chain: Chain, makers: Mapping[Value, Node]) -> list[Chain]:
    outer = chain[-1]
    view = view_of(outer)
    if outer.op.accumulates or view.kind is not Kind.VIEW or view.overlapping:
        return [chain]  # elements may be in the part twice
    if isinstance(view.derivative(0), Zero):
        return [chain]  # the derivative of the base is left alone
    found: list[Chain] = []
    x = outer.operands[1]
    while not is_part(x, outer, makers):
        inner = makers.get(x) if isinstance(x, Value) else None
        if inner is None or inner.op.kind is not Kind.SCATTER:
            return [chain]
        if inner.result.type.shape != part_type(outer).shape:
            return [chain]
        found = [*_written((*chain, inner), makers), *found]
        x = inner.operands[0]
    return found


def place_of(chain: Chain, state: Value) -> Chain | None:
    """Return the views of a state that show what a chain of scatters put into it."""
    views: list[Node] = []
    at = state
    for scatter in chain:
        view = view_of(scatter)
        if scatter.op.accumulates or view.kind is not Kind.VIEW or view.overlapping:
            return None
        part = Value(at.name, part_type(scatter))
        where = (at, *scatter.operands[2:])
        views.append(Node(view, where, scatter.attrs, (part,), (), scatter.loc))
        at = part
    new = chain[-1].operands[1]
    fits = isinstance(new, Value) and new.type.array() == at.type
    return tuple(views) if fits else None


def is_part(x: Operand, scatter: Node, makers: Mapping[Value, Node]) -> bool:
    """Tell whether `x` is what is in the part that a scatter replaces."""
    base = scatter.operands[0]
    view = makers.get(x) if isinstance(x, Value) else None
    if view is not None and view.op.name == scatter.op.of:
        if view.operands[0] is base and same_place(view, scatter, 1):
            return True
    under = makers.get(base) if isinstance(base, Value) else None
    if under is None or under.op is not scatter.op or under.op.overlapping:
        return False
    return under.operands[1] is x and same_place(scatter, under, 2)


def symbols_inside(block: Block) -> set[Symbol]:
    """Return the symbols that are defined in a block: counts, indices of loops."""
    return set(_symbols_of(walk(block)))


def _symbols_of(nodes: Iterable[Node]) -> Iterator[Symbol]:
    for node in nodes:
        s = defined_symbol(node)
        if s is not None:
            yield s
        if node.op.kind is Kind.FOR:
            index = dims.as_symbol(node.attrs["index"])
            assert index is not None
            yield index
