"""Which elements nodes touch: what fusion, buffer reuse and code generation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import dims
from .dims import Dim, Facts, Symbol
from .func import Node, Operand, Value, type_of
from .op import OPS, Fold, Kind, Op, Routine, Step
from .types import Shape, Type, broadcast_shapes
from .verify import loop_facts

Index = tuple[Dim, ...]


def canonical(shape: Shape) -> Shape:
    """Return a shape without the axes of size 1: equal ones have one index space.

    >>> canonical((1, 4, 1))
    (4,)
    """
    return tuple(d for d in shape if d != 1)


def place(shape: Shape, loops: Sequence[Dim]) -> Index:
    """Return the index into `shape` of the point `loops` of its canonical space."""
    rest = iter(loops)
    return tuple(0 if d == 1 else next(rest) for d in shape)


def project(index: Sequence[Dim], shape: Shape, onto: Shape) -> Index:
    """Return the index of an operand of shape `onto` that broadcasts to `shape`."""
    extra = len(shape) - len(onto)
    return tuple(
        0 if d == 1 and shape[extra + k] != 1 else index[extra + k]
        for k, d in enumerate(onto)
    )


def linear(index: Sequence[Dim], shape: Shape) -> Dim:
    """Return the position of an index in a C-contiguous buffer of that shape."""
    flat: Dim = 0
    for i, d in zip(index, shape, strict=True):
        flat = dims.add(dims.mul(flat, d), i)
    return flat


def view_of(node: Node) -> Op:
    """Return the view (or gather) whose elements a view, gather or scatter touches."""
    return OPS[node.op.of] if node.op.of is not None else node.op


def indices_of(node: Node) -> tuple[Operand, ...]:
    """Return the index operands of a view, gather or scatter."""
    return node.operands[2 if node.op.kind is Kind.SCATTER else 1 :]


def part_type(node: Node) -> Type:
    """Return the type of the part of its base that a scatter writes."""
    base = type_of(node.operands[0])
    if view_of(node).kind is Kind.MASK:
        return Type(base.dtype, type_of(node.operands[1]).shape)
    rest = map(type_of, indices_of(node))
    part: Type = view_of(node).infer(base, *rest, **node.attrs)
    return part


def space_of(node: Node) -> Shape:
    """Return the index space that a node is computed over."""
    match node.op.kind:
        case Kind.REDUCTION:
            return canonical(type_of(node.operands[0]).shape)
        case Kind.SCATTER:
            return canonical(part_type(node).shape)
        case _:
            return canonical(node.result.type.shape)


def writes_part(node: Node) -> bool:
    """Tell whether a node writes a part in which every element has one place."""
    return (
        node.op.kind is Kind.SCATTER
        and view_of(node).kind is Kind.VIEW
        and not node.op.overlapping
        and isinstance(node.operands[0], Value)
    )


def gathered_shape(node: Node) -> Shape:
    """Return the broadcast shape of the index arrays of a gather."""
    return broadcast_shapes(*(type_of(i).shape for i in indices_of(node)))


def base_index(node: Node, index: Index, given: Sequence[Any]) -> Index:
    """Return the index of the base at `index` of the part; `given` are the indices."""
    base = type_of(node.operands[0])
    view = view_of(node)
    assert view.index_map is not None
    return tuple(view.index_map(index, base, *given, **node.attrs))


def gather_index(node: Node, index: Index, found: Sequence[Dim]) -> Index:
    """Return the index of the base, with `found` for the axes that are gathered."""
    axes = node.attrs["axes"]
    position = node.attrs["position"]
    count = len(gathered_shape(node))
    rest = iter((*index[:position], *index[position + count :]))
    at = dict(zip(axes, found, strict=True))
    ndim = type_of(node.operands[0]).ndim
    return tuple(at[k] if k in at else next(rest) for k in range(ndim))


def steps_of(node: Node) -> Sequence[Step]:
    """Return the views that a view or scatter goes through, one after the other."""
    view, base = view_of(node), type_of(node.operands[0])
    given = indices_of(node)
    if view.steps is not None:
        steps: Sequence[Step] = view.steps(base, *given, **node.attrs)
        return steps
    return (Step(view, base, given, node.attrs),)


@dataclass(frozen=True, slots=True)
class Condition:
    """A dim that must be >= 0, for an axis of that size; only where `count` > 0."""

    need: Dim
    axis: int
    size: Dim
    count: Dim = 1


def conditions(node: Node, facts: Facts) -> Iterator[Condition]:
    """Yield what must hold for constant indices that are not proven in range.

    An index that is a `Value` wraps and is checked in any case; it is not looked at.
    """
    if node.op.kind in (Kind.VIEW, Kind.SCATTER) and view_of(node).kind is Kind.VIEW:
        for step in steps_of(node):
            yield from _conditions(step, facts)


def _conditions(step: Step, facts: Facts) -> Iterator[Condition]:
    for start in step.indices:
        if isinstance(start, Value) or not isinstance(start, int | dims.Expr):
            continue
        axis = step.attrs["axis"]
        size = step.base.shape[axis]
        count: Dim = step.attrs.get("size", 1)
        if facts.proves(dims.mul(count, -1)):
            continue
        by = step.attrs.get("step", 1)
        last = dims.add(start, dims.mul(dims.add(count, -1), by))
        for at in dict.fromkeys((start, last)):
            for need in (at, dims.add(dims.add(size, -1), dims.mul(at, -1))):
                if not facts.proves(need) and not _proven(need, count, facts):
                    yield Condition(need, axis, size, count)


def _proven(need: Dim, count: Dim, facts: Facts) -> bool:
    """Tell whether `need` >= 0 follows where `count` >= 1."""
    return facts.having(dims.add(count, -1)).proves(need)


def may_be_empty(node: Node, facts: Facts) -> bool:
    """Tell whether a reduction that needs a first element may have none."""
    fold = node.op.lower
    if not isinstance(fold, Fold) or fold.start != "first":
        return False
    shape = type_of(node.operands[0]).shape
    axis = node.attrs["axis"]
    return not all(facts.proves(dims.add(shape[k], -1)) for k in axis)


def negative_power(node: Node) -> bool:
    """Tell whether an integer power may meet a negative exponent."""
    if not isinstance(node.op.lower, str) or not node.op.lower.startswith("power("):
        return False
    exponent = node.operands[1]
    if isinstance(exponent, int) and exponent >= 0:
        return False
    return node.results[0].type.dtype.kind == "i"


def may_fail(node: Node, facts: Facts) -> bool:
    """Tell whether running the node can find an error, in its regions too."""
    if node.op.kind is Kind.SIZE:
        return bool(node.attrs.get("checked"))
    if node.op.kind in (Kind.GATHER, Kind.CHECK) or "count" in node.attrs:
        return True
    if isinstance(node.op.lower, Routine) and node.op.lower.error:
        return True
    given = indices_of(node) if node.op.kind in (Kind.VIEW, Kind.SCATTER) else ()
    if any(isinstance(x, Value) for x in given):
        return True
    if may_be_empty(node, facts) or negative_power(node):
        return True
    if any(True for _ in conditions(node, facts)):
        return True
    if node.op.kind is Kind.FOR:
        facts = facts.having(*loop_facts(node))
    return any(may_fail(n, facts) for r in node.regions for n in r.nodes)


# ---------------------------------------------------------------- reads and writes


@dataclass(frozen=True, slots=True)
class Access:
    """One element of a value, at a point of the index space; `None` is any element.

    `via` is the operand through which it is read: a view of the value, or itself.
    """

    value: Value
    index: Index | None
    space: tuple[tuple[Symbol, Dim], ...]
    via: Value | None = None


def _space(shape: Shape) -> tuple[tuple[tuple[Symbol, Dim], ...], Index]:
    loops = canonical(shape)
    symbols = [Symbol(f"@{k}") for k in range(len(loops))]
    index = place(shape, [dims.symbol(s.name) for s in symbols])
    return tuple(zip(symbols, loops, strict=True)), index


def point_of(node: Node) -> tuple[tuple[tuple[Symbol, Dim], ...], Index]:
    """Return the loops of a node's space, and the index of a point in it.

    The index is into the result, of a reduction the operand, of a scatter the part.
    """
    match node.op.kind:
        case Kind.REDUCTION:
            return _space(type_of(node.operands[0]).shape)
        case Kind.SCATTER:
            return _space(part_type(node).shape)
        case _:
            return _space(node.result.type.shape)


def index_dims(node: Node) -> tuple[Dim, ...]:
    """Return index operands as dims; computed ones are symbols of their own."""
    return tuple(
        dims.symbol(f"%{x.name}") if isinstance(x, Value) else _as_dim(x)
        for x in indices_of(node)
    )


def _as_dim(x: Operand) -> Dim:
    assert isinstance(x, int | dims.Expr)
    return x


def writes_of(node: Node) -> Access:
    """Return what a scatter writes of its base, at a point of its part."""
    base = node.operands[0]
    assert isinstance(base, Value)
    space, index = _space(part_type(node).shape)
    if view_of(node).kind is not Kind.VIEW:
        return Access(base, None, space)
    return Access(base, base_index(node, index, index_dims(node)), space)


def reads_of(
    inside: Sequence[Node], roots: Sequence[Node], views: Mapping[Value, Node]
) -> list[Access]:
    """Return what `roots` read, with the nodes `inside` computed where they are used.

    A view in `views` counts as a read of what it is a view of; a scatter reads `new`,
    its base only where it is done.
    """
    reader = _Reader({v: n for n in inside for v in n.results}, views)
    for root in roots:
        reader.root(root)
    return reader.found


def element_reads(
    inside: Sequence[Node], x: Operand, views: Mapping[Value, Node]
) -> list[Access]:
    """Return what is read for the elements of a value, at every point of its space."""
    reader = _Reader({v: n for n in inside for v in n.results}, views)
    if isinstance(x, Value):
        reader.space, index = _space(x.type.shape)
        reader.read(x, index)
    return reader.found


def written_index(node: Node, definitions: Mapping[Value, Node]) -> Index:
    """Return where a scatter writes, at a point of its part."""
    _, index = point_of(node)
    if view_of(node).kind is Kind.GATHER:
        return gather_index(node, index, gathered_dims(node, index, definitions))
    return base_index(node, index, index_dims(node))


class _Reader:
    def __init__(self, inside: Mapping[Value, Node], views: Mapping[Value, Node]):
        self.inside = inside
        self.views = views
        self.found: list[Access] = []
        self.seen: set[tuple[Value, Index | None]] = set()
        self.space: tuple[tuple[Symbol, Dim], ...] = ()

    def root(self, node: Node) -> None:
        self.seen.clear()
        self.space, index = point_of(node)
        self.node(node, index)

    def read(self, x: Operand, index: Index | None) -> None:
        """Follow a read to memory; `index` None is any element."""
        stack: list[tuple[Operand, Index | None, Value | None]] = [(x, index, None)]
        while stack:
            y, at, via = stack.pop()
            if not isinstance(y, Value) or (y, at) in self.seen:
                continue
            self.seen.add((y, at))
            if not y.type.shape and y not in self.inside:
                continue  # in a register since it was defined
            node = self.inside.get(y)
            if node is None:
                via = via or y
                node = self.views.get(y)
            if node is None:
                if y.type.shape:
                    self.found.append(Access(y, at, self.space, via))
                continue
            stack.extend((z, to, via) for z, to in self.sources(node, at))

    def node(self, node: Node, index: Index) -> None:
        for x, at in reads_at(node, index, self.inside):
            self.read(x, at)

    def sources(
        self, node: Node, index: Index | None
    ) -> list[tuple[Operand, Index | None]]:
        """Return what one element of a node's result reads."""
        if index is None or node.op.kind in (Kind.REDUCTION, Kind.SCATTER):
            return [(y, None) for y in node.operands]
        return reads_at(node, index, self.inside)


