"""One compilation serves every size: 0, 1, and a hundred batch sizes.

Large arrays, which several threads share, have one of their own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

SIZES = (7, 100, 64, 5, *range(8, 100), 256, 500, 900, 1025)
LARGE = (10**5, 10**5 + 1, 2 * 10**5)
SMALL = (0, 1, 2)


def elementwise(x, y):
    return np.exp(-x * x) * y + np.tanh(x) / (1 + y * y)


def reductions(x, y):
    z = x - np.sum(x) / (1.0 + np.sum(y * y))
    return np.sum(z * z) + np.sum(np.log1p(np.exp(y)))


def mlp(x, w):
    h = np.tanh(x @ w)
    return np.sum((h @ w.T - x) ** 2)


def stencil(u, k):
    for _ in range(3):
        u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u * u)


def recurrence(u, k):
    for i in range(1, u.shape[0]):
        u[i] += k * u[i - 1]
    return np.sum(u)


def softmax(x, w):
    z = x - np.max(x, axis=1, keepdims=True)
    e = np.exp(z)
    return np.sum(e / np.sum(e, axis=1, keepdims=True) * w)


def vectors(n: int) -> tuple[Any, Any]:
    x = np.random.default_rng(n).normal(size=(2, n))
    return x[0], x[1]


def batch(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 6)), rng.normal(size=(6, 4))


def field(n: int) -> tuple[Any, Any]:
    return np.random.default_rng(n).normal(size=n), 0.1


def rows(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 5)), rng.normal(size=(n, 5))


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, Any]]]] = {
    "elementwise": (elementwise, vectors),
    "reductions": (reductions, vectors),
    "mlp": (mlp, batch),
    "softmax": (softmax, rows),
    "stencil": (stencil, field),
    "recurrence": (recurrence, field),
}


def check(f: Callable[..., Any], compiled: Any, args: tuple[Any, ...]) -> None:
    given = [np.copy(a) if isinstance(a, np.ndarray) else a for a in args]
    same = [np.copy(a) if isinstance(a, np.ndarray) else a for a in args]
    expect, got = f(*given), compiled(*same)
    np.testing.assert_allclose(got, expect, rtol=1e-10, atol=1e-12)
    for a, b in zip(same, given, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hundred_sizes_compile_once(name: str) -> None:
    f, make = PROGRAMS[name]
    compiled = rg.compile(f)
    assert len(SIZES) >= 100
    for n in SIZES:
        check(f, compiled, make(n))
    info = compiled.cache_info()
    assert info.specialisations == info.misses == 1
    assert info.compiled + info.loaded == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_a_hundred_sizes_compile_once(name: str) -> None:
    f, make = PROGRAMS[name]
    total = (lambda x, y: np.sum(f(x, y))) if name == "elementwise" else f
    compiled = rg.compile(rg.value_and_grad(total))
    for k, n in enumerate(SIZES):
        args = make(n)
        value, gradient = compiled(*args)
        copied = np.copy(args[0])
        np.testing.assert_allclose(value, total(copied, args[1]), rtol=1e-9)
        assert gradient.shape == args[0].shape
        if k % 20 == 0:
            direction = np.random.default_rng(k).normal(size=gradient.shape)
            ends = [total(args[0] + h * direction, args[1]) for h in (1e-6, -1e-6)]
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-4)
    info = compiled.cache_info()
    assert info.specialisations == info.misses == 1
    assert info.compiled + info.loaded == 1


@pytest.mark.parametrize("name", ["elementwise", "softmax"])
def test_large_arrays_have_one_kernel_more(name: str) -> None:
    f, make = PROGRAMS[name]
    compiled = rg.compile(f)
    for n in (7, *LARGE, 8, *LARGE, 100):
        check(f, compiled, make(n))
    info = compiled.cache_info()
    assert info.specialisations == info.misses == 1
    assert info.compiled + info.loaded == 2


@pytest.mark.parametrize("first", [50, 0, 1])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "softmax"])
def test_sizes_0_and_1_are_right_whatever_came_first(name: str, first: int) -> None:
    f, make = PROGRAMS[name]
    compiled = rg.compile(f)
    for n in (first, *SMALL, 50, 3):
        check(f, compiled, make(n))
    assert compiled.cache_info().specialisations <= 5  # sizes at which parts are 1


@pytest.mark.parametrize("first", [50, 0, 1])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "softmax"])
def test_gradients_of_sizes_0_and_1(name: str, first: int) -> None:
    f, make = PROGRAMS[name]
    total = (lambda x, y: np.sum(f(x, y))) if name == "elementwise" else f
    compiled = rg.compile(rg.grad(total))
    for n in (first, *SMALL, 50):
        x, y = make(n)
        gradient = compiled(x, y)
        assert gradient.shape == x.shape
        for k in range(min(x.size, 3)):
            step = np.zeros(x.size)
            step[k] = 1e-6
            step = step.reshape(x.shape)
            slope = (total(x + step, y) - total(x - step, y)) / 2e-6
            np.testing.assert_allclose(gradient.ravel()[k], slope, rtol=1e-5, atol=1e-7)


def added(x, y):
    return np.exp(x) + 2.0 * y


BROADCASTS = [
    ((4, 3), (4, 3)),
    ((4, 3), (1, 3)),
    ((1, 3), (4, 3)),
    ((4, 3), (4, 1)),
    ((1, 3), (1, 3)),
    ((4, 1), (1, 3)),
    ((1, 1), (4, 3)),
    ((0, 3), (1, 3)),
    ((1, 3), (0, 3)),
    ((7, 5), (1, 5)),
    ((7, 5), (7, 5)),
]


@pytest.mark.parametrize("turn", range(0, len(BROADCASTS), 2))
def test_broadcasting_of_size_1_is_guarded(turn: int) -> None:
    f = rg.compile(added)
    g = rg.compile(rg.grad(lambda x, y: np.sum(added(x, y) ** 2), argnums=(0, 1)))
    rng = np.random.default_rng(turn)
    for a, b in [*BROADCASTS[turn:], *BROADCASTS[:turn]]:
        x, y = rng.normal(size=a), rng.normal(size=b)
        np.testing.assert_allclose(f(x, y), added(x, y), rtol=1e-12)
        dx, dy = g(x, y)
        outer = 2 * added(x, y)
        for grad, like, slope in ((dx, x, np.exp(x)), (dy, y, 2.0)):
            full = np.broadcast_to(outer * slope, outer.shape)
            axes = tuple(k for k in range(2) if like.shape[k] != full.shape[k])
            expect = np.sum(full, axis=axes, keepdims=True)
            np.testing.assert_allclose(grad, expect, rtol=1e-12)


def test_broadcasting_that_numpy_refuses_is_refused() -> None:
    f = rg.compile(added)
    f(np.ones((4, 3)), np.ones((1, 3)))
    f(np.ones((4, 3)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        f(np.ones((4, 3)), np.ones((2, 3)))
