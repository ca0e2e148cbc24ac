"""Reductions: over an axis tuple, with keepdims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..errors import ShapeError
from ..op import ZERO, Derivative, Fold, Kind, Op, Sample, Vjp, define
from ..types import BOOL, I64, DType, Type
from .scan import shifted

Axes = tuple[int, ...]
FIRST = "first"  # the start of a fold that has no identity


def reduced_type(
    name: str, x: Type, dtype: DType, axis: Axes, keepdims: bool, start: str
) -> Type:
    """Return the type of a reduction; a full one gives a scalar, as in NumPy."""
    if len(set(axis)) != len(axis) or not all(0 <= k < x.ndim for k in axis):
        raise ShapeError(f"{name}: axes {axis} do not fit {x}")
    if start == FIRST and any(x.shape[k] == 0 for k in axis):
        raise ShapeError(
            f"{name}: no element of {x} to reduce along axes {axis}",
            rule=f"{name} has no identity, so the reduced axes must not be empty",
        )
    shape = tuple(
        1 if k in axis else d
        for k, d in enumerate(x.shape)
        if keepdims or k not in axis
    )
    return Type(dtype, shape) if shape else Type(dtype, scalar=True)


def reduction(
    name: str,
    eager: Callable[..., Any],
    fold: Fold,
    derivative: Derivative,
    dtype: Callable[[Type], DType],
    samples: Callable[[np.random.Generator], Iterator[Sample]],
    computes: Callable[[Type], Sequence[DType]] | None = None,
) -> Op:
    """Define a reduction; every one takes `axis` (a tuple) and `keepdims`."""

    def infer(x: Type, *, axis: Axes, keepdims: bool = False) -> Type:
        return reduced_type(name, x, dtype(x), axis, keepdims, fold.start)

    return define(
        name=name,
        kind=Kind.REDUCTION,
        operands=("x",),
        infer=infer,
        eager=lambda x, axis, keepdims=False: eager(x, axis=axis, keepdims=keepdims),
        derivatives=(derivative,),
        lower=fold,
        samples=samples,
        computes=computes or (lambda x: (dtype(x),)),
    )


def reduction_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield all axes, some, none, kept, 0-d, empty, strided, other dtypes."""
    x = rng.permutation(np.linspace(-1.9, 1.7, 24)).reshape(2, 3, 4)
    yield Sample((x,), {"axis": (0, 1, 2), "keepdims": False})
    yield Sample((x,), {"axis": (1,), "keepdims": False})
    yield Sample((x,), {"axis": (0, 2), "keepdims": True})
    yield Sample((x.T,), {"axis": (2,), "keepdims": False})
    yield Sample((x[:, ::-2, ::3],), {"axis": (0, 1), "keepdims": False})
    yield Sample((np.asarray(1.5),), {"axis": (), "keepdims": False})
    yield Sample((x.astype(np.float32),), {"axis": (1,), "keepdims": False})
    k = rng.integers(-4, 5, (3, 4))
    yield Sample((k,), {"axis": (0,), "keepdims": False}, differentiable=False)
    yield Sample((k > 0,), {"axis": (1,), "keepdims": False}, differentiable=False)


def spread(b: Builder, r: Any, x: Any, axis: Axes, keepdims: bool) -> Any:
    """Broadcast a reduced value back over the axes that were reduced."""
    if not keepdims and axis:
        r = b.expand_dims(r, axis=axis)
    return b.broadcast_like(r, x)


def _sum_dtype(x: Type) -> DType:
    dtype: DType = np.zeros(0, x.dtype).sum().dtype
    return dtype


def _sum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from reduction_samples(rng)
    yield Sample((np.zeros((0, 3)),), {"axis": (0,), "keepdims": False})


reduction(
    "sum",
    np.sum,
    Fold("0", "({acc} + {x})"),
    Vjp(
        lambda b, ct, out, x, axis, keepdims=False: b.cast(
            spread(b, ct, x, axis, keepdims), b.type_of(x)
        )
    ),
    _sum_dtype,
    _sum_samples,
)

# ---------------------------------------------------------------- deviance


