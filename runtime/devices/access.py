"""Loads, stores and atomics: from the addresses of lanes to places in memory.

An `Access` belongs to one instruction. It finds the allocation that its addresses lie
in, remembers it for the next time, checks every lane (bounds, alignment, use after
free, bytes that nobody has written), counts, and notes what it touched for `races`.
Addresses that follow each other, the usual case, become slices.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from . import arithmetic
from .lanes import LANES, Frame
from .ptx import Instruction, PtxError
from .space import Allocation

array = np.ndarray
SHARED, LOCAL = int(arithmetic.SHARED), int(arithmetic.LOCAL)
READ, WRITE, ATOMIC = 0, 1, 2
WRITTEN = {1: 1, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


@functools.cache
def steps(width: int) -> Any:
    """Return 0, width, 2 width, ... for as many lanes as a group has."""
    return np.arange(LANES, dtype=np.int64) * width


class SeveralError(Exception):
    """The lanes of one access lie in several allocations."""


class Place:
    """Where the lanes of an access lie.

    At `offsets` in the allocation; without these, in a row from `start` to `stop`, or,
    if `uniform`, all in the same bytes.
    """

    __slots__ = ("allocation", "offsets", "start", "stop", "uniform")

    def __init__(
        self, allocation: Allocation, start: int, stop: int, offsets: Any = None
    ) -> None:
        self.allocation, self.offsets = allocation, offsets
        self.start, self.stop, self.uniform = start, stop, False

    @property
    def first(self) -> int:
        return self.start if self.offsets is None else int(self.offsets[0])

    def every(self, count: int, width: int) -> Any:
        """Return the offset of every lane."""
        if self.offsets is not None:
            return self.offsets
        if self.uniform:
            return np.full(count, self.start)
        return self.start + steps(width)[:count]


class Access:
    """The memory access of one instruction; `size` bytes of one element, `count` many.

    `space` is "global", "shared", "local" or "" for generic addresses.
    """

    def __init__(
        self, at: Instruction, dtype: str, count: int, space: str, kind: int
    ) -> None:
        self.at, self.count, self.space, self.kind = at, count, space, kind
        self.dtype = np.dtype(getattr(arithmetic, dtype))
        self.size = self.dtype.itemsize
        self.width = self.size * count
        self.shift = np.int64(self.size.bit_length() - 1)
        self.low_bits = np.int64(self.width - 1)
        self.written = WRITTEN[self.size]
        self.offset = self.number = 0
        self.last: Allocation | None = None

    # Places.

    def locate(self, frame: Frame, address: Any) -> Place:
        """Return the place of the lanes' addresses, checked."""
        space = self.space
        if not space:
            space, address = self.window(frame, address)
        if space == "global":
            return self.in_global(frame, address)
        group = frame.group
        if space == "shared":
            return self.inside(frame, address, group.shared, group.shared_size)
        return self.inside(frame, address, group.local, group.local_size)

    def window(self, frame: Frame, address: Any) -> tuple[str, Any]:
        """Return the space of generic addresses, and the addresses in it."""
        first = int(address[0] if address.__class__ is array else address)
        space, low, high = "global", 0, SHARED
        if first >= LOCAL:
            space, low, high = "local", LOCAL, 2 * LOCAL
        elif first >= SHARED:
            space, low, high = "shared", SHARED, LOCAL
        if not np.all((address >= low) & (address < high)):
            raise SeveralError
        return space, address - np.int64(low) if low else address

    def in_global(self, frame: Frame, address: Any) -> Place:
        offset, width = self.offset, self.width
        if address.__class__ is not array:
            start = int(address) + offset
            found = self.holding(frame, address, start, start)
            if start & (width - 1):
                self.misaligned(frame, address)
            start -= found.base
            place = Place(found, start, start + width)
            place.uniform = True
            return place
        size = len(address)
        low, high = int(address[0]) + offset, int(address[-1]) + offset
        if high - low == (size - 1) * width and self.in_row(address, width):
            found = self.holding(frame, address, low, high)
            if low & (width - 1):
                self.misaligned(frame, address)
            return Place(found, low - found.base, high + width - found.base)
        low, high = int(address.min()) + offset, int(address.max()) + offset
        found = self.holding(frame, address, low, high)
        offsets = address - np.int64(found.base - offset)
        if width > 1 and (offsets & self.low_bits).any():
            self.misaligned(frame, address)
        return Place(found, -1, -1, offsets)

    def in_row(self, address: Any, width: int) -> bool:
        return bool((address - address[0] == steps(width)[: len(address)]).all())

    def holding(self, frame: Frame, address: Any, low: int, high: int) -> Allocation:
        """Return the allocation from the lowest to the highest address."""
        found = self.last
        if found is None or not found.base <= low <= high + self.width <= found.end:
            found = frame.group.space.find(low)
            if found is None or not high + self.width <= found.end:
                self.outside(frame, address)
            self.last = found
        return found

    def inside(self, frame: Frame, address: Any, found: Allocation, size: int) -> Place:
        """Return the place of addresses in the shared or local memory of the lanes."""
        shared = found is frame.group.shared
        address = address + np.int64(self.offset) if self.offset else address
        vector = address.__class__ is array
        low = int(address.min()) if vector else int(address)
        high = int(address.max()) if vector else low
        if low < 0 or high + self.width > size:
            self.outside_window(frame, address, "shared" if shared else "local", size)
        if vector:
            if (address & self.low_bits).any():
                self.misaligned(frame, address - np.int64(self.offset))
        elif low & (self.width - 1):
            self.misaligned(frame, address - np.int64(self.offset))
        start = frame.shared() if shared else frame.local()
        places = address + start
        if places.__class__ is not array:
            place = Place(found, int(places), int(places) + self.width)
            place.uniform = True
            return place
        first, last = int(places[0]), int(places[-1])
        whole = (len(places) - 1) * self.width
        if last - first == whole and self.in_row(places, self.width):
            return Place(found, first, last + self.width)
        return Place(found, -1, -1, places)

    # Errors.

    def what(self) -> str:
        names = {READ: "load", WRITE: "store", ATOMIC: "atomic"}
        return f"{self.width}-byte {names[self.kind]}"

    def lanes_of(self, frame: Frame, address: Any) -> Any:
        return np.broadcast_to(address, frame.size) + np.int64(self.offset)

    def outside(self, frame: Frame, address: Any) -> NoReturn:
        """Raise the error of the first lane that is outside all allocations."""
        space = frame.group.space
        owners: set[int] = set()
        for lane, one in enumerate(map(int, self.lanes_of(frame, address))):
            found = space.find(one)
            if found is not None and one + self.width <= found.end:
                owners.add(id(found))
                continue
            thread = frame.thread(lane)
            if found is None:
                what = (
                    f"{self.what()} at {one:#x}, where nothing is allocated, {thread}"
                )
            elif not found.views:
                what = f"{self.what()} of {found.name} after it was freed, {thread}"
            else:
                what = (
                    f"{self.what()} out of bounds: offset {one - found.base} of "
                    f"{found.name}, which has {found.size} bytes, {thread}"
                )
            raise PtxError(what, at=self.at)
        raise SeveralError

    def outside_window(
        self, frame: Frame, address: Any, space: str, size: int
    ) -> NoReturn:
        every = np.broadcast_to(address, frame.size)
        lane = int(np.argmax((every < 0) | (every + self.width > size)))
        raise PtxError(
            f"{self.what()} out of bounds: offset {int(every[lane])} of {space} "
            f"memory, which has {size} bytes, {frame.thread(lane)}",
            at=self.at,
        )

    def misaligned(self, frame: Frame, address: Any) -> NoReturn:
        every = self.lanes_of(frame, address)
        lane = int(np.argmax((every & self.low_bits) != 0))
        raise PtxError(
            f"misaligned {self.what()} at {int(every[lane]):#x}, {frame.thread(lane)}",
            at=self.at,
            rule=f"its address has to be a multiple of {self.width}",
        )

    def undefined(self, frame: Frame, place: Place) -> NoReturn:
        found = place.allocation
        offsets = place.every(frame.size, self.width)
        lane = next(
            k
            for k, one in enumerate(map(int, offsets))
            if not found.known[1][one : one + self.width].all()
        )
        where = f"offset {int(offsets[lane])} of {found.name}"
        raise PtxError(
            f"{self.what()} of memory that nobody has written: {where}, "
            f"{frame.thread(lane)}",
            at=self.at,
        )

    # Loads and stores.

    def load(self, frame: Frame, address: Any) -> Any:
        """Return what lies at the addresses: one value per lane, or a list of them."""
        try:
            place = self.locate(frame, address)
        except SeveralError:
            return self.load_parts(frame, address)
        found = place.allocation
        view = found.views[self.dtype]
        if not (found.whole or self.known(found, place)):
            self.undefined(frame, place)
        every = range(self.count)
        if place.offsets is not None:
            index = place.offsets >> self.shift
            values = [view.take(index + k if k else index) for k in every]
        elif place.uniform:
            start = place.start // self.size
            values = [view[start + k] for k in every]
        else:
            start = place.start // self.size
            part = view[start : start + self.count * frame.size]
            values = [part[k :: self.count].copy() for k in every]
        self.note(frame, place)
        return values[0] if self.count == 1 else values

    def store(self, frame: Frame, address: Any, *values: Any) -> None:
        """Write one value per lane, or `count` of them, to the addresses."""
        try:
            place = self.locate(frame, address)
        except SeveralError:
            return self.store_parts(frame, address, values)
        found = place.allocation
        view = found.views[self.dtype]
        if place.offsets is not None:
            index = place.offsets >> self.shift
            for k, value in enumerate(values):
                view[index + k if k else index] = value
        elif place.uniform:
            start = place.start // self.size
            for k, value in enumerate(values):
                last = value[-1] if value.__class__ is array else value
                view[start + k] = last
        else:
            start = place.start // self.size
            part = view[start : start + self.count * frame.size]
            for k, value in enumerate(values):
                part[k :: self.count] = value
        if not found.whole:
            self.define(frame, place)
        self.note(frame, place)

    def known(self, found: Allocation, place: Place) -> bool:
        """Tell whether somebody has written all bytes of a place."""
        if place.offsets is None:
            return bool(found.known[1][place.start : place.stop].all())
        flags, index = found.known[self.size], place.offsets >> self.shift
        return all(
            (flags.take(index + k) == self.written).all() for k in range(self.count)
        )

    def define(self, frame: Frame, place: Place) -> None:
        """Mark the bytes of a place as written."""
        found = place.allocation
        if place.offsets is None:
            found.define(place.start, place.stop)
        else:
            flags, index = found.known[self.size], place.offsets >> self.shift
            for k in range(self.count):
                flags[index + k] = self.written
        if found.base:  # neither shared nor local memory
            frame.group.touched.add(found)

    def parts(self, frame: Frame, address: Any) -> list[tuple[Any, Frame]]:
        """Cut a frame by the allocations that its addresses lie in."""
        every = self.lanes_of(frame, address)
        bases = np.array([*frame.group.space.bases, SHARED, LOCAL], np.int64)
        owner = np.searchsorted(np.sort(bases), every, "right")
        cut = []
        for one in np.unique(owner):
            places = np.flatnonzero(owner == one)
            part = Frame(frame.group, frame.lanes[places], [], frame.root)
            cut.append((places, part))
        return cut

    def load_parts(self, frame: Frame, address: Any) -> Any:
        values = [np.empty(frame.size, self.dtype) for _ in range(self.count)]
        for places, part in self.parts(frame, address):
            found = self.load(part, address[places])
            for value, one in zip(
                values, found if self.count > 1 else [found], strict=True
            ):
                value[places] = one
        return values[0] if self.count == 1 else values

    def store_parts(self, frame: Frame, address: Any, values: tuple[Any, ...]) -> None:
        for places, part in self.parts(frame, address):
            own = [v[places] if v.__class__ is array else v for v in values]
            self.store(part, address[places], *own)

    def note(self, frame: Frame, place: Place) -> None:
        """Count an access, and keep it for the search for races."""
        group = frame.group
        found = place.allocation
        if found is group.local:
            return
        if found is not group.shared:
            group.traffic.add(self, frame, place)
        if group.races is not None:
            group.races.add(self, frame, place)

    # Atomics.

    def atomic(
        self, frame: Frame, address: Any, how: str, value: Any, compare: Any = None
    ) -> Any:
        """Apply an operation lane by lane, in order; return what was there before."""
        try:
            place = self.locate(frame, address)
        except SeveralError:
            return self.atomic_parts(frame, address, how, value, compare)
        found = place.allocation
        view = found.views[self.dtype]
        if not (found.whole or self.known(found, place)):
            self.undefined(frame, place)
        self.note(frame, place)
        if frame.size == 1:
            index = place.first // self.size
            old = view[index]
            view[index] = OPERATIONS[how](old, value, compare)
            return old
        where = place.every(frame.size, self.width) >> self.shift
        value, compare = (
            np.broadcast_to(x if x is not None else self.dtype.type(0), frame.size)
            for x in (value, compare)
        )
        order = self.shuffled(frame)
        if order is None:
            return self.combined(view, where, how, value, compare)
        old = np.empty(frame.size, self.dtype)
        old[order] = self.combined(
            view, where[order], how, value[order], compare[order]
        )
        return old

    @staticmethod
    def shuffled(frame: Frame) -> Any:
        """Return the order of the lanes of a frame if it is not theirs; else None."""
        order = frame.group.order
        return None if order is None else order.permutation(frame.size)

    def combined(
        self, view: Any, where: Any, how: str, value: Any, compare: Any
    ) -> Any:
        """Apply an operation at several places; return what was there before."""
        if len(np.unique(where)) == len(where):
            old = view.take(where)
            view[where] = (
                [OPERATIONS[how](*one) for one in zip(old, value, compare, strict=True)]
                if how not in UFUNCS
                else UFUNCS[how](old, value)
            )
            return old
        if how == "add" and (where == where[0]).all():
            terms = np.concatenate([view[where[:1]], value])
            sums = np.add.accumulate(terms, dtype=self.dtype)
            view[where[0]] = sums[-1]
            return sums[:-1]
        apply, old = OPERATIONS[how], np.empty(len(where), self.dtype)
        for k, index in enumerate(where.tolist()):
            old[k] = before = view[index]
            view[index] = apply(before, value[k], compare[k])
        return old

    def reduce(self, frame: Frame, address: Any, how: str, value: Any) -> None:
        """Apply an operation whose old value nobody wants."""
        if how not in UFUNCS or frame.size == 1:
            self.atomic(frame, address, how, value)
            return
        try:
            place = self.locate(frame, address)
        except SeveralError:
            self.atomic_parts(frame, address, how, value, None)
            return
        found = place.allocation
        if not (found.whole or self.known(found, place)):
            self.undefined(frame, place)
        self.note(frame, place)
        where = place.every(frame.size, self.width) >> self.shift
        order = self.shuffled(frame)
        if order is not None:
            where, value = where[order], np.broadcast_to(value, frame.size)[order]
        UFUNCS[how].at(found.views[self.dtype], where, value)

    def atomic_parts(
        self, frame: Frame, address: Any, how: str, value: Any, compare: Any
    ) -> Any:
        old = np.empty(frame.size, self.dtype)
        for places, part in self.parts(frame, address):
            own = [v[places] if v.__class__ is array else v for v in (value, compare)]
            old[places] = self.atomic(part, address[places], how, *own)
        return old


UFUNCS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda old, value, _: old + value,
    "min": lambda old, value, _: min(old, value),
    "max": lambda old, value, _: max(old, value),
    "and": lambda old, value, _: old & value,
    "or": lambda old, value, _: old | value,
    "xor": lambda old, value, _: old ^ value,
    "exch": lambda old, value, _: value,
    "cas": lambda old, value, compare: value if old == compare else old,
    "inc": lambda old, value, _: 0 if old >= value else old + old.dtype.type(1),
    "dec": lambda old, value, _: (
        value if old == 0 or old > value else old - old.dtype.type(1)
    ),
}
