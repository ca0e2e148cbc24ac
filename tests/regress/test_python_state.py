"""What a compiled function does to Python objects happens at every call."""

import dataclasses
from collections.abc import Callable, Iterator
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
