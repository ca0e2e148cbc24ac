"""Folds: variables that all iterations of a loop bring their values into.

A variable of a loop is its iteration's own where each iteration sets it before it reads
it. Others go from one iteration to the next; those that only take in a value, by a step
that may start anew with what is neutral, are folds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.types import BOOL, DType
from .kernels import at
from .nests import (
    Allocate,
    Apply,
    Argument,
    At,
    Bind,
    Call,
    Fill,
    Grow,
    If,
    Let,
    Lit,
    Load,
    Loop,
    Move,
    Program,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
    every,
    inner,
    leaves,
    scalars_of,
)

SUM = "({0} + {1})"


def _bottom(dtype: DType) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _top(dtype: DType) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


# What changes nothing in a fold with this step.
NEUTRAL: dict[str, Callable[[DType], Any]] = {
    SUM: lambda dtype: 0.0 if dtype.kind == "f" else 0,
    "maximum({0}, {1})": _bottom,
    "minimum({0}, {1})": _top,
    "logical_or({0}, {1})": lambda dtype: False,
    "logical_and({0}, {1})": lambda dtype: True,
    "({0} | {1})": lambda dtype: False if dtype == BOOL else 0,
}
EXACT = {"({0} * {1})": lambda dtype: 1}  # of integers only


def neutral_of(step: str, dtype: DType) -> Lit | None:
    """Return what changes nothing in a fold of a dtype; None where nothing is known."""
    make = NEUTRAL.get(step)
    if make is None or (dtype == BOOL and make in (_bottom, _top, NEUTRAL[SUM])):
        return None
    return Lit(make(dtype), dtype)


@dataclass(slots=True)
class Fold:
    """A variable that all iterations fold their values into."""

    name: str
    dtype: DType
    step: str
    first: bool = False  # it starts with the first element, whatever it was before
    loss_of: str = ""  # it holds what the additions to that variable lose

    @property
    def neutral(self) -> Lit:
        return Lit((NEUTRAL | EXACT)[self.step](self.dtype), self.dtype)


def uses_in(p: Program) -> Counter[str]:
    """Count how often a program reads each name."""
    found = Counter(names_read(p.body))
    found.update(r.what.name for r in p.results if isinstance(r.what, Reg))
    shapes = [d for r in p.results for d in r.shape]
    found.update(x.name for d in shapes for x in dims.symbols_of(d))
    return found


def folds_of(loop: Loop, used: Counter[str]) -> list[Fold] | None:
    """Return the folds of a loop; None where iterations are tied otherwise.

    `used` counts how often the whole program reads each name.
    """
    sets: dict[str, list[tuple[Set, list[Loop]]]] = {}
    for s, around in with_loops([loop], []):
        if isinstance(s, Set):
            sets.setdefault(s.name, []).append((s, around))
    inside: list[Statement] = [loop]
    reads = Counter(names_read(inside))
    names = {s.name for s in every(inside) if isinstance(s, Let)}
    bound = {s.symbol.name for s in every(inside) if isinstance(s, Bind)}
    carried = _carried(loop, set(sets) | bound)
    own = (names | bound | set(sets)) - carried
    if any(used[name] > reads[name] for name in own):
        return None
    found: list[Fold] = []
    for name in sorted(carried):
        fold = _fold(name, sets[name]) if name in sets else None
        if fold is None:
            return None
        found.append(fold)
    sums = {f.name: f for f in found if f.step == SUM and not f.first}
    for f in found:
        uses = len(sets[f.name]) + sum(g.loss_of == f.name for g in found)
        plus = sum(s.plus for s, _ in sets[f.name])
        if reads[f.name] != uses - plus or (f.loss_of and f.loss_of not in sums):
            return None
    return sorted(found, key=lambda f: not f.loss_of)  # it needs the sum before


def _read(s: Statement) -> Iterator[str]:
    """Yield the names that a statement reads: registers, symbols of its dims."""
    used: list[Dim] = []
    for x in scalars_of(s):
        for leaf in leaves(x):
            match leaf:
                case Reg():
                    yield leaf.name
                case At():
                    used.append(leaf.dim)
                case Load():
                    used.append(leaf.offset)
    match s:
        case Store():
            used.append(s.offset)
        case Loop():
            used += [s.start, s.stop, s.step]
        case Fill():
            used += [s.offset, s.size]
        case Move():
            used += [s.target_offset, s.source_offset, s.size]
        case Allocate() | Grow():
            used.append(s.buffer.size if isinstance(s, Allocate) else s.size)
        case Call():
            used += [d for a in s.args for d in _dims_of(a)]
    for d in used:
        yield from (x.name for x in dims.symbols_of(d))


def _dims_of(a: Argument) -> tuple[Dim, ...]:
    if isinstance(a, tuple):
        return (a[1],)
    return (a,) if isinstance(a, int | Expr) else ()


def names_read(body: Sequence[Statement]) -> Iterator[str]:
    """Yield every name that statements read, as often as they do."""
    for s in every(list(body)):
        yield from _read(s)


def with_loops(
    body: Sequence[Statement], around: list[Loop]
) -> Iterator[tuple[Statement, list[Loop]]]:
    """Yield all statements with the loops around them."""
    for s in body:
        yield s, around
        deeper = [*around, s] if isinstance(s, Loop) else around
        for part in inner(s):
            yield from with_loops(part, deeper)


def _carried(loop: Loop, variables: set[str]) -> set[str]:
    """Return the variables whose value at the start of an iteration may be read.

    Of a loop in blocks, at the start of a block.
    """
    carried: set[str] = set()

    def walk(body: Sequence[Statement], known: set[str]) -> set[str]:
        known = set(known)
        for s in body:
            names = set(_read(s))
            if isinstance(s, Set) and s.plus:
                names.add(s.name)
            carried.update((names & variables) - known)
            match s:
                case Set():
                    known.add(s.name)
                case Bind():
                    known.add(s.symbol.name)
                case Loop():
                    blockwise(s, known)
                case If():
                    known |= walk(s.then, known) & walk(s.orelse, known)
        return known

    def blockwise(s: Loop, known: set[str]) -> None:
        known = walk(s.opening, known)
        walk(s.body, known)
        walk(s.closing, known)

    blockwise(loop, set())
    return carried


def _fold(name: str, sets: Sequence[tuple[Set, list[Loop]]]) -> Fold | None:
    """Return what fold the assignments of a variable are."""
    found = {_step(s, around) for s, around in sets}
    if len(found) != 1 or None in found:
        return None
    ((step, first, loss_of),) = (f for f in found if f is not None)
    dtype = sets[0][0].value.dtype
    if step in EXACT and dtype.kind not in "iu":
        return None
    if step not in EXACT and neutral_of(step, dtype) is None:
        return None
    return Fold(name, dtype, step, first, loss_of)


def _step(s: Set, around: Sequence[Loop]) -> tuple[str, bool, str] | None:
    """Return step, whether it starts with the first element, and whose loss it is."""
    if s.plus:
        return SUM, False, ""
    x = s.value
    if not isinstance(x, Apply):
        return None
    if x.template == "where({0}, {1}, {2})":
        first, new, stepped = x.args
        plain = isinstance(stepped, Apply) and _is_step(stepped, s.name)
        if plain and isinstance(stepped, Apply) and stepped.args[1] == new:
            if _is_start(first, around):
                return stepped.template, True, ""
        return None
    if not _is_step(x, s.name):
        return None
    more = x.args[1]
    if isinstance(more, Apply) and more.template == "lost({0}, {1})":
        acc = more.args[0]
        return (x.template, False, acc.name) if isinstance(acc, Reg) else None
    return x.template, False, ""


def _is_step(x: Apply, name: str) -> bool:
    own = len(x.args) == 2 and isinstance(x.args[0], Reg) and x.args[0].name == name
    return own and x.args[0].dtype == x.dtype


def _is_start(condition: Scalar, around: Sequence[Loop]) -> bool:
    """Tell whether a condition holds in the first of all iterations, and only there."""
    zeros: list[Symbol] = []
    todo = [condition]
    while todo:
        x = todo.pop()
        if not isinstance(x, Apply):
            return False
        if x.template == "({0} & {1})":
            todo += x.args
            continue
        i, zero = x.args[0], x.args[-1]
        if x.template != "({0} == {1})" or zero != at(0):
            return False
        if isinstance(i, At) and (s := dims.as_symbol(i.dim)) is not None:
            zeros.append(s)
        elif not isinstance(i, Lit | At) or (i.dim if isinstance(i, At) else i.value):
            return False
    upwards = all(loop.start == 0 and loop.step == 1 for loop in around)
    return upwards and sorted(zeros, key=str) == sorted(
        (loop.index for loop in around), key=str
    )


def start_anew(loop: Loop, f: Fold) -> None:
    """Leave out the test for the first element: a chunk starts with what is neutral."""
    for s in every([loop]):
        if f.first and isinstance(s, Set) and s.name == f.name:
            assert isinstance(s.value, Apply)
            s.value = s.value.args[2]
