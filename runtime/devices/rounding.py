"""Roundings of PTX on lanes: fused multiply-add, directed roundings, conversions.

Note [fused multiply-add]
For float32 the product is exact in float64, and one rounding of the sum to float64
followed by one to float32 goes wrong only where the sum lies exactly between two
float32 numbers: those lanes, almost never any, are rounded to odd first (S. Boldo and
G. Melquiond, Emulation of a FMA and correctly rounded sums, 2008). For float64 the
product is split without error (G. W. Veltkamp, T. J. Dekker, 1971) and the four parts
are added by the same paper; lanes that are too large or too small for the splitting
are computed with fractions.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from .arithmetic import (
    Lanes,
    array,
    float32,
    float64,
    int64,
    maximum,
    minimum,
    select,
)

# Fused multiply-add. Note [fused multiply-add]


ABOVE, BELOW = float64(1 + 2.0**-52), float64(1 - 2.0**-52)


def fma32(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a * b + c of float32 numbers, given as float64, with one rounding."""
    p = a * b
    s = p + c
    if s.__class__ is array:
        r = (s * ABOVE).astype(float32)
        if (r == (s * BELOW).astype(float32)).all():
            return r
    else:
        x = float(s)
        near = float32(x)
        e = x + (x - float(near))
        if e == x or float(float32(e)) != e:
            return near
    r = s.astype(float32)
    d = s - r
    e = s + d
    between = (d != 0) & (e.astype(float32) == e)
    if between.__class__ is not array and not between:
        return r
    error = sum_error(p, c, s)
    return select(between & (error != 0), to_odd(s, error).astype(float32), r)


def sum_error(a: Lanes, b: Lanes, s: Lanes) -> Lanes:
    """Return a + b - s exactly, for s the rounded sum (D. E. Knuth)."""
    t = s - a
    return (a - (s - t)) + (b - t)


def to_odd(s: Lanes, error: Lanes) -> Lanes:
    """Return s + error rounded to odd, for s the rounded sum of both."""
    bits = s.view(int64)
    even = ((bits & int64(1)) == 0) & (error != 0) & np.isfinite(s)
    away = (error > 0) == (s > 0)
    return (bits + select(even, select(away, int64(1), int64(-1)), int64(0))).view(
        float64
    )


ROUND26, KEEP26 = int64(1 << 26), int64(~((1 << 27) - 1))


def product_error(a: Lanes, b: Lanes, p: Lanes) -> Lanes:
    """Return a * b - p exactly, for p the rounded product of normal numbers."""
    a1 = ((a.view(int64) + ROUND26) & KEEP26).view(float64)
    b1 = ((b.view(int64) + ROUND26) & KEEP26).view(float64)
    a0, b0 = a - a1, b - b1
    return ((a1 * b1 - p) + a1 * b0 + a0 * b1) + a0 * b0


