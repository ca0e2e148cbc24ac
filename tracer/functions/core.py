"""The table of NumPy functions, and what all of its entries share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ...ir.errors import (
    DTypeError,
    GradientBreakError,
    IndexRangeError,
    RetrogradeError,
    ShapeError,
    UnsupportedError,
)
from ...ir.op import OPS
from ...passes.costs import estimate
from ...runtime.devices import ARRAYS, OPENED
from .. import dispatch
from ..devices import inside_function, refuse_host
from ..location import user_location
from ..symbols import SymInt, is_int
from ..tensor import Tensor, way_out
from ..values import constant, has_tensor, is_symbolic, is_tensor, lift

FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
CREATION: dict[Callable[..., Any], Callable[..., Any]] = {}

F = TypeVar("F", bound=Callable[..., Any])

NO_VALUE: Any = np._NoValue  # NumPy's "not given", the default of keepdims and initial


class AxisError(ShapeError, IndexRangeError):
    """An axis that the array does not have; a ValueError and an IndexError."""


def _located(f: F) -> F:
    """Return `f`, with the user's line in the errors that leave it."""

    @functools.wraps(f)
    def outermost(*args: Any, **kwargs: Any) -> Any:
        try:
            if OPENED:
                with inside_function(args, kwargs):
                    return f(*args, **kwargs)
            return f(*args, **kwargs)
        except RetrogradeError as error:
            if error.location is None:
                error.location = user_location()
            raise

    return outermost  # type: ignore[return-value]


def implements(*functions: Callable[..., Any]) -> Callable[[F], F]:
    """Enter a function into FUNCTIONS as what these NumPy functions mean."""

    def register(f: F) -> F:
        for g in functions:
            FUNCTIONS[g] = _located(f)
        return f

    return register


def creates(*functions: Callable[..., Any]) -> Callable[[F], F]:
    """Enter a creation function: it takes no Tensor, but makes one in a transform."""

    def register(f: F) -> F:
        for g in functions:
            CREATION[g] = _located(f)
        return f

    return register


def apply(name: str, *operands: Any, **attrs: Any) -> Any:
    """Apply the op of that name."""
    return dispatch.apply(OPS[name], operands, attrs)


def asarray(x: Any) -> Any:
    """Return `x` as a Tensor or ndarray; lists that hold Tensors are stacked."""
    if is_tensor(x):
        return x
    if isinstance(x, SymInt):
        return apply("full", x, shape=(), dtype=np.dtype(np.int64))
    if isinstance(x, list | tuple) and is_symbolic(x):
        from .create import array

        return array(x)
    return x if isinstance(x, np.ndarray) else constant(np.asarray(known(x)))


def known(x: Any) -> Any:
    """Return an object that NumPy may read; refuse one that may change unseen.

    A trace keeps what was read. It holds numbers and containers of them against later
    calls, but not memory that other objects share out.
    """
    if dispatch.active_trace() is None:
        return x
    if isinstance(x, list | tuple):
        for item in x:
            known(item)
    elif _shares(x):
        raise UnsupportedError(
            f"memory of a {type(x).__name__} is read while a function is captured",
            rule="A call reads again what it is given, and what it captures, as arrays "
            "of NumPy.",
            hint="pass np.asarray(x) to the function: it shares the memory",
        )
    return x


def _shares(x: Any) -> bool:
    """Tell whether an object that is no array gives others its memory."""
    if isinstance(x, Tensor | np.generic | SymInt) or isinstance(x, ARRAYS):
        return False
    names = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")
    return isinstance(x, memoryview) or any(hasattr(type(x), name) for name in names)


def operand(x: Any) -> Any:
    """Return `x` as an operand: numbers stay weak, lists become arrays."""
    return asarray(x) if isinstance(x, list | tuple) else x


def shape_of(x: Any) -> tuple[Any, ...]:
    """Return the shape of an operand; numbers have none."""
    return tuple(x.shape) if hasattr(x, "shape") else ()


def usual_size(x: Any) -> list[float]:
    """Return the shape of an array, with estimates for sizes that are symbols."""
    return [estimate(d) for d in (x.type.shape if is_tensor(x) else x.shape)]


def product(sizes: Iterable[Any]) -> Any:
    """Multiply sizes, symbolic ones too."""
    out: Any = 1
    for d in sizes:
        out = out * d
    return out


def at_least_line(x: Any) -> Any:
    """Give an array without axes one, as functions with an axis do in NumPy."""
    return x if x.shape else apply("reshape", x, shape=(1,))


def axis_index(axis: Any, ndim: int) -> int:
    """Return an axis as a non-negative number; raises AxisError out of range."""
    try:
        k = axis.__index__()
    except AttributeError:
        raise DTypeError(
            f"axis: '{type(axis).__name__}' object cannot be interpreted as an integer"
        ) from None
    if not -ndim <= k < ndim:
        raise AxisError(
            f"axis {k} is out of bounds for array of dimension {ndim}",
            rule="an axis counts from 0, or from -1 at the end",
        )
    return int(k + ndim if k < 0 else k)


