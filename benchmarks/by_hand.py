"""The chain against a loop written by hand: `python -m benchmarks.by_hand [SIZE]`.

Value and gradient of an elementwise chain, compiled from the NumPy program, and as one
fused loop that a person writes for Numba with the same vector math; on one and on two
threads, beside a copy of as many bytes. They run in turn; medians of quotients are
shown, and what two threads gain. The exit status is 1 where the results differ.
"""

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

import retrograde as rg
from retrograde.codegen.compile import compile_source

from .groups.elementwise import chain
from .measure import machine

ROUNDS = 60
SOURCE = """
from retrograde.runtime.memory import load, pointer, reassoc_add, store
from retrograde.runtime.vecmath import exp, tanh


def entry(x, y, gx, gy, lo, hi):
    px = pointer(x)
    py = pointer(y)
    pgx = pointer(gx)
    pgy = pointer(gy)
    total = 0.0
    for i in range(lo, hi):
        a = load(px, i, 0, 4)
        b = load(py, i, 1, 4)
        e = exp(-a * a)
        t = e * b
        u = exp(-t)
        w = 1.0 / (1.0 + u)
        s = t * w
        h = tanh(a)
        total = reassoc_add(total, s + h)
        ds = (w + s * u * w) * e
        store(pgy, i, ds, 3, 4)
        store(pgx, i, 1.0 - h * h - 2.0 * a * b * ds, 2, 4)
    return total


def copied(x, y, gx, gy, lo, hi):
    px = pointer(x)
    py = pointer(y)
    pgx = pointer(gx)
    pgy = pointer(gy)
    for i in range(lo, hi):
        store(pgx, i, load(px, i, 0, 4), 2, 4)
        store(pgy, i, load(py, i, 1, 4), 3, 4)
    return 0.0
"""


def by_hand(name: str) -> Callable[..., float]:
    """Compile one of the loops above."""
    read = numba.types.Array(numba.float64, 1, "C", readonly=True)
    written = numba.types.Array(numba.float64, 1, "C")
    types = (read, read, written, written, numba.int64, numba.int64)
    return compile_source(SOURCE, name, types)


def halves(loop: Callable[..., float], pool: ThreadPoolExecutor) -> Any:
    """Return a call of a loop in two halves, on two threads."""

    def call(*args: Any) -> float:
        n = len(args[0])
        later = pool.submit(loop, *args, n // 2, n)
        return loop(*args, 0, n // 2) + later.result()

    return call


def turns(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return the seconds of calls that run in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def main() -> int:
    """Print the table and return the exit status."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    x, y = np.random.default_rng(0).standard_normal((2, n))
    gx, gy, cx, cy = (np.empty(n) for _ in range(4))  # nobody finds another's in cache
    ours = rg.value_and_grad(rg.compile(chain), argnums=(0, 1))
    loop, copy = by_hand("entry"), by_hand("copied")
    value, (dx, dy) = ours(x, y)
    known = loop(x, y, gx, gy, 0, n)
    right = np.allclose(value, known, rtol=1e-12)
    right = bool(right and np.allclose(dx, gx) and np.allclose(dy, gy))
    with ThreadPoolExecutor(1) as pool:
        two = {k: halves(f, pool) for k, f in (("by hand", loop), ("copy", copy))}

        def with_threads(count: int) -> None:
            rg.set_num_threads(count)
            ours(x, y)

        times = turns(
            {
                "ours 1": lambda: with_threads(1),
                "by hand 1": lambda: loop(x, y, gx, gy, 0, n),
                "copy 1": lambda: copy(x, y, cx, cy, 0, n),
                "ours 2": lambda: with_threads(2),
                "by hand 2": lambda: two["by hand"](x, y, gx, gy),
                "copy 2": lambda: two["copy"](x, y, cx, cy),
            }
        )
    print(machine(), f"\n{n} elements, float64; medians of {ROUNDS} rounds in turn")
    middle = {name: statistics.median(t) for name, t in times.items()}
    print(f"{'':8} {'1 thread ms':>12} {'2 threads ms':>13} {'gain':>6}")
    for name in ("ours", "by hand", "copy"):
        one, both = middle[f"{name} 1"] * 1e3, middle[f"{name} 2"] * 1e3
        print(f"{name:8} {one:12.3f} {both:13.3f} {one / both:6.2f}")
    for count in (1, 2):
        a, b = times[f"ours {count}"], times[f"by hand {count}"]
        quotient = statistics.median(s / t for s, t in zip(a, b, strict=True))
        print(f"ours / by hand, {count} thread{'s' * (count > 1)}: {quotient:.2f}")
    if not right:
        print("the results differ")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
