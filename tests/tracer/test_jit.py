"""A compiled call does what NumPy would: values, writes, aliasing, scalars, guards."""

import copy
import pickle
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import IndexRangeError, RetrogradeError, UnsupportedError

SCALE = 2.0
TABLE = np.array([1.0, 2.0, 4.0])


def twice(f, *make):
    """Return what NumPy and what the compiled function do with fresh arguments."""
    plain_args, compiled_args = [m() for m in make], [m() for m in make]
    return (f(*plain_args), plain_args), (rg.compile(f)(*compiled_args), compiled_args)


def check(f, *make):
    (want, want_args), (got, got_args) = twice(f, *make)
    assert_same(got, want)
    for a, b in zip(got_args, want_args, strict=True):
        assert_same(a, b)
    return got


def assert_same(got, want):
    if isinstance(want, tuple | list):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for k in want:
            assert_same(got[k], want[k])
    elif isinstance(want, np.ndarray | np.generic | float):
        assert isinstance(got, np.ndarray) == isinstance(want, np.ndarray)
        assert np.asarray(got).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=1e-13)
    else:
        assert got == want


def vector():
    return np.linspace(-1.0, 2.0, 7)


def matrix():
    return np.arange(12.0).reshape(3, 4) / 5


# ---------------------------------------------------------------- values and writes


def test_write_through_a_view_reaches_the_result():
    def f(x):
        y = x**2
        v = y[0]
        v *= 2
        return y

    check(f, matrix)


def test_argument_is_changed_as_numpy_would():
    def f(u):
        u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return np.sum(u**2)

    check(f, vector)


def test_nothing_is_returned_and_the_argument_is_changed():
    def f(u):
        u *= 2.0

    assert check(f, vector) is None


def test_two_arguments_are_written_from_each_other():
    def f(x, y):
        x += y
        y *= x
        return x - y

    check(f, vector, vector)


def test_full_reductions_give_scalars_and_copies_give_arrays():
    def f(x):
        return x.sum(), x.mean(axis=0), x[0], x[0, 1], np.zeros(()), x.copy()

    check(f, matrix)


def test_python_results_stay_python():
    def f(x):
        return {"a": x * 2, "b": [3, None, "text", True]}, x.shape[0]

    check(f, vector)


def test_keyword_arguments_and_defaults():
    def f(x, k=2.0, *, scale=1.0):
        return x * k * scale

    g = rg.compile(f)
    for args, kwargs in [
        ((), {}),
        ((3.0,), {}),
        ((), {"scale": 5.0}),
        ((), {"k": 4.0}),
    ]:
        assert_same(g(vector(), *args, **kwargs), f(vector(), *args, **kwargs))


def test_containers_and_dataclasses():
    @dataclass
    class Params:
        w: np.ndarray
        b: float

    def f(p, more):
        p.w[0] = p.b
        return {"out": p.w * more[0][1]}, p.w

    params = Params(vector(), 2.0)
    out, w = rg.compile(f)(params, [(1.0, 3.0)])
    assert w is params.w
    assert params.w[0] == 2.0
    np.testing.assert_allclose(out["out"], params.w * 3.0)


def test_dtypes_follow_numpy():
    def f(x, n, k):
        return x * 0.1, x * n, n / 2, n // 2, x.astype(np.float64), n * k, x > 0

    check(
        f,
        lambda: np.arange(4, dtype=np.float32),
        lambda: np.arange(4),
        lambda: 3,
    )


# ---------------------------------------------------------------- aliasing


def test_returned_argument_is_the_same_object():
    x = vector()
    assert rg.compile(lambda x: x)(x) is x


def test_returned_view_of_an_argument_is_a_view():
    x = vector()
    v = rg.compile(lambda x: x[1:4])(x)
    v *= 5.0
    assert x[1] == v[0]


def test_results_share_memory_as_numpys_do():
    def f(x):
        t = x * 2
        return t, t[1:], t[::-1], x[2:], x + 1

    x = vector()
    t, a, b, c, d = rg.compile(f)(x)
    assert np.shares_memory(t, a)
    assert np.shares_memory(t, b)
    assert np.shares_memory(x, c)
    assert not np.shares_memory(t, x)
    assert not np.shares_memory(d, x)
    t[:] = 7.0
    assert np.all(a == 7.0)


