"""Random programs: NumPy = eager = interpreter after every pass = compiled.

Gradients of eager and compiled code are equal, and equal to differences of NumPy's own
run. Every program is compiled once, as the joint value and gradient of a weighted sum
of all its variables; some are also called directly, with their effects on arguments.
The passes are held against the interpreter in all programs, native code in every other.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMMON, close, shares
from hypothesis import given, seed, settings
from random_programs import Program, programs

import retrograde as rg
from retrograde.ir import interp
from retrograde.ir.func import Func

PARTS = 4
EXAMPLES = int(os.environ.get("RETROGRADE_EXAMPLES", "120"))
NATIVE = 2  # one program in so many runs as native code; the others are interpreted


def weights(values: tuple[Any, ...]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.uniform(0.5, 1.5, np.shape(v)) for v in values]


def loss_of(f: Callable[..., Any], weight: list[Any]) -> Callable[..., Any]:
    """Return the weighted sum of all results and final arguments of a program."""

    def loss(x: Any, y: Any, s: Any) -> Any:
        total = 0.0
        for value, w in zip(f(x, y, s), weight, strict=True):
            total = total + np.sum(value * w)
        return total

    return loss


def slope(
    loss: Callable[..., Any], p: Program, h: float = 1e-5
) -> tuple[float, list[Any]]:
    """Return the derivative along a random direction, and the direction."""
    rng = np.random.default_rng(11)
    direction = [rng.uniform(-1.0, 1.0, np.shape(a)) for a in p.args]

    def at(t: float) -> float:
        moved = [a + t * d for a, d in zip(p.args, direction, strict=True)]
        moved[2] = float(moved[2])
        return float(loss(*moved))

    third = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    return third, direction


def interpreted(stage: Func, args: list[Any]) -> list[Any]:
    """Run one stage with the interpreter, on private copies."""
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    return interp.run(stage, *copies)


@pytest.mark.parametrize("part", range(PARTS))  # processors share the work
def test_values_and_gradients_agree_in_every_mode(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def check(p: Program) -> None:
        nonlocal count
        count += 1
        monkeypatch.setenv("RETROGRADE_INTERP", "1" if count % NATIVE else "0")
        agree(p)

    examples = settings(COMMON, max_examples=EXAMPLES // PARTS)
    seed(part)(examples(given(programs())(check)))()


def agree(p: Program) -> None:
    """Hold all modes against NumPy, and gradients against differences."""
    f = p.function()
    numpy_args = p.fresh()
    values = f(*numpy_args)
    weight = weights(values)
    loss = loss_of(f, weight)

    args = p.fresh()
    eager_value, eager_grads = rg.value_and_grad(loss, argnums=(0, 1, 2))(*args)
    compiled = rg.value_and_grad(rg.compile(loss), argnums=(0, 1, 2))
    value, grads = compiled(*args)
    for a, b in zip(args, p.args, strict=True):
        close(a, b, "an argument was changed", 0.0)

    want = loss(*p.fresh())
    close(eager_value, want, "eager value")
    close(value, want, "compiled value")
    for k in range(3):
        close(grads[k], eager_grads[k], f"compiled gradient {k} against eager")
    derivative, direction = slope(loss, p)
    along = sum(float(np.sum(g * d)) for g, d in zip(grads, direction, strict=True))
    close(along, derivative, "gradient against differences", 1e-6)

    spec = compiled.specialisation(*p.fresh())
    given_args = spec.values(p.args)
    assert given_args is not None
    for name in ("simplify", "cse", "dce", "fuse", "rows", "reinplace"):
        out = interpreted(spec.program.stages[name], given_args)
        close(out[0], want, f"value after {name}")


@settings(COMMON, max_examples=max(EXAMPLES // 5, 10))
@given(programs(max_lines=6))
def test_direct_calls_have_numpys_effects(p: Program) -> None:
    f = p.function()
    numpy_args, args = p.fresh(), p.fresh()
    want = f(*numpy_args)
    got = rg.compile(f)(*args)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a, b, f"result {k}")
        assert isinstance(a, np.ndarray) == isinstance(b, np.ndarray), f"result {k}"
    for k, (a, b) in enumerate(zip(args, numpy_args, strict=True)):
        close(a, b, f"argument {k} after the call")
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        for j in range(k):
            share = shares(got[j], a), shares(want[j], b)
            assert share[0] == share[1], f"results {j} and {k} share memory: {share}"
        for j in range(2):
            share = shares(args[j], a), shares(numpy_args[j], b)
            assert share[0] == share[1], f"argument {j}, result {k} share: {share}"


@settings(COMMON, max_examples=max(EXAMPLES // 5, 10))
@given(programs())
def test_interpreted_capture_is_numpy(p: Program) -> None:
    f = p.function()
    numpy_args = p.fresh()
    want = f(*numpy_args)
    compiled = rg.compile(f)
    spec = compiled.specialisation(*p.fresh())
    args = [p.fresh()[j] for j in spec.arguments]
    traced = interp.run(spec.stages["capture"], *args)
    pure = interpreted(
        spec.stages["functionalize"], [p.args[j] for j in spec.arguments]
    )
    for a, b in zip(traced, pure, strict=False):
        close(b, a, "functionalize")
    for j, a in zip(spec.arguments, args, strict=True):
        close(a, numpy_args[j], f"argument {j} after the captured program")
    assert len(want) == len(spec.outs)
