"""The neutral scalar functions as LLVM instructions, for any target.

`FUNCTIONS` holds all that is more than a call of an elementary function; `scalar` makes
intrinsics of it for the processor, `codegen/cuda/device` for CUDA devices.

Emitters take a builder, the Numba type of the arguments and their values, and give the
value of the result. Those that call elementary functions take a `Call` before that.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from .intrinsics import Builder, Call, Function, Value, is_float, is_signed

types: Any = numba.types
Emit = Callable[..., Value]


def compare(b: Builder, t: Any, sign: str, x: Value, y: Value, nan: bool) -> Value:
    """Compare; `nan` is the answer where one of two floats is NaN."""
    if is_float(t):
        compare = b.fcmp_unordered if nan else b.fcmp_ordered
        return compare(sign, x, y)
    return (b.icmp_signed if is_signed(t) else b.icmp_unsigned)(sign, x, y)


# NVVM refuses these; its library has functions of one instruction.
REFUSED = {"llvm.fabs": "__nv_fabs", "llvm.trunc": "__nv_trunc"}


def is_for_device(b: Builder) -> bool:
    return str(b.module.triple).startswith("nvptx")


def llvm(b: Builder, name: str, *args: Value, flags: Sequence[str] = ()) -> Value:
    """Emit a call of one of LLVM's own functions of floats."""
    t = args[0].type
    short = t == ir.FloatType()
    if name in REFUSED and is_for_device(b):
        symbol = REFUSED[name] + ("f" if short else "")
    else:
        symbol = f"{name}.{'f32' if short else 'f64'}"
    function = b.module.globals.get(symbol)
    if function is None:
        kind = ir.FunctionType(t, [t] * len(args))
        function = ir.Function(b.module, kind, symbol)
    return b.call(function, args, fastmath=flags)


# ---------------------------------------------------------------- one argument


def _absolute(b: Builder, t: Any, x: Value) -> Value:
    if is_float(t):
        return llvm(b, "llvm.fabs", x)
    if not is_signed(t):
        return x
    return b.select(b.icmp_signed("<", x, x.type(0)), b.neg(x), x)


def _sign(b: Builder, t: Any, x: Value) -> Value:
    zero, one = x.type(0), x.type(1)
    if not is_float(t) and not is_signed(t):
        return b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    if is_float(t):  # zero of either sign gives +0, NaN gives NaN
        signed = llvm(b, "llvm.copysign", one, x)
        return b.select(b.fcmp_ordered("!=", x, zero), signed, _absolute(b, t, x))
    positive = compare(b, t, ">", x, zero, False)
    negative = compare(b, t, "<", x, zero, False)
    return b.select(positive, one, b.select(negative, x.type(-1), zero))


def _reciprocal(b: Builder, t: Any, x: Value) -> Value:
    if is_float(t):
        return b.fdiv(x.type(1), x)
    if x.type.width == 1:
        return x
    dtype = np.dtype(f"{'i' if is_signed(t) else 'u'}{x.type.width // 8}")
    with np.errstate(all="ignore"):  # what NumPy gives depends on the processor
        of_zero = int(np.reciprocal(np.zeros(1, dtype))[0])
    quotient = _divide_integers(b, t, x.type(1), x)[0]
    is_zero = b.icmp_unsigned("==", x, x.type(0))
    return b.select(is_zero, x.type(of_zero), quotient)


def _invert(b: Builder, t: Any, x: Value) -> Value:
    return b.not_(x)


def _truth(b: Builder, t: Any, x: Value) -> Value:
    return compare(b, t, "!=", x, x.type(0), True)


def _isnan(b: Builder, t: Any, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x) if is_float(t) else ir.IntType(1)(0)


def _isinf(b: Builder, t: Any, x: Value) -> Value:
    if not is_float(t):
        return ir.IntType(1)(0)
    return b.fcmp_ordered("==", llvm(b, "llvm.fabs", x), x.type(math.inf))


def _isfinite(b: Builder, t: Any, x: Value) -> Value:
    if not is_float(t):
        return ir.IntType(1)(1)
    return b.fcmp_ordered("<", llvm(b, "llvm.fabs", x), x.type(math.inf))


def _signbit(b: Builder, t: Any, x: Value) -> Value:
    if not is_float(t):
        return compare(b, t, "<", x, x.type(0), False)
    word = ir.IntType(t.bitwidth)
    return b.icmp_signed("<", b.bitcast(x, word), word(0))


def _rounded(name: str) -> Emit:
    """Make a rounding: integers and bools are whole, and stay what they are."""
    return lambda b, t, x: llvm(b, f"llvm.{name}", x) if is_float(t) else x


# ---------------------------------------------------------------- two arguments


def _frozen(b: Builder, x: Value) -> Value:
    """Return the same value, which LLVM does not look behind.

    Of the largest of choices LLVM makes a choice of results, which is no fold to it.
    """
    frozen = ir.Instruction(b.block, x.type, "freeze", [x])
    b._insert(frozen)  # llvmlite has no function for it
    return frozen


