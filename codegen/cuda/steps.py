"""What the plan of a device program is made of, beside the statements of `nests`.

A plan is a list of statements that the host runs. Those of `nests` that are left in it
are the host's: loops and branches around launches, integers that it computes, memory
whose size is not known before. All else is inside `Launch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

from ...ir import dims
from ...ir.dims import Dim, Expr
from ...ir.types import I64, DType
from ..carried import Fold
from ..emit import name_of
from ..nests import (
    Allocate,
    At,
    Bind,
    Buffer,
    Call,
    Fill,
    Grow,
    If,
    Let,
    Load,
    Loop,
    Move,
    Reg,
    Scalar,
    Set,
    Store,
    While,
    inner,
    leaves,
    scalars_of,
)
from ..products import SUFFIX

THREADS, BLOCKS, TOGETHER = "threads", "blocks", "together"
THREADS_PER_BLOCK = 256  # threads of a block, of a grid
SIDE = 16  # threads of a block along the rows and the columns of a tile
SIGNS = {"products.multiply" + SUFFIX[sign]: sign for sign in SUFFIX}
ROWS = "rows"  # the place of a buffer with a row for each block, for other kernels


@dataclass(eq=False, slots=True)
class Merge:
    """Bring partial results, one per block of a launch before, into variables."""

    folds: Sequence[Fold]
    partial: Sequence[Buffer]
    count: Dim


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many iterations a thread does at once.

    `starts` are offsets that must be multiples of it: Note [aligned starts].
    """

    count: int
    starts: tuple[Dim, ...]


@dataclass(eq=False, slots=True)
class Launch:
    """A kernel and how many threads run it.

    `THREADS`: the iterations of `loops`, nested in each other without anything between,
    are given to all threads of the grid. `BLOCKS`: those of the one loop are given to
    blocks, whose threads run the body together. `TOGETHER`: one block runs `body`.

    What its iterations fold is left in `partial`, one element per block. Each block has
    a row of its own of the buffers in `own`. `uses` counts how often the program, as it
    was planned, reads each name.
    """

    name: str
    how: str
    body: list[Inner]
    uses: Counter[str]
    loops: list[Loop] = field(default_factory=list)
    grid: Dim = 1  # blocks
    folds: list[Fold] = field(default_factory=list)
    partial: list[Buffer] = field(default_factory=list)
    own: Collection[Buffer] = ()
    length: Dim = 1 << 10  # of the loops that the threads of a block share
    lanes: Lanes | None = None  # what a thread of `THREADS` does at once
    before: list[Inner] = field(default_factory=list)  # by every block, once
    after: list[Inner] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ReadBack:
    """Let the host know variables that a kernel has computed."""

    names: list[str]


# A statement of `nests`, or one of these. Bodies of its loops hold them, too, though
# their type says that they do not.
Step: TypeAlias = Any
Inner: TypeAlias = Any


def parts(s: Inner) -> Sequence[Sequence[Inner]]:
    """Return the lists of statements inside one."""
    if isinstance(s, Launch):
        return s.before, s.body, s.after
    return () if isinstance(s, Merge | ReadBack) else inner(s)


def is_product(s: Inner) -> TypeGuard[Call]:
    """Tell whether a statement multiplies matrices; see `products`."""
    return isinstance(s, Call) and s.function in SIGNS


def all_of(body: Sequence[Inner]) -> Iterator[Inner]:
    for s in body:
        yield s
        for part in parts(s):
            yield from all_of(part)


def values_of(s: Inner) -> Sequence[Scalar]:
    """Return the scalar trees that a statement evaluates by itself."""
    return () if isinstance(s, Merge | Launch | ReadBack) else scalars_of(s)


def dims_of(s: Inner) -> Iterator[Dim]:
    """Yield the dims of a statement, without those of its scalar trees."""
    match s:
        case Store():
            yield s.offset
        case Loop():
            yield from (s.start, s.stop, s.step)
        case Fill():
            yield from (s.offset, s.size)
        case Move():
            yield from (s.target_offset, s.source_offset, s.size)
        case Allocate():
            yield s.buffer.size
        case Call():
            for a in s.args:
                if isinstance(a, int | Expr) and not isinstance(a, bool):
                    yield a
                elif isinstance(a, tuple):
                    yield a[1]
        case Grow() | Merge():
            yield s.size if isinstance(s, Grow) else s.count
        case Launch():
            for loop in s.loops:
                yield from dims_of(loop)


