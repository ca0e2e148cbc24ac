"""Value and gradient of an elementwise chain: `python -m benchmarks.chain`.

Compiled code makes one pass over the data where eager mode makes one per operation. The
exit status is 1 where it is less than FASTER times as fast, or its result differs.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import retrograde as rg

FASTER = 5.0
SIZES = (10_000, 100_000, 1_000_000)
SECONDS = 1.0  # of repetitions, of which the fastest counts


def chain(x: Any, y: Any) -> Any:
    """Return the sum of a chain of a dozen operations."""
    t = np.exp(-x * x) * y
    return np.sum(t / (1 + np.exp(-t)) + np.tanh(x))


def fastest(call: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of the fastest of some calls."""
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        call(*args)
        best = min(best, time.perf_counter() - start)
    return best


def agree(one: Any, other: Any) -> bool:
    """Tell whether two values and gradients are equal up to rounding."""
    (value, grads), (known, wanted) = one, other
    pairs = zip((value, *grads), (known, *wanted), strict=True)
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def main() -> int:
    """Print a table and return the exit status."""
    eager = rg.value_and_grad(chain, argnums=(0, 1))
    compiled = rg.value_and_grad(rg.compile(chain), argnums=(0, 1))
    rng = np.random.default_rng(0)
    right = True
    times = 0.0
    print(f"{'elements':>9} {'eager ms':>9} {'compiled ms':>12} {'times':>6}")
    for n in SIZES:
        x, y = rng.standard_normal((2, n))
        right = right and agree(compiled(x, y), eager(x, y))
        slow, fast = fastest(eager, x, y), fastest(compiled, x, y)
        times = slow / fast
        print(f"{n:9} {slow * 1e3:9.3f} {fast * 1e3:12.3f} {times:6.1f}", flush=True)
    enough = times >= FASTER
    print(f"at {SIZES[-1]} elements {times:.1f} times as fast; {FASTER:g} are wanted")
    if not right:
        print("the results differ")
    return 0 if right and enough else 1


if __name__ == "__main__":
    sys.exit(main())