def reads_at(
    node: Node, index: Index, definitions: Mapping[Value, Node]
) -> list[tuple[Operand, Index | None]]:
    """Return what a node reads of its operands for one element, at which index.

    The element is that of the result at `index`, of the operand for a reduction, of the
    part for a scatter. `None` is any element. The base of a scatter is not listed.
    """
    plain: list[tuple[Operand, Index | None]] = [
        (y, None if type_of(y).shape else ()) for y in indices_of(node)
    ]
    match node.op.kind:
        case Kind.REDUCTION:
            return [(node.operands[0], index)]
        case Kind.VIEW:
            at = base_index(node, index, index_dims(node))
            return [(node.operands[0], at), *plain]
        case Kind.GATHER:
            base = gather_index(node, index, gathered_dims(node, index, definitions))
            return [(node.operands[0], base), *_index_reads(node, index)]
        case Kind.SCATTER:
            new = node.operands[1]
            shape = part_type(node).shape
            gathers = view_of(node).kind is Kind.GATHER
            return [
                (new, project(index, shape, type_of(new).shape)),
                *(_index_reads(node, index) if gathers else plain),
            ]
        case Kind.ELEMENTWISE | Kind.COPY:
            shape = node.result.type.shape
            return [(y, project(index, shape, type_of(y).shape)) for y in node.operands]
        case _:
            return [(y, None) for y in node.operands]


