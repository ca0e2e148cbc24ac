"""Section 2 of the catalogue: views, and what they become when their base changes."""

from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import GradientError
from retrograde.tracer.tensor import Tensor, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def ones(*shape: int) -> Tensor:
    return tensor(np.ones(shape))


def name(t: Tensor) -> str | None:
    return None if t.grad_fn is None else t.grad_fn.name()


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


@line(
    "2.1",
    "kept",
    """
a=L(1,1,1,1); b=a*1; v=b[1:3]; f=v.grad_fn; b.mul_(3)
print(type(f).__name__, n(v), v.grad_fn is f); v.sum().backward(); print(a.grad)
""",
    torch="SliceBackward0 AsStridedBackward0 False | tensor([0., 3., 3., 0.])",
)
def test_a_view_follows_a_write_into_its_base() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    v = b[1:3]
    before = v.grad_fn
    b.mul_(3)
    assert type(before).__name__ == "SliceBackward0"
    assert name(v) == "AsStridedBackward0"
    assert v.grad_fn is not before
    assert v.grad_fn is v.grad_fn
    v.sum().backward()
    assert grad(a) == [0, 3, 3, 0]


@line(
    "2.2",
    "kept",
    """
a=L(0,1,2,3); b=a*1; v=b[0:3]; w=b[1:4]; v.mul_(a[:3]); print(n(b), n(v), n(w))
w.sum().backward(); print(a.grad)
""",
    torch="CopySlices AsStridedBackward0 AsStridedBackward0 | tensor([0., 2., 4., 1.])",
)
def test_a_view_follows_a_write_through_another_view() -> None:
    a = leaf(0, 1, 2, 3)
    b = a * 1
    v, w = b[0:3], b[1:4]
    v.mul_(a[:3])
    names = [name(x) for x in (b, v, w)]
    assert names == ["CopySlices", "AsStridedBackward0", "AsStridedBackward0"]
    w.sum().backward()
    assert grad(a) == [0, 2, 4, 1]


@line(
    "2.3",
    "kept",
    """
a=L(1,1); b=torch.zeros(4); v=b[1:3]; w=b[2:4]; c=b*2; v.add_(a)
print(b.requires_grad, b.is_leaf, w.requires_grad, c.requires_grad)
""",
    torch="True False True False",
)
def test_a_base_acquires_a_gradient_and_so_do_its_views() -> None:
    a, b = leaf(1, 1), plain(0, 0, 0, 0)
    v, w = b[1:3], b[2:4]
    c = b * 2
    v.add_(a)
    assert b.requires_grad
    assert not b.is_leaf
    assert w.requires_grad
    assert not c.requires_grad


@line(
    "2.4",
    "kept",
    "a=L(1,1,1,1); b=a*2; v=b[:2]; y=v.sum(); b.mul_(3); y.backward(); print(a.grad)",
    torch="tensor([2., 2., 0., 0.])",
)
def test_uses_before_a_write_keep_the_old_graph() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 2
    y = b[:2].sum()
    b.mul_(3)
    y.backward()
    assert grad(a) == [2, 2, 0, 0]


@line(
    "2.5",
    "kept",
    """
a=L(*range(12)); b=a*1; v=b.reshape(3,4).transpose(0,1)[1:3].select(1,2); v.mul_(10)
print(v._base is b, n(b)); b.sum().backward(); print(a.grad)
""",
    torch="True CopySlices | tensor([ 1.,  1.,  1.,  1.,  1.,  1.,  1.,  1.,  1., 10., "
    "10.,  1.])",
)
def test_the_base_of_a_chain_of_views_is_the_root() -> None:
    a = leaf(*range(12))
    b = a * 1
    v = b.reshape(3, 4).transpose(1, 0)[1:3][:, 2]
    v.mul_(10)
    assert v._base is b
    assert name(b) == "CopySlices"
    b.sum().backward()
    assert grad(a) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 1]


@line(
    "2.6",
    "kept",
    """
a=L(*[1]*9); b=(a*1).view(3,3); b.diagonal().mul_(5); b.sum().backward()
print(a.grad.sum())
""",
    torch="tensor(21.)",
)
def test_a_diagonal_may_be_written() -> None:
    a = leaf(*[1] * 9)
    b = (a * 1).reshape(3, 3)
    b.diagonal().mul_(5)
    b.sum().backward()
    assert sum(grad(a)) == 21


@line(
    "2.7",
    "kept",
    "a=L(0,1,2,3); v=a.as_strided((3,2),(1,1)); v.sum().backward(); print(a.grad)",
    torch="tensor([1., 2., 2., 1.])",
)
def test_gradients_of_overlapping_views_add_up() -> None:
    a = leaf(0, 1, 2, 3)
    v = a.as_strided((3, 2), (1, 1))
    assert v._base is a
    v.sum().backward()
    assert grad(a) == [1, 2, 2, 1]


