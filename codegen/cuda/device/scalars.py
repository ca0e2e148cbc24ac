"""The functions of `runtime.scalar` on a device, and what only its integers need.

Elementary functions are those of libdevice, in the precision of their argument; kernels
that are compiled with `fastmath` have some of `fast` for float32.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.cuda.extending import intrinsic

from ....runtime import instructions, scalar, vecmath
from ....runtime.intrinsics import Builder, Value, define, elementary, same
from . import fast

types: Any = numba.types
BINARY = (*vecmath.BINARY, "copysign")


def call(context: Any, b: Builder, bits: int, name: str, *values: Value) -> Value:
    """Emit a call of a function of libdevice, or what is as good with `fastmath`."""
    if context.fastmath and bits == 32 and name in fast.FUNCTIONS:
        return fast.FUNCTIONS[name](b, *values)
    symbol = f"__nv_{name}" if bits == 64 else f"__nv_{name}f"
    function = b.module.globals.get(symbol)
    if function is None:
        t = values[0].type
        kind = ir.FunctionType(t, [t] * len(values))
        function = ir.Function(b.module, kind, symbol)
    return b.call(function, values)


def _function(name: str) -> Any:
    f = instructions.FUNCTIONS.get(name)
    if f is None:
        c_name = name.replace("arc", "a").removeprefix("inline_")
        f = elementary(2 if c_name in BINARY else 1, c_name)
    return define(intrinsic, name, f, call)


def truncate(b: Builder, x: Value, t: Any) -> Value:
    """Emit a float as an integer as x86 processors do.

    What does not fit becomes the smallest integer; a device would give the nearest one,
    and 0 for NaN. Unsigned integers of 64 bits wrap around below zero.
    """
    top = x.type(2.0 ** (t.bitwidth - 1))
    to = ir.IntType(t.bitwidth)
    least = to(-(2 ** (t.bitwidth - 1)))
    small = b.select(b.fcmp_ordered("<", x, top), b.fptosi(x, to), least)
    if t.signed:
        return small
    fits = b.and_(
        b.fcmp_ordered(">=", x, top), b.fcmp_ordered("<", x, top.type(2.0**64))
    )
    return b.select(fits, b.fptoui(x, to), small)


def converted(b: Builder, x: Value, old: Any, new: Any) -> Value:
    """Emit `x` as a `new`; see `convert`."""
    return instructions.convert(b, x, types.unliteral(old), new, truncate)


@intrinsic
def convert(typingctx: Any, value: Any, dtype: Any) -> tuple[Any, Any]:
    """Cast a scalar to `dtype` as ``ndarray.astype`` does."""
    old, new = types.unliteral(value), dtype.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return converted(b, args[0], old, new)

    return new(old, dtype), code


@intrinsic
def divide(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return ``x // y`` of numbers that are not negative, any number where y is 0.

    Unsigned numbers that fit into 32 bits are divided as such; 64 bits take several
    times as long.
    """

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, y = args
        some = b.select(b.icmp_unsigned("==", y, y.type(0)), y.type(1), y)
        return b.udiv(x, some)

    return types.int64(types.int64, types.int64), code


@intrinsic
def quotient(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return ``x / y`` of floats.

    With `fastmath`, numba-cuda's own division of float32 is 0 where `y` is above
    2**126; this one approximates all quotients.
    """
    t = same("quotient", x, y)

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.fdiv(*args)

    return t(t, t), code


globals().update({name: _function(name) for name in scalar.__all__})
__all__ = [*scalar.__all__, "convert", "divide", "quotient"]