def test_same_result_twice_is_one_array():
    p, q = rg.compile(lambda x: (lambda t: (t, t))(x + 1))(vector())
    assert p is q or np.shares_memory(p, q)


def test_same_array_twice_as_argument():
    def f(x, y):
        x *= 2
        return x + y

    x = vector()
    np.testing.assert_allclose(rg.compile(f)(x, x), 4 * vector())
    np.testing.assert_allclose(x, 2 * vector())


def test_distinct_then_same_then_overlapping_arguments():
    def f(a, b):
        a += b
        b *= 3.0
        return a * b

    g = rg.compile(f)
    for make in (
        lambda: (vector(), vector()),
        lambda: (lambda x: (x, x))(vector()),
        lambda: (lambda x: (x[:4], x[2:6]))(vector()),
        lambda: (lambda x: (x[:3], x[4:]))(vector()),
        lambda: (vector(), vector()),
    ):
        p, q = make()
        want = f(p, q)
        r, s = make()
        np.testing.assert_allclose(g(r, s), want)
        np.testing.assert_allclose(r, p)
        np.testing.assert_allclose(s, q)


def test_array_and_its_transpose():
    def f(a, t):
        a[0] = t[1]
        t[2] *= 2.0
        return a @ t

    x, y = np.arange(9.0).reshape(3, 3), np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(rg.compile(f)(x, x.T), f(y, y.T))
    np.testing.assert_allclose(x, y)


# ---------------------------------------------------------------- specialisations


