"""A whole Func: its parameters, its nests, and its results.

Parameters are memory of the caller's, as are results; what the program writes into
parameters is computed in place where nothing reads what was there, else copied last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..ir import dims
from ..ir.access import Index
from ..ir.dims import Dim, Symbol
from ..ir.func import Func, Operand, Value, type_of
from ..ir.types import Shape, Type
from .kernels import Lowering, Place, Stored, cast, supported, whole
from .nests import Buffer, Let, Program, Reg, Result, Store
from .rows import layout_of

LIBRARY = frozenset({"blas", "linalg", "sorting"})


def lower(f: Func, name: str, library: Collection[str] = LIBRARY) -> Program:
    """Turn a pure Func into a program of nests.

    It may call routines of the modules in `library`. Without BLAS products are loops,
    and so are factorisations without LAPACK.
    """
    low = Lowering(f, library)
    params, sizes = _enter(low)
    _find_homes(low)
    low.block(f.body)
    results = _leave(low)
    _join_scopes(low.buffers)
    return Program(
        name,
        params,
        list(f.symbols),
        sizes,
        low.buffers,
        low.constants,
        low.body,
        low.failures,
        results,
        low.scopes,
        [s for steps in low.rows.steps.values() for s in steps],
        low.rows.final(),
        low.facts,
    )


def _join_scopes(buffers: Sequence[Buffer]) -> None:
    """Give one scope to all that have the same memory at some time.

    A buffer that exchanges memory with others is found in theirs, and in its own there
    may be others, before and after.
    """
    kin: dict[int, int] = {}

    def joined(scope: int) -> int:
        while scope in kin:
            scope = kin[scope]
        return scope

    known = [b for b in buffers if min(b.scope, b.eldest().scope) >= 0]
    for b in known:
        one, other = joined(b.scope), joined(b.eldest().scope)
        if one != other:
            kin[one] = other
    for b in known:
        b.common = joined(b.scope)


def _enter(low: Lowering) -> tuple[list[Buffer | Reg], list[tuple[Symbol, int, int]]]:
    f = low.f
    known = low.known
    params: list[Buffer | Reg] = []
    sizes = []
    for k, p in enumerate(f.params):
        supported(p.type.dtype)
        if p.type.scalar:
            reg = Reg(f"a{k}", p.type.dtype)
            params.append(reg)
            low.values[p] = reg
            continue
        b = Buffer(f"a{k}", p.type.dtype, p.type.size, "param", low.scope())
        params.append(b)
        low.buffers.append(b)
        for axis, d in enumerate(p.type.shape):
            s = dims.as_symbol(d)
            if s is not None and s not in known:
                known.add(s)
                sizes.append((s, k, axis))
    layouts = layout_of(f)
    for k, (p, x) in enumerate(zip(f.params, params, strict=True)):
        if isinstance(x, Buffer):
            low.define(p, _given(low, x, k, p.type.shape, layouts.get(p, "")))
    low.facts = low.rows.facts(low.facts)
    return params, sizes


def _given(low: Lowering, b: Buffer, k: int, shape: Shape, layout: str) -> Stored:
    """Return a parameter in memory, with steps of its own where it is only read."""
    steps = low.rows.add(b, k, shape, layout) if layout else ()
    if b not in low.rows.steps:
        return whole(b, shape)

    def at(index: Index) -> Dim:
        offset: Dim = 0
        for i, step in zip(index, steps, strict=True):
            offset = dims.add(offset, dims.mul(i, step))
        return offset

    return Stored(b, at, shape)


def _find_homes(low: Lowering) -> None:
    """Let results be computed in the memory that the caller gets."""
    updated = {i for i, _ in low.f.updates}
    for i, r in enumerate(low.f.results):
        if isinstance(r, Value) and r.type.shape and i not in updated:
            root = r
            while root.reuses is not None:
                root = root.reuses
            low.homes.setdefault(root, i)


def _leave(low: Lowering) -> list[Result]:
    f = low.f
    updates = dict(f.updates)
    results: list[Result | None] = [None] * len(f.results)
    for i, r in enumerate(f.results):
        t = type_of(r)
        if i not in updates:
            what = _result(low, i, r, t)
            results[i] = Result(what, t.shape, t.dtype, t.scalar, t.weak)
    pending: list[tuple[Buffer, Place]] = []
    memory = {low.f.params[j]: j for j in updates.values()}
    own = {p: low.values[p] for p in memory}
    for i, j in updates.items():
        p = f.params[j]
        target = _memory(low, p, own)
        r = f.results[i]
        t = p.type
        source: object = low.stored(r) if t.shape else None  # also a spread number
        if not t.shape and isinstance(r, Value):
            source = low.values[r]
        results[i] = Result(target, t.shape, t.dtype, updates=j)
        if isinstance(source, Stored):
            if source.buffer is target and source.whole:
                continue
            if source.buffer.place == "param":
                # Another update may overwrite it first.
                b = low.allocate(t.dtype, t.shape)
                low.copy_into(b, source)
                source = whole(b, t.shape)
            pending.append((target, source))
        else:
            x = low.let(cast(low.element(r, ()), t.dtype))
            pending.append((target, x))
    for target, final in pending:
        if isinstance(final, Stored):
            low.copy_into(target, final)
        else:
            low.emit(Store(target, 0, final))
    return [r for r in results if r is not None]


def _memory(low: Lowering, p: Value, own: Mapping[Value, Place]) -> Buffer:
    memory = own[p]
    if isinstance(memory, Stored):
        return memory.buffer
    k = low.f.params.index(p)
    return next(b for b in low.buffers if b.place == "param" and b.name == f"a{k}")


def _result(low: Lowering, i: int, r: Operand, t: Type) -> Reg | Buffer:
    if not t.shape:
        name = f"result{i}"
        low.emit(Let(name, cast(low.element(r, ()), t.dtype)))
        return Reg(name, t.dtype)
    found = low.stored(r)
    have = low.result_buffers.get(i)
    if have is not None and found.buffer is have and found.whole:
        return have
    b = have if have is not None and found.buffer is not have else None
    if b is None:
        if have is not None:
            del low.result_buffers[i]
            have = None
        b = low.result_buffer(i, t)
    low.copy_into(b, found)
    return b
