"""Two variants of a kernel: one for small arrays and one for large ones.

Note [two variants]
Parts that run on several threads are functions of their own. They take about 20 ms each
to compile, and 10 ns to call. So a kernel whose loops are all small has none. It looks
at its sizes as it begins: where the largest loop may have enough work for two chunks,
it returns at once, and the variant with parts is called; that one does the same where
arrays are small. A variant is compiled when it is first needed.

The work is the sum of the largest terms of all loops, a function of sizes only: so the
same sizes always run the same code, which gives the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ir import dims
from ..ir.dims import Dim, Symbol
from . import parallel
from .binder import Kernel, bind
from .nests import Parallel, Program, copied, every

_COMPILING = threading.RLock()


def kernel_of(
    p: Program, ndims: Sequence[int], sizes: Mapping[Symbol, int] | None
) -> Kernel:
    """Return the kernel of a program; `sizes` are those of the first call, if known."""
    units, enough = parallel.most_work(p), 2 * parallel.GRAIN
    if isinstance(units, int):
        if units >= enough:
            parallel.parallelise(p)
        return bind(p, ndims)
    large = sizes is not None and _is_large(units, enough, sizes)
    return _Variants(p, ndims, units, enough).kernel(large)


def _is_large(units: Dim, enough: int, sizes: Mapping[Symbol, int]) -> bool:
    return dims.symbols_of(units) <= sizes.keys() and (
        dims.evaluate(units, sizes) >= enough
    )


class _Variants:
    def __init__(
        self, p: Program, ndims: Sequence[int], units: Dim, enough: int
    ) -> None:
        self.p = p
        self.ndims = ndims
        self.units = units
        self.enough = enough
        self.known: dict[bool, Kernel] = {}

    def kernel(self, large: bool) -> Kernel:
        """Return the kernel as it is for large arrays, or for small ones."""
        with _COMPILING:
            if large not in self.known:
                self.known[large] = self.make(large)
            return self.known[large]

    def make(self, large: bool) -> Kernel:
        p = self.p
        p = replace(p, body=list(map(copied, p.body)), buffers=list(p.buffers))
        if large:
            parallel.parallelise(p)
            if not any(isinstance(s, Parallel) for s in every(p.body)):
                return bind(p, self.ndims)  # nothing to split: it is for all sizes
        p.limit = (self.units, self.enough, large)

        def other(args: Sequence[Any], symbols: Sequence[int]) -> list[Any]:
            return self.kernel(not large).call(args, symbols)

        return bind(p, self.ndims, other)