def _extreme(better: str, nan_wins: bool) -> Emit:
    """Make maximum or minimum: of equal zeros either, as in NumPy.

    Loops that fold with LLVM's own functions are vectorised. NVVM has them for some
    types only: there the first choice is one instruction, which gives `x` where one of
    the two is NaN; a literal, which is not NaN, is best `y`.
    """
    names = ("maximum", "minimum") if nan_wins else ("maxnum", "minnum")
    own = f"llvm.{names[better == '<']}"

    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        if is_float(t) and not is_for_device(b):
            y = _frozen(b, y) if isinstance(y, ir.SelectInstr) else y
            return llvm(b, own, x, y, flags=("nsz",))
        if isinstance(x, ir.Constant):
            x, y = y, x
        first = b.select(compare(b, t, better, y, x, False), y, x)
        if not is_float(t):
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
    if not is_signed(t):
        q, r = b.udiv(x, safe), b.urem(x, safe)
    else:
        minus = b.icmp_signed("==", y, y.type(-1))
        safe = b.select(minus, one, safe)
        q, r = b.sdiv(x, safe), b.srem(x, safe)
        q = b.select(minus, b.neg(x), q)
    return b.select(is_zero, zero, q), b.select(is_zero, zero, r)


def _fmod(call: Call, b: Builder, t: Any, x: Value, y: Value) -> Value:
    if not is_float(t):
        return _divide_integers(b, t, x, y)[1]
    return call(b, t.bitwidth, "fmod", x, y)


def _floor_parts(
    call: Call, b: Builder, t: Any, x: Value, y: Value
) -> tuple[Value, Value]:
    """Return floor(x / y) and x - y * floor(x / y), as NumPy computes them."""
    zero = x.type(0)
    if not is_float(t):
        q, r = _divide_integers(b, t, x, y)
        if not is_signed(t):
            return q, r
        signs_differ = b.icmp_signed("<", b.xor(r, y), zero)
        off = b.and_(b.icmp_signed("!=", r, zero), signs_differ)
        # A remainder of a division by zero is 0, so `off` is false there.
        return b.select(off, b.sub(q, x.type(1)), q), b.select(off, b.add(r, y), r)
    one = x.type(1)
    r = _fmod(call, b, t, x, y)
    q = b.fdiv(b.fsub(x, r), y)
    not_zero = b.fcmp_unordered("!=", r, zero)
    wrong = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", r, zero))
    off = b.and_(not_zero, wrong)
    q = b.select(off, b.fsub(q, one), q)
    remainder = b.select(off, b.fadd(r, y), r)
    remainder = b.select(not_zero, remainder, llvm(b, "llvm.copysign", zero, y))
    whole = llvm(b, "llvm.floor", q)
    up = b.fcmp_ordered(">", b.fsub(q, whole), x.type(0.5))
    whole = b.select(up, b.fadd(whole, one), whole)
    signed_zero = llvm(b, "llvm.copysign", zero, b.fdiv(x, y))
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
        if not is_signed(t):
            return b.select(inside, b.lshr(x, b.select(inside, y, zero)), zero)
        return b.ashr(x, b.select(inside, y, x.type(t.bitwidth - 1)))

    return emit


def _heaviside(b: Builder, t: Any, x: Value, y: Value) -> Value:
    zero, one = x.type(0), x.type(1)
    step = b.select(b.fcmp_ordered(">", x, zero), one, zero)
    step = b.select(b.fcmp_ordered("==", x, zero), y, step)
    return b.select(b.fcmp_unordered("uno", x, x), x, step)


def _lost(b: Builder, t: Any, x: Value, y: Value) -> Value:
    total = b.fadd(x, y)
    back = b.fsub(total, x)
    error = b.fadd(b.fsub(x, b.fsub(total, back)), b.fsub(y, back))
    finite = b.fcmp_ordered("<", llvm(b, "llvm.fabs", total), x.type(math.inf))
    return b.select(finite, error, x.type(0))


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
    b.cbranch(compare(b, t, ">", left, x.type(0), False), body, end)
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
    return llvm(b, "llvm.sqrt", x)


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


def power_by(known_powers: dict[Any, Emit]) -> Function:
    """Make x**y; floats with a known exponent may have a power of their own."""

    def emit(call: Call, b: Builder, t: Any, x: Value, y: Value) -> Value:
        known: Any = y.constant if isinstance(y, ir.Constant) else None
        if not is_float(t):
            if known in range(UNROLLED):
                return _power_product(b, x, known)
            return _power_loop(b, t, x, y)
        if known in known_powers:
            return known_powers[known](b, t, x)
        return call(b, t.bitwidth, "pow", x, y)

    return Function(2, emit)


