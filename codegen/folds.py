"""Folds: how the reductions of a nest are computed.

A fold keeps a register for the innermost reduced loops and goes to memory for reduced
loops around others. Float sums go by blocks in any order, with what the sum of blocks
loses added up beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.func import Node, type_of
from ..ir.op import Fold
from ..ir.types import BOOL, I64, DType
from .carried import neutral_of
from .kernels import at, cast, compare
from .nests import (
    Apply,
    Buffer,
    Fill,
    Let,
    Lit,
    Load,
    Loop,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
)

if TYPE_CHECKING:
    from .kernels import Lowering

BLOCK = 256  # elements whose sum may be reordered: rounding as in NumPy's pairwise sum
SUM = "({acc} + {x})"


@dataclass(slots=True)
class Axis:
    """One loop of the nest."""

    symbol: Symbol
    index: Dim
    size: Dim
    step: int = 1  # or -1: it runs down

    def loop(self, body: list[Statement]) -> Loop:
        if self.step > 0:
            return Loop(self.symbol, 0, self.size, 1, body)
        return Loop(self.symbol, dims.add(self.size, -1), -1, -1, body)


@dataclass(slots=True)
class Reduce:
    """A fold over the loops `over`; the others index its result."""

    node: Node
    fold: Fold
    value: Scalar
    over: frozenset[Symbol]
    out: Buffer | None
    offset: Dim
    name: str = ""
    first: Scalar | None = None  # the first element, where it is known before
    result: str = ""  # the register that must take the result, if it is in none yet


def suffix(axes: Sequence[Axis], over: frozenset[Symbol]) -> int:
    """Return the level from which on all loops are reduced."""
    level = len(axes)
    while level and axes[level - 1].symbol in over:
        level -= 1
    return level


def _is_first(axes: Sequence[Axis], over: frozenset[Symbol]) -> Scalar:
    zeros = [compare("==", at(a.index), Lit(0, I64)) for a in axes if a.symbol in over]
    if not zeros:
        return Lit(True, BOOL)
    first = zeros[0]
    for z in zeros[1:]:
        first = Apply("({0} & {1})", (first, z), BOOL)
    return first


def start_of(fold: Fold) -> Lit:
    """Return what a fold starts with; 0 where it starts with the first element."""
    value = 0 if fold.start == "first" else ast.literal_eval(fold.start)
    return Lit(value, type_of(value).dtype)


def _start(fold: Fold, dtype: DType) -> Scalar:
    return cast(start_of(fold), dtype)


def step(fold: Fold, acc: Scalar, dtype: DType, **given: Scalar) -> Apply:
    """Apply a fold's step: `{acc}` and named operands become numbered ones."""
    template = fold.step.replace("{acc}", "{0}")
    args = [acc]
    for name, x in given.items():
        template = template.replace(f"{{{name}}}", f"{{{len(args)}}}")
        args.append(x)
    return Apply(template, tuple(args), dtype)


def fold(
    low: Lowering,
    r: Reduce,
    axes: Sequence[Axis],
    body: list[Statement],
    before: list[list[Statement]],
    after: list[list[Statement]],
    opening: list[Statement],
    closing: list[Statement],
) -> None:
    """Emit one fold: a register for the innermost reduced loops, memory around them."""
    out = r.node.result.type
    dtype = out.dtype
    level = suffix(axes, r.over)
    inner = frozenset(a.symbol for a in axes[level:])
    outer = r.over - inner
    name = low.fresh("acc")
    acc = Reg(name, dtype)
    sums = r.fold.step == SUM and dtype.kind == "f"
    x = r.value
    if level == len(axes):  # no reduced loop inside: the element itself
        total = _merge(r, axes, outer, Lit(0, dtype), x, dtype, sums)
        _finish(low, r, axes, outer, total, body, before)
        return
    start = _start(r.fold, dtype) if r.first is None else r.first
    before[level].append(Set(name, start))
    first = _is_first(axes, inner)
    if r.fold.start == "first" and r.first is None:
        stepped = step(r.fold, acc, dtype, x=x)
        body.append(
            Set(name, Apply("where({0}, {1}, {2})", (first, x, stepped), dtype))
        )
        total = acc
    elif sums:
        total = _sum(low, axes[level:], acc, x, before[level], body, opening, closing)
    else:
        body.append(Set(name, step(r.fold, acc, dtype, x=x)))
        total = acc
    _finish(low, r, axes, outer, total, after[level], before)


def _sum(
    low: Lowering,
    axes: Sequence[Axis],
    acc: Reg,
    x: Scalar,
    before: list[Statement],
    body: list[Statement],
    opening: list[Statement],
    closing: list[Statement],
) -> Scalar:
    """Emit a sum of floats: blocks in any order, then block by block.

    What the additions of block sums lose is added up beside them, so that the result
    is at least as accurate as a pairwise sum.
    """
    count = dims.product(a.size for a in axes)
    if isinstance(count, int) and count <= BLOCK:
        body.append(Set(acc.name, x, plus=True))
        return acc
    dtype = acc.dtype
    part, loss = Reg(low.fresh("part"), dtype), Reg(low.fresh("loss"), dtype)
    before.append(Set(loss.name, Lit(0.0, dtype)))
    opening.append(Set(part.name, Lit(0.0, dtype)))
    body.append(Set(part.name, x, plus=True))
    more = Apply("lost({0}, {1})", (acc, part), dtype)
    closing.append(Set(loss.name, Apply("({0} + {1})", (loss, more), dtype)))
    closing.append(Set(acc.name, Apply("({0} + {1})", (acc, part), dtype)))
    return Apply("({0} + {1})", (acc, loss), dtype)


def _finish(
    low: Lowering,
    r: Reduce,
    axes: Sequence[Axis],
    outer: frozenset[Symbol],
    total: Scalar,
    where: list[Statement],
    before: list[list[Statement]],
) -> None:
    out = r.node.result.type
    if r.out is None:
        if isinstance(total, Reg) and not r.result:
            r.name = total.name
        else:
            r.name = r.result or low.fresh("v")
            where.append(Let(r.name, total))
        return
    if outer:
        old: Scalar = Load(r.out, r.offset, out.dtype)
        stepped = step(r.fold, old, out.dtype, x=total)
        start: Scalar | None = _start(r.fold, out.dtype)
        if r.fold.start == "first":
            start = neutral_of(stepped.template, out.dtype)
        if start is None:
            name = low.fresh("v")
            first = _is_first(axes, outer)
            chosen = Apply("where({0}, {1}, {2})", (first, total, stepped), out.dtype)
            where.append(Let(name, chosen))
            total = Reg(name, out.dtype)
        else:
            before[0].append(Fill(r.out, 0, out.size, start))
            total = stepped
    where.append(Store(r.out, r.offset, total))


def _merge(
    r: Reduce,
    axes: Sequence[Axis],
    outer: frozenset[Symbol],
    acc: Scalar,
    x: Scalar,
    dtype: DType,
    sums: bool,
) -> Scalar:
    """Return the fold of one element: what `_finish` merges into memory."""
    if outer or r.fold.start == "first":
        return x
    return step(r.fold, _start(r.fold, dtype), dtype, x=x)
