"""Floats as integers, whose sums are the same in any order.

Note [quanta]
Of floats that are added to one element, the largest exponent decides how large a
*quantum* is: so large that the sum of `count` floats fits into an int64, as multiples
of it. Integers may be added in any order. What a float64 has below a quantum is counted
in smaller ones, as many bits further down; so nothing is lost of numbers that are near
the largest one, and of all sums less than rounding in order would lose. See J. Demmel
and H. D. Nguyen, Parallel reproducible summation (2015), who do so with floats.

Where the largest exponent is that of infinities and NaN, sums count these instead: plus
infinity in the lower 32 bits, minus infinity in the upper ones, NaN as one of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir
from numba.core.errors import TypingError
from numba.cuda.extending import intrinsic

from ....runtime.intrinsics import Builder, Value, is_float
from .grid import INT32, INT64

__all__ = ["exponent", "plus_quanta", "plus_quanta_2", "quanta", "quanta_below"]

types: Any = numba.types
MANTISSA = {32: 23, 64: 52}  # bits of the fraction
BIAS = {32: 127, 64: 1023}


@dataclass(frozen=True, slots=True)
class Parts:
    """A float: ``(-1)**negative * mantissa * 2**(exponent - bias - MANTISSA)``."""

    negative: Value
    exponent: Value  # at least 1
    mantissa: Value
    fraction: Value


def _parts(b: Builder, bits: int, x: Value) -> Parts:
    width = MANTISSA[bits]
    word = b.bitcast(x, ir.IntType(bits))
    word = b.zext(word, INT64) if bits < 64 else word
    field = b.and_(b.lshr(word, INT64(width)), INT64(2 * BIAS[bits] + 1))
    fraction = b.and_(word, INT64((1 << width) - 1))
    small = b.icmp_unsigned("==", field, INT64(0))
    return Parts(
        b.icmp_unsigned("!=", b.lshr(word, INT64(bits - 1)), INT64(0)),
        b.select(small, INT64(1), field),
        b.select(small, fraction, b.or_(fraction, INT64(1 << width))),
        fraction,
    )


def _room(b: Builder, count: Value) -> Value:
    """Return the bits that a float may have where so many are added."""
    return b.sub(b.ctlz(count, ir.IntType(1)(0)), INT64(2))


def _up_to(b: Builder, x: Value, most: int) -> Value:
    """Clip a number to the range of shifts."""
    x = b.select(b.icmp_signed("<", x, INT64(0)), INT64(0), x)
    return b.select(b.icmp_signed(">", x, INT64(most)), INT64(most), x)


def _shifted(b: Builder, x: Value, by: Value) -> Value:
    """Return ``x * 2**by`` rounded, half a unit up."""
    down = _up_to(b, b.neg(by), 63)
    half = b.lshr(b.shl(INT64(1), down), INT64(1))
    right = b.lshr(b.add(x, half), down)
    left = b.shl(x, _up_to(b, by, 63))
    return b.select(b.icmp_signed(">=", by, INT64(0)), left, right)


def _cut(b: Builder, x: Value, by: Value) -> tuple[Value, Value]:
    """Return ``x * 2**by`` without what is behind the point, and that as it was."""
    down = _up_to(b, b.neg(by), 63)
    whole = b.lshr(x, down)
    rest = b.sub(x, b.shl(whole, down))
    return b.select(
        b.icmp_signed(">=", by, INT64(0)), b.shl(x, _up_to(b, by, 63)), whole
    ), rest


def _first(b: Builder, bits: int, p: Parts, top: Value, room: Value) -> Value:
    by = _distance(b, bits, p, top, room)
    return _cut(b, p.mantissa, by)[0] if bits == 64 else _shifted(b, p.mantissa, by)


def _second(b: Builder, bits: int, p: Parts, top: Value, room: Value) -> Value:
    by = _distance(b, bits, p, top, room)
    return _shifted(b, _cut(b, p.mantissa, by)[1], b.add(by, room))


def _distance(b: Builder, bits: int, p: Parts, top: Value, room: Value) -> Value:
    """Return how far a mantissa is above the quantum, as a power of two."""
    return b.add(b.sub(p.exponent, top), b.sub(room, INT64(MANTISSA[bits] + 1)))


def _special(b: Builder, bits: int, p: Parts) -> Value:
    """Return what stands for an infinity or NaN; 0 for other numbers."""
    plus, minus = INT64(1), INT64(1 << 32)
    sign = b.select(p.negative, minus, plus)
    nan = b.icmp_unsigned("!=", p.fraction, INT64(0))
    what = b.select(nan, INT64((1 << 32) + 1), sign)
    return b.select(_is_top(b, bits, p.exponent), what, INT64(0))


def _is_top(b: Builder, bits: int, exponent: Value) -> Value:
    return b.icmp_unsigned("==", exponent, INT64(2 * BIAS[bits] + 1))


def _float(name: str, *args: Any) -> Any:
    """Return the type of the first argument, a float; the others are int64."""
    t = types.unliteral(args[0])
    if not is_float(t):
        raise TypingError(f"{name}: the first argument must be a float, not {t}")
    return t


@intrinsic
def exponent(typingctx: Any, x: Any) -> tuple[Any, Any]:
    """Return the exponent of a float with its bias, at least 1."""
    t = _float("exponent", x)

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return _parts(b, t.bitwidth, args[0]).exponent

    return types.int64(t), code


def _counting(name: str, count: Callable[..., Value], special: bool) -> Any:
    def quanta(typingctx: Any, x: Any, top: Any, n: Any) -> tuple[Any, Any]:
        t = _float(name, x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p = _parts(b, t.bitwidth, args[0])
            found = count(b, t.bitwidth, p, args[1], _room(b, args[2]))
            found = b.select(p.negative, b.neg(found), found)
            odd = _special(b, t.bitwidth, p) if special else INT64(0)
            return b.select(_is_top(b, t.bitwidth, args[1]), odd, found)

        return types.int64(t, types.int64, types.int64), code

    quanta.__name__ = name
    return intrinsic(quanta)


# How many quanta a float has, of `n` that are added, of which `top` is the largest
# exponent; and how many of the smaller ones what is left of it has.
quanta = _counting("quanta", _first, special=True)
quanta_below = _counting("quanta_below", _second, special=False)


def _scaled(context: Any, b: Builder, t: Any, k: Value, power: Value) -> Value:
    x = b.sitofp(k, context.get_data_type(t))
    name = "__nv_ldexp" if t.bitwidth == 64 else "__nv_ldexpf"
    found = b.module.globals.get(name)
    if found is None:
        kind = ir.FunctionType(x.type, [x.type, INT32])
        found = ir.Function(b.module, kind, name)
    return b.call(found, [x, b.trunc(power, INT32)])


def _odd_sum(b: Builder, x: Value, k: Value) -> Value:
    """Return the infinity or NaN that was counted."""
    inf = float("inf")
    plus = b.icmp_unsigned("!=", b.and_(k, INT64(0xFFFFFFFF)), INT64(0))
    minus = b.icmp_unsigned("!=", b.lshr(k, INT64(32)), INT64(0))
    sign = b.select(plus, x.type(inf), x.type(-inf))
    return b.select(b.and_(plus, minus), x.type(float("nan")), sign)


def _adding(name: str, words: int) -> Any:
    def emit(context: Any, b: Builder, t: Any, args: list[Value]) -> Value:
        x, top, n, *counts = args
        room = _room(b, n)
        power = b.sub(b.sub(b.add(top, INT64(1)), room), INT64(BIAS[t.bitwidth]))
        total = _scaled(context, b, t, counts[0], power)
        if words == 2:
            low = _scaled(context, b, t, counts[1], b.sub(power, room))
            total = b.fadd(total, low)
        odd = _odd_sum(b, x, counts[0])
        return b.fadd(x, b.select(_is_top(b, t.bitwidth, top), odd, total))

    def one(typingctx: Any, x: Any, top: Any, n: Any, k: Any) -> tuple[Any, Any]:
        t = _float(name, x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return emit(context, b, t, args)

        return t(t, *[types.int64] * 3), code

    def two(
        typingctx: Any, x: Any, top: Any, n: Any, k: Any, low: Any
    ) -> tuple[Any, Any]:
        t = _float(name, x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return emit(context, b, t, args)

        return t(t, *[types.int64] * 4), code

    function = one if words == 1 else two
    function.__name__ = name
    return intrinsic(function)


# A float plus the sum of the floats that were counted, by their quanta alone, and by
# the smaller ones, too.
plus_quanta, plus_quanta_2 = _adding("plus_quanta", 1), _adding("plus_quanta_2", 2)
