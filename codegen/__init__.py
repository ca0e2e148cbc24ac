"""From a pure Func to loop nests, source text and a compiled callable."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.func import Func
from ..runtime import cache, progress

if TYPE_CHECKING:
    from .binder import Kernel

__all__ = ["build", "key_of", "saved"]
RECIPE = ".recipe"


def build(
    func: Func,
    *,
    name: str | None = None,
    precise: bool = False,
    key: str | None = None,
) -> Kernel:
    """Compile a pure Func into a callable kernel; keep its recipe under a key.

    A `precise` one calls the C library's elementary functions, which are scalar.

    >>> import numpy as np
    >>> from ..ir.text import parse
    >>> import retrograde.ir.ops
    >>> text = "func @f(%x: f64[n]) -> f64 {" + chr(10)
    >>> text += "  %s: f64 = sum %x {axis=(0,), keepdims=False}" + chr(10)
    >>> build(parse(text + "  return %s" + chr(10) + "}"), name="f")([np.ones(3)])
    [np.float64(3.0)]
    """
    from .binder import assemble, describe  # only here: Numba's import takes long
    from .kernels import lower
    from .nests import drop_unused
    from .recipe import to_bytes

    progress.stage("loop nests")
    program = lower(func, name or func.name)
    drop_unused(program)
    if precise:
        program.scalars = "precise"
    recipe = describe(program, [p.type.ndim for p in func.params])
    kernel = assemble(recipe)
    data = to_bytes(recipe) if key is not None else None
    if key is not None and data is not None:
        cache.store(key, RECIPE, data)
    return kernel


def saved(key: str) -> Kernel | None:
    """Return the kernel whose recipe was kept under a key, None where there is none."""
    data = cache.fetch(key, RECIPE)
    if data is None:
        return None
    from .binder import assemble
    from .recipe import from_bytes

    try:
        recipe = from_bytes(data)
    except Exception:  # whole, but no recipe: the cache is never why a call fails
        cache.discard(key, RECIPE)
        return None
    return assemble(recipe)


def key_of(*what: str) -> str:
    """Return a key of some text, this package and what native code depends on."""
    from .compile import surroundings

    digest = hashlib.sha256(repr((*what, _package(), surroundings())).encode())
    return digest.hexdigest()


@functools.cache
def _package() -> str:
    """Return a digest of the sources of this package that make a kernel of a Func."""
    digest = hashlib.sha256()
    for folder in ("ir", "passes", "codegen", "runtime"):
        for file in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
