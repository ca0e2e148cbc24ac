"""Programs whose compiled kernels were wrong once: rows, chunks, fast calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen import parallel
from retrograde.ir.errors import UnsupportedError


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make chunks of arrays of a few thousand elements, for three threads."""
    monkeypatch.setattr(parallel, "GRAIN", 512)
    before = rg.get_num_threads()
    rg.set_num_threads(3)
    yield
    rg.set_num_threads(before)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_twice(x: Any) -> Any:
    return softmax(softmax(x))


def masked(x: Any) -> Any:
    m = x > -1.0
    e = np.exp(np.where(m, x, -1e9) - x.max(-1, keepdims=True)) * m
    return e / (e.sum(-1, keepdims=True) + 1e-9)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("f", [softmax, softmax_twice, masked])
@pytest.mark.parametrize("shape", [(130, 70), (3, 5000)])
def test_rows_of_chunks(f: Callable[[Any], Any], shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    compiled = rg.compile(f)
    np.testing.assert_allclose(compiled(x), f(x), rtol=1e-12)
    g = np.random.default_rng(1).normal(size=shape)
    got, want = (rg.vjp(h, x)[1](g)[0] for h in (compiled, f))
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_subclasses_are_refused_after_arrays_too() -> None:
    @rg.compile
    def square(x: Any) -> Any:
        return x * x

    x = np.ones((2, 2))
    for _ in range(4):
        square(x)
    for y in (x.view(type("Sub", (np.ndarray,), {})), np.ma.masked_less(x, 2)):
        with pytest.raises(UnsupportedError, match="as an argument"):
            square(y)


def test_exchanged_defaults() -> None:
    def scaled(x: Any, k: float = 2.0, *, s: float = 1.0) -> Any:
        return x * k + s

    f, x = rg.compile(scaled), np.ones(3)
    for _ in range(4):
        f(x)
    scaled.__defaults__ = (5.0,)
    assert f(x)[0] == scaled(x)[0] == 6.0
    scaled.__kwdefaults__["s"] = 3.0
    assert f(x)[0] == scaled(x)[0] == 8.0


def test_rounded_integers() -> None:
    def whole(x: Any) -> Any:
        return np.floor(x), np.ceil(x), np.trunc(x)

    f = rg.compile(whole)
    for dtype in (np.int8, np.uint16, np.int64, np.bool_, np.float64):
        x = np.arange(5).astype(dtype)
        for got, want in zip(f(x), whole(x), strict=True):
            np.testing.assert_array_equal(got, want, strict=True)


def test_captured_variables_that_are_only_looked_at() -> None:
    scale: Any = 1.0
    grid: Any = np.ones(4)

    def plain(x: Any) -> Any:
        return x + 1 if scale is None else x - 1

    def shaped(x: Any) -> Any:
        return np.zeros(grid.shape, grid.dtype) + x.sum()

    f, g, x = rg.compile(plain), rg.compile(shaped), np.arange(3.0)
    for new in (1.0, None, 2, np.ones(2), None, 2.0):
        scale = new
        for _ in range(4):  # kept plans, too
            np.testing.assert_array_equal(f(x), plain(x))
    for shape, dtype in (((4,), float), ((1,), float), ((2, 5), float), ((5,), "f4")):
        grid = np.ones(shape, dtype)
        for _ in range(4):
            np.testing.assert_array_equal(g(x), shaped(x), strict=True)


def test_python_ints_beyond_the_range_of_narrow_integers() -> None:
    def compared(x: Any, k: int) -> Any:
        return x > -3, x < 300, x == 2**31, 200 <= x, x != k

    f = rg.compile(compared)
    for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64):
        x = np.arange(4).astype(dtype)
        for k in (-(2**33), 2, 258):
            for got, want in zip(f(x, k), compared(x, k), strict=True):
                np.testing.assert_array_equal(got, want)


def test_rows_that_are_read_before_they_are_computed() -> None:
    def turned(x: Any, y: Any) -> Any:
        z = x + y
        w = z[::-1] * 0.5 + z.min(-1, keepdims=True)
        z[1:] += w[:-1] * 0.5
        return z

    x, y = np.random.default_rng(0).normal(size=(2, 6, 5))
    np.testing.assert_allclose(rg.compile(turned)(x, y), turned(x, y), rtol=1e-14)


def add_large(x: Any) -> Any:
    return x + 300


def add_negative(x: Any) -> Any:
    return np.maximum(x, -1)


def shift(x: Any) -> Any:
    x <<= -1
    return x


def assign(x: Any) -> Any:
    x[0] = 256
    return x


def assign_far(x: Any) -> Any:
    x[1:] -= 1 << 40
    return x


def filled(x: Any) -> Any:
    return np.full(x.shape, -1, x.dtype)


@pytest.mark.parametrize(
    "f", [filled, add_large, add_negative, shift, assign, assign_far]
)
def test_python_ints_that_do_not_fit(f: Callable[[Any], Any]) -> None:
    with pytest.raises(OverflowError) as known:
        f(np.array([1, 2, 3], np.uint8))
    x = np.array([1, 2, 3], np.uint8)
    with pytest.raises(OverflowError) as found:
        rg.compile(f)(x)
    assert str(found.value) == str(known.value)
    assert x.tolist() == [1, 2, 3]


def test_python_ints_that_fit() -> None:
    x = np.array([1, 2, 3], np.uint8)
    assert rg.compile(lambda x: x + 254)(x).tolist() == [255, 0, 1]
    assert rg.compile(lambda x: x + 0.5)(x).tolist() == [1.5, 2.5, 3.5]
    assert rg.compile(lambda x: np.array([True]) + 300)(x).tolist() == [301]
