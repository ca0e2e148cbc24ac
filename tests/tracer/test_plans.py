"""Calls of a kind seen before: found without a search, and checked all the same."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import retrograde as rg
from retrograde.tracer.plans import MOST, kind_of


def kind(*args: Any) -> Any:
    return kind_of(args, [], [])


class Pair(NamedTuple):
    a: Any
    b: Any


class Array(np.ndarray[Any, Any]):
    """Arrays of another class may compute otherwise."""


X = np.ones(3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, np.ones(4)),
        (X, np.ones((3, 1))),
        (X, np.ones(3, np.float32)),
        (X, np.ones(3, ">f8")),
        (X, np.float64(1.0)),
        (1, True),
        (1, 1.0),
        (1, 2),
        (0, False),
        ("a", "b"),
        (1.0, np.float64(1.0)),
        ([X], (X,)),
        ([X, X], [[X], X]),
        ([X, [X]], [[X], X]),
        ({"a": X}, {"b": X}),
        ({1: X}, {True: X}),
        ({1: X}, {1.0: X}),
        ({"a": X, "b": 1.0}, {"b": 1.0, "a": X}),
        (None, 0),
    ],
)
def test_kinds_that_differ(one: Any, other: Any) -> None:
    assert kind(one) is not None
    assert kind(one) != kind(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, np.zeros(3)),
        (X, np.zeros(6)[::2]),
        (1.0, 2.0),
        ([X, 1.0, (2, "a")], [np.zeros(3), 3.0, (2, "a")]),
        ({"a": X}, {"a": np.zeros(3)}),
    ],
)
def test_kinds_that_agree(one: Any, other: Any) -> None:
    assert kind(one) == kind(other)


def test_what_has_no_kind() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for x in (cyclic, Pair(X, X), rg.tensor([1.0]), object(), X.view(Array)):
        assert kind(x) is None
        assert kind((x,)) is None


def test_a_plan_serves_further_calls() -> None:
    @rg.compile
    def f(x: Any, c: Any, flag: bool) -> Any:
        return {"sum": (x * c[0] + c[1]["b"]).sum(), "flag": flag}

    for k in range(4):
        x = np.full(3, float(k))
        out = f(x, (2.0, {"b": 1.0}), True)
        assert out == {"sum": 6.0 * k + 3.0, "flag": True}
    assert f._plans
    assert f(np.ones(3), (2.0, {"b": 1.0}), False)["flag"] is False
    assert f.cache_info()[:3] == (3, 2, 2)


def test_sizes_and_ints_belong_to_the_plan() -> None:
    @rg.compile
    def f(x: Any, n: int) -> Any:
        return x[:n].sum(), n + 1

    for size in (5, 3, 5, 4):
        for n in (1, 2, 3, 2):
            assert f(np.arange(float(size)), n) == (sum(range(n)), n + 1)


def test_the_same_array_twice() -> None:
    @rg.compile
    def f(x: Any, y: Any) -> Any:
        x += 1.0
        return (x * y).sum()

    a, b = np.ones(3), np.ones(3)
    assert f(a, b) == 6.0
    assert f(a, b) == 9.0
    assert f(a, a) == 48.0
    assert f(a, b) == 15.0


def test_views_of_one_array() -> None:
    @rg.compile
    def f(x: Any, y: Any) -> None:
        x[:] = 2.0 * y

    for shift in (4, 1, 4, 0, 1):
        a, b = np.arange(8.0), np.arange(8.0)
        f(a[:4], a[shift : shift + 4])
        b[:4] = 2.0 * b[shift : shift + 4]
        assert np.array_equal(a, b)


def test_read_only_memory_is_still_refused() -> None:
    @rg.compile
    def f(x: Any) -> None:
        x += 1.0

    a = np.ones(3)
    f(a)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        f(a)
    assert np.array_equal(a, [2.0, 2.0, 2.0])


def test_captured_variables_are_read_at_every_call() -> None:
    weight: Any = np.ones(3)
    scale: Any = 2.0
    mode = "sum"

    @rg.compile
    def f(x: Any) -> Any:
        y = scale * weight * x
        return y.sum() if mode == "sum" else y

    x = np.arange(3.0)
    assert f(x) == f(x) == 6.0
    scale = 3.0
    assert f(x) == 9.0
    weight = np.full(3, 2.0)
    assert f(x) == 18.0
    weight = np.full((2, 3), 2.0)
    assert f(x) == 36.0
    weight = np.full(3, 2.0, np.float32)
    assert f(x) == 18.0
    mode = "all"
    assert np.array_equal(f(x), [0.0, 6.0, 12.0])
    mode, scale = "sum", 1
    assert f(x) == 6.0


def test_keywords_and_defaults() -> None:
    @rg.compile
    def f(x: Any, p: float = 2.0, *, q: float = 1.0) -> Any:
        return (x * p + q).sum()

    x = np.ones(2)
    for _ in range(2):
        assert f(x) == 6.0
        assert f(x, 3.0) == 8.0
        assert f(x, q=0.0) == 4.0
        assert f(x, 3.0, q=0.0) == 6.0
        assert f(x=x) == 6.0


def test_branches_on_values() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x * 2.0
        return [x, x + 1.0]

    up, down = np.ones(2), -np.ones(2)
    for _ in range(2):
        assert np.array_equal(f(up), [2.0, 2.0])
        assert np.array_equal(f(down)[1], [0.0, 0.0])


def test_plans_are_bounded() -> None:
    @rg.compile
    def f(x: Any, n: int) -> Any:
        return x * n

    for n in range(2, MOST + 12):
        assert f(1.5, n) == 1.5 * n
    assert len(f._plans) <= MOST


def test_gradients_by_plan() -> None:
    @rg.compile
    def f(p: Any, x: Any) -> Any:
        return (p["w"] * x**2).sum() + p["b"]

    g = rg.value_and_grad(f)
    for k in range(1, 4):
        p = {"w": np.full(2, float(k)), "b": 1.0}
        value, grad = g(p, np.array([1.0, 2.0]))
        assert value == 5.0 * k + 1.0
        assert np.array_equal(grad["w"], [1.0, 4.0])
        assert grad["b"] == 1.0
