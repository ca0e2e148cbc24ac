"""Whole programs with loops that gave something else than NumPy, or were refused."""

from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import UnsupportedError

from .test_loops import agree

X = np.array([0.3, -0.4, 0.9, 0.2, -0.7])
M = np.arange(12.0).reshape(4, 3) / 7 - 0.5


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")


class Holder:
    def __init__(self, x: Any) -> None:
        self.x, self.steps = x, 0


class Node:
    def __init__(self, value: Any, rest: Any) -> None:
        self.value, self.rest = value, rest


# Python objects in loops -------------------------------------------------------------


def attribute_of_a_local_object(x: Any) -> Any:
    h = Holder(x)
    for _ in range(len(x)):
        h.x = h.x * 0.5 + 1.0
        if h.x[0] > 1.2:
            h.steps += 1
    return h.x * h.steps


def items_at_the_front(x: Any) -> Any:
    out: list[Any] = []
    total = 0.0
    for v in x:
        total += v
        out.insert(0, total)
    return np.array(out)


def first_item_is_special(x: Any) -> Any:
    out: list[Any] = []
    for v in x:
        if not out:
            v = v * 2
        out.append(v)
    return np.array(out)


def array_written_after_it_was_appended(x: Any) -> Any:
    out = []
    a = x.copy()
    for _ in range(4):
        a += 1
        out.append(a)
    return np.stack(out)


def array_passed_on_and_written_after_the_loop(x: Any) -> Any:
    out = []
    p = x * 1.0
    for _ in range(4):
        p = p * 0.5
        out.append(p)
    p += 1
    return np.stack(out)


def rows_written_after_the_loop(x: Any) -> Any:
    rows = [r for r in x.reshape(-1, 1)]
    for r in rows:
        r[0] *= 2
    return x


def linked_list(x: Any) -> Any:
    chain = None
    for k in range(len(x[:1])):
        chain = Node(x[k], chain)
    total = 0.0
    while chain is not None:
        total = total + chain.value
        chain = chain.rest
    return total


# Ints --------------------------------------------------------------------------------


def bits_of_sizes(x: Any) -> Any:
    n, total, k = len(x) & ~1, 0.0, 1
    while k < n:
        for i in range(0, n, k << 1):
            total += x[i] * x[min(i ^ k, n)] + x[~i]
        k <<= 1
    return total * (n >> 1) + divmod(17, n)[1]


# Names and ways out ------------------------------------------------------------------


def bound_where_the_loop_is_left(x: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        for j in range(i):
            if x[j] > x[i]:
                hit, sign = j, 1.0
                break
        else:
            hit, sign = -1, x[i]
        total += sign * x[hit] * hit
    return total


def first_bound_in_a_loop_that_is_left(x: Any) -> Any:
    for steps in range(1000):  # noqa: B007
        y = np.cos(x)
        change = np.max(np.abs(y - x))
        if change < 1e-2:
            break
        x = y
    return y * change * steps


def nothing_yet(x: Any) -> Any:
    best = None
    for v in x:
        if v > 5.0:
            break
        if best is None or v > best:
            best = v
    return best


def bound_on_one_way(x: Any) -> Any:
    for v in x:
        if v < 0:
            r = v
            break
    found: dict[str, Any] = {}
    if x[0] > 0:
        found["first"] = x[0]
    return r * len(found)


def removed_on_one_way(x: Any) -> Any:
    d = {"a": 2.0 * x[0], "b": x[1]}
    if x[0] < 0:
        del d["a"]
    return next(iter(d.values()))


def a_loop_that_never_runs(x: Any) -> Any:
    short, n, total = x[:1], 1, 0.0
    while n > 1:
        n //= 2
        short[:n] += short[n : 2 * n]
    for _ in range(len(short) - 1):
        total += x[len(x)]
    return total + short[0]


def all_indices(x: Any) -> Any:
    a, total = np.outer(x, x), 0.0
    for i, j in np.ndindex(a.shape):
        a[i, j] *= i - j
    for (i, j), v in np.ndenumerate(a[1:]):
        total += v * v * i * j
    return total


def constant_items(x: Any) -> Any:
    a = np.zeros((3, 2))
    for i in range(len(x)):
        a[0] = 0, 1
        a[1] = x[i], i
        a[[0, 2]] = [2, 3], [4, 5]
    return a


# Memory ------------------------------------------------------------------------------


def flat_assigned(x: Any) -> Any:
    a = np.zeros((2, len(x)))
    for k in range(len(x)):
        a.flat = x[0] * k
        x[k] += a[0, k]
    return x


@pytest.mark.parametrize(
    "f",
    [
        attribute_of_a_local_object,
        items_at_the_front,
        first_item_is_special,
        array_written_after_it_was_appended,
        array_passed_on_and_written_after_the_loop,
        rows_written_after_the_loop,
        linked_list,
        bits_of_sizes,
        bound_where_the_loop_is_left,
        first_bound_in_a_loop_that_is_left,
        nothing_yet,
        bound_on_one_way,
        removed_on_one_way,
        a_loop_that_never_runs,
        all_indices,
        constant_items,
        flat_assigned,
    ],
)
def test_a_program_is_that_of_numpy(f: Any) -> None:
    agree(f, X)


def test_a_long_list_of_shared_rows_is_refused_only_where_they_are_written() -> None:
    def read(x: Any) -> Any:
        rows, backwards = [], []
        for i in range(len(x)):
            rows.append(x[i])
            backwards.append(x[-i])
        return np.stack(rows) * np.stack(backwards)

    def written(x: Any) -> Any:
        rows = [r for r in x]
        x += 1
        return np.stack(rows)

    long = np.ones((200, 1))
    agree(read, long)
    with pytest.raises(UnsupportedError, match="append a copy"):
        rg.compile(written)(long)
    assert long[0, 0] == 1


def newton(a: Any, x: Any) -> Any:
    steps = 0
    while True:
        gap = x * x - a
        if abs(gap) < 1e-10:
            return x
        x = x - gap / (2 * x)
        steps += 1
        if steps > 50:
            raise ValueError("no root")


def roots(x: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        assert x[i] >= 0, f"item {i} is {x[i]}"
        x[i] = np.sqrt(x[i])
        total += x[i]
    return total


def test_exceptions_in_loops_are_raised_where_they_would_be() -> None:
    agree(newton, 2.0, 1.0)
    long = np.linspace(0.1, 1.0, 200)
    agree(roots, long)
    compiled = rg.compile(roots)
    np.testing.assert_allclose(compiled(long.copy()), np.sqrt(long).sum())
    long[150] = -1.0
    ours, theirs = long.copy(), long.copy()
    with pytest.raises(AssertionError, match=r"item 150 is -1.0"):
        compiled(ours)
    with pytest.raises(AssertionError):
        roots(theirs)
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="no root"):
        rg.compile(newton)(-2.0, 1.0)
