"""Factorisations and solutions of one row-major matrix, for generated kernels.

What can fail returns a number that is not 0. Matrices fill their memory; a matrix in
rows is its transpose to LAPACK, which the functions here make up for.

Note [factors of the transpose]
`lu` factors what LAPACK sees, x.T = P L U, and keeps the factors where they are: rows
of the n x n result are columns of L and U. Solving for the rows of a right side is then
BLAS's Z op(U) op(L) = Y from the right, in place and without a transpose of Y. The row
exchanges stand behind the factors, as numbers of their dtype: one array is one value.
"""

from typing import Any

import numba
import numpy as np

from . import lapack, memory

# Intrinsics have a parameter more than their calls, and untyped results, to mypy.
load: Any = memory.load
store: Any = memory.store
offset: Any = memory.offset
cast: Any = memory.cast
getrf: Any = lapack.getrf
potrf: Any = lapack.potrf
trsm: Any = lapack.trsm
trsv: Any = lapack.trsv


@numba.njit(nogil=True)
def lu(out: Any, n: Any) -> Any:
    """Factor a matrix; row n of the result takes the exchanges."""
    if n == 0:
        return 0
    last = offset(out, n * n)
    exchanges = cast(last, np.int32)
    getrf(n, out, n, exchanges)
    for k in range(n):  # an int32 is no longer than an element: none is overwritten
        i = n - 1 - k
        store(last, i, load(exchanges, i, -1, 1) - 1, -1, 1)
    return 0


@numba.njit(nogil=True)
def _exchange(last: Any, i: Any, out: Any, k: Any) -> None:
    j = np.int64(load(last, i, -1, 1))
    if j != i:
        for c in range(k):
            kept = load(out, i * k + c, -1, 1)
            store(out, i * k + c, load(out, j * k + c, -1, 1), -1, 1)
            store(out, j * k + c, kept, -1, 1)


@numba.njit(nogil=True)
def lu_solve(factors: Any, out: Any, n: Any, k: Any, transposed: Any) -> Any:
    """Solve x z = y, or x.T z = y, for the k columns of y, in place."""
    for i in range(n):
        if load(factors, i * n + i, -1, 1) == 0:
            return 1
    if n == 0 or k == 0:
        return 0
    last = offset(factors, n * n)
    if transposed:
        for i in range(n):
            _exchange(last, i, out, k)
    if k == 1:
        if transposed:
            trsv(False, False, True, n, factors, out)
            trsv(True, False, False, n, factors, out)
        else:
            trsv(True, True, False, n, factors, out)
            trsv(False, True, True, n, factors, out)
    elif transposed:
        trsm(False, True, True, k, n, factors, out)
        trsm(True, True, False, k, n, factors, out)
    else:
        trsm(True, False, False, k, n, factors, out)
        trsm(False, False, True, k, n, factors, out)
    if not transposed:
        for i in range(n):
            _exchange(last, n - 1 - i, out, k)
    return 0


@numba.njit(nogil=True)
def _sign(factors: Any, n: Any) -> Any:
    sign = 1.0
    for i in range(n):
        d = load(factors, i * n + i, -1, 1)
        if d < 0:
            sign = -sign
        elif d == 0:
            sign = 0.0
        if load(factors, n * n + i, -1, 1) != i:
            sign = -sign
    return sign


@numba.njit(nogil=True)
def _log(factors: Any, n: Any) -> Any:
    total = 0.0
    for i in range(n):
        total += np.log(np.abs(load(factors, i * n + i, -1, 1)))
    return total


@numba.njit(nogil=True)
def lu_sign(factors: Any, out: Any, n: Any) -> Any:
    """Store the sign of the determinant."""
    store(out, 0, _sign(factors, n), -1, 1)
    return 0


@numba.njit(nogil=True)
def lu_log(factors: Any, out: Any, n: Any) -> Any:
    """Store the logarithm of the determinant's absolute value."""
    store(out, 0, _log(factors, n), -1, 1)
    return 0


@numba.njit(nogil=True)
def lu_det(factors: Any, out: Any, n: Any) -> Any:
    """Store the determinant, which overflows only where it is too large itself."""
    store(out, 0, _sign(factors, n) * np.exp(_log(factors, n)), -1, 1)
    return 0


@numba.njit(nogil=True)
def cholesky(out: Any, n: Any) -> Any:
    """Factor a matrix, of which the lower triangle is read, as L L.T."""
    if n == 0:
        return 0
    info = potrf(True, n, out, n)
    for i in range(n):
        for j in range(i + 1, n):
            store(out, i * n + j, 0.0, -1, 1)
    return info


@numba.njit(nogil=True)
def triangular_solve(
    factor: Any, out: Any, n: Any, k: Any, lower: Any, transposed: Any
) -> Any:
    """Solve x z = y, or x.T z = y, for the k columns of y, with x in one triangle."""
    for i in range(n):
        if load(factor, i * n + i, -1, 1) == 0:
            return 1
    if n == 0 or k == 0:
        return 0
    if k == 1:
        trsv(lower, not transposed, False, n, factor, out)
    else:
        trsm(lower, transposed, False, k, n, factor, out)
    return 0
