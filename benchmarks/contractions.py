"""Matrix products against NumPy, forward: `python -m benchmarks.contractions`.

Every form is compiled once for all sizes; results are compared with NumPy's before any
time is printed. Arguments of the last forms are blocks or transposes of larger arrays.
Timed is the kernel: what a call of a compiled function adds is the same for all.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import retrograde as rg

SIZES = (3, 17, 64, 200, 1000)
REPEAT, LEAST = 7, 2e-3  # the fastest of so many runs, of so many seconds each

Arrays = dict[str, Any]


def rows_times_vector(a: Any, x: Any) -> Any:
    return np.stack([np.dot(a[0], x), np.dot(a[1], x)])


def added(a: Any, b: Any) -> Any:
    c = np.ones_like(a)
    c[1:] += a[1:] @ b
    return c


FORMS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("x @ y", lambda x, y: x @ y, "x y"),
    ("x[::-1] @ y", lambda x, y: x[::-1] @ y, "x y"),
    ("A[:, 1] @ y", lambda a, y: a[:, 1] @ y, "a y"),
    ("A @ x", lambda a, x: a @ x, "a x"),
    ("A.T @ x", lambda a, x: a.T @ x, "a x"),
    ("x @ A", lambda x, a: x @ a, "x a"),
    ("A[1:, :-1] @ x[1:]", lambda a, x: a[1:, :-1] @ x[1:], "a x"),
    ("A @ B", lambda a, b: a @ b, "a b"),
    ("A.T @ B", lambda a, b: a.T @ b, "a b"),
    ("A @ B.T", lambda a, b: a @ b.T, "a b"),
    ("A[1:] @ B[:, :-1]", lambda a, b: a[1:] @ b[:, :-1], "a b"),
    ("A[::-1] @ B", lambda a, b: a[::-1] @ b, "a b"),
    ("c[1:] += A[1:] @ B", added, "a b"),
    ("two dots", rows_times_vector, "a x"),
    ("block @ x", lambda a, x: a @ x, "block x"),
    ("transposed @ x", lambda a, x: a @ x, "turned x"),
    ("transposed @ B", lambda a, b: a @ b, "turned b"),
    ("sum(block**2, 1)", lambda a: np.sum(a**2, axis=1), "block"),
)


def arrays(n: int, dtype: str) -> Arrays:
    rng = np.random.default_rng(n)

    def some(*shape: int) -> Any:
        return rng.normal(size=shape).astype(dtype)

    return {
        "x": some(n),
        "y": some(n),
        "a": some(n, n),
        "b": some(n, n),
        "block": some(n, 2 * n)[:, :n],
        "turned": some(n, n).T,
    }


def fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    call()
    start = time.perf_counter()
    call()
    count = max(1, int(LEAST / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(REPEAT):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def main() -> int:
    """Print a table for both precisions; return 1 where a result is wrong."""
    wrong = 0
    for dtype, tolerance in (("f8", 1e-10), ("f4", 1e-2)):
        heads = "".join(f"{f'n={n}':>20}" for n in SIZES)
        print(f"{dtype}, us: NumPy / kernel  {heads}")
        for name, function, operands in FORMS:
            compiled: Any = rg.compile(function)
            cells = []
            for n in SIZES:
                made = arrays(n, dtype)
                args = [made[k] for k in operands.split()]
                want, got = function(*args), compiled(*args)
                if not np.allclose(got, want, rtol=tolerance, atol=tolerance * n):
                    wrong += 1
                    cells.append("wrong")
                    continue
                kernel = compiled.specialisation(*args).program.kernel
                ours = fastest(partial(kernel, args, ()))
                theirs = fastest(partial(function, *args))
                cells.append(f"{theirs * 1e6:.3g} / {ours * 1e6:.3g}")
            print(f"{name:25}" + "".join(f"{c:>20}" for c in cells), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