def layouts(x):
    wide = np.zeros((x.shape[0], 2 * x.shape[1]))
    wide[:, ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return [x, np.asfortranarray(x), wide[:, ::2], x[::-1, ::-1], frozen]


def test_layouts_and_sizes_call_the_same_code():
    g = rg.compile(lambda x, y: np.sum(np.exp(-x * x) * y, axis=0))
    for x in layouts(matrix()) + layouts(np.ones((5, 6))):
        want = np.sum(np.exp(-x * x) * (x + 1), axis=0)
        np.testing.assert_allclose(g(x, x + 1), want)
    assert g.cache_info().specialisations == 1


def test_a_written_array_of_any_layout_is_written():
    def f(u):
        u[1:] += u[:-1]

    g = rg.compile(f)
    for x in layouts(matrix())[:4]:
        want = x.copy()
        f(want)
        got = x.copy(order="K") if x.flags.owndata else x
        g(got)
        np.testing.assert_allclose(got, want)
    assert g.cache_info().specialisations == 1


@pytest.mark.parametrize("n", [0, 1, 2, 3, 9])
def test_small_sizes(n):
    def f(x):
        y = x * 2
        y[:1] = 5.0
        return y, y.sum()

    check(f, lambda: np.arange(float(n)))


def test_a_size_of_one_broadcasts_in_a_specialisation_of_its_own():
    g = rg.compile(lambda x, y: x + y)
    for n, m in [(4, 4), (4, 1), (1, 4), (1, 1), (6, 6), (6, 1)]:
        assert g(np.ones(n), np.ones(m)).shape == (max(n, m),)
    with pytest.raises(ValueError, match="broadcast"):
        g(np.ones(3), np.ones(4))


def test_slices_beyond_the_end_are_guarded():
    g = rg.compile(lambda x: x[3:-3] * 2)
    for n in (10, 12, 6, 5, 2, 11):
        x = np.arange(float(n))
        np.testing.assert_allclose(g(x), x[3:-3] * 2)


def test_ints_are_symbols_and_static_only_where_needed():
    def f(x, k):
        return x * k

    g = rg.compile(f)
    for k in (2, 3, 7, -4):
        np.testing.assert_allclose(g(vector(), k), f(vector(), k))
    assert g.cache_info().specialisations == 1

    def power(x, k):
        for matrix in [x] * k:
            x = x * matrix
        return x

    h = rg.compile(power)
    for k in (1, 2, 1):
        np.testing.assert_allclose(h(vector(), k), power(vector(), k))
    assert h.cache_info().specialisations == 2


def test_floats_are_traced():
    g = rg.compile(lambda x, s: x * s)
    for s in (1.0, 2.5, -3.0):
        np.testing.assert_allclose(g(vector(), s), vector() * s)
    assert g.cache_info().specialisations == 1


def test_bools_and_strings_are_static():
    g = rg.compile(lambda x, up, mode: x + 1 if up and mode == "a" else x - 1)
    for up in (True, False):
        for mode in ("a", "b"):
            want = vector() + (1 if up and mode == "a" else -1)
            np.testing.assert_allclose(g(vector(), up, mode), want)


# ---------------------------------------------------------------- captured state


def test_captured_array_is_read_at_every_call():
    w = np.ones(7)
    g = rg.compile(lambda x: x * w)
    np.testing.assert_allclose(g(vector()), vector())
    w *= 3
    np.testing.assert_allclose(g(vector()), 3 * vector())
    w = np.full(7, 5.0)
    np.testing.assert_allclose(g(vector()), 5 * vector())
    assert g.cache_info().specialisations == 1


def test_captured_array_is_written():
    state = np.zeros(7)

    def f(x):
        state[...] += x
        return state * x

    g = rg.compile(f)
    np.testing.assert_allclose(g(vector()), vector() ** 2)
    np.testing.assert_allclose(g(vector()), 2 * vector() ** 2)
    np.testing.assert_allclose(state, 2 * vector())
    assert isinstance(state, np.ndarray)


def test_captured_globals_and_attributes():
    class Model:
        def __init__(self):
            self.w = np.ones(3)
            self.rate = 0.5
            self.name = "m"

        @rg.compile
        def step(self, x):
            self.w -= self.rate * x
            return self.w * TABLE * SCALE

    m = Model()
    want = (np.ones(3) - 0.5 * TABLE) * TABLE * 2
    np.testing.assert_allclose(m.step(TABLE.copy()), want)
    m.rate = 0.0
    np.testing.assert_allclose(m.step(TABLE.copy()), want)
    m.w = np.zeros(3)
    np.testing.assert_allclose(m.step(TABLE.copy()), 0.0)
    assert isinstance(m.w, np.ndarray)
    assert m.rate == 0.0


def test_an_attribute_that_is_rebound_is_set_at_every_call():
    class Counter:
        def __init__(self):
            self.total = np.zeros(2)

    c = Counter()

    @rg.compile
    def add(x):
        c.total = c.total + x
        return c.total * 1.0

    for k in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(add(np.ones(2)), k)
    assert isinstance(c.total, np.ndarray)


def test_argument_that_aliases_captured_memory():
    y = vector()

    def f(v):
        v *= 2.0
        return y.sum() * v

    g = rg.compile(f)
    z = vector()
    z[1:3] *= 2
    np.testing.assert_allclose(g(y[1:3]), z.sum() * z[1:3])
    np.testing.assert_allclose(y, z)


def test_nothing_leaks_when_the_trace_fails():
    w = np.ones(3)

    def f(x):
        w[0] = 3.0
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        rg.compile(f)(np.ones(3))
    assert isinstance(w, np.ndarray)
    assert w[0] == 1.0


# ---------------------------------------------------------------- nesting, Tensors


def test_compiled_functions_call_each_other():
    @rg.compile
    def inner(a):
        a *= 2.0
        return a[1:]

    @rg.compile
    def outer(a):
        v = inner(a)
        v += 1.0
        return a * v[0]

    y = vector()
    z = vector() * 2
    z[1:] += 1
    np.testing.assert_allclose(outer(y), z * z[1])
    np.testing.assert_allclose(y, z)


def test_tensor_in_tensor_out():
    g = rg.compile(lambda x, y: (x * y).sum())
    x = rg.tensor(vector(), requires_grad=True)
    y = rg.tensor(vector() + 1)
    s = g(x, y)
    assert isinstance(s, rg.Tensor)
    assert s.requires_grad
    s.backward()
    np.testing.assert_allclose(x.grad.numpy(), vector() + 1)


def test_tensor_written_by_a_compiled_function_is_rebased():
    def f(b):
        b *= 3.0
        return b[1:]

    x = rg.tensor(vector(), requires_grad=True)
    b = x * 1.0
    r = rg.compile(f)(b)
    (r * r).sum().backward()
    want = 18 * vector()
    want[0] = 0
    np.testing.assert_allclose(x.grad.numpy(), want)


def test_double_backward_through_a_compiled_function():
    g = rg.compile(lambda x: (x**3).sum())
    x = rg.tensor(vector(), requires_grad=True)
    (d,) = rg.autograd.grad(g(x), [x], create_graph=True)
    (h,) = rg.autograd.grad(d.sum(), [x])
    np.testing.assert_allclose(h.numpy(), 6 * vector())


def test_threads_share_a_compiled_function():
    g = rg.compile(lambda x: np.sum(x * x))
    out, errors = {}, []

    def work(n):
        try:
            for _ in range(20):
                out[n] = g(np.arange(float(n)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(out[n] == np.sum(np.arange(float(n)) ** 2) for n in out)


# ---------------------------------------------------------------- errors


def test_an_index_out_of_range_changes_nothing():
    def f(x):
        x[0] = 9.0
        x[30] = 1.0

    x = vector()
    with pytest.raises(IndexRangeError, match="out of bounds"):
        rg.compile(f)(x)
    np.testing.assert_array_equal(x, vector())


def test_a_computed_index_out_of_range_changes_nothing():
    def f(x, i):
        x[0] = 9.0
        return x[i[0]]

    g = rg.compile(f)
    x = vector()
    assert g(x, np.array([3])) == vector()[3]
    x = vector()
    with pytest.raises(IndexError) as info:
        g(x, np.array([30]))
    assert isinstance(info.value, RetrogradeError)
    assert "test_jit.py" in str(info.value)
    np.testing.assert_array_equal(x, vector())


def test_a_read_only_array_is_not_written():
    def f(x):
        x += 1

    x = vector()
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rg.compile(f)(x)


def test_integer_arrays_do_not_take_floats():
    def f(n, x):
        n += x

    n = np.arange(3)
    with pytest.raises(TypeError, match="cast"):
        rg.compile(f)(n, np.ones(3))
    np.testing.assert_array_equal(n, np.arange(3))


def test_unknown_stage_is_an_error():
    with pytest.raises(ValueError, match="no stage 'nonsense'"):
        rg.compile(lambda x: x + 1).ir(vector(), stage="nonsense")


def test_what_changes_from_call_to_call_is_refused():
    rng = np.random.default_rng(0)
    for call in (
        lambda x: x * np.random.normal(),
        lambda x: x * rng.uniform(),
        lambda x: x * time.time(),
        lambda x: x * random.random(),
    ):
        with pytest.raises(UnsupportedError, match="changes from call to call"):
            rg.compile(call)(vector())


def test_warmup_compiles_and_changes_nothing() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        x *= 2
        return x.sum()

    x = np.ones(3)
    assert f.warmup(x) is f
    assert np.array_equal(x, [1.0, 1.0, 1.0])
    before = f.cache_info()
    assert before.specialisations == 1
    assert before.compiled + before.loaded == 1
    assert f(x) == 6.0
    assert f.cache_info().misses == before.misses
    g = rg.grad(f).warmup(x)
    assert np.array_equal(g(x), [2.0, 2.0, 2.0])


class Standing:
    """What other libraries pass for an array that does not exist yet."""

    shape = (5, 2)
    dtype = np.float32


def test_warmup_takes_shapes_and_dtypes() -> None:
    @rg.compile
    def f(p: Any, x: Any) -> Any:
        return (p["w"] * x).sum()

    g = rg.value_and_grad(f)
    assert g.warmup({"w": Standing()}, Standing()) is g
    w = np.ones((5, 2), np.float32)
    value, grads = g({"w": w}, 2 * w)
    assert value == 20.0
    assert np.array_equal(grads["w"], 2 * w)
    info = g.cache_info()
    assert (info.hits, info.misses, info.specialisations) == (1, 1, 1)
    assert f.cache_info().misses == 0


@rg.compile
def halved(x: Any) -> Any:
    return np.cumsum(x) * 0.5


def plain(x: Any) -> Any:
    return np.cumsum(x) * 0.5


def test_compiled_functions_are_pickled() -> None:
    x = np.arange(3.0)
    made = rg.compile(plain, precise=True)
    for f in (halved, made):
        f(x)
    assert pickle.loads(pickle.dumps(halved)) is halved
    again = pickle.loads(pickle.dumps(made))
    assert again.options == made.options
    assert again(x).tolist() == made(x).tolist() == copy.deepcopy(made)(x).tolist()
