"""Elementwise arithmetic, transcendental, rounding, comparison and logical ops.

A derivative is the partial in one operand: a function of the builder and of what it
reads. Ties: maximum and minimum give each operand half, abs'(0) = 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import PYTHON_NUMBERS, Builder
from ..errors import ShapeError
from ..op import ZERO, Kind, Partial, Sample, Vjp, Zero, define
from ..types import BOOL, I64, DType, Type, broadcast_shapes, promote, same_shape
from .elementwise import (
    REALS,
    elementwise,
    elementwise_samples,
    elementwise_type,
    ufunc_dtypes,
)

POSITIVE = (0.3, 2.0)
UNIT = (-0.9, 0.9)
APART = (0.4, 1.6)
ROUNDING = Zero("rounding is constant almost everywhere; its derivative is 0")

# ---------------------------------------------------------------- arithmetic

elementwise(
    np.add,
    "({0} + {1})",
    [lambda b: 1, lambda b: 1],
    kinds="fib",
    weak=True,
    on_dims=dims.add,
    signs=(1, 1),
)
elementwise(
    np.subtract,
    "({0} - {1})",
    [lambda b: 1, lambda b: -1],
    kinds="fi",
    weak=True,
    on_dims=lambda a, b: dims.add(a, dims.mul(b, -1)),
    signs=(1, -1),
)
elementwise(
    np.multiply,
    "({0} * {1})",
    [lambda b, y: y, lambda b, x: x],
    kinds="fib",
    weak=True,
    on_dims=dims.mul,
    multiplies=True,
)
elementwise(
    np.divide,
    "({0} / {1})",
    [
        lambda b, y: b.divide(1, y),
        # Not -out / y: the reciprocal is shared, and has the size of y.
        lambda b, y, out: b.multiply(out, b.negative(b.divide(1, y))),
    ],
    [REALS, APART],
    kinds="fi",
    cost=4,
    weak=True,
)
elementwise(np.negative, "(-{0})", [lambda b: -1], kinds="fi", weak=True, signs=(-1,))
elementwise(np.positive, "({0})", [lambda b: 1], kinds="fi", weak=True)
elementwise(
    np.absolute, "abs({0})", [lambda b, x: b.sign(x)], [APART], kinds="fi", weak=True
)
elementwise(np.fabs, "abs({0})", [lambda b, x: b.sign(x)], [APART])
elementwise(np.sign, "sign({0})", [ROUNDING], [APART], kinds="fi")
elementwise(
    np.reciprocal,
    "reciprocal({0})",
    [lambda b, out: b.negative(b.square(out))],
    [APART],
    cost=4,
)
elementwise(np.square, "({0} * {0})", [lambda b, x: b.multiply(x, 2)], kinds="fi")
elementwise(
    np.sqrt, "sqrt({0})", [lambda b, out: b.divide(0.5, out)], [POSITIVE], cost=6
)


def _root_slope(b: Builder, out: Any) -> Any:
    return b.divide(0.5, b.where(b.equal(out, 0), math.inf, out))


# Of a sum of squares, as norm and std take it: at 0 the subgradient 0, as in PyTorch.
elementwise(
    np.sqrt,
    "sqrt({0})",
    [_root_slope],
    [POSITIVE],
    name="root",
    eager=lambda x: np.sqrt(x),
    cost=6,
)
elementwise(
    np.cbrt,
    "cbrt({0})",
    [lambda b, out: b.divide(1 / 3, b.square(out))],
    [POSITIVE],
    cost=20,
)


def _power_in_base(b: Builder, x: Any, y: Any) -> Any:
    """Return y * x**(y - 1), with 0 where y is 0; numbers give cheaper ops."""
    if type(y) not in PYTHON_NUMBERS:
        slope = b.multiply(y, b.power(x, b.subtract(y, 1)))
        return b.where(b.equal(y, 0), 0.0, slope)
    if y in (0, 1):
        return y
    return b.multiply(b.power(x, y - 1) if y != 2 else x, y)


def _power_in_exponent(b: Builder, x: Any, out: Any) -> Any:
    """Return log(x) * x**y, with 0 where x is 0."""
    log = b.log(b.where(b.equal(x, 0), 1.0, x))
    return b.multiply(out, b.cast(log, b.type_of(out)))


elementwise(
    np.power,
    "power({0}, {1})",
    [_power_in_base, _power_in_exponent],
    [POSITIVE, REALS],
    cost=20,
    weak=True,
)
elementwise(
    np.float_power,
    "power({0}, {1})",
    [_power_in_base, _power_in_exponent],
    [POSITIVE, REALS],
    cost=20,
)
elementwise(
    np.floor_divide,
    "floor_divide({0}, {1})",
    [ROUNDING, ROUNDING],
    [REALS, APART],
    kinds="fi",
    cost=6,
    weak=True,
)
elementwise(
    np.remainder,
    "remainder({0}, {1})",
    [lambda b: 1, lambda b, x, y: b.negative(b.floor_divide(x, y))],
    [REALS, APART],
    kinds="fi",
    cost=6,
    weak=True,
)
elementwise(
    np.fmod,
    "fmod({0}, {1})",
    [lambda b: 1, lambda b, x, y: b.negative(b.trunc(b.divide(x, y)))],
    [REALS, APART],
    kinds="fi",
    cost=6,
)

# ---------------------------------------------------------------- transcendental


def _one_minus_square(b: Builder, x: Any) -> Any:
    return b.subtract(1.0, b.square(x))


elementwise(np.exp, "exp({0})", [lambda b, out: out], cost=20)
elementwise(
    np.exp2, "exp2({0})", [lambda b, out: b.multiply(out, math.log(2))], cost=20
)
elementwise(np.expm1, "expm1({0})", [lambda b, out: b.add(out, 1.0)], cost=20)
elementwise(np.log, "log({0})", [lambda b, x: b.reciprocal(x)], [POSITIVE], cost=20)
elementwise(
    np.log2,
    "log2({0})",
    [lambda b, x: b.divide(1 / math.log(2), x)],
    [POSITIVE],
    cost=20,
)
elementwise(
    np.log10,
    "log10({0})",
    [lambda b, x: b.divide(1 / math.log(10), x)],
    [POSITIVE],
    cost=20,
)
elementwise(
    np.log1p,
    "log1p({0})",
    [lambda b, x: b.reciprocal(b.add(x, 1.0))],
    [POSITIVE],
    cost=20,
)
elementwise(np.sin, "sin({0})", [lambda b, x: b.cos(x)], cost=20)
elementwise(np.cos, "cos({0})", [lambda b, x: b.negative(b.sin(x))], cost=20)
elementwise(
    np.tan, "tan({0})", [lambda b, out: b.add(1.0, b.square(out))], [UNIT], cost=20
)
elementwise(
    np.arcsin,
    "arcsin({0})",
    [lambda b, x: b.reciprocal(b.sqrt(_one_minus_square(b, x)))],
    [UNIT],
    cost=20,
)
elementwise(
    np.arccos,
    "arccos({0})",
    [lambda b, x: b.negative(b.reciprocal(b.sqrt(_one_minus_square(b, x))))],
    [UNIT],
    cost=20,
)
elementwise(
    np.arctan,
    "arctan({0})",
    [lambda b, x: b.reciprocal(b.add(1.0, b.square(x)))],
    cost=20,
)
elementwise(np.sinh, "sinh({0})", [lambda b, x: b.cosh(x)], cost=20)
elementwise(np.cosh, "cosh({0})", [lambda b, x: b.sinh(x)], cost=20)
elementwise(np.tanh, "tanh({0})", [lambda b, out: _one_minus_square(b, out)], cost=20)
elementwise(
    np.arcsinh,
    "arcsinh({0})",
    [lambda b, x: b.reciprocal(b.sqrt(b.add(b.square(x), 1.0)))],
    cost=20,
)
elementwise(
    np.arccosh,
    "arccosh({0})",
    [lambda b, x: b.reciprocal(b.sqrt(b.subtract(b.square(x), 1.0)))],
    [(1.2, 3.0)],
    cost=20,
)
elementwise(
    np.arctanh,
    "arctanh({0})",
    [lambda b, x: b.reciprocal(_one_minus_square(b, x))],
    [UNIT],
    cost=20,
)


def _over_square_norm(b: Builder, u: Any, x: Any, y: Any) -> Any:
    return b.divide(u, b.add(b.multiply(x, x), b.multiply(y, y)))


def _over_norm(b: Builder, u: Any, out: Any) -> Any:
    """Return u / hypot(x, y), with 0 at the origin, the slope of least norm."""
    return b.divide(u, b.where(b.equal(out, 0), math.inf, out))


def _log_share(b: Builder, power: str, u: Any, out: Any) -> Any:
    """Return the share of `u` in log(e**x + e**y): 0 where the sum is 0."""
    safe = b.where(b.equal(out, -math.inf), 0.0, out)
    return getattr(b, power)(b.subtract(u, safe))


elementwise(
    np.arctan2,
    "arctan2({0}, {1})",
    [
        lambda b, x, y: _over_square_norm(b, y, x, y),
        lambda b, x, y: b.negative(_over_square_norm(b, x, x, y)),
    ],
    [REALS, APART],
    cost=20,
)
elementwise(
    np.hypot,
    "hypot({0}, {1})",
    [
        lambda b, x, out: _over_norm(b, x, out),
        lambda b, y, out: _over_norm(b, y, out),
    ],
    [APART, APART],
    cost=20,
)
elementwise(
    np.logaddexp,
    "logaddexp({0}, {1})",
    [
        lambda b, x, out: _log_share(b, "exp", x, out),
        lambda b, y, out: _log_share(b, "exp", y, out),
    ],
    cost=40,
)
elementwise(
    np.logaddexp2,
    "logaddexp2({0}, {1})",
    [
        lambda b, x, out: _log_share(b, "exp2", x, out),
        lambda b, y, out: _log_share(b, "exp2", y, out),
    ],
    cost=40,
)
elementwise(
    np.deg2rad,
    "({0} * 0.017453292519943295)",
    [lambda b: math.pi / 180],
    name="deg2rad",
)
elementwise(
    np.rad2deg, "({0} * 57.29577951308232)", [lambda b: 180 / math.pi], name="rad2deg"
)
elementwise(
    np.copysign,
    "copysign({0}, {1})",
    [
        lambda b, x, out: b.multiply(b.cast(b.sign(x), b.type_of(out)), b.sign(out)),
        ZERO,
    ],
    [APART, APART],
)

# ---------------------------------------------------------------- rounding

_ufunc: np.ufunc

for _ufunc in (np.floor, np.ceil, np.trunc, np.rint):
    elementwise(_ufunc, _ufunc.__name__ + "({0})", [ROUNDING], [APART])

# ---------------------------------------------------------------- extrema and choice


def _extremum(ufunc: np.ufunc, loses: str, ignores_nan: bool) -> None:
    """Define an extremum of two: the winner gets the cotangent, a tie gives halves."""

    def share(b: Builder, ct: Any, x: Any, y: Any, tie: Any) -> Any:
        lost = getattr(b, loses)(x, y)
        if ignores_nan:
            lost = b.logical_or(lost, b.isnan(x))
        won = b.where(tie, b.multiply(ct, 0.5), ct)
        return b.unbroadcast(b.where(lost, 0.0, won), x)

    def in_x(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
        return share(b, ct, x, y, b.equal(x, y))

    def in_y(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
        return share(b, ct, y, x, b.equal(x, y))

    elementwise(
        ufunc,
        ufunc.__name__ + "({0}, {1})",
        [Vjp(in_x, ("x", "y")), Vjp(in_y, ("x", "y"))],
        kinds="fi",
    )


_extremum(np.maximum, "less", ignores_nan=False)
_extremum(np.minimum, "greater", ignores_nan=False)
_extremum(np.fmax, "less", ignores_nan=True)
_extremum(np.fmin, "greater", ignores_nan=True)


def _clip_dtype(x: Type, low: Type, high: Type) -> DType:
    """Promote the dtypes; np.clip makes an array of `x`, so a number is not weak."""
    return promote(Type(x.dtype), low, high).dtype


def _clip_type(x: Type, low: Type, high: Type) -> Type:
    return elementwise_type(_clip_dtype(x, low, high), (x, low, high))


def _within(b: Builder, x: Any, low: Any, high: Any) -> Any:
    """Tell where `x` itself is the result, bounds included."""
    return b.logical_and(b.less_equal(low, x), b.less_equal(x, high))


def _is_low(b: Builder, x: Any, low: Any, high: Any) -> Any:
    return b.logical_and(b.less(x, low), b.less_equal(low, high))


def _is_high(b: Builder, x: Any, low: Any, high: Any) -> Any:
    return b.logical_or(b.greater(x, high), b.greater(low, high))


def _clip_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for s in elementwise_samples(rng, [REALS, REALS], "f", False):
        x, low = s.args
        yield Sample((x, low, 1.0), differentiable=s.differentiable)
        yield Sample((x, -1.0, low), differentiable=s.differentiable)
    x = rng.normal(size=(3, 4))
    yield Sample((x, x[0] - 0.3, x[1] + 0.1))  # some bounds are crossed
    yield Sample((x.astype(np.float32), -0.5, 0.5))
    yield Sample((np.arange(6), 2, np.int64(4)), differentiable=False)
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    yield Sample((odd, -1.0, 1.0), differentiable=False)


define(
    name="clip",  # at a bound the cotangent goes to x, as in PyTorch
    kind=Kind.ELEMENTWISE,
    operands=("x", "low", "high"),
    infer=_clip_type,
    eager=lambda x, low, high: np.clip(x, low, high),
    derivatives=(Partial(_within), Partial(_is_low), Partial(_is_high)),
    lower="minimum(maximum({0}, {1}), {2})",
    samples=_clip_samples,
    computes=lambda x, low, high: (_clip_dtype(x, low, high),) * 3,
    cost=2,
)

elementwise(
    np.heaviside,
    "heaviside({0}, {1})",
    [ROUNDING, lambda b, x: b.equal(x, 0)],
    [APART, REALS],
)

# ---------------------------------------------------------------- comparison and logic


def _compared(x: Type, y: Type) -> Sequence[DType]:
    """Return int64 where a Python int may be out of the range of what it meets."""
    if x.weak != y.weak and x.dtype.kind in "iu" and y.dtype.kind in "iu":
        if (y if x.weak else x).dtype.itemsize < I64.itemsize:
            return I64, I64
    return ufunc_dtypes(np.equal, (x, y))[:-1]


for _ufunc, _sign in (
    (np.equal, "=="),
    (np.not_equal, "!="),
    (np.less, "<"),
    (np.less_equal, "<="),
    (np.greater, ">"),
    (np.greater_equal, ">="),
):
    elementwise(
        _ufunc,
        f"({{0}} {_sign} {{1}})",
        [ZERO, ZERO],
        kinds="fib",
        kink=True,
        computes=_compared,
    )

for _ufunc, _template in (
    (np.logical_and, "logical_and({0}, {1})"),
    (np.logical_or, "logical_or({0}, {1})"),
    (np.logical_xor, "logical_xor({0}, {1})"),
):
    elementwise(_ufunc, _template, [ZERO, ZERO], kinds="fib", kink=True)

elementwise(np.logical_not, "logical_not({0})", [ZERO], kinds="fib", kink=True)

for _ufunc, _sign in (
    (np.bitwise_and, "&"),
    (np.bitwise_or, "|"),
    (np.bitwise_xor, "^"),
):
    elementwise(_ufunc, f"({{0}} {_sign} {{1}})", [ZERO, ZERO], kinds="ib", kink=True)

elementwise(np.invert, "invert({0})", [ZERO], kinds="ib", kink=True)
for _ufunc in (np.left_shift, np.right_shift):
    elementwise(
        _ufunc,
        _ufunc.__name__ + "({0}, {1})",
        [ZERO, ZERO],
        [(0.0, 1.0), (0.0, 1.0)],
        kinds="i",
        kink=True,
    )

for _ufunc in (np.isnan, np.isinf, np.isfinite, np.signbit):
    elementwise(_ufunc, _ufunc.__name__ + "({0})", [ZERO], kinds="f", kink=True)

# ---------------------------------------------------------------- where and casts


def _where_type(condition: Type, x: Type, y: Type) -> Type:
    dtype = promote(x, y).dtype
    t = elementwise_type(dtype, (condition, x, y))
    return t if t.shape else Type(dtype)  # np.where gives arrays, also 0-d ones


def _where_computes(condition: Type, x: Type, y: Type) -> Sequence[DType]:
    dtype = promote(x, y).dtype
    return BOOL, dtype, dtype


def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


def _where_samples(rng: np.random.Generator) -> Any:
    for s in elementwise_samples(rng, [REALS, REALS], "f", False):
        x, y = s.args
        shape = np.broadcast_shapes(np.shape(x), np.shape(y))
        condition = np.asarray(rng.integers(0, 2, shape).astype(bool))
        yield Sample((condition, x, y), differentiable=s.differentiable)


define(
    name="where",
    kind=Kind.ELEMENTWISE,
    operands=("condition", "x", "y"),
    infer=_where_type,
    eager=_where,
    derivatives=(
        ZERO,
        Vjp(
            lambda b, ct, out, condition, x, y: b.unbroadcast(
                b.where(condition, ct, 0.0), x
            ),
            ("condition",),
        ),
        Vjp(
            lambda b, ct, out, condition, x, y: b.unbroadcast(
                b.where(condition, 0.0, ct), y
            ),
            ("condition",),
        ),
    ),
    lower="where({0}, {1}, {2})",
    samples=_where_samples,
    computes=_where_computes,
)


def _override_type(x: Type, new: Type) -> Type:
    shape = broadcast_shapes(x.shape, new.shape)
    if not same_shape(shape, x.shape):
        raise ShapeError(f"override: {new} does not fit {x}")
    return Type(x.dtype, x.shape, scalar=x.scalar)


def _override(x: Any, new: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return np.asarray(x).dtype.type(new)
    out = np.empty_like(x)
    out[...] = new
    return out


def _override_samples(rng: np.random.Generator) -> Any:
    for s in elementwise_samples(rng, [REALS, REALS], "f", False):
        x, new = s.args
        if np.broadcast_shapes(np.shape(x), np.shape(new)) == np.shape(x):
            if isinstance(x, np.ndarray | np.generic):
                yield Sample((x, new), differentiable=False)


define(
    name="override",  # the values of `new` with the derivative of x: an untracked write
    kind=Kind.ELEMENTWISE,
    operands=("x", "new"),
    infer=_override_type,
    eager=_override,
    derivatives=(
        Vjp(lambda b, ct, out, x, new: ct),
        Zero("what is written without tracking has no derivative"),
    ),
    lower="where(True, {1}, {0})",
    samples=_override_samples,
    computes=lambda x, new: (x.dtype, x.dtype),
)


def _astype_type(x: Type, *, dtype: DType) -> Type:
    return Type(dtype, x.shape, scalar=x.scalar)


def _astype(x: Any, dtype: DType) -> Any:
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    return np.asarray(x).astype(dtype)[()]


def _astype_samples(rng: np.random.Generator) -> Any:
    x = rng.uniform(-2, 2, (2, 3))
    yield Sample((x,), {"dtype": np.dtype(np.float32)})
    yield Sample((x.astype(np.float32),), {"dtype": np.dtype(np.float64)})
    yield Sample((x,), {"dtype": np.dtype(np.int64)}, differentiable=False)
    yield Sample((x,), {"dtype": np.dtype(np.bool_)}, differentiable=False)
    yield Sample((np.float64(1.5),), {"dtype": np.dtype(np.float32)})
    yield Sample((np.zeros((0, 2)),), {"dtype": np.dtype(np.float32)})


def _astype_vjp(b: Builder, ct: Any, out: Any, x: Any, *, dtype: DType) -> Any:
    return b.cast(ct, b.type_of(x)) if dtype.kind in "fc" else None


define(
    name="astype",
    kind=Kind.ELEMENTWISE,
    operands=("x",),
    infer=_astype_type,
    eager=_astype,
    derivatives=(Vjp(_astype_vjp),),
    lower="{0}",
    samples=_astype_samples,
    computes=lambda x: (x.dtype,),
)
