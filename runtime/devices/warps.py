"""What the threads of a warp or of a block tell each other in registers.

A warp is seen as a row of 32 lanes; threads that are not in the frame, or that the last
warp of a block does not have, are missing from their row. A member mask has to name
exactly the threads that execute the instruction: anything else waits for ever or gives
undefined values on a GPU.
"""

from typing import Any

import numpy as np

from .lanes import Frame
from .ptx import Instruction, PtxError

array = np.ndarray
WARP = 32
LANES = np.arange(WARP)
BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


class Rows:
    """The warps of a frame: the row and the column of each of its lanes."""

    __slots__ = ("column", "count", "full", "masks", "place", "row", "sources")

    def __init__(self, frame: Frame) -> None:
        group = frame.group
        warps, self.column = group.warp[frame.lanes], group.lane[frame.lanes]
        first = np.concatenate([[True], warps[1:] != warps[:-1]])
        self.row = np.cumsum(first) - 1
        self.count = int(self.row[-1]) + 1
        self.place = np.full((self.count, WARP), -1)
        self.place[self.row, self.column] = np.arange(frame.size)
        present = np.where(self.place >= 0, BITS, np.uint32(0))
        self.masks = np.bitwise_or.reduce(present, axis=1)
        self.full = bool((self.place >= 0).all())
        self.sources: dict[tuple[str, int, int], tuple[Any, Any]] = {}


def rows(frame: Frame, at: Instruction, mask: Any) -> Rows:
    """Return the warps of a frame, having checked the member mask of an instruction."""
    found = frame.group.rows(frame)
    if mask.__class__ is not array and mask == -1 and found.full:
        return found
    given = np.broadcast_to(mask, frame.size).view(np.uint32)
    here = found.masks[found.row]
    if (given == here).all():
        return found
    full = frame.group.warp_masks[frame.group.warp[frame.lanes]]
    wrong = (given & full) != here
    if wrong.any():
        lane = int(np.argmax(wrong))
        raise PtxError(
            f"member mask {int(given[lane]):#010x}, but the threads here are "
            f"{int(here[lane]):#010x}, {frame.thread(lane)}",
            at=at,
            rule="the mask has to name the threads that execute the instruction",
        )
    return found


def shuffle(
    frame: Frame, at: Instruction, mode: str, value: Any, b: Any, c: Any, mask: Any
) -> tuple[Any, Any]:
    """Return the values of other lanes, and whether their numbers are in range."""
    found = rows(frame, at, mask)
    if b.__class__ is array or c.__class__ is array:
        place, inside = sources(frame, at, found, mode, b, c)
    else:
        key = (mode, int(b), int(c))
        if key not in found.sources:
            found.sources[key] = sources(frame, at, found, mode, b, c)
        place, inside = found.sources[key]
    return (value[place] if value.__class__ is array else value), inside


def sources(
    frame: Frame, at: Instruction, found: Rows, mode: str, b: Any, c: Any
) -> tuple[Any, Any]:
    """Return from which lanes of the frame a shuffle reads, and whether in range."""
    lane = found.column
    b = b.astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    most = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - (b & 31)
        inside = source >= most
    elif mode == "down":
        source = lane + (b & 31)
        inside = source <= most
    else:
        least = lane & segment
        source = lane ^ (b & 31) if mode == "bfly" else least | (b & 31 & ~segment)
        inside = source <= most
    source = np.where(inside, source, lane)
    place = found.place[found.row, source]
    if (place < 0).any():
        one = int(np.argmin(place))
        raise PtxError(
            f"shuffle from lane {int(source[one])}, which is not here, "
            f"{frame.thread(one)}",
            at=at,
            rule="a shuffle reads only from threads that execute it too",
        )
    return place, inside


def vote(frame: Frame, at: Instruction, how: str, p: Any, mask: Any) -> Any:
    """Return what the predicates of the lanes of each warp say together."""
    found = rows(frame, at, mask)
    bits = np.zeros(found.count, np.uint32)
    p = np.broadcast_to(p, frame.size)
    np.bitwise_or.at(bits, found.row[p], BITS[found.column[p]])
    if how == "ballot":
        return bits[found.row].view(np.int32)
    every, some = bits == found.masks, bits != 0
    return (some if how == "any" else every if how == "all" else every | ~some)[
        found.row
    ]


def match(
    frame: Frame, at: Instruction, how: str, a: Any, mask: Any
) -> tuple[Any, Any]:
    """Return the mask of the lanes with the same value, and whether all have it."""
    found = rows(frame, at, mask)
    table = np.zeros((found.count, WARP), a.dtype)
    table[found.row, found.column] = a
    here = found.place >= 0
    same = (table[:, :, None] == table[:, None, :]) & here[:, None, :]
    bits = np.bitwise_or.reduce(np.where(same, BITS, np.uint32(0)), axis=2)
    own = bits[found.row, found.column]
    every = own == found.masks[found.row]
    if how != "any":
        own = np.where(every, own, np.uint32(0))
    return own.view(np.int32), every


def active(frame: Frame) -> Any:
    """Return the mask of the threads that are here."""
    found = frame.group.rows(frame)
    return found.masks[found.row].view(np.int32)


def meet_warp(frame: Frame, at: Instruction, mask: Any) -> None:
    """Let the threads of a warp meet (``bar.warp.sync``)."""
    rows(frame, at, mask)
    frame.group.pass_warps(frame)


def reduce_block(frame: Frame, how: str, p: Any) -> Any:
    """Return what the predicates of all threads of each block say together."""
    block = frame.group.block[frame.lanes]
    size = frame.group.threads
    counts = np.bincount(block, np.broadcast_to(p, frame.size))[block].astype(np.int32)
    return {"popc": counts, "and": counts == size, "or": counts > 0}[how]
