"""The search for data races: accesses that no barrier puts in an order.

Note [races]
Two threads of a block may touch the same bytes between two barriers only if both read
or both are atomic; threads of different blocks, during a whole launch. Every access is
kept, and looked at when a group of blocks (for shared memory) or the launch (for global
memory) is over: an allocation that was only read needs no look, and where every byte
was touched by one thread only, a comparison of two arrays says so. Otherwise accesses
are sorted by what they share, and a race is a run with more than one thread in it and a
write. Three runs are looked at: the same bytes and different blocks; the same bytes,
block and number of barriers passed, and different warps; the same also by the number of
meetings of the warp, and different threads.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from .ptx import PtxError
from .space import Allocation

if TYPE_CHECKING:
    from .access import Access, Place
    from .lanes import Frame

__all__ = ["Races"]

READ, WRITE, ATOMIC = 0, 1, 2
LIMIT = 1 << 22  # accesses that are kept before they are condensed


class Log:
    """The accesses of one allocation.

    `rows` are those of threads that follow each other to places that do so too: access,
    offset, step, first thread, number of threads, barriers and meetings of the warp.
    `entries` are tables of all others, with the columns that `Races.table` describes.
    """

    __slots__ = ("entries", "grain", "kinds", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[tuple[int, ...], None] = {}
        self.entries: list[Any] = []
        self.kinds: set[int] = set()
        self.grain = 8  # the size of the smallest element
        self.size = 0

    @property
    def single(self) -> bool:
        """Whether there is only one access, by threads in a row."""
        return not self.entries and len(self.rows) == 1 and next(iter(self.rows))[2] > 0


class Races:
    """The accesses of a launch whose blocks have `threads` threads."""

    def __init__(self, threads: int, accesses: "list[Access]") -> None:
        self.threads, self.accesses = threads, accesses
        self.logs: dict[Allocation, Log] = {}

    def add(self, access: "Access", frame: "Frame", place: "Place") -> None:
        group = frame.group
        log = self.logs.get(place.allocation)
        if log is None:
            log = self.logs[place.allocation] = Log()
        log.kinds.add(access.kind)
        if access.size < log.grain:
            log.grain = access.size
        row = place.offsets is None and frame.together
        if row and group.epoch.__class__ is int and group.meeting.__class__ is int:
            step = 0 if place.uniform and frame.size > 1 else access.width
            first = group.first + int(frame.lanes[0])
            where = (access.number, place.start, step, first, frame.size)
            log.rows[(*where, group.epoch, group.meeting)] = None
        else:
            made = np.empty((5, frame.size), np.int64)
            made[0] = access.number
            made[1] = place.every(frame.size, access.width)
            made[2] = frame.lanes + group.first
            made[3], made[4] = group.times(frame.lanes)
            log.entries.append(made)
        log.size += frame.size
        if log.size > LIMIT:
            self.check(place.allocation, log)
            self.condense(log)

    def finish(self, allocation: Allocation | None = None) -> None:
        """Look at one allocation, or at all that are left, and forget them."""
        if allocation is not None:
            log = self.logs.pop(allocation, None)
            if log is not None:
                self.check(allocation, log)
            return
        for found, log in self.logs.items():
            self.check(found, log)
        self.logs.clear()

    def table(self, log: Log) -> Any:
        """Return rows of access, offset, thread, barriers and meetings of the warp."""
        columns = log.entries
        if log.rows:
            rows = np.array(list(log.rows), np.int64).T
            count = rows[4]
            number, start, step, first, _, epoch, meeting = np.repeat(
                rows, count, axis=1
            )
            inner = np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)
            made = [number, start + step * inner, first + inner, epoch, meeting]
            columns = [np.stack(made), *columns]
        return np.concatenate(columns, axis=1)

    def condense(self, log: Log) -> None:
        """Keep one access of each thread, instruction and place."""
        table = self.table(log)
        table = table[:, np.lexsort((table[0], table[2], table[1]))]
        keep = np.ones(table.shape[1], bool)
        keep[:-1] = (table[:3, 1:] != table[:3, :-1]).any(axis=0)
        log.entries, log.rows, log.size = [table[:, keep]], {}, 0

    def check(self, allocation: Allocation, log: Log) -> None:
        """Raise an error if two accesses are a race. Note [races]"""
        if log.kinds == {READ} or log.kinds == {ATOMIC} or log.single:
            return
        table = self.table(log)
        widths = np.array([access.width for access in self.accesses])
        kinds = np.array([access.kind for access in self.accesses])
        number, grain = table[0], log.grain
        pieces = (widths // grain)[number]
        if pieces.max() > 1:
            spread = np.repeat(np.arange(len(number)), pieces)
            inner = np.arange(len(spread)) - np.repeat(
                np.cumsum(pieces) - pieces, pieces
            )
            table = table[:, spread]
            word = table[1] // grain + inner
        else:
            word = table[1] // grain
        number, thread = table[0], table[2]
        owner = np.empty(int(word.max()) + 1, np.int64)
        owner[word] = thread
        foreign = owner[word] != thread
        if not foreign.any():
            return
        common, changed = np.zeros((2, len(owner)), bool)
        common[word[foreign]] = True
        changed[word[kinds[number] != READ]] = True
        keep = (common & changed)[word]
        word, table = word[keep], table[:, keep]
        number, _, thread, epoch, meeting = table
        block = thread // self.threads
        warp = thread % self.threads // 32
        kind = kinds[number]
        levels: list[tuple[tuple[Any, ...], Any]] = []
        if block.any() and allocation.base:  # shared memory is at 0
            levels.append(((word,), block))
        levels.append(((word, block, epoch), warp))
        levels.append(((word, block, epoch, warp, meeting), thread))
        for keys, actor in levels:
            pair = conflict(keys, actor, kind)
            if pair is not None:
                self.report(
                    allocation, table[:, list(pair)], int(word[pair[0]]) * grain
                )

    def report(self, allocation: Allocation, pair: Any, offset: int) -> None:
        names = {READ: "load", WRITE: "store", ATOMIC: "atomic"}
        lines = []
        for number, _, thread, *_ in pair.T.tolist():
            access = self.accesses[number]
            block, inside = divmod(thread, self.threads)
            lines.append(
                f"{names[access.kind]} by thread {inside} of block {block}, "
                f"line {access.at.line}: {access.at.text}"
            )
        raise PtxError(
            f"data race on offset {offset} of {allocation.name}:\n  "
            + "\n  ".join(lines),
            rule="threads that share memory have to meet at a barrier in between",
        )


def conflict(keys: tuple[Any, ...], actor: Any, kind: Any) -> tuple[int, int] | None:
    """Return two accesses with equal keys by two actors that are a race, or None."""
    if not len(kind):
        return None
    order = np.lexsort((actor, *reversed(keys)))
    fresh = np.zeros(len(order), bool)
    fresh[0] = True
    for key in keys:
        ordered = key[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(fresh)
    stops = np.append(starts[1:], len(order)) - 1
    several = actor[order[starts]] != actor[order[stops]]
    seen = np.bitwise_or.reduceat(np.int64(1) << kind[order], starts)
    wrong = several & ((seen & 0b010 != 0) | (seen == 0b101))
    if not wrong.any():
        return None
    place = int(np.argmax(wrong))
    run = order[starts[place] : stops[place] + 1]
    writer = run[np.argmax(kind[run] == WRITE)]
    if kind[writer] != WRITE:
        writer = run[np.argmax(kind[run] == ATOMIC)]
    others = run[(actor[run] != actor[writer])]
    if kind[writer] == ATOMIC and (kind[others] == READ).any():
        others = others[kind[others] == READ]
    elif kind[writer] == ATOMIC:
        other = run[np.argmax(kind[run] == READ)]
        writers = run[(kind[run] == ATOMIC) & (actor[run] != actor[other])]
        return int(writers[0]), int(other)
    return int(writer), int(others[0])
