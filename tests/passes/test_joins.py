"""Joined arrays are computed where they lie, without temporaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

N = 40  # elements of an argument: 320 bytes


def side_by_side(x: Any, y: Any) -> Any:
    return np.concatenate([np.sin(x), np.cos(y), x * y])


def one_above_the_other(x: Any, y: Any) -> Any:
    return np.stack([np.sin(x), np.cos(y), x * y])


def in_columns(x: Any, y: Any) -> Any:
    return np.stack([np.sin(x), np.cos(y), x * y], axis=1)


def with_margins(x: Any, y: Any) -> Any:
    return np.pad(np.sin(x) * y, (2, 3))


def of_views(x: Any, y: Any) -> Any:
    return np.hstack([x[::-1], y[1:], x[:0], y])


def of_dtypes(x: Any, y: Any) -> Any:
    return np.concatenate([x > 0, np.exp(y)])


def products(x: Any, y: Any) -> Any:
    return np.concatenate([np.outer(x, y), np.outer(x, y) @ np.outer(y, x)], axis=1)


def in_a_loop(x: Any, y: Any) -> Any:
    for _ in range(3):
        y = np.concatenate([np.sin(y[:20]), x[:20] * y[20:]])
    return y


@pytest.mark.parametrize(
    ("program", "temporaries"),
    [
        (side_by_side, 0),
        (one_above_the_other, 0),
        (in_columns, 0),
        (with_margins, 0),
        (of_views, 0),
        (of_dtypes, 0),
        (products, 2 * N),  # the matrices that are multiplied
        (in_a_loop, None),
    ],
)
def test_values_temporaries_and_gradients(
    program: Callable[..., Any], temporaries: int | None
) -> None:
    rng = np.random.default_rng(0)
    kernel = rg.compile(program)

    def f(x: Any, y: Any) -> Any:
        return np.sum(np.sin(program(x, y)))

    for _ in range(2):
        x, y = rng.normal(size=(2, N))
        np.testing.assert_allclose(kernel(x, y), program(x, y), rtol=1e-12, atol=1e-12)
        if temporaries is not None:
            assert kernel.scratch_bytes(x, y) <= 8 * N * temporaries
        want = rg.value_and_grad(f, argnums=(0, 1))(x, y)
        got = rg.value_and_grad(rg.compile(f), argnums=(0, 1))(x, y)
        for a, b in zip([got[0], *got[1]], [want[0], *want[1]], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_the_adjoint_of_a_join_is_a_view() -> None:
    def f(x: Any, y: Any, w: Any) -> Any:
        return np.sum(np.concatenate([x, y]) * w)

    x, y = np.random.default_rng(0).normal(size=(2, N))
    g = rg.value_and_grad(rg.compile(f), argnums=(0, 1))
    _, (dx, dy) = g(x, y, np.arange(2.0 * N))
    np.testing.assert_array_equal(np.concatenate([dx, dy]), np.arange(2.0 * N))
