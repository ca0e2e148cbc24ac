"""Hold a joint Func against central differences along random directions."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from retrograde.ir import dims
from retrograde.ir.func import Func
from retrograde.ir.interp import run

STEPS = (1e-6, 1e-7, 1e-8, 1e-9)


def floats(f: Func) -> list[int]:
    """Return the positions of the float parameters."""
    return [j for j, p in enumerate(f.params) if p.type.is_inexact]


def is_callable(f: Func) -> bool:
    """Tell whether the arguments say every size; a cotangent of 2*c may not say c."""
    sizes = [d for p in f.params for d in p.type.shape]
    alone = {dims.as_symbol(d) for d in sizes}
    return all(dims.symbols_of(d) <= alone for d in sizes)


def inner(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    return float(sum(np.sum(np.multiply(x, y)) for x, y in zip(xs, ys, strict=True)))


def check_joint(f: Func, joint: Func, args: list[Any], seed: int) -> None:
    """Compare `<ct, J v>` by differences with `<J^T ct, v>` from the joint Func."""
    rng = np.random.default_rng(seed)
    wrt = floats(f)
    out = run(f, *copy.deepcopy(args))
    smooth = [
        i for i, r in enumerate(f.results) if np.asarray(out[i]).dtype.kind == "f"
    ]
    cts = [_like(rng, out[i]) for i in smooth]
    tangents = [_like(rng, args[j]) for j in wrt]
    both = run(joint, *copy.deepcopy(args), *cts)
    for a, b in zip(both, out, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    grads = both[len(out) :]
    for g, j in zip(grads, wrt, strict=True):
        assert np.shape(g) == np.shape(args[j])
    got = inner(grads, tangents)
    largest = max(float(np.max(np.abs(g), initial=0)) for g in (*grads, 1.0))

    def slope(step: float) -> float:
        ahead, behind = (run(f, *_moved(args, wrt, tangents, h)) for h in (step, -step))
        change = [ahead[i] - behind[i] for i in smooth]
        return inner(change, cts) / (2 * step)

    found = [slope(STEPS[0])]
    allowed = 2e-6 * max(largest, abs(found[0]))
    if abs(got - found[0]) > allowed:  # the program may bend too much for the step
        found += map(slope, STEPS[1:])
        allowed += max(abs(a - b) for a, b in pairwise(found))
    assert abs(got - found[0]) <= allowed, f"{got} by vjp, {found} by differences"


def _moved(
    args: list[Any], wrt: Sequence[int], tangents: Sequence[Any], step: float
) -> list[Any]:
    moved = copy.deepcopy(args)
    for t, j in zip(tangents, wrt, strict=True):
        x = args[j] + step * t
        moved[j] = type(args[j])(x) if np.isscalar(args[j]) else np.asarray(x)
    return moved


def _like(rng: np.random.Generator, x: Any) -> Any:
    t = rng.uniform(-1, 1, np.shape(x))
    return t if isinstance(x, np.ndarray) else np.float64(t)
