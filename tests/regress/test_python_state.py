"""What a compiled function does to Python objects happens at every call."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.array([1.0, 2.0, 3.0])
Scenario = Callable[[Callable[[Any], Any]], Iterator[Any]]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")


def _dict_argument(wrap: Any) -> Iterator[Any]:
    @wrap
    def step(p: Any, g: Any) -> Any:
        p["w"] = p["w"] - 0.1 * g
        p["n"] += 1
        p.setdefault("history", []).append(g * 2)
        return p["w"].sum()

    p: dict[str, Any] = {"w": X.copy(), "n": 0}
    for _ in range(3):
        yield step(p, X), repr(p)


def _list_argument(wrap: Any) -> Iterator[Any]:
    @wrap
    def f(items: Any, x: Any) -> Any:
        items.append(x * 2)
        items[0] = x
        items.reverse()
        return len(items)

    items = [X.copy()]
    for _ in range(3):
        yield f(items, X), repr(items)


@dataclasses.dataclass
class Model:
    weights: Any
    steps: int = 0
    history: list[Any] = dataclasses.field(default_factory=list)


def _dataclass_argument(wrap: Any) -> Iterator[Any]:
    @wrap
    def f(m: Any, x: Any) -> Any:
        m.weights = m.weights * x
        m.steps += 1
        m.history.append(x.sum())
        return m

    m = Model(X.copy())
    for _ in range(3):
        yield f(m, X) is m, repr(m)


def _default_argument(wrap: Any) -> Iterator[Any]:
    def f(x: Any, seen: Any = []) -> Any:  # noqa: B006
        seen.append(1)
        return x * len(seen)

    g = wrap(f)
    for _ in range(3):
        yield repr(g(X))


def _variables(wrap: Any) -> Iterator[Any]:
    n, log, items, flag, cache = 0, [], {}, False, None  # type: ignore[var-annotated]

    @wrap
    def f(x: Any) -> Any:
        nonlocal n, flag, cache
        n += 1
        log.append(n)
        items[f"k{len(items)}"] = x * n
        flag = not flag
        if cache is None:
            cache = x * 10
        return x * n + cache

    for _ in range(3):
        yield repr(f(X)), n, repr((log, items, flag, cache)), type(n)


def _popped_and_inserted(wrap: Any) -> Iterator[Any]:
    stack = [X, X * 2, X * 3]

    @wrap
    def f(x: Any) -> Any:
        v = stack.pop()
        stack.insert(0, v * x)
        del stack[1]
        return v

    for _ in range(2):
        yield repr(f(X)), repr(stack)


def _rebound(wrap: Any) -> Iterator[Any]:
    settings: Any = {"a": 1.0}
    pair: Any = (X, 2)

    @wrap
    def f(x: Any) -> Any:
        nonlocal settings, pair
        settings = {"a": x * 2, "b": [x]}
        pair = (x, 3)
        return x

    for _ in range(2):
        yield repr(f(X)), repr((settings, pair))


class Thing:
    def __init__(self) -> None:
        self.value: Any = 0.0
        self.count = 0


def _attributes(wrap: Any) -> Iterator[Any]:
    thing = Thing()

    @wrap
    def f(x: Any) -> Any:
        thing.value = thing.value + x
        thing.count += 2
        thing.last = x.sum()  # type: ignore[attr-defined]
        return x * thing.count

    for _ in range(3):
        yield repr(f(X)), repr(vars(thing))


def _grown_outside(wrap: Any) -> Iterator[Any]:
    items = [X]
    f = wrap(lambda x: x + sum(items))
    for k in range(3):
        yield repr(f(X))
        items.append(X * k)


def _gradient(wrap: Any) -> Iterator[Any]:
    n, log, total = 0, [], 0.0  # type: ignore[var-annotated]

    def f(x: Any) -> Any:
        nonlocal n, total
        n += 1
        log.append(x * n)
        total = total + x.sum()
        return (x * x).sum() * n

    for _ in range(2):
        g = rg.grad(wrap(f))(X)
        yield repr(g), n, repr(log), float(total)


SCENARIOS = (
    _dict_argument,
    _list_argument,
    _dataclass_argument,
    _default_argument,
    _variables,
    _popped_and_inserted,
    _rebound,
    _attributes,
    _grown_outside,
    _gradient,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__.strip("_"))
def test_effects_on_python_objects_are_those_of_the_function(
    scenario: Scenario,
) -> None:
    want = list(scenario(lambda f: f))
    assert list(scenario(rg.compile)) == want


def test_a_counter_does_not_compile_at_every_call() -> None:
    n = 0

    @rg.compile
    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * n

    for k in range(2, 8):
        n = k
        np.testing.assert_array_equal(f(X), X * (k + 1))
    assert n == 8
    assert f.cache_info().specialisations == 1


def test_an_exception_while_tracing_leaves_everything_as_it_was() -> None:
    n, log, w = 0, [], X.copy()  # type: ignore[var-annotated]

    @rg.compile
    def f(x: Any) -> Any:
        nonlocal n, w
        n += 1
        log.append(x)
        w = w * 2
        raise ValueError("broken")

    kept = w
    with pytest.raises(ValueError, match="broken"):
        f(X)
    assert (n, log) == (0, [])
    assert w is kept


def test_an_object_that_keeps_a_computed_value_is_refused() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        thing = Thing()
        thing.value = x * 2
        return thing

    with pytest.raises(rg.RetrogradeError, match=r"a Thing .* in .value leaves"):
        f(X)


def test_a_static_integer_result_is_itself() -> None:
    f = rg.compile(lambda x, n: (-n, n if n > 1 else 0, [x] * n))
    for n in (2, 3, 1):
        assert f(X, n)[:2] == (-n, n if n > 1 else 0)


def test_a_numpy_scalar_is_not_weak() -> None:
    x = X.astype(np.float32)
    f = rg.compile(lambda x: (np.float64(2) * x, 2.0 * x, x + np.float64(1)))
    assert [y.dtype for y in f(x)] == [np.float64, np.float32, np.float64]


# What a function can reach may change between calls -----------------------------------

FACTOR = 2.0
SHARED = [1.0]
ALSO_SHARED = SHARED


class Layer:
    scale = 1.5
    table = [1.0, 2.0]  # noqa: RUF012 (shared, as users have it)

    def __init__(self, k: Any) -> None:
        self.k = k * FACTOR

    @property
    def slope(self) -> Any:
        return self.k * FACTOR

    @staticmethod
    def times(x: Any) -> Any:
        return x * FACTOR

    def apply(self, x: Any) -> Any:
        return x * self.k


class Deeper(Layer):
    pass


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: Any) -> None:
        self.k = k


def _times(k: Any) -> Any:
    return lambda x: x * k


def _times_default(k: Any) -> Any:
    return lambda x, k=k: x * k


LAYER, SLOTTED, QUEUE = Deeper(1.0), Slotted(2.0), collections.deque([1.0, 2.0])
HELD: dict[str, Any] = {
    "closure": _times(2.0),
    "default": _times_default(2.0),
    "ufunc": np.sin,
    "method": LAYER.apply,
    "partial": functools.partial(np.multiply, 2.0),
}
USER = ModuleType("user_module")
exec("K = 2.0\ndef step(x): return x * K", vars(USER))


def _rebind(**names: Any) -> None:
    globals().update(names)


CHANGES: list[tuple[Callable[[Any], Any], Callable[[], Any]]] = [
    (lambda x: Layer(2.0).k * x, lambda: _rebind(FACTOR=3.0)),
    (lambda x: LAYER.slope * x, lambda: _rebind(FACTOR=4.0)),
    (lambda x: Layer.times(x), lambda: _rebind(FACTOR=5.0)),
    (lambda x: LAYER.scale * x, lambda: setattr(Layer, "scale", 2.0)),
    (lambda x: LAYER.scale * x, lambda: setattr(Deeper, "scale", 3.0)),
    (lambda x: sum(Layer.table) * x, lambda: Layer.table.append(3.0)),
    (lambda x: LAYER.apply(x), lambda: setattr(Layer, "apply", lambda _, x: x)),
    (lambda x: HELD["closure"](x), lambda: HELD.update(closure=_times(3.0))),
    (lambda x: HELD["default"](x), lambda: HELD.update(default=_times_default(3.0))),
    (lambda x: HELD["ufunc"](x), lambda: HELD.update(ufunc=np.cos)),
    (lambda x: HELD["method"](x), lambda: HELD.update(method=Layer(9.0).apply)),
    (
        lambda x: HELD["partial"](x),
        lambda: HELD.update(partial=functools.partial(np.multiply, 3.0)),
    ),
    (lambda x: SLOTTED.k * x, lambda: setattr(SLOTTED, "k", 3.0)),
    (lambda x: sum(QUEUE) * x, lambda: QUEUE.append(3.0)),
    (lambda x: SHARED[0] * x + ALSO_SHARED[0], lambda: _rebind(ALSO_SHARED=[3.0])),
    (lambda x: USER.K * x, lambda: setattr(USER, "K", 3.0)),
    (lambda x: USER.step(x), lambda: setattr(USER, "K", 4.0)),
    (lambda x: USER.step(x), lambda: setattr(USER, "step", _times(7.0))),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_what_changed_between_calls_has_changed(number: int) -> None:
    f, change = CHANGES[number]
    compiled = rg.compile(f)
    np.testing.assert_array_equal(compiled(X), f(X))
    before = f(X)
    change()
    assert not np.array_equal(before, f(X))
    np.testing.assert_array_equal(compiled(X), f(X))


def test_attributes_of_classes_are_set_at_every_call() -> None:
    class Total:
        value = 0.0
        calls = 0

    def add(x: Any) -> Any:
        for v in x:
            Total.value = Total.value + v
        Total.calls += 1
        return Total.value

    compiled = rg.compile(add)
    assert [compiled(X) for _ in range(3)] == [6.0, 12.0, 18.0]
    assert (Total.value, Total.calls) == (18.0, 3)
