"""Eager mode: long chains, many small writes, and the cost of one op.

    python -m benchmarks.eager

The exit status is 1 where a limit is missed: a chain of 100,000 ops takes more than
CHAIN seconds forward and backward; the backward pass of 10,000 element writes into a
base of 10,000 takes more than WRITES seconds, or the memory grows faster than the
number of writes; an op with its backward step takes longer than in HIPS autograd, on
arrays of 4 elements (where that is installed: the extra `peers`).
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import retrograde as rg

CHAIN = 5.0
WRITES = 2.0
GROWTH = 2.5  # of memory, where there are twice as many writes
REPEATS = 5


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def chain(n: int) -> tuple[float, float]:
    """Return the times of a chain of n ops: forward and backward."""
    x = rg.tensor(np.ones(4), requires_grad=True)
    y = x

    def forward() -> None:
        nonlocal y
        for _ in range(n):
            y = y * 1.0

    return seconds(forward), seconds(lambda: y.backward(np.ones(4)))


def recurrence(n: int) -> Any:
    """Return the sum of a base of n that n element writes have filled."""
    a = rg.tensor(np.full(n, 0.5), requires_grad=True)
    b = rg.tensor(np.zeros(n))
    b[0] = 1.0
    for i in range(1, n):
        b[i] = b[i - 1] * a[i] + 1.0
    return (b * b).sum()


def writes(n: int) -> tuple[float, float]:
    """Return the times of n element writes: forward and backward."""
    y: Any = None

    def forward() -> None:
        nonlocal y
        y = recurrence(n)

    return seconds(forward), seconds(lambda: y.backward())


def peak(n: int) -> int:
    """Return the most memory, in bytes, that n element writes take with backward."""
    tracemalloc.start()
    recurrence(n).backward()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


OPS = 24


def elementwise(xp: Any, x: Any) -> Any:
    """Apply 24 ops to an array of 4 elements, and add up."""
    for _ in range(OPS // 4):
        x = xp.tanh(x * 1.5 + 0.1) - x
    return xp.sum(x)


def ours() -> None:
    x = rg.tensor(np.linspace(0.1, 0.4, 4), requires_grad=True)
    elementwise(np, x).backward()


def autograds() -> Callable[[], Any] | None:
    """Return the same in HIPS autograd, or None where it is not installed."""
    try:
        import autograd
        import autograd.numpy as anp
    except ImportError:
        return None
    gradient = autograd.grad(lambda x: elementwise(anp, x))
    x = np.linspace(0.1, 0.4, 4)
    return lambda: gradient(x)


def torches() -> Callable[[], Any] | None:
    """Return the same in PyTorch, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)

    def run() -> None:
        x = torch.linspace(0.1, 0.4, 4, dtype=torch.float64, requires_grad=True)
        elementwise(torch, x).backward()

    return run


def per_op(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the fastest microseconds per op of several programs, run in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(20 * REPEATS):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call) / OPS * 1e6)
    return best


def main() -> int:
    """Print a table and return the exit status."""
    n, m = 100_000, 10_000
    forward, backward = chain(n)
    total = forward + backward
    print(f"chain of {n} ops: forward {forward:.2f} s, backward {backward:.2f} s")
    _, pulled = min((writes(m) for _ in range(2)), key=lambda t: t[1])
    small, large = peak(m // 2), peak(m)
    print(
        f"{m} element writes: backward {pulled:.2f} s, at most {large / 1e6:.0f} MB; "
        f"{m // 2} of them {small / 1e6:.0f} MB"
    )
    peers = {"autograd": autograds(), "PyTorch": torches()}
    found = per_op({"ours": ours, **{k: v for k, v in peers.items() if v is not None}})
    for name, microseconds in found.items():
        print(f"{name}: {microseconds:.1f} us per op, with its backward step")
    right = total <= CHAIN and pulled <= WRITES and large <= GROWTH * small
    return 0 if right and found["ours"] <= found.get("autograd", float("inf")) else 1


if __name__ == "__main__":
    sys.exit(main())
