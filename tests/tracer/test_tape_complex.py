"""Gradients of complex tensors follow PyTorch: conjugated, or refused."""

from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import GradientError
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.tensor import tensor

Z = np.array([1.0 + 2.0j, -0.5 + 1.0j])


def holomorphic(z: Any) -> Any:
    return np.exp(z) * z**2 + np.sin(z) / (z + 3.0)


def test_the_gradient_points_uphill(rng: np.random.Generator) -> None:
    z = tensor(Z, requires_grad=True)
    weight, d = (rng.normal(size=2) + 1j * rng.normal(size=2) for _ in range(2))
    y = holomorphic(z)
    (g,) = grad_of(y, z, np.conj(weight))
    assert g is not None
    got = np.sum((np.conj(g._data) * d).real)
    up, down = (np.sum((weight * holomorphic(Z + h * d)).real) for h in (1e-6, -1e-6))
    np.testing.assert_allclose(got, (up - down) / 2e-6, rtol=1e-6)


def test_accumulated_gradients_are_conjugated_too() -> None:
    z = tensor(Z, requires_grad=True)
    (z * 1j).backward(np.ones(2, complex))
    assert z.grad is not None
    assert z.grad.tolist() == [-1j, -1j]


def test_a_real_operand_takes_the_real_part() -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    (g,) = grad_of(x * Z, x, np.ones(2, complex))
    assert g is not None
    assert g.tolist() == Z.real.tolist()


@pytest.mark.parametrize("f", [np.abs, np.sign])
def test_what_is_not_holomorphic_is_refused(f: Any) -> None:
    z = tensor(Z, requires_grad=True)
    y = f(z)
    with pytest.raises(GradientError, match="no derivative is known in complex128"):
        grad_of(y, z, np.ones(2, y.dtype))
