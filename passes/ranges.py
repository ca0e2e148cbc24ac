"""The iterations of a `for`, as dims: how many, which one, backwards."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import dims
from ..ir.bounds import upper
from ..ir.dims import Dim, Expr, Symbol
from ..ir.func import Node
from .scope import ScopedBuilder


@dataclass(frozen=True, slots=True)
class Range:
    """The iterations of a `for`; `most` is a simple upper bound of their number."""

    index: Expr
    start: Dim
    stop: Dim
    step: Dim
    most: Dim | None = None

    @staticmethod
    def of(node: Node) -> Range:
        a = node.attrs
        return Range(a["index"], a["start"], a["stop"], a["step"], a.get("most"))

    def trips(self, b: ScopedBuilder) -> Dim:
        """Return the number of iterations."""
        gap = dims.add(self.start, dims.mul(self.stop, -1))
        return at_least_zero(b, dims.mul(dims.floordiv(gap, self.step), -1))

    def capacity(self, b: ScopedBuilder) -> Dim:
        """Return the size that a tape of these iterations needs."""
        return self.trips(b) if self.most is None else self.most

    def part(self, b: ScopedBuilder, number: Dim, size: Dim) -> Range:
        """Return block `number` of these iterations, in blocks of `size`."""
        width = dims.mul(size, self.step)
        start = dims.add(self.start, dims.mul(number, width))
        end = dims.add(start, width)
        if not isinstance(self.step, int):  # up or down
            done = dims.minimum(self.trips(b), dims.mul(dims.add(number, 1), size))
            stop = dims.add(self.start, dims.mul(done, self.step))
        elif self.step > 0:
            stop = dims.minimum(self.stop, end)
        else:
            stop = dims.maximum(self.stop, end)
        return Range(self.index, start, stop, self.step, size)

    def position(self) -> Dim:
        """Return the number of the present iteration, from 0."""
        gap = dims.add(self.index, dims.mul(self.start, -1))
        return dims.floordiv(gap, self.step)

    def sums(self, b: ScopedBuilder, d: Dim) -> tuple[Dim, Dim] | None:
        """Return the sum of a dim over the iterations before this one, and over all.

        They are polynomials where the dim is linear in the index; None elsewhere.
        """
        s = dims.as_symbol(self.index)
        if s is None or self.step not in (1, -1):
            return None
        first = dims.substitute(d, {s: self.start})
        second = dims.substitute(d, {s: dims.add(self.start, self.step)})
        rise = dims.add(second, dims.mul(first, -1))
        position = self.position()
        if dims.add(first, dims.mul(rise, position)) != d:
            return None

        def up_to(count: Dim) -> Dim:
            pairs = dims.mul(count, dims.add(count, -1))
            more = dims.floordiv(dims.mul(rise, pairs), 2)
            return dims.add(dims.mul(first, count), more)

        return up_to(position), up_to(self.trips(b))

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
        step = dims.mul(self.step, -1)
        return Range(self.index, self.last(b), stop, step, self.most)

    def attrs(self) -> dict[str, Dim]:
        bounds = {"start": self.start, "stop": self.stop, "step": self.step}
        most = {} if self.most is None else {"most": self.most}
        return {"index": self.index, **bounds, **most}

    def largest(self, b: ScopedBuilder, d: Dim) -> Dim | None:
        """Return an upper bound of a dim over the iterations, if one is found.

        It is the largest value where the dim is linear in the index.
        """
        s = dims.as_symbol(self.index)
        assert s is not None
        if s not in dims.symbols_of(d):
            return at_least_zero(b, d)  # what holds inside may not hold here
        assert isinstance(d, Expr)
        for monomial, _ in d.terms:
            inner = [a for a in monomial if not isinstance(a, Symbol)]
            calls = any(s in dims.symbols_of(x) for a in inner for x in a.args)
            if calls or monomial.count(s) > 1:
                bound = upper(d, s, self.start, self.last(b))
                return None if bound is None else at_least_zero(b, bound)
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
