"""Sums of floats at computed places that are the same in any order.

Atomic additions of floats come in an order that the device chooses, and each order has
its own roundings. A deterministic program takes them apart:

    for i in 0..n                          for i in 0..n
      size g = index[i]                      size g = index[i]
      r[g] = r[g] + f(x[i])         ->       term[i] = f(x[i])
                                             place[i] = g

and then adds up the terms as integers, Note [quanta]: their largest exponent at each
place, their quanta there, and what these sum up to, are three more launches for which
order means nothing. Loops whose additions have no number that is known before, because
an inner loop runs as often as a value says, stay in order, in one block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ir import dims
from ...ir.dims import Dim, Symbol
from ...ir.types import BOOL, F64, I64
from ..apart import Range
from ..kernels import at
from ..nests import (
    Allocate,
    Apply,
    Bind,
    Buffer,
    Check,
    Fill,
    If,
    Lit,
    Load,
    Loop,
    Scalar,
    Statement,
    Store,
    every,
)
from .share import term_of, trips
from .steps import THREADS, Step

if TYPE_CHECKING:
    from .plan import Planner

NOWHERE = -1  # the place of a term that there is not


class IrregularError(Exception):
    """Additions without a number that is known before the loop."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one statement adds, by number: the values, and their places."""

    target: Buffer
    values: Buffer
    places: Buffer
    count: Dim


