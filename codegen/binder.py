"""Call compiled kernels: arguments in, results out, errors raised.

The function that does it is generated for each kernel: flat code, no loops over
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.errors import MutationError
from ..ir.types import DType
from ..runtime.pool import Results
from .compile import compile_entry
from .emit import Emitter, arena_slots, dim_text, late_symbols, name_of
from .nests import OTHER, Buffer, Program, Reg, Result, listing
from .rows import LINES, ROWS

C_ALIGNED, WRITEABLE = 0x101, 0x400  # bits of `flags.num`


@dataclass(frozen=True, slots=True)
class Scratch:
    """The memory that a kernel takes out for a call: tapes and other temporaries.

    Called as the kernel is, it returns the number of bytes. What only the run can size
    is not part of it.
    """

    parts: tuple[Dim, ...]
    sizes: tuple[tuple[Symbol, int, int], ...]
    symbols: tuple[Symbol, ...]

    def __call__(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> int:
        values = dict(zip(self.symbols, symbols, strict=True))
        values.update((s, args[k].shape[axis]) for s, k, axis in self.sizes)
        return sum(dims.evaluate(d, values) for d in self.parts)


@dataclass(slots=True)
class Kernel:
    """A compiled Func.

    Called with arguments in the order of its parameters and values of its symbols, it
    returns the list of results. Dtypes, numbers of dimensions and sizes must fit: the
    caller has checked them. Parameters that the Func updates are written when nothing
    can fail any more.
    """

    name: str
    source: str
    nests: str
    call: Callable[[Sequence[Any], Sequence[int]], list[Any]]
    scratch: Scratch
    checks: tuple[str, ...] = ()
    compiled: Any = field(default=None, repr=False)

    def __call__(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> list[Any]:
        return self.call(args, symbols)


def numba_type(dtype: DType) -> Any:
    return numba.from_dtype(dtype)


def signature(p: Program, ndims: Sequence[int]) -> tuple[Any, ...]:
    """Return the Numba types of the entry's arguments."""
    types: Any = numba.types
    written = {r.updates for r in p.results}
    out = []
    for k, x in enumerate(p.params):
        t = numba_type(x.dtype)
        if isinstance(x, Buffer):
            layout = "A" if k in p.layouts else "C"
            t = types.Array(t, ndims[k], layout, readonly=k not in written)
        out.append(t)
    out += [types.int64] * len(p.symbols)
    ndim = {r.what: len(r.shape) for r in p.results if isinstance(r.what, Buffer)}
    for b in p.buffers:
        if b.place == "result":
            out.append(types.Array(numba_type(b.dtype), ndim[b], "C"))
    for b, _ in p.constants:
        out.append(types.Array(numba_type(b.dtype), 1, "C", readonly=True))
    if any(b.place == "arena" for b in p.buffers):
        out.append(types.Array(types.uint8, 1, "C"))
    return tuple(out)


def normal(x: Any, dtype: DType) -> Any:
    """Return an argument as a C-contiguous, aligned array of native byte order."""
    a = np.asarray(x, dtype, "C")
    return a if a.flags.aligned else a.copy()


def in_rows(x: Any, dtype: DType) -> Any:
    """Return an argument as it is where only its rows are apart, else as `normal`."""
    a = np.asarray(x)
    if a.dtype is not dtype or not a.flags.aligned:
        return normal(x, dtype)
    least = dtype.itemsize
    if a.shape[-1] > 1 and a.strides[-1] != least:
        return normal(x, dtype)
    for axis in reversed(range(a.ndim - 1)):
        step = a.strides[axis]
        least *= a.shape[axis + 1]
        if a.shape[axis] > 1 and (step < least or step % dtype.itemsize):
            return normal(x, dtype)
        least = max(step, least)
    return a


def in_lines(x: Any, dtype: DType) -> Any:
    """Return an argument as it is where its rows or columns are whole, else a copy."""
    a = np.asarray(x)
    if a.dtype is not dtype or not a.flags.aligned or min(a.shape) < 2:
        return normal(x, dtype)
    rows, columns = a.strides[-2:]
    unit = dtype.itemsize
    in_order = columns == unit and rows >= a.shape[-1] * unit
    turned = rows == unit and columns >= a.shape[-2] * unit
    whole = all(step > 0 and step % unit == 0 for step in a.strides)
    return a if whole and (in_order or turned) else normal(x, dtype)


class Arena:
    """Scratch memory of one kernel, kept between calls and taken out for each."""

    def __init__(self) -> None:
        self.free: list[np.ndarray[Any, Any]] = []

    def take(self, size: int) -> np.ndarray[Any, Any]:
        try:
            a = self.free.pop()
        except IndexError:
            return np.empty(size, np.uint8)
        return a if a.size >= size else np.empty(size, np.uint8)


def bind(
    p: Program,
    ndims: Sequence[int],
    other: Callable[[Sequence[Any], Sequence[int]], list[Any]] | None = None,
) -> Kernel:
    """Compile a program and generate the function that calls it.

    `other` is called where the kernel says that it is not for these sizes.
    """
    emitter = Emitter(p)
    source = emitter.source()
    types = signature(p, ndims)
    blas = emitter.uses_blas
    compiled = compile_entry(source, "entry", types, uses_blas=blas, kernel=True)
    space: dict[str, Any] = {
        "entry": compiled.call,
        "array": np.array,
        "normal": normal,
        ROWS: in_rows,
        LINES: in_lines,
        "fail": _failing(p),
        "read_only": _read_only,
        "other": other,
    }
    text = "\n".join(_caller(p, space))
    exec(compile(text, f"<call of {p.name}>", "exec"), space)
    checks = tuple(f.message for f in p.failures)
    parts = tuple(size for size, _ in arena_slots(p))
    scratch = Scratch(parts, tuple(p.sizes), tuple(p.symbols))
    return Kernel(p.name, source, listing(p), space["call"], scratch, checks, compiled)


