"""Shorten the chain of operations from one iteration of a loop to the next.

What an iteration computes from the one before (through a variable or through memory) is
*late*: it sets the pace of the loop, while all else is computed ahead. So late terms of
a sum are added last, in the order in which they arrive; a late product is added in the
same operation; and a number by which such a sum is multiplied, or divided, goes to its
terms:

    (a + late + b) / 9.0     becomes     multiply_add(late, 1/9, (a + b) * (1/9))

Only sums of floats change: they may run in any order. The quotient may differ by a
rounding; a quotient of something else than a sum stays as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .flat import DIFFERENCE, SUM, uses_in
from .nests import (
    Apply,
    Let,
    Lit,
    Load,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
    leaves,
    scalars_of,
)
from .places import Track

if TYPE_CHECKING:
    from .kernels import Lowering

PRODUCT = "({0} * {1})"
QUOTIENT = "({0} / {1})"
FUSED = "multiply_add({0}, {1}, {2})"
MINUS_FUSED = "multiply_add(-{0}, {1}, {2})"
FUSED_MINUS = "multiply_add({0}, {1}, -{2})"
# Rough latencies in cycles: they only order the terms of sums.
SHORT, LONG = 4, 15
QUICK = (SUM, DIFFERENCE, PRODUCT, FUSED, MINUS_FUSED, FUSED_MINUS)
ROUNDS = 4  # iterations that are followed


def shortened(
    low: Lowering, body: Sequence[Statement], tracks: Sequence[Track]
) -> list[Statement] | None:
    """Return a flat body with shorter chains; None where none gets shorter."""
    late = _late(body, tracks)
    if not late:
        return None
    chains = Chains(low, body, late, _arrivals(body, tracks, late))
    with low.into() as out:
        for s in body:
            chains.statement(s)
    return out if chains.changed else None


# ---------------------------------------------------------------- what is late


def _late(body: Sequence[Statement], tracks: Sequence[Track]) -> set[str]:
    """Return the registers on a way from an iteration to itself in the next."""
    needs: dict[str, set[str]] = {}
    for s in body:
        if isinstance(s, Let | Set):
            needs.setdefault(s.name, set()).update(_names(s.value))
            if isinstance(s, Set) and s.plus:
                needs[s.name].add(s.name)
    for name, x, _ in _carried(body, tracks):
        needs[name] |= _names(x)
    while True:
        used = {n for needed in needs.values() for n in needed}
        ends = {n for n, needed in needs.items() if not needed & needs.keys()}
        ends |= needs.keys() - used
        if not ends:
            return set(needs)
        needs = {n: needed - ends for n, needed in needs.items() if n not in ends}


def _names(x: Scalar) -> set[str]:
    return {leaf.name for leaf in leaves(x) if isinstance(leaf, Reg)}


def _carried(
    body: Sequence[Statement], tracks: Sequence[Track]
) -> Iterator[tuple[str, Scalar, int]]:
    """Yield a load's register, what was stored there, and iterations ago."""
    stores = [s for s in body if isinstance(s, Store)]
    for s in body:
        x = s.value if isinstance(s, Let | Set) else None
        if not isinstance(x, Load):
            continue
        for t in tracks:
            read = t.lag_of(x.buffer, x.offset)
            for store in stores if read is not None else ():
                written = t.lag_of(store.buffer, store.offset)
                if written is not None and read is not None and written > read:
                    assert isinstance(s, Let | Set)
                    yield s.name, store.value, written - read


def _arrivals(
    body: Sequence[Statement], tracks: Sequence[Track], late: set[str]
) -> Mapping[str, float]:
    """Follow some iterations; return when each late register has its value."""
    carried = {name: (x, ago) for name, x, ago in _carried(body, tracks)}
    history: list[dict[str, float]] = []
    time: dict[str, float] = {}
    for _ in range(ROUNDS):
        for s in body:
            if not isinstance(s, Let | Set) or s.name not in late:
                continue
            if s.name in carried:
                x, ago = carried[s.name]
                before = history[-ago] if ago <= len(history) else {}
                ready = max((before.get(n, 0.0) for n in _names(x)), default=0.0)
                time[s.name] = ready + SHORT
            else:
                ready = max((time.get(n, 0.0) for n in _names(s.value)), default=0.0)
                time[s.name] = ready + _latency(s.value)
        history.append(dict(time))
    return time


def _latency(x: Scalar) -> int:
    match x:
        case Apply():
            return SHORT if x.template in QUICK else LONG
        case Reg() | Lit() | Load():
            return 0
        case _:
            return SHORT