def _deviations(b: Builder, x: Any, axis: Axes) -> Any:
    """Return what elements are above their mean."""
    shape = b.shape(x)
    count = dims.product(shape[k] for k in axis)
    return b.subtract(x, b.divide(b.sum(x, axis=axis, keepdims=True), count))


def _deviance(x: Any, axis: Axes, keepdims: bool = False) -> Any:
    gap = x - np.mean(x, axis=axis, keepdims=True)
    return np.sum(gap * gap, axis=axis, keepdims=keepdims)


def _squared(b: Builder, x: Any, *, axis: Axes, keepdims: bool = False) -> Any:
    gap = _deviations(b, x, axis)
    return b.sum(b.multiply(gap, gap), axis=axis, keepdims=keepdims)


def _deviance_vjp(
    b: Builder, ct: Any, out: Any, x: Any, axis: Axes, keepdims: bool = False
) -> Any:
    """Return the cotangent: there is none through the mean, where the sum is least."""
    gap = _deviations(b, x, axis)
    return b.multiply(spread(b, b.add(ct, ct), x, axis, keepdims), gap)


def _deviance_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for s in reduction_samples(rng):
        if s.args[0].dtype.kind == "f":
            yield s


define(
    name="deviance",  # the sum of squared differences from the mean
    kind=Kind.REDUCTION,
    operands=("x",),
    infer=lambda x, *, axis, keepdims=False: reduced_type(
        "deviance", x, x.dtype, axis, keepdims, "0"
    ),
    eager=_deviance,
    derivatives=(Vjp(_deviance_vjp, ("x",)),),
    lower=None,
    samples=_deviance_samples,
    decompose=_squared,
)

# ---------------------------------------------------------------- product


def exclusive_products(b: Builder, x: Any, axis: int) -> Any:
    """Return, for each element, the product of all others along `axis`."""
    before = shifted(b, b.cumprod(x, axis=axis), axis, 1)
    flipped = b.flip(x, axis=(axis,))
    after = shifted(b, b.cumprod(flipped, axis=axis), axis, 1)
    return b.multiply(before, b.flip(after, axis=(axis,)))


def _prod_vjp(
    b: Builder, ct: Any, out: Any, x: Any, axis: Axes, keepdims: bool = False
) -> Any:
    """Multiply by the product of the others, which is right where elements are 0."""
    ct = spread(b, ct, x, axis, keepdims)
    if not axis:
        return b.cast(ct, b.type_of(x))
    if len(axis) == 1:
        return b.multiply(ct, exclusive_products(b, x, axis[0]))
    rest = tuple(k for k in range(len(b.shape(x))) if k not in axis)
    order = (*rest, *axis)
    moved = b.transpose(x, axes=order)
    shape = b.shape(moved)
    lines = (*shape[: len(rest)], dims.product(shape[len(rest) :]))
    others = exclusive_products(b, b.reshape(moved, shape=lines), len(rest))
    back = tuple(order.index(k) for k in range(len(order)))
    others = b.transpose(b.reshape(others, shape=shape), axes=back)
    return b.multiply(ct, others)


def _prod_dtype(x: Type) -> DType:
    dtype: DType = np.zeros(0, x.dtype).prod().dtype
    return dtype


def _prod_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _sum_samples(rng)
    x = rng.uniform(0.5, 1.5, (3, 4))
    x[0, 1] = x[2, 2] = x[2, 3] = 0.0  # none, one and two zeros in a line
    yield Sample((x,), {"axis": (0,), "keepdims": False})
    yield Sample((x,), {"axis": (1,), "keepdims": True})
    yield Sample((x,), {"axis": (0, 1), "keepdims": False})


reduction(
    "prod",
    np.prod,
    Fold("1", "({acc} * {x})"),
    Vjp(_prod_vjp, ("x",)),
    _prod_dtype,
    _prod_samples,
)

# ---------------------------------------------------------------- extrema


