"""What is not captured of loops says so: file, line, reason and a way out."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.linspace(-1.0, 2.0, 200)


def chosen_object(x: Any) -> Any:
    weights = [float(k) for k in range(200)]
    s = 0.0
    for i in range(len(x)):
        s += weights[i] * x[i]
    return s


def raises_inside(x: Any) -> Any:
    s = 0.0
    try:
        for i in range(len(x)):
            if x[i] < -5:
                raise ValueError("negative")
            s += x[i]
    except ValueError:
        s = -1.0
    return s


def growing_array(x: Any) -> Any:
    y = x[:1]
    for i in range(len(x)):
        y = np.concatenate([y, x[i : i + 1] * y[-1]])
    return y.sum()


def list_in_a_while(x: Any) -> Any:
    xs = []
    t = x[-1]
    while t > 0.1:
        t = t * 0.5
        xs.append(t)
    return sum(xs)


def key_of_a_dict(x: Any) -> Any:
    d = {}
    for i in range(len(x)):
        d[i] = x[i] ** 2
    return sum(d.values())


def random_inside(x: Any) -> Any:
    s = 0.0
    for i in range(len(x)):
        s += np.random.rand() * x[i]
    return s


def iterator_from_outside(x: Any) -> Any:
    s, numbers = 0.0, iter(range(10))
    while s < 3:
        s += x[next(numbers)] ** 2 + 0.5
    return s


def ambiguous(x: Any) -> Any:
    while x > 0:
        x = x - 1
    return x


CASES: list[tuple[Callable[[Any], Any], type[Exception], str, str]] = [
    (chosen_object, NotImplementedError, "integer i is known only", "the limit is 128"),
    (raises_inside, NotImplementedError, "ValueError is raised", "after the call"),
    (growing_array, NotImplementedError, r"y is f64\[2\] on one way", "np.zeros"),
    (list_in_a_while, NotImplementedError, "xs: a list that grows", "large enough"),
    (key_of_a_dict, NotImplementedError, "integer i is known only", "np.where"),
    (random_inside, NotImplementedError, "numpy.random.rand", "as an argument"),
    (iterator_from_outside, NotImplementedError, "iterator from outside", "of its own"),
    (ambiguous, ValueError, "is ambiguous", r"a.any\(\)"),
]


@pytest.mark.parametrize(
    ("f", "kind", "what", "way_out"), CASES, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_refused_loop_says_why(
    f: Callable[[Any], Any], kind: type[Exception], what: str, way_out: str
) -> None:
    with pytest.raises(kind, match=what) as caught:
        rg.compile(f)(X.copy())
    text = str(caught.value)
    assert f"{__file__}:" in text
    assert f"in {f.__name__}:" in text
    assert re.search(way_out, text)


def test_state_is_put_back_after_a_refusal() -> None:
    held: dict[str, Any] = {"total": 0.0, "items": [1.0]}

    def f(x: Any) -> Any:
        for i in range(len(x)):
            held["total"] = held["total"] + x[i]
            held["items"].append(x[i])
            held[i] = x[i]
        return held["total"]

    with pytest.raises(NotImplementedError):
        rg.compile(f)(X.copy())
    assert held == {"total": 0.0, "items": [1.0]}
