"""What a launch did: instructions, bytes and sectors of global memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .access import Access, Place
    from .lanes import Frame

__all__ = ["Counts", "Traffic"]

SECTOR = 32
WARP = 32


@dataclass(frozen=True, slots=True)
class Counts:
    """What a launch did, summed over its threads.

    `read` and `written` are bytes of global memory, as the threads asked for them; an
    atomic counts in both. `sectors` are the pieces of 32 bytes that the requests of the
    warps touched, `least` the smallest number that could hold the same bytes.
    """

    launches: int = 0
    instructions: int = 0
    read: int = 0
    written: int = 0
    sectors: int = 0
    least: int = 0

    @property
    def efficiency(self) -> float:
        """Return the share of the touched sectors that was needed; 1 is the best."""
        return self.least / self.sectors if self.sectors else 1.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.launches + other.launches,
            self.instructions + other.instructions,
            self.read + other.read,
            self.written + other.written,
            self.sectors + other.sectors,
            self.least + other.least,
        )


class Traffic:
    """Counts the accesses of a launch to global memory."""

    __slots__ = ("by_sector", "least", "read", "sectors", "written")

    def __init__(self, by_sector: bool) -> None:
        self.by_sector = by_sector
        self.read = self.written = self.sectors = self.least = 0

    def add(self, access: "Access", frame: "Frame", place: "Place") -> None:
        moved = frame.size * access.width
        if access.kind != 1:
            self.read += moved
        if access.kind != 0:
            self.written += moved
        if not self.by_sector:
            return
        if place.uniform:
            self.sectors += frame.warps
            self.least += frame.warps
        elif place.offsets is None and frame.in_row:
            self.add_row(place.start, frame.size, access.width)
        else:
            self.add_scattered(frame, place, access.width)

    def add_row(self, start: int, size: int, width: int) -> None:
        """Count warps whose threads access a row of elements."""
        warps, rest = divmod(size, WARP)
        inside = start % SECTOR
        per_warp = WARP * width // SECTOR
        last = rest * width
        self.least += warps * per_warp + (last + SECTOR - 1) // SECTOR
        self.sectors += warps * (per_warp + (inside > 0))
        if rest:
            self.sectors += (inside + last + SECTOR - 1) // SECTOR

    def add_scattered(self, frame: "Frame", place: "Place", width: int) -> None:
        """Count the different sectors, and the different elements, of every warp."""
        offsets = place.every(frame.size, width)
        warp = frame.group.warp[frame.lanes]
        if frame.in_row and frame.size % WARP == 0:
            offsets = np.sort(offsets.reshape(-1, WARP), axis=1).reshape(-1)
        else:
            order = np.lexsort((offsets, warp))
            offsets = offsets[order]
        fresh = np.empty(frame.size, bool)
        fresh[0] = True
        new_warp = warp[1:] != warp[:-1]
        sector = offsets >> 5
        np.logical_or(new_warp, sector[1:] != sector[:-1], out=fresh[1:])
        self.sectors += int(np.count_nonzero(fresh))
        np.logical_or(new_warp, offsets[1:] != offsets[:-1], out=fresh[1:])
        self.least += least_sectors(fresh, new_warp, width)


def least_sectors(fresh: Any, new_warp: Any, width: int) -> int:
    """Return the sum over the warps of the sectors that their elements fill."""
    starts = np.concatenate([[0], np.flatnonzero(new_warp) + 1])
    elements = np.add.reduceat(fresh.astype(np.int64), starts)
    return int(((elements * width + SECTOR - 1) // SECTOR).sum())
