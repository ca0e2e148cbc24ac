"""Upper bounds of dims over the values of a symbol."""

from __future__ import annotations

from collections.abc import Iterable

from . import dims
from .dims import Call, Dim, Expr, Monomial, Symbol


def upper(d: Dim, s: Symbol, low: Dim, high: Dim) -> Dim | None:
    """Return an upper bound of `d` for low <= s <= high, without s; None: not found.

    It is the largest value where `d` is linear in s. Of a minimum any part is a bound.

    >>> n, i = dims.symbol("n"), dims.symbol("i")
    >>> upper(dims.minimum(n, 8 * i + 8), Symbol("i"), 0, 3)
    min(32, n)
    >>> upper((i + 1) // 2 - i // 3, Symbol("i"), 0, 5)
    3
    """
    if s not in dims.symbols_of(d):
        return d
    assert isinstance(d, Expr)
    for monomial, c in d.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Call):
            call = monomial[0]
            if _occurs(s, call.args):
                bound = _quotient if call.kind == "floordiv" else _without
                return bound(d, monomial, c, s, low, high)
    first = dims.substitute(d, {s: 0})
    slope = dims.add(dims.substitute(d, {s: 1}), dims.mul(first, -1))
    if dims.add(first, dims.mul(slope, dims.symbol(s.name))) != d:
        return None
    return dims.maximum(dims.substitute(d, {s: low}), dims.substitute(d, {s: high}))


def _occurs(s: Symbol, ds: Iterable[Dim]) -> bool:
    return any(s in dims.symbols_of(d) for d in ds)


def _without(
    d: Expr, monomial: Monomial, c: int, s: Symbol, low: Dim, high: Dim
) -> Dim | None:
    """Bound a sum with a minimum or maximum by sums with its parts."""
    (call,) = monomial
    assert isinstance(call, Call)
    rest = dims.add(d, Expr(((monomial, -c),)))
    bounds = [upper(dims.add(rest, dims.mul(x, c)), s, low, high) for x in call.args]
    found = [x for x in bounds if x is not None]
    if (call.kind == "max") == (c > 0):  # the largest part counts
        return dims.maximum(*found) if len(found) == len(bounds) else None
    return dims.minimum(*found) if found else None


def _quotient(
    d: Expr, monomial: Monomial, c: int, s: Symbol, low: Dim, high: Dim
) -> Dim | None:
    """Bound a sum with a quotient by a number: it grows with what is divided."""
    (call,) = monomial
    assert isinstance(call, Call)
    rest = upper(dims.add(d, Expr(((monomial, -c),))), s, low, high)
    x, by = call.args
    if not isinstance(by, int) or by < 0:
        return None
    end = upper(x if c > 0 else dims.mul(x, -1), s, low, high)
    if rest is None or end is None:
        return None
    end = end if c > 0 else dims.mul(end, -1)
    return dims.add(rest, dims.mul(dims.floordiv(end, by), c))
