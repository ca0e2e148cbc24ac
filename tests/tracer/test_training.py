"""Training steps that are compiled: backward, .grad, parameters updated or rebound."""

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import GradientError, UnsupportedError

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(8, 3)), RNG.normal(size=8)
START = np.array([0.1, -0.2, 0.3])


class Model:
    """Holds parameters as attributes."""

    def __init__(self):
        self.w = rg.tensor(START, requires_grad=True)
        self.b = rg.tensor(np.zeros(1), requires_grad=True)

    def loss(self, x, y):
        return ((x @ self.w + self.b - y) ** 2).mean()

    def parameters(self):
        return [self.w, self.b]


def shown(t):
    """Return all that a caller can see of a Tensor."""
    grad = None if t.grad is None else (t.grad.detach().numpy(), t.grad.requires_grad)
    return t.detach().numpy(), grad, t.requires_grad, t.is_leaf


def trained(make, compiled, rounds):
    model = Model()
    step = make(model)
    run = rg.compile(step) if compiled else step
    losses = [run(X, Y) for _ in range(rounds)]
    numbers = [t.item() if isinstance(t, rg.Tensor) else t for t in losses]
    return numbers, [shown(p) for p in model.parameters()], losses, run


def check(make, rounds=5):
    """Train eagerly and compiled; return the compiled step and its results."""
    want, want_state, _, _ = trained(make, False, rounds)
    got, got_state, losses, run = trained(make, True, rounds)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    for (p, g, *flags), (q, h, *others) in zip(got_state, want_state, strict=True):
        assert flags == others
        np.testing.assert_allclose(p, q, rtol=1e-12)
        assert (g is None) == (h is None)
        if g is not None:
            assert g[1] == h[1]
            np.testing.assert_allclose(g[0], h[0], rtol=1e-12)
    return run, losses


# ---------------------------------------------------------------- backward and .grad


def in_place(model):
    def step(x, y):
        loss = model.loss(x, y)
        loss.backward()
        with rg.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss

    return step


def test_a_step_in_place_is_traced_once():
    step, losses = check(in_place)
    info = step.cache_info()
    assert (info.misses, info.hits) == (1, 4)
    assert losses[0].requires_grad
    with pytest.raises(GradientError, match="backward through the graph a second time"):
        losses[0].backward()


def test_gradients_are_kept_and_set_to_zero():
    def make(model):
        def step(x, y):
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()
            loss = model.loss(x, y)
            loss.backward()
            with rg.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
            return loss.item()

        return step

    step, losses = check(make)
    assert step.cache_info().misses == 2  # without gradients, and with
    assert type(losses[0]) is float


def test_gradients_add_up_in_place():
    model = Model()

    @rg.compile
    def add(x, y):
        model.loss(x, y).backward()

    add(X, Y)
    first = model.w.grad
    before = first.numpy().copy()
    add(X, Y)
    assert model.w.grad is first
    np.testing.assert_allclose(first.numpy(), 2 * before, rtol=1e-12)
    assert add.cache_info().misses == 2


def test_several_steps_in_one_call():
    def make(model):
        def step(x, y):
            for rate in (0.1, 0.05, 0.02):
                model.w.grad = model.b.grad = None
                loss = model.loss(x, y)
                loss.backward()
                with rg.no_grad():
                    model.w -= rate * model.w.grad
                    model.b[...] = model.b - rate * model.b.grad
            return loss.detach()

        return step

    step, losses = check(make, rounds=3)
    assert step.cache_info().misses == 1
    assert not losses[0].requires_grad


def test_leaves_are_rebound():
    def make(model):
        def step(x, y):
            loss = model.loss(x, y)
            loss.backward()
            for name in ("w", "b"):
                p = getattr(model, name)
                new = (p - 0.1 * p.grad).detach().requires_grad_()
                setattr(model, name, new)
            return loss.item()

        return step

    step, _ = check(make)
    assert step.cache_info().misses == 1


