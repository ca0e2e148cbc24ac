"""Frames: the threads that are at one place, and the values of their registers.

Note [frames]
All threads of a group of blocks start in one root frame, which has a lane per thread.
Where a branch parts them, each side becomes a frame of its own that takes a value from
the root at its first use, so that parting costs little, and computes on arrays of its
threads only. `dirty` has a bit for every register slot that it has written itself;
where frames meet, only these are put together. A frame that holds all threads again is
the root. A frame of one thread computes with NumPy scalars.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .ptx import Instruction, PtxError

if TYPE_CHECKING:
    from .machine import Group

__all__ = ["EXIT", "LANES", "Frame", "Partial", "meet", "positions"]

array = np.ndarray
LANES = 8192  # at most, of a group of blocks
WARP = 32
EXIT, PARTED, WAITING = -1, -2, -3  # instead of the next block


class Partial:
    """The value of a register that only some of the lanes have written."""

    __slots__ = ("values", "written")

    def __init__(self, values: Any, written: Any) -> None:
        self.values, self.written = values, written

    def __getitem__(self, lanes: Any) -> Any:
        values, written = self.values[lanes], self.written[lanes]
        if np.all(written):
            return values
        return Partial(values, written) if values.ndim else None


class Frame:
    """Threads at one place: `lanes` are their numbers in the group, in order."""

    __slots__ = (
        "_together",
        "_warps",
        "dirty",
        "group",
        "lanes",
        "root",
        "size",
        "values",
    )

    def __init__(
        self, group: "Group", lanes: Any, values: list[Any], root: "Frame | None"
    ) -> None:
        self.group, self.lanes, self.values = group, lanes, values
        self.root = root or self
        self.size = len(lanes)
        self.dirty = 0
        self._warps = 0
        self._together: bool | None = None

    @property
    def whole(self) -> bool:
        """Whether this is the root, which has every thread of the group."""
        return self.root is self

    @property
    def warps(self) -> int:
        """Return how many warps the threads belong to."""
        if not self._warps:
            self._warps = len(np.unique(self.group.warp[self.lanes]))
        return self._warps

    @property
    def together(self) -> bool:
        """Whether the threads follow each other."""
        if self._together is None:
            last = int(self.lanes[-1])
            self._together = last - int(self.lanes[0]) == self.size - 1
        return self._together

    @property
    def in_row(self) -> bool:
        """Whether the threads follow each other from the first one of a warp on."""
        if self.group.ragged or not self.together:
            return False
        return int(self.lanes[0]) % WARP == 0

    def shared(self) -> Any:
        """Return where the shared memory of every lane's block begins."""
        start = self.group.shared_start
        return start[self.lanes] if start.__class__ is array else start

    def local(self) -> Any:
        """Return where the local memory of every lane begins."""
        if self.size == 1:
            return np.int64(self.lanes[0] * self.group.local_size)
        return self.lanes * self.group.local_size

    def fetch(self, slot: int) -> Any:
        """Take the value of a register from the root."""
        root = self.root
        value = None if root is self else root.values[slot]
        if value is None:
            self.unwritten(slot, None)
        if value.__class__ is array or value.__class__ is Partial:
            value = value[self.lanes if self.size > 1 else self.lanes[0]]
            if value is None:
                self.unwritten(slot, None)
        self.values[slot] = value
        return value

    def unwritten(self, slot: int, value: Any) -> None:
        name = self.group.program.names[slot]
        lane = 0 if value is None else int(np.argmin(value.written))
        raise PtxError(
            f"read of register {name} that is not written, {self.thread(lane)}",
            rule="every path to a read has to write the register",
        )

    def thread(self, position: int) -> str:
        """Name a thread for errors."""
        return self.group.thread(int(self.lanes[position]))

    # Ends of blocks.

    def part(self, condition: Any, taken: int, other: int) -> int:
        """Go on where the condition says; part if it says both."""
        count = np.count_nonzero(condition)
        if count == self.size:
            return taken
        if count == 0:
            return other
        self.child(condition.nonzero()[0], taken)
        self.child((~condition).nonzero()[0], other)
        return PARTED

    def switch(self, index: Any, targets: Sequence[int]) -> int:
        """Go on at the target of an index."""
        if index.__class__ is not array:
            return targets[int(index)]
        found = np.unique(index)
        if len(found) == 1:
            return targets[int(found[0])]
        for k in found:
            self.child((index == k).nonzero()[0], targets[int(k)])
        return PARTED

    def child(self, places: Any, target: int) -> None:
        """Send the lanes at these positions to a block as a frame of their own."""
        values: list[Any] = [None] * len(self.values)
        if self.root is self:
            made = Frame(self.group, places, values, self)
        else:
            made = Frame(self.group, self.lanes[places], values, self.root)
            made.dirty = self.dirty & self.group.program.live[target]
            at = places if len(places) > 1 else places[0]
            for slot in positions(made.dirty):
                value = self.values[slot]
                if value.__class__ is array or value.__class__ is Partial:
                    value = value[at]
                values[slot] = value
        self.group.send(made, target)

    def barrier(self, target: int, at: Instruction) -> int:
        """Wait for the other threads of the block."""
        if self.root is self:
            self.group.pass_barrier()
            return target
        self.group.waiting.append((target, self, at))
        return WAITING

    def trap(self, at: Instruction) -> None:
        raise PtxError(f"trap, {self.thread(0)}", at=at)


