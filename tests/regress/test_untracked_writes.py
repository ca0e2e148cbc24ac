"""A write under no_grad changes values and leaves derivatives alone, in every mode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import UnsupportedError

X = np.array([0.1, 0.2, 0.3])


def _scaled(x: Any) -> Any:
    y = x * 2
    with rg.no_grad():
        y *= 3
        y[0] = 1.0
    return (y * x).sum()


def _argument(x: Any) -> Any:
    with rg.no_grad():
        x *= 3
    return (x * x).sum()


def _fresh(x: Any) -> Any:
    y = np.zeros(3)
    with rg.no_grad():
        y[:] = x
    return (y * x).sum()


def _views(x: Any) -> Any:
    y = x**2
    v = y[1:]
    with rg.no_grad():
        v += 1
        y.T[0] = 5
    return (v**2).sum() + y[0]


def _masks(x: Any) -> Any:
    y = x * 1.0
    with rg.no_grad():
        np.exp(y, out=y)
        y[y > 1.2] = 0
        y[[0]] += 2
    return (y**2).sum()


CASES: list[tuple[Callable[[Any], Any], Any]] = [
    (_scaled, [1.0 + 2 * 0.1, 8 * 0.2, 8 * 0.3]),
    (_argument, 6 * X),
    (_fresh, X),
    (_views, [2 * 0.1, 2 * 1.04 * 0.4, 2 * 1.09 * 0.6]),
    (_masks, [2 * (np.exp(0.1) + 2), 0.0, 0.0]),
]


@pytest.mark.parametrize(("f", "want"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_gradients_pass_by_untracked_writes(
    f: Callable[[Any], Any], want: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.testing.assert_allclose(rg.grad(f)(X), want, rtol=1e-12)
    np.testing.assert_allclose(rg.grad(rg.compile(f))(X), want, rtol=1e-12)
    x, y = X.copy(), X.copy()
    np.testing.assert_allclose(rg.compile(f)(x), f(y), rtol=1e-12)
    np.testing.assert_array_equal(x, y)


def test_byte_swapped_arrays_have_numpys_meaning() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        x[1:] += x[:-1]
        return x * 2

    x = X.astype(">f8")
    y = X.copy()
    np.testing.assert_array_equal(f(x), f(y))
    np.testing.assert_array_equal(x, y)


class Box:
    """An object that gives its memory to NumPy."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def __array_interface__(self) -> Any:
        return self.data.__array_interface__


@pytest.mark.parametrize("share", [memoryview, Box])
def test_memory_of_other_objects_is_refused(share: Callable[[Any], Any]) -> None:
    data, weights = np.ones(3), np.ones(3)
    x = share(data)

    def given(x: Any, w: Any) -> Any:
        return np.sum(np.asarray(x) * w)

    def captured(w: Any) -> Any:
        return np.sum(np.array([x, x]) * w)

    calls = (
        lambda: rg.compile(given)(x, weights),
        lambda: rg.compile(captured)(weights),
    )
    for call in calls:
        with pytest.raises(
            UnsupportedError, match=f"memory of a {type(x).__name__} is read"
        ):
            call()
    f = rg.compile(given)
    for value in (1.0, 13.0):
        data[0] = value
        assert f(np.asarray(x), weights) == value + 2.0
