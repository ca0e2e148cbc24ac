"""Every op through the tape: values, first and second derivatives, dtypes."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
from grouped import every

from retrograde.ir import ops  # noqa: F401 - defines the ops
from retrograde.ir.errors import GradientError
from retrograde.ir.op import CONTROL, OPS, Kind, NoDerivative, Op, Sample, Zero
from retrograde.tracer import autograd, dispatch
from retrograde.tracer.tensor import Tensor, tensor

STEP = 1e-6
Case: TypeAlias = tuple[Op, Sample]
CASES: list[Case] = [
    (op, s)
    for op in OPS.values()
    if op.kind not in CONTROL
    for s in op.samples(np.random.default_rng(3))
]


def name_of(case: Any) -> str:
    return str(case[0].name)


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def value(op: Op, s: Sample, args: Sequence[Any]) -> Any:
    with np.errstate(all="ignore"):
        return op.eager(*args, **s.attrs)


def inputs(s: Sample) -> tuple[list[Any], list[Tensor]]:
    """Return the operands with float arrays as leaves, and these leaves."""
    operands = [tensor(x, requires_grad=True) if is_float(x) else x for x in s.args]
    return operands, [x for x in operands if isinstance(x, Tensor)]


def loss(out: Any, weight: Any) -> Any:
    """Return a sum of the results that is not linear in them."""
    if isinstance(out, float):
        return np.sin(out) * weight[0]
    return np.sum(np.sin(out) * weight[: out.size].reshape(out.shape))


def moved(s: Sample, directions: Sequence[Any], step: float) -> list[Any]:
    left = iter(directions)
    return [np.asarray(x + step * next(left)) if is_float(x) else x for x in s.args]


@every(CASES, name_of)
def test_values_and_marks_are_numpys(op: Op, s: Sample) -> None:
    want = value(op, s, s.args)
    with np.errstate(all="ignore"):
        out = dispatch.apply(op, s.args, s.attrs)
    assert isinstance(out, Tensor)
    np.testing.assert_array_equal(out._data, want)
    if not isinstance(out._data, int | float | bool | complex):
        assert out.dtype == want.dtype
        assert isinstance(out._data, np.ndarray) == isinstance(want, np.ndarray)


def smooth(op: Op, s: Sample) -> bool:
    return (
        s.differentiable
        and any(map(is_float, s.args))
        and np.asarray(value(op, s, s.args)).dtype == np.float64
        and not any(isinstance(d, NoDerivative) for d in op.derivatives)
    )


SMOOTH = [c for c in CASES if smooth(*c)]


@every(SMOOTH, name_of)
def test_gradients_agree_with_differences(op: Op, s: Sample) -> None:
    rng = np.random.default_rng(17)
    operands, leaves = inputs(s)
    weight = rng.normal(size=4096)
    autograd.backward(loss(dispatch.apply(op, operands, s.attrs), weight))
    directions = [rng.normal(size=x.shape) for x in leaves]
    up, down = (
        loss(value(op, s, moved(s, directions, h)), weight) for h in (STEP, -STEP)
    )
    got = sum(
        np.sum(x.grad._data * v)
        for x, v in zip(leaves, directions, strict=True)
        if x.grad is not None
    )
    np.testing.assert_allclose(got, (up - down) / (2 * STEP), rtol=2e-6, atol=2e-7)
    for x in leaves:
        assert x.grad is None or x.grad.shape == x.shape


@every(SMOOTH, name_of)
def test_second_derivatives_agree_with_differences(op: Op, s: Sample) -> None:
    rng = np.random.default_rng(19)
    operands, leaves = inputs(s)
    weight = rng.normal(size=4096)
    directions = [rng.normal(size=x.shape) for x in leaves]

    def slope(args: Sequence[Any], *, create: bool) -> Any:
        """Return the derivative along the directions."""
        wanted = [x for x in args if isinstance(x, Tensor)]
        out = loss(dispatch.apply(op, args, s.attrs), weight)
        grads = autograd.grad(out, wanted, create_graph=create, materialize_grads=True)
        return sum(
            np.sum(g * v)
            for g, v in zip(grads, directions, strict=True)
            if g is not None
        )

    first = slope(operands, create=True)
    got = 0.0
    if first.requires_grad:
        grads = autograd.grad(first, leaves, materialize_grads=True)
        got = sum(
            np.sum(g._data * v)
            for g, v in zip(grads, directions, strict=True)
            if g is not None
        )
    shifted = [inputs(Sample(tuple(moved(s, directions, h))))[0] for h in (STEP, -STEP)]
    up, down = (slope(args, create=False).item() for args in shifted)
    np.testing.assert_allclose(got, (up - down) / (2 * STEP), rtol=2e-5, atol=2e-6)


FLOAT32 = [
    (op, s)
    for op, s in CASES
    if any(isinstance(x, np.ndarray) and x.dtype == np.float32 for x in s.args)
    and s.differentiable
]


@every(FLOAT32, name_of)
def test_gradients_have_the_dtype_of_their_tensor(op: Op, s: Sample) -> None:
    operands = [
        tensor(x, requires_grad=True)
        if isinstance(x, np.ndarray) and x.dtype.kind == "f"
        else x
        for x in s.args
    ]
    out = dispatch.apply(op, operands, s.attrs)
    if not out.requires_grad:
        assert out.dtype.kind != "f"
        return
    autograd.backward(out.sum())
    for x in operands:
        if isinstance(x, Tensor) and x.grad is not None:
            assert (x.grad.dtype, x.grad.shape) == (x.dtype, x.shape)


def test_an_unknown_derivative_is_an_error() -> None:
    lacking = [
        (op, s)
        for op in OPS.values()
        if op.kind not in CONTROL
        and any(isinstance(d, NoDerivative) for d in op.derivatives)
        for s in op.samples(np.random.default_rng(0))
        if any(map(is_float, s.args))
    ]
    for op, s in lacking:
        operands, _ = inputs(s)
        out = dispatch.apply(op, operands, s.attrs)
        if isinstance(out, Tensor) and out.requires_grad:
            with pytest.raises(GradientError):
                out.sum().backward()


def test_views_are_real_views_and_copies_are_not() -> None:
    x = tensor(np.arange(6.0).reshape(2, 3))
    view = dispatch.apply(OPS["reshape"], (x,), {"shape": (6,)})
    copy = dispatch.apply(OPS["reshape"], (x.T,), {"shape": (6,)})
    assert (view._base is x, copy._base) == (True, None)
    view[0] = 9.0
    copy[1] = 7.0
    assert x.tolist() == [[9, 1, 2], [3, 4, 5]]
    assert (view._version, copy._version, x._version) == (1, 1, 1)
    for op, s in CASES:
        if op.kind is Kind.VIEW:
            t = tensor(s.args[0])
            v = dispatch.apply(op, (t, *s.args[1:]), s.attrs)
            shared = np.shares_memory(v._data, t._data)
            cut = isinstance(op.derivative(0), Zero)  # detached: no view of the graph
            assert (v._base is t) == shared or not v.size or cut
