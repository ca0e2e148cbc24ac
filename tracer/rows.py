"""What a loop runs over when it can stay a loop: its length and its k-th item.

`range` of symbolic ints, the rows of a traced array, and `enumerate`, `zip` and
`reversed` of those are `Rows`. As plain iterables they have a fixed length.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import dispatch
from .symbols import SymInt, clamp, is_int
from .tensor import Tensor


class Rows(ABC):
    """A sequence whose length may be symbolic."""

    @property
    @abstractmethod
    def length(self) -> Any:
        """The number of items, an int or a `SymInt`."""

    @abstractmethod
    def item(self, k: Any) -> Any:
        """Return item `k`, which is in range."""

    def bounds(self) -> tuple[Any, Any]:
        """Return the first index of a loop over the items, and the one after the last.

        Index `i` of that loop is at item `at(i)`.
        """
        return 0, self.length

    def at(self, i: Any) -> Any:
        """Return the item at an index of a loop."""
        return self.item(i)

    def __len__(self) -> int:
        return int(self.length)

    def __iter__(self) -> Iterator[Any]:
        return (self.item(k) for k in range(len(self)))

    def __getitem__(self, k: Any) -> Any:
        items: Any = list(self) if isinstance(k, slice) else self
        return (
            items[k] if items is not self else self.item(k if k >= 0 else k + len(self))
        )

    def rest(self) -> Rows:
        """Return the items from the second on."""
        return _Rest(self)


class Range(Rows):
    """`range(start, stop, step)` of ints that may be symbolic."""

    def __init__(self, start: Any, stop: Any, step: Any = 1) -> None:
        if step == 0:
            raise ValueError("range() arg 3 must not be zero")
        self.start, self.stop, self.step = start, stop, step

    @property
    def length(self) -> Any:
        forward = self.step > 0
        gap = self.stop - self.start if forward else self.start - self.stop
        pace = self.step if forward else -self.step
        gap = gap if isinstance(pace, int) and pace == 1 else (gap + pace - 1) // pace
        return clamp(gap, 0, None)

    def item(self, k: Any) -> Any:
        return self.start + self.step * k

    @property
    def _is_plain(self) -> bool:
        return isinstance(self.step, int) and self.step == 1

    def bounds(self) -> tuple[Any, Any]:
        return (self.start, self.stop) if self._is_plain else super().bounds()

    def at(self, i: Any) -> Any:
        return i if self._is_plain else self.item(i)

    def rest(self) -> Range:
        return Range(self.start + self.step, self.stop, self.step)

    def __contains__(self, x: Any) -> bool:
        return x in range(int(self.start), int(self.stop), int(self.step))


class _Rest(Rows):
    def __init__(self, of: Rows) -> None:
        self.of = of

    @property
    def length(self) -> Any:
        return self.of.length - 1

    def item(self, k: Any) -> Any:
        return self.of.item(k + 1)


class ArrayRows(Rows):
    """The rows of a traced array, views of it, as they are when they are reached."""

    def __init__(self, x: Tensor) -> None:
        if not x.shape:
            raise TypeError("iteration over a 0-d array")
        self.x = x

    @property
    def length(self) -> Any:
        return self.x.shape[0]

    def item(self, k: Any) -> Any:
        return self.x[k]


class Enumerated(Rows):
    """`enumerate(rows, start)`."""

    def __init__(self, rows: Rows, start: Any = 0) -> None:
        self.rows, self.start = rows, start

    @property
    def length(self) -> Any:
        return self.rows.length

    def item(self, k: Any) -> Any:
        return k + self.start, self.rows.item(k)


class Indices(Rows):
    """`np.ndindex(shape)`: all indices into an array of a shape, the last one first."""

    def __init__(self, shape: Sequence[Any]) -> None:
        self.shape = tuple(shape)

    @property
    def length(self) -> Any:
        return math.prod(self.shape)

    def item(self, k: Any) -> Any:
        index: tuple[Any, ...] = ()
        for n in reversed(self.shape[1:]):
            index, k = (k % n, *index), k // n
        return (k, *index) if self.shape else ()


class Elements(Rows):
    """`np.ndenumerate(x)`: the indices of an array, and its elements."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.indices = x, Indices(x.shape)

    @property
    def length(self) -> Any:
        return self.indices.length

    def item(self, k: Any) -> Any:
        index = self.indices.item(k)
        return index, self.x[index]


