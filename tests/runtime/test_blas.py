"""Matrix products called from compiled code: NumPy's results in every shape."""

from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from retrograde.runtime import blas
from retrograde.runtime.memory import load, offset, pointer, store

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
SIZES = [(3, 4, 5), (1, 1, 1), (0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0), (17, 1, 9)]
i8, b1 = types.int64, types.boolean


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    blas.register()


def array(dtype: str, ndim: int, readonly: bool = False) -> Any:
    return types.Array(numba.from_dtype(np.dtype(dtype)), ndim, "A", readonly=readonly)


_compiled: dict[Any, Any] = {}


def compiled(function: Any, *signature: Any) -> Any:
    key = function, signature
    if key not in _compiled:
        _compiled[key] = numba.njit([signature], nogil=True)(function)
    return _compiled[key]


def run_gemm(ta, tb, m, n, k, a, lda, b, ldb, c, ldc):
    blas.gemm(ta, tb, m, n, k, pointer(a), lda, pointer(b), ldb, pointer(c), ldc)


def run_gemm_add(ta, tb, m, n, k, a, lda, b, ldb, c, ldc):
    blas.gemm_add(ta, tb, m, n, k, pointer(a), lda, pointer(b), ldb, pointer(c), ldc)


def run_gemv(ta, m, n, a, lda, x, incx, y, incy):
    blas.gemv(ta, m, n, pointer(a), lda, pointer(x), incx, pointer(y), incy)


def run_gemv_add(ta, m, n, a, lda, x, incx, y, incy):
    blas.gemv_add(ta, m, n, pointer(a), lda, pointer(x), incx, pointer(y), incy)


def run_dot(n, x, incx, y, incy):
    return blas.dot(n, pointer(x), incx, pointer(y), incy)


def run_ger(m, n, alpha, x, incx, y, incy, a, lda):
    blas.ger(m, n, alpha, pointer(x), incx, pointer(y), incy, pointer(a), lda)


def close(got: Any, expect: Any) -> None:
    dtype = np.asarray(expect).dtype.name
    rtol = TOLERANCE[dtype]
    np.testing.assert_allclose(got, expect, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ta", "tb"), list(product([False, True], repeat=2)))
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("add", [False, True])
def test_gemm(dtype: str, ta: bool, tb: bool, m: int, n: int, k: int, add: bool):
    matrix, read = array(dtype, 2), array(dtype, 2, readonly=True)
    function = run_gemm_add if add else run_gemm
    signature = (b1, b1, i8, i8, i8, read, i8, read, i8, matrix, i8)
    multiply = compiled(function, *signature)
    rng = np.random.default_rng(0)
    # Columns beyond the operands: leading dimensions are larger than the rows.
    whole_a = rng.normal(size=(k, m + 2) if ta else (m, k + 2)).astype(dtype)
    whole_b = rng.normal(size=(n, k + 3) if tb else (k, n + 3)).astype(dtype)
    a = whole_a[:, : m if ta else k]
    b = whole_b[:, : k if tb else n]
    whole_c = np.full((m, n + 1), np.nan, dtype)
    c = whole_c[:, :n]
    before = rng.normal(size=(m, n)).astype(dtype) if add else 0
    if add:
        c[...] = before
    leading = whole_a.shape[1], whole_b.shape[1]
    multiply(ta, tb, m, n, k, a, leading[0], b, leading[1], c, n + 1)
    close(c, before + (a.T if ta else a) @ (b.T if tb else b))
    assert np.isnan(whole_c[:, n:]).all()


def test_gemm_accepts_the_leading_dimensions_of_empty_matrices():
    matrix, read = array("float64", 2), array("float64", 2, readonly=True)
    multiply = compiled(run_gemm, b1, b1, i8, i8, i8, read, i8, read, i8, matrix, i8)
    c = np.full((2, 3), np.nan)
    multiply(False, False, 2, 3, 0, np.zeros((2, 0)), 0, np.zeros((0, 3)), 3, c, 3)
    np.testing.assert_array_equal(c, 0)
    multiply(True, True, 2, 3, 0, np.zeros((0, 2)), 2, np.zeros((3, 0)), 0, c, 3)
    np.testing.assert_array_equal(c, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize(("m", "n"), [(3, 4), (0, 3), (3, 0), (1, 1), (20, 7)])
@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("add", [False, True])
def test_gemv(dtype: str, ta: bool, m: int, n: int, step: int, add: bool):
    read, vector = array(dtype, 1, readonly=True), array(dtype, 1)
    function = run_gemv_add if add else run_gemv
    matrix = array(dtype, 2, readonly=True)
    signature = (b1, i8, i8, matrix, i8, read, i8, vector, i8)
    multiply = compiled(function, *signature)
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(m, n + 2)).astype(dtype)
    a = whole[:, :n]
    terms, results = (m, n) if ta else (n, m)
    x = rng.normal(size=terms * abs(step)).astype(dtype)[::step]
    y = np.full(results * abs(step), np.nan, dtype)[::step]
    if add:
        y[:] = 2
    multiply(ta, m, n, a, n + 2, x, step, y, step)
    close(y, np.asarray(2 if add else 0, dtype) + (a.T if ta else a) @ x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "step"), [(0, 1), (1, 0), (7, 1), (7, -2), (100, 3)])
