"""Stable sorting and searching, by the threads of a block together.

Note [merge by ranks]
Runs of sorted elements are merged in pairs. Each thread takes elements of its own: the
place of one in the merged run is its place in its own run, and how many elements of the
other run come before it, which a binary search finds. Of equal elements those of the
first run come first, so the sort is stable. NaN is larger than everything, as in NumPy.
"""

from __future__ import annotations

from typing import Any

from . import grid, memory
from .grid import device

__all__ = ["argsort", "searchsorted", "sort"]

# Intrinsics have a parameter more than their calls, to mypy.
barrier: Any = grid.barrier
load: Any = memory.load
store: Any = memory.store
thread: Any = grid.thread
threads: Any = grid.threads


@device
def _before(a: Any, b: Any) -> Any:
    return a < b or (b != b and a == a)


@device
def _count(keys: Any, low: Any, high: Any, x: Any, equal: Any) -> Any:
    """Return where the first of sorted keys is that x comes before.

    Its equals come before x where `equal`.
    """
    while low < high:
        middle = (low + high) // 2
        key = load(keys, middle)
        goes_on = not _before(x, key) if equal else _before(key, x)
        if goes_on:
            low = middle + 1
        else:
            high = middle
    return low


@device
def sort(keys: Any, scratch: Any, n: Any) -> None:
    """Sort n keys in place; `scratch` has room for as many."""
    width = 1
    while width < n:
        barrier()
        for i in range(thread(), n, threads()):
            start = i - i % (2 * width)
            middle, stop = min(start + width, n), min(start + 2 * width, n)
            x = load(keys, i)
            if i < middle:
                place = i + _count(keys, middle, stop, x, False) - middle
            else:
                place = i - middle + _count(keys, start, middle, x, True)
            store(scratch, place, x)
        barrier()
        for i in range(thread(), n, threads()):
            store(keys, i, load(scratch, i))
        width *= 2
    barrier()


@device
def _count_ordered(
    keys: Any, order: Any, low: Any, high: Any, x: Any, equal: Any
) -> Any:
    while low < high:
        middle = (low + high) // 2
        key = load(keys, load(order, middle))
        goes_on = not _before(x, key) if equal else _before(key, x)
        if goes_on:
            low = middle + 1
        else:
            high = middle
    return low


@device
def argsort(keys: Any, order: Any, scratch: Any, n: Any) -> None:
    """Fill `order` with the positions of the n keys in ascending order."""
    for i in range(thread(), n, threads()):
        store(order, i, i)
    width = 1
    while width < n:
        barrier()
        for i in range(thread(), n, threads()):
            start = i - i % (2 * width)
            middle, stop = min(start + width, n), min(start + 2 * width, n)
            which = load(order, i)
            x = load(keys, which)
            if i < middle:
                other = _count_ordered(keys, order, middle, stop, x, False)
                place = i + other - middle
            else:
                other = _count_ordered(keys, order, start, middle, x, True)
                place = i - middle + other
            store(scratch, place, which)
        barrier()
        for i in range(thread(), n, threads()):
            store(order, i, load(scratch, i))
        width *= 2
    barrier()


@device
def searchsorted(keys: Any, n: Any, x: Any, right: Any) -> Any:
    """Return where x belongs among n sorted keys, before or after its equals."""
    return _count(keys, 0, n, x, right)
