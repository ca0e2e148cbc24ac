"""Contraction: matmul, with NumPy's rules for vectors, matrices and stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..errors import ShapeError
from ..op import Kind, Op, Sample, Vjp, define
from ..types import Type, broadcast_shapes, promote
from .batch import Axis, Batched, moved


def _matmul_type(x: Type, y: Type) -> Type:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: an operand is a scalar, {x} @ {y}", hint="multiply with *"
        )
    inner = y.shape[max(y.ndim - 2, 0)]
    if not dims.same(x.shape[-1], inner):
        raise ShapeError(
            f"matmul: inner sizes differ, {x} @ {y}",
            rule=f"the last axis of x and axis {max(y.ndim - 2, 0)} of y must agree",
        )
    stack = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = (*stack, *x.shape[-2:-1], *(y.shape[-1:] if y.ndim > 1 else ()))
    dtype = promote(x, y).dtype
    return Type(dtype, shape) if shape else Type(dtype, scalar=True)


def _swapped(b: Builder, x: Any) -> Any:
    n = len(b.shape(x))
    return b.transpose(x, axes=(*range(n - 2), n - 1, n - 2))


def _column(b: Builder, x: Any) -> Any:
    return b.expand_dims(x, axis=(len(b.shape(x)),))


def _row(b: Builder, x: Any) -> Any:
    return b.expand_dims(x, axis=(len(b.shape(x)) - 1,))


def _in_left(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
    """Return ct @ y.T, summed over the stack axes along which x was broadcast."""
    match len(b.shape(x)), len(b.shape(y)):
        case 1, 1:
            found = b.multiply(ct, y)
        case 1, 2:
            found = b.matmul(y, ct)
        case 1, _:
            found = b.squeeze(b.matmul(y, _column(b, ct)), axis=(len(b.shape(ct)),))
        case _, 1:
            found = b.multiply(_column(b, ct), y)
        case _:
            found = b.matmul(ct, _swapped(b, y))
    return b.unbroadcast(found, x)


def _in_right(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
    """Return x.T @ ct, summed over the stack axes along which y was broadcast."""
    match len(b.shape(x)), len(b.shape(y)):
        case 1, 1:
            found = b.multiply(ct, x)
        case 1, _:
            found = b.multiply(_column(b, x), _row(b, ct))
        case 2, 1:
            found = b.matmul(ct, x)
        case n, (1 | 2) as m if n > 2:  # one product over all rows of the stack
            rows = b.size(x, tuple(range(n - 1)))
            inner, columns = b.shape(x)[-1], b.shape(ct)[-1:] if m == 2 else ()
            ct = b.reshape(ct, shape=(rows, *columns))
            x = _swapped(b, b.reshape(x, shape=(rows, inner)))
            found = b.matmul(x, ct)
        case _:
            found = b.matmul(_swapped(b, x), ct)
    return b.unbroadcast(found, y)


def _matmul_batch(
    b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis]
) -> Batched | None:
    """Make one product of many: of a vector a matrix, of a matrix a stack.

    Vectors that meet something that is the same in all iterations are the rows or the
    columns of a matrix.
    """
    (x, y), (p, q) = xs, axes
    n, m = (len(b.shape(v)) - (k is not None) for v, k in zip(xs, axes, strict=True))
    if n == 1 and m == 1:
        return _dots(b, x, y, p, q)
    if p is None:
        assert q is not None
        if m == 1:
            return b.matmul(x, moved(b, y, q, 1)), n - 1
        return (b.matmul(x, moved(b, y, q, 0)), 0) if n <= m else None
    if q is None:
        return (b.matmul(moved(b, x, p, 0), y), 0) if m <= max(n, 2) else None
    x, y = moved(b, x, p, 0), moved(b, y, q, 0)
    if n == 1 and m == 2:
        return b.squeeze(b.matmul(_row(b, x), y), axis=(1,)), 0
    if n == 2 and m == 1:
        return b.squeeze(b.matmul(x, _column(b, y)), axis=(2,)), 0
    return (b.matmul(x, y), 0) if n == m else None


def _dots(b: Builder, x: Any, y: Any, p: Axis, q: Axis) -> Batched | None:
    """Return the products of vectors by vectors, one per iteration."""
    if p is None or q is None:
        other, many, axis = (x, y, q) if p is None else (y, x, p)
        return (b.matmul(other, many) if axis else b.matmul(many, other)), 0
    product = b.multiply(moved(b, x, p, q), y)
    out = b.sum(product, axis=(1 - q,), keepdims=False)
    return out, 0


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    shapes = [
        ((4,), (4,)),
        ((2, 4), (4,)),
        ((4,), (4, 3)),
        ((2, 4), (4, 3)),
        ((5, 2, 4), (4, 3)),
        ((2, 4), (5, 4, 3)),
        ((5, 2, 4), (5, 4, 3)),
        ((5, 1, 2, 4), (6, 4, 3)),
        ((1, 2, 4), (5, 4, 3)),
        ((5, 2, 4), (4,)),
        ((4,), (5, 4, 3)),
        ((2, 5, 2, 4), (4,)),
        ((4,), (2, 5, 4, 3)),
        ((1,), (1, 3)),
        ((2, 0), (0, 3)),
        ((0,), (0,)),
        ((0, 2), (2, 3)),
        ((0, 2, 3), (3, 2)),
    ]
    for a, b in shapes:
        yield Sample((rng.normal(size=a), rng.normal(size=b)))
    x, y = rng.normal(size=(2, 4, 4))
    yield Sample((x.T, y[::-1]))
    yield Sample((x.astype(np.float32), y[0].astype(np.float32)))
    yield Sample((x.astype(np.float32), y))
    yield Sample((x, np.arange(4)))
    k = rng.integers(-4, 5, (3, 3))
    yield Sample((k, k.astype(np.int32)), differentiable=False)
    yield Sample((k > 0, k < 0), differentiable=False)


define(
    name="matmul",
    kind=Kind.CONTRACTION,
    operands=("x", "y"),
    infer=_matmul_type,
    eager=np.matmul,
    derivatives=(Vjp(_in_left, ("y",)), Vjp(_in_right, ("x",))),
    lower=None,
    samples=_matmul_samples,
    batch=_matmul_batch,
    computes=lambda x, y: (promote(x, y).dtype,) * 2,
)
