"""How ops take a new axis, which has one entry per iteration of a loop.

A *batched* value is an array with the new axis somewhere among the axes that it has in
one iteration; a value that is the same in all iterations has none. The rule of an op,
`batch(b, op, xs, axes, **attrs)`, gets operands, the position of the new axis in each
(None: no such axis), and the attributes of one iteration, and returns the result and
the position of the axis there, or None where it does not know how. The rule of a view
is `batch(x, axis, *indices, over, **attrs)`: it returns the views to be taken one after
the other, which also say how a part is written, and the position of the axis.

Rules of a kind stand here, those of single ops with the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import dims
from ..build import Builder
from ..dims import Dim, Symbol
from ..op import Kind, Op

Axis: TypeAlias = int | None
Batched: TypeAlias = tuple[Any, Axis]


@dataclass(frozen=True, slots=True)
class Over:
    """The iterations: `symbol` counts them from 0, there are `size` of them."""

    symbol: Symbol
    size: Dim

    def varies(self, d: object) -> bool:
        """Tell whether an index or a dim differs between iterations."""
        return isinstance(d, dims.Expr) and self.symbol in dims.symbols_of(d)

    def line(self, d: Dim) -> tuple[Dim, int] | None:
        """Return the first value and the step of a dim that is linear with a step."""
        first = dims.substitute(d, {self.symbol: 0})
        step = dims.add(dims.substitute(d, {self.symbol: 1}), dims.mul(first, -1))
        if not isinstance(step, int) or not step:
            return None
        t = dims.symbol(self.symbol.name)
        return (first, step) if dims.add(first, dims.mul(t, step)) == d else None


def moved(b: Builder, x: Any, axis: int, to: int) -> Any:
    """Return `x` with one axis at another position, the others in order."""
    if axis == to:
        return x
    order = [k for k in range(len(b.shape(x))) if k != axis]
    order.insert(to, axis)
    return b.transpose(x, axes=tuple(order))


def aligned(b: Builder, x: Any, axis: Axis, behind: int) -> Any:
    """Return `x` so that it broadcasts where `behind` axes follow the new one."""
    ndim = len(b.shape(x))
    if axis is None:
        return b.expand_dims(x, axis=(ndim - behind,)) if ndim > behind else x
    if ndim - 1 >= behind:
        return moved(b, x, axis, ndim - 1 - behind)
    x = moved(b, x, axis, 0)
    return b.expand_dims(x, axis=tuple(range(1, behind - ndim + 2)))


def shifted(k: int, axis: int) -> int:
    """Return where axis `k` of one iteration is beside the new axis."""
    return k if k < axis else k + 1


# ---------------------------------------------------------------- kinds


def _elementwise(
    b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis], **attrs: Any
) -> Batched:
    """Broadcast: the new axis is where the operand with the most axes has it.

    Arrays that are the same in all iterations get it in front.
    """
    counts = [len(b.shape(x)) - (p is not None) for x, p in zip(xs, axes, strict=True)]
    ndim = max(counts)
    given = [(n, p) for n, p in zip(counts, axes, strict=True) if p is not None]
    most, p = max(given, key=lambda g: g[0])
    behind = most - p if most else ndim
    together = [aligned(b, x, p, behind) for x, p in zip(xs, axes, strict=True)]
    return b.apply(op, together, attrs), ndim - behind


def _reduction(
    b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis], **attrs: Any
) -> Batched:
    (x,), (p,) = xs, axes
    assert p is not None
    over = tuple(shifted(k, p) for k in attrs["axis"])
    out = b.apply(op, (x,), {**attrs, "axis": over})
    kept = attrs.get("keepdims", False)
    return out, p if kept else p - sum(k < p for k in over)


def _along(
    b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis], **attrs: Any
) -> Batched | None:
    """Batch an op along one axis, whose operands and result have equal axes."""
    if any(p is None for p in axes):
        return None
    p = axes[0]
    assert p is not None
    xs = [moved(b, x, q, p) for x, q in zip(xs, axes, strict=True) if q is not None]
    return b.apply(op, xs, {**attrs, "axis": shifted(attrs["axis"], p)}), p


KINDS: dict[Kind, Callable[..., Batched | None]] = {
    Kind.ELEMENTWISE: _elementwise,
    Kind.COPY: _elementwise,
    Kind.REDUCTION: _reduction,
    Kind.SCAN: _along,
    Kind.JOIN: _along,
}


def rule_of(op: Op) -> Callable[..., Any] | None:
    """Return how an op takes a new axis; None where it is not known."""
    return op.batch or KINDS.get(op.kind)


def same(b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis]) -> Batched:
    """Return the operand: for ops that only mark the value of one iteration."""
    return xs[0], axes[0]
