"""Loops as people write them: `LOOPS` become array operations, `KEPT` must not.

Each entry says how many loops are left, and gives the shapes of the arguments at a
size; "i" before a shape makes integers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shapes = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Loop:
    function: Callable[..., Any]
    shapes: Shapes
    left: int = 0
    smooth: bool = True
    sizes: tuple[int, ...] = (4, 2, 3, 5)  # the first one is captured

    @property
    def name(self) -> str:
        return self.function.__name__

    def arguments(self, rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        """Draw arguments: positive numbers, so that roots and logarithms are smooth."""
        found: list[Any] = []
        for shape in self.shapes(n):
            if shape and shape[0] == "i":
                found.append(rng.integers(0, 5, shape[1:]))
            else:
                found.append(rng.uniform(0.5, 1.5, shape))
        return tuple(found)


LOOPS: list[Loop] = []
KEPT: list[Loop] = []


def loop(shapes: Shapes, left: int = 0, **more: Any) -> Any:
    def add(function: Any) -> Any:
        LOOPS.append(Loop(function, shapes, left, **more))
        return function

    return add


def kept(shapes: Shapes, left: int = 1) -> Any:
    def add(function: Any) -> Any:
        KEPT.append(Loop(function, shapes, left))
        return function

    return add


# ---------------------------------------------------------------- disjoint parts


@loop(lambda n: ((n, n + 1), (n, n + 1), (n + 1,)))
def elements(c, a, b):
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            c[i, j] = np.sin(a[i, j]) * b[j] + c[i, j]


@loop(lambda n: ((n, n), (n, n)))
def columns(a, r):
    for j in range(a.shape[1]):
        r[0, j] = a[:, 0] @ a[:, j]
        r[1, j] = np.sqrt(np.sum(a[:, j] * a[:, j]))


@loop(lambda n: ((n, n), (n, n)), 1)
def orthogonalised(a, r):
    for k in range(a.shape[1]):
        for j in range(k + 1, a.shape[1]):
            r[k, j] = a[:, k] @ a[:, j]
            a[:, j] -= 0.1 * a[:, k] * r[k, j]


@loop(lambda n: ((n, n),), 1)
def eliminated(a):
    n = a.shape[0]
    for k in range(n):
        for i in range(k + 1, n):
            a[i, k] /= a[k, k] + 3.0
            a[i, k + 1 :] -= a[i, k] * a[k, k + 1 :]


@loop(lambda n: ((n, n), (n, n)), 1)
def triangular(a, b):
    m, n = b.shape
    for i in range(m):
        for j in range(n):
            b[i, j] += a[i + 1 :, i] @ b[i + 1 :, j]
            b[i, j] *= 1.5


@loop(lambda n: ((n, n), (n, n)), 1)
def both_triangles(data, cov):
    m = data.shape[1]
    for i in range(m):
        for j in range(i, m):
            cov[i, j] = data[:, i] @ data[:, j]
            cov[j, i] = cov[i, j]


@loop(lambda n: ((n, n), (n,)))
def diagonal(a, d):
    for i in range(a.shape[0]):
        d[i] += a[i, i]
        a[i, i] = 2.0 * d[i]


@loop(lambda n: ((n,), (n,)))
def backwards(x, y):
    n = x.shape[0]
    for i in range(n - 1, -1, -1):
        y[n - 1 - i] = x[i] * y[n - 1 - i]


@loop(lambda n: ((2 * n,), (2 * n,)))
def every_second(x, y):
    for i in range(x.shape[0] // 2):
        y[2 * i] = x[2 * i + 1] * y[2 * i]


@loop(lambda n: ((2 * n,),))
def even_from_odd(x):
    for i in range(x.shape[0] // 2):
        x[2 * i] *= x[2 * i + 1]


@loop(lambda n: ((n,), (n,)))
def halves(x, y):
    for i in range(1, x.shape[0]):
        y[i - 1 : i] = x[i : i + 1] * 2.0


@loop(lambda n: ((n,), (n, n)))
def index_as_value(x, a):
    for i in range(x.shape[0]):
        x[i] = x[i] * i + (2 * i + 1)
        a[i] += x[i] - i


@loop(lambda n: ((n, n),))
def softmax_of_columns(x):
    for j in range(x.shape[1]):
        e = np.exp(x[:, j] - np.max(x[:, j]))
        x[:, j] = e / np.sum(e)


@loop(lambda n: ((n, n), (n, n)))
def scans_of_columns(x, y):
    for j in range(x.shape[1]):
        y[:, j] = np.cumsum(x[:, j])


@loop(lambda n: ((n, n), (n, n)))
def turned_columns(x, y):
    for j in range(x.shape[1]):
        y[::-1, j] = x[:, j] + x[j, ::-1]


@loop(lambda n: ((6, n), (n, 3, 2)), sizes=(4,))
def shapes_of_columns(x, y):
    for j in range(x.shape[1]):
        y[j] = np.reshape(x[:, j], (2, 3)).T * 2.0


@loop(lambda n: ((n,), (n,), (n, n)))
def outer_by_elements(x, y, c):
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            c[i, j] = x[i] / y[j]


@loop(lambda n: ((n, n, n), (n, n)))
def lines_of_a_cube(a, c):
    for r in range(a.shape[0]):
        for q in range(a.shape[1]):
            a[r, q] = a[r, q] @ c


@loop(lambda n: ((n, n), (n, n), (n, n)))
def matrix_by_columns(a, x, y):
    for t in range(x.shape[0]):
        y[t] = np.tanh(a @ x[t]) + x[t] @ a


@loop(lambda n: ((n, n), (n,), (n,)))
def same_in_all(a, x, y):
    for i in range(y.shape[0]):
        y[i] = np.sum(a) * x[i] + a[0, 1]


@loop(lambda n: ((n,), (n, 2)))
def buffers(x, y):
    for i in range(x.shape[0]):
        t = np.zeros(2)
        t[0] = x[i]
        t[1] = x[i] * t[0]
        y[i] = t


@loop(lambda n: ((n,), (n,)), smooth=False)
def choices(x, y):
    for i in range(x.shape[0]):
        y[i] = np.where(x[i] > 1.0, np.minimum(x[i], 1.25), np.clip(y[i], 0.75, 1.0))


# ---------------------------------------------------------------- sums


@loop(lambda n: ((n,), (n,)))
def dot(x, y):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * y[i]
    return s


@loop(lambda n: ((n,), (n,), (n,)))
def several_terms(x, y, z):
    s = 1.0
    for i in range(x.shape[0]):
        s = s + x[i] * y[i] - np.sin(z[i]) + 0.5
        s -= 2.0 * x[i]
    return s


@loop(lambda n: ((n, n), (n,), (n,)))
def rows_times(a, x, w):
    for i in range(a.shape[0]):
        w[i] += 1.5 * (a[i] @ x)


@loop(lambda n: ((n, n), (n,), (n,)))
def weighted_rows(a, x, y):
    for i in range(a.shape[0]):
        x += 1.5 * y[i] * a[i]


@loop(lambda n: ((n, n), (n, n), (n, n)))
def product_by_elements(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(a.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


@loop(lambda n: ((n, n), (n, n), (n, n)))
def product_by_rows(a, b, c):
    for i in range(c.shape[0]):
        for k in range(a.shape[1]):
            for j in range(c.shape[1]):
                c[i, j] -= a[i, k] * b[k, j]


@loop(lambda n: ((n, n), (n, n), (n, n)))
def outer_products(a, b, c):
    for k in range(a.shape[1]):
        c += np.outer(a[:, k], b[k])


@loop(lambda n: ((n, n), (n, n), (n, n)), 1)
def rank_two(c, a, b):
    n, m = a.shape
    for i in range(n):
        c[i, : i + 1] *= 1.2
        for k in range(m):
            c[i, : i + 1] += 1.5 * (a[: i + 1, k] * b[i, k] + b[: i + 1, k] * a[i, k])


@loop(lambda n: ((n,), (3, n), (3, n)), 1)
def attraction(mass, x, v):
    n = mass.shape[0]
    for i in range(n):
        for j in range(i + 1, n):
            d = x[:, i] - x[:, j]
            pull = 0.1 / (d @ d + 0.01)
            v[:, i] -= pull * mass[j] * d
            v[:, j] += pull * mass[i] * d


@loop(lambda n: (("i", n), ("i", n)))
def integers(k, m):
    total = 0
    for i in range(k.shape[0]):
        total += k[i] * k[i] - i
        m[i] = k[i] * 3 + i
    return total


# ---------------------------------------------------------------- not independent


@kept(lambda n: ((n,),))
def recurrence(x):
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@kept(lambda n: ((n,),))
def around_the_ring(x):
    for i in range(x.shape[0]):
        x[i] += x[i - 1]


@kept(lambda n: ((n,), (n,)))
def last_one_wins(x, y):
    for i in range(x.shape[0]):
        y[0] = x[i]


@kept(lambda n: ((n,), (n,)))
def pairs_share_a_place(x, y):
    for i in range(x.shape[0]):
        y[i // 2] = x[i]


@kept(lambda n: ((n, n),))
def next_column(a):
    for j in range(a.shape[1] - 1):
        a[:, j] = a[:, j + 1] * a[:, 0]


@kept(lambda n: ((n,), (n,)))
def overlapping_slices(x, y):
    for i in range(x.shape[0] - 1):
        y[i : i + 2] += x[i : i + 2]


@kept(lambda n: ((n,), (n,)))
def overlapping_writes(x, y):
    for i in range(x.shape[0] - 1):
        y[i : i + 2] = x[i]


@kept(lambda n: ((n,), (n,)))
def running_sum(x, y):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
        y[i] = s


@kept(lambda n: ((n,),))
def decay(x):
    s = 1.0
    for i in range(x.shape[0]):
        s = x[i] - s
    return s


@kept(lambda n: ((n,),))
def doubled(x):
    s = 1.0
    for i in range(x.shape[0]):
        s = s + (s + x[i])
    return s


@kept(lambda n: ((n,),))
def turns(x):
    a, b = 1.0, 2.0
    for i in range(x.shape[0]):
        a, b = b + x[i], a
    return a * b


@kept(lambda n: ((n,), (n,)))
def swapped_arrays(x, y):
    for i in range(x.shape[0]):
        x[i], y[i] = y[i] * 2.0, x[i - 1]


@kept(lambda n: ((n,),))
def largest(x):
    s = x[0]
    for i in range(x.shape[0]):
        s = np.maximum(s, x[i])
    return s


@kept(lambda n: ((n, n), (n,)))
def growing_rows(a, y):
    for i in range(a.shape[0]):
        y[i] = np.sum(a[i, :i])


@kept(lambda n: ((n,), (n,)))
def branches(x, y):
    for i in range(x.shape[0]):
        if x[i] > 1.0:
            y[i] = x[i]


@kept(lambda n: ((n,), ("i", n), (n,)))
def indices_from_data(x, k, y):
    for i in range(k.shape[0]):
        y[i] = x[k[i] % x.shape[0]]


@kept(lambda n: ((n, n), (n,)))
def what_another_reads(a, y):
    for i in range(a.shape[0]):
        a[i] += y
        y[i] = a[i, 0]


@kept(lambda n: ((n, n),))
def own_transpose(a):
    for i in range(a.shape[0]):
        a[i] += a[:, i]


@kept(lambda n: ((n,), (n,), (n,)))
def large_temporaries(x, y, z):
    for i in range(x.shape[0]):
        z[i] = np.sum(np.exp(x[i] * y))


@kept(lambda n: ((n, n),))
def softmax_of_rows(x):
    for i in range(x.shape[0]):
        e = np.exp(x[i] - np.max(x[i]))
        x[i] = e / np.sum(e)


@kept(lambda n: ((n,), (n, 3), (n, 3)), 2)
def short_rows(mass, x, v):
    n = mass.shape[0]
    for i in range(n):
        for j in range(i + 1, n):
            d = x[i] - x[j]
            pull = 0.1 / (d @ d + 0.01)
            v[i] -= pull * mass[j] * d
            v[j] += pull * mass[i] * d
