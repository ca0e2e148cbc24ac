"""What names mean at a call: modules' attributes, builtins, one array or two."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.array([1.0, 2.0, 3.0])
A = B = np.ones(3)
C = np.zeros(3)
K = 2.0
USER = ModuleType("user_names")
exec("K = 2.0", vars(USER))


def use_pi(x: Any) -> Any:
    return x * math.pi


def use_sine(x: Any) -> Any:
    return np.sin(x)


def use_solve(x: Any) -> Any:
    return np.linalg.norm(x) * x


def use_builtin(x: Any) -> Any:
    return abs(x)


def by_string(x: Any) -> Any:
    return x * getattr(USER, "K")  # noqa: B009


def by_globals(x: Any) -> Any:
    return x * globals()["K"]


def one_array(x: Any) -> Any:
    return x if A is B else 2.0 * x


def one_in_a_list(x: Any) -> Any:
    return x * sum(1 for y in [A, B, C] if y is A)


def is_captured(x: Any) -> Any:
    return 3.0 * x if x is C else x + 1.0


CHANGES: list[tuple[Callable[[Any], Any], Any, str, Any]] = [
    (use_pi, math, "pi", 3.0),
    (use_sine, np, "sin", np.cos),
    (use_solve, np.linalg, "norm", np.linalg.det),
    (use_builtin, None, "abs", lambda x: 5.0 * x),
    (by_string, USER, "K", 3.0),
    (by_globals, None, "K", 4.0),
    (one_array, None, "B", np.ones(3)),
    (one_in_a_list, None, "B", np.ones(3)),
    (one_in_a_list, None, "C", A),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_name_that_means_something_else(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, owner, name, new = CHANGES[number]
    compiled = rg.compile(f)
    x = np.eye(3) + 1.0
    first = f(x)
    for _ in range(5):  # the last of them by a flat plan
        np.testing.assert_allclose(compiled(x), first, rtol=1e-14)
    with monkeypatch.context() as patch:
        if owner is None:
            patch.setitem(globals(), name, new)
        else:
            patch.setattr(owner, name, new)
        second = f(x)
        for _ in range(5):
            np.testing.assert_allclose(compiled(x), second, rtol=1e-14)
    assert not np.allclose(first, second)
    np.testing.assert_allclose(compiled(x), first, rtol=1e-14)


def test_an_argument_may_be_a_captured_array() -> None:
    compiled = rg.compile(is_captured)
    for x in (X, C, X, X, C, C):
        np.testing.assert_array_equal(compiled(x), is_captured(x))


def bind_new(x: Any) -> Any:
    global NEW
    NEW = [2.0 * x, 3]
    return x + NEW[1]


def test_a_variable_that_the_first_call_binds() -> None:
    compiled = rg.compile(bind_new)
    for k in range(5):
        np.testing.assert_array_equal(compiled(X + k), X + k + 3)
        np.testing.assert_array_equal(NEW[0], 2.0 * (X + k))
        assert type(NEW[0]) is np.ndarray
        assert NEW[1] == 3


def positive_twice(x: Any) -> Any:
    found = x[x > 0.0]
    return found, [found, (x * 2.0).sum()]


def test_a_result_returned_twice_is_one_object() -> None:
    compiled = rg.compile(positive_twice)
    for _ in range(6):
        one, (other, _) = compiled(X)
        assert one is other
