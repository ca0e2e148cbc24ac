"""Boxes: bounds of the part of an array that a chain of views touches.

A box has a first and a last index per axis, as dims. It contains what is touched and
may contain more; an axis about which nothing is known is in it as a whole. Two boxes
that are apart in one axis share no element.

    select(%a, i); slice(., 0) {size=j}     with j in 0..i:    [i..i, 0..i - 2]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..ir import dims
from ..ir.access import base_index, index_dims, part_type, view_of
from ..ir.dims import Call, Dim, Facts, Symbol
from ..ir.func import Node, type_of
from ..ir.op import Kind
from ..ir.types import Type

Box: TypeAlias = tuple[tuple[Dim, Dim], ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that a symbol takes: from `low` to `high`, both included."""

    symbol: Symbol
    low: Dim
    high: Dim

    @staticmethod
    def of(loop: Node) -> Bounds | None:
        """Return the bounds of the index of a `for`, if the direction is known."""
        a = loop.attrs
        index, step = dims.as_symbol(a["index"]), a["step"]
        if index is None or not isinstance(step, int):
            return None
        if step > 0:
            return Bounds(index, a["start"], dims.add(a["stop"], -1))
        return Bounds(index, dims.add(a["stop"], 1), a["start"])


def extreme(d: Dim, over: Bounds, *, top: bool) -> Dim | None:
    """Return a bound of `d` over the values of a symbol; None where none is found."""
    if over.symbol not in dims.symbols_of(d):
        return d
    assert not isinstance(d, int)
    total: Dim = 0
    for monomial, c in d.terms:
        term: Dim | None = dims.Expr(((monomial, 1),)) if monomial else 1
        assert term is not None
        if over.symbol in dims.symbols_of(term):
            if len(monomial) != 1:
                return None
            (atom,) = monomial
            upwards = (c > 0) == top
            if isinstance(atom, Symbol):
                term = over.high if upwards else over.low
            else:
                term = _extreme_of_call(atom, over, top=upwards)
        if term is None:
            return None
        total = dims.add(total, dims.mul(term, c))
    return total


def _extreme_of_call(call: Call, over: Bounds, *, top: bool) -> Dim | None:
    args = [extreme(x, over, top=top) for x in call.args]
    found = [x for x in args if x is not None]
    if len(found) < len(args):
        return None
    if call.kind == "floordiv":
        by = call.args[1]
        positive = isinstance(by, int) and by > 0
        return dims.floordiv(found[0], by) if positive else None
    return dims.maximum(*found) if call.kind == "max" else dims.minimum(*found)


def whole(t: Type) -> Box:
    """Return the box of all of an array."""
    return tuple((0, dims.add(d, -1)) for d in t.shape)


def box_of(
    chain: Sequence[Node],
    inner: Sequence[Bounds] = (),
    unknown: Collection[Symbol] = (),
) -> Box:
    """Return what a chain of views, or of nested scatters, touches of its first base.

    Symbols of loops are replaced by their bounds, innermost loop first; an axis whose
    index then still mentions one of the symbols `unknown`, or a computed index, is
    touched as a whole.
    """
    root = type_of(chain[0].operands[0])
    if any(view_of(n).kind is not Kind.VIEW for n in chain):
        return whole(root)
    last = chain[-1]
    scatter = last.op.kind is Kind.SCATTER
    shape = part_type(last).shape if scatter else last.result.type.shape
    points = [Symbol(f"@{k}") for k in range(len(shape))]
    index: tuple[Dim, ...] = tuple(dims.symbol(s.name) for s in points)
    for node in reversed(chain):
        index = base_index(node, index, index_dims(node))
    over = [Bounds(s, 0, dims.add(d, -1)) for s, d in zip(points, shape, strict=True)]
    every = (*over, *inner)
    axes = zip(index, root.shape, strict=True)
    return tuple(_axis(d, size, every, unknown) for d, size in axes)


def _axis(
    d: Dim, size: Dim, over: Sequence[Bounds], unknown: Collection[Symbol]
) -> tuple[Dim, Dim]:
    ends = []
    for top in (False, True):
        end: Dim | None = d
        for bounds in over:
            end = None if end is None else extreme(end, bounds, top=top)
        if end is None or any(_is_open(s, unknown) for s in dims.symbols_of(end)):
            return 0, dims.add(size, -1)
        ends.append(end)
    return ends[0], ends[1]


def _is_open(s: Symbol, unknown: Collection[Symbol]) -> bool:
    return s in unknown or s.name[0] in "@%"


def moved(box: Box, values: Mapping[Symbol, Dim]) -> Box:
    """Return a box with symbols replaced."""
    return tuple(
        (dims.substitute(a, values), dims.substitute(b, values)) for a, b in box
    )


def apart(a: Box, b: Box, facts: Facts) -> bool:
    """Tell whether two boxes of one array certainly share no element."""
    return any(
        facts.proves(dims.add(dims.add(low, dims.mul(high, -1)), -1))
        for (a_low, a_high), (b_low, b_high) in zip(a, b, strict=True)
        for low, high in ((a_low, b_high), (b_low, a_high))
    )
