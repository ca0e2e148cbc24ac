"""Give large loops to several threads: loops whose iterations are apart, in chunks.

Note [chunks]
A loop becomes a `Parallel` over *chunks* of its iterations, and the emitter makes the
body a function of its own, which the pool of `runtime.threads` calls for every chunk.
There are at most MOST of them; each has work for GRAIN units of time or more, and of a
loop without inner ones a multiple of UNIT iterations, so that vector bodies and blocks
of sums end where they would. All that depends on sizes only, and one chunk is run by
the same code: the bits are the same for any number of threads.

Loops of nests are split, not those of the program; `vectorize` makes nests of those
that can be. The iterations must be apart in memory (`apart.py`), but for columns of
sums (`columns.py`), and no variable may go from one to the next, except for *folds*:

    acc := 0                           parallel c in chunks
    for i in 0..n                        acc := 0
      acc += x[i]                        for i in those of c: acc += x[i]
                                         partial[c] = acc
                                       for c in chunks: acc += partial[c]

A chunk starts with what changes nothing; partial results lie on the caller's stack
and are merged in order. A compensated sum is a pair: what is lost where two chunks are
added is added to the loss, as for two blocks. Products of floats are not taken apart.

Note [loops around]
Loops of the program around a nest run it many times, and its arrays may have a few
elements. There it has two versions: as it was, and in chunks where it has work for two
of them. Where its bounds depend on the loops around it, as in a factorisation, it stays
as it is, and so does the edge of a grid beside its inside: what has less work by a
dimension. At the top level of a kernel one version is enough: the call of a part costs
about 10 ns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts, Monomial, Symbol
from ..ir.types import DType
from ..runtime.vecmath import BINARY, UNARY
from . import columns
from .apart import Range, are_apart
from .carried import SUM, Fold, folds_of, start_anew, uses_in, with_loops
from .columns import Column
from .kernels import at, compare
from .nests import (
    Apply,
    Bind,
    Buffer,
    Cast,
    Check,
    Fill,
    If,
    Let,
    Load,
    Loop,
    Move,
    Parallel,
    Program,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
    While,
    copied,
    every,
    inner,
    leaves,
    scalars_of,
)

MOST = 128  # chunks of a loop
UNIT = 1024  # iterations; a multiple of every vector, and the length of a block
# A unit of time is about 0.06 ns: one simple operation on a double in a vector loop.
GRAIN = 1 << 18
MEMORY, DIVISION, FUNCTION = 2, 3, 8  # units of an access, a quotient, an exp
SLOW = frozenset((*UNARY, *BINARY, "power"))
LOOP = 30  # units of starting an inner loop
WHILE = Symbol("while")  # among the indices of loops around


def parallelise(p: Program) -> None:
    """Turn the large loops of a program into parallel ones."""
    _Parallel(p).run()


class _Parallel:
    def __init__(self, p: Program) -> None:
        self.p = p
        self.numbers = itertools.count()
        self.uses = uses_in(p)
        self.touched = Counter(_buffers_in(p.body))

    def run(self) -> None:
        self.block(self.p.body, self.p.facts, frozenset())

    def block(
        self, body: list[Statement], facts: Facts, around: frozenset[Symbol]
    ) -> None:
        """Replace the loops of a list; `around` are the indices of loops around it."""
        most = max((_degree(s) for s in body if isinstance(s, Loop)), default=0)
        body[:] = [
            t
            for s in body
            for t in (
                [s]
                if around and isinstance(s, Loop) and _degree(s) < most
                else self.statement(s, facts, around)
            )
        ]

    def symbol(self, hint: str) -> tuple[Symbol, Dim]:
        name = f"_{hint}{next(self.numbers)}"
        return Symbol(name), dims.symbol(name)

    def statement(
        self, s: Statement, facts: Facts, around: frozenset[Symbol]
    ) -> list[Statement]:
        """Return what a statement becomes; see Note [loops around]."""
        match s:
            case Loop():
                found = self.loop(s, facts, around)
                if found is not None:
                    return found
                self.inside(s, facts, around)
            case Move() | Fill() if not around and not _is_small(units_of([s])):
                return self.range(s)
            case While():
                self.block(s.body, facts, around | {WHILE})
            case If():
                for part in inner(s):
                    self.block(part, facts, around)
        return [s]

    def inside(self, loop: Loop, facts: Facts, around: frozenset[Symbol]) -> None:
        run = Range.of(loop)
        if run is not None and not loop.block:
            self.block(loop.body, facts.having(*run.facts), around | {loop.index})

    def loop(
        self, loop: Loop, facts: Facts, around: frozenset[Symbol]
    ) -> list[Statement] | None:
        """Return a loop in chunks; None where it stays."""
        size = size_of(loop, around)
        if size is None:
            return None
        count, units = size
        total = dims.mul(count, units)
        folds = folds_of(loop, self.uses)
        if folds is None:
            return None
        serial = copied(loop)
        if are_apart(loop, facts, self.own(loop)):
            chunks = self.split(loop, count, units, folds)
            if not around:
                return chunks
            enough = compare(">=", at(total), at(2 * GRAIN))
            return [If(enough, chunks, [serial])]
        return None if around else self.by_columns(loop, facts, count, units, folds)

    def range(self, s: Move | Fill) -> list[Statement]:
        """Copy or fill a range in chunks."""
        length, each = self.symbol("per")
        number, chunks = self.symbol("chunks")
        index, c = self.symbol("c")
        first, low = self.symbol("lo")
        part = copied(s)
        assert isinstance(part, Move | Fill)
        rest = dims.add(s.size, dims.mul(low, -1))
        part.size = dims.minimum(each, rest)
        if isinstance(part, Move):
            part.target_offset = dims.add(part.target_offset, low)
            part.source_offset = dims.add(part.source_offset, low)
        else:
            part.offset = dims.add(part.offset, low)
        return [
            Bind(length, at(_rounded(_each(s.size, 2 * MEMORY, MOST)))),
            Bind(number, at(dims.floordiv(dims.add(dims.add(s.size, each), -1), each))),
            Parallel(index, chunks, [Bind(first, at(dims.mul(c, each))), part]),
        ]

    def by_columns(
        self, loop: Loop, facts: Facts, count: Dim, units: Dim, folds: Sequence[Fold]
    ) -> list[Statement] | None:
        """Split a loop that folds into rows of memory; see `columns`."""
        made: list[Buffer] = []

        def rows(b: Buffer) -> Buffer:
            made.append(self.buffer("q", b.dtype, columns.ROWS, "arena"))
            return made[-1]

        found = columns.columns_of(loop, facts, rows)
        apart = are_apart(loop, facts, self.own(loop), {c.buffer for c in found})
        if not found or not apart:
            return None
        self.p.buffers += made
        other = copied(loop)
        assert isinstance(other, Loop)
        self.inside(other, facts, frozenset())
        chunks = self.split(loop, count, units, folds, found)
        return [If(columns.are_short(found), chunks, [other])]

    # Chunks -----------------------------------------------------------------------

    def split(
        self,
        loop: Loop,
        count: Dim,
        units: Dim,
        folds: Sequence[Fold],
        sums: Sequence[Column] = (),
    ) -> list[Statement]:
        length, each = self.symbol("per")
        number, chunks = self.symbol("chunks")
        index, c = self.symbol("c")
        before: list[Statement] = [
            Bind(length, at(chunk_length(loop, count, units, sums))),
            Bind(number, at(dims.floordiv(dims.add(dims.add(count, each), -1), each))),
        ]
        partial = [self.partial(f) for f in folds]
        part = Parallel(index, chunks, self.body(loop, count, each, c), self.own(loop))
        for f in folds:
            start_anew(loop, f)
        for column in sums:
            column.redirect(part.body, c)
        part.body[:0] = [Set(f.name, f.neutral) for f in folds]
        part.body[:0] = [column.clear(c) for column in sums]
        part.body += [
            Store(b, c, Reg(f.name, f.dtype))
            for f, b in zip(folds, partial, strict=True)
        ]
        merged = self.merged(folds, partial, chunks, sums)
        return [*before, part, *merged]

    def own(self, loop: Loop) -> list[Buffer]:
        """Return the rows that chunks of a loop have for themselves.

        Where loops inside the one over rows are split, they share the row: some write
        it, and others read it. So a row belongs to loops with all that touches it.
        """
        inside = Counter(_buffers_in([loop]))
        return [b for b, n in inside.items() if b.private and n == self.touched[b]]

    def partial(self, f: Fold) -> Buffer:
        b = self.buffer("f", f.dtype, MOST, "stack")
        self.p.buffers.append(b)
        return b

    def buffer(self, hint: str, dtype: DType, size: int, place: str) -> Buffer:
        self.p.scopes += 1
        name = f"{hint}{next(self.numbers)}"
        return Buffer(name, dtype, size, place, self.p.scopes - 1)

    def body(self, loop: Loop, count: Dim, each: Dim, c: Dim) -> list[Statement]:
        """Return the loop over the iterations of chunk c."""
        first, low = self.symbol("lo")
        last, high = self.symbol("hi")
        start = dims.mul(c, each)
        sign = loop.step
        return [
            Bind(first, at(start)),
            Bind(last, at(dims.minimum(dims.add(start, each), count))),
            replace(
                loop,
                start=dims.add(loop.start, dims.mul(low, sign)),
                stop=dims.add(loop.start, dims.mul(high, sign)),
            ),
        ]

    def merged(
        self,
        folds: Sequence[Fold],
        partial: Sequence[Buffer],
        chunks: Dim,
        sums: Sequence[Column],
    ) -> list[Statement]:
        """Merge the partial results of the chunks, in order."""
        if not folds and not sums:
            return []
        index, c = self.symbol("c")
        body: list[Statement] = []
        values = {
            f.name: Load(b, c, f.dtype) for f, b in zip(folds, partial, strict=True)
        }
        for f in folds:
            acc, x = Reg(f.name, f.dtype), values[f.name]
            if f.loss_of:
                pair = (Reg(f.loss_of, f.dtype), values[f.loss_of])
                lost = Apply("lost({0}, {1})", pair, f.dtype)
                body.append(Set(f.name, Apply(SUM, (acc, lost), f.dtype)))
            new: Scalar = Apply(f.step, (acc, x), f.dtype)
            if f.first:
                is_first = compare("==", at(c), at(0))
                new = Apply("where({0}, {1}, {2})", (is_first, x, new), f.dtype)
            body.append(Set(f.name, new))
        body += [s.merged(c, self.symbol("j")[0]) for s in sums]
        return [Loop(index, 0, chunks, 1, body)]


def chunk_length(
    loop: Loop, count: Dim, units: Dim, sums: Sequence[Column] = ()
) -> Dim:
    """Return how many iterations of a loop a chunk has; see Note [chunks]."""
    chunks = columns.most_chunks(sums, MOST) if sums else MOST
    each = _each(count, units, chunks)
    has_inner = any(isinstance(s, Loop) for s in loop.body)
    return each if has_inner and not loop.block else _rounded(each)


def _each(count: Dim, units: Dim, chunks: Dim) -> Dim:
    """Return how many iterations are enough work, and make no more than `chunks`."""
    most = dims.add(dims.floordiv(count, chunks), 1)
    if isinstance(units, int):
        return dims.maximum(most, -(-GRAIN // max(units, 1)))
    grain = dims.floordiv(GRAIN, dims.maximum(units, 1))
    return dims.maximum(most, dims.add(grain, 1))


def _rounded(each: Dim) -> Dim:
    return dims.mul(dims.floordiv(dims.add(each, UNIT - 1), UNIT), UNIT)


# ---------------------------------------------------------------- costs


def work(loop: Loop) -> Dim | None:
    """Estimate the units of time of one iteration; None where sizes do not tell."""
    total = units_of([*loop.body, *loop.opening, *loop.closing])
    indices = {s.index for s in every([loop]) if isinstance(s, Loop)}
    if total is None or dims.symbols_of(total) & indices:
        return None
    return total


def units_of(body: Sequence[Statement]) -> Dim | None:
    """Estimate the units of time of some statements; None where sizes do not tell."""
    total: Dim = 0
    for s in body:
        own = sum(map(_cost, scalars_of(s))) + MEMORY * isinstance(s, Store)
        total = dims.add(total, own)
        if isinstance(s, Loop):
            run, inside = Range.of(s), units_of(s.body)
            if run is None or inside is None:
                return None
            each = dims.mul(dims.add(run.some, 1), inside)
            total = dims.add(total, dims.add(each, LOOP))
        elif isinstance(s, If):
            parts = [units_of(part) for part in inner(s)]
            for x in parts:
                if x is None:
                    return None
                total = dims.add(total, x)
        elif isinstance(s, Fill | Move):
            total = dims.add(total, dims.mul(s.size, 2 * MEMORY))
    return total


def _cost(x: Scalar) -> int:
    match x:
        case Load():
            return MEMORY
        case Apply():
            own = 1 + DIVISION * x.template.count(" / ")
            names = x.template.replace("(", " ").split()
            own += FUNCTION * sum(n in SLOW for n in names)
            return own + sum(map(_cost, x.args))
        case Cast():
            return 1 + _cost(x.arg)
        case _:
            return 0


def _degree(loop: Loop) -> int:
    """Return how many sizes the work of a nest is a product of."""
    if loop.ordered:
        return 0
    units, run = work(loop), Range.of(loop)
    if units is None or run is None:
        return 0
    total = dims.mul(dims.add(run.some, 1), units)
    return 0 if isinstance(total, int) else max(len(m) for m, _ in total.terms)


def size_of(loop: Loop, around: frozenset[Symbol]) -> tuple[Dim, Dim] | None:
    """Return the iterations of a loop and the units of each; None where it stays."""
    units, run = work(loop), Range.of(loop)
    if units is None or run is None or loop.ordered or not _is_plain(loop):
        return None
    count = dims.add(run.some, 1)
    total = dims.mul(count, units)
    if _is_small(total) or loop.step not in (1, -1) or dims.symbols_of(total) & around:
        return None
    return count, units


def most_work(p: Program) -> Dim:
    """Return about the most units of work of a loop that may be split; 0: of none.

    See Note [two variants] in `variants`.
    """
    known = {*p.symbols, *(s for s, _, _ in p.sizes)}
    most: dict[Monomial, int] = {}
    for s, around in with_loops(p.body, []):
        total: Dim | None = 0
        if isinstance(s, Loop):
            size = size_of(s, frozenset(x.index for x in around))
            total = dims.mul(*size) if size is not None else 0
        elif isinstance(s, Move | Fill) and not around:
            total = units_of([s])
        if total is not None and dims.symbols_of(total) <= known:
            terms = total.terms if isinstance(total, Expr) else (((), total),)
            for monomial, c in terms:
                most[monomial] = max(most.get(monomial, 0), c)
    found: Dim = 0
    for monomial, c in most.items():
        found = dims.add(found, Expr(((monomial, c),)) if monomial else c)
    return found


def _is_small(units: Dim | None) -> bool:
    """Tell whether work is known not to be enough for two chunks."""
    return units is None or (isinstance(units, int) and units < 2 * GRAIN)


def _is_plain(loop: Loop) -> bool:
    """Tell whether a loop holds what a part may hold."""
    kinds = Let | Set | Bind | Store | Fill | Move | Loop | If
    if any(b.private for b in _buffers_in([loop])):  # a check would not give it back
        return all(isinstance(s, kinds) for s in every([loop]))
    return all(isinstance(s, kinds | Check) for s in every([loop]))


def _buffers_in(body: Sequence[Statement]) -> Iterator[Buffer]:
    """Yield the buffers that statements touch, as often as they do."""
    for s in every(list(body)):
        match s:
            case Store() | Fill():
                yield s.buffer
            case Move():
                yield from (s.target, s.source)
        for x in scalars_of(s):
            yield from (y.buffer for y in leaves(x) if isinstance(y, Load))
