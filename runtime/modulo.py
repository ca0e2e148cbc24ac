"""The remainder of a division of floats, for vectors.

Note [fmod]
x - trunc(x / y) * y, in one fused operation, is exact where the quotient has no more
digits than a mantissa: it is a multiple of the last digits of both, and smaller than y.
The quotient may have been rounded up to the next whole number; then y is added back.
Elements with larger quotients, and infinite or missing numbers, take the C library's
`fmod`, one by one. Both are exact, so an element has the same bits wherever it stands.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir


def _intrinsic(b: Any, name: str, *args: Any) -> Any:
    t = args[0].type
    bits = 64 if t.element == ir.DoubleType() else 32
    symbol = f"llvm.{name}.v{t.count}f{bits}"
    function = b.module.globals.get(symbol)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(t, [t] * len(args)), symbol)
    return b.call(function, args)


def define_scalar(function: Any) -> None:
    """Write fmod of numbers, as LLVM calls it: faster than by its name in glibc."""
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block())
    b.ret(b.frem(*function.args))


def define(module: Any, symbol: str, scalar: Any, element: Any, lanes: int) -> Any:
    """Return `symbol`, fmod of vectors; `scalar` is that of numbers."""
    t = ir.VectorType(element, lanes)
    function = ir.Function(module, ir.FunctionType(t, [t, t]), symbol)
    function.linkage = "internal"
    x, y = function.args
    b = ir.IRBuilder(function.append_basic_block("all"))

    def full(value: float) -> Any:
        return ir.Constant(t, [value] * lanes)

    size = _intrinsic(b, "fabs", y)
    quotient = _intrinsic(b, "trunc", b.fdiv(x, y))
    rest = _intrinsic(b, "fma", b.fneg(quotient), y, x)
    back = b.fadd(rest, _intrinsic(b, "copysign", size, x))
    turned = b.fcmp_ordered(
        "<", b.fmul(rest, _intrinsic(b, "copysign", full(1.0), x)), full(0.0)
    )
    rest = _intrinsic(b, "copysign", b.select(turned, back, rest), x)
    most = 2.0 ** (53 if element == ir.DoubleType() else 24)
    small = b.fcmp_ordered("<", _intrinsic(b, "fabs", quotient), full(most))
    # Infinity times 0 has made NaN of what is x.
    known = b.and_(small, b.fcmp_ordered("<", size, full(float("inf"))))
    word = ir.IntType(lanes)
    done, slow = (
        function.append_basic_block("done"),
        function.append_basic_block("slow"),
    )
    entry = b.block
    b.cbranch(b.icmp_unsigned("==", b.bitcast(known, word), word(-1)), done, slow)

    b.position_at_end(slow)
    index = ir.IntType(32)
    exact = rest
    for k in range(lanes):
        here = index(k)
        one = b.call(scalar, [b.extract_element(x, here), b.extract_element(y, here)])
        exact = b.insert_element(exact, one, here)
    mixed = b.select(known, rest, exact)
    b.branch(done)

    b.position_at_end(done)
    result = b.phi(t)
    result.add_incoming(rest, entry)
    result.add_incoming(mixed, slow)
    b.ret(result)
    return function
