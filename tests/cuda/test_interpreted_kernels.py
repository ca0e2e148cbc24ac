"""Kernels that numba-cuda compiles, run by the interpreter, against NumPy and SciPy."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from retrograde.runtime.devices.machine import Counts, PtxError, Space, launch, parse

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("needs numba-cuda", allow_module_level=True)

from numba import cuda
from numba.cuda import libdevice, types

pytestmark = pytest.mark.cuda_emulated

f4, f8, i4, i8, u4 = (
    types.float32,
    types.float64,
    types.int32,
    types.int64,
    types.uint32,
)
pointer = types.CPointer
RNG = np.random.default_rng(11)


class Kernel:
    """A compiled kernel; arrays among its arguments are copied in and out."""

    def __init__(self, function: Callable[..., None], *signature: Any) -> None:
        text, _ = cuda.compile(
            function, signature, device=False, abi="numba", cc=(9, 0)
        )
        self.module = parse(text)

    def __call__(
        self, grid: int, block: int, *args: Any, unwritten: int = -1, **options: Any
    ) -> Counts:
        space, given = Space(), []
        for number, arg in enumerate(args):
            if not isinstance(arg, np.ndarray):
                given.append(arg)
                continue
            given.append(space.allocate(arg.nbytes, f"argument {number}"))
            if number != unwritten:
                space.write(given[-1], arg)
        (entry,) = self.module.entries
        counts = launch(self.module, entry, grid, block, given, space, **options)
        for arg, address in zip(args, given, strict=True):
            if isinstance(arg, np.ndarray):
                space.read(address, arg)
        return counts


def ulp(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest distance in units of the last place; NaNs have to agree."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(found.dtype)
    assert (np.isnan(found) == np.isnan(nearest)).all()
    finite = np.isfinite(nearest) & np.isfinite(found)
    assert (
        found[~finite & ~np.isnan(found)] == nearest[~finite & ~np.isnan(found)]
    ).all()
    gap = np.abs(found[finite] - exact[finite])
    return float((gap / np.spacing(np.abs(nearest[finite]))).max())


# Functions of libdevice.


def elementwise(function: Callable[..., Any], kind: Any, count: int) -> Kernel:
    names = [f"p{k}" for k in range(count)]
    source = f"""
def kernel({", ".join(names)}, q, n):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    while i < n:
        q[i] = function({", ".join(f"{name}[i]" for name in names)})
        i += cuda.gridDim.x * cuda.blockDim.x
