"""Reductions and scans that leave NaNs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from .choice import take_along_axis
from .core import (
    NO_VALUE,
    apply,
    asarray,
    finish,
    implements,
    operand,
)
from .join import concatenate
from .quantiles import keep_axes, reduced_last, scalar_where
from .reduce import (
    all_,
    any_,
    argmax,
    argmin,
    max,
    mean,
    min,
    prod,
    sum,
    variance,
)
from .scans import cumprod, cumsum


def without_nans(fill: Any) -> Callable[[Any], Any]:
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
    x = without_nans(0.0)(a)
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
    x = without_nans(1.0)(a)
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
        x = without_nans(0.0)(x)
    return finish(
        variance(x, axis, dtype, ddof, keepdims, where, mean, correction), out
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
        a,
        axis,
        dtype,
        None,
        ddof,
        keepdims,
        where=where,
        mean=mean,
        correction=correction,
    )
    return finish(apply("root", r), out)


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
        r = reduce(without_nans(fill)(x), axis, None, keepdims, initial, where)
        if x.dtype.kind == "f":
            every = all_(apply("isnan", x), axis, keepdims=keepdims)
            r = scalar_where(every, np.nan, r)
        return finish(r, out)

    extremum.__name__ = name
    return extremum


nanmax = implements(np.nanmax)(_nan_extremum("nanmax", -np.inf, max))
nanmin = implements(np.nanmin)(_nan_extremum("nanmin", np.inf, min))


@implements(np.nancumsum)
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return cumsum(without_nans(0.0)(a), axis, dtype, out)


@implements(np.nancumprod)
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return cumprod(without_nans(1.0)(a), axis, dtype, out)


def _nan_position(name: str, fill: float, find: Any) -> Callable[..., Any]:
    def position(
        a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NO_VALUE
    ) -> Any:
        x = asarray(a)
        if x.dtype.kind == "f" and any_(all_(apply("isnan", x), axis)):
            raise ShapeError("All-NaN slice encountered")
        return find(without_nans(fill)(x), axis, out, keepdims=keepdims)

    position.__name__ = name
    return position


nanargmax = implements(np.nanargmax)(_nan_position("nanargmax", -np.inf, argmax))
nanargmin = implements(np.nanargmin)(_nan_position("nanargmin", np.inf, argmin))


@implements(np.nanmedian)
def nanmedian(
    a: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: Any = NO_VALUE,
) -> Any:
    x, axes = reduced_last(asarray(a), axis)
    k = len(x.shape) - 1
    s = apply("sort", x, axis=k)
    numbers = sum(apply("logical_not", apply("isnan", x)), k, keepdims=True)
    places = (apply("subtract", numbers, 1), numbers)
    halves = [apply("maximum", apply("floor_divide", p, 2), 0) for p in places]
    middle = [
        take_along_axis(s, apply("minimum", h, x.shape[k] - 1), k) for h in halves
    ]
    r = mean(concatenate(middle, k), k)
    return finish(keep_axes(r, axes, asarray(a), keepdims), out)
