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
        flat_assigned,
    ],
)
def test_a_program_is_that_of_numpy(f: Any) -> None:
    agree(f, X)


def test_a_long_list_of_shared_rows_is_refused_only_where_they_are_written() -> None:
    def read(x: Any) -> Any:
        return np.stack([r for r in x])

    def written(x: Any) -> Any:
        rows = [r for r in x]
        x += 1
        return np.stack(rows)

    long = np.ones((200, 1))
    agree(read, long)
    with pytest.raises(UnsupportedError, match="append a copy"):
        rg.compile(written)(long)
    assert long[0, 0] == 1
