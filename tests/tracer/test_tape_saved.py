"""Version counters, and what happens to saved values that are overwritten."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import MutationError
from retrograde.tracer.modes import allow_mutation_on_saved_tensors, no_grad
from retrograde.tracer.tensor import Tensor, from_numpy, tensor

OVERWRITTEN = "one of the variables needed for gradient computation has been modified"


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def test_the_message_names_node_versions_and_line() -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b * b
    b.add_(1)  # the write
    with pytest.raises(MutationError) as caught:
        c.sum().backward()
    text = str(caught.value)
    assert OVERWRITTEN in text
    assert "[f64[2]], which is output 0 of MulBackward0, is at version 1" in text
    assert "expected version 0 instead." in text
    assert "# the write" in text
    assert isinstance(caught.value, RuntimeError)


def test_the_check_is_per_storage() -> None:
    b = leaf(1, 1, 1, 1) * 2
    y = (b[:2] * b[:2]).sum()
    b[2:].zero_()
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


def test_restoring_the_value_does_not_help() -> None:
    b = leaf(1, 1) * 2
    y = (b * b).sum()
    b.add_(1)
    b.sub_(1)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


def rows(a: Tensor) -> Tensor:
    """Return the last row of a recurrence over rows, written in place."""
    b = tensor(np.zeros((4, 2)))
    b[0] = 1.0
    for i in range(1, 4):
        b[i] = b[i - 1] * a[i]
    return b


def test_a_recurrence_over_rows_is_refused() -> None:
    a = tensor(np.full((4, 2), 2.0), requires_grad=True)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        rows(a).sum().backward()


def test_a_recurrence_over_rows_is_right_with_copies_on_write() -> None:
    a = tensor(np.full((4, 2), 2.0), requires_grad=True)
    with allow_mutation_on_saved_tensors():
        rows(a).sum().backward()
    assert grad(a) == [[0, 0], [7, 7], [6, 6], [4, 4]]


def test_a_recurrence_over_scalars_copies_as_numpy_does() -> None:
    a, b = leaf(2, 2, 2, 2), plain(0, 0, 0, 0)
    b[0] = 1.0
    for i in range(1, 4):
        b[i] = b[i - 1] * a[i]
    b.sum().backward()
    assert grad(a) == [0, 7, 6, 4]


def test_views_and_detach_share_the_version() -> None:
    z = plain(0, 0, 0, 0)
    v, d = z[:2], z.detach()
    v.add_(1)
    assert (z._version, d._version) == (1, 1)
    d.add_(1)
    assert v._version == 2
    b = leaf(1, 1) * 2
    c = b * b
    b.detach().zero_()
    with pytest.raises(MutationError, match=OVERWRITTEN):
        c.sum().backward()


def share_later(b: Tensor) -> Any:
    return b.detach().numpy()


def asarray_later(b: Tensor) -> Any:
    return np.asarray(b.detach())


@pytest.mark.parametrize("share", [share_later, asarray_later])
def test_writes_through_numpy_cannot_spoil_saved_values(
    share: Callable[[Tensor], Any],
) -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b * b  # saved before the memory is handed out
    outside = share(b)
    d = b * b  # and after
    outside[...] = 0
    (c + d).sum().backward()
    assert b.tolist() == [0, 0]
    assert grad(a) == [16, 16]


def test_arrays_of_the_user_are_saved_as_copies() -> None:
    a, w = leaf(1, 1), np.array([2.0, 3.0])
    u = from_numpy(w)
    y = (a * w + a * u).sum()
    w[...] = 0
    y.backward()
    assert grad(a) == [4, 6]


def test_what_an_op_in_place_reads_is_saved_as_a_copy() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.sin_()
    b.add_(1)
    b.sum().backward()
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), np.cos([1, 1]))


def test_an_output_saved_in_place_is_right_after_another_write() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.exp_()
    b.add_(1)
    b.sum().backward()  # PyTorch refuses
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.numpy(), np.exp([1, 1]))


def test_a_tensor_times_itself_in_place() -> None:
    a = leaf(2, 2)
    b = a * 1
    b.mul_(b)
    b.sum().backward()  # PyTorch refuses
    assert grad(a) == [4, 4]


def test_a_constant_factor_saves_nothing() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.mul_(2)
    b.add_(1)
    b.mul_(3)
    b.sum().backward()
    assert grad(a) == [6, 6]


def test_only_what_is_needed_is_saved() -> None:
    a, w = leaf(1, 1), plain(1, 1)
    b = a * 1
    y = b * w
    b.add_(1)  # w needs no gradient, so b was not saved
    y.sum().backward()
    assert grad(a) == [1, 1]
    y = (a * w).sum()
    w.add_(1)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


def test_a_linear_op_does_not_mind_a_write() -> None:
    a = tensor(2.0, requires_grad=True)
    y = (a * 3).sum()
    with no_grad():
        a.mul_(2)
    y.backward()
    assert grad(a) == 3


def test_copies_on_write_are_made_once_and_only_where_needed() -> None:
    a = leaf(1, 2, 3)
    with allow_mutation_on_saved_tensors():
        b = a * 2
        c = b * b
        for _ in range(3):
            b.add_(1)
        d = b * b
        (c.sum() + d.sum()).backward()
    # c: 8a, d: 4(2a + 3)
    assert grad(a) == [8 + 20, 16 + 28, 24 + 36]


def test_values_freed_with_their_graph_are_not_kept() -> None:
    b = leaf(1, 2) * 1
    storage = b._storage
    assert storage is not None
    for _ in range(100):
        _ = b * b
    storage.register(Keeper())
    assert storage._keepers is not None
    assert len(storage._keepers) < 20


class Keeper:
    def keep(self) -> None:
        raise AssertionError
