"""Sorting, searching and counting."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
from ..index import getitem
from ..values import concrete, lift_beside
from .core import (
    apply,
    asarray,
    axis_index,
    cast,
    implements,
    no_support,
    shape_of,
    unsupported,
)
from .linalg import flat


def must_be_known(x: Any, what: str) -> np.ndarray[Any, Any]:
    """Return values that decide the size of a result."""
    values = concrete(x)
    if values is None:
        raise unsupported(
            f"{what}: the result's size depends on computed values",
            "sizes must be known when the function is captured",
            "use np.where, or a mask as an index",
        )
    return values


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
    known = must_be_known(index, "bincount")
    if known.size and known.min() < 0:
        raise ShapeError("'list' argument must have no negative elements")
    size = max(int(known.max()) + 1 if known.size else 0, minlength)
    if weights is None:
        return lift_beside(np.bincount(known, minlength=size), index)
    w = cast(asarray(weights), np.float64)
    zeros = apply("full", 0.0, shape=(size,), dtype=np.dtype(np.float64))
    return apply("gather_scatter_add", zeros, w, index, axes=(0,), position=0)
