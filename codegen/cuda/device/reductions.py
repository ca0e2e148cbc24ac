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

from ....runtime.instructions import FUNCTIONS
from ....runtime.intrinsics import Builder, Value, is_float, same
from .grid import INT32, INT64, LANES, ask, exchange, meet, register
from .memory import array

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
Values = list[Value]
Combine = Callable[[Values, Values], Values]
DISTANCES = (16, 8, 4, 2, 1)
BITS = LANES.bit_length() - 1


def _block(context: Any, b: Builder, t: Any, xs: Values, combine: Combine) -> Values:
    """Emit the reduction of a list of values of type `t`; see Note [tree]."""
    for n in DISTANCES:
        xs = combine(xs, [exchange(b, x, INT32(n)) for x in xs])
    scratch = [array(context, b, t, f"reduced{k}", LANES) for k in range(len(xs))]
    data = context.data_model_manager[t]

    def at(pointer: Value, index: Value) -> Value:
        return b.gep(pointer, [b.zext(index, INT64)])

    thread, warps = register(b, "tid.x"), b.lshr(register(b, "ntid.x"), INT32(BITS))
    lane = b.and_(thread, INT32(LANES - 1))
    meet(b)  # the results of the reduction before have been read
    with b.if_then(b.icmp_unsigned("==", lane, INT32(0))):
        for x, p in zip(xs, scratch, strict=True):
            b.store(data.as_data(b, x), at(p, b.lshr(thread, INT32(BITS))))
    meet(b)
    place = b.and_(lane, b.sub(warps, INT32(1)))
    xs = [data.from_data(b, b.load(at(p, place))) for p in scratch]
    for n in DISTANCES:
        new = combine(xs, [exchange(b, x, INT32(n)) for x in xs])
        apart = b.icmp_unsigned("<", INT32(n), warps)
        xs = [b.select(apart, y, x) for x, y in zip(xs, new, strict=True)]
    return xs


def _reduction(name: str, combine: Callable[[Builder, Any], Any], ties: bool) -> Any:
    """Make a reduction; `ties` says that a result may depend on the operands' order."""

    def reduce(typingctx: Any, x: Any) -> tuple[Any, Any]:
        t = same(name, x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            emit = combine(b, t)
            [result] = _block(
                context, b, t, list(args), lambda x, y: [emit(x[0], y[0])]
            )
            if ties and is_float(t):
                result = exchange(b, result, INT32(0), "idx")
            return result

        return t(t), code

    reduce.__name__ = name
    return intrinsic(reduce)


def _operator(floats: str, integers: str, bools: str) -> Callable[[Builder, Any], Any]:
    """Return the builder's method for a type."""

    def method(b: Builder, t: Any) -> Any:
        if t == types.boolean:
            return getattr(b, bools)
        return getattr(b, floats if is_float(t) else integers)

    return method


def _chosen(name: str) -> Callable[[Builder, Any], Any]:
    def emitter(b: Builder, t: Any) -> Any:
        return lambda x, y: FUNCTIONS[name].emit(None, b, t, x, y)

    return emitter


def _bitwise(name: str, method: str) -> Any:
    def emitter(b: Builder, t: Any) -> Any:
        if is_float(t):
            raise TypingError(f"{name}: the argument must be no float")
        return getattr(b, method)

    return _reduction(name, emitter, ties=False)


def _logical(how: str) -> Any:
    @intrinsic
    def reduce(typingctx: Any, x: Any) -> tuple[Any, Any]:
        t = same(f"reduce_logical_{how}", x)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            none = FUNCTIONS["logical_not"].emit(None, b, t, *args)
            return ask(b, how, b.not_(none))

        return types.boolean(t), code

    return reduce


def _of_two(name: str, ties: bool) -> Any:
    return _reduction(f"reduce_{name}", _chosen(name), ties)


reduce_add = _reduction("reduce_add", _operator("fadd", "add", "or_"), ties=False)
reduce_multiply = _reduction(
    "reduce_multiply", _operator("fmul", "mul", "and_"), ties=False
)
reduce_maximum, reduce_minimum = _of_two("maximum", True), _of_two("minimum", True)
reduce_fmax, reduce_fmin = _of_two("fmax", True), _of_two("fmin", True)
reduce_logical_or, reduce_logical_and = _logical("or"), _logical("and")
reduce_bitwise_and = _bitwise("reduce_bitwise_and", "and_")
reduce_bitwise_or = _bitwise("reduce_bitwise_or", "or_")
reduce_bitwise_xor = _bitwise("reduce_bitwise_xor", "xor")


@intrinsic
def reduce_pair(typingctx: Any, x: Any, loss: Any) -> tuple[Any, Any]:
    """Return the sum of all `x`, and that of all losses and of what the sum loses."""
    t = same("reduce_pair", x, loss)
    if not is_float(t):
        raise TypingError(f"reduce_pair: the arguments must be floats, not {t}")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        def combine(x: Values, y: Values) -> Values:
            lost = FUNCTIONS["lost"].emit(None, b, t, x[0], y[0])
            return [b.fadd(x[0], y[0]), b.fadd(b.fadd(x[1], y[1]), lost)]

        pair = _block(context, b, t, list(args), combine)
        return context.make_tuple(b, signature.return_type, pair)

    return types.UniTuple(t, 2)(t, t), code
