"""Transforms: eager and compiled agree with differences and leave arguments alone."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import DTypeError, GradientError

MODES = {"eager": lambda f: f, "compiled": rg.compile}


@pytest.fixture(params=list(MODES))
def mode(request):
    return MODES[request.param]


def vector():
    return np.linspace(0.5, 2.0, 5)


def slope(f, x, h=1e-6):
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        a, b = x.copy(), x.copy()
        a[k] += h
        b[k] -= h
        out[k] = (f(a) - f(b)) / (2 * h)
    return out


def heat(u, k, steps=4):
    for _ in range(steps):
        u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u**2)


def test_gradient_of_an_in_place_loop(mode):
    u = vector()
    value, (du, dk) = rg.value_and_grad(mode(heat), argnums=(0, 1))(u, 0.1)
    np.testing.assert_allclose(value, heat(vector(), 0.1))
    np.testing.assert_allclose(du, slope(lambda v: heat(v, 0.1), vector()), rtol=1e-6)
    want = (heat(vector(), 0.1 + 1e-6) - heat(vector(), 0.1 - 1e-6)) / 2e-6
    np.testing.assert_allclose(dk, want, rtol=1e-6)
    np.testing.assert_array_equal(u, vector())


def test_recurrence_that_overwrites_what_it_read(mode):
    def f(a):
        b = np.ones(5)
        for i in range(1, 5):
            b[i] = b[i - 1] * a[i]
        return b.sum()

    got = rg.grad(mode(f))(vector())
    np.testing.assert_allclose(got, slope(f, vector()), rtol=1e-6, atol=1e-8)


def test_argnums_in_any_order_and_negative(mode):
    f = mode(lambda x, y: (x * y**2).sum())
    x, y = vector(), vector() + 1
    a, b = rg.grad(f, argnums=(1, 0))(x, y)
    np.testing.assert_allclose(a, 2 * x * y)
    np.testing.assert_allclose(b, y**2)
    np.testing.assert_allclose(rg.grad(f, argnums=-1)(x, y), 2 * x * y)


def test_containers_as_arguments(mode):
    @dataclass
    class Params:
        w: np.ndarray
        b: float

    def f(p, more):
        return (p.w * p.b + more["k"][0]).sum()

    g = rg.grad(mode(f), argnums=(0, 1))(Params(vector(), 3.0), {"k": [vector()]})
    np.testing.assert_allclose(g[0].w, 3.0)
    np.testing.assert_allclose(g[0].b, vector().sum())
    np.testing.assert_allclose(g[1]["k"][0], 1.0)


def test_aux_is_passed_through(mode):
    def f(x):
        return (x**2).sum(), {"twice": 2 * x}

    (value, aux), g = rg.value_and_grad(mode(f), has_aux=True)(vector())
    np.testing.assert_allclose(value, (vector() ** 2).sum())
    np.testing.assert_allclose(aux["twice"], 2 * vector())
    np.testing.assert_allclose(g, 2 * vector())
    g, aux = rg.grad(mode(f), has_aux=True)(vector())
    np.testing.assert_allclose(g, 2 * vector())


def test_gradients_nest(mode):
    f = mode(lambda x: np.sum(np.sin(x) * x[::-1]))
    h = rg.grad(lambda x: rg.grad(f)(x)[1])(vector())
    k = rg.grad(mode(lambda x: rg.grad(f)(x)[1]))(vector())
    want = slope(lambda x: float(rg.grad(f)(x)[1]), vector())
    np.testing.assert_allclose(h, want, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(k, want, rtol=1e-5, atol=1e-8)
    third = rg.grad(rg.grad(rg.grad(mode(lambda t: t**4))))(2.0)
    np.testing.assert_allclose(third, 48.0)


def test_compiling_a_gradient_is_the_gradient_of_a_compiled_function():
    def f(x):
        return np.sum(np.exp(x) * x)

    a = rg.compile(rg.grad(f))(vector())
    b = rg.grad(rg.compile(f))(vector())
    np.testing.assert_array_equal(a, b)


def test_arrays_the_function_makes_take_part(mode):
    def f(x):
        a = np.array([x[0], x[1] * x[2], 1.0])
        b = np.full(3, x[3])
        c = np.zeros(3)
        c[1:] = x[:2]
        return np.sum([a.sum(), (b * c).sum()])

    got = rg.grad(mode(f))(vector())
    np.testing.assert_allclose(got, slope(f, vector()), rtol=1e-6)


def test_float_arguments_have_float_gradients(mode):
    g = rg.grad(mode(lambda s, x: (s * x).sum()))(2.0, np.ones(3, np.float32))
    assert np.ndim(g) == 0
    assert float(g) == 3.0


def test_f32_stays_f32(mode):
    g = rg.grad(mode(lambda x: np.sum(0.5 * np.sin(x) / 3)))(vector().astype("f4"))
    assert g.dtype == np.float32


def test_captured_arrays_are_written_once_after_the_gradient(mode):
    state = np.zeros(5)

    def f(x):
        state[...] += x
        return (state * x).sum()

    g = rg.grad(mode(f))
    np.testing.assert_allclose(g(vector()), 2 * vector())
    np.testing.assert_allclose(state, vector())
    np.testing.assert_allclose(g(vector()), 3 * vector())
    np.testing.assert_allclose(state, 2 * vector())


def test_independent_arguments_get_zeros(mode):
    g = rg.grad(mode(lambda x, y: x.sum()), argnums=(0, 1))(vector(), vector())
    np.testing.assert_array_equal(g[1], np.zeros(5))


def test_aliased_arguments_are_private_copies(mode):
    def f(x, y):
        x *= 2
        return (x * y).sum()

    x = vector()
    a, b = rg.grad(mode(f), argnums=(0, 1))(x, x)
    np.testing.assert_allclose(a, 2 * vector())
    np.testing.assert_allclose(b, 2 * vector())
    np.testing.assert_array_equal(x, vector())


# ---------------------------------------------------------------- vjp


def test_pullback_can_be_called_again(mode):
    value, pull = rg.vjp(mode(lambda x, y: (x * y, x.sum())), vector(), vector() + 1)
    np.testing.assert_allclose(value[0], vector() * (vector() + 1))
    for scale in (1.0, 2.0):
        dx, dy = pull((scale * np.ones(5), None))
        np.testing.assert_allclose(dx, scale * (vector() + 1))
        np.testing.assert_allclose(dy, scale * vector())
    dx, dy = pull((None, 1.0))
    np.testing.assert_allclose(dx, 1.0)
    np.testing.assert_allclose(dy, 0.0)


def test_finals_and_their_cotangents(mode):
    def f(x, y):
        x[1:] *= y[1:]
        return x.sum()

    x, y = vector(), vector() + 1
    (value, finals), pull = rg.vjp(mode(f), x, y, finals=True)
    want = x.copy()
    want[1:] *= y[1:]
    np.testing.assert_allclose(finals[0], want)
    np.testing.assert_allclose(finals[1], y)
    np.testing.assert_allclose(value, want.sum())
    np.testing.assert_array_equal(x, vector())
    dx, dy = pull((0.0, (np.ones(5), None)))
    np.testing.assert_allclose(dx, np.concatenate([[1.0], y[1:]]))
    np.testing.assert_allclose(dy, np.concatenate([[0.0], x[1:]]))


def test_hessian_vector_product(mode):
    def f(x):
        x[1:] += x[:-1] ** 2
        return np.sum(x**3)

    v = np.arange(5.0)

    def product(x):
        _, pull = rg.vjp(f, x)
        return np.sum(pull(1.0)[0] * v)

    got = rg.grad(mode(product))(vector())
    h = 1e-5
    g = rg.grad(f)
    want = (g(vector() + h * v) - g(vector() - h * v)) / (2 * h)
    np.testing.assert_allclose(got, want, rtol=1e-6)


# ---------------------------------------------------------------- errors


def test_integer_arguments_have_no_gradient(mode):
    f = mode(lambda n, x: (n * x).sum())
    with pytest.raises(DTypeError, match=r"argument 0 of .* is i64\[[3n]\]"):
        rg.grad(f)(np.arange(3), np.ones(3))


def test_the_result_must_be_a_scalar(mode):
    with pytest.raises(
        GradientError, match=r"must be one real number, not f64\[[5n]\]"
    ):
        rg.grad(mode(lambda x: x * 2))(vector())


def test_argnums_out_of_range(mode):
    with pytest.raises(IndexError, match="there is no number 3"):
        rg.grad(mode(lambda x: x.sum()), argnums=3)(vector())


def test_argnums_must_be_ints():
    with pytest.raises(TypeError, match="argnums"):
        rg.grad(lambda x: x, argnums="x")


def test_a_cotangent_of_another_structure_is_refused(mode):
    _, pull = rg.vjp(mode(lambda x: (x, x * 2)), vector())
    with pytest.raises(GradientError, match="structure"):
        pull(np.ones(5))


# ---------------------------------------------------------------- modes and threads


def test_gradients_do_not_depend_on_the_callers_mode(mode):
    f = mode(lambda x: (x**2).sum())
    with rg.no_grad():
        np.testing.assert_allclose(rg.grad(f)(vector()), 2 * vector())
    np.testing.assert_allclose(rg.grad(f)(vector()), 2 * vector())
    g = rg.compile(lambda x: (x**2).sum())
    with rg.no_grad():
        g(vector())
    x = rg.tensor(vector(), requires_grad=True)
    g(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * vector())


def test_no_grad_inside_the_function_stops_the_gradient(mode):
    def f(x):
        with rg.no_grad():
            scale = x.sum()
        return (x * scale).sum()

    got = rg.grad(mode(f))(vector())
    np.testing.assert_allclose(got, np.full(5, vector().sum()))


def test_detach_stops_the_gradient():
    def f(x):
        return (x * x.detach()).sum()

    x = rg.tensor(vector())
    for g in (rg.grad(f), rg.grad(rg.compile(f))):
        np.testing.assert_allclose(g(x).numpy(), vector())


def test_threads_differentiate_a_function_that_captures_an_array(mode):
    w = vector()
    f = mode(lambda x: (x**2 * w).sum())
    errors = []

    def work():
        try:
            for _ in range(10):
                np.testing.assert_allclose(rg.grad(f)(vector()), 2 * vector() * w)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert isinstance(w, np.ndarray)


def test_objects_as_arguments_are_told_apart():
    class Scale:
        def __init__(self, k):
            self.k = k

    f = rg.compile(lambda x, c: x * c.k)
    for k in range(20):
        np.testing.assert_allclose(f(vector(), Scale(float(k))), k * vector())