def positions(bits: int) -> list[int]:
    """Return the positions of the ones in a number."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def meet(frames: list[Frame], live: int) -> Frame:
    """Put frames together that are at one block, whose live slots are given as bits."""
    first = frames[0]
    if len(frames) == 1:
        return first
    root = first.root
    lanes = np.concatenate([f.lanes for f in frames])
    order = None
    if (lanes[1:] < lanes[:-1]).any():
        order = np.argsort(lanes, kind="stable")  # fast for sorted runs
        lanes = lanes[order]
    dirty = 0
    for frame in frames:
        dirty |= frame.dirty
    dirty &= live
    whole = len(lanes) == root.size
    values = root.values if whole else [None] * len(root.values)
    joined = [(slot, joined_value(frames, slot, order)) for slot in positions(dirty)]
    for slot, value in joined:
        values[slot] = value
    if whole:
        return root
    made = Frame(first.group, lanes, values, root)
    made.dirty = dirty
    return made


def joined_value(frames: list[Frame], slot: int, order: Any) -> Any:
    """Return the value of a slot over the lanes of several frames."""
    found = []
    for frame in frames:
        value = frame.values[slot]
        if value is None:
            value = frame.root.values[slot]
            if value.__class__ is array or value.__class__ is Partial:
                value = value[frame.lanes if frame.size > 1 else frame.lanes[0]]
        found.append(value)
    if any(v is None or v.__class__ is Partial for v in found):
        return partial_value(frames, found, order)
    first = found[0]
    if first.__class__ is not array and all(
        v is first or (v.__class__ is not array and v.tobytes() == first.tobytes())
        for v in found
    ):
        return first
    parts = [
        v if v.__class__ is array else np.full(f.size, v)
        for f, v in zip(frames, found, strict=True)
    ]
    value = np.concatenate(parts)
    return value if order is None else value[order]


def partial_value(frames: list[Frame], found: list[Any], order: Any) -> Any:
    """Return a value that some lanes have not written."""
    kinds = [v.values if v.__class__ is Partial else v for v in found if v is not None]
    if not kinds:
        return None
    values, written = [], []
    for frame, value in zip(frames, found, strict=True):
        known: Any = value is not None
        if value is None:
            value = kinds[0].dtype.type(0)
        elif value.__class__ is Partial:
            value, known = value.values, value.written
        values.append(np.broadcast_to(value, frame.size))
        written.append(np.broadcast_to(known, frame.size))
    whole, flags = np.concatenate(values), np.concatenate(written)
    if order is not None:
        whole, flags = whole[order], flags[order]
    return whole if flags.all() else Partial(whole, flags)
