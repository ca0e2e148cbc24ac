"""Joining arrays: concatenate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..dims import Dim
from ..errors import ShapeError
from ..op import Kind, Sample, Vjp, define
from ..types import Type, promote, same_shape


def _concatenate_type(*xs: Type, axis: int) -> Type:
    if not xs:
        raise ShapeError("concatenate: there is nothing to concatenate")
    first = xs[0]
    if not 0 <= axis < first.ndim:
        raise ShapeError(f"concatenate: {first} has no axis {axis}")
    size: Dim = 0
    for x in xs:
        if x.ndim != first.ndim or not same_shape(
            (*x.shape[:axis], *x.shape[axis + 1 :]),
            (*first.shape[:axis], *first.shape[axis + 1 :]),
        ):
            raise ShapeError(
                f"concatenate: {first} and {x} do not fit along axis {axis}",
                rule="all sizes but those along the axis must agree",
            )
        size = dims.add(size, x.shape[axis])
    shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    return Type(promote(*xs).dtype, shape)


def _concatenate_vjp(
    b: Builder, position: int, ct: Any, out: Any, *xs: Any, axis: int
) -> Any:
    sizes = [b.shape(x)[axis] for x in xs]
    start: Dim = 0
    for d in sizes[:position]:
        start = dims.add(start, d)
    part = b.slice(ct, start, axis=axis, size=sizes[position], step=1)
    return b.cast(part, b.type_of(xs[position]))


def _concatenate_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, y, z = (rng.normal(size=(n, 3)) for n in (2, 4, 0))
    yield Sample((x, y), {"axis": 0})
    yield Sample((x, z, y, x), {"axis": 0})
    yield Sample((x, x[:, ::-2]), {"axis": 1})
    yield Sample((x,), {"axis": 1})
    yield Sample((x[0], y[0]), {"axis": 0})
    yield Sample((x.astype(np.float32), y), {"axis": 0})
    yield Sample((x.astype(np.float32), x.astype(np.float32)), {"axis": 1})
    yield Sample((x, np.arange(3).reshape(1, 3)), {"axis": 0})
    yield Sample((x > 0, x < 0), {"axis": 0}, differentiable=False)


define(
    name="concatenate",
    kind=Kind.JOIN,
    operands=("*xs",),
    infer=_concatenate_type,
    eager=lambda *xs, axis: np.concatenate(xs, axis),
    derivatives=(Vjp(_concatenate_vjp),),
    lower=None,
    samples=_concatenate_samples,
    computes=lambda *xs: (promote(*xs).dtype,) * len(xs),
)
