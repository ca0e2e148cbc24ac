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


LEAF = r"^a leaf Variable that requires grad is being used in an in-place operation"
VIEW_OF_LEAF = "^a view of a leaf Variable that requires grad is being used"
NO_GRAD_VIEW = "^A view was created in no_grad mode and is being modified inplace"

# ---------------------------------------------------------------- leaves, no_grad


def test_a_write_gives_an_intermediate_a_new_node() -> None:
    a = leaf(1, 1, 1)
    b = a * 2
    before = b.grad_fn
    b.mul_(3)
    assert b.grad_fn is not before
    assert b._version == 1
    b.sum().backward()
    assert grad(a) == [6, 6, 6]


def test_leaves_and_their_views_may_not_be_written() -> None:
    a = leaf(1, 1)
    with pytest.raises(MutationError, match=LEAF) as caught:
        a.add_(1)
    assert "test_tape_writes.py" in str(caught.value)
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a[:1].mul_(2)
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a.reshape(2, 1).add_(1)
    with pytest.raises(MutationError, match=LEAF):
        a.contiguous().add_(1)
    with pytest.raises(MutationError, match=LEAF):
        a += 1
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a[0] = 5
    assert a.tolist() == [1, 1]


def test_a_leaf_may_change_under_no_grad_through_an_older_view() -> None:
    a = leaf(1, 1, 1)
    v = a[:2]
    with no_grad():
        v.mul_(2)
    assert (a.is_leaf, a._version, name(v)) == (True, 1, "AsStridedBackward0")
    (v * v).sum().backward()
    assert grad(a) == [4, 4, 0]


def test_a_write_under_no_grad_keeps_the_node() -> None:
    a = leaf(1, 1, 1)
    b = a * 2
    with no_grad():
        b.mul_(3)
    assert (name(b), b._version) == ("MulBackward0", 1)
    b.sum().backward()
    assert grad(a) == [2, 2, 2]


def test_views_made_under_no_grad_may_not_be_written_with_gradients() -> None:
    b = leaf(1, 1, 1) * 1
    with no_grad():
        v = b[:2]
    assert (v.requires_grad, v.grad_fn, v.is_leaf) == (False, None, True)
    with pytest.raises(MutationError, match=NO_GRAD_VIEW):
        v.mul_(2)
    c = plain(1, 1, 1)
    with no_grad():
        w = c[:2]
    with pytest.raises(MutationError, match=NO_GRAD_VIEW):
        w.mul_(leaf(1, 1))


def test_requires_grad_reaches_views_made_before() -> None:
    b = plain(0, 0, 0, 0)
    v = b[:2]
    b.requires_grad_()
    assert v.requires_grad
    (v * 2).sum().backward()
    assert grad(b) == [2, 2, 0, 0]  # PyTorch loses this gradient


def test_a_leaf_view_turns_into_an_intermediate() -> None:
    b = plain(1, 1, 1, 1)
    v = b[:2].requires_grad_()
    assert (v.is_leaf, v._is_view(), b.requires_grad) == (True, True, False)
    b.mul_(leaf(1, 1, 1, 1))
    assert (v.is_leaf, name(v)) == (False, "AsStridedBackward0")


def test_integers_cannot_require_a_gradient() -> None:
    text = "^only Tensors of floating point dtype can require gradients"
    with pytest.raises(GradientError, match=text):
        tensor([0, 0]).requires_grad_()
    with pytest.raises(GradientError, match=text):
        tensor([0, 0], requires_grad=True)


def test_results_that_are_not_floats_have_no_gradient() -> None:
    a = leaf(1, 2)
    assert not (a > 0).requires_grad
    assert not a.astype(int).requires_grad
    assert not a.argmax().requires_grad
    assert np.floor(a).requires_grad


# ---------------------------------------------------------------- views


def test_a_view_follows_a_write_into_its_base() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    v = b[1:3]
    before = v.grad_fn
    b.mul_(3)
    assert type(before).__name__ == "SliceBackward0"
    assert name(v) == "AsStridedBackward0"
    v.sum().backward()
    assert grad(a) == [0, 3, 3, 0]


