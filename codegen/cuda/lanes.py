"""Several neighbouring iterations at once, with accesses of 16 bytes.

    for i in 0..n            for q in 0..n/4
      r[i] = exp(x[i])         a, b, c, d = x[4*q .. 4*q + 3]
                               r[4*q .. 4*q + 3] = exp(a), exp(b), exp(c), exp(d)

A thread does as many iterations as fit into 16 bytes, its *lanes*: each statement for
all of them, then the next one. So an iteration may be of any number of lanes, and what
is left over at the end is done as before.

Note [aligned starts]
A wide access needs an address that is a multiple of its size. Buffers start at one; the
first offset into them has to be known as a multiple of the lanes, or the kernel looks
before it begins, and does all iterations one by one where it is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim, Symbol
from ..apart import slope
from ..nests import (
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
from .steps import Inner, Lanes, names_in

BYTES = 16  # of one access
MOST = 40  # statements that are worth being printed once per lane


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


def lanes_of(loops: Sequence[Loop]) -> Lanes | None:
    """Return the lanes of loops that are given to threads; None: one by one is better.

    All accesses are to neighbours, to one element, or to places that are computed.
    """
    (loop, *more) = loops
    body = loop.body
    plain = all(isinstance(s, Let | Set | Bind | Store) for s in body)
    if more or loop.step != 1 or not plain or len(body) > MOST:
        return None
    if _mixed(body):
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
    if not sizes or any(isinstance(s, Store) and s.plus for s in _wide(loop, computed)):
        return None
    count = BYTES // max(min(sizes), 4)
    if any(isinstance(d, int) and d % count for d in starts):
        return None
    return Lanes(count, tuple(d for d in starts if not isinstance(d, int)))


def _accesses(body: Sequence[Statement]) -> Iterator[tuple[Buffer, Dim, bool]]:
    for s in body:
        for x in scalars_of(s):
            for y in leaves(x):
                if isinstance(y, Load):
                    yield y.buffer, y.offset, False
        if isinstance(s, Store):
            yield s.buffer, s.offset, True


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
        for s in self.loop.body:
            wide: dict[Scalar, str] = {}
            for x in scalars_of(s):
                for y in leaves(x):
                    if isinstance(y, Load) and self.is_wide(y.offset) and y not in wide:
                        wide[y] = f"w{self.loads}"
                        self.loads += 1
                        yield WideLoad(wide[y], y.buffer, y.offset, self.count)
            yield from self.each(s, wide)

    def is_wide(self, offset: Dim) -> bool:
        used = dims.symbols_of(offset)
        return self.loop.index in used and not used & self.bound

    def each(self, s: Statement, wide: dict[Scalar, str]) -> Iterator[Inner]:
        """Yield a statement once per lane, or the wide store that it becomes."""
        (value,) = scalars_of(s)
        values = [self.scalar(value, k, wide) for k in range(self.count)]
        if isinstance(s, Store) and self.is_wide(s.offset):
            yield WideStore(s.buffer, s.offset, values)
            return
        for k, x in enumerate(values):
            match s:
                case Store():
                    yield Store(s.buffer, self.dim(s.offset, k), x, s.plus)
                case Bind():
                    yield Bind(Symbol(lane(s.symbol.name, k)), x)
                case Let():
                    yield Let(lane(s.name, k), x)
                case Set():
                    name = lane(s.name, k) if s.name in self.own else s.name
                    yield Set(name, x, s.plus)

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
