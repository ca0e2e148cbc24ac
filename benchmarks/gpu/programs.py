"""What is timed on a GPU: programs, their arguments, and what they have to give.

Arguments of 2^28 elements are one drawn block, many times over: then results are that
of the block, many times over or that many times as large, and are checked in a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import retrograde as rg

from ..case import Args, Array
from ..groups import elementwise, models

BLOCK = 1 << 20  # elements of the drawn block
COLUMNS = 1024  # of tables
BINS = 1 << 14  # of the sum by index
SWEEPS = 10  # of the stencil


def copy(x: Array) -> Any:
    return np.copy(x)


def fused_map(x: Array, y: Array) -> Any:
    t = np.exp(-x * x) * y
    return t / (1 + np.exp(-t)) + np.tanh(x)


def softmax(a: Array) -> Any:
    e = np.exp(a - np.max(a, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def layer_norm(a: Array, gain: Array, bias: Array) -> Any:
    mean = np.mean(a, axis=1, keepdims=True)
    var = np.mean((a - mean) ** 2, axis=1, keepdims=True)
    return (a - mean) / np.sqrt(var + 1e-5) * gain + bias


def total(x: Array) -> Any:
    return np.sum(x)


def scatter_add(out: Array, index: Array, x: Array) -> Any:
    sums = np.zeros_like(out)
    np.add.at(sums, index, x)
    return sums


def scatter_add_jax(out: Any, index: Any, x: Any) -> Any:
    return np.zeros_like(out).at[index].add(x)


def scatter_add_torch(out: Any, index: Any, x: Any) -> Any:
    return np.zeros_like(out).index_add(0, index, x)


def around(u: Array) -> Any:
    return 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])


def stencil(u: Array) -> Any:
    u = np.copy(u)
    for _ in range(SWEEPS):
        u[1:-1, 1:-1] = around(u)
    return u


def stencil_jax(u: Any) -> Any:
    for _ in range(SWEEPS):
        u = u.at[1:-1, 1:-1].set(around(u))
    return u


def matmul(a: Array, b: Array) -> Any:
    return a @ b


def strided_matmul(a: Array, b: Array) -> Any:
    """Multiply what cuBLAS does not take as it lies."""
    return a[:, ::2] @ b[::2, ::2]


@dataclass(frozen=True, slots=True)
class Timed:
    """A program to time.

    `draw(rng, n)` gives arguments, of which those in `tiled` grow with the size. Each
    letter of `results` is for one result: "t" if it grows, "s" if it is a sum. `moved`
    is how many bytes an element moves at least. `gradient` asks for the value, too.
    """

    function: Callable[..., Any]
    draw: Callable[[np.random.Generator, int], Args]
    tiled: tuple[int, ...]
    results: str
    moved: int
    gradient: tuple[int, ...] = ()
    largest: int = 1 << 28
    jax: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__ + (" gradient" if self.gradient else "")

    def block(self, n: int) -> tuple[Args, int]:
        """Draw the block for a size; say how often it is repeated."""
        size = min(n, BLOCK) if self.tiled else n
        drawn = self.draw(np.random.default_rng(), size)
        return tuple(
            x.astype(np.float32) if x.dtype.kind == "f" else x for x in drawn
        ), n // size

    def args(self, block: Args, repeats: int) -> Args:
        return tuple(
            np.tile(x, (repeats, *(1,) * (x.ndim - 1))) if k in self.tiled else x
            for k, x in enumerate(block)
        )

    def known(self, block: Args) -> list[Array]:
        """Return NumPy's results of the block, in float64."""
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in block]
        if not self.gradient:
            return [np.asarray(self.function(*wide))]
        value, grads = rg.value_and_grad(self.function, self.gradient)(*wide)
        return [np.asarray(value), *map(np.asarray, grads)]

    def problem(self, found: list[Array], known: list[Array], repeats: int) -> str:
        """Say what is wrong with results, or nothing."""
        for k, (kind, a, b) in enumerate(zip(self.results, found, known, strict=True)):
            parts = a.reshape(repeats, *b.shape) if kind == "t" else a[None] / repeats
            some = {0, len(parts) // 2, len(parts) - 1}
            for j in sorted(some):
                allowed = 1e-3 * (np.abs(b) + np.mean(np.abs(b)))
                bad = ~(np.abs(parts[j] - b) <= allowed)
                if bad.any():
                    return f"result {k}: {bad.sum()} of {bad.size} are wrong"
        return ""


def vectors(count: int) -> Callable[[np.random.Generator, int], Args]:
    return lambda rng, n: tuple(rng.uniform(0.5, 1.5, n) for _ in range(count))


def table(rng: np.random.Generator, n: int) -> Args:
    return (rng.standard_normal((max(n // COLUMNS, 1), min(n, COLUMNS))),)


def normed(rng: np.random.Generator, n: int) -> Args:
    (a,) = table(rng, n)
    return a, rng.standard_normal(a.shape[1]), rng.standard_normal(a.shape[1])


def indexed(rng: np.random.Generator, n: int) -> Args:
    return np.zeros(BINS), rng.integers(0, BINS, n), rng.uniform(0.5, 1.5, n)


def matrices(rng: np.random.Generator, n: int) -> Args:
    (a,) = table(rng, n)
    return a, rng.standard_normal((a.shape[1], COLUMNS)) / 32


def batch(rng: np.random.Generator, n: int) -> Args:
    return models.mlp_args(rng, max(n // 256, 8))


PROGRAMS = (
    Timed(copy, vectors(1), (0,), "t", 8),
    Timed(fused_map, vectors(2), (0, 1), "t", 12),
    Timed(elementwise.chain, vectors(2), (0, 1), "stt", 16, (0, 1)),
    Timed(softmax, table, (0,), "t", 8),
    Timed(layer_norm, normed, (0,), "t", 8),
    Timed(total, vectors(1), (0,), "s", 4),
    Timed(
        scatter_add,
        indexed,
        (1, 2),
        "s",
        12,
        jax=scatter_add_jax,
        torch=scatter_add_torch,
    ),
    Timed(stencil, table, (), "t", 8 * SWEEPS, largest=1 << 24, jax=stencil_jax),
    Timed(matmul, matrices, (0,), "t", 8, largest=1 << 24),
    Timed(strided_matmul, matrices, (0,), "t", 6, largest=1 << 24),
    Timed(models.mlp, batch, (), "sssss", 4, gradient=(2, 3, 4, 5), largest=1 << 22),
)
