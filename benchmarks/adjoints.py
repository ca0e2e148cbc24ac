"""Gradients of loop programs by hand, in Numba: what generated code is held against.

Each function takes what the program's objective takes, `(weights, *args)`, and returns
value and gradients as `rg.value_and_grad` does. The adjoints work in place on one copy
of the argument and one of the cotangent, and keep no tape. They are what one writes at
first, statement for statement; a *restructured* one is what one writes after that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba
import numpy as np

from .programs import Args, Array, Program, Size, find

F = TypeVar("F", bound=Callable[..., Any])


def compiled(f: F) -> F:
    """Compile with sums in any order and fused multiply-adds, as generated code may."""
    fast = {"reassoc", "contract"}
    return cast(F, numba.njit(fastmath=fast, error_model="numpy")(f))


@dataclass(frozen=True, slots=True)
class Hand:
    """A gradient by hand, the program it belongs to, and sizes to time it at."""

    gradient: Callable[..., tuple[float, tuple[Array, ...]]]
    name: str
    sizes: tuple[Size, ...]

    @property
    def program(self) -> Program:
        return find(self.name.partition(",")[0])


def seidel_2d(weights: Args, tsteps: int, a: Array) -> tuple[float, tuple[Array, ...]]:
    """Sweep forwards, then the cotangent backwards: the program is linear in a."""
    a, d = a.copy(), weights[0].copy()
    seidel_forward(tsteps, a)
    value = np.vdot(weights[0], a)
    seidel_backward(tsteps, d)
    return float(value), (d,)


@compiled
def seidel_forward(tsteps: int, a: Array) -> None:
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


@compiled
def seidel_backward(tsteps: int, d: Array) -> None:
    """Hand the ninth part of a point's cotangent to all nine points that it read."""
    n = d.shape[0]
    for _ in range(tsteps):
        for i in range(n - 2, 0, -1):
            for j in range(n - 2, 0, -1):
                g = d[i, j] / 9.0
                d[i, j] = 0.0
                d[i - 1, j - 1] += g
                d[i - 1, j] += g
                d[i - 1, j + 1] += g
                d[i, j - 1] += g
                d[i, j] += g
                d[i, j + 1] += g
                d[i + 1, j - 1] += g
                d[i + 1, j] += g
                d[i + 1, j + 1] += g


def seidel_restructured(
    weights: Args, tsteps: int, a: Array
) -> tuple[float, tuple[Array, ...]]:
    """Compute what is known of a row at once, then the rest point after point."""
    a, d = a.copy(), weights[0].copy()
    seidel_forward_by_rows(tsteps, a)
    value = np.vdot(weights[0], a)
    seidel_backward_by_rows(tsteps, d)
    return float(value), (d,)


