"""Neighbouring loops become one where every access runs through them as through one.

i and j of sizes n and m become one loop of n*m where all dims use i*m + j only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..ir import dims
from ..ir.dims import Dim, Symbol
from .folds import Axis, Reduce
from .nests import (
    Bind,
    Let,
    Load,
    Set,
    Statement,
    Store,
    every,
    leaves,
    rewrite_dims,
    scalars_of,
)
from .rows import Rows


def collapse(
    rows: Rows,
    axes: Sequence[Axis],
    body: list[Statement],
    reductions: Sequence[Reduce],
) -> list[Axis]:
    """Merge neighbours of `axes`, the loops around `body`, where that is possible.

    `reductions` have yet to be emitted; what they read is part of the body.
    """
    return _Collapse(rows, body, reductions).axes(axes)


@dataclass(slots=True)
class _Collapse:
    rows: Rows
    body: list[Statement]
    reductions: Sequence[Reduce]

    def axes(self, axes: Sequence[Axis]) -> list[Axis]:
        axes = list(axes)
        self.substitute(self.rows.packed)
        for k in reversed(range(len(axes) - 1)):
            a, b = axes[k], axes[k + 1]
            if self.alike(a, b) and (self.one_run(a, b) or self.pack(a, b)):
                self.substitute({a.symbol: 0})
                axes[k : k + 2] = [Axis(b.symbol, b.index, dims.mul(a.size, b.size))]
                for r in self.reductions:
                    r.over -= {a.symbol}
        return axes

    def alike(self, a: Axis, b: Axis) -> bool:
        """Tell whether no fold tells two loops apart, and both run up."""
        return a.step + b.step == 2 and not any(
            (a.symbol in r.over) != (b.symbol in r.over) for r in self.reductions
        )

    def pack(self, a: Axis, b: Axis) -> bool:
        """Pack parameters if that makes one run of two loops; see Note [rows apart]."""
        runs = {a.symbol, b.symbol}
        buffers = {
            leaf.buffer
            for s in every(self.body)
            for x in scalars_of(s)
            for leaf in leaves(x)
            if isinstance(leaf, Load) and runs & dims.symbols_of(leaf.offset)
        }
        together = self.rows.together(tuple(buffers))
        if not together or not self.one_run(a, b, together):
            return False
        for buffer in buffers:
            self.rows.pack(buffer)
        self.substitute(together)
        return True

    def dims(self) -> set[Dim]:
        """Return all dims of the body and of the reductions."""
        found: set[Dim] = {r.offset for r in self.reductions}

        def collect(d: Dim) -> Dim:
            found.add(d)
            return d

        for s in every(self.body):
            for x in scalars_of(s):
                rewrite_dims(x, collect)
            if isinstance(s, Store):
                found.add(s.offset)
        for r in self.reductions:
            rewrite_dims(r.value, collect)
            if r.first is not None:
                rewrite_dims(r.first, collect)
        return found

    def one_run(
        self, a: Axis, b: Axis, given: Mapping[Symbol, Dim] = MappingProxyType({})
    ) -> bool:
        for d in self.dims():
            d = dims.substitute(d, given)
            used = dims.symbols_of(d)
            if a.symbol not in used and b.symbol not in used:
                continue
            without = dims.substitute(d, {a.symbol: 0})
            rest = dims.substitute(without, {b.symbol: 0})
            slope = dims.add(
                dims.substitute(without, {b.symbol: 1}), dims.mul(rest, -1)
            )
            run = dims.mul(slope, dims.add(dims.mul(a.index, b.size), b.index))
            if {a.symbol, b.symbol} & dims.symbols_of(slope):
                return False
            if dims.add(rest, run) != d:
                return False
        return True

    def substitute(self, values: Mapping[Symbol, Dim]) -> None:
        if not values:
            return

        def change(d: Dim) -> Dim:
            return dims.substitute(d, values)

        for s in every(self.body):
            match s:
                case Store():
                    s.offset = change(s.offset)
                    s.value = rewrite_dims(s.value, change)
                case Let() | Set() | Bind():
                    s.value = rewrite_dims(s.value, change)
                case _:
                    pass
        for r in self.reductions:
            r.offset = change(r.offset)
            r.value = rewrite_dims(r.value, change)
            if r.first is not None:
                r.first = rewrite_dims(r.first, change)
