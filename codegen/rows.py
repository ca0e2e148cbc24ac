"""Arrays of the caller whose rows lie apart, read without a copy.

Note [rows apart]
A parameter that is only read may be a block of a larger array: its last axis has unit
step, the others any step that leaves rows apart. The steps are symbols, so one kernel
takes all such arrays. Loops over whole arrays are better as one loop over packed
memory, several times where rows are short: a parameter in such a loop, or one that is
moved or reshaped as a whole, is *packed*, and the binder copies what is not. Arrays of
any other layout are copied too: a loop with long steps is not faster than a copy and a
loop without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir import dims
from ..ir.access import Index, canonical, linear, place
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.types import Shape
from .nests import Buffer, Step


@dataclass(slots=True)
class Rows:
    """The parameters with rows apart, and what is known about them."""

    steps: dict[Buffer, list[Step]] = field(default_factory=dict)  # last axis first
    packed: dict[Symbol, Dim] = field(default_factory=dict)  # steps that are no choice

    def add(self, b: Buffer, k: int, shape: Shape) -> Sequence[Dim]:
        """Make symbols for the steps of parameter `k`; returns all of its steps."""
        made: list[Step] = []
        out: list[Dim] = [1]
        for axis in reversed(range(len(shape) - 1)):
            step = dims.mul(shape[axis + 1], out[0])
            if shape[axis] != 1:
                made.append(Step(Symbol(f"_s{k}_{axis}"), k, axis, step))
                step = dims.symbol(made[-1].symbol.name)
            out.insert(0, step)
        if made:
            self.steps[b] = made
        return out

    def facts(self, facts: Facts) -> Facts:
        known = [
            dims.add(dims.symbol(s.symbol.name), dims.mul(least, -1))
            for steps in self.steps.values()
            for s in steps
            for least in (s.least, 1)
        ]
        return facts.having(*known)

    def together(self, buffers: Sequence[Buffer]) -> dict[Symbol, Dim]:
        """Return the steps that some parameters have where they are packed."""
        found: dict[Symbol, Dim] = {}
        for b in buffers:
            for s in self.steps.get(b, ()):
                found[s.symbol] = dims.substitute(s.least, found)
        return found

    @property
    def apart(self) -> set[int]:
        """Return the parameters whose rows may lie apart in the end."""
        return {
            s.param
            for steps in self.steps.values()
            for s in steps
            if s.symbol not in self.packed
        }


def has_calls(d: Dim) -> bool:
    """Tell whether a dim is more than sums and products of symbols."""
    return isinstance(d, Expr) and any(
        not isinstance(a, Symbol) for m, _ in d.terms for a in m
    )


def points(shape: Shape) -> tuple[Index, Dim]:
    """Return an index into a shape, in symbols, and its position in C order."""
    space = [dims.symbol(f"_p{k}") for k in range(len(canonical(shape)))]
    index = place(shape, space)
    return index, linear(index, shape)