@compiled
def seidel_forward_by_rows(tsteps: int, a: Array) -> None:
    n = a.shape[0]
    known = np.empty(n)
    for _ in range(tsteps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                known[j] = (
                    a[i - 1, j - 1]
                    + a[i - 1, j]
                    + a[i - 1, j + 1]
                    + a[i, j]
                    + a[i, j + 1]
                    + a[i + 1, j - 1]
                    + a[i + 1, j]
                    + a[i + 1, j + 1]
                ) * (1.0 / 9.0)
            left = a[i, 0]
            for j in range(1, n - 1):
                left = known[j] + (1.0 / 9.0) * left
                a[i, j] = left


@compiled
def seidel_backward_by_rows(tsteps: int, d: Array) -> None:
    """Turn the cotangent of the last grid into that of the first.

    A point hands the ninth part g of its cotangent to all nine points it read. Those
    below and to the right were read before they were written, so their g is known
    before: g is a scan along the row, from the right. What remains in a row is the sum
    of the g around it that were formed after its own.
    """
    n = d.shape[0]
    below = np.zeros(n)
    here = np.zeros(n)
    for _ in range(tsteps):
        below[:] = 0.0
        for i in range(n - 2, 0, -1):
            for j in range(1, n - 1):
                near = d[i, j] + below[j - 1] + below[j] + below[j + 1]
                here[j] = near * (1.0 / 9.0)
            right = 0.0
            for j in range(n - 2, 0, -1):
                right = here[j] + (1.0 / 9.0) * right
                here[j] = right
            for k in range(i - 1, i + 2):  # the edges are never written
                d[k, 0] += here[1]
                d[k, n - 1] += here[n - 2]
            if i == n - 2:
                for j in range(1, n - 1):
                    d[i + 1, j] += here[j - 1] + here[j] + here[j + 1]
            else:
                for j in range(1, n - 1):
                    left = below[j] + below[j - 1]
                    d[i + 1, j] = left + here[j - 1] + here[j] + here[j + 1]
            below, here = here, below
        for j in range(1, n - 1):
            d[1, j] = below[j] + below[j - 1]
            d[0, j] += below[j - 1] + below[j] + below[j + 1]


def cholesky(weights: Args, a: Array) -> tuple[float, tuple[Array, ...]]:
    """Factor, then undo the rows last to first: the factor is all that is read."""
    a, d = a.copy(), weights[0].copy()
    cholesky_forward(a)
    value = np.vdot(weights[0], a)
    cholesky_backward(a, d)
    return float(value), (d,)


@compiled
def cholesky_forward(a: Array) -> None:
    for i in range(a.shape[0]):
        for j in range(i):
            total = 0.0
            for k in range(j):
                total += a[i, k] * a[j, k]
            a[i, j] = (a[i, j] - total) / a[j, j]
        total = 0.0
        for k in range(i):
            total += a[i, k] * a[i, k]
        a[i, i] = np.sqrt(a[i, i] - total)


@compiled
def cholesky_backward(factor: Array, d: Array) -> None:
    for i in range(d.shape[0] - 1, -1, -1):
        g = 0.5 * d[i, i] / factor[i, i]
        d[i, i] = g
        for k in range(i):
            d[i, k] -= 2.0 * g * factor[i, k]
        for j in range(i - 1, -1, -1):
            g = d[i, j] / factor[j, j]
            d[i, j] = g
            d[j, j] -= g * factor[i, j]
            for k in range(j):
                d[i, k] -= g * factor[j, k]
                d[j, k] -= g * factor[i, k]


def lu(weights: Args, a: Array) -> tuple[float, tuple[Array, ...]]:
    """Factor, then undo the steps: column and row k are final after step k."""
    a, d = a.copy(), weights[0].copy()
    lu_forward(a)
    value = np.vdot(weights[0], a)
    lu_backward(a, d)
    return float(value), (d,)


@compiled
def lu_forward(a: Array) -> None:
    n = a.shape[0]
    for k in range(n):
        right = a[k, k + 1 :]
        for i in range(k + 1, n):
            row = a[i, k + 1 :]
            left = a[i, k] / a[k, k]
            a[i, k] = left
            for j in range(right.shape[0]):
                row[j] -= left * right[j]


@compiled
def lu_backward(factors: Array, d: Array) -> None:
    n = d.shape[0]
    taken = np.empty(n)
    for k in range(n - 1, -1, -1):
        right = factors[k, k + 1 :]
        size = right.shape[0]
        taken[:size] = 0.0
        pivot = 0.0
        for i in range(k + 1, n):
            row = d[i, k + 1 :]
            left = factors[i, k]
            total = 0.0
            for j in range(size):
                total += row[j] * right[j]
                taken[j] += left * row[j]
            g = (d[i, k] - total) / factors[k, k]
            d[i, k] = g
            pivot += g * left
        for j in range(size):
            d[k, k + 1 + j] -= taken[j]
        d[k, k] -= pivot


SEIDEL_SIZES = ((8, 50), (15, 100), (100, 400))
HANDS = (
    Hand(seidel_2d, "seidel_2d", SEIDEL_SIZES),
    Hand(seidel_restructured, "seidel_2d, restructured", SEIDEL_SIZES),
    Hand(cholesky, "cholesky", ((400,),)),
    Hand(lu, "lu", ((300,),)),
)