def _index_reads(node: Node, index: Index) -> list[tuple[Operand, Index]]:
    shape, position = gathered_shape(node), node.attrs["position"]
    part = index[position : position + len(shape)]
    return [(y, project(part, shape, type_of(y).shape)) for y in indices_of(node)]


def gathered_dims(
    node: Node, index: Index, definitions: Mapping[Value, Node]
) -> list[Dim]:
    """Return the indices of a gather or its scatter as dims, for one element.

    An index array that is its own index (`arange`) is known. Others are symbols that
    stand for nothing that is known.
    """
    found: list[Dim] = []
    for k, (y, at) in enumerate(_index_reads(node, index)):
        maker = definitions.get(y) if isinstance(y, Value) else None
        known = at if maker is not None and maker.op.kind is Kind.CREATION else None
        axis = _own_index(maker.op) if maker is not None else None
        unknown = dims.symbol(f"?{node.result.name}.{k}")
        found.append(unknown if known is None or axis is None else known[axis])
    return found


def _own_index(op: Op) -> int | None:
    """Return the axis whose index a creation op has as its elements."""
    text = op.lower
    if isinstance(text, str) and text[:2] == "{i" and text[2:-1].isdigit():
        return int(text[2:-1])
    return None


# ---------------------------------------------------------------- order in a nest

