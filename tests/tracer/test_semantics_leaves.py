"""Section 1 of the catalogue: leaves, intermediates, no_grad."""

from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import MutationError
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
