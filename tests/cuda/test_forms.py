"""Forms of kernels give what programs mean, at sizes where one form ends."""

import re
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.cuda.target import compile_kernel
from retrograde.runtime.devices import device

pytestmark = pytest.mark.cuda_emulated


def draw(*shape: int, dtype: Any = "float32") -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def check(f: Any, *args: Any, rtol: float = 2e-5) -> None:
    """Compare a program on the emulated device with NumPy."""
    want = f(*[a.copy() for a in args])
    got = rg.compile(f, device="cuda:emu")(*[a.copy() for a in args])
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    assert np.asarray(got).dtype == np.asarray(want).dtype


def scaled(x, y):
    return 2 * x + y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_left_over_by_wide_accesses_is_done(dtype: str):
    for n in (0, 1, 3, 4, 5, 1025):
        check(scaled, draw(n, dtype=dtype), draw(n, dtype=dtype))


def bordered(u):
    v = np.zeros_like(u)
    v[1:-1, 1:-1] = 3 * u[1:-1, 1:-1]
    return v


def test_starts_that_are_not_aligned_are_found_at_run_time():
    assert re.search(
        r"if \(.*\) & 3:\n +wide_\w+ = 0",
        rg.compile(bordered, device="cuda:emu").source(draw(6, 8)),
    )
    for columns in (8, 9, 10):
        check(bordered, draw(6, columns))


def test_accesses_that_are_never_aligned_are_narrow():
    f = rg.compile(lambda x: 2 * x[1:], device="cuda:emu")
    assert "load_constant_4" not in f.source(draw(10))
    check(lambda x: 2 * x[1:], draw(10))


def test_wide_accesses_hold_as_many_elements_as_the_longest_dtype_allows():
    def mixed(x, k):
        return x * k

    x, k = draw(77, dtype="float64"), np.arange(77, dtype="float32")
    source = rg.compile(mixed, device="cuda:emu").source(x, k)
    assert {"load_constant_2", "store_2"} <= set(re.findall(r"\w+", source))
    check(mixed, x, k)
    check(lambda x: x > 0, draw(77))


def test_elements_that_were_stored_are_loaded_again():
    def twice(x):
        x[:] = x + 1
        x *= 2
        return x

    check(twice, draw(70))


def test_running_folds_go_from_lane_to_lane():
    check(lambda x: np.max(x), draw(5001), rtol=0)
    check(lambda k: np.sum(k), np.arange(5001))


@pytest.mark.parametrize("rows", [0, 1, 37])
def test_sums_of_columns_are_the_same_for_any_number_of_rows(rows: int):
    check(lambda a: np.sum(a, axis=0), draw(rows, 300))


def norm(a, gain):
    mean = np.mean(a, axis=1, keepdims=True)
    scale = np.sqrt(np.mean((a - mean) ** 2, axis=1, keepdims=True) + 1e-5)
    return np.sum((a - mean) / scale * gain)


def test_gradients_that_rows_share_are_added_up():
    a, gain = draw(21, 65, dtype="float64"), draw(65, dtype="float64")
    want = rg.grad(norm, argnums=(0, 1))(a, gain)
    f = rg.grad(rg.compile(norm, device="cuda:emu"), argnums=(0, 1))
    for x, y in zip(f(a, gain), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
    first, again = f(a, gain), f(a, gain)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))


def softmax(a):
    e = np.exp(a - np.max(a, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def test_rows_are_in_shared_memory_where_they_are_short():
    f = rg.compile(lambda a: np.sum(softmax(a) ** 2), device="cuda:emu")
    assert "own_row" in f.source(draw(2, 3))
    for columns in (1, 31, 33, 300, 6145):
        a = draw(2, columns)
        np.testing.assert_allclose(f(a), np.sum(softmax(a) ** 2), rtol=2e-5)


def test_elements_of_a_thread_need_no_barrier():
    def two_steps(a):
        for i in range(a.shape[0]):
            a[i] = np.exp(a[i])
            a[i] = a[i] * 2
        return a

    def neighbours(a):
        for _ in range(3):
            a[1:] = a[1:] + a[:-1]
        return a

    check(two_steps, draw(3, 50))
    check(neighbours, draw(50))
    source = rg.compile(two_steps, device="cuda:emu").source(draw(3, 50))
    assert "barrier()" not in source
    source = rg.compile(neighbours, device="cuda:emu").source(draw(50))
    assert "barrier()" in source


def test_scalars_that_sizes_decide_are_given_to_kernels():
    f = rg.value_and_grad(rg.compile(lambda x: np.mean(x * x), device="cuda:emu"))
    x = draw(100)
    source = f.source(x)
    assert "quotient(1.0, " in source
    assert "float64" not in re.sub(r"\w+_float32", "", source.split("def run")[0])
    value, gradient = f(x)
    np.testing.assert_allclose(value, np.mean(x * x), rtol=1e-6)
    np.testing.assert_allclose(gradient, 2 * x / 100, rtol=1e-6)


DIVIDE = """
from retrograde.codegen.cuda.device import divide, load, store, thread

def kernel(out, x, y):
    me = thread()
    store(out, me, divide(load(x, me), load(y, me)))
"""
REDUCE = """
from retrograde.codegen.cuda.device import load, reduce_maximum, reduce_pair
from retrograde.codegen.cuda.device import store, thread

def kernel(out, x, y):
    me = thread()
    total, loss = reduce_pair(load(x, me), load(y, me))
    store(out, 3*me, total)
    store(out, 3*me + 1, loss)
    store(out, 3*me + 2, reduce_maximum(load(x, me)))
"""


def run(source: str, x: Any, y: Any, out: Any) -> None:
    """Run a kernel with one thread for each element of `x` and `y`."""
    emulator = device("cuda:emu")
    dtypes = [a.dtype for a in (out, x, y)]
    code = compile_kernel(source, "kernel", ["pointer"] * 3, dtypes=dtypes, cubin=False)
    memory = [emulator.allocate(a.nbytes) for a in (out, x, y)]
    emulator.write(memory[1].address, x)
    emulator.write(memory[2].address, y)
    emulator.launch(emulator.load(code), 1, len(x), [m.address for m in memory])
    emulator.read(memory[0].address, out)


def test_all_threads_of_a_block_have_what_they_reduce():
    for threads in (32, 64, 128, 512, 1024):
        x = draw(threads)
        out = np.empty((threads, 3), np.float32)
        run(REDUCE, x, np.zeros_like(x), out)
        assert np.all(out == out[0])
        assert out[0, 2] == x.max()
        exact = x.sum(dtype="float64")
        assert abs(out[0, 0].astype("float64") + out[0, 1] - exact) < 1e-6


def test_divisions_of_short_and_of_long_numbers_are_exact():
    short = [(7, 2), (6, 3), (0, 5), (2**32 - 1, 1), (2**32 - 1, 2**32 - 1)]
    long = [(2**32, 3), (2**62, 2**31 + 1), (5, 2**40), (2**40 + 1, 2**40)]
    pairs = np.array([*short, *long], np.int64)
    pairs = np.resize(pairs, (32, 2))
    x, y = (np.ascontiguousarray(v) for v in pairs.T)
    out = np.empty_like(x)
    run(DIVIDE, x, y, out)
    assert out.tolist() == [int(a) // int(b) for a, b in pairs]