def test_a_view_follows_a_write_through_another_view() -> None:
    a = leaf(0, 1, 2, 3)
    b = a * 1
    v, w = b[0:3], b[1:4]
    v.mul_(a[:3])
    assert [name(x) for x in (b, v, w)] == [
        "CopySlices",
        "AsStridedBackward0",
        "AsStridedBackward0",
    ]
    w.sum().backward()
    assert grad(a) == [0, 2, 4, 1]


def test_a_base_acquires_a_gradient_and_so_do_its_views() -> None:
    a, b = leaf(1, 1), plain(0, 0, 0, 0)
    v, w = b[1:3], b[2:4]
    c = b * 2
    v.add_(a)
    assert b.requires_grad
    assert not b.is_leaf
    assert w.requires_grad
    assert not c.requires_grad


def test_uses_before_a_write_keep_the_old_graph() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 2
    y = b[:2].sum()
    b.mul_(3)
    y.backward()
    assert grad(a) == [2, 2, 0, 0]


def test_the_base_of_a_chain_of_views_is_the_root() -> None:
    a = leaf(*range(12))
    b = a * 1
    v = b.reshape(3, 4).transpose(1, 0)[1:3][:, 2]
    v.mul_(10)
    assert v._base is b
    assert name(b) == "CopySlices"
    b.sum().backward()
    assert grad(a) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 1]


def test_a_diagonal_may_be_written() -> None:
    a = leaf(*[1] * 9)
    b = (a * 1).reshape(3, 3)
    b.diagonal().mul_(5)
    b.sum().backward()
    assert sum(grad(a)) == 21


def test_gradients_of_overlapping_views_add_up() -> None:
    from retrograde.ir.op import OPS
    from retrograde.tracer import dispatch

    a = leaf(0, 1, 2, 3)
    v = dispatch.view(OPS["as_strided"], a, shape=(3, 2), strides=(1, 1), offset=0)
    v.sum().backward()
    assert grad(a) == [1, 2, 2, 1]


def test_a_write_through_an_overlapping_view_keeps_the_last_value() -> None:
    from retrograde.ir.op import OPS
    from retrograde.tracer import dispatch

    x = leaf(1, 2, 3, 4)
    b = plain(0, 0, 0, 0)
    v = dispatch.view(OPS["as_strided"], b, shape=(2, 2), strides=(1, 1), offset=0)
    dispatch.write(v, x.reshape(2, 2))
    want = np.zeros(4)
    np.lib.stride_tricks.as_strided(want, (2, 2), (8, 8))[...] = [[1, 2], [3, 4]]
    assert b.tolist() == want.tolist() == [1, 3, 4, 0]
    (b * [1.0, 10.0, 100.0, 1000.0]).sum().backward()
    assert grad(x) == [1, 0, 10, 100]


def test_copy_slices_frees_itself() -> None:
    b = leaf(1, 1, 1, 1) * 1
    b[:2].add_(1)
    t = b.sum()
    t.backward()
    with pytest.raises(GradientError, match="Trying to backward through the graph a"):
        t.backward()


def test_detach_in_place() -> None:
    b = leaf(1, 1) * 1
    v = b[:1]
    with pytest.raises(GradientError, match=r"^Can't detach views in-place"):
        v.detach_()
    b.detach_()
    assert b.grad_fn is None
    assert v.grad_fn is None  # in PyTorch the view keeps the old graph


def test_rows_of_an_iteration_may_be_written() -> None:
    a = tensor(np.ones((2, 2)), requires_grad=True)
    b = a * 1
    for row in b:
        row *= 2
    b.sum().backward()
    assert grad(a) == [[2, 2], [2, 2]]


def test_outputs_of_split_may_be_written() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    u = np.split(b, 2)
    u[0].mul_(2)
    u[0][0:1].mul_(2)
    b.mul_(2)
    assert name(u[0]) == "AsStridedBackward0"
    (u[0].sum() + 10 * u[1].sum()).backward()
    assert grad(a) == [8, 4, 20, 20]


