"""Linear systems: solve and det, of matrices and stacks of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..errors import DTypeError, ShapeError
from ..op import Kind, Sample, Vjp, define
from ..types import Type, promote, same_shape


def _check_square(name: str, x: Type) -> None:
    if x.ndim < 2 or not dims.same(x.shape[-1], x.shape[-2]):
        raise ShapeError(
            f"{name}: {x} is not a square matrix",
            rule="the last two axes must have the same size",
        )
    if x.dtype.kind != "f" or x.dtype.itemsize < 4:
        raise DTypeError(
            f"{name}: {x} is not a matrix of float32 or float64", hint="convert it"
        )


def _swapped(b: Builder, x: Any) -> Any:
    n = len(b.shape(x))
    return b.transpose(x, axes=(*range(n - 2), n - 1, n - 2))


def _well_conditioned(rng: np.random.Generator, *shape: int) -> Any:
    n = shape[-1]
    return rng.uniform(-1, 1, shape) + n * np.eye(n)


# ---------------------------------------------------------------- solve


def _solve_type(x: Type, y: Type) -> Type:
    _check_square("solve", x)
    fits = y.ndim == x.ndim and same_shape(y.shape[:-1], x.shape[:-1])
    if not fits:
        raise ShapeError(
            f"solve: the right side {y} does not fit the matrix {x}",
            rule="both are stacks of matrices with the same number of rows",
        )
    return Type(promote(x, y).dtype, y.shape)


def _solve_in_matrix(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
    in_right = b.solve(_swapped(b, x), ct)
    return b.cast(b.negative(b.matmul(in_right, _swapped(b, out))), b.type_of(x))


def _solve_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((_well_conditioned(rng, 3, 3), rng.normal(size=(3, 2))))
    yield Sample((_well_conditioned(rng, 2, 3, 3), rng.normal(size=(2, 3, 1))))
    yield Sample((_well_conditioned(rng, 1, 1), rng.normal(size=(1, 1))))
    yield Sample((_well_conditioned(rng, 4, 4).T, rng.normal(size=(2, 4)).T))
    yield Sample((np.zeros((0, 0)), np.zeros((0, 2))))
    small = _well_conditioned(rng, 2, 2).astype(np.float32)
    yield Sample((small, np.ones((2, 1), np.float32)))


define(
    name="solve",  # the z with x @ z = y; a singular x is an error
    kind=Kind.EXTERN,
    operands=("x", "y"),
    infer=_solve_type,
    eager=lambda x, y: np.linalg.solve(x, y),
    derivatives=(
        Vjp(_solve_in_matrix, ("out", "x")),
        Vjp(
            lambda b, ct, out, x, y: b.cast(b.solve(_swapped(b, x), ct), b.type_of(y)),
            ("x",),
        ),
    ),
    lower=None,
    samples=_solve_samples,
)

# ---------------------------------------------------------------- det


def _det_type(x: Type) -> Type:
    _check_square("det", x)
    stack = x.shape[:-2]
    return Type(x.dtype, stack) if stack else Type(x.dtype, scalar=True)


def _det_vjp(b: Builder, ct: Any, out: Any, x: Any) -> Any:
    """Return ct * det(x) * inv(x).T; a singular x is an error."""
    shape = b.shape(x)
    n = shape[-1]
    rows = b.expand_dims(b.arange(size=n), axis=(1,))
    eye = b.cast(b.equal(rows, b.arange(size=n)), b.type_of(x))
    eye = b.broadcast_to(eye, shape=shape) if len(shape) > 2 else eye
    scale = b.multiply(ct, out)
    ndim = len(shape) - 2
    scale = b.expand_dims(scale, axis=(ndim, ndim + 1)) if ndim else scale
    return b.multiply(scale, b.solve(_swapped(b, x), eye))


def _det_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((_well_conditioned(rng, 3, 3),))
    yield Sample((_well_conditioned(rng, 2, 2, 2),))
    yield Sample((_well_conditioned(rng, 3, 3).T,))
    yield Sample((_well_conditioned(rng, 1, 1),))
    yield Sample((_well_conditioned(rng, 2, 2).astype(np.float32),))


define(
    name="det",
    kind=Kind.EXTERN,
    operands=("x",),
    infer=_det_type,
    eager=lambda x: np.linalg.det(x),
    derivatives=(Vjp(_det_vjp, ("out", "x")),),
    lower=None,
    samples=_det_samples,
)
