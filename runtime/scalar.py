"""The neutral scalar functions of lowering templates, with NumPy's meaning.

Generated code imports them by name. They are intrinsics: a few instructions each, for
every width of integer, bool, float32 and float64. All arguments of a call have one
type, which is the result's, except where a bool comes out. Longer ones are compiled
functions of their own.

What NumPy only warns about has NumPy's result here: integer division by zero gives 0,
an overflow wraps around.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic

from . import vecmath
from .vecmath import (
    cbrt,
    copysign,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    hypot,
    inline_exp,
    log,
    log1p,
    log2,
    log10,
    rint,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)

__all__ = [
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "heaviside",
    "hypot",
    "inline_exp",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lost",
    "maximum",
    "minimum",
    "multiply_add",
    "power",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "where",
]

types: Any = numba.types
Builder = Any
Value = Any
Emit = Callable[..., Value]

arccos, arccosh, arcsin = vecmath.acos, vecmath.acosh, vecmath.asin
arcsinh, arctan, arctanh = vecmath.asinh, vecmath.atan, vecmath.atanh
arctan2 = vecmath.atan2


def _is_float(t: Any) -> bool:
    return isinstance(t, types.Float)


def _is_signed(t: Any) -> bool:
    return isinstance(t, types.Integer) and bool(t.signed)


def _same(name: str, *args: Any) -> Any:
    """Return the one type of the arguments, literals taken as their plain type."""
    plain = {types.unliteral(a) for a in args}
    if len(plain) != 1:
        shown = ", ".join(map(str, args))
        raise TypingError(f"{name}: the arguments must have one type, not {shown}")
    t = plain.pop()
    if not isinstance(t, types.Integer | types.Float | types.Boolean):
        raise TypingError(f"{name}: not defined for {t}")
    return t


def _compare(b: Builder, t: Any, sign: str, x: Value, y: Value, nan: bool) -> Value:
    """Compare; `nan` is the answer where one of two floats is NaN."""
    if _is_float(t):
        compare = b.fcmp_unordered if nan else b.fcmp_ordered
        return compare(sign, x, y)
    return (b.icmp_signed if _is_signed(t) else b.icmp_unsigned)(sign, x, y)


def _modulo(context: Any) -> Emit:
    """Return what emits fmod of floats."""

    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        return vecmath.call(context, b, t.bitwidth, "fmod", x, y)

    return emit


def _unary(name: str, emit: Emit, result: Any = None) -> Any:
    @intrinsic
    def function(typingctx: Any, x: Any) -> tuple[Any, Any]:
        t = _same(name, x)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, t, *args)

        return (result or t)(t), code

    return function


def _binary(name: str, emit: Emit, result: Any = None) -> Any:
    @intrinsic
    def function(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
        t = _same(name, x, y)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, t, *args)

        return (result or t)(t, t), code

    return function


def _dividing(name: str, emit: Emit) -> Any:
    """Make a function of two arguments that needs fmod."""

    @intrinsic
    def function(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
        t = _same(name, x, y)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, t, *args, _modulo(context))

        return t(t, t), code

    return function


def _llvm(b: Builder, name: str, *args: Value) -> Value:
    t = args[0].type
    bits = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(t) or f"i{t.width}"
    signature = ir.FunctionType(t, [t] * len(args))
    function = b.module.globals.get(f"{name}.{bits}")
    if function is None:
        function = ir.Function(b.module, signature, f"{name}.{bits}")
    return b.call(function, args)


# ---------------------------------------------------------------- one argument


def _absolute(b: Builder, t: Any, x: Value) -> Value:
    if _is_float(t):
        return _llvm(b, "llvm.fabs", x)
    if not _is_signed(t):
        return x
    return b.select(b.icmp_signed("<", x, x.type(0)), b.neg(x), x)


def _sign(b: Builder, t: Any, x: Value) -> Value:
    zero, one = x.type(0), x.type(1)
    if not _is_float(t) and not _is_signed(t):
        return b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    if _is_float(t):  # zero of either sign gives +0, NaN gives NaN
        signed = _llvm(b, "llvm.copysign", one, x)
        return b.select(b.fcmp_ordered("!=", x, zero), signed, _absolute(b, t, x))
    positive = _compare(b, t, ">", x, zero, False)
    negative = _compare(b, t, "<", x, zero, False)
    return b.select(positive, one, b.select(negative, x.type(-1), zero))


def _reciprocal(b: Builder, t: Any, x: Value) -> Value:
    if _is_float(t):
        return b.fdiv(x.type(1), x)
    return _divide_integers(b, t, x.type(1), x)[0]


def _invert(b: Builder, t: Any, x: Value) -> Value:
    return b.not_(x)


def _truth(b: Builder, t: Any, x: Value) -> Value:
    return _compare(b, t, "!=", x, x.type(0), True)


def _isnan(b: Builder, t: Any, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x) if _is_float(t) else ir.IntType(1)(0)


def _isinf(b: Builder, t: Any, x: Value) -> Value:
    if not _is_float(t):
        return ir.IntType(1)(0)
    return b.fcmp_ordered("==", _llvm(b, "llvm.fabs", x), x.type(math.inf))


def _isfinite(b: Builder, t: Any, x: Value) -> Value:
    if not _is_float(t):
        return ir.IntType(1)(1)
    return b.fcmp_ordered("<", _llvm(b, "llvm.fabs", x), x.type(math.inf))


def _signbit(b: Builder, t: Any, x: Value) -> Value:
    if not _is_float(t):
        return _compare(b, t, "<", x, x.type(0), False)
    word = ir.IntType(t.bitwidth)
    return b.icmp_signed("<", b.bitcast(x, word), word(0))


def _rounded(name: str) -> Any:
    """Make a rounding: integers and bools are whole, and stay what they are."""
    instruction = f"llvm.{name}"
    return _unary(name, lambda b, t, x: _llvm(b, instruction, x) if _is_float(t) else x)


absolute = _unary("absolute", _absolute)
sign = _unary("sign", _sign)
reciprocal = _unary("reciprocal", _reciprocal)
invert = _unary("invert", _invert)
logical_not = _unary(
    "logical_not", lambda b, t, x: b.not_(_truth(b, t, x)), types.boolean
)
isnan = _unary("isnan", _isnan, types.boolean)
isinf = _unary("isinf", _isinf, types.boolean)
isfinite = _unary("isfinite", _isfinite, types.boolean)
signbit = _unary("signbit", _signbit, types.boolean)
floor, ceil, trunc = _rounded("floor"), _rounded("ceil"), _rounded("trunc")

# ---------------------------------------------------------------- two arguments


def _extreme(better: str, nan_wins: bool) -> Emit:
    """Make maximum or minimum: of equal zeros either, as in NumPy.

    The first choice is one instruction, which gives `x` where one of the two is NaN; a
    literal, which is not NaN, is best `y`.
    """

    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        if isinstance(x, ir.Constant):
            x, y = y, x
        first = b.select(_compare(b, t, better, y, x, False), y, x)
        if not _is_float(t):
            return first
        odd = y if nan_wins else x
        return b.select(b.fcmp_unordered("uno", odd, odd), y, first)

    return emit


def _logical(combine: str) -> Emit:
    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        return getattr(b, combine)(_truth(b, t, x), _truth(b, t, y))

    return emit


def _divide_integers(b: Builder, t: Any, x: Value, y: Value) -> tuple[Value, Value]:
    """Return quotient and remainder towards zero, 0 where y is 0.

    The smallest integer by -1 traps; it is divided by 1 instead and negated.
    """
    zero, one = x.type(0), x.type(1)
    is_zero = b.icmp_unsigned("==", y, zero)
    safe = b.select(is_zero, one, y)
    if not _is_signed(t):
        q, r = b.udiv(x, safe), b.urem(x, safe)
    else:
        minus = b.icmp_signed("==", y, y.type(-1))
        safe = b.select(minus, one, safe)
        q, r = b.sdiv(x, safe), b.srem(x, safe)
        q = b.select(minus, b.neg(x), q)
    return b.select(is_zero, zero, q), b.select(is_zero, zero, r)


def _fmod(b: Builder, t: Any, x: Value, y: Value, fmod: Emit) -> Value:
    return fmod(b, t, x, y) if _is_float(t) else _divide_integers(b, t, x, y)[1]


def _floor_parts(
    b: Builder, t: Any, x: Value, y: Value, fmod: Emit
) -> tuple[Value, Value]:
    """Return floor(x / y) and x - y * floor(x / y), as NumPy computes them."""
    zero = x.type(0)
    if not _is_float(t):
        q, r = _divide_integers(b, t, x, y)
        if not _is_signed(t):
            return q, r
        signs_differ = b.icmp_signed("<", b.xor(r, y), zero)
        off = b.and_(b.icmp_signed("!=", r, zero), signs_differ)
        # A remainder of a division by zero is 0, so `off` is false there.
        return b.select(off, b.sub(q, x.type(1)), q), b.select(off, b.add(r, y), r)
    one = x.type(1)
    r = fmod(b, t, x, y)
    q = b.fdiv(b.fsub(x, r), y)
    not_zero = b.fcmp_unordered("!=", r, zero)
    wrong = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
    off = b.and_(not_zero, wrong)
    q = b.select(off, b.fsub(q, one), q)
    remainder = b.select(off, b.fadd(r, y), r)
    remainder = b.select(not_zero, remainder, _llvm(b, "llvm.copysign", zero, y))
    whole = _llvm(b, "llvm.floor", q)
    up = b.fcmp_ordered(">", b.fsub(q, whole), x.type(0.5))
    whole = b.select(up, b.fadd(whole, one), whole)
    signed_zero = _llvm(b, "llvm.copysign", zero, b.fdiv(x, y))
    whole = b.select(b.fcmp_unordered("!=", q, zero), whole, signed_zero)
    by_zero = b.fcmp_ordered("==", y, zero)
    return b.select(by_zero, b.fdiv(x, y), whole), b.select(by_zero, r, remainder)


def _shift(direction: str) -> Emit:
    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        width = x.type(t.bitwidth)
        inside = b.icmp_unsigned("<", y, width)
        zero = x.type(0)
        if direction == "left":
            return b.select(inside, b.shl(x, b.select(inside, y, zero)), zero)
        if not _is_signed(t):
            return b.select(inside, b.lshr(x, b.select(inside, y, zero)), zero)
        return b.ashr(x, b.select(inside, y, x.type(t.bitwidth - 1)))

    return emit


def _heaviside(b: Builder, t: Any, x: Value, y: Value) -> Value:
    zero, one = x.type(0), x.type(1)
    step = b.select(b.fcmp_ordered(">", x, zero), one, zero)
    step = b.select(b.fcmp_ordered("==", x, zero), y, step)
    return b.select(b.fcmp_unordered("uno", x, x), x, step)


maximum = _binary("maximum", _extreme(">", nan_wins=True))
minimum = _binary("minimum", _extreme("<", nan_wins=True))
fmax = _binary("fmax", _extreme(">", nan_wins=False))
fmin = _binary("fmin", _extreme("<", nan_wins=False))
logical_and = _binary("logical_and", _logical("and_"), types.boolean)
logical_or = _binary("logical_or", _logical("or_"), types.boolean)
logical_xor = _binary("logical_xor", _logical("xor"), types.boolean)
fmod = _dividing("fmod", _fmod)
floor_divide = _dividing("floor_divide", lambda *args: _floor_parts(*args)[0])
remainder = _dividing("remainder", lambda *args: _floor_parts(*args)[1])
left_shift = _binary("left_shift", _shift("left"))
right_shift = _binary("right_shift", _shift("right"))
heaviside = _binary("heaviside", _heaviside)


@intrinsic
def where(typingctx: Any, condition: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return x or y; both are evaluated."""
    t = _same("where", x, y)
    if types.unliteral(condition) != types.boolean:
        raise TypingError(f"where: the condition must be a bool, not {condition}")

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return t(types.boolean, t, t), code


