"""Writes into leaves, intermediates and views: what the graph becomes."""

from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import DTypeError, GradientError, MutationError
from retrograde.tracer.modes import no_grad
from retrograde.tracer.tensor import Tensor, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def name(t: Tensor) -> str | None:
    return None if t.grad_fn is None else t.grad_fn.name()


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def test_a_write_of_a_constant_cuts_the_part_off() -> None:
    a = leaf(1, 2, 3)
    b = a * 2
    b[1] = 7.0
    b.sum().backward()
    assert grad(a) == [2, 0, 2]


def test_a_write_that_broadcasts_sums_the_gradient() -> None:
    s, b = leaf(3), plain(0, 0, 0)
    b[:] = s
    b[1:] *= 2
    b.sum().backward()
    assert grad(s) == [5]


@pytest.mark.parametrize("write", [Tensor.add_, Tensor.copy_])
def test_a_target_does_not_grow(write: Any) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        write(plain(0, 0, 0), np.ones((2, 3)))


def test_read_only_memory_is_not_written() -> None:
    b = np.broadcast_to(plain(1), (3,))
    with pytest.raises(ValueError, match="read-only"):
        b.add_(1)


def test_scalars_are_rebound() -> None:
    x = leaf(1, 2)
    s = kept = x[0]
    s += 1
    assert (float(s.detach()), float(kept.detach())) == (2.0, 1.0)
    with pytest.raises(MutationError, match="scalar"):
        s.add_(1)
    s.backward()
    assert grad(x) == [1, 0]


# ---------------------------------------------------------------- other memory


def test_set_has_no_derivative() -> None:
    b = leaf(1, 1) * 2
    assert b.set_(plain(0, 0, 0)) is b
    assert (b.shape, name(b)) == ((3,), "NotImplemented")
    with pytest.raises(GradientError, match=r"^derivative for set_ is not implemented"):
        b.sum().backward()
    with pytest.raises(MutationError, match=r"^a leaf Variable that requires grad"):
        leaf(1, 1).set_(plain(0, 0, 0))
    with pytest.raises(MutationError, match="a view cannot be given other memory"):
        plain(1, 1)[:1].set_(plain(0))


def test_set_under_no_grad_keeps_a_leaf() -> None:
    a, c = leaf(1, 1), plain(1, 2, 3)
    with no_grad():
        a.set_(c)
    assert (a.shape, a.is_leaf, a.requires_grad) == ((3,), True, True)
    c.mul_(2)  # the memory is shared, and so is the version
    assert (a.tolist(), a._version) == ([2, 4, 6], 1)
    (a * a).sum().backward()
    assert grad(a) == [4, 8, 12]


def test_saved_values_stay_when_memory_is_exchanged() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    a.data = plain(5, 5)
    y.backward()  # PyTorch takes the new values: 10
    assert (a.tolist(), grad(a)) == ([5, 5], [2, 2])
    with pytest.raises(DTypeError, match="cannot be given to a tensor of float64"):
        a.data = tensor([1, 2])
    with pytest.raises(GradientError, match="a view cannot be given other memory"):
        a[:1].data = plain(1)


def test_a_gradient_of_another_shape_does_not_arrive() -> None:
    a = leaf(1, 1)
    y = (a * a).sum()
    a.data = plain(5, 5, 5)
    with pytest.raises(GradientError, match=r"leaf of shape \[3\] .* shape \[2\]"):
        y.backward()
    assert a.grad is None


def test_a_view_stays_with_the_memory_it_was_made_of() -> None:
    a, x = leaf(1, 2, 3), leaf(7)
    b = a * 1
    v = b[:1]
    with no_grad():
        b.set_(plain(0, 0, 0))
        v.mul_(3)
    assert (b.tolist(), v.tolist(), name(v)) == ([0, 0, 0], [3], "SliceBackward0")
    with pytest.raises(MutationError, match="its base no longer has"):
        v.copy_(x)
    assert v.tolist() == [3]
    v.sum().backward()
    assert grad(a) == [1, 0, 0]
