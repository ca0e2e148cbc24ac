"""The memory order of fresh arrays, which decides later whether a reshape is a view.

NumPy's functions choose an order for their results: C, or that of an argument. Ops
make arrays in the order that comes naturally to them; a function whose NumPy model
chooses otherwise says so here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.func import Value
from .tensor import Tensor


def ordered(x: Any, order: str | None, like: Any = None) -> Any:
    """Lay out `x`, which nobody else holds yet, in an order; returns it.

    "C" and "F" are as NumPy's; "A" is "F" where `like` is in Fortran order, else "C";
    "K" is the order of `like`, which has the shape of `x`, as near as it goes.
    """
    if not isinstance(x, Tensor):
        return x
    order = order or "K"
    if x._trace is not None:
        if isinstance(x._value, Value):
            x._trace.layouts.orders[x._value] = (order, like)
        return x
    if isinstance(x._data, np.ndarray) and x._data.ndim > 1:
        model = like._data if isinstance(like, Tensor) else like
        if isinstance(model, np.ndarray):
            wanted = empty(x._data.shape, x._data.dtype, order, model)
        elif order in "CF":
            wanted = np.empty(x._data.shape, x._data.dtype, order)  # type: ignore[call-overload]
        else:
            return x
        if wanted.strides != x._data.strides:
            wanted[...] = x._data
            x._data = wanted
    return x


def empty(
    shape: tuple[int, ...],
    dtype: Any,
    order: str,
    like: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return an array without values in the order that `like` asks for."""
    if order == "A":
        order = "F" if like.flags.fnc else "C"
    if order == "K" and like.shape == shape:
        return np.empty_like(like, dtype=dtype, order="K", subok=False)
    return np.empty(shape, dtype, "F" if order == "F" else "C")


def laid_out(x: Any) -> Any:
    """Return an ndarray with the layout of `x`; a trace notes that it was read."""
    if not isinstance(x, Tensor):
        return x
    trace: Any = x._trace
    if trace is None:
        return x._data
    value = trace.operand(x)
    return trace.layouts.of(value) if isinstance(value, Value) else value


def is_contiguous(x: Any) -> bool:
    """Tell whether `x` lies in memory in C order without gaps."""
    if isinstance(x, Tensor) and len(x.shape) < 2 and _is_fresh(x):
        return True
    flags = getattr(laid_out(x), "flags", None)
    return flags is None or bool(flags.c_contiguous)


def _is_fresh(x: Tensor) -> bool:
    """Tell whether a traced value is no view and no argument."""
    trace: Any = x._trace
    if trace is None or not isinstance(x._value, Value):
        return False
    return x._value.base is None and x._value not in trace.layouts.known
