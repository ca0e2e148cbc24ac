"""Float instructions of PTX against exact fractions, on lanes and on scalars."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from exact import RNG, cases, check, exactly, rounded
from snippets import compute, dtype, elementwise

FLOAT_OPERATIONS = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "div": (lambda a, b: a / b, np.divide),
}


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", FLOAT_OPERATIONS)
def test_float_arithmetic_is_rounded_once(name: str, mode: str, kind: str) -> None:
    function, plain = FLOAT_OPERATIONS[name]
    reference = exactly(kind, mode, function, plain)
    check(f"{name}.{mode}.{kind} %d, %a, %b;", (kind, kind), kind, reference)


def ties(kind: str) -> list[tuple[float, float, float]]:
    """Return factors and addends whose exact result lies at or next to a tie."""
    eps = float(np.finfo(dtype(kind)).eps)
    found = []
    for scale in (1.0, 2.0**-100, 2.0**60):
        for low in (0.0, 2.0**-80, -(2.0**-80), 2.0**-140, -(2.0**-140)):
            for high in (1.0, 1 + eps, -1.0, 2.0):
                found.append((scale, eps / 2, scale * high))
                found.append((1 + eps, scale * (1 + eps), scale * low))
                found.append((scale * (1 + eps), eps / 2, scale * high))
                found.append((scale * high, 1 + eps, -scale * high))
                found.append((scale * (1 + 3 * eps), eps / 2 + low, scale * high))
    return found


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fused_multiply_add_is_rounded_once(mode: str, kind: str) -> None:
    def plain(a: float, b: float, c: float) -> float:
        return c if np.isfinite(a) and np.isfinite(b) and np.isinf(c) else a * b + c

    reference = exactly(kind, mode, lambda a, b, c: a * b + c, plain)
    rows = ties(kind) + cases((kind,) * 3, 400)
    drawn = RNG.normal(size=(400, 3)) * 10.0 ** RNG.integers(-20, 20, (400, 3))
    drawn[:200, 2] = -drawn[:200, 0] * drawn[:200, 1]
    rows += [tuple(map(float, row)) for row in drawn]
    body = f"fma.{mode}.{kind} %d, %a, %b, %c;"
    check(body, (kind,) * 3, kind, reference, given=rows)
    ordinary = [tuple(map(float, row)) for row in RNG.normal(size=(2000, 3))]
    check(body, (kind,) * 3, kind, reference, given=ordinary)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_square_root_and_reciprocal_are_rounded_once(mode: str, kind: str) -> None:
    def root(x: float) -> float:
        if x == 0 or not math.isfinite(x) or x < 0:
            return float(np.sqrt(np.float64(x))) if x >= 0 or x == 0 else math.nan
        scale = 4**700
        exact = Fraction(math.isqrt(int(Fraction(x) * scale**2)), scale)
        exact += Fraction(exact**2 != Fraction(x), 2 * scale)
        return rounded(exact, kind, mode)

    check(f"sqrt.{mode}.{kind} %d, %a;", (kind,), kind, root)
    reciprocal = exactly(kind, mode, lambda a: 1 / a, lambda a: np.float64(1) / a)
    check(f"rcp.{mode}.{kind} %d, %a;", (kind,), kind, reciprocal)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_extremes_ignore_nan_and_order_zeros(kind: str) -> None:
    def smaller(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        return min(a, b, key=lambda x: (x, math.copysign(1, x)))

    def larger(a: float, b: float) -> float:
        return -smaller(-a, -b)

    check(f"min.{kind} %d, %a, %b;", (kind, kind), kind, smaller)
    check(f"max.{kind} %d, %a, %b;", (kind, kind), kind, larger)


def test_nan_extremes() -> None:
    def smaller(a: float, b: float) -> float:
        return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)

    given = [row for row in cases(("f32", "f32")) if row != (0, 0)]
    check("min.NaN.f32 %d, %a, %b;", ("f32", "f32"), "f32", smaller, given=given)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_signs(kind: str) -> None:
    check(f"abs.{kind} %d, %a;", (kind,), kind, abs)
    check(f"neg.{kind} %d, %a;", (kind,), kind, lambda a: -a)
    body = f"copysign.{kind} %d, %a, %b;"
    check(body, (kind, kind), kind, lambda a, b: math.copysign(b, a))


def flushed(x: float) -> float:
    return math.copysign(0, x) if abs(x) < 2.0**-126 else x


def test_flush_to_zero() -> None:
    small = [1e-38, 1.2e-38, 2e-38, 1e-44, -1e-40, 1.0, -0.0, 1e-20, math.inf, math.nan]
    given = list(itertools.product(small, small))
    two = ("f32", "f32")

    def product(a: float, b: float) -> float:
        exact = flushed(a) * flushed(b)
        return flushed(float(np.float32(exact))) if math.isfinite(exact) else exact

    check("mul.ftz.f32 %d, %a, %b;", two, "f32", product, given=given)
    body = "setp.eq.ftz.f32 %d, %a, %b;"
    check(body, two, "pred", lambda a, b: flushed(a) == flushed(b), given=given)


def test_saturation() -> None:
    def reference(a: float, b: float) -> float:
        with np.errstate(all="ignore"):
            total = float(np.float32(a) + np.float32(b))
        return 0.0 if math.isnan(total) else min(max(total, 0.0), 1.0) + 0.0

    check("add.sat.f32 %d, %a, %b;", ("f32", "f32"), "f32", reference)


APPROXIMATE = {
    "ex2": lambda x: 2.0**x,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximations_are_the_exact_function_rounded(name: str) -> None:
    def reference(x: float) -> float:
        with np.errstate(all="ignore"):
            return float(np.float32(APPROXIMATE[name](np.float64(x))))

    check(f"{name}.approx.f32 %d, %a;", ("f32",), "f32", reference)


def test_coarse_reciprocal_has_no_low_bits() -> None:
    x = np.array([3.0, 1.7, 1e200, -7.1, 1e-300])
    text = elementwise("rcp.approx.ftz.f64 %d, %a;", ("f64",), "f64")
    found = compute(text, [x], "f64")
    np.testing.assert_allclose(found, 1 / x, rtol=2.0**-19)
    assert not (found.view(np.uint64) & 0xFFFFFFFF).any()
