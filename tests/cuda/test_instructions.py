"""Every instruction of PTX against Python's exact numbers, on lanes and on scalars."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from snippets import compute, dtype, elementwise

from retrograde.runtime.devices import ptx

RNG = np.random.default_rng(7)


def integers(kind: str) -> list[int]:
    info = np.iinfo(dtype(kind))
    near = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100, info.max, info.max - 1]
    near += [info.min, info.min + 1, info.max // 3, info.max // 5]
    near += [-1, -2, -7, -100] if info.min else [info.max // 2 + 1]
    drawn = RNG.integers(info.min, info.max, 6, dtype(kind), endpoint=True)
    return near + [int(x) for x in drawn]


def floats(kind: str) -> list[float]:
    info = np.finfo(dtype(kind))
    near = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 1 / 3, 1e-3, 100.7, 2.0**31, 2.0**63, 1e9]
    near += [float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    near += [float(info.tiny) * 1.25, 1 + float(info.eps), math.inf, math.nan]
    drawn = RNG.normal(size=4) * 10.0 ** RNG.integers(-6, 7, 4)
    every = near + [-x for x in near] + list(drawn)
    with np.errstate(over="ignore"):
        return [float(x) for x in np.array(every).astype(dtype(kind))]


def values(kind: str) -> list:
    if kind == "pred":
        return [False, True]
    return floats(kind) if kind[0] == "f" else integers(kind)


def cases(kinds: tuple[str, ...], most: int = 400) -> list[tuple]:
    every = list(itertools.product(*(values(k) for k in kinds)))
    if len(every) > most:
        chosen = RNG.choice(len(every), most, replace=False)
        every = [every[k] for k in chosen]
    return every


def check(
    body: str,
    inputs: tuple[str, ...],
    output: str,
    reference: Callable,
    registers: str = "",
    given: list[tuple] | None = None,
) -> None:
    """Compare a snippet with a function of Python numbers, element by element."""
    rows = given or cases(inputs)
    with np.errstate(all="ignore"):
        arrays = [
            np.array(column, dtype(kind))
            for column, kind in zip(zip(*rows, strict=True), inputs, strict=True)
        ]
    text = elementwise(body, inputs, output, registers)
    rows = list(zip(*(a.tolist() for a in arrays), strict=True))
    expected = [wrapped(reference(*row), output) for row in rows]
    with np.errstate(all="ignore"):
        want = np.array(expected, dtype(output))
    few = [a[:40] for a in arrays]
    for found, count in (
        (compute(text, arrays, output), len(rows)),
        (compute(text, few, output, single=True), len(few[0])),
    ):
        same = found.view(unsigned(output)) == want[:count].view(unsigned(output))
        if output[0] == "f":
            same |= np.isnan(found) & np.isnan(want[:count])
        wrong = np.flatnonzero(~same)
        assert not len(wrong), (
            f"{body}: {rows[wrong[0]]} gives {found[wrong[0]]}, not {want[wrong[0]]}"
        )


def unsigned(kind: str) -> str:
    return f"u{dtype(kind).itemsize}"


def wrapped(x, kind: str):
    """Return a number in the range of an integer type."""
    if kind == "pred" or kind[0] == "f":
        return x
    bits = 8 * dtype(kind).itemsize
    x = int(x) & ((1 << bits) - 1)
    return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x


@np.errstate(all="ignore")
def rounded(x: Fraction, kind: str, mode: str = "rn") -> float:
    """Return a fraction rounded to a float type, by a search among neighbours."""
    real = dtype(kind).type
    try:
        near = real(x.numerator / x.denominator)
    except OverflowError:
        near = real(math.inf if x > 0 else -math.inf)
    if np.isinf(near):
        near = np.nextafter(near, real(0))
    below = above = near
    while np.isfinite(below) and Fraction(float(below)) > x:
        below = np.nextafter(below, real(-math.inf))
    while np.isfinite(above) and Fraction(float(above)) < x:
        above = np.nextafter(above, real(math.inf))
    if below == above:
        return float(below)
    down, up = float(below), float(above)
    if mode == "rm":
        return signed_zero(down, x)
    if mode == "rp":
        return signed_zero(up, x)
    if mode == "rz":
        return signed_zero(down if x > 0 else up, x)
    top = Fraction(2) ** (128 if kind == "f32" else 1024)
    high = top if math.isinf(up) else Fraction(up)
    low = -top if math.isinf(down) else Fraction(down)
    if x - low != high - x:
        return signed_zero(down if x - low < high - x else up, x)
    even = int(np.array(below).view(unsigned(kind))) % 2 == 0
    return signed_zero(down if even and not math.isinf(down) else up, x)


def signed_zero(r: float, x: Fraction) -> float:
    return math.copysign(r, x) if r == 0 else r


def exactly(kind: str, mode: str, function: Callable, plain: Callable) -> Callable:
    """Return a rounded function of fractions; `plain` takes what is not finite."""

    def reference(*args: float) -> float:
        if all(map(math.isfinite, args)):
            try:
                exact = function(*map(Fraction, args))
            except ZeroDivisionError:
                exact = Fraction(0)
            if exact != 0:
                return rounded(exact, kind, mode)
        with np.errstate(all="ignore"):
            found = float(plain(*map(dtype(kind).type, args)))
        if mode == "rm" and found == 0 and zero_terms(args, plain):
            return -0.0
        return found

    return reference


def zero_terms(args: tuple[float, ...], plain: Callable) -> bool:
    """Tell whether an exact zero is a sum with a negative term."""
    if len(args) == 1:
        return False
    if len(args) == 3:
        args = (
            args[0] * args[1] or math.copysign(0, args[0]) * math.copysign(1, args[1]),
            args[2],
        )
    elif plain(3.0, 1.0) == 2:
        args = (args[0], -args[1])
    elif plain(3.0, 1.0) != 4:
        return False
    return any(math.copysign(1, x) < 0 for x in args)


INTEGER_TYPES = ["s16", "u16", "s32", "u32", "s64", "u64"]


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
    ],
)
def test_integer_arithmetic(name: str, reference: Callable, kind: str) -> None:
    check(f"{name}.{kind} %d, %a, %b;", (kind, kind), kind, reference)


@pytest.mark.parametrize("kind", INTEGER_TYPES)
def test_high_product(kind: str) -> None:
    bits = int(kind[1:])
    body = f"mul.hi.{kind} %d, %a, %b;"
    check(body, (kind, kind), kind, lambda a, b: a * b >> bits)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32"])
def test_wide_product(kind: str) -> None:
    wide = kind[0] + str(2 * int(kind[1:]))
    check(f"mul.wide.{kind} %d, %a, %b;", (kind, kind), wide, lambda a, b: a * b)
    body = f"mad.wide.{kind} %d, %a, %b, %c;"
    check(body, (kind, kind, wide), wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_multiply_add(kind: str) -> None:
    bits, three = int(kind[1:]), (kind, kind, kind)
    check(f"mad.lo.{kind} %d, %a, %b, %c;", three, kind, lambda a, b, c: a * b + c)
    body = f"mad.hi.{kind} %d, %a, %b, %c;"
    check(body, three, kind, lambda a, b, c: (a * b >> bits) + c)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_integer_division_truncates(kind: str) -> None:
    given = [row for row in cases((kind, kind)) if row[1] != 0]

    def quotient(a: int, b: int) -> int:
        return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)

    two = (kind, kind)
    check(f"div.{kind} %d, %a, %b;", two, kind, quotient, given=given)
    body = f"rem.{kind} %d, %a, %b;"
    check(body, two, kind, lambda a, b: a - b * quotient(a, b), given=given)


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_integer_signs(kind: str) -> None:
    check(f"abs.{kind} %d, %a;", (kind,), kind, abs)
    check(f"neg.{kind} %d, %a;", (kind,), kind, lambda a: -a)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_sum_of_absolute_difference(kind: str) -> None:
    body = f"sad.{kind} %d, %a, %b, %c;"
    check(body, (kind, kind, kind), kind, lambda a, b, c: c + abs(a - b))


def test_saturated_sum() -> None:
    low, high = -(2**31), 2**31 - 1
    clip = lambda x: min(max(x, low), high)  # noqa: E731
    check("add.sat.s32 %d, %a, %b;", ("s32", "s32"), "s32", lambda a, b: clip(a + b))
    check("sub.sat.s32 %d, %a, %b;", ("s32", "s32"), "s32", lambda a, b: clip(a - b))


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_carry_chain(kind: str) -> None:
    """Two words of a sum, a difference and a product, the upper one checked."""
    bits = int(kind[1:])
    temporary = f".reg .{kind} %x;"
    check(
        f"add.cc.{kind} %x, %a, %b; addc.{kind} %d, %b, %c;",
        (kind, kind, kind),
        kind,
        lambda a, b, c: b + c + (a + b >> bits),
        temporary,
    )
    check(
        f"sub.cc.{kind} %x, %a, %b; subc.{kind} %d, %b, %c;",
        (kind, kind, kind),
        kind,
        lambda a, b, c: b - c - (a < b),
        temporary,
    )
    check(
        f"mad.lo.cc.{kind} %x, %a, %b, %c; madc.hi.{kind} %d, %a, %b, %c;",
        (kind, kind, kind),
        kind,
        lambda a, b, c: (a * b >> bits) + c + ((a * b) % 2**bits + c >> bits),
        temporary,
    )
    check(
        f"add.cc.{kind} %x, %a, %b; addc.cc.{kind} %x, %x, %c; addc.{kind} %d, 0, 0;",
        (kind, kind, kind),
        kind,
        lambda a, b, c: (a + b) % 2**bits + c + (a + b >> bits) >> bits,
        temporary,
    )


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "pred"])
def test_bitwise(kind: str) -> None:
    two = (kind, kind)
    check(f"and.{kind} %d, %a, %b;", two, kind, lambda a, b: a & b)
    check(f"or.{kind} %d, %a, %b;", two, kind, lambda a, b: a | b)
    check(f"xor.{kind} %d, %a, %b;", two, kind, lambda a, b: a ^ b)
    inverse = (lambda a: not a) if kind == "pred" else (lambda a: ~a)
    check(f"not.{kind} %d, %a;", (kind,), kind, inverse)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_shift_left(kind: str) -> None:
    clamped = lambda a, n: a << n if n < 64 else 0  # noqa: E731
    check(f"shl.{kind} %d, %a, %b;", (kind, "u32"), kind, clamped)
    check(f"shl.{kind} %d, %a, 3;", (kind,), kind, lambda a: a << 3)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_shift_right(kind: str) -> None:
    body = f"shr.{kind} %d, %a, %b;"
    check(body, (kind, "u32"), kind, lambda a, n: a >> min(n, 64))
    check(f"shr.{kind} %d, %a, 77;", (kind,), kind, lambda a: a >> 77)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shift(mode: str) -> None:
    def count(n: int) -> int:
        return min(n, 32) if mode == "clamp" else n & 31

    three = ("u32", "u32", "u32")
    check(
        f"shf.l.{mode}.b32 %d, %a, %b, %c;",
        three,
        "u32",
        lambda a, b, n: (b << 32 | a) << count(n) >> 32,
    )
    check(
        f"shf.r.{mode}.b32 %d, %a, %b, %c;",
        three,
        "u32",
        lambda a, b, n: (b << 32 | a) >> count(n),
    )


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = int(kind[1:])

    def extract(a: int, place: int, length: int) -> int:
        place, length = place & 255, length & 255
        found = (a >> min(place, bits)) & ((1 << length) - 1)
        if kind[0] == "u":
            found = ((a & (2**bits - 1)) >> place) & ((1 << length) - 1)
        elif length and place + length < bits and found >> (length - 1):
            found -= 1 << length
        elif length and place + length >= bits:
            found = a >> min(place, bits - 1)
        return found

    given = [
        (a, b, c)
        for a in integers(kind)
        for b, c in [
            (0, 5),
            (3, 8),
            (31, 1),
            (20, 44),
            (5, 0),
            (70, 3),
            (256, 257),
            (60, 4),
        ]
    ]
    body = f"bfe.{kind} %d, %a, %b, %c;"
    check(body, (kind, "u32", "u32"), kind, extract, given=given)

    def insert(a: int, b: int, place: int) -> int:
        mask = ((1 << 7) - 1) << (place & 255)
        return (b & ~mask) | (a << (place & 255) & mask)

    given = [
        (a, b, n) for a in integers(kind) for b in integers(kind) for n in (0, 9, 60)
    ]
    check(
        f"bfi.b{bits} %d, %a, %b, %c, 7;",
        (kind, kind, "u32"),
        kind,
        insert,
        given=given,
    )


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_bit_counts(kind: str) -> None:
    bits = int(kind[1:])
    check(f"popc.{kind} %d, %a;", (kind,), "u32", lambda a: a.bit_count())
    check(f"clz.{kind} %d, %a;", (kind,), "u32", lambda a: bits - a.bit_length())
    body = f"brev.{kind} %d, %a;"
    check(body, (kind,), kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_find_leading_bit(kind: str) -> None:
    bits = int(kind[1:])
    place = lambda a: (a if a >= 0 else ~a).bit_length() - 1  # noqa: E731
    check(f"bfind.{kind} %d, %a;", (kind,), "s32", place)
    check(
        f"bfind.shiftamt.{kind} %d, %a;",
        (kind,),
        "s32",
        lambda a: bits - 1 - place(a) if place(a) >= 0 else -1,
    )


def test_byte_permutation() -> None:
    def reference(a: int, b: int, selector: int) -> int:
        data, found = (b << 32 | a).to_bytes(8, "little"), 0
        for k in range(4):
            chosen = selector >> 4 * k & 15
            byte = data[chosen & 7]
            byte = 255 * (byte >> 7) if chosen & 8 else byte
            found |= byte << 8 * k
        return found

    check("prmt.b32 %d, %a, %b, %c;", ("u32", "u32", "u32"), "u32", reference)


@pytest.mark.parametrize("table", [0x80, 0xE8, 0x96, 0x01, 0xCA])
def test_three_operand_logic(table: int) -> None:
    def reference(a: int, b: int, c: int) -> int:
        found = 0
        for k in range(32):
            row = (a >> k & 1) << 2 | (b >> k & 1) << 1 | c >> k & 1
            found |= (table >> row & 1) << k
        return found

    body = f"lop3.b32 %d, %a, %b, %c, {table};"
    check(body, ("u32", "u32", "u32"), "u32", reference)


# Floats.


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


# Comparisons and choices.


ORDERS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@pytest.mark.parametrize("test", ORDERS)
def test_integer_comparison(test: str, kind: str) -> None:
    check(f"setp.{test}.{kind} %d, %a, %b;", (kind, kind), "pred", ORDERS[test])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("test", ORDERS)
def test_float_comparison(test: str, kind: str) -> None:
    def nan(a: float, b: float) -> bool:
        return math.isnan(a) or math.isnan(b)

    def ordered(a: float, b: float) -> bool:
        return ORDERS[test](a, b) and not nan(a, b)

    two = (kind, kind)
    check(f"setp.{test}.{kind} %d, %a, %b;", two, "pred", ordered)
    body = f"setp.{test}u.{kind} %d, %a, %b;"
    check(body, two, "pred", lambda a, b: ORDERS[test](a, b) or nan(a, b))
    check(f"setp.nan.{kind} %d, %a, %b;", two, "pred", nan)
    check(f"setp.num.{kind} %d, %a, %b;", two, "pred", lambda a, b: not nan(a, b))


def test_comparison_with_two_results_and_a_join() -> None:
    body = "setp.lt.and.s32 %q|%d, %a, %b, !%c;"
    three = ("s32", "s32", "pred")
    check(body, three, "pred", lambda a, b, c: a >= b and not c, ".reg .pred %q;")
    body = "setp.lt.xor.s32 %d|%q, %a, %b, %c;"
    check(body, three, "pred", lambda a, b, c: (a < b) != c, ".reg .pred %q;")


def test_set_gives_numbers() -> None:
    body = "set.gt.u32.s32 %d, %a, %b;"
    check(body, ("s32", "s32"), "u32", lambda a, b: -(a > b))
    body = "set.gt.f32.f32 %d, %a, %b;"
    check(body, ("f32", "f32"), "f32", lambda a, b: float(a > b))


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "f32", "f64"])
def test_selection(kind: str) -> None:
    body = f"selp.{kind} %d, %a, %b, %c;"
    check(body, (kind, kind, "pred"), kind, lambda a, b, c: a if c else b)


def test_selection_by_sign() -> None:
    body = "slct.u32.s32 %d, %a, %b, %c;"
    check(body, ("u32", "u32", "s32"), "u32", lambda a, b, c: a if c >= 0 else b)


# Conversions.


@pytest.mark.parametrize("own", INTEGER_TYPES)
@pytest.mark.parametrize("to", INTEGER_TYPES)
def test_integer_conversion(to: str, own: str) -> None:
    check(f"cvt.{to}.{own} %d, %a;", (own,), to, lambda a: a)
    info = np.iinfo(dtype(to))
    clipped = lambda a: min(max(a, int(info.min)), int(info.max))  # noqa: E731
    check(f"cvt.sat.{to}.{own} %d, %a;", (own,), to, clipped)


@pytest.mark.parametrize("kind", ["s8", "u8"])
def test_narrow_part_of_a_register(kind: str) -> None:
    body = f"cvt.s32.{kind} %d, %a;"
    check(body, ("b16",), "s32", lambda a: wrapped(a, kind))


ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("own", ["f32", "f64"])
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ROUND)
def test_float_to_integer_saturates(mode: str, to: str, own: str) -> None:
    info = np.iinfo(dtype(to))
    far = 0 if (own, to[1:]) == ("f32", "32") else 1 << (info.bits - 1)

    def reference(x: float) -> int:
        if math.isnan(x):
            return far
        if math.isinf(x):
            return int(info.max if x > 0 else info.min)
        return min(max(ROUND[mode](x), int(info.min)), int(info.max))

    check(f"cvt.{mode}.{to}.{own} %d, %a;", (own,), to, reference)


@pytest.mark.parametrize("to", ["f32", "f64"])
@pytest.mark.parametrize("own", ["s16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_float_is_rounded_once(mode: str, own: str, to: str) -> None:
    check(
        f"cvt.{mode}.{to}.{own} %d, %a;",
        (own,),
        to,
        lambda a: rounded(Fraction(a), to, mode),
    )


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_float_conversion(mode: str) -> None:
    def narrow(x: float) -> float:
        return rounded(Fraction(x), "f32", mode) if math.isfinite(x) and x else x

    check(f"cvt.{mode}.f32.f64 %d, %a;", ("f64",), "f32", narrow)
    check("cvt.f64.f32 %d, %a;", ("f32",), "f64", lambda a: a)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ROUND)
def test_rounding_to_integral_floats(mode: str, kind: str) -> None:
    def reference(x: float) -> float:
        if not math.isfinite(x):
            return x
        return math.copysign(float(ROUND[mode](x)), x)

    check(f"cvt.{mode}.{kind}.{kind} %d, %a;", (kind,), kind, reference)


def test_half_precision() -> None:
    with np.errstate(over="ignore"):
        half = lambda x: float(np.float16(np.float32(x)))  # noqa: E731
        body = "cvt.rn.f16.f32 %h, %a; mov.b16 %x, %h; cvt.f32.f16 %d, %x;"
        check(body, ("f32",), "f32", half, ".reg .f16 %h; .reg .b16 %x;")


# Moves.


def test_wide_values_are_packed_and_unpacked() -> None:
    body = "mov.b64 {%x, %y}, %a; mov.b64 %d, {%y, %x};"
    swapped = lambda a: a >> 32 | a << 32  # noqa: E731
    check(body, ("b64",), "b64", swapped, ".reg .b32 %x, %y;")
    body = "mov.b64 {%x, _}, %a; mov.b32 {%u, %v}, %x; mov.b32 %d, {%v, %u};"
    check(
        body,
        ("b64",),
        "b32",
        lambda a: (a & 0xFFFFFFFF) >> 16 | a << 16,
        ".reg .b32 %x; .reg .b16 %u, %v;",
    )


def test_registers_change_type_without_conversion() -> None:
    body = "mov.b32 %x, %a; xor.b32 %x, %x, 0x80000000; mov.b32 %d, %x;"
    check(body, ("f32",), "f32", lambda a: -a, ".reg .b32 %x;")
    body = "mov.b64 %x, %a; mov.b64 %d, %x;"
    check(body, ("f64",), "f64", lambda a: a, ".reg .b64 %x;")


def test_float_constants() -> None:
    check(
        "add.f32 %d, %a, 0f3FC00000;",
        ("f32",),
        "f32",
        lambda a: a + 1.5,
        given=[(1,), (2,)],
    )
    body = "add.f64 %d, %a, 0d3FF8000000000000;"
    check(body, ("f64",), "f64", lambda a: a + 1.5, given=[(1,), (2,)])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("foo.s32 %d, %a, %b;", "unknown instruction foo.s32"),
        ("add.weird.s32 %d, %a, %b;", "unknown modifier .weird of add"),
        ("mov.u32 %d, %clock;", "a clock"),
        ("cvt.s32.f32 %d, %f;", "a conversion to an integer without a rounding"),
        ("add.s64 %d, %a, %b;", "%a is too narrow for the instruction"),
    ],
)
def test_unknown_instruction_is_named(body: str, message: str) -> None:
    text = elementwise(body, ("s32", "s32"), "s32", ".reg .f32 %f;")
    x = np.zeros(1, np.int32)
    with pytest.raises(ptx.PtxError) as error:
        compute(text, [x, x], "s32")
    assert str(error.value).startswith(message)
    line = text.split("\n").index("    " + body) + 1
    assert f"at line {line}: {body[:-1]}" in str(error.value)
