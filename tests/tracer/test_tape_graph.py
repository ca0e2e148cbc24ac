"""The graph as a data structure: lifetime, length, threads, cost, own functions."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import GradientError, MutationError
from retrograde.tracer import builders, tape
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.modes import (
    enable_grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from retrograde.tracer.tensor import Tensor, of, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


# ---------------------------------------------------------------- lifetime


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def power(a: Tensor) -> Tensor:
    return np.exp(a) ** 2 + a[:1]


def written(a: Tensor) -> Tensor:
    b = a * 1
    v = b[:2]
    v *= a[1:]
    v.sum()
    return b * b


def recorded(a: Tensor) -> Tensor:
    (g,) = grad_of((a**3).sum(), a, create_graph=True)
    assert g is not None
    return g


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("program", [power, written, recorded])
@pytest.mark.parametrize("run", [False, True])
def test_graphs_die_by_reference_count(
    program: Callable[[Tensor], Tensor], run: bool
) -> None:
    a = leaf(1, 2, 3)
    y = program(a)
    node = weakref.ref(y.grad_fn)  # type: ignore[arg-type]
    data = weakref.ref(y)
    if run:
        y.sum().backward()
    assert node() is not None
    del y
    assert node() is None
    assert data() is None
    assert a._accumulator is None or a._accumulator() is None
    alive = weakref.ref(a)
    del a
    assert alive() is None


def test_backward_frees_what_was_saved() -> None:
    a = leaf(1, 2, 3)
    b = a * 2
    y = (b * b).sum()
    saved = weakref.ref(b._data)
    del b
    assert saved() is not None
    y.backward()
    assert saved() is None


# ---------------------------------------------------------------- size


def test_long_chains_neither_recurse_nor_overflow() -> None:
    x = leaf(1.0, 2.0)
    y = x
    for _ in range(100_000):
        y = y * 1.0
    y.backward(np.ones(2))
    assert grad(x) == [1, 1]
    (g,) = grad_of((y + 1).sum(), x)
    assert g is not None
    assert g.tolist() == [1, 1]
    del y


def seconds(f: Callable[[], Any]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def elements(n: int) -> float:
    """Return the time of the backward pass of n element writes that read each other."""
    a = tensor(np.full(n, 0.5), requires_grad=True)
    b = tensor(np.zeros(n))
    b[0] = 1.0
    for i in range(1, n):
        b[i] = b[i - 1] * a[i] + 1.0
    y = (b * b).sum()
    return min(seconds(y.backward) for _ in range(1))


def test_element_writes_cost_linear_time() -> None:
    elements(100)
    small = min(elements(1000) for _ in range(3))
    large = elements(10_000)
    assert large < 25 * small  # a quadratic pass takes 100 times as long


def test_element_writes_are_right() -> None:
    n = 50
    values = np.linspace(0.2, 0.9, n)
    a = tensor(values, requires_grad=True)
    b = tensor(np.zeros(n))
    b[0] = 1.0
    for i in range(1, n):
        b[i] = b[i - 1] * a[i] + 1.0
    (b * b).sum().backward()
    want = np.zeros(n)
    ct = 2 * b.detach().numpy().copy()
    for i in range(n - 1, 0, -1):
        want[i] = ct[i] * b[i - 1].item()
        ct[i - 1] += ct[i] * values[i]
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), want)


def test_a_gradient_array_is_not_copied_for_every_write() -> None:
    x = tensor(np.ones(1000), requires_grad=True)
    b = x * 1.0
    for i in range(100):
        b[i : i + 1] *= 2.0
    copies = 0
    original = builders.EagerBuilder.zeros_like

    def counted(self: Any, like: Any) -> Any:
        nonlocal copies
        copies += 1
        return original(self, like)

    builders.EagerBuilder.zeros_like = counted  # type: ignore[method-assign]
    try:
        b.sum().backward()
    finally:
        del builders.EagerBuilder.zeros_like
    assert copies == 0
    assert grad(x) == [2.0] * 100 + [1.0] * 900


# ---------------------------------------------------------------- modes


def test_modes_nest_and_belong_to_a_thread() -> None:
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
        assert not is_grad_enabled()
        with enable_grad():
            assert is_grad_enabled()
        with set_grad_enabled(True):
            assert is_grad_enabled()
        assert not is_grad_enabled()
    assert seen == [True]
    assert is_grad_enabled()


def test_set_grad_enabled_acts_at_once() -> None:
    set_grad_enabled(False)
    try:
        assert not is_grad_enabled()
    finally:
        set_grad_enabled(True)
    with set_grad_enabled(False):
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_modes_are_decorators() -> None:
    @no_grad()
    def off() -> bool:
        return is_grad_enabled()

    @set_grad_enabled(False)
    def also_off() -> bool:
        return is_grad_enabled()

    assert is_grad_enabled()
    assert not off()
    assert not also_off()
    assert is_grad_enabled()


def test_threads_record_graphs_of_their_own() -> None:
    x = leaf(1, 2, 3)
    found: list[Any] = [None] * 4

    def work(k: int) -> None:
        for _ in range(50):
            (found[k],) = grad_of((x**k * x).sum(), x)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, g in enumerate(found):
        np.testing.assert_allclose(g.numpy(), (k + 1) * np.array([1, 2, 3.0]) ** k)


def test_threads_accumulate_into_one_leaf() -> None:
    x = leaf(1, 2, 3)

    def work() -> None:
        for _ in range(100):
            (x * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert grad(x) == [800, 800, 800]


# ---------------------------------------------------------------- own functions


def cube(x: Tensor) -> Tensor:
    """Return x**3, as a function with a pullback that saves its input."""
    y = of(x._data**3)

    def backward(b: Any, cts: Sequence[Any], saved: Any) -> Sequence[Any]:
        return (b.multiply(cts[0], b.multiply(b.square(saved), 3.0)),)

    tape.record("CubeBackward", (x,), (y,), backward, saved=(x,))
    return y


def test_a_function_of_ones_own() -> None:
    x = leaf(1, 2)
    y = cube(x)
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "CubeBackward"
    (g,) = grad_of(y.sum(), x, create_graph=True)
    assert g is not None
    assert g.tolist() == [3, 12]
    (h,) = grad_of(g.sum(), x)
    assert h is not None
    assert h.tolist() == [6, 12]
    y.sum().backward()
    with pytest.raises(GradientError, match="a second time"):
        y.sum().backward()


def test_a_saved_input_is_checked() -> None:
    x = leaf(1, 2) * 1
    y = cube(x)
    with no_grad():
        x.add_(1)
    with pytest.raises(MutationError, match=r"^CubeBackward: one of the variables"):
        y.sum().backward()


def exponential(x: Tensor) -> Tensor:
    """Return exp(x), saving the output."""
    y = of(np.exp(x._data))

    def backward(b: Any, cts: Sequence[Any], out: Any) -> Sequence[Any]:
        return (b.multiply(cts[0], out),)

    tape.record("ExpBackward", (x,), (y,), backward, saved=(y,))
    return y


@pytest.mark.usefixtures("no_collector")
def test_a_saved_output_makes_no_cycle_and_double_backward() -> None:
    x = leaf(0.5)
    y = exponential(x)
    (g,) = grad_of(y.sum(), x, create_graph=True)
    assert g is not None
    (h,) = grad_of(g.sum(), x)
    assert h is not None
    np.testing.assert_allclose(h.numpy(), np.exp([0.5]))
    node = weakref.ref(y.grad_fn)  # type: ignore[arg-type]
    del y, g, h
    assert node() is None


def double_in_place(x: Tensor) -> Tensor:
    """Double x in its own memory, and return its old sum."""
    tape.check_writes((x,), (x,))
    tape.before_writes((x,))
    data = x._data
    total = of(np.array(data.sum()))
    data *= 2

    def backward(b: Any, cts: Sequence[Any]) -> Sequence[Any]:
        new, old_sum = cts
        g = None if new is None else b.multiply(new, 2.0)
        if old_sum is not None:
            g = b.add_cotangents(g, b.broadcast_to(old_sum, shape=(len(data),)))
        return (g,)

    tape.record("DoubleBackward", (x,), (x, total), backward)
    return total


def test_a_function_that_writes_its_argument() -> None:
    a = leaf(1, 2, 3)
    with pytest.raises(MutationError, match=r"^a leaf Variable"):
        double_in_place(a)
    assert a.tolist() == [1, 2, 3]
    b = a * 1
    total = double_in_place(b)
    assert (b.tolist(), b._version, total.item()) == ([2, 4, 6], 1, 6)
    assert b.grad_fn is not None
    assert b.grad_fn.name() == "DoubleBackward"
    (b.sum() + 10 * total).backward()
    assert grad(a) == [12, 12, 12]


def test_a_function_that_writes_a_view() -> None:
    a = leaf(1, 2, 3)
    b = a * 1
    v = b[:2]
    total = double_in_place(v)
    assert b.tolist() == [2, 4, 3]
    assert b.grad_fn is not None
    assert v.grad_fn is not None
    assert (b.grad_fn.name(), v.grad_fn.name()) == ("CopySlices", "AsStridedBackward0")
    (g,) = grad_of((b * b).sum() + total * 1, a, create_graph=True)
    assert g is not None
    assert g.tolist() == [9, 17, 6]


def test_a_function_with_a_wrong_pullback() -> None:
    x, y = leaf(1, 2), of(np.zeros(2))
    tape.record("F", (x, x), (y,), lambda b, cts: (cts[0],))
    with pytest.raises(GradientError, match=r"\(expected 2, got 1\)"):
        y.sum().backward()
    z = of(np.zeros(2))
    tape.record("G", (x,), (z,), lambda b, cts: (np.ones(3),))
    with pytest.raises(GradientError, match="invalid gradient at index 0"):
        z.sum().backward()
    w = of(np.zeros(2))
    tape.record("H", (x,), (w,), lambda b, cts: (np.ones((4, 2)), None))
    w.sum().backward()
    assert grad(x) == [4, 4]
