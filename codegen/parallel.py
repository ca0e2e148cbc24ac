"""Give large loops to several threads: loops whose iterations are apart, in chunks.

Note [chunks]
A loop becomes a `Parallel` over *chunks* of its iterations, and the emitter makes the
body a function of its own, which the pool of `runtime.threads` calls for every chunk.
There are at most MOST of them; each has work for GRAIN units of time or more, and of a
loop without inner ones a multiple of UNIT iterations, so that vector bodies and blocks
of sums end where they would. All that depends on sizes only, and one chunk is run by
the same code: the bits are the same for any number of threads.

Loops of nests are split, not those of the program (`vectorize` makes nests of those that
can be). The iterations must be apart in memory (`apart.py`), and a variable must not go from one
to the next, except for *folds*:

    acc := 0                           parallel c in chunks
    for i in 0..n                        acc := 0
      acc += x[i]                        for i in those of c: acc += x[i]
                                         partial[c] = acc
                                       for c in chunks: acc += partial[c]

A chunk starts with what changes nothing; partial results lie on the caller's stack
and are merged in order. A compensated sum is a pair: what is lost where two chunks are
added is added to the loss, as for two blocks. Products of floats are not taken apart,
nor are positions (`argmax`).

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts, Monomial, Symbol
from ..ir.types import BOOL, DType
from ..runtime.vecmath import BINARY, UNARY
from .apart import Range, are_apart
from .kernels import at, compare
from .nests import (
    Allocate,
    Apply,
    Argument,
    At,
    Bind,
    Buffer,
    Call,
    Cast,
    Check,
    Fill,
    Grow,
    If,
    Let,
    Lit,
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
SUM = "({0} + {1})"


def _bottom(dtype: DType) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _top(dtype: DType) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


# What changes nothing in a fold with this step.
NEUTRAL: dict[str, Callable[[DType], Any]] = {
    SUM: lambda dtype: 0.0 if dtype.kind == "f" else 0,
    "maximum({0}, {1})": _bottom,
    "minimum({0}, {1})": _top,
    "logical_or({0}, {1})": lambda dtype: False,
    "logical_and({0}, {1})": lambda dtype: True,
    "({0} | {1})": lambda dtype: False if dtype == BOOL else 0,
}
EXACT = {"({0} * {1})": lambda dtype: 1}  # of integers only


@dataclass(slots=True)
class Fold:
    """A variable that all iterations fold their values into."""

    name: str
    dtype: DType
    step: str
    first: bool = False  # it starts with the first element, whatever it was before
    loss_of: str = ""  # it holds what the additions to that variable lose

    @property
    def neutral(self) -> Lit:
        return Lit((NEUTRAL | EXACT)[self.step](self.dtype), self.dtype)


def parallelise(p: Program) -> None:
    """Turn the large loops of a program into parallel ones."""
    _Parallel(p).run()


class _Parallel:
    def __init__(self, p: Program) -> None:
        self.p = p
        self.numbers = itertools.count()
        self.reads = Counter(_names(p.body))
        self.reads.update(r.what.name for r in p.results if isinstance(r.what, Reg))
        self.reads.update(
            x.name for r in p.results for d in r.shape for x in dims.symbols_of(d)
        )

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
                run = Range.of(s)
                if run is not None and not s.block:
                    self.block(s.body, facts.having(*run.facts), around | {s.index})
            case While():
                self.block(s.body, facts, around | {WHILE})
            case If():
                for part in inner(s):
                    self.block(part, facts, around)
        return [s]

    def loop(
        self, loop: Loop, facts: Facts, around: frozenset[Symbol]
    ) -> list[Statement] | None:
        """Return a loop in chunks; None where it stays."""
        size = size_of(loop, around)
        if size is None:
            return None
        count, units = size
        total = dims.mul(count, units)
        folds = self.folds(loop)
        if folds is None or not are_apart(loop, facts):
            return None
        serial = copied(loop)
        chunks = self.split(loop, count, units, folds)
        if not around:
            return chunks
        enough = compare(">=", at(total), at(2 * GRAIN))
        return [If(enough, chunks, [serial])]

    # Folds ------------------------------------------------------------------------

    def folds(self, loop: Loop) -> list[Fold] | None:
        """Return the folds of a loop; None where iterations are tied otherwise."""
        sets: dict[str, list[tuple[Set, list[Loop]]]] = {}
        for s, around in _with_loops([loop], []):
            if isinstance(s, Set):
                sets.setdefault(s.name, []).append((s, around))
        inside: list[Statement] = [loop]
        reads = Counter(_names(inside))
        names = {s.name for s in every(inside) if isinstance(s, Let)}
        bound = {s.symbol.name for s in every(inside) if isinstance(s, Bind)}
        carried = _carried(loop, set(sets) | bound)
        own = (names | bound | set(sets)) - carried
        if any(self.reads[name] > reads[name] for name in own):
            return None
        found: list[Fold] = []
        for name in carried:
            fold = _fold(name, sets[name]) if name in sets else None
            if fold is None:
                return None
            found.append(fold)
        sums = {f.name: f for f in found if f.step == SUM and not f.first}
        for f in found:
            uses = len(sets[f.name]) + sum(g.loss_of == f.name for g in found)
            plus = sum(s.plus for s, _ in sets[f.name])
            if reads[f.name] != uses - plus or (f.loss_of and f.loss_of not in sums):
                return None
        return sorted(found, key=lambda f: not f.loss_of)  # it needs the sum before

    # Chunks -----------------------------------------------------------------------

    def split(
        self, loop: Loop, count: Dim, units: Dim, folds: Sequence[Fold]
    ) -> list[Statement]:
        length, each = self.symbol("per")
        number, chunks = self.symbol("chunks")
        index, c = self.symbol("c")
        before: list[Statement] = [
            Bind(length, at(chunk_length(loop, count, units))),
            Bind(number, at(dims.floordiv(dims.add(dims.add(count, each), -1), each))),
        ]
        partial = [self.partial(f) for f in folds]
        part = Parallel(index, chunks, self.body(loop, count, each, c), Symbol("_lane"))
        for f in folds:
            _start_anew(loop, f)
        part.body[:0] = [Set(f.name, f.neutral) for f in folds]
        part.body += [
            Store(b, c, Reg(f.name, f.dtype))
            for f, b in zip(folds, partial, strict=True)
        ]
        merged = self.merged(folds, partial, chunks)
        return [*before, part, *merged]

    def partial(self, f: Fold) -> Buffer:
        name = f"f{next(self.numbers)}"
        b = Buffer(name, f.dtype, MOST, "stack", self.p.scopes)
        self.p.scopes += 1
        self.p.buffers.append(b)
        return b

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
        self, folds: Sequence[Fold], partial: Sequence[Buffer], chunks: Dim
    ) -> list[Statement]:
        """Merge the partial results of the chunks, in order."""
        if not folds:
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
        return [Loop(index, 0, chunks, 1, body)]


def chunk_length(loop: Loop, count: Dim, units: Dim) -> Dim:
    """Return how many iterations of a loop a chunk has; see Note [chunks]."""
    most = dims.add(dims.floordiv(count, MOST), 1)
    has_inner = any(isinstance(s, Loop) for s in loop.body)
    if isinstance(units, int):
        least: Dim = -(-GRAIN // max(units, 1))
    else:
        grain = dims.floordiv(GRAIN, dims.maximum(units, 1))
        least = dims.add(grain, 1)
    each = dims.maximum(most, least)
    if has_inner and not loop.block:
        return each
    return dims.mul(dims.floordiv(dims.add(each, UNIT - 1), UNIT), UNIT)


# ---------------------------------------------------------------- costs


def work(loop: Loop) -> Dim | None:
    """Estimate the units of time of one iteration; None where sizes do not tell."""
    total = _units([*loop.body, *loop.opening, *loop.closing])
    indices = {s.index for s in every([loop]) if isinstance(s, Loop)}
    if total is None or dims.symbols_of(total) & indices:
        return None
    return total


def _units(body: Sequence[Statement]) -> Dim | None:
    total: Dim = 0
    for s in body:
        own = sum(map(_cost, scalars_of(s))) + MEMORY * isinstance(s, Store)
        total = dims.add(total, own)
        if isinstance(s, Loop):
            run, inside = Range.of(s), _units(s.body)
            if run is None or inside is None:
                return None
            each = dims.mul(dims.add(run.some, 1), inside)
            total = dims.add(total, dims.add(each, LOOP))
        elif isinstance(s, If):
            parts = [_units(part) for part in inner(s)]
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
    for s, around in _with_loops(p.body, []):
        if isinstance(s, Loop):
            size = size_of(s, frozenset(x.index for x in around))
            total = dims.mul(*size) if size is not None else 0
            if dims.symbols_of(total) <= known:
                terms = total.terms if isinstance(total, Expr) else (((), total),)
                for monomial, c in terms:
                    most[monomial] = max(most.get(monomial, 0), c)
    found: Dim = 0
    for monomial, c in most.items():
        found = dims.add(found, Expr(((monomial, c),)) if monomial else c)
    return found


def _is_small(units: Dim) -> bool:
    """Tell whether work is known not to be enough for two chunks."""
    return isinstance(units, int) and units < 2 * GRAIN


# ---------------------------------------------------------------- variables


def _is_plain(loop: Loop) -> bool:
    """Tell whether a loop holds what a part may hold."""
    kinds = Let | Set | Bind | Store | Loop | If | Check
    return all(isinstance(s, kinds) for s in every([loop]))


def _read(s: Statement) -> Iterator[str]:
    """Yield the names that a statement reads: registers, symbols of its dims."""
    used: list[Dim] = []
    for x in scalars_of(s):
        for leaf in leaves(x):
            match leaf:
                case Reg():
                    yield leaf.name
                case At():
                    used.append(leaf.dim)
                case Load():
                    used.append(leaf.offset)
    match s:
        case Store():
            used.append(s.offset)
        case Loop():
            used += [s.start, s.stop, s.step]
        case Fill():
            used += [s.offset, s.size]
        case Move():
            used += [s.target_offset, s.source_offset, s.size]
        case Allocate() | Grow():
            used.append(s.buffer.size if isinstance(s, Allocate) else s.size)
        case Call():
            used += [d for a in s.args for d in _dims_of(a)]
    for d in used:
        yield from (x.name for x in dims.symbols_of(d))


def _dims_of(a: Argument) -> tuple[Dim, ...]:
    if isinstance(a, tuple):
        return (a[1],)
    return (a,) if isinstance(a, int | Expr) else ()


def _names(body: Sequence[Statement]) -> Iterator[str]:
    """Yield every name that statements read, as often as they do."""
    for s in every(list(body)):
        yield from _read(s)


def _with_loops(
    body: Sequence[Statement], around: list[Loop]
) -> Iterator[tuple[Statement, list[Loop]]]:
    """Yield all statements with the loops around them."""
    for s in body:
        yield s, around
        deeper = [*around, s] if isinstance(s, Loop) else around
        for part in inner(s):
            yield from _with_loops(part, deeper)


def _carried(loop: Loop, variables: set[str]) -> set[str]:
    """Return the variables whose value at the start of an iteration may be read.

    Of a loop in blocks, at the start of a block.
    """
    carried: set[str] = set()

    def walk(body: Sequence[Statement], known: set[str]) -> set[str]:
        known = set(known)
        for s in body:
            names = set(_read(s))
            if isinstance(s, Set) and s.plus:
                names.add(s.name)
            carried.update((names & variables) - known)
            match s:
                case Set():
                    known.add(s.name)
                case Bind():
                    known.add(s.symbol.name)
                case Loop():
                    blockwise(s, known)
                case If():
                    known |= walk(s.then, known) & walk(s.orelse, known)
        return known

    def blockwise(s: Loop, known: set[str]) -> None:
        known = walk(s.opening, known)
        walk(s.body, known)
        walk(s.closing, known)

    blockwise(loop, set())
    return carried


def _fold(name: str, sets: Sequence[tuple[Set, list[Loop]]]) -> Fold | None:
    """Return what fold the assignments of a variable are."""
    found = {_step(s, around) for s, around in sets}
    if len(found) != 1 or None in found:
        return None
    ((step, first, loss_of),) = (f for f in found if f is not None)
    dtype = sets[0][0].value.dtype
    if step in EXACT and dtype.kind not in "iu":
        return None
    if step not in NEUTRAL and step not in EXACT:
        return None
    if dtype == BOOL and NEUTRAL.get(step) in (_bottom, _top, NEUTRAL[SUM]):
        return None
    return Fold(name, dtype, step, first, loss_of)


def _step(s: Set, around: Sequence[Loop]) -> tuple[str, bool, str] | None:
    """Return step, whether it starts with the first element, and whose loss it is."""
    if s.plus:
        return SUM, False, ""
    x = s.value
    if not isinstance(x, Apply):
        return None
    if x.template == "where({0}, {1}, {2})":
        first, new, stepped = x.args
        plain = isinstance(stepped, Apply) and _is_step(stepped, s.name)
        if plain and isinstance(stepped, Apply) and stepped.args[1] == new:
            if _is_start(first, around):
                return stepped.template, True, ""
        return None
    if not _is_step(x, s.name):
        return None
    more = x.args[1]
    if isinstance(more, Apply) and more.template == "lost({0}, {1})":
        acc = more.args[0]
        return (x.template, False, acc.name) if isinstance(acc, Reg) else None
    return x.template, False, ""


def _is_step(x: Apply, name: str) -> bool:
    own = len(x.args) == 2 and isinstance(x.args[0], Reg) and x.args[0].name == name
    return own and x.args[0].dtype == x.dtype


def _is_start(condition: Scalar, around: Sequence[Loop]) -> bool:
    """Tell whether a condition holds in the first of all iterations, and only there."""
    zeros: list[Symbol] = []
    todo = [condition]
    while todo:
        x = todo.pop()
        if not isinstance(x, Apply):
            return False
        if x.template == "({0} & {1})":
            todo += x.args
            continue
        i, zero = x.args[0], x.args[-1]
        if x.template != "({0} == {1})" or zero != at(0):
            return False
        if isinstance(i, At) and (s := dims.as_symbol(i.dim)) is not None:
            zeros.append(s)
        elif not isinstance(i, Lit | At) or (i.dim if isinstance(i, At) else i.value):
            return False
    upwards = all(loop.start == 0 and loop.step == 1 for loop in around)
    return upwards and sorted(zeros, key=str) == sorted(
        (loop.index for loop in around), key=str
    )


def _start_anew(loop: Loop, f: Fold) -> None:
    """Leave out the test for the first element: a chunk starts with what is neutral."""
    for s in every([loop]):
        if f.first and isinstance(s, Set) and s.name == f.name:
            assert isinstance(s.value, Apply)
            s.value = s.value.args[2]
