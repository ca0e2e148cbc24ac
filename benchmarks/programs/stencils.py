"""Sweeps over grids: heat, waves, smoothing, upwind transport."""

import numpy as np

from .program import Args, Array, Program, Rng


def seidel_2d(tsteps: int, a: Array) -> None:
    """Replace every inner point by the mean of its neighbourhood, one after another."""
    n = a.shape[0]
    for _ in range(tsteps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = (
                    a[i - 1, j - 1]
                    + a[i - 1, j]
                    + a[i - 1, j + 1]
                    + a[i, j - 1]
                    + a[i, j]
                    + a[i, j + 1]
                    + a[i + 1, j - 1]
                    + a[i + 1, j]
                    + a[i + 1, j + 1]
                ) / 9.0


def seidel_2d_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, rng.normal(size=(n, n))


def jacobi_1d(tsteps: int, a: Array, b: Array) -> None:
    """Smooth a line, from one array into the other and back."""
    for _ in range(tsteps):
        b[1:-1] = (a[:-2] + a[1:-1] + a[2:]) / 3.0
        a[1:-1] = (b[:-2] + b[1:-1] + b[2:]) / 3.0


def jacobi_1d_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, rng.normal(size=n), rng.normal(size=n)


def jacobi_2d(tsteps: int, a: Array, b: Array) -> None:
    """Smooth a grid with the five-point star, into the other array and back."""
    for _ in range(tsteps):
        b[1:-1, 1:-1] = 0.2 * (
            a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1]
        )
        a[1:-1, 1:-1] = 0.2 * (
            b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1]
        )


def jacobi_2d_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, rng.normal(size=(n, n)), rng.normal(size=(n, n))


def heat_3d(tsteps: int, r: float, a: Array, b: Array) -> None:
    """Conduct heat in a cube by explicit steps, `r` being k dt / dx^2."""
    for _ in range(tsteps):
        b[1:-1, 1:-1, 1:-1] = (
            a[1:-1, 1:-1, 1:-1]
            + r * (a[2:, 1:-1, 1:-1] - 2.0 * a[1:-1, 1:-1, 1:-1] + a[:-2, 1:-1, 1:-1])
            + r * (a[1:-1, 2:, 1:-1] - 2.0 * a[1:-1, 1:-1, 1:-1] + a[1:-1, :-2, 1:-1])
            + r * (a[1:-1, 1:-1, 2:] - 2.0 * a[1:-1, 1:-1, 1:-1] + a[1:-1, 1:-1, :-2])
        )
        a[1:-1, 1:-1, 1:-1] = (
            b[1:-1, 1:-1, 1:-1]
            + r * (b[2:, 1:-1, 1:-1] - 2.0 * b[1:-1, 1:-1, 1:-1] + b[:-2, 1:-1, 1:-1])
            + r * (b[1:-1, 2:, 1:-1] - 2.0 * b[1:-1, 1:-1, 1:-1] + b[1:-1, :-2, 1:-1])
            + r * (b[1:-1, 1:-1, 2:] - 2.0 * b[1:-1, 1:-1, 1:-1] + b[1:-1, 1:-1, :-2])
        )


def heat_3d_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, 0.125, rng.normal(size=(n, n, n)), rng.normal(size=(n, n, n))


