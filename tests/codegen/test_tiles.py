"""Loops whose accesses disagree on what lies side by side go by tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retrograde as rg


def plus_transposed(x: Any, y: Any) -> Any:
    return x + y.T


def total(x: Any, y: Any) -> Any:
    return np.sum(np.tanh(x) * y.T)


def three_axes(x: Any, y: Any) -> Any:
    a = x[:, None, :] * np.ones((3, 1))
    return a * np.transpose(y[:, :, None] + np.zeros(3), (1, 2, 0))


@pytest.mark.parametrize("program", [plus_transposed, total, three_axes])
def test_values_and_gradients(program: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return np.sum(np.sin(program(x, y)))

    kernel, both = rg.compile(program), rg.value_and_grad(rg.compile(f), argnums=(0, 1))
    rng = np.random.default_rng(0)
    for n, m in ((2, 3), (15, 17), (16, 32), (33, 100), (0, 4), (1, 20), (20, 1)):
        x, y = rng.normal(size=(n, m)), rng.normal(size=(m, n))
        np.testing.assert_allclose(kernel(x, y), program(x, y), rtol=1e-12, atol=1e-13)
        if min(n, m) > 1:
            want = rg.value_and_grad(f, argnums=(0, 1))(x, y)
            got = both(x, y)
            for a, b in zip([got[0], *got[1]], [want[0], *want[1]], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def tiles(kernel: Any, *args: Any) -> bool:
    return "+ 31)//32" in kernel.sections(*args)["nests"]


def test_what_goes_by_tiles() -> None:
    x = np.random.default_rng(0).normal(size=(20, 30))
    assert tiles(rg.compile(plus_transposed), x, x.T.copy())
    assert not tiles(rg.compile(lambda a, b: a + b[0]), x, x)
    assert not tiles(rg.compile(lambda a, b: a[:, :1] + b[:1]), x, x)


def test_an_order_that_matters_is_kept() -> None:
    def shifted(a: Any) -> Any:
        a[1:] += a[:-1].T[: a.shape[1]].T
        return np.sum(a, axis=0)

    a = np.random.default_rng(0).normal(size=(40, 40))
    b = a.copy()
    np.testing.assert_allclose(rg.compile(shifted)(a), shifted(b), rtol=1e-12)
    np.testing.assert_array_equal(a, b)


def test_a_matrix_plus_its_own_transpose_in_place() -> None:
    def symmetric(a: Any) -> Any:
        a += a.T
        return None

    a = np.random.default_rng(0).normal(size=(40, 40))
    b = a.copy()
    rg.compile(symmetric)(a)
    symmetric(b)
    np.testing.assert_array_equal(a, b)
