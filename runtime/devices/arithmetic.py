"""Arithmetic of PTX on lanes: what is more than an operator of NumPy.

Every function takes arrays of one value per lane, NumPy scalars for values that all
lanes share, or both, and returns the same: an array if one of the operands is one.
Integers are signed unless a name says otherwise. None of them warns: a launch runs
under ``np.errstate(all="ignore")``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Lanes = Any  # an array of one value per lane, or a NumPy scalar

array = np.ndarray
bool_, float32, float64 = np.bool, np.float32, np.float64
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16 = np.float16

bitwise_count, copysign = np.bitwise_count, np.copysign

SHARED, LOCAL = int64(1 << 48), int64(2 << 48)  # windows of generic addresses

ONES = {4: uint32(0xFFFFFFFF), 8: uint64(0xFFFFFFFFFFFFFFFF)}


# Choices.


def select(p: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """Return a where p holds, else b."""
    if p.__class__ is array:
        return np.where(p, a, b)
    return a if p else b


def minimum(a: Lanes, b: Lanes) -> Lanes:
    if a.__class__ is array or b.__class__ is array:
        return np.minimum(a, b)
    return a if a < b else b


def maximum(a: Lanes, b: Lanes) -> Lanes:
    if a.__class__ is array or b.__class__ is array:
        return np.maximum(a, b)
    return b if a < b else a


def float_minimum(a: Lanes, b: Lanes) -> Lanes:
    """Return the smaller operand, the one that is no NaN, and -0 before +0."""
    if a.__class__ is not array and b.__class__ is not array and a != b:
        return a if a < b or b != b else b
    found = np.fmin(a, b)
    return select((found == 0) & (a == b), -((-a) + (-b)), found)


def float_maximum(a: Lanes, b: Lanes) -> Lanes:
    """Return the larger operand, the one that is no NaN, and +0 before -0."""
    if a.__class__ is not array and b.__class__ is not array and a != b:
        return a if a > b or b != b else b
    found = np.fmax(a, b)
    return select((found == 0) & (a == b), a + b, found)


def nan_minimum(a: Lanes, b: Lanes) -> Lanes:
    return select(
        (a != a) | (b != b), (a + b) * a.dtype.type(np.nan), float_minimum(a, b)
    )


def nan_maximum(a: Lanes, b: Lanes) -> Lanes:
    return select(
        (a != a) | (b != b), (a + b) * a.dtype.type(np.nan), float_maximum(a, b)
    )


def flush(x: Lanes) -> Lanes:
    """Return float32 with subnormal numbers as zeros of their sign (``.ftz``)."""
    small = abs(x) < float32(2.0**-126)
    if x.__class__ is array and not small.any():
        return x
    return select(small, np.copysign(float32(0), x), x)


def saturate(x: Lanes) -> Lanes:
    """Return a float clipped to [0, 1], and 0 for a NaN (``.sat``)."""
    kind = x.dtype.type
    return float_minimum(float_maximum(x, kind(0)), kind(1)) + kind(0)


def test_float(x: Lanes, what: str) -> Lanes:
    """Tell which floats are finite, normal, ... (``testp``)."""
    tiny = abs(x) < np.finfo(x.dtype).tiny
    tests: dict[str, Callable[[Lanes], Lanes]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: x == x,
        "notanumber": lambda x: x != x,
        "normal": lambda x: np.isfinite(x) & ~tiny,
        "subnormal": lambda x: tiny & (x != 0),
    }
    return tests[what](x)


# Integers.


def divide(a: Lanes, b: Lanes) -> Lanes:
    """Return a / b rounded towards zero; all ones where b is 0."""
    quotient, ones = a // b, ~(a & a.dtype.type(0))
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))
    return select(b == 0, ones, quotient.astype(a.dtype))


def remainder(a: Lanes, b: Lanes) -> Lanes:
    """Return the remainder of `divide`, which has the sign of a; a where b is 0."""
    return select(b == 0, a, np.fmod(a, b))


def high_unsigned(a: Lanes, b: Lanes) -> Lanes:
    """Return the upper 64 bits of the product of two uint64."""
    low, half = uint64(0xFFFFFFFF), uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half)


def high_signed(a: Lanes, b: Lanes) -> Lanes:
    """Return the upper 64 bits of the product of two int64."""
    high = high_unsigned(a.view(uint64), b.view(uint64)).view(int64)
    return high - (a >> int64(63) & b) - (b >> int64(63) & a)


def add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """Return the sum of two unsigned numbers and a carry, and the new carry."""
    first = a + b
    total = first + carry.astype(a.dtype)
    return total, (first < a) | (total < first)


def subtract_borrow(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    """Return a - b - borrow of unsigned numbers, and the new borrow."""
    first = a - b
    return first - borrow.astype(a.dtype), (a < b) | (borrow & (a == b))


def count_leading(x: Lanes) -> Lanes:
    """Return the number of leading zeros of unsigned numbers, as int32."""
    bits = x.dtype.itemsize * 8
    for k in (1, 2, 4, 8, 16, 32):
        if k < bits:
            x = x | (x >> x.dtype.type(k))
    return int32(bits) - np.bitwise_count(x).astype(int32)


def find_leading(x: Lanes, shift: bool) -> Lanes:
    """Return the place of the most significant bit that is no sign; -1 if none."""
    bits = x.dtype.itemsize * 8
    if x.dtype.kind == "i":
        unsigned = uint32 if bits == 32 else uint64
        x = select(x < 0, ~x, x).view(unsigned)
    leading = count_leading(x)
    place = leading if shift else int32(bits - 1) - leading
    return select(x == 0, int32(-1), place)


def reverse_bits(x: Lanes) -> Lanes:
    """Return unsigned numbers with their bits in reverse order."""
    bits = x.dtype.itemsize * 8
    kind = x.dtype.type
    whole = (1 << bits) - 1
    k = bits // 2
    mask = (1 << k) - 1
    while k:
        x = ((x >> kind(k)) & kind(mask)) | ((x & kind(mask)) << kind(k))
        k //= 2
        mask = (mask ^ (mask << k)) & whole
    return x


def extract(a: Lanes, place: Lanes, length: Lanes) -> Lanes:
    """Return `length` bits from `place` on (``bfe``), sign-extended if signed."""
    kind, bits = a.dtype.type, a.dtype.itemsize * 8
    place, length = place & uint32(0xFF), length & uint32(0xFF)
    if a.dtype.kind == "u":
        mask = ~(ONES[a.itemsize] << length.astype(a.dtype))
        return (a >> place.astype(a.dtype)) & mask
    over = np.minimum(place + length, uint32(bits))
    left = (uint32(bits) - over).astype(a.dtype)
    right = minimum(left + place.astype(a.dtype), kind(bits - 1))
    gone = a >> kind(bits - 1)
    found = select(place >= bits, gone, (a << left) >> right)
    return select(length == 0, kind(0), found)


def insert(a: Lanes, b: Lanes, place: Lanes, length: Lanes) -> Lanes:
    """Return b with `length` bits from `place` on replaced by those of a (``bfi``)."""
    kind = b.dtype
    place = (place & uint32(0xFF)).astype(kind)
    length = (length & uint32(0xFF)).astype(kind)
    mask = ~(ONES[b.itemsize] << length) << place
    return (b & ~mask) | (a << place & mask)


def funnel(low: Lanes, high: Lanes, count: Lanes, left: bool, clamp: bool) -> Lanes:
    """Return 32 bits of high:low shifted (``shf``)."""
    count = minimum(count, uint32(32)) if clamp else count & uint32(31)
    both = (high.astype(uint64) << uint64(32)) | low.astype(uint64)
    wide = count.astype(uint64)
    return (both << wide >> uint64(32) if left else both >> wide).astype(uint32)


def permute(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """Return four bytes chosen from those of b:a (``prmt``), as uint32."""
    both = (b.astype(uint64) << uint64(32)) | a.astype(uint64)
    result = uint32(0)
    for k in range(4):
        chosen = selector >> uint32(4 * k)
        byte = (both >> ((chosen & uint32(7)) << uint32(3)).astype(uint64)).astype(
            uint8
        )
        sign = (byte.view(int8) >> int8(7)).view(uint8)
        byte = select(chosen & uint32(8) != 0, sign, byte)
        result = result | (byte.astype(uint32) << uint32(8 * k))
    return result


def logic(a: Lanes, b: Lanes, c: Lanes, table: int) -> Lanes:
    """Return the bitwise function of three operands with a truth table (``lop3``)."""
    result = a & type(a.flat[0] if a.__class__ is array else a)(0)
    for k in range(8):
        if table >> k & 1:
            term = (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
            result = result | term
    return result


def absolute_difference(a: Lanes, b: Lanes) -> Lanes:
    return select(a < b, b - a, a - b)
