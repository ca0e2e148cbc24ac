"""Reductions: sums, products, extrema, moments, positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
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
    promote,
    same_sizes,
    shape_of,
    unsupported,
)


def is_kept(keepdims: Any) -> bool:
    return bool(keepdims) if keepdims is not NO_VALUE else False


def _masked(x: Any, where: Any, fill: Any) -> Any:
    """Return `x` with `fill` where the mask of `where=` is false."""
    if where is NO_VALUE or where is True:
        return x
    return apply("where", operand(where), x, fill)


def _reduce(name: str, x: Any, axis: Any, keepdims: Any) -> Any:
    axes = all_axes(axis, len(x.shape))
    return apply(name, x, axis=axes, keepdims=is_kept(keepdims))


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
            shape = shape_of(apply("sum", x, axis=axes, keepdims=is_kept(keepdims)))
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
    if _is_whole(where):
        return product(x.shape[k] for k in axes)
    mask = cast(asarray(where), np.int64)
    if not same_sizes(shape_of(mask), x.shape):
        mask = apply("broadcast_to", mask, shape=tuple(x.shape))
    return apply("sum", mask, axis=axes, keepdims=keepdims)


def _is_whole(where: Any) -> bool:
    return where is NO_VALUE or where is True


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
    keep = is_kept(keepdims)
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
        variance(a, axis, dtype, ddof, keepdims, where, mean, correction), out
    )


def variance(
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
    keep = is_kept(keepdims)
    floats = cast(x, inner) if inner is not None else x
    if average is NO_VALUE and floats.dtype.kind == "f" and _is_whole(where):
        total = apply("deviance", floats, axis=axes, keepdims=keep)
    else:
        total = _squares(x, axis, inner, keep, where, average)
    count = _count(x, axes, where, keep)
    free = apply("subtract", count, ddof) if hasattr(count, "dtype") else count - ddof
    if hasattr(free, "dtype"):
        free = apply("maximum", free, 0)
    elif not hasattr(ddof, "dtype") and free < 0:
        free = 0
    r = apply("divide", total, free)
    return cast(r, last or total.dtype)


def _squares(
    x: Any, axis: Any, inner: Any, keepdims: bool, where: Any, average: Any
) -> Any:
    """Return the sum of the squared differences from a mean, of some elements."""
    if average is NO_VALUE:
        total = sum(x, axis, inner, None, True, where=where)
        count = _count(x, all_axes(axis, len(x.shape)), where, True)
        average = apply("divide", total, count)
        if inner is None:
            average = cast(average, x.dtype)
    gap = apply("subtract", x, average)
    return sum(apply("multiply", gap, gap), axis, inner, None, keepdims, where=where)


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
    r = variance(a, axis, dtype, ddof, keepdims, where, mean, correction)
    return finish(apply("root", r), out)


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
    keep = is_kept(keepdims)
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
        keep = is_kept(keepdims)
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
