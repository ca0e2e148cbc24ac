"""The body of an innermost loop with one operation, load or store per statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..ir.dims import Dim
from .nests import (
    Apply,
    At,
    Bind,
    Buffer,
    Cast,
    Check,
    Let,
    Lit,
    Load,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
    leaves,
    rewrite_registers,
    scalars_of,
)

if TYPE_CHECKING:
    from .kernels import Lowering

SUM = "({0} + {1})"
DIFFERENCE = "({0} - {1})"


def flat(low: Lowering, body: Sequence[Statement]) -> list[Statement] | None:
    """Return the body flattened; None where it holds other statements.

    What is stored is a register or a number, or an addition to the place: see `added`.
    """
    if not all(isinstance(s, Let | Set | Bind | Check | Store) for s in body):
        return None
    with low.into() as out:
        for s in body:
            match s:
                case Store():
                    x = added(s)
                    if x is None:
                        low.emit(Store(s.buffer, s.offset, _atom(low, s.value)))
                    else:
                        low.emit(addition(s.buffer, s.offset, _atom(low, x)))
                case Let():
                    low.emit(Let(s.name, _simple(low, s.value)))
                case Set():
                    low.emit(Set(s.name, _simple(low, s.value), s.plus))
                case Bind():
                    low.emit(Bind(s.symbol, _simple(low, s.value)))
                case Check():
                    low.emit(Check(_simple(low, s.bad), s.code))
    return _additions(out)


def _simple(low: Lowering, x: Scalar) -> Scalar:
    match x:
        case Apply():
            return Apply(x.template, tuple(_atom(low, a) for a in x.args), x.dtype)
        case Cast():
            return Cast(_atom(low, x.arg), x.dtype)
        case _:
            return x


def _atom(low: Lowering, x: Scalar) -> Scalar:
    return x if isinstance(x, At) else low.let(_simple(low, x))


def addition(b: Buffer, offset: Dim, x: Scalar) -> Store:
    """Return the statement that adds to an element."""
    return Store(b, offset, Apply(SUM, (Load(b, offset, b.dtype), x), b.dtype))


def added(s: Store) -> Scalar | None:
    """Return what a store adds to its place; None where it does something else."""
    x = s.value
    if not isinstance(x, Apply) or x.template != SUM or x.dtype != s.buffer.dtype:
        return None
    own = [isinstance(a, Load) and _touches(a, s) for a in x.args]
    return x.args[own.index(False)] if sum(own) == 1 else None


def _touches(x: Load, s: Store) -> bool:
    return x.buffer is s.buffer and x.offset == s.offset


def uses_in(body: Sequence[Statement]) -> Counter[str]:
    """Count the uses of every register."""
    return Counter(
        leaf.name
        for s in body
        for x in scalars_of(s)
        for leaf in leaves(x)
        if isinstance(leaf, Reg)
    )


def _additions(body: list[Statement]) -> list[Statement]:
    """Make one statement of a load, a sum with it and a store at the same place."""
    uses = uses_in(body)
    once = {
        s.name: k
        for k, s in enumerate(body)
        if isinstance(s, Let) and uses[s.name] == 1
    }
    gone: set[int] = set()
    for k, s in enumerate(body):
        total = _where(once, s.value) if isinstance(s, Store) else None
        if total is None or not isinstance(s, Store):
            continue
        x = _value(body[total])
        if not isinstance(x, Apply) or x.template != SUM:
            continue
        for mine, other in (x.args, x.args[::-1]):
            start = _where(once, mine)
            first = _value(body[start]) if start is not None else None
            own = isinstance(first, Load) and _touches(first, s)
            if own and start is not None and not _stores(body[start:k], s):
                gone |= {start, total}
                body[k] = addition(s.buffer, s.offset, other)
                break
    return [s for k, s in enumerate(body) if k not in gone]


def _where(once: Mapping[str, int], x: Scalar) -> int | None:
    return once.get(x.name) if isinstance(x, Reg) else None


def _value(s: Statement) -> Scalar | None:
    return s.value if isinstance(s, Let) else None


def _stores(body: Sequence[Statement], like: Store) -> bool:
    """Tell whether statements may store into the buffer of `like`."""
    return any(isinstance(s, Store) and may_share(s.buffer, like.buffer) for s in body)


def may_share(a: Buffer, b: Buffer) -> bool:
    """Tell whether two buffers may share memory."""
    return a is b or a.alias == b.alias or -1 in (a.alias, b.alias)


def without_copies(body: Sequence[Statement]) -> list[Statement]:
    """Return a flat body in which no register is a mere copy of another one."""
    variables = {s.name for s in body if isinstance(s, Set)}
    fixed = {s.name for s in body if isinstance(s, Let)} - variables
    same: dict[str, Scalar] = {}

    def change(x: Scalar) -> Scalar:
        return rewrite_registers(x, same)

    out: list[Statement] = []
    for s in body:
        match s:
            case Let():
                x = change(s.value)
                if isinstance(x, Lit) or (isinstance(x, Reg) and x.name in fixed):
                    same[s.name] = x
                else:
                    out.append(Let(s.name, x))
            case Set():
                out.append(Set(s.name, change(s.value), s.plus))
            case Bind():
                out.append(Bind(s.symbol, change(s.value)))
            case Store():
                out.append(Store(s.buffer, s.offset, change(s.value)))
            case Check():
                out.append(Check(change(s.bad), s.code))
    return out