Order = Mapping[int, int]  # loops that must run up (1) or down (-1)


@dataclass(frozen=True, slots=True)
class Need:
    """What makes a read safe from a write in place: that loop runs in that direction.

    `loop` None says that nothing is needed, `step` 0 that no direction helps.
    """

    loop: int | None = None
    step: int = 1


FREE, CLASH = Need(), Need(0, 0)


def hazards(write: Access, reads: Sequence[Access], facts: Facts) -> list[Access]:
    """Return the reads that a write in place may disturb in any order of the loops."""
    return [r for r in reads if need_of(write, r, facts) == CLASH]


def need_of(write: Access, read: Access, facts: Facts) -> Need:
    """Return in which order of the nest a read sees what was there before the nest.

    All reads of an iteration come before its writes. So an element may be read where
    it is written in the same iteration or in a later one. That is decided by the
    distance of the two iterations, whose first component that is not 0 must be on the
    side to which its loop runs.
    """
    if write.index is None or read.index is None:
        return CLASH
    if disjoint(write, read, facts):
        return FREE
    pairs = list(zip(write.index, read.index, strict=True))
    same_space = [d for _, d in write.space] == [d for _, d in read.space]
    if not same_space or not _injective(write):
        return CLASH
    for k, (s, _) in enumerate(write.space):
        gap = distance(s, pairs)
        if gap == 0:
            continue
        for step in (1, -1):
            if gap is not None and facts.proves(dims.add(dims.mul(gap, step), -1)):
                return Need(k, step)
        return CLASH
    return FREE


