"""In which order a group over rows is computed, row by row.

A `fused` node with an attribute `rows` has that many leading loops in common, over its
rows. The rest of its work is done for one row after the other, so that a row which is
read several times is still in cache.

Note [stages]
The work on a row is a line of times. At odd ones loops run over the rest of a space,
all nodes of one space in the same loops; at even ones what there is once per row is
computed. A node is done as early as possible: with what it reads at the same point, but
after the loops in which a fold or a scatter that it needs is completed, or in which a
value is stored that it reads elsewhere in the row.

A value that is needed in several loops is *kept* in memory, except where it costs no
more to compute it again (flops, and loads from the row); its bits would be the same, as
nothing that calls a library is that cheap. Values with one element per row are
registers, computed before the first loops that use them.

A scatter onto a value of the group, or one that the group reads, is done in the memory
of its result: its base is stored there first, by loops of their own or where it is
computed. Other scatters are done in the memory of their base, as anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from . import dims
from .access import (
    Access,
    Index,
    canonical,
    disjoint,
    distance,
    element_reads,
    need_of,
    place,
    point_of,
    reads_at,
    reads_of,
    space_of,
)
from .dims import Facts
from .func import Node, Operand, Value
from .op import Kind
from .types import Shape

LIBRARY = 20  # flops of what may be a call, whose bits depend on where it stands
CHEAP = 4  # flops and loads of what is computed again instead of kept


class Do(StrEnum):
    """What is done at some time."""

    STORE = "store"  # compute a value at every point and store it
    FOLD = "fold"  # reduce
    FILL = "fill"  # store the base of a scatter where its result will be
    SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do in the loops over a node's space, at a time."""

    time: int
    do: Do
    node: Node
    space: Shape  # all of its loops, those over the rows first


@dataclass(slots=True)
class Plan:
    """What to do when; see Note [stages]."""

    rows: Shape
    tasks: list[Task] = field(default_factory=list)
    kept: dict[Value, int] = field(default_factory=dict)  # in memory after which time
    last: dict[Value, int] = field(default_factory=dict)  # when it is used last
    computed: dict[Value, set[int]] = field(default_factory=dict)  # when, if not kept
    flops: dict[Value, int] = field(default_factory=dict)  # to compute it again
    inside: dict[Value, Node] = field(default_factory=dict)

    def reads(self, views: Mapping[Value, Node]) -> Iterator[tuple[int, Access]]:
        """Yield what is read from memory outside the group, and when."""
        for task in self.tasks:
            cut = {v for v, at in self.kept.items() if at < task.time}
            inlined = [
                n
                for v, n in self.inside.items()
                if v not in cut and n.op.kind not in (Kind.REDUCTION, Kind.SCATTER)
            ]
            root = task.node
            if task.do is Do.FILL:
                found = element_reads(inlined, root.operands[0], views)
            else:
                found = reads_of(inlined, (root,), views)
            for read in found:
                if read.value not in self.inside:
                    yield task.time, read


def disturbs(
    plan: Plan,
    write: Access,
    time: int,
    reads: Iterable[tuple[int, Access]],
    facts: Facts,
) -> bool:
    """Tell whether a write at some time, in place, may change what a read sees.

    Rows come one after the other, and of a row one time after the other; in the loops
    of one time all reads of an iteration come before its writes.
    """
    return not all(
        _is_safe(len(plan.rows), write, time, read, when, facts)
        for when, read in reads
        if read.value is write.value
    )


def _is_safe(
    rows: int, write: Access, time: int, read: Access, when: int, facts: Facts
) -> bool:
    if write.index is None or read.index is None:
        return False
    if disjoint(write, read, facts):
        return True
    pairs = list(zip(write.index, read.index, strict=True))
    for symbol, _ in write.space[:rows]:
        gap = distance(symbol, pairs)
        if gap != 0:  # read in an earlier row than it is written
            return gap is not None and facts.proves(dims.add(gap, -1))
    if when != time:
        return when < time
    need = need_of(write, read, facts)
    return need.loop is None or need.step > 0


