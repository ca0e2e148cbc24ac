"""Slopes of a function of one number from its values, with a bound on the doubt."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

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
