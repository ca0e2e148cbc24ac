"""Groups of pieces whose boxes are nearly the same, and what is read for them.

A group is computed over the hull of its boxes, or over the hole that all of them share
and rims around it. What a piece does not cover there is read from a copy of its value
between zeros; `Paddings` says which copies, and how many zeros.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts
from ..ir.func import Node, Value
from ..ir.op import Kind
from ..ir.types import Shape
from .pieces import Box, Piece, Sum, Sums, gaps, moved
from .rules import is_number

SMALL = 32  # elements below which a group stays as it is, where the size is known
CHEAP = 3  # flops that may be done again at every shift to share a padded copy


@dataclass(frozen=True, slots=True)
class Group:
    """How a sum is computed: `pieces` over `core`, some over rims, the rest alone."""

    shape: Shape
    base: Piece | None
    core: Box
    pieces: tuple[Piece, ...]
    hole: Box | None
    rims: tuple[tuple[Box, tuple[Piece, ...]], ...]
    alone: tuple[Piece, ...]

    def reads(self) -> Iterator[tuple[Piece, Box]]:
        """Yield the pieces with the boxes they are read for."""
        yield from ((p, self.core) for p in self.inside())
        yield from ((p, p.box) for p in self.alone)
        for box, pieces in self.rims:
            yield from ((p, box) for p in pieces)

    def inside(self) -> tuple[Piece, ...]:
        return tuple(p for p in self.pieces if p.hole is None)


def group_of(v: Value, sums: Sums) -> Group | None:
    """Return how to compute a sum at once, or None where that does not pay."""
    whole = Box.whole(v.type.shape)
    pieces = _with_one_hole(sums.known[v], sums)
    at = next((k for k, p in enumerate(pieces) if _is_base(p, v)), None)
    base = None if at is None else pieces[at]
    rest = tuple(p for k, p in enumerate(pieces) if k != at)
    if len(rest) < 2 or all(p.box == whole and p.hole is None for p in pieces):
        return None
    holes = {p.hole for p in pieces if p.hole is not None}
    if len(holes) > 1:
        return None
    hole = next(iter(holes), None)
    near = _largest_class(rest) if hole is None else _near(hole, rest)
    alone = tuple(p for p in rest if p not in near)
    core = hole or _hull([p.box for p in near])
    if len(near) < 2 or any(p.hole for p in alone) or _is_small(core):
        return None
    rims = _rims(core, near) if hole else ()
    return Group(v.type.shape, base, core, near, hole, tuple(rims), alone)


def _with_one_hole(pieces: Sum, sums: Sums) -> Sum:
    """Return the pieces with the same hole, where one does for all that have one."""
    holes = {p.hole: None for p in pieces if p.hole is not None}
    for hole in holes if len(holes) > 1 else ():
        if all(p.hole is None or sums.is_same_in(p.box, p.hole, hole) for p in pieces):
            return tuple(replace(p, hole=p.hole and hole) for p in pieces)
    return pieces


def _is_base(p: Piece, v: Value) -> bool:
    """Tell whether a piece is an array that the sum can be computed in."""
    whole = Box.whole(v.type.shape)
    same = p.value.type == v.type.array() and p.box == whole and p.at == whole.start
    return same and not p.negated


def _is_small(core: Box) -> bool:
    count = dims.product(core.shape)
    return isinstance(count, int) and count < SMALL


def _class_of(box: Box) -> Shape:
    """Return what boxes have in common whose ends all differ by numbers."""
    return tuple(map(dims.without_constant, (*box.start, *box.stop)))


def _near(ref: Box, pieces: Sum) -> Sum:
    """Return the pieces whose boxes differ from `ref` by numbers at every end."""
    own = _class_of(ref)
    return tuple(p for p in pieces if _class_of(p.box) == own)


def _largest_class(pieces: Sum) -> Sum:
    classes: dict[Shape, list[Piece]] = {}
    for p in pieces:
        classes.setdefault(_class_of(p.box), []).append(p)
    largest: list[Piece] = max(classes.values(), key=len)
    return tuple(largest)


def _hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box around boxes that are near each other."""
    first = boxes[0]
    starts = zip(*(_ints(b.start, first.start) for b in boxes), strict=True)
    stops = zip(*(_ints(b.stop, first.stop) for b in boxes), strict=True)
    low, high = [min(d) for d in starts], [max(d) for d in stops]
    return Box(moved(first.start, low), moved(first.stop, high))


def _ints(a: Sequence[Dim], b: Sequence[Dim]) -> list[int]:
    found = gaps(a, b)
    assert all(isinstance(d, int) for d in found)
    return [d for d in found if isinstance(d, int)]


def _rims(core: Box, pieces: Sum) -> Iterator[tuple[Box, Sum]]:
    """Yield the boxes around the core, with what reaches there; see Note [rims]."""
    for axis in range(len(core.start)):
        for above in (False, True):
            beyond = [p for p in pieces if _reaches(p, core, axis, above)]
            if beyond:
                hull = _hull([p.box for p in beyond])
                start = [*core.start[:axis], *hull.start[axis:]]
                stop = [*core.stop[:axis], *hull.stop[axis:]]
                if above:
                    start[axis] = core.stop[axis]
                else:
                    stop[axis] = core.start[axis]
                yield Box(tuple(start), tuple(stop)), tuple(beyond)


