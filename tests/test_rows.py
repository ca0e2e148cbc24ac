"""Softmax and its like, as people write them: every row is read from memory once.

A kernel has one loop over the rows, and no temporary array of full size: its scratch
memory is a few rows. Values are NumPy's, gradients those of eager mode.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

ROWS, COLUMNS = 40, 33
TOLERANCE = {"f8": 1e-11, "f4": 2e-4}


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def softmax_by_new_axis(x):
    e = np.exp(x - x.max(axis=1)[:, None])
    return e / e.sum(axis=1)[:, None]


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def log_sum_exp(x):
    m = np.max(x, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(x - m), axis=-1)) + m[:, 0]


def layer_norm(x, g, b):
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.var(x, axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * g + b


def standardised(x):
    return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)


def moments(x):
    return np.mean(x, axis=1), np.var(x, axis=1), np.std(x, axis=1), x.max(axis=1)


def in_place(x):
    x -= x.max(axis=1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=1, keepdims=True)


def cross_entropy(x, y):
    z = x - np.max(x, axis=-1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=-1)) - z[np.arange(len(y)), y])


def cross_entropy_of_distributions(x, t):
    return -np.sum(t * log_softmax(x)) / x.shape[0]


def softmax_loss(x, w):
    return np.sum(softmax(x) * w)


def log_softmax_loss(x, w):
    return np.sum(log_softmax(x) * w)


def layer_norm_loss(x, g, b, w):
    return np.sum(layer_norm(x, g, b) * w)


def arguments(f: Callable[..., Any], dtype: str = "f8", n: int = ROWS) -> list[Any]:
    """Return arrays for the parameters of a program, by their names."""
    rng = np.random.default_rng(3)
    made = {
        "x": rng.normal(size=(n, COLUMNS)),
        "t": rng.uniform(size=(n, COLUMNS)),
        "w": rng.normal(size=(n, COLUMNS)),
        "g": rng.normal(size=COLUMNS),
        "b": rng.normal(size=COLUMNS),
    }
    columns = rng.integers(-COLUMNS, COLUMNS, n)
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    return [columns if k == "y" else made[k].astype(dtype) for k in names]


def outer_loops(source: str) -> int:
    (entry,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "entry"
    )
    return sum(isinstance(node, ast.For) for node in entry.body)


def scratch(compiled: Any, args: list[Any]) -> int:
    """Return the bytes of memory besides arguments and results."""
    spec = compiled.specialisation(*args)
    return int(spec.program.kernel.scratch(spec.values(args), []))


FORWARD = [
    softmax,
    softmax_by_new_axis,
    log_softmax,
    log_sum_exp,
    layer_norm,
    standardised,
    moments,
    in_place,
    cross_entropy,
]
LOSSES = [
    cross_entropy,
    cross_entropy_of_distributions,
    softmax_loss,
    log_softmax_loss,
    layer_norm_loss,
]


@pytest.mark.parametrize("f", FORWARD, ids=lambda f: f.__name__)
def test_values_take_one_pass_over_the_rows(f):
    args, copies = arguments(f), arguments(f)
    compiled = rg.compile(f)
    want, got = f(*args), compiled(*copies)
    if want is not None:
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
    for a, b in zip(copies, args, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
    assert outer_loops(compiled.source(*args)) == 1
    assert scratch(compiled, args) <= 4 * 8 * (COLUMNS + 8)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("f", LOSSES, ids=lambda f: f.__name__)
def test_value_and_gradient_take_one_pass_over_the_rows(f, dtype):
    args = arguments(f, dtype)
    wanted = tuple(k for k, a in enumerate(args) if a.dtype.kind == "f")
    value, grads = rg.value_and_grad(f, argnums=wanted)(*args)
    both = rg.value_and_grad(rg.compile(f), argnums=wanted)
    got, found = both(*args)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(got, value, rtol=tolerance)
    for a, b in zip(found, grads, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    again = both(*args)[1]
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    assert outer_loops(both.source(*args)) == 1
    assert scratch(both, args) <= 6 * 8 * (COLUMNS + 8)


NAN, INF = float("nan"), float("inf")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "f", [softmax, log_softmax, log_sum_exp, standardised, moments]
)
def test_special_values_are_numpys(f):
    x = np.random.default_rng(1).normal(size=(9, 35))
    x[1, 3], x[2, 34], x[3, 0], x[4], x[5] = NAN, INF, -INF, -INF, INF
    x[6, [0, 20]], x[7], x[8] = INF, 1e308, 5e-324
    np.testing.assert_allclose(rg.compile(f)(x), f(x), rtol=1e-11, equal_nan=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (5, 1), (1, 1), (2, 0), (0, 0)])
def test_small_and_empty_rows(shape):
    x = np.random.default_rng(1).normal(size=shape)
    w = np.ones(shape)
    compiled, both = rg.compile(softmax), rg.value_and_grad(rg.compile(softmax_loss))
    if shape[1] == 0:
        with pytest.raises(ValueError, match=r"no element|zero-size"):
            compiled(x)
        return
    np.testing.assert_allclose(compiled(x), softmax(x), rtol=1e-12)
    value, grad = both(x, w)
    np.testing.assert_allclose(value, shape[0], rtol=1e-12)
    np.testing.assert_allclose(grad, np.zeros(shape), atol=1e-12)


def test_gradient_of_tied_maxima_is_shared_among_them():
    def loss(x):
        return np.sum(np.max(x * 2.0, axis=1) ** 2 + np.sum(x, axis=1))

    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [4.0, 0.0, 1.0]])
    grad = rg.grad(rg.compile(loss))(x)
    m = np.max(2 * x, axis=1, keepdims=True)
    share = (2 * x == m) / np.sum(2 * x == m, axis=1, keepdims=True)
    np.testing.assert_allclose(grad, 1 + 2 * m * share * 2)


def test_index_out_of_range_changes_nothing():
    def update(x, y):
        x -= x.max(axis=1, keepdims=True)
        return np.sum(x[np.arange(len(y)), y])

    compiled = rg.compile(update)
    x = np.random.default_rng(0).normal(size=(6, 4))
    before = x.copy()
    with pytest.raises(IndexError):
        compiled(x, np.array([0, 1, 2, 3, 4, 0]))
    assert np.array_equal(x, before)
    y = np.array([0, 1, 2, 3, -4, 0])
    np.testing.assert_allclose(compiled(x, y), update(before, y))
    np.testing.assert_allclose(x, before)


def attention(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) / 2.0
    return softmax(s) @ v


def test_rows_of_stacks():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(3, 5, 4)) for _ in range(3))

    def loss(q, k, v):
        return np.sum(np.tanh(attention(q, k, v)))

    both = rg.value_and_grad(rg.compile(loss), argnums=(0, 1, 2))
    value, grads = both(q, k, v)
    want, eager = rg.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)
    np.testing.assert_allclose(value, want)
    for a, b in zip(grads, eager, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
