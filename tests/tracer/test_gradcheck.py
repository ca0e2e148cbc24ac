"""gradcheck, gradgradcheck, check_grads: every op passes, wrong derivatives do not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import GradcheckError, GradientError, ShapeError
from retrograde.ir.op import CONTROL, OPS, Kind, NoDerivative, Op, Sample
from retrograde.tracer import dispatch
from retrograde.tracer.tensor import Tensor


def is_double(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def samples(op: Op) -> list[Sample]:
    """Return the samples of an op that can be differentiated in double precision."""
    found = []
    for s in op.samples(np.random.default_rng(3)):
        if s.differentiable and any(map(is_double, s.args)):
            with np.errstate(all="ignore"):
                out = np.asarray(op.eager(*s.args, **s.attrs))
            if out.dtype == np.float64:
                found.append(s)
    return found


TRIED = {
    op.name: samples(op)
    for op in OPS.values()
    if op.kind not in CONTROL
    and not any(isinstance(d, NoDerivative) for d in op.derivatives)
}
TRIED = {name: found for name, found in TRIED.items() if found}


def applying(op: Op, s: Sample) -> Callable[..., Any]:
    """Return the op as a function of its arrays of doubles."""

    def f(*xs: Any) -> Any:
        left = iter(xs)
        operands = [next(left) if is_double(x) else x for x in s.args]
        return dispatch.apply(op, operands, s.attrs)

    return f


def doubles(s: Sample) -> list[Any]:
    return [x for x in s.args if is_double(x)]


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.parametrize("check", [rg.gradcheck, rg.gradgradcheck])
def test_every_op(name: str, check: Callable[..., bool]) -> None:
    for s in TRIED[name]:
        inputs = tuple(rg.tensor(x, requires_grad=True) for x in doubles(s))
        try:
            assert check(applying(OPS[name], s), inputs)
        except Exception as error:
            error.add_note(f"sample {s}")
            raise


# Twins of views are what the gradients of views are made of.
COMPILED = [n for n in TRIED if OPS[n].kind is not Kind.EXTERN and OPS[n].of is None]
GROUPS = [COMPILED[k : k + 10] for k in range(0, len(COMPILED), 10)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_compiled_gradients_of_every_op(names: Sequence[str]) -> None:
    """One kernel for a group of ops: compiling takes longer than checking."""
    chosen = [next((s for s in TRIED[n] if doubles(s)[0].size), None) for n in names]
    pairs = [(OPS[n], s) for n, s in zip(names, chosen, strict=True) if s is not None]

    def f(args: Any) -> Any:
        total = 0.0
        for (op, s), operands in zip(pairs, args, strict=True):
            out = dispatch.apply(op, operands, s.attrs)
            total = total + np.sum(np.cos(out))
        return total

    args = [list(s.args) for _, s in pairs]
    value, eager = rg.value_and_grad(f)(args)
    same, compiled = rg.value_and_grad(rg.compile(f))(args)
    np.testing.assert_allclose(same, value)
    for group, wanted in zip(compiled, eager, strict=True):
        for got, want in zip(group, wanted, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- gradcheck


def vector(n: int = 3) -> Tensor:
    return rg.tensor(np.linspace(0.5, 2.0, n), requires_grad=True)


def test_both_jacobians_and_the_worst_entry_are_shown() -> None:
    with pytest.raises(GradcheckError) as caught:
        rg.gradcheck(lambda x: (x.sum(), x * x.detach()), vector())
    message = str(caught.value)
    assert "the Jacobian of output 1, f64[3], in input 0, f64[3]" in message
    assert "numerical:\n[[1. " in message
    assert "analytical:\n[[0.5 " in message
    assert (
        "3 of 9 entries differ; the worst is [2, 2], output[2] in input[2]" in message
    )
    assert "analytical 2, numerical 4" in message
    assert __file__ in message


def test_the_answer_can_be_false() -> None:
    def f(x: Any) -> Any:
        return x * x.detach()

    assert not rg.gradcheck(f, vector(), raise_exception=False)
    assert rg.gradcheck(f, vector(), atol=10.0, raise_exception=False)


@pytest.mark.parametrize("make", [lambda f: f, rg.compile], ids=["eager", "compiled"])
def test_several_inputs_and_outputs(make: Callable[..., Any]) -> None:
    f = make(lambda x, k, y: (np.sin(x) * y[0], (x * y).sum(), k))
    inputs = (vector(), 3, rg.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert rg.gradcheck(f, inputs)
    assert rg.gradgradcheck(f, inputs)


def test_in_place_programs_and_views() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y[1:] *= y[:-1]
        y.reshape(3, 1)[0, 0] = x[2]
        return y

    with rg.allow_mutation_on_saved_tensors():
        assert rg.gradcheck(f, vector())
        assert rg.gradgradcheck(f, vector())


def test_complex_numbers_count_twice() -> None:
    z = rg.tensor(np.array([1.0 + 2.0j, 3.0 - 1.0j]), requires_grad=True)
    assert rg.gradcheck(lambda z: np.exp(z) * z[::-1], z)
    with pytest.raises(GradcheckError, match=r"output\[1\].real in input\[1\].real"):
        rg.gradcheck(lambda z: z * z.detach(), z)


def test_zero_dimensional_and_empty_inputs() -> None:
    assert rg.gradcheck(lambda x: x * x, rg.tensor(2.0, requires_grad=True))
    assert rg.gradcheck(
        lambda x: x.sum() * 3.0, rg.tensor(np.zeros((0, 2)), requires_grad=True)
    )


def test_outputs_without_a_gradient_are_held_to_be_constant() -> None:
    assert rg.gradcheck(lambda x: rg.tensor([1.0, 2.0]), vector())
    with pytest.raises(GradcheckError, match="numerical"):
        rg.gradcheck(lambda x: x.detach() * 2, vector())


def test_inputs_that_cannot_be_checked() -> None:
    with pytest.raises(GradientError, match=r"no input requires a gradient: i64\[2\]"):
        rg.gradcheck(lambda x: x * 2.0, rg.tensor([1, 2]))
    with pytest.raises(GradientError, match="no input requires a gradient"):
        rg.gradcheck(lambda x: x * 2.0, rg.tensor([1.0, 2.0]))
    wide = rg.from_numpy(np.broadcast_to(np.ones(1), (3,))).requires_grad_()
    with pytest.raises(ShapeError, match="has a dimension with stride 0"):
        rg.gradcheck(lambda x: x * 2.0, wide)


def test_single_precision_is_warned_of() -> None:
    x = rg.tensor(np.ones(2, np.float32), requires_grad=True)
    with pytest.warns(UserWarning, match=r"f32\[2\], not double precision"):
        rg.gradcheck(lambda x: x * 2, x, eps=1e-2, atol=1e-3)


def test_a_backward_pass_that_changes_is_found() -> None:
    state = [0.0]

    def hook(g: Any) -> Any:
        state[0] += 1e-7
        return g + state[0]

    def f(x: Any) -> Any:
        y = x * 2
        y.register_hook(hook)
        return y

    with pytest.raises(GradcheckError, match="not deterministic"):
        rg.gradcheck(f, vector())
    assert rg.gradcheck(f, vector(), nondet_tol=1e-3)


def test_wrong_second_derivatives_are_found() -> None:
    """The gradient is right, but nothing tells that it depends on x."""

    def f(x: Any) -> Any:
        y = x * x.detach()
        y.register_hook(lambda g: g * 2)
        return y - (x * x.detach()).detach() + (x * x).detach()

    assert rg.gradcheck(f, vector())
    with pytest.raises(GradcheckError, match="numerical"):
        rg.gradgradcheck(f, vector())


def test_the_gradients_of_the_outputs_may_be_given() -> None:
    ct = rg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert rg.gradgradcheck(lambda x: x**3, vector(), ct)
    with pytest.raises(GradcheckError, match="no output requires a gradient"):
        rg.gradgradcheck(lambda x: x.detach(), vector())


# ---------------------------------------------------------------- check_grads


def recurrence(x: Any, more: Any, k: int) -> Any:
    y = np.zeros(4)
    for i in range(1, 4):
        y[i] = y[i - 1] * x[i] + more["a"] * np.sin(x[i - 1])
    return y, {"total": (y * k).sum()}


POINT = (np.linspace(0.5, 2.0, 4), {"a": 2.0}, 3)


def test_any_order_of_an_eager_function() -> None:
    rg.check_grads(recurrence, POINT, order=3)


def test_both_modes_of_a_compiled_function() -> None:
    rg.check_grads(rg.compile(recurrence), POINT, order=1)


def test_second_order_of_a_compiled_function() -> None:
    rg.check_grads(rg.compile(lambda x: np.exp(x) * x[::-1]), (POINT[0],), order=2)


def test_tensors_and_single_precision() -> None:
    rg.check_grads(lambda x: np.sin(x) * x, (vector(),), order=2)
    rg.check_grads(lambda x: np.sin(x) * x, (np.ones(3, np.float32),), order=2)


def stopped(x: Any) -> Any:
    return x * (x.detach() if isinstance(x, Tensor) else x)


@pytest.mark.parametrize(
    ("modes", "named"), [(("fwd",), "fwd"), (("rev",), "rev"), (("rev", "fwd"), "rev")]
)
def test_a_wrong_derivative_is_named(modes: tuple[str, ...], named: str) -> None:
    with pytest.raises(GradcheckError, match=f"check_grads: {named} gives"):
        rg.check_grads(stopped, (np.ones(3),), order=1, modes=modes)


def wrong_later(x: Any) -> Any:
    """The square, of which the second derivative is lost."""
    if not isinstance(x, Tensor):
        return x * x
    y = x * x.detach()
    y.register_hook(lambda g: g * 2)
    return y


def test_the_order_of_a_wrong_derivative_is_named() -> None:
    rg.check_grads(wrong_later, (np.ones(3),), order=1, modes=("rev",))
    with pytest.raises(GradcheckError, match="rev of rev gives"):
        rg.check_grads(wrong_later, (np.ones(3),), order=2, modes=("rev",))


def test_a_kink_is_named() -> None:
    with pytest.raises(GradcheckError, match="one-sided slopes differ"):
        rg.check_grads(np.abs, (np.zeros(1),), order=1)


def test_unknown_modes() -> None:
    with pytest.raises(ValueError, match="modes are 'fwd' and 'rev'"):
        rg.check_grads(np.sin, (1.0,), order=1, modes=("forward",))
