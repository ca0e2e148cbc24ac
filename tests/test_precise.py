"""`precise=True`: the elementary functions of the C library, bit for bit."""

import ctypes
import ctypes.util
import math
from typing import Any

import numpy as np
import pytest

import retrograde as rg

X = np.random.default_rng(0).uniform(0.05, 0.95, 203)


def everything(x, y):
    return (
        np.exp(x),
        np.log(x),
        np.sin(x),
        np.tanh(x),
        np.expm1(x),
        np.log1p(x),
        np.arcsin(x),
        np.arctan2(x, y),
        np.hypot(x, y),
        x**y,
    )


SCALAR = [
    lambda x, y: math.exp(x),
    lambda x, y: math.log(x),
    lambda x, y: math.sin(x),
    lambda x, y: math.tanh(x),
    lambda x, y: math.expm1(x),
    lambda x, y: math.log1p(x),
    lambda x, y: math.asin(x),
    math.atan2,
    lambda x, y: LIBM.hypot(x, y),  # Python's own is another one
    math.pow,
]
LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
LIBM.hypot.restype, LIBM.hypot.argtypes = ctypes.c_double, [ctypes.c_double] * 2


def test_results_are_those_of_the_c_library() -> None:
    y = 1 - X
    results = rg.compile(everything, precise=True)(X, y)
    for got, function in zip(results, SCALAR, strict=True):
        expect = [function(a, b) for a, b in zip(X, y, strict=True)]
        np.testing.assert_array_equal(got, expect)


def test_float32_results_are_those_of_the_c_library() -> None:
    x = X.astype("f4")
    LIBM.expf.restype, LIBM.expf.argtypes = ctypes.c_float, [ctypes.c_float]
    got = rg.compile(np.exp, precise=True)(x)
    np.testing.assert_array_equal(got, [np.float32(LIBM.expf(float(v))) for v in x])


def test_logaddexp_is_numpys() -> None:
    got = rg.compile(lambda x, y: np.logaddexp(x, y), precise=True)(X, 2 * X - 1)
    np.testing.assert_array_equal(got, np.logaddexp(X, 2 * X - 1))


def source(f: Any, *args: Any) -> str:
    return str(f.source(*args))


def test_gradients_are_precise_too() -> None:
    f = rg.compile(lambda x: np.exp(np.sin(x)).sum(), precise=True)
    assert "runtime.precise import exp" in source(rg.grad(f), X)
    sines = np.array([math.sin(v) for v in X])
    exps = np.array([math.exp(v) for v in sines])
    cosines = np.array([math.cos(v) for v in X])
    np.testing.assert_array_equal(rg.grad(f)(X), exps * cosines)


@rg.compile(precise=True)
def inner(x):
    return np.exp(x)


def test_a_function_that_calls_a_precise_one_is_precise() -> None:
    outer = rg.compile(lambda x: inner(x) + np.sin(x))
    assert "runtime.precise import sin" in source(outer, X)
    other = rg.compile(lambda x: np.sin(x))
    assert "runtime.scalar import sin" in source(other, X)


def test_precise_and_usual_functions_are_two() -> None:
    f = rg.compile(lambda x: np.exp(x))
    g = rg.compile(f, precise=True)
    assert g is not f
    assert rg.compile(g) is g
    assert "runtime.scalar" in source(f, X)
    assert "runtime.precise" in source(g, X)
    np.testing.assert_array_equal(g(X), [math.exp(v) for v in X])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("precise", [False, True])
def test_literal_powers_are_numpys_at_the_edges(dtype: Any, precise: bool) -> None:
    few = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 5e-324, 1e160, 1e-160, -3.7, 0.3]
    with np.errstate(all="ignore"):
        x = np.resize(np.array(few).astype(dtype), 99)
        expect = powers(x)
        got = rg.compile(powers, precise=precise)(x)
    for a, b in zip(got, expect, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        known = ~np.isnan(b)
        np.testing.assert_array_equal(np.signbit(a[known]), np.signbit(b[known]))
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[known & ~finite], b[known & ~finite])
        np.testing.assert_array_max_ulp(a[finite], b[finite], 3)


def powers(x):
    return (
        x**-2.0,
        x**-1.5,
        x**-1.0,
        x**-0.5,
        x**0.0,
        x**0.5,
        x**1.0,
        x**1.5,
        x**2.0,
        x**3.0,
        x**4.0,
        x**5.0,
    )


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_literal_powers_of_integers_wrap_around(dtype: Any) -> None:
    x = np.arange(-20, 79).astype(dtype)
    for got, expect in zip(rg.compile(whole)(x), whole(x), strict=True):
        assert got.dtype == expect.dtype
        np.testing.assert_array_equal(got, expect)


def whole(x):
    return x**0, x**1, x**2, x**3, x**7, x**12, x**63, x**70
