"""Sorting, searching and counting."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
from ..index import getitem
from ..values import concrete, is_tensor, lift_beside
from .builtins import int_
from .builtins import max_ as largest
from .choice import take_along_axis
from .core import (
    apply,
    as_shape,
    asarray,
    axis_index,
    cast,
    implements,
    no_support,
    same_sizes,
    shape_of,
    unsupported,
)
from .create import linspace
from .join import concatenate
from .linalg import flat
from .reduce import any_, sum
from .reduce import max as max_
from .reduce import min as min_
from .scans import cumulative_sum, diff


def _sorter(name: str) -> Any:
    def sort_(
        a: Any,
        axis: Any = -1,
        kind: Any = None,
        order: Any = None,
        *,
        stable: Any = None,
    ) -> Any:
        no_support("order", order)
        x = asarray(a)
        if axis is None:
            x, axis = flat(x), 0
        if not x.shape:
            axis_index(axis, 0)
        return apply(name, x, axis=axis_index(axis, len(x.shape)))

    sort_.__name__ = name
    return sort_


sort = implements(np.sort)(_sorter("sort"))
argsort = implements(np.argsort)(_sorter("argsort"))


@implements(np.partition)
def partition(
    a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None
) -> Any:
    return sort(a, axis, None, order)


@implements(np.argpartition)
def argpartition(
    a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None
) -> Any:
    return argsort(a, axis, None, order)


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    x, y = asarray(a), asarray(v)
    if side not in ("left", "right"):
        raise ShapeError(f"side must be 'left' or 'right', not {side!r}")
    if sorter is not None:
        x = getitem(x, asarray(sorter))
    return apply("searchsorted", x, y, right=side == "right")


@implements(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    edges = asarray(bins)
    known = concrete(edges)
    rises = searchsorted(edges, x, "left" if right else "right")
    if known is not None and (known[:-1] <= known[1:]).all():
        return rises
    n = edges.shape[0]
    back = apply("flip", edges, axis=(0,))
    falls = apply("subtract", n, searchsorted(back, x, "right" if right else "left"))
    if known is not None:
        if (known[:-1] >= known[1:]).all():
            return falls
        raise ShapeError("bins must be monotonically increasing or decreasing")
    ends = (apply("select", edges, k, axis=0) for k in (0, n - 1))
    r = apply("where", apply("less_equal", *ends), rises, falls)
    return r if shape_of(r) else apply("item", r)


@implements(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    index = asarray(x)
    if index.dtype.kind not in "biu" or len(index.shape) != 1:
        raise DTypeError("bincount: x must be a 1-d array of integers")
    if any_(apply("less", index, 0)):
        raise ShapeError("'list' argument must have no negative elements")
    n = index.shape[0]
    size = largest([int_(max_(index)) + 1, minlength]) if n > 0 else minlength
    index = cast(index, np.int64)
    dtype = np.dtype(np.int64 if weights is None else np.float64)
    if weights is None:
        w = apply("full", 1, shape=(n,), dtype=dtype)
    else:
        w = cast(asarray(weights), dtype)
        if not same_sizes(w.shape, (n,)):
            raise ShapeError("The weights and list don't have the same length.")
    zeros = apply("full", 0, shape=as_shape(size), dtype=dtype)
    return apply("gather_scatter_add", zeros, w, index, axes=(0,), position=0)


@implements(np.lexsort)
def lexsort(keys: Any, axis: Any = -1) -> Any:
    parts = [asarray(k) for k in keys]
    if not parts:
        raise DTypeError("need sequence of keys with len > 0 in lexsort")
    order = argsort(parts[0], axis)
    for x in parts[1:]:
        inner = argsort(take_along_axis(x, order, axis), axis)
        order = take_along_axis(order, inner, axis)
    return order


@implements(np.histogram)
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    x = flat(asarray(a))
    edges = _edges(x, bins, range)
    ordered_by = argsort(x)
    s = getitem(x, ordered_by)
    n = edges.shape[0]
    inner = searchsorted(s, apply("slice", edges, 0, axis=0, size=n - 1, step=1))
    last = searchsorted(
        s, apply("slice", edges, n - 1, axis=0, size=1, step=1), "right"
    )
    below = concatenate([inner, last], 0)
    if weights is not None:
        w = getitem(flat(asarray(weights)), ordered_by)
        below = getitem(cumulative_sum(w, axis=0, include_initial=True), below)
    counts = diff(below)
    if density:
        if weights is None:
            counts = cast(counts, np.float64)
        counts = apply("divide", apply("divide", counts, diff(edges)), sum(counts))
    return counts, edges


@implements(np.histogram_bin_edges)
def histogram_bin_edges(
    a: Any, bins: Any = 10, range: Any = None, weights: Any = None
) -> Any:
    return _edges(flat(asarray(a)), bins, range)


def _edges(x: Any, bins: Any, limits: Any) -> Any:
    if isinstance(bins, str):
        raise unsupported(f"histogram: bins={bins!r}", "a number or edges have a rule")
    edges = asarray(bins)
    if shape_of(edges):
        falls = apply("less", diff(edges), 0)
        if any_(falls):
            raise ShapeError("`bins` must increase monotonically, when an array")
        return edges if is_tensor(edges) else lift_beside(edges.copy(), x)
    first, last = (min_(x), max_(x)) if limits is None else limits
    flat_range = apply("equal", first, last)
    half = apply("where", flat_range, 0.5, 0.0)
    return linspace(apply("subtract", first, half), apply("add", last, half), bins + 1)