"""
    scope: dict[str, Any] = {"cuda": cuda, "function": function}
    exec(source, scope)
    return Kernel(scope["kernel"], *[pointer(kind)] * (count + 1), i8)


def spread(low: float, high: float, count: int = 1500) -> np.ndarray:
    """Return numbers of both signs whose magnitudes are evenly spread in logarithm."""
    size = 10.0 ** RNG.uniform(math.log10(low), math.log10(high), count)
    return np.concatenate([size, -size, [0.0, math.inf, -math.inf, math.nan]])


def positive(low: float, high: float) -> np.ndarray:
    return np.abs(spread(low, high))


WIDE: dict[str, tuple[Callable[..., Any], np.ndarray, np.ndarray, float]] = {
    # function: exact function, float32 range, float64 range, greatest error in ulp
    "sin": (np.sin, spread(1e-9, 3e38), spread(1e-9, 1e300), 2),
    "cos": (np.cos, spread(1e-9, 3e38), spread(1e-9, 1e300), 2),
    "tan": (np.tan, spread(1e-9, 3e38), spread(1e-9, 1e300), 4),
    "exp": (np.exp, spread(1e-9, 100), spread(1e-9, 740), 2),
    "expm1": (np.expm1, spread(1e-9, 88), spread(1e-9, 700), 2),
    "log": (np.log, positive(1e-44, 3e38), positive(1e-320, 1e308), 1),
    "log1p": (np.log1p, positive(1e-9, 3e38), positive(1e-20, 1e308), 2),
    "log2": (np.log2, positive(1e-44, 3e38), positive(1e-320, 1e308), 2),
    "sqrt": (np.sqrt, positive(1e-44, 3e38), positive(1e-320, 1e308), 0.5),
    "tanh": (np.tanh, spread(1e-9, 30), spread(1e-9, 30), 2),
    "sinh": (np.sinh, spread(1e-9, 88), spread(1e-9, 700), 3),
    "cosh": (np.cosh, spread(1e-9, 88), spread(1e-9, 700), 3),
    "asin": (np.arcsin, spread(1e-9, 1), spread(1e-9, 1), 3),
    "acos": (np.arccos, spread(1e-9, 1), spread(1e-9, 1), 3),
    "atan": (np.arctan, spread(1e-9, 1e30), spread(1e-9, 1e300), 2),
    "asinh": (np.arcsinh, spread(1e-9, 1e30), spread(1e-9, 1e300), 3),
    "acosh": (np.arccosh, positive(1, 1e30), positive(1, 1e300), 4),
    "atanh": (np.arctanh, spread(1e-9, 0.99), spread(1e-9, 0.99), 4),
    "erf": (np.vectorize(math.erf), spread(1e-9, 10), spread(1e-9, 10), 4),
    "erfc": (np.vectorize(math.erfc), spread(1e-9, 5), spread(1e-9, 5), 6),
    "lgamma": (special.gammaln, positive(3, 1e30), positive(3, 1e300), 5),
    "gamma": (special.gamma, positive(0.1, 30), positive(0.1, 100), 10),
}


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", WIDE)
def test_function_over_its_range(name: str, kind: str) -> None:
    exact, single, double, bound = WIDE[name]
    x = (single if kind == "float32" else double).astype(kind)
    found = np.empty_like(x)
    kernel = elementwise(getattr(math, name), getattr(types, kind), 1)
    kernel(5, 128, x, found, len(x), unwritten=1)
    precise = np.longdouble if isinstance(exact, np.ufunc) else np.float64
    if exact in (special.gamma, special.gammaln):
        precise = np.float64
    with np.errstate(all="ignore"):
        expected = exact(x.astype(precise))
    assert ulp(found, expected) <= bound


def test_lgamma_of_negative_numbers_and_near_its_zeros() -> None:
    x = np.concatenate([RNG.uniform(-20, 3, 2000), [1.0, 2.0, -3.0, 0.0, 1 + 1e-9]])
    found = np.empty_like(x)
    elementwise(math.lgamma, f8, 1)(8, 256, x, found, len(x), unwritten=1)
    np.testing.assert_allclose(found, special.gammaln(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "exact", "bound"),
    [
        ("pow", np.power, 2),
        ("atan2", np.arctan2, 3),
        ("hypot", np.hypot, 2),
        ("fmod", np.fmod, 0),
    ],
)
def test_function_of_two(
    name: str, exact: Callable[..., Any], bound: float, kind: str
) -> None:
    x = np.concatenate([np.exp(RNG.normal(size=1500) * 5), [0, 1, np.inf, 1e-30, 2]])
    y = np.concatenate([RNG.normal(size=1500) * 3, [2, np.nan, -1, 0.5, -3]])
    x, y = x.astype(kind), y.astype(kind)
    if name == "fmod":
        y[y == 0] = 1
    found = np.empty_like(x)
    kernel = elementwise(getattr(math, name), getattr(types, kind), 2)
    kernel(3, 256, x, y, found, len(x), unwritten=2)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.longdouble), y.astype(np.longdouble))
    assert ulp(found, expected) <= bound


@pytest.mark.parametrize(("name", "kind"), [("mulhi", i4), ("mul64hi", i8)])
def test_high_products_of_libdevice(name: str, kind: Any) -> None:
    a, b = RNG.integers(-(2**31), 2**31, (2, 200)).astype(f"i{kind.bitwidth // 8}")
    a *= a.dtype.type(0x7654321)
    found = np.empty_like(a)
    kernel = elementwise(getattr(libdevice, name), kind, 2)
    kernel(1, 256, a, b, found, 200, unwritten=2)
    exact = [
        x * y >> kind.bitwidth for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert found.tolist() == exact


# Kernels like those that a program becomes.


def chain(kind: Any, name: str) -> Callable[..., None]:
    one, half = np.dtype(name).type(1), np.dtype(name).type(0.5)

    def kernel(x, w, g, y, dx, dw, n):
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        while i < n:
            a, b = x[i], w[i]
            t = math.tanh(a * b)
            e = math.exp(-a * half)
            y[i] = t * e
            s = g[i] * e * (one - t * t)
            dx[i] = s * b - g[i] * t * e * half
            dw[i] = s * a
            i += cuda.gridDim.x * cuda.blockDim.x

    return kernel


@pytest.mark.parametrize(("kind", "name"), [(f4, "f4"), (f8, "f8")])
@pytest.mark.parametrize("n", [1, 100, 1000, 5000])
def test_fused_chain_forward_and_backward(kind: Any, name: str, n: int) -> None:
    kernel = Kernel(chain(kind, name), *[pointer(kind)] * 6, i8)
    x, w, g = RNG.normal(size=(3, n)).astype(name)
    y, dx, dw = np.zeros((3, n), name)
    counts = kernel(4, 256, x, w, g, y, dx, dw, n)
    t, e = np.tanh(x * w), np.exp(-x * w.dtype.type(0.5))
    s = g * e * (1 - t * t)
    tight = {"rtol": 0, "atol": 1e-5 if name == "f4" else 3e-14}
    np.testing.assert_allclose(y, t * e, **tight)
    np.testing.assert_allclose(dx, s * w - g * t * e / 2, **tight)
    np.testing.assert_allclose(dw, s * x, **tight)
    size = n * np.dtype(name).itemsize
    assert (counts.read, counts.written) == (3 * size, 3 * size)
    assert counts.efficiency == 1


def softmax(x, y, n):
    row, thread, count = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    shared = cuda.shared.array(32, f4)
    top = f4(-math.inf)
    i = thread
    while i < n:
        top = max(top, x[row * n + i])
        i += count
    k = 16
    while k > 0:
        top = max(top, cuda.shfl_xor_sync(0xFFFFFFFF, top, k))
        k >>= 1
    if thread & 31 == 0:
        shared[thread >> 5] = top
    cuda.syncthreads()
    top = shared[0]
    for j in range(1, count >> 5):
        top = max(top, shared[j])
    cuda.syncthreads()
    total = f4(0)
    i = thread
    while i < n:
        total += math.exp(x[row * n + i] - top)
        i += count
    k = 16
    while k > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
        k >>= 1
    if thread & 31 == 0:
        shared[thread >> 5] = total
    cuda.syncthreads()
    total = shared[0]
    for j in range(1, count >> 5):
        total += shared[j]
    i = thread
    while i < n:
        y[row * n + i] = math.exp(x[row * n + i] - top) / total
        i += count


@pytest.mark.parametrize(
    ("rows", "n", "block"), [(13, 777, 128), (1, 5, 32), (90, 130, 256)]
)
def test_softmax_with_shuffles(rows: int, n: int, block: int) -> None:
    kernel = Kernel(softmax, pointer(f4), pointer(f4), i8)
    x = RNG.normal(size=(rows, n)).astype("f4") * 3
    y = np.zeros_like(x)
    counts = kernel(rows, block, x, y, n, unwritten=1)
    np.testing.assert_allclose(y, special.softmax(x.astype("f8"), axis=1), rtol=3e-6)
    assert (counts.read, counts.written) == (3 * x.nbytes, x.nbytes)


def total(x, y, n):
    shared = cuda.shared.array(0, f8)
    thread = cuda.threadIdx.x
    acc = f8(0)
    i = cuda.blockIdx.x * cuda.blockDim.x + thread
    while i < n:
        acc += x[i]
        i += cuda.gridDim.x * cuda.blockDim.x
    shared[thread] = acc
    cuda.syncthreads()
    half = cuda.blockDim.x >> 1
    while half > 0:
        if thread < half:
            shared[thread] += shared[thread + half]
        cuda.syncthreads()
        half >>= 1
    if thread == 0:
        y[cuda.blockIdx.x] = shared[0]


def test_sum_in_two_launches_of_a_fixed_order() -> None:
    kernel = Kernel(total, pointer(f8), pointer(f8), i8)
    x = RNG.normal(size=20000)
    parts, result = np.zeros(16), np.zeros(1)
    kernel(16, 128, x, parts, len(x), unwritten=1, shared=128 * 8)
    kernel(1, 32, parts, result, 16, unwritten=1, shared=32 * 8)
    assert result[0] == pytest.approx(math.fsum(x), abs=1e-11)
    again = np.zeros(16)
    kernel(16, 128, x, again, len(x), unwritten=1, shared=128 * 8)
    assert again.tobytes() == parts.tobytes()


def scatter(index, values, target, n):
    i = cuda.grid(1)
    if i < n:
        cuda.atomic.add(target, index[i], values[i])


def test_scatter_add_with_atomics() -> None:
    kernel = Kernel(scatter, pointer(i8), pointer(f4), types.Array(f4, 1, "C"), i8)
    index, values = RNG.integers(0, 50, 3000), RNG.normal(size=3000).astype("f4")
    target = np.zeros(50, "f4")
    space = Space()
    given = [space.allocate(a.nbytes) for a in (index, values, target)]
    for address, array in zip(given, (index, values, target), strict=True):
        space.write(address, array)
    array_words = [0, 0, 50, 4, given[2], 50, 4]  # parent, meminfo, items, ... strides
    (entry,) = kernel.module.entries
    args = [given[0], given[1], *array_words, len(index)]
    launch(kernel.module, entry, 12, 256, args, space)
    space.read(given[2], target)
    expected = np.zeros(50, "f4")
    np.add.at(expected, index, values)
    assert target.tobytes() == expected.tobytes()


def philox(low, high, out, n):
    i = cuda.grid(1)
    if i < n:
        mask = np.uint64(0xFFFFFFFF)
        c0, c1, c2, c3 = np.uint64(i), np.uint64(0), np.uint64(0), np.uint64(0)
        k0, k1 = np.uint64(low), np.uint64(high)
        for _ in range(10):
            p0 = np.uint64(0xD2511F53) * c0
            p1 = np.uint64(0xCD9E8D57) * c2
            shift = np.uint64(32)
            c0, c1, c2, c3 = (
                (p1 >> shift) ^ c1 ^ k0,
                p1 & mask,
                (p0 >> shift) ^ c3 ^ k1,
                p0 & mask,
            )
            k0 = (k0 + np.uint64(0x9E3779B9)) & mask
            k1 = (k1 + np.uint64(0xBB67AE85)) & mask
        out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3] = c0, c1, c2, c3


def test_philox_gives_the_published_numbers() -> None:
    kernel = Kernel(philox, i8, i8, pointer(u4), i8)
    out = np.zeros(4 * 200, "u4")
    kernel(2, 128, 0, 0, out, 200, unwritten=2)
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123, kat_vectors
    assert out[:4].tolist() == known
    assert len(set(out.tolist())) == 800


def serial(x, y, n):
    if cuda.threadIdx.x == 0:
        state = f8(0)
        for i in range(n):
            state = state * f8(0.9) + math.sin(x[i])
            y[i] = state
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < n:
        x[i] = y[i]
        i += cuda.blockDim.x


def test_serial_loop_of_one_thread() -> None:
    kernel = Kernel(serial, pointer(f8), pointer(f8), i8)
    x = RNG.normal(size=400)
    expected, state = [], 0.0
    for value in np.sin(x):
        state = state * 0.9 + value
        expected.append(state)
    y = np.zeros_like(x)
    kernel(1, 64, x, y, len(x), unwritten=1)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-14)
    assert x.tobytes() == y.tobytes()


# Planted faults.


def error_of(function: Callable[..., None], *args: Any, grid: int = 2) -> str:
    kinds = [pointer(f4) if isinstance(a, np.ndarray) else i8 for a in args]
    kernel = Kernel(function, *kinds)
    with pytest.raises(PtxError) as error:
        kernel(grid, 64, *args, unwritten=1)
    return str(error.value)


def x_y(count: int = 128) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(count, "f4"), np.zeros(count, "f4")


def test_index_past_the_end_is_caught() -> None:
    def kernel(x, y, n):
        i = cuda.grid(1)
        if i <= n:
            y[i] = x[i]

    assert error_of(kernel, *x_y(100), 100).startswith(
        "4-byte load out of bounds: offset 400 of argument 0, which has 400 bytes, "
        "thread 36 of block 1"
    )


def test_missing_barrier_is_caught() -> None:
    def kernel(x, y):
        shared = cuda.shared.array(64, f4)
        i, thread = cuda.grid(1), cuda.threadIdx.x
        shared[thread] = x[i]
        y[i] = shared[63 - thread]

    assert error_of(kernel, *x_y()).startswith("data race on offset 0 of shared memory")


def test_unwritten_output_is_caught() -> None:
    def kernel(x, y, n):
        i = cuda.grid(1)
        if i < n - 1:
            y[i] = x[i]

    assert error_of(kernel, *x_y(), 128) == (
        "read of argument 1: nobody has written byte 508 of 512, nor 3 others"
    )


def test_misaligned_vector_is_caught() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i]

    text, _ = cuda.compile(
        kernel, (pointer(f8), pointer(f8)), device=False, abi="numba", cc=(9, 0)
    )
    module, space = parse(text), Space()
    a, b = space.allocate(1024), space.allocate(1024)
    space.fill(a, 0, 1024)
    with pytest.raises(
        PtxError, match=f"misaligned 8-byte load at {a + 4:#x}, thread 0"
    ):
        launch(module, module.entries[0], 1, 64, [a + 4, b], space)


def test_divergent_barrier_is_caught() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        if i % 2 == 0:
            y[i] = x[i]
            cuda.syncthreads()
            x[i] = y[i]

    message = error_of(kernel, *x_y())
    assert "waits at a barrier that thread 1 of block 0 never reaches" in message


def test_race_on_global_memory_is_caught() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i]
        y[0] = x[i] + y[i]

    assert error_of(kernel, *x_y()).startswith("data race on offset 0 of argument 1")
