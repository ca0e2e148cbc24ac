"""Compute once what sizes alone decide: the parts of offsets that no loop changes.

    load(p_x, n_k*n_l*i - 2*n_k*i + n_l*j + n_k + j + 1)
    load(p_x, s0*i + s1*j + n_k + 1)     with s0 = n_k*n_l - 2*n_k and s1 = n_l + 1

The names are computed at the head of a kernel, with `held`: LLVM does not know what
they are made of. It would otherwise try sums of all their terms as induction variables,
which took up to half of the time that it takes for a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir import dims
from ..ir.dims import Atom, Dim, Expr, Monomial, Symbol


class Invariants:
    """The named parts; `known` are the symbols whose values the head has."""

    def __init__(self, known: Iterable[Symbol]) -> None:
        self.known = frozenset(known)
        self.names: dict[Dim, Symbol] = {}
        self._hoisted: dict[Expr, Dim] = {}

    def hoisted(self, d: Dim) -> Dim:
        """Return a dim with names for what is compound and does not change in it."""
        if not isinstance(d, Expr):
            return d
        if d not in self._hoisted:
            self._hoisted[d] = self._hoist(d)
        return self._hoisted[d]

    def _hoist(self, d: Expr) -> Dim:
        factors: dict[Monomial, Dim] = {}  # of what changes
        out: Dim = 0
        for monomial, coefficient in d.terms:
            if not monomial:
                out = coefficient  # neighbours keep a distance that LLVM knows
                continue
            fixed = {a for a in monomial if self._is_fixed(a)}
            changing = tuple(a for a in monomial if a not in fixed)
            factor = _product((a for a in monomial if a in fixed), coefficient)
            factors[changing] = dims.add(factors.get(changing, 0), factor)
        for changing, factor in factors.items():
            part = dims.mul(_product(changing), self._named(factor))
            out = dims.add(out, part)
        return out

    def _is_fixed(self, a: Atom) -> bool:
        return dims.symbols_of(_product((a,))) <= self.known

    def _named(self, d: Dim) -> Dim:
        if not isinstance(d, Expr) or _is_simple(d):
            return d
        if d not in self.names:
            self.names[d] = Symbol(f"_s{len(self.names)}")
        return _product((self.names[d],))


def _product(atoms: Iterable[Atom], coefficient: int = 1) -> Dim:
    monomial = tuple(atoms)
    return Expr(((monomial, coefficient),)) if monomial else coefficient


def _is_simple(d: Expr) -> bool:
    """Tell whether a dim is a multiple of a symbol."""
    ((monomial, _), *more) = d.terms
    return not more and len(monomial) == 1 and isinstance(monomial[0], Symbol)