def fma64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a * b + c of float64 with one rounding."""
    p = a * b
    if p.__class__ is not array:
        if c.__class__ is not array:
            return float64(fma_one(float(a), float(b), float(c)))
        a, b, p = (np.full(c.shape, x) for x in (a, b, p))
    size = abs(p)
    if not (size.max() < 1e290 and abs(c).max() < 1e300):
        return fma64_parts(a, b, c)[0]
    zeros = size.min() < 1e-270
    if zeros and ((size < 1e-270) & (size != 0)).any():
        return fma64_parts(a, b, c)[0]
    low = product_error(a, b, p)
    t = c + low
    h = p + t
    z = sum_error(c, low, t) + sum_error(p, t, h)
    r = h + z * ABOVE
    if (r == h + z * BELOW).all():
        return np.where(r == 0, p + c, r) if zeros else r
    return fma64_parts(a, b, c)[0]


def fma_one(a: float, b: float, c: float) -> float:
    """Return a * b + c of numbers; the same, in Python."""
    p = a * b
    if not (1e-270 < abs(p) < 1e290 and abs(c) < 1e300):
        if a == 0 or b == 0 or a - a != 0 or b - b != 0:
            return p + c
        if c - c != 0:
            return c
        return float(exact_fma(a, b, c)[0])
    if abs(a) > 1e280 or abs(b) > 1e280:
        return float(exact_fma(a, b, c)[0])
    u, v = SPLITTER * a, SPLITTER * b
    a1, b1 = u - (u - a), v - (v - b)
    a0, b0 = a - a1, b - b1
    low = ((a1 * b1 - p) + a1 * b0 + a0 * b1) + a0 * b0
    t = c + low
    x = t - c
    t_low = (c - (t - x)) + (low - x)
    h = p + t
    x = h - p
    z = t_low + ((p - (h - x)) + (t - x))
    r = h + z * 1.0000000000000002
    if r == h + z * 0.9999999999999998:
        return r
    return float(exact_fma(a, b, c)[0])


SPLITTER = 134217729.0  # 2**27 + 1


def fma64_parts(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """Return a * b + c rounded once, and a number with the sign of the error."""
    p = a * b
    size = abs(p)
    easy = (size > 1e-270) & (size < 1e290) & (abs(a) < 1e300) & (abs(b) < 1e300)
    easy = easy & (abs(c) < 1e300)
    low = product_error(a, b, p)
    t = c + low
    t_low = sum_error(c, low, t)
    h = p + t
    h_low = sum_error(p, t, h)
    z = t_low + h_low
    z = to_odd(z, sum_error(t_low, h_low, z))
    r = h + z
    error = sum_error(h, z, r)
    if easy.all():
        return r, error
    return hard_lanes(a, b, c, r, error, easy)


def hard_lanes(
    a: Lanes, b: Lanes, c: Lanes, r: Lanes, error: Lanes, easy: Lanes
) -> tuple[Lanes, Lanes]:
    """Replace the lanes whose numbers are too large or small for the splitting."""
    finite = np.isfinite(a) & np.isfinite(b)
    plain = np.where(finite & ~np.isfinite(c), c, a * b + c)
    zero = (a == 0) | (b == 0) | ~finite | ~np.isfinite(c)
    r = np.where(easy, r, plain)
    error = np.where(easy, error, 0.0)
    left = ~(easy | zero)
    shape = np.shape(r)
    full = [np.broadcast_to(x, shape) for x in (a, b, c, left)]
    if shape == ():
        return (
            exact_fma(float(a), float(b), float(c))
            if left
            else (float64(r), float64(0))
        )
    for k in np.flatnonzero(full[3]):
        r[k], error[k] = exact_fma(*(float(x[k]) for x in full[:3]))
    return r, error


def exact_fma(a: float, b: float, c: float) -> tuple[Any, Any]:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float64(a * b + c), float64(0)
    r = nearest(exact)
    if not np.isfinite(r):
        return float64(r), float64(-r)
    rest = exact - Fraction(r)
    return float64(r), float64((rest > 0) - (rest < 0))


def nearest(x: Fraction) -> float:
    """Return the float64 next to a fraction."""
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return np.inf if x > 0 else -np.inf


# Roundings other than to nearest: the rounded result, moved by the sign of its error.


def directed(r: Lanes, error: Lanes, mode: str) -> Lanes:
    """Return the result in rounding `mode`, given a neighbour of it and its error."""
    up, down = r.dtype.type(np.inf), r.dtype.type(-np.inf)
    if mode == "rp":
        return select(error > 0, np.nextafter(r, up), r)
    if mode == "rm":
        return select(error < 0, np.nextafter(r, down), r)
    outside = select(r > 0, error < 0, (r < 0) & (error > 0))
    return select(outside, np.nextafter(r, r.dtype.type(0)), r)


def overflow_error(r: Lanes, finite: Lanes, error: Lanes) -> Lanes:
    """Return the error, also where a sum of finite numbers became infinite."""
    return select(
        np.isinf(r) & finite, -np.sign(r), select(np.isfinite(r), error, 0 * r)
    )


def add_rounded(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a + b in a directed rounding."""
    s = a + b
    finite = np.isfinite(a) & np.isfinite(b)
    error = overflow_error(s, finite, sum_error(a, b, s))
    r = directed(s, error, mode)
    if mode == "rm":
        negative = np.signbit(a) | np.signbit(b)
        r = select((s == 0) & negative, -abs(r), r)
    return r


