"""The text of a call: arrays of the device in, the host function, arrays out.

What is written is a `Caller`, as for kernels of the processor, so that calls of a kind
become one flat function here, too (`tracer/fastcall.py`). Nothing is copied to or from
the host: results are new arrays of the device, 0-d ones for numbers, and what the
program writes is written where it lies. Views that are not in C order, or begin where
kernels cannot load several elements at once, are packed into copies, and copied back
when nothing can fail any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.types import DType
from ...runtime.devices.interface import SCRATCH
from ..emit import arena_slots, dim_text, late_symbols, name_of
from ..nests import Buffer, Program, Result, every
from ..recipe import Caller
from .homes import Homes
from .steps import is_product


def caller_of(p: Program, homes: Homes) -> Caller:
    """Write how the host function of a program is called."""
    params = [f"a{k}" for k in range(len(p.params))]
    arrays = [k for k, x in enumerate(p.params) if isinstance(x, Buffer)]
    written = sorted({r.updates for r in p.results if r.updates is not None})
    sizes = [(name_of(s), k, axis) for s, k, axis in p.sizes]
    symbols = [name_of(s) for s in p.symbols]
    given = [f"{x}.address" if k in arrays else x for k, x in enumerate(params)]
    given += [*symbols, *(s for s, _, _ in sizes)]
    given += [f"{b.name}.address" for b, _ in p.constants]
    found = ["status", *returned(p, homes)]
    setup = [f"{b.name} = constants[{k}]" for k, (b, _) in enumerate(p.constants)]
    setup += [
        f"{_dtype(d)} = dtype({d.name!r})"
        for d in dict.fromkeys(r.dtype for r in p.results)
    ]
    tail = []
    for k in written:
        tail += [f"if g{k} is not a{k}:", f"    g{k}.assign(a{k})"]
    return Caller(
        params=tuple(params),
        symbols=tuple(symbols),
        arrays=tuple(arrays),
        written=tuple(written),
        sizes=tuple(sizes),
        allocated=(),
        setup=tuple(setup),
        head=tuple(_head(p, written)),
        body=(f"{', '.join(found)}, = run({', '.join(given)})",),
        tail=tuple(tail),
        results=tuple(_result(r, j, homes) for j, r in enumerate(p.results)),
        checks=("if status:", "    fail(status)") if p.failures else (),
        fits="",
        scratch=" + ".join(_scratch(p)) or "0",
    )


def _scratch(p: Program) -> Iterator[str]:
    """Write the bytes of memory that a call needs beside arguments and results."""
    yield from (dim_text(size) for size, _ in arena_slots(p))
    if any(map(is_product, every(p.body))):
        yield str(SCRATCH)


def returned(p: Program, homes: Homes) -> list[str]:
    """Return names for what the host function returns after the status.

    Of each result that is no argument its memory, of numbers their address, too, or
    the value where the host computes it; then the sizes that only the program knows.
    """
    out = []
    for j, r in enumerate(p.results):
        if r.updates is None:
            out.append(f"m{j}")
            if in_slot(r, homes):
                out.append(f"q{j}")
    return out + [name_of(s) for s in late_symbols(p)]


def in_slot(r: Result, homes: Homes) -> bool:
    """Tell whether a result is a number that stays on the device."""
    if isinstance(r.what, Buffer):
        return False
    return r.what.name in homes.slots and r.what.name not in homes.read


def _head(p: Program, written: Sequence[int]) -> Iterator[str]:
    """Write how arguments are made to fit."""
    for k, x in enumerate(p.params):
        if not isinstance(x, Buffer):
            yield f"if type(a{k}) is DeviceArray:"
            yield f"    a{k} = a{k}.item()"
            continue
        if k in written:
            yield f"g{k} = a{k}"
        yield f"if type(a{k}) is not DeviceArray or not a{k}.ready:"
        yield f"    a{k} = there({k}, a{k})"


def _result(r: Result, j: int, homes: Homes) -> str:
    """Return the expression of a result."""
    if r.updates is not None:
        return f"g{r.updates}"
    d = _dtype(r.dtype)
    if isinstance(r.what, Buffer):
        shape = "".join(f"{dim_text(x)}, " for x in r.shape)
        return f"DeviceArray(place, m{j}, m{j}.address, ({shape}), {d})"
    if in_slot(r, homes):
        return f"DeviceArray(place, m{j}, q{j}, (), {d})"
    return f"number(m{j}, {d})"


def _dtype(d: DType) -> str:
    return f"dtype_{d.name}"
