"""Stable sorting and searching of one line of memory, for generated kernels.

NaN is larger than everything, as in NumPy. Merge sort with insertion sort for short
runs: stable, no recursion, and the same code for every dtype.
"""

from typing import Any

import numba

from . import memory

# Intrinsics have a parameter more than their calls, and untyped results, to mypy.
load: Any = memory.load
store: Any = memory.store
RUN = 16


@numba.njit(nogil=True, inline="never")
def _before(a: Any, b: Any) -> Any:
    return a < b or (b != b and a == a)


@numba.njit(nogil=True)
def argsort(keys: Any, order: Any, scratch: Any, n: Any) -> None:
    """Fill `order` with the positions of the n keys in ascending order."""
    for start in range(0, n, RUN):
        for i in range(start, min(start + RUN, n)):
            key = load(keys, i, -1, 1)
            j = i - 1
            while j >= start and _before(key, load(keys, load(order, j, -1, 1), -1, 1)):
                store(order, j + 1, load(order, j, -1, 1), -1, 1)
                j -= 1
            store(order, j + 1, i, -1, 1)
    width = RUN
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            left, right = low, middle
            for k in range(low, high):
                a = load(order, min(left, n - 1), -1, 1)
                b = load(order, min(right, n - 1), -1, 1)
                take_left = right >= high or (
                    left < middle
                    and not _before(load(keys, b, -1, 1), load(keys, a, -1, 1))
                )
                if take_left:
                    store(scratch, k, a, -1, 1)
                    left += 1
                else:
                    store(scratch, k, b, -1, 1)
                    right += 1
        for k in range(n):
            store(order, k, load(scratch, k, -1, 1), -1, 1)
        width *= 2


@numba.njit(nogil=True)
def sort(keys: Any, scratch: Any, n: Any) -> None:
    """Sort n keys in place."""
    for start in range(0, n, RUN):
        for i in range(start, min(start + RUN, n)):
            key = load(keys, i, -1, 1)
            j = i - 1
            while j >= start and _before(key, load(keys, j, -1, 1)):
                store(keys, j + 1, load(keys, j, -1, 1), -1, 1)
                j -= 1
            store(keys, j + 1, key, -1, 1)
    width = RUN
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            left, right = low, middle
            for k in range(low, high):
                a = load(keys, min(left, n - 1), -1, 1)
                b = load(keys, min(right, n - 1), -1, 1)
                if right >= high or (left < middle and not _before(b, a)):
                    store(scratch, k, a, -1, 1)
                    left += 1
                else:
                    store(scratch, k, b, -1, 1)
                    right += 1
        for k in range(n):
            store(keys, k, load(scratch, k, -1, 1), -1, 1)
        width *= 2


@numba.njit(nogil=True)
def searchsorted(keys: Any, n: Any, x: Any, right: Any) -> Any:
    """Return where x belongs among n sorted keys, before or after its equals."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        key = load(keys, middle, -1, 1)
        goes_on = not _before(x, key) if right else _before(key, x)
        if goes_on:
            low = middle + 1
        else:
            high = middle
    return low
