"""Python's own functions on Tensors: `float(t)`, `min(t, u)`, `math.sin(t)`, `len(t)`.

The converter asks this table for every call in user code. A replacement does what the
original does wherever no Tensor or symbolic int is among the arguments.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import DTypeError
from .. import dispatch
from ..location import user_location
from ..rows import (
    Rows,
    backwards,
    elements,
    enumerated,
    indices,
    symbolic_range,
    zipped,
)
from ..symbols import SymInt, clamp, is_int
from ..tensor import Tensor
from ..values import is_tensor, is_traced
from .core import apply, asarray, unsupported
from .reduce import all_, any_
from .reduce import sum as sum_

BUILTINS: dict[Callable[..., Any], Callable[..., Any]] = {}


def _replaces(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        BUILTINS[original] = f
        return f

    return register


def _known_or(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Enter a replacement that is called only where an argument is symbolic."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if builtins.any(builtins.isinstance(a, Tensor | SymInt) for a in args):
                return f(*args, **kwargs)
            return original(*args, **kwargs)

        BUILTINS[original] = replacement
        return f

    return register


# ---------------------------------------------------------------- conversions


def _one(x: Any, what: str) -> Any:
    """Return a Tensor of one element as a 0-d one."""
    if not x.shape:
        return x
    raise DTypeError(
        f"{what}: only 0-dimensional arrays can be converted to Python scalars, not "
        f"{x.type}",
        location=user_location(),
        hint="take one element, or use astype",
    )


def _number(x: Any, dtype: Any) -> Any:
    x = _one(asarray(x), np.dtype(dtype).name)
    if x.dtype != np.dtype(dtype):
        x = apply("astype", x, dtype=np.dtype(dtype))
    return apply("number", x)


@_known_or(float)
def float_(x: Any) -> Any:
    """Return a Python float that keeps its derivative."""
    return _number(x, np.float64)


@_known_or(int)
def int_(x: Any, *base: Any) -> Any:
    """Return a Python int; it has no derivative, so a known one is a plain int."""
    if builtins.isinstance(x, SymInt):
        return x
    x = _one(x, "int")
    return _number(x, np.int64) if is_traced(x) else builtins.int(x._data)


def _is_nonzero(k: Any) -> bool:
    return bool(k != 0)


@_known_or(bool)
def bool_(x: Any) -> Any:
    """Return a bool: an op where it is computed."""
    if builtins.isinstance(x, SymInt):
        return _is_nonzero(x)
    if is_traced(x) and not x.shape:
        return _number(x, np.bool_)
    return builtins.bool(x)


@_known_or(round)
def round_(x: Any, ndigits: Any = None) -> Any:
    """Round half to even; without digits to an int."""
    if builtins.isinstance(x, SymInt):
        return x
    if ndigits is None:
        return int_(apply("rint", _one(x, "round")))
    from .elementwise import round_ as round_array

    r = round_array(x, ndigits)
    return apply("number", r) if x.type.weak else r


BUILTINS[range] = symbolic_range
BUILTINS[enumerate] = enumerated
BUILTINS[zip] = zipped
BUILTINS[np.ndindex] = indices
BUILTINS[np.ndenumerate] = elements
BUILTINS[reversed] = backwards


@_replaces(len)
def len_(x: Any, /) -> Any:
    """Return the size of the first axis, symbolic in a trace."""
    if is_tensor(x):
        if not x.shape:
            raise DTypeError("len() of unsized object")
        return x.shape[0]
    trace = dispatch.active_trace()
    if trace is not None:
        trace.check_complete(x)
    return x.length if builtins.isinstance(x, Rows) else builtins.len(x)


@_known_or(abs)
def abs_(x: Any) -> Any:
    """Return the absolute value."""
    if builtins.isinstance(x, SymInt):
        return x.__abs__()  # type: ignore[attr-defined]
    return apply("absolute", x)


@_known_or(divmod)
def divmod_(x: Any, y: Any) -> Any:
    """Return the floor quotient and the remainder."""
    return x // y, x % y


@_known_or(pow)
def pow_(x: Any, y: Any, mod: Any = None) -> Any:
    """Raise to a power."""
    r = x**y
    return r if mod is None else r % mod


# ---------------------------------------------------------------- several arguments


def _extremum(
    original: Callable[..., Any], beats: str, of_ints: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def extremum(*args: Any, **kwargs: Any) -> Any:
        items = args[0] if builtins.len(args) == 1 else args
        if is_traced(items) and not kwargs and builtins.len(args) == 1:
            return apply(original.__name__, items, axis=(0,), keepdims=False)
        if isinstance(items, list | tuple) and builtins.any(map(is_traced, items)):
            if kwargs.get("key") is not None:
                raise unsupported(f"{original.__name__}: key= with computed values")
            return _fold(items, beats)
        if isinstance(items, list | tuple) and not kwargs and _are_ints(items):
            return functools.reduce(of_ints, items)
        return original(*args, **kwargs)

    BUILTINS[original] = extremum
    return extremum


def _are_ints(items: Any) -> bool:
    """Tell whether all are Python ints, and one of them is symbolic."""
    return builtins.all(isinstance(x, int | SymInt) for x in items) and builtins.any(
        isinstance(x, SymInt) for x in items
    )


def _fold(items: Any, beats: str) -> Any:
    """Return the first item that no other beats, as Python's loop finds it."""
    best = items[0]
    for x in items[1:]:
        if builtins.len(getattr(x, "shape", ())) or builtins.len(
            getattr(best, "shape", ())
        ):
            raise DTypeError(
                "The truth value of an array with more than one element is ambiguous. "
                "Use a.any() or a.all()"
            )
        weak = _is_weak(best) and _is_weak(x)
        chosen = apply("where", apply(beats, x, best), x, best)
        best = apply("number" if weak else "item", chosen)
    return best


