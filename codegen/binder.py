"""Call compiled kernels: arguments in, results out, errors raised.

The function that does it is generated for each kernel: flat code, no loops over
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from ..ir import dims
from ..ir.dims import Symbol
from ..ir.errors import InternalError, MutationError
from ..ir.types import DType
from ..runtime.pool import ALIGNED, WRITEABLE, Results
from .compile import compile_entry
from .emit import Emitter, arena_slots, dim_text, late_symbols, name_of
from .nests import Buffer, Failure, Program, Reg, Result, listing
from .recipe import Caller, Given, Recipe, written
from .rows import LINES, ROWS


@dataclass(slots=True)
class Kernel:
    """A compiled Func.

    Called with arguments in the order of its parameters and values of its symbols, it
    returns the list of results. Dtypes, numbers of dimensions and sizes must fit: the
    caller has checked them. Parameters that the Func updates are written when nothing
    can fail any more. `scratch`, called as the kernel is, returns how many bytes of
    memory it takes out for a call: tapes and other temporaries, but for those that only
    the run can size.
    """

    name: str
    source: str
    nests: str
    call: Callable[[Sequence[Any], Sequence[int]], list[Any]]
    scratch: Callable[[Sequence[Any], Sequence[int]], int]
    compiled: Any = field(repr=False)
    caller: Caller = field(repr=False)
    space: dict[str, Any] = field(repr=False)  # what the caller's text names
    fits: Callable[[Sequence[Any], Sequence[int]], bool] = field(repr=False)
    other: Callable[[], Kernel] = field(repr=False)

    def variant(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> Kernel:
        """Return the kernel that these arguments are for; see `variants`."""
        return self if self.fits(args, symbols) else self.other()

    def __call__(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> list[Any]:
        return self.call(args, symbols)


def _updated(p: Program) -> set[int]:
    return {r.updates for r in p.results if r.updates is not None}


def signature(p: Program, ndims: Sequence[int]) -> tuple[Given, ...]:
    """Return the types of the entry's arguments."""
    updated = _updated(p)
    out: list[Given] = []
    for k, x in enumerate(p.params):
        if isinstance(x, Buffer):
            layout = "A" if k in p.layouts else "C"
            out.append((x.dtype.name, ndims[k], layout, k not in updated))
        else:
            out.append((x.dtype.name,))
    out += [("int64",)] * len(p.symbols)
    ndim = {r.what: len(r.shape) for r in p.results if isinstance(r.what, Buffer)}
    for b in p.buffers:
        if b.place == "result":
            out.append((b.dtype.name, ndim[b], "C", False))
    for b, _ in p.constants:
        out.append((b.dtype.name, 1, "C", True))
    if any(b.place == "arena" for b in p.buffers):
        out.append(("uint8", 1, "C", False))
    return tuple(out)


def numba_type(given: Given) -> Any:
    """Return the Numba type of an argument.

    >>> numba_type(("float64", 2, "C", True)), numba_type(("int64",))
    (Array(float64, 2, 'C', True, aligned=True), int64)
    """
    types: Any = numba.types
    t = numba.from_dtype(np.dtype(given[0]))
    if len(given) == 1:
        return t
    _, ndim, layout, readonly = given
    return types.Array(t, ndim, layout, readonly=readonly)


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


def bind(p: Program, ndims: Sequence[int]) -> Kernel:
    """Compile a program and generate the function that calls it."""
    return assemble(describe(p, ndims))


def describe(p: Program, ndims: Sequence[int]) -> Recipe:
    """Print a program, and the function that calls it."""
    emitter = Emitter(p)
    source = emitter.source()
    return Recipe(
        name=p.name,
        source=source,
        signature=signature(p, ndims),
        uses_blas=emitter.uses_blas,
        caller=_caller(p),
        constants=tuple(data for _, data in p.constants),
        failures=tuple(p.failures),
        nests=listing(p),
    )


def assemble(r: Recipe, other: Callable[[], Kernel] | None = None) -> Kernel:
    """Compile or load the native code of a kernel, and the function that calls it.

    `other` returns the kernel for sizes that this one is not for.
    """

    def rest() -> Kernel:
        if other is None:
            raise InternalError(f"{r.name}: there is no kernel for these sizes")
        return other()

    types = tuple(map(numba_type, r.signature))
    compiled = compile_entry(
        r.source, "entry", types, uses_blas=r.uses_blas, kernel=True
    )
    space: dict[str, Any] = {
        "entry": compiled.call,
        "array": np.array,
        "ndarray": np.ndarray,
        "dtype": np.dtype,
        "normal": normal,
        ROWS: in_rows,
        LINES: in_lines,
        "Arena": Arena,
        "Results": Results,
        "constants": r.constants,
        "fail": failing(r.failures),
        "read_only": _read_only,
        "other": lambda args, symbols: rest().call(args, symbols),
    }
    exec(compile(written(r.caller), f"<call of {r.name}>", "exec"), space)
    call, scratch = space["call"], space["scratch"]
    return Kernel(
        r.name,
        r.source,
        r.nests,
        call,
        scratch,
        compiled,
        r.caller,
        space,
        space["fits"],
        rest,
    )


