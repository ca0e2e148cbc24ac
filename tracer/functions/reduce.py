"""Reductions and scans: sum to median, cumsum, diff, and their NaN-blind kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from .core import (
    NO_VALUE,
    all_axes,
    apply,
    asarray,
    axis_index,
    axis_tuple,
    cast,
    dtype_of,
    finish,
    implements,
    operand,
    product,
    promote,
    same_sizes,
    shape_of,
    unsupported,
)


def _given(x: Any) -> bool:
    return x is not NO_VALUE and x is not None


def _is_kept(keepdims: Any) -> bool:
    return bool(keepdims) if keepdims is not NO_VALUE else False


def _masked(x: Any, where: Any, fill: Any) -> Any:
    """Return `x` with `fill` where the mask of `where=` is false."""
    if where is NO_VALUE or where is True:
        return x
    return apply("where", operand(where), x, fill)


def _reduce(name: str, x: Any, axis: Any, keepdims: Any) -> Any:
    axes = all_axes(axis, len(x.shape))
    return apply(name, x, axis=axes, keepdims=_is_kept(keepdims))


@implements(np.sum)
def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    initial: Any = NO_VALUE,
    where: Any = NO_VALUE,
) -> Any:
    x = _masked(cast(asarray(a), dtype), where, 0)
    r = _reduce("sum", x, axis, keepdims)
    r = cast(r, dtype) if dtype is not None else r
    if initial is not NO_VALUE:
        r = apply("add", r, initial)
    return finish(r, out)


@implements(np.prod)
def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    initial: Any = NO_VALUE,
    where: Any = NO_VALUE,
) -> Any:
    x = _masked(cast(asarray(a), dtype), where, 1)
    r = _reduce("prod", x, axis, keepdims)
    r = cast(r, dtype) if dtype is not None else r
    if initial is not NO_VALUE:
        r = apply("multiply", r, initial)
    return finish(r, out)


def _extremum(name: str, pairwise: str) -> Callable[..., Any]:
    def extremum(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE,
        where: Any = NO_VALUE,
    ) -> Any:
        x = asarray(a)
        if initial is NO_VALUE and where is not NO_VALUE and where is not True:
            raise ShapeError(
                f"reduction operation '{pairwise}' does not have an identity, so to "
                "use a where mask one has to specify 'initial'"
            )
        x = _masked(x, where, initial)
        axes = all_axes(axis, len(x.shape))
        if any(isinstance(x.shape[k], int) and x.shape[k] == 0 for k in axes):
            if initial is NO_VALUE:
                raise ShapeError(
                    f"zero-size array to reduction operation {pairwise} which has no "
                    "identity"
                )
            shape = shape_of(apply("sum", x, axis=axes, keepdims=_is_kept(keepdims)))
            r = apply("full", initial, shape=shape, dtype=x.dtype)
            return finish(r if shape else apply("item", r), out)
        r = _reduce(name, x, axis, keepdims)
        if initial is not NO_VALUE:
            r = apply(pairwise, r, initial)
        return finish(r, out)

    extremum.__name__ = name
    return extremum


max = implements(np.max, np.amax)(_extremum("max", "maximum"))
min = implements(np.min, np.amin)(_extremum("min", "minimum"))


@implements(np.any)
def any_(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
) -> Any:
    x = _masked(cast(asarray(a), np.bool_), where, False)
    return finish(_reduce("any", x, axis, keepdims), out)


@implements(np.all)
def all_(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
) -> Any:
    x = _masked(cast(asarray(a), np.bool_), where, True)
    return finish(_reduce("all", x, axis, keepdims), out)


# ---------------------------------------------------------------- moments


def _count(x: Any, axes: tuple[int, ...], where: Any, keepdims: bool) -> Any:
    """Return how many elements a reduction takes: a size, or the sum of a mask."""
    if where is NO_VALUE or where is True:
        return product(x.shape[k] for k in axes)
    mask = cast(asarray(where), np.int64)
    if not same_sizes(shape_of(mask), x.shape):
        mask = apply("broadcast_to", mask, shape=tuple(x.shape))
    return apply("sum", mask, axis=axes, keepdims=keepdims)


def _moment_dtype(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the dtype to compute in and that of the result."""
    if dtype is not None:
        return np.dtype(dtype), None
    if x.dtype.kind in "biu":
        return np.dtype(np.float64), None
    if x.dtype == np.float16:
        return np.dtype(np.float32), x.dtype
    return None, None


@implements(np.mean)
def mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
) -> Any:
    x = asarray(a)
    inner, last = _moment_dtype(x, dtype)
    axes = all_axes(axis, len(x.shape))
    keep = _is_kept(keepdims)
    total = sum(x, axis, inner, None, keep, where=where)
    r = apply("divide", total, _count(x, axes, where, keep))
    if where is not NO_VALUE and where is not True:
        last = last or total.dtype
    return finish(cast(r, last), out)


