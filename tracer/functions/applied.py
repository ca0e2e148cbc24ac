"""Functions of the user's that are applied along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from ..convert import active_operators, convert
from ..index import getitem, setitem
from .core import apply, asarray, axis_index, implements, product, shape_of


@implements(np.apply_along_axis)
def apply_along_axis(
    func1d: Callable[..., Any], axis: Any, arr: Any, *args: Any, **kwargs: Any
) -> Any:
    x = asarray(arr)
    k = axis_index(axis, len(x.shape))
    rest = tuple(j for j in range(len(x.shape)) if j != k)
    around = tuple(x.shape[j] for j in rest)
    count = product(around)
    moved = apply("transpose", x, axes=(*rest, k))
    lines = apply("reshape", moved, shape=(count, x.shape[k]))
    if count == 0:
        raise ShapeError("Cannot apply_along_axis when any iteration dimensions are 0")
    function = convert(func1d)
    first = asarray(function(getitem(lines, 0), *args, **kwargs))
    inner = shape_of(first)
    out = apply("full", 0, shape=(count, *inner), dtype=first.dtype)
    setitem(out, 0, first)

    def step(i: Any) -> None:
        setitem(out, i + 1, function(getitem(lines, i + 1), *args, **kwargs))

    active_operators().each(count - 1, step)
    r = apply("reshape", out, shape=(*around, *inner))
    places = range(len(around), len(around) + len(inner))
    order = (*range(k), *places, *range(k, len(around)))
    return apply("transpose", r, axes=order) if shape_of(r) else apply("item", r)


@implements(np.apply_over_axes)
def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    x = asarray(a)
    ndim = len(x.shape)
    function = convert(func)
    for axis in (axes,) if np.ndim(axes) == 0 else axes:
        k = axis_index(axis, ndim)
        r = asarray(function(x, k))
        if len(r.shape) != ndim:
            r = apply("expand_dims", r, axis=(k,))
        if len(r.shape) != ndim:
            raise ShapeError("function is not returning an array of the correct shape")
        x = r
    return x
