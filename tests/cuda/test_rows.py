"""Kernels of rows and of columns: how they are shared out, and that nothing is lost."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from benchmarks.groups.reductions import layer_norm, softmax
from retrograde.runtime.devices.emulator import Emulator

pytestmark = pytest.mark.cuda_emulated
EMU = "cuda:emu"
Array = np.ndarray[Any, Any]
Launches = list[tuple[int, int]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Return the list of grids and blocks of what is launched from now on."""
    found: Launches = []
    launch = Emulator.launch

    def noted(self: Any, function: Any, grid: int, block: int, *rest: Any) -> None:
        found.append((grid, block))
        launch(self, function, grid, block, *rest)

    monkeypatch.setattr(Emulator, "launch", noted)
    return found


# Rows with accesses of 16 bytes, where all start at multiples -------------------------


def normed(a: Array, w: Array) -> Any:
    return layer_norm(a, w[0], w[1], w)


def inner_softmax(a: Array, w: Array) -> Any:
    return softmax(a[:, 1:], w[:, 1:])


@pytest.mark.parametrize("f", [softmax, normed], ids=lambda f: f.__name__)
def test_rows_of_any_length(f: Callable[..., Any], rng: np.random.Generator) -> None:
    mine = rg.value_and_grad(rg.compile(f, device=EMU), argnums=(0, 1))
    host = rg.value_and_grad(rg.compile(f), argnums=(0, 1))
    shapes = [(5, 256), (7, 257), (3, 258), (9, 33), (2, 4), (3, 1)]
    if f is softmax:
        shapes.append((2, 12800))  # more than shared memory holds
    for shape in shapes:
        a, w = (rng.normal(size=shape).astype("f4") for _ in range(2))
        (value, found), (wanted, expected) = mine(a, w), host(a, w)
        np.testing.assert_allclose(value, wanted, 1e-4, 1e-4)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, 1e-4, 1e-4 * np.abs(y).max())


def test_rows_that_start_beside_multiples(rng: np.random.Generator) -> None:
    a, w = (rng.normal(size=(6, 257)).astype("f4") for _ in range(2))
    mine = rg.compile(inner_softmax, device=EMU)
    np.testing.assert_allclose(mine(a, w), inner_softmax(a, w), 1e-4, 1e-4)


def test_gradients_of_parts_of_rows_read_nothing_that_is_not_there(
    rng: np.random.Generator,
) -> None:
    a, w = (rng.normal(size=(5, 4)) for _ in range(2))
    both = (0, 1)
    found = rg.grad(rg.compile(inner_softmax, device=EMU), both)(a, w)
    for x, y in zip(found, rg.grad(inner_softmax, both)(a, w), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-14)


# Columns: blocks fold rows into rows of their own -------------------------------------


def of_columns(x: Array) -> Any:
    return x.max(axis=0), x.min(axis=0), (x > 0).any(axis=0), (x < 9).all(axis=0)


@pytest.mark.parametrize("dtype", ["i1", "u8", "f4", "f8"])
def test_columns_of_few_and_many_rows(
    dtype: str, rng: np.random.Generator, launches: Launches
) -> None:
    mine = rg.compile(of_columns, device=EMU)
    for shape in ((1, 5), (2000, 3), (30, 400)):
        x = (20 * rng.normal(size=shape)).astype(dtype)
        if x.dtype.kind == "f":
            x[0, 1], x[-1, 2], x[:, 0] = np.nan, np.inf, -np.inf
        launches.clear()
        for found, expected in zip(mine(x), of_columns(x), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        if shape[0] == 2000:
            assert max(launches)[0] >= 2000 // 4


def largest(x: Array, w: Array) -> Any:
    return np.sum(w[0] * x.max(axis=0)) - np.sum(w[1] * np.abs(x).min(axis=0))


def test_gradient_of_the_largest_of_columns(rng: np.random.Generator) -> None:
    x, w = rng.integers(-9, 9, (600, 4)).astype(float), rng.normal(size=(600, 4))
    found = rg.grad(rg.compile(largest, device=EMU))(x, w)
    np.testing.assert_allclose(found, rg.grad(rg.compile(largest))(x, w), 1e-12, 1e-13)


# What is done in order, row by row: a thread for each ---------------------------------


def in_order(x: Array) -> Any:
    return np.cumprod(x, axis=1), np.cumsum(x, axis=1)


def test_rows_in_order_are_given_to_threads(
    rng: np.random.Generator, launches: Launches
) -> None:
    x = rng.normal(size=(600, 40))
    found = rg.compile(in_order, device=EMU)(x)
    np.testing.assert_allclose(found[0], np.cumprod(x, axis=1), 1e-12)
    np.testing.assert_allclose(found[1], np.cumsum(x, axis=1), 1e-12)
    assert (3, 256) in launches
    assert all(grid < 600 for grid, _ in launches)
