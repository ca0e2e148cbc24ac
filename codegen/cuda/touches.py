"""What the threads of a block have touched since they last met at a barrier.

Note [own elements]
Loops that are shared out in the same way give a number of an iteration to the same
thread. Where two of them touch an element of a buffer at the same place, as a function
of that number, no thread touches what another one does, and no barrier is needed:

    for q in me, me + team, ...: row[q] = exp(x[q])
    for q in me, me + team, ...: r[q] = row[q] / total

The place holds symbols that do not change from the one loop to the other. Threads that
do several neighbouring iterations at once have others: loops are shared out in the same
way where their lanes and the numbers of their iterations are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim, Symbol
from ..apart import slope
from ..nests import Bind, Buffer, Fill, Load, Loop, Move, Store, leaves
from .share import trips
from .steps import Inner, Lanes, all_of, meet, touched, values_of

NUMBER = Symbol("_number")  # of an iteration of a shared loop


@dataclass(frozen=True, slots=True)
class Touch:
    """An access to memory; any thread may touch what has no `place`."""

    buffer: Buffer
    writes: bool
    place: Dim | None = None
    shares: tuple[Dim, ...] = ()  # how iterations are given to threads

    def clashes(self, other: Touch) -> bool:
        """Tell whether two threads may touch the same, and one of them writes it."""
        if not (self.writes or other.writes):
            return False
        if not meet([self.buffer], [other.buffer]):
            return False
        same = self.buffer is other.buffer and (
            (self.place, self.shares) == (other.place, other.shares)
        )
        return self.place is None or not same

    def after(self, changed: Collection[Symbol]) -> Touch:
        """Return the access as it is seen when symbols have new values."""
        given = (() if self.place is None else (self.place,)) + self.shares
        if not {s for d in given for s in dims.symbols_of(d)} & set(changed):
            return self
        return Touch(self.buffer, self.writes)


def by_any(s: Inner) -> set[Touch]:
    """Return the accesses of a statement that any thread may run."""
    return {Touch(b.eldest(), writes) for b, writes in touched(s)}


def by_owners(
    s: Inner, loops: Sequence[Loop], lanes: Lanes | None = None
) -> set[Touch]:
    """Return the accesses of loops that are shared out, or of a range."""
    number = dims.symbol(NUMBER.name)
    match s:
        case Fill():
            place = dims.add(s.offset, number)
            return {Touch(s.buffer.eldest(), True, place)}
        case Move():
            target = dims.add(s.target_offset, number)
            source = dims.add(s.source_offset, number)
            return {
                Touch(s.target.eldest(), True, target),
                Touch(s.source.eldest(), False, source),
            }
    if len(loops) > 1:
        return by_any(s)
    (loop,) = loops
    index = {loop.index: dims.add(loop.start, dims.mul(loop.step, number))}
    inside = changed([loop]) - {loop.index}
    shares = () if lanes is None else (lanes.count, *lanes.starts, trips(loop))

    def place_of(d: Dim) -> Dim | None:
        found = dims.substitute(d, index)
        step = slope(found, NUMBER)
        own = isinstance(step, int) and step != 0
        return found if own and not dims.symbols_of(found) & inside else None

    return {
        Touch(b.eldest(), writes, None if d is None else place_of(d), shares)
        for b, writes, d in _accesses(loop)
    }


def _accesses(loop: Loop) -> Iterator[tuple[Buffer, bool, Dim | None]]:
    for s in all_of([loop]):
        for x in values_of(s):
            for y in leaves(x):
                if isinstance(y, Load):
                    yield y.buffer, False, y.offset
        match s:
            case Store():
                yield s.buffer, True, None if s.combine else s.offset
            case Fill():
                yield s.buffer, True, None
            case Move():
                yield s.target, True, None
                yield s.source, False, None


def changed(body: Sequence[Inner]) -> set[Symbol]:
    """Return the symbols that statements give values."""
    found: set[Symbol] = set()
    for s in all_of(body):
        if isinstance(s, Bind):
            found.add(s.symbol)
        elif isinstance(s, Loop):
            found.add(s.index)
    return found
