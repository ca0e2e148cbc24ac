"""Several neighbouring iterations at once, with accesses of 16 bytes.

    for i in 0..n            for q in 0..n/4
      r[i] = exp(x[i])         a, b, c, d = x[4*q .. 4*q + 3]
                               r[4*q .. 4*q + 3] = exp(a), exp(b), exp(c), exp(d)

A thread does as many iterations as have their elements in 16 bytes, its *lanes*: it
loads for all of them, runs the statements for one after the other, and stores for all
of them. Where the body touches again what it has stored, that makes several such runs.
What is left over at the end is done one by one.

Note [aligned starts]
A wide access needs an address that is a multiple of its size. Buffers start at one; the
first offset into them has to be known as a multiple of the lanes, or the kernel looks
before it begins, and does all iterations one by one where it is none. Kernels of rows
look whether all of their rows start at multiples.

Note [lanes of rows]
A kernel of rows has several loops and what they have in common in its registers. To
need few, its threads do two neighbouring iterations at once where the loops touch more
than four arrays, and one where elements have 8 bytes: a warp's accesses are 256 bytes
then as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from ...ir import dims
from ...ir.dims import Dim, Symbol
from ..apart import slope
from ..nests import (
    Apply,
    At,
    Bind,
    Buffer,
    Let,
    Load,
    Loop,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
    leaves,
    rewrite,
    scalars_of,
)
from .steps import Inner, Lanes, all_of, meet, names_in, roots

BYTES = 16  # of one access
WHERE = "where({0}, {1}, {2})"
MOST_LANES = 4
MOST = 40  # statements that are worth being printed once per lane
HELD = 16  # neighbours that a thread holds at once, of all arrays of a loop over a row


@dataclass(eq=False, slots=True)
class WideLoad:
    """Bind one register per lane to neighbouring elements."""

    name: str
    buffer: Buffer
    offset: Dim
    count: int


@dataclass(eq=False, slots=True)
class WideStore:
    """Write neighbouring elements."""

    buffer: Buffer
    offset: Dim
    values: list[Scalar]


def lane(name: str, k: int) -> str:
    """Return the name that a register has in a lane."""
    return f"{name}_{k}"


def of_lane(name: str) -> str:
    """Return the name of a register by that which it has in a lane; "" for others."""
    return name.rpartition("_")[0]


def chooses(x: Scalar) -> TypeGuard[Apply]:
    """Tell whether a scalar is one of two, of which the other must not be loaded."""
    if not isinstance(x, Apply) or x.template != WHERE:
        return False
    return any(isinstance(y, Load) for a in x.args[1:] for y in leaves(a))


def lanes_of(loops: Sequence[Loop]) -> Lanes | None:
    """Return the lanes of loops that are given to threads; None: one by one is better.

    All accesses are to neighbours, to one element, or to places that are computed.
    """
    (loop, *more) = loops
    body = loop.body
    plain = all(isinstance(s, Let | Set | Bind | Store) for s in body)
    if more or loop.step != 1 or not plain or len(body) > MOST:
        return None
    scalars = (y for s in body for x in scalars_of(s) for y in leaves(x))
    if any(map(chooses, scalars)) or _mixed(body):
        return None
    computed = {s.symbol for s in body if isinstance(s, Bind)}
    starts: dict[Dim, None] = {}
    sizes: set[int] = set()
    for b, offset, writes in _accesses(body):
        if dims.symbols_of(offset) & computed:
            continue
        step = slope(offset, loop.index)
        if step == 0 and not writes:
            continue
        if step != 1:
            return None
        starts[dims.substitute(offset, {loop.index: loop.start})] = None
        sizes.add(b.dtype.itemsize)
    if not sizes or any(
        isinstance(s, Store) and s.combine for s in _wide(loop, computed)
    ):
        return None
    count = min(BYTES // max(sizes), MOST_LANES)
    if any(isinstance(d, int) and d % count for d in starts):
        return None
    return Lanes(count, tuple(d for d in starts if not isinstance(d, int)))


def lanes_of_rows(
    body: Sequence[Inner], own: Collection[Buffer], changed: Collection[Symbol]
) -> Lanes | None:
    """Return lanes that the loops of a kernel have in common, where any has some.

    The first offsets are the same multiples for all values of the symbols that the
    kernel has `changed`: so an element of a row is the same thread's in all loops. So
    are those of the rows that blocks have of their `own`. See Note [lanes of rows].
    """
    found: list[Lanes] = []
    count = MOST_LANES
    for s in all_of(body):
        lanes = lanes_of([s]) if isinstance(s, Loop) else None
        if lanes is None or not isinstance(s, Loop):
            continue
        if lanes.count < MOST_LANES:
            return None
        found.append(lanes)
        places = {(b, d) for b, d, _ in _accesses(s.body) if slope(d, s.index) == 1}
        while count * len(places) > HELD:
            count //= 2
    if not found or count < 2:
        return None
    starts: dict[Dim, None] = {}
    for d in (*(d for x in found for d in x.starts), *(b.size for b in own)):
        terms = _terms(d, set(changed))
        if terms is None or any(isinstance(t, int) and t % count for t in terms):
            return None
        starts.update(dict.fromkeys(t for t in terms if not isinstance(t, int)))
    return Lanes(count, tuple(starts))


def _terms(d: Dim, changed: set[Symbol]) -> list[Dim] | None:
    """Return what a dim is a sum of, by the multiples of symbols; None: it is none."""
    terms: list[Dim] = []
    for s in sorted(dims.symbols_of(d) & changed, key=str):
        step = slope(d, s)
        more = None if step is None else _terms(step, changed)
        if more is None:
            return None
        terms += more
        d = dims.substitute(d, {s: 0})
    return [*terms, d]


def _loads(body: Sequence[Statement]) -> Iterator[Load]:
    for s in body:
        for x in scalars_of(s):
            yield from (y for y in leaves(x) if isinstance(y, Load))


def _accesses(body: Sequence[Statement]) -> Iterator[tuple[Buffer, Dim, bool]]:
    yield from ((y.buffer, y.offset, False) for y in _loads(body))
    yield from ((s.buffer, s.offset, True) for s in body if isinstance(s, Store))


def _runs(body: Sequence[Statement]) -> list[list[Statement]]:
    """Split a body where it touches what it has stored before."""
    runs: list[list[Statement]] = [[]]
    stored: set[Buffer] = set()
    for s in body:
        writes = roots([s], True)
        if meet(writes | roots([s], False), stored):
            runs.append([])
            stored.clear()
        runs[-1].append(s)
        stored |= writes
    return runs


def _wide(loop: Loop, computed: set[Symbol]) -> Iterator[Statement]:
    """Yield the stores to neighbours."""
    for s in loop.body:
        if isinstance(s, Store) and not dims.symbols_of(s.offset) & computed:
            yield s


def _carried(body: Sequence[Statement]) -> set[str]:
    """Return the variables that lanes hand on to each other."""
    variables = {s.name for s in body if isinstance(s, Set)}
    known: set[str] = set()
    found: set[str] = set()
    for s in body:
        read = {name for x in scalars_of(s) for name in names_in(x)}
        if isinstance(s, Set) and s.plus:
            read.add(s.name)
        found |= (read & variables) - known
        if isinstance(s, Let | Set):
            known.add(s.name)
    return found


def _mixed(body: Sequence[Statement]) -> bool:
    """Tell whether a variable that lanes hand on is read but by its own step."""
    carried = _carried(body)
    return any(
        name in carried and not (isinstance(s, Set) and s.name == name)
        for s in body
        for x in scalars_of(s)
        for name in names_in(x)
    )


def in_lanes(loop: Loop, lanes: Lanes) -> list[Inner]:
    """Return the body of a loop for neighbouring iterations, from its index on."""
    return list(_Body(loop, lanes.count).statements())


class _Body:
    def __init__(self, loop: Loop, count: int) -> None:
        self.loop = loop
        self.count = count
        self.bound = {s.symbol for s in loop.body if isinstance(s, Bind)}
        own = {s.name for s in loop.body if isinstance(s, Let | Set)}
        self.own = own - _carried(loop.body)
        self.loads = 0

    def statements(self) -> Iterator[Inner]:
        for run in _runs(self.loop.body):
            wide: dict[Scalar, str] = {}
            for y in _loads(run):
                if self.is_wide(y.offset) and y not in wide:
                    wide[y] = f"w{self.loads}{self.loop.index.name}"
                    self.loads += 1
                    yield WideLoad(wide[y], y.buffer, y.offset, self.count)
            stores = [s for s in run if isinstance(s, Store) and self.is_wide(s.offset)]
            for k in range(self.count):
                yield from (self.of(s, k, wide) for s in run if s not in stores)
            for s in stores:
                values = [self.scalar(s.value, k, wide) for k in range(self.count)]
                yield WideStore(s.buffer, s.offset, values)

    def is_wide(self, offset: Dim) -> bool:
        used = dims.symbols_of(offset)
        return self.loop.index in used and not used & self.bound

    def of(self, s: Statement, k: int, wide: dict[Scalar, str]) -> Statement:
        """Return a statement for one lane."""
        (value,) = scalars_of(s)
        x = self.scalar(value, k, wide)
        match s:
            case Store():
                return Store(s.buffer, self.dim(s.offset, k), x, s.combine)
            case Bind():
                return Bind(Symbol(lane(s.symbol.name, k)), x)
            case Set() if s.name not in self.own:
                return Set(s.name, x, s.plus)
            case Set():
                return Set(lane(s.name, k), x, s.plus)
            case Let():
                return Let(lane(s.name, k), x)
            case _:
                raise TypeError(f"{type(s).__name__} has no lanes")

    def dim(self, d: Dim, k: int) -> Dim:
        values: dict[Symbol, Dim] = {
            s: dims.symbol(lane(s.name, k)) for s in self.bound
        }
        index = self.loop.index
        return dims.substitute(d, {**values, index: dims.symbol(index.name) + k})

    def scalar(self, x: Scalar, k: int, wide: dict[Scalar, str]) -> Scalar:
        def leaf(y: Scalar) -> Scalar:
            match y:
                case Load():
                    if y in wide:
                        return Reg(lane(wide[y], k), y.dtype)
                    return Load(y.buffer, self.dim(y.offset, k), y.dtype)
                case At():
                    return At(self.dim(y.dim, k), y.dtype)
                case Reg() if y.name in self.own:
                    return Reg(lane(y.name, k), y.dtype)
                case _:
                    return y

        return rewrite(x, leaf)
