"""What the host knows while it launches: sizes, and numbers made of them."""

from __future__ import annotations

import math
from collections.abc import Container

from ...ir.types import BOOL, F64, I64
from ..emit import name_of
from ..nests import (
    Apply,
    At,
    Bind,
    Cast,
    Let,
    Lit,
    Loop,
    Program,
    Reg,
    Scalar,
    Set,
    every,
)
from .steps import names_in

COMPUTED = frozenset(  # templates that the host evaluates, of integers and bools
    f"({{0}} {sign} {{1}})" for sign in "+ - * & | == != < <= > >=".split()
) | {"where({0}, {1}, {2})", "maximum({0}, {1})", "minimum({0}, {1})"}
FLOATING = frozenset(f"({{0}} {sign} {{1}})" for sign in "+ - * /".split())  # of floats


def is_computed(x: Scalar, host: Container[str]) -> bool:
    """Tell whether the host can evaluate a scalar: numbers made of what it knows."""
    if x.dtype not in (I64, BOOL, F64):
        return False
    match x:
        case Lit():
            return math.isfinite(x.value)
        case Reg() | At():
            return all(name in host for name in names_in(x))
        case Cast():
            wider = x.dtype != F64 or x.arg.dtype in (I64, F64)
            known = x.dtype == F64 or x.arg.dtype != F64
            return wider and known and is_computed(x.arg, host)
        case Apply():
            floats = F64 in {x.dtype, *(a.dtype for a in x.args)}
            known = x.template in (FLOATING if floats else COMPUTED)
            return known and all(is_computed(a, host) for a in x.args)
        case _:
            return False


def host_names(p: Program) -> set[str]:
    """Return the variables of a program that the host computes: see `is_computed`.

    Floats are those that get a value once: others are folds, or change in loops that
    kernels run.
    """
    values: dict[str, list[Scalar]] = {}
    free: set[str] = {name_of(s) for s in (*p.symbols, *(s for s, _, _ in p.sizes))}
    free |= {name_of(s.symbol) for s in p.steps}
    free |= {x.name for x in p.params if isinstance(x, Reg)}
    lost: set[str] = set()
    for s in every(p.body):
        match s:
            case Let() | Set():
                values.setdefault(s.name, []).append(s.value)
                changes = isinstance(s, Set) and (s.plus or s.value.dtype == F64)
                lost |= {s.name} if changes else set()
            case Bind():
                values.setdefault(name_of(s.symbol), []).append(s.value)
            case Loop():
                free.add(name_of(s.index))
    found = set(values) - lost
    while True:
        lost = {
            name
            for name in found
            if not all(is_computed(x, found | free) for x in values[name])
        }
        if not lost:
            return found | free
        found -= lost
