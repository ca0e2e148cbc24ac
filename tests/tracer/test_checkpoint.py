"""`rg.checkpoint`: values, gradients and effects are those of the function."""

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import GradientError, MutationError, UnsupportedError

X = np.linspace(0.2, 1.1, 4)
W = np.linspace(0.9, 0.3, 4)


def inner(x: Any, w: Any) -> Any:
    return np.sin(np.exp(x) * w)


def straight(x: Any, w: Any) -> Any:
    return np.sum(call(inner, call(inner, x, w), w))


def nested(x: Any, w: Any) -> Any:
    def two(y: Any) -> Any:
        return call(inner, call(inner, y, w), w) * y

    return np.sum(call(two, np.cos(x)))


def captures(x: Any, w: Any) -> Any:
    y = x * w
    z = np.sqrt(x)
    held = {"z": z, "list": [w, 2.5]}

    def f(v: Any) -> Any:
        return np.sin(v * y) * held["z"] + held["list"][0] ** held["list"][1]

    return np.sum(call(f, z) * y)


def writes_its_argument(x: Any, w: Any) -> Any:
    y = x * 2.0

    def f(a: Any) -> Any:
        a[1:] *= np.sin(a[:-1] * w[1:])
        return np.exp(a) * a

    z = call(f, y)
    return np.sum(z * y)


def writes_through_views(x: Any, w: Any) -> Any:
    y = np.outer(x, w)

    def f(row: Any, whole: Any) -> Any:
        row *= np.sin(whole[0])
        whole[2] = row * whole[3]
        return whole[:, 1:], row

    part, row = call(f, y[1], y)
    part *= 3.0
    return np.sum(np.tanh(y)) + np.sum(row * part[1, 0])


def writes_what_it_captures(x: Any, w: Any) -> Any:
    y = np.exp(x)

    def f() -> None:
        y[:2] = np.sin(y[2:]) * w[:2]

    call(f)
    return np.sum(y * y)


def returns_its_argument(x: Any, w: Any) -> Any:
    y = x * w

    def f(a: Any) -> Any:
        a += np.sin(a)
        return a, a[::2], np.sum(a)

    a, half, total = call(f, y)
    half *= 2.0
    assert a is y
    return np.sum(y * a) + total


def keeps_values_in_variables(x: Any, w: Any) -> Any:
    kept: list[Any] = []
    state = SimpleNamespace(last=None)

    def f(a: Any) -> Any:
        b = np.sin(a)
        kept.append(b * w)
        state.last = np.cos(b)
        return b * b

    y = call(f, x)
    y = call(f, y)
    return np.sum(y * kept[0] * kept[1] * state.last)


def numbers_and_containers(x: Any, w: Any) -> Any:
    def f(pair: Any, *, scale: float) -> Any:
        a, b = pair["ab"]
        return {"sum": np.sum(np.sin(a) * b) * scale, "a": a * a}

    out = call(f, {"ab": (x, w)}, scale=3.0)
    return out["sum"] * np.sum(out["a"])


def changed_variables(x: Any, w: Any) -> Any:
    y = x
    for k in range(1, 4):
        y = call(lambda a: np.sin(a * k) * w + k, y)  # noqa: B023
    return np.sum(y)


PROGRAMS = [
    straight,
    nested,
    captures,
    writes_its_argument,
    writes_through_views,
    writes_what_it_captures,
    returns_its_argument,
    keeps_values_in_variables,
    numbers_and_containers,
    changed_variables,
]


