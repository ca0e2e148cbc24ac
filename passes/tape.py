"""Tapes: what a loop saves for its reverse.

A tape is an array with one entry per iteration, which the forward loop writes as an
extra carry. `sources.py` decides what is saved.

Note [entries that grow]
Where one side of the entries depends on the loop's index, they lie side by side along
it: those of a triangle take half of a square. Where an entry starts is a polynomial of
the index. That needs linear sides, and no loop around, whose own tape of this tape
would have to know its largest size. Elsewhere, an entry lies in a box of the largest
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir import dims
from ..ir.dims import Dim
from ..ir.func import Node, Operand, Value
from ..ir.op import OPS
from .ranges import Range
from .scope import ScopedBuilder


@dataclass(frozen=True, slots=True)
class Tape:
    """What the reverse of a loop saves: bytes of an entry, and the number of entries.

    Neither depends on loops around it; `entry` is None where it has no such bound.
    `uneven` are the bytes of entries that lie side by side, all together.
    """

    loop: Node
    entry: Dim | None
    capacity: Dim | None
    uneven: Dim = 0

    @property
    def size(self) -> Dim | None:
        """The number of bytes."""
        if self.entry is None or self.capacity is None:
            return None
        return dims.add(dims.mul(self.entry, self.capacity), self.uneven)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the entries of a tape lie in it: the shape of the tape, and where one starts.

    One behind the other along the first axis, each in a box, or side by side along an
    axis of their own.
    """

    shape: tuple[Dim, ...]
    start: Dim
    side: int | None = None

    @staticmethod
    def stacked(loop: Range, capacity: Dim, box: Sequence[Dim]) -> Layout:
        return Layout((capacity, *box), loop.position())

    @staticmethod
    def side_by_side(b: ScopedBuilder, loop: Range, v: Value) -> Layout | None:
        """Return the layout of Note [entries that grow], if there is one."""
        index = dims.as_symbol(loop.index)
        shape = v.type.shape
        varies = [k for k, d in enumerate(shape) if index in dims.symbols_of(d)]
        if len(varies) != 1:
            return None
        (k,) = varies
        sums = loop.sums(b, shape[k])
        if sums is None:
            return None
        start, total = sums
        return Layout((*shape[:k], total, *shape[k + 1 :]), start, k)


def entry_views(v: Value, box: Sequence[Dim]) -> list[int]:
    """Return the axes along which `v` is smaller than the box that it lies in."""
    return [k for k, (d, e) in enumerate(zip(v.type.shape, box, strict=True)) if d != e]


def store(b: ScopedBuilder, tape: Value, v: Value, layout: Layout) -> Operand:
    """Append the nodes that write `v` into its entry; returns the new tape."""
    new: Operand = v
    if layout.side is not None:
        cut = {"axis": layout.side, "size": v.type.shape[layout.side], "step": 1}
        return b.slice_scatter(tape, new, layout.start, **cut)  # type: ignore[no-any-return]
    axes = entry_views(v, layout.shape[1:])
    if axes:
        parts = [b.select(tape, layout.start, axis=0)]
        cuts = [{"axis": k, "size": v.type.shape[k], "step": 1} for k in axes]
        for cut in cuts[:-1]:
            parts.append(b.slice(parts[-1], 0, **cut))
        for part, cut in zip(reversed(parts), reversed(cuts), strict=True):
            new = b.slice_scatter(part, new, 0, **cut)
    operands = (tape, new, layout.start)
    result: Operand = b.apply(
        OPS["select_scatter"], operands, {"axis": 0}, hint=tape.name
    )
    return result


def load(b: ScopedBuilder, tape: Value, v: Value, layout: Layout) -> Operand:
    """Append the nodes that read an entry back as a value like `v`."""
    x: Operand
    if layout.side is not None:
        attrs = {"axis": layout.side, "size": v.type.shape[layout.side], "step": 1}
        x = b.apply(OPS["slice"], (tape, layout.start), attrs, hint=v.name)
        return x
    x = b.apply(OPS["select"], (tape, layout.start), {"axis": 0}, hint=v.name)
    for k in entry_views(v, layout.shape[1:]):
        x = b.slice(x, 0, axis=k, size=v.type.shape[k], step=1)
    if v.type.weak:
        x = b.number(x)
    elif v.type.scalar:
        x = b.item(x)
    return x
