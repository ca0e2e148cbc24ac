"""Tapes: what a loop saves for its reverse.

A tape is an array with one entry per iteration, which the forward loop writes as an
extra carry. An entry whose size depends on the loop's index lies in a box of the
largest size. `sources.py` decides what is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir import dims
from ..ir.dims import Dim
from ..ir.func import Node, Operand, Value
from ..ir.op import OPS
from .scope import ScopedBuilder


@dataclass(frozen=True, slots=True)
class Tape:
    """What the reverse of a loop saves: bytes of an entry, and the number of entries.

    Neither depends on loops around it; `entry` is None where it has no such bound.
    """

    loop: Node
    entry: Dim | None
    capacity: Dim | None

    @property
    def size(self) -> Dim | None:
        """The number of bytes."""
        if self.entry is None or self.capacity is None:
            return None
        return dims.mul(self.entry, self.capacity)


def entry_views(v: Value, box: Sequence[Dim]) -> list[int]:
    """Return the axes along which `v` is smaller than the box that it lies in."""
    return [k for k, (d, e) in enumerate(zip(v.type.shape, box, strict=True)) if d != e]


def store(
    b: ScopedBuilder, tape: Value, v: Value, at: Dim, box: Sequence[Dim]
) -> Operand:
    """Append the nodes that write `v` into entry `at`; returns the new tape."""
    new: Operand = v
    axes = entry_views(v, box)
    if axes:
        parts = [b.select(tape, at, axis=0)]
        cuts = [{"axis": k, "size": v.type.shape[k], "step": 1} for k in axes]
        for cut in cuts[:-1]:
            parts.append(b.slice(parts[-1], 0, **cut))
        for part, cut in zip(reversed(parts), reversed(cuts), strict=True):
            new = b.slice_scatter(part, new, 0, **cut)
    attrs = {"axis": 0}
    result: Operand = b.apply(
        OPS["select_scatter"], (tape, new, at), attrs, hint=tape.name
    )
    return result


def load(
    b: ScopedBuilder, tape: Value, v: Value, at: Dim, box: Sequence[Dim]
) -> Operand:
    """Append the nodes that read entry `at` back as a value like `v`."""
    x = b.apply(OPS["select"], (tape, at), {"axis": 0}, hint=v.name)
    for k in entry_views(v, box):
        x = b.slice(x, 0, axis=k, size=v.type.shape[k], step=1)
    if v.type.weak:
        x = b.number(x)
    elif v.type.scalar:
        x = b.item(x)
    result: Operand = x
    return result