def axis_tuple(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return several axes as a tuple in the given order; repeats are an error."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    out = tuple(axis_index(k, ndim) for k in given)
    if len(set(out)) != len(out):
        raise ShapeError("repeated axis")
    return out


def all_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction in order; None means all of them.

    A 0-d array has no axes, but NumPy's reductions take its axis 0 or -1 for none.
    """
    if ndim == 0 and not isinstance(axis, tuple | list) and axis in (0, -1):
        return ()
    return tuple(range(ndim)) if axis is None else tuple(sorted(axis_tuple(axis, ndim)))


def stack_of(items: Any) -> Any:
    """Return the array whose rows a list got in a traced loop, or None."""
    trace = dispatch.active_trace()
    return trace.stack_of(items) if trace is not None and type(items) is list else None


def as_shape(shape: Any) -> tuple[Any, ...]:
    """Return a shape argument as a tuple of sizes."""
    if is_int(shape):
        return (_size(shape),)
    if is_tensor(shape) and not shape.shape:
        return (_size(shape),)
    return tuple(map(_size, shape))


def _size(d: Any) -> Any:
    if is_tensor(d) and d.is_traced and not d.shape and d.dtype.kind in "iu":
        d = dispatch.active_trace().integers.of(d)  # type: ignore[union-attr]
    if isinstance(d, SymInt):
        return d.as_size()
    if isinstance(d, int):
        return d
    try:
        return d.__index__()
    except RetrogradeError:
        raise
    except (AttributeError, TypeError):
        raise DTypeError(
            f"'{type(d).__name__}' object cannot be interpreted as an integer"
        ) from None


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Tell whether two shapes are equal, asking of symbolic sizes only what is open."""
    return len(a) == len(b) and all(
        x is y or bool(x == y) for x, y in zip(a, b, strict=True)
    )


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in a dtype; the same object where it has it already."""
    if dtype is None:
        return x
    want = np.dtype(dtype)
    if getattr(x, "dtype", None) == want:
        return x
    if is_tensor(x):
        return apply("astype", x, dtype=want)
    return np.asarray(x).astype(want)


def dtype_of(x: Any) -> np.dtype[Any]:
    """Return the dtype of an operand; that of a Python number is NumPy's default."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        dtype = np.dtype(np.int64) if isinstance(x, SymInt) else np.asarray(x).dtype
    return np.dtype(dtype)


def promote(*xs: Any) -> np.dtype[Any]:
    """Return the common dtype of operands; Python numbers give way (NEP 50)."""
    return np.result_type(*(x.dtype if hasattr(x, "dtype") else x for x in xs))


def finish(result: Any, out: Any, casting: str = "same_kind") -> Any:
    """Return the result, or write it into `out=` and return that."""
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        return result
    if not same_sizes(shape_of(result), shape_of(out)):
        raise ShapeError(
            f"output parameter has shape {shape_of(out)}, but the result has shape "
            f"{shape_of(result)}"
        )
    if not np.can_cast(dtype_of(result), out.dtype, casting):  # type: ignore[arg-type]
        raise DTypeError(
            f"Cannot cast output from {dtype_of(result)} to {out.dtype} with casting "
            f"rule '{casting}'"
        )
    if not is_tensor(out):
        return _into_plain(result, out)
    dispatch.write(out, result)
    return out


def _into_plain(result: Any, out: np.ndarray[Any, Any]) -> Any:
    """Write a result into an ndarray, where that loses no gradient."""
    if is_tensor(result):
        if result.is_traced or result.requires_grad:
            raise GradientBreakError(
                "out=: a tensor that requires a gradient is written into an ndarray",
                rule="an ndarray holds no gradient: it would be lost",
                hint="make the array a tensor (rg.tensor(a)), or .detach() the operand",
            )
        refuse_host(result, "out=")
        result = result._data
    np.copyto(out, result, casting="unsafe")
    return out


def unsupported(what: str, why: str = "", hint: str = "") -> UnsupportedError:
    """Return the error for a call that is meaningful, but not taken."""
    return UnsupportedError(
        what,
        rule=why or "there is no derivative rule for it",
        hint=hint or way_out(()),
    )


def no_support(name: str, given: Any, default: Any = None) -> None:
    """Raise where an argument that is not supported was given."""
    if given is not default and given is not NO_VALUE:
        raise unsupported(f"{name}= is not supported here", "the argument has no rule")


__all__ = [
    "CREATION",
    "FUNCTIONS",
    "NO_VALUE",
    "AxisError",
    "all_axes",
    "apply",
    "as_shape",
    "asarray",
    "axis_index",
    "axis_tuple",
    "cast",
    "constant",
    "creates",
    "dtype_of",
    "finish",
    "has_tensor",
    "implements",
    "is_symbolic",
    "is_tensor",
    "known",
    "lift",
    "no_support",
    "operand",
    "product",
    "promote",
    "same_sizes",
    "shape_of",
    "unsupported",
]