@line(
    "2.8",
    "kept",
    """
b=L(1,1,1,1)*1; s=b[:2]; s.add_(1); t=b.sum(); t.backward(); E(lambda: t.backward())
""",
    torch="Trying to backward through the graph a second time",
)
def test_copy_slices_frees_itself() -> None:
    b = leaf(1, 1, 1, 1) * 1
    b[:2].add_(1)
    t = b.sum()
    t.backward()
    with pytest.raises(GradientError, match="Trying to backward through the graph a"):
        t.backward()


@line(
    "2.9",
    "better",
    """
b=L(1,1)*1; v=b[:1]; E(lambda: v.detach_()); b.detach_(); print(b.grad_fn, n(v))
""",
    torch="Can't detach views in-place. Use detach() instead. | None SliceBackward0",
    ours="the views of a tensor that was detached in place are detached with it",
)
def test_a_base_is_detached_in_place_with_its_views() -> None:
    b = leaf(1, 1) * 1
    v = b[:1]
    with pytest.raises(GradientError, match=r"^Can't detach views in-place"):
        v.detach_()
    b.detach_()
    assert b.grad_fn is None
    assert v.grad_fn is None


@line(
    "2.10",
    "numpy",
    "b=L(1,1,1,1)*1; u=b.split(2); E(lambda: u[0].mul_(2))",
    torch="Output 0 of Split is a view and is being modified inplace. This view is the "
    "output of a function that returns multiple views.",
    ours="outputs of split may be written",
)
def test_outputs_of_split_may_be_written() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    u = np.split(b, 2)
    u[0].mul_(2)
    assert (name(b), u[0]._base is b) == ("CopySlices", True)
    (b * [1.0, 2.0, 3.0, 4.0]).sum().backward()
    assert grad(a) == [2, 4, 3, 4]


@line(
    "2.11",
    "numpy",
    "b=L(1,1,1,1)*1; u=b.split(2); E(lambda: u[0][0:1].mul_(2))",
    torch="Output 0 of Slice is a view and is being modified inplace.",
    ours="so may their views",
)
def test_views_of_outputs_of_split_may_be_written() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    u = np.split(b, 2)
    u[0][0:1].mul_(2)
    (b * [1.0, 2.0, 3.0, 4.0]).sum().backward()
    assert grad(a) == [2, 2, 3, 4]


@line(
    "2.12",
    "numpy",
    "b=L(1,1,1,1)*1; u=b.split(2); b.mul_(2); E(lambda: u[0].grad_fn)",
    torch="Output 0 of Split is a view and its base or another view of its base has "
    "been modified inplace.",
    ours="they follow writes into their base like any view",
)
def test_outputs_of_split_follow_their_base() -> None:
    a = leaf(1, 1, 1, 1)
    b = a * 1
    u = np.split(b, 2)
    b.mul_(2)
    assert name(u[0]) == "AsStridedBackward0"
    (u[0].sum() + 10 * u[1].sum()).backward()
    assert grad(a) == [2, 2, 20, 20]


@line(
    "2.13",
    "kept",
    """
b=torch.ones(2,2)
for r in b: r.mul_(2)
print(b.tolist())
""",
    torch="[[2.0, 2.0], [2.0, 2.0]]",
)
def test_rows_of_an_iteration_may_be_written() -> None:
    b = ones(2, 2)
    for r in b:
        r.mul_(2)
    assert b.tolist() == [[2, 2], [2, 2]]


@line(
    "2.14",
    "numpy",
    "E(lambda: [r.mul_(2) for r in L(1,1)*torch.ones(2,2)])",
    torch="Output 0 of Unbind is a view and is being modified inplace.",
    ours="rows of an iteration may be written, with their gradient",
)
def test_rows_that_require_a_gradient_may_be_written() -> None:
    a = leaf(1, 1)
    b = a * ones(2, 2)
    for row in b:
        row *= 2
    (b * [[1.0, 2.0], [3.0, 4.0]]).sum().backward()
    assert grad(a) == [8, 12]


@line(
    "2.15",
    "numpy",
    "b=torch.ones(2,2); u=b.unbind(0); E(lambda: u[0].mul_(L(1,1)))",
    torch="A view was created in no_grad mode",
    ours="and may take a gradient",
)
def test_outputs_of_unstack_may_take_a_gradient() -> None:
    a, b = leaf(1, 2), ones(2, 2)
    u = np.unstack(b)
    u[0].mul_(a)
    assert (u[0]._base is b, name(b)) == (True, "CopySlices")
    (b * [[1.0, 2.0], [3.0, 4.0]]).sum().backward()
    assert grad(a) == [1, 2]