def multiply_rounded(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a * b in a directed rounding."""
    return fma_rounded(
        a, b, np.copysign(a.dtype.type(0), a) * np.copysign(a.dtype.type(1), b), mode
    )


def fma_rounded(a: Lanes, b: Lanes, c: Lanes, mode: str) -> Lanes:
    """Return a * b + c in a directed rounding."""
    if all(x.__class__ is float32 for x in (a, b, c)):
        x, y = float(a) * float(b), float(c)
        total = x + y
        if total and total - total == 0:
            return narrow(float64(total), sum_error(x, y, total), mode)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if float64 in (a.dtype, b.dtype, c.dtype):
        p, (s, error) = a * b, fma64_parts(a, b, c)
        exact = error == 0
        r = directed(s, overflow_error(s, finite, error), mode)
    else:
        p, wide = a.astype(float64) * b.astype(float64), c.astype(float64)
        s, exact = p + wide, True
        r = narrow(s, sum_error(p, wide, s), mode)
    if mode != "rm":
        return r
    zero = (s == 0) & exact & (np.signbit(p) | np.signbit(c))
    return select(zero, -abs(r), r)


def narrow(s: Lanes, error: Lanes, mode: str) -> Lanes:
    """Return float64 numbers with an error as float32 in a directed rounding."""
    r = s.astype(float32)
    if r.__class__ is not array and np.isfinite(r):
        rest = float(s) - float(r) or float(error)
        below = mode == "rm" or (mode == "rz" and r > 0)
        if rest == 0 or (rest > 0 if below else rest < 0):
            return r
        return directed(r, rest, mode)
    rest = s - r
    rest = select(rest == 0, error, rest)
    return directed(r, overflow_error(r, np.isfinite(s), rest), mode)


SMALL, LARGE = float64(2.0**-600), float64(2.0**300)


def divide_rounded(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """Return a / b in a directed rounding."""
    q = a / b
    finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
    x, y = a.astype(float64), q.astype(float64)
    scale = select(abs(x) < SMALL, LARGE, float64(1))  # or the rest would be lost
    rest = fma64(-y * scale, b.astype(float64), x * scale)
    sign = rest * np.sign(b).astype(float64)
    return directed(q, overflow_error(q, finite, sign), mode)


def root_rounded(a: Lanes, mode: str) -> Lanes:
    """Return the square root in a directed rounding."""
    r = np.sqrt(a)
    x, y = a.astype(float64), r.astype(float64)
    scale = select(x < SMALL, LARGE, float64(1))
    rest = fma64(-y * scale, y * scale, x * scale * scale)
    return directed(r, overflow_error(r, np.isfinite(a), rest), mode)


# Conversions.


INTEGRAL: dict[str, Callable[[Lanes], Lanes]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def float_to_integer(x: Lanes, kind: Any, mode: str) -> Lanes:
    """Return floats as integers of a dtype, saturated; a NaN is 0 or the far end."""
    info = np.iinfo(kind)
    wide = x.dtype == float64 or info.bits == 64
    nan = 0 if not wide else info.min if info.kind == "i" else 1 << (info.bits - 1)
    y = INTEGRAL[mode](x).astype(float64)
    above, below = y >= float64(info.max), y <= float64(info.min)
    inside = select(above | below | (y != y), float64(0), y)
    r = select(above, kind(info.max), inside.astype(kind))
    return select(y != y, kind(nan), select(below, kind(info.min), r))


def integer_to_float(x: Lanes, kind: Any, mode: str) -> Lanes:
    """Return integers as floats of a dtype in a rounding mode."""
    if mode == "rn":
        return x.astype(kind)
    half = x.dtype.type(32)
    if x.dtype.itemsize < 8:
        high, low = x.astype(float64), float64(0)
    else:
        high = (x >> half).astype(float64) * float64(2.0**32)
        low = (x & x.dtype.type(0xFFFFFFFF)).astype(float64)
    s = high + low
    error = sum_error(high, low, s)
    return directed(s, error, mode) if kind is float64 else narrow(s, error, mode)


def integer_saturated(x: Lanes, kind: Any) -> Lanes:
    """Return integers as integers of another dtype, clipped to its range."""
    info, own = np.iinfo(kind), np.iinfo(x.dtype)
    low, high = max(info.min, own.min), min(info.max, own.max)
    clipped = minimum(maximum(x, x.dtype.type(low)), x.dtype.type(high))
    return clipped.astype(kind)


# Approximations: the exact function, rounded once.


def through64(function: Callable[[Lanes], Lanes]) -> Callable[[Lanes], Lanes]:
    """Return a function of float32 that computes in float64."""
    return lambda x: function(x.astype(float64)).astype(x.dtype)


exp2 = through64(np.exp2)
log2 = through64(np.log2)
sine = through64(np.sin)
cosine = through64(np.cos)
tangent = through64(np.tanh)
reciprocal_root = through64(lambda x: 1.0 / np.sqrt(x))
square_root = np.sqrt
HIGH = int64(~0xFFFFFFFF)


def coarse(function: Callable[[Lanes], Lanes]) -> Callable[[Lanes], Lanes]:
    """Return a float64 function that reads and writes only the upper 32 bits."""

    def result(x: Lanes) -> Lanes:
        x = (x.view(int64) & HIGH).view(float64)
        x = select(abs(x) < float64(2.0**-1022), np.copysign(float64(0), x), x)
        y = function(x)
        y = select(abs(y) < float64(2.0**-1022), np.copysign(float64(0), y), y)
        return (y.view(int64) & HIGH).view(float64)

    return result


def coarse_quotient(a: Lanes, b: Lanes) -> Lanes:
    """Return a / b of float32 as ``.approx`` does: 0 or NaN where b is very large."""
    size = abs(b)
    large = (size > float32(2.0**126)) & (size < float32(np.inf))
    return select(large, a * float32(0), a / b)


coarse_reciprocal = coarse(lambda x: 1.0 / x)
coarse_root = coarse(lambda x: 1.0 / np.sqrt(x))