def _extremum_vjp(
    b: Builder, ct: Any, out: Any, x: Any, axis: Axes, keepdims: bool = False
) -> Any:
    """Spread the cotangent evenly over the extremal entries; NaN is extremal."""
    ct, out = (spread(b, r, x, axis, keepdims) for r in (ct, out))
    hit = b.logical_or(b.equal(x, out), b.isnan(x))
    hits = b.cast(b.sum(hit, axis=axis, keepdims=True), b.type_of(x))
    return b.where(hit, b.divide(ct, hits), 0.0)


def _extremum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from reduction_samples(rng)
    ties = rng.integers(0, 2, (3, 4)).astype(float)
    yield Sample((ties,), {"axis": (1,), "keepdims": False}, differentiable=False)
    odd = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 0.0]])
    yield Sample((odd,), {"axis": (1,), "keepdims": True}, differentiable=False)
    yield Sample((odd,), {"axis": (0, 1), "keepdims": False}, differentiable=False)
    yield Sample((np.zeros((2, 0)),), {"axis": (0,), "keepdims": False})


def _same_dtype(x: Type) -> DType:
    return x.dtype


for _name, _eager, _step in (
    ("max", np.max, "maximum({acc}, {x})"),
    ("min", np.min, "minimum({acc}, {x})"),
):
    reduction(
        _name,
        _eager,
        Fold(FIRST, _step),
        Vjp(_extremum_vjp, ("x", "out")),
        _same_dtype,
        _extremum_samples,
    )

# ---------------------------------------------------------------- any, all


def _truth_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for s in reduction_samples(rng):
        yield Sample(s.args, s.attrs, differentiable=False)
    few = rng.integers(0, 3, (4, 3)) == 0
    yield Sample((few,), {"axis": (0,), "keepdims": False})
    yield Sample((~few,), {"axis": (1,), "keepdims": True})
    yield Sample((np.zeros((0, 3)),), {"axis": (0,), "keepdims": False})
    yield Sample((np.array([np.nan, 0.0]),), {"axis": (0,), "keepdims": False})


def _truth(x: Type) -> DType:
    return BOOL


reduction(
    "any",
    np.any,
    Fold("False", "logical_or({acc}, {x})"),
    ZERO,
    _truth,
    _truth_samples,
)
reduction(
    "all",
    np.all,
    Fold("True", "logical_and({acc}, {x})"),
    ZERO,
    _truth,
    _truth_samples,
)

# ---------------------------------------------------------------- argmax, argmin


def _arg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for s in _extremum_samples(rng):
        if len(s.attrs["axis"]) in (1, s.args[0].ndim) and s.args[0].size:
            yield Sample(s.args, s.attrs, differentiable=False)


def _position(name: str, winner: Callable[..., Any], extreme: str) -> None:
    """Define argmax or argmin: the first winner's position; NaN wins."""

    def infer(x: Type, *, axis: Axes, keepdims: bool = False) -> Type:
        if len(axis) not in (1, x.ndim):
            raise ShapeError(f"{name}: one axis or all axes of {x}, not {axis}")
        return reduced_type(name, x, I64, axis, keepdims, FIRST)

    def eager(x: Any, axis: Axes, keepdims: bool = False) -> Any:
        one = axis[0] if len(axis) == 1 else None
        return winner(x, axis=one, keepdims=keepdims)

    def decomposed(b: Builder, x: Any, *, axis: Axes, keepdims: bool = False) -> Any:
        """Return the first position of what equals the extreme, or is NaN."""
        t = b.type_of(x)
        count = dims.product(t.shape[k] for k in axis)
        spread = tuple(t.shape[k] if k in axis else 1 for k in range(t.ndim))
        place = b.reshape(b.arange(size=count), shape=spread)
        hit = b.equal(x, getattr(b, extreme)(x, axis=axis, keepdims=True))
        if t.dtype.kind == "f":
            hit = b.logical_or(hit, b.isnan(x))
        return b.min(b.where(hit, place, count), axis=axis, keepdims=keepdims)

    define(
        name=name,
        kind=Kind.REDUCTION,
        operands=("x",),
        infer=infer,
        eager=eager,
        derivatives=(ZERO,),
        lower=None,
        samples=_arg_samples,
        decompose=decomposed,
        position=True,
    )


_position("argmax", np.argmax, "max")
_position("argmin", np.argmin, "min")
