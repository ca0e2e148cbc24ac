"""Elementwise programs: sums of chains of operations on arrays of one shape or two."""

import math
from typing import Any

import numpy as np

from ..case import Args, Array, Case, Draw


def chain(x: Array, y: Array) -> Any:
    t = np.exp(-x * x) * y
    return np.sum(t / (1 + np.exp(-t)) + np.tanh(x))


def polynomial(x: Array) -> Any:
    y = 0.1 * x + 0.2
    for c in (0.3, -0.4, 0.5, -0.6, 0.7, -0.8):
        y = y * x + c
    return np.sum(y * y)


def gelu(x: Array, w: Array) -> Any:
    t = np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
    return np.sum(w * (0.5 * x * (1 + t)))


def softplus(x: Array, w: Array) -> Any:
    return np.sum(w * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def log_add(x: Array, y: Array) -> Any:
    return np.sum(np.logaddexp(x, y))


def swish(x: Array, w: Array) -> Any:
    return np.sum(w * x / (1 + np.exp(-x)))


def huber(x: Array, y: Array) -> Any:
    r = x - y
    size = np.abs(r)
    return np.sum(np.where(size < 1, 0.5 * r * r, size - 0.5))


def sigmoid_cross_entropy(z: Array, y: Array) -> Any:
    return np.sum(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))))


def rotation(x: Array, y: Array, angle: Array) -> Any:
    c, s = np.cos(angle), np.sin(angle)
    u, v = c * x - s * y, s * x + c * y
    return np.sum(u * u + 0.5 * u * v)


def polar(x: Array, y: Array) -> Any:
    return np.sum(np.hypot(x, y) * np.arctan2(y, x))


def power(x: Array, p: Array) -> Any:
    return np.sum(x**p)


def clipped(x: Array, y: Array) -> Any:
    z = np.clip(x * y, -0.5, 0.5)
    return np.sum(np.where(x > y, z * x, z * y))


def black_scholes(spot: Array, strike: Array, vol: Array) -> Any:
    """Price calls at rate 0.02 and one year, with Hart's form of the distribution."""
    d1 = (np.log(spot / strike) + 0.02 + 0.5 * vol * vol) / vol
    return np.sum(spot * normal(d1) - strike * math.exp(-0.02) * normal(d1 - vol))


def normal(x: Array) -> Array:
    """Return the normal distribution, after Abramowitz and Stegun 26.2.17."""
    k = 1 / (1 + 0.2316419 * np.abs(x))
    tail = 0.31938153 + k * (
        -0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))
    )
    tail = 0.3989422804014327 * np.exp(-0.5 * x * x) * k * tail
    return np.where(x > 0, 1 - tail, tail)


def squared_distance(x: Array, y: Array) -> Any:
    return np.sum((x - y) ** 2)


def product(x: Array, y: Array, z: Array) -> Any:
    return np.sum(x * y * z)


def in_place(x: Array, y: Array) -> Any:
    t = x * 1.5
    t *= y
    t += x
    np.sin(t, out=t)
    t -= y
    return np.sum(t * t)


def in_place_pure(x: Array, y: Array) -> Any:
    t = np.sin(x * 1.5 * y + x) - y
    return np.sum(t * t)


def diffusion(u: Array, k: Array) -> Any:
    u[1:-1] += k[1:-1] * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u * u)


def diffusion_jax(u: Any, k: Array) -> Any:
    u = u.at[1:-1].add(k[1:-1] * (u[2:] - 2 * u[1:-1] + u[:-2]))
    return np.sum(u * u)


def even_and_odd(x: Array, y: Array) -> Any:
    out = np.zeros_like(x)
    out[::2] = np.exp(-x[::2]) * y[::2]
    out[1::2] = x[1::2] * y[1::2]
    return np.sum(out * x)


def even_and_odd_jax(x: Any, y: Array) -> Any:
    out = np.zeros_like(x)
    out = out.at[::2].set(np.exp(-x[::2]) * y[::2])
    out = out.at[1::2].set(x[1::2] * y[1::2])
    return np.sum(out * x)


def outer_sum(a: Array, b: Array) -> Any:
    return np.sum(np.tanh(a[:, None] + b[None, :]))


def transposed(a: Array, b: Array) -> Any:
    return np.sum(np.tanh(a) * b.T)


def row_scaled(a: Array, scale: Array, shift: Array) -> Any:
    y = a * scale + shift
    return np.sum(y / (1 + np.abs(y)))


def normals(count: int) -> Draw:
    """Return a draw of some vectors of normal numbers."""
    return lambda rng, n: tuple(rng.standard_normal((count, n)))


def positive(rng: np.random.Generator, n: int) -> Args:
    return rng.uniform(0.5, 2, n), rng.uniform(-2, 2, n)


def half_plane(rng: np.random.Generator, n: int) -> Args:
    """Return points away from the cut of arctan2."""
    return rng.standard_normal(n), rng.uniform(0.1, 2, n)


def labels(rng: np.random.Generator, n: int) -> Args:
    return rng.standard_normal(n), rng.uniform(0, 1, n)


def options(rng: np.random.Generator, n: int) -> Args:
    return rng.uniform(80, 120, n), rng.uniform(80, 120, n), rng.uniform(0.1, 0.5, n)


def sides(rng: np.random.Generator, n: int) -> Args:
    m = max(1, round(math.sqrt(n)))
    return rng.standard_normal(m), rng.standard_normal(m)


def squares(rng: np.random.Generator, n: int) -> Args:
    m = max(1, round(math.sqrt(n)))
    return rng.standard_normal((m, m)), rng.standard_normal((m, m))


def rows(rng: np.random.Generator, n: int) -> Args:
    m = max(1, round(math.sqrt(n)))
    a, scale, shift = (rng.standard_normal(shape) for shape in ((m, m), m, m))
    return a, scale, shift


CASES = (
    Case(chain, normals(2)),
    Case(polynomial, normals(1)),
    Case(gelu, normals(2)),
    Case(softplus, normals(2)),
    Case(log_add, normals(2)),
    Case(swish, normals(2)),
    Case(huber, normals(2)),
    Case(sigmoid_cross_entropy, labels),
    Case(rotation, normals(3)),
    Case(polar, half_plane),
    Case(power, positive),
    Case(clipped, normals(2)),
    Case(black_scholes, options),
    Case(squared_distance, normals(2)),
    Case(product, normals(3)),
    Case(in_place, normals(2), pure=in_place_pure),
    Case(diffusion, normals(2), writes=True, jax=diffusion_jax),
    Case(even_and_odd, normals(2), jax=even_and_odd_jax),
    Case(outer_sum, sides),
    Case(transposed, squares),
    Case(row_scaled, rows),
)
