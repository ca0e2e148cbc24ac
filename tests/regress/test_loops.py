"""Loops and branches that were refused, or gave something else than NumPy."""

from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.array([0.3, -0.4, 0.9, 0.2, -0.7])
A = np.linspace(-1.0, 1.0, 25).reshape(5, 5)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")


def agree(f: Any, *args: Any) -> None:
    """Hold a compiled function against NumPy, and its gradient against eager mode."""

    def fresh() -> list[Any]:
        return [a.copy() if isinstance(a, np.ndarray) else a for a in args]

    compiled, ours, theirs = rg.compile(f), fresh(), fresh()
    np.testing.assert_allclose(compiled(*ours), f(*theirs), rtol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    loss = lambda *xs: np.sum(np.sin(f(*xs)))  # noqa: E731
    floats = tuple(k for k, a in enumerate(args) if not isinstance(a, int))
    got = rg.grad(rg.compile(loss), argnums=floats)(*fresh())
    want = rg.grad(loss, argnums=floats)(*fresh())
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-12)


def test_an_int_argument_that_only_a_branch_passes_on() -> None:
    def f(x: Any, k: Any) -> Any:
        c = 0
        for i in range(len(x)):
            if x[i] > 0.5:
                for _ in range(i, len(x)):
                    c = c + k
            else:
                c += 1
        return x * c

    agree(f, X, 3)


def test_sizes_that_agree_in_every_iteration() -> None:
    def f(x: Any, a: Any) -> Any:
        n = a.shape[0]
        for j in range(len(a)):
            for v in x:
                x[0] = 0.1 * v * np.dot(x[: n - j], a[: n - j, 2])
        return x

    agree(f, X, A)


def test_the_direction_of_an_int_is_found_when_the_body_needs_it() -> None:
    def halved(x: Any, s: Any) -> Any:
        j = len(x)
        while j > 1:
            j = j // 2
            x[:j] += x[j : 2 * j]
            if x[0] > s:
                return s
        return x[0]

    def growing(x: Any, s: Any) -> Any:
        t = 0.0
        if s > 0.3:
            j = 0
            while j < 5 and t > -2.0:
                u = np.zeros(j + 1)
                u[0] += s * x[j]
                t += u.sum()
                j += 1
        return t

    agree(halved, X, 0.5)
    agree(halved, X, 9.0)
    agree(growing, X, 0.5)
    agree(growing, X, 0.1)


def test_an_array_that_is_returned_early_and_written_later() -> None:
    def f(x: Any, y: Any, s: Any) -> Any:
        for v in y:
            j = 0
            while j < 4:
                i = 0
                while i < 4 and x[i] < 5.0:
                    if v * y[i] > s:
                        return s, x
                    x[0] += v
                    i += 1
                j += 1
        x[1] *= 0.5
        return 0.0, x

    for s in (0.0, 0.1, 9.0):
        agree(lambda *args: f(*args)[0] * f(*args)[1], X, A[0], s)
        x = X.copy()
        assert rg.compile(f)(x, A[0], s)[1] is x


def test_a_counter_that_does_not_end_a_loop_alone() -> None:
    def both(x: Any, s: Any) -> Any:
        j = 0
        while j < 4 and s < 1.0:
            s = s * 1.5
            j += 1
        return x * s + j

    def either(x: Any, s: Any) -> Any:
        j = 0
        while not (j >= 4 or s > 1.0):
            s = s * 1.5
            j += 1
        return x * s + j

    for s in (0.1, 0.4, 2.0):
        agree(both, X, s)
        agree(either, X, s)


def test_bounds_of_a_counter_come_from_the_condition() -> None:
    def f(x: Any, a: Any) -> Any:
        n = len(a)
        j = 0
        while x[-2] < 0.6 and j < 4:
            a[:j, 0] = 0.5 * x[:j] + x[n - j :]
            x[-2] += 0.3
            j += 1
        return a

    agree(f, X, A)


def test_a_loop_that_was_short_once_may_be_long() -> None:
    def f(x: Any, a: Any) -> Any:
        n = len(a)
        j = 0
        while x[-2] < 0.6 and j < 4:
            for i in range(0, j, 2):
                a[i:, 0] += 0.1 * np.cumsum(x[i:])
            x[-2] += 0.1
            j += 1
        return a * n

    agree(f, X, A)


