"""Order and tiles of loops whose accesses disagree on what lies side by side.

    for i in 0..n                        for I in 0..(n + 31)//32
      for j in 0..m                        for J in 0..(m + 31)//32
        r[i*m + j] = a[j*n + i]              for i in 32*I..min(32*I + 32, n)
                                               for j in 32*J..min(32*J + 32, m)
                                                 r[i*m + j] = a[j*n + i]

Innermost is the loop along which most accesses go from an element to the next one. If
another loop has such accesses, too, both go by tiles, so that what one iteration brings
into the cache is used before it leaves. `a + b.T`: as fast as without tiles at 1000 x
1000, 2 times at 2000 x 2000, 2.8 times at 2048 x 2048, 3.6 times at 4096 x 4096. Where
there are sums a tile is one of their blocks.

Note [any order]
Loops change places only where no iteration reads what another one writes, and no two
write the same element; folds must run over all loops. Nothing may be counted or checked
on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.dims import Dim
from .folds import Axis, Reduce
from .nests import Let, Load, Loop, Scalar, Statement, Store, leaves, scalars_of

if TYPE_CHECKING:
    from .kernels import Lowering

TILE = 32
SUMMED = 8  # rows of a tile of which a sum is taken: it is a block of the sum


@dataclass(slots=True)
class Tiling:
    """The loops of a nest in order; the last two by tiles if `tiled`."""

    axes: list[Axis]
    tiled: bool = False

    def loops(
        self,
        low: Lowering,
        body: list[Statement],
        opening: Sequence[Statement],
        closing: Sequence[Statement],
    ) -> list[Statement]:
        """Put the tiled loops around a body; the others are left to the caller."""
        first, second = self.axes[-2:]
        rows = SUMMED if opening else TILE
        (s, i), (t, j) = low.symbol("t"), low.symbol("t")
        inner = _of_tile(first, rows, i, [_of_tile(second, TILE, j, body)])
        tile = [*opening, inner, *closing]
        return [
            Loop(
                s,
                0,
                _tiles(first, rows),
                1,
                [Loop(t, 0, _tiles(second, TILE), 1, tile)],
            ),
        ]


def _tiles(a: Axis, length: int) -> Dim:
    return dims.floordiv(dims.add(a.size, length - 1), length)


def _of_tile(a: Axis, length: int, tile: Dim, body: list[Statement]) -> Loop:
    start = dims.mul(tile, length)
    stop = dims.minimum(dims.add(start, length), a.size)
    return Loop(a.symbol, start, stop, 1, body)


def tiling(
    axes: Sequence[Axis], body: Sequence[Statement], reductions: Sequence[Reduce]
) -> Tiling:
    """Return how loops around a body run best; as they stand where that is fixed."""
    as_is = Tiling([*axes])
    if len(axes) < 2 or not _any_order(axes, body, reductions):
        return as_is
    weights = {a.symbol: 0 for a in axes}
    for offset in _offsets(body, reductions):
        slopes = {a.symbol: slope(offset, a) for a in axes}
        if sum(by != 0 for by in slopes.values()) > 1:  # else it is a load per row
            for a, by in slopes.items():
                weights[a] += by == 1
    # The last of the best is innermost: with equal weights nothing moves.
    order = sorted(axes, key=lambda a: weights[a.symbol])
    if not weights[order[-1].symbol]:
        return as_is
    inner, outer = order[-1], order[-2]
    tiled = weights[outer.symbol] > 0
    moved = [inner] if not tiled else [outer, inner]
    rest = [a for a in axes if a not in moved]
    return Tiling([*rest, *moved], tiled)


def slope(d: Dim, a: Axis) -> Dim:
    """Return by how much an offset grows with a loop."""
    zero, one = (dims.substitute(d, {a.symbol: k}) for k in (0, 1))
    return dims.add(one, dims.mul(zero, -1))


def _loads(body: Sequence[Statement], reductions: Sequence[Reduce]) -> Iterator[Load]:
    every: list[Scalar] = [x for s in body for x in scalars_of(s)]
    for r in reductions:
        every += [r.value] if r.first is None else [r.value, r.first]
    yield from (y for x in every for y in leaves(x) if isinstance(y, Load))


def _offsets(body: Sequence[Statement], reductions: Sequence[Reduce]) -> Iterator[Dim]:
    """Yield the offset of every access, once for each element."""
    yield from {x.offset for x in _loads(body, reductions)}
    yield from (s.offset for s in body if isinstance(s, Store))


def _any_order(
    axes: Sequence[Axis], body: Sequence[Statement], reductions: Sequence[Reduce]
) -> bool:
    """See Note [any order]."""
    if not all(isinstance(s, Let | Store) for s in body):
        return False
    if any(a.step != 1 for a in axes):
        return False
    if any(len(r.over) < len(axes) for r in reductions):
        return False
    written = {s.buffer.alias: s for s in body if isinstance(s, Store)}
    if len(written) < sum(isinstance(s, Store) for s in body) or -1 in written:
        return False
    return all(
        x.buffer.alias not in written or _same(x, written[x.buffer.alias])
        for x in _loads(body, reductions)
    )


def _same(x: Load, s: Store) -> bool:
    return x.buffer is s.buffer and x.offset == s.offset
