"""What a trace assumes of its symbols: hints, facts and equalities.

While a function is traced, every symbol has a hint: its value in this call. A question
that the facts leave open is answered by the hints, and the answer becomes a fact, which
is checked when the compiled code is entered. An equality is assumed by substitution:
one symbol is replaced by what it must be.

Indices of loops and integers that the program computes are symbols without a hint: they
are *open*. What is asked of them is proven from what holds in the regions that are
being traced, or from a fact about the arguments that suffices for every iteration. What
stays open is a condition of the program (`if i > 0`), or, where Python needs the answer
itself, `NeedsValue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from typing import Any, NamedTuple

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import UnsupportedError
from .location import user_location


class NeedsValue(UnsupportedError):
    """Python needs a value that is known only while the compiled program runs.

    `symbols` are the open symbols that it depends on, as far as they are known.
    """

    symbols: frozenset[Symbol] = frozenset()


class Test(NamedTuple):
    """What a computed bool says about dims: each is at least 0."""

    true: tuple[Dim, ...] = ()
    false: tuple[Dim, ...] = ()
    exact: bool = False  # whether it is true where these hold


class Assumptions:
    """Hints, facts and substitutions; the `Decider` of a trace and its inner traces."""

    def __init__(self) -> None:
        self.hints: dict[Symbol, int] = {}
        self.facts = Facts()
        self.equal: dict[Symbol, Dim] = {}
        # Makes an open symbol a number, where that can be checked: see `Outcomes`.
        self.fix: Callable[[Symbol], bool] = lambda s: False
        self.local: tuple[Dim, ...] = ()  # facts of the regions that are being traced
        self.ranges: dict[Symbol, tuple[Dim, Dim]] = {}  # of loop indices: first, last
        self.counts: set[Symbol] = set()  # of masks: they may be assumed
        self.tests: dict[Any, Test] = {}  # by the values of computed bools
        self.visible: set[Symbol] = set()  # open symbols that are defined here
        self.ages: dict[
            Symbol, int
        ] = {}  # of open symbols, in the order they were made
        # Ids of objects that may not be looked at in the loops that are open: lists
        # that get items there, and iterators from outside.
        self.growing: set[int] = set()
        self._letters: set[str] = set()

    def symbol(self, hint: int | None, letters: Sequence[str]) -> Expr:
        """Make a fresh symbol, named after one of `letters` while they last."""
        free = [c for c in letters if c not in self._letters]
        name, number = (free[0] if free else letters[0]), 1
        while name in self._letters:
            name, number = f"{letters[0]}{number}", number + 1
        self._letters.add(name)
        out = dims.symbol(name)
        if hint is not None:
            self.hints[Symbol(name)] = hint
        else:
            self.visible.add(Symbol(name))
            self.ages[Symbol(name)] = len(self.ages)
        return out

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what was learned of open symbols inside."""
        local, ranges, visible = self.local, dict(self.ranges), set(self.visible)
        growing = set(self.growing)
        try:
            yield
        finally:
            self.local, self.ranges, self.visible = local, ranges, visible
            self.growing = growing

    def learn(self, *facts: Dim) -> None:
        """Add facts (each at least 0) until the end of the scope."""
        new = [e for e in map(self.resolve, facts) if isinstance(e, Expr)]
        self.local += tuple(e for e in new if e not in self.local)

    def proves(self, d: Dim) -> bool:
        """Tell whether `d >= 0` follows from what is known here."""
        d = self.resolve(d)
        return d >= 0 if isinstance(d, int) else self.here().proves(d)

    def here(self) -> Facts:
        """Return all that holds in the regions that are being traced."""
        return self.facts.having(*self.local) if self.local else self.facts

    def check_complete(self, x: object) -> None:
        """Raise where a list is looked at that grows in a loop being traced."""
        if id(x) in self.growing:
            raise NeedsValue(
                "a loop reads a list that it appends to, or an iterator from outside",
                location=user_location(),
                rule="The body of a loop is traced once, for all iterations.",
                hint="keep the last item, or a count, in a variable of its own",
            )

    def open(self, *ds: Dim) -> frozenset[Symbol]:
        """Return the symbols that have no value while the function is traced."""
        found = (s for d in ds for s in dims.symbols_of(self.resolve(d)))
        return frozenset(s for s in found if s not in self.hints)

    def size(self, n: int) -> Dim:
        """Return the dim for a size of an argument: 0 and 1 stay literal."""
        if n < 2:
            return n
        out = self.symbol(n, "nmklpqrs")
        self.facts = self.facts.having(out - 2)
        return out

    def resolve(self, d: Dim) -> Dim:
        return dims.substitute(d, self.equal) if self.equal else d

    def sizes(self, shown: Iterable[Dim]) -> str:
        """Say in words what the symbols of dims are in this call: "here n = 3"."""
        found = set().union(*(dims.symbols_of(self.resolve(d)) for d in shown))
        known = sorted((s.name, self.hints[s]) for s in found & self.hints.keys())
        return "here " + ", ".join(f"{s} = {n}" for s, n in known) if known else ""

    def value(self, d: Dim) -> int:
        """Return the value of a dim in this call."""
        out = dims.substitute(self.resolve(d), dict(self.hints))
        if not isinstance(out, int) and all(map(self.fix, dims.symbols_of(out))):
            out = dims.substitute(self.resolve(d), dict(self.hints))
        if not isinstance(out, int):
            raise self.needs_value(d)
        return out

    def knows(self, d: Dim) -> bool:
        """Tell whether a dim has a value while the function is traced."""
        return dims.symbols_of(self.resolve(d)) <= self.hints.keys()

    def needs_value(self, d: Dim) -> NeedsValue:
        """Return the error for a question that Python cannot leave open."""
        d = self.resolve(d)
        names = ", ".join(sorted(s.name for s in self.open(d)))
        error = NeedsValue(
            f"the integer {d} is known only when the program runs",
            location=user_location(),
            rule=f"{names} is the index of a loop or computed from data; Python needs "
            "its value here, to choose an object or a shape, or to decide.",
            hint="use arrays of one size with np.where or a mask, or leave this part "
            "uncompiled",
        )
        error.symbols = self.open(d)
        return error

    def decide(self, gap: Dim) -> bool | None:
        """Tell whether `gap >= 0`; None where it is for the program to find out.

        May write a guard, that of all arguments or one that covers every iteration.
        """
        gap = self.resolve(gap)
        if isinstance(gap, int):
            return gap >= 0
        below = -gap - 1
        if self.proves(gap):
            return True
        if self.proves(below):
            return False
        if not self.open(gap):
            holds = self.value(gap) >= 0
            self.assume(gap if holds else below)
            return holds
        for claim, answer in ((gap, True), (below, False)):
            if self._covers(claim):
                return answer
        return None

    def _covers(self, claim: Dim) -> bool:
        """Tell whether a fact about the arguments gives `claim >= 0` in all iterations.

        It becomes a guard.
        """
        for least in self._lower_bounds(self.resolve(claim)):
            if self.value(least) >= 0:
                self.assume(least)
                return True
        return False

    def _lower_bounds(self, d: Dim, depth: int = 4) -> Iterator[Dim]:
        """Yield dims of the arguments that `d` is never smaller than."""
        if not self.open(d):
            yield d
            return
        for s in (*reversed(self.ranges), *sorted(self.open(d), key=str)):
            if s not in dims.symbols_of(d) or depth == 0:
                continue
            change = dims.add(
                dims.substitute(d, {s: dims.add(Expr((((s,), 1),)), 1)}),
                dims.mul(d, -1),
            )
            rises = self.proves(change)
            if rises or self.proves(dims.mul(change, -1)):
                for end in self._ends(s, rises, s not in dims.symbols_of(change)):
                    yield from self._lower_bounds(
                        dims.substitute(d, {s: end}), depth - 1
                    )
                return

    def _ends(self, s: Symbol, lower: bool, linear: bool) -> Iterator[Dim]:
        """Yield lower or upper bounds of an open symbol.

        Those that it need not reach serve only where all between them counts.
        """
        if s in self.ranges:
            yield self.ranges[s][0 if lower else 1]
        for fact in self.local if linear else ():
            rest = dims.substitute(fact, {s: 0})
            sign = 1 if lower else -1
            if dims.add(rest, dims.mul(Expr((((s,), 1),)), sign)) == fact:
                yield dims.mul(rest, -sign)

    def same(self, a: Dim, b: Dim) -> bool:
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return True
        if self.here().differ(a, b):
            return False
        if self._assume_count(a, b) or self._assume_sizes(a, b):
            return True
        return self.equals(a, b)

    def equals(self, a: Dim, b: Dim) -> bool:
        """Tell whether two dims are equal in this call, and make that a guard."""
        gap = self.value(dims.add(a, dims.mul(b, -1)))
        if gap == 0:
            self.assume_equal(a, b)
        else:
            larger, smaller = (a, b) if gap > 0 else (b, a)
            self.assume(dims.add(dims.add(larger, dims.mul(smaller, -1)), -1))
        return gap == 0

    def _assume_count(self, a: Dim, b: Dim) -> bool:
        """Let a count that is computed from data be what its use needs.

        The op that computes it checks it when the program runs.
        """
        for count, other in ((a, b), (b, a)):
            s = dims.as_symbol(count)
            if s is None or s not in self.counts or not self._precedes(other, s):
                continue
            self.substitute(s, other)
            return True
        return False

    def _precedes(self, d: Dim, s: Symbol) -> bool:
        """Tell whether a dim has a value where the open symbol `s` is computed."""
        age = self.ages[s]
        return all(self.ages.get(t, -1) < age for t in dims.symbols_of(d))

    def _assume_sizes(self, a: Dim, b: Dim) -> bool:
        """Assume that sizes that are equal in this call are, if that makes a == b.

        For instance the sizes of `x[i:k]` and `y[i:k]`, both clamped.
        """
        if not self.open(a, b):
            return False
        left, right = dims.symbols_of(a), dims.symbols_of(b)
        pairs: dict[Symbol, Dim] = {}
        for s in sorted(left - right, key=str):
            for t in sorted(right - left, key=str):
                if s in self.hints and self.hints[s] == self.hints.get(t):
                    pairs[s] = dims.symbol(t.name)
        if not pairs or dims.substitute(a, pairs) != b:
            return False
        for s, d in pairs.items():
            self.substitute(s, d)
        return True

    def at_least(self, a: Dim, b: Dim) -> bool:
        gap = dims.add(a, dims.mul(b, -1))
        answer = self.decide(gap)
        return self.value(gap) >= 0 if answer is None else answer

    def maximum(self, a: Dim, b: Dim) -> Dim:
        """Return the larger of two dims."""
        answer = self._in_order(a, b)
        return dims.maximum(a, b) if answer is None else b if answer else a

    def minimum(self, a: Dim, b: Dim) -> Dim:
        """Return the smaller of two dims."""
        answer = self._in_order(a, b)
        return dims.minimum(a, b) if answer is None else a if answer else b

    def _in_order(self, a: Dim, b: Dim) -> bool | None:
        """Tell whether a <= b; where they may be equal either answer is right."""
        gap = dims.add(b, dims.mul(a, -1))
        if self.proves(gap):
            return True
        if self.proves(dims.mul(gap, -1)):
            return False
        if not self.open(gap):
            return self.decide(gap)
        for claim, answer in ((gap, True), (dims.mul(gap, -1), False)):
            if self._covers(claim):
                return answer
        return None

    def assume(self, d: Dim) -> None:
        """Add the fact d >= 0."""
        self.facts = self.facts.having(self.resolve(d))

    def assume_equal(self, a: Dim, b: Dim) -> None:
        """Assume a == b by solving for a symbol; without one, some become equal.

        Or numbers, if nothing else helps.
        """
        gap = self.resolve(dims.add(a, dims.mul(b, -1)))
        if isinstance(gap, int):
            return
        for monomial, coefficient in reversed(gap.terms):
            if len(monomial) != 1 or abs(coefficient) != 1:
                continue
            (s,) = monomial
            if not isinstance(s, Symbol) or s not in self.hints:
                continue
            rest = dims.add(gap, dims.mul(Expr(((monomial, 1),)), -coefficient))
            if s in dims.symbols_of(rest) or self.open(rest):
                continue
            self.substitute(s, dims.mul(rest, -coefficient))
            return
        if self._assume_multiples(gap):
            return
        known = sorted(dims.symbols_of(gap) - self.open(gap), key=str)
        for k, s in enumerate(known):
            for t in known[:k]:
                if self.hints[s] == self.hints[t] and self.resolve(gap) != 0:
                    self.substitute(s, self.resolve(dims.symbol(t.name)))
                    break
        if self.resolve(gap) != 0:
            for s in known:
                self.substitute(s, self.hints[s])

    def _assume_multiples(self, gap: Dim) -> bool:
        """Assume that sizes are multiples of others, if that makes two products equal.

        p*q == 4*m*n, of a reshape to (m, 2, n, 2), holds with p = 2*m and q = 2*n.
        """
        if isinstance(gap, int) or len(gap.terms) != 2:
            return False
        sizes = {s: k for k, s in enumerate(self.hints)}  # in the order of arguments
        sides = [[s for s in m if isinstance(s, Symbol)] for m, _ in gap.terms]
        if not dims.symbols_of(gap) <= sizes.keys() or len(sides[0]) != len(sides[1]):
            return False
        first, second = (sorted(m, key=lambda s: sizes[s])[:4] for m in sides)
        for chosen in permutations(second):
            found: dict[Symbol, Dim] = {}
            smaller: set[Symbol] = set()
            for s, t in zip(first, chosen, strict=True):
                large, small = (s, t) if self.hints[s] >= self.hints[t] else (t, s)
                times = self.hints[large] // max(self.hints[small], 1)
                if large != small:
                    smaller.add(small)
                    found[large] = dims.mul(dims.symbol(small.name), times)
            holds = all(self.hints[s] == self.value(d) for s, d in found.items())
            if holds and smaller.isdisjoint(found) and not dims.substitute(gap, found):
                for s, d in found.items():
                    self.substitute(s, d)
                return True
        return False

    def substitute(self, s: Symbol, d: Dim) -> None:
        """Replace `s` by `d` everywhere from now on."""
        one = {s: d}
        self.local = tuple(dims.substitute(e, one) for e in self.local)
        self.equal = {k: dims.substitute(v, one) for k, v in self.equal.items()}
        self.equal[s] = d
        known = (dims.substitute(e, one) for e in self.facts.known)
        self.facts = Facts().having(*known)

    def specialise(self, d: Dim) -> int:
        """Return the value of a dim and make it a number from now on."""
        d = self.resolve(d)
        if isinstance(d, int):
            return d
        value = self.value(d)  # raises NeedsValue for open ones
        d = self.resolve(d)
        symbols = dims.symbols_of(d)
        if len(symbols) == 1 and dims.as_symbol(d) is None:
            (s,) = symbols
            self.substitute(s, self.hints[s])
        else:
            self.assume_equal(d, value)
        if not isinstance(self.resolve(d), int):
            for s in dims.symbols_of(self.resolve(d)):
                self.substitute(s, self.hints[s])
        return value
