"""Groups of shifted additions, computed at once, have the same values."""

import copy
from typing import Any

import numpy as np
import pytest
from differences import check_joint, floats
from hypothesis import given, settings
from hypothesis import strategies as st
from stencils import STEPS, arguments, stencil

from retrograde.codegen import build
from retrograde.ir import dims
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes import manager
from retrograde.passes.shifts import shifts
from retrograde.passes.vjp import vjp

SIZES = (2, 3, 4, 5, 17)
COUNT = dims.as_symbol(STEPS)


def joint_of(f: Func) -> Func:
    f = manager.run(f, manager.PIPELINES["pure"])
    return manager.run(vjp(f, floats(f)), manager.PIPELINES["optimize"])


def scatters(f: Func) -> int:
    return sum(n.op.accumulates for n in walk(f.body))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SIZES), st.integers(0, 3))
def test_random_stencils_keep_their_gradients(seed: int, size: int, steps: int) -> None:
    joint = joint_of(stencil(seed))
    after = shifts(joint)
    verify(after)
    args = arguments(joint, seed, size)
    symbols = {s: steps for s in joint.symbols}
    expected = run(joint, *copy.deepcopy(args), symbols=symbols)
    for a, b in zip(run(after, *args, symbols=symbols), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
