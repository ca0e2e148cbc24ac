"""Arguments of every kind: what they mean is what NumPy makes of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")


def _looped(x: Any, k: Any) -> Any:
    total = 0.0
    for i in k:
        total = total + x[:i].sum()
    return total


FIXING: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (lambda x, n: x[:n], [np.int64(1), np.int64(2), np.int64(1)]),
    (lambda x, n: x if n else -x, [np.bool_(True), np.bool_(False)]),
    (lambda x, k: x[k[0] : k[1]], [np.array([0, 2]), np.array([1, 2])]),
    (lambda x, k: np.zeros(k) + 1, [np.array(3), np.array(2)]),
    (lambda x, n: x.sum(axis=n), [np.int64(0), np.int64(1)]),
    (_looped, [np.array([1, 2]), np.array([3, 2]), np.array([1, 2, 3])]),
    (lambda x, n: x * n, [np.int64(3), np.int64(4), 3, 2**70, 2**80]),
    (lambda x, r: x[r], [range(2), range(1, 3)]),
    (lambda x, d: x.astype(d), [np.float32, np.int64]),
]


@pytest.mark.parametrize(("f", "given"), FIXING, ids=range(len(FIXING)))
def test_integers_that_fix_the_program_are_guards(
    f: Callable[[Any, Any], Any], given: list[Any]
) -> None:
    g = rg.compile(f)
    for n in (*given, given[0]):
        want, got = np.asarray(f(X, n)), np.asarray(g(X, n))
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_captured_numbers_are_guarded_by_their_type() -> None:
    c: Any = 0.5
    k = np.array([1, 2])

    @rg.compile
    def f(k: Any) -> Any:
        return k * c

    for value in (0.5, 2, np.float32(2), True, np.int8(1), 0.25):
        c = value
        want, got = k * c, f(k)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_a_captured_numpy_integer_fixes_a_size() -> None:
    n = np.int64(2)
    f = rg.compile(lambda x: x[:n])
    assert f(X).shape == (2, 4)
    n = np.int64(3)
    assert f(X).shape == (3, 4)


@pytest.mark.parametrize(
    "x",
    [
        np.ma.array([1.0, 2.0], mask=[False, True]),
        np.rec.array([(1.0,)], dtype=[("a", float)]),
        np.ones(2, np.longdouble),
        np.array(["a"]),
    ],
    ids=["masked", "record", "longdouble", "text"],
)
def test_arrays_with_another_meaning_are_refused(x: Any) -> None:
    with pytest.raises(rg.RetrogradeError, match="as an argument"):
        rg.compile(lambda a: a)(x)


def test_ufuncs_and_builtins_compile() -> None:
    np.testing.assert_array_equal(rg.compile(np.sin)(X), np.sin(X))
    np.testing.assert_array_equal(rg.compile(sum)([X, X]), X + X)


def test_integers_that_fix_the_program_do_so_inside_transforms() -> None:
    def f(x: Any, k: Any, n: Any) -> Any:
        return (x[k:, :n] ** 2).sum()

    g = rg.grad(rg.compile(f))
    twice = rg.grad(lambda x, k, n: (g(x, k, n) ** 2).sum())
    for k, n in ((1, 2), (2, 3), (1, 2)):
        want = np.zeros_like(X)
        want[k:, :n] = 2 * X[k:, :n]
        at = np.array(k), np.int64(n)
        np.testing.assert_allclose(g(X, *at), want)
        np.testing.assert_allclose(rg.compile(g)(X, *at), want)
        np.testing.assert_allclose(twice(X, *at), 4 * want)
        np.testing.assert_allclose(rg.compile(twice)(X, *at), 4 * want)
