"""Groups over rows: random programs mean the same, in few passes over the data."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from row_programs import Sizes, arguments, program
from run_nests import Failed, run_nests

from retrograde.codegen import build
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import drop_unused
from retrograde.ir.errors import RetrogradeError
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.types import F32, F64
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vjp import vjp

SIZES: list[Sizes] = [
    (5, 7),
    (3, 2),
    (4, 4),
    (2, 1),
    (1, 6),
    (3, 0),
    (0, 4),
    (2, 3, 5),
    (3, 3, 3),
    (2, 1, 4),
]
TOLERANCE = {F64: 1e-10, F32: 2e-4}


def case(
    seed: int, size: int, sizes: Sizes, joint: bool, dtype: Any
) -> tuple[Func, list[Any]]:
    """Return a random program, or its joint Func, with arguments."""
    f = program(seed, size, sizes, dtype)
    args = arguments(f, seed, sizes)
    if not joint or f.updates:
        return f, args
    try:
        results = run(f, *copy.deepcopy(args))
    except (RetrogradeError, ValueError):
        return f, args
    floats = [k for k, p in enumerate(f.params) if p.type.is_inexact]
    rng = np.random.default_rng(seed)
    args += [
        rng.uniform(-1, 1, np.shape(r)).astype(dtype)
        if np.shape(r)
        else dtype.type(0.3)
        for r in results
    ]
    return vjp(f, floats), args


def lowered(f: Func) -> Func:
    """Return a Func as code generation gets it, verified after each pass."""
    return run_passes(f, [*PIPELINES["optimize"], *PIPELINES["lower"]], verify=True)


def outcome(call: Any, *args: Any) -> Any:
    """Return the results, or None for an error."""
    try:
        with np.errstate(all="ignore"):
            return call(*copy.deepcopy(args))
    except (RetrogradeError, ValueError, IndexError, Failed):
        return None


def agree(got: Any, want: Any, tolerance: float) -> bool:
    if got is None or want is None:
        return got is want
    return all(
        np.shape(x) == np.shape(y)
        and np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
        for x, y in zip(got, want, strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**9),
    st.integers(3, 14),
    st.sampled_from(SIZES),
    st.booleans(),
)
def test_random_programs_are_lowered_right(
    seed: int, size: int, sizes: Sizes, joint: bool
) -> None:
    f, args = case(seed, size, sizes, joint, F64)
    want = outcome(run, f, *args)
    g = lowered(f)
    pure = outcome(run, g, *args)
    if want is None:  # an empty maximum, perhaps of what nobody uses
        want = pure
    assert agree(pure, want, 1e-12), f"{f}\n{g}"
    p = lower(g, "f")
    drop_unused(p)
    got = outcome(lambda *a: run_nests(p, g, a), *args)
    assert agree(got, want, TOLERANCE[F64]), f"{f}\n{g}"


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([(5, 37), (3, 64), (1, 9), (2, 3, 5)]),
    st.booleans(),
    st.sampled_from([F64, F32]),
)
def test_random_programs_are_compiled_right(
    seed: int, sizes: Sizes, joint: bool, dtype: Any
) -> None:
    f, args = case(seed, 5, sizes, joint, dtype)
    g = lowered(f)
    got = outcome(lambda *a: build(g)(a), *args)
    assert agree(got, outcome(run, f, *args), TOLERANCE[dtype]), f"{f}\n{g}"
