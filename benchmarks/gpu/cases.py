"""What is checked on a GPU: programs of the benchmarks, of the demo, and failing ones.

A `Check` is a function with fresh arguments for a seed, a size and a dtype.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrograde.demo import EXAMPLES

from .. import programs
from ..case import Args, Case
from ..groups import GROUPS

# Sizes around warps, blocks, chunks of threads, and grids that begin again.
SIZES = (1, 31, 33, 255, 257, 1023, 1025, 4099, 100_003)
MODELS = ("mlp", "lstm_cell", "attention", "convolution", "gmm", "rosenbrock")
MODEL_SIZES = (5, 33)
LOOPS = (
    "jacobi_1d jacobi_2d heat_3d seidel_2d nbody runge_kutta kepler cholesky lu"
).split()
TINY = ("squared_distance", "jacobi_1d", "write_through_view")  # of a rehearsal


@dataclass(frozen=True, slots=True)
class Check:
    """A function, and the arguments of each of its runs.

    `draw(seed, size, dtype)` gives them; `wrt` says what is differentiated, nothing
    where there is no single number to differentiate.
    """

    name: str
    function: Callable[..., Any]
    draw: Callable[[int, Any, str], Args]
    sizes: tuple[Any, ...]
    dtypes: tuple[str, ...]
    wrt: tuple[int, ...]


def is_float(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, np.ndarray) and x.dtype.kind == "f")


def of_case(case: Case, sizes: tuple[int, ...]) -> Check:
    def draw(seed: int, size: int, dtype: str) -> Args:
        args = case.draw(np.random.default_rng(seed), size)
        return tuple(
            x.astype(np.float32).astype(dtype) if is_float(x) else x for x in args
        )

    args = draw(0, case.tiny, "float64")
    wrt = tuple(k for k, x in enumerate(args) if is_float(x))
    dtypes = case.dtypes or ("float32", "float64")
    return Check(case.name, case.function, draw, sizes, dtypes, wrt)


def of_program(p: programs.Program) -> Check:
    """Return a loop program as a sum of its results, with weights."""

    def draw(seed: int, size: Any, dtype: str) -> Args:
        args = p.args(size, seed)
        return p.weights(args, seed), *args

    args = p.args(p.tests[0])
    wrt = tuple(k + 1 for k in programs.differentiable(args))
    return Check(p.name, p.objective(), draw, p.tests, ("float64",), wrt)


def of_demo(example: Any) -> Check:
    args = example.arguments(True)
    scalar = np.ndim(example.function(*example.arguments(True))) == 0
    wrt = example.argnums if scalar else ()
    assert args
    return Check(
        example.name,
        example.function,
        lambda seed, size, dtype: example.arguments(True),
        (0,),
        ("float64",),
        wrt,
    )


def checks(tiny: bool) -> list[Check]:
    """Return all checks, or the few of a rehearsal."""
    found = [of_case(c, SIZES) for c in GROUPS["elementwise"] + GROUPS["reductions"]]
    found += [of_case(c, MODEL_SIZES) for c in GROUPS["models"] if c.name in MODELS]
    found += [of_program(p) for p in programs.PROGRAMS if p.name in LOOPS]
    found += [of_demo(example) for example in EXAMPLES]
    return [c for c in found if c.name in TINY] if tiny else found


# Programs whose checks fail ---------------------------------------------------------


def taken(x: Any, index: Any) -> Any:
    x[0] = 7.0
    return np.sum(np.exp(x) * x[index])


def put(x: Any, index: Any) -> Any:
    x *= 2.0
    x[index] = 1.0
    return np.sum(x)


def looked_up(x: Any, index: Any) -> Any:
    total = 0.0
    for k in range(index.shape[0]):
        total = total + x[index[k]] ** 2
    return total


@dataclass(frozen=True, slots=True)
class Failing:
    """A program whose index is out of bounds, and the text of the line that says so."""

    function: Callable[..., Any]
    line: str

    def args(self, rng: np.random.Generator, size: int) -> Args:
        index = rng.integers(0, size, size)
        index[size // 2] = size + 3
        return rng.standard_normal(size), index


FAILING = (
    Failing(taken, "return np.sum(np.exp(x) * x[index])"),
    Failing(put, "x[index] = 1.0"),
    Failing(looked_up, "total = total + x[index[k]] ** 2"),
)


def share(found: list[Any], number: int, count: int) -> Iterator[Any]:
    """Yield what one of several processes has to do."""
    yield from found[number::count]
