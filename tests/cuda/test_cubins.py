"""Machine code of the benchmarks' kernels, and the bytes that they move.

What a GPU would run is read from linked cubins; what it would move, the interpreter of
their PTX counts. Both are the same on every machine.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from benchmarks.groups import elementwise, reductions
from retrograde.codegen.cuda.inspect import Report, inspect
from retrograde.codegen.cuda.products import NARROW, WIDE, Tile, code_of
from retrograde.runtime.devices import Code, device
from retrograde.runtime.devices.emulator import Emulator
from retrograde.runtime.devices.machine import Counts

pytestmark = pytest.mark.cuda_emulated

ROWS, COLUMNS = 32, 256
SIZE = ROWS * COLUMNS
DTYPES = ("float32", "float64")


def total(x):
    return np.sum(x)


def scatter_add(x, bins):
    out = np.zeros(100, x.dtype)
    np.add.at(out, bins, x)
    return out


def sweep(u):
    v = u.copy()
    inside = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    v[1:-1, 1:-1] += 0.1 * (inside - 4 * u[1:-1, 1:-1])
    return v


def gradient(f: Any, *argnums: int) -> Callable[[Any], Any]:
    return lambda kind: rg.value_and_grad(kind(f), argnums=argnums)


def normals(*shapes: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
    return lambda rng, dtype: tuple(
        rng.standard_normal(s).astype(dtype) for s in shapes
    )


def labelled(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return *normals(TABLE)(rng, dtype), rng.integers(0, COLUMNS, ROWS)


def binned(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return *normals(SIZE)(rng, dtype), rng.integers(0, 100, SIZE)


TABLE = ROWS, COLUMNS
ALL = {
    "chain": (lambda kind: kind(elementwise.chain), normals(SIZE, SIZE)),
    "chain_gradient": (gradient(elementwise.chain, 0, 1), normals(SIZE, SIZE)),
    "softmax": (gradient(reductions.softmax, 0), normals(TABLE, TABLE)),
    "layer_norm": (
        gradient(reductions.layer_norm, 0, 1, 2),
        normals(TABLE, COLUMNS, COLUMNS, TABLE),
    ),
    "cross_entropy": (gradient(reductions.cross_entropy, 0), labelled),
    "sum": (lambda kind: kind(total), normals(SIZE)),
    "scatter_add": (lambda kind: kind(scatter_add), binned),
    "sweep": (lambda kind: kind(sweep), normals((66, 130))),
}
OWN_ROWS = ("softmax", "layer_norm")  # blocks add up rows of their own
CONTIGUOUS = ("chain", "chain_gradient", "sum")


@dataclass
class Launched:
    """One launch: its kernel and what it did."""

    code: Code
    grid: int
    block: int
    counts: Counts

    @functools.cached_property
    def report(self) -> Report:
        return inspect(self.code)


@functools.cache
def ran(name: str, dtype: str) -> tuple[list[Launched], list[Any], list[Any]]:
    """Run a program on the emulated device; return launches, arguments and results."""
    make, draw = ALL[name]
    args = draw(np.random.default_rng(0), dtype)
    emulator = device("cuda:emu")
    launched: list[Launched] = []
    launch = Emulator.launch

    def recorded(self, function, grid, block, args, shared=0):
        self.counts = Counts()
        launch(self, function, grid, block, args, shared)
        launched.append(Launched(function.code, grid, block, self.counts))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emulator, "launch", recorded)
        results = make(functools.partial(rg.compile, device=emulator.name))(*args)
    expected = make(lambda f: f)(*args)
    tolerance = {"float32": 3e-5, "float64": 1e-13}[dtype]
    for got, want in zip(flat(results), flat(expected), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=tolerance, atol=tolerance * np.abs(want).max()
        )
    return launched, list(args), flat(results)


def flat(x: Any) -> list[Any]:
    if isinstance(x, tuple):
        return [leaf for part in x for leaf in flat(part)]
    return [np.asarray(x)]


def main(name: str, dtype: str) -> Launched:
    """Return the launch of a program that moves the most bytes."""
    launched, _, _ = ran(name, dtype)
    return max(launched, key=lambda x: x.counts.read + x.counts.written)


programs = pytest.mark.parametrize("name", ALL)
contiguous = pytest.mark.parametrize("name", CONTIGUOUS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@dtypes
@programs
def test_kernels_need_few_registers_and_no_local_memory(name: str, dtype: str):
    launched, _, _ = ran(name, dtype)
    for x in launched:
        assert x.report.instructions, "nvdisasm is missing"
        assert x.report.registers <= (80 if name in OWN_ROWS else 64)
        assert x.report.spills == x.report.stack == x.report.local_accesses == 0
        assert dtype == "float64" or x.report.doubles == 0


@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *itertools.product((NARROW, None), DTYPES),
        (WIDE, "float32"),
    ],
    ids=str,
)
def test_tiles_of_products_need_128_registers(tile: Tile | None, dtype: str):
    report = inspect(code_of(tile, dtype, device("cuda:emu")))
    assert report.instructions, "nvdisasm is missing"
    assert report.registers <= 128
    assert report.spills == report.stack == report.local_accesses == 0
    assert dtype == "float64" or report.doubles == 0
    if tile is not None:
        assert report.wide_loads >= 8
        assert report.wide_stores >= 4


@dtypes
@contiguous
def test_contiguous_maps_access_16_bytes(name: str, dtype: str):
    _, args, results = ran(name, dtype)
    report = main(name, dtype).report
    assert report.wide_loads == len(args)
    assert report.wide_stores == sum(r.ndim > 0 for r in results)


@pytest.mark.parametrize(("name", "loads"), [("softmax", 8), ("cross_entropy", 5)])
def test_rows_of_float32_are_accessed_by_16_bytes(name: str, loads: int):
    report = main(name, "float32").report
    assert (report.wide_loads, report.wide_stores) == (loads, 3)


@dtypes
@contiguous
def test_contiguous_maps_move_their_arrays_once(name: str, dtype: str):
    x = main(name, dtype)
    _, args, results = ran(name, dtype)
    partial = 2 * x.grid * np.dtype(dtype).itemsize  # a sum and its loss per block
    assert x.counts.read == sum(a.nbytes for a in args)
    arrays = sum(r.nbytes for r in results if r.ndim)
    assert x.counts.written == arrays + partial
    assert x.counts.efficiency == 1


@dtypes
def test_rows_of_softmax_stay_in_shared_memory(dtype: str):
    x = main("softmax", dtype)
    _, (a, w), (_, gradient) = ran("softmax", dtype)
    partial = 2 * x.grid * a.itemsize
    first = x.grid * x.block * a.itemsize  # of a row, with which its maximum starts
    assert x.counts.read == 3 * a.nbytes + 2 * w.nbytes + first
    assert x.counts.written == gradient.nbytes + partial
    assert x.counts.efficiency == 1


@dtypes
def test_sums_and_maxima_are_the_barriers_of_softmax(dtype: str):
    assert main("softmax", dtype).report.barriers == 2 * 6


def test_rows_are_shared_out_where_gradients_add_them_up():
    assert main("layer_norm", "float32").grid == ROWS // 4


def test_additions_to_bins_are_single_instructions():
    x = main("scatter_add", "float32")
    assert "ATOMG.E.ADD.F32" in x.report.sass
    assert "CAS" not in x.report.sass
    assert x.report.wide_loads == 1  # of places, two at once
    status = 8 * x.grid * x.block
    assert x.counts.read == SIZE * (4 + 8 + 4) + status


def test_stencil_divides_before_its_loop_only():
    ptx = main("sweep", "float32").code.ptx
    unrolled = 1  # LLVM counts the iterations
    assert ptx.count("div.u32") == ptx.count("div.u64") == 2 + unrolled
    assert ptx.count("div.s64") == ptx.count("rem.") == 0