class Zipped(Rows):
    """`zip(*rows)`: as long as the shortest."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = tuple(rows)

    @property
    def length(self) -> Any:
        lengths = [r.length for r in self.rows]
        out = lengths[0]
        for n in lengths[1:]:
            out = clamp(out, 0, n)
        return out

    def item(self, k: Any) -> Any:
        return tuple(r.item(k) for r in self.rows)


class Mapped(Rows):
    """`(element(item) for item in rows)`."""

    def __init__(self, rows: Rows, element: Callable[[Any], Any]) -> None:
        self.rows, self.element = rows, element

    @property
    def length(self) -> Any:
        return self.rows.length

    def item(self, k: Any) -> Any:
        return self.element(self.rows.item(k))


class Reversed(Rows):
    """`reversed(rows)`."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def length(self) -> Any:
        return self.rows.length

    def item(self, k: Any) -> Any:
        return self.rows.item(self.length - 1 - k)


def rows_of(x: Any) -> Rows | None:
    """Return `x` as rows, or None where it is an ordinary iterable."""
    if isinstance(x, Rows):
        return x
    if type(x) is range:
        return Range(x.start, x.stop, x.step)
    if isinstance(x, Tensor) and x.is_traced:
        return ArrayRows(x)
    return None


def symbolic_range(*args: Any) -> Any:
    """Return `range(*args)`; with computed or symbolic ints one of `Rows`."""
    trace = dispatch.active_trace()
    ints = []
    for a in args:
        traced = isinstance(a, Tensor) and a.is_traced
        ints.append(trace.integers.of(a) if traced and trace is not None else a)
    if not any(isinstance(a, SymInt) for a in ints):
        return range(*ints)
    start, stop, step = (0, *ints, 1) if len(ints) == 1 else (*ints, 1)[:3]
    return Range(start, stop, step)


def enumerated(iterable: Any, start: Any = 0) -> Any:
    """Return `enumerate(iterable, start)`, in a trace one of `Rows` if it can be."""
    rows = _in_trace(iterable)
    return enumerate(iterable, start) if rows is None else Enumerated(rows, start)


def zipped(*iterables: Any, strict: bool = False) -> Any:
    """Return `zip(*iterables)`, in a trace one of `Rows` if it can be."""
    rows = [_in_trace(x) for x in iterables]
    if not rows or any(r is None for r in rows):
        return zip(*iterables, strict=strict)
    out = Zipped([r for r in rows if r is not None])
    if strict and any(r.length != out.rows[0].length for r in out.rows[1:]):
        raise ValueError("zip() arguments have different lengths")
    return out


def indices(*shape: Any) -> Any:
    """Return `np.ndindex(*shape)`, in a trace one of `Rows`."""
    if dispatch.active_trace() is None:
        return np.ndindex(*shape)
    return Indices(shape[0] if len(shape) == 1 and not is_int(shape[0]) else shape)


def elements(x: Any) -> Any:
    """Return `np.ndenumerate(x)`, in a trace of a traced array one of `Rows`."""
    if isinstance(x, Tensor) and not x.is_traced:
        return ((k, x[k]) for k in np.ndindex(*x.shape))
    return Elements(x) if isinstance(x, Tensor) else np.ndenumerate(x)


def backwards(sequence: Any) -> Any:
    """Return `reversed(sequence)`, in a trace one of `Rows` if it can be."""
    rows = _in_trace(sequence)
    return reversed(sequence) if rows is None else Reversed(rows)


def _in_trace(x: Any) -> Rows | None:
    return None if dispatch.active_trace() is None else rows_of(x)
