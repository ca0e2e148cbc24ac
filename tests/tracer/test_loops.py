"""Loops and branches captured as regions: values, final arrays, gradients."""

from typing import Any

import numpy as np
import pytest
from loop_programs import CASES

import retrograde as rg
from retrograde.ir.func import walk
from retrograde.ir.op import Kind

REGIONS = (Kind.FOR, Kind.WHILE, Kind.COND)
UNROLLED = {
    *("append_read", "matchy", "gradin"),
    *("slotted_state", "deque_state", "set_state", "iterator_from_outside"),
}


def copies(args: Any) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def floats(args: Any) -> tuple[int, ...]:
    return tuple(
        k
        for k, a in enumerate(args)
        if isinstance(a, float) or getattr(a, "dtype", None) == np.float64
    )


def regions(f: Any, args: Any) -> set[Kind]:
    stage = f.stages(*copies(args))["capture"]
    return {n.op.kind for n in walk(stage.body) if n.op.kind in REGIONS}


@pytest.mark.parametrize("name", CASES)
def test_captured_is_numpy(name: str) -> None:
    f, args = CASES[name]
    given, finals = copies(args), copies(args)
    want = f(*finals)
    compiled = rg.compile(f)
    assert bool(regions(compiled, args)) == (name not in UNROLLED)
    got = compiled(*given)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    for a, b in zip(given, finals, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_tape(name: str) -> None:
    f, args = CASES[name]
    argnums = floats(args)
    value, gradient = rg.value_and_grad(rg.compile(f), argnums)(*args)
    want, expected = rg.value_and_grad(f, argnums)(*args)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    for got, g in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(got, g, rtol=1e-9, atol=1e-12)
