"""Reductions: of whole arrays, along rows and columns, with what stands around them."""

import math
from typing import Any

import numpy as np

from ..case import Args, Array, Case
from .elementwise import normals

COLUMNS = 256  # of the tables whose rows are reduced


def mean_square(x: Array) -> Any:
    return np.mean(x * x)


def variance(x: Array) -> Any:
    return np.var(x)


def deviation(x: Array, y: Array) -> Any:
    return np.std(x * y)


def extent(x: Array) -> Any:
    return np.max(x) - np.min(x)


def log_sum_exp(x: Array) -> Any:
    m = np.max(x)
    return m + np.log(np.sum(np.exp(x - m)))


def euclidean_norm(x: Array) -> Any:
    return np.linalg.norm(x)


def dot(x: Array, y: Array) -> Any:
    return np.dot(x, y)


def running_sum(x: Array, w: Array) -> Any:
    return np.sum(w * np.cumsum(x))


def row_sums(a: Array) -> Any:
    return np.sum(np.sum(a, axis=1) ** 2)


def column_sums(a: Array) -> Any:
    return np.sum(np.sum(a, axis=0) ** 2)


def softmax(a: Array, w: Array) -> Any:
    e = np.exp(a - np.max(a, axis=1, keepdims=True))
    return np.sum(w * (e / np.sum(e, axis=1, keepdims=True)))


def log_softmax(a: Array, w: Array) -> Any:
    shifted = a - np.max(a, axis=1, keepdims=True)
    return np.sum(w * (shifted - np.log(np.sum(np.exp(shifted), axis=1)[:, None])))


def cross_entropy(a: Array, label: Array) -> Any:
    m = np.max(a, axis=1)
    total = np.log(np.sum(np.exp(a - m[:, None]), axis=1)) + m
    return np.mean(total - a[np.arange(a.shape[0]), label])


def layer_norm(a: Array, gain: Array, bias: Array, w: Array) -> Any:
    mean = np.mean(a, axis=1, keepdims=True)
    var = np.var(a, axis=1, keepdims=True)
    return np.sum(w * ((a - mean) / np.sqrt(var + 1e-5) * gain + bias))


def batch_norm(a: Array, w: Array) -> Any:
    mean = np.mean(a, axis=0)
    var = np.mean((a - mean) ** 2, axis=0)
    return np.sum(w * (a - mean) / np.sqrt(var + 1e-5))


def cosine_similarity(a: Array, b: Array) -> Any:
    lengths = np.sqrt(np.sum(a * a, axis=1) * np.sum(b * b, axis=1))
    return np.sum(np.sum(a * b, axis=1) / lengths)


def max_pool(a: Array, w: Array) -> Any:
    m, n = w.shape
    return np.sum(w * np.max(np.reshape(a, (m, 2, n, 2)), axis=(1, 3)))


def table(rng: np.random.Generator, n: int) -> Args:
    """Return a table with about n elements."""
    columns = min(COLUMNS, max(2, math.isqrt(n)))
    return (rng.standard_normal((max(2, n // columns), columns)),)


def tables(rng: np.random.Generator, n: int) -> Args:
    return *table(rng, n), *table(rng, n)


def labelled(rng: np.random.Generator, n: int) -> Args:
    (a,) = table(rng, n)
    return a, rng.integers(0, a.shape[1], a.shape[0])


def normed(rng: np.random.Generator, n: int) -> Args:
    a, w = tables(rng, n)
    return a, rng.standard_normal(a.shape[1]), rng.standard_normal(a.shape[1]), w


def pooled(rng: np.random.Generator, n: int) -> Args:
    m = max(1, math.isqrt(n) // 2)
    return rng.standard_normal((2 * m, 2 * m)), rng.standard_normal((m, m))


CASES = (
    Case(mean_square, normals(1)),
    Case(variance, normals(1)),
    Case(deviation, normals(2)),
    Case(extent, normals(1)),
    Case(log_sum_exp, normals(1)),
    Case(euclidean_norm, normals(1)),
    Case(dot, normals(2)),
    Case(running_sum, normals(2)),
    Case(row_sums, table),
    Case(column_sums, table),
    Case(softmax, tables),
    Case(log_softmax, tables),
    Case(cross_entropy, labelled),
    Case(layer_norm, normed),
    Case(batch_norm, tables),
    Case(cosine_similarity, tables),
    Case(max_pool, pooled),
)
