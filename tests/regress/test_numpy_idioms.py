"""Idioms of NumPy programs: values, final arguments and gradients in every mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.random.default_rng(0).standard_normal((3, 4))


def _flat(x: Any) -> Any:
    x.flat[5] += 2
    x.T.flat[3] *= 3
    x.flat[[0, 1]] = x.flat[2]
    x.flat[::4] = 1.0
    return np.array([v * 2 for v in x.flat])


def _flat_whole(x: Any) -> Any:
    y = x.T * 1.0
    y.flat = x.flat[3]
    return y * x.T


def _flat_again(x: Any) -> Any:
    y, z = x * 1.0, x * 1.0
    y.flat = x[0]
    z.flat[2:9] = x[1, :2]
    return y * x + z


def _at(x: Any) -> Any:
    y, k = x[0] * 1.0, np.array([0, 2, 2, 3])
    np.multiply.at(y, [1, 1, 3], x[1, :3])
    np.maximum.at(y, k, x[1])
    np.divide.at(y, k, 2.0 + x[2] ** 2)
    np.subtract.at(y, [0, 0], 0.5)
    return y


def _chosen(x: Any) -> Any:
    k = np.argsort(x[0]) % 3
    totals = np.bincount(k, weights=x[1], minlength=3)
    values, first, inverse = np.unique(k, return_index=True, return_inverse=True)
    picked = np.choose(k, [x[0], x[1] ** 2, 0.5])
    return totals[k] + picked * x[2, first][inverse] + values[inverse]


def _selected_and_cut(x: Any) -> Any:
    y = x[1] * 1.0
    mask = y > 0
    y[mask] += y[~mask][: mask.sum()]
    odd = np.extract(np.arange(12).reshape(3, 4) % 2 == 1, x)
    return y, odd**2


def _methods(x: Any) -> Any:
    x = x + np.power.outer(x[:, 0], [2, 3, 1, 2]) * np.percentile(x, 30, method="lower")
    sums = np.logaddexp.accumulate(x, axis=1) - np.subtract.reduce(x)
    rows = np.add.reduceat(x, [0, 2, 1], axis=0) * np.hypot.reduce(x, keepdims=True)
    return sums * np.maximum(rows, [0.5, 0.1, -1.0, 2.0])


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "ix_": lambda x: x[np.ix_([0, 2], [1, 3])],
    "piecewise": lambda x: np.piecewise(
        x, [x < 0, x > 1], [lambda v: -(v**2), 3.0, np.sin]
    ),
    "piecewise_two": lambda x: np.piecewise(x[0], x[0] > 0, [2.0, lambda t: t * 3]),
    "flat": _flat,
    "flat_whole": _flat_whole,
    "flat_again": _flat_again,
    "running_extrema": lambda x: (
        np.maximum.accumulate(x, axis=1) * np.minimum.accumulate(x)[::-1]
    ),
    "at": _at,
    "methods_of_ufuncs": _methods,
    "chosen": _chosen,
    "selected_and_cut": lambda x: np.concatenate(_selected_and_cut(x)),
    "uneven_gradient": lambda x: np.gradient(x, np.cumsum(x[0] ** 2), axis=1),
    "unravel_index": lambda x: x[np.unravel_index([1, 5], (3, 4))],
    "triu_indices": lambda x: x[np.triu_indices(3, 0, 4)],
    "argsort_of_a_list": lambda x: x[:, np.argsort([3, 1, 2, 0])],
    "ufunc_of_a_list": lambda x: x * np.hypot([3.0, 1.0, 2.0, 1.0], 2)[None],
}


@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_values_and_gradients(
    f: Callable[[Any], Any], rng: np.random.Generator
) -> None:
    a, b = X.copy(), X.copy()
    np.testing.assert_allclose(rg.compile(f)(a), f(b), rtol=1e-14)
    np.testing.assert_array_equal(a, b)
    direction, h = rng.standard_normal(X.shape), 1e-6

    def loss(x: Any) -> Any:
        return np.sum(f(x) ** 2)

    def moved(t: float) -> Any:
        return loss(X + t * direction)

    want = (moved(h) - moved(-h)) / (2 * h)
    for g in (rg.grad(loss), rg.grad(rg.compile(loss))):
        assert np.sum(g(X) * direction) == pytest.approx(want, rel=1e-5)


def test_what_numpy_makes_of_outside_arrays_is_no_constant() -> None:
    table = {"deep": [[[[[np.array([3.0, 1.0, 2.0])]]]]]}

    def f(x: Any) -> Any:
        return x + np.sort(table["deep"][0][0][0][0][0])

    g = rg.compile(f)
    x = np.zeros(3)
    for _ in range(2):
        try:
            got = g(x)
        except rg.RetrogradeError:
            return  # refused: it is not found in the variables
        np.testing.assert_array_equal(got, f(x))
        table["deep"][0][0][0][0][0] = np.array([5.0, 1.0, 2.0])


def squared(b: Any, s: Any) -> Any:
    return b**2, b**3, b**True, s**2, (b * 1.0) ** 2


def test_the_square_of_bools_is_int8() -> None:
    args = np.array([True, False]), np.True_
    known = squared(*args)
    found = (rg.compile(squared)(*args), squared(rg.tensor(args[0]), args[1]))
    for results in found:
        for x, y in zip(results, known, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(np.asarray(x), y)


def _lengths(x: Any) -> Any:
    return np.std(x, axis=1) + np.linalg.norm(x, axis=1) + np.linalg.norm(x)


def test_norm_and_std_of_what_has_no_length_have_derivative_zero() -> None:
    x = np.array([[0.0, 0.0], [0.0, 0.0]])
    y = np.array([[0.0, 0.0], [3.0, 4.0]])
    compiled = rg.compile(lambda x: _lengths(x).sum())
    eager = rg.grad(lambda x: _lengths(x).sum())
    for grad in (eager, rg.grad(compiled)):
        np.testing.assert_array_equal(grad(x), np.zeros((2, 2)))
        np.testing.assert_allclose(grad(y), [[0, 0], [1.3, 2.9]], rtol=1e-14)
    p3 = rg.grad(lambda x: np.linalg.norm(x, 3))
    np.testing.assert_array_equal(p3(np.zeros(2)), np.zeros(2))
    one = rg.hessian(lambda x: np.linalg.norm(x))(np.array([3.0, 4.0]))
    np.testing.assert_allclose(one, [[0.128, -0.096], [-0.096, 0.072]], rtol=1e-12)


def test_a_running_maximum_is_differentiated_as_a_chain_of_maximum() -> None:
    def chain(x: Any) -> Any:
        y = x * 1.0
        for i in range(1, 5):
            y[i] = np.maximum(y[i - 1], y[i])
        return np.sum(y**2)

    x = np.array([1.0, 1.0, 0.0, 2.0, 2.0])
    got = rg.grad(lambda x: np.sum(np.maximum.accumulate(x) ** 2))(x)
    np.testing.assert_array_equal(got, rg.grad(rg.compile(chain))(x))
