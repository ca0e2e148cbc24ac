"""Approximations of float32 functions, for kernels that are compiled with `fastmath`.

Each is an instruction or two of a GPU, and takes numbers below 2**-126 for zeros;
their errors are in docs/cuda.md. NaN and infinities are what they are for the exact
functions: so there is none of `pow`, since a negative number has no logarithm, nor of
`expm1` and `log1p`, which are there for what an approximation loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from ....runtime.intrinsics import Builder, Value
from .grid import nvvm

F32 = ir.FloatType()
Emit = Callable[[Builder, Value], Value]


def _unit(name: str, before: float = 1.0, after: float = 1.0) -> Emit:
    """Return an instruction of the special function unit, of `before * x`."""

    def emit(b: Builder, x: Value) -> Value:
        x = x if before == 1 else b.fmul(x, F32(before))
        y = nvvm(b, f"{name}.approx.ftz.f", F32, x)
        return y if after == 1 else b.fmul(y, F32(after))

    return emit


def tan(b: Builder, x: Value) -> Value:
    return b.fdiv(sin(b, x), cos(b, x))


def tanh(b: Builder, x: Value) -> Value:
    kind = ir.FunctionType(F32, [F32])
    return b.call(ir.InlineAsm(kind, "tanh.approx.f32 $0, $1;", "=f,f"), [x])


sin, cos = _unit("sin"), _unit("cos")
exp2, exp = _unit("ex2"), _unit("ex2", before=1 / math.log(2))
log2, log = _unit("lg2"), _unit("lg2", after=math.log(2))
log10 = _unit("lg2", after=math.log10(2))

NAMES = "cos exp exp2 log log2 log10 sin tan tanh".split()  # of the C library
FUNCTIONS: dict[str, Emit] = {name: globals()[name] for name in NAMES}
