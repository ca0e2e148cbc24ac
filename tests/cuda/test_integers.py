"""Integer instructions of PTX against Python's ints, on lanes and on scalars."""

from collections.abc import Callable

import pytest
from exact import INTEGER_TYPES, cases, check, integers


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