def test_parameters_are_arguments():
    def step(params, x):
        w, b = params["w"], params["b"]
        loss = np.sum(np.tanh(x @ w + b) ** 2)
        loss.backward(retain_graph=True)
        loss.backward(rg.tensor(2.0), inputs=[b])
        with rg.no_grad():
            w -= 0.1 * w.grad
        return w.requires_grad, loss.requires_grad, (x * 2).requires_grad

    state = []
    for run in (step, rg.compile(step)):
        params = {
            "w": rg.tensor(START, requires_grad=True),
            "b": rg.tensor(0.5, requires_grad=True),
        }
        flags = [run(params, rg.tensor(X)) for _ in range(3)]
        state.append((flags, [shown(p) for p in params.values()]))
    for a, b in zip(*(s[1] for s in state), strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-12)
        np.testing.assert_allclose(a[1][0], b[1][0], rtol=1e-12)
    assert state[0][0] == state[1][0]
    assert run.cache_info().misses == 2


def test_leaves_are_made_inside():
    def f(x):
        w = rg.tensor(x, requires_grad=True)
        v = (x * 2).detach().requires_grad_()
        loss = np.sum(w**3) + np.sum(np.sin(v) * w)
        loss.backward()
        return w.grad, v.grad, w

    want = f(rg.tensor(START))
    got = rg.compile(f)(START)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12)
        assert a.requires_grad == b.requires_grad
    np.testing.assert_allclose(got[2].grad.numpy(), want[2].grad.numpy(), rtol=1e-12)


def test_gradients_of_gradients():
    def f(p):
        (g,) = rg.autograd.grad(np.sum(p**3), [p], create_graph=True)
        loss = np.sum(g**2)
        loss.backward()
        return g.detach()

    state = []
    for run in (f, rg.compile(f)):
        p = rg.tensor(START, requires_grad=True)
        g = run(p)
        state.append((g.numpy(), p.grad.detach().numpy()))
    np.testing.assert_allclose(state[1], state[0], rtol=1e-12)