def _reaches(p: Piece, core: Box, axis: int, above: bool) -> bool:
    if above:
        return _ints(p.box.stop, core.stop)[axis] > 0
    return _ints(p.box.start, core.start)[axis] < 0


# ---------------------------------------------------------------- padded copies


Ends: TypeAlias = tuple[list[int], list[int]]  # at the low and high end of each axis


@dataclass(frozen=True, slots=True)
class Part:
    """What is read of a value: all of it, or a box."""

    value: Value
    box: Box

    def beyond(self, region: Box, facts: Facts) -> Ends:
        """Return how far a region, in the value's indices, goes beyond each end."""
        here, there = self.box, region
        low = gaps(here.start, there.start), gaps(here.stop, there.start)
        high = gaps(there.stop, here.stop), gaps(there.stop, here.start)
        return (
            [_most(a, b, facts) for a, b in zip(*low, strict=True)],
            [_most(a, b, facts) for a, b in zip(*high, strict=True)],
        )


def _most(gap: Dim, if_empty: Dim, facts: Facts) -> int:
    """Return by how much an end is exceeded, at most: what it is for an empty part."""
    if isinstance(gap, int):
        return max(gap, 0)
    if facts.proves(dims.mul(gap, -1)):
        return 0
    assert isinstance(if_empty, int)
    return max(if_empty, 0)


def back(at: Shape) -> Shape:
    """Return the move from indices of a sum to those of a value that lies at `at`."""
    return tuple(dims.mul(d, -1) for d in at)


def part_of(p: Piece, group: Group) -> Part:
    """Return the part of its value that a piece adds, as a box of the value.

    Where the sum ends before the value does, the value is not cut: nothing is read
    there, and parts that are equal can share a padded copy.
    """
    start, stop = [], []
    for k, size in enumerate(p.value.type.shape):
        low, high = p.at[k], dims.add(p.at[k], size)
        cut = p.box.start[k] != 0 or _far(low, group.core.start[k])
        start.append(dims.add(p.box.start[k], dims.mul(low, -1)) if cut else 0)
        cut = p.box.stop[k] != group.shape[k] or _far(high, group.core.stop[k])
        stop.append(dims.add(p.box.stop[k], dims.mul(low, -1)) if cut else size)
    return Part(p.value, Box(tuple(start), tuple(stop)))


def _far(a: Dim, b: Dim) -> bool:
    return not isinstance(dims.add(a, dims.mul(b, -1)), int)


@dataclass(slots=True)
class Padding:
    """How many zeros a part needs at its ends, and the copy that has them."""

    low: list[int]
    high: list[int]
    copy: Value | None = None

    @staticmethod
    def none(ndim: int) -> Padding:
        return Padding([0] * ndim, [0] * ndim)

    def cover(self, ends: Iterable[Ends]) -> None:
        for low, high in ends:
            self.low = list(map(max, self.low, low))
            self.high = list(map(max, self.high, high))


class Paddings:
    """The padded copies that the groups of a block read; shared where possible."""

    def __init__(self, groups: Iterable[Group], sums: Sums) -> None:
        self.node_of = sums.node_of
        self.source: dict[Part, Part] = {}
        self.found: dict[Part, Padding] = {}
        ends: dict[Part, list[Ends]] = {}
        for group in groups:
            for p, region in group.reads():
                part = part_of(p, group)
                end = part.beyond(region.moved(back(p.at)), sums.facts)
                ends.setdefault(part, []).append(end)
        needy = [part for part, e in ends.items() if any(map(any, itertools.chain(*e)))]
        wanted = Counter(s for part in needy for s in self.sources(part))
        for part in needy:
            shared = (s for s in self.sources(part) if wanted[s] > 1)
            self.source[part] = source = next(shared, part)
            padding = self.found.setdefault(source, Padding.none(len(part.box.start)))
            padding.cover(ends[part])
        for part in ends:  # read from a copy that is there anyway
            padded = (s for s in self.sources(part) if s in self.found)
            self.source.setdefault(part, next(padded, part))

    def sources(self, part: Part) -> Iterator[Part]:
        """Yield the part, and parts that it can be computed from after padding."""
        yield part
        v, cost = part.value, 0
        while (step := cheap_step(self.node_of.get(v))) is not None:
            node, v = step
            cost += node.op.cost
            if cost > CHEAP:
                return
            yield replace(part, value=v)

    def shape(self, source: Part) -> Shape:
        """Return the shape of the padded copy of a part."""
        padding = self.found[source]
        return moved(moved(source.box.shape, padding.low), padding.high)


def cheap_step(n: Node | None) -> tuple[Node, Value] | None:
    """Return a node that maps zero to zero, element by element, and its operand."""
    if n is None or n.op.kind is not Kind.ELEMENTWISE or n.attrs:
        return None
    values = [x for x in n.operands if isinstance(x, Value)]
    if len(values) != 1 or any(isinstance(x, Expr) for x in n.operands):
        return None
    (v,) = values
    if v.type.array() != n.result.type.array() or v.type.dtype.kind != "f":
        return None
    zero = np.zeros((), v.type.dtype)
    with np.errstate(all="ignore"):
        image = n.op.eager(*(zero if x is v else x for x in n.operands))
    return (n, v) if is_number(abs(float(image)), 0.0) else None
