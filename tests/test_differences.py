"""Slopes by differences are right where a function is smooth, and doubted elsewhere."""

import math
from collections.abc import Callable

import pytest

from retrograde.differences import slope

EPS = 2.0**-52
SMOOTH: dict[str, tuple[Callable[[float], float], float]] = {
    "sine": (math.sin, 1.0),
    "exponential": (lambda t: math.exp(3 * t), 3.0),
    "power": (lambda t: (t + 1) ** 5, 5.0),
    "constant": (lambda t: 7.0, 0.0),
    "even": (lambda t: t * t, 0.0),
    "fast": (lambda t: 100 * math.sin(50 * t + 1), 5000 * math.cos(1)),
    "large": (lambda t: 1e6 + t, 1.0),
    "kink nearby": (lambda t: abs(t - 1e-4), -1.0),
    "undefined nearby": (
        lambda t: math.sqrt(1e-3 + t) if t > -1e-3 else math.nan,
        0.5 / math.sqrt(1e-3),
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_slope_is_within_its_doubt(name: str) -> None:
    f, want = SMOOTH[name]
    found = slope(f, max(1.0, abs(f(0.0))), EPS)
    assert found.problem == ""
    assert abs(found.value - want) <= found.doubt
    assert found.doubt <= 1e-6 * max(1.0, abs(want))


@pytest.mark.parametrize(
    ("f", "problem"),
    [
        (abs, "one-sided slopes differ: -1 and 1"),
        (lambda t: max(t, 0.0), "one-sided slopes differ: 0 and 1"),
        (lambda t: 1.0 if t > 0 else 0.0, "one-sided slopes differ"),
        (lambda t: math.sqrt(abs(t)), "one-sided slopes differ"),
        (lambda t: math.nan, "the value is not finite"),
        (lambda t: 0.0 if t == 0 else math.inf, "values nearby are not finite"),
    ],
    ids=["abs", "relu", "step", "root", "nan", "pole"],
)
def test_function_that_is_not_smooth_is_doubted(
    f: Callable[[float], float], problem: str
) -> None:
    assert slope(f, 1.0, EPS).problem.startswith(problem)


def test_single_precision_is_taken_into_account() -> None:
    def rounded(t: float) -> float:
        return round(math.exp(t) * 2**23) / 2**23

    found = slope(rounded, 1.0, 2.0**-23)
    assert found.problem == ""
    assert abs(found.value - 1.0) <= found.doubt
    assert found.doubt < 1e-2
