"""Dims: integer expressions in normal form over symbols.

A dim is an ``int`` or an ``Expr``: a polynomial with integer coefficients over atoms,
where an atom is a symbol, a floor division, a minimum or a maximum. Equal normal forms
are equal values; an expression without symbols is always an ``int``. What the normal
form leaves open is answered by the active ``Decider``: from facts alone (``Strict``),
or by a guard where a function is being traced.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol, TypeAlias, Union

from .errors import IRError


class Symbol:
    """A named integer: a size, a loop index, a count that a node defines.

    There is one object per name, so that symbols are compared and hashed by identity.
    """

    __slots__ = ("name",)
    name: str
    _known: ClassVar[dict[str, Symbol]] = {}

    def __new__(cls, name: str) -> Symbol:
        found = cls._known.get(name)
        if found is None:
            new = object.__new__(cls)
            new.name = name
            found = cls._known.setdefault(name, new)
        return found

    def __reduce__(self) -> tuple[type[Symbol], tuple[str]]:
        return Symbol, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Symbol(name={self.name!r})"


class Call:
    """A floor division, minimum or maximum of dims that did not simplify.

    Not changed once it is made: its hash is computed there, since dims are looked up
    much more often than made.
    """

    __slots__ = ("_hash", "args", "kind")

    def __init__(self, kind: str, args: tuple[Dim, ...]) -> None:
        self.kind = kind  # "floordiv", "min" or "max"
        self.args = args
        self._hash = hash((kind, args))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Call], tuple[str, tuple[Dim, ...]]]:
        return Call, (self.kind, self.args)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Call)
            and self.kind == other.kind
            and self.args == other.args
        )

    def __str__(self) -> str:
        if self.kind == "floordiv":
            return f"{_factor(self.args[0])}//{_factor(self.args[1])}"
        return f"{self.kind}({', '.join(map(str, self.args))})"


Atom: TypeAlias = Symbol | Call
Monomial: TypeAlias = tuple[Atom, ...]
Dim: TypeAlias = Union[int, "Expr"]


def _factor(d: Dim) -> str:
    text = str(d)
    return text if isinstance(d, int) or text.isidentifier() else f"({text})"


@lru_cache(maxsize=1 << 14)
def _order(m: Monomial) -> tuple[int, str]:
    return (-len(m), "*".join(map(str, m)))


class Expr:
    """A polynomial in normal form; never constant (a constant is an ``int``).

    Not changed once it is made, as a `Call`.
    """

    __slots__ = ("_hash", "_symbols", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._symbols: frozenset[Symbol] | None = None  # found when asked for

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Expr], tuple[tuple[tuple[Monomial, int], ...]]]:
        return Expr, (self.terms,)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return add(other, mul(self, -1))

    def __mul__(self, other: Dim) -> Dim:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return mul(self, -1)

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return add(self, mul(mul(other, -1), floordiv(self, other)))

    def __rmod__(self, other: Dim) -> Dim:
        return add(other, mul(mul(self, -1), floordiv(other, self)))

    def __str__(self) -> str:
        out = ""
        for monomial, coefficient in self.terms:
            body = "*".join(_atom_text(a) for a in monomial)
            size = abs(coefficient)
            text = (
                body if size == 1 and body else f"{size}*{body}" if body else f"{size}"
            )
            if out:
                out += f" - {text}" if coefficient < 0 else f" + {text}"
            else:
                out = f"-{text}" if coefficient < 0 else text
        return out

    __repr__ = __str__


def _atom_text(a: Atom) -> str:
    return f"({a})" if isinstance(a, Call) and a.kind == "floordiv" else str(a)


def symbol(name: str) -> Expr:
    """Make the dim that is the symbol `name`.

    >>> symbol("n") + 1 - symbol("n")
    1
    """
    return Expr((((Symbol(name),), 1),))


def as_symbol(d: Dim) -> Symbol | None:
    """Return the symbol that `d` is, or None when it is anything else."""
    if isinstance(d, Expr) and len(d.terms) == 1:
        (monomial, coefficient), *_ = d.terms
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def _terms(d: Dim) -> Iterable[tuple[Monomial, int]]:
    if isinstance(d, Expr):
        return d.terms
    return (((), int(d)),) if d else ()


def _make(terms: Mapping[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    if len(kept) == 1:
        return Expr(tuple(kept.items()))
    return Expr(tuple(sorted(kept.items(), key=_order_of_term)))


def _order_of_term(term: tuple[Monomial, int]) -> tuple[int, str]:
    return _order(term[0])


def add(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int):
        if isinstance(a, int):
            return a + b
        if not b:
            return a
    out = dict(_terms(a))
    for m, c in _terms(b):
        out[m] = out.get(m, 0) + c
    return _make(out)


def mul(a: Dim, b: Dim) -> Dim:
    if isinstance(b, int):
        if isinstance(a, int):
            return a * b
        if b == 1:
            return a
        return Expr(tuple((m, c * b) for m, c in a.terms)) if b else 0
    out: dict[Monomial, int] = {}
    for m, c in _terms(a):
        for k, d in _terms(b):
            key = tuple(sorted((*m, *k), key=str)) if m and k else m or k
            out[key] = out.get(key, 0) + c * d
    return _make(out)


def without_constant(d: Dim) -> Dim:
    """Return what `d` adds to a number: dims that differ by one have it in common.

    >>> without_constant(symbol("n") * 2 - 3)
    2*n
    """
    return Expr(tuple(t for t in d.terms if t[0])) if isinstance(d, Expr) else 0


def product(dims: Iterable[Dim]) -> Dim:
    out: Dim = 1
    for d in dims:
        out = mul(out, d)
    return out


def _atom(a: Atom) -> Dim:
    return Expr((((a,), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """Divide and round down, as Python does."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if isinstance(b, int) and b == -1:
        return mul(a, -1)
    if a == b:
        return 1
    if isinstance(b, int) and b > 0:  # take out the exact multiples
        exact: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for m, c in _terms(a):
            exact[m], rest[m] = c // b, c % b
        inner = _make(rest)
        left = (
            inner // b
            if isinstance(inner, int)
            else _atom(Call("floordiv", (inner, b)))
        )
        return add(_make(exact), left)
    quotient = _exact_quotient(a, b)
    return quotient if quotient is not None else _atom(Call("floordiv", (a, b)))


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """Return a / b where b is one monomial that divides every term of a."""
    divisor = list(_terms(b))
    if len(divisor) != 1:
        return None
    (atoms, coefficient), *_ = divisor
    out: dict[Monomial, int] = {}
    for m, c in _terms(a):
        left = list(m)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if c % coefficient:
            return None
        out[tuple(left)] = c // coefficient
    return _make(out)


