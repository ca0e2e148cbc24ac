"""Joining, splitting and repeating."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.errors import IndexRangeError, ShapeError
from ..index import getitem
from ..order import ordered
from ..symbols import is_int
from ..values import concrete
from .core import (
    apply,
    as_shape,
    asarray,
    at_least_line,
    axis_index,
    cast,
    constant,
    finish,
    implements,
    product,
    shape_of,
    stack_of,
    unsupported,
)
from .shapes import atleast_1d, atleast_2d, atleast_3d


def _arrays(tup: Any) -> list[Any]:
    if hasattr(tup, "shape"):  # an array: its rows
        return [getitem(tup, k) for k in range(tup.shape[0])]
    return [asarray(a) for a in tup]


@implements(np.concatenate, np.concat)
def concatenate(
    arrays: Any,
    /,
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    xs = _arrays(arrays)
    if not xs:
        raise ShapeError("need at least one array to concatenate")
    if axis is None:
        xs = [apply("reshape", x, shape=(product(x.shape),)) for x in xs]
        axis = 0
    ndim = len(xs[0].shape)
    if not ndim:
        raise ShapeError("zero-dimensional arrays cannot be concatenated")
    k = axis_index(axis, ndim)
    for n, x in enumerate(xs):
        if len(x.shape) != ndim:
            raise ShapeError(
                "all the input array dimensions except for the concatenation axis must "
                "match exactly, but along dimension 0, the array at index 0 has "
                f"{ndim} dimension(s) and the array at index {n} has "
                f"{len(x.shape)} dimension(s)"
            )
        for j in range(ndim):
            if j != k and x.shape[j] != xs[0].shape[j]:
                raise ShapeError(
                    "all the input array dimensions except for the concatenation axis "
                    f"must match exactly, but along dimension {j}, the array at index "
                    f"0 has size {xs[0].shape[j]} and the array at index {n} has size "
                    f"{x.shape[j]}"
                )
    return finish(cast(apply("concatenate", *xs, axis=k), dtype), out, casting)


@implements(np.stack)
def stack(
    arrays: Any,
    axis: Any = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    whole = stack_of(arrays) if is_int(axis) and axis == 0 and out is None else None
    if whole is not None:
        return cast(whole, dtype)
    xs = _arrays(arrays)
    if not xs:
        raise ShapeError("need at least one array to stack")
    ndim = len(xs[0].shape)
    if any(
        len(x.shape) != ndim
        or any(d != e for d, e in zip(x.shape, xs[0].shape, strict=True))
        for x in xs
    ):
        raise ShapeError("all input arrays must have the same shape")
    k = axis_index(axis, ndim + 1)
    xs = [apply("expand_dims", x, axis=(k,)) for x in xs]
    return concatenate(xs, k, out, dtype=dtype, casting=casting)


def _list(x: Any) -> list[Any]:
    return x if isinstance(x, list) else list(x) if isinstance(x, tuple) else [x]


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    xs = _list(atleast_2d(*_arrays(tup)))
    return concatenate(xs, 0, dtype=dtype, casting=casting)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    xs = _list(atleast_1d(*_arrays(tup)))
    axis = 0 if xs and len(xs[0].shape) == 1 else 1
    return concatenate(xs, axis, dtype=dtype, casting=casting)


@implements(np.dstack)
def dstack(tup: Any) -> Any:
    return concatenate(_list(atleast_3d(*_arrays(tup))), 2)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    xs = [
        apply("expand_dims", atleast_1d(x), axis=(1,)) if len(x.shape) < 2 else x
        for x in _arrays(tup)
    ]
    return concatenate(xs, 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    x, y = asarray(arr), asarray(values)
    return concatenate((x, y), axis)


@implements(np.block)
def block(arrays: Any) -> Any:
    depth = _depth(arrays)
    leaves = _leaves(arrays)
    ndim = max([depth, *(len(shape_of(x)) for x in leaves)])
    return _block(arrays, 0, depth, ndim)


def _depth(x: Any) -> int:
    return 1 + max(map(_depth, x), default=0) if isinstance(x, list) else 0


def _leaves(x: Any) -> list[Any]:
    return [y for e in x for y in _leaves(e)] if isinstance(x, list) else [asarray(x)]


def _block(x: Any, level: int, depth: int, ndim: int) -> Any:
    if isinstance(x, list):
        parts = [_block(e, level + 1, depth, ndim) for e in x]
        return concatenate(parts, ndim - depth + level)
    y = asarray(x)
    missing = ndim - len(y.shape)
    return apply("expand_dims", y, axis=tuple(range(missing))) if missing else y


# ---------------------------------------------------------------- splitting


def _cut(x: Any, points: Sequence[Any], k: int) -> list[Any]:
    before = (slice(None),) * k
    edges = [None, *points, None]
    return [getitem(x, (*before, slice(a, b))) for a, b in itertools.pairwise(edges)]


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    x = asarray(ary)
    k = axis_index(axis, len(x.shape))
    if not is_int(indices_or_sections):
        return _cut(x, list(indices_or_sections), k)
    parts = int(indices_or_sections)
    if parts <= 0:
        raise ShapeError("number sections must be larger than 0.")
    each, extra = x.shape[k] // parts, x.shape[k] % parts
    extra = int(extra)
    points = [each * n + builtin_min(n, extra) for n in range(1, parts)]
    return _cut(x, points, k)


def builtin_min(a: Any, b: Any) -> Any:
    """Return the smaller of two sizes."""
    return b if b < a else a


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    x = asarray(ary)
    k = axis_index(axis, len(x.shape))
    if is_int(indices_or_sections) and x.shape[k] % indices_or_sections:
        raise ShapeError("array split does not result in an equal division")
    return array_split(x, indices_or_sections, k)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> Any:
    x = asarray(ary)
    if not x.shape:
        raise ShapeError("hsplit only works on arrays of 1 or more dimensions")
    return split(x, indices_or_sections, 1 if len(x.shape) > 1 else 0)


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> Any:
    x = asarray(ary)
    if len(x.shape) < 2:
        raise ShapeError("vsplit only works on arrays of 2 or more dimensions")
    return split(x, indices_or_sections, 0)


@implements(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> Any:
    x = asarray(ary)
    if len(x.shape) < 3:
        raise ShapeError("dsplit only works on arrays of 3 or more dimensions")
    return split(x, indices_or_sections, 2)


@implements(np.unstack)
def unstack(x: Any, /, *, axis: int = 0) -> Any:
    x = asarray(x)
    if not x.shape:
        raise ShapeError("Input array must be at least 1-d.")
    k = axis_index(axis, len(x.shape))
    return tuple(apply("select", x, n, axis=k) for n in range(x.shape[k]))


# ---------------------------------------------------------------- repetition


@implements(np.tile)
def tile(A: Any, reps: Any) -> Any:
    x = asarray(A)
    times = as_shape(reps)
    ndim = max(len(x.shape), len(times))
    times = (1,) * (ndim - len(times)) + times
    shape = (1,) * (ndim - len(x.shape)) + tuple(x.shape)
    if all(isinstance(t, int) and t == 1 for t in times):
        x = apply("copy", x)
        return apply("reshape", x, shape=shape) if ndim > len(x.shape) else x
    spread = tuple(d for pair in zip(times, shape, strict=True) for d in pair)
    split_up = tuple(d for n in shape for d in (1, n))
    x = apply("reshape", x, shape=split_up)
    x = apply("copy", apply("broadcast_to", x, shape=spread))
    return apply(
        "reshape", x, shape=tuple(t * n for t, n in zip(times, shape, strict=True))
    )


@implements(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    x = asarray(a)
    if axis is None:
        x, axis = apply("reshape", x, shape=(product(x.shape),)), 0
    x = at_least_line(x)
    k = axis_index(axis, len(x.shape))
    n = x.shape[k]
    if is_int(repeats):
        times = repeats
    else:
        counts = concrete(repeats)
        if counts is None:
            raise unsupported(
                "repeat: the counts are computed",
                "the size of the result depends on them",
            )
        if counts.size != 1:
            where = constant(np.repeat(np.arange(int(n)), counts))
            return ordered(apply("gather", x, where, axes=(k,), position=k), "C")
        times = int(counts.ravel()[0])
    if isinstance(times, int) and times < 0:
        raise ShapeError("repeats may not contain negative values.")
    x = apply("expand_dims", x, axis=(k + 1,))
    shape = tuple(x.shape)
    x = apply("broadcast_to", x, shape=(*shape[: k + 1], times, *shape[k + 2 :]))
    x = ordered(apply("copy", x), "C")
    return apply("reshape", x, shape=(*shape[:k], n * times, *shape[k + 2 :]))


# ---------------------------------------------------------------- insertion


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    x = asarray(arr)
    if axis is None:
        x, axis = apply("reshape", x, shape=(product(x.shape),)), 0
    k = axis_index(axis, len(x.shape))
    n = x.shape[k]
    if is_int(obj):
        at = obj + n if obj < 0 else obj
        if not 0 <= at < n:
            raise IndexRangeError(
                f"index {obj} is out of bounds for axis {k} with size {n}"
            )
        before = (slice(None),) * k
        kept = [
            getitem(x, (*before, slice(0, at))),
            getitem(x, (*before, slice(at + 1, n))),
        ]
        return ordered(concatenate(kept, k), "A", x)
    if not isinstance(obj, slice) and concrete(obj) is None:
        raise unsupported("delete: computed indices", "the size is open")
    index = obj if isinstance(obj, slice) else np.asarray(concrete(obj))
    left = constant(np.delete(np.arange(int(n)), index))
    return ordered(apply("gather", x, left, axes=(k,), position=k), "A", x)


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    x = asarray(arr)
    if axis is None:
        x, axis = apply("reshape", x, shape=(product(x.shape),)), 0
    k = axis_index(axis, len(x.shape))
    if not is_int(obj):
        raise unsupported("insert: several places", "one place has a rule")
    n = x.shape[k]
    at = obj + n if obj < 0 else obj
    if not 0 <= at <= n:
        raise IndexRangeError(
            f"index {obj} is out of bounds for axis {k} with size {n}"
        )
    new = cast(asarray(values), x.dtype)
    rest = (*x.shape[:k], *x.shape[k + 1 :])
    if len(shape_of(new)) < len(x.shape):
        new = apply("broadcast_to", new, shape=rest) if rest != shape_of(new) else new
        new = apply("expand_dims", new, axis=(k,))
    else:
        raise unsupported("insert: several values", "one slice has a rule")
    before = (slice(None),) * k
    pieces = [
        getitem(x, (*before, slice(0, at))),
        new,
        getitem(x, (*before, slice(at, n))),
    ]
    return ordered(concatenate(pieces, k), "A", x)
