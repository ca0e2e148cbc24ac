"""Products with triangular, symmetric and plain matrices, and statistics of columns."""

import numpy as np

from .program import Args, Array, Program, Rng


def trisolv(l: Array, b: Array, x: Array) -> None:  # noqa: E741
    """Solve l x = b with a lower triangular matrix."""
    n = l.shape[0]
    for i in range(n):
        x[i] = (b[i] - l[i, :i] @ x[:i]) / l[i, i]


def trisolv_inputs(rng: Rng, n: int) -> Args:
    lower = np.tril(rng.uniform(-1.0, 1.0, (n, n))) / n + np.eye(n)
    return lower, rng.normal(size=n), np.zeros(n)


def trmm(alpha: float, a: Array, b: Array) -> None:
    """Set b to alpha a^T b, where a is lower triangular with a unit diagonal."""
    m, n = b.shape
    for i in range(m):
        for j in range(n):
            b[i, j] += a[i + 1 :, i] @ b[i + 1 :, j]
            b[i, j] *= alpha


def trmm_inputs(rng: Rng, m: int, n: int) -> Args:
    return 1.5, rng.normal(size=(m, m)), rng.normal(size=(m, n))


def syrk(alpha: float, beta: float, c: Array, a: Array) -> None:
    """Set the lower triangle of c to alpha a a^T + beta c."""
    n, m = a.shape
    for i in range(n):
        c[i, : i + 1] *= beta
        for k in range(m):
            c[i, : i + 1] += alpha * a[i, k] * a[: i + 1, k]


def syrk_inputs(rng: Rng, n: int, m: int) -> Args:
    return 1.5, 1.2, rng.normal(size=(n, n)), rng.normal(size=(n, m))


def syr2k(alpha: float, beta: float, c: Array, a: Array, b: Array) -> None:
    """Set the lower triangle of c to alpha (a b^T + b a^T) + beta c."""
    n, m = a.shape
    for i in range(n):
        c[i, : i + 1] *= beta
        for k in range(m):
            c[i, : i + 1] += alpha * (a[: i + 1, k] * b[i, k] + b[: i + 1, k] * a[i, k])


def syr2k_inputs(rng: Rng, n: int, m: int) -> Args:
    a, b = rng.normal(size=(2, n, m))
    return 1.5, 1.2, rng.normal(size=(n, n)), a, b


def symm(alpha: float, beta: float, c: Array, a: Array, b: Array) -> None:
    """Set c to alpha a b + beta c, reading the lower triangle of the symmetric a."""
    m, n = c.shape
    for i in range(m):
        for j in range(n):
            above = a[i, :i] @ b[:i, j]
            c[:i, j] += alpha * b[i, j] * a[i, :i]
            c[i, j] = beta * c[i, j] + alpha * (b[i, j] * a[i, i] + above)


def symm_inputs(rng: Rng, m: int, n: int) -> Args:
    b, c = rng.normal(size=(2, m, n))
    return 1.5, 1.2, c, rng.normal(size=(m, m)), b


def durbin(r: Array, y: Array) -> None:
    """Solve the Yule-Walker equations of the autocorrelations r."""
    n = r.shape[0]
    alpha = -r[0]
    beta = 1.0
    y[0] = alpha
    for k in range(1, n):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + r[:k][::-1] @ y[:k]) / beta
        y[:k] += alpha * y[:k][::-1]
        y[k] = alpha


def durbin_inputs(rng: Rng, n: int) -> Args:
    return 0.5 ** np.arange(1, n + 1) * rng.uniform(0.5, 1.0, n), np.zeros(n)


def gemver(
    alpha: float,
    beta: float,
    a: Array,
    u1: Array,
    v1: Array,
    u2: Array,
    v2: Array,
    w: Array,
    x: Array,
    y: Array,
    z: Array,
) -> None:
    """Add two outer products to a, then x += beta a^T y + z and w += alpha a x."""
    n = a.shape[0]
    for i in range(n):
        a[i] += u1[i] * v1 + u2[i] * v2
    for i in range(n):
        x += beta * y[i] * a[i]
    x += z
    for i in range(n):
        w[i] += alpha * (a[i] @ x)


def gemver_inputs(rng: Rng, n: int) -> Args:
    return 1.5, 1.2, rng.normal(size=(n, n)) / n, *rng.normal(size=(8, n))


def doitgen(a: Array, c: Array) -> None:
    """Multiply every line of a cube by a matrix, in place."""
    for r in range(a.shape[0]):
        for q in range(a.shape[1]):
            a[r, q] = a[r, q] @ c


def doitgen_inputs(rng: Rng, nr: int, nq: int, n: int) -> Args:
    return rng.normal(size=(nr, nq, n)), rng.normal(size=(n, n)) / np.sqrt(n)


def covariance(data: Array, cov: Array) -> None:
    """Centre the columns of data and compute their covariances."""
    n, m = data.shape
    data -= np.mean(data, axis=0)
    for i in range(m):
        for j in range(i, m):
            cov[i, j] = data[:, i] @ data[:, j] / (n - 1.0)
            cov[j, i] = cov[i, j]


def covariance_inputs(rng: Rng, n: int, m: int) -> Args:
    return rng.normal(size=(n, m)), np.zeros((m, m))


def correlation(data: Array, corr: Array) -> None:
    """Standardise the columns of data and compute their correlations.

    A column that hardly varies is only centred.
    """
    n, m = data.shape
    for j in range(m):
        data[:, j] -= np.sum(data[:, j]) / n
        deviation = np.sqrt(np.sum(data[:, j] * data[:, j]) / n)
        if deviation > 0.1:
            data[:, j] /= deviation
    for i in range(m):
        corr[i, i] = 1.0
        for j in range(i + 1, m):
            corr[i, j] = data[:, i] @ data[:, j] / n
            corr[j, i] = corr[i, j]


def correlation_inputs(rng: Rng, n: int, m: int) -> Args:
    data = rng.normal(size=(n, m)) + 2.0 * rng.normal(size=m)
    data[:, -1] *= 1e-3
    return data, np.zeros((m, m))


PROGRAMS = (
    Program(trisolv, trisolv_inputs, (2,), ((3,), (5,), (9,)), (3000,)),
    Program(trmm, trmm_inputs, (2,), ((3, 2), (4, 5), (7, 6)), (120, 150)),
    Program(syrk, syrk_inputs, (2,), ((3, 2), (4, 5), (7, 6)), (150, 120)),
    Program(syr2k, syr2k_inputs, (2,), ((3, 2), (4, 5), (7, 6)), (150, 120)),
    Program(symm, symm_inputs, (2,), ((3, 2), (4, 5), (7, 6)), (100, 120)),
    Program(durbin, durbin_inputs, (1,), ((3,), (5,), (9,)), (4000,)),
    Program(gemver, gemver_inputs, (2, 7, 8), ((3,), (5,), (8,)), (1500,)),
    Program(
        doitgen,
        doitgen_inputs,
        (0,),
        ((2, 3, 4), (3, 2, 5), (4, 5, 6)),
        (80, 80, 100),
    ),
    Program(
        covariance, covariance_inputs, (0, 1), ((4, 3), (6, 4), (7, 6)), (240, 200)
    ),
    Program(
        correlation, correlation_inputs, (0, 1), ((4, 3), (6, 4), (7, 6)), (240, 200)
    ),
)
