"""Sets of values: unique and its kind, by way of sorting.

Which elements are chosen has no derivative; the values that are chosen do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..index import getitem, setitem
from .core import apply, asarray, cast, implements, no_support, shape_of
from .join import concatenate
from .linalg import flat
from .scans import cumsum, diff
from .sorting import argsort, searchsorted


@implements(np.unique)
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    no_support("axis", axis)
    given = asarray(ar)
    x = flat(given)
    order = argsort(x)
    s = getitem(x, order)
    first = _firsts(s, equal_nan)
    out = [getitem(s, first)]
    if return_index:
        out.append(getitem(order, first))
    if return_inverse:
        inverse = apply("full", 0, shape=tuple(x.shape), dtype=np.dtype(np.int64))
        setitem(inverse, order, apply("subtract", cumsum(first), 1))
        out.append(apply("reshape", inverse, shape=shape_of(given)))
    if return_counts:
        n = x.shape[0]
        starts = getitem(apply("arange", size=n), first)
        end = apply("full", n, shape=(1,), dtype=np.dtype(np.int64))
        out.append(diff(concatenate([starts, end], 0)))
    return out[0] if len(out) == 1 else tuple(out)


def _firsts(s: Any, equal_nan: bool) -> Any:
    """Return where a sorted line has a value that it did not have before."""
    n = s.shape[0]
    one = apply("full", True, shape=(1 if n > 0 else 0,), dtype=np.dtype(np.bool_))
    if n <= 1:
        return one
    later = apply("slice", s, 1, axis=0, size=n - 1, step=1)
    earlier = apply("slice", s, 0, axis=0, size=n - 1, step=1)
    new = apply("not_equal", later, earlier)
    if equal_nan and s.dtype.kind == "f":
        new = apply("logical_and", new, apply("logical_not", apply("isnan", earlier)))
    return concatenate([one, new], 0)


@implements(np.isin)
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    x, tests = asarray(element), flat(asarray(test_elements))
    n = tests.shape[0]
    if n == 0:
        r = apply("full", invert, shape=tuple(x.shape), dtype=np.dtype(np.bool_))
        return r if shape_of(r) else apply("item", r)
    dtype = np.result_type(x.dtype, tests.dtype)
    x, s = cast(x, dtype), apply("sort", cast(tests, dtype), axis=0)
    at = apply("minimum", searchsorted(s, x), n - 1)
    return apply("not_equal" if invert else "equal", getitem(s, at), x)


@implements(np.intersect1d)
def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False
) -> Any:
    no_support("return_indices", return_indices, False)
    x = unique(ar1)
    return getitem(x, isin(x, ar2))


@implements(np.union1d)
def union1d(ar1: Any, ar2: Any) -> Any:
    return unique(concatenate([flat(asarray(ar1)), flat(asarray(ar2))], 0))


@implements(np.setdiff1d)
def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    x = flat(asarray(ar1)) if assume_unique else unique(ar1)
    return getitem(x, isin(x, ar2, invert=True))


@implements(np.setxor1d)
def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    return union1d(setdiff1d(ar1, ar2), setdiff1d(ar2, ar1))