def _failing(p: Program) -> Callable[[int], None]:
    def fail(code: int) -> None:
        f = p.failures[code - 1]
        more: dict[str, Any] = dict(f.more)
        raise f.error(f.message, location=f.location, rule=f.rule, **more)

    return fail


def _read_only(k: int) -> None:
    raise MutationError(
        f"argument {k} is read-only, but the program writes into it",
        hint="pass a copy",
    )


def _caller(p: Program, space: dict[str, Any]) -> list[str]:
    """Write the lines of `call(args, symbols)`."""
    lines = ["def call(args, symbols):"]
    add = lines.append
    names = [f"a{k}" for k in range(len(p.params))]
    if names:
        add(f"    {', '.join(names)}, = args")
    symbols = [name_of(s) for s in p.symbols]
    if symbols:
        add(f"    {', '.join(symbols)}, = symbols")
    written = {r.updates for r in p.results if r.updates is not None}
    given = {}
    for k, x in enumerate(p.params):
        if not isinstance(x, Buffer):
            continue
        d = _dtype(x.dtype, space)
        array = f"type(a{k}) is not ndarray or " if _may_be_scalar(p, k) else ""
        space["ndarray"] = np.ndarray
        if k in written:
            given[k] = f"g{k}"
            add(f"    g{k} = a{k}")
            add(f"    if not a{k}.flags.num & {WRITEABLE}:")
            add(f"        read_only({k})")
        add(
            f"    if {array}a{k}.dtype is not {d} or "
            f"a{k}.flags.num & {C_ALIGNED} != {C_ALIGNED}:"
        )
        add(f"        a{k} = {p.layouts.get(k, 'normal')}(a{k}, {d})")
    for line in _sizes(p):
        add(f"    {line}")
    call = [*names, *symbols]
    for b in p.buffers:
        if b.place == "result":
            r = next(r for r in p.results if r.what is b)
            shape = ", ".join(map(dim_text, r.shape))
            space[f"empty_{b.name}"] = Results().empty
            add(f"    {b.name} = empty_{b.name}(({shape},), {_dtype(b.dtype, space)})")
            call.append(b.name)
    for b, data in p.constants:
        space[f"data_{b.name}"] = data
        call.append(f"data_{b.name}")
    slots = arena_slots(p)
    if slots:
        arena = Arena()
        space["take"], space["give"] = arena.take, arena.free.append
        add(f"    arena = take({' + '.join(dim_text(s) for s, _ in slots)})")
        call.append("arena")
    _returns(p, space, call, bool(slots), add)
    for k, name in given.items():
        add(f"    if {name} is not a{k}:")
        add(f"        {name}[...] = a{k}")
    shown = [_shown(r, space) for r in p.results]
    add(f"    return [{', '.join(shown)}]")
    return lines


def _returns(
    p: Program, space: dict[str, Any], call: list[str], arena: bool, add: Any
) -> None:
    extra = [
        r.what.name
        for r in p.results
        if isinstance(r.what, Reg) or r.what.place == "local"
    ]
    extra += [name_of(s) for s in late_symbols(p)]
    status = ", ".join(["status", *extra])
    add(f"    {status} = entry({', '.join(call)})")
    if arena:
        add("    give(arena)")
    if p.failures or p.limit:
        add("    if status:")
    if p.limit:
        add(f"        if status == {OTHER}:")
        add("            return other(args, symbols)")
    if p.failures:
        add("        fail(status)")


def _may_be_scalar(p: Program, k: int) -> bool:
    b = p.params[k]
    return isinstance(b, Buffer) and b.size == 1


def _dtype(dtype: DType, space: dict[str, Any]) -> str:
    name = f"dtype_{dtype.name}"
    space[name] = dtype
    return name


def _sizes(p: Program) -> list[str]:
    """Read the sizes that results or scratch memory depend on."""
    needed: set[Symbol] = set()
    for r in p.results:
        if isinstance(r.what, Buffer) and r.what.place in ("result", "local"):
            for d in r.shape:
                needed |= dims.symbols_of(d)
    for size, _ in arena_slots(p):
        needed |= dims.symbols_of(size)
    return [
        f"{name_of(s)} = a{k}.shape[{axis}]" for s, k, axis in p.sizes if s in needed
    ]


def _shown(r: Result, space: dict[str, Any]) -> str:
    """Return the expression of a result."""
    if r.updates is not None:
        return f"g{r.updates}"
    if isinstance(r.what, Buffer):
        if r.what.place != "local":
            return r.what.name
        shape = ", ".join(map(dim_text, r.shape))
        size = dim_text(dims.product(r.shape))  # one that grew has room for more
        return f"{r.what.name}[:{size}].reshape(({shape},))"
    name = r.what.name
    if r.weak:
        return name
    d = _dtype(r.dtype, space)
    if r.scalar:
        space[f"scalar_{r.dtype.name}"] = r.dtype.type
        return f"scalar_{r.dtype.name}({name})"
    return f"array({name}, {d})"
