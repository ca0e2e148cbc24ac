"""What the host pays for a launch: `python -m benchmarks.launches`.

    python -m benchmarks.launches [--device NAME] [--stub] [--repeats N]

Prints microseconds of the processor per call: a launch with ten pointers and two sizes,
a launch of a graph of twenty of them (and per kernel in it), that of a batch of twenty
(and per kernel), an allocation with its release, a fill, the write of 80 bytes, and a
compiled function of ten kernels: with an array that was not there before, where it is a
batch, and with one that was, where it is a graph. With
`--stub` the driver is `tests/cuda/stub_driver.c`, whose functions return at once: what
is measured is what this package and the bindings add.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import retrograde as rg
from retrograde.codegen.cuda.replay import KEPT
from retrograde.codegen.cuda.target import compile_kernel
from retrograde.runtime.devices import Device, Given, Launch, device

from .case import Array
from .measure import machine

STUBS = Path(__file__).resolve().parents[1] / "tests" / "cuda"
POINTERS = 10
KERNELS = 20  # of the graph, and of the batch
LARGE = 10_000  # elements that are worth a grid, not a block
SOURCE = f"""
def kernel({", ".join(f"p{n}" for n in range(POINTERS))}, first, last):
    if first > last:
        p0[first] = p1[last]
"""


def build_stub(folder: Path) -> bool:
    """Compile stubs of the driver and of cuBLAS; tell whether they can be.

    cuBLAS is sought together with the library that it needs itself.
    """
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return False
    driver = folder / "libcuda.so.1"
    blas = ("libcublas.so.13", "libcublasLt.so.13")
    for name in (driver.name, *blas):
        options = ["-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}"]
        files = [STUBS / "stub_driver.c"]
        if name in blas:
            files = [STUBS / "stub_blas.c", driver]
        command = [compiler, *options, *map(str, files), "-o", str(folder / name)]
        subprocess.run(command, check=True)
    return True


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median over nine turns of the processor's time for a call."""
    times = []
    for _ in range(9):
        start = time.process_time()
        for _ in range(repeats):
            call()
        times.append((time.process_time() - start) / repeats)
    return 1e6 * statistics.median(times)


def measure(where: Device, repeats: int) -> dict[str, float]:
    """Return the microseconds of each kind of call."""
    kinds = ("pointer",) * POINTERS + ("int64", "int64")
    code = compile_kernel(
        SOURCE,
        "kernel",
        kinds,
        dtypes=("f4",) * POINTERS,
        architecture=where.architecture,
    )
    function = where.load(code)
    memory = where.allocate(80)
    args = [memory.address] * POINTERS + [0, 1]
    values = np.zeros(10)

    def step() -> None:
        for _ in range(KERNELS):
            where.launch(function, 1, 128, args)

    graph = where.record(step)
    given: list[int | Given] = [*map(Given, range(POINTERS)), 0, 1]
    batch = where.batch(kinds[:POINTERS], [Launch(function, 1, 128, given)] * KERNELS)
    calls: dict[str, Callable[[], object]] = {
        "launch": lambda: where.launch(function, 1, 128, args),
        "graph": graph.launch,
        "batch": lambda: batch.launch(*args[:POINTERS]),
        "allocate": lambda: where.allocate(1 << 16),
        "fill": lambda: where.fill(memory.address, 0, 80),
        "write": lambda: where.write(memory.address, values),
    }
    calls |= compiled(where)
    times = {}
    for name, call in calls.items():
        times[name] = microseconds(call, repeats)
        where.synchronize()
    for name in ("graph", "batch"):
        times[f"{name} / {KERNELS}"] = times[name] / KERNELS
    return times


def centred(x: Array) -> Array:
    """Take the mean away, of values that change: a kernel, and three for each turn."""
    for _ in range((KERNELS // 2 - 1) // 3):
        x = x - np.mean(np.sin(x))
    return x


def compiled(where: Device) -> dict[str, Callable[[], object]]:
    """Return calls of a compiled function of ten kernels."""
    function = rg.compile(centred, device=where.name)
    rng = np.random.default_rng(0)
    arrays = [
        rg.device_array(rng.standard_normal(LARGE), where.name) for _ in range(2 * KEPT)
    ]
    for x in arrays[:1] * 4:  # until its graph is there
        function(x)
    others = itertools.cycle(arrays)
    return {
        "ten kernels": lambda: function(next(others)),
        "ten, a graph": lambda: function(arrays[0]),
    }


def again_with_stub(arguments: Sequence[str]) -> int:
    """Run this in a process whose driver is the stub; return its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        if not build_stub(Path(folder)):
            print("--stub needs gcc and Linux", file=sys.stderr)
            return 2
        command = ["env", f"LD_LIBRARY_PATH={folder}", "STUB_QUIET=1", sys.executable]
        command += ["-m", "benchmarks.launches", *arguments]
        return subprocess.run(command).returncode


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.launches")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--repeats", type=int, default=10_000)
    options = parser.parse_args(arguments)
    if options.stub:
        rest = [argument for argument in arguments if argument != "--stub"]
        return again_with_stub(rest)
    print(machine())
    for name, time_taken in measure(device(options.device), options.repeats).items():
        print(f"{name:12} {time_taken:8.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
