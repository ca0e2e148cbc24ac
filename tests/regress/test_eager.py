"""Programs whose eager values or gradients were once wrong, or lost in silence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import DTypeError, GradientBreakError, UnsupportedError

X = np.array([0.3, -0.7, 1.2])
V = np.array([1.0, 2.0, 3.0])


def leaf(*values: complex) -> rg.Tensor:
    return rg.tensor(np.array(values), requires_grad=True)


# ---------------------------------------------------------------- NumPy functions


def test_the_method_compress_takes_the_condition() -> None:
    x = leaf(1.0, 2.0, 3.0)
    y = x.compress([False, True, True])
    assert np.array_equal(y.detach().numpy(), [2.0, 3.0])
    (y * y).sum().backward()
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), [0.0, 4.0, 6.0])
    rows = rg.tensor(np.arange(6.0).reshape(2, 3)).compress([False, True], axis=0)
    assert np.array_equal(rows.numpy(), [[3.0, 4.0, 5.0]])


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("n", "m"), [(2, 6), (6, 2), (3, 3), (1, 4), (4, 5)])
def test_correlate_with_the_longer_array_second(mode: Any, n: int, m: int) -> None:
    a, v = np.arange(1.0, n + 1), np.arange(1.0, m + 1) ** 2
    x, y = leaf(*a), leaf(*v)
    got = np.correlate(x, y, mode)  # type: ignore[arg-type]
    assert np.allclose(got.detach().numpy(), np.correlate(a, v, mode))  # type: ignore[attr-defined]
    assert rg.gradcheck(lambda s, t: np.correlate(s, t, mode), (x, y))


@pytest.mark.parametrize(
    "f",
    [np.linalg.norm, np.cov, lambda z: np.correlate(z, z), lambda z: np.vdot(z, z)],
)
def test_what_needs_a_conjugate_refuses_complex_tensors(
    f: Callable[[Any], Any],
) -> None:
    with pytest.raises(UnsupportedError, match="complex tensors"):
        f(rg.tensor(np.array([1 + 2j, 3j])))


def test_put_along_axis_into_a_plain_array() -> None:
    plain, index = np.zeros(3), rg.tensor(np.array([2, 0]))
    np.put_along_axis(plain, index, V[:2], 0)  # type: ignore[arg-type]
    assert np.array_equal(plain, [2.0, 0.0, 1.0])
    with pytest.raises(GradientBreakError, match="put_along_axis"):
        np.put_along_axis(plain, np.array([0, 1]), leaf(1.0, 2.0), 0)  # type: ignore[arg-type]
    assert np.array_equal(plain, [2.0, 0.0, 1.0])


# ---------------------------------------------------------------- `.grad`


def test_an_assigned_gradient_is_a_tensor_of_the_same_dtype() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(TypeError, match="has type ndarray"):
        x.grad = np.ones(2)  # type: ignore[assignment]
    with pytest.raises(DTypeError, match="dtype float32"):
        x.grad = rg.tensor(np.ones(2, np.float32))
    assert x.grad is None


def test_a_deep_copy_has_its_own_gradient() -> None:
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    assert x.grad is not None
    assert y.grad is not None
    y.grad += 1
    assert np.array_equal(y.grad.numpy(), [3.0, 5.0])
    assert np.array_equal(x.grad.numpy(), [2.0, 4.0])


# ---------------------------------------------------------------- vjp and linearize


def test_results_may_be_written_before_the_pull() -> None:
    value, pullback = rg.vjp(np.exp, X)
    value *= 0
    assert np.allclose(pullback(V)[0], V * np.exp(X))
    value, push = rg.linearize(lambda x: 1 / x, X)
    value[:] = 7
    assert np.allclose(push(V), -V / X**2)


def test_an_argument_that_is_a_result_may_be_written() -> None:
    (same, _), pullback = rg.vjp(lambda x: (x, x * x), X)
    same[:] = 0
    assert np.allclose(pullback((None, V))[0], 2 * X * V)


@pytest.mark.parametrize("apply", ["vjp", "linearize", "hvp"])
def test_tangents_and_cotangents_have_gradients(apply: str) -> None:
    v = leaf(*V)
    if apply == "vjp":
        (out,) = rg.vjp(lambda x: x**3, X)[1](v)
    elif apply == "linearize":
        out = rg.linearize(lambda x: x**3, X)[1](v)
    else:
        (out,) = rg.hvp(lambda x: (x**4).sum() / 4, (X,), (v,))
    out.sum().backward()
    assert v.grad is not None
    assert np.allclose(v.grad.numpy(), 3 * X**2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_tensor_gets_its_gradient(compiled: bool) -> None:
    a = leaf(*V)

    def f(x: Any) -> Any:
        return (x * x * a).sum()

    value, g = rg.value_and_grad(rg.compile(f) if compiled else f)(X)
    (value + g.sum()).backward()
    assert a.grad is not None
    assert np.allclose(a.grad.numpy(), X * X + 2 * X)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("apply", [rg.vjp, rg.linearize])
def test_arguments_that_are_tensors_may_be_written(apply: Any, compiled: bool) -> None:
    def f(x: Any) -> Any:
        return x**3

    a = leaf(*V)
    b = a * 1
    _, derivative = apply(rg.compile(f) if compiled else f, b)
    b *= 0
    out = derivative(V)
    out = out[0] if apply is rg.vjp else out
    assert np.allclose(out.detach().numpy(), 3 * V**3)
    out.sum().backward()
    assert a.grad is not None
    assert np.allclose(a.grad.numpy(), 6 * V * V)


class Counter:
    """A function that changes what it captures."""

    def __init__(self) -> None:
        self.array = V.copy()
        self.number = 2.0
        self.tensor = rg.tensor(np.ones(3))
        self.seen: list[Any] = []

    def __call__(self, x: Any) -> Any:
        self.array[0] = self.array[0] + x[1]
        self.number = self.number + 1.0
        self.tensor[1] = self.tensor[1] * 2.0
        self.seen.append(self.number)
        return x * self.array * self.number * self.tensor


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("apply", [rg.vjp, rg.linearize])
def test_derivatives_are_those_of_the_state_then(apply: Any, compiled: bool) -> None:
    f = Counter()
    _, derivative = apply(rg.compile(f.__call__) if compiled else f.__call__, X)
    array = np.array([V[0] + X[1], V[1], V[2]])
    jacobian = 3.0 * np.diag(array * [1, 2, 1])
    jacobian[0, 1] = 3.0 * X[0]
    want = jacobian.T @ V if apply is rg.vjp else jacobian @ V

    def check() -> None:
        out = derivative(V)
        out = out[0] if apply is rg.vjp else out
        assert np.allclose(out.numpy() if isinstance(out, rg.Tensor) else out, want)

    check()
    assert float(f.number) == 3.0  # it was called once
    assert len(f.seen) == 1
    assert np.allclose(f.array, array)
    f.array[:] = 0
    f.number = 5.0
    f.seen.clear()
    if compiled:  # eagerly, what was saved of a Tensor is checked
        f.tensor[2] = 9.0
    check()
    assert not f.array.any()
    assert (f.number, f.seen) == (5.0, [])
    last = 9.0 if compiled else 1.0
    assert np.array_equal(f.tensor.detach().numpy(), [1.0, 2.0, last])


# ---------------------------------------------------------------- Functions


class TwoParts(rg.Function):
    """Returns an array and a view of it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x * 2
        return y, y[:1]

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        g = g.copy()
        g[:1] += h
        return g * 2


