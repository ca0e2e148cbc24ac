"""Result arrays that are used again once their last user has dropped them.

Fresh memory costs as much as the work on it: the operating system clears every page at
its first use. A large result array is therefore remembered, and handed out again when
nothing refers to it any more.

Note [last user]
An array is free when the pool holds its only reference. Views, tensors, memoryviews and
DLPack consumers of its memory all refer to the array, directly or as their base. Two
threads cannot both find it free: a thread refers to the array while it counts.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

ALIGNED, WRITEABLE = 0x101, 0x400  # bits of `flags.num`: aligned and in C order
LARGE = 1 << 17  # bytes; below, NumPy's own allocator is as fast
KEPT = 2  # arrays per result: the one a loop still looks at, and the next
FREE = 3  # references: the list's, the loop variable's, the argument of getrefcount


class Results:
    """The arrays of one result of one kernel.

    >>> pool = Results()
    >>> a = pool.empty((1 << 15,), np.dtype(np.float64))
    >>> address = a.ctypes.data
    >>> del a
    >>> pool.empty((1 << 15,), np.dtype(np.float64)).ctypes.data == address
    True
    """

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, Any]] = []

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> np.ndarray[Any, Any]:
        """Return an array with any contents that nobody else can see."""
        for a in self._arrays:
            if sys.getrefcount(a) == FREE and _is_as_made(a, shape, dtype):
                return a
        a = np.empty(shape, dtype)
        if a.nbytes >= LARGE:
            self._arrays = [*self._arrays[1 - KEPT :], a]
        return a


def _is_as_made(
    a: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> bool:
    """Tell whether an array fits, and its user left it as it was handed out."""
    flags = a.flags
    return bool(
        a.shape == shape and a.dtype == dtype and flags.c_contiguous and flags.writeable
    )
