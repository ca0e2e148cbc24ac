"""Section 1 of the catalogue: leaves, intermediates, no_grad."""

from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import GradientError, MutationError
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


LEAF = r"^a leaf Variable that requires grad is being used in an in-place operation\."
VIEW_OF_LEAF = "^a view of a leaf Variable that requires grad is being used in an in-"
NO_GRAD_VIEW = "^A view was created in no_grad mode and is being modified inplace"
NOT_FLOAT = "^only Tensors of floating point dtype can require gradients"


@line(
    "1.1",
    "kept",
    """
a=L(1,1,1); b=a*2; f=b.grad_fn; b.mul_(3); print(b.grad_fn is f, b._version)
b.sum().backward(); print(a.grad)
""",
    torch="False 1 | tensor([6., 6., 6.])",
)
def test_a_write_gives_an_intermediate_a_new_node() -> None:
    a = leaf(1, 1, 1)
    b = a * 2
    before = b.grad_fn
    b.mul_(3)
    assert b.grad_fn is not before
    assert b._version == 1
    b.sum().backward()
    assert grad(a) == [6, 6, 6]


@line(
    "1.2",
    "kept",
    "a=L(1,1); E(lambda: a.add_(1))",
    torch="a leaf Variable that requires grad is being used in an in-place operation.",
)
def test_leaves_may_not_be_written() -> None:
    a = leaf(1, 1)
    with pytest.raises(MutationError, match=LEAF) as caught:
        a.add_(1)
    assert "test_semantics_leaves.py" in str(caught.value)
    with pytest.raises(MutationError, match=LEAF):
        a += 1
    assert (a.tolist(), a._version) == ([1, 1], 0)


@line(
    "1.3",
    "kept",
    """
a=L(1,1); E(lambda: a[:1].mul_(2)); E(lambda: a.reshape(2,1).add_(1))
""",
    torch="a view of a leaf Variable that requires grad is being used in an in-place "
    "operation. | a view of a leaf",
)
def test_views_of_leaves_may_not_be_written() -> None:
    a = leaf(1, 1)
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a[:1].mul_(2)
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a.reshape(2, 1).add_(1)
    with pytest.raises(MutationError, match=VIEW_OF_LEAF):
        a[0] = 5
    assert (a.tolist(), a._version) == ([1, 1], 0)


@line(
    "1.4",
    "kept",
    "a=L(1,1); print(a.contiguous() is a); E(lambda: a.contiguous().add_(1))",
    torch="True | a leaf Variable that requires grad",
)
def test_a_contiguous_leaf_is_itself() -> None:
    a = leaf(1, 1)
    assert a.contiguous() is a
    with pytest.raises(MutationError, match=LEAF):
        a.contiguous().add_(1)


@line(
    "1.5",
    "kept",
    """
a=L(1,1,1); v=a[:2]
with torch.no_grad(): v.mul_(2)
print(a.is_leaf, a._version, n(v)); (v*v).sum().backward(); print(a.grad)
""",
    torch="True 1 AsStridedBackward0 | tensor([4., 4., 0.])",
)
def test_a_leaf_may_change_under_no_grad_through_an_older_view() -> None:
    a = leaf(1, 1, 1)
    v = a[:2]
    with no_grad():
        v.mul_(2)
    assert (a.is_leaf, a._version, name(v)) == (True, 1, "AsStridedBackward0")
    (v * v).sum().backward()
    assert grad(a) == [4, 4, 0]


@line(
    "1.6",
    "kept",
    """
a=L(1,1,1); b=a*2
with torch.no_grad(): b.mul_(3)
print(n(b), b._version); b.sum().backward(); print(a.grad)
""",
    torch="MulBackward0 1 | tensor([2., 2., 2.])",
)
def test_a_write_under_no_grad_keeps_the_node() -> None:
    a = leaf(1, 1, 1)
    b = a * 2
    with no_grad():
        b.mul_(3)
    assert (name(b), b._version) == ("MulBackward0", 1)
    b.sum().backward()
    assert grad(a) == [2, 2, 2]


