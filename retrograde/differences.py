"""Derivatives from values alone: slopes with a bound on the doubt, and Jacobians."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

RATIO = 4.0  # of one step to the next


@dataclass(frozen=True, slots=True)
class Slope:
    """A derivative by differences: its value, its uncertainty, and why not to trust it.

    `problem` is empty where the function looked smooth.
    """

    value: float
    doubt: float
    problem: str = ""


def slope(f: Callable[[float], float], scale: float, eps: float) -> Slope:
    """Differentiate f at 0 by central differences with several steps.

    `scale` is the size of what f adds up, `eps` the relative precision it computes
    with: together they bound the noise. Each pair of steps is extrapolated, and the
    pair that agrees best with its neighbour wins.

    >>> slope(math.sin, 1.0, 2.0**-52).problem
    ''
    >>> slope(abs, 1.0, 2.0**-52).problem
    'one-sided slopes differ: -1 and 1'
    """
    centre = f(0.0)
    if not math.isfinite(centre):
        return Slope(math.nan, math.inf, "the value is not finite")
    steps = _steps(eps)
    sides = [(f(step), f(-step)) for step in steps]
    usable = [
        (step, up, down)
        for step, (up, down) in zip(steps, sides, strict=True)
        if math.isfinite(up) and math.isfinite(down)
    ]
    if len(usable) < 3:
        return Slope(math.nan, math.inf, "values nearby are not finite")
    noise = [4 * eps * scale / step for step, _, _ in usable]
    if problem := _kink(centre, usable, noise):
        return Slope(math.nan, math.inf, problem)
    central = [(up - down) / (2 * step) for step, up, down in usable]
    weight = RATIO * RATIO
    better = [
        (weight * fine - coarse) / (weight - 1) for coarse, fine in pairwise(central)
    ]
    doubts = [
        abs(here - there) + noise[i + 2]
        for i, (here, there) in enumerate(pairwise(better))
    ]
    best = min(range(len(doubts)), key=doubts.__getitem__)
    return Slope(better[best + 1], doubts[best])


def _steps(eps: float) -> list[float]:
    """Return steps from two percent down to where rounding takes over."""
    smallest = 30 * math.sqrt(eps)
    steps = [0.02]
    while steps[-1] / RATIO > smallest or len(steps) < 4:
        steps.append(steps[-1] / RATIO)
    return steps


def _kink(
    centre: float, usable: list[tuple[float, float, float]], noise: list[float]
) -> str:
    """Describe a kink or jump at 0: one-sided slopes that do not approach each other.

    Of a smooth function their gap shrinks with the step, by RATIO each time.
    """
    sides = [
        ((up - centre) / step, (centre - down) / step) for step, up, down in usable
    ]
    gaps = [abs(right - left) for right, left in sides]
    for i in range(len(gaps) - 1, 1, -1):
        if gaps[i] <= 10 * noise[i]:
            continue
        right, left = sides[i]
        shrinks = gaps[i] < 0.6 * gaps[i - 1] or gaps[i] < 1e-6 * abs(right + left)
        # A kink at 0 would show in the next smaller step as well, above its noise.
        vanishes = i + 1 < len(gaps) and gaps[i] > 20 * noise[i + 1]
        if shrinks or vanishes:
            return ""
        return f"one-sided slopes differ: {left:.3g} and {right:.3g}"
    return ""


def jacobians(
    f: Callable[[list[Array]], Sequence[Any]], xs: Sequence[Any], eps: float
) -> list[list[Array]]:
    """Return the derivative of every result of `f` in every array of `xs`.

    By central differences with one step: `[k][j]` is that of result k in array j, with
    a row per element of the result and a column per element of the array, in C order. A
    complex element counts as two, its parts. `f` gets arrays that it may keep.

    >>> ((j,),) = jacobians(lambda xs: [xs[0] ** 2], [np.array([1.0, 3.0])], 1e-6)
    >>> np.round(j, 6)
    array([[2., 0.],
           [0., 6.]])
    """
    base = [np.asarray(x) for x in xs]
    columns: list[list[list[Array]]] = []
    for j, x in enumerate(base):
        units = (1, 1j) if x.dtype.kind == "c" else (1,)
        columns.append([])
        for at in np.ndindex(x.shape):
            for unit in units:
                up, down = (
                    _flat(f(_moved(base, j, at, step * unit))) for step in (eps, -eps)
                )
                pairs = zip(up, down, strict=True)
                columns[j].append([(a - b) / (2 * eps) for a, b in pairs])
    sizes = [y.size for y in _flat(f(_moved(base, 0, (), 0)))] if base else []
    return [
        [
            np.stack([c[k] for c in column], axis=1) if column else np.zeros((m, 0))
            for column in columns
        ]
        for k, m in enumerate(sizes)
    ]


def as_reals(x: Any) -> Array:
    """Return the elements as one row of real numbers: of complex ones both parts."""
    flat = np.ravel(np.asarray(x))
    if flat.dtype.kind == "c":
        return np.stack([flat.real, flat.imag], axis=1).reshape(-1)
    return flat


def _flat(ys: Sequence[Any]) -> list[Array]:
    return [as_reals(y).astype(np.float64) for y in ys]


def _moved(xs: Sequence[Array], j: int, at: tuple[int, ...], step: Any) -> list[Array]:
    """Return copies of arrays, with one element moved."""
    copies = [x.copy(order="K") for x in xs]
    if step:
        copies[j][at] += step
    return copies
