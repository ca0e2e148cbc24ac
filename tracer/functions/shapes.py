"""Changing shapes: views first, copies where NumPy copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
from .. import dispatch
from ..index import alias
from ..order import is_contiguous, laid_out, ordered
from ..symbols import SymInt, is_int
from ..values import is_tensor
from .core import (
    all_axes,
    apply,
    as_shape,
    asarray,
    axis_index,
    axis_tuple,
    implements,
    operand,
    product,
    same_sizes,
    shape_of,
    unsupported,
)
from .reduce import sum


def _ordered(ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim))


def permuted(x: Any, axes: Sequence[int]) -> Any:
    """Return a view of `x` with its axes in another order."""
    return apply("transpose", x, axes=tuple(axes))


# ---------------------------------------------------------------- reshape


def _resolve(shape: tuple[Any, ...], size: Any, have: Any) -> tuple[Any, ...]:
    """Replace the -1 of a new shape by what is left."""
    unknown = [k for k, d in enumerate(shape) if isinstance(d, int) and d < 0]
    wrong = ShapeError(f"cannot reshape array of size {size} into shape {shape}")
    if len(unknown) > 1:
        raise ShapeError("can only specify one unknown dimension")
    if unknown:
        (k,) = unknown
        rest = product(d for n, d in enumerate(shape) if n != k)
        if same_sizes((rest,), (0,)) or rest * (size // rest) != size:
            raise wrong
        return (*shape[:k], size // rest, *shape[k + 1 :])
    if product(shape) != size:
        raise wrong
    return shape


@implements(np.reshape)
def reshape(
    a: Any, /, shape: Any = None, order: Any = "C", *, copy: bool | None = None
) -> Any:
    if shape is None:
        raise DTypeError("reshape() missing 1 required positional argument: 'shape'")
    x = asarray(a)
    if copy:
        x = apply("copy", x)
    want = _resolve(as_shape(shape), product(x.shape), x.shape)
    if order == "A":
        order = "F" if _is_fortran(x) else "C"
    if order == "F":
        reverse = range(len(x.shape) - 1, -1, -1)
        x = permuted(x, reverse) if len(x.shape) > 1 else x
        x = apply("reshape", x, shape=want[::-1])
        return permuted(x, range(len(want) - 1, -1, -1)) if len(want) > 1 else x
    if order != "C":
        raise ShapeError("order must be one of 'C', 'F' or 'A'")
    return apply("reshape", x, shape=want)


def _is_fortran(x: Any) -> bool:
    flags = getattr(laid_out(x), "flags", None)
    return flags is not None and bool(flags.fnc)


def _in_memory_order(x: Any) -> Any:
    """Return a view of `x` whose axes go from the longest stride to the shortest."""
    strides = [abs(s) for s in getattr(laid_out(x), "strides", ())]
    order = sorted(range(len(strides)), key=lambda k: -strides[k])
    return permuted(x, order) if order != list(range(len(order))) else x


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    x = asarray(a)
    if order == "K":
        x, order = _in_memory_order(x), "C"
    if order == "A":
        order = "F" if _is_fortran(x) else "C"
    if order == "F" and len(x.shape) > 1:
        x, order = permuted(x, range(len(x.shape) - 1, -1, -1)), "C"
    if is_tensor(x) and not is_contiguous(x):
        x = x.copy()  # a reshape might be a view, ravel is not
    return reshape(x, (product(x.shape),), order)


@implements(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    x = asarray(a)
    shape, n = as_shape(new_shape), product(x.shape)
    line = apply("reshape", x, shape=(n,))
    count = product(shape)
    if n == 0 or count == 0:
        return apply("full", 0, shape=shape, dtype=x.dtype)
    if same_sizes((count,), (n,)):
        return apply("copy", apply("reshape", line, shape=shape))
    at = apply("remainder", apply("arange", size=count), n)
    r = apply("gather", line, at, axes=(0,), position=0)
    return apply("reshape", r, shape=shape)


# ---------------------------------------------------------------- axes


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> Any:
    x = asarray(a)
    ndim = len(x.shape)
    if axes is None:
        return permuted(x, range(ndim - 1, -1, -1))
    order = axis_tuple(axes, ndim) if not is_int(axes) else axis_tuple((axes,), ndim)
    if len(order) != ndim:
        raise ShapeError("axes don't match array")
    return permuted(x, order)


@implements(np.matrix_transpose)
def matrix_transpose(x: Any, /) -> Any:
    x = asarray(x)
    ndim = len(x.shape)
    if ndim < 2:
        raise ShapeError(
            f"Input array must be at least 2-dimensional, but it is {ndim}-dimensional"
        )
    return permuted(x, (*range(ndim - 2), ndim - 1, ndim - 2))


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    x = asarray(a)
    order = list(range(len(x.shape)))
    i, j = axis_index(axis1, len(order)), axis_index(axis2, len(order))
    order[i], order[j] = order[j], order[i]
    return permuted(x, order)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    x = asarray(a)
    ndim = len(x.shape)
    old, new = axis_tuple(source, ndim), axis_tuple(destination, ndim)
    if len(old) != len(new):
        raise ShapeError(
            "`source` and `destination` arguments must have the same number of elements"
        )
    order = [k for k in range(ndim) if k not in old]
    for at, k in sorted(zip(new, old, strict=True)):
        order.insert(at, k)
    return permuted(x, order)


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    x = asarray(a)
    ndim = len(x.shape)
    k = axis_index(axis, ndim)
    start = start + ndim if start < 0 else start
    if not 0 <= start <= ndim:
        axis_index(start, ndim + 1)
    order = list(range(ndim))
    order.remove(k)
    order.insert(start - 1 if k < start else start, k)
    return permuted(x, order)


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    x = asarray(a)
    if axis is None:
        axes = tuple(k for k, d in enumerate(x.shape) if d == 1)
    else:
        axes = all_axes(axis, len(x.shape))
        if any(x.shape[k] != 1 for k in axes):
            raise ShapeError(
                "cannot select an axis to squeeze out which has size not equal to one"
            )
    return apply("squeeze", x, axis=axes) if axes else alias(x)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    x = asarray(a)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    axes = tuple(sorted(axis_tuple(axis, len(x.shape) + count)))
    return apply("expand_dims", x, axis=axes) if axes else alias(x)


def _at_least(arys: Sequence[Any], widen: Any) -> Any:
    out = tuple(widen(asarray(a)) for a in arys)
    return out[0] if len(out) == 1 else out


def _wide1(x: Any) -> Any:
    return x if len(x.shape) >= 1 else apply("reshape", x, shape=(1,))


def _wide2(x: Any) -> Any:
    ndim = len(x.shape)
    return (
        x if ndim >= 2 else apply("expand_dims", x, axis=(0, 1) if not ndim else (0,))
    )


def _wide3(x: Any) -> Any:
    ndim = len(x.shape)
    if ndim >= 3:
        return x
    axes = {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[ndim]
    return apply("expand_dims", x, axis=axes)


@implements(np.atleast_1d)
def atleast_1d(*arys: Any) -> Any:
    return _at_least(arys, _wide1)


@implements(np.atleast_2d)
def atleast_2d(*arys: Any) -> Any:
    return _at_least(arys, _wide2)


@implements(np.atleast_3d)
def atleast_3d(*arys: Any) -> Any:
    return _at_least(arys, _wide3)


# ---------------------------------------------------------------- broadcasting


def broadcast_shape(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape that several shapes broadcast to."""
    ndim = max((len(s) for s in shapes), default=0)
    out: list[Any] = []
    for axis in range(-ndim, 0):
        dim: Any = 1
        for s in shapes:
            if len(s) < -axis or (isinstance(s[axis], int) and s[axis] == 1):
                continue
            d = s[axis]
            if (isinstance(dim, int) and dim == 1) or dim is d:
                dim = d
            elif d != dim:
                shown = " ".join(map(str, shapes))
                raise ShapeError(
                    "shape mismatch: objects cannot be broadcast to a single shape: "
                    + shown
                )
        out.append(dim)
    return tuple(out)


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    x = asarray(array)
    return _read_only(apply("broadcast_to", x, shape=as_shape(shape)))


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any,
    window_shape: Any,
    axis: Any = None,
    *,
    subok: bool = False,
    writeable: bool = False,
) -> Any:
    x = asarray(x)
    ndim = len(x.shape)
    window = as_shape(window_shape)
    axes = tuple(range(ndim)) if axis is None else axis_tuple(axis, ndim)
    if len(window) != len(axes):
        raise ShapeError(
            "Must provide matching length window_shape and axis; got "
            f"{len(window)} window_shape elements and {len(axes)} axes elements."
        )
    left = list(x.shape)
    for k, n in zip(axes, window, strict=True):
        if n < 0 or left[k] < n:
            raise ShapeError("window shape cannot be larger than input array shape")
        left[k] = left[k] - n + 1
    base, steps, offset = _in_elements(x)
    r = apply(
        "as_strided",
        base,
        shape=(*left, *window),
        strides=(*steps, *(steps[k] for k in axes)),
        offset=offset,
    )
    return r if writeable else _read_only(r)


