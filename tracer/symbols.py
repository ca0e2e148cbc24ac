"""Sizes that are not known yet: what stands for an int while a function is traced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np


class SymInt(ABC):
    """An integer of a trace: a size, a loop index, or arithmetic on them.

    It takes part in `+ - * // %` and comparisons as an int does. A comparison that the
    facts of the trace leave open is decided once and written down as a guard. `int(k)`
    gives a concrete int and specialises the trace to it.
    """

    __slots__ = ()

    @abstractmethod
    def __index__(self) -> int: ...

    def __int__(self) -> int:
        return self.__index__()

    def as_index(self, size: Size) -> Any:
        """Return self as a non-negative index into an axis of `size`.

        May return an operand that wraps and is checked where it is used.
        """
        return wrapped(self, size)

    def clamped(self, low: Size, high: Size) -> Size:
        """Return self moved into low..high, both included."""
        k: Size = self
        return low if k < low else high if k > high else k  # type: ignore[operator]


Size: TypeAlias = int | SymInt

_INTS = (int, np.integer, SymInt)


def is_int(k: object) -> bool:
    """Tell whether `k` is an integer, concrete or symbolic; bools are not.

    >>> is_int(3), is_int(np.int8(3)), is_int(True), is_int(3.0)
    (True, True, False, False)
    """
    return isinstance(k, _INTS) and not isinstance(k, bool)


def wrapped(k: Any, size: Size) -> Any:
    """Return `k`, with the size added where it is negative."""
    return k + size if k < 0 else k


def in_range(k: Any, size: Size) -> bool:
    """Tell whether `k` is a valid index into an axis of `size`."""
    return bool(-size <= k < size)  # type: ignore[operator]


def clamp(k: Any, low: Size, high: Size) -> Any:
    """Return `k` moved into low..high, both included."""
    if isinstance(k, SymInt):
        return k.clamped(low, high)
    return low if k < low else high if k > high else k
