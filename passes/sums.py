"""What a loop adds up, as sums over its iterations: products where that is possible.

A sum over the new axis of a product of which one factor is a vector per iteration and
the others are numbers is a product of a matrix by a vector; of two vectors along
different axes, of two matrices. No array of all the products is made.

    c += w[k] * a[:, k]                 a @ w
    c += a[:, k, None] * b[k]           a @ b
    s += x[k] * y[k]                    x @ y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..ir.func import Operand, Value, type_of
from ..ir.ops.batch import Axis, moved
from ..ir.types import Type
from .independent import TERMS, Dependent, Term

if TYPE_CHECKING:
    from .vectorize import Batch

Factors: TypeAlias = tuple[Operand, ...]
Given: TypeAlias = tuple[Any, Axis]


def total(batch: Batch, old: Any, terms: Sequence[Term]) -> Any:
    """Return `old` and, added to it, each of the terms in every iteration."""
    b, want = batch.b, type_of(old)
    for sign, x in terms:
        for s, t in _totals(batch, sign, x, want):
            old = b.add(old, t) if s > 0 else b.subtract(old, t)
    if type_of(old).dtype != want.dtype or type_of(old).shape != want.shape:
        raise Dependent
    return old


def _totals(batch: Batch, sign: int, x: Operand, want: Type) -> list[tuple[int, Any]]:
    """Return the sum of one term over the iterations, in parts with signs."""
    if want.dtype.kind not in "iufc":
        raise Dependent
    products = _products(batch, sign, x, want)
    made = [_contracted(batch, p, want) for _, p in products]
    if all(t is not None for t, _ in made):
        batch.gains |= any(gains for _, gains in made)
        return [(s, t) for (s, _), (t, _) in zip(products, made, strict=True)]
    b = batch.b
    v, axis = batch.operand(x)
    v = b.cast(v, want) if isinstance(v, Value) else v
    if axis is None:
        shape = (batch.over.size, *type_of(v).shape)
        if isinstance(v, Value) and v.type.shape:
            v, axis = b.broadcast_to(v, shape=shape), 0
        else:
            v, axis = b.full(v, shape=shape, dtype=want.dtype), 0
    return [(sign, b.cast(b.sum(v, axis=(axis,), keepdims=False), want))]


def _products(
    batch: Batch, sign: int, x: Operand, want: Type
) -> list[tuple[int, Factors]]:
    """Multiply out: return the products whose sum `x` is.

    Only sums of products are taken apart: what is added up was rounded before. A
    difference of given numbers may be exact and small, and stays one factor.
    """
    whole: list[tuple[int, Factors]] = [(sign, (x,))]
    node = batch.iterations.makers.get(x) if isinstance(x, Value) else None
    if node is None or x in batch.iterations.reads:
        return whole
    t = node.result.type
    if t.dtype != want.dtype:
        return whole
    found: list[tuple[int, Factors]] = []
    if node.op.signs and all(type_of(y).shape == t.shape for y in node.operands):
        for y, s in zip(node.operands, node.op.signs, strict=True):
            found += _products(batch, sign * s, y, want)
        rounded = len(node.operands) == 1 or all(len(p) > 1 for _, p in found)
        return found if rounded and len(found) <= TERMS else whole
    if node.op.multiplies:
        left, right = (_products(batch, 1, y, want) for y in node.operands)
        if len(left) * len(right) <= TERMS:
            return [(sign * s * r, (*p, *q)) for s, p in left for r, q in right]
    return whole


def _contracted(batch: Batch, factors: Factors, want: Type) -> tuple[Any, bool]:
    """Return a sum of products as one product, and whether that is a gain.

    The product is None where there is none.
    """
    b = batch.b
    same: list[Any] = []  # numbers that are the same in all iterations
    each: list[Any] = []  # numbers, one per iteration
    arrays: list[tuple[Any, int]] = []
    for f in factors:
        x, axis = batch.operand(f)
        ndim = len(type_of(x).shape)
        if axis is None:
            if ndim:
                return None, False
            same.append(x)
        elif ndim == 1:
            each.append(b.cast(x, want))
        else:
            arrays.append((b.cast(x, want), axis))
    if len(arrays) == 1 and each:
        x, axis = arrays[0]
        weights = _product(b, [*each, *same])
        return _by_vector(b, x, axis, weights), batch.is_part(x)
    if len(arrays) == 2:
        return _outer(b, arrays, same, each), True
    if not arrays and len(each) > 1:
        return b.matmul(each[0], _product(b, [*each[1:], *same])), False
    return None, False


def _product(b: Any, xs: Sequence[Any]) -> Any:
    first, *rest = xs
    for x in rest:
        first = b.multiply(first, x)
    return first


def _by_vector(b: Any, x: Any, axis: int, weights: Any) -> Any:
    """Return the sum of lines of a matrix, times weights."""
    if len(b.shape(x)) != 2:
        return None
    return b.matmul(x, weights) if axis else b.matmul(weights, x)


def _outer(
    b: Any, arrays: Sequence[tuple[Any, int]], same: list[Any], each: list[Any]
) -> Any:
    """Return the sum of columns by rows as a product of matrices."""
    (x, p), (y, q) = arrays
    x, y = moved(b, x, p, 0), moved(b, y, q, 0)
    if len(b.shape(x)) > len(b.shape(y)):
        x, y = y, x
    shape, other = b.shape(x), b.shape(y)
    if len(other) != 3:
        return None
    if len(shape) == 2 and other[2] == 1:  # x[k] * y[k, :, None]
        left, right = b.squeeze(y, axis=(2,)), x
    elif len(shape) == 3 and shape[2] == 1 and other[1] == 1 and shape[1] != 1:
        left, right = b.squeeze(x, axis=(2,)), b.squeeze(y, axis=(1,))
    elif len(shape) == 3 and other[2] == 1 and shape[1] == 1 and other[1] != 1:
        left, right = b.squeeze(y, axis=(2,)), b.squeeze(x, axis=(1,))
    else:
        return None
    columns = moved(b, left, 0, 1)
    if each or same:
        columns = b.multiply(columns, _product(b, [*each, *same]))
    return b.matmul(columns, right)
