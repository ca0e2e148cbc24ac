"""Prove that the iterations of a loop do not meet in memory.

Iterations are apart if each element that one of them writes is touched by no other.
The elements of an access lie between two offsets that depend on the index of the loop,
after its inner loops have been taken to their bounds:

    for i in 0..n                      iteration i writes i*m + 1 .. i*m + m - 2,
      for j in 0..m - 2                and reads i*m .. i*m + m - 1; where all these
        a[i*m + j + 1] = f(a[...])     ranges go up with i, the next one is beyond

Where ranges overlap, as in `a[j*n + i]`, the places of one access are still different
if each index takes longer steps than all before it together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from ..ir import dims
from ..ir.dims import Dim, Facts, Symbol
from .nests import (
    Bind,
    Buffer,
    Fill,
    If,
    Load,
    Loop,
    Move,
    Statement,
    Store,
    inner,
    leaves,
    scalars_of,
)
from .places import minus

DEEPEST = 4  # loops whose order of steps is tried


@dataclass(frozen=True, slots=True)
class Range:
    """The values of an index: from `low` to `high`, both included."""

    symbol: Symbol
    low: Dim
    high: Dim

    @staticmethod
    def of(loop: Loop) -> Range | None:
        if not isinstance(loop.step, int):
            return None
        if loop.step > 0:
            return Range(loop.index, loop.start, dims.add(loop.stop, -1))
        return Range(loop.index, dims.add(loop.stop, 1), loop.start)

    @property
    def some(self) -> Dim:
        """At least 0 where there is an iteration."""
        return minus(self.high, self.low)

    @property
    def facts(self) -> tuple[Dim, ...]:
        i = dims.symbol(self.symbol.name)
        return self.some, minus(i, self.low), minus(self.high, i)


@dataclass(frozen=True, slots=True)
class Access:
    """What a statement touches of a buffer, for all iterations of the loops inside."""

    buffer: Buffer
    offset: Dim
    count: Dim  # elements from the offset on
    writes: bool
    ranges: tuple[Range, ...]  # outermost first


def accesses(body: Sequence[Statement], within: tuple[Range, ...]) -> Iterator[Access]:
    """Yield all accesses of statements; ValueError where one cannot be described."""
    for s in body:
        for x in scalars_of(s):
            for leaf in leaves(x):
                if isinstance(leaf, Load):
                    yield Access(leaf.buffer, leaf.offset, 1, False, within)
        match s:
            case Store():
                yield Access(s.buffer, s.offset, 1, True, within)
            case Fill():
                yield Access(s.buffer, s.offset, s.size, True, within)
            case Move():
                yield Access(s.target, s.target_offset, s.size, True, within)
                yield Access(s.source, s.source_offset, s.size, False, within)
        deeper = within
        if isinstance(s, Loop):
            r = Range.of(s)
            if r is None:
                raise ValueError("a loop that may run up or down")
            deeper = (*within, r)
            yield from accesses(s.opening, within)
            yield from accesses(s.body, deeper)
            yield from accesses(s.closing, within)
        elif isinstance(s, If):
            for part in inner(s):
                yield from accesses(part, within)


def shares(a: Buffer, b: Buffer) -> bool:
    """Tell whether two buffers may be the same memory while one loop runs.

    Those that exchange memory do so between loops; local ones have their own.
    """
    return a is b or (a.scope == b.scope and a.scope >= 0)


def slope(d: Dim, s: Symbol) -> Dim | None:
    """Return by what a dim grows with a symbol; None where it is not linear in it."""
    if s not in dims.symbols_of(d):
        return 0
    step = minus(dims.substitute(d, {s: dims.symbol(s.name) + 1}), d)
    return None if s in dims.symbols_of(step) else step


def extent(a: Access, facts: Facts) -> tuple[Dim, Dim] | None:
    """Return the first and the last offset that an access has in one iteration."""
    low, high = a.offset, dims.add(a.offset, dims.add(a.count, -1))
    for r in reversed(a.ranges):
        facts = facts.having(r.some)
    for r in reversed(a.ranges):
        ends = []
        for d, top in ((low, False), (high, True)):
            step = slope(d, r.symbol)
            if step is None:
                return None
            if facts.proves(step):
                ends.append(dims.substitute(d, {r.symbol: r.high if top else r.low}))
            elif facts.proves(dims.mul(step, -1)):
                ends.append(dims.substitute(d, {r.symbol: r.low if top else r.high}))
            else:
                return None
        low, high = ends
    return low, high


def are_apart(
    loop: Loop,
    facts: Facts,
    own: Collection[Buffer] = frozenset(),
    but: Collection[Buffer] = frozenset(),
) -> bool:
    """Tell whether no two iterations of a loop meet in what one of them writes.

    The buffers `own` hold rows of one iteration: chunks get their own memory for each.
    Nothing is said about the memory of the buffers `but`; nobody may share it.
    """
    run = Range.of(loop)
    if run is None:
        return False
    try:
        found = list(dict.fromkeys(accesses([*loop.opening, *loop.body], ())))
        found += accesses(loop.closing, ())
    except ValueError:
        return False
    computed = set(_bound(loop.body))
    facts = facts.having(*run.facts)
    for a in found:
        if not a.writes:
            continue
        for b in found:
            same = a.buffer is b.buffer
            if not shares(a.buffer, b.buffer):
                continue
            if (same and a.buffer in but) or (a.buffer in own and b.buffer in own):
                continue
            if (dims.symbols_of(a.offset) | dims.symbols_of(b.offset)) & computed:
                return False
            if not _apart(a, b, run, facts):
                return False
    return True


def _bound(body: Sequence[Statement]) -> Iterator[Symbol]:
    for s in body:
        if isinstance(s, Bind):
            yield s.symbol
        for part in inner(s):
            yield from _bound(part)


def _apart(a: Access, b: Access, run: Range, facts: Facts) -> bool:
    """Tell whether `a` in one iteration never meets `b` in another one."""
    inside = {run.symbol, *(r.symbol for x in (a, b) for r in x.ranges)}
    # Of other facts each iteration has its own.
    some = [r.some for x in (a, b) for r in x.ranges]
    known = facts.having(*(d for d in some if not dims.symbols_of(d) & inside))
    one, two = extent(a, facts), extent(b, facts)
    if one is not None and two is not None:
        for sign in (1, -1):
            if _beyond(one, two, sign, run, known) and _beyond(
                two, one, sign, run, known
            ):
                return True
    return _different(a, b, run, known)


def _beyond(
    one: tuple[Dim, Dim], two: tuple[Dim, Dim], sign: int, run: Range, facts: Facts
) -> bool:
    """Tell whether all later iterations have `two` above (below) `one` in this one."""
    last, first = (one[1], two[0]) if sign > 0 else (one[0], two[1])
    step = slope(first, run.symbol)
    if step is None or not facts.proves(dims.mul(step, sign)):
        return False
    gap = minus(dims.add(first, step), last)
    return facts.proves(dims.add(dims.mul(gap, sign), -1))


def _different(a: Access, b: Access, run: Range, facts: Facts) -> bool:
    """Tell whether one access has a place of its own for all values of all indices."""
    if a.offset != b.offset or a.ranges != b.ranges or a.count != 1 or b.count != 1:
        return False
    steps: list[tuple[Dim, Dim]] = []
    indices = {r.symbol for r in (run, *a.ranges)}
    for r in (run, *a.ranges):
        step, count = slope(a.offset, r.symbol), dims.add(r.some, 1)
        if step is None or (dims.symbols_of(step) | dims.symbols_of(count)) & indices:
            return False
        steps.append((step, count))
    if len(steps) > DEEPEST:
        return False
    return any(_grows(order, facts) for order in permutations(steps))


def _grows(steps: Sequence[tuple[Dim, Dim]], facts: Facts) -> bool:
    """Tell whether each step is longer than all before it together."""
    reach: Dim = 0
    for step, count in steps:
        if not facts.proves(dims.add(minus(step, reach), -1)):
            return False
        reach = dims.add(reach, dims.mul(step, dims.add(count, -1)))
    return True
