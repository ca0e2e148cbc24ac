"""Exact numbers for tests: edge values, references that round once, comparison."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from snippets import compute, dtype, elementwise

RNG = np.random.default_rng(7)
INTEGER_TYPES = ["s16", "u16", "s32", "u32", "s64", "u64"]


def integers(kind: str) -> list[int]:
    info = np.iinfo(dtype(kind))
    near = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100, info.max, info.max - 1]
    near += [info.min, info.min + 1, info.max // 3, info.max // 5]
    near += [-1, -2, -7, -100] if info.min else [info.max // 2 + 1]
    drawn = RNG.integers(info.min, info.max, 6, dtype(kind), endpoint=True)
    return near + [int(x) for x in drawn]


def floats(kind: str) -> list[float]:
    info = np.finfo(dtype(kind))
    near = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 1 / 3, 1e-3, 100.7, 2.0**31, 2.0**63, 1e9]
    near += [float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    near += [float(info.tiny) * 1.25, 1 + float(info.eps), math.inf, math.nan]
    drawn = RNG.normal(size=4) * 10.0 ** RNG.integers(-6, 7, 4)
    every = near + [-x for x in near] + list(drawn)
    with np.errstate(over="ignore"):
        return [float(x) for x in np.array(every).astype(dtype(kind))]


def values(kind: str) -> list:
    if kind == "pred":
        return [False, True]
    return floats(kind) if kind[0] == "f" else integers(kind)


def cases(kinds: tuple[str, ...], most: int = 400) -> list[tuple]:
    every = list(itertools.product(*(values(k) for k in kinds)))
    if len(every) > most:
        chosen = RNG.choice(len(every), most, replace=False)
        every = [every[k] for k in chosen]
    return every


def check(
    body: str,
    inputs: tuple[str, ...],
    output: str,
    reference: Callable,
    registers: str = "",
    given: list[tuple] | None = None,
) -> None:
    """Compare a snippet with a function of Python numbers, element by element."""
    rows = given or cases(inputs)
    with np.errstate(all="ignore"):
        arrays = [
            np.array(column, dtype(kind))
            for column, kind in zip(zip(*rows, strict=True), inputs, strict=True)
        ]
    text = elementwise(body, inputs, output, registers)
    rows = list(zip(*(a.tolist() for a in arrays), strict=True))
    expected = [wrapped(reference(*row), output) for row in rows]
    with np.errstate(all="ignore"):
        want = np.array(expected, dtype(output))
    few = [a[:40] for a in arrays]
    for found, count in (
        (compute(text, arrays, output), len(rows)),
        (compute(text, few, output, single=True), len(few[0])),
    ):
        same = found.view(unsigned(output)) == want[:count].view(unsigned(output))
        if output[0] == "f":
            same |= np.isnan(found) & np.isnan(want[:count])
        wrong = np.flatnonzero(~same)
        assert not len(wrong), (
            f"{body}: {rows[wrong[0]]} gives {found[wrong[0]]}, not {want[wrong[0]]}"
        )


def unsigned(kind: str) -> str:
    return f"u{dtype(kind).itemsize}"


def wrapped(x, kind: str):
    """Return a number in the range of an integer type."""
    if kind == "pred" or kind[0] == "f":
        return x
    bits = 8 * dtype(kind).itemsize
    x = int(x) & ((1 << bits) - 1)
    return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x


@np.errstate(all="ignore")
def rounded(x: Fraction, kind: str, mode: str = "rn") -> float:
    """Return a fraction rounded to a float type, by a search among neighbours."""
    real = dtype(kind).type
    try:
        near = real(x.numerator / x.denominator)
    except OverflowError:
        near = real(math.inf if x > 0 else -math.inf)
    if np.isinf(near):
        near = np.nextafter(near, real(0))
    below = above = near
    while np.isfinite(below) and Fraction(float(below)) > x:
        below = np.nextafter(below, real(-math.inf))
    while np.isfinite(above) and Fraction(float(above)) < x:
        above = np.nextafter(above, real(math.inf))
    if below == above:
        return float(below)
    down, up = float(below), float(above)
    if mode == "rm":
        return signed_zero(down, x)
    if mode == "rp":
        return signed_zero(up, x)
    if mode == "rz":
        return signed_zero(down if x > 0 else up, x)
    top = Fraction(2) ** (128 if kind == "f32" else 1024)
    high = top if math.isinf(up) else Fraction(up)
    low = -top if math.isinf(down) else Fraction(down)
    if x - low != high - x:
        return signed_zero(down if x - low < high - x else up, x)
    even = int(np.array(below).view(unsigned(kind))) % 2 == 0
    return signed_zero(down if even and not math.isinf(down) else up, x)


def signed_zero(r: float, x: Fraction) -> float:
    return math.copysign(r, x) if r == 0 else r


def exactly(kind: str, mode: str, function: Callable, plain: Callable) -> Callable:
    """Return a rounded function of fractions; `plain` takes what is not finite."""

    def reference(*args: float) -> float:
        if all(map(math.isfinite, args)):
            try:
                exact = function(*map(Fraction, args))
            except ZeroDivisionError:
                exact = Fraction(0)
            if exact != 0:
                return rounded(exact, kind, mode)
        with np.errstate(all="ignore"):
            found = float(plain(*map(dtype(kind).type, args)))
        if mode == "rm" and found == 0 and zero_terms(args, plain):
            return -0.0
        return found

    return reference


def zero_terms(args: tuple[float, ...], plain: Callable) -> bool:
    """Tell whether an exact zero is a sum with a negative term."""
    if len(args) == 1:
        return False
    if len(args) == 3:
        args = (
            args[0] * args[1] or math.copysign(0, args[0]) * math.copysign(1, args[1]),
            args[2],
        )
    elif plain(3.0, 1.0) == 2:
        args = (args[0], -args[1])
    elif plain(3.0, 1.0) != 4:
        return False
    return any(math.copysign(1, x) < 0 for x in args)