def test_arrays_of_sizes_that_are_equal_in_this_call_are_joined() -> None:
    def f(x: Any, a: Any, s: Any) -> Any:
        w = np.ones(len(a))
        for v in x:
            if v > s:
                w = x * s
        return w

    compiled = rg.compile(f)
    for s in (0.1, 9.0):
        np.testing.assert_allclose(compiled(X, A, s), f(X, A, s))
    agree(f, X, A, 0.1)


def test_a_numpy_number_on_the_left_of_a_comparison() -> None:
    def f(x: Any, s: Any) -> Any:
        t = np.sin(0.5)
        if t < s:
            x *= t
        if -t < s < t:
            x *= 2.0
        return x

    for s in (0.1, 0.9):
        agree(f, X, s)


def test_the_position_of_an_extremum_is_in_range() -> None:
    def f(x: Any, a: Any) -> Any:
        p = np.argmax(x)
        q = int(np.argmin(x)) // 2
        a[:p, 1] += x[len(x) - p :]
        a[q, q:] *= x[q:]
        return a

    agree(f, X, A)


def test_arithmetic_of_computed_integers_is_that_of_sizes() -> None:
    def f(x: Any, a: Any, p: Any) -> Any:
        for i in range(len(p)):
            q = p[i] * 2 - 1
            a[: q + 1, i] += x[: 1 + q]
        k = np.argmax(x)
        a[k + 1 :, 1] += x[k + 1 :]
        return a

    def written(x: Any, a: Any) -> Any:
        q = np.array(np.argmax(x))
        for i in range(len(x)):
            a[q:, 1] += x[i]
            q[...] = -i - 1
        a[:q, 0] += x[:q]
        q[...] = 2
        a[:q, 0] += x[:q]
        return a

    agree(lambda x, a: f(x, a, np.array([1, 2, 1])), X, A)
    agree(written, X, A)


def test_buffers_of_half_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any, a: Any) -> Any:
        n = len(x)
        for i in range(n):
            for j in range(0, i, 2):
                a[:j, 2] = np.flip(0.5 * (x[n - j :] * a[:j, 1]))
        return a

    monkeypatch.setenv("RETROGRADE_INTERP", "0")
    agree(f, X, A)


def test_ints_that_rise_beside_ints_that_fall() -> None:
    def f(x: Any, y: Any, s: Any) -> Any:
        w, c = 0.5 * x, 0
        j = len(x)
        while j > 1:
            j = j // 2
            x[:j] += 0.2 * x[j : 2 * j]
            i = len(x)
            while i > 1:
                i = i // 2
                x[:i] += 0.2 * x[i : 2 * i]
                for v in x[1:]:
                    if v > s:
                        return w * (y[0] - s) + c
                    c += 1
                    w[:] = 0.5 * (w[:] * v)
        return w * c

    for s in (0.5, 9.0):
        agree(f, X, A[0], s)


def test_a_return_that_facts_rule_out() -> None:
    def f(x: Any, a: Any, s: Any) -> Any:
        n = len(a)
        w, t, c, j = np.ones(n), x[0], 0, 0
        while s < t + 0.05 and j < 4:
            for i in range(0, j, 2):
                if i < n - 2:
                    break
                for k in range(i, n):
                    w[k] *= s
                    s -= 0.2 * s / (2.0 + x[-2] ** 2)
                    if c % 3 == k:
                        return float(k) * 0.2, x, w
                for _ in a[::-1]:
                    w[n - 1 - i] -= 0.1 * x[n - 1 - j]
            j += 1
        return t, x, w

    agree(lambda x, a, s: f(x, a, s)[0] * f(x, a, s)[2], X, A, -0.7)


def test_what_the_right_side_of_and_changes_is_changed_once() -> None:
    def f(x: Any) -> Any:
        calls = {"n": 0.0}

        def positive(v: Any) -> Any:
            calls["n"] = calls["n"] + 1.0
            return v > 0

        if x[0] > 0 and positive(x[1]):
            calls["n"] = calls["n"] + 10.0
        return calls["n"] * x[2]

    compiled = rg.compile(f)
    for x in (np.array([1.0, 2.0, 3.0]), np.array([1.0, -2.0, 3.0]), -np.ones(3)):
        np.testing.assert_allclose(compiled(x), f(x))
