"""Device memory of the interpreter: allocations at addresses of their own numbering.

Addresses only grow: what was freed is never given out again, so a use after free is
always found, and between two allocations lie bytes that belong to nobody. Every byte
knows whether somebody has written it.
"""

import bisect
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .ptx import Module, PtxError

__all__ = ["Allocation", "Space"]

FIRST = 1 << 32
ALIGNMENT = RED_ZONE = 256
REMEMBERED = 4096  # freed allocations whose names are still known
DTYPES = [np.dtype(code) for code in "bBhHiIqQefd?"]


class Allocation:
    """`size` bytes from `base` on.

    `views` are the bytes as arrays of every dtype, filled up to 16 bytes, and `known`
    tells by bytes which are written, as arrays of unsigned integers by item size; it is
    not looked at once `whole` says that all are. A freed allocation ends at its base.
    """

    __slots__ = ("base", "end", "known", "name", "size", "views", "whole")

    def __init__(self, name: str, base: int, size: int) -> None:
        self.name, self.base, self.size, self.end = name, base, size, base + size
        data = np.empty((size + 15) // 16 * 16, np.uint8)
        self.views: dict[Any, Any] = {d: data.view(d) for d in DTYPES}
        known = np.zeros(len(data), np.uint8)
        self.known = {n: known.view(f"u{n}") for n in (1, 2, 4, 8)}
        self.whole = size == 0

    @property
    def bytes(self) -> Any:
        return self.views[np.dtype(np.uint8)]

    def define(self, start: int, stop: int) -> None:
        """Mark bytes as written."""
        if not self.whole:
            self.known[1][start:stop] = 1
            self.whole = stop - start == self.size

    def settle(self) -> None:
        """Find out whether every byte is written by now."""
        if not self.whole:
            self.whole = bool(self.known[1][: self.size].all())

    def free(self) -> None:
        self.end = self.base
        self.views, self.known = {}, {}


class Space:
    """Allocations, and what the host does with them.

    >>> space = Space()
    >>> a = space.allocate(8)
    >>> space.write(a, np.array([1.5, 2.5], np.float32))
    >>> found = np.empty(2, np.float32)
    >>> space.read(a, found)
    >>> found.tolist()
    [1.5, 2.5]
    """

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.allocations: list[Allocation] = []
        self.next = FIRST
        self.count = self.freed = 0
        self.globals: WeakKeyDictionary[Module, dict[str, int]] = WeakKeyDictionary()

    def allocate(self, size: int, name: str = "") -> int:
        """Return the address of `size` new bytes, a multiple of 256."""
        if size < 0:
            raise ValueError(f"an allocation has a size from 0 on, not {size}")
        self.count += 1
        made = Allocation(name or f"allocation {self.count}", self.next, size)
        self.bases.append(made.base)
        self.allocations.append(made)
        self.next += (size + RED_ZONE + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return made.base

    def free(self, address: int) -> None:
        """Give an allocation back; `address` is the one that `allocate` returned."""
        place = bisect.bisect_left(self.bases, address)
        if place == len(self.bases) or self.bases[place] != address:
            raise PtxError(f"free of {address:#x}, where no allocation begins")
        found = self.allocations[place]
        if not found.views:
            raise PtxError(f"{found.name} is freed twice")
        found.free()
        self.freed += 1
        if self.freed > REMEMBERED:
            self.allocations = [a for a in self.allocations if a.views]
            self.bases = [a.base for a in self.allocations]
            self.freed = 0

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that begins at or below an address, freed or not."""
        place = bisect.bisect_right(self.bases, address) - 1
        return self.allocations[place] if place >= 0 else None

    def live(self) -> Iterator[Allocation]:
        """Yield the allocations that are not freed."""
        return (a for a in self.allocations if a.views)

    def at(self, address: int, size: int, what: str) -> tuple[Allocation, int]:
        """Return the allocation and offset of bytes that the host wants to touch."""
        found = self.find(address)
        if found is None:
            raise PtxError(f"{what} at {address:#x}, where nothing is allocated")
        if not found.views:
            raise PtxError(f"{what} at {address:#x} of {found.name}, which is freed")
        offset = address - found.base
        if offset + size > found.size:
            raise PtxError(
                f"{what} of {size} bytes from offset {offset} of {found.name}, "
                f"which has {found.size}"
            )
        return found, offset

    def write(self, address: int, source: np.ndarray[Any, Any]) -> None:
        """Copy the bytes of a C-contiguous array to an address."""
        found, offset = self.at(address, source.nbytes, "write")
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        found.bytes[offset : offset + source.nbytes] = data
        found.define(offset, offset + source.nbytes)

    def read(self, address: int, target: np.ndarray[Any, Any]) -> None:
        """Copy bytes to a C-contiguous array; an error if nobody has written one."""
        found, offset = self.at(address, target.nbytes, "read")
        stop = offset + target.nbytes
        known = found.known[1][offset:stop]
        if not (found.whole or known.all()):
            first = offset + int(np.argmin(known))
            count = int((known == 0).sum())
            raise PtxError(
                f"read of {found.name}: nobody has written byte {first} of "
                f"{found.size}, nor {count - 1} others"
            )
        target.reshape(-1).view(np.uint8)[:] = found.bytes[offset:stop]

    def fill(self, address: int, value: int, size: int) -> None:
        """Set bytes to a value from 0 to 255."""
        found, offset = self.at(address, size, "fill")
        found.bytes[offset : offset + size] = value
        found.define(offset, offset + size)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes within the space; unwritten ones stay unwritten."""
        to, start = self.at(target, size, "copy")
        of, begin = self.at(source, size, "copy")
        to.bytes[start : start + size] = of.bytes[begin : begin + size].copy()
        if of.whole:
            return to.define(start, start + size)
        if to.whole:
            to.known[1][: to.size] = 1
            to.whole = False
        to.known[1][start : start + size] = of.known[1][begin : begin + size].copy()
