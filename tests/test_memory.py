"""Compiled calls take no more memory than what they are given and return."""

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.runtime.pool import LARGE

PEAK = Path("/proc/self/clear_refs")
measured = pytest.mark.skipif(not PEAK.exists(), reason="needs Linux's /proc")
N = LARGE // 8
MB = 10**6


def chain(x, y):
    t = np.exp(-x * x) * y
    return np.sum(t / (1 + np.exp(-t)) + np.tanh(x))


def in_place(a, b, k):
    b *= 0.5
    b += np.sin(a)
    a[1:] *= b[:-1] + k
    for i in range(1, a.shape[0]):
        a[i] += k * a[i - 1]


def rows_in_place(a, k):
    for i in range(1, a.shape[0]):
        a[i] += k * a[i - 1]
    a *= 2.0


def peak_of(call: Any) -> int:
    """Return how far the memory of this process rises during a call."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(name))
        return 1024 * int(line.split()[1])

    before = status("VmRSS")
    PEAK.write_text("5")
    call()
    return status("VmHWM") - before


def test_gradient_of_a_chain_takes_no_scratch_memory() -> None:
    f = rg.compile(rg.value_and_grad(chain, argnums=(0, 1)))
    x, y = np.random.default_rng(0).normal(size=(2, 1000))
    assert f.scratch_bytes(x, y) == 0


@measured
def test_gradient_of_a_chain_takes_inputs_and_gradients_only() -> None:
    f = rg.compile(rg.value_and_grad(chain, argnums=(0, 1)))
    x, y = np.random.default_rng(0).normal(size=(2, 2 * MB))
    f.warmup(x, y)
    f(x[:1000].copy(), y[:1000].copy())
    assert peak_of(lambda: f(x, y)) <= x.nbytes + y.nbytes + MB


@measured
def test_programs_in_place_allocate_no_copies() -> None:
    f = rg.compile(in_place)
    f(np.ones(1000), np.ones(1000), 0.5)
    a, b = np.ones((2, 4 * MB))
    f.warmup(a, b, 0.5)
    assert peak_of(lambda: f(a, b, 0.5)) <= 2 * MB
    g = rg.compile(rows_in_place)
    g(np.ones((3, 1000)), 0.5)
    c = np.ones((4000, 1000))
    g.warmup(c, 0.5)
    assert peak_of(lambda: g(c, 0.5)) <= 2 * MB


def test_compare_tells_the_memory_of_value_and_gradient() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 50))
    value, gradient = rg.compare(chain, x, y).memory
    assert (value.what, value.arguments, value.results) == ("value", 800, 0)
    assert (gradient.what, gradient.results, gradient.scratch) == ("gradient", 800, 0)
    assert gradient.peak == 1600


def test_compare_tells_the_memory_of_a_pullback() -> None:
    comparison = rg.compare(lambda x: np.cumsum(np.sin(x)), np.ones(64))
    value, gradient = comparison.memory
    assert value.results == 512
    assert gradient.arguments == 512
    assert "memory of gradient" in str(comparison)


def borrow_view(a: Any) -> Any:
    return a[10:20]


def borrow_dlpack(a: Any) -> Any:
    return np.from_dlpack(a)


def borrow_memoryview(a: Any) -> Any:
    return memoryview(a)


def borrow_ctypes(a: Any) -> Any:
    return (ctypes.c_double * a.size).from_buffer(a)


def borrow_tensor(a: Any) -> Any:
    return rg.Tensor(a)


def borrow_interface(a: Any) -> Any:
    class Owner:
        def __init__(self, a: Any) -> None:
            self.__array_interface__ = a.__array_interface__
            self.kept = a

    return np.asarray(Owner(a))


BORROWERS = [borrow_view, borrow_dlpack, borrow_memoryview, borrow_ctypes]


@pytest.mark.parametrize("borrow", [*BORROWERS, borrow_interface, borrow_tensor])
def test_memory_is_not_reused_while_an_alias_lives(borrow: Any) -> None:
    f = rg.compile(lambda x, k: x * k)
    x = np.ones(N)
    alias = borrow(f(x, 3.0))
    for k in range(4):
        f(x, float(k))
    seen = alias.numpy() if isinstance(alias, rg.Tensor) else np.asarray(alias)
    np.testing.assert_array_equal(seen, np.full(seen.shape, 3.0))


def test_memory_is_reused_when_the_alias_is_gone() -> None:
    f = rg.compile(lambda x, k: x * k)
    x = np.ones(N)
    address = f(x, 1.0).ctypes.data
    again = {f(x, 2.0).ctypes.data for _ in range(4)}
    assert again == {address}


def test_results_are_aligned_for_vectors() -> None:
    f = rg.compile(lambda x: x * 2.0)
    assert f(np.ones(N)).ctypes.data % 16 == 0


def test_calls_of_several_threads_have_scratch_memory_of_their_own() -> None:
    def smooth(u, k):
        for _ in range(4):
            u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])

    f = rg.compile(smooth)
    f(np.ones(8), 0.25)
    assert f.scratch_bytes(np.ones(5000), 0.25) > 0
    starts = np.random.default_rng(0).normal(size=(6, 5000))
    expect = starts.copy()
    for u in expect:
        smooth(u, 0.25)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(30):
            u = starts[k].copy()
            f(u, 0.25)
            if not np.allclose(u, expect[k], rtol=1e-12, atol=1e-12):
                wrong.append(k)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sys.setswitchinterval(before)
    assert not wrong
