"""Order statistics: median, quantiles, percentiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import ShapeError
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
    x, axes = _reduced_last(asarray(a), axis)
    n = x.shape[-1]
    k = len(x.shape) - 1
    s = apply("sort", x, axis=k)
    odd = n % 2 == 1
    start, size = (n // 2, 1) if odd else (n // 2 - 1, 2)
    middle = apply("slice", s, start, axis=k, size=size, step=1)
    r = mean(middle, -1)
    if x.dtype.kind == "f":
        last = apply("select", s, n - 1, axis=k)
        r = scalar_where(apply("isnan", last), last, r)
    return finish(_keep_axes(r, axes, asarray(a), keepdims), out)


def scalar_where(condition: Any, x: Any, y: Any) -> Any:
    """Choose elementwise; 0-d results are scalars, as a reduction's are."""
    r = apply("where", condition, x, y)
    return r if shape_of(r) else apply("item", r)


def _reduced_last(x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
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


def _keep_axes(r: Any, axes: tuple[int, ...], x: Any, keepdims: Any) -> Any:
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
    if method != "linear" or weights is not None:
        raise unsupported(
            f"quantile: method={method!r} or weights", "only method='linear' has a rule"
        )
    if hasattr(q, "shape") and not isinstance(q, np.ndarray | np.generic):
        raise unsupported("quantile: q is a Tensor", "q must be a number or an array")
    at = np.asarray(q, np.float64)
    if ((at < 0) | (at > 1)).any():
        raise ShapeError("Quantiles must be in the range [0, 1]")
    x, axes = _reduced_last(asarray(a), axis)
    k = len(x.shape) - 1
    s = apply("sort", x if x.dtype.kind == "f" else cast(x, np.float64), axis=k)
    parts = [_at_quantile(s, k, float(p)) for p in at.ravel()]
    parts = [_keep_axes(p, axes, x, keepdims) for p in parts]
    if not at.shape:
        return finish(parts[0], out)
    from .join import stack

    r = stack(parts, 0)
    return finish(
        apply("reshape", r, shape=(*at.shape, *shape_of(r)[1:])) if at.ndim != 1 else r,
        out,
    )


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
    if hasattr(q, "shape") and not isinstance(q, np.ndarray | np.generic):
        raise unsupported("percentile: q is a Tensor", "q must be a number or an array")
    at = np.true_divide(q, 100)
    return quantile(
        a, at, axis, out, overwrite_input, method, keepdims, weights=weights
    )
