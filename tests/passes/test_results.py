"""Results that are views of computed values are stored by the nest that computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retrograde as rg


def transposed(x: Any) -> Any:
    return np.exp(x).T


def reversed_axes(x: Any) -> Any:
    return np.transpose(np.exp(np.stack([x, x + 1])), (2, 0, 1))


def doubled(x: Any) -> Any:
    return (x * 2.0).T


def flattened(x: Any) -> Any:
    return np.reshape(np.exp(x.T), (-1,))


def flipped(x: Any) -> Any:
    return np.exp(x)[:, ::-1]


def both(x: Any) -> Any:
    y = np.exp(x)
    return y, y.T, y[None]


def in_place(x: Any) -> Any:
    x *= 2.0
    return x.T


@pytest.mark.parametrize(
    "program", [transposed, doubled, reversed_axes, flattened, flipped, both, in_place]
)
def test_values(program: Any) -> None:
    kernel = rg.compile(program)
    for shape in ((2, 3), (17, 40), (1, 5), (0, 3), (3, 1)):
        x = np.random.default_rng(0).normal(size=shape)
        mine, theirs = x.copy(), x.copy()
        got, want = kernel(mine), program(theirs)
        np.testing.assert_array_equal(mine, theirs)
        pairs = zip(got, want, strict=True) if program is both else [(got, want)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-15)
        if min(shape) > 1 and program in (doubled, flipped, in_place):
            assert kernel.scratch_bytes(mine) == 0
