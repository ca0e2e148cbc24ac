"""From a pure Func to loop nests, source text and a compiled callable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..ir.dims import Symbol
from ..ir.func import Func

if TYPE_CHECKING:
    from .binder import Kernel

__all__ = ["build"]


def build(
    func: Func,
    *,
    name: str | None = None,
    sizes: Mapping[Symbol, int] | None = None,
) -> Kernel:
    """Compile a pure Func into a callable kernel.

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
    # Only here: Numba takes long to import.
    from .kernels import lower
    from .nests import drop_unused
    from .variants import kernel_of

    program = lower(func, name or func.name)
    drop_unused(program)
    return kernel_of(program, [p.type.ndim for p in func.params], sizes)
