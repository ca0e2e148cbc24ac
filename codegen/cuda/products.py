"""Products of matrices on a device: by its library, or by tiles.

Compiled code calls `products.multiply` where sizes are large enough, and has loops for
others; see `codegen/products.py`. The host describes the product by integers, and what
computes it is chosen by these alone, so that results are the same in every run.

Note [parts of sums]
A product of few rows and columns with many terms has too few tiles for a GPU. Its sums
are cut into parts, which blocks compute at the same time; a second kernel adds up what
they have found, in a fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as every_index
from typing import Any, TypeAlias

from ...runtime.devices import Code, Device, Function, Given, Launch, Multiply
from ...runtime.devices.interface import SCRATCH
from ...runtime.devices.products import Axis, Product, described
from .steps import SIDE, THREADS_PER_BLOCK
from .target import compile_kernel

LIBRARY = 1 << 18  # multiplications from which the library is asked
BLOCKS = 132  # multiprocessors of an H200
LEAST_TERMS = 256  # of a part of sums
BOUNDS = THREADS_PER_BLOCK, 2  # blocks at once: up to 128 registers
NO_AXIS = 1, 0, 0, 0
Address: TypeAlias = int | Given
ITEM = {"float32": 4, "float64": 8}

NUMBERS = (
    "m n k sign part part_step c_row c_column a_row a_column b_row b_column count "
    "c_inner a_inner b_inner c_outer a_outer b_outer"
).split()
MULTIPLY = f"""\
from retrograde.codegen.cuda.device import failed, {{0}}

def {{0}}_kernel(p_status, p_c, p_a, p_b, {", ".join(NUMBERS)}):
    if failed(p_status):
        return
    steps = c_row, c_column, a_row, a_column, b_row, b_column
    inner, outer = (c_inner, a_inner, b_inner), (c_outer, a_outer, b_outer)
    {{0}}(p_c, p_a, p_b, m, n, k, sign, part, part_step, steps, count, inner, outer)
"""
ADDING = "m n count sign row column".split()
ADD_PARTS = f"""\
from retrograde.codegen.cuda.device import add_parts, failed

def add_parts_kernel(p_status, p_c, p_parts, {", ".join(ADDING)}):
    if failed(p_status):
        return
    add_parts(p_c, p_parts, {", ".join(ADDING)})
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A kernel by the rows and columns of a thread; see `device/tiles.py`."""

    rows_each: int
    columns_each: int

    @property
    def name(self) -> str:
        return f"multiply_{self.rows_each}_{self.columns_each}"

    def blocks(self, p: Product) -> int:
        """Return how many tiles a stack of results has."""
        rows, columns = SIDE * self.rows_each, SIDE * self.columns_each
        return -(-p.rows // rows) * -(-p.columns // columns) * p.count


NARROW, WIDE = Tile(4, 4), Tile(8, 4)


@dataclass(frozen=True, slots=True)
class Tiled:
    """How tiles compute a product: launches of one kernel, with parts of sums.

    `offsets` are those of result, left and right in elements, of each launch.
    """

    tile: Tile
    grid: int
    parts: int
    numbers: tuple[int, ...]
    offsets: tuple[tuple[int, int, int], ...]


@functools.lru_cache(1024)
def tiled(p: Product) -> Tiled:
    """Return how a product is computed by tiles."""
    tile = WIDE if p.dtype == "float32" and WIDE.blocks(p) >= BLOCKS else NARROW
    inner, outer, *others = (*p.stack, NO_AXIS, NO_AXIS)
    offsets = tuple(
        (
            _offset(index, others, 1),
            _offset(index, others, 2),
            _offset(index, others, 3),
        )
        for index in every_index(*(range(axis[0]) for axis in others))
    )
    grid = tile.blocks(p) // len(offsets)
    parts, terms = 1, max(p.terms, 1)
    if p.count == 1:
        most = SCRATCH // (p.rows * p.columns * ITEM[p.dtype])
        parts = max(min(2 * BLOCKS // grid, p.terms // LEAST_TERMS, most), 1)
        terms = -(-terms // parts)
        parts = -(-max(p.terms, 1) // terms)
    step, sign, out = 0, p.sign, p.out
    if parts > 1:
        step, sign, out = p.rows * p.columns, 0, (p.columns, 1)
    steps = (*out, *p.left, *p.right)
    stack = (inner[0], *inner[1:], *outer[1:])
    numbers = (p.rows, p.columns, p.terms, sign, terms, step, *steps, *stack)
    return Tiled(tile, grid * parts, parts, numbers, offsets)


def _offset(index: Sequence[int], axes: Sequence[Axis], which: int) -> int:
    return sum(i * axis[which] for i, axis in zip(index, axes, strict=True))


def code_of(tile: Tile | None, dtype: str, device: Device) -> Code:
    """Return the code of tiles, or of what adds up the parts of sums."""
    if tile is None:
        source, name, pointers, numbers = ADD_PARTS, "add_parts_kernel", 2, ADDING
    else:
        source, name = MULTIPLY.format(tile.name), f"{tile.name}_kernel"
        pointers, numbers = 3, NUMBERS
    return compile_kernel(
        source,
        name,
        ["pointer"] * (1 + pointers) + ["int64"] * len(numbers),
        dtypes=["int64", *[dtype] * pointers],
        architecture=device.architecture,
        cubin=not device.interprets,
        bounds=BOUNDS,
    )


class Products:
    """Multiplies matrices on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, *args: Any) -> None:
        """Enter a product; see `steps`."""
        for s in self.steps(*args):
            if isinstance(s, Launch):
                self.device.launch(s.function, s.grid, s.block, s.args)  # type: ignore[arg-type]
            else:
                self.device.multiply(s.product, *s.places)  # type: ignore[arg-type]

    def steps(
        self,
        dtype: str,
        sign: int,
        by_library: bool,
        status: Address,
        scratch: Address,
        c: Address,
        a: Address,
        b: Address,
        *numbers: int,
    ) -> Iterator[Launch | Multiply]:
        """Yield what computes a product of matrices at addresses.

        `status` is the address of the word of failed checks, 0 without any, and
        `scratch` that of the memory that a call has for products; `numbers` are those
        of `described`.
        """
        p = described(dtype, sign, numbers)
        if p is None:
            return
        large = by_library and p.terms and p.work >= LIBRARY
        if large and self.device.multiplies(p):
            yield Multiply(p, (c, a, b, scratch))
            return
        form, size = tiled(p), ITEM[p.dtype]
        function = self.function(form.tile, p.dtype)
        for to, left, right in form.offsets:
            where = scratch if form.parts > 1 else c + size * to
            at = (status, where, a + size * left, b + size * right)
            args = (*at, *form.numbers)
            yield Launch(function, form.grid, THREADS_PER_BLOCK, args)
        if form.parts > 1:
            results = p.rows * p.columns
            grid = min(-(-results // THREADS_PER_BLOCK), 8 * BLOCKS)
            args = (status, c, scratch, p.rows, p.columns, form.parts, p.sign, *p.out)
            yield Launch(self.function(None, p.dtype), grid, THREADS_PER_BLOCK, args)

    def function(self, tile: Tile | None, dtype: str) -> Function:
        """Return a kernel, loaded when it is first wanted."""
        known, key = self.device.multipliers, (tile, dtype)
        if key not in known:
            known[key] = self.device.load(code_of(tile, dtype, self.device))
        return known[key]
