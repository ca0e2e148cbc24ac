"""jvp, linearize, jacobian, hessian, hvp, elementwise_grad: right in both modes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import retrograde as rg
from retrograde.differences import jacobians
from retrograde.ir.errors import DTypeError, GradientError, RetrogradeError

MODES = {"eager": lambda f: f, "compiled": rg.compile}


@pytest.fixture(params=list(MODES))
def mode(request):
    return MODES[request.param]


def vector(n=4):
    return np.linspace(0.5, 2.0, n)


def differences(f, *xs, eps=1e-6):
    """Return the Jacobian of `f` in each argument, of result shape + argument shape."""
    shape = np.shape(f(*[np.copy(x) for x in xs]))
    (found,) = jacobians(lambda moved: [f(*moved)], xs, eps)
    return [j.reshape(shape + np.shape(x)) for j, x in zip(found, xs, strict=True)]


def sweep(x):
    """In place, through views, and a recurrence."""
    y = np.zeros(4)
    y[:2] = x[:2] * x[2]
    y[1:] += np.sin(x[:-1])
    for i in range(1, 4):
        y[i] *= y[i - 1]
    return y


def branching(x, y):
    if x.sum() > 2.0:
        return x * y[::-1]
    return np.cumsum(x) - y


def relaxation(x):
    while x.sum() < 20.0:
        x = x * 1.5 + np.sin(x)
    return x


def loss(x):
    x[1:] *= x[:-1]
    return np.sum(np.exp(-x) * x[::-1] ** 2)


CASES = {
    "in place": (sweep, (vector(),)),
    "branches": (branching, (vector(), vector() + 1)),
    "the other branch": (branching, (vector() / 10, vector() + 1)),
    "while": (relaxation, (vector(),)),
    "a matrix": (lambda a: a @ a.T, (np.arange(6.0).reshape(2, 3),)),
    "the argument": (lambda x: x, (vector(),)),
    "a view": (lambda x: x.reshape(2, 2).T, (vector(),)),
    "a row of one": (lambda x: x[1:2] * x[0], (vector(),)),
    "a constant": (lambda x: np.ones(3), (vector(),)),
    "0-d": (lambda x: x * x, (np.array(3.0),)),
    "a scalar": (lambda x: np.sin(x) * x, (np.float64(3.0),)),
    "a scalar result": (lambda x: (x**2).sum(), (vector(),)),
    "empty": (lambda x: x * 2, (np.zeros(0),)),
    "empty rows": (lambda x: x.sum(axis=1), (np.zeros((3, 0)),)),
    "nothing": (lambda x: x[:0], (vector(),)),
}


COMPILED = ["in place", "branches", "a view", "0-d", "a scalar", "empty", "nothing"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("eager", n) for n in CASES] + [("compiled", n) for n in COMPILED],
)
def test_jacobians_and_tangents(kind, name):
    mode, (f, args) = MODES[kind], CASES[name]
    argnums = tuple(range(len(args)))
    want = differences(f, *args)
    got = rg.jacobian(mode(f), argnums)(*args)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-7)
    tangents = tuple(
        np.asarray(np.cos(x)) if isinstance(x, np.ndarray) else np.cos(x) for x in args
    )
    value, pushed = rg.jvp(mode(f), args, tangents)
    np.testing.assert_allclose(value, f(*[np.copy(x) for x in args]))
    pairs = zip(want, tangents, strict=True)
    moved = sum(np.tensordot(w, t, np.ndim(t)) for w, t in pairs)
    assert np.shape(pushed) == np.shape(moved)
    np.testing.assert_allclose(pushed, moved, rtol=1e-6, atol=1e-7)


def test_arguments_are_left_alone(mode):
    x, v = vector(), np.ones(4)
    f = mode(loss)
    rg.jvp(f, (x,), (v,))
    rg.linearize(f, x)[1](v)
    rg.hessian(f)(x)
    rg.hvp(f, (x,), (v,))
    np.testing.assert_array_equal(x, vector())
    np.testing.assert_array_equal(v, np.ones(4))


def test_a_captured_array_is_written_once(mode):
    state = np.zeros(4)

    def f(x):
        state[...] += x
        return state * x

    got = rg.jacobian(mode(f))(vector())
    np.testing.assert_allclose(got, np.diag(2 * vector()))
    np.testing.assert_allclose(state, vector())
    rg.jvp(mode(f), (vector(),), (vector(),))
    np.testing.assert_allclose(state, 2 * vector())


# ---------------------------------------------------------------- structures


@dataclass
class Params:
    w: Any
    n: int


class Pair(NamedTuple):
    a: Any
    b: Any


def test_a_jacobian_has_the_result_s_structure_outside(mode):
    def f(p, more):
        return {"out": [p.w * more["k"][0], (p.w[:2] ** p.n).sum()]}

    p, more = Params(vector(), 3), {"k": [2.0]}
    got = rg.jacobian(mode(f), argnums=(0, 1))(p, more)
    first, second = got["out"]
    assert isinstance(first[0], Params)
    np.testing.assert_allclose(first[0].w, 2 * np.eye(4))
    assert first[0].n is None
    np.testing.assert_allclose(first[1]["k"][0], vector())
    np.testing.assert_allclose(second[0].w, [*(3 * vector()[:2] ** 2), 0, 0])
    np.testing.assert_allclose(second[1]["k"][0], 0.0)
    single = rg.jacobian(mode(f), argnums=-1)(p, more)
    np.testing.assert_allclose(single["out"][0]["k"][0], vector())


def test_a_hessian_of_containers_is_one_in_the_other(mode):
    def f(p):
        return p.a**2 * p.b.sum()

    h = rg.hessian(mode(f))(Pair(3.0, vector()))
    assert isinstance(h, Pair)
    assert isinstance(h.a, Pair)
    np.testing.assert_allclose(h.a.a, 2 * vector().sum())
    np.testing.assert_allclose(h.a.b, np.full(4, 6.0))
    np.testing.assert_allclose(h.b.a, np.full(4, 6.0))
    np.testing.assert_allclose(h.b.b, np.zeros((4, 4)))


def test_a_hessian_in_several_arguments_is_a_tuple_of_tuples(mode):
    def f(x, k, y):
        return (x**k * y).sum()

    h = rg.hessian(mode(f), argnums=(0, 2))(vector(), 3, vector())
    np.testing.assert_allclose(h[0][0], np.diag(6 * vector() ** 2))
    np.testing.assert_allclose(h[0][1], np.diag(3 * vector() ** 2))
    np.testing.assert_allclose(h[1][0], np.diag(3 * vector() ** 2))
    np.testing.assert_allclose(h[1][1], np.zeros((4, 4)))


def test_tangents_have_the_structure_of_their_arguments(mode):
    def f(p, more):
        return {"y": p.w * more[0], "n": p.n}

    args = (Params(vector(), 3), [2.0])
    value, tangent = rg.jvp(mode(f), args, (Params(np.ones(4), None), [0.5]))
    np.testing.assert_allclose(value["y"], 2 * vector())
    np.testing.assert_allclose(tangent["y"], 2 + 0.5 * vector())
    assert tangent["n"] is None
    _, tangent = rg.jvp(mode(f), args, (None, [0.5]))
    np.testing.assert_allclose(tangent["y"], 0.5 * vector())
    _, tangent = rg.jvp(mode(f), args, (None, None))
    np.testing.assert_allclose(tangent["y"], np.zeros(4))


def test_aux_is_passed_through(mode):
    def f(x):
        return x**3, {"twice": 2 * x, "n": 7}

    def g(x):
        return (x**3).sum(), {"twice": 2 * x, "n": 7}

    x = vector()
    j, aux = rg.jacobian(mode(f), has_aux=True)(x)
    np.testing.assert_allclose(j, np.diag(3 * x**2))
    h, more = rg.hessian(mode(g), has_aux=True)(x)
    np.testing.assert_allclose(h, np.diag(6 * x))
    value, tangent, last = rg.jvp(mode(f), (x,), (np.ones(4),), has_aux=True)
    np.testing.assert_allclose((value, tangent), (x**3, 3 * x**2))
    value, push, other = rg.linearize(mode(f), x, has_aux=True)
    np.testing.assert_allclose((value, push(np.ones(4))), (x**3, 3 * x**2))
    for a in (aux, more, last, other):
        np.testing.assert_allclose(a["twice"], 2 * x)
        assert a["n"] == 7


# ---------------------------------------------------------------- hessians


def test_the_hessian_of_an_in_place_program(mode):
    (want,) = differences(lambda x: rg.grad(loss)(x), vector())
    got = rg.hessian(mode(loss))(vector())
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    (product,) = rg.hvp(mode(loss), (vector(),), (np.cos(vector()),))
    np.testing.assert_allclose(product, want @ np.cos(vector()), rtol=1e-6, atol=1e-7)


def test_the_product_with_a_hessian_mixes_arguments(mode):
    def f(x, k, s):
        return (x**2 * s).sum() * k

    x = vector()
    dx, dk, ds = rg.hvp(mode(f), (x, 2, 3.0), (np.ones(4), None, 0.5))
    np.testing.assert_allclose(dx, 12.0 + 2 * x)
    assert dk is None
    np.testing.assert_allclose(ds, 4 * x.sum())
    dx, _, ds = rg.hvp(mode(f), (x, 2, 3.0), (None, None, 1.0))
    np.testing.assert_allclose(dx, 4 * x)
    np.testing.assert_allclose(ds, 0.0)


def test_hessians_of_loops(mode):
    def f(x):
        total = 0.0
        y = np.ones(4)
        for i in range(1, 4):
            y[i] = y[i - 1] * x[i] + np.sin(x[i - 1])
            if y[i] > 1.0:
                total += y[i] ** 2
        return total

    (want,) = differences(lambda x: rg.grad(f)(x), vector())
    np.testing.assert_allclose(
        rg.hessian(mode(f))(vector()), want, rtol=1e-6, atol=1e-6
    )
    (product,) = rg.hvp(mode(f), (vector(),), (np.ones(4),))
    np.testing.assert_allclose(product, want.sum(1), rtol=1e-6, atol=1e-6)


def test_third_derivatives(mode):
    third = rg.jacobian(rg.hessian(mode(lambda x: (x**4).sum())))(vector(3))
    want = np.zeros((3, 3, 3))
    want[range(3), range(3), range(3)] = 24 * vector(3)
    np.testing.assert_allclose(third, want)


def test_the_rows_of_a_compiled_jacobian_are_one_loop():
    f = rg.compile(lambda x: np.sin(x) * x[::-1])
    text = rg.jacobian(f).ir(vector(), stage="dce")
    assert text.count(" for ") == 1
    before, loop = text.split(" = for ")
    assert "cos %x" in before
    assert "cos " not in loop
    assert " for " not in rg.jacobian(f).ir(vector(), stage="vectorize")
    assert rg.jacobian(f) is rg.jacobian(f)
    big = rg.jacobian(f)(vector(50))
    np.testing.assert_allclose(big, rg.jacobian(f.fn)(vector(50)))
    assert rg.jacobian(f).cache_info().specialisations == 1


def test_a_compiled_tangent_needs_no_pullback():
    f = rg.compile(lambda x: np.cumsum(np.exp(x)))
    rg.jvp(f, (vector(),), (vector(),))
    (pushed,) = (g for key, g in f.derived.items() if key[0] == "jvp")
    text = pushed.ir((vector(),), (vector(),), stage="dce")
    assert text.count("exp ") == 1
    assert text.count("cumsum ") == 2


def test_the_tangents_of_a_loop_are_carried():
    def f(x):
        for _ in range(100):
            x = x + 0.01 * np.sin(x)
        return x

    g = rg.compile(f)
    _, tangent = rg.jvp(g, (vector(),), (np.ones(4),))
    np.testing.assert_allclose(tangent, rg.jacobian(g)(vector()).sum(1))
    (pushed,) = (g for key, g in g.derived.items() if key[0] == "jvp")
    assert pushed.scratch_bytes((vector(50),), (vector(50),)) < 100 * 50 * 8


# ---------------------------------------------------------------- the others


def test_a_push_can_be_called_again(mode):
    x = vector()
    value, push = rg.linearize(mode(lambda x, s: (x * s, x.sum())), x, 3.0)
    x[...] = 0.0
    np.testing.assert_allclose(value[0], 3 * vector())
    for scale in (1.0, 2.0):
        dy, dt = push(np.full(4, scale), None)
        np.testing.assert_allclose(dy, np.full(4, 3 * scale))
        np.testing.assert_allclose(dt, 4 * scale)
    dy, dt = push(None, 1.0)
    np.testing.assert_allclose(dy, vector())
    np.testing.assert_allclose(dt, 0.0)


def test_elementwise_derivatives(mode):
    def f(x, y):
        return np.tanh(x) * y

    x, y = vector(), vector() + 1
    np.testing.assert_allclose(rg.elementwise_grad(mode(f))(x, y), y / np.cosh(x) ** 2)
    both = rg.elementwise_grad(mode(f), argnums=(1, 0))(x, y)
    np.testing.assert_allclose(both[0], np.tanh(x))
    np.testing.assert_allclose(both[1], y / np.cosh(x) ** 2)
    second = rg.elementwise_grad(rg.elementwise_grad(mode(np.sin)))
    np.testing.assert_allclose(second(x), -np.sin(x))
    np.testing.assert_allclose(second(2.0), -np.sin(2.0))


# ---------------------------------------------------------------- dtypes, nesting


def test_single_precision_stays_single(mode):
    x = vector().astype("f4")
    f = mode(lambda x: np.sin(x) * 0.5)
    g = mode(lambda x: np.sum(np.sin(x) * 0.5))
    assert rg.jacobian(f)(x).dtype == np.float32
    assert rg.jvp(f, (x,), (x,))[1].dtype == np.float32
    assert rg.hessian(g)(x).dtype == np.float32
    assert rg.hvp(g, (x,), (x,))[0].dtype == np.float32
    assert rg.elementwise_grad(f)(x).dtype == np.float32


def test_transforms_nest_in_any_order(mode):
    f = mode(lambda x: np.sum(np.sin(x) * x[::-1]))

    def g(x):
        return rg.jvp(f, (x,), (x**2,))[1] + rg.hessian(f)(x).sum()

    (want,) = differences(g, vector())
    np.testing.assert_allclose(rg.grad(g)(vector()), want, rtol=1e-6)
    np.testing.assert_allclose(rg.grad(mode(g))(vector()), want, rtol=1e-6)
    pushed = rg.jvp(mode(g), (vector(),), (np.ones(4),))[1]
    np.testing.assert_allclose(pushed, want.sum(), rtol=1e-6)


def test_tensors_stay_on_the_tape(mode):
    f = mode(lambda x: x**3)
    x = rg.tensor(vector(), requires_grad=True)
    _, tangent = rg.jvp(f, (x,), (rg.tensor(np.ones(4)),))
    tangent.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * vector())
    x.grad = None
    rg.jacobian(f)(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * vector())


# ---------------------------------------------------------------- errors


def test_a_hessian_needs_a_scalar(mode):
    with pytest.raises(GradientError, match="must be one real number, not f64"):
        rg.hessian(mode(lambda x: x * 2))(vector())


def test_integers_have_no_derivative(mode):
    f = mode(lambda x: (x * 2).sum())
    for transform in (rg.jacobian, rg.hessian, rg.elementwise_grad):
        with pytest.raises(DTypeError, match=r"argument 0 of .* is i64"):
            transform(f)(np.arange(3))
    with pytest.raises(DTypeError, match=r"the result is i64") as caught:
        rg.jacobian(mode(lambda x: np.argsort(x)))(vector())
    assert "has_aux" in str(caught.value)


def bad_tangents(x):
    return {
        "of an integer": ((np.arange(3),), (np.ones(3),), "Only floating point"),
        "another shape": ((x,), (np.ones(3),), "has the shape of its argument"),
        "a number": ((x,), (1.0,), "has the shape of its argument"),
        "single precision": ((x,), (np.ones(4, "f4"),), r"v.astype\('float64'\)"),
        "integers": ((x,), (np.ones(4, int),), r"v.astype\('float64'\)"),
        "a list": ((x,), ([1.0, 2.0],), "has the dtype of its argument"),
        "parts": (([x, x],), ([x],), "the tangent has 1 parts"),
    }


@pytest.mark.parametrize("name", bad_tangents(vector()))
def test_tangents_that_do_not_fit(mode, name):
    primals, tangents, message = bad_tangents(vector())[name]
    with pytest.raises(RetrogradeError, match=message) as caught:
        rg.jvp(mode(lambda x: x[0] * 2.0), primals, tangents)
    assert __file__ in str(caught.value)


def test_primals_and_tangents_come_in_tuples():
    with pytest.raises(TypeError, match="primals must be a tuple"):
        rg.jvp(np.sin, vector(), vector())
    with pytest.raises(TypeError, match="1 arguments, 2 tangents"):
        rg.jvp(np.sin, (vector(),), (vector(), vector()))
    with pytest.raises(TypeError, match="a transform needs a function"):
        rg.jacobian(3)
    with pytest.raises(ValueError, match="names an argument twice"):
        rg.hessian(np.sum, argnums=(0, 0))
    with pytest.raises(GradientError, match=r"returns \(result, aux\)"):
        rg.jacobian(np.sin, has_aux=True)(vector())
