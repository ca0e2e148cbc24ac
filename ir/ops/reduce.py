"""Reductions: over an axis tuple, with keepdims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..build import Builder
from ..errors import ShapeError
from ..op import Derivative, Fold, Kind, Op, Sample, Vjp, define
from ..types import DType, Type

Axes = tuple[int, ...]


def reduced_type(x: Type, dtype: DType, axis: Axes, keepdims: bool) -> Type:
    """Return the type of a reduction; a full one gives a scalar, as in NumPy."""
    if len(set(axis)) != len(axis) or not all(0 <= k < x.ndim for k in axis):
        raise ShapeError(f"axes {axis} do not fit {x}")
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
        return reduced_type(x, dtype(x), axis, keepdims)

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
