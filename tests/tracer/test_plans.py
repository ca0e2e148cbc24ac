"""Calls of a kind seen before: found without a search, and checked all the same."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import UnsupportedError
from retrograde.runtime.pool import LARGE
from retrograde.tracer import plans
from retrograde.tracer.fastcall import MISS, never
from retrograde.tracer.plans import MOST, kind_of


@pytest.fixture(params=[1, 3], autouse=True)
def _soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans become one function at once, or later."""
    monkeypatch.setattr(plans, "FLAT", request.param)


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


# Plans as one function: every question is asked again.


def flat_of(f: Any, *args: Any) -> Any:
    """Call a function until its plan is one function; return that."""
    for _ in range(5):
        f(*args)
    assert f._flat is not never
    return f._flat


def test_a_flat_plan_does_all_of_a_call() -> None:
    @rg.compile
    def f(x: Any, y: Any, c: float) -> Any:
        return (x * y + c).sum(), [x - y, (x,)]

    x, y = np.arange(3.0), np.ones(3)
    assert f(x, y, 1.0)[1][1][0] is x  # an argument: not a result as it is
    assert f._flat is never

    @rg.compile
    def g(x: Any, y: Any, c: float) -> Any:
        return (x * y + c).sum(), [x - y, (x + y,)]

    flat = flat_of(g, x, y, 1.0)
    total, [less, (more,)] = flat((x, y, 2.0))
    assert total == 9.0
    assert type(total) is np.float64
    assert np.array_equal(less, x - y)
    assert np.array_equal(more, x + y)
    assert flat((x + 1.0, y, 1.0))[1][0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [
        np.ones(4),
        np.ones((3, 1)),
        np.ones(3, np.float32),
        np.ones(3, ">f8"),
        np.ones(6)[::2],
        np.frombuffer(b"\0" + np.ones(3).tobytes(), np.uint8)[1:].view(float),
        np.ones(3).view(Array),
        np.float64(1.0),
        1.0,
        1,
        [1.0, 1.0, 1.0],
        None,
        rg.tensor([1.0, 1.0, 1.0]),
    ],
    ids=str,
)
def test_a_flat_plan_refuses_other_arguments(other: Any) -> None:
    @rg.compile
    def f(x: Any, y: Any) -> Any:
        return (x * 2.0).sum() + y

    flat = flat_of(f, np.arange(3.0), 1.0)
    assert flat((np.ones(3), 2.0)) == 8.0
    assert flat((other, 2.0)) is MISS
    assert flat((np.ones(3), 2)) is MISS
    assert flat((np.ones(3),)) is MISS
    assert flat((np.ones(3), 2.0, 3.0)) is MISS
    if isinstance(other, Array):  # as if it had come first
        with pytest.raises(UnsupportedError, match="a Array as an argument"):
            f(other, 2.0)
    elif isinstance(other, np.ndarray):
        assert f(other, 2.0) == 2.0 * other.sum() + 2.0


def test_a_flat_plan_looks_into_containers() -> None:
    @rg.compile
    def f(p: Any, x: Any, q: Any) -> Any:
        return p["w"] * x + q[0] * q[1][0] * p["b"]

    p = {"w": np.ones(2), "b": 2.0}
    x = np.arange(2.0)
    flat = flat_of(f, p, x, (3.0, [x + 1.0], ()))
    assert flat((p, x, (3.0, [x + 2.0], ()))).tolist() == [12.0, 19.0]
    for wrong in (
        {"b": 2.0, "w": np.ones(2)},
        {"w": np.ones(2)},
        {"w": np.ones(2), "b": 2.0, "c": 1.0},
        {"w": np.ones(2), "b": 2},
        [np.ones(2), 2.0],
    ):
        assert flat((wrong, x, (3.0, [x + 2.0], ()))) is MISS
    for bad in ((3.0, (x,), ()), (3.0, [x + 1.0, x], ()), (3.0, [x + 1.0], (1,))):
        assert flat((p, x, bad)) is MISS
    assert flat((p, x, (3.0, [x], ()))) is MISS  # the same array twice
    assert f(p, x, (3.0, [x], ())).tolist() == [0.0, 7.0]


