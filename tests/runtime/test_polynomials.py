"""Polynomials: the coefficients of their formulas, accurate, right at the edges."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

from retrograde.runtime import polynomials
from retrograde.runtime.memory import load, pointer, store

ULP = 2.5
DIGITS = 40
TINY = Decimal(10) ** -DIGITS
DTYPES = (np.float64, np.float32)
EDGES = [0, 1, 2, 0.5, np.inf, 1e30, 22.5, 88.72, 88.73, 103.97, 104.5, 709.78, 709.79]
EDGES += [745.13, 745.14, 1023.5, 1024, 1074.5, 1075.5, 2.0**53, 2.0**60, 1e-310]


def cosine(x: Decimal) -> Decimal:
    term = total = Decimal(1)
    k = 0
    while abs(term) > TINY:
        k += 2
        term = -term * x * x / (k * (k - 1))
        total += term
    return total


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


def interpolate(
    g: Callable[[Decimal], Decimal], low: Decimal, high: Decimal, n: int
) -> list[Decimal]:
    """Return the coefficients of the polynomial through n Chebyshev nodes."""
    angles = [cosine(PI * (2 * k + 1) / (2 * n)) for k in range(n)]
    nodes = [(low + high) / 2 + (high - low) / 2 * c for c in angles]
    differences = [g(x) for x in nodes]
    for j in range(1, n):
        for i in reversed(range(j, n)):
            rise = differences[i] - differences[i - 1]
            differences[i] = rise / (nodes[i] - nodes[i - j])
    out = [differences[-1]]
    for x, value in zip(reversed(nodes[:-1]), reversed(differences[:-1]), strict=True):
        shifted = [Decimal(0), *out]
        out = [a - x * b for a, b in zip(shifted, [*out, Decimal(0)], strict=True)]
        out[0] += value
    return out


def series(term: Decimal, ratio: Callable[[int], Decimal]) -> Decimal:
    """Sum a series from its first term and the ratios of the next ones."""
    total, k = Decimal(0), 0
    while abs(term) > TINY:
        total += term
        term *= ratio(k)
        k += 1
    return total


def coefficients(name: str, single: bool) -> list[Decimal]:
    two = Decimal(2).ln()
    half = Decimal("0.50005")
    if name == "exp":  # (exp(r) - 1 - r) / r**2
        half = two * half
        g = lambda r: series(Decimal("0.5"), lambda k: r / (k + 3))  # noqa: E731
        return interpolate(g, -half, half, 5 if single else 10)
    if name == "exp2":  # (2**r - 1) / r
        half = Decimal("0.5001")
        g = lambda r: series(two, lambda k: r * two / (k + 2))  # noqa: E731
        return interpolate(g, -half, half, 6 if single else 11)
    if single:  # (log(1 + f) - f + f**2 / 2) / f**3
        low = Decimal("0.5").sqrt() - 1 - Decimal("0.0001")
        high = Decimal(2).sqrt() - 1 + Decimal("0.0001")
        third = Decimal(1) / 3
        g = lambda f: series(  # noqa: E731
            third, lambda k: -f * (k + 3) / (k + 4)
        )
        return interpolate(g, low, high, 9)
    g = lambda z: series(  # noqa: E731
        Decimal(2) / 3, lambda k: z * (2 * k + 3) / (2 * k + 5)
    )
    return interpolate(g, Decimal(0), Decimal("0.02945"), 7)


@pytest.mark.parametrize("name", ["exp", "exp2", "log"])
@pytest.mark.parametrize("single", [False, True])
def test_coefficients_interpolate_at_chebyshev_nodes(name: str, single: bool) -> None:
    f = polynomials.SINGLE if single else polynomials.DOUBLE
    with localcontext() as context:
        context.prec = DIGITS + 20
        expect = [float(c) for c in coefficients(name, single)]
    np.testing.assert_allclose(getattr(f, name), expect, rtol=1e-7 if single else 1e-15)


def run(name: str, x: np.ndarray) -> np.ndarray:
    """Return the function of an array."""
    kind = types.Array(numba.from_dtype(x.dtype), 1, "C")

    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            bits = signature.return_type.bitwidth
            return builder.call(polynomials.declare(builder.module, name, bits), args)

        return x(x), emit

    def loop(x, out):
        p = pointer(x)
        q = pointer(out)
        for i in range(x.size):
            store(q, i, function(load(p, i, 0, 2)), 1, 2)

    out = np.empty_like(x)
    numba.njit([(kind, kind)], error_model="numpy")(loop)(x, out)
    return out


def points(dtype: Any) -> np.ndarray:
    """Return special values, evenly spread ones, and ones of every magnitude."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    edges = [*EDGES, info.max, info.tiny, info.smallest_subnormal]
    lowest, most = -323 if dtype == np.float64 else -45, np.log10(float(info.max))
    sizes = 10.0 ** rng.uniform(lowest, most, 4000)
    spread = [rng.uniform(-1, 3, 4000), rng.uniform(-760, 720, 2000)]
    spread.append(rng.uniform(-105, 90, 2000))
    known = np.concatenate([edges, sizes])
    with np.errstate(over="ignore"):
        return np.concatenate([known, -known, *spread, [np.nan]]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", polynomials.FUNCTIONS)
def test_polynomials_are_accurate_everywhere(name: str, dtype: Any) -> None:
    x = points(dtype)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
        rounded = exact.astype(dtype)
        got = run(name, x)
        error = np.abs(got.astype(np.longdouble) - exact) / np.spacing(np.abs(rounded))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    known = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(rounded[known]))
    assert np.max(error[finite]) <= ULP


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_has_the_same_bits_wherever_it_stands(dtype: Any) -> None:
    x = np.random.default_rng(1).uniform(-3, 3, 101).astype(dtype)
    whole = run("tanh", x)
    parts = np.concatenate([run("tanh", x[:1]), run("tanh", x[1:].copy())])
    np.testing.assert_array_equal(whole, parts)


def test_logarithms_and_powers_of_two_are_exact() -> None:
    k = np.arange(-1074.0, 1024.0)
    np.testing.assert_array_equal(run("exp2", k), np.ldexp(1.0, k.astype(int)))
    np.testing.assert_array_equal(run("log2", np.ldexp(1.0, k.astype(int))), k)
