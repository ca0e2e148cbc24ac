"""Random programs with loops: NumPy = eager = interpreter after every pass = compiled.

Every program is called directly, with its effects on its arguments, and differentiated;
the gradients of eager and compiled code are equal, and equal to differences of NumPy's
own run. The passes are held against the interpreter in all programs, generated code in
a part of them. The compiled function is called again with other values and sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import COMMON, close, shares
from hypothesis import assume, given, seed, settings
from random_loops import MARGIN, LoopProgram, Unsmooth, loop_programs, margin

import retrograde as rg
from retrograde.ir import interp
from retrograde.ir.errors import UnsupportedError
from retrograde.ir.func import Func

PARTS = 6
EXAMPLES = int(os.environ.get("RETROGRADE_EXAMPLES", "84"))
NATIVE = 5  # one program in so many runs as native code,
NATIVE_GRADIENT = 20  # and one in so many its gradient; the others are interpreted
TWICE = 15  # one in so many is differentiated twice
FLOATS = (0, 1, 2, 3)  # the arguments with derivatives
PASSES = ("simplify", "cse", "dce", "vectorize", "fuse", "rows", "reinplace")


@pytest.mark.parametrize("part", range(PARTS))  # processors share the work
def test_loops_agree_in_every_mode(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = part * (EXAMPLES // PARTS)

    def check(p: LoopProgram) -> None:
        nonlocal count
        assume(is_smooth(p))
        count += 1
        try:
            monkeypatch.setenv("RETROGRADE_INTERP", "1" if count % NATIVE else "0")
            agree_in_values(p)
            gradient = count % NATIVE_GRADIENT
            monkeypatch.setenv("RETROGRADE_INTERP", "1" if gradient else "0")
            agree_in_gradients(p, second=count % TWICE == 0)
        except UnsupportedError as error:
            assume(not is_excused(p, error))
            raise

    examples = settings(COMMON, max_examples=EXAMPLES // PARTS)
    seed(part)(examples(given(loop_programs())(check)))()


def is_excused(p: LoopProgram, error: UnsupportedError) -> bool:
    """Tell whether a program may be refused: values cannot say what it writes to."""
    return p.rebinds_arrays() and "may or may not share memory" in str(error)


def is_smooth(p: LoopProgram, number: int = 0) -> bool:
    """Tell whether the values of a program are small, and no comparison is close."""
    try:
        return margin(p, p.args(number)) > MARGIN
    except Unsmooth:
        return False


def agree_in_values(p: LoopProgram) -> None:
    """Hold calls with several sizes against NumPy."""
    f = p.function()
    compiled = rg.compile(f)
    for k in range(3):
        if k == 0 or is_smooth(p, k):
            has_numpys_effects(f, compiled, p.args(k), not p.rebinds_arrays())


def agree_in_gradients(p: LoopProgram, second: bool) -> None:
    """Hold gradients against eager mode and differences, passes against each other."""
    loss = loss_of(p.function())
    compiled = rg.value_and_grad(rg.compile(loss), argnums=FLOATS)
    for k in range(2):
        if k == 0 or is_smooth(p, k):
            has_derivative(loss, compiled, p.args(k))
    passes_agree(compiled, p.args())
    if second:
        has_second_derivative(loss, p.args())


def has_numpys_effects(
    f: Callable[..., Any], compiled: Callable[..., Any], args: list[Any], sharing: bool
) -> None:
    """Hold results, arguments and aliasing of a call against NumPy's."""
    numpy_args, given_args = copies(args), copies(args)
    want, got = f(*numpy_args), compiled(*given_args)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a, b, f"result {k}")
        assert isinstance(a, np.ndarray) == isinstance(b, np.ndarray), f"result {k}"
    for k, (a, b) in enumerate(zip(given_args, numpy_args, strict=True)):
        close(a, b, f"argument {k} after the call")
    ours, theirs = [*given_args, *got], [*numpy_args, *want]
    for k in range(len(ours)):
        for j in range(k):
            share = shares(ours[j], ours[k]), shares(theirs[j], theirs[k])
            assert share[0] == share[1] or not sharing, f"{j} and {k} share: {share}"


def loss_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a number to which all results and final arguments contribute."""

    def loss(x: Any, y: Any, A: Any, s: Any, k: Any) -> Any:
        total = 0.1 * s
        for value in (*f(x, y, A, s, k), x, y, A):
            total = 0.9 * total + np.sum(np.sin(value + total * 0.1))
        return total

    return loss


def has_derivative(
    loss: Callable[..., Any], compiled: Callable[..., Any], args: list[Any]
) -> None:
    """Hold value and gradient against eager ones, and along a direction."""
    given_args = copies(args)
    value, grads = compiled(*given_args)
    for a, b in zip(given_args, args, strict=True):
        close(a, b, "an argument was changed", 0.0)
    want = loss(*copies(args))
    eager_value, eager = rg.value_and_grad(loss, argnums=FLOATS)(*copies(args))
    close(eager_value, want, "eager value")
    close(value, want, "compiled value")
    for k in FLOATS:
        close(grads[k], eager[k], f"compiled gradient {k} against eager")
    derivative, direction, doubt = slope(loss, args)
    along = sum(float(np.sum(g * d)) for g, d in zip(grads, direction, strict=True))
    tolerance = 1e-6 * (1.0 + abs(derivative)) + 10 * doubt
    assert abs(along - derivative) < tolerance, f"{along} is not {derivative}"


def slope(
    loss: Callable[..., Any], args: list[Any], h: float = 1e-5
) -> tuple[float, list[Any], float]:
    """Return the derivative along a random direction, the direction, and the doubt."""
    rng = np.random.default_rng(11)
    direction = [rng.uniform(-1.0, 1.0, np.shape(args[k])) for k in FLOATS]

    def at(t: float) -> float:
        moved = [a + t * d for a, d in zip(args, direction, strict=False)]
        moved[3] = float(moved[3])
        return float(loss(*moved, args[4]))

    near, far = (at(h) - at(-h)) / (2 * h), (at(2 * h) - at(-2 * h)) / (4 * h)
    return (4 * near - far) / 3, direction, abs(near - far)


def has_second_derivative(loss: Callable[..., Any], args: list[Any]) -> None:
    """Hold the derivative of the slope along a direction against eager mode."""
    rng = np.random.default_rng(13)
    direction = [rng.uniform(-1.0, 1.0, np.shape(args[k])) for k in FLOATS]

    def along(*xs: Any) -> Any:
        grads = rg.grad(loss, argnums=FLOATS)(*xs)
        return sum(np.sum(g * d) for g, d in zip(grads, direction, strict=True))

    got = rg.grad(rg.compile(along), argnums=FLOATS)(*copies(args))
    want = rg.grad(along, argnums=FLOATS)(*copies(args))
    for k in FLOATS:
        close(got[k], want[k], f"compiled second derivative {k} against eager", 1e-8)


def passes_agree(compiled: Any, args: list[Any]) -> None:
    """Interpret the joint program after every pass."""
    spec = compiled.specialisation(*copies(args))
    values = spec.values(args)
    assert values is not None
    symbols = spec.symbols(args, values)

    def run(stage: Func) -> list[Any]:
        private = [a.copy() if isinstance(a, np.ndarray) else a for a in values]
        return interp.run(stage, *private, symbols=symbols)

    want = run(spec.program.func)
    for name in PASSES:
        for a, b in zip(run(spec.program.stages[name]), want, strict=True):
            close(a, b, f"after {name}")


def copies(args: list[Any]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]