def _extreme(kind: str, dims: Iterable[Dim]) -> Dim:
    flat: list[Dim] = []
    for d in dims:
        inner = _same_call(kind, d)
        flat.extend(inner if inner is not None else (d,))
    kept: list[Dim] = []
    for d in flat:
        for k, other in enumerate(kept):
            gap = add(d, mul(other, -1))
            if isinstance(gap, int):
                if (gap > 0) == (kind == "max"):
                    kept[k] = d
                break
        else:
            kept.append(d)
    if len(kept) == 1:
        return kept[0]
    return _atom(Call(kind, tuple(sorted(kept, key=str))))


def _same_call(kind: str, d: Dim) -> tuple[Dim, ...] | None:
    if isinstance(d, Expr) and len(d.terms) == 1:
        (monomial, coefficient), *_ = d.terms
        if coefficient == 1 and len(monomial) == 1:
            (a,) = monomial
            if isinstance(a, Call) and a.kind == kind:
                return a.args
    return None


def maximum(*dims: Dim) -> Dim:
    return _extreme("max", dims)


def minimum(*dims: Dim) -> Dim:
    return _extreme("min", dims)


def symbols_of(d: Dim) -> frozenset[Symbol]:
    """Return every symbol that occurs in `d`."""
    if not isinstance(d, Expr):
        return _NO_SYMBOLS
    if d._symbols is None:
        d._symbols = _symbols_in(d)
    return d._symbols


