"""Empty and 0-d arguments of functions of the front end, and 1 / 0 of integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

SHAPES = [(), (0,), (0, 3), (2, 0, 3), (3,), (1, 2)]
CASES: list[Callable[[Any], Any]] = [
    lambda x: np.roll(x, 1),
    lambda x: np.roll(x, 2, axis=-1) if x.ndim else x + 0,
    lambda x: np.median(x),
    lambda x: np.median(x, axis=-1, keepdims=True) if x.ndim else x + 0,
    lambda x: np.flip(x),
    lambda x: np.nan_to_num(x),
    lambda x: np.repeat(x, 2, axis=0),
    lambda x: np.take(x, [0, -1], axis=-1) if x.size else x + 0,
]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_results_are_those_of_numpy(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")
    f = CASES[number]
    compiled = rg.compile(f)
    for shape in SHAPES:
        for dtype in (np.float32, np.int32):
            x = np.ones(shape, dtype)
            got, want = compiled(x), f(x)
            np.testing.assert_array_equal(got, want)
            assert type(got) is type(want)
            assert got.dtype == want.dtype
            assert (got is x) == (want is x)


def products(x: Any, y: Any) -> Any:
    return np.sum(np.outer(x, y).reshape(-1) ** 2) + np.sum(x.T @ x)


def test_an_empty_array_reshaped_beside_others() -> None:
    f = rg.value_and_grad(rg.compile(products), argnums=(0, 1))
    for n in (1, 3):
        value, (dx, dy) = f(np.ones((1, 0)), np.ones((n, 0)))
        assert value == 0.0
        assert (dx.shape, dy.shape) == ((1, 0), (n, 0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "u8"])
def test_one_divided_by_zero_is_what_numpy_says(dtype: str) -> None:
    x = np.array([0, 1, 2, 0, 5], dtype)
    np.testing.assert_array_equal(rg.compile(reciprocal)(x), np.reciprocal(x))


def reciprocal(x: Any) -> Any:
    return np.reciprocal(x)