@implements(np.var)
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
    mean: Any = NO_VALUE,
    correction: Any = NO_VALUE,
) -> Any:
    return finish(
        _variance(a, axis, dtype, ddof, keepdims, where, mean, correction), out
    )


def _variance(
    a: Any,
    axis: Any,
    dtype: Any,
    ddof: Any,
    keepdims: Any,
    where: Any,
    average: Any,
    correction: Any,
) -> Any:
    x = asarray(a)
    if x.dtype.kind == "c":
        raise unsupported(f"var: complex operand {x.dtype}", "reals only")
    if correction is not NO_VALUE:
        ddof = correction
    inner, last = _moment_dtype(x, dtype)
    axes = all_axes(axis, len(x.shape))
    if average is NO_VALUE:
        total = sum(x, axis, inner, None, True, where=where)
        average = apply("divide", total, _count(x, axes, where, True))
        if inner is None:
            average = cast(average, x.dtype)
    gap = apply("subtract", x, average)
    square = apply("multiply", gap, gap)
    keep = _is_kept(keepdims)
    total = sum(square, axis, inner, None, keep, where=where)
    count = _count(x, axes, where, keep)
    free = apply("subtract", count, ddof) if hasattr(count, "dtype") else count - ddof
    if hasattr(free, "dtype"):
        free = apply("maximum", free, 0)
    elif not hasattr(ddof, "dtype") and free < 0:
        free = 0
    r = apply("divide", total, free)
    return cast(r, last or total.dtype)


@implements(np.std)
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
    mean: Any = NO_VALUE,
    correction: Any = NO_VALUE,
) -> Any:
    r = _variance(a, axis, dtype, ddof, keepdims, where, mean, correction)
    return finish(apply("sqrt", r), out)


@implements(np.average)
def average(
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: Any = NO_VALUE,
) -> Any:
    x = asarray(a)
    keep = _is_kept(keepdims)
    axes = all_axes(axis, len(x.shape))
    if weights is None:
        r = mean(x, axis, keepdims=keep)
        scale: Any = cast(asarray(_count(x, axes, NO_VALUE, keep)), r.dtype)
    else:
        w = _fit_weights(asarray(weights), x, axis)
        dtype = promote(x, w)
        if x.dtype.kind in "biu":
            dtype = np.result_type(dtype, np.float64)
        scale = sum(w, axis, dtype, keepdims=keep)
        product = apply("multiply", cast(x, dtype), cast(w, dtype))
        r = apply("divide", sum(product, axis, keepdims=keep), scale)
    if not returned:
        return r
    if not same_sizes(shape_of(scale), shape_of(r)):
        scale = apply("copy", apply("broadcast_to", scale, shape=tuple(shape_of(r))))
    return r, scale


def _fit_weights(w: Any, x: Any, axis: Any) -> Any:
    """Return weights that broadcast against `x`."""
    if same_sizes(shape_of(w), shape_of(x)):
        return w
    if axis is None:
        raise DTypeError("Axis must be specified when shapes of a and weights differ.")
    axes = axis_tuple(axis, len(x.shape))
    if not same_sizes(shape_of(w), [x.shape[k] for k in axes]):
        raise ShapeError(
            "Shape of weights must be consistent with shape of a along specified axis."
        )
    order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    if order != tuple(range(len(axes))):
        w = apply("transpose", w, axes=order)
    others = tuple(k for k in range(len(x.shape)) if k not in axes)
    return apply("expand_dims", w, axis=others) if others else w


@implements(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NO_VALUE) -> Any:
    x = asarray(a)
    high, low = max(x, axis, keepdims=keepdims), min(x, axis, keepdims=keepdims)
    return finish(apply("subtract", high, low), out)


# ---------------------------------------------------------------- positions, counts


def _arg_extremum(name: str) -> Callable[..., Any]:
    def arg_extremum(
        a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NO_VALUE
    ) -> Any:
        x = asarray(a)
        ndim = len(x.shape)
        keep = _is_kept(keepdims)
        if axis is None:
            flat = apply("reshape", x, shape=(product(x.shape),))
            r = apply(name, flat, axis=(0,), keepdims=False)
            if keep:
                r = apply("reshape", r, shape=(1,) * ndim)
            return finish(r, out)
        if not ndim:
            x = apply("reshape", x, shape=(1,))
            r = apply(name, x, axis=(axis_index(axis, 1),), keepdims=False)
            return finish(r, out)
        r = apply(name, x, axis=(axis_index(axis, ndim),), keepdims=keep)
        return finish(r, out)

    arg_extremum.__name__ = name
    return arg_extremum


