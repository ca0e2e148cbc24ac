"""Choosing, placing, searching and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import DTypeError, IndexRangeError, ShapeError
from .. import dispatch
from ..convert import convert
from ..index import getitem, setitem
from ..order import ordered
from ..symbols import is_int
from ..ufuncs import array_of, check_plain_target
from ..values import concrete, is_tensor, lift, lift_beside
from .core import (
    apply,
    asarray,
    at_least_line,
    axis_index,
    cast,
    finish,
    implements,
    operand,
    product,
    same_sizes,
    shape_of,
    unsupported,
)
from .linalg import flat
from .reduce import any_
from .shapes import broadcast_shape, broadcast_to


def _into_plain(
    function: Callable[..., None], target: Any, *operands: Any, **options: Any
) -> None:
    """Let NumPy write into a plain array, where that loses no gradient."""
    check_plain_target(function, operands)
    function(target, *map(array_of, operands), **options)


def _along(k: int) -> tuple[slice, ...]:
    return (slice(None),) * k


# ---------------------------------------------------------------- taking


@implements(np.take)
def take(
    a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise"
) -> Any:
    x = asarray(a)
    if axis is None:
        x, axis = flat(x), 0
    x = at_least_line(x)
    k = axis_index(axis, len(x.shape))
    index = operand(indices)
    n = x.shape[k]
    if mode != "raise":
        index = asarray(index)
        if mode == "wrap":
            index = apply("remainder", index, n)
        else:
            index = apply("minimum", apply("maximum", index, 0), n - 1)
    if shape_of(index) == ():
        part = getitem(x, (*_along(k), index))
        return finish(part if not shape_of(part) else apply("copy", part), out)
    if asarray(index).dtype.kind == "b":
        index = cast(asarray(index), np.intp)
    return finish(ordered(getitem(x, (*_along(k), index)), "C"), out)


def _grid(x: Any, index: Any, k: int) -> tuple[Any, ...]:
    """Return the index arrays of take_along_axis."""
    if len(index.shape) != len(x.shape):
        raise ShapeError("`indices` and `arr` must have the same number of dimensions")
    if index.dtype.kind not in "iu":
        raise IndexRangeError("`indices` must be an integer array")
    ndim = len(x.shape)
    out: list[Any] = []
    for j in range(ndim):
        if j == k:
            out.append(index)
            continue
        line = apply("arange", size=x.shape[j])
        others = tuple(i for i in range(ndim) if i != j)
        out.append(apply("expand_dims", line, axis=others) if others else line)
    return tuple(out)


@implements(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Any:
    x, index = asarray(arr), asarray(indices)
    if axis is None:
        if len(index.shape) != 1:
            raise ShapeError("when axis=None, `indices` must have a single dimension.")
        return getitem(flat(x), index)
    k = axis_index(axis, len(x.shape))
    return getitem(x, _grid(x, index, k))


@implements(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    if not is_tensor(arr):
        _into_plain(np.put_along_axis, arr, indices, values, axis=axis)
        return
    index = asarray(indices)
    if axis is None:
        setitem(_flat_view(arr), index, values)
        return
    k = axis_index(axis, len(arr.shape))
    setitem(arr, _grid(arr, index, k), values)


def _flat_view(a: Any) -> Any:
    """Return a one-dimensional view that writes into `a`."""
    view = flat(a)
    have, new = getattr(a, "_data", None), getattr(view, "_data", None)
    if have is not None and new is not None and not np.may_share_memory(have, new):
        raise unsupported(
            "writing by flat position into an array that is not contiguous",
            "its elements have no view with one axis",
            "index it with a tuple of indices",
        )
    return view


@implements(np.compress)
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    x = asarray(a)
    if axis is None:
        x, axis = flat(x), 0
    k = axis_index(axis, len(x.shape))
    mask = cast(asarray(condition), np.bool_)
    if len(mask.shape) != 1:
        raise ShapeError("condition must be a 1-d array")
    if mask.shape[0] != x.shape[k]:
        x = getitem(x, (*_along(k), slice(0, mask.shape[0])))
        mask = getitem(mask, slice(0, x.shape[k]))
    return finish(getitem(x, (*_along(k), mask)), out)


@implements(np.extract)
def extract(condition: Any, arr: Any) -> Any:
    mask = flat(cast(asarray(condition), np.bool_))
    return getitem(flat(asarray(arr)), mask)


@implements(np.choose)
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    index = asarray(a)
    parts = [asarray(c) for c in choices]
    n = len(parts)
    if mode == "wrap":
        index = apply("remainder", index, n)
    elif mode == "clip":
        index = apply("minimum", apply("maximum", index, 0), n - 1)
    else:
        low, high = apply("less", index, 0), apply("greater_equal", index, n)
        if any_(apply("logical_or", low, high)):
            raise ShapeError("invalid entry in choice array")
    r = parts[-1]
    for k in range(n - 2, -1, -1):
        r = apply("where", apply("equal", index, k), parts[k], r)
    shape = broadcast_shape(index.shape, *(p.shape for p in parts))
    if not same_sizes(shape_of(r), shape):
        r = apply("copy", broadcast_to(r, shape))
    return finish(r if shape_of(r) else apply("item", r), out)


@implements(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise ShapeError("list of cases must be same length as list of conditions")
    if not condlist:
        raise ShapeError("select with an empty condition list is not possible")
    conditions = [asarray(c) for c in condlist]
    if any(c.dtype != np.bool_ for c in conditions):
        raise DTypeError("invalid entry 0 in condlist: should be boolean ndarray")
    choices = [operand(c) for c in choicelist]
    shape = broadcast_shape(
        *(shape_of(c) for c in conditions), *(shape_of(c) for c in choices)
    )
    r = operand(default)
    for c, x in zip(reversed(conditions), reversed(choices), strict=True):
        r = apply("where", c, x, r)
    if not same_sizes(shape_of(r), shape):
        r = apply("copy", broadcast_to(r, shape))
    return ordered(r, "C")


@implements(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    x = asarray(x)
    conditions = condlist if isinstance(condlist, list | tuple) else [condlist]
    if len(conditions) and shape_of(operand(conditions[0])) == () != shape_of(x):
        conditions = [conditions]
    masks = [asarray(c) for c in conditions]
    if len(funclist) == len(masks) + 1:
        rest = masks[0]
        for m in masks[1:]:
            rest = apply("logical_or", rest, m)
        masks.append(apply("logical_not", rest))
    if len(funclist) != len(masks):
        raise ShapeError(
            f"with {len(masks)} condition(s), either {len(masks)} or "
            f"{len(masks) + 1} functions are expected"
        )
    y = apply("full", 0, shape=tuple(x.shape), dtype=x.dtype)
    for m, f in zip(masks, funclist, strict=True):
        new = f
        if callable(f):
            new = convert(f)(getitem(x, m), *args, **kw)
        setitem(y, m, new)
    return y


# ---------------------------------------------------------------- nonzero


@implements(np.nonzero)
def nonzero(a: Any) -> Any:
    x = asarray(a)
    if not x.shape:
        raise ShapeError("Calling nonzero on 0d arrays is not allowed.")
    values = concrete(x)
    if values is not None:
        return tuple(lift_beside(found, x) for found in values.nonzero())
    places = flatnonzero(x)
    return unravel_index(places, x.shape) if len(x.shape) > 1 else (places,)


@implements(np.flatnonzero)
def flatnonzero(a: Any) -> Any:
    x = flat(asarray(a))
    values = concrete(x)
    if values is not None:
        return lift_beside(np.flatnonzero(values), x)
    return getitem(apply("arange", size=x.shape[0]), cast(x, np.bool_))


@implements(np.argwhere)
def argwhere(a: Any) -> Any:
    from .join import stack

    x = asarray(a)
    values = concrete(x)
    if values is not None:
        return lift_beside(np.argwhere(values), x)
    return stack(nonzero(x), 1)


@implements(np.unravel_index)
def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    sizes = (shape,) if is_int(shape) else tuple(shape)
    if order == "F":
        return unravel_index(indices, sizes[::-1])[::-1]
    index = asarray(indices)
    out: list[Any] = []
    for d in reversed(sizes):
        out.append(apply("remainder", index, d))
        index = apply("floor_divide", index, d)
    return tuple(reversed(out))


@implements(np.ravel_multi_index)
def ravel_multi_index(
    multi_index: Any, dims: Any, mode: str = "raise", order: str = "C"
) -> Any:
    if mode != "raise" or order != "C":
        raise unsupported("ravel_multi_index: mode or order", "no rule")
    total: Any = 0
    for k, d in zip(multi_index, dims, strict=True):
        total = apply("add", apply("multiply", total, d), operand(k))
    return total


@implements(np.ix_)
def ix_(*args: Any) -> Any:
    out = []
    for k, a in enumerate(args):
        x = asarray(a)
        if len(x.shape) != 1:
            raise ShapeError("Cross index must be 1 dimensional")
        if x.dtype == np.bool_:
            x = flatnonzero(x)
        others = tuple(j for j in range(len(args)) if j != k)
        out.append(apply("expand_dims", x, axis=others) if others else x)
    return tuple(out)


def _index_grid(shape: Any, k: int, upper: bool) -> tuple[Any, Any]:
    n, m = shape
    known = (
        np.triu_indices(int(n), k, int(m))
        if upper
        else np.tril_indices(int(n), k, int(m))
    )
    return lift(known[0]), lift(known[1])


@implements(np.tril_indices_from)
def tril_indices_from(arr: Any, k: int = 0) -> Any:
    return _index_grid(arr.shape, k, False)


@implements(np.triu_indices_from)
def triu_indices_from(arr: Any, k: int = 0) -> Any:
    return _index_grid(arr.shape, k, True)


@implements(np.diag_indices_from)
def diag_indices_from(arr: Any) -> Any:
    if len(arr.shape) < 2:
        raise ShapeError("input array must be at least 2-d")
    return (apply("arange", size=arr.shape[0]),) * len(arr.shape)


# ---------------------------------------------------------------- placing


def _repeated(values: Any, size: Any) -> Any:
    """Return `size` values, the given ones over and over."""
    v = flat(asarray(values))
    n = v.shape[0]
    if n is size or n == size:
        return v
    index = apply("remainder", apply("arange", size=size), n)
    return apply("gather", v, index, axes=(0,), position=0)


@implements(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    if not is_tensor(a):
        _into_plain(np.put, a, ind, v, mode=mode)
        return
    index = flat(asarray(ind))
    n = product(a.shape)
    if mode == "wrap":
        index = apply("remainder", index, n)
    elif mode == "clip":
        index = apply("minimum", apply("maximum", index, 0), n - 1)
    if index.shape[0] == 0:
        return
    setitem(_flat_view(a), index, _repeated(v, index.shape[0]))


@implements(np.putmask)
def putmask(a: Any, /, mask: Any, values: Any) -> None:
    if not is_tensor(a):
        _into_plain(np.putmask, a, mask, values)
        return
    m, v = asarray(mask), asarray(values)
    if product(m.shape) != product(a.shape):
        raise ShapeError("putmask: mask and data must be the same size")
    if v.shape and product(v.shape) == 0:
        return
    m = apply("reshape", cast(m, np.bool_), shape=tuple(a.shape))
    v = cast(v, a.dtype)
    if v.shape and not same_sizes(v.shape, a.shape):
        v = apply("reshape", _repeated(v, product(a.shape)), shape=tuple(a.shape))
    dispatch.write(a, apply("where", m, v, a), kind="unsafe")


@implements(np.place)
def place(arr: Any, mask: Any, vals: Any) -> None:
    if not is_tensor(arr):
        _into_plain(np.place, arr, mask, vals)
        return
    m = cast(asarray(mask), np.bool_)
    v = flat(asarray(vals))
    if product(m.shape) != product(arr.shape):
        raise ShapeError("place: mask and data must be the same size")
    m = apply("reshape", m, shape=tuple(arr.shape))
    known = concrete(m)
    if v.shape[0] == 0:
        if known is None or known.any():
            raise ShapeError("Cannot insert from an empty array!")
        return
    # the k-th selected element takes value k modulo the number of values
    order = apply("subtract", _running_count(flat(m)), 1)
    index = apply("remainder", order, v.shape[0])
    new = apply("gather", cast(v, arr.dtype), index, axes=(0,), position=0)
    new = apply("reshape", new, shape=tuple(arr.shape))
    dispatch.write(arr, apply("where", m, new, arr), kind="unsafe")


def _running_count(mask: Any) -> Any:
    return apply("cumsum", cast(mask, np.int64), axis=0)


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not is_tensor(dst):
        _into_plain(_copyto, dst, src, where, casting=casting)
        return
    value = operand(src)
    if hasattr(value, "dtype") and not np.can_cast(value.dtype, dst.dtype, casting):
        raise DTypeError(
            f"Cannot cast array data from {value.dtype} to {dst.dtype} according to "
            f"the rule '{casting}'"
        )
    if where is True:
        setitem(dst, Ellipsis, value)
        return
    shape = broadcast_shape(shape_of(value), shape_of(operand(where)), dst.shape)
    if not same_sizes(shape, dst.shape):
        raise ShapeError(f"could not broadcast to shape {dst.shape}")
    new = cast(value, dst.dtype) if hasattr(value, "dtype") else value
    dispatch.write(dst, apply("where", operand(where), new, dst), kind="unsafe")


def _copyto(dst: Any, src: Any, where: Any, casting: Any) -> None:
    np.copyto(dst, src, casting=casting, where=where)


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    if not is_tensor(a):
        _into_plain(np.fill_diagonal, a, val, wrap=wrap)
        return
    ndim = len(a.shape)
    if ndim < 2:
        raise ShapeError("array must be at least 2-d")
    value = cast(operand(val), a.dtype) if hasattr(val, "dtype") else operand(val)
    if ndim == 2:
        n, m = a.shape
        if wrap and n > m + 1:
            raise unsupported("fill_diagonal: wrap=True on a tall matrix", "no rule")
        from .shapes import diagonal

        target = diagonal(a)
    else:
        if any(d != a.shape[0] for d in a.shape[1:]):
            raise ShapeError("All dimensions of input must be of equal length")
        target = a
        for _ in range(ndim - 1):
            size = target.shape[0]
            target = apply(
                "diagonal",
                target,
                offset=0,
                axis1=0 if len(target.shape) == ndim else len(target.shape) - 1,
                axis2=1 if len(target.shape) == ndim else 0,
                size=size,
            )
    if shape_of(value):
        value = _first(_repeated(value, _longer(target.shape[0], value)), target)
    dispatch.write(target, value, kind="unsafe")


def _longer(n: Any, value: Any) -> Any:
    have = product(shape_of(value))
    return have if have > n else n


def _first(v: Any, target: Any) -> Any:
    n = target.shape[0]
    return v if v.shape[0] is n else apply("slice", v, 0, axis=0, size=n, step=1)