def _log_of_sum(exp_name: str, unit: float) -> Function:
    """Make log(base**x + base**y); `unit` is 1 / log(base)."""
    of_two = math.log(2) * unit
    maximum, minimum = _extreme(">", nan_wins=True), _extreme("<", nan_wins=True)

    def emit(call: Call, b: Builder, t: Any, x: Value, y: Value) -> Value:
        high, low = maximum(b, t, x, y), minimum(b, t, x, y)
        power = call(b, t.bitwidth, exp_name, b.fsub(low, high))
        rest = call(b, t.bitwidth, "log1p", power)
        total = b.fadd(high, b.fmul(rest, x.type(unit)))
        # Equal values also stand for two infinities, whose difference is NaN.
        equal = b.fadd(x, x.type(of_two))
        return b.select(b.fcmp_ordered("==", x, y), equal, total)

    return Function(2, emit, floats=True)


# ---------------------------------------------------------------- conversion


def truncate(b: Builder, x: Value, t: Any) -> Value:
    """Emit a float as an integer as the processor does; see `convert`."""
    to = ir.IntType(t.bitwidth)
    return b.fptosi(x, to) if t.signed else b.fptoui(x, to)


def _to_integer(b: Builder, x: Value, t: Any, truncate: Emit) -> Value:
    # Through a wider signed integer: LLVM's direct conversion is poison where the
    # value does not fit, for example -1.0 to uint8.
    if t.bitwidth >= (32 if t.signed else 64):
        return truncate(b, x, t)
    middle = types.int64 if t == types.uint32 else types.int32
    return _resized(b, truncate(b, x, middle), middle, t)


def _resized(b: Builder, x: Value, old: Any, new: Any) -> Value:
    """Emit an integer or bool as an integer of another width."""
    to = ir.IntType(new.bitwidth)
    if x.type.width >= to.width:
        return b.trunc(x, to) if x.type.width > to.width else x
    return b.sext(x, to) if is_signed(old) else b.zext(x, to)


def convert(
    b: Builder, x: Value, old: Any, new: Any, truncate: Emit = truncate
) -> Value:
    """Emit `x` as a `new` as C does on common machines where C leaves it open.

    `truncate(b, x, t)` emits a float as an int32, int64 or uint64.
    """
    if new == types.boolean:
        return _truth(b, old, x)
    if isinstance(new, types.Integer):
        return (
            _to_integer(b, x, new, truncate)
            if is_float(old)
            else _resized(b, x, old, new)
        )
    to = ir.FloatType() if new.bitwidth == 32 else ir.DoubleType()
    if not is_float(old):
        return b.sitofp(x, to) if is_signed(old) else b.uitofp(x, to)
    if old == new:
        return x
    return b.fptrunc(x, to) if new.bitwidth == 32 else b.fpext(x, to)


# ---------------------------------------------------------------- the table


def _plain(count: int, emit: Emit, boolean: bool = False) -> Function:
    """Make a function that calls nothing."""
    return Function(count, lambda call, *args: emit(*args), boolean)


absolute = _plain(1, _absolute)
sign = _plain(1, _sign)
reciprocal = _plain(1, _reciprocal)
invert = _plain(1, _invert)
logical_not = _plain(1, lambda b, t, x: b.not_(_truth(b, t, x)), boolean=True)
isnan = _plain(1, _isnan, boolean=True)
isinf = _plain(1, _isinf, boolean=True)
isfinite = _plain(1, _isfinite, boolean=True)
signbit = _plain(1, _signbit, boolean=True)
floor = _plain(1, _rounded("floor"))
ceil = _plain(1, _rounded("ceil"))
trunc = _plain(1, _rounded("trunc"))
maximum = _plain(2, _extreme(">", nan_wins=True))
minimum = _plain(2, _extreme("<", nan_wins=True))
fmax = _plain(2, _extreme(">", nan_wins=False))
fmin = _plain(2, _extreme("<", nan_wins=False))
logical_and = _plain(2, _logical("and_"), boolean=True)
logical_or = _plain(2, _logical("or_"), boolean=True)
logical_xor = _plain(2, _logical("xor"), boolean=True)
fmod = Function(2, _fmod)
floor_divide = Function(2, lambda *args: _floor_parts(*args)[0])
remainder = Function(2, lambda *args: _floor_parts(*args)[1])
left_shift = _plain(2, _shift("left"))
right_shift = _plain(2, _shift("right"))
heaviside = Function(2, lambda call, *args: _heaviside(*args), floats=True)
where = Function(3, lambda call, b, t, *args: b.select(*args), conditions=1)
# What x + y loses to rounding; 0 where the sum is not finite.
lost = Function(2, lambda call, *args: _lost(*args), floats=True)
# x * y + z, rounded once where the processor does so in one operation.
multiply_add = Function(
    3, lambda call, b, t, *args: llvm(b, "llvm.fmuladd", *args), floats=True
)
power = power_by(POWERS)  # integers need an exponent that is not negative
logaddexp = _log_of_sum("exp", 1.0)
logaddexp2 = _log_of_sum("exp2", 1 / math.log(2))

FUNCTIONS = {name: f for name, f in globals().items() if isinstance(f, Function)}
