"""Operators of Tensors, and the methods that apply an op in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import ops  # noqa: F401 - defines the ops
from ..ir.op import OPS, Op
from ..ir.types import BOOL
from ..runtime.devices import ARRAYS
from . import dispatch
from .fields import Fields, part
from .symbols import SymInt

NUMBERS = frozenset((int, float))  # what is most often an operand beside a Tensor
SEQUENCES = (list, tuple, str)


def _operate(op: Op, x: Any, y: Any, other: Any) -> Any:
    """Apply an operator to a Tensor and whatever else, which is `x` or `y`."""
    operand = _operand(other)
    if operand is NotImplemented:
        return NotImplemented
    if operand is not other:
        x, y = (operand, y) if x is other else (x, operand)
    return dispatch.apply(op, (x, y))


def _multiply(op: Op, x: Any, y: Any, other: Any) -> Any:
    """Multiply; integer scalars repeat what is a sequence."""
    if isinstance(other, SEQUENCES):
        self = y if x is other else x
        type = self.type
        if type.scalar and type.dtype.kind in "iu":
            return other * self.__index__()
    return _operate(op, x, y, other)


def _binary(
    name: str, operate: Callable[..., Any] = _operate
) -> tuple[Callable[..., Any], ...]:
    """Return the operator, reflected operator and in-place operator of an op."""

    op = OPS[name]

    def forward(self: Fields, other: Any) -> Any:
        if type(other) in NUMBERS or type(other) is type(self):
            return dispatch.apply(op, (self, other))
        return operate(op, self, other, other)

    def reflected(self: Fields, other: Any) -> Any:
        if type(other) in NUMBERS:
            return dispatch.apply(op, (other, self))
        return operate(op, other, self, other)

    def inplace(self: Fields, other: Any) -> Any:
        if self.type.scalar:
            return operate(op, self, other, other)
        operand = _operand(other)
        if operand is NotImplemented:
            return NotImplemented
        dispatch.update(op, self, operand)
        return self

    return forward, reflected, inplace


def _operand(x: Any) -> Any:
    """Return `x` as an operand of an operator, or NotImplemented."""
    if isinstance(x, OPERANDS):
        return x
    if isinstance(x, list | tuple):
        return part("functions.core").asarray(x)
    return NotImplemented


def _unary(name: str) -> Callable[[Any], Any]:
    op = OPS[name]

    def method(self: Fields) -> Any:
        return dispatch.apply(op, (self,))

    return method


class Arithmetic(Fields):
    """The operators of Python, with NumPy's meaning."""

    __slots__ = ()

    # Operators --------------------------------------------------------------------

    __add__, __radd__, __iadd__ = _binary("add")
    __sub__, __rsub__, __isub__ = _binary("subtract")
    __mul__, __rmul__, __imul__ = _binary("multiply", _multiply)
    __truediv__, __rtruediv__, __itruediv__ = _binary("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder")
    _power, __rpow__, __ipow__ = _binary("power")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("left_shift")
    __rshift__, __rrshift__, __irshift__ = _binary("right_shift")
    __lt__, _, _ = _binary("less")
    __le__, _, _ = _binary("less_equal")
    __gt__, _, _ = _binary("greater")
    __ge__, _, _ = _binary("greater_equal")
    __eq__, _, _ = _binary("equal")
    __ne__, _, _ = _binary("not_equal")
    __neg__ = _unary("negative")
    __pos__ = _unary("positive")
    __abs__ = _unary("absolute")
    __invert__ = _unary("invert")

    def __pow__(self, other: Any) -> Any:
        """Return the power; that of bools and 2 is their square, int8, in NumPy."""
        if type(other) is int and other == 2 and self.type.dtype == BOOL:
            if not self.type.scalar:
                return dispatch.apply(OPS["square"], (self,))
        return self._power(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        dispatch.update(OPS[name], self, *others)
        return self

    method.__name__ = name
    method.__doc__ = f"Set this to `{name}` of itself, in place; returns self."
    return method


_IN_PLACE = {
    "abs_": "absolute",
    "add_": "add",
    "ceil_": "ceil",
    "cos_": "cos",
    "cosh_": "cosh",
    "div_": "divide",
    "exp_": "exp",
    "expm1_": "expm1",
    "floor_": "floor",
    "log1p_": "log1p",
    "log_": "log",
    "maximum_": "maximum",
    "minimum_": "minimum",
    "mul_": "multiply",
    "neg_": "negative",
    "pow_": "power",
    "reciprocal_": "reciprocal",
    "remainder_": "remainder",
    "round_": "rint",
    "sin_": "sin",
    "sinh_": "sinh",
    "sqrt_": "sqrt",
    "square_": "square",
    "sub_": "subtract",
    "tan_": "tan",
    "tanh_": "tanh",
    "trunc_": "trunc",
}
for _method, _op in _IN_PLACE.items():
    setattr(Arithmetic, _method, _in_place(_op))


OPERANDS = (Fields, int, float, complex, *ARRAYS, np.generic, SymInt)
