"""What a trace assumes of its symbols: hints, facts and equalities.

While a function is traced, every symbol has a hint: its value in this call. A question
that the facts leave open is answered by the hints, and the answer becomes a fact, which
is checked when the compiled code is entered. An equality is assumed by substitution:
one symbol is replaced by what it must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import dims
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import UnsupportedError
from .symbols import SymInt


class Assumptions:
    """Hints, facts and substitutions; the `Decider` of a trace and its inner traces."""

    def __init__(self) -> None:
        self.hints: dict[Symbol, int] = {}
        self.facts = Facts()
        self.equal: dict[Symbol, Dim] = {}
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
        return out

    def size(self, n: int) -> Dim:
        """Return the dim for a size of an argument: 0 and 1 stay literal."""
        if n < 2:
            return n
        out = self.symbol(n, "nmklpqrs")
        self.facts = self.facts.having(out - 2)
        return out

    def resolve(self, d: Dim) -> Dim:
        return dims.substitute(d, self.equal) if self.equal else d

    def value(self, d: Dim) -> int:
        """Return the value of a dim in this call."""
        out = dims.substitute(self.resolve(d), dict(self.hints))
        if not isinstance(out, int):
            names = ", ".join(sorted(s.name for s in dims.symbols_of(out)))
            raise UnsupportedError(
                f"the size {d} is known only when the program runs",
                rule=f"{names} is computed from data; nothing may be decided by it.",
                hint="run this part eagerly, or write it with a mask and np.where",
            )
        return out

    def knows(self, d: Dim) -> bool:
        """Tell whether a dim has a value while the function is traced."""
        return dims.symbols_of(self.resolve(d)) <= self.hints.keys()

    def same(self, a: Dim, b: Dim) -> bool:
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return True
        if self.facts.differ(a, b):
            return False
        if self._assume_count(a, b):
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
            if s is None or s in self.hints or s in dims.symbols_of(other):
                continue
            self.substitute(s, other)
            return True
        return False

    def at_least(self, a: Dim, b: Dim) -> bool:
        gap = self.resolve(dims.add(a, dims.mul(b, -1)))
        if self.facts.proves(gap):
            return True
        below = dims.add(dims.mul(gap, -1), -1)
        if self.facts.proves(below):
            return False
        holds = self.value(gap) >= 0
        self.assume(gap if holds else below)
        return holds

    def assume(self, d: Dim) -> None:
        """Add the fact d >= 0."""
        self.facts = self.facts.having(d)

    def assume_equal(self, a: Dim, b: Dim) -> None:
        """Assume a == b by solving for a symbol; without one, all become numbers."""
        gap = dims.add(a, dims.mul(b, -1))
        if isinstance(gap, int):
            return
        for monomial, coefficient in reversed(gap.terms):
            if len(monomial) != 1 or abs(coefficient) != 1:
                continue
            (s,) = monomial
            if not isinstance(s, Symbol) or s not in self.hints:
                continue
            rest = dims.add(gap, dims.mul(Expr(((monomial, 1),)), -coefficient))
            if s in dims.symbols_of(rest):
                continue
            self.substitute(s, dims.mul(rest, -coefficient))
            return
        for s in dims.symbols_of(gap):
            self.substitute(s, self.hints[s])

    def substitute(self, s: Symbol, d: Dim) -> None:
        """Replace `s` by `d` everywhere from now on."""
        one = {s: d}
        self.equal = {k: dims.substitute(v, one) for k, v in self.equal.items()}
        self.equal[s] = d
        known = (dims.substitute(e, one) for e in self.facts.known)
        self.facts = Facts().having(*known)

    def specialise(self, d: Dim) -> int:
        """Return the value of a dim and make it a number from now on."""
        d = self.resolve(d)
        if isinstance(d, int):
            return d
        value = self.value(d)
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


class TraceInt(SymInt):
    """An integer of a trace; see `SymInt`."""

    __slots__ = ("dim", "trace")

    def __init__(self, dim: Expr, trace: Any) -> None:
        self.dim = dim
        self.trace = trace

    def __repr__(self) -> str:
        return str(self.trace.assumptions.resolve(self.dim))

    def __index__(self) -> int:
        return int(self.trace.assumptions.specialise(self.dim))

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __bool__(self) -> bool:
        return self != 0

    def _compute(self, d: Dim) -> Any:
        return self.trace.integer(d)

    def __add__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._compute(self.dim + d)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._compute(self.dim - d)

    def __rsub__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._compute(d - self.dim)

    def __mul__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._compute(self.dim * d)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._compute(-self.dim)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._divide(self.dim, d)

    def __rfloordiv__(self, other: Any) -> Any:
        d = dim_of(other)
        return NotImplemented if d is None else self._divide(d, self.dim)

    def _divide(self, a: Dim, b: Dim) -> Any:
        if self.trace.assumptions.same(b, 0):
            raise ZeroDivisionError("integer division or modulo by zero")
        return self._compute(dims.floordiv(a, b))

    def __mod__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        return self - self._divide(self.dim, d) * other

    def __rmod__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        return other - self._divide(d, self.dim) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 0 <= other <= 4:
            out: Any = 1
            for _ in range(other):
                out = self * out
            return out
        return self.trace.number(self.dim) ** other

    def __truediv__(self, other: Any) -> Any:
        d = dim_of(other)
        return self.trace.number(self.dim) / (other if d is None else d)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.trace.number(self.dim)

    def __rpow__(self, other: Any) -> Any:
        return other ** self.trace.number(self.dim)

    def __float__(self) -> float:
        return float(self.__index__())

    def __eq__(self, other: object) -> bool:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        a, b = (self.trace.assumptions.resolve(x) for x in (self.dim, d))
        facts = self.trace.assumptions.facts
        if a == b or facts.differ(a, b):
            return bool(a == b)
        return bool(self.trace.assumptions.equals(a, b))

    def __ne__(self, other: object) -> bool:
        out = self.__eq__(other)
        return out if out is NotImplemented else not out

    def __ge__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        return self.trace.assumptions.at_least(self.dim, d)

    def __lt__(self, other: Any) -> Any:
        out = self.__ge__(other)
        return out if out is NotImplemented else not out

    def __le__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        return self.trace.assumptions.at_least(d, self.dim)

    def __gt__(self, other: Any) -> Any:
        out = self.__le__(other)
        return out if out is NotImplemented else not out

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Take part in NumPy arithmetic as the Python number that it is."""
        numbers = [
            x.trace.number(x.dim) if isinstance(x, TraceInt) else x for x in inputs
        ]
        return getattr(ufunc, method)(*numbers, **kwargs)


def dim_of(x: object) -> Dim | None:
    """Return the dim that an int or a `TraceInt` stands for; None for others."""
    if isinstance(x, TraceInt):
        return x.dim
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, int):
        return x
    if hasattr(x, "__index__") and type(x).__module__ == "numpy":
        return int(x)
    return None