def plainly(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return f(*args, **kwargs)


def again(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return rg.checkpoint(f)(*args, **kwargs)


call: Callable[..., Any] = plainly


@pytest.fixture
def checkpointed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a function that computes with checkpoints."""

    def compute(thunk: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "call", again)
            return thunk()

    return compute


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


def gradients(program: Any) -> Any:
    value, grads = rg.value_and_grad(program, argnums=(0, 1))(X, W)
    return value, *grads


def second(program: Any) -> Callable[..., Any]:
    """Return a gradient of the gradient."""

    def slope(x: Any, w: Any) -> Any:
        dx, dw = rg.grad(program, argnums=(0, 1))(x, w)
        return np.sum(dx * w) + np.sum(dw * x)

    return rg.grad(slope, argnums=(0, 1))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_eager_gradients_are_the_same(program: Any, checkpointed: Any) -> None:
    same(checkpointed(lambda: gradients(program)), gradients(program))
    slopes = second(program)
    same(checkpointed(lambda: slopes(X, W)), slopes(X, W))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_compiled_gradients_are_the_same(program: Any, checkpointed: Any) -> None:
    same(checkpointed(lambda: gradients(rg.compile(program))), gradients(program))


@pytest.mark.parametrize("program", [nested, writes_its_argument])
def test_compiled_second_derivatives(program: Any, checkpointed: Any) -> None:
    slopes = second(program)
    same(checkpointed(lambda: rg.compile(slopes)(X, W)), slopes(X, W))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_backward_through_tensors(program: Any, checkpointed: Any) -> None:
    def both() -> Any:
        x, w = (rg.tensor(v, requires_grad=True) for v in (X, W))
        with rg.allow_mutation_on_saved_tensors():
            out = program(x, w)
            out.backward(retain_graph=True)
            out.backward()
        return out.detach(), x.grad, w.grad

    same(checkpointed(both), both())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_plain_arrays_and_no_grad(program: Any, checkpointed: Any) -> None:
    want = program(X.copy(), W.copy())
    assert checkpointed(lambda: program(X.copy(), W.copy())) == want
    with rg.no_grad():
        x = rg.tensor(X, requires_grad=True)
        got = checkpointed(lambda: program(x, W))
    assert not got.requires_grad
    np.testing.assert_allclose(got, want)


# What is kept ---------------------------------------------------------------------


def test_the_graph_inside_is_let_go_and_made_again() -> None:
    made: list[Any] = []

    def f(a: Any) -> Any:
        b = np.exp(a)
        made.append(weakref.ref(b))
        return np.sin(b)

    x = rg.tensor(X, requires_grad=True)
    gc.disable()
    try:
        y = rg.checkpoint(f)(x)
        assert made[0]() is None
        assert y.grad_fn.name() == "CheckpointBackward"
        node = weakref.ref(y.grad_fn)
        y.sum().backward()
        assert len(made) == 1  # what the second run appends is undone
        del y
        assert node() is None
    finally:
        gc.enable()
    np.testing.assert_allclose(x.grad, np.cos(np.exp(X)) * np.exp(X))


def test_a_graph_is_used_once_unless_it_is_retained() -> None:
    x = rg.tensor(X, requires_grad=True)
    y = rg.checkpoint(np.sin)(x).sum()
    y.backward()
    with pytest.raises(GradientError, match="a second time"):
        y.backward()


def test_an_argument_that_is_written_later_is_noticed() -> None:
    x = rg.tensor(X, requires_grad=True)
    y = x * 1.0
    z = rg.checkpoint(np.exp)(y).sum()
    y += 1.0
    with pytest.raises(MutationError, match="modified by an inplace operation"):
        z.backward()


def test_a_captured_array_may_change_later() -> None:
    x, k = rg.tensor(X, requires_grad=True), W.copy()

    def f(a: Any) -> Any:
        return np.sin(a * k)

    y = rg.checkpoint(f)(x).sum()
    k[:] = 0.0
    y.backward()
    np.testing.assert_allclose(x.grad, np.cos(X * W) * W)
    np.testing.assert_array_equal(k, 0.0)


def test_hooks_see_each_gradient_once() -> None:
    seen = []
    x = rg.tensor(X, requires_grad=True)
    y = x * 2.0
    y.register_hook(lambda g: seen.append(np.asarray(g.detach())))
    rg.checkpoint(lambda a: a * y)(y).sum().backward()
    assert len(seen) == 1
    np.testing.assert_allclose(seen[0], 4 * X)


# What is refused ------------------------------------------------------------------


def test_random_numbers_inside_are_noticed() -> None:
    rng = np.random.default_rng(1)
    x = rg.tensor(X, requires_grad=True)
    y = rg.checkpoint(lambda a: a * rng.random())(x).sum()
    with pytest.raises(GradientError) as caught:
        y.backward()
    assert caught.value.what == (
        "checkpoint: <lambda> computes something else when it runs again"
    )


def test_the_global_random_state_is_that_of_the_first_run() -> None:
    x = rg.tensor(X, requires_grad=True)
    y = rg.checkpoint(lambda a: a * np.random.rand())(x)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, y.detach() / X)


def test_a_plain_array_may_not_be_written_inside() -> None:
    x, out = rg.tensor(X, requires_grad=True), np.zeros(4)

    def f(a: Any) -> Any:
        out[0] = 1.0
        return np.sin(a)

    with pytest.raises(MutationError, match=r"checkpoint: f64\[4\], a plain array"):
        rg.checkpoint(f)(x)


def test_a_leaf_may_not_be_written_inside() -> None:
    x = rg.tensor(X, requires_grad=True)

    def f(a: Any) -> None:
        a += 1.0

    with pytest.raises(MutationError, match="a leaf Variable that requires grad"):
        rg.checkpoint(f)(x)


def test_a_size_that_is_data_stays_inside_a_compiled_checkpoint() -> None:
    def f(x: Any) -> Any:
        return np.sum(rg.checkpoint(lambda a: a[a > 0.5])(x))

    with pytest.raises(UnsupportedError) as caught:
        rg.compile(f)(X)
    assert caught.value.what == (
        "checkpoint: a result f64[c], whose size c the data decides"
    )


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="checkpoint needs a function, not int"):
        rg.checkpoint(3)  # type: ignore[arg-type]


# How it is used -------------------------------------------------------------------


class Model:
    def __init__(self, w: Any) -> None:
        self.w = w

    @rg.checkpoint
    def layer(self, x: Any, *, scale: float = 1.0) -> Any:
        """Apply the weights."""
        return np.tanh(x * self.w) * scale


def test_methods_and_attributes() -> None:
    def f(x: Any, w: Any) -> Any:
        model = Model(w)
        return np.sum(model.layer(model.layer(x), scale=2.0))

    def plain(x: Any, w: Any) -> Any:
        return np.sum(np.tanh(np.tanh(x * w) * w) * 2.0)

    same(gradients(f), gradients(plain))
    same(gradients(rg.compile(f)), gradients(plain))
    assert Model.layer.__doc__ == "Apply the weights."


def test_a_compiled_function_in_a_checkpoint() -> None:
    step = rg.compile(inner)

    def f(x: Any, w: Any) -> Any:
        return np.sum(rg.checkpoint(step)(x, w))

    want = gradients(lambda x, w: np.sum(inner(x, w)))
    same(gradients(f), want)
    same(gradients(rg.compile(f)), want)


def test_a_checkpoint_in_loops_and_branches() -> None:
    def f(x: Any, w: Any) -> Any:
        k = 0
        for i in range(1, len(x)):
            if np.sum(x) > 1.0:
                x[i:] = rg.checkpoint(lambda a: np.sin(a) * w[i])(x[i:])  # noqa: B023
            while k < i:
                w = rg.checkpoint(lambda a, b: np.cos(a * b))(w, x)
                k += 1
        return np.sum(x * w)

    def plain(x: Any, w: Any) -> Any:
        k = 0
        for i in range(1, len(x)):
            if np.sum(x) > 1.0:
                x[i:] = np.sin(x[i:]) * w[i]
            while k < i:
                w = np.cos(w * x)
                k += 1
        return np.sum(x * w)

    same(gradients(f), gradients(plain))
    same(gradients(rg.compile(f)), gradients(plain))


def test_only_what_enters_is_kept_by_a_compiled_gradient() -> None:
    def f(x: Any) -> Any:
        block = rg.checkpoint(lambda a: np.sin(np.exp(np.cos(a))))
        return np.sum(block(block(block(x))))

    joint = rg.grad(rg.compile(f)).stages(X)["dce"]
    names = [n.op.name for n in joint.nodes]
    assert names == ["checkpoint"] * 5  # the last one only as its reverse
    x = rg.compile(rg.value_and_grad(f)).stages(X)["dce"]
    assert [n.op.name for n in x.nodes].count("checkpoint") == 6
