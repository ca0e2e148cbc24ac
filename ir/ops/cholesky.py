"""Cholesky's factorisation, and systems with a triangular matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..build import Builder
from ..op import Kind, Routine, Sample, Vjp, define
from ..types import Type, promote
from .linalg import (
    SINGULAR,
    batch,
    check_right_side,
    check_square,
    right_side,
    swapped,
    well_conditioned,
)


def _triangle(b: Builder, x: Any, *, lower: bool = True, diagonal: float = 1.0) -> Any:
    """Return a triangle of every matrix, with zeros elsewhere; scale its diagonal."""
    n = b.shape(x)[-1]
    columns = b.arange(size=n)
    rows = b.expand_dims(columns, axis=(1,))
    inside = b.greater(rows, columns) if lower else b.less(rows, columns)
    on = x if diagonal == 1 else b.multiply(x, diagonal)
    return b.where(inside, x, b.where(b.equal(rows, columns), on, 0.0))


# ---------------------------------------------------------------- cholesky


def _cholesky_type(x: Type) -> Type:
    check_square("cholesky", x)
    return x


def _cholesky_vjp(b: Builder, ct: Any, out: Any, x: Any) -> Any:
    """Return the cotangent of the lower triangle, which is all that is read.

    With Phi for the lower triangle with half of its diagonal, and `out` = L,
    dL = L Phi(inv(L) dx inv(L).T) for a symmetric dx.
    """
    inner = _triangle(b, b.matmul(swapped(b, out), ct), diagonal=0.5)
    half = b.triangular_solve(out, inner, lower=True, transposed=True)
    both = b.triangular_solve(out, swapped(b, half), lower=True, transposed=True)
    return _triangle(b, b.add(both, swapped(b, both)), diagonal=0.5)


def _positive(rng: np.random.Generator, *shape: int) -> Any:
    x = rng.normal(size=shape)
    return x @ np.swapaxes(x, -1, -2) + 0.5 * shape[-1] * np.eye(shape[-1])


def _cholesky_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((_positive(rng, 3, 3),))
    yield Sample((_positive(rng, 2, 4, 4),))
    yield Sample((_positive(rng, 1, 1),))
    yield Sample((_positive(rng, 3, 3)[::-1, ::-1],))
    yield Sample((np.tril(_positive(rng, 3, 3)),))  # the upper triangle is not read
    yield Sample((_positive(rng, 3, 3).astype(np.float32),))
    yield Sample((np.zeros((0, 0)),))
    yield Sample((np.zeros((0, 2, 2)),))


define(
    name="cholesky",  # the lower triangle L of x = L @ L.T; x's upper one is not read
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_cholesky_type,
    eager=lambda x: np.linalg.cholesky(x),
    derivatives=(Vjp(_cholesky_vjp, ("out",)),),
    lower=Routine(
        "cholesky",
        lambda x: x.shape[-1:],
        over="x",
        error="Matrix is not positive definite",
    ),
    samples=_cholesky_samples,
    batch=batch,
)

# ---------------------------------------------------------------- triangular systems


def _triangular_type(x: Type, y: Type, *, lower: bool, transposed: bool) -> Type:
    check_square("triangular_solve", x)
    check_right_side("triangular_solve", x, y)
    return Type(promote(x, y).dtype, y.shape)


def _triangular_solve(x: Any, y: Any, lower: bool, transposed: bool) -> Any:
    from scipy.linalg import solve_triangular

    out = np.empty(y.shape, np.result_type(x, y))
    for index in np.ndindex(*y.shape[:-2]) if y.size else ():
        out[index] = solve_triangular(
            x[index],
            y[index],
            trans=int(transposed),
            lower=lower,
            check_finite=False,
        )
    return out


def _in_triangle(
    b: Builder, ct: Any, out: Any, x: Any, y: Any, lower: bool, transposed: bool
) -> Any:
    side = b.triangular_solve(x, ct, lower=lower, transposed=not transposed)
    left, right = (out, side) if transposed else (side, out)
    whole = b.negative(b.matmul(left, swapped(b, right)))
    return b.cast(_triangle(b, whole, lower=lower), b.type_of(x))


def _in_side(
    b: Builder, ct: Any, out: Any, x: Any, y: Any, lower: bool, transposed: bool
) -> Any:
    side = b.triangular_solve(x, ct, lower=lower, transposed=not transposed)
    return b.cast(side, b.type_of(y))


def _triangular_samples(rng: np.random.Generator) -> Iterator[Sample]:
    pairs = [
        (well_conditioned(rng, 3, 3), rng.normal(size=(3, 2))),
        (well_conditioned(rng, 2, 3, 3), rng.normal(size=(2, 3, 1))),
        (well_conditioned(rng, 4, 4).T, rng.normal(size=(2, 4)).T),
        (np.zeros((0, 0)), np.zeros((0, 2))),
        (well_conditioned(rng, 3, 3), np.zeros((3, 0))),
        (well_conditioned(rng, 2, 2).astype(np.float32), np.ones((2, 1), np.float32)),
    ]
    for x, y in pairs:
        for lower in (True, False):
            for transposed in (True, False):
                yield Sample((x, y), {"lower": lower, "transposed": transposed})


define(
    # The z with t @ z = y, or t.T @ z = y, where t is a triangle of x.
    name="triangular_solve",
    kind=Kind.ROUTINE,
    operands=("x", "y"),
    infer=_triangular_type,
    eager=_triangular_solve,
    derivatives=(Vjp(_in_triangle, ("out", "x")), Vjp(_in_side, ("x",))),
    lower=Routine(
        "triangular_solve",
        right_side,
        ("x",),
        "y",
        ("lower", "transposed"),
        SINGULAR,
    ),
    samples=_triangular_samples,
    batch=batch,
)
