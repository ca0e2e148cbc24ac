"""Sparse rows, shortest paths, sorting: what the data decide."""

import numpy as np

from .program import Args, Array, Ints, Program, Rng


def spmv(indptr: Ints, indices: Ints, data: Array, x: Array, y: Array) -> None:
    """Multiply a sparse matrix, in compressed rows, by a vector."""
    for i in range(y.shape[0]):
        y[i] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            y[i] += data[k] * x[indices[k]]


def spmv_rows(indptr: Ints, indices: Ints, data: Array, x: Array, y: Array) -> None:
    """Do the same with one gather and one product per row."""
    for i in range(y.shape[0]):
        start, stop = indptr[i], indptr[i + 1]
        y[i] = data[start:stop] @ x[indices[start:stop]]


def spmv_inputs(rng: Rng, rows: int, columns: int, most: int) -> Args:
    lengths = rng.integers(0, most + 1, rows)  # some rows are empty
    indptr = np.zeros(rows + 1, np.int64)
    indptr[1:] = np.cumsum(lengths)
    total = int(indptr[-1])
    indices = rng.integers(0, columns, total)
    data = rng.normal(size=total)
    return indptr, indices, data, rng.normal(size=columns), np.ones(rows)


def floyd_warshall(path: Array) -> None:
    """Replace the lengths of edges by those of shortest paths."""
    n = path.shape[0]
    for k in range(n):
        for i in range(n):
            path[i] = np.minimum(path[i], path[i, k] + path[k])


def floyd_warshall_inputs(rng: Rng, n: int) -> Args:
    return (rng.uniform(0.5, 5.0, (n, n)),)  # a positive diagonal: no ties


def insertion_sort(a: Array) -> None:
    """Sort by moving each element down to its place."""
    for i in range(1, a.shape[0]):
        key = a[i]
        j = i - 1
        while j >= 0:
            if a[j] <= key:
                break
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = key


def insertion_sort_inputs(rng: Rng, n: int) -> Args:
    return (rng.permutation(n) + rng.uniform(0.0, 0.5, n),)


PROGRAMS = (
    Program(
        spmv, spmv_inputs, (4,), ((3, 4, 2), (5, 4, 4), (7, 6, 5)), (3000, 2000, 20)
    ),
    Program(
        spmv_rows,
        spmv_inputs,
        (4,),
        ((3, 4, 2), (5, 4, 4), (7, 6, 5)),
        (12000, 2000, 40),
    ),
    Program(floyd_warshall, floyd_warshall_inputs, (0,), ((3,), (5,), (7,)), (150,)),
    Program(insertion_sort, insertion_sort_inputs, (0,), ((3,), (6,), (9,)), (500,)),
)