@dataclass(slots=True)
class Unordered:
    """Takes the additions to `sums` out of the loop of a plan."""

    planner: Planner
    sums: Collection[Buffer]
    terms: list[Terms] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)
    partial: bool = False  # whether some terms may be missing

    def take_out(self, loop: Loop) -> None:
        """Let a loop note its additions instead; it is changed.

        Raises IrregularError where they have no numbers.
        """
        self.partial = any(isinstance(s, If | Check) for s in every([loop]))
        computed = {s.symbol for s in every([loop]) if isinstance(s, Bind)}
        body: list[Statement] = [loop]
        self._block(body, 0, 1, computed)
        for t in self.terms if self.partial else ():
            self.before += self._filled(t.places, NOWHERE)

    def added_up(self) -> list[Step]:
        """Return what adds up the additions that were noted."""
        targets = dict.fromkeys(t.target for t in self.terms)
        return [s for b in targets for s in self._total(b)]

    # Noting -----------------------------------------------------------------------

    def _block(
        self,
        body: list[Statement],
        number: Dim,
        count: Dim,
        inside: Collection[Symbol],
    ) -> None:
        """Note the additions of statements, `number` of so many iterations."""
        out: list[Statement] = []
        for s in body:
            term = self._term(s)
            if term is not None:
                assert isinstance(s, Store)
                out += self._noted(s, term, number, count)
                continue
            out.append(s)
            match s:
                case Loop():
                    self._loop(s, number, count, inside)
                case If():
                    self._block(s.then, number, count, inside)
                    self._block(s.orelse, number, count, inside)
        body[:] = out

    def _term(self, s: Statement) -> Scalar | None:
        return term_of(s) if isinstance(s, Store) and s.buffer in self.sums else None

    def _loop(
        self, s: Loop, number: Dim, count: Dim, inside: Collection[Symbol]
    ) -> None:
        if not any(self._term(t) is not None for t in every([s])):
            return
        run = Range.of(s)
        apart = [*s.opening, *s.closing]
        if run is None or s.step != 1 or any(self._term(t) for t in every(apart)):
            raise IrregularError
        length = dims.add(run.some, 1)
        if dims.symbols_of(length) & set(inside):
            raise IrregularError
        own = dims.add(dims.symbol(s.index.name), dims.mul(s.start, -1))
        number = dims.add(dims.mul(number, length), own)
        self._block(s.body, number, dims.mul(count, trips(s)), {*inside, s.index})

    def _noted(
        self, s: Store, term: Scalar, number: Dim, count: Dim
    ) -> list[Statement]:
        name = f"{s.buffer.name}_{len(self.terms)}"
        values = self._made(f"{name}_term", s.buffer, count)
        places = self._made(f"{name}_place", s.buffer, count, index=True)
        self.terms.append(Terms(s.buffer, values, places, count))
        return [Store(values, number, term), Store(places, number, at(s.offset))]

    def _made(self, name: str, like: Buffer, size: Dim, index: bool = False) -> Buffer:
        """Return memory of the call, allocated before the loop if it must be."""
        p = self.planner.p
        early = {*p.symbols, *(x for x, _, _ in p.sizes)}
        place = "arena" if dims.symbols_of(size) <= early else "local"
        dtype = I64 if index else like.dtype
        b = self.planner.made_of(name, dtype, size, place)
        self.planner.made.append(b)
        if place == "local":
            self.before.append(Allocate(b))
        return b

    # Adding up --------------------------------------------------------------------

    def _total(self, b: Buffer) -> list[Step]:
        """Return the launches that add the terms of a buffer; see Note [quanta]."""
        terms = [t for t in self.terms if t.target is b]
        count = at(dims.add(*(t.count for t in terms)) if terms[1:] else terms[0].count)
        words = 2 if b.dtype == F64 else 1
        start = len(self.before)
        top = self._made(f"{b.name}_top", b, b.size, index=True)
        sums = self._made(f"{b.name}_sum", b, dims.mul(words, b.size), index=True)
        steps = self.before[start:]
        del self.before[start:]
        steps += self._filled(top, 0) + self._filled(sums, 0)

        def largest(place: Dim, x: Scalar) -> list[Store]:
            return [Store(top, place, Apply("exponent({0})", (x,), I64), "maximum")]

        def counted(place: Dim, x: Scalar) -> list[Store]:
            args = x, Load(top, place, I64), count
            out = []
            for k, name in enumerate(("quanta", "quanta_below")[:words]):
                where = dims.add(place, dims.mul(k, b.size))
                value = Apply(f"{name}({{0}}, {{1}}, {{2}})", args, I64)
                out.append(Store(sums, where, value, "add"))
            return out

        for do in (largest, counted):
            for t in terms:
                steps += self._for_each(t, do)
        return steps + self._brought(b, top, sums, words, count)

    def _for_each(
        self, t: Terms, do: Callable[[Dim, Scalar], list[Store]]
    ) -> list[Step]:
        """Return the launch that does something with each term at its place."""
        (index, i), (symbol, place) = (self.planner.symbol(x) for x in "qg")
        stores: list[Statement] = [*do(place, Load(t.values, i, t.values.dtype))]
        if self.partial:
            stores = [If(_above(at(place), NOWHERE), stores, [])]
        body = [Bind(symbol, Load(t.places, i, I64)), *stores]
        return self._launched(Loop(index, 0, t.count, 1, body))

    def _brought(
        self, b: Buffer, top: Buffer, sums: Buffer, words: int, count: Scalar
    ) -> list[Step]:
        """Return the launch that adds what was counted to the elements."""
        index, i = self.planner.symbol("i")
        old = Load(b, i, b.dtype), Load(top, i, I64), count
        parts = (dims.add(i, dims.mul(k, b.size)) for k in range(words))
        args = (*old, *(Load(sums, d, I64) for d in parts))
        name = ("plus_quanta", "plus_quanta_2")[words - 1]
        places = ", ".join(f"{{{k}}}" for k in range(len(args)))
        new = Store(b, i, Apply(f"{name}({places})", args, b.dtype))
        found = If(_above(Load(top, i, I64), 0), [new], [])
        return self._launched(Loop(index, 0, b.size, 1, [found]))

    def _filled(self, b: Buffer, value: int) -> list[Step]:
        return self.planner.range(Fill(b, 0, b.size, Lit(value, b.dtype)))

    def _launched(self, loop: Loop) -> list[Step]:
        grid = self.planner.symbol("grid")
        return self.planner.form(THREADS, [loop], [], [], (), *grid)


def _above(x: Scalar, least: int) -> Scalar:
    return Apply("({0} > {1})", (x, Lit(least, I64)), BOOL)
