"""Products and norms, by way of matmul, transposes and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from ...passes.chains import best_splits
from ..values import is_traced
from .core import (
    all_axes,
    apply,
    asarray,
    axis_index,
    axis_tuple,
    cast,
    finish,
    implements,
    product,
    same_sizes,
    shape_of,
    unsupported,
    usual_size,
)
from .quantiles import scalar_where
from .reduce import max as max_
from .reduce import min as min_
from .reduce import sum as sum_
from .shapes import broadcast_shape, permuted


def flat(x: Any) -> Any:
    """Return the elements in C order, as one axis."""
    return apply("reshape", x, shape=(product(x.shape),)) if len(x.shape) != 1 else x


def matrix_product(x: Any, y: Any) -> Any:
    """Multiply with matmul's rules; bools and the like as NumPy promotes them."""
    return apply("matmul", x, y)


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    x, y = asarray(a), asarray(b)
    i, j = len(x.shape), len(y.shape)
    if not i or not j:
        return finish(apply("multiply", x, y), out)
    if j <= 2 and i <= 2:
        return finish(matrix_product(x, y), out)
    return finish(tensordot(x, y, ((i - 1,), (max(j - 2, 0),))), out)


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    x, y = flat(asarray(a)), flat(asarray(b))
    if x.dtype.kind == "c":
        raise unsupported("vdot: complex tensors", "conjugates have no op")
    return matrix_product(x, y)


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    x, y = asarray(a), asarray(b)
    if not x.shape or not y.shape:
        return apply("multiply", x, y)
    return tensordot(x, y, ((-1,), (-1,)))


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    x, y = flat(asarray(a)), flat(asarray(b))
    return finish(apply("multiply", apply("expand_dims", x, axis=(1,)), y), out)


@implements(np.linalg.outer)
def linalg_outer(x1: Any, x2: Any, /) -> Any:
    return outer(x1, x2)