@line(
    "1.7",
    "better",
    """
b=L(1,1,1)*1
with torch.no_grad(): v=b[:2]
print(v.requires_grad, v.grad_fn, v.is_leaf); E(lambda: v.mul_(2))
(v*2).sum().backward(); print(v.grad)
""",
    torch="True None True | A view was created in no_grad mode and is being modified "
    "inplace with grad mode enabled. | None",
    ours="the same, but it requires no gradient, so that backward is an error",
)
def test_views_made_under_no_grad_may_not_be_written() -> None:
    b = leaf(1, 1, 1) * 1
    with no_grad():
        v = b[:2]
    assert (v.requires_grad, v.grad_fn, v.is_leaf) == (False, None, True)
    with pytest.raises(MutationError, match=NO_GRAD_VIEW):
        v.mul_(2)
    assert (b.tolist(), b._version) == ([1, 1, 1], 0)
    with pytest.raises(GradientError, match="does not require grad"):
        (v * 2).sum().backward()


@line(
    "1.8",
    "kept",
    """
b=Z(1,1,1)
with torch.no_grad(): v=b[:2]
E(lambda: v.mul_(L(1,1)))
""",
    torch="A view was created in no_grad mode",
)
def test_views_made_under_no_grad_may_not_take_a_gradient() -> None:
    b = plain(1, 1, 1)
    with no_grad():
        v = b[:2]
    with pytest.raises(MutationError, match=NO_GRAD_VIEW):
        v.mul_(leaf(1, 1))
    v.mul_(2)  # nothing requires a gradient here
    assert b.tolist() == [2, 2, 1]


@line(
    "1.9",
    "better",
    """
b=torch.zeros(4); v=b[:2]; b.requires_grad_(); print(v.requires_grad, v.grad_fn)
(v*2).sum().backward(); print(b.grad)
""",
    torch="True None | None",
    ours="the view follows its base: the gradient is [2, 2, 0, 0]",
)
def test_requires_grad_reaches_views_made_before() -> None:
    b = plain(0, 0, 0, 0)
    v = b[:2]
    b.requires_grad_()
    assert v.requires_grad
    (v * 2).sum().backward()
    assert grad(b) == [2, 2, 0, 0]


@line(
    "1.10",
    "kept",
    """
b=torch.ones(4); v=b[:2].requires_grad_()
print(v.is_leaf, v._is_view(), b.requires_grad); b.mul_(L(1,1,1,1))
print(v.is_leaf, n(v))
""",
    torch="True True False | False AsStridedBackward0",
)
def test_a_leaf_view_turns_into_an_intermediate() -> None:
    b = plain(1, 1, 1, 1)
    v = b[:2].requires_grad_()
    assert (v.is_leaf, v._is_view(), b.requires_grad) == (True, True, False)
    b.mul_(leaf(1, 1, 1, 1))
    assert (v.is_leaf, name(v)) == (False, "AsStridedBackward0")


@line(
    "1.11",
    "kept",
    "E(lambda: torch.zeros(2,dtype=torch.int64).requires_grad_())",
    torch="only Tensors of floating point dtype can require gradients",
)
def test_integers_cannot_require_a_gradient() -> None:
    with pytest.raises(GradientError, match=NOT_FLOAT):
        tensor([0, 0]).requires_grad_()
    with pytest.raises(GradientError, match=NOT_FLOAT):
        tensor([0, 0], requires_grad=True)


@line(
    "1.12",
    "kept",
    """
a=L(1,2)
print(*(t.requires_grad for t in (a>0, a.long(), a.argmax(), a.floor())))
""",
    torch="False False False True",
)
def test_results_that_are_not_floats_have_no_gradient() -> None:
    a = leaf(1, 2)
    assert not (a > 0).requires_grad
    assert not a.astype(int).requires_grad
    assert not a.argmax().requires_grad
    assert np.floor(a).requires_grad
    np.floor(a).sum().backward()
    assert grad(a) == [0, 0]
