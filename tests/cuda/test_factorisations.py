"""Factorisations on a device: of stacks, of large matrices, and their failures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.cuda import plan
from retrograde.ir.errors import LinAlgError
from retrograde.runtime.devices.emulator import Emulator

pytestmark = pytest.mark.cuda_emulated
EMU = "cuda:emu"
Array = np.ndarray[Any, Any]


def solved(a: Array, y: Array) -> Any:
    z = np.linalg.solve(a, y)
    return np.sum(z * z) + 0.1 * np.sum(np.linalg.slogdet(a)[1] * np.linalg.det(a))


def likelihood(a: Array, y: Array) -> Any:
    covariance = a @ np.swapaxes(a, -1, -2) + 2 * np.eye(a.shape[-1])
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, y)  # a triangle, but solve does not know
    return np.sum(white * white) + np.sum(np.log(np.diagonal(factor, 0, -2, -1)))


def matrices(rng: np.random.Generator, dtype: str, *shape: int) -> tuple[Array, Array]:
    """Return matrices, the rows of which have to be exchanged, and right sides."""
    a = rng.normal(size=(*shape, shape[-1])) / np.sqrt(shape[-1])
    return a.astype(dtype), rng.normal(size=(*shape, 2)).astype(dtype)


def assert_gradients(f: Callable[..., Any], compiled: Any, *args: Array) -> None:
    close = 1e-4 if args[0].dtype == np.float32 else 1e-10
    want, found = (
        rg.value_and_grad(g, argnums=(0, 1))(*args) for g in (rg.compile(f), compiled)
    )
    for x, y in zip((found[0], *found[1]), (want[0], *want[1]), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        scale = np.abs(y).max()
        np.testing.assert_allclose(x, y, rtol=close, atol=close * scale)


@pytest.mark.parametrize("function", [solved, likelihood], ids=lambda f: f.__name__)
def test_matrices_of_a_stack_are_given_to_blocks(
    function: Callable[..., Any],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grids: list[tuple[int, int]] = []
    launch = Emulator.launch

    def noted(device: Any, function: Any, grid: int, *rest: Any) -> None:
        grids.append((grid, rest[-1] if len(rest) > 2 else 0))
        launch(device, function, grid, *rest)

    monkeypatch.setattr(Emulator, "launch", noted)
    dtype = "float32" if function is likelihood else "float64"
    count, n = 9, 6
    compiled = rg.compile(function, device=EMU)
    assert_gradients(function, compiled, *matrices(rng, dtype, count, n))
    own = [shared for grid, shared in grids if grid == count and shared]
    assert any(shared >= 4 * n * n for shared in own)  # the matrix is there


def test_a_large_matrix_is_factored_by_all_blocks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LARGE", 1)
    compiled = rg.compile(solved, device=EMU)
    for n in (1, 18):
        assert_gradients(solved, compiled, *matrices(rng, "float64", n))


def test_failures_leave_arguments_as_they_were(rng: np.random.Generator) -> None:
    def inverted(a: Array) -> Any:
        a *= 2.0
        return np.linalg.inv(a), np.linalg.cholesky(a)

    compiled = rg.compile(inverted, device=EMU)
    good = np.stack([np.eye(3) + 0.1] * 4)
    for x, y in zip(compiled(good.copy()), inverted(good.copy()), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-15)
    for bad, message in ((0.0, "Singular"), (-1.0, "not positive definite")):
        a = good.copy()
        a[2] = bad * np.eye(3)
        before = a.copy()
        with pytest.raises(LinAlgError, match=message):
            compiled(a)
        np.testing.assert_array_equal(a, before)
    assert np.isnan(rg.compile(np.linalg.det, device=EMU)(good * np.nan)).all()


def test_tensors_of_a_device(rng: np.random.Generator) -> None:
    a, y = matrices(rng, "float64", 4)
    t = rg.tensor(a, device=EMU, requires_grad=True)
    solved(t, rg.tensor(y, device=EMU)).backward()
    u = rg.tensor(a, requires_grad=True)
    solved(u, rg.tensor(y)).backward()
    assert t.grad is not None
    assert u.grad is not None
    np.testing.assert_allclose(t.grad.cpu().numpy(), u.grad.numpy(), rtol=1e-10)