_NO_SYMBOLS: frozenset[Symbol] = frozenset()


def _symbols_in(d: Expr) -> frozenset[Symbol]:
    found: set[Symbol] = set()
    for m, _ in d.terms:
        for a in m:
            if isinstance(a, Symbol):
                found.add(a)
            else:
                for arg in a.args:
                    found |= symbols_of(arg)
    return frozenset(found)


def substitute(d: Dim, values: Mapping[Symbol, Dim]) -> Dim:
    """Replace symbols in `d`; the result is in normal form again.

    >>> substitute(2 * symbol("n") + 1, {Symbol("n"): 3})
    7
    """
    if isinstance(d, int) or symbols_of(d).isdisjoint(values):
        return d
    out: Dim = 0
    for m, c in d.terms:
        term: Dim = c
        for a in m:
            term = mul(term, _substitute_atom(a, values))
        out = add(out, term)
    return out


def _substitute_atom(a: Atom, values: Mapping[Symbol, Dim]) -> Dim:
    if isinstance(a, Symbol):
        return values.get(a, _atom(a))
    args = [substitute(x, values) for x in a.args]
    if a.kind == "floordiv":
        return floordiv(args[0], args[1])
    return _extreme(a.kind, args)


def evaluate(d: Dim, values: Mapping[Symbol, int]) -> int:
    """Compute `d` with every symbol given."""
    if isinstance(d, int):
        return d
    try:
        return _value(d, values)
    except KeyError:  # which may stand in a term that is 0
        result = substitute(d, values)
    if not isinstance(result, int):
        missing = ", ".join(sorted(s.name for s in symbols_of(result)))
        raise IRError(f"dim {d}: no value for {missing}")
    return result


def _value(d: Dim, values: Mapping[Symbol, int]) -> int:
    if isinstance(d, int):
        return d
    total = 0
    for m, c in d.terms:
        for a in m:
            c *= values[a] if isinstance(a, Symbol) else _call_value(a, values)
        total += c
    return total


def _call_value(a: Call, values: Mapping[Symbol, int]) -> int:
    args = [_value(x, values) for x in a.args]
    if a.kind == "floordiv":
        return args[0] // args[1]
    return max(args) if a.kind == "max" else min(args)


