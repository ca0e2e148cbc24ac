"""The operations of reductions and of atomic updates, with NumPy's meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba

from ....runtime import instructions
from ....runtime.intrinsics import Builder, Function, Value, is_float

types: Any = numba.types


@dataclass(frozen=True, slots=True)
class Operation:
    """Describe an associative operation of two values of one type.

    Its result has the same bits with the operands exchanged; `chooses` says that it is
    one of the two, and of zeros of different sign either.
    """

    emit: Callable[..., Value]  # of builder, type and two values
    atomic: str = ""  # the atomic update of integers that LLVM has for it
    chooses: bool = False
    integers: bool = False  # it is not defined for floats


def _arithmetic(floats: str, integers: str, bools: str) -> Callable[..., Value]:
    def emit(b: Builder, t: Any, x: Value, y: Value) -> Value:
        if t == types.boolean:
            return getattr(b, bools)(x, y)
        return getattr(b, floats if is_float(t) else integers)(x, y)

    return emit


def _bitwise(method: str) -> Operation:
    return Operation(lambda b, t, x, y: getattr(b, method)(x, y), integers=True)


def _choice(f: Function, atomic: str = "") -> Operation:
    return Operation(f.plain, atomic, chooses=True)


ADD = Operation(_arithmetic("fadd", "add", "or_"), "add")
MULTIPLY = Operation(_arithmetic("fmul", "mul", "and_"))
MAXIMUM = _choice(instructions.maximum, "max")
MINIMUM = _choice(instructions.minimum, "min")
FMAX, FMIN = _choice(instructions.fmax), _choice(instructions.fmin)
BITWISE_AND, BITWISE_OR = _bitwise("and_"), _bitwise("or_")
BITWISE_XOR = _bitwise("xor")
