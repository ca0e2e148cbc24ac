"""Products of vectors are sums, fused with what else passes over the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retrograde as rg


def dot(x: Any, y: Any) -> Any:
    return np.dot(x, y)


def residual(x: Any, y: Any) -> Any:
    r = np.sin(x) - y
    return r @ r


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("program", [dot, residual])
def test_one_pass_for_value_and_gradient(program: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    both = rg.value_and_grad(rg.compile(program), argnums=(0, 1))
    for n in (0, 1, 2, 7, 1000):
        x, y = rng.normal(size=(2, n)).astype(dtype)
        value, grads = both(x, y)
        want, expected = rg.value_and_grad(program, argnums=(0, 1))(x, y)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        assert value.dtype == dtype
        np.testing.assert_allclose(value, want, rtol=tolerance, atol=tolerance)
        for a, b in zip(grads, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance)
            assert not np.shares_memory(a, x)
            assert not np.shares_memory(a, y)
    nests = both.sections(x, y)["nests"]
    assert nests.count("for ") == 1
    assert "move" not in nests


def test_integers_stay_products() -> None:
    x = np.arange(5, dtype=np.int32)
    value = rg.compile(dot)(x, x)
    assert (value, value.dtype) == (30, np.dtype(np.int32))


def test_infinite_and_absent_numbers() -> None:
    x = np.array([np.inf, 1.0])
    assert rg.compile(dot)(x, x) == np.inf
    assert np.isnan(rg.compile(dot)(x, np.array([0.0, 1.0])))


def test_a_sum_waits_for_a_later_pass() -> None:
    def loss(x: Any, w: Any) -> Any:
        return np.sum(np.sin(x @ w)) + np.sum(w * w)

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(30, 20)), rng.normal(size=20)
    both = rg.value_and_grad(rg.compile(loss), argnums=(0, 1))
    value, (dx, dw) = both(x, w)
    assert value == pytest.approx(loss(x, w), rel=1e-13)
    np.testing.assert_allclose(dx, np.outer(np.cos(x @ w), w), rtol=1e-12)
    np.testing.assert_allclose(dw, np.cos(x @ w) @ x + 2 * w, rtol=1e-11)
    # One pass over x @ w, one for the outer product (two loops), one over w.
    assert both.sections(x, w)["nests"].count("for ") == 4
