"""What a trace takes from outside: arguments, captured arrays, constants.

A captured value is a parameter of the program from its first use on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.dims import Expr
from ..ir.errors import UnsupportedError
from ..ir.func import Operand, Value
from ..ir.op import OPS
from ..ir.ops.create import constant_attrs
from ..ir.types import DType, Type, type_of_array
from ..runtime.devices import ARRAYS, DeviceArray
from .devices import host_of, outline_of
from .location import user_location
from .tensor import Tensor

if TYPE_CHECKING:
    from .trace import Trace

LARGE_CONSTANT = 4096  # elements; larger arrays made while tracing become parameters


class Inputs:
    """The parameters of a trace, and what they stand for in this call."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.captured: dict[int, tuple[Any, Value]] = {}
        self.pending: dict[Value, Any] = {}  # captured, not used yet
        self.origins: dict[Value, Any] = {}  # what captured parameters stand for
        # Parameters in this call: numbers, and arrays of a device.
        self.known: dict[Value, Any] = {}
        self.stands_for: dict[Value, Operand] = {}  # parameters: values of the parent
        self.constants: dict[Any, Tensor] = {}
        self.made: set[int] = set()  # ids of arrays that the trace itself has made
        self._keep: list[Any] = []  # captured objects, whose ids are keys

    def argument(self, x: Any, hint: str) -> Any:
        """Add a parameter for a leaf of the arguments; ints become symbols."""
        if isinstance(x, Tensor):
            if x.is_traced:
                return self.trace.parameter(x.type, hint)
            out = self.argument(x._data, hint)
            if isinstance(out, Tensor):
                self.trace.leaves.enter(out._value, x)
            return out
        if isinstance(x, int) and not isinstance(x, bool):
            return self.trace.integer(self.trace.assumptions.symbol(x, [hint]))
        if isinstance(x, ARRAYS):
            sizes = tuple(self.trace.assumptions.size(n) for n in x.shape)
            t = self.trace.parameter(Type(x.dtype, sizes), hint, x)
            if isinstance(x, DeviceArray):
                self.known[t._value] = x
            return t
        t = self.trace.parameter(type_of_array(x), hint)
        self.known[t._value] = x
        return t

    def capture(self, x: Any, hint: str = "c", *, shared: bool = True) -> Tensor:
        """Return an outside array, Tensor or number as a parameter.

        The parameter is added when it is first used. Without `shared` the same object
        may become several parameters: equal floats of different places are different.
        """
        known = self.captured.get(id(x)) if shared else None
        if known is not None:
            return self.trace.tensor(known[1])
        if isinstance(x, Tensor) and x.is_traced:
            type = x.type
        else:
            data = x._data if isinstance(x, Tensor) else x
            type = type_of_array(data)
            if isinstance(data, ARRAYS):
                sizes = tuple(self.trace.assumptions.size(n) for n in data.shape)
                type = Type(data.dtype, sizes)
        v = self.trace.builder.value(type, hint)
        self.pending[v] = x
        self._keep.append(x)
        if isinstance(x, Tensor) and not x.is_traced:
            self.trace.leaves.enter(v, x)
        if shared:
            self.captured[id(x)] = (x, v)
        return self.trace.tensor(v)

    def use(self, v: Value) -> None:
        """Add a captured value to the parameters."""
        x = self.pending.pop(v)
        self.trace.params.append(v)
        self.origins[v] = x
        data = x._data if isinstance(x, Tensor) else x
        check_plain(data, "captured")
        if self.trace.parent is None and id(x) not in self.made:
            self.trace.placement.enter(data, f"the variable {v.name}")
            self.trace.placement.check()
        if isinstance(data, ARRAYS):
            self.trace.layouts.known[v] = outline_of(data)
        if data is not None and not isinstance(data, np.ndarray):
            self.known[v] = data

    def outside(self, x: Tensor) -> Tensor:
        if x._trace is not None:
            x._trace.check_readable()
        if x._trace is not None and not self._is_inside(x._trace):
            raise UnsupportedError(
                "a value of a finished trace is used",
                location=user_location(),
                rule="Values of a compiled function live only while it is traced.",
                hint="return the value from the function instead of storing it",
            )
        if isinstance(x._value, int | float | complex | Expr) and x._trace is not None:
            return self.trace.tensor(x._value)
        known = self.captured.get(id(x))
        if known is not None:
            return self.trace.tensor(known[1])
        if x._trace is None and not isinstance(x._data, np.ndarray):
            if not x.requires_grad:  # a number that our own functions wrapped
                return self.trace.tensor(self.trace.operand(x._data))
        base = x._base if x._trace is None else None
        if base is not None:
            return self._view_of(base, x)
        return self.capture(x)

    def _is_inside(self, other: Any) -> bool:
        trace = self.trace.parent
        while trace is not None and trace is not other:
            trace = trace.parent
        return trace is not None

    def _view_of(self, base: Tensor, x: Tensor) -> Tensor:
        """Return an eager view of a captured base as a view of its parameter."""
        whole, part = base._data, x._data
        if not whole.flags.c_contiguous:
            raise UnsupportedError(
                "a view of a captured array that is not C-contiguous",
                location=user_location(),
                hint="capture the base, or pass the view as an argument",
            )
        item = whole.itemsize
        offset = (
            part.__array_interface__["data"][0] - (whole.__array_interface__["data"][0])
        )
        out = self.trace.apply(
            OPS["as_strided"],
            (self.capture(base),),
            {
                "shape": part.shape,
                "strides": tuple(s // item for s in part.strides),
                "offset": offset // item,
            },
        )
        self.captured[id(x)] = (x, out._value)
        return out  # type: ignore[no-any-return]

    def scalar(self, x: np.generic) -> Tensor:
        key = (x.dtype, x.tobytes())
        if key not in self.constants:
            array = self.trace.apply(OPS["constant"], (), constant_attrs(np.asarray(x)))
            self.constants[key] = self.trace.apply(OPS["item"], (array,), {})
        return self.constants[key]

    def constant(self, x: np.ndarray[Any, Any]) -> Tensor:
        """Write an array that the program makes itself into the program."""
        if x.size > LARGE_CONSTANT:
            x.flags.writeable = False
            self.made.add(id(x))
            return self.capture(x)
        return self.trace.apply(OPS["constant"], (), constant_attrs(x))  # type: ignore[no-any-return]

    def array(self, x: np.ndarray[Any, Any] | DeviceArray) -> Tensor:
        known = self.captured.get(id(x))
        if known is not None:
            return self.trace.tensor(self.trace.operand(self.trace.tensor(known[1])))
        if self.trace.parent is not None:
            outer = self.trace.parent.tensor(self.trace.parent.operand(x))
            return self.trace.tensor(self.trace.operand(outer))
        if (
            isinstance(x, np.ndarray) and not x.ndim
        ):  # what NumPy makes of its scalars in comparisons
            one: Any = x[()]
            return self.scalar(one)
        raise UnsupportedError(
            f"an array {type_of_array(x)} from outside the function that was not found "
            "in its variables",
            location=user_location(),
            rule="Arrays that a compiled function reads are inputs: arguments, or "
            "variables and attributes that it names.",
            hint="pass the array as an argument",
        )

    def in_call(self, v: Value) -> Any:
        """Return what a parameter stands for in this call: an array or a number."""
        if v in self.pending or self.trace.parent is not None:
            x = self.stands_for.get(v, self.origins.get(v, self.pending.get(v)))
            if self.trace.parent is not None:
                outer = x if isinstance(x, Value) else self.trace.parent.operand(x)
                return self.trace.parent.prefix.value(outer)
            return host_of(x._data if isinstance(x, Tensor) else x)
        return host_of(self.known.get(v, self.trace.layouts.known.get(v)))

    def left_over(self, v: Value) -> UnsupportedError:
        return UnsupportedError(
            f"a value that was computed in a checkpoint, for a derivative, or that a "
            f"leaf was made of, {self.trace.operand_type(v)}, is used after it",
            location=user_location(),
            rule="What a checkpoint computes leaves it as its result, or in variables "
            "and containers that its function names; gradients leave backward as its "
            "result; the array of a leaf that was written is that leaf.",
            hint="return the value from the function, or use the leaf",
        )


PLAIN = frozenset((np.ndarray, np.memmap))


def check_fits(x: Operand, dtype: DType) -> None:
    """Raise as NumPy does where a Python int does not fit an integer dtype."""
    if type(x) is int and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= x <= limits.max:
            raise OverflowError(f"Python integer {x} out of bounds for {dtype.name}")


def check_plain(x: Any, role: str) -> None:
    """Refuse subclasses of ndarray, whose operators mean something else."""
    if isinstance(x, np.ndarray) and type(x) not in PLAIN:
        raise UnsupportedError(
            f"a {type(x).__name__} {role}",
            location=user_location(),
            rule="Subclasses of ndarray give operators another meaning.",
            hint="use np.asarray(x)",
        )
