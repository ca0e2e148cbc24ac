"""functionalize keeps the meaning of traced programs; what it cannot keep it refuses."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import arguments, program

from retrograde.ir.errors import UnsupportedError
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


def check_same_meaning(f: Func, g: Func, args: list[Any]) -> None:
    """Compare the traced f with the pure g: results, and finals of parameters."""
    traced_args = copy.deepcopy(args)
    expected = [np.array(r) for r in run(f, *traced_args)]
    pure_args = copy.deepcopy(args)
    got = run(g, *pure_args)
    for a, b in zip(pure_args, args, strict=True):
        np.testing.assert_array_equal(a, b, "a pure Func changed an argument")
    for a, b in zip(got, expected, strict=False):
        np.testing.assert_allclose(a, b, **TOLERANCE)
    updated = {j: got[i] for i, j in g.updates}
    for j, (before, after) in enumerate(zip(args, traced_args, strict=True)):
        np.testing.assert_allclose(updated.get(j, before), after, **TOLERANCE)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 14))
def test_random_programs_keep_their_meaning(seed: int, size: int) -> None:
    f = program(seed, size)
    verify(f)
    assert show(parse(show(f))) == show(f)
    try:
        g = functionalize(f)
    except UnsupportedError:
        return
    verify(g)
    check_same_meaning(f, g, arguments(f, seed))
