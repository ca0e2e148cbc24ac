"""Bodies, weather and orbits: integrators and Newton's method."""

import numpy as np

from .program import Args, Array, Program, Rng

TOLERANCE = 1e-12


def nbody(tsteps: int, dt: float, mass: Array, x: Array, v: Array) -> None:
    """Move bodies under gravity by semi-implicit Euler steps."""
    n = mass.shape[0]
    for _ in range(tsteps):
        for i in range(n):
            for j in range(i + 1, n):
                d = x[i] - x[j]
                square = d @ d + 0.01
                pull = dt / (square * np.sqrt(square))
                v[i] -= pull * mass[j] * d
                v[j] += pull * mass[i] * d
        x += dt * v


def nbody_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    x, v = rng.normal(size=(2, n, 3))
    return tsteps, 0.01, rng.uniform(0.5, 1.5, n), x, v


def lorenz_96(x: Array, force: float) -> Array:
    """Return the rates of change of a ring of weather stations."""
    return (np.roll(x, -1) - np.roll(x, 2)) * np.roll(x, 1) - x + force


def runge_kutta(dt: float, force: float, path: Array) -> None:
    """Integrate the Lorenz 96 model from path[0] by the classical method."""
    for t in range(path.shape[0] - 1):
        x = path[t]
        k1 = lorenz_96(x, force)
        k2 = lorenz_96(x + 0.5 * dt * k1, force)
        k3 = lorenz_96(x + 0.5 * dt * k2, force)
        k4 = lorenz_96(x + dt * k3, force)
        path[t + 1] = x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def runge_kutta_inputs(rng: Rng, tsteps: int, n: int) -> Args:
    path = np.zeros((tsteps + 1, n))
    path[0] = rng.normal(size=n)
    return 0.01, 8.0, path


def kepler(mean: Array, eccentricity: Array, anomaly: Array) -> None:
    """Solve x - e sin x = m for every orbit by Newton's method."""
    for i in range(mean.shape[0]):
        m = mean[i]
        e = eccentricity[i]
        x = m
        step = 1.0
        while np.abs(step) > TOLERANCE:
            step = (x - e * np.sin(x) - m) / (1.0 - e * np.cos(x))
            x = x - step
        anomaly[i] = x


def kepler_inputs(rng: Rng, n: int) -> Args:
    return rng.uniform(0.5, 2.5, n), rng.uniform(0.05, 0.5, n), np.zeros(n)


def jacobi_solver(a: Array, b: Array, x: Array) -> None:
    """Solve a x = b by Jacobi's iteration until nothing changes any more."""
    diagonal = np.diagonal(a)
    change = 1.0
    while change > TOLERANCE:
        step = (b - a @ x) / diagonal
        x += step
        change = np.max(np.abs(step))


def jacobi_solver_inputs(rng: Rng, n: int) -> Args:
    a = rng.uniform(-0.3, 0.3, (n, n)) / np.sqrt(n) + np.diag(rng.uniform(1.0, 2.0, n))
    return a, rng.normal(size=n), np.zeros(n)


PROGRAMS = (
    Program(nbody, nbody_inputs, (3, 4), ((5, 2), (6, 3), (5, 5)), (20, 40)),
    Program(runge_kutta, runge_kutta_inputs, (2,), ((5, 4), (6, 5), (8, 7)), (400, 40)),
    Program(kepler, kepler_inputs, (2,), ((2,), (3,), (6,)), (4000,)),
    Program(jacobi_solver, jacobi_solver_inputs, (2,), ((3,), (5,), (8,)), (1200,)),
)
