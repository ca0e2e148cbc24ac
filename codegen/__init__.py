"""From a pure Func to loop nests, source text and a compiled callable."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.dims import Symbol
from ..ir.func import Func

if TYPE_CHECKING:
    from ..runtime.devices import Device
    from .binder import Kernel
    from .cuda.build import DeviceKernel
    from .variants import Source

__all__ = ["build", "build_for", "key_of", "source"]


def build(
    func: Func,
    *,
    name: str | None = None,
    precise: bool = False,
    sizes: Mapping[Symbol, int] | None = None,
) -> Kernel:
    """Compile a pure Func into a callable kernel.

    A `precise` one calls the C library's elementary functions, which are scalar.
    `sizes` are those of the first call, if they are known: it is compiled for small or
    for large arrays first.

    >>> import numpy as np
    >>> from ..ir.text import parse
    >>> import retrograde.ir.ops
    >>> text = "func @f(%x: f64[n]) -> f64 {" + chr(10)
    >>> text += "  %s: f64 = sum %x {axis=(0,), keepdims=False}" + chr(10)
    >>> build(parse(text + "  return %s" + chr(10) + "}"), name="f")([np.ones(3)])
    [np.float64(3.0)]
    """
    return source(lambda: func, name=name, precise=precise).first(sizes)


def source(
    func: Callable[[], Func],
    *,
    name: str | None = None,
    precise: bool = False,
    key: str | None = None,
) -> Source:
    """Return what makes the variants of a kernel; their recipes are kept under a key.

    `func` is called where a recipe is missing.
    """
    from .variants import Source  # only here: Numba's import takes long

    return Source(func, name, precise, key)


def build_for(
    device: Device,
    func: Func,
    *,
    name: str | None = None,
    fastmath: bool = False,
    deterministic: bool = False,
) -> DeviceKernel:
    """Return a pure Func as a callable whose kernels run on a device.

    `fastmath` allows approximations; a `deterministic` one has no sums whose order the
    device chooses.
    """
    from .cuda.build import build

    return build(func, device, name, fastmath=fastmath, deterministic=deterministic)


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