def test_a_write_of_a_constant_cuts_the_part_off() -> None:
    a = leaf(1, 2, 3)
    b = a * 2
    b[1] = 7.0
    b.sum().backward()
    assert grad(a) == [2, 0, 2]


def test_zero_gives_zeros_and_not_none() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.zero_().sum().backward()
    assert grad(a) == [0, 0]


def test_a_write_reads_overlapping_operands_first() -> None:
    a = leaf(0, 1, 2, 3)
    b = a * 1
    b[1:] += b[:-1]
    assert b.tolist() == [0, 1, 3, 5]
    (b * [1.0, 10.0, 100.0, 1000.0]).sum().backward()
    assert grad(a) == [11, 110, 1100, 1000]


def test_writes_cast_as_numpy_does() -> None:
    i = tensor([0, 0])
    with pytest.raises(DTypeError, match="cannot cast"):
        i += 1.5
    with pytest.raises(TypeError):
        i.div_(2)
    i[0], i[1] = 1.9, -1.9
    assert i.tolist() == [1, -1]
    f = tensor(np.zeros(2, np.float32))
    f += np.ones(2)
    assert f.dtype == np.float32


def test_a_write_casts_the_gradient_back() -> None:
    a = leaf(1, 1)
    b = tensor(np.zeros(2, np.float32))
    b.copy_(a)
    assert name(b) == "CopyBackwards"
    b.sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == np.float64
    i = tensor([0, 0])
    i.copy_(a)
    assert not i.requires_grad


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


def test_setitem_drops_leading_ones() -> None:
    b = plain(0, 0, 0)
    b[:] = np.ones((1, 3))
    assert b.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="broadcast"):
        b.copy_(np.ones((1, 3)))


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


# ---------------------------------------------------------------- duplicate indices


def test_overwritten_duplicates_have_no_gradient() -> None:
    y, b = leaf(1, 2, 3), plain(0, 0, 0)
    b[np.array([0, 0, 1])] = y
    assert b.tolist() == [2, 3, 0]
    b.sum().backward()
    assert grad(y) == [0, 1, 1]


def test_augmented_duplicates_count_once() -> None:
    x, y = leaf(1, 2, 3), leaf(9, 9, 9)
    b = x * 1
    b[np.array([0, 0, 1])] += y
    b.sum().backward()
    assert (grad(x), grad(y)) == ([1, 1, 1], [0, 1, 1])


def test_add_at_counts_every_duplicate() -> None:
    y, b = leaf(1, 2, 3), plain(0, 0, 0)
    np.add.at(b, np.array([0, 0, 1]), y)
    assert b.tolist() == [3, 3, 0]
    (b * [1.0, 10.0, 100.0]).sum().backward()
    assert grad(y) == [1, 1, 10]


def test_masks_may_be_written() -> None:
    a, b = leaf(5, 7), leaf(1, 1, 1) * 1
    m = np.array([True, False, True])
    b[m] = a
    b[m] *= 2
    assert name(b) in ("IndexPutBackward0", "CopyBackwards")
    (b * [1.0, 2.0, 3.0]).sum().backward()
    assert grad(a) == [2, 6]


def test_masked_fill() -> None:
    a, s = leaf(1, 1, 1), tensor(2.0, requires_grad=True)
    b = a * 1
    mask = np.array([True, False, True])
    b.masked_fill_(mask, s * 1)
    b.sum().backward()
    assert grad(a) == [0, 1, 0]
    assert grad(s) == 2
    with pytest.raises(ValueError, match="only supports a 0-dimensional value"):
        b.detach().masked_fill_(mask, np.ones(1))


def test_items_swap_as_numpy_values_do() -> None:
    t = plain(0, 1, 2)
    s = t[0]
    t[0], t[2] = t[2], t[0]
    assert t.tolist() == [2, 1, 0]
    assert s.item() == 0  # a copy