def fdtd_2d(tsteps: int, ex: Array, ey: Array, hz: Array, source: Array) -> None:
    """Advance an electromagnetic wave on a staggered grid, driven along one edge."""
    for t in range(tsteps):
        ey[0, :] = source[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def fdtd_2d_inputs(rng: Rng, tsteps: int, nx: int, ny: int) -> Args:
    fields = (rng.normal(size=(nx, ny)) for _ in range(3))
    return tsteps, *fields, rng.normal(size=tsteps)


def adi(tsteps: int, r: float, u: Array) -> None:
    """Conduct heat by steps that are implicit along one axis, then along the other.

    Each half step solves tridiagonal systems, one per line and all lines at once: the
    sweep upwards eliminates, with factors p and right sides q, the one downwards
    substitutes. The edges of v and of the new u are held at 1.
    """
    n = u.shape[0]
    v = np.ones((n, n))
    p = np.zeros((n, n))
    q = np.zeros((n, n))
    side = -0.5 * r
    centre = 1.0 + r
    for _ in range(tsteps):
        p[0, 1:-1] = 0.0
        q[0, 1:-1] = 1.0
        for j in range(1, n - 1):
            pivot = side * p[j - 1, 1:-1] + centre
            known = 0.5 * r * (u[1:-1, j - 1] + u[1:-1, j + 1]) + (1.0 - r) * u[1:-1, j]
            p[j, 1:-1] = -side / pivot
            q[j, 1:-1] = (known - side * q[j - 1, 1:-1]) / pivot
        v[n - 1, 1:-1] = 1.0
        for j in range(n - 2, 0, -1):
            v[j, 1:-1] = p[j, 1:-1] * v[j + 1, 1:-1] + q[j, 1:-1]
        p[0, 1:-1] = 0.0
        q[0, 1:-1] = 1.0
        for j in range(1, n - 1):
            pivot = side * p[j - 1, 1:-1] + centre
            known = 0.5 * r * (v[1:-1, j - 1] + v[1:-1, j + 1]) + (1.0 - r) * v[1:-1, j]
            p[j, 1:-1] = -side / pivot
            q[j, 1:-1] = (known - side * q[j - 1, 1:-1]) / pivot
        u[n - 1, 1:-1] = 1.0
        for j in range(n - 2, 0, -1):
            u[j, 1:-1] = p[j, 1:-1] * u[j + 1, 1:-1] + q[j, 1:-1]


def adi_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, 0.8, rng.normal(size=(n, n))


def upwind_ring(tsteps: int, courant: float, u: Array) -> None:
    """Carry u around a ring, point after point; the point before the first is the last.

    Each point reads its neighbour's new value: an implicit step, swept once.
    """
    n = u.shape[0]
    for _ in range(tsteps):
        for i in range(n):
            u[i] = (u[i] + courant * u[i - 1]) / (1.0 + courant)


def upwind_ring_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    return tsteps, 0.6, rng.normal(size=n)


def hdiff(coefficient: float, field: Array, out: Array) -> None:
    """Diffuse a field by its fourth differences in two axes, where they smooth it.

    Fluxes that would steepen the field are set to zero.
    """
    lap = 4.0 * field[1:-1, 1:-1] - (
        field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
    )
    across = lap[1:, 1:-1] - lap[:-1, 1:-1]
    uphill = across * (field[2:-1, 2:-2] - field[1:-2, 2:-2]) > 0.0
    across = np.where(uphill, 0.0, across)
    along = lap[1:-1, 1:] - lap[1:-1, :-1]
    uphill = along * (field[2:-2, 2:-1] - field[2:-2, 1:-2]) > 0.0
    along = np.where(uphill, 0.0, along)
    out[:] = field[2:-2, 2:-2] - coefficient * (
        across[1:] - across[:-1] + along[:, 1:] - along[:, :-1]
    )


def hdiff_inputs(rng: Rng, nx: int, ny: int, levels: int) -> Args:
    field = rng.normal(size=(nx + 4, ny + 4, levels))
    return 0.05, field, np.zeros((nx, ny, levels))


def vadv(tendency: Array, u: Array, wind: Array, old: Array, forcing: Array) -> None:
    """Advect u vertically by an implicit step; the new tendency replaces the old one.

    Each column of the grid is a tridiagonal system: levels are eliminated upwards, in
    `above` and `right`, then substituted downwards.
    """
    top = u.shape[2] - 1
    rate = 3.0 / 20.0
    above = np.zeros(u.shape)
    right = np.zeros(u.shape)
    up = 0.25 * (wind[1:, :, 1] + wind[:-1, :, 1])
    known = rate * old[:, :, 0] + forcing[:, :, 0] + tendency[:, :, 0]
    known = known - 0.4 * up * (u[:, :, 1] - u[:, :, 0])
    above[:, :, 0] = 0.6 * up / (rate - 0.6 * up)
    right[:, :, 0] = known / (rate - 0.6 * up)
    for k in range(1, top):
        down = -0.25 * (wind[1:, :, k] + wind[:-1, :, k])
        up = 0.25 * (wind[1:, :, k + 1] + wind[:-1, :, k + 1])
        known = rate * old[:, :, k] + forcing[:, :, k] + tendency[:, :, k]
        known = known - 0.4 * down * (u[:, :, k - 1] - u[:, :, k])
        known = known - 0.4 * up * (u[:, :, k + 1] - u[:, :, k])
        pivot = rate - 0.6 * down - 0.6 * up - 0.6 * down * above[:, :, k - 1]
        above[:, :, k] = 0.6 * up / pivot
        right[:, :, k] = (known - 0.6 * down * right[:, :, k - 1]) / pivot
    down = -0.25 * (wind[1:, :, top] + wind[:-1, :, top])
    known = rate * old[:, :, top] + forcing[:, :, top] + tendency[:, :, top]
    known = known - 0.4 * down * (u[:, :, top - 1] - u[:, :, top])
    pivot = rate - 0.6 * down - 0.6 * down * above[:, :, top - 1]
    right[:, :, top] = (known - 0.6 * down * right[:, :, top - 1]) / pivot
    x = right[:, :, top]
    tendency[:, :, top] = rate * (x - old[:, :, top])
    for k in range(top - 1, -1, -1):
        x = right[:, :, k] - above[:, :, k] * x
        tendency[:, :, k] = rate * (x - old[:, :, k])


def vadv_inputs(rng: Rng, nx: int, ny: int, levels: int) -> Args:
    tendency, u, old, forcing = rng.normal(size=(4, nx, ny, levels))
    return tendency, u, 0.05 * rng.normal(size=(nx + 1, ny, levels)), old, forcing


PROGRAMS = (
    Program(seidel_2d, seidel_2d_inputs, (1,), ((5, 4), (6, 5), (5, 7)), (8, 50)),
    Program(
        jacobi_1d, jacobi_1d_inputs, (1, 2), ((5, 4), (6, 9), (7, 12)), (1000, 4000)
    ),
    Program(jacobi_2d, jacobi_2d_inputs, (1, 2), ((5, 4), (6, 5), (5, 8)), (100, 150)),
    Program(heat_3d, heat_3d_inputs, (2, 3), ((5, 4), (6, 5), (5, 6)), (25, 30)),
    Program(
        fdtd_2d,
        fdtd_2d_inputs,
        (1, 2, 3),
        ((5, 4, 5), (6, 5, 4), (7, 6, 8)),
        (100, 120, 160),
    ),
    Program(adi, adi_inputs, (2,), ((5, 4), (6, 5), (5, 7)), (20, 120)),
    Program(
        upwind_ring, upwind_ring_inputs, (2,), ((5, 3), (6, 5), (7, 8)), (50, 2000)
    ),
    Program(
        hdiff, hdiff_inputs, (2,), ((3, 4, 2), (5, 4, 3), (6, 5, 4)), (128, 128, 40)
    ),
    Program(vadv, vadv_inputs, (0,), ((3, 4, 3), (4, 3, 5), (3, 5, 6)), (60, 60, 40)),
)
