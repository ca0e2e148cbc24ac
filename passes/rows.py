"""Join groups of nodes that share their rows: each row is read from memory once.

Before: after fuse, every group has one index space. After: groups whose spaces begin
with the same axes, the rows, and that pass values on within a row only, are one `fused`
node with an attribute `rows`, the number of these axes. It still means its nodes
inlined. How a row is computed is planned in `ir/stages.py`.

    %m: f64[n,1] = max %x {axis=(1,), ...}      %y: f64[n,k] = fused {
    %e: f64[n,k], %s: f64[n,1] = fused {          %m.1: f64[n,1] = max %x {...}
      %d: f64[n,k] = subtract %x, %m              %d: f64[n,k] = subtract %x, %m.1
      %e.1: f64[n,k] = exp %d                     %e.1: f64[n,k] = exp %d
      %s.1: f64[n,1] = sum %e.1 {...}             %s.1: f64[n,1] = sum %e.1 {...}
      yield %e.1, %s.1                            %y.1: f64[n,k] = divide %e.1, %s.1
    }                                             yield %y.1
    %y: f64[n,k] = divide %e, %s                } {rows=1}

Note [ranks]
Rows are what a reduction over the last axes of a space leaves. A node or group whose
space begins with rows has these as its key. It has a rank, too: a value that leaves a
node with a key raises the rank by one, unless it is read by a node of that key, at the
row where it is computed. Nodes of one key, one rank and a common value form a group.
Ranks never fall along a use and rise where a group is left, as the levels of `fuse` do,
so no two groups can need each other.

What is reduced over rows, and what is written to other rows, leaves its group like any
result: nobody in the group reads it.

Note [several rows]
Where a block has rows of several numbers of axes, as in a sum over d and a softmax over
k of [n, k, d], a node takes those that it reduces to itself. If its values are read
back by larger nodes, one for each row, they are these rows; else the longest of which
it reads one value for each; else the longest that leave it something inside.

Note [short rows]
Nobody knows here how long rows are. Where they have 3 elements, what there is once per
row is a large part of the work, and is better done for many rows in a loop of its own,
with vectors: the powers of distances between n bodies took 4 times as long inside. So
a group may call the library once per row only as often as it does for each element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..ir import dims, stages
from ..ir.access import (
    canonical,
    element_reads,
    reads_of,
    space_of,
    view_of,
    writes_of,
    written_index,
)
from ..ir.build import IRBuilder, names_in
from ..ir.dims import Facts, Symbol
from ..ir.func import Block, Func, Node, Operand, Value, free_values, type_of
from ..ir.op import OPS, Kind
from ..ir.types import Shape
from ..ir.verify import loop_facts
from .cse import merged
from .fuse import GROUPED, key_of, replace_body, symbols_of_node
from .schedule import Item, in_order
from .scope import defined_symbol, definers, values_of, with_operands

Key = tuple[Shape, int]  # the rows, and the number of checks before


def rows(f: Func) -> Func:
    """Return `f` with groups that share their rows joined."""
    names = IRBuilder(tuple(names_in(f)))
    sized = {v for n in definers(f) for v in n.results}
    return replace_body(f, _Rows(names, f.body, f.size_facts(), sized).block())


@dataclass(eq=False, slots=True)
class Unit:
    """A node, or what has been a group so far."""

    place: int
    node: Node
    space: Shape = ()
    fits: list[Shape] = field(default_factory=list)  # rows that it could have
    stretch: int = 0
    key: Key | None = None
    rank: int = 0
    reads: dict[Value, bool] = field(default_factory=dict)  # only in its own row?
    has_rows: bool = False  # its loops over rows and inside them cannot be one loop

    @property
    def inside(self) -> Sequence[Node]:
        fused = self.node.op.kind is Kind.FUSED
        return self.node.regions[0].nodes if fused else (self.node,)

    @property
    def yielded(self) -> Sequence[Operand]:
        fused = self.node.op.kind is Kind.FUSED
        return self.node.regions[0].results if fused else self.node.results

    @property
    def roots(self) -> list[Node]:
        makers = {v: n for n in self.inside for v in n.results}
        found = (makers.get(x) for x in self.yielded if isinstance(x, Value))
        return [n for n in found if n is not None]


class _Rows:
    """Joins the groups of one block; regions come first."""

    def __init__(
        self, names: IRBuilder, block: Block, facts: Facts, sized: set[Value]
    ) -> None:
        self.names = names
        self.facts = facts
        self.sized = sized  # results of nodes that define a symbol, not check it
        self.source = block
        self.nodes = [self.regions(n) for n in block.nodes]
        self.views = {n.result: n for n in self.nodes if n.op.kind is Kind.VIEW}
        self.place = {v: k for k, n in enumerate(self.nodes) for v in n.results}
        self.units = [
            Unit(k, n) for k, n in enumerate(self.nodes) if n.op.kind is not Kind.VIEW
        ]
        self.maker = {v: u for u in self.units for v in u.node.results}
        self.sizes: dict[Symbol, Unit] = {}
        self.checks: list[int] = []
        self.parents = {id(u): u for u in self.units}

    def regions(self, node: Node) -> Node:
        """Join groups inside the regions of a node."""
        if not node.regions or node.op.kind is Kind.FUSED:
            return node
        facts = self.facts
        if node.op.kind is Kind.FOR:
            facts = facts.having(*loop_facts(node))
        blocks = (_Rows(self.names, r, facts, self.sized).block() for r in node.regions)
        return Node(
            node.op, node.operands, node.attrs, node.results, tuple(blocks), node.loc
        )

    def block(self) -> Block:
        self.find_keys()
        if any(u.key for u in self.units):
            self.find_ranks()
            groups = [g for g in self.groups() if self.pays(g)]
        else:
            groups = []
        nodes = self.emit(groups)
        return Block(self.source.params, nodes, self.source.results)

    # Keys -------------------------------------------------------------------------

    def find_keys(self) -> None:
        """Find the rows of every node; see Note [ranks]."""
        known = {r for u in self.units for n in u.inside for r in _rows_left(n)}
        for u in self.units:
            if known and self.can_join(u):
                u.space = space_of(u.roots[0])
                u.fits = sorted((r for r in known if u.space[: len(r)] == r), key=len)
                u.stretch = len(self.checks)
            if u.node.op.kind is Kind.CHECK:
                self.checks.append(u.place)
            s = defined_symbol(u.node)
            if s is not None and not self.sized.isdisjoint(u.node.results):
                self.sizes.setdefault(s, u)
        back: set[Value] = set()  # what rows are computed from, one value for each
        for u in reversed(self.units):
            if u.fits:
                u.key = self.rows_of(u, back), u.stretch
                if len(u.space) > len(u.key[0]):
                    read = {x for v in values_of(u.node) for x in self.sources(v)}
                    back |= {x for x in read if canonical(x.type.shape) == u.key[0]}

    def rows_of(self, u: Unit, back: set[Value]) -> Shape:
        """Choose among the rows that a unit could have; see Note [several rows]."""
        if len(u.fits) == 1:
            return u.fits[0]
        own = {r for n in u.inside for r in _rows_left(n)}
        inner = [r for r in u.fits if len(r) < len(u.space)]
        reads = {
            canonical(x.type.shape) for v in values_of(u.node) for x in self.sources(v)
        }
        if own:
            return max(own, key=len)
        if back.intersection(u.node.results):
            return u.space
        return next(
            (r for r in reversed(inner) if r in reads), [*u.fits[:1], *inner][-1]
        )

    def can_join(self, u: Unit) -> bool:
        """Tell whether a node is a nest with loops in the order of their axes."""
        if u.node.op.kind not in GROUPED and u.node.op.kind is not Kind.FUSED:
            return False
        if "order" in u.node.attrs or len(u.roots) != len(u.yielded):
            return False
        if not u.roots or all(n.op.kind is Kind.CREATION for n in u.inside):
            return False
        keys = [key_of(n, 0) for n in u.inside if n.op.kind is not Kind.VIEW]
        straight = all(k is not None and not k[1] for k in keys)
        return straight and len({space_of(n) for n in u.roots}) == 1

    # Ranks ------------------------------------------------------------------------

    def find_ranks(self) -> None:
        """See Note [ranks]."""
        for u in self.units:
            u.reads = self.reads(u)
            for v, near in u.reads.items():
                w = self.maker.get(v)
                if w is None:
                    continue
                within = near and u.key == w.key and self.is_of_row(w, v)
                u.rank = max(u.rank, w.rank + (w.key is not None and not within))
            for s in self.symbols(u) & self.sizes.keys():
                if self.sizes[s] is not u:
                    u.rank = max(u.rank, self.sizes[s].rank)
            if u.key is not None:
                count = len(u.key[0])
                u.has_rows = any(_reduces_a_part(n) for n in u.inside) or any(
                    near and len(canonical(v.type.shape)) == count
                    for v, near in u.reads.items()
                )

    def reads(self, u: Unit) -> dict[Value, bool]:
        """Return what a unit reads: whether only at the row that it computes."""
        sources = {x for v in values_of(u.node) for x in self.sources(v)}
        found = dict.fromkeys(sorted(sources, key=lambda v: v.name), False)
        if u.key is None:
            return found
        count = len(u.key[0])
        accesses = reads_of(u.inside, u.roots, self.views)
        makers = {v: n for n in u.inside for v in n.results}
        far: set[Value] = set()
        for n in u.roots:
            if n.op.kind is Kind.SCATTER:
                base = element_reads((), n.operands[0], self.views)
                accesses += base
                if not _keeps_rows(n, count, makers):
                    far.update(r.value for r in base)
        far |= found.keys() - {r.value for r in accesses}
        for r in accesses:
            if r.index is None or not _in_row(r.value.type.shape, r.index, count):
                far.add(r.value)
        return {v: v not in far for v in found}

    def sources(self, v: Value) -> Iterator[Value]:
        """Yield what a value is: itself, or of a view its base and its indices."""
        view = self.views.get(v)
        if view is None:
            yield v
            return
        for x in view.operands:
            if isinstance(x, Value):
                yield from self.sources(x)

    def symbols(self, u: Unit) -> set[Symbol]:
        """Return the symbols that a unit mentions, and the views that it reads."""
        if not self.sizes:
            return set()
        found = set(symbols_of_node(u.node))
        stack = [v for v in values_of(u.node) if v in self.views]
        while stack:
            view = self.views[stack.pop()]
            found.update(symbols_of_node(view))
            stack += [v for v in values_of(view) if v in self.views]
        return found

    def is_of_row(self, u: Unit, v: Value) -> bool:
        """Tell whether a row of a result is known when that row has been computed."""
        assert u.key is not None
        k = u.node.results.index(v)
        makers = {x: n for n in u.inside for x in n.results}
        inner = u.yielded[k]
        assert isinstance(inner, Value)
        node, count = makers[inner], len(u.key[0])
        if node.op.kind is Kind.REDUCTION:
            loops = [a for a, d in enumerate(type_of(node.operands[0]).shape) if d != 1]
            over = set(node.attrs["axis"]) & set(loops)
            kept = len(loops) - len(over)
            return kept >= count and over == set(loops[kept:])
        if node.op.kind is Kind.SCATTER:
            return _keeps_rows(node, count, makers)
        return True

    # Groups -----------------------------------------------------------------------

    def groups(self) -> list[list[Unit]]:
        """Join units of one key and rank that pass values on, or read the same rows."""
        shared: dict[tuple[Key, int, Value], Unit] = {}
        for u in self.units:
            if u.key is None:
                continue
            for v, near in u.reads.items():
                w = self.maker.get(v)
                if not near:
                    continue
                if w is not None and w.key == u.key and w.rank == u.rank:
                    self.join(u, w)
                elif u.has_rows and len(canonical(v.type.shape)) > len(u.key[0]):
                    self.join(u, shared.setdefault((u.key, u.rank, v), u))
        found: dict[int, list[Unit]] = {}
        for u in self.units:
            if u.key is not None:
                found.setdefault(id(self.find(u)), []).append(u)
        return [g for g in found.values() if len(g) > 1]

    def find(self, u: Unit) -> Unit:
        while self.parents[id(u)] is not u:
            self.parents[id(u)] = self.parents[id(self.parents[id(u)])]
            u = self.parents[id(u)]
        return u

    def join(self, u: Unit, w: Unit) -> None:
        self.parents[id(self.find(u))] = self.find(w)

    def pays(self, group: Sequence[Unit]) -> bool:
        """Tell whether a group reduces rows, and writes nothing that it still reads.

        See Note [short rows] for the calls.
        """
        if not any(_rows_left(n) for u in group for n in u.inside):
            return False
        if not self.has_more_calls_inside(group) or not self.stays_in_rows(group):
            return False
        if not any(n.op.kind is Kind.SCATTER for u in group for n in u.roots):
            return True
        outs = [v for u in group for v in u.node.results]
        region, key = self.region(group, outs), group[0].key
        assert key is not None
        found = stages.plan(region.nodes, region.results, len(key[0]))
        shapes = {canonical(v.type.shape) for v in found.kept}
        if any(s and s[: len(key[0])] != key[0] for s in shapes):
            return False  # a view across rows: of none of them has it a part to keep
        reads = list(found.reads(self.views))
        return not any(
            stages.disturbs(found, writes_of(t.node), t.time, reads, self.facts)
            for t in found.tasks
            if t.do is stages.Do.SCATTER and t.node.result not in found.kept
            if isinstance(t.node.operands[0], Value)
        )

    def stays_in_rows(self, group: Sequence[Unit]) -> bool:
        """Tell whether a group reads what it computes at the row that is computed.

        What a unit computes anew for another row may be what the group keeps of each
        row, and merged with it; a row that is still to come is not in memory.
        """
        region, key = self.region(group, ()), group[0].key
        assert key is not None
        computed = [n for n in region.nodes if n.op.kind is not Kind.VIEW]
        views = {n.result: n for n in region.nodes if n.op.kind is Kind.VIEW}
        made = [n for n in region.nodes if n.op.kind is Kind.CREATION]  # as `arange`
        of_rows = {
            v
            for n in computed
            for v in n.results
            if canonical(v.type.shape)[: len(key[0])] == key[0]
        }
        return all(
            r.index is not None and _in_row(r.value.type.shape, r.index, len(key[0]))
            for n in computed
            for r in reads_of(made, [n], views)
            if r.value in of_rows
        )

    def has_more_calls_inside(self, group: Sequence[Unit]) -> bool:
        """Tell whether rows call the library as often as what there is once per row."""
        key = group[0].key
        assert key is not None
        inside = once = 0
        for n in {n for u in group for n in u.inside}:
            if n.op.kind is Kind.ELEMENTWISE and n.op.cost >= stages.LIBRARY:
                is_once = len(space_of(n)) <= len(key[0])
                once += is_once
                inside += not is_once
        return once <= inside

    # Output -----------------------------------------------------------------------

    def region(self, group: Sequence[Unit], outs: Sequence[Value]) -> Block:
        """Return the nodes of a group as one region that yields `outs`."""
        own = {v for u in group for v in u.node.results}
        swap: dict[Value, Operand] = {}
        nodes: list[Node] = []

        def bring(x: Value) -> None:
            """Bring a view of what is computed inside into the region."""
            view = self.views.get(x)
            if view is None or x in swap or own.isdisjoint(self.sources(x)):
                return
            for y in view.operands:
                if isinstance(y, Value):
                    bring(y)
            add(view)

        def add(node: Node) -> None:
            """Add a node that is not in a region yet, under names of its own."""
            new = tuple(Value(self.names.name(v.name), v.type) for v in node.results)
            node = with_operands(node, swap)
            nodes.append(Node(node.op, node.operands, node.attrs, new, (), node.loc))
            swap.update(zip(node.results, new, strict=True))

        for u in group:
            for x in values_of(u.node):
                bring(x)
            if u.node.op.kind is not Kind.FUSED:
                add(u.node)
                continue
            nodes.extend(with_operands(n, swap) for n in u.inside)
            swap.update(zip(u.node.results, u.yielded, strict=True))
        return merged(Block((), tuple(nodes), tuple(swap[v] for v in outs)))

    def emit(self, groups: Sequence[Sequence[Unit]]) -> tuple[Node, ...]:
        joined = {id(u) for g in groups for u in g}
        items: list[tuple[Sequence[Unit], Node | None]] = [(g, None) for g in groups]
        items += [((u,), u.node) for u in self.units if id(u) not in joined]
        outside = self.used_outside(groups, joined)
        made: list[Item] = []
        for units, node in items:
            if node is None:
                node = self.joined(units, outside)
            place = max(u.place for u in units)
            made.append(Item(place, (node,), first=min(u.place for u in units)))
        for v, view in self.views.items():
            if v in outside:
                made.append(Item(self.place[v], (view,), first=self.place[v]))
        self.connect(made)
        return tuple(in_order(made))

    def used_outside(
        self, groups: Sequence[Sequence[Unit]], joined: set[int]
    ) -> set[Value]:
        """Return the values that are used by more than the group that makes them."""
        found = {x for x in self.source.results if isinstance(x, Value)}
        for u in self.units:
            if id(u) not in joined:
                found.update(values_of(u.node))
        for g in groups:
            own = [v for u in g for v in u.node.results]
            found.update(free_values(self.region(g, own)))
        for v, view in reversed(self.views.items()):
            if v in found:
                found.update(values_of(view))
        return found

    def joined(self, group: Sequence[Unit], outside: set[Value]) -> Node:
        outs = [v for u in group for v in u.node.results if v in outside]
        region, key = self.region(group, outs), group[0].key
        assert key is not None
        attrs = {"rows": len(key[0])}
        loc = group[-1].node.loc
        return Node(OPS["fused"], (), attrs, tuple(outs), (region,), loc)

    def connect(self, items: Sequence[Item]) -> None:
        """Find what each item needs, and keep it behind checks."""
        owner: dict[Value | Symbol, Item] = {}
        for i in items:
            for node in i.nodes:
                owner.update(dict.fromkeys(node.results, i))
        for i in items:
            for node in i.nodes:
                s = defined_symbol(node)
                if s in self.sizes and self.sizes[s].node is node:
                    owner[s] = i
        checks = {c: i for i in items for c in self.checks if i.place == c}
        for i in items:
            for node in i.nodes:
                used = {*values_of(node), *symbols_of_node(node)}
                i.needs += [owner[x] for x in used if x in owner]
            before = [c for c in self.checks if c < i.first]
            if before:
                i.needs.append(checks[before[-1]])


def _reduces_a_part(node: Node) -> bool:
    """Tell whether a node reduces some loops of its space, and not others."""
    if node.op.kind is not Kind.REDUCTION:
        return False
    shape = type_of(node.operands[0]).shape
    over = {k in node.attrs["axis"] for k, d in enumerate(shape) if d != 1}
    return len(over) == 2


def _rows_left(node: Node) -> list[Shape]:
    """Return the rows that a reduction over the last axes of its space leaves."""
    if node.op.kind is not Kind.REDUCTION:
        return []
    shape = type_of(node.operands[0]).shape
    loops = [k for k, d in enumerate(shape) if d != 1]
    over = set(node.attrs["axis"]) & set(loops)
    kept = len(loops) - len(over)
    if not over or not kept or over != set(loops[kept:]):
        return []
    return [tuple(shape[k] for k in loops[:kept])]


def _in_row(shape: Shape, index: Sequence[dims.Dim], rows: int) -> bool:
    """Tell whether an index into a value is one into the row of the nest."""
    axes, _ = stages.row_axes(shape, rows)
    loops = [dims.symbol(f"@{k}") for k in range(rows)]
    return [index[k] for k in axes] == loops


def _keeps_rows(scatter: Node, rows: int, makers: dict[Value, Node]) -> bool:
    """Tell whether a scatter writes only to the row that it computes."""
    if view_of(scatter).kind is Kind.MASK:
        return False
    shape = type_of(scatter.operands[0]).shape
    fits = canonical(shape)[:rows] == space_of(scatter)[:rows]
    return fits and _in_row(shape, written_index(scatter, makers), rows)