def test_a_flat_plan_tells_many_arrays_apart() -> None:
    @rg.compile
    def f(*xs: Any) -> Any:
        xs[0][:] += 1.0
        return sum(x.sum() for x in xs)

    xs = [np.full(2, float(k)) for k in range(6)]
    flat = flat_of(f, *xs)
    assert flat((*xs[:5], xs[0])) is MISS
    assert flat((*xs[:5], xs[1][:])) is not MISS  # read, not written
    assert flat((*xs[:5], xs[0][:])) is MISS
    total = f(*xs[:5], xs[0][:])
    assert total == sum(x.sum() for x in xs[:5]) + xs[0].sum()


def test_a_flat_plan_writes_what_may_be_written() -> None:
    @rg.compile
    def f(x: Any, y: Any) -> Any:
        x += y
        return x.sum()

    x, y = np.zeros(3), np.ones(3)
    flat = flat_of(f, x, y)
    before = x.copy()
    assert flat((x, y)) == before.sum() + 3.0
    assert np.array_equal(x, before + 1.0)
    x.flags.writeable = False
    assert flat((x, y)) is MISS
    with pytest.raises(ValueError, match="read-only"):
        f(x, y)
    y.flags.writeable = False
    assert flat((np.zeros(3), y)) == 3.0


def doubled(x: Any) -> Any:
    return 2.0 * x


class Settings:
    scale = 3


WEIGHTS = {"a": np.ones(3)}


def test_a_flat_plan_reads_captured_state_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings()
    settings.scale = 3
    factor: Any = 2.0

    @rg.compile
    def f(x: Any) -> Any:
        return (doubled(x) * settings.scale * factor * WEIGHTS["a"]).sum()

    x = np.ones(3)
    flat = flat_of(f, x)
    assert flat((x,)) == 36.0
    factor = 3.0
    assert flat((x,)) == 54.0
    WEIGHTS["a"] = np.full(3, 2.0)
    assert flat((x,)) == 108.0
    WEIGHTS["a"] = np.full(3, 2.0, np.float32)
    assert flat((x,)) is MISS
    assert f(x) == 108.0
    WEIGHTS["a"] = np.ones(3)
    settings.scale = 4
    assert flat((x,)) is MISS
    assert f(x) == 72.0
    settings.scale = True
    assert flat((x,)) is MISS
    settings.scale = 3
    assert flat((x,)) == 54.0
    factor = 3
    assert flat((x,)) is MISS
    factor = 3.0
    monkeypatch.setitem(globals(), "doubled", lambda x: 5.0 * x)
    assert flat((x,)) is MISS
    assert f(x) == 135.0
    monkeypatch.undo()
    del settings.scale
    assert flat((x,)) is MISS
    assert f(x) == 54.0


def test_checks_of_a_flat_plan_name_the_place() -> None:
    @rg.compile
    def f(x: Any, i: Any) -> Any:
        return x[i].sum()

    x = np.arange(3.0)
    flat = flat_of(f, x, np.array([1, 2]))
    with pytest.raises(IndexError, match="test_plans"):
        flat((x, np.array([1, 3])))
    assert flat((x, np.array([0, 1]))) == 1.0


def test_results_of_a_flat_plan_are_fresh() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        return x + 1.0, x[:2] * 2.0

    for size in (4, LARGE):
        x = np.zeros(size)
        flat = flat_of(f, x)
        kept = [flat((x,)) for _ in range(4)]
        for a, b in pairwise(kept):
            assert not np.shares_memory(a[0], b[0])
            assert not np.shares_memory(a[1], b[1])
        assert all(a[0][-1] == 1.0 for a in kept)


def test_two_kinds_in_turn() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        return x * 2.0

    for _ in range(6):
        assert f(np.ones(2)).tolist() == [2.0, 2.0]
        assert f(np.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert f.cache_info()[0] == 11


def write_reshaped(x: Any) -> Any:
    flat = x.reshape(-1)  # a view where `x` is in C order, else a copy
    flat *= 2.0
    return x.sum()


def test_layouts_belong_to_a_plan() -> None:
    f = rg.compile(write_reshaped)
    for _ in range(5):
        for order in "CF":
            x = np.array([[1.0, 2.0], [3.0, 4.0]], order=order)  # type: ignore[call-overload]
            expected = x.copy(order="K")
            assert f(x) == write_reshaped(expected)
            np.testing.assert_array_equal(x, expected)
    for _ in range(5):
        x = np.ones((2, 2))
        assert f(x) == 8.0
    (plan,) = f._plans.values()
    assert plan.flat is not never
