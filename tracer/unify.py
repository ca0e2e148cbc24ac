"""One value for two ways that a program can take: types joined, leaf by leaf."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import dims
from ..ir.errors import ShapeError
from ..ir.func import Operand, Value
from ..ir.op import OPS
from ..ir.types import BOOL, Type
from .assume import NeedsValue
from .containers import Tree, flatten_tree
from .location import user_location
from .slots import Differs
from .support import NO_VALUE, Undefined
from .symbols import SymInt, is_int
from .tensor import Tensor
from .trace import Trace
from .traceint import TraceInt

CONSTANTS = (bool, int, float, complex, str, bytes)
PYTHON = "biufc"  # kinds of dtypes, smaller first


def is_value(x: Any) -> bool:
    """Tell whether a leaf can be a value of the program."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in PYTHON
    return isinstance(x, Tensor | SymInt | bool | int | float | complex | np.generic)


def is_missing(x: Any) -> bool:
    """Tell whether a name has no value."""
    return x is NO_VALUE or isinstance(x, Undefined)


def is_same(a: Any, b: Any) -> bool:
    """Tell whether two leaves are one object, or equal constants."""
    if a is b:
        return True
    if isinstance(a, TraceInt) and isinstance(b, TraceInt):
        resolve = a.trace.assumptions.resolve
        return bool(resolve(a.dim) == resolve(b.dim))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.is_traced and b.is_traced and a._value is b._value
    if type(a) is not type(b) or not isinstance(a, CONSTANTS):
        return False
    return repr(a) == repr(b)  # tells -0.0 from 0.0, and nan is itself


def flatten_pair(a: Any, b: Any, what: str) -> tuple[list[Any], list[Any], Tree]:
    """Flatten two objects that must have one structure."""
    x, tree = flatten_tree(a)
    y, other = flatten_tree(b)
    if tree != other:
        raise differ(a, b, what)
    return x, y, tree


def differ(a: Any, b: Any, what: str) -> Differs:
    """Return the error that two objects have no common structure."""
    return Differs(
        f"{what} is a {_kind(a)} on one way and a {_kind(b)} on the other",
        location=user_location(),
        rule="A name has one kind of value after a branch, and at the start of every "
        "iteration of a loop.",
        hint="give it the same structure, with arrays of the same shapes",
    )


def _kind(x: Any) -> str:
    if isinstance(x, Tensor | SymInt):
        return str(x.type) if isinstance(x, Tensor) else "int"
    if isinstance(x, list | tuple | dict):
        return f"{type(x).__name__} of {len(x)}"
    if x is None:
        return "None"
    return "value that is not bound" if is_missing(x) else type(x).__name__


def type_in(trace: Trace, x: Any) -> Type:
    """Return the type of a leaf as an operand."""
    return trace.operand_type(trace.operand(x))


def join(trace: Trace, a: Type, b: Type, what: str) -> Type:
    """Return the type that a value has which is `a` on one way and `b` on the other.

    Python numbers give way to NumPy's, and a number of a smaller kind becomes one of a
    larger kind. Arrays have to agree.
    """
    if not _same_shape(trace, a, b):
        raise _differ(a, b, what)
    a, b = (t.substitute(trace.assumptions.equal) for t in (a, b))
    if a.dtype == b.dtype:
        return Type(a.dtype, a.shape, a.scalar or b.scalar, a.weak and b.weak)
    weak = (a.weak or a.dtype == BOOL) and (b.weak or b.dtype == BOOL)
    if weak or a.weak or b.weak:
        weaker, other = (a, b) if a.weak else (b, a)
        dtype = other.dtype
        if PYTHON.index(weaker.dtype.kind) > PYTHON.index(other.dtype.kind):
            dtype = np.result_type(a.dtype, b.dtype)
        return Type(dtype, (), True, weak and dtype != BOOL)
    if a.scalar and b.scalar:
        return Type(np.result_type(a.dtype, b.dtype), (), True)
    raise _differ(a, b, what)


def _same_shape(trace: Trace, a: Type, b: Type) -> bool:
    """Tell whether two shapes are equal; what arguments decide becomes a guard."""
    try:
        return len(a.shape) == len(b.shape) and all(
            map(trace.assumptions.same, a.shape, b.shape)
        )
    except NeedsValue:
        return False


def _differ(a: Type, b: Type, what: str) -> Differs:
    return Differs(
        f"{what} is {a} on one way and {b} on the other",
        location=user_location(),
        rule="A name has one type after a branch, and at the start of every iteration "
        "of a loop.",
        hint="make arrays of one shape and dtype, for instance with astype or "
        "np.zeros before it",
    )


def as_type(trace: Trace, x: Any, want: Type) -> Operand:
    """Return a leaf as an operand of the joined type."""
    operand = trace.operand(x)
    have = trace.operand_type(operand)
    if have.dtype != want.dtype:
        t = trace.apply(OPS["astype"], (trace.tensor(operand),), {"dtype": want.dtype})
        operand = trace.operand(t)
    return operand


def nothing(trace: Trace, want: Type) -> Operand:
    """Return what stands for a value that is not there, and that nobody reads."""
    if not want.shape:
        zero = np.zeros((), want.dtype).item()
        return as_type(trace, zero, want)
    attrs = {"shape": want.shape, "dtype": want.dtype}
    zero = np.zeros((), want.dtype).item()
    return trace.operand(trace.apply(OPS["full"], (zero,), attrs))


def as_condition(trace: Trace, x: Any) -> Tensor | None:
    """Return the truth of a traced value as a 0-d bool; None for what Python knows."""
    if isinstance(x, TraceInt):
        x = x != 0
    if not isinstance(x, Tensor) or not x.is_traced:
        return None
    operand = trace.operand(x)
    if not isinstance(operand, Value):
        return None
    t = trace.operand_type(operand)
    if any(isinstance(d, int) and d != 1 for d in t.shape) or any(
        trace.assumptions.proves(dims.add(d, -2)) for d in t.shape
    ):
        raise ShapeError(
            "The truth value of an array with more than one element is ambiguous. Use "
            "a.any() or a.all()",
            location=user_location(),
        )
    if any(d != 1 for d in t.shape):
        return None
    if t.shape:
        x = trace.apply(OPS["reshape"], (x,), {"shape": ()})
    if t.dtype != BOOL:
        x = trace.apply(OPS["not_equal"], (x, 0), {})
    return x  # type: ignore[no-any-return]


def is_python_int(x: Any) -> bool:
    """Tell whether a leaf is a Python int, concrete or symbolic."""
    return is_int(x) and not hasattr(x, "dtype")


def hint(what: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in what).strip("_")
    return text if text and not text[0].isdigit() else "t"
