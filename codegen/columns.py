"""Sums into memory over the rows that a loop runs through, in rows of their own.

    for i in 0..n              parallel c in chunks
      for j in 0..k              q[c*k .. c*k + k] = 0
        r[j] += x[i*k + j]       for i in those of c: for j: q[c*k + j] += x[i*k + j]
                               for c in chunks: for j: r[j] += q[c*k + j]

Every chunk adds into a *private row*, and these are added in order. All rows together
have at most ROWS elements, so long rows make few chunks; beyond LONGEST the inner loop
is split instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir import dims
from ..ir.dims import Dim, Facts, Symbol
from .apart import Access, Range, extent
from .carried import NEUTRAL, with_loops
from .kernels import at, compare
from .nests import (
    Apply,
    Bind,
    Buffer,
    Fill,
    Lit,
    Load,
    Loop,
    Move,
    Scalar,
    Statement,
    Store,
    every,
    leaves,
    rewrite_loads,
    scalars_of,
)
from .places import minus

ROWS = 1 << 16  # elements of all private rows
LONGEST = 1 << 13  # elements of one
LINE = 16  # elements; the processor fetches cache lines by two


@dataclass(slots=True)
class Column:
    """A buffer that a loop only folds into, and the private rows that stand for it."""

    buffer: Buffer
    step: str
    start: Dim  # offset of the first element
    length: Dim
    rows: Buffer

    @property
    def step_of_rows(self) -> Dim:
        """How far rows are apart: two threads do not write into one cache line."""
        return dims.mul(dims.floordiv(dims.add(self.length, 2 * LINE - 1), LINE), LINE)

    def clear(self, c: Dim) -> Statement:
        neutral = Lit(NEUTRAL[self.step](self.buffer.dtype), self.buffer.dtype)
        return Fill(self.rows, dims.mul(c, self.step_of_rows), self.length, neutral)

    def redirect(self, body: Sequence[Statement], c: Dim) -> None:
        """Let statements fold into the private row of chunk c."""
        shift = minus(dims.mul(c, self.step_of_rows), self.start)
        for s in every(list(body)):
            if isinstance(s, Store) and s.buffer is self.buffer:
                place = dims.add(s.offset, shift)
                own = Load(self.rows, place, self.buffer.dtype)
                s.value = rewrite_loads(s.value, {self.buffer: own})
                s.buffer, s.offset = self.rows, place

    def merged(self, c: Dim, index: Symbol) -> Loop:
        """Fold the private row of chunk c into the buffer."""
        j = dims.symbol(index.name)
        dtype = self.buffer.dtype
        place = dims.add(self.start, j)
        old = Load(self.buffer, place, dtype)
        new = Load(self.rows, dims.add(dims.mul(c, self.step_of_rows), j), dtype)
        folded = Apply(self.step, (old, new), dtype)
        return Loop(index, 0, self.length, 1, [Store(self.buffer, place, folded)])


def columns_of(
    loop: Loop, facts: Facts, allocate: Callable[[Buffer], Buffer]
) -> list[Column]:
    """Return the buffers that the iterations of a loop only fold into, at one place."""
    run = Range.of(loop)
    if run is None:
        return []
    computed = {s.symbol for s in every(loop.body) if isinstance(s, Bind)}
    found: dict[Buffer, Column | None] = {}
    for s, around in with_loops([loop], []):
        own = s.buffer if isinstance(s, Store) else None
        if isinstance(s, Fill | Move):
            both = (s.buffer,) if isinstance(s, Fill) else (s.target, s.source)
            found.update(dict.fromkeys(both))
        for x in scalars_of(s):
            for leaf in leaves(x):
                if isinstance(leaf, Load) and leaf.buffer is not own:
                    found[leaf.buffer] = None
        if not isinstance(s, Store) or found.get(s.buffer, s) is None:
            continue
        new = _column(s, around, run, facts)
        known = found.setdefault(s.buffer, new)
        if new is not None and dims.symbols_of(s.offset) & computed:
            new = None
        if new is None or (known and _what(known) != _what(new)):
            found[s.buffer] = None
    columns = [c for c in found.values() if c is not None]
    for c in columns:
        c.rows = allocate(c.buffer)
    return columns


def _what(c: Column) -> tuple[str, Dim, Dim]:
    return c.step, c.start, c.length


def _column(
    s: Store, around: Sequence[Loop], run: Range, facts: Facts
) -> Column | None:
    x, b = s.value, s.buffer
    if not isinstance(x, Apply) or x.template not in NEUTRAL or x.dtype != b.dtype:
        return None
    if b.dtype.kind == "b" or len(x.args) != 2:
        return None
    if x.args[0] != Load(b, s.offset, b.dtype) or _loads(x.args[1], b):
        return None
    ranges = [Range.of(a) for a in around[1:]]
    inside = tuple(r for r in ranges if r is not None)
    if len(inside) < len(ranges):
        return None
    found = extent(Access(b, s.offset, 1, True, inside), facts.having(*run.facts))
    if found is None:
        return None
    low, high = found
    changing = {run.symbol, *(r.symbol for r in inside)}
    if (dims.symbols_of(low) | dims.symbols_of(high)) & changing:
        return None
    return Column(b, x.template, low, dims.add(minus(high, low), 1), b)


def _loads(x: Scalar, b: Buffer) -> bool:
    return any(isinstance(leaf, Load) and leaf.buffer is b for leaf in leaves(x))


def most_chunks(columns: Sequence[Column], most: int) -> Dim:
    """Return how many chunks have room for their rows."""
    longest = dims.maximum(1, *(c.step_of_rows for c in columns))
    return dims.maximum(1, dims.minimum(most, dims.floordiv(ROWS, longest)))


def are_short(columns: Sequence[Column]) -> Scalar:
    """Return the condition that all rows are short enough."""
    longest = dims.maximum(1, *(c.length for c in columns))
    return compare("<=", at(longest), at(LONGEST))
