"""The neutral scalar functions of lowering templates, with NumPy's meaning.

Generated code imports them by name. They are intrinsics: a few instructions each, for
every width of integer, bool, float32 and float64. All arguments of a call have one
type, which is the result's, except where a bool comes out. Longer ones are compiled
functions of their own.

What NumPy only warns about has NumPy's result here: integer division by zero gives 0,
an overflow wraps around. What is more than a call is written in `instructions`.
"""

from typing import Any

from numba.extending import intrinsic

from . import vecmath
from .instructions import FUNCTIONS
from .intrinsics import define
from .vecmath import (
    cbrt,
    copysign,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    hypot,
    inline_exp,
    log,
    log1p,
    log2,
    log10,
    rint,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)

__all__ = [
    "absolute",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "heaviside",
    "hypot",
    "inline_exp",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lost",
    "maximum",
    "minimum",
    "multiply_add",
    "power",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "where",
]

arccos, arccosh, arcsin = vecmath.acos, vecmath.acosh, vecmath.asin
arcsinh, arctan, arctanh = vecmath.asinh, vecmath.atan, vecmath.atanh
arctan2 = vecmath.atan2


def function(name: str, call: Any = vecmath.call) -> Any:
    """Make one of `FUNCTIONS` with that call of elementary functions."""
    return define(intrinsic, name, FUNCTIONS[name], call)


absolute = function("absolute")
sign = function("sign")
reciprocal = function("reciprocal")
invert = function("invert")
logical_not = function("logical_not")
isnan = function("isnan")
isinf = function("isinf")
isfinite = function("isfinite")
signbit = function("signbit")
floor = function("floor")
ceil = function("ceil")
trunc = function("trunc")
maximum = function("maximum")
minimum = function("minimum")
fmax = function("fmax")
fmin = function("fmin")
logical_and = function("logical_and")
logical_or = function("logical_or")
logical_xor = function("logical_xor")
fmod = function("fmod")
floor_divide = function("floor_divide")
remainder = function("remainder")
left_shift = function("left_shift")
right_shift = function("right_shift")
heaviside = function("heaviside")
where = function("where")
lost = function("lost")
multiply_add = function("multiply_add")
power = function("power")
logaddexp = function("logaddexp")
logaddexp2 = function("logaddexp2")
