"""Memory of a device that is handed out again, without a word to its driver.

Note [free lists]
A call of a compiled function needs memory for what it returns and for what it computes
in between, of the same sizes every time. A block that nobody has any more waits in the
list of its size until somebody wants that size. By the order on a device, it may be
used again as soon as it is free. When sizes change all the time, lists grow and help
nobody: whenever many new bytes have come from the driver, and when it has no more, what
is free goes back to it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.errors import DeviceMemoryError
from .interface import Block, Memory

FRESH = 1 << 30  # bytes from the driver, until all that is free goes back
LEAST = 1 << 16  # what a smaller block counts as


class Pooled(Memory):
    """Memory whose block returns to its list when the object dies."""

    __slots__ = ("_block", "_blocks")

    def __init__(self, size: int, pool: Pool) -> None:
        self.size = size
        try:
            self._blocks = pool.free[size]
            self._block = block = self._blocks.pop()
        except LookupError:
            self._blocks, self._block = [], (0, None)  # it dies where there is no room
            self._block = block = pool.new(size)
            self._blocks = pool.free.setdefault(size, [])
        self.address = block[0]

    def __del__(self) -> None:
        self._blocks.append(self._block)


class Pool:
    """The free blocks of a device, by size; `fresh` asks the driver for one.

    All threads share it: a list takes one element off, or puts one on, at a time.

    >>> pool = Pool(lambda size: (256, object()))
    >>> memory = pool.allocate(100)
    >>> memory.address, memory.size
    (256, 100)
    """

    __slots__ = ("_count", "_fresh", "free")

    def __init__(self, fresh: Callable[[int], Block]) -> None:
        self._fresh = fresh
        self.free: dict[int, list[Block]] = {}
        self._count = 0  # bytes that have come since free blocks went back

    def allocate(self, size: int) -> Memory:
        """Return memory of a size; raises DeviceMemoryError where there is no room."""
        return Pooled(size, self)

    def take(self, size: int) -> Block:
        """Return a block of a size, for `give`; raises as `allocate` does."""
        try:
            return self.free[size].pop()
        except LookupError:
            return self.new(size)

    def give(self, size: int, block: Block) -> None:
        """Put a block into the list of its size."""
        try:
            self.free[size].append(block)
        except KeyError:
            self.free.setdefault(size, []).append(block)

    def new(self, size: int) -> Block:
        """Return a block of the driver's."""
        self._count += max(size, LEAST)
        if self._count > FRESH:
            self.release()
        try:
            return self._fresh(size)
        except DeviceMemoryError:
            self.release()
            return self._fresh(size)

    def release(self) -> None:
        """Give all free blocks back to the driver."""
        lists, self.free = self.free, {}
        self._count = 0
        for blocks in lists.values():
            blocks.clear()
