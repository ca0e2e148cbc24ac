"""Where kernels come from: recipes on disk or a Func, in variants by size.

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

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.func import Func
from ..runtime import cache, progress
from . import parallel
from .binder import Kernel, assemble, describe
from .interchange import interchange
from .large import interleave
from .lower import lower
from .nests import Parallel, Program, copied, drop_unused, every
from .recipe import Recipe, from_bytes, to_bytes

ALL, SMALL, LARGE = "all", "small", "large"  # the sizes that a variant is for
RECIPE = ".recipe"
_COMPILING = threading.RLock()


class Source:
    """The variants of one kernel, each made when it is first needed.

    `func` returns the pure Func, and is called only where a recipe is missing. With a
    `key` recipes are kept on disk.
    """

    def __init__(
        self, func: Callable[[], Func], name: str | None, precise: bool, key: str | None
    ) -> None:
        self.func = func
        self.name = name
        self.precise = precise
        self.key = key
        self.known: dict[str, Kernel] = {}
        self._program: Program | None = None
        self._ndims: list[int] = []

    def first(self, sizes: Mapping[Symbol, int] | None) -> Kernel:
        """Return a variant; `sizes` are those of the first call, if they are known."""
        with _COMPILING:
            known = (ALL, SMALL, LARGE)
            found = self.kept(*known)
            if found is None:
                with self.alone():
                    found = self.kept(*known) or self.made(self.choose(sizes))
            return found

    def choose(self, sizes: Mapping[Symbol, int] | None) -> str:
        units = parallel.most_work(self.program())
        if isinstance(units, int):
            return ALL
        enough = 2 * parallel.GRAIN
        large = sizes is not None and _is_large(units, enough, sizes)
        return LARGE if large else SMALL

    def kernel(self, which: str) -> Kernel:
        """Return a variant."""
        with _COMPILING:
            if which not in self.known and self.kept(which) is None:
                with self.alone():
                    if self.kept(which) is None:
                        self.made(which)
            return self.known[which]

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """Let no other process make a variant meanwhile; it may just have done so."""
        if self.key is None:
            return contextlib.nullcontext()
        progress.stage("waiting for another process")
        return cache.alone(self.key, "recipe")

    def kept(self, *variants: str) -> Kernel | None:
        """Return the first of some variants whose recipe is on disk."""
        for which in variants if self.key is not None else ():
            recipe = saved(f"{self.key}-{which}")
            if recipe is not None:
                return self.keep(which, recipe)
        return None

    def made(self, which: str) -> Kernel:
        """Make a variant from the program."""
        recipe = self.recipe(which)
        data = to_bytes(recipe) if self.key is not None else None
        if data is not None:
            cache.store(f"{self.key}-{which}", RECIPE, data)
        return self.keep(which, recipe)

    def keep(self, which: str, recipe: Recipe) -> Kernel:
        rest = SMALL if which == LARGE else LARGE
        kernel = self.known[which] = assemble(recipe, lambda: self.kernel(rest))
        return kernel

    def recipe(self, which: str) -> Recipe:
        p = self.program()
        p = replace(p, body=list(map(copied, p.body)), buffers=list(p.buffers))
        units, enough = parallel.most_work(p), 2 * parallel.GRAIN
        if isinstance(units, int):
            if units >= enough:
                parallel.parallelise(p)
            return self.described(p)
        if which == LARGE:
            parallel.parallelise(p)
            if not any(isinstance(s, Parallel) for s in every(p.body)):
                return self.described(p)  # nothing to split: it is for all sizes
        p.limit = (units, enough, which == LARGE)
        return self.described(p)

    def described(self, p: Program) -> Recipe:
        interleave(p)
        return describe(p, self._ndims)

    def program(self) -> Program:
        """Return the program before it is split; it is not changed."""
        if self._program is None:
            f = self.func()
            progress.stage("loop nests")
            self._program = lower(f, self.name or f.name)
            self._ndims = [p.type.ndim for p in f.params]
            drop_unused(self._program)
            interchange(self._program)
            if self.precise:
                self._program.scalars = "precise"
        return self._program

    def kernels(self) -> Iterator[Kernel]:
        """Yield the variants that there are."""
        yield from list(self.known.values())


def _is_large(units: Dim, enough: int, sizes: Mapping[Symbol, int]) -> bool:
    return dims.symbols_of(units) <= sizes.keys() and (
        dims.evaluate(units, sizes) >= enough
    )


def saved(key: str) -> Recipe | None:
    """Return the recipe that was kept under a key, None where there is none."""
    data = cache.fetch(key, RECIPE)
    if data is None:
        return None
    try:
        return from_bytes(data)
    except Exception:  # whole, but no recipe: the cache is never why a call fails
        cache.discard(key, RECIPE)
        return None
