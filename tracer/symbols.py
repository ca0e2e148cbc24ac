"""Sizes that are not known yet: what stands for an int while a function is traced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np


class SymInt(ABC):
    """An integer of a trace: a size, a loop index, or arithmetic on them.

    It takes part in `+ - * // %` and comparisons as an int does. A comparison that the
    facts of the trace leave open is decided once and written down as a guard, or, where
    it is about the index of a loop, a computed bool. `int(k)` gives a concrete int and
    specialises the trace to it.
    """

    __slots__ = ()

    @abstractmethod
    def __index__(self) -> int: ...

    def __int__(self) -> int:
        return self.__index__()

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the value is known only while the program runs."""

    @abstractmethod
    def like(self, k: int) -> SymInt:
        """Return an int as a `SymInt` of the same trace."""

    @abstractmethod
    def as_size(self) -> Size:
        """Return self as the size of an array; raises where it is negative."""

    @abstractmethod
    def as_index(self, size: Size) -> Any:
        """Return self as a non-negative index into an axis of `size`.

        May return an operand that wraps and is checked where it is used.
        """

    @abstractmethod
    def from_end(self, size: Size) -> Size:
        """Return self, counted from the end of an axis of `size` if it is negative."""

    @abstractmethod
    def clamped(self, low: Size | None, high: Size | None) -> Size:
        """Return self moved into low..high, both included; None is no bound."""


Size: TypeAlias = int | SymInt

_INTS = (int, np.integer, SymInt)


def is_int(k: object) -> bool:
    """Tell whether `k` is an integer, concrete or symbolic; bools are not.

    >>> is_int(3), is_int(np.int8(3)), is_int(True), is_int(3.0)
    (True, True, False, False)
    """
    return isinstance(k, _INTS) and not isinstance(k, bool)


def from_end(k: Any, size: Size) -> Any:
    """Return `k`, with the size added where it is negative."""
    if isinstance(k, SymInt):
        return k.from_end(size)
    return k + size if k < 0 else k


def in_range(k: Any, size: Size) -> bool:
    """Tell whether `k` is a valid index into an axis of `size`."""
    return bool(-size <= k < size)  # type: ignore[operator]


def clamp(k: Any, low: Size | None, high: Size | None) -> Any:
    """Return `k` moved into low..high, both included; None is no bound."""
    if isinstance(k, SymInt):
        return k.clamped(low, high)
    for bound in (low, high):
        if isinstance(bound, SymInt):
            return bound.like(k).clamped(low, high)
    if low is not None and k < low:
        return low
    return high if high is not None and k > high else k
