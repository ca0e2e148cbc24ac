"""The iterations of a `for`, as dims: how many, which one, backwards."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.func import Node
from .scope import ScopedBuilder


@dataclass(frozen=True, slots=True)
class Range:
    """The iterations of a `for`."""

    index: Expr
    start: Dim
    stop: Dim
    step: Dim

    @staticmethod
    def of(node: Node) -> Range:
        a = node.attrs
        return Range(a["index"], a["start"], a["stop"], a["step"])

    def trips(self, b: ScopedBuilder) -> Dim:
        """Return the number of iterations."""
        gap = dims.add(self.start, dims.mul(self.stop, -1))
        return at_least_zero(b, dims.mul(dims.floordiv(gap, self.step), -1))

    def position(self) -> Dim:
        """Return the number of the present iteration, from 0."""
        gap = dims.add(self.index, dims.mul(self.start, -1))
        return dims.floordiv(gap, self.step)

    def last(self, b: ScopedBuilder) -> Dim:
        """Return the last index; start - step where there is no iteration."""
        before = dims.add(self.trips(b), -1)
        if self.step == 1:  # keeps `stop - 1` where `max` would come in
            return dims.add(self.stop, -1)
        if self.step == -1:
            return dims.add(self.stop, 1)
        return dims.add(self.start, dims.mul(before, self.step))

    def reversed(self, b: ScopedBuilder) -> Range:
        """Return the same iterations, last one first."""
        stop = dims.add(self.start, dims.mul(self.step, -1))
        if isinstance(self.step, int):
            stop = dims.add(self.start, -1 if self.step > 0 else 1)
        return Range(self.index, self.last(b), stop, dims.mul(self.step, -1))

    def attrs(self) -> dict[str, Dim]:
        return {
            "index": self.index,
            "start": self.start,
            "stop": self.stop,
            "step": self.step,
        }

    def largest(self, b: ScopedBuilder, d: Dim) -> Dim | None:
        """Return the largest value of a dim over the iterations, if d is linear."""
        s = dims.as_symbol(self.index)
        assert s is not None
        if s not in dims.symbols_of(d):
            return at_least_zero(b, d)  # what holds inside may not hold here
        assert isinstance(d, Expr)
        for monomial, _ in d.terms:
            inner = [a for a in monomial if not isinstance(a, Symbol)]
            calls = any(s in dims.symbols_of(x) for a in inner for x in a.args)
            if calls or monomial.count(s) > 1:
                return None
        first = dims.substitute(d, {s: self.start})
        last = dims.substitute(d, {s: self.last(b)})
        if b.facts.proves(dims.add(last, dims.mul(first, -1))):
            return at_least_zero(b, last)
        return at_least_zero(b, dims.maximum(first, last))


def at_least_zero(b: ScopedBuilder, d: Dim) -> Dim:
    """Return max(d, 0), without the maximum where it is proven."""
    if isinstance(d, int):
        return max(d, 0)
    if b.facts.proves(d):
        return d
    return dims.maximum(d, 0)
