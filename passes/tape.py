"""Where the reverse of a region gets the values of the forward region from.

Each value that is read is either computed again from others, or saved on a tape: an
array with one entry per iteration, which the forward loop writes as an extra carry. The
cheaper of the two is taken, by a symbolic count of elements and operations. A value
whose size depends on the loop's index lies in a box of the largest size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.errors import GradientError
from ..ir.func import Block, Node, Operand, Value, dims_of_node, free_values, walk
from ..ir.op import OPS, Kind
from ..ir.types import Type
from .ranges import Range
from .scope import ScopedBuilder, defined_symbol

if TYPE_CHECKING:
    from .vjp import Reversed, Step

# Estimates: a size that is not known counts as this many elements.
USUAL_SIZE = 64
# Writing an element to a tape and reading it back, in units of simple operations.
TAPE_COST = 4.0
HUGE = 1e100
FREE = frozenset({Kind.VIEW, Kind.CREATION, Kind.COPY, Kind.SIZE})
NEVER_AGAIN = frozenset({Kind.RANDOM, Kind.EXTERN})


def estimate(d: Dim) -> float:
    """Return a usual value of a dim."""
    usual = {s: USUAL_SIZE for s in dims.symbols_of(d)}
    return float(max(dims.evaluate(d, usual), 1))


def elements(t: Type) -> float:
    return math.prod(map(estimate, t.shape))


def work(nodes: Iterable[Node]) -> float:
    """Estimate the number of operations of nodes."""
    total = 0.0
    for node in nodes:
        inner = sum(work(r.nodes) for r in node.regions)
        if node.op.kind is Kind.FOR:
            a = node.attrs
            inner *= estimate(dims.add(a["stop"], dims.mul(a["start"], -1)))
        elif node.op.kind is Kind.WHILE:
            inner *= USUAL_SIZE
        total += inner
        if node.op.kind not in FREE and not node.regions:
            xs = [x.type for x in node.operands if isinstance(x, Value)]
            size = max(map(elements, (*xs, *(v.type for v in node.results))), default=1)
            each = node.op.cost / 8 if node.op.kind is Kind.ELEMENTWISE else 4.0
            total += size * each
    return total


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


@dataclass(slots=True)
class _Made:
    """How a value of a region comes about: by a step, or by what replaces it."""

    step: int
    nodes: tuple[Node, ...]
    work: float  # cost of computing it again, apart from its inputs
    inputs: list[Value | Symbol]
    values: tuple[Value, ...]
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
    ) -> None:
        self.definers = definers
        self.b, self.block, self.steps, self.loop = b, block, steps, loop
        self.made: dict[Value, _Made] = {}
        self.order: list[_Made] = []
        self.counts: dict[Symbol, _Made] = {}
        self.cost: dict[Value, float] = dict.fromkeys(fixed, 0.0)
        self.params = set(block.params) - set(self.cost)
        self.taped: dict[Value, None] = {}
        self.wanted: dict[int, tuple[Node, ...]] = {}
        self._seen: set[Value | Symbol] = set()
        for p in self.params:
            self.cost[p] = self.saving(p)
        for k, step in enumerate(steps):
            self._enter(k, (step.node,), step.node.results)
            if step.replaced is not None:
                extras: list[Value | Symbol] = [*step.extras, *step.symbols]
                self._enter(k, step.replaced, extras)

    def _enter(
        self, k: int, nodes: tuple[Node, ...], defines: Sequence[Value | Symbol]
    ) -> None:
        values = tuple(v for v in defines if isinstance(v, Value))
        made = _Made(k, nodes, self.repeating(nodes), self.inputs(nodes), values)
        made.again = self._total(made)
        self.order.append(made)
        own = (defined_symbol(n) for n in nodes if self._defines(n))
        self.counts.update((s, made) for s in own if s is not None)
        self.counts.update((s, made) for s in defines if isinstance(s, Symbol))
        for v in values:
            self.made[v] = made
            self.cost[v] = min(made.again, self.saving(v))

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
        """Estimate the cost of a tape of `v` per iteration; inf where it cannot be."""
        shape = self.box(v)
        return math.inf if shape is None else TAPE_COST * elements(v.type)

    def box(self, v: Value) -> tuple[Dim, ...] | None:
        """Return the shape of a tape's entry for `v`, if there can be one."""
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
            self._reconsider()
            for x in needs:
                self._want(x)

    def _reconsider(self) -> None:
        """Start over, knowing what is saved: others may be cheap to make from that."""
        saved = self.taped
        self.cost.update(dict.fromkeys(self.params & saved.keys(), 0.0))
        for made in self.order:
            made.again = self._total(made)
            for v in made.values:
                saving = self.saving(v)
                if made.again <= saving:
                    self.cost[v] = made.again
                else:
                    self.cost[v] = 0.0 if v in saved else saving
        self.taped, self.wanted, self._seen = {}, {}, set()

    def _want(self, x: Value | Symbol) -> None:
        if x in self._seen:
            return
        self._seen.add(x)
        if isinstance(x, Symbol):
            if x in self.counts:
                self._compute(self.counts[x])
            return
        if x in self.params or (x in self.made and self.cost[x] < self.made[x].again):
            self.taped.setdefault(x)
        elif x in self.made:
            self._compute(self.made[x])

    def _compute(self, made: _Made) -> None:
        if made.again == math.inf:
            raise GradientError(
                f"{made.nodes[0].op.name}: its values are read by the gradient, but "
                "can neither be saved nor computed again",
                location=made.nodes[0].loc,
                rule="a value is saved once per iteration, in an array of fixed size.",
                hint="move the operation out of the branch or loop",
            )
        step = self.steps[made.step]
        if self.wanted.get(made.step) != step.replaced or step.replaced is None:
            self.wanted[made.step] = made.nodes
        for x in made.inputs:
            self._want(x)

    def again(self) -> list[Node]:
        """Return the forward nodes to compute again, in order."""
        return [n for k in sorted(self.wanted) for n in self.wanted[k]]

    def saves(self, step: Step) -> bool:
        """Tell whether the forward loop must run what replaces a step."""
        return any(v in self.taped for v in step.extras)


def mentioned(nodes: Iterable[Node]) -> list[Symbol]:
    """Return the symbols that nodes mention, in their regions too."""
    found: dict[Symbol, None] = {}
    for node in nodes:
        for inner in (node, *(n for r in node.regions for n in walk(r))):
            every: list[object] = [*dims_of_node(inner)]
            for region in inner.regions:
                every += (x for x in region.results if not isinstance(x, Value))
                every += (d for p in region.params for d in p.type.shape)
            for d in every:
                if isinstance(d, Expr):
                    found.update(dict.fromkeys(sorted(dims.symbols_of(d), key=str)))
    return list(found)


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
