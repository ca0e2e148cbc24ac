"""What a kernel is made from, as text and plain values: it can be kept on disk.

Note [two levels of the disk cache]
Native code is found by its source, its signature and what else it depends on
(`compile`). To have the source takes the passes, lowering and printing, which for
programs of a few hundred lines is most of the time of a process that finds its native
code. So a recipe is found by the Func that it was made from: by its whole text, with
the places in the user's source that errors name, and by the sources of this package.
Python code, guards and captured state are not part of a key: the function is traced in
every process.

A recipe is JSON. It holds code as every entry does, and the folder is private; but
reading it runs nothing, so what reads an entry can check it first.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from ..ir import errors
from ..ir.errors import Location, RetrogradeError
from .nests import OTHER, Failure

# A type of the entry's signature: dtype, number of dimensions, layout, read-only; of a
# number, the dtype.
Given: TypeAlias = tuple[str, int, str, bool] | tuple[str]
PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Caller:
    """The parts of the function that calls a kernel, as text.

    `setup` is run once. `head` makes arguments fit, `body` calls the entry, `tail`
    writes back, and `results` are expressions. `params` name the arguments, of which
    those in `arrays` are arrays, and those in `written` are written. `sizes` are
    variables of the body with the argument and the axis that they are the size of;
    `allocated` are results that `body` allocates, with dtype and shape. `checks` raises
    what the entry has found; `fits` says whether the kernel is for the sizes of a call,
    and is empty where it is for all.
    """

    params: tuple[str, ...]
    symbols: tuple[str, ...]
    arrays: tuple[int, ...]
    written: tuple[int, ...]
    sizes: tuple[tuple[str, int, int], ...]
    allocated: tuple[tuple[str, str, str], ...]
    setup: tuple[str, ...]
    head: tuple[str, ...]
    body: tuple[str, ...]
    tail: tuple[str, ...]
    results: tuple[str, ...]
    checks: tuple[str, ...]
    fits: str
    scratch: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kernel before it is compiled or loaded."""

    name: str
    source: str
    signature: tuple[Given, ...]
    uses_blas: bool
    caller: Caller
    constants: tuple[np.ndarray[Any, Any], ...]
    failures: tuple[Failure, ...]
    nests: str  # the listing


def to_bytes(r: Recipe) -> bytes | None:
    """Return a recipe as JSON, None where it holds what JSON cannot."""
    failures = [_failure(f) for f in r.failures]
    if None in failures:
        return None
    out = {
        "name": r.name,
        "source": r.source,
        "signature": r.signature,
        "uses_blas": r.uses_blas,
        "caller": {f.name: getattr(r.caller, f.name) for f in fields(Caller)},
        "constants": [_array(a) for a in r.constants],
        "failures": failures,
        "nests": r.nests,
    }
    return json.dumps(out).encode()


def from_bytes(data: bytes) -> Recipe:
    """Read a recipe; raises any Exception where it is none."""
    x = json.loads(data)
    return Recipe(
        name=x["name"],
        source=x["source"],
        signature=_frozen(x["signature"]),
        uses_blas=x["uses_blas"],
        caller=Caller(**{f.name: _frozen(x["caller"][f.name]) for f in fields(Caller)}),
        constants=tuple(map(_read_array, x["constants"])),
        failures=tuple(map(_read_failure, x["failures"])),
        nests=x["nests"],
    )


def _frozen(x: Any) -> Any:
    return tuple(map(_frozen, x)) if isinstance(x, list) else x


def _array(a: np.ndarray[Any, Any]) -> Any:
    return [a.dtype.str, base64.b64encode(a.tobytes()).decode()]


def _read_array(x: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(x[1]), np.dtype(x[0])).copy()


def _failure(f: Failure) -> Any:
    named = getattr(errors, f.error.__name__, None) is f.error
    if not named or not all(isinstance(x, PLAIN) for _, x in f.more):
        return None
    at = f.location
    place = None if at is None else [at.file, at.line, at.function, at.text]
    return [f.error.__name__, f.message, place, f.rule, f.more]


def _read_failure(x: Any) -> Failure:
    name, message, place, rule, more = _frozen(x)
    error: Any = getattr(errors, name)
    if not issubclass(error, RetrogradeError):
        raise TypeError(f"{name} is no error of this package")
    return Failure(error, message, Location(*place) if place else None, rule, more)


def unfit(result: str) -> tuple[str, ...]:
    """Write what is returned where the entry says that it is not for these sizes."""
    return (f"if status == {OTHER}:", f"    return {result}")


def written(caller: Caller) -> str:
    """Return the module that defines `call(args, symbols)`, `scratch` and `fits`."""
    taken = [
        f"    {', '.join(names)}, = {what}"
        for names, what in ((caller.params, "args"), (caller.symbols, "symbols"))
        if names
    ]
    sizes = [f"{s} = a{k}.shape[{axis}]" for s, k, axis in caller.sizes]
    other = unfit("other(args, symbols)") if caller.fits else ()
    inside = [*caller.head, *sizes, *caller.body, *other, *caller.checks, *caller.tail]
    lines = [
        *caller.setup,
        "def call(args, symbols):",
        *taken,
        *(f"    {line}" for line in inside),
        f"    return [{', '.join(caller.results)}]",
        "def scratch(args, symbols):",
        *taken,
        *(f"    {line}" for line in sizes),
        f"    return {caller.scratch}",
        "def fits(args, symbols):",
        *(taken if caller.fits else ()),
        *(f"    {line}" for line in (sizes if caller.fits else ())),
        f"    return {caller.fits or True}",
        "",
    ]
    return "\n".join(lines)
