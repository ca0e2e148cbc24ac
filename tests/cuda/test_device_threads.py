"""Memory, atomic updates, threads and reductions of kernels, as their PTX has them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_kernels import DTYPES, FLOATS, drawn, run, type_name

pytest.importorskip("numba_cuda")
pytestmark = pytest.mark.cuda_emulated

BLOCKS = [32, 64, 128, 256, 512, 1024]

# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_elements_are_one_access(
    dtype: str, count: int, constant: bool
) -> None:
    x, out = drawn(dtype, 64 * count), np.zeros(64 * count, dtype)
    names = ["x", "y", "z", "w"][:count]
    load = "load_constant" if constant else "load"
    source = (
        "def kernel(p, q):\n"
        f"    i = {count}*thread()\n"
        f"    {', '.join(names)} = {load}_{count}(p, i)\n"
        f"    store_{count}(q, i, {', '.join(reversed(names))})\n"
    )
    ptx = run(source, x, out, block=64)
    np.testing.assert_array_equal(out, x.reshape(-1, count)[:, ::-1].ravel())
    lanes = min(count, 16 // x.itemsize)
    assert f"ld.global{'.nc' * constant}.v{lanes}." in ptx
    assert f"st.global.v{lanes}." in ptx


def test_indices_have_64_bits() -> None:
    x, out = drawn("float32", 32), np.zeros(32, np.float32)
    far = 2**33 + 2**31
    source = (
        "def kernel(p, q):\n"
        "    i = thread()\n"
        f"    store(offset(q, {far}), i - {far}, load(offset(p, -{far}), i + {far}))\n"
    )
    run(source, x, out)
    np.testing.assert_array_equal(out, x)


def test_store_converts() -> None:
    x = np.array([0.0, -1.5, 2.5, math.nan] * 8)
    out = [np.zeros(32, d) for d in ("int32", "uint8", "float32", "bool")]
    lines = [f"    store(q{k}, i, x)\n" for k in range(4)]
    source = "def kernel(p, q0, q1, q2, q3):\n    i = thread()\n    x = load(p, i)\n"
    run(source + "".join(lines), x, *out)
    with np.errstate(all="ignore"):
        for o in out:
            np.testing.assert_array_equal(o, x.astype(o.dtype))


UPDATES = {"add": np.add, "multiply": np.multiply}
UPDATES |= {"maximum": np.maximum, "minimum": np.minimum}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_atomic_updates_lose_nothing(dtype: str, name: str) -> None:
    x = drawn(dtype, 256)
    if dtype in FLOATS and name == "multiply":
        x = 1 + x / 1000
    want = np.ones(8, dtype)  # whole words
    got = want.copy()
    UPDATES[name].at(want, np.arange(256) % 7, x)
    source = (
        "def kernel(p, q):\n"
        "    i = block()*threads() + thread()\n"
        f"    atomic_{name}(q, i % 7, load(p, i))\n"
    )
    run(source, x, got, grid=2, block=128)
    if dtype in FLOATS and name in ("add", "multiply"):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_atomic_extremes_keep_nan(name: str) -> None:
    x = np.array([1.0, math.nan, -3.0, 2.0] * 8, np.float32)
    got = np.zeros(1, np.float32)
    run(f"def kernel(p, q):\n    atomic_{name}(q, 0, load(p, thread()))\n", x, got)
    assert np.isnan(got[0])


# ---------------------------------------------------------------- threads


def test_threads_know_their_places() -> None:
    out = [np.zeros(3 * 64, np.int64) for _ in range(4)]
    names = ["thread", "threads", "block", "blocks"]
    lines = [f"    store(q{k}, i, {n}())\n" for k, n in enumerate(names)]
    source = "def kernel(q0, q1, q2, q3):\n    i = block()*threads() + thread()\n"
    run(source + "".join(lines), *out, grid=3, block=64)
    i = np.arange(3 * 64)
    for got, want in zip(out, [i % 64, 64 + 0 * i, i // 64, 3 + 0 * i], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_of_a_block_share_memory(dtype: str) -> None:
    x, out = drawn(dtype, 2 * 128), np.zeros(2 * 128, dtype)
    source = (
        "def kernel(p, q):\n"
        "    i, first = thread(), block()*threads()\n"
        f"    s = shared(0, 128, {type_name(dtype)})\n"
        "    t = shared(1, 128, int64)\n"
        "    store(s, i, load(p, first + i))\n"
        "    store(t, i, 127 - i)\n"
        "    barrier()\n"
        "    store(q, first + i, load(s, load(t, i)))\n"
    )
    run(source, x, out, grid=2, block=128)
    np.testing.assert_array_equal(out, x.reshape(2, -1)[:, ::-1].ravel())


def test_a_block_asks_all_its_threads() -> None:
    limits = np.array([-1, 0, 63, 64], np.int64)  # one per block: threads below it
    out = [np.zeros(4 * 64, bool) for _ in range(2)]
    source = (
        "def kernel(p, q, r):\n"
        "    flag = thread() < load(p, block())\n"
        "    i = block()*threads() + thread()\n"
        "    store(q, i, any_thread(flag))\n"
        "    store(r, i, all_threads(flag))\n"
    )
    run(source, limits, *out, grid=4, block=64)
    np.testing.assert_array_equal(out[0], np.repeat([False, False, True, True], 64))
    np.testing.assert_array_equal(out[1], np.repeat([False, False, False, True], 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shuffles_exchange_values_within_warps(dtype: str) -> None:
    x = drawn(dtype, 64)
    if dtype not in (*FLOATS, "bool"):
        x[:4] = [np.iinfo(dtype).max, np.iinfo(dtype).min, 0, 1]
    distances = [1, 2, 4, 8, 16, 31]
    out = [np.zeros(64, dtype) for _ in distances]
    names = ", ".join(f"q{k}" for k in range(len(out)))
    source = f"def kernel(p, {names}):\n    i = thread()\n    x = load(p, i)\n"
    for k, n in enumerate(distances):
        source += f"    store(q{k}, i, shuffle_xor(x, {n}))\n"
    run(source, x, *out, block=64)
    for got, n in zip(out, distances, strict=True):
        np.testing.assert_array_equal(got, x[np.arange(64) ^ n])


# ---------------------------------------------------------------- reductions


def tree(x: np.ndarray, combine: Callable[..., Any]) -> Any:
    """Combine the values of a block as `reductions` says: warps, then their results."""
    while x.shape[-1] > 1:
        lanes = min(x.shape[-1], 32)
        x = x.reshape(*x.shape[:-1], -1, lanes)
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            x = combine(x[..., :half], x[..., half:])
        x = x[..., 0]
    return x[..., 0]


REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "logical_or": np.logical_or,
    "logical_and": np.logical_and,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def rows(dtype: str, block: int) -> np.ndarray:
    """Return what blocks reduce: random, with zeros, without, and with NaN."""
    x = np.stack([drawn(dtype, block, seed) for seed in range(4)])
    x[1][x[1] == 0] = 1
    x[2, ::7] = 0
    if dtype in FLOATS:
        x[2:] = 1 + x[2:] / 4000
        x[3, block // 2 + 1] = math.nan
    return x


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_follow_the_tree(dtype: str, block: int) -> None:
    x = rows(dtype, block)
    names = [n for n in REDUCTIONS if dtype not in FLOATS or "bitwise" not in n]
    out = [np.zeros(x.shape, bool if "logical" in n else dtype) for n in names]
    parameters = ", ".join(f"q{k}" for k in range(len(out)))
    source = (
        f"def kernel(p, {parameters}):\n"
        "    i = block()*threads() + thread()\n"
        "    x = load(p, i)\n"
    )
    for k, name in enumerate(names):
        source += f"    store(q{k}, i, reduce_{name}(x))\n"
    run(source, x, *out, grid=len(x), block=block)
    with np.errstate(all="ignore"):
        for name, got in zip(names, out, strict=True):
            want = tree(x, REDUCTIONS[name]).astype(got.dtype)
            np.testing.assert_array_equal(got, np.repeat(want, block).reshape(x.shape))


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_threads_have_the_same_zero(dtype: str) -> None:
    x = np.zeros(128, dtype)
    x[::3] = -0.0
    out = np.ones(128, dtype)
    source = (
        "def kernel(p, q):\n"
        "    i = thread()\n"
        "    store(q, i, reduce_maximum(load(p, i)))\n"
    )
    run(source, x, out, block=128)
    assert len(set(np.signbit(out).tolist())) == 1


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_keep_what_sums_lose(dtype: str, block: int) -> None:
    x = drawn(dtype, block)
    x[::5] *= 1e6
    x[3] = -x[0]
    loss = x[::-1] / np.dtype(dtype).type(2**20)
    sums, losses = np.zeros(block, dtype), np.zeros(block, dtype)
    source = (
        "def kernel(p, q, a, b):\n"
        "    i = thread()\n"
        "    s, r = reduce_pair(load(p, i), load(q, i))\n"
        "    store(a, i, s)\n"
        "    store(b, i, r)\n"
    )
    run(source, x, np.ascontiguousarray(loss), sums, losses, block=block)
    assert (sums == tree(x, np.add)).all()
    assert (losses == losses[0]).all()
    exact = math.fsum([*x.tolist(), *loss.tolist()])
    got = math.fsum([float(sums[0]), float(losses[0])])
    size = math.fsum(np.abs(x).tolist())
    assert abs(got - exact) <= 4 * size * float(np.finfo(dtype).eps) ** 2 * block


def test_reductions_in_a_loop_do_not_disturb_each_other() -> None:
    x = drawn("int64", 10 * 256).reshape(10, 256)
    sums, most = np.zeros_like(x), np.zeros_like(x)
    source = (
        "def kernel(p, q, r):\n"
        "    i = thread()\n"
        "    while i < 2560:\n"
        "        x = load(p, i)\n"
        "        store(q, i, reduce_add(x))\n"
        "        store(r, i, reduce_maximum(x))\n"
        "        i += threads()\n"
    )
    run(source, x, sums, most, block=256)
    np.testing.assert_array_equal(sums, x.sum(1, keepdims=True) + 0 * x)
    np.testing.assert_array_equal(most, x.max(1, keepdims=True) + 0 * x)
