"""Piecewise sums: arrays as sums of other arrays, each shifted and counted in a box.

What a chain of slices, scatters into slices and additions computes is read off as a
list of pieces. A piece is an array, where its first element lies, the box in which it
counts, and a box in which it does not. Boxes are exact, and everything about them is
proven: a node whose boxes the facts leave open is not read, and stands for itself.

    %a: f64[n] = slice_scatter %d, 0, 1 {axis=0, size=n - 2, step=1}
    %b: f64[n] = slice_scatter_add %a, %g, 2 {axis=0, size=n - 2, step=1}

    %b = %d from 0, in 0..n but not in 1..n - 1, plus %g from 2, in 2..n
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..ir import dims
from ..ir import ops as _ops  # noqa: F401  (the records used below must exist)
from ..ir.access import view_of, writes_part
from ..ir.dims import Dim, Facts
from ..ir.func import Block, Node, Operand, Value, type_of
from ..ir.op import OPS, Kind
from ..ir.types import Shape
from .rules import is_dim, is_number, same_place
from .scope import values_of, with_operands

SLICE, FULL = (OPS[k] for k in ("slice", "full"))
MANY = 48  # pieces, above which a sum stands for itself: the work grows with them
DEEP = 3  # additions that are taken apart to find what was taken out of a sum


@dataclass(frozen=True, slots=True)
class Box:
    """The elements from `start` on and before `stop`, along every axis."""

    start: Shape
    stop: Shape

    @staticmethod
    def whole(shape: Shape) -> Box:
        return Box((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> Shape:
        ends = zip(self.start, self.stop, strict=True)
        return tuple(dims.add(b, dims.mul(a, -1)) for a, b in ends)

    def moved(self, by: Sequence[Dim]) -> Box:
        return Box(moved(self.start, by), moved(self.stop, by))


def moved(index: Sequence[Dim], by: Sequence[Dim]) -> Shape:
    return tuple(dims.add(a, b) for a, b in zip(index, by, strict=True))


def gaps(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return a - b, axis by axis."""
    return tuple(dims.add(x, dims.mul(y, -1)) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class Piece:
    """An array whose element 0 lies at `at`; it counts in `box` and not in `hole`."""

    value: Value
    at: Shape
    box: Box
    hole: Box | None = None
    negated: bool = False

    def moved(self, by: Sequence[Dim]) -> Piece:
        hole = self.hole and self.hole.moved(by)
        at, box = moved(self.at, by), self.box.moved(by)
        return replace(self, at=at, box=box, hole=hole)

    def negative(self) -> Piece:
        return replace(self, negated=not self.negated)


Sum: TypeAlias = tuple[Piece, ...]


def _moved(pieces: Sum, window: Box) -> Sum:
    return tuple(p.moved(window.start) for p in pieces)


class _OpenError(Exception):
    """The facts do not say how two boxes lie."""


class Sums:
    """The piecewise sums of the nodes of one block; `leaves` stand for themselves."""

    def __init__(
        self,
        nodes: Sequence[Node],
        facts: Facts,
        leaves: Collection[Value] = (),
        proven: dict[tuple[Dim, Dim], bool] | None = None,
    ) -> None:
        self.facts = facts
        self.proven = {} if proven is None else proven
        self.leaves = leaves
        self.node_of = {v: n for n in nodes for v in n.results}
        self.known: dict[Value, Sum] = {}
        # Of which arrays a value is a box, with what has been added to it.
        self.parts: dict[Value, dict[Value, tuple[Box, Sum]]] = {}
        self.open: set[Value] = set()  # boxes of sums: which pieces lie in them is open
        for n in nodes:
            if len(n.results) == 1 and n.result.type.shape:
                self._note(n)

    def _note(self, n: Node) -> None:
        try:
            found = self._read(n)
        except _OpenError:
            if n.op.kind is Kind.VIEW:
                self.open.add(n.result)
            return
        if found is not None and len(found) <= MANY:
            self.known[n.result] = found

    def of(self, v: Value) -> Sum:
        """Return the sum that a value is as an operand: perhaps only itself."""
        if v in self.known and v not in self.leaves:
            return self.known[v]
        shape = v.type.shape
        return (Piece(v, (0,) * len(shape), Box.whole(shape)),)

    def is_plain(self, v: Value) -> bool:
        """Tell whether every piece of a sum counts everywhere."""
        whole = Box.whole(v.type.shape)
        return all(p.box == whole and p.hole is None for p in self.of(v))

    # Reading nodes ----------------------------------------------------------------

    def _read(self, n: Node) -> Sum | None:
        x = n.operands[0] if n.operands else None
        if n.op is FULL:
            return () if is_number(n.operands[0], 0) else None
        if len(n.op.signs) == 2:
            return self._added(n)
        if view_of(n) is not SLICE or not isinstance(x, Value):
            return None
        window = self._window(n, type_of(x).shape)
        if window is None:
            return None
        if n.op.kind is Kind.VIEW:
            self.parts[n.result] = {x: (window, ())}
            back = tuple(dims.mul(d, -1) for d in window.start)
            return tuple(p.moved(back) for p in self._clipped(self.of(x), window))
        return self._scattered(n, x, window)

    def _window(self, n: Node, shape: Shape) -> Box | None:
        """Return the box of its base that a slice or its twin touches, if in range."""
        start, axis = n.operands[-1], n.attrs["axis"]
        if not is_dim(start) or n.attrs.get("step", 1) != 1:
            return None
        assert isinstance(start, int | dims.Expr)
        stop = dims.add(start, n.attrs["size"])
        if not (self._most(start, 0) and self._most(shape[axis], stop)):
            return None
        box = Box.whole(shape)
        at = (*box.start[:axis], start, *box.start[axis + 1 :])
        return Box(at, (*shape[:axis], stop, *shape[axis + 1 :]))

    def _scattered(self, n: Node, x: Value, window: Box) -> Sum | None:
        new = n.operands[1]
        if isinstance(new, Value):
            if new.type.dtype != x.type.dtype or new.type.shape != window.shape:
                return None
            more = self._more(n, x, new, window)
            if not n.op.accumulates:
                self.parts.setdefault(new, {})[n.result] = (window, ())
            if more is not None:
                around = self.parts.get(x, {}).items()
                self.parts[n.result] = {y: (w, (*s, *more)) for y, (w, s) in around}
                return self._joined(self.of(x), more)
        under = self.of(x)
        if not n.op.accumulates:
            under = tuple(self._without(under, window))
        if is_number(new, 0):
            return under
        if not isinstance(new, Value):
            return None
        return self._joined(under, _moved(self.of(new), window))

    def _more(self, n: Node, x: Value, new: Value, window: Box) -> Sum | None:
        """Return what a scatter adds to its base, if that is all it does."""
        if n.op.accumulates:
            return _moved(self.of(new), window)
        box, more = self.parts.get(new, {}).get(x, (None, ()))
        if box != window or new in self.leaves:
            return None
        return _moved(more, window)

    def _added(self, n: Node) -> Sum | None:
        x, y = n.operands
        if is_number(y, 0) and isinstance(x, Value) and x.type == n.result.type:
            return self.of(x)  # up to the sign of a zero
        halves = self._halves(n.result)
        if halves is None or all(self.is_plain(v) for v, _ in halves):
            return None
        found: Sum = ()
        for v, negated in halves:
            new = self.of(v)
            found = self._joined(
                found, tuple(p.negative() if negated else p for p in new)
            )
        return found

    def _halves(self, v: Value) -> tuple[tuple[Value, bool], ...] | None:
        """Return what is added to make a value, and whether it is negated."""
        n = self.node_of.get(v)
        if n is None or len(n.op.signs) != 2:
            return None
        a, b = n.operands
        if not (isinstance(a, Value) and isinstance(b, Value)):
            return None
        if not a.type.array() == b.type.array() == v.type.array():
            return None
        return tuple((x, sign < 0) for x, sign in zip((a, b), n.op.signs, strict=True))

    # Sums of sums -----------------------------------------------------------------

    def _joined(self, under: Sum, new: Sum) -> Sum:
        for p in new:
            parts = [p]
            refilled = self._refilled(under, p)
            if refilled is None:
                for parts in self._taken_apart(p, DEEP):
                    refilled = self._refilled(under, parts[0])
                    if refilled is not None:
                        break
            if refilled is None:
                under = (*under, p)
            else:
                under = (*refilled, *parts[1:])
        return under

    def _refilled(self, under: Sum, p: Piece) -> Sum | None:
        """Return a sum with `p` in the hole that it fits, or None."""
        for k, q in enumerate(under):
            if q.hole is not None and replace(p, box=q.box, hole=q.hole) == q:
                if self._within(p.box, q.box) and self._fills(p.box, q.box, q.hole):
                    return (*under[:k], replace(q, hole=p.hole), *under[k + 1 :])
        return None

    def _fills(self, box: Box, around: Box, hole: Box) -> bool:
        try:
            return hole == box or self._common(around, hole) == box
        except _OpenError:
            return False

    def _taken_apart(self, p: Piece, depth: int) -> Iterator[list[Piece]]:
        """Yield ways to write a piece as a view, first, and what is added to it."""
        halves = self._halves(p.value) if depth and not p.negated else None
        if halves is None:
            return
        parts = [replace(p, value=v, negated=sign) for v, sign in halves]
        for one, other in (parts, parts[::-1]):
            seen = self.of(one.value)
            if len(seen) == 1 and self.is_plain(one.value):
                at = moved(seen[0].at, one.at)
                view = replace(one, value=seen[0].value, at=at)
                yield [view, other]
            for first, *rest in self._taken_apart(one, depth - 1):
                yield [first, *rest, other]

    # Boxes ------------------------------------------------------------------------

    def _clipped(self, pieces: Sum, window: Box) -> Iterator[Piece]:
        for p in pieces:
            box = self._common(p.box, window)
            if box is None:
                continue
            hole = self._common(p.hole, window) if p.hole else None
            if hole is None or not self._within(box, hole):
                yield replace(p, box=box, hole=hole)

    def _without(self, pieces: Sum, window: Box) -> Iterator[Piece]:
        for p in pieces:
            if self._apart(p.box, window) or p.hole == window:
                yield p
            elif self._within(p.box, window):
                continue
            elif p.hole is None or self._within(p.hole, window):
                yield replace(p, hole=window)
            else:
                raise _OpenError

    def _most(self, a: Dim, b: Dim) -> bool:
        """Tell whether a >= b is proven."""
        if isinstance(a, int) and isinstance(b, int):
            return a >= b
        known = self.proven.get((a, b))
        if known is None:
            gap = dims.add(a, dims.mul(b, -1))
            known = gap >= 0 if isinstance(gap, int) else self.facts.proves(gap)
            self.proven[a, b] = known
        return known

    def _larger(self, a: Dim, b: Dim) -> Dim:
        if self._most(a, b):
            return a
        if self._most(b, a):
            return b
        raise _OpenError

    def _smaller(self, a: Dim, b: Dim) -> Dim:
        return b if self._larger(a, b) == a else a

    def _common(self, a: Box, b: Box) -> Box | None:
        """Return what two boxes share, or None where that is nothing."""
        if self._apart(a, b):
            return None
        start = tuple(map(self._larger, a.start, b.start))
        stop = tuple(map(self._smaller, a.stop, b.stop))
        if not all(map(self._most, stop, start)):
            raise _OpenError
        return Box(start, stop)

    def is_same_in(self, box: Box, a: Box, b: Box) -> bool:
        """Tell whether two boxes share the same elements with a third."""
        try:
            return self._common(box, a) == self._common(box, b)
        except _OpenError:
            return False

    def _apart(self, a: Box, b: Box) -> bool:
        return any(map(self._most, a.start, b.stop)) or any(
            map(self._most, b.start, a.stop)
        )

    def _within(self, a: Box, b: Box) -> bool:
        starts = all(map(self._most, a.start, b.start))
        return starts and all(map(self._most, b.stop, a.stop))


def taken_together(block: Block) -> Block:
    """Return a block in which no part is put back to be taken out again at once.

    So all that is added to a row, one write after the other, is seen to be one sum.
    """
    made: dict[Operand, Node] = {}
    swap: dict[Value, Operand] = {}
    nodes: list[Node] = []
    for n in block.nodes:
        n = with_operands(n, swap)
        under = made.get(n.operands[0]) if n.operands else None
        if under is not None and under.op.of == n.op.name and _shows(n, under):
            swap[n.result] = under.operands[1]
            continue
        if under is not None and under.op is n.op and same_place(n, under, 2):
            if writes_part(n) and not n.op.accumulates:
                n.operands = (under.operands[0], *n.operands[1:])
        nodes.append(n)
        made.update(dict.fromkeys(n.results, n))
    results = [swap.get(x, x) if isinstance(x, Value) else x for x in block.results]
    used: set[Operand] = set(results)
    kept: list[Node] = []
    for n in reversed(nodes):
        if not writes_part(n) or n.result in used:
            kept.append(n)
            used.update(values_of(n))
    return Block(block.params, tuple(kept[::-1]), tuple(results))


def _shows(view: Node, under: Node) -> bool:
    """Tell whether a view gives back just what a scatter put."""
    if not writes_part(under) or under.op.accumulates:
        return False
    new = under.operands[1]
    same = isinstance(new, Value) and new.type == view.result.type
    return same and same_place(view, under, 1)


Users: TypeAlias = dict[Value, list[Node]]


def uses_of(nodes: Sequence[Node]) -> Users:
    """Return the nodes that use each value as an operand."""
    found: Users = {}
    for n in nodes:
        for x in dict.fromkeys(n.operands):
            if isinstance(x, Value):
                found.setdefault(x, []).append(n)
    return found
