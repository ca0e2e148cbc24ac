"""Compiled sums, means, variances, norms and products are as accurate as NumPy's."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

SEEDS = range(50)
SIZE = 2003


def arguments(kind: str, size: int, dtype: Any, seed: int) -> tuple[Any, Any]:
    """Draw numbers that are alike, of many magnitudes, or cancel each other."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0.5, 1.5, (2, size))
    if kind == "magnitudes":
        x *= 10.0 ** rng.uniform(-6, 6, size)
    if kind == "cancelling":
        x *= rng.choice([-1e4, 1e4], size)
        half = size // 2
        x[half : 2 * half] = -x[:half]
        x = rng.permutation(x) + rng.uniform(-1, 1, size)
    return x.astype(dtype), y.astype(dtype)


def looped(x, y):
    total = x[0] * 0
    for i in range(x.shape[0]):
        total = total + x[i] * y[i]
    return total


def wide(x: Any) -> Any:
    return x.astype(np.longdouble)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x, y: np.sum(x), lambda x, y: math.fsum(x)),
    "mean": (lambda x, y: np.mean(x), lambda x, y: math.fsum(x) / len(x)),
    "var": (lambda x, y: np.var(x), lambda x, y: np.var(wide(x))),
    "norm": (
        lambda x, y: np.linalg.norm(x),
        lambda x, y: np.sqrt(np.sum(wide(x) ** 2)),
    ),
    "dot": (lambda x, y: np.sum(x * y), lambda x, y: np.sum(wide(x) * y)),
    "loop": (looped, lambda x, y: np.sum(wide(x) * y)),
}
COMPILED = {name: rg.compile(f) for name, (f, _) in CASES.items()}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["alike", "magnitudes", "cancelling"])
@pytest.mark.parametrize("name", CASES)
def test_reductions_are_as_accurate_as_numpy(name: str, kind: str, dtype: Any) -> None:
    function, exact = CASES[name]
    ours, numpys, scale = [], [], 0.0
    for seed in SEEDS:
        x, y = arguments(kind, SIZE, dtype, seed)
        true = float(exact(x, y))
        ours.append(float(COMPILED[name](x, y)) - true)
        numpys.append(float(function(x, y)) - true)
        scale = max(scale, abs(true))
    rounding = float(np.finfo(dtype).eps) * scale
    assert np.linalg.norm(ours) <= 1.3 * np.linalg.norm(numpys) + rounding


def test_long_sums_do_not_drift() -> None:
    x = np.random.default_rng(0).uniform(0, 1, 3_000_001).astype(np.float32)
    y = np.empty_like(x)
    error = abs(float(COMPILED["sum"](x, y)) - math.fsum(x))
    assert error <= abs(float(np.sum(x)) - math.fsum(x)) + np.spacing(np.sum(x))