# ---------------------------------------------------------------- shorter chains


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a sum: `value`, or `value` times `factor`, added or subtracted."""

    value: Scalar
    factor: Scalar | None = None
    minus: bool = False


class Chains:
    """Rewrites the statements of a body, one after the other."""

    def __init__(
        self,
        low: Lowering,
        body: Sequence[Statement],
        late: set[str],
        arrivals: Mapping[str, float],
    ) -> None:
        self.low, self.late, self.arrivals = low, late, arrivals
        self.made = {s.name: s.value for s in body if isinstance(s, Let)}
        self.uses: Counter[str] = uses_in(body)
        self.inner = set(self._parts(body))
        self.changed = False

    def statement(self, s: Statement) -> None:
        if isinstance(s, Let) and s.name in self.late and s.name not in self.inner:
            x = s.value
            new = self.scaled(x) or (self.sum(self.terms(x)) if is_sum(x) else None)
            if new is not None:
                self.changed = True
                s = Let(s.name, new)
        self.low.emit(s)

    def _parts(self, body: Sequence[Statement]) -> Iterator[str]:
        """Yield the sums that are terms of one other sum."""
        for s in body:
            for x in scalars_of(s):
                if isinstance(x, Apply) and is_sum(x):
                    yield from (
                        a.name
                        for a in x.args
                        if isinstance(a, Reg) and is_sum(self.definition(a))
                    )

    def definition(self, x: Scalar) -> Scalar | None:
        """Return what a register is, if nothing else needs it."""
        once = isinstance(x, Reg) and self.uses[x.name] == 1
        return self.made.get(x.name) if once and isinstance(x, Reg) else None

    def is_late(self, x: Scalar) -> bool:
        return isinstance(x, Reg) and x.name in self.late

    def terms(self, x: Scalar, minus: bool = False) -> list[Term]:
        """Take a sum apart."""
        assert isinstance(x, Apply)
        found: list[Term] = []
        for k, a in enumerate(x.args):
            negative = minus != (k == 1 and x.template == DIFFERENCE)
            inner = self.definition(a)
            if inner is not None and is_sum(inner):
                found += self.terms(inner, negative)
            else:
                found.append(self.term(a, negative))
        return found

    def term(self, x: Scalar, minus: bool) -> Term:
        """Return a term; a late product is kept as its two factors."""
        inner = self.definition(x)
        if isinstance(inner, Apply) and inner.template == PRODUCT and self.is_late(x):
            a, b = inner.args
            return Term(b, a, minus) if self.is_late(b) else Term(a, b, minus)
        return Term(x, None, minus)

    def sum(self, terms: Sequence[Term], scale: Lit | None = None) -> Scalar | None:
        """Return a sum with the late terms last; None where it is one already."""
        known = [t for t in terms if not self.is_late(t.value)]
        last = sorted((t for t in terms if self.is_late(t.value)), key=self.arrival)
        if not last:
            return None
        same = scale is None and all(t.factor is None for t in last)
        if same and (len(terms) == 2 or [*known, *last] == [*terms]):
            return None
        total: tuple[Scalar, bool] | None = None  # and whether it is subtracted
        for t in sorted(known, key=lambda t: t.minus):
            total = self.added(total, t)
        if total is not None and scale is not None:
            total = self.low.let(self.product(total[0], scale)), total[1]
        for t in sorted(last, key=lambda t: (self.arrival(t), t.minus)):
            total = self.added(total, self.times(t, scale))
        assert total is not None
        value, minus = total
        return None if minus else value

    def arrival(self, t: Term) -> float:
        return self.arrivals.get(t.value.name, 0.0) if isinstance(t.value, Reg) else 0.0

    def times(self, t: Term, scale: Lit | None) -> Term:
        if scale is None:
            return t
        if t.factor is None:
            return Term(t.value, scale, t.minus)
        return Term(t.value, self.low.let(self.product(t.factor, scale)), t.minus)

    def product(self, x: Scalar, y: Scalar) -> Scalar:
        return Apply(PRODUCT, (x, y), x.dtype)

    def added(self, total: tuple[Scalar, bool] | None, t: Term) -> tuple[Scalar, bool]:
        """Add a term to a sum, of which the second says whether it is subtracted."""
        x: Scalar
        if total is None:
            x = t.value if t.factor is None else self.product(t.value, t.factor)
            return self.low.let(x), t.minus
        acc, negative = total
        if t.factor is None:
            if negative == t.minus:
                x = Apply(SUM, (acc, t.value), acc.dtype)
            else:
                pair = (t.value, acc) if negative else (acc, t.value)
                x, negative = Apply(DIFFERENCE, pair, acc.dtype), False
        elif negative == t.minus:
            x = Apply(FUSED, (t.value, t.factor, acc), acc.dtype)
        else:
            template = FUSED_MINUS if negative else MINUS_FUSED
            x = Apply(template, (t.value, t.factor, acc), acc.dtype)
            negative = False
        return self.low.let(x), negative

    def scaled(self, x: Scalar) -> Scalar | None:
        """Return a late sum times a number, with the number at its terms."""
        if not isinstance(x, Apply) or x.dtype.kind != "f":
            return None
        scale = _scale(x)
        if scale is None:
            return None
        (inner,) = (a for a in x.args if not isinstance(a, Lit))
        total = self.definition(inner)
        if total is None or not is_sum(total):
            return None
        terms = self.terms(total)
        both = (t.factor is not None and self.is_late(t.factor) for t in terms)
        if any(both) or all(self.is_late(t.value) for t in terms):
            return None
        return self.sum(terms, scale)


def is_sum(x: Scalar | None) -> bool:
    floats = isinstance(x, Apply) and x.dtype.kind == "f"
    return floats and isinstance(x, Apply) and x.template in (SUM, DIFFERENCE)


def _scale(x: Apply) -> Lit | None:
    """Return the number that a product or quotient by a number multiplies with."""
    numbers = [a for a in x.args if isinstance(a, Lit)]
    if len(numbers) != 1 or x.template not in (PRODUCT, QUOTIENT):
        return None
    value = x.dtype.type(numbers[0].value)
    if x.template == QUOTIENT:
        if not isinstance(x.args[1], Lit):
            return None
        with np.errstate(all="ignore"):
            value = x.dtype.type(1) / value
    usual = math.isfinite(value) and abs(value) >= np.finfo(x.dtype).tiny
    return Lit(value.item(), x.dtype) if usual else None
