"""Pointers of generated kernels: what they read and write is what NumPy would."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from retrograde.runtime.memory import (
    address,
    cast,
    convert,
    copy,
    fill,
    load,
    load_half,
    offset,
    pointer,
    reassoc_add,
    size,
    store,
    store_half,
    stride,
)

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float32 float64 complex64 complex128"
).split()
LANES = 24


def array(dtype: Any, ndim: int = 1, readonly: bool = False) -> Any:
    return types.Array(numba.from_dtype(np.dtype(dtype)), ndim, "C", readonly=readonly)


def njit(*signature: Any) -> Callable[[Callable[..., Any]], Any]:
    return numba.njit(signature, nogil=True, error_model="numpy")


def sample(dtype: str, rng: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return rng.random(37) > 0.5
    if dtype.startswith("complex"):
        return (rng.normal(size=37) + 1j * rng.normal(size=37)).astype(dtype)
    return (
        (rng.normal(size=37) * 20).astype(dtype)
        if dtype[0] != "u"
        else (rng.integers(0, 200, 37).astype(dtype))
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_through_load_and_store_unchanged(dtype: str):
    @njit(array(dtype, readonly=True), array(dtype), types.int64)
    def move(x, out, n):
        p = pointer(x)
        q = pointer(out)
        for i in range(n):
            store(q, i, load(p, i, 0, 2), 1, 2)

    x = sample(dtype, np.random.default_rng(0))
    x.flags.writeable = False
    out = np.empty_like(x)
    move(x, out, x.size)
    np.testing.assert_array_equal(out, x, strict=True)


@pytest.mark.parametrize(
    "old", ["bool", "int8", "uint32", "int64", "float32", "float64"]
)
@pytest.mark.parametrize("new", DTYPES)
def test_store_casts_as_astype_does(old: str, new: str):
    @njit(array(old, readonly=True), array(new), array(new), types.int64)
    def move(x, out, filled, n):
        p = pointer(x)
        q = pointer(out)
        for i in range(n):
            store(q, i, load(p, i, 0, 2), 1, 2)
        fill(pointer(filled), 1, n - 1, load(p, 3, -1, 0))

    x = sample(old, np.random.default_rng(1))
    if new[0] == "u" and old[0] in "if":
        x = np.abs(x)
    out, filled = np.empty(x.size, new), np.zeros(x.size, new)
    move(x, out, filled, x.size)
    np.testing.assert_array_equal(out, x.astype(new), strict=True)
    np.testing.assert_array_equal(filled[1:], np.full(36, x[3]).astype(new))
    assert filled[0] == 0


@pytest.mark.parametrize("new", ["bool", "float64", "int32", "complex64"])
def test_complex_is_cast_by_its_real_part_or_truth(new: str):
    @njit(array("complex128"), array(new))
    def move(x, out):
        for i in range(x.size):
            store(pointer(out), i, load(pointer(x), i, 0, 2), 1, 2)

    x = np.array([0, 1j, 2.5 - 1j, -3])
    out = np.empty(4, new)
    move(x, out)
    expect = x != 0 if new == "bool" else x if new == "complex64" else x.real
    np.testing.assert_array_equal(out, expect.astype(new))


def test_convert_wraps_negative_floats_into_unsigned_like_c():
    @njit(types.float64)
    def wrap(x):
        return convert(x, np.uint8), convert(x, np.uint32), convert(x, np.int8)

    assert wrap(-1.0) == (255, 2**32 - 1, -1)
    assert wrap(-3.9) == (253, 2**32 - 3, -3)


def test_convert_makes_bools_and_single_precision():
    @njit(types.float64, types.int64)
    def scalars(x, i):
        return convert(x, np.bool_), convert(i, np.bool_), convert(x, np.float32)

    assert scalars(0.1, 0) == (True, False, float(np.float32(0.1)))
    assert scalars(0.0, 7) == (False, True, 0.0)


@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_half_precision_is_rounded_once(wide: str):
    @njit(array("uint16", readonly=True), array("uint16"), array(wide), types.int64)
    def move(x, out, seen, n):
        for i in range(n):
            value = load_half(pointer(x), i, 0, 3)
            store(pointer(seen), i, value, 1, 3)
            store_half(pointer(out), i, load(pointer(seen), i, 1, 3), 2, 3)

    every = np.arange(2**16, dtype=np.uint16)
    halves = every.view(np.float16)
    out, seen = np.zeros_like(every), np.zeros(every.size, wide)
    move(every, out, seen, every.size)
    np.testing.assert_array_equal(seen, halves.astype(wide))
    known = ~np.isnan(halves)
    np.testing.assert_array_equal(out[known], every[known])

    @njit(array(wide), array("uint16"), types.int64)
    def shorten(x, out, n):
        for i in range(n):
            store_half(pointer(out), i, load(pointer(x), i, 0, 2), 1, 2)

    # 1 + 2**-11 lies halfway between two halves: the last bit decides, once.
    x = np.array([1 + 2**-11, 1 + 2**-11 + 2**-30, 1e5, 6e-8, -0.0], wide)
    got = np.zeros(x.size, np.uint16)
    shorten(x, got, x.size)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.view(np.float16), x.astype(np.float16))


def test_zero_dimensional_arrays_have_a_pointer():
    @njit(array("float64", 0, readonly=True), array("float64", 0))
    def double(x, out):
        store(pointer(out), 0, 2 * load(pointer(x), 0, 0, 2), 1, 2)

    out = np.zeros(())
    double(np.array(21.0), out)
    assert out == 42


def test_geometry_is_in_elements_and_layout_is_free():
    anything = types.Array(types.float32, 3, "A", readonly=True)

    @njit(anything)
    def geometry(x):
        last = load(pointer(x), size(x, 0) - 1, 0, 1) if stride(x, 0) == 1 else 0
        return size(x, 0), size(x, 2), stride(x, 0), stride(x, 1), stride(x, 2), last

    x = np.zeros((4, 5, 6), np.float32)
    assert geometry(x) == (4, 6, 30, 6, 1, 0)
    assert geometry(x[::-1, ::2]) == (4, 6, -30, 12, 1, 0)
    y = np.zeros((4, 5, 6), np.float32, order="F")
    y[3, 0, 0] = 7
    assert geometry(y) == (4, 6, 1, 4, 20, 7)


def test_arena_is_carved_into_buffers_of_other_types():
    @njit(array("uint8"))
    def carve(arena):
        p = pointer(arena)
        a = cast(p, np.float64)
        b = cast(offset(p, 64), np.int32)
        for i in range(8):
            store(a, i, i / 2, 0, 2)
            store(b, i, i, 1, 2)
        return address(b) - address(a)

    arena = np.zeros(96, np.uint8)
    assert carve(arena) == 64
    np.testing.assert_array_equal(arena[:64].view(np.float64), np.arange(8) / 2)
    np.testing.assert_array_equal(arena[64:].view(np.int32), np.arange(8))


@pytest.mark.parametrize(
    ("to", "start", "n"), [(3, 0, 5), (0, 3, 5), (2, 2, 4), (1, 5, 0)]
)
def test_copy_allows_overlap(to: int, start: int, n: int):
    @njit(array("int16"), types.int64, types.int64, types.int64)
    def move(x, to, start, n):
        copy(pointer(x), to, pointer(x), start, n)

    x = np.arange(10, dtype=np.int16)
    expect = x.copy()
    expect[to : to + n] = x[start : start + n].copy()
    move(x, to, start, n)
    np.testing.assert_array_equal(x, expect)


@cache
def pointwise(scopes: bool) -> Any:
    """Return a loop over 12 inputs and 12 outputs, as generated source would be."""
    inputs = [f"x{k}" for k in range(12)]
    outputs = [f"y{k}" for k in range(12)]
    lines = [f"def kernel({', '.join(inputs + outputs)}, n):"]
    lines += [f"    p{name} = pointer({name})" for name in inputs + outputs]
    lines += ["    for i in range(n):"]
    for k in range(12):
        lines += [f"        a{k} = load(px{k}, i, {k if scopes else -1}, {LANES})"]
    for k in range(12):
        value, number = f"a{k} * a{(k + 1) % 12}", k + 12 if scopes else -1
        lines += [f"        store(py{k}, i, {value}, {number}, {LANES})"]
    names = {"pointer": pointer, "load": load, "store": store}
    exec("\n".join(lines), names)
    x, y = array("float64", readonly=True), array("float64")
    return njit(*[x] * 12, *[y] * 12, types.int64)(names["kernel"])


def needs_avx() -> None:
    if "ymm" not in "".join(pointwise(True).inspect_asm().values()):
        pytest.skip("no AVX registers here")


def packed(function: Any) -> int:
    """Count packed multiplications on AVX registers."""
    assembly = "".join(function.inspect_asm().values())
    return len(re.findall(r"v(?:fm\w+|mul)pd\s.*[yz]mm", assembly))


def test_scopes_let_a_loop_over_24_buffers_vectorise():
    needs_avx()
    assert packed(pointwise(False)) == 0
    assert packed(pointwise(True)) >= 12


def test_loop_over_24_buffers_matches_numpy():
    rng = np.random.default_rng(2)
    x = [rng.normal(size=101) for _ in range(12)]
    y = [np.empty(101) for _ in range(12)]
    pointwise(True)(*x, *y, 101)
    for k in range(12):
        np.testing.assert_array_equal(y[k], x[k] * x[(k + 1) % 12])


def test_same_scope_keeps_the_order_of_writes_and_reads():
    @njit(array("float64"), types.int64)
    def scan(x, n):
        p = pointer(x)
        q = offset(p, 1)
        for i in range(n - 1):
            store(q, i, load(p, i, 0, 2) + load(q, i, 0, 2), 0, 2)

    x = np.arange(50.0)
    scan(x, 50)
    np.testing.assert_array_equal(x, np.cumsum(np.arange(50.0)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reassociated_sum_vectorises_and_keeps_its_accuracy(dtype: str):
    needs_avx()

    @njit(array(dtype, readonly=True), types.int64)
    def norm(x, n):
        p = pointer(x)
        total = x.dtype.type(0)
        for i in range(n):
            value = load(p, i, 0, 1)
            total = reassoc_add(total, value * value)
        return total

    suffix = "pd" if dtype == "float64" else "ps"
    assembly = "".join(norm.inspect_asm().values())
    assert re.search(rf"v(?:add|fm\w+){suffix}\s.*[yz]mm", assembly)
    x = np.random.default_rng(3).normal(size=1001).astype(dtype)
    exact = np.sum(x.astype(np.longdouble) ** 2)
    assert abs(norm(x, 1001) - exact) <= 16 * np.finfo(dtype).eps * exact
    for special in (np.nan, np.inf):
        y = x.copy()
        y[500] = special
        np.testing.assert_equal(float(norm(y, 1001)), special)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("load(x, 0, 0, 1)", "load needs a pointer"),
        ("load(pointer(x), 0, 2, 2)", "buffer number 2 is not one of 2"),
        ("load(pointer(x), 0, -2, 2)", "buffer number -2 is not one of 2"),
        ("load(pointer(x), 0, n, 2)", "k must be a literal int"),
        ("store(pointer(x), 0, x, 0, 1)", "is not a number"),
        ("size(x, 1)", "1-d array has no axis 1"),
        ("cast(pointer(x), 3)", "cast needs a scalar type"),
        (
            "copy(pointer(x), 0, cast(pointer(x), np.int8), 0, n)",
            "element types differ",
        ),
        ("reassoc_add(n, n)", "reassoc_add: floats"),
        ("load_half(pointer(x), 0, 0, 1)", "needs a pointer to uint16"),
    ],
)
def test_wrong_use_is_refused_when_compiled(body: str, message: str):
    names = dict(globals())
    exec(f"def kernel(x, n):\n    return {body}", names)
    with pytest.raises(TypingError, match=re.escape(message)):
        njit(array("float64"), types.int64)(names["kernel"])
