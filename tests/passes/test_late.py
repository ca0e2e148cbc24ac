"""Sums that are needed late are computed in later passes over what they sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrograde.ir.build import IRBuilder
from retrograde.ir.func import Func, Value
from retrograde.ir.interp import run
from retrograde.ir.text import parse_type
from retrograde.passes.fuse import fuse

ARGS = np.random.default_rng(0).standard_normal((2, 9))


def fused(b: IRBuilder, params: list[Value], *results: Any) -> Func:
    """Fuse a function, and see that it keeps its meaning."""
    plain = Func("f", "func", b.finish(params, list(results)))
    made = fuse(plain)
    args = ARGS[: len(params)]
    for got, want in zip(run(made, *args), run(plain, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)
    return made


def test_a_loss_is_summed_where_its_gradient_is_computed() -> None:
    b = IRBuilder()
    x, y = (b.value(parse_type("f64[n]"), name) for name in "xy")
    total = b.sum(y, axis=(0,))
    loss = b.sum(b.multiply(x, x), axis=(0,))
    f = fused(b, [x, y], loss, b.multiply(b.multiply(x, 2.0), total))
    assert [len(n.results) for n in f.body.nodes] == [1, 2]  # x is read once


def test_many_scalars_of_a_sum_are_followed_once() -> None:
    b = IRBuilder()
    x = b.value(parse_type("f64[n]"), "x")
    scalar = b.sum(b.multiply(x, x), axis=(0,))
    for _ in range(1500):  # each uses the one before it twice
        scalar = b.multiply(b.add(scalar, scalar), 0.5)
    total = b.sum(x, axis=(0,))
    f = fused(b, [x], scalar, b.multiply(x, total))
    (late,) = [n for n in f.body.nodes if n.op.name == "fused"]
    assert len(late.results) == 2