def as_strided(x: Any, shape: Any, strides: Any, offset: int) -> Any:
    """Return a view of a tensor by strides and an offset, in elements."""
    sizes, steps = as_shape(shape), as_shape(strides)
    if len(sizes) != len(steps):
        raise ShapeError(
            f"as_strided: {len(sizes)} sizes and {len(steps)} strides were given"
        )
    base, _, first = _in_elements(x)
    return apply("as_strided", base, shape=sizes, strides=steps, offset=first + offset)


def _in_elements(x: Any) -> tuple[Any, tuple[Any, ...], int]:
    """Return an array in C order that `x` views, and strides and offset in it."""
    data = x._data if is_tensor(x) and x._trace is None else x
    if not isinstance(data, np.ndarray) or data.flags.c_contiguous:
        sizes = tuple(x.shape)
        return x, tuple(product(sizes[k + 1 :]) for k in range(len(sizes))), 0
    base = x._base if is_tensor(x) else None
    if base is None or not base._data.flags.c_contiguous:
        raise unsupported(
            "windows and strides of an array that is not C-contiguous",
            "elements are counted in C order",
            "apply np.ascontiguousarray first",
        )
    start = data.__array_interface__["data"][0]
    start -= base._data.__array_interface__["data"][0]
    steps = tuple(s // data.itemsize for s in data.strides)
    return base, steps, start // data.itemsize


def _read_only(r: Any) -> Any:
    """Mark a view that shows elements several times, as NumPy does."""
    if r._trace is not None:
        r._trace.mutations.read_only.add(r._value)
    else:
        r._data.flags.writeable = False
    return r


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    xs = [asarray(a) for a in args]
    shape = broadcast_shape(*(x.shape for x in xs))
    return tuple(
        x if same_sizes(x.shape, shape) else apply("broadcast_to", x, shape=shape)
        for x in xs
    )


# ---------------------------------------------------------------- flips and rolls


@implements(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    x = asarray(m)
    axes = all_axes(axis, len(x.shape))
    if not x.shape:
        return apply("item", x)  # NumPy's x[()]
    return apply("flip", x, axis=axes) if axes else alias(x)


@implements(np.fliplr)
def fliplr(m: Any) -> Any:
    x = asarray(m)
    if len(x.shape) < 2:
        raise ShapeError("Input must be >= 2-d.")
    return apply("flip", x, axis=(1,))


@implements(np.flipud)
def flipud(m: Any) -> Any:
    x = asarray(m)
    if len(x.shape) < 1:
        raise ShapeError("Input must be >= 1-d.")
    return apply("flip", x, axis=(0,))


@implements(np.rot90)
def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    x = asarray(m)
    if len(axes) != 2:
        raise ShapeError("len(axes) must be 2.")
    i, j = axis_tuple(axes, len(x.shape))
    k %= 4
    if k == 0:
        return alias(x)
    if k == 2:
        return apply("flip", x, axis=tuple(sorted((i, j))))
    order = list(range(len(x.shape)))
    order[i], order[j] = order[j], order[i]
    if k == 1:
        return permuted(apply("flip", x, axis=(j,)), order)
    return apply("flip", permuted(x, order), axis=(j,))


@implements(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    from .join import concatenate

    x = given = asarray(a)
    if axis is None:
        line = apply("reshape", x, shape=(product(x.shape),))
        return apply("reshape", roll(line, shift, 0), shape=tuple(x.shape))
    axes = [axis_index(k, len(x.shape)) for k in _as_list(axis)]
    shifts = _as_list(shift)
    if len(axes) != len(shifts):
        if len(axes) != 1 and len(shifts) != 1:
            raise ShapeError("'shift' and 'axis' should be scalars or 1D sequences")
        axes, shifts = axes * len(shifts), shifts * len(axes)
    for s, k in zip(shifts, axes, strict=True):
        n = x.shape[k]
        if isinstance(n, int) and n == 0:
            continue
        at = (n - s) % n
        head = apply("slice", x, 0, axis=k, size=at, step=1)
        tail = apply("slice", x, at if at != n else 0, axis=k, size=n - at, step=1)
        x = concatenate([tail, head], k)
    return ordered(apply("copy", x) if x is given else x, "K", a)


def _as_list(x: Any) -> list[Any]:
    if isinstance(x, list | tuple):
        return list(x)
    if is_int(x):
        return [x]
    if hasattr(x, "shape") and len(x.shape) == 1:
        return [int(k) for k in x]
    return [x.__index__()]


# ---------------------------------------------------------------- diagonals, triangles


def diagonal_size(n: Any, m: Any, offset: int) -> Any:
    """Return the length of a diagonal of an n by m matrix."""
    rows, columns = (n, m - offset) if offset >= 0 else (n + offset, m)
    size = rows if rows is columns or rows <= columns else columns
    return size if size > 0 else 0


@implements(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    x = asarray(a)
    ndim = len(x.shape)
    if ndim < 2:
        raise ShapeError("diag requires an array of at least two dimensions")
    i, j = axis_index(axis1, ndim), axis_index(axis2, ndim)
    if i == j:
        raise ShapeError("axis1 and axis2 cannot be the same")
    size = diagonal_size(x.shape[i], x.shape[j], offset)
    return apply("diagonal", x, offset=offset, axis1=i, axis2=j, size=size)


@implements(np.linalg.diagonal)
def linalg_diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return diagonal(x, offset, -2, -1)


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    x = asarray(v)
    if len(x.shape) == 2:
        return diagonal(x, k)
    if len(x.shape) != 1:
        raise ShapeError("Input must be 1- or 2-d.")
    n = x.shape[0] + abs(k)
    zero = np.zeros((), x.dtype).item()
    out = apply("full", zero, shape=(n, n), dtype=x.dtype)
    dispatch.write(diagonal(out, k), x)
    return out


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    return diag(ravel(asarray(v)), k)


@implements(np.trace)
def trace(
    a: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)


@implements(np.linalg.trace)
def linalg_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return trace(x, offset, -2, -1, dtype)


def triangle(n: Any, m: Any, k: int) -> Any:
    """Return the mask of an n by m lower triangle: j <= i + k."""
    rows = apply("expand_dims", apply("arange", size=n), axis=(1,))
    columns = apply("arange", size=m)
    return apply("less_equal", columns, apply("add", rows, k) if k else rows)


@implements(np.tril)
def tril(m: Any, k: int = 0) -> Any:
    x = _matrix(m)
    return apply("where", triangle(x.shape[-2], x.shape[-1], k), x, _zero(x))


@implements(np.triu)
def triu(m: Any, k: int = 0) -> Any:
    x = _matrix(m)
    return apply("where", triangle(x.shape[-2], x.shape[-1], k - 1), _zero(x), x)


def _matrix(m: Any) -> Any:
    """Return an array with two axes at least; one axis is repeated as rows."""
    x = asarray(m)
    if not x.shape:
        raise ShapeError("tri needs an array of at least one dimension")
    if len(x.shape) == 1:
        x = apply("broadcast_to", x, shape=(x.shape[0], x.shape[0]))
    return x


def _zero(x: Any) -> Any:
    return np.zeros((), x.dtype)[()]


# ---------------------------------------------------------------- what shapes are


@implements(np.shape)
def shape(a: Any) -> Any:
    return shape_of(asarray(a) if not isinstance(a, SymInt) else a)


@implements(np.ndim)
def ndim(a: Any) -> int:
    return len(shape_of(operand(a)))


@implements(np.size)
def size(a: Any, axis: Any = None) -> Any:
    shape = shape_of(operand(a))
    if axis is None:
        return product(shape)
    return product(shape[k] for k in all_axes(axis, len(shape)))


@implements(np.broadcast_shapes)
def broadcast_shapes(*args: Any) -> Any:
    return broadcast_shape(*map(as_shape, args))


@implements(np.isfortran)
def isfortran(a: Any) -> bool:
    return _is_fortran(a)


def _data(x: Any) -> Any:
    data = getattr(x, "_data", x)
    if data is None:
        raise unsupported("shares_memory: not known while a function is captured")
    return data


@implements(np.shares_memory)
def shares_memory(a: Any, b: Any, /, max_work: Any = -1) -> bool:
    return np.shares_memory(_data(a), _data(b), max_work)


@implements(np.may_share_memory)
def may_share_memory(a: Any, b: Any, /, max_work: Any = 0) -> bool:
    return np.may_share_memory(_data(a), _data(b), max_work)
