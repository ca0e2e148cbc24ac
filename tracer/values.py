"""What an argument is: Tensor or not, concrete or traced, scalar or array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

import numpy as np

from ..ir.op import OPS
from ..ir.ops.create import constant_attrs
from ..runtime.devices import ARRAYS, DeviceArray
from ..runtime.devices.array import uploaded
from ..runtime.storage import Storage
from . import dispatch
from .modes import HOME
from .symbols import SymInt
from .tensor import Tensor

_TRANSFORMING: ContextVar[bool] = ContextVar("retrograde_transforming", default=False)


@contextmanager
def transforming() -> Iterator[None]:
    """Mark a block as the inside of a transform: arrays made there are Tensors."""
    token = _TRANSFORMING.set(True)
    try:
        yield
    finally:
        _TRANSFORMING.reset(token)


def inside_transform() -> bool:
    """Tell whether creation functions of user code make Tensors here."""
    return _TRANSFORMING.get() or dispatch.active_trace() is not None


def is_tensor(x: object) -> TypeGuard[Tensor]:
    """Tell whether `x` is a Tensor."""
    return isinstance(x, Tensor)


def has_tensor(x: object) -> bool:
    """Tell whether `x` is a Tensor or a list, tuple or dict that holds one.

    >>> from .tensor import tensor
    >>> has_tensor([1.0, (tensor(2.0),)]), has_tensor([1.0])
    (True, False)
    """
    if isinstance(x, Tensor):
        return True
    if isinstance(x, list | tuple):
        return any(map(has_tensor, x))
    return isinstance(x, dict) and any(map(has_tensor, x.values()))


def is_symbolic(x: Any) -> bool:
    """Tell whether `x` is a Tensor or symbolic int, or a container that holds one."""
    if isinstance(x, Tensor | SymInt):
        return True
    if isinstance(x, list | tuple):
        return any(map(is_symbolic, x))
    return isinstance(x, dict) and any(map(is_symbolic, x.values()))


def is_traced(x: object) -> bool:
    """Tell whether the value of `x` is not known while Python runs."""
    return isinstance(x, Tensor) and x.is_traced


def concrete(x: Any) -> np.ndarray[Any, Any] | None:
    """Return the values of an argument as an array, or None where they are traced."""
    if isinstance(x, Tensor):
        return None if x.is_traced else np.asarray(x._data)  # one of a device is copied
    return np.asarray(x)


def is_scalar(x: Any) -> bool:
    """Tell whether `x` is a number or NumPy scalar: immutable, without axes."""
    if isinstance(x, Tensor):
        return x.type.scalar
    return not isinstance(x, ARRAYS)


def constant(x: np.ndarray[Any, Any]) -> Any:
    """Return a fresh array as an operand: a constant of the trace, if one is active."""
    return x if dispatch.active_trace() is None else lift(x)


def lift(x: np.ndarray[Any, Any]) -> Any:
    """Return a fresh array, which nobody else holds, as a Tensor."""
    if dispatch.active_trace() is not None:
        return dispatch.apply(OPS["constant"], (), constant_attrs(x))
    if HOME.place is not None and np.ndim(x):
        return Tensor(uploaded(HOME.place, x), Storage())
    return Tensor(x, Storage() if isinstance(x, ARRAYS) else None)


def lift_beside(x: np.ndarray[Any, Any], other: Any) -> Any:
    """Return a fresh array as a Tensor that lies where another one does."""
    there = other._data if isinstance(other, Tensor) else None
    if isinstance(there, DeviceArray) and dispatch.active_trace() is None:
        return Tensor(uploaded(there.place, x), Storage())
    return lift(x)
