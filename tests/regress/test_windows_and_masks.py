"""Sliding windows, and masks beside integers, in every mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import retrograde as rg

Z = np.random.default_rng(1).standard_normal((2, 3, 4))
X = Z[0]


def _written_later(x: Any) -> Any:
    w = sliding_window_view(x[0], 2)
    x[0] *= 3
    return w * 1.0


def _written_base(x: Any) -> Any:
    w = sliding_window_view(x.T[1:], 2, axis=0)
    x *= 3
    return w * 1.0


def _masked_writes(x: Any) -> Any:
    x[x[:, 0] > 0, 2] = 5.0
    x[1, x[1] > 0] *= 3
    x[x[:, 1] < 0, 1] += 2
    return x


PROGRAMS: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda x: x[x[:, 0] > 0, 2], X),
    (lambda x: x[2, x[0] > 0], X),
    (lambda z: z[z[:, 0, 0] > -9, :, 1], Z),
    (lambda z: z[:, z[0, :, 0] > 0, 1], Z),
    (lambda z: z[z[:, :, 0] > 0, 1], Z),
    (_masked_writes, X),
    (lambda x: sliding_window_view(x[0], 3) @ np.array([1.0, 2.0, 3.0]), X),
    (lambda x: sliding_window_view(x, (2, 2)).max(axis=(2, 3)), X),
    (lambda z: sliding_window_view(z, (2, 3), axis=(0, 2)), Z),
    (_written_later, X),
    (_written_base, X),
]


@pytest.mark.parametrize(("f", "x"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_values_writes_and_gradients(
    f: Callable[[Any], Any], x: Any, rng: np.random.Generator
) -> None:
    a, b = x.copy(), x.copy()
    np.testing.assert_allclose(rg.compile(f)(a), f(b), rtol=1e-14)
    np.testing.assert_array_equal(a, b)
    direction, h = rng.standard_normal(x.shape), 1e-6

    def loss(x: Any) -> Any:
        return np.sum(f(x) ** 2)

    want = (loss(x + h * direction) - loss(x - h * direction)) / (2 * h)
    for g in (rg.grad(loss), rg.grad(rg.compile(loss))):
        assert np.sum(g(x) * direction) == pytest.approx(want, rel=1e-5)


def test_windows_are_read_only_views() -> None:
    def windows(x: Any) -> Any:
        return sliding_window_view(x, 2, axis=0)

    x = X.copy()
    for view in (rg.compile(windows)(x), windows(rg.from_numpy(x))):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1.0
    assert np.shares_memory(rg.compile(windows)(x), x)


def test_captured_subclasses_are_refused() -> None:
    m = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(rg.RetrogradeError, match="a MaskedArray captured"):
        rg.compile(lambda x: x * m)(np.ones(2))
    with pytest.raises(rg.RetrogradeError, match="a MaskedArray as an argument"):
        rg.grad(lambda x: (x * 2).sum())(m)


def test_views_of_what_a_mask_selects_are_returned() -> None:
    def f(x: Any) -> Any:
        t = x[x > 0]
        return t, t.reshape(-1), t[None], t.ravel(), t.reshape(t.shape)

    g = rg.compile(f)
    for x in (np.array([1.0, -1.0, 2.0]), np.array([-1.0, 3.0]), -np.ones(2)):
        want, got = f(x), g(x)
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(b, a)
            assert np.shares_memory(b, got[0]) == np.shares_memory(a, want[0])


def test_a_mask_that_selects_everything() -> None:
    def f(x: Any, y: Any) -> Any:
        x[x > 0] += y  # `y` has as many elements as `x`
        return x, x * y

    g = rg.compile(f)
    for y in (np.ones(3), np.array([2.0, 3.0, 4.0])):
        x = np.array([1.0, 2.0, 3.0])
        for a, b in zip(g(x.copy(), y), f(x.copy(), y), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="mask"):
        g(np.array([1.0, -1.0, 2.0]), np.ones(3))


def test_a_view_across_the_rows_of_a_softmax_is_written() -> None:
    def f(x: Any) -> Any:
        t = np.stack([x, x * x], axis=-1)
        t = (t - t.mean(axis=-1, keepdims=True)) / (t.var(axis=-1, keepdims=True) + 0.1)
        y = t - np.log(np.exp(t).sum(axis=-1, keepdims=True))
        y.reshape(-1)[::2] *= 1.1
        return y

    x = np.array([0.1, -0.2, 0.7])
    np.testing.assert_allclose(rg.compile(f)(x), f(x), rtol=1e-13)