def test_gradients_in_values_that_are_no_leaves():
    def f(p):
        h = np.sin(p)
        loss = np.sum(h**2 * np.arange(3.0))
        return rg.autograd.grad(loss, [h, p])

    a, b = (run(rg.tensor(START, requires_grad=True)) for run in (f, rg.compile(f)))
    for got, want in zip(b, a, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


def test_a_leaf_that_is_not_reached_keeps_no_gradient():
    def f(p, q):
        np.sum(p * 2).backward()
        return q.grad is None, p.grad is None

    for run in (f, rg.compile(f)):
        p, q = (rg.tensor(START, requires_grad=True) for _ in range(2))
        assert run(p, q) == (True, False)
        assert q.grad is None


def test_what_requires_grad_is_a_guard():
    @rg.compile
    def f(p):
        return "leaf" if p.requires_grad and p.is_leaf else "constant"

    p = rg.tensor(START)
    assert f(p) == "constant"
    assert f(p.requires_grad_()) == "leaf"
    assert f(START) == "constant"
    assert f.cache_info().misses == 2


def test_backward_writes_and_views():
    def f(p, x):
        y = x.copy()
        y[1:] = p[1:] * y[:-1]
        v = y[::2]
        v *= p[0]
        np.sum(y**2).backward()

    state = []
    for run in (f, rg.compile(f)):
        p = rg.tensor(START, requires_grad=True)
        with rg.allow_mutation_on_saved_tensors():
            run(p, rg.tensor(np.arange(1.0, 4.0)))
        state.append(p.grad.numpy())
    np.testing.assert_allclose(state[1], state[0], rtol=1e-12)


def test_data_that_is_written_before_backward():
    def f(p, x):
        loss = np.sum(p * x)
        x += 1.0
        loss.backward()
        return x.sum()

    p, x = rg.tensor(START, requires_grad=True), np.arange(3.0)
    assert rg.compile(f)(p, x) == 6.0
    np.testing.assert_array_equal(p.grad.numpy(), np.arange(3.0))


# ---------------------------------------------------------------- with outcomes


def test_a_failed_check_has_changed_no_gradient():
    def make(model):
        def step(x, y):
            loss = model.loss(x, y)
            loss.backward()
            with rg.no_grad():
                for p in model.parameters():
                    p -= 0.3 * p.grad
                if loss < 0.6:
                    model.w.grad.zero_()
                    model.b.grad = None
            return loss.item()

        return step

    step, losses = check(make, rounds=8)
    assert min(losses) < 0.6 < max(losses)
    assert step.cache_info().misses <= 5


def test_a_step_that_raises_leaves_what_eager_leaves():
    def step(p, x):
        loss = np.sum(p * x)
        loss.backward()
        if loss > 0:
            raise FloatingPointError("diverged")
        return loss

    for run in (step, rg.compile(step)):
        p = rg.tensor(START, requires_grad=True)
        run(p, np.array([-1.0, 0.0, 0.0]))
        with pytest.raises(FloatingPointError):
            run(p, np.array([1.0, 0.0, 0.0]))
        np.testing.assert_array_equal(p.grad.numpy(), np.zeros(3))


# ---------------------------------------------------------------- what is refused


def refused(f, *args):
    with pytest.raises((GradientError, UnsupportedError)) as info:
        rg.compile(f)(*args)
    text = str(info.value)
    assert "test_training.py" in text
    assert "hint: " in text
    return text


def test_backward_of_what_requires_no_grad():
    text = refused(lambda x: np.sum(x).backward(), START)
    assert text.startswith("element 0 of tensors does not require grad")


def test_backward_into_a_graph_outside():
    p = rg.tensor(START, requires_grad=True)
    text = refused(lambda x: np.sum(x).backward(), p * 2)
    assert text.startswith("backward() inside a compiled function into a graph outside")


def test_backward_inside_a_transform():
    def f(p):
        def inner(z):
            np.sum(p * z).backward()
            return np.sum(z)

        return rg.grad(inner)(p)

    text = refused(f, rg.tensor(START, requires_grad=True))
    assert text.startswith("backward() ")


def test_nodes_of_the_tape_are_not_there():
    text = refused(lambda p: p.grad_fn, START)
    assert text.startswith("grad_fn of a traced value, f64[n]")


# ---------------------------------------------------------------- traced once


@pytest.mark.parametrize("kind", ["list", "dict", "object"])
def test_rebound_parameters_are_traced_once(kind):
    class Box:
        pass

    def loss(params, x):
        w, b = params.values() if isinstance(params, dict) else params
        return np.mean((x @ w + b) ** 2)

    box = Box()
    box.params = (START.copy(), np.zeros(1))

    @rg.compile
    def step(params, x):
        value, grads = rg.value_and_grad(loss)(params, x)
        pairs = zip(params, grads, strict=True)
        if isinstance(params, dict):
            return value, {k: params[k] - 0.1 * grads[k] for k in params}
        return value, [p - 0.1 * g for p, g in pairs]

    @rg.compile
    def captured(x):
        value, grads = rg.value_and_grad(loss)(box.params, x)
        box.params = tuple(p - 0.1 * g for p, g in zip(box.params, grads, strict=True))
        return value

    values = []
    params = {"w": START, "b": np.zeros(1)} if kind == "dict" else [START, np.zeros(1)]
    for _ in range(6):
        if kind == "object":
            values.append(captured(X))
        else:
            value, params = step(params, X)
            values.append(value)
    assert values[-1] < values[0]
    run = captured if kind == "object" else step
    info = run.cache_info()
    assert (info.misses, info.hits) == (1, 5)


def test_a_factorisation_of_other_data_is_traced_once():
    @rg.compile
    def lu(a):
        n = a.shape[0]
        for k in range(n - 1):
            p = k + np.argmax(np.abs(a[k:, k]))
            row = a[p].copy()
            a[p] = a[k]
            a[k] = row
            for i in range(k + 1, n):
                a[i, k] /= a[k, k]
                a[i, k + 1 :] -= a[i, k] * a[k, k + 1 :]
        return a

    for seed in range(4):
        lu(np.random.default_rng(seed).normal(size=(4, 4)))
    assert lu.cache_info().misses == 1
