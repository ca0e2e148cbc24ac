"""Processor time until compiled code runs: the group `compile`.

Every figure is that of a process of its own, imports included, cold (with an empty disk
cache) or warm (with the cache of another process); the bytecode of what is imported is
there, as an installation leaves it. Beside it models are compiled by peers, imports not
included.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .case import Array
from .groups import models
from .measure import MeasurementError, cpu_seconds, run_child
from .turns import Budget, Row, Worker, WorkerError

LIMITS = {  # of processor seconds
    "ten loops, cold": 2.0,
    "hundred loops, cold": 10.0,
    "warm": 1.2,  # any process with a filled cache
}
REPEAT = 3  # warm processes, of which the fastest counts
BATCHES = 100
COMPILED = ("mlp", "lstm_cell", "attention", "gmm", "bundle_adjustment")


def step(x: Array, c: float) -> Array:
    """Compute one fused loop: each needs the sum that the one before it has made."""
    y: Array = x * np.exp(-c * x) / (c + np.sum(x * x))
    return y


def ten(x: Array, c: float) -> Array:
    x = step(step(step(step(step(x, c + 0.1), c + 0.2), c + 0.3), c + 0.4), c + 0.5)
    return step(step(step(step(step(x, c + 0.6), c + 0.7), c + 0.8), c + 0.9), c + 1.0)


def ten_loops(x: Array) -> Array:
    return ten(x, 1.0)


def hundred_loops(x: Array) -> Array:
    x = ten(ten(ten(ten(ten(x, 1.0), 2.0), 3.0), 4.0), 5.0)
    return ten(ten(ten(ten(ten(x, 6.0), 7.0), 8.0), 9.0), 10.0)


def loss(x: Array, w: Array) -> Any:
    """Return the loss of a batch of any size."""
    return np.mean(np.tanh(x @ w) ** 2)


# In the processes that are measured.


def only_imports() -> None:
    import retrograde  # noqa: F401


def compile_loops(function: Callable[[Array], Array]) -> None:
    import retrograde as rg

    x = np.linspace(0.1, 1.0, 50)
    np.testing.assert_allclose(rg.compile(function)(x), function(x), rtol=1e-10)


def compute_example(name: str) -> None:
    """Compute one gradient of a program of the demo."""
    import retrograde as rg
    from retrograde import demo

    (example,) = [e for e in demo.EXAMPLES if e.name == name]
    args = example.arguments(False)
    value, pullback = rg.vjp(rg.compile(example.function), *args)
    pullback(np.ones_like(value))


def compute_batches() -> None:
    """Compute gradients of batches of many sizes, with one compilation."""
    import retrograde as rg

    both = rg.value_and_grad(rg.compile(loss), argnums=(0, 1))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 4))
    for n in range(2, BATCHES + 2):
        x = rng.standard_normal((n, 8))
        value, _ = both(x, w)
        np.testing.assert_allclose(value, loss(x, w), rtol=1e-12)
    misses = both.cache_info().misses  # type: ignore[attr-defined]
    if misses != 1:
        raise MeasurementError(f"{BATCHES} sizes, {misses} compilations")


def examples() -> tuple[str, ...]:
    from retrograde import demo

    return tuple(example.name for example in demo.EXAMPLES)


def child(what: str) -> dict[str, float]:
    """Compute in this process and return its processor time."""
    actions: dict[str, Callable[[], None]] = {
        "imports": only_imports,
        "ten loops": lambda: compile_loops(ten_loops),
        "hundred loops": lambda: compile_loops(hundred_loops),
        f"{BATCHES} batch sizes": compute_batches,
    }
    actions.get(what, lambda: compute_example(what))()
    return {"cpu": cpu_seconds()}


# In the process that shows.


def programs() -> tuple[str, ...]:
    return (
        "imports",
        "ten loops",
        "hundred loops",
        f"{BATCHES} batch sizes",
        *examples(),
    )


def measured(peers: Sequence[str], budget: Budget, quick: bool) -> Iterator[Row]:
    """Return processor seconds: of processes, and of models' first runs."""
    repeat = 1 if quick else REPEAT
    with tempfile.TemporaryDirectory() as bytecode:
        process("ten loops", "cold", bytecode, bytecode, budget, 1)
        for what in programs():
            with tempfile.TemporaryDirectory() as folder:
                yield process(what, "cold", folder, bytecode, budget, 1)
                if what != "imports":
                    yield process(what, "warm", folder, bytecode, budget, repeat)
    for case in models.CASES:
        if case.name in COMPILED and not quick:
            yield first_run(case.name, case.sizes[0], peers, budget)


def process(
    what: str, kind: str, folder: str, bytecode: str, budget: Budget, repeat: int
) -> Row:
    name = what if what == "imports" else f"{what}, {kind}"
    row = Row("compile", name, 0, "", 1)
    # Written whatever the environment says: imports without it take a second more.
    extra = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    try:
        row.seconds["ours"] = min(
            run_child(
                ["benchmarks.compilation", what],
                budget.timeout,
                cache=str(Path(folder, "cache")),
                extra=extra,
            )["cpu"]
            for _ in range(repeat)
        )
    except MeasurementError as error:
        row.errors["ours"] = str(error)
    return row


def first_run(name: str, size: int, peers: Sequence[str], budget: Budget) -> Row:
    """Return what the first value and gradient of a model costs each framework."""
    row = Row("compile", f"model {name}, cold", size, "float64", 1)
    for framework in ("ours", *peers):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            worker = Worker(framework, 1, folder)
            try:
                found = worker.ask(
                    "prepare", "models", name, size, "float64", timeout=budget.timeout
                )
                row.seconds[framework] = found["first"]
            except WorkerError as error:
                row.errors[framework] = str(error)
            finally:
                worker.close()
    return row


def over_limits(rows: Sequence[Row]) -> list[str]:
    """Say which figures are over their limits."""
    lines = []
    for row in rows:
        warm = row.program.endswith(", warm")
        limit = LIMITS.get("warm" if warm else row.program)
        spent = row.seconds.get("ours")
        if limit is not None and spent is not None and spent > limit:
            lines.append(f"{row.program}: {spent:.2f} s are over {limit:g} s")
    return lines


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1])))
