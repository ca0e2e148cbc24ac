"""Compilation, graphs, and what both cost on the host.

    python -m benchmarks.gpu.recording DEVICE [compare]

Says for each program how long its first call takes with nothing in the disk cache, and
whether calls that are replayed as graphs give the bits of those that are not.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import retrograde as rg
from retrograde.codegen.cuda.replay import KEPT
from retrograde.runtime.devices import Device, device

from ..groups import find
from ..launches import KERNELS, centred, measure
from .correctness import here, there
from .records import Emit, Record, emit

PROGRAMS = (
    ("elementwise", "chain", 100_000),
    ("reductions", "softmax", 100_000),
    ("reductions", "layer_norm", 100_000),
    ("models", "mlp", 64),
)
REPEATS = 200


def first_call(name: str, group: str, program: str, size: int) -> Record:
    """Time the first call of a value and gradient, and the next one."""
    case = find(group, program)
    args = there(case.args(size, "float32"), name)
    wrt = tuple(k for k, x in enumerate(args) if x.dtype.kind == "f")
    both: Any = rg.value_and_grad(rg.compile(case.function, device=name), wrt)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        both(*args)
        device(name).synchronize()
        times.append(time.perf_counter() - start)
    kernels = both.source(*args).count("\ndef kernel")
    record = {"what": "compilation", "name": program, "kernels": kernels}
    return {**record, "first": times[0], "second": times[1]}


def replayed(name: str, compare: bool) -> Record:
    """Check that a graph of a compiled function gives what its launches give."""
    place = device(name)
    made = _counted(place)
    function = rg.compile(centred, device=name)
    rng = np.random.default_rng()
    arrays = [there(rng.standard_normal(20_000), name) for _ in range(2 * KEPT)]
    direct = [here(function(x)) for x in arrays]  # other arguments: no graphs
    bad = ["a call that was not there before was recorded"] if made else []
    for x, known in zip(arrays[:3], direct, strict=False):
        for turn in range(6):
            found = here(function(x))
            if compare and found.tobytes() != known.tobytes():
                bad.append(f"turn {turn} differs from what launches gave")
    if not made:
        bad.append("nothing was recorded")
    del place.record
    return {"what": "graphs", "recorded": len(made), "bad": bad}


def _counted(place: Device) -> list[int]:
    """Return a list that gets an element for whatever a device records from now on."""
    made: list[int] = []
    record = place.record

    def counted(run: Any) -> Any:
        made.append(1)
        return record(run)

    place.record = counted  # type: ignore[method-assign]
    return made


def by_hand(name: str, compare: bool) -> Record:
    """Record fills and copies between a program's launches, and replay them."""
    place = device(name)
    x = np.random.default_rng().standard_normal(1000)
    source, target = there(x, name), there(np.zeros(1000), name)

    def step() -> None:
        place.fill(target.address, 0, 4000)
        place.copy(target.address + 4000, source.address, 4000)

    graph = place.record(step)
    before = here(target)
    graph.launch()
    wanted = np.concatenate([np.zeros(500), x[:500]])
    bad = []
    if compare and np.any(before):
        bad.append("recording did what it recorded")
    if compare and not np.array_equal(here(target), wanted):
        bad.append("the graph did something else")
    return {"what": "graph of fills and copies", "bad": bad}


def main(arguments: Sequence[str]) -> int:
    name, *options = arguments
    say: Emit = emit
    compare = "compare" in options
    say(by_hand(name, compare))
    say(replayed(name, compare))
    for group, program, size in PROGRAMS:
        say(first_call(name, group, program, size))
    if not device(name).interprets:
        times = measure(device(name), REPEATS)
        say({"what": "host", "kernels of the graph": KERNELS, "microseconds": times})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
