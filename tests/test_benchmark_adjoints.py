"""The gradients by hand that the benchmarks hold generated code against are right."""

import numpy as np
import pytest

import retrograde as rg
from benchmarks.adjoints import HANDS, Hand
from benchmarks.programs import copied, differentiable


@pytest.mark.parametrize("hand", HANDS, ids=lambda hand: hand.name)
def test_gradient_by_hand_is_the_tapes(hand: Hand) -> None:
    program = hand.program
    for size in program.tests:
        args = program.args(size)
        weights = program.weights(args)
        before = copied(args)
        wrt = tuple(k + 1 for k in differentiable(args))
        known, wanted = rg.value_and_grad(program.objective(), argnums=wrt)(
            weights, *args
        )
        value, grads = hand.gradient(weights, *args)
        np.testing.assert_allclose(value, known, rtol=1e-12)
        for g, want, a, b in zip(grads, wanted, args[-1:], before[-1:], strict=True):
            np.testing.assert_allclose(g, want, rtol=0, atol=1e-12 * np.abs(want).max())
            np.testing.assert_array_equal(a, b)
