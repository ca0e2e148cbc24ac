"""Gradients of stencils in time loops: `python -m benchmarks.stencils`.

Arrays are updated in place, from shifted boxes of themselves, in a loop over time. A
gradient reads every value once per step and shift in the other direction, so it need
not cost more than the sweep itself. The exit status is 1 where the gradients of some
elements differ from differences.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import retrograde as rg

STEPS = 20  # of the large sizes; of the small ones MANY
MANY = 500
LARGE = 100_000  # elements
CHECKED = 5  # steps of the gradient that is compared
SECONDS = 1.0  # of repetitions, of which the fastest counts
STEP = 1e-4  # of the differences


def heat_1d(u: Any, steps: int) -> Any:
    """Return the sum of squares after heat has flowed along a line."""
    for _ in range(steps):
        u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u**2)


def heat_2d(u: Any, steps: int) -> Any:
    """Return the sum of squares after heat has flowed in a plane."""
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return np.sum(u**2)


def heat_3d(u: Any, steps: int) -> Any:
    """Return the sum of squares after heat has flowed in space."""
    for _ in range(steps):
        u[1:-1, 1:-1, 1:-1] += 0.1 * (
            u[2:, 1:-1, 1:-1]
            + u[:-2, 1:-1, 1:-1]
            + u[1:-1, 2:, 1:-1]
            + u[1:-1, :-2, 1:-1]
            + u[1:-1, 1:-1, 2:]
            + u[1:-1, 1:-1, :-2]
            - 6 * u[1:-1, 1:-1, 1:-1]
        )
    return np.sum(u**2)


def jacobi_2d(a: Any, b: Any, steps: int) -> Any:
    """Return the sum of squares after two arrays have smoothed each other."""
    for _ in range(steps):
        b[1:-1, 1:-1] = 0.2 * (
            a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1]
        )
        a[1:-1, 1:-1] = 0.2 * (
            b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1]
        )
    return np.sum(a**2)


def wave_2d(p: Any, v: Any, w: Any, steps: int) -> Any:
    """Return the energy of a wave: pressure and two velocities on shifted grids."""
    for _ in range(steps):
        v[1:, :] -= 0.5 * (p[1:, :] - p[:-1, :])
        w[:, 1:] -= 0.5 * (p[:, 1:] - p[:, :-1])
        p[:-1, :-1] -= 0.7 * (v[1:, :-1] - v[:-1, :-1] + w[:-1, 1:] - w[:-1, :-1])
    return np.sum(p**2)


CASES: tuple[tuple[Callable[..., Any], int, tuple[tuple[int, ...], ...]], ...] = (
    (heat_1d, 1, ((400,), (1_000_000,))),
    (heat_2d, 1, ((100, 100), (1000, 1000))),
    (heat_3d, 1, ((30, 30, 30), (100, 100, 100))),
    (jacobi_2d, 2, ((100, 100), (1000, 1000))),
    (wave_2d, 3, ((100, 100), (1000, 1000))),
)


def fastest(call: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of the fastest of some calls, after a first one."""
    call(*args)
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        call(*args)
        best = min(best, time.perf_counter() - start)
    return best


def is_right(gradient: Any, function: Any, arrays: list[Any]) -> bool:
    """Compare a gradient with a difference along a random direction."""
    _, grads = gradient(*arrays, CHECKED)
    rng = np.random.default_rng(1)
    along = [rng.standard_normal(x.shape) for x in arrays]

    def value(step: float) -> Any:
        moved = [x + step * d for x, d in zip(arrays, along, strict=True)]
        return function(*moved, CHECKED)

    slope = (value(STEP) - value(-STEP)) / (2 * STEP)
    found = sum(np.sum(g * d) for g, d in zip(grads, along, strict=True))
    return bool(abs(found - slope) <= 1e-6 * max(1.0, abs(slope)))


def main() -> int:
    """Print a table and return the exit status."""
    right = True
    row = "{:<10} {:>14} {:>9} {:>12} {:>6}"
    print(row.format("program", "size", "value us", "gradient us", "ratio"))
    for function, count, shapes in CASES:
        compiled = rg.compile(function)
        gradient = rg.value_and_grad(compiled, argnums=tuple(range(count)))
        for shape in shapes:
            rng = np.random.default_rng(0)
            arrays = [rng.standard_normal(shape) for _ in range(count)]
            right = right and is_right(gradient, function, arrays)
            calm = [np.zeros(shape) for _ in range(count)]  # are changed, and stay
            steps = STEPS if calm[0].size >= LARGE else MANY
            value = fastest(compiled, *calm, steps) / steps
            both = fastest(gradient, *calm, steps) / steps
            size = "x".join(map(str, shape))
            cells = f"{value * 1e6:.1f}", f"{(both - value) * 1e6:.1f}"
            ratio = f"{(both - value) / value:.2f}"
            print(row.format(function.__name__, size, *cells, ratio), flush=True)
    if not right:
        print("a gradient is not what differences say")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
