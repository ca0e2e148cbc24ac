"""Keep what the next iterations touch again in registers.

Where a loop reads what an earlier iteration has written, the places between the first
and the last access form a *window* that moves with the loop: a register for each. Every
place is loaded once, when the first access that needs its contents comes, and stored
once, with the last write.

    for j in 1..n - 1                     w = a[0]
      a[j] = (a[j - 1] + x[j]) * c        for j in 1..n - 1
                                            v = (w + x[j]) * c
                                            a[j] = v
                                            w := v

Additions need no contents: until something reads the place, its register holds the
*pending* sum of what is to be added.

    for j in n - 2..0 step -1             p := -0.0, q := -0.0
      d[j + 1] += g[j]                    for j in n - 2..0 step -1
      d[j] += g[j]                          d[j + 1] += p + g[j]
      d[j - 1] += g[j]                      p := q + g[j], q := g[j]
                                          d[1] += p, d[0] += q

This holds only where no other access meets the window, which the facts must prove, and
where every lag from the first to the last is accessed in each iteration: then all that
is loaded before the loop is touched by its first iteration, and in range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.types import DType
from .flat import SUM, added, addition, may_share
from .kernels import cast
from .nests import Apply, Check, Let, Lit, Load, Reg, Scalar, Set, Statement, Store
from .places import Run, Track, accesses, apart

if TYPE_CHECKING:
    from .kernels import Lowering

WIDEST = 8  # registers of one window


def windowed(
    low: Lowering, run: Run, body: Sequence[Statement], tracks: list[Track]
) -> tuple[list[Statement], list[Statement], list[Statement]] | None:
    """Return what stands before the loop, its body, and what follows it.

    None where no window is allowed or of use.
    """
    chosen = _chosen(run, tracks)
    if not chosen or any(isinstance(s, Check) for s in body):
        return None
    windows = [Window.of(low, t, body) for t in chosen]
    with low.into() as before:
        for w in windows:
            w.enter(run)
    with low.into() as inside:
        for s in body:
            if not any(w.takes(s) for w in windows):
                low.emit(s)
        for w in windows:
            w.move()
    with low.into() as after:
        for w in windows:
            w.leave(run)
    return before, inside, after


def _chosen(run: Run, tracks: list[Track]) -> list[Track]:
    """Return the tracks that get a window."""
    stored = {t.buffer for t in tracks if t.writes}
    buffers = {t.buffer for t in tracks}
    alone = {
        b
        for b in buffers
        if not any(may_share(b, c) for c in stored if c is not b)
        and (b not in stored or not any(may_share(b, c) for c in buffers if c is not b))
    }
    found = [t for t in tracks if t.buffer in alone and _fits(t, run)]
    if not any(t.recurs for t in found):
        return []
    mixed = {
        t.buffer
        for t in tracks
        if t.buffer in alone and not _is_separate(t, tracks, run)
    }
    found = [t for t in found if t.buffer not in mixed]
    return found if any(t.recurs for t in found) else []


def _is_separate(t: Track, others: Sequence[Track], run: Run) -> bool:
    return all(
        apart(t, o, run)
        for o in others
        if o is not t and o.buffer is t.buffer and (t.writes or o.writes)
    )


def _fits(t: Track, run: Run) -> bool:
    lags = t.lags
    whole = len(lags) == max(lags) - min(lags) + 1
    moves = any(run.facts.proves(dims.add(dims.mul(t.step, s), -1)) for s in (1, -1))
    return 1 < len(lags) <= WIDEST and whole and moves


@dataclass(eq=False, slots=True)
class Window:
    """The registers of one track, by lag.

    `now` is what they hold at this point of an iteration; those of the lags in `full`
    hold the contents of their places, others a pending sum. Where an iteration starts,
    the lags below `needed` are full, and what the last lag holds is in no register.
    """

    low: Lowering
    track: Track
    needed: int
    writes: int  # how many there are in an iteration at the last lag that is written
    left: int = 0
    kept: dict[int, Reg] = field(default_factory=dict)
    now: dict[int, Scalar] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)

    @staticmethod
    def of(low: Lowering, t: Track, body: Sequence[Statement]) -> Window:
        last = min(t.writes, default=min(t.lags))
        needed = [last]
        writes = 0
        for s in body:
            for b, offset, is_write in accesses(s):
                lag = t.lag_of(b, offset)
                if lag is None:
                    continue
                writes += is_write and lag == last
                if not (isinstance(s, Store) and _can_wait(s)):
                    needed.append(lag)
        return Window(low, t, max(needed), writes)

    @property
    def lags(self) -> range:
        return range(min(self.track.lags), max(self.track.lags) + 1)

    def enter(self, run: Run) -> None:
        """Fill the registers for the first iteration."""
        b = self.track.buffer
        for lag in self.lags[:-1]:
            here = dims.substitute(self.track.offset(lag), {run.index: run.start})
            x = Load(b, here, b.dtype) if lag < self.needed else _nothing(b.dtype)
            self.kept[lag] = self.low.variable(x, "w")
        self.now = dict(self.kept)
        self.full = {lag for lag in self.kept if lag < self.needed}
        self.left = self.writes

    def takes(self, s: Statement) -> bool:
        """Emit what an access of the track becomes; False for other statements."""
        match s:
            case Let(value=Load() as x) | Set(value=Load() as x):
                lag = self.track.lag_of(x.buffer, x.offset)
                if lag is None:
                    return False
                s.value = self.contents(lag)
                self.low.emit(s)
                return True
            case Store():
                lag = self.track.lag_of(s.buffer, s.offset)
                if lag is None:
                    return False
                self.write(s, lag)
                return True
        return False

    def contents(self, lag: int) -> Scalar:
        """Return the contents of a place, loaded if they are not in its register."""
        if lag not in self.full:
            b = self.track.buffer
            x = self.low.let(Load(b, self.track.offset(lag), b.dtype))
            self.now[lag] = self.sum(x, self.now[lag]) if lag in self.now else x
            self.full.add(lag)
        return self.now[lag]

    def sum(self, x: Scalar, y: Scalar) -> Scalar:
        return self.low.let(Apply(SUM, (x, y), self.track.buffer.dtype))

    def write(self, s: Store, lag: int) -> None:
        x = added(s)
        if x is None:
            self.now[lag] = self.copy(s.value)
            self.full.add(lag)
        elif not _can_wait(s):
            self.now[lag] = self.sum(self.contents(lag), x)
        elif lag in self.now:
            self.now[lag] = self.sum(self.now[lag], x)
        else:
            self.now[lag] = self.copy(x)
        if lag == min(self.track.writes):
            self.left -= 1
            if not self.left:
                self.low.emit(Store(s.buffer, s.offset, self.contents(lag)))

    def copy(self, x: Scalar) -> Scalar:
        """Bind a register to a value; `x` may be a variable that will change."""
        x = cast(x, self.track.buffer.dtype)
        name = self.low.fresh("v")
        self.low.emit(Let(name, x))
        return Reg(name, x.dtype)

    def move(self) -> None:
        """Go on by one place."""
        for lag, reg in self.kept.items():
            self.low.emit(Set(reg.name, self.now[lag + 1]))

    def leave(self, run: Run) -> None:
        """Store what the last iterations have not."""
        b, writes = self.track.buffer, self.track.writes
        for lag in range(min(writes, default=0), max(writes, default=0)):
            here = dims.substitute(self.track.offset(lag), {run.index: run.stop})
            kept = self.kept[lag]
            full = lag < self.needed
            self.low.emit(Store(b, here, kept) if full else addition(b, here, kept))


def _can_wait(s: Store) -> bool:
    """Tell whether a store is an addition that a pending sum can take."""
    return added(s) is not None and s.buffer.dtype.kind in "fiu"


def _nothing(dtype: DType) -> Scalar:
    """Return what changes nothing when it is added: x + -0.0 is x for all x."""
    return Lit(-0.0 if dtype.kind == "f" else 0, dtype)
