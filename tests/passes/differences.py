"""Hold a joint Func against central differences along random directions."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrograde.ir import dims
from retrograde.ir.func import Func
from retrograde.ir.interp import run

STEP = 1e-6


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
    values = []
    for sign in (1, -1):
        moved = copy.deepcopy(args)
        for t, j in zip(tangents, wrt, strict=True):
            moved[j] = (
                type(args[j])(args[j] + sign * STEP * t)
                if np.isscalar(args[j])
                else np.asarray(args[j] + sign * STEP * t)
            )
        after = run(f, *moved)
        values.append(inner([after[i] for i in smooth], cts))
    slope = (values[0] - values[1]) / (2 * STEP)
    got = inner(grads, tangents)
    scale = max(1.0, abs(slope), *(float(np.max(np.abs(g), initial=0)) for g in grads))
    assert abs(got - slope) <= 2e-6 * scale, f"{got} by vjp, {slope} by differences"


def _like(rng: np.random.Generator, x: Any) -> Any:
    t = rng.uniform(-1, 1, np.shape(x))
    return t if isinstance(x, np.ndarray) else np.float64(t)