argmax = implements(np.argmax)(_arg_extremum("argmax"))
argmin = implements(np.argmin)(_arg_extremum("argmin"))


@implements(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    x = asarray(a)
    nonzero = cast(x, np.bool_) if x.dtype.kind != "b" else x
    return sum(nonzero, axis, np.int64, keepdims=keepdims)


# ---------------------------------------------------------------- order statistics


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
    start, size = ((n // 2, 1) if odd else (n // 2 - 1, 2))
    middle = apply("slice", s, start, axis=k, size=size, step=1)
    r = mean(middle, -1)
    if x.dtype.kind == "f":
        last = apply("select", s, n - 1, axis=k)
        r = _scalar_where(apply("isnan", last), last, r)
    return finish(_keep_axes(r, axes, asarray(a), keepdims), out)


def _scalar_where(condition: Any, x: Any, y: Any) -> Any:
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
    if not _is_kept(keepdims) or not axes:
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
    return _scalar_where(apply("isnan", last), last, r)


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


# ---------------------------------------------------------------- scans


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


@implements(np.nancumsum)
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return cumsum(_without_nans(0.0)(a), axis, dtype, out)


@implements(np.nancumprod)
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return cumprod(_without_nans(1.0)(a), axis, dtype, out)


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
    if edge_order != 1:
        raise unsupported("gradient: edge_order=2", "edge_order=1 has a rule")
    if any(shape_of(operand(h)) for h in steps):
        raise unsupported("gradient: uneven spacing", "a constant step has a rule")
    if x.dtype.kind != "f":
        x = cast(x, np.float64)
    out = [_slope(x, h, k) for h, k in zip(steps, axes, strict=True)]
    return out[0] if len(axes) == 1 else tuple(out)


def _slope(x: Any, h: Any, k: int) -> Any:
    """Return central differences inside and one-sided ones at both ends."""
    from .join import concatenate

    n = x.shape[k]
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
    return concatenate(pieces, k)


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


# ---------------------------------------------------------------- without NaNs


def _without_nans(fill: Any) -> Callable[[Any], Any]:
    def replace(a: Any) -> Any:
        x = asarray(a)
        if x.dtype.kind != "f":
            return x
        return apply("where", apply("isnan", x), fill, x)

    return replace


@implements(np.nansum)
def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    initial: Any = NO_VALUE,
    where: Any = NO_VALUE,
) -> Any:
    x = _without_nans(0.0)(a)
    return sum(x, axis, dtype, out, keepdims, initial, where)


@implements(np.nanprod)
def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    initial: Any = NO_VALUE,
    where: Any = NO_VALUE,
) -> Any:
    x = _without_nans(1.0)(a)
    return prod(x, axis, dtype, out, keepdims, initial, where)


def _numbers_in(a: Any, where: Any) -> Any:
    """Return the mask of what is not NaN, together with `where=`."""
    mask = apply("logical_not", apply("isnan", a))
    if where is NO_VALUE or where is True:
        return mask
    return apply("logical_and", mask, operand(where))


@implements(np.nanmean)
def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
) -> Any:
    x = asarray(a)
    if x.dtype.kind == "f":
        where = _numbers_in(x, where)
    return mean(x, axis, dtype, out, keepdims, where=where)


@implements(np.nanvar)
def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
    mean: Any = NO_VALUE,
    correction: Any = NO_VALUE,
) -> Any:
    x = asarray(a)
    if x.dtype.kind == "f":
        where = _numbers_in(x, where)
        x = _without_nans(0.0)(x)
    return finish(
        _variance(x, axis, dtype, ddof, keepdims, where, mean, correction), out
    )


@implements(np.nanstd)
def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = NO_VALUE,
    *,
    where: Any = NO_VALUE,
    mean: Any = NO_VALUE,
    correction: Any = NO_VALUE,
) -> Any:
    r = nanvar(
        a, axis, dtype, None, ddof, keepdims, where=where, mean=mean,
        correction=correction,
    )
    return finish(apply("sqrt", r), out)


def _nan_extremum(name: str, fill: float, reduce: Any) -> Callable[..., Any]:
    def extremum(
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE,
        where: Any = NO_VALUE,
    ) -> Any:
        x = asarray(a)
        r = reduce(_without_nans(fill)(x), axis, None, keepdims, initial, where)
        if x.dtype.kind == "f":
            every = all_(apply("isnan", x), axis, keepdims=keepdims)
            r = _scalar_where(every, np.nan, r) if _given(every) else r
        return finish(r, out)

    extremum.__name__ = name
    return extremum


nanmax = implements(np.nanmax)(_nan_extremum("nanmax", -np.inf, max))
nanmin = implements(np.nanmin)(_nan_extremum("nanmin", np.inf, min))


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