def _lost(b: Builder, t: Any, x: Value, y: Value) -> Value:
    total = b.fadd(x, y)
    back = b.fsub(total, x)
    error = b.fadd(b.fsub(x, b.fsub(total, back)), b.fsub(y, back))
    finite = b.fcmp_ordered("<", _llvm(b, "llvm.fabs", total), x.type(math.inf))
    return b.select(finite, error, x.type(0))


@intrinsic
def multiply_add(typingctx: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
    """Return x * y + z, rounded once where the processor does so in one operation."""
    t = _same("multiply_add", x, y, z)
    if not _is_float(t):
        raise TypingError(f"multiply_add: the arguments must be floats, not {t}")

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _llvm(builder, "llvm.fmuladd", *args)

    return t(t, t, t), code


# What x + y loses to rounding; 0 where the sum is not finite.
lost = _binary("lost", _lost)


# ---------------------------------------------------------------- powers, logarithms


def _power_loop(b: Builder, t: Any, x: Value, y: Value) -> Value:
    """Emit x**y by repeated squaring, modulo the width."""
    entry = b.block
    loop, body, end = (
        b.append_basic_block(f"power.{n}") for n in ("loop", "in", "end")
    )
    b.branch(loop)
    b.position_at_end(loop)
    result, base, left = (b.phi(x.type) for _ in range(3))
    result.add_incoming(x.type(1), entry)
    base.add_incoming(x, entry)
    left.add_incoming(y, entry)
    b.cbranch(_compare(b, t, ">", left, x.type(0), False), body, end)
    b.position_at_end(body)
    odd = b.trunc(left, ir.IntType(1)) if x.type.width > 1 else left
    result.add_incoming(b.select(odd, b.mul(result, base), result), body)
    base.add_incoming(b.mul(base, base), body)
    rest = b.lshr(left, x.type(1)) if x.type.width > 1 else x.type(0)
    left.add_incoming(rest, body)
    b.branch(loop)
    b.position_at_end(end)
    return result


def _power_product(b: Builder, x: Value, n: int) -> Value:
    """Emit x**n by repeated squaring."""
    result, base = None, x
    while n:
        if n & 1:
            result = base if result is None else b.mul(result, base)
        n >>= 1
        base = b.mul(base, base) if n else base
    return x.type(1) if result is None else result


def _square(b: Builder, t: Any, x: Value) -> Value:
    return b.fmul(x, x)


def _root(b: Builder, t: Any, x: Value) -> Value:
    return _llvm(b, "llvm.sqrt", x)


def _of_minus_infinity(b: Builder, x: Value, value: float, orelse: Value) -> Value:
    """Emit a power of which sqrt, unlike pow, makes NaN for minus infinity."""
    where = b.fcmp_ordered("==", x, x.type(-math.inf))
    return b.select(where, x.type(value), orelse)


def _three_halves(b: Builder, t: Any, x: Value) -> Value:
    return _of_minus_infinity(b, x, math.inf, b.fmul(x, _root(b, t, x)))


def _reciprocal_root(b: Builder, t: Any, x: Value) -> Value:
    root = _root(b, t, b.fadd(x, x.type(0)))  # of -0 the root is -0
    return _of_minus_infinity(b, x, 0.0, _reciprocal(b, t, root))


# Powers for which NumPy's operator does not call pow, either.
EXACT_POWERS: dict[Any, Emit] = {
    -1: _reciprocal,
    0: lambda b, t, x: x.type(1),
    0.5: _root,
    1: lambda b, t, x: x,
    2: _square,
}
# Within 2 units in the last place of pow, and many times faster.
POWERS: dict[Any, Emit] = EXACT_POWERS | {
    -2: lambda b, t, x: _square(b, t, _reciprocal(b, t, x)),
    -0.5: _reciprocal_root,
    1.5: _three_halves,
    3: lambda b, t, x: b.fmul(_square(b, t, x), x),
    4: lambda b, t, x: _square(b, t, _square(b, t, x)),
}
UNROLLED = 65  # exponents of integers below are products, others a loop


def power_by(call: Any) -> Any:
    """Make x**y with that call of elementary functions."""

    table = EXACT_POWERS if call is vecmath.scalar_call else POWERS

    @intrinsic
    def power(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
        t = _same("power", x, y)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, y = args
            known: Any = y.constant if isinstance(y, ir.Constant) else None
            if not _is_float(t):
                if known in range(UNROLLED):
                    return _power_product(builder, x, known)
                return _power_loop(builder, t, x, y)
            if known in table:
                return table[known](builder, t, x)
            return call(context, builder, t.bitwidth, "pow", x, y)

        return t(t, t), code

    return power


def log_of_sum(call: Any, base: str) -> Any:
    """Make log(base**x + base**y) with that call of elementary functions."""
    exp_name = "exp" if base == "e" else "exp2"
    unit = 1.0 if base == "e" else 1 / math.log(2)  # 1 / log(base)
    of_two = math.log(2) * unit

    @intrinsic
    def function(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
        t = _same("logaddexp", x, y)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            x, y = args
            bits = t.bitwidth
            high, low = _llvm(b, "llvm.maximum", x, y), _llvm(b, "llvm.minimum", x, y)
            power = call(context, b, bits, exp_name, b.fsub(low, high))
            rest = call(context, b, bits, "log1p", power)
            total = b.fadd(high, b.fmul(rest, x.type(unit)))
            # Equal values also stand for two infinities, whose difference is NaN.
            equal = b.fadd(x, x.type(of_two))
            return b.select(b.fcmp_ordered("==", x, y), equal, total)

        return t(t, t), code

    return function


power = power_by(vecmath.call)  # integers need an exponent that is not negative
logaddexp = log_of_sum(vecmath.call, "e")
logaddexp2 = log_of_sum(vecmath.call, "2")
