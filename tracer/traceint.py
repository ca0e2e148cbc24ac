"""The int of a trace: arithmetic and comparisons on dims.

What the facts leave open is decided by `Assumptions`; what no dim can express becomes
an op on computed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import IndexRangeError
from ..ir.op import OPS
from . import dispatch
from .assume import Test
from .location import user_location
from .symbols import SymInt


class TraceInt(SymInt):
    """An integer of a trace; see `SymInt`."""

    __slots__ = ("dim", "trace")

    def __init__(self, dim: Dim, trace: Any) -> None:
        self.dim = dim
        self.trace = trace

    def __repr__(self) -> str:
        return str(self.trace.assumptions.resolve(self.dim))

    def __index__(self) -> int:
        return int(self.trace.assumptions.specialise(self.dim))

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __bool__(self) -> bool:
        return bool(self != 0)

    def _as_number(self, other: Any, compute: Callable[[Any], Any]) -> Any:
        """Compute with a number that is no int; others have their own operators."""
        if isinstance(other, float | complex):
            return compute(self._number())
        return NotImplemented

    def _compute(self, d: Dim) -> Any:
        return self.trace.integer(d)

    def __add__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: k + other)
        return self._compute(self.dim + d)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: k - other)
        return self._compute(self.dim - d)

    def __rsub__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: other - k)
        return self._compute(d - self.dim)

    def __mul__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: k * other)
        return self._compute(self.dim * d)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._compute(-self.dim)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        known = self.trace.assumptions
        return self._compute(known.maximum(self.dim, -self.dim))

    def __floordiv__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: k // other)
        return self._divide(self.dim, d)

    def __rfloordiv__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: other // k)
        return self._divide(d, self.dim)

    def _divide(self, a: Dim, b: Dim) -> Any:
        if self.trace.assumptions.same(b, 0):
            raise ZeroDivisionError("integer division or modulo by zero")
        return self._compute(dims.floordiv(a, b))

    def __mod__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: k % other)
        return self - self._divide(self.dim, d) * other

    def __rmod__(self, other: Any) -> Any:
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: other % k)
        return other - self._divide(d, self.dim) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 0 <= other <= 4:
            out: Any = 1
            for _ in range(other):
                out = self * out
            return out
        return self.trace.number(self.dim) ** other

    def __truediv__(self, other: Any) -> Any:
        d = dim_of(other)
        return self.trace.number(self.dim) / (other if d is None else d)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.trace.number(self.dim)

    def __rpow__(self, other: Any) -> Any:
        return other ** self.trace.number(self.dim)

    def __float__(self) -> float:
        return float(self.__index__())

    def __eq__(self, other: object) -> Any:
        d = dim_of(other)
        if d is None:
            return NotImplemented
        known = self.trace.assumptions
        gap = known.resolve(self.dim - d)
        if isinstance(gap, int):
            return gap == 0
        if known.here().differ(self.dim, d):
            return False
        if not known.open(gap):
            return bool(known.equals(self.dim, d))
        apart = tuple(
            dims.add(g, -1) for g in (gap, dims.mul(gap, -1)) if known.proves(g)
        )
        return _test("equal", self, other, Test((gap, dims.mul(gap, -1)), apart))

    def __ne__(self, other: object) -> Any:
        out = self.__eq__(other)
        if out is NotImplemented or isinstance(out, bool):
            return out if out is NotImplemented else not out
        return negated(out)

    def _compare(self, other: Any, op: str, method: str, sign: int, offset: int) -> Any:
        """Tell whether sign * (self - other) >= offset; a traced bool if it is open."""
        d = dim_of(other)
        if d is None:
            return self._as_number(other, lambda k: getattr(k, method)(other))
        gap = dims.add(dims.mul(self.dim - d, sign), -offset)
        answer = self.trace.assumptions.decide(gap)
        if answer is not None:
            return answer
        return _test(
            op,
            self,
            other,
            Test((gap,), (dims.add(dims.mul(gap, -1), -1),), exact=True),
        )

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "greater_equal", "__ge__", 1, 0)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "less", "__lt__", -1, 1)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "less_equal", "__le__", -1, 0)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "greater", "__gt__", 1, 1)

    # Integers that are no dims: computed by ops -------------------------------------

    def _number(self) -> Any:
        return self.trace.number(self.dim)

    def __and__(self, other: Any) -> Any:
        return dispatch.apply(OPS["bitwise_and"], (self._number(), other))

    def __or__(self, other: Any) -> Any:
        return dispatch.apply(OPS["bitwise_or"], (self._number(), other))

    def __xor__(self, other: Any) -> Any:
        return dispatch.apply(OPS["bitwise_xor"], (self._number(), other))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Any:
        return self._compute(dims.add(dims.mul(self.dim, -1), -1))

    def __lshift__(self, other: Any) -> Any:
        if _is_shift(other):
            return self * 2**other
        return dispatch.apply(OPS["left_shift"], (self._number(), other))

    def __rshift__(self, other: Any) -> Any:
        if _is_shift(other):
            return self // 2**other
        return dispatch.apply(OPS["right_shift"], (self._number(), other))

    def __rlshift__(self, other: Any) -> Any:
        return dispatch.apply(OPS["left_shift"], (other, self._number()))

    def __rrshift__(self, other: Any) -> Any:
        return dispatch.apply(OPS["right_shift"], (other, self._number()))

    @property
    def is_open(self) -> bool:
        return bool(self.trace.assumptions.open(self.dim))

    def like(self, k: int) -> TraceInt:
        return TraceInt(k, self.trace)

    # What slices and indices ask ------------------------------------------------------

    def as_size(self) -> Any:
        """Return self; one that may be negative is checked where the program runs."""
        if not self.is_open or self.trace.assumptions.decide(self.dim):
            return self
        return self.trace.integers.size(self.dim)

    def as_index(self, size: Any) -> Any:
        """Return a literal index where it is in range, else a value that is checked."""
        known = self.trace.assumptions
        n = dim_of(size)
        assert n is not None
        inside = known.decide(self.dim)
        if inside is None:
            return self.trace.integers.computed(self.dim)
        at = self.dim if inside else dims.add(self.dim, n)
        if not inside and known.decide(at) is None:
            return self.trace.integers.computed(self.dim)
        if known.decide(dims.add(dims.add(n, dims.mul(at, -1)), -1)):
            if known.decide(at):
                return self._compute(at)
        elif not known.open(self.dim, n):
            raise IndexRangeError(
                f"index {known.value(self.dim)} is out of bounds for an axis with "
                f"size {known.value(n)}",
                location=user_location(),
            )
        return self.trace.integers.computed(self.dim)

    def from_end(self, size: Any) -> Any:
        known, n = self.trace.assumptions, dim_of(size)
        assert n is not None
        inside = known.decide(self.dim)
        if inside is not None:
            return self if inside else self._compute(self.dim + n)
        negative = dims.minimum(dims.maximum(dims.mul(self.dim, -1), 0), 1)
        return self._compute(dims.add(self.dim, dims.mul(n, negative)))

    def clamped(self, low: Any, high: Any) -> Any:
        known = self.trace.assumptions
        a, b = dim_of(low), dim_of(high)
        out = self.dim if a is None else known.maximum(self.dim, a)
        return self._compute(out if b is None else known.minimum(out, b))

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        """Take part in NumPy arithmetic as the Python number that it is."""
        numbers = [
            x.trace.number(x.dim) if isinstance(x, TraceInt) else x for x in inputs
        ]
        return getattr(ufunc, method)(*numbers, **kwargs)


def _is_shift(x: Any) -> bool:
    """Tell whether a shift by `x` is a product or quotient that dims have room for."""
    return isinstance(x, int) and 0 <= x < 62


def _test(op: str, x: TraceInt, y: Any, test: Test) -> Any:
    """Append a comparison, and note what it says about dims."""
    out = dispatch.apply(OPS[op], (x, y))
    x.trace.assumptions.tests[out._value] = test
    return out


def negated(condition: Any) -> Any:
    """Return the opposite of a traced bool, with what it says about dims."""
    out = dispatch.apply(OPS["logical_not"], (condition,))
    tests = condition._trace.assumptions.tests
    test = tests.get(condition._value)
    if test is not None:
        tests[out._value] = Test(test.false, test.true)
    return out


def dim_of(x: object) -> Dim | None:
    """Return the dim that an int or a `TraceInt` stands for; None for others."""
    if isinstance(x, TraceInt):
        return x.dim
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, int):
        return x
    if hasattr(x, "__index__") and type(x).__module__ == "numpy":
        return int(x)
    return None
