"""Programs on so few elements that calling them is all that takes time."""

from typing import Any

import numpy as np

from ..case import Args, Array, Case


def four_arguments(a: Array, b: Array, c: Array, d: Array) -> Any:
    return np.sum((a * b - c) ** 2 * d)


def two_arguments(x: Array, y: Array) -> Any:
    return np.sum(x * y)


def plain_call(x: Array, y: Array) -> Any:
    """Compute a value alone."""
    return np.sum(x * y + x)


def many_operations(x: Array) -> Any:
    """Apply 24 operations: what a call of each costs."""
    for _ in range(6):
        x = np.tanh(x * 1.5 + 0.1) - x
    return np.sum(x)


def four(rng: np.random.Generator, n: int) -> Args:
    return tuple(rng.standard_normal((4, n)))


def two(rng: np.random.Generator, n: int) -> Args:
    return tuple(rng.standard_normal((2, n)))


def one(rng: np.random.Generator, n: int) -> Args:
    return (rng.uniform(0.1, 0.4, n),)


SIZES, DOUBLE = (4,), ("float64",)
CASES = (
    Case(four_arguments, four, SIZES, DOUBLE, tiny=4),
    Case(two_arguments, two, SIZES, DOUBLE, tiny=4),
    Case(plain_call, two, SIZES, DOUBLE, tiny=4, plain=True),
    Case(many_operations, one, SIZES, DOUBLE, tiny=4),
)
