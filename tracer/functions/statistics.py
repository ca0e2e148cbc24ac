"""Covariance, convolution and correlation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from .core import (
    apply,
    asarray,
    cast,
    implements,
    product,
    shape_of,
    unsupported,
)
from .linalg import matrix_product
from .shapes import diagonal, permuted


@implements(np.cov)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    if fweights is not None or aweights is not None:
        raise unsupported("cov: weights", "only the unweighted form has a rule")
    from .join import concatenate
    from .reduce import mean

    x = _real(_variables(m, rowvar), "cov")
    if y is not None:
        x = concatenate([x, _real(_variables(y, rowvar), "cov")], 0)
    x = cast(x, dtype or np.result_type(x.dtype, np.float64))
    n = x.shape[1]
    free = n - (ddof if ddof is not None else 0 if bias else 1)
    gap = apply("subtract", x, mean(x, 1, keepdims=True))
    r = apply("divide", matrix_product(gap, permuted(gap, (1, 0))), free)
    if r.shape[0] == 1:
        return apply("squeeze", r, axis=(0, 1))
    return r


@implements(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    c = cov(x, y, rowvar, dtype=dtype)
    if not shape_of(c):
        return apply("divide", c, c)
    spread = apply("sqrt", diagonal(c))
    r = apply("divide", c, apply("expand_dims", spread, axis=(1,)))
    return apply("clip", apply("divide", r, spread), -1.0, 1.0)


def _real(x: Any, name: str) -> Any:
    if x.dtype.kind == "c":
        raise unsupported(f"{name}: complex tensors", "conjugates have no op")
    return x


def _variables(m: Any, rowvar: bool) -> Any:
    x = asarray(m)
    if len(x.shape) > 2:
        raise ShapeError("m has more than 2 dimensions")
    if len(x.shape) < 2:
        return apply("reshape", x, shape=(1, product(x.shape)))
    return x if rowvar or x.shape[0] == 1 else permuted(x, (1, 0))


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    x, y = _line(a), _real(_line(v), "correlate")
    if y.shape[0] > x.shape[0]:  # the other way round, and the result reversed
        return _reversed(convolve(y, _reversed(x), mode))
    return convolve(x, _reversed(y), mode)


def _line(a: Any) -> Any:
    """Return an argument with one axis."""
    x = asarray(a)
    if len(x.shape) > 1:
        raise ShapeError("object too deep for desired array")
    return x if x.shape else apply("reshape", x, shape=(1,))


def _reversed(x: Any) -> Any:
    return apply("flip", x, axis=(0,))


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Convolve as a sum of shifted products: one pass per element of the shorter."""
    x, y = _line(a), _line(v)
    if y.shape[0] > x.shape[0]:
        x, y = y, x
    n, m = x.shape[0], int(y.shape[0])
    if not m or (isinstance(n, int) and not n):
        raise ShapeError("v cannot be empty" if not m else "a cannot be empty")
    from .join import concatenate

    dtype = np.result_type(x.dtype, y.dtype)
    edge = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}
    if mode not in edge:
        raise ShapeError(f"mode must be one of {sorted(edge)}")
    low, high = edge[mode]
    pads = [apply("full", 0, shape=(d,), dtype=dtype) for d in (low, high)]
    wide = concatenate([pads[0], cast(x, dtype), pads[1]], 0)
    size = n + low + high - m + 1
    total = None
    for k in range(m):
        part = apply("slice", wide, m - 1 - k, axis=0, size=size, step=1)
        term = apply("multiply", part, apply("select", y, k, axis=0))
        total = term if total is None else apply("add", total, term)
    return total
