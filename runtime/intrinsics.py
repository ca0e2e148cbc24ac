"""Intrinsics from descriptions that are the same for every target of Numba.

A `Function` says what a scalar function is. `define` makes an intrinsic of it, for a
target that brings its decorator and the call of its elementary functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from numba.core.errors import TypingError

types: Any = numba.types
Builder = Any
Value = Any
Call = Callable[..., Value]  # of builder, bits of the floats, C name and values


@dataclass(frozen=True, slots=True)
class Function:
    """Describe a function of `count` arguments; all but `conditions` have one type."""

    count: int
    emit: Callable[..., Value]  # of a `Call`, builder, type and values
    boolean: bool = False  # the result is a bool; else it has the arguments' type
    floats: bool = False  # it is not defined for others
    conditions: int = 0  # arguments that are bools, before the others

    def plain(self, b: Builder, t: Any, *values: Value) -> Value:
        """Emit a function that calls no elementary one."""
        return self.emit(None, b, t, *values)


def is_float(t: Any) -> bool:
    return isinstance(t, types.Float)


def is_signed(t: Any) -> bool:
    return isinstance(t, types.Integer) and bool(t.signed)


def same(name: str, *args: Any) -> Any:
    """Return the one type of the arguments, literals taken as their plain type."""
    plain = {types.unliteral(a) for a in args}
    if len(plain) != 1:
        shown = ", ".join(map(str, args))
        raise TypingError(f"{name}: the arguments must have one type, not {shown}")
    t = plain.pop()
    if not isinstance(t, types.Integer | types.Float | types.Boolean):
        raise TypingError(f"{name}: not defined for {t}")
    return t


def _result(name: str, f: Function, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return the type of a function's values, and those of all its arguments."""
    t = same(name, *args[f.conditions :])
    if f.floats and not is_float(t):
        raise TypingError(f"{name}: the arguments must be floats, not {t}")
    for c in args[: f.conditions]:
        if types.unliteral(c) != types.boolean:
            raise TypingError(f"{name}: the condition must be a bool, not {c}")
    values = f.count - f.conditions
    return t, [*[types.boolean] * f.conditions, *[t] * values]


def define(intrinsic: Any, name: str, f: Function, call: Any) -> Any:
    """Make the intrinsic of a target.

    `intrinsic` is the target's decorator; `call(context, builder, bits, name, *values)`
    calls its elementary functions.
    """

    def typed(*args: Any) -> tuple[Any, Any]:
        t, all_types = _result(name, f, args)

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            def bound(*what: Any) -> Value:
                return call(context, *what)

            return f.emit(bound, builder, t, *values)

        return (types.boolean if f.boolean else t)(*all_types), code

    def one(typingctx: Any, x: Any) -> tuple[Any, Any]:
        return typed(x)

    def two(typingctx: Any, x: Any, y: Any) -> tuple[Any, Any]:
        return typed(x, y)

    def three(typingctx: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        return typed(x, y, z)

    function = (one, two, three)[f.count - 1]
    function.__name__ = name
    return intrinsic(function)


def elementary(count: int, c_name: str) -> Function:
    """Return the function that is a call of the target's."""

    def emit(call: Call, b: Builder, t: Any, *values: Value) -> Value:
        return call(b, t.bitwidth, c_name, *values)

    return Function(count, emit, floats=True)
