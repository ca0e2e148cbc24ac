"""Plans: what launches need is known before them, and their order is the program's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.cuda import plan

pytestmark = pytest.mark.cuda_emulated
Array = np.ndarray[Any, Any]
WEIGHTS = np.linspace(-1.0, 2.0, 30).reshape(5, 6)
TRANSPOSED = np.ascontiguousarray(WEIGHTS.T)


def tiled(a: Array) -> Any:
    """A sum over tiles: how long an inner loop is depends on the outer one."""
    return np.sum(a.sum(axis=0) * WEIGHTS[0]) + np.sum(a.T * TRANSPOSED)


def mirrored(a: Array) -> Any:
    """Its gradient is in memory that a buffer had which exchanged it in a loop."""
    for _ in range(len(a) - 1):
        j = len(a)
        while j > 1:
            j = j // 2
            a[:] = 0.5 * a[::-1]
    return np.sum(a[0] * WEIGHTS[0])


@pytest.mark.parametrize("size", [1, plan.SMALL])
@pytest.mark.parametrize("function", [tiled, mirrored], ids=lambda f: f.__name__)
def test_gradients_are_the_processors(
    function: Callable[..., Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL", size)
    found = rg.value_and_grad(rg.compile(function, device="cuda:emu"))(+WEIGHTS)
    expected = rg.value_and_grad(rg.compile(function))(+WEIGHTS)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-15)