def parse_dim(text: str) -> Dim:
    """Read a dim from text.

    >>> parse_dim("max(n - 1, 0) + n//2 - n")
    max(0, n - 1) - n + (n//2)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise IRError(f"{text!r} is not a dim") from error
    return _read(tree, text)


def _read(tree: ast.expr, text: str) -> Dim:
    match tree:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return mul(_read(x, text), -1)
        case ast.BinOp(left=x, op=op, right=y):
            a, b = _read(x, text), _read(y, text)
            if isinstance(op, ast.Add):
                return add(a, b)
            if isinstance(op, ast.Sub):
                return add(a, mul(b, -1))
            if isinstance(op, ast.Mult):
                return mul(a, b)
            if isinstance(op, ast.FloorDiv):
                return floordiv(a, b)
        case ast.Call(func=ast.Name(id="min" | "max" as kind), args=args):
            return _extreme(kind, [_read(x, text) for x in args])
    raise IRError(f"{text!r} is not a dim")


# ---------------------------------------------------------------- facts and decisions


@dataclass(frozen=True, slots=True)
class Facts:
    """Expressions that are known to be at least 0."""

    known: tuple[Expr, ...] = ()

    def having(self, *exprs: Dim) -> Facts:
        """Add facts; each expression is at least 0."""
        new = [e for e in exprs if isinstance(e, Expr) and e not in self.known]
        return Facts((*self.known, *new)) if new else self

    def proves(self, d: Dim) -> bool:
        """Tell whether `d >= 0` follows; False means only that it was not shown."""
        return _proves(d, self.known, 3) or _rises(d, self.known)

    def differ(self, a: Dim, b: Dim) -> bool:
        """Tell whether a != b follows."""
        gap = add(a, mul(b, -1))
        if isinstance(gap, int):
            return gap != 0
        return self.proves(gap - 1) or self.proves(-gap - 1)


Bounds: TypeAlias = tuple[int | None, int | None]


@lru_cache(maxsize=1 << 14)
def _proves(d: Dim, known: tuple[Expr, ...], depth: int) -> bool:
    low, _ = _interval(d, known)
    if low is not None and low >= 0:
        return True
    if depth == 0 or isinstance(d, int):
        return False
    for m, c in d.terms:  # max(a, b) >= a, and -min(a, b) >= -a
        if len(m) == 1 and isinstance(m[0], Call):
            call = m[0]
            if (call.kind, c > 0) in (("max", True), ("min", False)):
                rest = add(d, mul(_atom(call), -c))
                if any(
                    _proves(add(rest, mul(x, c)), known, depth - 1) for x in call.args
                ):
                    return True
            if (call.kind, c > 0) in (("max", False), ("min", True)):
                rest = add(d, mul(_atom(call), -c))
                if all(
                    _proves(add(rest, mul(x, c)), known, depth - 1) for x in call.args
                ):
                    return True
            by = call.args[-1]
            if call.kind == "floordiv" and isinstance(by, int) and by > 0:
                # a - by + 1 <= by * (a//by) <= a
                bound = add(call.args[0], 1 - by if c > 0 else 0)
                rest = mul(add(d, mul(_atom(call), -c)), by)
                if _proves(add(rest, mul(bound, c)), known, depth - 1):
                    return True
    mine = {m: c for m, c in d.terms if m}
    for fact in known:
        shared = [c for m, c in fact.terms if m and mine.get(m, 0) * c > 0]
        if shared and _proves(add(d, mul(fact, -1)), known, depth - 1):
            return True
    return False


@lru_cache(maxsize=1 << 14)
def _rises(d: Dim, known: tuple[Expr, ...]) -> bool:
    """Tell whether `d`, with every symbol counted from its lower bound, has no minus.

    With k >= 2, k*m - 2*m is (k + 2)*m - 2*m = k*m, where k counts from 0.
    """
    if isinstance(d, int) or all(len(m) < 2 or c < 0 for m, c in d.terms):
        return False
    lows: dict[Symbol, Dim] = {}
    for a in {a for m, _ in d.terms for a in m}:
        low = _symbol_interval(a, known)[0] if isinstance(a, Symbol) else None
        if low is None or not isinstance(a, Symbol):
            return False
        lows[a] = add(_atom(a), low)
    counted = substitute(d, lows)
    if isinstance(counted, int):
        return counted >= 0
    return all(c >= 0 for _, c in counted.terms)


def _interval(d: Dim, known: tuple[Expr, ...]) -> Bounds:
    if isinstance(d, int):
        return d, d
    low: int | None = 0
    high: int | None = 0
    for m, c in d.terms:
        a, b = _monomial_interval(m, known)
        if c < 0:
            a, b = b, a
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
    return low, high


def _monomial_interval(m: Monomial, known: tuple[Expr, ...]) -> Bounds:
    low: int | None = 1
    high: int | None = 1
    for a in m:
        x, y = _atom_interval(a, known)
        if len(m) == 1:
            return x, y
        if x is None or x < 0 or low is None or low < 0:
            return None, None
        low *= x
        high = None if high is None or y is None else high * y
    return low, high


def _atom_interval(a: Atom, known: tuple[Expr, ...]) -> Bounds:
    if isinstance(a, Symbol):
        return _symbol_interval(a, known)
    inner = [_interval(x, known) for x in a.args]
    lows, highs = [i[0] for i in inner], [i[1] for i in inner]
    if a.kind == "floordiv":
        by = a.args[1]
        if not isinstance(by, int) or by <= 0:
            return (
                (0, None)
                if _nonnegative(lows[0]) and _nonnegative(lows[1])
                else (None, None)
            )
        return tuple(None if x is None else x // by for x in inner[0])  # type: ignore[return-value]
    known_lows = [x for x in lows if x is not None]
    known_highs = [x for x in highs if x is not None]
    if a.kind == "max":
        low = max(known_lows, default=None)
        return low, None if len(known_highs) < len(highs) else max(known_highs)
    high = min(known_highs, default=None)
    return None if len(known_lows) < len(lows) else min(known_lows), high


def _nonnegative(x: int | None) -> bool:
    return x is not None and x >= 0


@lru_cache(maxsize=1 << 12)
def _symbol_interval(s: Symbol, known: tuple[Expr, ...]) -> Bounds:
    low: int | None = None
    high: int | None = None
    for fact in known:  # c*s + k >= 0
        coefficient, constant, other = 0, 0, False
        for m, c in fact.terms:
            if m == (s,):
                coefficient = c
            elif m == ():
                constant = c
            else:
                other = True
        if other or not coefficient:
            continue
        if coefficient > 0:
            bound = -(constant // coefficient)
            low = bound if low is None else max(low, bound)
        else:
            bound = constant // -coefficient
            high = bound if high is None else min(high, bound)
    return low, high


class Decider(Protocol):
    """Answers what the normal form leaves open."""

    def resolve(self, d: Dim) -> Dim:
        """Rewrite `d` by what has been assumed so far."""

    def same(self, a: Dim, b: Dim) -> bool:
        """Tell whether a == b; may assume it and write a guard."""

    def at_least(self, a: Dim, b: Dim) -> bool:
        """Tell whether a >= b; may assume it and write a guard."""


@dataclass(frozen=True, slots=True)
class Strict:
    """Decides from facts alone, and raises where they do not suffice."""

    facts: Facts = Facts()

    def resolve(self, d: Dim) -> Dim:
        return d

    def same(self, a: Dim, b: Dim) -> bool:
        if a == b:
            return True
        if self.facts.differ(a, b):
            return False
        raise IRError(f"dims {a} and {b} are not known to be equal or different")

    def at_least(self, a: Dim, b: Dim) -> bool:
        if self.facts.proves(add(a, mul(b, -1))):
            return True
        if self.facts.proves(add(add(b, mul(a, -1)), -1)):
            return False
        raise IRError(f"it is not known whether {a} >= {b}")


_ACTIVE: ContextVar[Decider | None] = ContextVar("decider", default=None)
_STRICT = Strict()


def decider() -> Decider:
    """Return the active decider; outside `deciding` it knows no facts."""
    return _ACTIVE.get() or _STRICT


class deciding:
    """Make `by` the active decider in a block."""

    __slots__ = ("_by", "_token")

    def __init__(self, by: Decider) -> None:
        self._by = by

    def __enter__(self) -> None:
        self._token: Token[Decider | None] = _ACTIVE.set(self._by)

    def __exit__(self, *_: object) -> None:
        _ACTIVE.reset(self._token)


def same(a: Dim, b: Dim) -> bool:
    """Tell whether two dims are equal, by normal form or by the active decider."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a == b or decider().same(a, b)


def at_least(a: Dim, b: Dim) -> bool:
    """Tell whether a >= b, by the active decider where it is open."""
    gap = add(a, mul(b, -1))
    return gap >= 0 if isinstance(gap, int) else decider().at_least(a, b)
