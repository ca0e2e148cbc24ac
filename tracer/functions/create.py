"""Creation: these always make Tensors; where user code makes plain arrays outside of
transforms, the intercepts decide."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import DTypeError, ShapeError
from ..order import is_contiguous, ordered
from ..symbols import SymInt, is_int
from ..values import concrete, has_tensor, is_symbolic, is_tensor, is_traced, lift
from .core import (
    apply,
    as_shape,
    asarray,
    axis_index,
    cast,
    creates,
    dtype_of,
    implements,
    known,
    no_support,
    operand,
    product,
    promote,
    shape_of,
    stack_of,
)
from .shapes import broadcast_to, diagonal, expand_dims, triangle

_numpy: Any = np  # NumPy, called with arguments that nobody has checked yet


def _dtype(dtype: Any, default: Any = np.float64) -> np.dtype[Any]:
    want: np.dtype[Any] = np.dtype(default if dtype is None else dtype)
    return want


def filled(value: Any, shape: tuple[Any, ...], dtype: np.dtype[Any]) -> Any:
    """Return a fresh array with one value."""
    if not hasattr(value, "dtype") and not isinstance(value, SymInt):
        value = np.full((), value, dtype).item()
    return apply("full", value, shape=shape, dtype=dtype)


@creates(np.zeros)
def zeros(shape: Any, dtype: Any = float, order: str = "C", **like: Any) -> Any:
    return ordered(filled(0, as_shape(shape), _dtype(dtype)), order)


@creates(np.empty)
def empty(shape: Any, dtype: Any = float, order: str = "C", **like: Any) -> Any:
    return ordered(filled(0, as_shape(shape), _dtype(dtype)), order)


@creates(np.ones)
def ones(shape: Any, dtype: Any = None, order: str = "C", **like: Any) -> Any:
    return ordered(filled(1, as_shape(shape), _dtype(dtype)), order)


@creates(np.full)
def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **like: Any
) -> Any:
    value = operand(fill_value)
    want = _dtype(dtype, dtype_of(value))
    if not shape_of(value):
        return ordered(filled(value, as_shape(shape), want), order)
    return ordered(apply("copy", broadcast_to(cast(value, want), shape)), order)


def _like_args(a: Any, dtype: Any, shape: Any) -> tuple[Any, np.dtype[Any]]:
    have = dtype_of(operand(a))
    sizes = shape_of(asarray(a)) if shape is None else as_shape(shape)
    return sizes, _dtype(dtype, have)


@implements(np.zeros_like)
@creates(np.zeros_like)
def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    return ordered(filled(0, *_like_args(a, dtype, shape)), order, a)


@implements(np.empty_like)
@creates(np.empty_like)
def empty_like(
    prototype: Any,
    /,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
) -> Any:
    made = filled(0, *_like_args(prototype, dtype, shape))
    return ordered(made, order, prototype)


@implements(np.ones_like)
@creates(np.ones_like)
def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    return ordered(filled(1, *_like_args(a, dtype, shape)), order, a)


@implements(np.full_like)
@creates(np.full_like)
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
) -> Any:
    sizes, want = _like_args(a, dtype, shape)
    return ordered(full(sizes, fill_value, want), order, a)


@creates(np.eye)
def eye(
    N: Any, M: Any = None, k: int = 0, dtype: Any = float, order: str = "C", **like: Any
) -> Any:
    from .. import dispatch

    shape = as_shape((N, N if M is None else M))
    out = ordered(filled(0, shape, _dtype(dtype)), order)
    dispatch.write(diagonal(out, k), 1, kind="unsafe")
    return out


@creates(np.identity)
def identity(n: Any, dtype: Any = None, **like: Any) -> Any:
    return eye(n, dtype=dtype)


@creates(np.tri)
def tri(N: Any, M: Any = None, k: int = 0, dtype: Any = float, **like: Any) -> Any:
    rows, columns = as_shape((N, N if M is None else M))
    return cast(triangle(rows, columns, k), _dtype(dtype))


# ---------------------------------------------------------------- ranges


def _is_symbolic(*xs: Any) -> bool:
    return any(isinstance(x, SymInt) or is_tensor(x) for x in xs)


@creates(np.arange)
def arange(
    start: Any = None,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    **like: Any,
) -> Any:
    if stop is None:
        start, stop = 0, start
    start = 0 if start is None else start
    step = 1 if step is None else step
    if not _is_symbolic(start, stop, step):
        if all(map(is_int, (start, stop, step))) and dtype is None:
            return _integers(int(start), int(stop), int(step))
        return lift(_numpy.arange(start, stop, step, dtype))
    bounds = [_bound(x) for x in (start, stop, step)]
    if not all(map(is_int, bounds)):
        return lift(np.arange(*(float(x) for x in bounds), dtype=dtype))
    return cast(_integers(*bounds), dtype)


def _bound(x: Any) -> Any:
    """Return an end of a range as a number; a computed integer specialises."""
    if is_tensor(x):
        return x.__index__() if x.dtype.kind in "iu" else float(x)
    return x


def _integers(start: Any, stop: Any, step: Any) -> Any:
    if isinstance(step, int) and step == 0:
        raise ZeroDivisionError("division by zero")
    gap, pace = (stop - start, step) if step > 0 else (start - stop, -step)
    size = (
        0
        if gap <= 0
        else gap
        if isinstance(pace, int) and pace == 1
        else (gap + pace - 1) // pace
    )
    out = apply("arange", size=size)
    if not (isinstance(step, int) and step == 1):
        out = apply("multiply", out, step)
    if not (isinstance(start, int) and start == 0):
        out = apply("add", out, start)
    return out


@implements(np.linspace)
@creates(np.linspace)
def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    **kwargs: Any,
) -> Any:
    for name in kwargs:
        no_support(name, kwargs[name])
    if not _is_symbolic(num) and not has_tensor((start, stop)):
        out = _numpy.linspace(start, stop, num, endpoint, True, dtype, axis)
        values = lift(out[0])
        return (values, out[1]) if retstep else values
    if num < 0:
        raise ShapeError(f"Number of samples, {num}, must be non-negative.")
    divisions = num - 1 if endpoint else num
    low, high = operand(start), operand(stop)
    inner = np.result_type(promote(low, high, 1.0), np.float16)
    inner = inner if inner.kind in "fc" else np.dtype(np.float64)
    delta = apply("subtract", cast(high, inner), cast(low, inner))
    steps = apply("arange", size=num)
    if shape_of(delta):
        after = tuple(range(1, 1 + len(shape_of(delta))))
        steps = apply("expand_dims", steps, axis=after)
    if divisions > 0:
        step = apply("divide", delta, divisions)
        y = apply("multiply", steps, step)
    else:
        step = np.nan
        y = apply("multiply", steps, delta)
    y = cast(apply("add", y, cast(low, inner)), inner)
    if endpoint and num > 1:
        from ..index import setitem

        setitem(y, -1, cast(high, inner))
    if axis_index(axis, len(y.shape)):
        from .shapes import moveaxis

        y = moveaxis(y, 0, axis)
    if dtype is not None:
        want = np.dtype(dtype)
        y = cast(apply("floor", y) if want.kind in "iu" else y, want)
    return (y, step) if retstep else y


@implements(np.logspace)
@creates(np.logspace)
def logspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    y = linspace(start, stop, num, endpoint, axis=axis)
    return cast(apply("power", base, y), dtype)


@implements(np.geomspace)
@creates(np.geomspace)
def geomspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    if not has_tensor((start, stop)) and not _is_symbolic(num):
        return lift(np.geomspace(start, stop, num, endpoint, dtype, axis))
    low, high = (apply("log10", operand(e)) for e in (start, stop))
    return logspace(low, high, num, endpoint, dtype=dtype, axis=axis)


@creates(np.indices)
def indices(dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    from .join import stack

    sizes = as_shape(dimensions)
    ndim = len(sizes)
    out = []
    for k, n in enumerate(sizes):
        others = tuple(j for j in range(ndim) if j != k)
        line = cast(apply("arange", size=n), dtype)
        line = apply("expand_dims", line, axis=others) if others else line
        out.append(line if sparse else broadcast_to(line, sizes))
    return tuple(out) if sparse else stack(out)


@implements(np.meshgrid)
@creates(np.meshgrid)
def meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> Any:
    if indexing not in ("xy", "ij"):
        raise ShapeError("Valid values for `indexing` are 'xy' and 'ij'.")
    lines = [asarray(x) for x in xi]
    lines = [apply("reshape", x, shape=(product(x.shape),)) for x in lines]
    ndim = len(lines)
    place = list(range(ndim))
    if indexing == "xy" and ndim > 1:
        place[:2] = [1, 0]
    out = []
    for x, k in zip(lines, place, strict=True):
        others = tuple(j for j in range(ndim) if j != k)
        out.append(expand_dims(x, others) if others else x)
    if not sparse:
        sizes = [0] * ndim
        for x, k in zip(lines, place, strict=True):
            sizes[k] = x.shape[0]
        out = [broadcast_to(x, tuple(sizes)) for x in out]
    return tuple(apply("copy", x) if copy else x for x in out)


# ---------------------------------------------------------------- arrays from objects


def _stacked(x: Any) -> Any:
    """Return nested lists with Tensors inside as one Tensor."""
    if isinstance(x, list | tuple):
        if not is_symbolic(x):
            return lift(np.asarray(known(x)))
        whole = stack_of(x)
        if whole is not None:
            return whole
        parts = [_stacked(e) for e in x]
        shapes = {shape_of(p) for p in parts}
        if len({len(s) for s in shapes}) != 1:
            raise ShapeError(
                "setting an array element with a sequence. The requested array has an "
                "inhomogeneous shape"
            )
        from .join import stack

        return stack(parts)
    return lift(np.asarray(x)) if isinstance(x, int | float | complex) else asarray(x)


@implements(np.array)
@creates(np.array)
def array(
    object: Any,
    dtype: Any = None,
    *,
    copy: Any = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    **like: Any,
) -> Any:
    if isinstance(object, list | tuple) and is_symbolic(object):
        x = cast(_stacked(object), dtype)
        x = ordered(x, "F" if order == "F" else "C")
    elif is_tensor(object) or isinstance(object, SymInt):
        x = cast(asarray(object), dtype)
        if x is object and copy is False:
            pass
        elif x is object or shape_of(x) == ():
            if copy is not None or x.type.scalar or not _fits(x, order):
                x = ordered(apply("copy", x), order, x)
    else:
        x = lift(
            _numpy.array(known(object), dtype, order="C" if order == "A" else order)
        )
    missing = ndmin - len(x.shape)
    if missing > 0:
        x = apply("expand_dims", x, axis=tuple(range(missing)))
    return x


def _fits(x: Any, order: str | None) -> bool:
    """Tell whether an array may stay as it is where this order is asked for."""
    if order == "F":
        return is_contiguous(x.T)
    return order != "C" or is_contiguous(x)


@implements(np.asarray, np.asanyarray)
@creates(np.asarray, np.asanyarray)
def asarray_(
    a: Any,
    dtype: Any = None,
    order: Any = None,
    *,
    copy: Any = None,
    device: Any = None,
    **like: Any,
) -> Any:
    if copy or not is_tensor(a):
        return array(a, dtype, order=order or "K")
    x = cast(a, dtype)
    if x.type.scalar or not _fits(x, order):
        return ordered(apply("copy", x), order, x)
    return x


@implements(np.ascontiguousarray)
@creates(np.ascontiguousarray)
def ascontiguousarray(a: Any, dtype: Any = None, **like: Any) -> Any:
    x = asarray_(a, dtype, "C")
    return x if shape_of(x) else apply("reshape", x, shape=(1,))


@implements(np.asfortranarray)
@creates(np.asfortranarray)
def asfortranarray(a: Any, dtype: Any = None, **like: Any) -> Any:
    x = asarray_(a, dtype, "F")
    return x if shape_of(x) else apply("reshape", x, shape=(1,))


@implements(np.copy)
@creates(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    return array(a, order=order)


@implements(np.astype)
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    want = np.dtype(dtype)
    if x.dtype == want:
        return apply("copy", x) if copy else x
    return apply("astype", x, dtype=want)


@creates(np.vander)
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    x = asarray(x)
    if len(x.shape) != 1:
        raise ShapeError("x must be a one-dimensional array or sequence.")
    n = x.shape[0] if N is None else N
    powers = apply("arange", size=n)
    if not increasing:
        powers = apply("flip", powers, axis=(0,))
    return apply("power", expand_dims(x, 1), powers)


implements(np.vander)(vander)


@creates(np.fromiter)
def fromiter(iter: Any, dtype: Any, count: int = -1, **like: Any) -> Any:
    items = list(iter)
    if count >= 0:
        if len(items) < count:
            raise ShapeError("iterator too short")
        items = items[:count]
    return array(items, dtype)


@creates(np.fromfunction)
def fromfunction(
    function: Any, shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any
) -> Any:
    grid = indices(shape, dtype)
    return function(*(grid[k] for k in range(len(as_shape(shape)))), **kwargs)


def concrete_array(x: Any, what: str) -> np.ndarray[Any, Any]:
    """Return the values of an argument that must be known while Python runs."""
    if is_traced(x):
        raise DTypeError(f"{what} is computed, but its value is needed here")
    values = concrete(x)
    assert values is not None
    return values


def _computed(function: Any) -> None:
    """Enter a creation function whose values NumPy computes once."""

    def made(*args: Any, **kwargs: Any) -> Any:
        out = function(*map(known, args), **kwargs)
        return tuple(map(lift, out)) if isinstance(out, tuple) else lift(out)

    made.__name__ = function.__name__
    creates(function)(made)


for _function in (
    np.hanning,
    np.hamming,
    np.blackman,
    np.bartlett,
    np.kaiser,
    np.tril_indices,
    np.triu_indices,
    np.diag_indices,
    np.frombuffer,
):
    _computed(_function)
