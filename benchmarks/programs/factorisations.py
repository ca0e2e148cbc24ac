"""Factorisations of matrices, in the memory of the matrix."""

import numpy as np

from .program import Args, Array, Ints, Program, Rng


def cholesky(a: Array) -> None:
    """Overwrite the lower triangle by the factor L of a = L L^T, row by row."""
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[j, :j]
            a[i, j] /= a[j, j]
        a[i, i] -= a[i, :i] @ a[i, :i]
        a[i, i] = np.sqrt(a[i, i])


def cholesky_inputs(rng: Rng, n: int) -> Args:
    return (positive_definite(rng, n),)


def lu(a: Array) -> None:
    """Overwrite a by its factors L (unit diagonal) and U, right-looking."""
    n = a.shape[0]
    for k in range(n):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


def lu_inputs(rng: Rng, n: int) -> Args:
    return (dominant(rng, n),)


def lu_pivot(a: Array, pivots: Ints) -> None:
    """Overwrite a by its factors, largest pivot of each column first."""
    n = a.shape[0]
    for k in range(n):
        p = k + np.argmax(np.abs(a[k:, k]))
        pivots[k] = p
        row = a[k].copy()
        a[k] = a[p]
        a[p] = row
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


def lu_pivot_inputs(rng: Rng, n: int) -> Args:
    # Rows of a dominant matrix in another order: the pivots stand out.
    return dominant(rng, n)[rng.permutation(n)], np.zeros(n, np.int64)


def ludcmp(a: Array, b: Array, x: Array, y: Array) -> None:
    """Solve a x = b: factors row by row, then forward and back substitution."""
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in range(i, n):
            a[i, j] -= a[i, :i] @ a[:i, j]
    for i in range(n):
        y[i] = b[i] - a[i, :i] @ y[:i]
    for i in range(n - 1, -1, -1):
        x[i] = (y[i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]


def ludcmp_inputs(rng: Rng, n: int) -> Args:
    return dominant(rng, n), rng.normal(size=n), np.zeros(n), np.zeros(n)


def gramschmidt(a: Array, q: Array, r: Array) -> None:
    """Factor a = q r with orthonormal columns q, by modified Gram-Schmidt."""
    n = a.shape[1]
    for k in range(n):
        r[k, k] = np.sqrt(np.sum(a[:, k] * a[:, k]))
        q[:, k] = a[:, k] / r[k, k]
        for j in range(k + 1, n):
            r[k, j] = q[:, k] @ a[:, j]
            a[:, j] -= q[:, k] * r[k, j]


def gramschmidt_inputs(rng: Rng, m: int, n: int) -> Args:
    a = rng.normal(size=(m, n)) + 3.0 * np.eye(m, n)
    return a, np.zeros((m, n)), np.zeros((n, n))


def positive_definite(rng: Rng, n: int) -> Array:
    b = rng.normal(size=(n, n))
    return b @ b.T / n + 2.0 * np.eye(n)


def dominant(rng: Rng, n: int) -> Array:
    return rng.uniform(-1.0, 1.0, (n, n)) + n * np.eye(n)


PROGRAMS = (
    Program(cholesky, cholesky_inputs, (0,), ((3,), (5,), (8,)), (200,)),
    Program(lu, lu_inputs, (0,), ((3,), (5,), (8,)), (300,)),
    Program(lu_pivot, lu_pivot_inputs, (0,), ((3,), (5,), (8,)), (300,)),
    Program(ludcmp, ludcmp_inputs, (0, 2, 3), ((3,), (5,), (7,)), (150,)),
    Program(
        gramschmidt,
        gramschmidt_inputs,
        (0, 1, 2),
        ((3, 3), (6, 4), (8, 6)),
        (200, 160),
    ),
)
