"""Order statistics: median, quantiles, percentiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from ..values import concrete, constant, is_symbolic
from .core import (
    all_axes,
    apply,
    asarray,
    cast,
    finish,
    implements,
    product,
    shape_of,
    unsupported,
)
from .reduce import is_kept, mean


@implements(np.median)
def median(
    a: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:
    x, axes = reduced_last(asarray(a), axis)
    n = x.shape[-1]
    k = len(x.shape) - 1
    if isinstance(n, int) and n == 0:  # the mean of nothing
        return finish(keep_axes(mean(x, -1), axes, asarray(a), keepdims), out)
    s = apply("sort", x, axis=k)
    odd = n % 2 == 1
    start, size = (n // 2, 1) if odd else (n // 2 - 1, 2)
    middle = apply("slice", s, start, axis=k, size=size, step=1)
    r = mean(middle, -1)
    if x.dtype.kind == "f":
        last = apply("select", s, n - 1, axis=k)
        r = scalar_where(apply("isnan", last), last, r)
    return finish(keep_axes(r, axes, asarray(a), keepdims), out)


def scalar_where(condition: Any, x: Any, y: Any) -> Any:
    """Choose elementwise; 0-d results are scalars, as a reduction's are."""
    r = apply("where", condition, x, y)
    return r if shape_of(r) else apply("item", r)


def reduced_last(x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """Return `x` with the reduced axes made one, at the end, and those axes."""
    axes = all_axes(axis, len(x.shape))
    if len(axes) == len(x.shape):
        return apply("reshape", x, shape=(product(x.shape),)), axes
    rest = tuple(k for k in range(len(x.shape)) if k not in axes)
    order = (*rest, *axes)
    if order != tuple(range(len(order))):
        x = apply("transpose", x, axes=order)
    if len(axes) != 1:
        kept = tuple(x.shape[: len(rest)])
        x = apply("reshape", x, shape=(*kept, product(x.shape[len(rest) :])))
    return x, axes


def keep_axes(r: Any, axes: tuple[int, ...], x: Any, keepdims: Any) -> Any:
    if not is_kept(keepdims) or not axes:
        return r
    return apply("expand_dims", r, axis=axes)


@implements(np.quantile)
def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    if method not in _WEIGHTS or weights is not None:
        raise unsupported(
            f"quantile: method={method!r} or weights",
            f"there are rules for {', '.join(_WEIGHTS)}",
        )
    x, axes = reduced_last(asarray(a), axis)
    k = len(x.shape) - 1
    s = apply("sort", x if x.dtype.kind == "f" else cast(x, np.float64), axis=k)
    at = asarray(q)
    known = concrete(at)
    if known is not None and ((known < 0) | (known > 1)).any():
        raise ShapeError("Quantiles must be in the range [0, 1]")
    if known is None or method != "linear":
        at = at if known is None else constant(known.copy())
        flat = apply("reshape", at, shape=(product(at.shape),))
        levels = [apply("select", flat, n, axis=0) for n in range(int(flat.shape[0]))]
        weigh = _WEIGHTS[method]
        parts = [_at_level(s, k, cast(p, np.float64), weigh) for p in levels]
    else:
        parts = [_at_quantile(s, k, float(p)) for p in known.ravel()]
    parts = [keep_axes(p, axes, x, keepdims) for p in parts]
    if not at.shape:
        return finish(parts[0], out)
    from .join import stack

    r = stack(parts, 0)
    return finish(
        apply("reshape", r, shape=(*at.shape, *shape_of(r)[1:])) if at.ndim != 1 else r,
        out,
    )


def _odd(x: Any) -> Any:
    return apply("equal", apply("remainder", x, 2), 1)


def _nearest(low: Any, part: Any) -> Any:
    """Round to the nearer element, from the middle to the even one."""
    tie = apply("logical_and", apply("equal", part, 0.5), _odd(low))
    return apply("logical_or", apply("greater", part, 0.5), tie)


# How much of the way from the element below to the one above, by position and part.
_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda low, part: part,
    "lower": lambda low, part: 0.0,
    "higher": lambda low, part: apply("greater", part, 0),
    "midpoint": lambda low, part: apply("multiply", apply("greater", part, 0), 0.5),
    "nearest": _nearest,
}


def _at_quantile(s: Any, k: int, p: float) -> Any:
    """Interpolate linearly in a sorted array at the quantile p."""
    n = s.shape[k]
    if p == 1.0:
        return _maybe_item(apply("select", s, n - 1, axis=k))
    if p == 0.0 or n == 1:
        r = apply("select", s, 0, axis=k)
        return _nan_if_last(s, k, r)
    n = int(n)  # the position is rounded, so the size must be known
    position = (n - 1) * p
    low = int(position)
    weight = position - low
    below = apply("select", s, low, axis=k)
    above = apply("select", s, low + 1 if low + 1 < n else low, axis=k)
    gap = apply("subtract", above, below)
    if weight >= 0.5:
        r = apply("subtract", above, apply("multiply", gap, 1 - weight))
    else:
        r = apply("add", below, apply("multiply", gap, weight))
    return _nan_if_last(s, k, r)


def _at_level(s: Any, k: int, p: Any, weigh: Callable[[Any, Any], Any]) -> Any:
    """Choose or interpolate in a sorted array at a quantile that is computed."""
    last = s.shape[k] - 1
    position = apply("multiply", p, last)
    low = apply("minimum", cast(apply("floor", position), np.int64), last)
    weight = weigh(low, apply("subtract", position, low))
    below = apply("select", s, low, axis=k)
    above = apply("select", s, apply("minimum", apply("add", low, 1), last), axis=k)
    gap = apply("subtract", above, below)
    far = apply(
        "subtract", above, apply("multiply", gap, apply("subtract", 1.0, weight))
    )
    near = apply("add", below, apply("multiply", gap, weight))
    r = scalar_where(apply("greater_equal", weight, 0.5), far, near)
    return _nan_if_last(s, k, r)


def _nan_if_last(s: Any, k: int, r: Any) -> Any:
    last = apply("select", s, s.shape[k] - 1, axis=k)
    return scalar_where(apply("isnan", last), last, r)


def _maybe_item(x: Any) -> Any:
    return x if shape_of(x) else apply("item", x)


@implements(np.percentile)
def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    at = apply("divide", asarray(q), 100) if is_symbolic(q) else np.true_divide(q, 100)
    return quantile(
        a, at, axis, out, overwrite_input, method, keepdims, weights=weights
    )
