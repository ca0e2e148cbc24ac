"""Which elements nodes touch: what fusion, buffer reuse and code generation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import dims
from .dims import Dim, Facts, Symbol
from .func import Node, Operand, Value, type_of
from .op import OPS, Fold, Kind, Op
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


def conditions(node: Node, facts: Facts) -> Iterator[tuple[Dim, int]]:
    """Yield what must be >= 0, with the axis, for constant indices not proven in range.

    An index that is a `Value` wraps and is checked in any case; it is not looked at.
    """
    if node.op.kind not in (Kind.VIEW, Kind.SCATTER) or "axis" not in node.attrs:
        return
    given = indices_of(node)
    axis = node.attrs["axis"]
    if not given or not isinstance(axis, int):
        return
    start = given[0]
    size = type_of(node.operands[0]).shape[axis]
    if isinstance(start, Value) or not isinstance(start, int | dims.Expr):
        return
    count: Dim = node.attrs.get("size", 1)
    empty = dims.mul(count, -1)
    if facts.proves(empty):
        return
    last = dims.add(start, dims.mul(dims.add(count, -1), node.attrs.get("step", 1)))
    facts = facts.having(dims.add(count, -1))
    for at in dict.fromkeys((start, last)):
        for need in (at, dims.add(dims.add(size, -1), dims.mul(at, -1))):
            if not facts.proves(need):  # no element of an empty slice is out of range
                yield dims.maximum(need, empty) if count != 1 else need, axis


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
    """One element of a value, at a point of the index space; `None` is any element."""

    value: Value
    index: Index | None
    space: tuple[tuple[Symbol, Dim], ...]


def _space(shape: Shape) -> tuple[tuple[tuple[Symbol, Dim], ...], Index]:
    loops = canonical(shape)
    symbols = [Symbol(f"@{k}") for k in range(len(loops))]
    index = place(shape, [dims.symbol(s.name) for s in symbols])
    return tuple(zip(symbols, loops, strict=True)), index


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


class _Reader:
    def __init__(self, inside: Mapping[Value, Node], views: Mapping[Value, Node]):
        self.inside = inside
        self.views = views
        self.found: list[Access] = []
        self.seen: set[tuple[Value, Index | None]] = set()
        self.space: tuple[tuple[Symbol, Dim], ...] = ()

    def root(self, node: Node) -> None:
        self.seen.clear()
        match node.op.kind:
            case Kind.REDUCTION:
                shape = type_of(node.operands[0]).shape
                self.space, index = _space(shape)
                self.read(node.operands[0], index)
            case Kind.SCATTER:
                shape = part_type(node).shape
                self.space, index = _space(shape)
                new = node.operands[1]
                self.read(new, project(index, shape, type_of(new).shape))
                for x in indices_of(node):
                    self.anywhere(x)
            case _:
                self.space, index = _space(node.result.type.shape)
                self.node(node, index)

    def anywhere(self, x: Operand) -> None:
        if isinstance(x, Value) and x.type.shape:
            self.read(x, None)

    def read(self, x: Operand, index: Index | None) -> None:
        """Follow a read to memory; `index` None is any element."""
        stack: list[tuple[Operand, Index | None]] = [(x, index)]
        while stack:
            y, at = stack.pop()
            if not isinstance(y, Value) or (y, at) in self.seen:
                continue
            self.seen.add((y, at))
            if not y.type.shape and y not in self.inside:
                continue  # in a register since it was defined
            node = self.inside.get(y) or self.views.get(y)
            if node is None:
                if y.type.shape:
                    self.found.append(Access(y, at, self.space))
                continue
            stack.extend(self.sources(node, at))

    def node(self, node: Node, index: Index) -> None:
        for x, at in self.sources(node, index):
            self.read(x, at)

    def sources(
        self, node: Node, index: Index | None
    ) -> list[tuple[Operand, Index | None]]:
        """Return what one element of a node's result reads."""
        x = node.operands[0] if node.operands else 0
        if index is None or node.op.kind not in (
            Kind.VIEW,
            Kind.ELEMENTWISE,
            Kind.COPY,
            Kind.GATHER,
        ):
            return [(y, None) for y in node.operands]
        if node.op.kind is Kind.VIEW:
            return [(x, base_index(node, index, index_dims(node)))]
        if node.op.kind is Kind.GATHER:
            return [(y, None) for y in node.operands]
        shape = node.result.type.shape
        return [(y, project(index, shape, type_of(y).shape)) for y in node.operands]


def hazards(write: Access, reads: Sequence[Access], facts: Facts) -> bool:
    """Tell whether writing in place could change what a read still needs.

    A read of the very element that is written in the same iteration is none.
    """
    return any(_clash(write, r, facts) for r in reads)


def _clash(write: Access, read: Access, facts: Facts) -> bool:
    if write.index is None or read.index is None:
        return True
    same_space = [d for _, d in write.space] == [d for _, d in read.space]
    if same_space and write.index == read.index:
        return not _injective(write)
    return not any(
        _apart(w, write.space, r, read.space, facts)
        for w, r in zip(write.index, read.index, strict=True)
    )


def _injective(a: Access) -> bool:
    """Tell whether every loop has an index of its own; else elements may repeat."""
    assert a.index is not None
    own = [dims.symbols_of(d) for d in a.index]
    return all(any(used == {s} for used in own) for s, _ in a.space)


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
        slope = dims.add(
            dims.substitute(d, {s: 1}), dims.mul(dims.substitute(d, {s: 0}), -1)
        )
        if not isinstance(slope, int):
            return None
        first: dict[Symbol, Dim] = {s: 0}
        last: dict[Symbol, Dim] = {s: dims.add(size, -1)}
        up = slope >= 0
        low = dims.substitute(low, first if up else last)
        high = dims.substitute(high, last if up else first)
    return low, high
