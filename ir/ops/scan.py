"""Scans: cumsum, cumprod, cummax, cummin, and the linear recurrence of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..errors import ShapeError
from ..op import Fold, Kind, Sample, Vjp, define
from ..types import DType, Type, promote, same_shape


def _check(name: str, x: Type, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{name}: {x} has no axis {axis}")


def shifted(b: Builder, x: Any, axis: int, fill: Any) -> Any:
    """Move `x` on by one along `axis`: `fill` enters, the last element leaves."""
    like = b.type_of(x)
    kept = dims.maximum(dims.add(like.shape[axis], -1), 0)
    part = b.slice(x, 0, axis=axis, size=kept, step=1)
    base = b.full(fill, shape=like.shape, dtype=like.dtype)
    return b.slice_scatter(base, part, 1, axis=axis, size=kept, step=1)


def _scan_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.uniform(0.5, 1.5, (3, 4))
    yield Sample((x,), {"axis": 0})
    yield Sample((x,), {"axis": 1})
    yield Sample((x[::-1, ::-2],), {"axis": 0})
    yield Sample((x.astype(np.float32),), {"axis": 1})
    yield Sample((np.zeros((0, 2)),), {"axis": 0})
    yield Sample((np.zeros((2, 0)),), {"axis": 0})
    yield Sample((rng.normal(size=(1,)),), {"axis": 0})
    zeros = x.copy()
    zeros[0, 1] = zeros[2, 2] = zeros[1, 2] = 0.0
    yield Sample((zeros,), {"axis": 0})
    k = rng.integers(-3, 4, (2, 3)).astype(np.int32)
    yield Sample((k,), {"axis": 1}, differentiable=False)
    yield Sample((k > 0,), {"axis": 1}, differentiable=False)


def _extremum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.permutation(np.linspace(-1.9, 1.7, 24)).reshape(2, 3, 4)
    for axis in range(3):
        yield Sample((x,), {"axis": axis})
    yield Sample((x[:, ::-2, ::-1],), {"axis": 2})
    yield Sample((x.astype(np.float32),), {"axis": 1})
    yield Sample((x[:0],), {"axis": 0})
    yield Sample((x[:, :0],), {"axis": 0})
    k = rng.integers(-3, 4, (3, 6))
    yield Sample((k.astype(float),), {"axis": 1}, differentiable=False)
    yield Sample((k.astype(np.int32),), {"axis": 1}, differentiable=False)
    yield Sample((k > 0,), {"axis": 1}, differentiable=False)
    odd = np.array([-np.inf, 1.0, np.nan, 2.0, np.inf])
    yield Sample((odd,), {"axis": 0}, differentiable=False)


def _accumulation(
    name: str,
    eager: Callable[..., Any],
    fold: Fold,
    derivative: Vjp,
    samples: Callable[..., Iterator[Sample]] = _scan_samples,
) -> None:
    def dtype(x: Type) -> DType:
        found: DType = eager(np.zeros(0, x.dtype), axis=0).dtype
        return found

    def infer(x: Type, *, axis: int) -> Type:
        _check(name, x, axis)
        return Type(dtype(x), x.shape)

    define(
        name=name,
        kind=Kind.SCAN,
        operands=("x",),
        infer=infer,
        eager=lambda x, axis: eager(x, axis=axis),
        derivatives=(derivative,),
        lower=fold,
        samples=samples,
        computes=lambda x: (dtype(x),),
    )


def _cumsum_vjp(b: Builder, ct: Any, out: Any, x: Any, axis: int) -> Any:
    back = b.cumsum(b.flip(ct, axis=(axis,)), axis=axis)
    return b.cast(b.flip(back, axis=(axis,)), b.type_of(x))


def _cumprod_vjp(b: Builder, ct: Any, out: Any, x: Any, axis: int) -> Any:
    """Return before * s with s[i] = ct[i] + x[i+1] * s[i+1]; no division by x."""
    before = shifted(b, b.cumprod(x, axis=axis), axis, 1)
    return b.multiply(before, _backward(b, x, ct, axis))


def _backward(b: Builder, x: Any, ct: Any, axis: int) -> Any:
    """Return s with s[i] = ct[i] + x[i+1] * s[i+1]: the transposed recurrence."""
    factors = shifted(b, b.flip(x, axis=(axis,)), axis, 0)
    back = b.linear_recurrence(factors, b.flip(ct, axis=(axis,)), axis=axis)
    return b.flip(back, axis=(axis,))


_accumulation("cumsum", np.cumsum, Fold("0", "({acc} + {x})"), Vjp(_cumsum_vjp))
_accumulation(
    "cumprod", np.cumprod, Fold("1", "({acc} * {x})"), Vjp(_cumprod_vjp, ("x",))
)

# ---------------------------------------------------------------- running extrema


def _running(name: str, ufunc: np.ufunc, loses: str) -> None:
    """Define a running extremum; it is differentiated as a chain of extrema of two."""

    def derivative(b: Builder, ct: Any, out: Any, x: Any, axis: int) -> Any:
        before = shifted(b, out, axis, 0)
        wins = b.cast(getattr(b, loses)(x, before), b.type_of(x))
        ties = b.cast(b.equal(x, before), b.type_of(x))
        kept = _without_first(b, b.add(wins, b.multiply(ties, 0.5)), axis)
        return b.multiply(_backward(b, kept, ct, axis), b.subtract(1.0, kept))

    fold = Fold("first", ufunc.__name__ + "({acc}, {x})")
    vjp = Vjp(derivative, ("x", "out"))
    _accumulation(name, ufunc.accumulate, fold, vjp, _extremum_samples)


def _without_first(b: Builder, x: Any, axis: int) -> Any:
    """Put a zero in the place of the first element along `axis`."""
    like = b.type_of(x)
    size = dims.minimum(like.shape[axis], 1)
    first = (*like.shape[:axis], size, *like.shape[axis + 1 :])
    zero = b.full(0, shape=first, dtype=like.dtype)
    return b.slice_scatter(x, zero, 0, axis=axis, size=size, step=1)


_running("cummax", np.maximum, "less")
_running("cummin", np.minimum, "greater")

# ---------------------------------------------------------------- linear recurrence


def _recurrence_type(x: Type, y: Type, *, axis: int) -> Type:
    _check("linear_recurrence", x, axis)
    if not same_shape(x.shape, y.shape):
        raise ShapeError(f"linear_recurrence: {x} and {y} differ in shape")
    return Type(promote(x, y).dtype, x.shape)


def _recurrence(x: Any, y: Any, axis: int) -> Any:
    out = np.zeros(x.shape, np.result_type(x, y))
    a, u, s = (np.moveaxis(z, axis, 0) for z in (x, y, out))
    last: Any = np.zeros(s.shape[1:], s.dtype)
    for i in range(len(s)):
        s[i] = last = a[i] * last + u[i]
    return out


def _recurrence_in_factor(
    b: Builder, ct: Any, out: Any, x: Any, y: Any, axis: int
) -> Any:
    slope = b.multiply(_backward(b, x, ct, axis), shifted(b, out, axis, 0))
    return b.cast(slope, b.type_of(x))


def _recurrence_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, y = rng.normal(size=(2, 3, 4))
    yield Sample((x, y), {"axis": 0})
    yield Sample((x.astype(np.float32), y.astype(np.float32)), {"axis": 1})
    yield Sample((np.zeros((0, 2)), np.zeros((0, 2))), {"axis": 0})


define(
    name="linear_recurrence",  # out[i] = x[i] * out[i-1] + y[i], with out[-1] = 0
    kind=Kind.SCAN,
    operands=("x", "y"),
    infer=_recurrence_type,
    eager=_recurrence,
    derivatives=(
        Vjp(_recurrence_in_factor, ("x", "out")),
        Vjp(
            lambda b, ct, out, x, y, axis: b.cast(
                _backward(b, x, ct, axis), b.type_of(y)
            ),
            ("x",),
        ),
    ),
    lower=Fold("0", "({x} * {acc} + {y})"),
    samples=_recurrence_samples,
    computes=lambda x, y: (promote(x, y).dtype,) * 2,
)
