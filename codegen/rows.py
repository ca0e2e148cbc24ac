"""Arrays of the caller that are not packed, read without a copy.

Note [rows apart]
A parameter that is only read may be a block of a larger array: its last axis has unit
step, the others any step that leaves rows apart. The steps are symbols, so one kernel
takes all such arrays. Loops over whole arrays are better as one loop over packed
memory, several times where rows are short: a parameter in such a loop, or one that is
moved or reshaped as a whole, is *packed*, and the binder copies what is not. Arrays of
any other layout are copied too: a loop with long steps is not faster than a copy and a
loop without.

A parameter that is only a matrix of products may have its unit step along any of its
last two axes: BLAS takes a matrix and its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir import dims
from ..ir.access import Index, canonical, linear, place
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.func import Func, Node, Operand, Value, walk
from ..ir.op import Kind
from ..ir.types import F32, F64, Shape
from .nests import Buffer, Step

ROWS, LINES = "in_rows", "in_lines"
TINY = 4096  # elements that are copied faster than steps are worth


@dataclass(slots=True)
class Rows:
    """The parameters with rows apart, and what is known about them."""

    steps: dict[Buffer, list[Step]] = field(default_factory=dict)  # last axis first
    packed: dict[Symbol, Dim] = field(default_factory=dict)  # what was decided
    layouts: dict[int, str] = field(default_factory=dict)
    pairs: set[frozenset[Dim]] = field(default_factory=set)  # one of them is 1

    def add(self, b: Buffer, k: int, shape: Shape, layout: str) -> Sequence[Dim]:
        """Make symbols for the steps of parameter `k`; returns all of its steps."""
        made: list[Step] = []
        out: list[Dim] = []
        packed: Dim = 1
        for axis in reversed(range(len(shape))):
            step = packed
            if shape[axis] != 1 and (out or layout == LINES):
                least = packed if layout == ROWS else 1
                made.append(Step(Symbol(f"_s{k}_{axis}"), k, axis, least, packed))
                step = dims.symbol(made[-1].symbol.name)
            out.insert(0, step)
            packed = dims.mul(step, shape[axis])
        if made:
            self.steps[b] = made
            self.layouts[k] = layout
        if layout == LINES:
            self.pairs.add(frozenset(out[-2:]))
        return out

    def facts(self, facts: Facts) -> Facts:
        """Add what holds of all steps."""
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
                found[s.symbol] = dims.substitute(s.packed, found)
        return found

    def pack(self, b: Buffer) -> dict[Symbol, Dim]:
        """Decide that a parameter is packed; returns its steps."""
        together = self.together((b,))
        self.packed.update(together)
        return together

    def final(self) -> dict[int, str]:
        """Return the layouts of the parameters that are not packed."""
        open_ = {
            s.param
            for steps in self.steps.values()
            for s in steps
            if s.symbol not in self.packed
        }
        return {k: layout for k, layout in self.layouts.items() if k in open_}


def layout_of(f: Func) -> dict[Value, str]:
    """Return the layout that a kernel takes each array parameter in."""
    updated = {j for _, j in f.updates}
    users: dict[Value, list[Node]] = {}
    kept: set[Operand] = set(f.results)
    for node in walk(f.body):
        for x in node.operands:
            if isinstance(x, Value):
                users.setdefault(x, []).append(node)
        for region in node.regions:
            kept.update(region.results)

    def is_matrix(v: Value) -> bool:
        """Tell whether a value is only a matrix of products, through views too."""
        if v.type.ndim < 2 or v in kept:
            return False
        return all(
            is_matrix(node.result)
            if node.op.kind is Kind.VIEW
            else node.op.kind is Kind.CONTRACTION
            and node.result.type.dtype == v.type.dtype
            for node in users.get(v, ())
        )

    found = {}
    for j, p in enumerate(f.params):
        size = p.type.size
        tiny = isinstance(size, int) and size <= TINY
        if p.type.ndim > 1 and j not in updated and not tiny:
            floats = p.type.dtype in (F32, F64)
            found[p] = LINES if floats and users.get(p) and is_matrix(p) else ROWS
    return found


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
