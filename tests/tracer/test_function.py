"""Functions with a derivative of their own: on the tape, transformed, compiled."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import GradientError, MutationError, UncompiledWarning

START = np.array([1.0, 2.0, 3.0])


class Cube(rg.Function):
    """Has a derivative that is not its own, so that one sees whose is used."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 5 * x**2


class Exp(rg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.y = np.exp(x)
        return ctx.y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * ctx.y


class Scaled(rg.Function):
    """Writes into its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, k: Any) -> Any:
        ctx.k = k
        x *= k
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 10 * g * ctx.k, None


class Several(rg.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.set_materialize_grads(False)
        i, m = (x > 1).astype(int), x - 1
        ctx.mark_non_differentiable(m)
        ctx.save_for_backward(x, y)
        return x * y, i, m, x + y, 7

    @staticmethod
    def backward(ctx: Any, g: Any, gi: Any, gm: Any, h: Any, k: Any) -> Any:
        assert gi is None
        assert gm is None
        assert k is None
        x, y = ctx.saved_tensors
        a, b = (0 * x, 0 * y) if g is None else (g * y, g * x)
        return (a, b) if h is None else (a + 3 * h, b + 4 * h)


WEIGHTS = np.array([2.0, 3.0, 4.0])


class Loops(rg.Function):
    """Loops and masks, captured arrays, and writes into arrays of its own."""

    @staticmethod
    def forward(x: Any, k: float = 2) -> Any:
        y = np.zeros_like(x)
        for i in range(len(x)):
            y[i] = x[i] * i * WEIGHTS[i] * k
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def vjp(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        out = np.zeros_like(x)
        for i in range(len(x)):
            out[i] = g[i] * i * 2 + x[i] * y[i]
        m = out > 0.5
        out[0] += g[1] * WEIGHTS[0]
        return out * np.sum(out[m]), None


def simple(x: Any) -> Any:
    return np.sum(Cube.apply(x) * x)


def exponential(x: Any) -> Any:
    return np.sum(Exp.apply(np.sin(x)) * x)


def written(x: Any) -> Any:
    y = x * 1.0
    Scaled.apply(y, 3.0)
    Scaled.apply(y[1:], 2.0)
    return np.sum(y * y)


def several(x: Any) -> Any:
    p, i, m, q, k = Several.apply(x, x + 1)
    return np.sum(p * i * k + m) + np.sum(q * q)


def loops(x: Any) -> Any:
    return np.sum(Loops.apply(x) * x)


def in_a_loop(x: Any) -> Any:
    y = x.copy()
    for i in range(1, len(x)):
        y[i] = Exp.apply(0.1 * y[i - 1] * x[i]) + y[i]
    return np.sum(y)


def in_branches(x: Any) -> Any:
    y = Cube.apply(x) if np.sum(x) > 0 else Exp.apply(x)
    return np.sum(y * x)


def unrecorded(x: Any) -> Any:
    with rg.no_grad():
        y = Cube.apply(x)
    return np.sum(y * x)


def checkpointed(x: Any) -> Any:
    return np.sum(rg.checkpoint(lambda y: Exp.apply(y) * y)(0.1 * x))


PROGRAMS = [
    simple,
    exponential,
    written,
    several,
    loops,
    in_a_loop,
    in_branches,
    unrecorded,
    checkpointed,
]


def on_the_tape(f: Callable[..., Any], x: Any) -> Any:
    t = rg.tensor(x, requires_grad=True)
    with rg.allow_mutation_on_saved_tensors():
        f(t).backward()
    assert t.grad is not None
    return t.grad.numpy()


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_all_modes_agree(f: Callable[..., Any]) -> None:
    want = on_the_tape(f, START)
    np.testing.assert_allclose(rg.grad(f)(START), want)
    np.testing.assert_allclose(rg.grad(rg.compile(f))(START), want)
    np.testing.assert_allclose(rg.compile(f)(START), f(START.copy()))
    np.testing.assert_allclose(on_the_tape(rg.compile(f), START), want)


LINEAR = [f for f in PROGRAMS if f is not loops]  # its rule is not, in the cotangent


@pytest.mark.parametrize("f", LINEAR, ids=lambda f: f.__name__)
def test_tangents_are_those_of_the_rule(f: Callable[..., Any]) -> None:
    v = np.array([0.3, -0.7, 1.1])
    want = np.sum(on_the_tape(f, START) * v)
    np.testing.assert_allclose(rg.jvp(f, (START,), (v,))[1], want)
    np.testing.assert_allclose(rg.jvp(rg.compile(f), (START,), (v,))[1], want)


@pytest.mark.parametrize("f", [simple, exponential, written, loops, in_a_loop])
def test_second_derivatives_agree(f: Callable[..., Any]) -> None:
    def first(x: Any) -> Any:
        return np.sum(rg.grad(f)(x) * np.cos(x))

    want = rg.grad(first)(START)
    np.testing.assert_allclose(rg.grad(rg.compile(first))(START), want)


def test_derivatives_of_any_order_are_those_of_the_rule() -> None:
    def first(x: Any) -> Any:
        return np.sum(rg.grad(lambda x: np.sum(Exp.apply(x)))(x))

    def second(x: Any) -> Any:
        return np.sum(rg.grad(first)(x))

    for k, f in enumerate((first, second), 2):
        want = 2.0**k * np.exp(START)  # each order asks the rule once more
        np.testing.assert_allclose(rg.grad(f)(START), want)
        np.testing.assert_allclose(rg.grad(rg.compile(f))(START), want)


def test_the_rule_is_a_part_of_the_program() -> None:
    text = rg.compile(simple).ir(START, stage="capture")
    assert "custom %t.1 of %x params(" in text
    assert "custom" not in rg.compile(simple).ir(START, stage="simplify")


def test_captured_arrays_of_a_rule_are_read_at_every_call() -> None:
    global WEIGHTS
    g = rg.grad(rg.compile(loops))
    before = WEIGHTS
    try:
        for factor in (1, 2):
            WEIGHTS = before * factor
            np.testing.assert_allclose(g(START), rg.grad(loops)(START))
    finally:
        WEIGHTS = before


@numba.njit
def squared(a: Any) -> Any:
    out = np.empty_like(a)
    for i in range(a.size):
        out[i] = a[i] ** 2
    return out


class Opaque(rg.Function):
    """Runs code that cannot be traced."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return squared(x.numpy())

    @staticmethod
    @rg.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g.numpy() * ctx.saved_tensors[0].numpy()


def opaque(x: Any) -> Any:
    return np.sum(Opaque.apply(x) * x)


def test_compiled_code_in_a_function() -> None:
    want = 3 * START**2
    np.testing.assert_allclose(on_the_tape(opaque, START), want)
    np.testing.assert_allclose(rg.grad(opaque)(START), want)
    assert isinstance(Opaque.apply(START), np.ndarray)
    h = rg.compile(opaque)
    with pytest.warns(
        UncompiledWarning, match="Opaque, a custom Function, cannot be t"
    ):
        assert h(START) == np.sum(START**3)
    h(START)  # one warning
    with pytest.warns(UncompiledWarning, match=r"test_function\.py"):
        np.testing.assert_allclose(rg.grad(h)(START), want)


def test_a_rule_with_effects_runs_uncompiled() -> None:
    seen: list[float] = []

    class Noted(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(1.0)
            return g

    g = rg.grad(rg.compile(lambda x: np.sum(Noted.apply(x))))
    with pytest.warns(UncompiledWarning, match="backward of Noted changes seen"):
        g(START)
    seen.clear()
    g(START)
    assert seen == [1.0]


def test_once_differentiable_in_compiled_programs() -> None:
    class Once(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @rg.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    def first(x: Any) -> Any:
        return np.sum(rg.grad(lambda x: np.sum(Once.apply(x)))(x))

    assert rg.compile(first)(START) == 12
    for f in (first, rg.compile(first)):
        with pytest.raises(GradientError, match="trying to differentiate twice"):
            rg.grad(f)(START)


def test_memory_of_inputs_that_is_returned() -> None:
    class Reversed(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -g

    def used(x: Any) -> Any:
        y = x * 1
        return np.sum(Reversed.apply(y) * y * y)

    def into_the_input(x: Any) -> Any:
        y = x * 1
        z = Reversed.apply(y)
        y += 1
        return np.sum(z)

    def into_the_output(x: Any) -> Any:
        z = Reversed.apply(x * 1)
        z += 1
        return np.sum(z)

    for form in (lambda f: f, rg.compile):
        np.testing.assert_allclose(rg.grad(form(used))(START), START**2)
        with pytest.raises(MutationError):
            rg.grad(form(into_the_input))(START)
    with pytest.raises(MutationError, match="is a view and is being modified"):
        rg.grad(lambda x: into_the_output(x * 1))(START * 1)


def test_errors_of_rules_in_compiled_programs() -> None:
    class Bad(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, rule: Any) -> Any:
            ctx.rule = rule
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ctx.rule(g)

    for rule, text in (
        (lambda g: g, "incorrect number of gradients"),
        (lambda g: (g[:1], None), "returned an invalid gradient at index 0"),
        (lambda g: (g, g), "different than None at position 2"),
        (lambda g: ("no", None), "expected Variable or None"),
    ):
        f = rg.compile(lambda x, rule=rule: np.sum(Bad.apply(x, rule)))
        with pytest.raises(GradientError, match=text):
            f(START)


def test_complex_gradients_are_conjugated_at_the_boundary() -> None:
    class Times(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * (1 + 2j)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * (1 - 2j)

    grads = []
    for f in (Times.apply, lambda x: x * (1 + 2j)):
        z = rg.tensor(np.array([1 + 1j, 2.0]), requires_grad=True)
        f(z).backward(rg.tensor(np.array([1.0 + 0j, 1j])))
        assert z.grad is not None
        grads.append(z.grad.tolist())
    assert grads[0] == grads[1]


def test_graphs_die_by_reference_count() -> None:
    gc.disable()
    try:
        a = rg.tensor(START, requires_grad=True)
        y = Exp.apply(Cube.apply(a))
        alive = [weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.ctx)]
        z = Scaled.apply(y * 1, 2.0)
        alive += [weakref.ref(z.grad_fn), weakref.ref(y)]
        del y, z
        assert [r() for r in alive] == [None] * 4
    finally:
        gc.enable()


def test_values_that_forward_makes_with_numpy() -> None:
    class Plain(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            data = x.numpy()
            return data, float(data.sum()), np.float64(data[0]), 3

        @staticmethod
        def backward(ctx: Any, g: Any, s: Any, h: Any, k: Any) -> Any:
            return g + s + h * np.array([1.0, 0, 0])

    a = rg.tensor(START, requires_grad=True)
    same, total, first, k = Plain.apply(a)
    assert not np.shares_memory(same.detach().numpy(), a.detach().numpy())
    assert k == 3
    (np.sum(same) + 10 * total + 100 * first).backward()
    assert a.grad is not None
    assert a.grad.tolist() == [111, 11, 11]