def _is_weak(x: Any) -> bool:
    return x.type.weak if is_tensor(x) else not hasattr(x, "dtype")


min_ = _extremum(min, "less", lambda a, b: clamp(a, None, b))
max_ = _extremum(max, "greater", lambda a, b: clamp(a, b, None))


@_replaces(sum)
def sum_of(iterable: Any, /, start: Any = 0) -> Any:
    """Add up; a traced array is summed along its first axis."""
    if is_traced(iterable):
        r = sum_(iterable, 0)
        return r if is_int(start) and start == 0 else apply("add", start, r)
    if builtins.isinstance(iterable, Rows):
        return _operators().sum_of(iterable, start)
    return builtins.sum(iterable, start)


@_replaces(next)
def next_(iterator: Any, /, *default: Any) -> Any:
    """Return the next item; not from an iterator of outside a traced loop."""
    trace = dispatch.active_trace()
    if trace is not None:
        trace.check_complete(iterator)
    return builtins.next(iterator, *default)


def _operators() -> Any:
    """Return the operators that trace."""
    from ..convert import active_operators

    return active_operators()


@_replaces(any)
def any_of(iterable: Any, /) -> Any:
    """Tell whether any item is true."""
    if is_traced(iterable):
        return any_(iterable, 0)
    return builtins.any(iterable)


@_replaces(all)
def all_of(iterable: Any, /) -> Any:
    """Tell whether every item is true."""
    if is_traced(iterable):
        return all_(iterable, 0)
    return builtins.all(iterable)


def _stand_in(t: Any) -> Any:
    """Return an object of the type that a Tensor stands for."""
    if not t.scalar:
        return np.empty(0, t.dtype)
    one = t.dtype.type(0)
    return one.item() if t.weak else one


@_replaces(isinstance)
def isinstance_(x: Any, classes: Any, /) -> bool:
    """Tell what a Tensor stands for: an ndarray, a NumPy scalar or a Python number."""
    if is_tensor(x):
        return builtins.isinstance(x, classes) or builtins.isinstance(
            _stand_in(x.type), classes
        )
    if builtins.isinstance(x, SymInt):
        return builtins.isinstance(x, classes) or builtins.isinstance(0, classes)
    return builtins.isinstance(x, classes)


