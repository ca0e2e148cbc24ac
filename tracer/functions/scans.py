"""Scans and differences: cumsum, diff, gradient, trapezoid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
from ..order import ordered
from .core import (
    NO_VALUE,
    all_axes,
    apply,
    asarray,
    axis_index,
    axis_tuple,
    cast,
    finish,
    implements,
    operand,
    product,
    shape_of,
)
from .reduce import sum


def _scan(name: str) -> Callable[..., Any]:
    def scan(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x = cast(asarray(a), dtype)
        if axis is None or not x.shape:
            if axis is not None:
                axis_index(axis, 1)
            x, axis = apply("reshape", x, shape=(product(x.shape),)), 0
        r = apply(name, x, axis=axis_index(axis, len(x.shape)))
        return finish(cast(r, dtype), out)

    scan.__name__ = name
    return scan


cumsum = implements(np.cumsum)(_scan("cumsum"))
cumprod = implements(np.cumprod)(_scan("cumprod"))
implements(np.maximum.accumulate)(_scan("cummax"))
implements(np.minimum.accumulate)(_scan("cummin"))


@implements(np.cumulative_sum)
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    return _cumulative(cumsum, 0, x, axis, dtype, out, include_initial)


@implements(np.cumulative_prod)
def cumulative_prod(
    x: Any,
    /,
    *,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    include_initial: bool = False,
) -> Any:
    return _cumulative(cumprod, 1, x, axis, dtype, out, include_initial)


def _cumulative(
    scan: Any, first: int, x: Any, axis: Any, dtype: Any, out: Any, initial: bool
) -> Any:
    x = asarray(x)
    if axis is None:
        if len(x.shape) != 1:
            raise ShapeError(
                "For arrays which have more than one dimension ``axis`` argument is "
                "required."
            )
        axis = 0
    r = scan(x, axis, dtype)
    if initial:
        from .join import concatenate

        k = axis_index(axis, len(r.shape))
        shape = (*r.shape[:k], 1, *r.shape[k + 1 :])
        start = apply("full", first, shape=shape, dtype=r.dtype)
        r = concatenate([start, r], k)
    return finish(r, out)


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    from .join import concatenate

    x = asarray(ary)
    r = diff(apply("reshape", x, shape=(product(x.shape),)))
    ends = [None if e is None else asarray(e) for e in (to_begin, to_end)]
    ends = [
        None if e is None else apply("reshape", e, shape=(product(e.shape),))
        for e in ends
    ]
    if ends == [None, None]:
        return r
    return concatenate([p for p in (ends[0], r, ends[1]) if p is not None], 0)


@implements(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    x = asarray(f)
    ndim = len(x.shape)
    axes = all_axes(axis, ndim) if axis is None else axis_tuple(axis, ndim)
    steps = list(varargs) or [1.0] * len(axes)
    if len(steps) == 1:
        steps = steps * len(axes)
    if len(steps) != len(axes):
        raise DTypeError("invalid number of arguments")
    if edge_order not in (1, 2):
        raise ShapeError("'edge_order' greater than 2 not supported")
    if x.dtype.kind != "f":
        x = cast(x, np.float64)
    out = [
        _slope(x, _spacing(h, x, k), k, edge_order)
        for h, k in zip(steps, axes, strict=True)
    ]
    return out[0] if len(axes) == 1 else tuple(out)


def _spacing(h: Any, x: Any, k: int) -> Any:
    """Return a step, or the distances of coordinates, along axis k of an array."""
    h = operand(h)
    if not shape_of(h):
        return h
    if len(shape_of(h)) != 1:
        raise ShapeError("distances must be either scalars or 1d")
    if h.shape[0] != x.shape[k]:
        raise ShapeError(
            "when 1d, distances must match the length of the corresponding dimension"
        )
    gaps = diff(h if h.dtype.kind == "f" else cast(h, np.float64))
    after = tuple(range(1, len(x.shape) - k))
    return apply("expand_dims", gaps, axis=after) if after else gaps


def _slope(x: Any, h: Any, k: int, edge_order: int) -> Any:
    """Return central differences inside and one-sided ones at both ends."""
    from .join import concatenate

    n = x.shape[k]
    if n < 3 and edge_order == 2:
        raise ShapeError(
            "Shape of array too small to calculate a numerical gradient, at least "
            "(edge_order + 1) elements are required."
        )
    if n > 2 and (edge_order == 2 or shape_of(h)):
        return ordered(concatenate(_parabolas(x, h, k, edge_order), k), "K", x)
    if n < 2:
        raise ShapeError(
            "Shape of array too small to calculate a numerical gradient, at least "
            "(edge_order + 1) elements are required."
        )

    def part(start: Any, size: Any) -> Any:
        return apply("slice", x, start, axis=k, size=size, step=1)

    first = apply("divide", apply("subtract", part(1, 1), part(0, 1)), h)
    last = apply("divide", apply("subtract", part(n - 1, 1), part(n - 2, 1)), h)
    pieces = [first, last]
    if n > 2:
        wide = apply("subtract", part(2, n - 2), part(0, n - 2))
        pieces.insert(1, apply("divide", wide, apply("multiply", 2.0, h)))
    return ordered(concatenate(pieces, k), "K", x)


def _parabolas(x: Any, h: Any, k: int, edge_order: int) -> list[Any]:
    """Return slopes, at three points each, of the parabolas through them.

    With slopes p and q before and after the middle, and distances a and b, the slope
    is (b * p + a * q) / (a + b) there, and p - a * (q - p) / (a + b) at the start.
    """
    n = x.shape[k]

    def part(y: Any, start: Any, size: Any) -> Any:
        return apply("slice", y, start, axis=k, size=size, step=1)

    gaps = apply("subtract", part(x, 1, n - 1), part(x, 0, n - 1))
    slopes = apply("divide", gaps, h)
    p, q = part(slopes, 0, n - 2), part(slopes, 1, n - 2)
    a = b = h
    if shape_of(h):
        axis = len(shape_of(h)) - (len(x.shape) - k)
        a, b = (apply("slice", h, s, axis=axis, size=n - 2, step=1) for s in (0, 1))
    share = apply("divide", a, apply("add", a, b))
    change = apply("subtract", q, p)
    bend = apply("multiply", share, change)
    inside = apply("add", p, bend)
    if edge_order == 1:
        return [part(slopes, 0, 1), inside, part(slopes, n - 2, 1)]
    rest = apply("multiply", apply("divide", b, apply("add", a, b)), change)
    first = apply("subtract", part(p, 0, 1), part(bend, 0, 1))
    last = apply("add", part(q, n - 3, 1), part(rest, n - 3, 1))
    return [first, inside, last]


@implements(np.diff)
def diff(
    a: Any,
    n: int = 1,
    axis: Any = -1,
    prepend: Any = NO_VALUE,
    append: Any = NO_VALUE,
) -> Any:
    if n == 0:
        return a
    if n < 0:
        raise ShapeError(f"order must be non-negative but got {n}")
    x = asarray(a)
    if not x.shape:
        raise ShapeError("diff requires input that is at least one dimensional")
    k = axis_index(axis, len(x.shape))
    ends = [_end(e, x, k) for e in (prepend, append)]
    if ends[0] is not None or ends[1] is not None:
        from .join import concatenate

        x = concatenate([e for e in (ends[0], x, ends[1]) if e is not None], k)
    op = "not_equal" if x.dtype == np.bool_ else "subtract"
    for _ in range(n):
        size = x.shape[k] - 1
        if size < 0:
            size = 0
        later = apply("slice", x, 1 if size != 0 else 0, axis=k, size=size, step=1)
        earlier = apply("slice", x, 0, axis=k, size=size, step=1)
        x = apply(op, later, earlier)
    return x


def _end(e: Any, x: Any, k: int) -> Any:
    if e is NO_VALUE:
        return None
    e = asarray(e)
    if shape_of(e):
        return e
    shape = tuple(1 if n == k else d for n, d in enumerate(x.shape))
    return apply("broadcast_to", e, shape=shape)


@implements(np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Any:
    y = asarray(y)
    k = axis_index(axis, len(y.shape))
    if x is None:
        d: Any = dx
    else:
        x = asarray(x)
        if len(x.shape) == 1:
            d = diff(x)
            after = tuple(range(1, len(y.shape) - k))
            d = apply("expand_dims", d, axis=after) if after else d
        else:
            d = diff(x, axis=k)
    n = y.shape[k]
    later = apply("slice", y, 1, axis=k, size=n - 1, step=1)
    earlier = apply("slice", y, 0, axis=k, size=n - 1, step=1)
    area = apply("divide", apply("multiply", d, apply("add", later, earlier)), 2.0)
    return sum(area, k)
