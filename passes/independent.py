"""Whether the iterations of a `for` are independent, and what each of them touches.

Every carry of the body is followed through views and writes: a value is a *part* of a
carried array, at the state that the writes so far have made of it. What an iteration
does with the array is then a list of accesses, each by a chain of views: reads, writes,
and *sums*, writes that only add to what is there and that nothing else reads:

    %r = select %c, i {axis=0}; %t = add %r, %x; %d = select_scatter %c, %t, i {axis=0}

Iterations are independent if no access of one meets a write of another (their boxes
are apart), except that sums may meet sums of the same part. Then every access may be
done for all iterations at once, in the order of the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..ir import dims
from ..ir.access import indices_of, may_fail, part_type, view_of
from ..ir.dims import Dim, Facts, Symbol
from ..ir.func import Block, Node, Operand, Value, dims_of_node
from ..ir.op import Kind, Zero
from ..ir.types import Type
from ..ir.verify import loop_facts
from .boxes import Box, apart, box_of, moved, whole
from .rules import same_operand
from .scope import defined_symbol

OTHER = Symbol("@other")
TERMS = 64  # of one sum that are told apart
REFUSED = (Kind.RANDOM, Kind.EXTERN, Kind.CHECK)
Chain: TypeAlias = tuple[Node, ...]
Term: TypeAlias = tuple[int, Operand]  # a sign and what is added


class Dependent(Exception):
    """The iterations are not independent, or it cannot be shown."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Of `new` into the part of a carry at the end of a chain.

    The last node of the chain is the scatter; without a chain, all of the carry is
    replaced. `terms` are what a sum adds, empty for other writes.
    """

    chain: Chain
    new: Operand
    terms: tuple[Term, ...] = ()


State: TypeAlias = tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a carry, by views, as the writes of a state have left it."""

    carry: int
    state: State
    chain: Chain = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What is touched of a carry; of a sum, `group` is its chain."""

    carry: int
    chain: Chain
    writes: bool
    group: Chain | None = None


@dataclass(slots=True)
class Iterations:
    """The body of a loop whose iterations are independent.

    `reads` are the parts of carries whose values are used, `results` what becomes of
    each carry, `live` the nodes that compute anything else that is needed.
    """

    loop: Node
    facts: Facts  # that hold in the body
    parts: dict[Value, Part] = field(default_factory=dict)
    reads: dict[Value, Part] = field(default_factory=dict)
    results: list[State] = field(default_factory=list)
    live: set[Node] = field(default_factory=set)
    makers: dict[Value, Node] = field(default_factory=dict)
    accesses: dict[tuple[int, Chain, bool], Access] = field(default_factory=dict)

    @staticmethod
    def of(loop: Node, facts: Facts) -> Iterations:
        """Return the body of a loop; raises Dependent."""
        found = Iterations(loop, facts.having(*loop_facts(loop)))
        found.follow()
        found.mark()
        found.check()
        return found

    @property
    def body(self) -> Block:
        (region,) = self.loop.regions
        return region

    @property
    def index(self) -> Symbol:
        s = dims.as_symbol(self.loop.attrs["index"])
        assert s is not None
        return s

    # Parts of carries -------------------------------------------------------------

    def follow(self) -> None:
        """Find the parts of carries, and refuse what no iteration may contain."""
        for k, p in enumerate(self.body.params):
            self.parts[p] = Part(k, ())
        for node in self.body.nodes:
            if node.regions or node.op.kind in REFUSED or len(node.results) != 1:
                raise Dependent
            if defined_symbol(node) is not None or may_fail(node, self.facts):
                raise Dependent
            if any(self.index in dims.symbols_of(d) for d in _sizes(node)):
                raise Dependent
            self.makers.update(dict.fromkeys(node.results, node))
            part = self.part_of(node)
            if part is not None:
                self.parts[node.result] = part

    def part_of(self, node: Node) -> Part | None:
        base = self.part(node.operands[0]) if node.operands else None
        if base is None:
            return None
        match node.op.kind:
            case Kind.VIEW if not node.op.overlapping:
                return Part(base.carry, base.state, (*base.chain, node))
            case Kind.COPY if not isinstance(node.op.derivatives[0], Zero):
                return base
            case Kind.SCATTER if view_of(node).kind is Kind.VIEW:
                if node.op.overlapping:
                    return None
                return Part(base.carry, self.written(node, base), base.chain)
        return None

    def part(self, x: Operand) -> Part | None:
        return self.parts.get(x) if isinstance(x, Value) else None

    def written(self, node: Node, base: Part) -> State:
        """Return the state that a scatter makes."""
        chain = (*base.chain, node)
        new = self.part(node.operands[1])
        if (
            new is None
            or node.op.accumulates
            or new.carry != base.carry
            or not same_chain(new.chain, chain)
        ):
            return (*base.state, Write(chain, node.operands[1]))
        # A part is put back where it was taken from: what was written into it counts.
        common = 0
        for a, b in zip(base.state, new.state, strict=False):
            if a is not b:
                break
            common += 1
        others, writes = base.state[common:], new.state[common:]
        inside = (same_chain(w.chain[: len(chain)], chain) for w in writes)
        if not all(inside):
            raise Dependent
        box = self.box(base.carry, chain)
        if not all(
            apart(box, self.box(base.carry, w.chain), self.facts) for w in others
        ):
            raise Dependent
        return (*base.state, *writes)

    def box(self, carry: int, chain: Chain) -> Box:
        if chain:
            return box_of(chain)
        return whole(self.body.params[carry].type)

    # What is needed ---------------------------------------------------------------

    def mark(self) -> None:
        """Find sums, and the nodes and accesses that the results need."""
        todo: list[Operand] = []
        seen: dict[Write, Write] = {}
        for k, y in enumerate(self.body.results):
            part = self.part(y)
            if part is None:
                state: State = (Write((), y),)
            elif part.carry == k and not part.chain:
                state = part.state
            else:
                raise Dependent
            self.results.append(self.needed(k, state, seen, todo))
        while todo:
            x = todo.pop()
            part = self.part(x)
            if part is not None:
                assert isinstance(x, Value)
                self.note(Access(part.carry, part.chain, False))
                state = self.needed(part.carry, part.state, seen, todo)
                self.reads[x] = Part(part.carry, state, part.chain)
            elif isinstance(x, Value) and x in self.makers:
                node = self.makers[x]
                if node not in self.live:
                    self.live.add(node)
                    todo += node.operands

    def needed(
        self, carry: int, state: State, seen: dict[Write, Write], todo: list[Operand]
    ) -> State:
        """Return a state with its sums found; what it needs comes to `todo`."""
        for k, w in enumerate(state):
            if w in seen:
                continue
            terms = self.terms(carry, w, state[:k])
            seen[w] = w if terms is None else Write(w.chain, w.new, terms)
            todo += [w.new] if terms is None else [x for _, x in terms]
            group = None if terms is None else w.chain
            self.note(Access(carry, w.chain, True, group))
        return tuple(seen[w] for w in state)

    def note(self, access: Access) -> None:
        self.accesses.setdefault((access.carry, access.chain, access.writes), access)

    def varies(self, x: Operand | Dim) -> bool:
        return isinstance(x, dims.Expr) and self.index in dims.symbols_of(x)

    def terms(self, carry: int, w: Write, before: State) -> tuple[Term, ...] | None:
        """Return what a write adds to the part that it replaces, if it is a sum."""
        if any(self.varies(d) for n in w.chain for d in dims_of_node(n)):
            return None
        if w.chain and w.chain[-1].op.accumulates:
            return ((1, w.new),)
        want = self.type_at(carry, w.chain)

        def without_old(x: Operand, sign: int, depth: int) -> list[Term] | None:
            """Return what is added to the old value in `x`; None where it is not in."""
            part = self.part(x)
            if part is not None:
                same = part.carry == carry and same_chain(part.chain, w.chain)
                is_old = same and self.is_still(part, before)
                return [] if is_old and sign > 0 else None
            node = self.makers.get(x) if isinstance(x, Value) else None
            if node is None or not node.op.signs or not depth:
                return None
            t = node.result.type
            if t.dtype != want.dtype or t.shape != want.shape:
                return None
            given = list(zip(node.operands, node.op.signs, strict=True))
            for k, (y, s) in enumerate(given):
                rest = without_old(y, sign * s, depth - 1)
                if rest is not None:
                    others = given[:k] + given[k + 1 :]
                    return [*rest, *((sign * s, y) for y, s in others)]
            return None

        found = without_old(w.new, 1, TERMS)
        return tuple(found) if found else None

    def is_still(self, part: Part, state: State) -> bool:
        """Tell whether a part is the same in a state that was made from its own."""
        known = len(part.state)
        if state[:known] != part.state:
            return False
        box = self.box(part.carry, part.chain)
        later = (self.box(part.carry, w.chain) for w in state[known:])
        return all(apart(box, other, self.facts) for other in later)

    def type_at(self, carry: int, chain: Chain) -> Type:
        """Return the type of the part at the end of a chain."""
        if not chain:
            return self.body.params[carry].type
        last = chain[-1]
        scatter = last.op.kind is Kind.SCATTER
        return part_type(last) if scatter else last.result.type

    # Independence -----------------------------------------------------------------

    def check(self) -> None:
        """Show that accesses of different iterations do not meet."""
        step = self.loop.attrs["step"]
        if not isinstance(step, int) or not step:
            raise Dependent
        i, j = dims.symbol(self.index.name), dims.symbol(OTHER.name)
        other = (dims.substitute(d, {self.index: j}) for d in loop_facts(self.loop))
        two = self.facts.having(*other)
        later = two.having(dims.add(dims.add(j, dims.mul(i, -1)), -abs(step)))
        accesses = list(self.accesses.values())
        boxes = [self.box(a.carry, a.chain) for a in accesses]
        for n, (a, box) in enumerate(zip(accesses, boxes, strict=True)):
            for b, beside in zip(accesses[n:], boxes[n:], strict=True):
                if a.carry != b.carry or not (a.writes or b.writes):
                    continue
                if a.group is not None and b.group is not None:
                    if same_chain(a.group, b.group):
                        continue
                summed = a.group is not None or b.group is not None
                facts = two if summed else later  # a sum is done apart from the rest
                there = {self.index: j}
                if not apart(box, moved(beside, there), facts):
                    raise Dependent
                if a is not b and not apart(moved(box, there), beside, facts):
                    raise Dependent


def _sizes(node: Node) -> Iterator[Dim]:
    """Yield dims that must be the same in all iterations: all but indices."""
    for v in node.results:
        yield from v.type.shape
    for a in node.attrs.values():
        for x in a if isinstance(a, tuple) else (a,):
            if isinstance(x, dims.Expr):
                yield x


def same_chain(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Tell whether two chains of views, or of views and a scatter, are the same."""
    return len(a) == len(b) and all(
        x is y or (view_of(x) is view_of(y) and _same_step(x, y))
        for x, y in zip(a, b, strict=True)
    )


def _same_step(a: Node, b: Node) -> bool:
    ours, theirs = indices_of(a), indices_of(b)
    return (
        len(ours) == len(theirs)
        and all(map(same_operand, ours, theirs))
        and dict(a.attrs) == dict(b.attrs)
    )