@_replaces(type)
def type_(x: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the type that a Tensor stands for, as `isinstance` does."""
    if args or kwargs:
        return builtins.type(x, *args, **kwargs)
    if is_tensor(x):
        return builtins.type(_stand_in(x.type))
    return int if builtins.isinstance(x, SymInt) else builtins.type(x)


def _scalar_type(kind: type[np.generic]) -> None:
    """Enter `np.float64(t)` and the like: a conversion that keeps the derivative."""

    def replacement(x: Any) -> Any:
        r = apply("astype", asarray(x), dtype=np.dtype(kind))
        return r if r.shape else apply("item", r)

    _known_or(kind)(replacement)


for _kind in (np.bool_, np.int32, np.int64, np.float32, np.float64):
    _scalar_type(_kind)

# ---------------------------------------------------------------- math

_MATH_OPS: dict[Callable[..., Any], str] = {
    math.sin: "sin",
    math.cos: "cos",
    math.tan: "tan",
    math.asin: "arcsin",
    math.acos: "arccos",
    math.atan: "arctan",
    math.atan2: "arctan2",
    math.sinh: "sinh",
    math.cosh: "cosh",
    math.tanh: "tanh",
    math.asinh: "arcsinh",
    math.acosh: "arccosh",
    math.atanh: "arctanh",
    math.exp: "exp",
    math.exp2: "exp2",
    math.expm1: "expm1",
    math.log2: "log2",
    math.log10: "log10",
    math.log1p: "log1p",
    math.sqrt: "sqrt",
    math.cbrt: "cbrt",
    math.pow: "power",
    math.fabs: "absolute",
    math.fmod: "fmod",
    math.copysign: "copysign",
    math.radians: "deg2rad",
    math.degrees: "rad2deg",
}
_MATH_INTS: dict[Callable[..., Any], str] = {
    math.floor: "floor",
    math.ceil: "ceil",
    math.trunc: "trunc",
}
_MATH_TESTS: dict[Callable[..., Any], str] = {
    math.isnan: "isnan",
    math.isinf: "isinf",
    math.isfinite: "isfinite",
}


def _as_float(x: Any) -> Any:
    """Return an argument of a math function as an operand of float64."""
    if is_tensor(x):
        x = _one(x, "math")
        return x if x.dtype == np.float64 else apply("astype", x, dtype=np.dtype(float))
    return x if isinstance(x, SymInt) else float(x)


def _math(original: Callable[..., Any], op: str) -> None:
    def replacement(*args: Any) -> Any:
        return apply("number", apply(op, *map(_as_float, args)))

    _known_or(original)(replacement)


def _math_int(original: Callable[..., Any], op: str) -> None:
    def replacement(x: Any) -> Any:
        return x if builtins.isinstance(x, SymInt) else int_(apply(op, _as_float(x)))

    _known_or(original)(replacement)


def _math_test(original: Callable[..., Any], op: str) -> None:
    def replacement(x: Any) -> Any:
        return bool_(apply(op, _as_float(x)))

    _known_or(original)(replacement)


for _original, _op in _MATH_OPS.items():
    _math(_original, _op)
for _original, _op in _MATH_INTS.items():
    _math_int(_original, _op)
for _original, _op in _MATH_TESTS.items():
    _math_test(_original, _op)


@_known_or(math.log)
def log(x: Any, base: Any = None) -> Any:
    """Return the logarithm, to a base where one is given."""
    r = apply("log", _as_float(x))
    if base is not None:
        r = apply("divide", r, apply("log", _as_float(base)))
    return apply("number", r)


@_known_or(math.isclose)
def isclose(a: Any, b: Any, *, rel_tol: Any = 1e-09, abs_tol: Any = 0.0) -> Any:
    """Tell whether two numbers are close, relative to the larger one."""
    x, y = _as_float(a), _as_float(b)
    size = apply("maximum", apply("absolute", x), apply("absolute", y))
    bound = apply("maximum", apply("multiply", rel_tol, size), abs_tol)
    gap = apply("absolute", apply("subtract", x, y))
    return bool_(apply("less_equal", gap, bound))


@_known_or(math.hypot)
def hypot(*coordinates: Any) -> Any:
    """Return the Euclidean norm."""
    if builtins.len(coordinates) == 2:
        return apply("number", apply("hypot", *map(_as_float, coordinates)))
    total: Any = 0.0
    for x in map(_as_float, coordinates):
        total = apply("add", total, apply("multiply", x, x))
    return apply("number", apply("sqrt", total))


def _math_unsupported(name: str) -> None:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(
            f"math.{name}: not supported on tensors",
            "there is no op for it",
            "compute it outside and pass the value in",
        )

    _known_or(getattr(math, name))(replacement)


for _name in ("erf", "erfc", "gamma", "lgamma", "frexp", "ldexp", "modf", "remainder"):
    _math_unsupported(_name)


@_replaces(math.prod)
def prod(iterable: Any, /, *, start: Any = 1) -> Any:
    """Multiply items; a traced array along its first axis."""
    if is_traced(iterable):
        from .reduce import prod as prod_

        return apply("multiply", start, prod_(iterable, 0))
    return math.prod(iterable, start=start)


@_replaces(math.fsum)
def fsum(iterable: Any, /) -> Any:
    """Add floats; Tensors are added in order, without the exact intermediate."""
    items = iterable if is_tensor(iterable) else list(iterable)
    if is_tensor(items) or builtins.any(map(is_tensor, items)):
        return float_(sum_of(items, 0.0) if not is_tensor(items) else sum_(items))
    return math.fsum(items)


@_known_or(np.nditer)
def _nditer(x: Any, *args: Any, **kwargs: Any) -> Any:
    raise unsupported(
        "nditer",
        "it walks through memory that is not there while a function is traced",
        "use np.ndindex or np.ndenumerate",
    )