def row_axes(shape: Shape, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of a value over the rows, and the others that have a loop."""
    loops = [k for k, d in enumerate(shape) if d != 1]
    return tuple(loops[:rows]), tuple(loops[rows:])


def plan(nodes: Sequence[Node], results: Sequence[Operand], rows: int) -> Plan:
    """Plan the work of a group over rows."""
    return _Planner(nodes, results, rows).plan()


class _Planner:
    def __init__(
        self, nodes: Sequence[Node], results: Sequence[Operand], rows: int
    ) -> None:
        self.nodes = nodes
        self.inside = {v: n for n in nodes for v in n.results}
        self.results = {r for r in results if isinstance(r, Value)}
        root = next(self.inside[r] for r in results if isinstance(r, Value))
        self.rows = space_of(root)[:rows]
        self.time: dict[Value, int] = {}  # when a value is computed at the earliest
        self.fill: dict[Value, int] = {}
        self.elsewhere: set[Value] = set()  # read at other points, not cheap
        self.cost: dict[Value, tuple[int, frozenset[Value]]] = {}
        self.used = {x for n in nodes for x in n.operands if isinstance(x, Value)}
        self.needed: dict[Value, set[int]] = {v: set() for v in self.inside}
        self.found = Plan(self.rows, inside=self.inside)

    def plan(self) -> Plan:
        for node in self.nodes:
            self.find_cost(node)
            self.find_time(node)
        for node in reversed(self.nodes):
            self.demand(node)
        found = self.found
        found.tasks.sort(key=lambda t: t.time)
        found.last = {v: max(times, default=-1) for v, times in self.needed.items()}
        found.flops = {v: flops for v, (flops, _) in self.cost.items()}
        return found

    def is_single(self, shape: Shape) -> bool:
        """Tell whether there is one element per row, or only one at all."""
        return len(canonical(shape)) <= len(self.rows) and (
            canonical(shape) in ((), self.rows)
        )

    # Costs ------------------------------------------------------------------------

    def find_cost(self, node: Node) -> None:
        """Find what it costs to compute a value where it is wanted: flops and loads."""
        v = node.result
        match node.op.kind:
            case Kind.CREATION:
                self.cost[v] = 0, frozenset()
            case Kind.VIEW | Kind.ELEMENTWISE:
                flops = 0 if node.op.kind is Kind.VIEW else node.op.cost
                loads: frozenset[Value] = frozenset()
                for x in node.operands:
                    known = self.cost_of(x)
                    if known is None:
                        return
                    flops += known[0]
                    loads |= known[1]
                self.cost[v] = flops, loads
            case Kind.REDUCTION | Kind.SCATTER:
                self.cost[v] = 0, frozenset((v,))
            case _:
                pass

    def cost_of(self, x: Operand) -> tuple[int, frozenset[Value]] | None:
        if not isinstance(x, Value) or self.is_single(x.type.shape):
            return 0, frozenset()
        if x not in self.inside:
            return 0, frozenset((x,))
        return self.cost.get(x)

    def is_cheap(self, v: Value) -> bool:
        known = self.cost.get(v)
        return known is not None and known[0] + len(known[1]) <= CHEAP

    # Times ------------------------------------------------------------------------

    def find_time(self, node: Node) -> None:
        v = node.result
        _, index = point_of(node)
        start = max((self.ready(node, *r) for r in self.reads(node, index)), default=0)
        if node.op.kind is Kind.SCATTER and self.fills(node):
            base = node.operands[0]
            ready = self.after(base, same=True) if isinstance(base, Value) else 0
            self.fill[v] = self.fit(ready, canonical(v.type.shape))
            start = max(start, self.fill[v] + 1)
        self.time[v] = self.fit(start, space_of(node))

    def fills(self, scatter: Node) -> bool:
        """Tell whether the base of a scatter is stored where its result will be."""
        return scatter.result in self.used or scatter.operands[0] in self.inside

    def reads(self, node: Node, index: Index) -> list[tuple[Operand, Index | None]]:
        return reads_at(node, index, self.inside)

    def fit(self, time: int, space: Shape) -> int:
        """Return the next time, even for what there is once per row."""
        odd = len(space) > len(self.rows)
        return time + (time % 2 != odd)

    def ready(self, node: Node, x: Operand, index: Index | None) -> int:
        """Return the first time at which a node can have an operand."""
        if not isinstance(x, Value) or x not in self.inside:
            return 0
        shape = x.type.shape
        loops = [dims.symbol(f"@{k}") for k in range(len(canonical(shape)))]
        same = index == place(shape, loops) and (
            self.is_single(shape) or canonical(shape) == space_of(node)
        )
        return self.after(x, same)

    def after(self, x: Value, same: bool) -> int:
        if x not in self.inside:
            return 0
        kind = self.inside[x].op.kind
        if kind in (Kind.REDUCTION, Kind.SCATTER):
            return self.time[x] + 1
        if same or self.is_cheap(x) or self.is_single(x.type.shape):
            return self.time[x]
        self.elsewhere.add(x)
        return self.time[x] + 1

    # Demands ----------------------------------------------------------------------

    def demand(self, node: Node) -> None:
        """Decide when a value is computed; all that use it have been decided."""
        v = node.result
        times, time = self.needed[v], self.time[v]
        if not times and v not in self.results:
            return
        match node.op.kind:
            case Kind.REDUCTION:
                self.do(time, Do.FOLD, node)
                if times and not self.is_single(v.type.shape):
                    self.found.kept[v] = time
                self.need(node.operands, time)
            case Kind.SCATTER:
                self.do(time, Do.SCATTER, node)
                self.need(node.operands[1:], time)
                if v in self.fill:
                    self.do(self.fill[v], Do.FILL, node)
                    self.need(node.operands[:1], self.fill[v])
                    self.found.kept[v] = time
            case _:
                found = self.computed(node, times, time)
                self.found.computed[v] = found
                self.need(node.operands, *found)

    def computed(self, node: Node, times: set[int], time: int) -> set[int]:
        """Return when a value is computed, and have it stored where it is kept."""
        v = node.result
        if v in self.results or v in self.elsewhere:
            first = time
        elif self.is_single(v.type.shape):
            return {min(times)}
        elif len(times) > 1 and node.op.kind is not Kind.VIEW and not self.is_cheap(v):
            first = self.fit(min(times), space_of(node))
        else:
            return times
        self.do(first, Do.STORE, node)
        self.found.kept[v] = first
        return {first}

    def do(self, time: int, what: Do, node: Node) -> None:
        fills = what is Do.FILL
        space = canonical(node.result.type.shape) if fills else space_of(node)
        self.found.tasks.append(Task(time, what, node, space))

    def need(self, operands: Sequence[Operand], *times: int) -> None:
        for x in operands:
            if isinstance(x, Value) and x in self.needed:
                self.needed[x].update(times)


def memory_shape(shape: Shape, rows: int) -> Shape:
    """Return the shape of what is kept of a value for one row.

    >>> memory_shape((5, 1, 7), 1)
    (7,)
    """
    _, rest = row_axes(shape, rows)
    return tuple(shape[k] for k in rest)
