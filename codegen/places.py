"""What the loads and stores of a loop's body touch, iteration after iteration.

The offset of an access moves by a fixed *step* with every iteration. An access has the
*lag* m to another if it touches what the other touches m iterations later.

    for j in 1..n - 1        a[j - 1] has the lag -1 to a[j], which the iteration
      a[j] = a[j - 1] * c    before has written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts, Symbol
from .flat import added
from .nests import Bind, Buffer, Let, Load, Loop, Set, Statement, Store


@dataclass(frozen=True, slots=True)
class Run:
    """The iterations of a loop, and what holds for the index."""

    index: Symbol
    start: Dim
    stop: Dim
    step: int  # 1 or -1
    facts: Facts

    @staticmethod
    def of(loop: Loop, facts: Facts) -> Run | None:
        """Return the run of a loop by single steps; `facts` are those around it."""
        step = loop.step
        if not isinstance(step, int) or abs(step) != 1:
            return None
        run = Run(loop.index, loop.start, loop.stop, step, facts)
        return replace(run, facts=run.within(run.index))

    @property
    def count(self) -> Dim:
        return dims.mul(dims.add(self.stop, dims.mul(self.start, -1)), self.step)

    def within(self, s: Symbol) -> Facts:
        """Return the facts with a symbol that is an index of the loop."""
        i = dims.symbol(s.name)
        first = dims.mul(dims.add(i, dims.mul(self.start, -1)), self.step)
        rest = dims.mul(dims.add(self.stop, dims.mul(i, -1)), self.step)
        return self.facts.having(first, dims.add(rest, -1))

    def later(self, d: Dim, iterations: int = 1) -> Dim:
        """Return a dim as it is some iterations later."""
        moved = dims.add(dims.symbol(self.index.name), self.step * iterations)
        return dims.substitute(d, {self.index: moved})

    def step_of(self, d: Dim) -> Dim | None:
        """Return by what a dim moves in one iteration; None where it varies."""
        step = minus(self.later(d), d)
        return None if self.index in dims.symbols_of(step) else step


def minus(a: Dim, b: Dim) -> Dim:
    return dims.add(a, dims.mul(b, -1))


def lag(a: Dim, b: Dim, step: Dim) -> int | None:
    """Return by how many steps the offset `a` is ahead of `b`."""
    gap = minus(a, b)
    if gap == 0:
        return 0
    if isinstance(step, int):
        if isinstance(gap, int) and step and gap % step == 0:
            return gap // step
        return None
    if not isinstance(gap, Expr):
        return None
    monomial, c = step.terms[0]
    found = dict(gap.terms).get(monomial, 0) // c
    return found if dims.mul(step, found) == gap else None


@dataclass(eq=False, slots=True)
class Track:
    """The accesses of one buffer that follow each other: they differ by lags."""

    buffer: Buffer
    first: Dim  # an offset, to which lags are counted
    step: Dim
    reads: set[int]
    writes: set[int]

    @property
    def lags(self) -> set[int]:
        return self.reads | self.writes

    @property
    def recurs(self) -> bool:
        """Tell whether an iteration reads what an earlier one has written."""
        return any(r < w for r in self.reads for w in self.writes)

    def lag_of(self, b: Buffer, offset: Dim) -> int | None:
        return lag(offset, self.first, self.step) if b is self.buffer else None

    def offset(self, lag: int) -> Dim:
        return dims.add(self.first, dims.mul(self.step, lag))


def tracks_of(run: Run, body: Sequence[Statement]) -> list[Track] | None:
    """Return the tracks of a flat body; None where an offset moves irregularly."""
    found: list[Track] = []
    bound = {s.symbol for s in body if isinstance(s, Bind)}
    for s in body:
        for b, offset, writes in accesses(s):
            step = run.step_of(offset)
            if step is None or dims.symbols_of(offset) & bound:
                return None
            track = _track(found, b, offset, step)
            lag = track.lag_of(b, offset)
            assert lag is not None
            (track.writes if writes else track.reads).add(lag)
    return found


def _track(known: list[Track], b: Buffer, offset: Dim, step: Dim) -> Track:
    for t in known:
        if t.step == step and t.lag_of(b, offset) is not None:
            return t
    known.append(Track(b, offset, step, set(), set()))
    return known[-1]


def accesses(s: Statement) -> list[tuple[Buffer, Dim, bool]]:
    """Return what a statement of a flat body loads and then what it stores."""
    found: list[tuple[Buffer, Dim, bool]] = []
    if isinstance(s, Let | Set) and isinstance(s.value, Load):
        found.append((s.value.buffer, s.value.offset, False))
    if isinstance(s, Store):
        if added(s) is not None:
            found.append((s.buffer, s.offset, False))
        found.append((s.buffer, s.offset, True))
    return found


def apart(a: Track, b: Track, run: Run) -> bool:
    """Tell whether two tracks of one buffer share no element in the whole loop."""
    other = Symbol(f"{run.index.name}'")
    facts = run.within(other)
    moved = {run.index: dims.symbol(other.name)}
    gaps = [
        minus(a.offset(m), dims.substitute(b.offset(k), moved))
        for m in {min(a.lags), max(a.lags)}
        for k in {min(b.lags), max(b.lags)}
    ]
    return any(
        all(facts.proves(dims.add(dims.mul(gap, sign), -1)) for gap in gaps)
        for sign in (1, -1)
    )
