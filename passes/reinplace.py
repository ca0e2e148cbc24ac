"""Compute values in the buffers of operands that nobody reads any more.

Before: a pure Func, after fuse. After: the same, with marks `!%x`: the result is
computed in the buffer of %x. Marked are scatters (only their part is written), results
of elementwise nodes and fused groups, the carries of loops (one buffer from the initial
value to the final one), and results of a cond whose branches only change an array.

    %d: f64[n] = select_scatter %c, %p, i {axis=0}
    %d: f64[n] !%c = select_scatter %c, %p, i {axis=0}

A buffer may be overwritten where all of this is proven:
- it belongs to the block: a node of the block made it, or it is a carry of the loop;
- this node is the last that reads it, through any view;
- the node itself reads an element no later than it writes it: in the same iteration of
  its nest, or in an earlier one. Loops run downwards where that makes it so: a group
  with an attribute `order` has a 1 or -1 for each loop.

Note [copies]
What reads an array stands before what writes into it, where neither needs the other
the other way round. Where only views of a buffer are still read, after the node or by
it in the wrong order, these are copied before it, if they are smaller than the copy
that this saves. A scatter whose `new` is such a view of its base gets a copy of `new`,
which is never larger than the base.

Note [updated parameters]
Memory of a parameter that the Func updates is the program's too, but the caller sees
it. It is overwritten only where no later node, nor the node itself, can find an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..ir import stages
from ..ir.access import (
    Access,
    Need,
    Order,
    canonical,
    hazards,
    in_sequence,
    joined,
    may_fail,
    need_of,
    place,
    reads_of,
    space_of,
    to_copy,
    volume,
    writes_of,
)
from ..ir.build import IRBuilder, names_in
from ..ir.dims import Expr, Facts, Symbol, symbol, symbols_of
from ..ir.func import (
    Block,
    Copier,
    Func,
    Node,
    Operand,
    Value,
    dims_of_node,
    free_values,
    walk,
)
from ..ir.op import OPS, Kind
from ..ir.verify import loop_facts
from .scope import defined_symbol, values_of, views_first, with_operands

LOOPS = (Kind.FOR, Kind.WHILE)


def reinplace(f: Func) -> Func:
    """Return `f` with marks on values that are computed in place."""
    plan = _Plan(IRBuilder(tuple(names_in(f))), frozenset(f.params))
    where = {i: f.params[j] for i, j in f.updates}
    for i, r in enumerate(f.results):
        if isinstance(r, Value):
            plan.homes[r] = plan.homes.get(r) or where.get(i)
    updated = {f.params[j] for _, j in f.updates}
    body = plan.block(f.body, f.size_facts(), visible=updated)
    return replace(f, body=_Marker(plan.marks).block(body))


@dataclass(slots=True)
class _Nest:
    """What a node computes in one nest: its roots, and what they read."""

    node: Node
    roots: list[Node]
    reads: list[Access]
    order: Order

    @property
    def bases(self) -> list[Operand]:
        return [r.operands[0] for r in self.roots if r.op.kind is Kind.SCATTER]

    def folds(self) -> bool:
        return any(r.op.kind is Kind.REDUCTION for r in self.roots)


@dataclass(slots=True)
class _Plan:
    """Decides, block by block; a block comes back with the copies that it needs."""

    names: IRBuilder
    params: frozenset[Value]
    marks: dict[Value, Value] = field(default_factory=dict)
    views: dict[Value, Node] = field(default_factory=dict)
    content: dict[Value, Value] = field(default_factory=dict)  # view -> what it shows
    # Results of the Func, and the parameters in whose memory the caller wants them.
    homes: dict[Value, Value | None] = field(default_factory=dict)

    def shown(self, v: Value) -> Value:
        return self.content.get(v, v)

    def block(
        self,
        b: Block,
        facts: Facts,
        *,
        own: Iterable[Value] = (),
        visible: Iterable[Value] = (),
    ) -> Block:
        """Decide for a block; `own` are values from outside that it may overwrite."""
        scan = _Scan(self, b)
        owned = {v for v in own if v.type.shape}
        seen_by_caller = set(visible)
        k = 0
        while k < len(scan.nodes):
            node = scan.nodes[k]
            free = set(owned)
            if seen_by_caller and k >= scan.safe_from(facts):
                free |= seen_by_caller
            views: Sequence[Value] = scan.views_to_copy(k, free)
            dead = {v for v in free if scan.last.get(v, -1) <= k}
            if not views:
                views, taken = self.node(scan, k, dead, facts)
            if views:  # and come back to the node after them
                scan.copy(k, views)
                continue
            owned -= taken
            seen_by_caller -= taken
            node = scan.nodes[k]
            if node.op.kind is not Kind.VIEW and (
                node.operands or node.op.lower is not None or node.regions
            ):
                owned.update(v for v in node.results if v.type.shape)
            k += 1
        return Block(b.params, tuple(scan.nodes), scan.results)

    def note_view(self, node: Node) -> None:
        if node.op.kind is Kind.VIEW and node.result.type.shape:
            base = node.operands[0]
            self.views[node.result] = node
            if isinstance(base, Value):
                self.content[node.result] = self.shown(base)

    # Nodes ------------------------------------------------------------------------

    def node(
        self, scan: _Scan, k: int, dead: set[Value], facts: Facts
    ) -> tuple[Sequence[Value], set[Value]]:
        """Decide for a node.

        Returns views to copy before it, or else the values whose buffers it takes.
        """
        node = scan.nodes[k]
        match node.op.kind:
            case Kind.FOR | Kind.WHILE:
                scan.nodes[k] = self.loop(node, facts)
                return (), self.carries(node, dead)
            case Kind.COND:
                regions = [self.block(r, facts, own=dead) for r in node.regions]
                scan.nodes[k] = replace(node, regions=tuple(regions))
                return (), self.branches(scan.nodes[k], dead)
            case Kind.SCATTER | Kind.ELEMENTWISE:
                return self.group(scan, k, (node,), node.results, dead, facts)
            case Kind.FUSED if "rows" in node.attrs:
                return (), self.rows(node, dead, facts)
            case Kind.FUSED:
                (region,) = node.regions
                return self.group(scan, k, region.nodes, region.results, dead, facts)
            case _:
                return (), set()

    def loop(self, node: Node, facts: Facts) -> Node:
        if node.op.kind is Kind.FOR:
            (body,) = node.regions
            facts = facts.having(*loop_facts(node))
            return replace(node, regions=(self.block(body, facts, own=body.params),))
        test, body = node.regions
        first = self.block(test, facts)
        return replace(node, regions=(first, self.block(body, facts, own=test.params)))

    def carries(self, node: Node, dead: set[Value]) -> set[Value]:
        taken: set[Value] = set()
        inside = {self.shown(v) for r in node.regions for v in free_values(r)}
        shown = [self.shown(x) for x in node.operands if isinstance(x, Value)]
        for x, v in zip(node.operands, node.results, strict=False):
            if not isinstance(x, Value) or x not in dead or x in inside:
                continue
            if shown.count(x) == 1 and x.type.array() == v.type.array():
                self.marks[v] = x
                taken.add(x)
        return taken

    def branches(self, node: Node, dead: set[Value]) -> set[Value]:
        """Mark results that a branch computes in the buffer of a value from outside."""
        taken: set[Value] = set()
        for k, v in enumerate(node.results):
            for x in dict.fromkeys(self.origin(r.results[k]) for r in node.regions):
                if x not in dead or x in taken or x.type.array() != v.type.array():
                    continue
                others = (
                    y
                    for r in node.regions
                    for j, y in enumerate(r.results)
                    if j != k and isinstance(y, Value)
                )
                if not any(self.origin(self.shown(y)) is x for y in others):
                    self.marks[v] = x
                    taken.add(x)
                    break
        return taken

    def origin(self, x: Operand) -> Value | None:
        """Return the value whose buffer `x` was first computed in."""
        while isinstance(x, Value) and x in self.marks:
            x = self.marks[x]
        return x if isinstance(x, Value) else None

    # Nests ------------------------------------------------------------------------

    def group(
        self,
        scan: _Scan,
        k: int,
        inside: Sequence[Node],
        yielded: Sequence[Operand],
        dead: set[Value],
        facts: Facts,
    ) -> tuple[Sequence[Value], set[Value]]:
        """Mark results of a nest; all reads of an iteration come before its writes."""
        node = scan.nodes[k]
        for v in node.results:  # of a first try, before copies were made
            self.marks.pop(v, None)
        makers = {v: n for n in inside for v in n.results}
        roots = [makers.get(x) if isinstance(x, Value) else None for x in yielded]
        nests = [r for r in roots if r is not None]
        if len(nests) != len(roots) or len({space_of(r) for r in nests}) > 1:
            return (), set()
        reads = reads_of(inside, nests, self.views)
        kept = [n for r in nests if r.op.kind is Kind.SCATTER for n in _sequence(r)]
        nest = _Nest(node, nests, reads, joined(kept, {}) or {})
        taken: set[Value] = set()
        for v, root in zip(node.results, nests, strict=True):
            for x, write in self.candidates(nest, root, v, dead - taken):
                views = self.into(nest, root, write, facts)
                if views is None:
                    continue
                if views:
                    return views, set()
                self.marks[v] = x
                taken.add(x)
                break
        if -1 in nest.order.values():
            count = len(space_of(nests[0]))
            order = tuple(nest.order.get(j, 1) for j in range(count))
            scan.nodes[k] = self.ordered(node, order)
        return (), taken

    def rows(self, node: Node, dead: set[Value], facts: Facts) -> set[Value]:
        """Mark results of a group over rows; see `ir/stages.py`."""
        (region,) = node.regions
        plan = stages.plan(region.nodes, region.results, node.attrs["rows"])
        reads = list(plan.reads(self.views))
        stored: dict[Value, stages.Task] = {}
        for task in plan.tasks:  # a scatter's result first holds its base
            stored.setdefault(task.node.result, task)
        taken: set[Value] = set()
        for v, r in zip(node.results, region.results, strict=True):
            assert isinstance(r, Value)
            task = stored[r]
            for write in self.row_writes(plan, task, v, reads):
                x = write.value
                if x not in dead - taken or x.type.array() != v.type.array():
                    continue
                if not stages.disturbs(plan, write, task.time, reads, facts):
                    self.marks[v] = x
                    taken.add(x)
                    break
        return taken

    def row_writes(
        self,
        plan: stages.Plan,
        task: stages.Task,
        v: Value,
        reads: Sequence[tuple[int, Access]],
    ) -> list[Access]:
        """Return how a result could be written in place, in the order to try it."""
        if task.do is stages.Do.FOLD:
            return []
        if task.do is stages.Do.SCATTER:
            is_array = isinstance(task.node.operands[0], Value)
            return [writes_of(task.node)] if is_array else []
        bases = {t.node.operands[0] for t in plan.tasks if t.do is stages.Do.SCATTER}
        places = self.places(v, (read for _, read in reads))
        return [_whole(x) for x in places if x not in bases]

    def candidates(
        self, nest: _Nest, root: Node, v: Value, dead: set[Value]
    ) -> Iterator[tuple[Value, Access]]:
        """Yield the values whose buffers a root may be computed in, and its write."""
        bases = nest.bases
        if not v.type.shape or root.op.kind is Kind.REDUCTION:
            return
        if root.op.kind is Kind.SCATTER:
            x = root.operands[0]
            if isinstance(x, Value) and x in dead and bases.count(x) == 1:
                yield x, writes_of(root)
            return
        for x in self.places(v, nest.reads):
            if x in dead and x not in bases and x.type.array() == v.type.array():
                yield x, _whole(x)

    def places(self, v: Value, reads: Iterable[Access]) -> Iterator[Value]:
        """Yield the values whose buffers could hold `v`, the best ones first.

        A result has memory of its own: the parameter that it updates, or a new array,
        into which it would have to be copied from any parameter.
        """
        home = self.homes.get(v)
        if home is not None:
            yield home
        for x in dict.fromkeys(r.value for r in reads):
            if x is not home and not (v in self.homes and x in self.params):
                yield x

    def into(
        self, nest: _Nest, root: Node, write: Access, facts: Facts
    ) -> Sequence[Value] | None:
        """Tell whether a root may be written in place, and find the order for it.

        Returns what has to be copied before the nest, or None where it may not.
        """
        reads = [r for r in nest.reads if r.value is write.value]
        order, bad = nest.order, hazards(write, reads, facts)
        for r in reads:
            need = need_of(write, r, facts)
            found = joined([need], order) if r not in bad else order
            if found is None or (nest.folds() and need.step < 0):
                bad.append(r)
            else:
                order = found
        if not bad:
            nest.order = order
            return ()
        new = root.operands[1] if root.op.kind is Kind.SCATTER else None
        limit = volume(tuple(d for _, d in write.space))
        views = to_copy(bad, limit)
        if views is None and nest.node is root and isinstance(new, Value):
            views = [new] if all(r.via is new for r in bad) else None
        if views is not None and any(v is write.value for v in views):
            return None
        return views

    def ordered(self, node: Node, order: tuple[int, ...]) -> Node:
        """Return a node whose loops run in the given directions."""
        if node.op.kind is Kind.FUSED:
            return replace(node, attrs={**node.attrs, "order": order})
        inner = Value(self.names.name(node.result.name), node.result.type)
        region = Block((), (replace(node, results=(inner,)),), (inner,))
        fused, attrs = OPS["fused"], {"order": order}
        return Node(fused, (), attrs, node.results, (region,), node.loc)


class _Scan:
    """The nodes of a block while they are decided on, one after the other."""

    def __init__(self, plan: _Plan, b: Block) -> None:
        self.plan = plan
        self.nodes = views_first(b.nodes)
        self.results = b.results
        self.safe: int | None = None
        self.look()
        if self.reads_first():
            self.look()

    def reads_first(self) -> bool:
        """Move what reads an array in front of what writes into it."""
        moved = False
        for write in [n for n in self.nodes if any(True for _ in _bases(n))]:
            bases = set(_bases(write))
            if all(self.last.get(x, -1) <= self.nodes.index(write) for x in bases):
                continue
            k = self.nodes.index(write) + 1
            while k < len(self.nodes):
                node = self.nodes[k]
                late = any(self.plan.shown(v) in bases for v in values_of(node))
                if late and node.op.kind is not Kind.VIEW and self.move(k, write):
                    moved = True
                k += 1
        return moved

    def move(self, k: int, write: Node) -> bool:
        """Move node k and what it needs in front of `write`, if that is possible."""
        start = self.nodes.index(write)
        needed, taken = {*_needs(self.nodes[k])}, [k]
        for j in range(k - 1, start - 1, -1):
            node = self.nodes[j]
            if node.op.kind is Kind.CHECK:
                return False
            if needed.isdisjoint(_defines(node)):
                continue
            if node is write or any(True for _ in _bases(node)):
                return False
            needed |= _needs(node)
            taken.insert(0, j)
        shown = self.plan.shown
        own = set(_bases(self.nodes[k]))
        for j in range(start, k):
            if j not in taken and any(
                shown(v) in own for v in values_of(self.nodes[j])
            ):
                return False
        chosen = [self.nodes[j] for j in taken]
        rest = [n for j, n in enumerate(self.nodes[start:], start) if j not in taken]
        self.nodes[start:] = [*chosen, *rest]
        return True

    def look(self) -> None:
        """Find the last node that reads each value, through views too."""
        for node in self.nodes:
            self.plan.note_view(node)
        shown = self.plan.shown
        self.last: dict[Value, int] = {}
        for k, node in enumerate(self.nodes):
            for v in values_of(node):
                self.last[shown(v)] = k
        for x in self.results:
            if isinstance(x, Value):
                self.last[shown(x)] = len(self.nodes)

    def safe_from(self, facts: Facts) -> int:
        """Return the first position from which on nothing can fail."""
        if self.safe is None:
            self.safe = len(self.nodes)
            while self.safe and not may_fail(self.nodes[self.safe - 1], facts):
                self.safe -= 1
        return self.safe

    def views_to_copy(self, k: int, free: set[Value]) -> list[Value]:
        """Return views that are all that is read of what a node could write into."""
        node = self.nodes[k]
        for x in _bases(node):
            later = self.last.get(x, -1) > k
            if node.op.kind in LOOPS:
                inside = (v for r in node.regions for v in free_values(r))
                later = later or any(self.plan.shown(v) is x for v in inside)
            if x not in free or not later:
                continue
            views = self.still_read(k, x)
            if views and sum(volume(v.type.shape) for v in views) < volume(
                x.type.shape
            ):
                return views
        return []

    def still_read(self, k: int, x: Value) -> list[Value]:
        """Return what is read of `x` from node k on, if those are views of it."""
        after = {v for n in self.nodes[k:] for v in n.results}
        used = [v for n in self.nodes[k + 1 :] for v in values_of(n)]
        used += [v for v in self.results if isinstance(v, Value)]
        if self.nodes[k].op.kind in LOOPS:
            used += [v for r in self.nodes[k].regions for v in free_values(r)]
        found = {v for v in used if self.plan.shown(v) is x and v not in after}
        return [] if x in found else sorted(found, key=lambda v: v.name)

    def copy(self, k: int, views: Sequence[Value]) -> None:
        """Copy views before node k; it and what follows read the copies."""
        swap: dict[Value, Operand] = {}
        copies = []
        loc = self.nodes[k].loc
        for v in views:
            new = Value(self.plan.names.name(v.name), v.type.array())
            copies.append(Node(OPS["copy"], (v,), {}, (new,), (), loc))
            swap[v] = new
        rest = (with_operands(n, swap) for n in self.nodes[k:])
        self.nodes[k:] = [*copies, *rest]
        self.results = tuple(
            swap.get(x, x) if isinstance(x, Value) else x for x in self.results
        )
        self.safe = None
        self.look()


def _needs(node: Node) -> set[Value | Symbol]:
    """Return the values and symbols that a node uses, in its regions too."""
    inner = (n for r in node.regions for n in walk(r))
    dims_used = (d for n in (node, *inner) for d in dims_of_node(n))
    results = (x for r in node.regions for x in r.results if isinstance(x, Expr))
    return {
        *values_of(node),
        *(s for d in (*dims_used, *results) for s in symbols_of(d)),
    }


def _defines(node: Node) -> Iterator[Value | Symbol]:
    yield from node.results
    s = defined_symbol(node)
    if s is not None:
        yield s


def _bases(node: Node) -> Iterator[Value]:
    """Yield what a node could write into instead of making a copy of it."""
    xs: Sequence[Operand] = ()
    match node.op.kind:
        case Kind.FOR | Kind.WHILE:
            xs = node.operands
        case Kind.SCATTER:
            xs = node.operands[:1]
        case Kind.FUSED:
            inner = node.regions[0].nodes
            xs = [n.operands[0] for n in inner if n.op.kind is Kind.SCATTER]
    yield from (x for x in xs if isinstance(x, Value))


def _sequence(root: Node) -> Sequence[Need]:
    x = root.operands[0]
    return in_sequence(writes_of(root)) if isinstance(x, Value) else ()


def _whole(x: Value) -> Access:
    """Return the write of a whole value, at the point of the nest."""
    loops = canonical(x.type.shape)
    space = tuple((Symbol(f"@{k}"), d) for k, d in enumerate(loops))
    return Access(x, place(x.type.shape, [symbol(s.name) for s, _ in space]), space)


class _Marker(Copier):
    """Copies a Func with marks."""

    def __init__(self, marks: dict[Value, Value]) -> None:
        super().__init__()
        self.marks = marks

    def define(self, v: Value) -> Value:
        new = super().define(v)
        reused: Operand | None = self.marks.get(v)
        if isinstance(reused, Value):
            reused = self.values.get(reused, reused)
        new.reuses = reused if isinstance(reused, Value) else None
        return new
