"""Make a write into a view of a view one write into the array at the root.

Before: a pure Func; a write through a chain of views is a chain of scatters, one per
view, as `functionalize` leaves it. After: the same values, with one `part_scatter` per
write, so that `reinplace` finds one buffer and writes exactly the region.

    %r: f64[m] = select %x, i {axis=0}
    %s: f64[m] = slice_scatter %r, %t, 1 {axis=0, size=m - 2, step=1}
    %y: f64[n,m] = select_scatter %x, %s, i {axis=0}

    %y: f64[n,m] = part_scatter %x, %t, i, 1 {steps=(("select", ...), ("slice", ...))}

The same is done where additions into zeros are added to a part, and where a view and
its inverse stand around a write (`x.T[i] = t`). What else read `%s` reads that part of
`%y`, as long as nothing was written into `%y` since.

Note [loops that fill a part]
A loop that computes an array for a part of another one works on that part itself:
`select_scatter %x, %l, i` of a loop's result `%l` becomes a carry `%x` of the loop, of
which the body reads and writes the part. So the tape of an inner loop is a piece of the
tape around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..ir import dims
from ..ir.access import (
    base_index,
    disjoint,
    index_dims,
    indices_of,
    linear,
    part_type,
    place,
    steps_of,
    view_of,
    writes_of,
    writes_part,
)
from ..ir.build import IRBuilder, names_in
from ..ir.func import (
    Block,
    Func,
    Node,
    Operand,
    Value,
    dims_of_node,
    type_of,
    walk,
)
from ..ir.op import OPS, Kind, Op, Step
from ..ir.ops.part import coded
from .dce import dce
from .rules import FULL, added_to_zero, is_number, same_place, scatter_over_scatter
from .scope import (
    defined_symbol,
    values_of,
    views_first,
    views_last,
    with_operands,
)
from .simplify import Rewriter

PART = OPS["part"]
LOOPS = (Kind.FOR, Kind.WHILE)
NEAR = 16  # additions that are looked through


def unnest(f: Func) -> Func:
    """Return `f` with every write through a chain of views as one write.

    >>> from ..ir.text import parse
    >>> print(unnest(parse('''func @f(%x: f64[n,m], %t: f64[]) -> f64[n,m] {
    ...   %r: f64[m] = select %x, 0 {axis=0}
    ...   %s: f64[m] = select_scatter %r, %t, 1 {axis=0}
    ...   %y: f64[n,m] = select_scatter %x, %s, 0 {axis=0}
    ...   return %y
    ... }''')))
    func @f(%x: f64[n,m], %t: f64[]) -> f64[n,m] {
      %y: f64[n,m] = part_scatter %x, %t, 0, 1 {steps=(('select', 'axis', 0), ('select', 'axis', 0))}
      return %y
    }
    """  # noqa: E501
    if f.stage == "traced" or not any(n.op.kind is Kind.SCATTER for n in walk(f.body)):
        return f
    names = IRBuilder(tuple(names_in(f)))
    body = _sunk(f.body, names)
    f = Func(f.name, f.stage, body, f.symbols, f.facts, f.updates)
    return dce(_Unnester(f).func(f))


def _writes(node: Node | None) -> bool:
    return node is not None and writes_part(node)


def _fills(node: Node, new: Value) -> bool:
    """Tell whether `new` is put into a part of just its type."""
    t = part_type(node)
    return new.type.shape == t.shape and new.type.dtype == t.dtype


class _Unnester(Rewriter):
    def __init__(self, f: Func) -> None:
        rules = (
            scatter_over_scatter,
            added_to_zero,
            self.add_where_zero,
            self.zero_last,
            self.write_into_write,
            self.write_between_views,
        )
        super().__init__(f, {}, rules)
        # Where a value can be read from: a node of a view that is not in the Func yet.
        self.found: dict[Value, Node] = {}
        self.redirected: list[tuple[Value, Operand | None]] = []  # what it was
        self.grown: dict[Operand, Node] = {}  # the write that an array comes from

    def node(self, n: Node) -> None:
        moved = self.overwrite(n)
        self.redirect(n)
        super().node(n)
        for v, view in moved.items():
            whole = self.operand(n.result)
            operands = (whole, *view.operands[1:])
            self.found[v] = Node(view.op, operands, view.attrs, view.results)

    # Reading from what was written ------------------------------------------------

    def overwrite(self, n: Node) -> dict[Value, Node]:
        """Forget what can be read from arrays that a node may write into.

        Returns those that can be read from the node's result as well.
        """
        over: Sequence[Operand] = ()
        if n.regions:
            over = n.operands
        elif n.op.kind is Kind.SCATTER:
            over = n.operands[:1]
        gone = {x for x in map(self.operand, over) if isinstance(x, Value)}
        kept: dict[Value, Node] = {}
        for v, view in list(self.found.items()):
            if view.operands[0] in gone:
                del self.found[v]
                if _writes(n) and disjoint(writes_of(view), writes_of(n), self.facts):
                    kept[v] = view
        return kept

    def redirect(self, n: Node) -> None:
        """Let a node read what is part of an array from there."""
        for x in dict.fromkeys(n.operands):
            v = self.operand(x)
            if isinstance(x, Value) and isinstance(v, Value) and v in self.found:
                new = self.read(v)
                if type_of(new) == x.type:
                    self.redirected.append((x, self.values.get(x)))
                    self.values[x] = new

    @contextmanager
    def region(self, node: Node) -> Iterator[list[Node]]:
        """Build a region; what is read from an array in it is unknown after it."""
        found, count = dict(self.found), len(self.redirected)
        with super().region(node) as nodes:
            yield nodes
        self.found = {v: n for v, n in self.found.items() if v in found}
        while len(self.redirected) > count:
            x, before = self.redirected.pop()
            del self.values[x]
            if before is not None:
                self.values[x] = before

    def read(self, v: Value) -> Any:
        """Return a value, read from the array that it is part of."""
        view = self.found.get(v)
        if view is None:
            return v
        whole, *rest = view.operands
        assert isinstance(whole, Value)
        operands = (self.read(whole), *rest)
        return super().apply(view.op, operands, view.attrs, hint=v.name)

    def noted(self, v: Value, whole: Any, steps: Sequence[Step]) -> Any:
        """Note that `v` is a part of `whole`; returns `whole`."""
        if not self.used_once(v):
            op, operands, attrs = _joined(steps)
            self.found[v] = Node(op, (whole, *operands), attrs, (v,))
        return whole

    # Rules ------------------------------------------------------------------------

    def write_into_write(self, b: Any, node: Node, definition: Any) -> Any:
        """Put what inner writes put into their parts straight into the outer base."""
        if not _writes(node):
            return None
        x, new = node.operands[:2]
        if not isinstance(new, Value) or not _fills(node, new):
            return None
        adds, rest, steps = node.op.accumulates, indices_of(node), steps_of(node)
        writes = self.chain(new)
        under = writes[-1].operands[0] if writes else new
        if not writes:
            return None
        if adds:
            if not self.adds_to_zero(new, writes):
                return None
            base = x
        elif (found := self.base_of(under, node)) is not None:
            base = found
        else:
            single = self.single(new, writes)
            if not single:
                return None
            writes = single
            under = writes[-1].operands[0]
            base = self.apply(node.op, (x, under, *rest), node.attrs)
        for w in reversed(writes):
            base = self.written(base, steps, w, adds or w.op.accumulates)
        if adds:
            return base
        self.grown[base] = node
        return self.noted(new, base, steps)

    def chain(self, x: Operand) -> list[Node]:
        """Return the writes that make a value from another one, the last one first."""
        writes: list[Node] = []
        while (d := self.definition(x)) is not None and _writes(d):
            writes.append(d)
            x = d.operands[0]
        return writes

    def single(self, new: Value, writes: Sequence[Node]) -> list[Node]:
        """Return the last writes of a chain whose values nobody else needs."""
        found: list[Node] = []
        for w in writes:
            if not self.used_once(w.result):
                break
            found.append(w)
        return found

    def written(self, base: Any, steps: Sequence[Step], inner: Node, adds: bool) -> Any:
        """Write what `inner` writes into the part `steps` of `base`."""
        op, indices, attrs = _joined((*steps, *steps_of(inner)))
        twin = op.scatter_add if adds else op.scatter
        assert twin is not None
        operands = (base, inner.operands[1], *indices)
        return self.apply(OPS[twin], operands, attrs, hint=base.name)

    def base_of(self, under: Operand, node: Node) -> Value | None:
        """Return the array whose part, at the place that a node writes, `under` is.

        It is the base of the node, or differs from it in that part only.
        """
        d = self.definition(under)
        if d is None or d.op.name != node.op.of or not same_place(d, node, 1):
            return None
        found = x = d.operands[0]
        if x is self.unchanged(node, x):
            return node.operands[0] if isinstance(node.operands[0], Value) else None
        while x is not node.operands[0]:
            write = self.grown.get(x) if isinstance(x, Value) else None
            if write is None or write.op is not node.op:
                return None
            if not same_place(node, write, 2):
                return None
            x = write.operands[0]
        return found if isinstance(found, Value) else None

    def unchanged(self, node: Node, x: Operand) -> Operand:
        """Return `x`, or the array before it that has the same part for a node."""
        y = node.operands[0]
        while y is not x:
            d = self.definition(y)
            if d is None or not _writes(d):
                break
            if not disjoint(writes_of(d), writes_of(node), self.facts):
                break
            y = d.operands[0]
        return y

    def is_zero(self, x: Operand) -> bool:
        d = self.definition(x)
        return d is not None and d.op is FULL and is_number(d.operands[0], 0)

    def adds_to_zero(self, new: Value, writes: Sequence[Node]) -> bool:
        """Tell whether a chain is zeros with additions, and used only here."""
        *later, first = writes
        return (
            self.is_zero(first.operands[0])
            and all(w.op.accumulates for w in later)
            and len(self.single(new, writes)) == len(writes)
        )

    def add_where_zero(self, b: Any, node: Node, definition: Any) -> Any:
        """Put into a part that was set to zero, under additions to other parts."""
        if not node.op.accumulates or not _writes(node):
            return None
        above: list[Node] = []
        under = definition(node.operands[0])
        while under is not None and under.op.accumulates and len(above) < NEAR:
            if not self.used_once(under.result):
                return None
            above.append(under)
            under = definition(under.operands[0])
        if under is None or not above or under.op.of != node.op.of:
            return None
        if under.op.accumulates or not self.used_once(under.result):
            return None
        if not is_number(under.operands[1], 0) or not same_place(node, under, 2):
            return None
        base = self.apply(under.op, (under.operands[0], *node.operands[1:]), node.attrs)
        for w in reversed(above):
            base = self.apply(w.op, (base, *w.operands[1:]), w.attrs)
        return base

    def zero_last(self, b: Any, node: Node, definition: Any) -> Any:
        """Set a part to zero after additions to other parts, which may read it."""
        under = definition(node.operands[0]) if node.op.accumulates else None
        if under is None or not _writes(node) or not _writes(under):
            return None
        if under.op.accumulates or not is_number(under.operands[1], 0):
            return None
        if not self.used_once(under.result) or not disjoint(
            writes_of(under), writes_of(node), self.facts
        ):
            return None
        x = self.apply(node.op, (under.operands[0], *node.operands[1:]), node.attrs)
        return self.apply(under.op, (x, *under.operands[1:]), under.attrs)

    def write_between_views(self, b: Any, node: Node, definition: Any) -> Any:
        """Undo a view and its inverse around writes: they are writes of a part."""
        if node.op.kind is not Kind.VIEW or node.op.overlapping or indices_of(node):
            return None
        inner = definition(node.operands[0])
        if not _writes(inner):
            return None
        found = self.through(node, inner)
        if found is None:
            return None
        whole, steps = found
        return self.noted(inner.result, whole, steps)

    def through(self, outer: Node, inner: Node) -> tuple[Any, Sequence[Step]] | None:
        """Return the root of an inner write, with it done, and the views on the way."""
        writes = [inner, *self.chain(inner.operands[0])]
        chain: list[Node] = []
        x = writes[-1].operands[0]
        while (view := self.definition(x)) is not None:
            if view.op.kind is not Kind.VIEW or view.op.overlapping:
                return None
            chain.insert(0, view)
            x = view.operands[0]
            if type_of(x) == outer.result.type and _undoes(outer, chain):
                steps = [step for v in chain for step in steps_of(v)]
                whole: Any = x
                for write in reversed(writes):
                    whole = self.written(whole, steps, write, write.op.accumulates)
                return whole, steps
        return None


def _joined(steps: Sequence[Step]) -> tuple[Op, tuple[Any, ...], dict[str, Any]]:
    """Return views one after the other as one: its op, indices and attributes."""
    indices = tuple(i for step in steps for i in step.indices)
    if len(steps) == 1:
        return steps[0].op, indices, dict(steps[0].attrs)
    return PART, indices, {"steps": tuple(coded(s.op, s.attrs) for s in steps)}


def _undoes(outer: Node, chain: Sequence[Node]) -> bool:
    """Tell whether `outer` gives back what the views in `chain` are taken from."""
    shape = outer.result.type.shape
    start = place(shape, [dims.symbol(f"@{k}") for k in range(len(shape))])
    if any(isinstance(x, Value) for view in chain for x in indices_of(view)):
        return False
    index = start
    for view in (outer, *reversed(chain)):
        index = base_index(view, index, index_dims(view))
    return linear(index, shape) == linear(start, shape)


# ---------------------------------------------------------------- loops


def _sunk(block: Block, names: IRBuilder) -> Block:
    """See Note [loops that fill a part]."""
    nodes = views_first(block.nodes)
    while any(_sink_one(nodes, p, block, names) for p in _loops(nodes)):
        pass
    for p, node in enumerate(nodes):
        if node.regions:
            regions = tuple(_sunk(r, names) for r in node.regions)
            nodes[p] = Node(
                node.op, node.operands, node.attrs, node.results, regions, node.loc
            )
    return Block(block.params, tuple(views_last(nodes)), block.results)


def _loops(nodes: Sequence[Node]) -> Iterator[int]:
    yield from (p for p, n in enumerate(nodes) if n.op.kind in LOOPS)


def _sink_one(nodes: list[Node], p: int, block: Block, names: IRBuilder) -> bool:
    """Let the loop at `p` work on the part that its result fills, if one does."""
    loop = nodes[p]
    later = nodes[p + 1 :]
    for k, r in enumerate(loop.results[: len(loop.operands)]):
        users = [n for n in later if any(x is r for x in values_of(n))]
        if len(users) != 1 or any(x is r for x in block.results):
            continue
        (write,) = users
        if _sinks(loop, r, write, later, block):
            at = nodes.index(write)
            nodes[p : p + 1] = _filling(loop, k, write, names)
            nodes.remove(write)
            assert at > p
            return True
    return False


def _sinks(
    loop: Node, r: Value, write: Node, later: Sequence[Node], block: Block
) -> bool:
    if not _writes(write) or write.op.accumulates or write.operands[1] is not r:
        return False
    if not r.type.shape:  # a scalar is better off in a register
        return False
    if sum(x is r for x in write.operands) > 1 or not _fills(write, r):
        return False
    x, _, *rest = write.operands
    between = later[: later.index(write)]
    made = {v for n in (loop, *between) for v in n.results}
    if any(y in made for y in (x, *rest) if isinstance(y, Value)):
        return False
    if any(n.op.kind is Kind.CHECK for n in between):
        return False
    sizes = {defined_symbol(n) for n in (loop, *between)}
    if any(dims.symbols_of(d) & sizes for d in dims_of_node(write)):
        return False
    others = (y for n in (loop, *later) if n is not write for y in values_of(n))
    return not any(y is x for y in (*others, *block.results))


def _filling(loop: Node, k: int, write: Node, names: IRBuilder) -> tuple[Node, Node]:
    """Return the initial write and the loop whose carry `k` is what `write` gives."""
    x, _, *rest = write.operands
    assert isinstance(x, Value)
    whole = x.type.array()
    first, last = loop.regions[0], loop.regions[-1]
    start = Value(names.name(x.name), whole)
    carry = Value(names.name(x.name), whole)
    after = Value(names.name(x.name), whole)
    part = Value(names.name(first.params[k].name), first.params[k].type)

    def put(base: Value, new: Operand, result: Value) -> Node:
        operands = (base, new, *rest)
        return Node(write.op, operands, write.attrs, (result,), (), write.loc)

    view = Node(view_of(write), (carry, *rest), write.attrs, (part,), (), write.loc)
    swap = {first.params[k]: part}
    inside = with_operands(loop, swap)
    params = tuple(carry if j == k else q for j, q in enumerate(first.params))
    regions = []
    for region in inside.regions:
        nodes, yields = region.nodes, list(region.results)
        if region is inside.regions[-1]:
            nodes = (*nodes, put(carry, yields[k], after))
            yields[k] = after
        if region is inside.regions[0]:
            nodes = (view, *nodes)
        own = params if region is inside.regions[0] else last.params
        regions.append(Block(own, nodes, tuple(yields)))
    operands = (*loop.operands[:k], start, *loop.operands[k + 1 :])
    results = (*loop.results[:k], write.result, *loop.results[k + 1 :])
    new = Node(loop.op, operands, loop.attrs, results, tuple(regions), loop.loc)
    return put(x, loop.operands[k], start), new