def test_outputs_in_the_same_memory_are_apart() -> None:
    x = leaf(1.0, 2.0)
    y, first = TwoParts.apply(x)
    y *= 3
    (y.sum() + first.sum()).backward()
    assert np.array_equal(first.detach().numpy(), [2.0])
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), [8.0, 6.0])


class PlainSquare(rg.Function):
    """Keeps plain arrays over the memory of its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x.numpy()
        ctx.y = np.exp(ctx.x)
        return ctx.y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.y + 0 * ctx.x


def test_arrays_on_the_context_are_those_of_the_call() -> None:
    x = leaf(1.0, 2.0)
    b = x * 1
    y = PlainSquare.apply(b)
    y += 5
    b *= np.nan
    y.sum().backward()
    assert x.grad is not None
    assert np.allclose(x.grad.numpy(), np.exp([1.0, 2.0]))


def test_ufuncs_of_two_results_take_out() -> None:
    x = leaf(*X)
    whole, rest = rg.tensor(np.zeros(3)), rg.tensor(np.zeros(3))
    got = np.divmod(x, 0.5, out=(whole, rest))  # type: ignore[call-overload]
    assert got[0] is whole
    assert np.allclose(rest.detach().numpy(), X % 0.5)
    (rest * V).sum().backward()
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), V)
    with pytest.raises(UnsupportedError, match="where"):
        np.modf(x, where=np.array([True, False, True]))
    with pytest.raises(GradientBreakError, match="divmod"):
        np.divmod(x, 0.5, out=(np.zeros(3), np.zeros(3)))
