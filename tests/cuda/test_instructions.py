"""Comparisons, choices, conversions and moves of PTX, on lanes and on scalars."""

import math
from fractions import Fraction

import numpy as np
import pytest
from exact import INTEGER_TYPES, check, rounded, wrapped
from snippets import compute, dtype, elementwise

from retrograde.runtime.devices import ptx

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