def disjoint(a: Access, b: Access, facts: Facts) -> bool:
    """Tell whether two accesses never meet, at any points."""
    if a.index is None or b.index is None:
        return False
    pairs = zip(a.index, b.index, strict=True)
    return any(_apart(x, a.space, y, b.space, facts) for x, y in pairs)


def distance(s: Symbol, pairs: Sequence[tuple[Dim, Dim]]) -> Dim | None:
    """Return how many iterations of a loop an element is written after it is read."""
    for w, r in pairs:
        gap, slope = dims.add(r, dims.mul(w, -1)), _along(w, s)
        if not slope or _loops_in(gap):
            continue
        if gap == 0 or abs(slope) == 1:
            return dims.mul(gap, slope)
    return None


def in_sequence(write: Access) -> list[Need]:
    """Return what keeps the order of writes that may meet each other: all loops up."""
    if write.index is not None and _injective(write):
        return []
    return [Need(k, 1) for k in range(len(write.space))]


def _slope(d: Dim, s: Symbol) -> Dim:
    zero: dict[Symbol, Dim] = {s: 0}
    return dims.add(dims.substitute(d, {s: 1}), dims.mul(dims.substitute(d, zero), -1))


def _loops_in(d: Dim) -> set[Symbol]:
    return {s for s in dims.symbols_of(d) if s.name.startswith("@")}


def joined(orders: Sequence[Need], known: Order) -> Order | None:
    """Return an order that meets `known` and all needs, if there is one."""
    order = dict(known)
    for need in orders:
        if need.loop is None:
            continue
        if not need.step or order.setdefault(need.loop, need.step) != need.step:
            return None
    return order


USUAL_SIZE = 64  # what a size counts that is not known


def volume(shape: Shape) -> int:
    """Estimate a number of elements."""
    size = dims.product(shape)
    usual = {s: USUAL_SIZE for s in dims.symbols_of(size)}
    return max(dims.evaluate(size, usual), 0)


def to_copy(clashing: Sequence[Access], limit: int) -> list[Value] | None:
    """Return what to copy so that reads are safe, if it is less than `limit`."""
    found = dict.fromkeys(r.via for r in clashing)
    values = [v for v in found if v is not None]
    if len(values) != len(found) or sum(volume(v.type.shape) for v in values) >= limit:
        return None
    return values


def _injective(a: Access) -> bool:
    """Tell whether every loop has an index of its own; else elements may repeat."""
    assert a.index is not None
    return all(any(_along(d, s) for d in a.index) for s, _ in a.space)


def _along(d: Dim, s: Symbol) -> int:
    """Return by how much an index moves with a loop if it does with this one only."""
    slope = _slope(d, s)
    if _loops_in(d) != {s} or not isinstance(slope, int):
        return 0
    start = dims.substitute(d, {s: 0})
    line = dims.add(start, dims.mul(slope, dims.symbol(s.name)))
    return slope if line == d else 0


def _apart(
    w: Dim,
    w_space: Sequence[tuple[Symbol, Dim]],
    r: Dim,
    r_space: Sequence[tuple[Symbol, Dim]],
    facts: Facts,
) -> bool:
    """Tell whether two indices of one axis never meet, at any points."""
    w_ends, r_ends = _ends(w, w_space, facts), _ends(r, r_space, facts)
    if w_ends is None or r_ends is None:
        return False
    (w_low, w_high), (r_low, r_high) = w_ends, r_ends
    for low, high in ((w_low, r_high), (r_low, w_high)):
        if facts.proves(dims.add(dims.add(low, dims.mul(high, -1)), -1)):
            return True
    return False


def _ends(
    d: Dim, space: Sequence[tuple[Symbol, Dim]], facts: Facts
) -> tuple[Dim, Dim] | None:
    """Return the smallest and the largest value of an index over its loops."""
    low = high = d
    for s, size in space:
        if s not in dims.symbols_of(d):
            continue
        slope = _slope(d, s)
        if not isinstance(slope, int):
            return None
        first: dict[Symbol, Dim] = {s: 0}
        last: dict[Symbol, Dim] = {s: dims.add(size, -1)}
        up = slope >= 0
        low = dims.substitute(low, first if up else last)
        high = dims.substitute(high, last if up else first)
    return low, high
