"""Whether a computed value and gradient are right, for arrays of any size.

A gradient of ten million entries is not sent from one process to another. Each process
multiplies it with the same random signs and sums up in BLOCKS blocks: the sums of all
blocks together are a slope that differences of NumPy's float64 values confirm, and the
block sums of two frameworks agree.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Args, Array, Case, copied, differentiable
from .frameworks import Computed

BLOCKS = 32
STEPS = (1e-5, 5e-6)  # of the differences
# Largest errors, relative to what is summed up.
VALUE = {"float64": 1e-10, "float32": 2e-4}
GRADIENT = {"float64": 1e-10, "float32": 2e-4}
SLOPE = 1e-7  # of the differences themselves


@dataclass(frozen=True, slots=True)
class Digest:
    """A value, and sums over blocks of each gradient.

    `sums` are those of a gradient's entries times signs, `sizes` those of their
    absolute values. `scale` is what relative changes of the arguments change in the
    value.
    """

    value: float
    scale: float
    sums: list[float]
    sizes: list[float]


@dataclass(frozen=True, slots=True)
class Reference:
    """NumPy's value in float64, and its slope along the signs, by differences.

    `doubt` is by how much two steps disagree: they cross different kinks.
    """

    value: float
    slope: float
    doubt: float


def signs(x: Array, k: int) -> Array:
    """Return random signs for argument k."""
    drawn = np.random.default_rng(k + 1).integers(0, 2, x.shape, np.int8)
    found: Array = drawn * np.int8(2) - np.int8(1)
    return found


def digest(args: Args, computed: Computed) -> Digest:
    """Summarise a result; one without gradients has no sums."""
    sums: list[float] = []
    sizes: list[float] = []
    scale = abs(computed.value)
    wrt = differentiable(args)
    for k, g in zip(wrt, computed.grads or (), strict=False):
        if g.shape != args[k].shape:
            raise ValueError(f"gradient {k} has shape {g.shape}")
        wide = g.astype(np.float64)
        scale += float(np.sum(np.abs(wide * args[k])))
        signed = wide * signs(g, k)
        for block in np.array_split(signed.ravel(), BLOCKS):
            sums.append(float(np.sum(block)))
            sizes.append(float(np.sum(np.abs(block))))
    return Digest(computed.value, scale, sums, sizes)


def reference(case: Case, args: Args) -> Reference:
    """Compute value and slope of float64 arguments by NumPy alone."""
    wrt = differentiable(args)

    def value(step: float) -> float:
        moved: list[Any] = list(copied(args))
        for k in wrt:
            moved[k] = args[k] + step * signs(args[k], k)
        return float(case.function(*moved))

    slope, other = ((value(h) - value(-h)) / (2 * h) for h in STEPS)
    return Reference(value(0.0), slope, abs(slope - other))


def problem(found: Digest, known: Reference, dtype: str) -> str:
    """Say what is wrong with a result, or nothing."""
    error = abs(found.value - known.value)
    if not error <= VALUE[dtype] * max(abs(known.value), found.scale):
        return f"value {found.value:.9g}, NumPy's is {known.value:.9g}"
    if not found.sums:
        return ""
    total, size = sum(found.sums), sum(found.sizes)
    # A sum's rounding errors, divided by the step, are the doubt of a difference.
    doubt = 4 * known.doubt + SLOPE * size + 1e-15 * max(found.scale, size) / STEPS[-1]
    if not abs(total - known.slope) <= GRADIENT[dtype] * size + doubt:
        return f"slope {total:.9g}, by differences {known.slope:.9g}"
    return ""


def disagreement(one: Digest, other: Digest, dtype: str) -> str:
    """Say where the gradients of two frameworks differ, or nothing."""
    if not one.sums or not other.sums:
        return ""
    if len(one.sums) != len(other.sums):
        return "another number of gradients"
    average = sum(other.sizes) / len(other.sizes)
    for k, (a, b) in enumerate(zip(one.sums, other.sums, strict=True)):
        allowed = GRADIENT[dtype] * max(other.sizes[k], average)
        if not abs(a - b) <= allowed:
            argument, block = divmod(k, BLOCKS)
            return f"gradient {argument} differs in block {block}: {a:.9g}, {b:.9g}"
    return ""