def failing(failures: Sequence[Failure]) -> Callable[[int], None]:
    def fail(code: int) -> None:
        f = failures[code - 1]
        more: dict[str, Any] = dict(f.more)
        raise f.error(f.message, location=f.location, rule=f.rule, **more)

    return fail


def _read_only(k: int) -> None:
    raise MutationError(
        f"argument {k} is read-only, but the program writes into it",
        hint="pass a copy",
    )


def _caller(p: Program) -> Caller:
    """Write the function that calls the entry."""
    dtypes: dict[str, None] = {}
    setup: list[str] = []

    def dtype(d: DType) -> str:
        dtypes.setdefault(d.name)
        return f"dtype_{d.name}"

    updated = _updated(p)
    arrays = [k for k, x in enumerate(p.params) if isinstance(x, Buffer)]
    names = [f"a{k}" for k in range(len(p.params))]
    symbols = [name_of(s) for s in p.symbols]
    call = [*names, *symbols]
    body: list[str] = []
    allocated = []
    for b in p.buffers:
        if b.place == "result":
            r = next(r for r in p.results if r.what is b)
            shape = f"({''.join(f'{dim_text(d)}, ' for d in r.shape)})"
            setup.append(f"empty_{b.name} = Results().empty")
            body.append(f"{b.name} = empty_{b.name}({shape}, {dtype(b.dtype)})")
            allocated.append((b.name, b.dtype.name, shape))
            call.append(b.name)
    for k, (b, _) in enumerate(p.constants):
        setup.append(f"data_{b.name} = constants[{k}]")
        call.append(f"data_{b.name}")
    slots = [dim_text(size) for size, _ in arena_slots(p)]
    if slots:
        setup += ["arenas = Arena()", "take, give = arenas.take, arenas.free.append"]
        body.append(f"arena = take({' + '.join(slots)})")
        call.append("arena")
    body += _entered(p, call, bool(slots))
    tail = []
    for k in sorted(updated):
        tail += [f"if g{k} is not a{k}:", f"    g{k}[...] = a{k}"]
    head = [line for k in arrays for line in _fitting(p, k, k in updated, dtype)]
    results = [_shown(r, dtype) for r in p.results]
    return Caller(
        params=tuple(names),
        symbols=tuple(symbols),
        arrays=tuple(arrays),
        written=tuple(sorted(updated)),
        sizes=tuple(_sizes(p)),
        allocated=tuple(allocated),
        setup=(*(_types(d) for d in dtypes), *setup),
        head=tuple(head),
        body=tuple(body),
        tail=tuple(tail),
        results=tuple(results),
        checks=_failed(p),
        fits=_fits(p),
        scratch=" + ".join(slots) or "0",
    )


def _types(name: str) -> str:
    return f"dtype_{name} = dtype({name!r}); scalar_{name} = dtype_{name}.type"


def _fitting(
    p: Program, k: int, updated: bool, dtype: Callable[[DType], str]
) -> Iterator[str]:
    """Write how an argument is made to fit: copied, if the kernel cannot read it."""
    b = p.params[k]
    d = dtype(b.dtype)
    if updated:
        yield f"g{k} = a{k}"
        yield f"if not a{k}.flags.num & {WRITEABLE}:"
        yield f"    read_only({k})"
    scalar = isinstance(b, Buffer) and b.size == 1
    array = f"type(a{k}) is not ndarray or " if scalar else ""
    yield (
        f"if {array}a{k}.dtype is not {d} or a{k}.flags.num & {ALIGNED} != {ALIGNED}:"
    )
    yield f"    a{k} = {p.layouts.get(k, 'normal')}(a{k}, {d})"


def _entered(p: Program, call: Sequence[str], arena: bool) -> Iterator[str]:
    """Write the call of the entry."""
    extra = [
        r.what.name
        for r in p.results
        if isinstance(r.what, Reg) or r.what.place == "local"
    ]
    extra += [name_of(s) for s in late_symbols(p)]
    yield f"{', '.join(['status', *extra])} = entry({', '.join(call)})"
    if arena:
        yield "give(arena)"


def _failed(p: Program) -> tuple[str, ...]:
    return ("if status:", "    fail(status)") if p.failures else ()


def _fits(p: Program) -> str:
    """Write whether a kernel is for the sizes of a call; "" where it is for all."""
    if p.limit is None:
        return ""
    units, enough, large = p.limit
    return f"{dim_text(units)} {'>=' if large else '<'} {enough}"


def _sizes(p: Program) -> list[tuple[str, int, int]]:
    """Return the sizes that results or scratch memory depend on."""
    needed: set[Symbol] = set()
    for r in p.results:
        if isinstance(r.what, Buffer) and r.what.place in ("result", "local"):
            for d in r.shape:
                needed |= dims.symbols_of(d)
    for size, _ in arena_slots(p):
        needed |= dims.symbols_of(size)
    if p.limit is not None:
        needed |= dims.symbols_of(p.limit[0])
    return [(name_of(s), k, axis) for s, k, axis in p.sizes if s in needed]


def _shown(r: Result, dtype: Callable[[DType], str]) -> str:
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
    d = dtype(r.dtype)
    return f"scalar_{r.dtype.name}({name})" if r.scalar else f"array({name}, {d})"
