"""How far compiled elementary functions are from the true values.

`python -m benchmarks.accuracy` prints the table of docs/accuracy.md: for each function
the largest error in units in the last place of the rounded result. References are
NumPy's in extended precision (`longdouble`), for erf and erfc decimal arithmetic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
from scipy import special

import retrograde as rg
from retrograde.runtime import vecmath

Array = np.ndarray[Any, Any]
REALS = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)


@dataclass(frozen=True)
class Function:
    """A function, with what is interesting about its arguments.

    `domain` bounds them; between the two of `near` they are drawn evenly, everywhere
    else by magnitude.
    """

    call: Callable[..., Any]
    near: tuple[float, float]
    domain: tuple[float, float] = REALS
    count: int = 1


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.logaddexp(x, 0.0)


FUNCTIONS: dict[str, Function] = {
    "exp": Function(lambda x: np.exp(x), (-760, 720)),
    "exp2": Function(lambda x: np.exp2(x), (-1090, 1030)),
    "expm1": Function(lambda x: np.expm1(x), (-50, 720)),
    "log": Function(lambda x: np.log(x), (0.3, 3), POSITIVE),
    "log2": Function(lambda x: np.log2(x), (0.3, 3), POSITIVE),
    "log10": Function(lambda x: np.log10(x), (0.3, 3), POSITIVE),
    "log1p": Function(lambda x: np.log1p(x), (-0.9, 3), (-1, math.inf)),
    "sin": Function(lambda x: np.sin(x), (-20, 20)),
    "cos": Function(lambda x: np.cos(x), (-20, 20)),
    "tan": Function(lambda x: np.tan(x), (-20, 20)),
    "arcsin": Function(lambda x: np.arcsin(x), (-1, 1), (-1, 1)),
    "arccos": Function(lambda x: np.arccos(x), (-1, 1), (-1, 1)),
    "arctan": Function(lambda x: np.arctan(x), (-5, 5)),
    "sinh": Function(lambda x: np.sinh(x), (-712, 712)),
    "cosh": Function(lambda x: np.cosh(x), (-712, 712)),
    "tanh": Function(lambda x: np.tanh(x), (-3, 3)),
    "arcsinh": Function(lambda x: np.arcsinh(x), (-5, 5)),
    "arccosh": Function(lambda x: np.arccosh(x), (1, 5), (1, math.inf)),
    "arctanh": Function(lambda x: np.arctanh(x), (-1, 1), (-1, 1)),
    "cbrt": Function(lambda x: np.cbrt(x), (-5, 5)),
    "erf": Function(lambda x: special.erf(x), (-6, 6)),
    "erfc": Function(lambda x: special.erfc(x), (-6, 27)),
    "power": Function(lambda x, y: x**y, (0.1, 20), POSITIVE, 2),
    "arctan2": Function(lambda x, y: np.arctan2(x, y), (-5, 5), count=2),
    "hypot": Function(lambda x, y: np.hypot(x, y), (-5, 5), count=2),
    "logaddexp": Function(lambda x, y: np.logaddexp(x, y), (-5, 50), count=2),
    "logaddexp2": Function(lambda x, y: np.logaddexp2(x, y), (-5, 50), count=2),
    "sigmoid": Function(sigmoid, (-40, 40), (-87, 87)),
    "softplus": Function(softplus, (-40, 40)),
    "x**1.5": Function(lambda x: x**1.5, (0.1, 20), POSITIVE),
    "x**3": Function(lambda x: x**3, (-5, 5)),
    "x**4": Function(lambda x: x**4, (-5, 5)),
    "x**-2": Function(lambda x: x**-2.0, (-5, 5)),
    "x**-0.5": Function(lambda x: x**-0.5, (0.1, 20), POSITIVE),
}
# logaddexp loses where it is near 0 and its arguments are not: an absolute error.
ABSOLUTE = ("logaddexp", "logaddexp2")


def arguments(name: str, dtype: Any, count: int, seed: int = 0) -> list[Array]:
    """Draw arguments, even ones and ones of every magnitude, denormal ones too."""
    f = FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    low, high = (float(np.clip(x, info.min, info.max)) for x in f.domain)
    lowest = math.log10(float(info.smallest_subnormal))

    def draw() -> Array:
        even = rng.uniform(*f.near, count // 2)
        sizes = 10.0 ** rng.uniform(lowest, math.log10(float(info.max)), count // 4)
        middle = 10.0 ** rng.uniform(-8, 3, count - count // 2 - count // 4)
        some = np.concatenate([sizes, middle])
        signed = np.where(rng.random(some.size) < 0.5, -some, some)
        x = np.concatenate([even, signed])
        x = np.where((x < low) | (x > high), np.abs(x), x)
        x = np.where((x < low) | (x > high), rng.uniform(*f.near, x.size), x)
        return x.astype(dtype)

    args = [draw() for _ in range(f.count)]
    if name == "power":  # most exponents would overflow
        args[1] = rng.uniform(-30, 30, count).astype(dtype)
    return args


def _erf(x: float, complement: bool) -> np.longdouble:
    """Sum the series of erf with as many digits as the cancellation takes."""
    limit = 28.0 if complement else 7.0  # further out it is 0, 1 or 2
    size = min(abs(x), limit)
    with localcontext() as context:
        context.prec = 40 + int(0.9 * size * size)
        z = Decimal(math.copysign(size, x))
        term = total = 2 * z / _root_pi(context.prec)
        k = 0
        while term and abs(term) > abs(total) * Decimal(10) ** -context.prec:
            k += 1
            term = term * 2 * z * z / (2 * k + 1)  # exp(z * z) taken out of all terms
            total += term
        total *= (-z * z).exp()
        return np.longdouble(str(1 - total if complement else total))


@cache
def _root_pi(digits: int) -> Decimal:
    """Return the square root of pi, by Gauss and Legendre's means."""
    with localcontext() as context:
        context.prec = digits + 10
        a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, 1
        while abs(a - b) > Decimal(10) ** -digits:
            mean = (a + b) / 2
            b = (a * b).sqrt()
            t -= p * (a - mean) ** 2
            a, p = mean, 2 * p
        return ((a + b) ** 2 / (4 * t)).sqrt()


