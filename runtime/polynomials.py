"""Elementary functions as polynomials, computed where they are used.

Note [inline functions]
A call of libmvec takes all vector registers from the loop around it, and its results
differ from those of the scalar call by a few units in the last place. The functions
here are straight code without tables and branches: LLVM vectorises them like any other
arithmetic, keeps constants and operands in registers, and an element has the same bits
in a vector, in the remainder of a loop and alone. They need fused multiply-add.

The formulas are the usual ones (Muller, Elementary Functions, chapters 5 and 11; the
logarithm's is fdlibm's):

    exp(x) = 2**n * exp(r),  r = x - n * log(2),  |r| <= log(2) / 2
    exp(r) = 1 + (r + r**2 * Q(r))
    tanh(x) = e / (e + 2),  e = exp(2x) - 1
    log(2**k * (1 + f)) = k * log(2) + log(1 + f),  sqrt(1/2) <= 1 + f < sqrt(2)
    log(1 + f) = f - (f**2/2 - s * (f**2/2 + R(s**2))),  s = f / (2 + f)   float64
    log(1 + f) = f - f**2/2 + f**3 * P(f)                                  float32

Coefficients interpolate at Chebyshev nodes, which comes close to the least maximum
error; a test derives them again. `docs/accuracy.md` has the errors that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

# Values of llvmlite are untyped Python to mypy.
Builder = Any


@dataclass(frozen=True, slots=True)
class Format:
    """What the formulas know about float64 or float32."""

    type: Any
    word: Any  # the integer type of the same width
    mantissa: int  # bits after the point
    bias: int
    lowest: float  # exp of less is 0
    highest: float  # exp of more is infinite
    spare: int  # by so much an exponent is moved out of the way of its limits
    saturated: float  # tanh of this is 1
    high: float  # log(2), its leading bits: n times it is exact
    low: float  # the rest
    exp: tuple[float, ...]  # Q
    exp2: tuple[float, ...]  # (2**r - 1) / r
    log: tuple[float, ...]  # R / s**2, or P

    @property
    def rounder(self) -> float:
        """Added to a number, it leaves a whole one in the last bits."""
        return 1.5 * 2.0**self.mantissa


DOUBLE = Format(
    ir.DoubleType(),
    ir.IntType(64),
    52,
    1023,
    -746.0,
    720.0,
    64,
    22.0,
    float.fromhex("0x1.62e42fefa3800p-1"),
    float.fromhex("0x1.ef35793c76730p-45"),
    exp=(
        0.5000000000000001,
        0.16666666666666669,
        0.04166666666662413,
        0.008333333333330062,
        0.0013888888917213717,
        0.00019841269863053618,
        2.4801521295954376e-05,
        2.7557268459997064e-06,
        2.7620088445409746e-07,
        2.510038549551032e-08,
    ),
    exp2=(
        0.6931471805599453,
        0.24022650695910097,
        0.0555041086648216,
        0.009618129107606854,
        0.0013333558146416916,
        0.00015403530441794136,
        1.525273382986708e-05,
        1.3215442552522291e-06,
        1.0178062426976924e-07,
        7.072593027878997e-09,
        4.4549643712692967e-10,
    ),
    log=(
        0.666666666666667,
        0.3999999999989924,
        0.2857142862609589,
        0.2222221111514416,
        0.18182890556695602,
        0.1533167403016786,
        0.1461703754879165,
    ),
)
SINGLE = Format(
    ir.FloatType(),
    ir.IntType(32),
    23,
    127,
    -104.5,
    95.0,
    30,
    10.0,
    float.fromhex("0x1.62e4p-1"),
    1.4286068e-06,
    exp=(
        0.5,
        0.16666576,
        0.041666556,
        0.008363179,
        0.0013926184,
    ),
    exp2=(
        0.6931472,
        0.2402265,
        0.05550357,
        0.009618082,
        0.0013390887,
        0.00015453182,
    ),
    log=(
        0.3333333,
        -0.24999997,
        0.20000717,
        -0.16667807,
        0.14249007,
        -0.12425523,
        0.11685785,
        -0.11481212,
        0.069725186,
    ),
)


class Number:
    """A value of llvmlite with the operators of arithmetic."""

    __slots__ = ("b", "f", "value")

    def __init__(self, b: Builder, f: Format, value: Any) -> None:
        self.b, self.f, self.value = b, f, value

    def of(self, x: Number | float) -> Any:
        """Return a number as a value of llvmlite."""
        return x.value if isinstance(x, Number) else self.f.type(x)

    def new(self, value: Any) -> Number:
        return Number(self.b, self.f, value)

    def __add__(self, other: Number | float) -> Number:
        return self.new(self.b.fadd(self.value, self.of(other)))

    def __sub__(self, other: Number | float) -> Number:
        return self.new(self.b.fsub(self.value, self.of(other)))

    def __mul__(self, other: Number | float) -> Number:
        return self.new(self.b.fmul(self.value, self.of(other)))

    def __truediv__(self, other: Number | float) -> Number:
        return self.new(self.b.fdiv(self.value, self.of(other)))

    def times_plus(self, factor: Number | float, term: Number | float) -> Number:
        """Return self * factor + term, rounded once."""
        return self.intrinsic("llvm.fma", self.of(factor), self.of(term))

    def intrinsic(self, name: str, *more: Any) -> Number:
        t = self.f.type
        kind = ir.FunctionType(t, [t] * (1 + len(more)))
        function = self.b.module.declare_intrinsic(name, [t], kind)
        return self.new(self.b.call(function, [self.value, *more]))

    def size(self) -> Number:
        return self.intrinsic("llvm.fabs")

    def with_sign_of(self, other: Number) -> Number:
        return self.intrinsic("llvm.copysign", other.value)

    def select(self, sign: str, bound: float, then: Any, orelse: Any) -> Number:
        """Return `then` where self compares so with `bound`; NaN does not."""
        where = self.b.fcmp_ordered(sign, self.value, self.of(bound))
        return self.new(self.b.select(where, self.of(then), self.of(orelse)))

    def at_least(self, bound: float) -> Number:
        return self.select("<", bound, bound, self)  # NaN stays

    def at_most(self, bound: float) -> Number:
        return self.select(">", bound, bound, self)

    def word(self) -> Any:
        """Return the bits as an integer."""
        return self.b.bitcast(self.value, self.f.word)

    def from_word(self, word: Any) -> Number:
        return self.new(self.b.bitcast(word, self.f.type))


def polynomial(x: Number, square: Number, c: Sequence[float]) -> Number:
    """Return sum of c[k] * x**k, even and odd powers apart: they do not wait."""
    parts = []
    for start in (0, 1):
        *rest, last = c[start::2]
        total: Number | float = last
        for a in reversed(rest):
            if isinstance(total, Number):
                total = total.times_plus(square, a)
            else:
                total = square.times_plus(total, a)
        parts.append(total)
    even, odd = parts
    return x.times_plus(odd, even)


def _power_of_two(f: Format, n: Number) -> Number:
    """Return 2**n of what `rounder` was added to; 2**n must be a normal number."""
    exponent = n.b.shl(n.word(), f.word(f.mantissa))
    return n.from_word(n.b.add(exponent, f.word(f.bias << f.mantissa)))


def _scaled(f: Format, p: Number, x: Number, n: Number) -> Number:
    """Return p * 2**(n - r), in two steps: the result may be denormal or infinite.

    r is what `_moved` has added; it moves n away from the limits of exponents.
    """
    exponent = p.b.shl(n.word(), f.word(f.mantissa))
    near = p.from_word(p.b.add(p.word(), exponent))
    back = x.select("<", 0.0, 2.0**-f.spare, 2.0**f.spare)
    return near * back


def _moved(f: Format, x: Number) -> Number:
    up, down = f.rounder + f.spare, f.rounder - f.spare
    return x.select("<", 0.0, up, down)


def _reduced(f: Format, x: Number, n: Number) -> Number:
    return n.times_plus(-f.low, n.times_plus(-f.high, x))


def exp(f: Format, x: Number) -> Number:
    """Return e**x."""
    x = x.at_least(f.lowest).at_most(f.highest)
    start = _moved(f, x)
    moved = x.times_plus(1 / math.log(2), start)
    r = _reduced(f, x, moved - start)
    square = r * r
    p = square.times_plus(polynomial(r, square, f.exp), r) + 1.0
    return _scaled(f, p, x, moved)


def exp2(f: Format, x: Number) -> Number:
    """Return 2**x."""
    x = x.at_least(f.lowest / math.log(2)).at_most(f.highest / math.log(2))
    start = _moved(f, x)
    moved = x + start
    r = x - (moved - start)
    p = r.times_plus(polynomial(r, r * r, f.exp2), 1.0)
    return _scaled(f, p, x, moved)


def _half_expm1(f: Format, x: Number) -> Number:
    """Return (e**x - 1) / 2, which is finite where e**x - 1 is; x >= -60."""
    moved = x.times_plus(1 / math.log(2), f.rounder)
    r = _reduced(f, x, moved - f.rounder)
    square = r * r
    p = square.times_plus(polynomial(r, square, f.exp), r)
    scale = _power_of_two(f, moved - 1.0)
    return scale.times_plus(p, scale - 0.5)


def expm1(f: Format, x: Number) -> Number:
    """Return e**x - 1."""
    half = _half_expm1(f, x.at_least(-60.0).at_most(f.highest))
    # The highest is where the exponent of `scale` leaves its range.
    limit = (f.bias + 1) * math.log(2)
    return x.select(">", limit, math.inf, (half + half).with_sign_of(x))


def tanh(f: Format, x: Number) -> Number:
    """Return the hyperbolic tangent."""
    size = x.size().at_most(f.saturated)
    half = _half_expm1(f, size + size)
    return (half / (half + 1.0)).with_sign_of(x)


def _split(f: Format, x: Number) -> tuple[Any, Any]:
    """Return k, biased by 2 * bias, and the bits of m: x = 2**k * m, m near 1."""
    b = x.b
    least = x.new(f.type(math.sqrt(0.5))).word()
    moved = b.add(b.sub(x.word(), least), f.word(2 * f.bias << f.mantissa))
    k = b.lshr(moved, f.word(f.mantissa))
    fraction = b.and_(moved, f.word((1 << f.mantissa) - 1))
    return k, b.add(fraction, least)


def _whole(f: Format, x: Number, k: Any) -> Number:
    """Return a small integer, biased by 2 * bias, as a float."""
    start = 2.0**f.mantissa
    bits = x.b.or_(k, x.new(f.type(start)).word())
    return x.from_word(bits) - (start + 2 * f.bias)


def _log_near_one(f: Format, x: Number, k: Number | None = None) -> Number:
    """Return k * log(2) + log(1 + x) for sqrt(1/2) <= 1 + x < sqrt(2)."""
    square = x * x
    if f is SINGLE:
        rest = square.times_plus(-0.5, square * x * polynomial(x, square, f.log))
        rest = k.times_plus(f.low, rest) if k else rest
        result = x + rest
    else:
        s = x / (x + 2.0)
        z = s * s
        half = square * 0.5
        r = z * polynomial(z, z * z, f.log)
        rest = s.times_plus(half + r, k * f.low if k else 0.0)
        result = x - (half - rest)
    return k.times_plus(f.high, result) if k else result


def _log_parts(f: Format, x: Number) -> tuple[Number, Number]:
    """Return k and m - 1 of a positive x = 2**k * m."""
    tiny = 2.0 ** (1 - f.bias)
    up = f.mantissa + 2
    normal = x.select("<", tiny, x * 2.0**up, x)
    k, m = _split(f, normal)
    below = x.select("<", tiny, float(-up), 0.0)
    return _whole(f, x, k) + below, x.from_word(m) - 1.0


def _of_positive(x: Number, result: Number) -> Number:
    """Return a logarithm, with its meaning for all that is not positive and finite."""
    special = x.select("==", 0.0, -math.inf, math.nan)
    result = x.select(">", 0.0, result, special)
    return x.select("==", math.inf, math.inf, result)


def log(f: Format, x: Number) -> Number:
    """Return the natural logarithm."""
    k, m = _log_parts(f, x)
    return _of_positive(x, _log_near_one(f, m, k))


def log2(f: Format, x: Number) -> Number:
    """Return the logarithm to base 2; of powers of two it is exact."""
    k, m = _log_parts(f, x)
    near = _log_near_one(f, m)
    return _of_positive(x, near.times_plus(1 / math.log(2), k))


def log1p(f: Format, x: Number) -> Number:
    """Return log(1 + x).

    1 + x = 2**k * m decides k; then m - 1 is x * 2**-k + (2**-k - 1), rounded once,
    where the 1 is more than what rounding loses.
    """
    total = x + 1.0
    k, bits = _split(f, total)
    b = x.b
    power = b.shl(b.sub(f.word(3 * f.bias), k), f.word(f.mantissa))
    scale = x.from_word(power)  # 2**-k
    near = x.times_plus(scale, scale - 1.0)
    m = x.select("<", 2.0 ** (f.mantissa + 2), near, x.from_word(bits) - 1.0)
    result = _of_positive(total, _log_near_one(f, m, _whole(f, x, k)))
    return x.size().select("<", 2.0 ** -(f.mantissa + 2), x, result)


FUNCTIONS: dict[str, Callable[[Format, Number], Number]] = {
    f.__name__: f for f in (exp, exp2, expm1, tanh, log, log2, log1p)
}


def declare(module: Any, name: str, bits: int) -> Any:
    """Return the function in a module, to be inlined where it is called."""
    f = DOUBLE if bits == 64 else SINGLE
    symbol = f"retrograde_inline_{name}{bits}"
    function = module.globals.get(symbol)
    if function is None:
        function = ir.Function(module, ir.FunctionType(f.type, [f.type]), symbol)
        function.linkage = "internal"
        function.attributes.add("alwaysinline")
        b = ir.IRBuilder(function.append_basic_block())
        b.ret(FUNCTIONS[name](f, Number(b, f, function.args[0])).value)
    return function