def test_dot(dtype: str, n: int, step: int):
    read = array(dtype, 1, readonly=True)
    multiply = compiled(run_dot, i8, read, i8, read, i8)
    rng = np.random.default_rng(0)
    x = rng.normal(size=n * max(1, abs(step))).astype(dtype)[:: step or 1]
    y = rng.normal(size=n).astype(dtype)
    got = multiply(n, x, step, y, 1)
    close(got, x @ y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(3, 4), (0, 3), (3, 0), (20, 7)])
def test_ger(dtype: str, m: int, n: int):
    vector, matrix = array(dtype, 1, readonly=True), array(dtype, 2)
    scalar = numba.from_dtype(np.dtype(dtype))
    signature = (i8, i8, scalar, vector, i8, vector, i8, matrix, i8)
    update = compiled(run_ger, *signature)
    rng = np.random.default_rng(0)
    x = rng.normal(size=m).astype(dtype)[::-1]
    y = rng.normal(size=2 * n).astype(dtype)[::2]
    a = rng.normal(size=(m, n)).astype(dtype)
    expect = a + np.asarray(0.5, dtype) * np.outer(x, y)
    update(m, n, 0.5, x, -1, y, 2, a, max(n, 1))
    close(a, expect)


def test_stride_zero_is_refused_where_it_matters():
    read = array("float64", 1, readonly=True)
    multiply = compiled(run_dot, i8, read, i8, read, i8)
    with pytest.raises(ValueError, match="a vector has stride 0"):
        multiply(2, np.ones(2), 0, np.ones(2), 1)


def test_sizes_beyond_32_bits_are_refused():
    read = array("float64", 1, readonly=True)
    multiply = compiled(run_dot, i8, read, i8, read, i8)
    with pytest.raises(OverflowError, match="does not fit in 32 bits"):
        multiply(2**31, np.ones(2), 1, np.ones(2), 1)


def test_blocks_are_reached_through_offset_pointers():
    def batched(a, b, c, count, n):
        for i in range(count):
            p = offset(pointer(a), i * n * n)
            q = offset(pointer(b), i * n * n)
            r = offset(pointer(c), i * n * n)
            blas.gemm(False, True, n, n, n, p, n, q, n, r, n)
            store(r, 0, load(r, 0, -1, 0) + 1, -1, 0)

    stack, read = array("float64", 3), array("float64", 3, readonly=True)
    multiply = compiled(batched, read, read, stack, i8, i8)
    a, b = np.random.default_rng(0).normal(size=(2, 5, 4, 4))
    c = np.empty((5, 4, 4))
    multiply(a, b, c, 5, 4)
    expect = a @ b.transpose(0, 2, 1)
    expect[:, 0, 0] += 1
    close(c, expect)


@pytest.mark.parametrize("other", ["float32", "int64", "complex128"])
def test_operands_of_other_types_are_refused(other: str):
    read = array("float64", 1, readonly=True), array(other, 1, readonly=True)
    with pytest.raises(TypingError, match="dot needs pointers to float32 or float64"):
        numba.njit([(i8, read[0], i8, read[1], i8)])(run_dot)


def test_description_names_the_library():
    assert "SciPy" in blas.describe()
