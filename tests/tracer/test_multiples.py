"""A reshape that takes axes apart by sizes of other arrays compiles once."""

from __future__ import annotations

from typing import Any

import numpy as np

import retrograde as rg


def max_pool(a: Any, w: Any) -> Any:
    m, n = w.shape
    return np.sum(w * np.max(np.reshape(a, (m, 2, n, 2)), axis=(1, 3)))


def regrouped(a: Any, b: Any) -> Any:
    return np.reshape(a, b.shape) * b


def test_sizes_stay_symbols() -> None:
    rng = np.random.default_rng(0)
    f, g = rg.compile(max_pool), rg.compile(regrouped)
    for m, n in ((5, 7), (6, 8), (9, 4), (6, 6)):
        a, w = rng.normal(size=(2 * m, 2 * n)), rng.normal(size=(m, n))
        np.testing.assert_allclose(f(a, w), max_pool(a, w), rtol=1e-13)
        a, b = rng.normal(size=(3 * m, n)), rng.normal(size=(m, 3 * n))
        np.testing.assert_array_equal(g(a, b), regrouped(a, b))
    assert f.cache_info().compiled + f.cache_info().loaded == 1
    assert g.cache_info().compiled + g.cache_info().loaded == 1
    for rows, columns in ((4, 9), (6, 6), (12, 3), (1, 36)):
        a, w = rng.normal(size=(rows, columns)), rng.normal(size=(3, 3))
        assert f(a, w) == max_pool(a, w) or np.isclose(f(a, w), max_pool(a, w))
        b = rng.normal(size=(columns, rows))
        np.testing.assert_array_equal(g(a, b), regrouped(a, b))
