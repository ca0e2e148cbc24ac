"""Short loops of the program run inside the nest that they repeat: no bit changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import close

import retrograde as rg
from retrograde.codegen import nests, variants
from retrograde.codegen.interchange import interchange


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many loops of the program stand in nests, one entry per program."""
    found: list[int] = []

    def noted(p: nests.Program) -> None:
        interchange(p)
        loops = [s for s in nests.every(p.body) if isinstance(s, nests.Loop)]
        nest = [s for s in loops if not s.ordered]
        inside = {t for s in nest for t in nests.every(s.body)}
        found.append(sum(s.ordered and s in inside for s in loops))

    monkeypatch.setattr(variants, "interchange", noted)
    return found


# x has three axes, of 5 elements or more but the first; w has (5, 6, 7).


def windows(x: Any, w: Any) -> Any:
    n, height, width = x.shape
    h, v = height - 2, width - 2
    out = np.empty((n, h, 9, v), x.dtype)
    for i in range(3):
        for j in range(3):
            out[:, :, 3 * i + j] = x[:, i : i + h, j : j + v]
    return out


def back(x: Any, w: Any) -> Any:
    d = np.zeros((x.shape[0] + 2, x.shape[1], x.shape[2] + 4), x.dtype)
    for i in range(3):
        for j in range(4, -1, -2):
            d[i : i + x.shape[0], :, j : j + x.shape[2]] += x * w[i, j, 0]
    return d


def weighted(x: Any, w: Any) -> Any:
    m = x.shape[2] - 2
    out = np.zeros((*x.shape[:2], m), x.dtype)
    for k in range(3):
        out += w[0, 0, k] * x[:, :, k : k + m]
    return out


def along(x: Any, w: Any) -> Any:
    """An iteration writes part of what is its own, and reads another part."""
    for k in range(1, 5):
        x[:, 1:3, k:] -= x[:, 3:5, :-k]
    return x


MOVED = (windows, back, weighted, along)


def next_row(x: Any, w: Any) -> Any:
    """A row is read by the iteration of another row."""
    for _ in range(3):
        x[1:] = x[1:] + x[:-1]
    return x


def rows_overlap(x: Any, w: Any) -> Any:
    d = np.zeros(x.shape[0] + 2, x.dtype)
    for k in range(3):
        d[k : k + x.shape[0]] *= 0.5
        d[k : k + x.shape[0]] += x[:, 0, k]
    return d


def tied(x: Any, w: Any) -> Any:
    """A number goes from one iteration of the loop to the next."""
    s = 1.0
    for k in range(3):
        x[:, :, k:] += s
        s = s * w[0, 0, k] - 1.0
    return x, s


def summed(x: Any, w: Any) -> Any:
    sums = np.zeros(3, x.dtype)
    for k in range(3):
        sums[k] = np.sum(x[:, :, k:] * w[0, 0, k])
    return sums


def many(x: Any, w: Any) -> Any:
    for k in range(1000):
        x[:, :, k % 3 :] *= 1.001
    return x


STAY = (next_row, rows_overlap, tied, summed, many)
SHAPES = [(5, 6, 7), (7, 5, 5), (0, 5, 6), (5, 6, 100)]


def arguments(shape: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1.0, 1.0, shape), rng.uniform(-1.0, 1.0, (5, 6, 7))]


def flat(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def check(f: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    compiled = rg.compile(f)
    for shape in shapes:
        args = arguments(shape)
        want = flat(f(*copy.deepcopy(args)))
        got = flat(compiled(*args))
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            close(a, b, f"result {k} of {shape}")


@pytest.mark.parametrize("f", MOVED)
def test_values_are_numpys_where_loops_moved(
    moved: list[int], f: Callable[..., Any]
) -> None:
    check(f, SHAPES)
    assert any(moved)


@pytest.mark.parametrize("f", STAY)
def test_loops_stay_where_iterations_of_the_nest_meet(
    moved: list[int], f: Callable[..., Any]
) -> None:
    check(f, SHAPES[:2])
    assert not any(moved)


@pytest.mark.parametrize("f", [*MOVED, *STAY[:-1]])
def test_gradients_are_those_of_eager_mode(
    moved: list[int], f: Callable[..., Any]
) -> None:
    def loss(x: Any, w: Any) -> Any:
        total = 0.0
        for k, r in enumerate(flat(f(x * 1.0, w))):
            total = total + np.sum(np.sin(r + k))
        return total

    args = arguments((5, 6, 7))
    value, grads = rg.value_and_grad(loss, argnums=(0, 1))(*args)
    got, found = rg.value_and_grad(rg.compile(loss), argnums=(0, 1))(*args)
    for k, (a, b) in enumerate(zip([got, *found], [value, *grads], strict=True)):
        close(a, b, f"result {k}")
    assert f is not windows or any(moved)
