"""Where the reverse of a region gets the values of the forward region from.

Each value that is read is computed again from others, read from the loop's result where
it survives (`reroot.py`), or saved on a tape: an array with one entry per iteration,
which the forward loop writes as an extra carry. The cheapest is taken, by a symbolic
count of bytes and operations. A value whose size depends on the loop's index lies in a
box of the largest size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.errors import GradientError
from ..ir.func import Block, Node, Operand, Value, free_values
from ..ir.op import OPS, Kind
from .costs import HUGE, NEVER_AGAIN, saved_cost, work
from .ranges import Range
from .reroot import Reroot, root_of
from .scope import ScopedBuilder, defined_symbol, mentioned

if TYPE_CHECKING:
    from .vjp import Reversed, Step


WHOLE = 1.01  # breaks ties between a value and its parts


@dataclass(frozen=True, slots=True)
class Tape:
    """What the reverse of a loop saves: bytes of an entry, and the number of entries.

    Neither depends on loops around it; `entry` is None where it has no such bound.
    """

    loop: Node
    entry: Dim | None
    capacity: Dim | None

    @property
    def size(self) -> Dim | None:
        """The number of bytes."""
        if self.entry is None or self.capacity is None:
            return None
        return dims.mul(self.entry, self.capacity)


@dataclass(eq=False, slots=True)
class _Made:
    """A way to make values of a region: by a step, what replaces it, from results."""

    step: int
    nodes: tuple[Node, ...]
    work: float  # cost of computing it again, apart from its inputs
    inputs: list[Value | Symbol]
    values: tuple[Value, ...]
    replaces: bool = False  # it makes all that its step does, and more
    again: float = math.inf  # cost of computing it again, from what is saved


class Sources:
    """Decides for each value that is read: saved or computed again."""

    def __init__(
        self,
        b: ScopedBuilder,
        block: Block,
        steps: Sequence[Step],
        loop: Range | None,
        definers: set[Node],
        fixed: Iterable[Value] = (),
        reroot: Reroot | None = None,
        derived: Iterable[Value] = (),
        logs: Iterable[Value] = (),
    ) -> None:
        self.reroot = reroot
        self.definers = definers
        self.derived = set(derived)
        self.b, self.block, self.steps, self.loop = b, block, steps, loop
        self.made: dict[Value, list[_Made]] = {}
        self.order: list[_Made] = []
        self.counts: dict[Symbol, _Made] = {}
        self.fixed = set(fixed)
        self.logs = set(logs)
        self.cost: dict[Value, float] = dict.fromkeys(fixed, 0.0)
        self.params = set(block.params) - self.fixed
        self.taped: dict[Value, None] = {}
        self.wanted: set[_Made] = set()
        self._seen: set[Value | Symbol] = set()
        self.boxes: dict[Value, tuple[Dim, ...] | None] = {}
        self.viewed: dict[Value, Value] = {}
        for step in steps:
            node = step.node
            x = node.operands[0] if node.op.kind is Kind.VIEW else None
            if isinstance(x, Value):
                self.viewed[node.result] = x
        for p in self.params:  # rather save a part of it than the whole
            self.cost[p] = self.saving(p) * (1.0 if loop is None else WHOLE)
        for k, step in enumerate(steps):
            nodes = (step.node,) if reroot is None else reroot.nodes((step.node,))
            own = defined_symbol(step.node) if self._defines(step.node) else None
            self._enter(k, nodes, [*step.node.results, *([own] if own else [])])
            if reroot is not None and len(step.node.results) == 1:
                self._price(step.node.result, reroot.reading(step.node.result))
            if step.replaced is not None:
                extras: list[Value | Symbol] = [*step.extras, *step.symbols]
                nodes = step.replaced if reroot is None else reroot.nodes(step.replaced)
                self._enter(k, nodes, extras, replaces=True)
            for v in step.node.results:
                for chain, cost in () if reroot is None else reroot.found(v):
                    self._enter(k, chain, (v,), cost)

    def _enter(
        self,
        k: int,
        nodes: tuple[Node, ...],
        defines: Sequence[Value | Symbol],
        cost: float | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        values = tuple(v for v in defines if isinstance(v, Value))
        work = self.repeating(nodes) if cost is None else cost
        made = _Made(k, nodes, work, self.inputs(nodes), values, replaces)
        made.again = self._total(made)
        self.order.append(made)
        self.counts.update((s, made) for s in defines if isinstance(s, Symbol))
        for v in values:
            if v not in self.fixed:
                self.made.setdefault(v, []).append(made)
                self.cost[v] = min(self.best(v).again, self.saving(v))

    def _price(self, v: Value, more: float) -> None:
        """Add to the cost of making a value again what an outer loop pays for it."""
        if not more or v in self.fixed:
            return
        made = self.best(v)
        made.work += more
        made.again = self._total(made)
        self.cost[v] = min(made.again, self.saving(v))

    def best(self, v: Value) -> _Made:
        """Return the cheapest way to make a value again."""
        return min(self.made[v], key=lambda made: made.again)

    def _defines(self, node: Node) -> bool:
        return node in self.definers or node.op.kind is Kind.SIZE

    def _total(self, made: _Made) -> float:
        """Return the cost of computing a step again, with what it reads."""
        costs = [made.work, *map(self._again, made.inputs)]
        return math.inf if math.inf in costs else min(sum(costs), HUGE)

    def repeating(self, nodes: Sequence[Node]) -> float:
        """Return the cost of computing nodes again, apart from their inputs."""
        if any(n.op.kind in NEVER_AGAIN for n in nodes):
            return math.inf
        return work(nodes)

    def _again(self, x: Value | Symbol) -> float:
        if isinstance(x, Symbol):
            return self.counts[x].again
        return self.cost[x]

    def inputs(self, nodes: Sequence[Node]) -> list[Value | Symbol]:
        """Return what nodes read that this region defines."""
        found: dict[Value | Symbol, None] = {}
        for v in free_values(Block((), tuple(nodes))):
            if v in self.made or v in self.params:
                found.setdefault(v)
        own = {defined_symbol(n) for n in nodes}
        for s in mentioned(nodes):
            if s in self.counts and s not in own:
                found.setdefault(s)
        return list(found)

    def saving(self, v: Value) -> float:
        """Estimate the cost of a tape of `v` per iteration; inf where it cannot be.

        What the reverse derives is saved only where that is a choice: one byte.
        """
        if v in self.derived and v.type.dtype.kind != "b":
            return math.inf
        return math.inf if self.box(v) is None else saved_cost(v.type)

    def box(self, v: Value) -> tuple[Dim, ...] | None:
        """Return the shape of a tape's entry for `v`, if there can be one.

        It is found from what holds around the loop, and kept.
        """
        if v not in self.boxes:
            self.boxes[v] = self._box(v)
        return self.boxes[v]

    def _box(self, v: Value) -> tuple[Dim, ...] | None:
        if self.loop is None:
            return None
        shape = []
        for d in v.type.shape:
            if dims.symbols_of(d) & self.counts.keys():
                return None
            largest = self.loop.largest(self.b, d)
            if largest is None:
                return None
            shape.append(largest)
        return tuple(shape)

    def want(self, back: Reversed) -> None:
        """Choose sources for everything that a reversed region reads."""
        needs: list[Value | Symbol] = [*back.needs(), *mentioned(back.nodes)]
        for x in needs:
            self._want(x)
        if self.taped:
            self._share()
            self._reconsider()
            for x in needs:
                self._want(x)

    def _share(self) -> None:
        """Save a value as a whole where views of it would take more than that."""
        parts: dict[Value, float] = {}
        for v in self.taped:
            x = v
            while x in self.viewed:
                x = self.viewed[x]
            if x is not v and (x in self.made or x in self.params):
                parts[x] = parts.get(x, 0.0) + self.saving(v)
        for x, cost in parts.items():
            if self.saving(x) < cost:
                self.taped.setdefault(x)

    def _reconsider(self) -> None:
        """Start over, knowing what is saved: others may be cheap to make from that."""
        saved = self.taped
        self.cost.update(dict.fromkeys(self.params & saved.keys(), 0.0))
        for made in self.order:
            made.again = self._total(made)
            for v in (v for v in made.values if v not in self.fixed):
                saving, again = self.saving(v), self.best(v).again
                if again <= saving:
                    self.cost[v] = again
                else:
                    self.cost[v] = 0.0 if v in saved else saving
        self.taped, self.wanted, self._seen = {}, set(), set()

    def _want(self, x: Value | Symbol) -> None:
        if x in self._seen:
            return
        self._seen.add(x)
        if isinstance(x, Symbol):
            if x in self.counts:
                self._compute(self.counts[x])
            return
        local = x in self.params or x in self.made
        if local and (x in self.logs or self.is_saved(x)):
            self.taped.setdefault(x)
        elif x in self.made:
            self._compute(self.best(x))

    def is_saved(self, v: Value) -> bool:
        """Tell whether a value is cheaper to save than to make again."""
        return v in self.params or self.cost[v] < self.best(v).again

    def total(self) -> float:
        """Estimate the cost of what was chosen, per iteration; inf if impossible."""
        if any(self.box(v) is None for v in self.taped):
            return math.inf
        saved = sum(saved_cost(v.type) for v in self.taped)
        return saved + sum(made.work for made in self.wanted)

    def state_of(self, v: Value) -> Value:
        """Return the state of a carry that a value is a view of, or the value."""
        chain = self.reroot.chains.get(v) if self.reroot is not None else None
        return v if chain is None else root_of(chain)

    def _compute(self, made: _Made) -> None:
        if made.again == math.inf:
            raise GradientError(
                f"{made.nodes[0].op.name}: its values are read by the gradient, but "
                "can neither be saved nor computed again",
                location=made.nodes[0].loc,
                rule="a value is saved once per iteration, in an array of fixed size.",
                hint="move the operation out of the branch or loop",
            )
        self.wanted.add(made)
        for x in made.inputs:
            self._want(x)

    def again(self) -> list[Node]:
        """Return the forward nodes to compute again, in order."""
        more = {made.step for made in self.wanted if made.replaces}
        found: list[Node] = []
        for made in self.order:
            if made in self.wanted and (made.replaces or made.step not in more):
                found += made.nodes
        return found

    def saves(self, step: Step) -> bool:
        """Tell whether the forward loop must run what replaces a step."""
        return any(v in self.taped for v in step.extras)


# ---------------------------------------------------------------- writing and reading


def entry_views(v: Value, box: Sequence[Dim]) -> list[int]:
    """Return the axes along which `v` is smaller than the box that it lies in."""
    return [k for k, (d, e) in enumerate(zip(v.type.shape, box, strict=True)) if d != e]


def store(
    b: ScopedBuilder, tape: Value, v: Value, at: Dim, box: Sequence[Dim]
) -> Operand:
    """Append the nodes that write `v` into entry `at`; returns the new tape."""
    new: Operand = v
    axes = entry_views(v, box)
    if axes:
        parts = [b.select(tape, at, axis=0)]
        cuts = [{"axis": k, "size": v.type.shape[k], "step": 1} for k in axes]
        for cut in cuts[:-1]:
            parts.append(b.slice(parts[-1], 0, **cut))
        for part, cut in zip(reversed(parts), reversed(cuts), strict=True):
            new = b.slice_scatter(part, new, 0, **cut)
    attrs = {"axis": 0}
    result: Operand = b.apply(
        OPS["select_scatter"], (tape, new, at), attrs, hint=tape.name
    )
    return result


def load(
    b: ScopedBuilder, tape: Value, v: Value, at: Dim, box: Sequence[Dim]
) -> Operand:
    """Append the nodes that read entry `at` back as a value like `v`."""
    x = b.apply(OPS["select"], (tape, at), {"axis": 0}, hint=v.name)
    for k in entry_views(v, box):
        x = b.slice(x, 0, axis=k, size=v.type.shape[k], step=1)
    if v.type.weak:
        x = b.number(x)
    elif v.type.scalar:
        x = b.item(x)
    result: Operand = x
    return result
