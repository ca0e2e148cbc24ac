"""Reverse mode within a memory limit: loops whose tapes are too large go by blocks.

`limited_vjp` differentiates, adds up the tapes of all loops, and where they exceed the
limit rewrites the largest before it differentiates again (`blocks.py`). A block is so
long that its own tape takes half of what the loop may use; the other half is for the
carries at the starts of blocks, and where these are too many, blocks are put into
blocks. So the length of a block depends on the limit and on sizes, and not on the trip
count of the loop:

    a limit of 200 entries: 10000 iterations in 2 levels, 287496 in 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.errors import MemoryLimitError
from ..ir.func import Func, Node, Operand
from .blocks import ceildiv, split_loops
from .tape import Tape
from .vjp import differentiated

MOST_LEVELS = 6  # each one runs the loop forward once more


class Sizes(Protocol):
    """Says how large a call is: what is asked of it becomes a guard."""

    def at_least(self, a: Dim, b: Dim) -> bool:
        """Tell whether a >= b in this call."""

    def value(self, d: Dim) -> int:
        """Return the value of a dim in this call."""

    def knows(self, d: Dim) -> bool:
        """Tell whether a dim has a value before the call."""


@dataclass(slots=True)
class Known:
    """Sizes that are given; `facts` are what was answered, each at least 0.

    >>> n = dims.symbol("n")
    >>> sizes = Known({Symbol("n"): 3})
    >>> sizes.at_least(n, 4), sizes.facts
    (False, [-n + 3])
    """

    values: Mapping[Symbol, int]
    facts: list[Expr] = field(default_factory=list)

    def at_least(self, a: Dim, b: Dim) -> bool:
        gap = dims.add(a, dims.mul(b, -1))
        holds = self.value(gap) >= 0
        fact = gap if holds else dims.add(dims.mul(gap, -1), -1)
        if isinstance(fact, Expr):
            self.facts.append(fact)
        return holds

    def value(self, d: Dim) -> int:
        return dims.evaluate(d, self.values)

    def knows(self, d: Dim) -> bool:
        return dims.symbols_of(d) <= self.values.keys()


def limited_vjp(
    f: Func,
    wrt: Sequence[int],
    cotangents: Sequence[int] | None = None,
    *,
    seed: Mapping[int, Operand] | None = None,
    limit: int | None,
    sizes: Sizes,
) -> Func:
    """Return `vjp(f, wrt, ...)`, whose tapes take at most `limit` bytes.

    Tapes whose size is data (of a `while`, of what a mask selects) are not counted.
    Raises MemoryLimitError where no blocks meet the limit.
    """
    return limited(f, wrt, cotangents, seed=seed, limit=limit, sizes=sizes)[0]


def limited(
    f: Func,
    wrt: Sequence[int],
    cotangents: Sequence[int] | None = None,
    *,
    seed: Mapping[int, Operand] | None = None,
    limit: int | None,
    sizes: Sizes,
) -> tuple[Func, list[Tape]]:
    """Return what `limited_vjp` returns, and the tapes that were counted."""

    def tapes_of(g: Func) -> tuple[Func, list[Tape]]:
        joint, tapes = differentiated(g, wrt, cotangents, seed=seed)
        return joint, [t for t in tapes if t.size is not None and sizes.knows(t.size)]

    joint, tapes = tapes_of(f)
    if limit is None or sizes.at_least(limit, total(tapes)):
        return joint, tapes
    tapes.sort(key=lambda t: sizes.value(_size(t)), reverse=True)
    for count in range(1, len(tapes) + 1):  # the largest ones
        plans = _plans(f, tapes[:count], tapes_of, sizes)
        rest = sizes.value(total(tapes[count:]))
        blocks = _shared(plans, limit - rest, sizes)
        if blocks is not None:
            joint, left = tapes_of(split_loops(f, blocks)[0])
            if sizes.at_least(limit, total(left)):
                return joint, left
    raise _too_small(limit, plans, sizes)


def _shared(
    plans: Sequence[Plan], limit: int, sizes: Sizes
) -> dict[Node, list[Dim]] | None:
    """Return blocks for loops that may take `limit` bytes together."""
    least = {p: min(p.least, p.whole) for p in plans}
    spare = limit - sum(least.values())
    split = [p for p in plans if p.least < p.whole]
    if spare < 0 or not split:
        return None
    return {p.loop: p.choose(least[p] + spare // len(split), sizes) for p in split}


def total(tapes: Sequence[Tape]) -> Dim:
    """Return the number of bytes of tapes together."""
    size: Dim = 0
    for t in tapes:
        size = dims.add(size, _size(t))
    return size


def _size(t: Tape) -> Dim:
    assert t.size is not None
    return t.size


@dataclass(frozen=True, slots=True)
class Plan:
    """A loop to be split: its iterations, and bytes per entry of the two tapes.

    `whole` and `least` are what its tapes take in this call, unsplit and at least.
    """

    loop: Node
    trips: Dim
    inner: Dim  # of an iteration
    outer: Dim  # of the start of a block
    whole: int
    least: int

    def choose(self, share: int, sizes: Sizes) -> list[Dim]:
        """Return the blocks of the fewest levels that fit."""
        for levels in range(2, MOST_LEVELS + 1):
            blocks = blocks_within(share, levels, self.inner, self.outer)
            size = size_of(blocks, self.trips, self.inner, self.outer)
            if sizes.value(size) <= share:
                return blocks
        raise AssertionError("less than the least")


def blocks_within(share: int, levels: int, inner: Dim, outer: Dim) -> list[Dim]:
    """Return how many iterations, or blocks, make a block at each level."""
    first, other = (
        dims.maximum(dims.floordiv(share // levels, entry), 1)
        for entry in (inner, outer)
    )
    return [first, *[other] * (levels - 2)]


def size_of(blocks: Sequence[Dim], trips: Dim, inner: Dim, outer: Dim) -> Dim:
    """Return the bytes of all tapes of a loop in blocks."""
    first, *others = blocks
    size, count = dims.mul(first, inner), ceildiv(trips, first)
    for width in others:
        size = dims.add(size, dims.mul(width, outer))
        count = ceildiv(count, width)
    return dims.add(size, dims.mul(count, outer))


def _least(trips: int, inner: int, outer: int) -> int:
    """Return the smallest number of bytes for which there are blocks."""

    def fits(share: int) -> bool:
        every = (
            blocks_within(share, levels, inner, outer)
            for levels in range(2, MOST_LEVELS + 1)
        )
        return any(size_of(b, trips, inner, outer) <= share for b in every)  # type: ignore[operator]

    low, high = 0, 2 * trips * (inner + outer)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _plans(
    f: Func,
    tapes: Sequence[Tape],
    tapes_of: Callable[[Func], tuple[Func, list[Tape]]],
    sizes: Sizes,
) -> list[Plan]:
    """Split loops for a try, and see what an entry of each tape takes."""
    tried, parts = split_loops(f, {t.loop: [1] for t in tapes})
    entries = {t.loop: t.entry for t in tapes_of(tried)[1]}
    plans = []
    for t in tapes:
        assert t.capacity is not None
        inner, outer = (_positive(f, entries.get(n) or 0) for n in parts[t.loop])
        least = _least(*map(sizes.value, (t.capacity, inner, outer)))
        whole = sizes.value(_size(t))
        plans.append(Plan(t.loop, t.capacity, inner, outer, whole, least))
    return plans


def _positive(f: Func, entry: Dim) -> Dim:
    """Return a number of bytes, at least 1."""
    some = f.size_facts().proves(dims.add(entry, -1))
    return entry if some else dims.maximum(entry, 1)


def _too_small(limit: int, plans: Sequence[Plan], sizes: Sizes) -> MemoryLimitError:
    needed = sum(p.whole for p in plans)
    least = sum(min(p.least, p.whole) for p in plans)
    worst = max(plans, key=lambda p: min(p.least, p.whole))
    others = f", those of all loops {needed}" if len(plans) > 1 else ""
    return MemoryLimitError(
        f"memory_limit: {limit} bytes are too few for the tape of this loop: it takes "
        f"{worst.whole} bytes{others}",
        location=worst.loop.loc,
        rule="In blocks, the reverse of a loop keeps its carries where a block starts, "
        "and the tape of one block.",
        hint=f"a limit of {least} bytes would do",
    )