def reference(name: str, *x: Array) -> Array:
    """Return the function of the arrays in extended precision."""
    wide = [a.astype(np.longdouble) for a in x]
    if name in ("erf", "erfc"):
        exact = [_erf(float(v), name == "erfc") for v in x[0]]
        return np.array(exact, np.longdouble)
    with np.errstate(all="ignore"):
        if name == "softplus":
            return np.asarray(np.logaddexp(wide[0], np.longdouble(0)))
        return np.asarray(FUNCTIONS[name].call(*wide))


def errors(name: str, got: Array, exact: Array, *x: Array) -> Array:
    """Return errors in units in the last place, infinite where the kind is wrong."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        unit = np.spacing(np.abs(rounded))
        if name in ABSOLUTE:
            unit = np.maximum(unit, np.spacing(np.maximum(*map(np.abs, x))))
        error = np.abs(got.astype(np.longdouble) - exact) / unit
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    # What overflows by half a unit may be infinite, or the largest number.
    edge = np.isinf(rounded) ^ np.isinf(got)
    largest = np.finfo(got.dtype).max
    almost = edge & (np.minimum(np.abs(got), np.abs(rounded)) >= largest * (1 - 1e-6))
    error = np.where(np.isfinite(rounded) & np.isfinite(got), error, np.inf)
    right = same | almost
    return np.asarray(np.where(right & ~np.isfinite(error), 0.0, error))


def worst(name: str, dtype: Any, count: int) -> tuple[float, list[float]]:
    """Return the largest error of a compiled function, and where it is."""
    x = arguments(name, dtype, count)
    got = rg.compile(FUNCTIONS[name].call)(*x)
    found = errors(name, got, reference(name, *x), *x)
    k = int(np.argmax(found))
    return float(found[k]), [float(a[k]) for a in x]


def table(count: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| function | float64 | float32 | at (float64) | at (float32) |"
    yield "|---|---|---|---|---|"
    for name in FUNCTIONS:
        many = min(count, 1000) if name in ("erf", "erfc") else count
        found = [worst(name, dtype, many) for dtype in (np.float64, np.float32)]
        sizes = " | ".join(f"{error:.2f}" for error, _ in found)
        places = " | ".join(", ".join(f"{v:.7g}" for v in x) for _, x in found)
        yield f"| {name} | {sizes} | {places} |"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    print(f"{vecmath.describe()}\n")
    for line in table(count):
        print(line, flush=True)


if __name__ == "__main__":
    main()
