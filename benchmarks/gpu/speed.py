"""Times of one framework on a GPU.

    python -m benchmarks.gpu.speed FRAMEWORK DEVICE [tiny]

Each result is checked before it is timed. Calls take other arrays in turn, more than
the cache of the GPU holds where arrays are large. A time is the median of batches of
calls by the clock on the wall, with a wait for the GPU at the end of each batch.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..case import Args, rebound
from .programs import PROGRAMS, Timed
from .records import Emit, Record, emit

SIZES = (1 << 26, 1 << 22, 1 << 14, 1 << 18, 1 << 28)  # what matters most comes first
TINY = (1 << 11,)
CACHE = 1 << 28  # bytes that are more than a cache holds
PART = 1 << 30  # bytes of a copy at most
SETS = 12  # of arrays at most: small programs of ours remember 16 calls
BATCH, BATCHES = 0.02, 7  # seconds, and how many


class Framework(NamedTuple):
    """Arrays from NumPy and back, functions, and how to wait."""

    there: Callable[[Any], Any]
    here: Callable[[Any], Any]
    compiled: Callable[[Timed], Callable[..., Any]]
    wait: Callable[[Any], None]


def ours(device: str) -> Framework:
    import retrograde as rg
    from retrograde.runtime.devices import device as find

    def compiled(p: Timed) -> Any:
        function = rg.compile(p.function, device=device)
        return rg.value_and_grad(function, p.gradient) if p.gradient else function

    place = find(device)
    return Framework(
        lambda x: rg.device_array(x, device),
        np.asarray,
        compiled,
        lambda result: place.synchronize(),
    )


def torch(device: str) -> Framework:
    import torch

    from .. import torch_numpy

    on_gpu = torch.cuda.is_available()
    where = "cuda" if on_gpu else "cpu"

    def compiled(p: Timed) -> Any:
        torch.compiler.reset()
        function = rebound(p.torch or p.function, np=torch_numpy)
        if not p.gradient:
            return torch.compile(function, dynamic=False)
        gradient = torch.func.grad_and_value(function, argnums=p.gradient)
        return torch.compile(lambda *args: gradient(*args)[::-1], dynamic=False)

    def wait(result: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    return Framework(
        lambda x: torch.tensor(x, device=where),
        lambda x: x.detach().cpu().numpy(),
        compiled,
        wait,
    )


def jax(device: str) -> Framework:
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)  # indices of 64 bits, as all have them

    def compiled(p: Timed) -> Any:
        function = rebound(p.jax or p.function, np=jnp)
        if p.gradient:
            function = jax.value_and_grad(function, argnums=p.gradient)
        return jax.jit(function)

    return Framework(jnp.asarray, np.asarray, compiled, jax.block_until_ready)


def cupy(device: str) -> Framework:
    import cupy

    def compiled(p: Timed) -> Any:
        if p.gradient:
            raise NotImplementedError("CuPy has no gradients")
        return rebound(p.function, np=cupy)

    return Framework(
        cupy.asarray,
        cupy.asnumpy,
        compiled,
        lambda result: cupy.cuda.Device().synchronize(),
    )


FRAMEWORKS: dict[str, Callable[[str], Framework]] = {
    "ours": ours,
    "torch.compile": torch,
    "jax": jax,
    "cupy": cupy,
}
PACKAGES = {"torch.compile": "torch", "jax": "jax", "cupy": "cupy"}


def results_of(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [x for part in result for x in results_of(part)]
    return [result]


def seconds_of(
    call: Callable[[int], Any], wait: Callable[[Any], None], sets: int
) -> float:
    """Return the median time of a call; `call(k)` uses the k-th set of arrays."""

    def batch(count: int) -> float:
        start = time.perf_counter()
        for k in range(count):
            result = call(k)
        wait(result)
        return (time.perf_counter() - start) / count

    batch(3 * sets)  # each set comes three times: graphs have been recorded
    count = max(1, round(BATCH / max(batch(sets), 1e-7)))
    return statistics.median(batch(count) for _ in range(BATCHES))


def measure(f: Framework, p: Timed, n: int, check: bool) -> Record:
    """Check a program at one size, and time it."""
    block, repeats = p.block(n)
    args = p.args(block, repeats)
    size = sum(x.nbytes for x in args)
    sets = max(2, min(SETS, -(-CACHE // size)))
    arrays: list[Args] = [tuple(map(f.there, args)) for _ in range(sets)]
    del args
    function = f.compiled(p)
    start = time.perf_counter()
    result = function(*arrays[0])
    f.wait(result)
    first = time.perf_counter() - start
    text = ""
    if check:
        found = [np.asarray(f.here(x)) for x in results_of(result)]
        text = p.problem(found, p.known(block), repeats)
        del found
    del result
    record: Record = {"what": "time", "program": p.name, "size": n, "first": first}
    if text:
        return {**record, "error": text}
    wall = seconds_of(lambda k: function(*arrays[k % sets]), f.wait, sets)
    return {**record, "seconds": wall, "bytes": p.moved * n, "checked": check}


def copied(device: str, p: Timed, n: int) -> Record:
    """Time the ceiling: the driver's copies of as many bytes as a program moves."""
    from retrograde.runtime.devices import device as find

    place = find(device)
    left = p.moved * n // 2
    part = min(left, PART)
    sets = max(2, min(SETS, -(-CACHE // (2 * part))))
    memory = [(place.allocate(part), place.allocate(part)) for _ in range(sets)]

    def call(k: int) -> None:
        target, source = memory[k % sets]
        for start in range(0, left, part):
            place.copy(target.address, source.address, min(part, left - start))

    wall = seconds_of(call, lambda result: place.synchronize(), sets)
    record: Record = {"what": "time", "program": p.name, "size": n, "seconds": wall}
    return {**record, "framework": "copy"}


def run(name: str, device: str, tiny: bool, say: Emit) -> None:
    f = FRAMEWORKS[name](device)
    check = not (tiny and name == "ours")  # a stub of the driver computes nothing
    done = set()
    for size in TINY if tiny else SIZES:
        for p in PROGRAMS:
            n = min(size, p.largest)
            if (p.name, n) in done:
                continue
            done.add((p.name, n))
            try:
                record = measure(f, p, n, check)
            except Exception as error:
                text = f"{type(error).__name__}: {str(error).strip()[:300]}"
                record = {"what": "time", "program": p.name, "size": n, "error": text}
            say({**record, "framework": name})
            gc.collect()
            if name == "ours":
                say(copied(device, p, n))


def main(arguments: Sequence[str]) -> int:
    name, device, *options = arguments
    run(name, device, "tiny" in options, emit)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