def names_in(x: Scalar) -> Iterator[str]:
    """Yield the names that a scalar tree reads."""
    for leaf in leaves(x):
        match leaf:
            case Reg():
                yield leaf.name
            case At():
                yield from map(name_of, dims.symbols_of(leaf.dim))
            case Load():
                yield from map(name_of, dims.symbols_of(leaf.offset))


def reads(s: Inner) -> Iterator[str]:
    """Yield the names that a statement reads by itself."""
    for x in values_of(s):
        yield from names_in(x)
    for d in dims_of(s):
        yield from map(name_of, dims.symbols_of(d))
    if isinstance(s, Set) and s.plus:
        yield s.name
    if isinstance(s, Merge):
        yield from (f.name for f in s.folds if not f.first)


def assigned(s: Inner) -> Iterator[tuple[str, DType]]:
    """Yield the names that a statement gives a value, with their dtypes."""
    match s:
        case Let() | Set():
            yield s.name, s.value.dtype
        case Bind():
            yield name_of(s.symbol), s.value.dtype
        case Merge():
            yield from ((f.name, f.dtype) for f in s.folds)
        case Call() if s.result:
            yield s.result, I64


def exposed(body: Sequence[Inner], known: set[str]) -> tuple[set[str], set[str]]:
    """Return what may be read before it is assigned, and what is assigned for sure."""
    found: set[str] = set()
    known = set(known)

    def walk(part: Sequence[Inner], known: set[str]) -> set[str]:
        more, after = exposed(part, known)
        found.update(more)
        return after

    for s in body:
        match s:
            case Loop():
                found.update(set(reads(s)) - known)
                start = walk(s.opening, known | {name_of(s.index)})
                walk(s.closing, walk(s.body, start))
            case While():
                known = walk(s.test, known)
                found.update(set(reads(s)) - known)
                walk(s.body, known)
            case If():
                found.update(set(reads(s)) - known)
                known = walk(s.then, known) & walk(s.orelse, known)
            case _:
                found.update(set(reads(s)) - known)
                known |= {name for name, _ in assigned(s)}
    return found, known


def touched(s: Inner) -> Iterator[tuple[Buffer, bool]]:
    """Yield the buffers that a statement and those inside it touch; True: written."""
    for t in all_of([s]):
        for x in values_of(t):
            yield from ((y.buffer, False) for y in leaves(x) if isinstance(y, Load))
        match t:
            case Store() | Fill():
                yield t.buffer, True
            case Move():
                yield t.target, True
                yield t.source, False
            case Merge():
                yield from ((b, False) for b in t.partial)
            case Call():  # one that returns something only reads
                buffers = [a[0] for a in t.args if isinstance(a, tuple)]
                if is_product(t):
                    yield buffers[0], True
                    yield from ((b, False) for b in buffers)
                else:
                    yield from ((b, not t.result) for b in buffers)


def needs(s: Launch) -> tuple[set[str], set[str]]:
    """Return what a kernel may read before it assigns it, and what it surely assigns.

    Folds start in the kernel.
    """
    start = {f.name for f in s.folds} | {name_of(x.index) for x in s.loops}
    return exposed(s.loops[:1] or s.body, start)


def rows_of(s: Launch) -> list[Buffer]:
    """Return the buffers of which each block has a row of its own, by name."""
    return sorted(s.own, key=lambda b: b.name)


def in_shared(s: Launch) -> tuple[dict[Buffer, Dim], Dim]:
    """Return where rows start in the shared memory of a block, and its bytes.

    Rows that other kernels read are not there.
    """
    starts: dict[Buffer, Dim] = {}
    total: Dim = 0
    for b in rows_of(s):
        if b.place != ROWS:
            starts[b] = total
            size = dims.add(dims.mul(b.size, b.dtype.itemsize), 15)
            total = dims.add(total, dims.mul(dims.floordiv(size, 16), 16))
    return starts, total


def roots(body: Sequence[Inner], written: bool) -> set[Buffer]:
    """Return the memory that statements read, or that they write."""
    return {b.eldest() for s in body for b, w in touched(s) if w == written}


def meet(a: Collection[Buffer], b: Collection[Buffer]) -> bool:
    """Tell whether one of some buffers may be the same memory as one of others."""
    return any(
        x is y or x.alias == y.alias or min(x.alias, y.alias) < 0 for x in a for y in b
    )


def clash(a: Sequence[Inner], b: Sequence[Inner]) -> bool:
    """Tell whether some statements touch what others write, or the reverse."""
    reads_a, writes_a = roots(a, False), roots(a, True)
    reads_b, writes_b = roots(b, False), roots(b, True)
    return meet(writes_a, reads_b | writes_b) or meet(reads_a, writes_b)
