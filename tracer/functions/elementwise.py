"""Elementwise functions that are no ufuncs, and ufuncs that are no ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from ..order import ordered
from ..symbols import SymInt
from ..values import concrete
from .core import (
    apply,
    asarray,
    cast,
    dtype_of,
    finish,
    implements,
    no_support,
    operand,
    promote,
    same_sizes,
    shape_of,
    unsupported,
)
from .reduce import all_
from .shapes import broadcast_shape

_WHERE_NOT_GIVEN = object()


@implements(np.where)
def where(
    condition: Any, x: Any = _WHERE_NOT_GIVEN, y: Any = _WHERE_NOT_GIVEN, /
) -> Any:
    if x is _WHERE_NOT_GIVEN and y is _WHERE_NOT_GIVEN:
        from .choice import nonzero

        return nonzero(condition)
    if x is _WHERE_NOT_GIVEN or y is _WHERE_NOT_GIVEN:
        raise ShapeError("either both or neither of x and y should be given")
    return apply("where", operand(condition), operand(x), operand(y))


@implements(np.clip)
def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
    **kwargs: Any,
) -> Any:
    dtype = kwargs.pop("dtype", None)
    casting = kwargs.pop("casting", "same_kind")
    for name in kwargs:
        no_support(name, kwargs[name])
    low = operand(a_min if min is None else min)
    high = operand(a_max if max is None else max)
    x = cast(asarray(a), dtype)
    if low is None and high is None:
        r = apply("positive", x)
    elif high is None:
        r = apply("maximum", x, low)
    elif low is None:
        r = apply("minimum", x, high)
    else:
        r = apply("clip", x, low, high)
    return finish(r, out, casting)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    x = asarray(a)
    if x.dtype.kind in "iu":
        if decimals >= 0:
            return finish(apply("positive", x), out)
        raise unsupported("round: integers to a negative number of decimals")
    if x.dtype.kind == "b":
        x = cast(x, np.float16)
    if not decimals:
        return finish(apply("rint", x), out)
    scale = 10.0 ** abs(decimals)
    up, down = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    r = apply(down, apply("rint", apply(up, x, scale)), scale)
    return finish(ordered(r, "A", x), out)


@implements(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    return finish(apply("trunc", operand(x)), out)


@implements(np.sinc)
def sinc(x: Any) -> Any:
    x = asarray(x)
    if x.dtype.kind not in "f":
        x = cast(x, np.float64)
    tiny = float(np.finfo(x.dtype).eps)
    y = apply("multiply", apply("where", apply("equal", x, 0), tiny, x), np.pi)
    return apply("divide", apply("sin", y), y)


# ---------------------------------------------------------------- complex parts


@implements(np.real)
def real(val: Any) -> Any:
    x = asarray(val)
    if x.dtype.kind == "c":
        raise unsupported("real: complex tensors")
    return x


@implements(np.imag)
def imag(val: Any) -> Any:
    x = asarray(val)
    if x.dtype.kind == "c":
        raise unsupported("imag: complex tensors")
    return cast(apply("multiply", x, 0), x.dtype)


def conj(x: Any, /, out: Any = None, **kwargs: Any) -> Any:
    x = operand(x)
    if dtype_of(x).kind == "c":
        raise unsupported("conjugate: complex tensors")
    return finish(apply("positive", x), out)


implements(np.conjugate)(conj)


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    raise unsupported("angle: the phase of reals is piecewise constant", "no rule")


@implements(np.real_if_close)
def real_if_close(a: Any, tol: Any = 100) -> Any:
    return asarray(a)


@implements(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    return dtype_of(operand(x)).kind == "c"


@implements(np.isrealobj)
def isrealobj(x: Any) -> bool:
    return not iscomplexobj(x)


@implements(np.iscomplex)
def iscomplex(x: Any) -> Any:
    return cast(apply("multiply", asarray(x), 0), np.bool_)


@implements(np.isreal)
def isreal(x: Any) -> Any:
    return apply("logical_not", iscomplex(x))


def isscalar(element: Any) -> bool:
    """Tell whether `element` is a number; scalar tensors are."""
    if isinstance(element, SymInt):
        return True
    type_ = getattr(element, "type", None)
    if type_ is not None and hasattr(type_, "scalar"):
        return bool(type_.scalar)
    return np.isscalar(element)


implements(np.isscalar)(isscalar)


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> Any:
    return np.result_type(*map(_stand_in, arrays_and_dtypes))


def _stand_in(x: Any) -> Any:
    """Return what promotes like `x`: a dtype, or a Python number."""
    type_ = getattr(x, "type", None)
    if type_ is not None and hasattr(type_, "weak"):
        return type_.dtype.type(0).item() if type_.weak else type_.dtype
    if isinstance(x, SymInt):
        return 0
    return x


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(getattr(from_, "dtype", from_), to, casting)


@implements(np.common_type)
def common_type(*arrays: Any) -> Any:
    return np.common_type(*(np.empty(0, dtype_of(a)) for a in arrays))


@implements(np.min_scalar_type)
def min_scalar_type(a: Any, /) -> Any:
    return np.dtype(dtype_of(a))


# ---------------------------------------------------------------- comparison


@implements(np.isclose)
def isclose(
    a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Any:
    x, y = operand(a), operand(b)
    if dtype_of(y).kind not in "fc":
        y = cast(asarray(y), np.float64) if hasattr(y, "dtype") else float(y)
    gap = apply("absolute", apply("subtract", x, y))
    bound = apply("add", atol, apply("multiply", rtol, apply("absolute", y)))
    close = apply("logical_and", apply("less_equal", gap, bound), apply("isfinite", y))
    r = apply("logical_or", close, apply("equal", x, y))
    if equal_nan:
        both = apply("logical_and", apply("isnan", x), apply("isnan", y))
        r = apply("logical_or", r, both)
    return r


@implements(np.allclose)
def allclose(
    a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Any:
    return _as_bool(all_(isclose(a, b, rtol, atol, equal_nan)))


def _as_bool(x: Any) -> Any:
    """Return a Python bool where the value is known."""
    values = concrete(x)
    return x if values is None else bool(values)


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    x, y = asarray(a1), asarray(a2)
    if not same_sizes(x.shape, y.shape):
        return False
    return _as_bool(all_(_equal(x, y, equal_nan)))


def _equal(x: Any, y: Any, equal_nan: bool) -> Any:
    r = apply("equal", x, y)
    if equal_nan and x.dtype.kind == y.dtype.kind == "f":
        both = apply("logical_and", apply("isnan", x), apply("isnan", y))
        r = apply("logical_or", r, both)
    return r


@implements(np.array_equiv)
def array_equiv(a1: Any, a2: Any) -> Any:
    x, y = asarray(a1), asarray(a2)
    try:
        broadcast_shape(x.shape, y.shape)
    except ValueError:
        return False
    return _as_bool(all_(apply("equal", x, y)))


@implements(np.isposinf)
def isposinf(x: Any, out: Any = None) -> Any:
    return finish(apply("equal", asarray(x), np.inf), out)


@implements(np.isneginf)
def isneginf(x: Any, out: Any = None) -> Any:
    return finish(apply("equal", asarray(x), -np.inf), out)


@implements(np.nan_to_num)
def nan_to_num(
    x: Any,
    copy: bool = True,
    nan: Any = 0.0,
    posinf: Any = None,
    neginf: Any = None,
) -> Any:
    y = asarray(x)
    if y.dtype.kind != "f":
        if not copy:
            return y
        return apply("copy", y) if shape_of(y) else apply("item", y)
    info = np.finfo(y.dtype)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    r = apply("where", apply("isnan", y), nan, y)
    r = apply("where", apply("equal", y, np.inf), high, r)
    r = apply("where", apply("equal", y, -np.inf), low, r)
    if not copy:
        from .. import dispatch

        dispatch.write(y, r)
        return y
    return r if shape_of(r) else apply("item", r)


# ---------------------------------------------------------------- ufuncs of two results


def divmod_(x: Any, y: Any, /, **kwargs: Any) -> Any:
    """Return the floor quotient and the remainder."""
    return apply("floor_divide", x, y), apply("remainder", x, y)


implements(np.divmod)(divmod_)


def modf(x: Any, /, **kwargs: Any) -> Any:
    """Return the fractional and the integral part, both with the sign of `x`."""
    whole = apply("trunc", x)
    return apply("copysign", apply("subtract", x, whole), x), whole


implements(np.modf)(modf)


def fabs(x: Any, /, **kwargs: Any) -> Any:
    """Return the absolute value as a float."""
    x = operand(x)
    return apply("absolute", x if dtype_of(x).kind == "f" else cast(x, np.float64))


implements(np.fabs)(fabs)


def degrees(x: Any, /, **kwargs: Any) -> Any:
    """Convert radians to degrees."""
    return apply("rad2deg", operand(x))


def radians(x: Any, /, **kwargs: Any) -> Any:
    """Convert degrees to radians."""
    return apply("deg2rad", operand(x))


implements(np.degrees)(degrees)
implements(np.radians)(radians)

# ---------------------------------------------------------------- polynomials


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    p, x = asarray(p), operand(x)
    dtype = promote(p, asarray(x))
    y: Any = cast(apply("multiply", asarray(x), 0), dtype)
    for k in range(int(p.shape[0])):
        y = apply("add", apply("multiply", y, x), apply("select", p, k, axis=0))
    return y


@implements(np.interp)
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    if period is not None:
        raise unsupported("interp: period=", "only the open form has a rule")
    from .sorting import searchsorted

    at, xs, ys = asarray(x), asarray(xp), asarray(fp)
    at, xs, ys = (cast(v, np.float64) for v in (at, xs, ys))
    n = xs.shape[0]
    k = searchsorted(xs, at, "right")
    k = apply("subtract", apply("minimum", apply("maximum", k, 1), n - 1), 1)

    def take(v: Any, index: Any) -> Any:
        return apply("gather", v, index, axes=(0,), position=0)

    x0, x1 = take(xs, k), take(xs, apply("add", k, 1))
    y0, y1 = take(ys, k), take(ys, apply("add", k, 1))
    slope = apply("divide", apply("subtract", y1, y0), apply("subtract", x1, x0))
    r = apply("add", apply("multiply", slope, apply("subtract", at, x0)), y0)
    first, last = (apply("select", v, e, axis=0) for v in (ys,) for e in (0, n - 1))
    low, high = (apply("select", xs, e, axis=0) for e in (0, n - 1))
    r = apply("where", apply("less", at, low), first if left is None else left, r)
    # np.interp gives exactly the last value at the last point
    r = apply("where", apply("equal", at, high), last, r)
    r = apply("where", apply("greater", at, high), last if right is None else right, r)
    return r if shape_of(r) else apply("item", r)