@implements(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    x, y = asarray(a), asarray(b)
    i, j = _contracted(axes, len(x.shape), len(y.shape))
    if len(i) != len(j) or not same_sizes(
        [x.shape[k] for k in i], [y.shape[k] for k in j]
    ):
        raise ShapeError("shape-mismatch for sum")
    rest_x = [k for k in range(len(x.shape)) if k not in i]
    rest_y = [k for k in range(len(y.shape)) if k not in j]
    kept = (*(x.shape[k] for k in rest_x), *(y.shape[k] for k in rest_y))
    left = _matrix(x, rest_x, i)
    right = _matrix(y, j, rest_y)
    r = matrix_product(left, right)
    if len(kept) == 2 and len(rest_x) == 1:
        return r
    if not kept:
        r = apply("reshape", r, shape=())
        return apply("item", r) if len(x.shape) == len(y.shape) == 1 else r
    return apply("reshape", r, shape=kept)


def _contracted(axes: Any, i: int, j: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    try:
        first, second = axes
    except TypeError:
        n = axes.__index__()
        return axis_tuple(tuple(range(i - n, i)), i), axis_tuple(tuple(range(n)), j)
    return axis_tuple(first, i), axis_tuple(second, j)


def _matrix(x: Any, rows: Sequence[int], columns: Sequence[int]) -> Any:
    """Return `x` as a matrix whose rows and columns are groups of its axes."""
    order = (*rows, *columns)
    if order != tuple(range(len(order))):
        x = permuted(x, order)
    if len(rows) == len(columns) == 1:
        return x
    cut = len(rows)
    return apply("reshape", x, shape=(product(x.shape[:cut]), product(x.shape[cut:])))


@implements(np.linalg.matmul)
def linalg_matmul(x1: Any, x2: Any, /) -> Any:
    return matrix_product(asarray(x1), asarray(x2))


@implements(np.linalg.tensordot)
def linalg_tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    return tensordot(x1, x2, axes)


@implements(np.vecdot, np.linalg.vecdot)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    x, y = asarray(x1), asarray(x2)
    return sum_(apply("multiply", x, y), axis)


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    xs = [asarray(a) for a in arrays]
    if len(xs) < 2:
        raise ShapeError("Expecting at least two arrays.")
    split, _ = best_splits([*map(_rows, xs), _columns(xs[-1])])

    def between(i: int, j: int) -> Any:
        if j == i + 1:
            return xs[i]
        k = split[i, j]
        return dot(between(i, k), between(k, j))

    return finish(between(0, len(xs)), out)


def _rows(x: Any) -> float:
    return usual_size(x)[0] if len(x.shape) > 1 else 1.0


def _columns(x: Any) -> float:
    return usual_size(x)[-1] if len(x.shape) > 1 else 1.0


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    x = asarray(a)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError("Last 2 dimensions of the array must be square")
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        from .create import eye

        r = eye(x.shape[-1], dtype=x.dtype)
        return apply("copy", apply("broadcast_to", r, shape=tuple(x.shape)))
    r, square = None, x
    while n:
        if n & 1:
            r = square if r is None else matrix_product(r, square)
        n >>= 1
        square = matrix_product(square, square) if n else square
    return apply("copy", r) if r is x else r


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    x, y = asarray(a), asarray(b)
    ndim = max(len(x.shape), len(y.shape))
    left = (1,) * (ndim - len(x.shape)) + tuple(x.shape)
    right = (1,) * (ndim - len(y.shape)) + tuple(y.shape)
    x = apply("reshape", x, shape=tuple(d for n in left for d in (n, 1)))
    y = apply("reshape", y, shape=tuple(d for n in right for d in (1, n)))
    shape = tuple(m * n for m, n in zip(left, right, strict=True))
    return apply("reshape", apply("multiply", x, y), shape=shape)


@implements(np.cross)
def cross(
    a: Any,
    b: Any,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = asarray(a), asarray(b)
    i, j = axis_index(axisa, len(x.shape)), axis_index(axisb, len(y.shape))
    if x.shape[i] != 3 or y.shape[j] != 3:
        raise ShapeError("Both input arrays must be (arrays of) 3-dimensional vectors")
    xs = [apply("select", x, k, axis=i) for k in range(3)]
    ys = [apply("select", y, k, axis=j) for k in range(3)]
    parts = [
        apply(
            "subtract",
            apply("multiply", xs[p], ys[q]),
            apply("multiply", xs[q], ys[p]),
        )
        for p, q in ((1, 2), (2, 0), (0, 1))
    ]
    from .join import stack

    at = axis_index(axisc, len(shape_of(parts[0])) + 1)
    return stack(parts, at)


@implements(np.linalg.cross)
def linalg_cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return cross(x1, x2, axis=axis)


# ---------------------------------------------------------------- norms


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    x = asarray(x)
    if x.dtype.kind == "c":
        raise unsupported("norm: complex tensors", "conjugates have no op")
    if x.dtype.kind != "f":
        x = cast(x, np.float64)
    ndim = len(x.shape)
    if is_traced(ord):
        if (ndim if axis is None else len(_listed(axis))) != 1:
            raise unsupported(
                "norm: a matrix norm of computed order",
                "which norm it is must be known",
                "write the order in the call: np.linalg.norm(x, np.inf)",
            )
        k = 0 if axis is None else axis_tuple(axis, ndim)[0]
        return _computed_norm(x, ord, k, keepdims)
    if axis is None and (
        ord is None or (ord in ("f", "fro") and ndim == 2) or (ord == 2 and ndim == 1)
    ):
        v = flat(x)
        r = apply("root", matrix_product(v, v))
        return apply("reshape", r, shape=(1,) * ndim) if keepdims else r
    axes = tuple(range(ndim)) if axis is None else axis_tuple(axis, ndim)
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims)
    raise ShapeError("Improper number of dimensions to norm.")


def _vector_norm(x: Any, order: Any, k: int, keepdims: bool) -> Any:
    if order is None or order == 2:
        return apply("root", sum_(apply("multiply", x, x), k, keepdims=keepdims))
    size = apply("absolute", x)
    if order == np.inf:
        return max_(size, k, keepdims=keepdims)
    if order == -np.inf:
        return min_(size, k, keepdims=keepdims)
    if order == 0:
        nonzero = cast(apply("not_equal", x, 0), x.dtype)
        return sum_(nonzero, k, keepdims=keepdims)
    if order == 1:
        return sum_(size, k, keepdims=keepdims)
    if isinstance(order, str):
        raise ShapeError(f"Invalid norm order '{order}' for vectors")
    return _power_norm(x, order, k, keepdims)


def _listed(axis: Any) -> Sequence[Any]:
    return axis if isinstance(axis, tuple | list) else (axis,)


def _computed_norm(x: Any, order: Any, k: int, keepdims: bool) -> Any:
    """Return the norm of an order that is not known yet."""
    infinite, zero = apply("isinf", order), apply("equal", order, 0)
    usual = apply("where", apply("logical_or", infinite, zero), 1.0, order)
    r = _power_norm(x, usual, k, keepdims)
    high, low = (_vector_norm(x, e, k, keepdims) for e in (np.inf, -np.inf))
    extreme = apply("where", apply("greater", order, 0), high, low)
    r = apply("where", infinite, extreme, r)
    r = apply("where", zero, _vector_norm(x, 0, k, keepdims), r)
    return r if shape_of(r) else apply("item", r)


def _power_norm(x: Any, order: Any, k: int, keepdims: bool) -> Any:
    size = apply("absolute", x)
    total = sum_(apply("power", size, order), k, keepdims=keepdims)
    none = apply("equal", total, 0)  # where the derivative is 0, as in PyTorch
    usual = apply("where", none, 1.0, total)
    r = apply("power", usual, apply("divide", 1.0, order))
    return scalar_where(none, apply("power", 0.0, apply("divide", 1.0, order)), r)


def _matrix_norm(x: Any, order: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    row, column = axes
    if order in (None, "fro", "f"):
        return apply("root", sum_(apply("multiply", x, x), axes, keepdims=keepdims))
    pick: dict[Any, Any] = {1: (row, column, max_), -1: (row, column, min_)}
    pick |= {np.inf: (column, row, max_), -np.inf: (column, row, min_)}
    if order not in pick:
        raise unsupported(
            f"norm: matrix norm of order {order!r}", "it needs singular values"
        )
    summed, left, extremum = pick[order]
    r = sum_(apply("absolute", x), summed, keepdims=True)
    r = extremum(r, left, keepdims=True)
    if keepdims:
        return r
    r = apply("squeeze", r, axis=tuple(sorted(axes)))
    return r if shape_of(r) else apply("item", r)


@implements(np.linalg.vector_norm)
def vector_norm(
    x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2
) -> Any:
    x = asarray(x)
    axes = all_axes(axis, len(x.shape))
    if len(axes) == 1:
        return norm(x, ord, axes[0], keepdims)
    if axis is not None:
        raise unsupported("vector_norm: several axes", "one axis or all have a rule")
    r = norm(flat(x), ord, 0)
    return apply("reshape", r, shape=(1,) * len(x.shape)) if keepdims else r


@implements(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return norm(x, ord, (-2, -1), keepdims)


# ---------------------------------------------------------------- linear systems


def _floating(x: Any) -> Any:
    return x if x.dtype in (np.float32, np.float64) else cast(x, np.float64)


def _stacked_like(x: Any, stack: tuple[Any, ...]) -> Any:
    shape = (*stack, *x.shape[-2:])
    return x if same_sizes(x.shape, shape) else apply("broadcast_to", x, shape=shape)


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    x, y = _floating(asarray(a)), _floating(asarray(b))
    is_vector = len(y.shape) == 1
    if is_vector:
        y = apply("expand_dims", y, axis=(1,))
    stack = broadcast_shape(x.shape[:-2], y.shape[:-2])
    r = apply("solve", _stacked_like(x, stack), _stacked_like(y, stack))
    return apply("squeeze", r, axis=(len(r.shape) - 1,)) if is_vector else r


@implements(np.linalg.inv)
def inv(a: Any) -> Any:
    return apply("inv", _floating(asarray(a)))


@implements(np.linalg.det)
def det(a: Any) -> Any:
    return apply("det", _floating(asarray(a)))


# The named tuple that NumPy returns, which has no public name.
SlogdetResult: Any = type(np.linalg.slogdet(np.ones((1, 1))))


@implements(np.linalg.slogdet)
def slogdet(a: Any) -> Any:
    x = _floating(asarray(a))
    return SlogdetResult(apply("det_sign", x), apply("det_log", x))


@implements(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    x = _floating(asarray(a))
    if not upper:
        return apply("cholesky", x)
    return swapped(apply("cholesky", swapped(x)))


def swapped(x: Any) -> Any:
    """Return the transpose of every matrix of a stack."""
    n = len(x.shape)
    return permuted(x, [*range(n - 2), n - 1, n - 2])
