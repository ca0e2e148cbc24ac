"""Reductions over a block: every thread gets the result.

Note [tree]
The lanes of a warp are combined at the distances 16, 8, 4, 2 and 1; then each warp does
so with the results of all warps, which lie in shared memory. What is combined with what
depends on the number of threads alone, so results are the same from run to run. The
operations give the same bits with their operands exchanged, so all lanes have the
same result; where either of two zeros may be the maximum, the result is that of
the first lane.

A block has a power of two of threads, from 32 to 1024, and all of them take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.errors import TypingError
from numba.cuda.extending import intrinsic

from ....runtime.instructions import logical_not, lost
from ....runtime.intrinsics import Builder, Value, is_float, same
from .grid import INT32, INT64, LANES, ask, exchange, meet, register
from .memory import array
from .operations import (
    ADD,
    BITWISE_AND,
    BITWISE_OR,
    BITWISE_XOR,
    FMAX,
    FMIN,
    MAXIMUM,
    MINIMUM,
    MULTIPLY,
    Operation,
)

__all__ = [
    "reduce_add",
    "reduce_bitwise_and",
    "reduce_bitwise_or",
    "reduce_bitwise_xor",
    "reduce_fmax",
    "reduce_fmin",
    "reduce_logical_and",
    "reduce_logical_or",
    "reduce_maximum",
    "reduce_minimum",
    "reduce_multiply",
    "reduce_pair",
]

types: Any = numba.types
cgutils: Any = numba.core.cgutils
Values = list[Value]
Combine = Callable[[Values, Values], Values]
DISTANCES = (16, 8, 4, 2, 1)
BITS = LANES.bit_length() - 1


def _block(context: Any, b: Builder, t: Any, xs: Values, combine: Combine) -> Values:
    """Emit the reduction of a list of values of type `t`; see Note [tree]."""
    meet(b)  # lanes are together, and the results of the reduction before were read
    for n in DISTANCES:
        xs = combine(xs, [exchange(b, x, INT32(n)) for x in xs])
    results = [cgutils.alloca_once_value(b, x) for x in xs]
    warps = b.lshr(register(b, "ntid.x"), INT32(BITS))
    with b.if_then(b.icmp_unsigned(">", warps, INT32(1))):
        xs = _from_warps(context, b, t, xs, warps)
        for x, p in zip(xs, results, strict=True):
            b.store(x, p)
        for n in DISTANCES:
            with b.if_then(b.icmp_unsigned("<", INT32(n), warps)):
                xs = [b.load(p) for p in results]
                xs = combine(xs, [exchange(b, x, INT32(n)) for x in xs])
                for x, p in zip(xs, results, strict=True):
                    b.store(x, p)
    return [b.load(p) for p in results]


def _from_warps(context: Any, b: Builder, t: Any, xs: Values, warps: Value) -> Values:
    """Emit what gives the lanes of a warp the results of all warps."""
    scratch = [array(context, b, t, f"reduced{k}", LANES) for k in range(len(xs))]
    data = context.data_model_manager[t]

    def at(pointer: Value, index: Value) -> Value:
        return b.gep(pointer, [b.zext(index, INT64)])

    thread = register(b, "tid.x")
    lane = b.and_(thread, INT32(LANES - 1))
    with b.if_then(b.icmp_unsigned("==", lane, INT32(0))):
        for x, p in zip(xs, scratch, strict=True):
            b.store(data.as_data(b, x), at(p, b.lshr(thread, INT32(BITS))))
    meet(b)
    place = b.and_(lane, b.sub(warps, INT32(1)))
    return [data.from_data(b, b.load(at(p, place))) for p in scratch]


def _reduction(name: str, operation: Operation) -> Any:
    def reduce(typingctx: Any, x: Any) -> tuple[Any, Any]:
        t = same(name, x)
        if operation.integers and is_float(t):
            raise TypingError(f"{name}: the argument must be no float, not {t}")

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            def combine(x: Values, y: Values) -> Values:
                return [operation.emit(b, t, x[0], y[0])]

            [result] = _block(context, b, t, [args[0]], combine)
            if operation.chooses and is_float(t):
                result = exchange(b, result, INT32(0), "idx")
            return result

        return t(t), code

    reduce.__name__ = name
    return intrinsic(reduce)


def _logical(how: str) -> Any:
    @intrinsic
    def reduce(typingctx: Any, x: Any) -> tuple[Any, Any]:
        t = same(f"reduce_logical_{how}", x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return ask(b, how, b.not_(logical_not.plain(b, t, args[0])))

        return types.boolean(t), code

    return reduce


reduce_add = _reduction("reduce_add", ADD)
reduce_multiply = _reduction("reduce_multiply", MULTIPLY)
reduce_maximum = _reduction("reduce_maximum", MAXIMUM)
reduce_minimum = _reduction("reduce_minimum", MINIMUM)
reduce_fmax = _reduction("reduce_fmax", FMAX)
reduce_fmin = _reduction("reduce_fmin", FMIN)
reduce_bitwise_and = _reduction("reduce_bitwise_and", BITWISE_AND)
reduce_bitwise_or = _reduction("reduce_bitwise_or", BITWISE_OR)
reduce_bitwise_xor = _reduction("reduce_bitwise_xor", BITWISE_XOR)
reduce_logical_or, reduce_logical_and = _logical("or"), _logical("and")


@intrinsic
def reduce_pair(typingctx: Any, x: Any, loss: Any) -> tuple[Any, Any]:
    """Return the sum of all `x`, and that of all losses and of what the sum loses."""
    t = same("reduce_pair", x, loss)
    if not is_float(t):
        raise TypingError(f"reduce_pair: the arguments must be floats, not {t}")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        def combine(x: Values, y: Values) -> Values:
            more = lost.plain(b, t, x[0], y[0])
            return [b.fadd(x[0], y[0]), b.fadd(b.fadd(x[1], y[1]), more)]

        pair = _block(context, b, t, list(args), combine)
        return context.make_tuple(b, signature.return_type, pair)

    return types.UniTuple(t, 2)(t, t), code
