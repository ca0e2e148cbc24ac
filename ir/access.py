"""Which elements nodes touch: what fusion, buffer reuse and code generation share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import dims
from .dims import Dim, Facts
from .func import Node, Operand, Value, type_of
from .op import OPS, Fold, Kind, Op
from .types import Shape, Type, broadcast_shapes

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
    last: Dim = start
    count = node.attrs.get("size")
    if count is not None:
        if count == 0:
            return
        step = node.attrs.get("step", 1)
        last = dims.add(start, dims.mul(dims.add(count, -1), step))
    empty = dims.add(dims.mul(count, -1), 0) if count is not None else -1
    if facts.proves(empty):
        return
    for at in dict.fromkeys((start, last)):
        for need in (at, dims.add(dims.add(size, -1), dims.mul(at, -1))):
            if not facts.proves(need):
                yield need, axis


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
    if node.op.kind in (Kind.GATHER, Kind.SIZE) or "count" in node.attrs:
        return True
    given = indices_of(node) if node.op.kind in (Kind.VIEW, Kind.SCATTER) else ()
    if any(isinstance(x, Value) for x in given):
        return True
    if may_be_empty(node, facts) or negative_power(node):
        return True
    if any(True for _ in conditions(node, facts)):
        return True
    return any(may_fail(n, facts) for r in node.regions for n in r.nodes)
