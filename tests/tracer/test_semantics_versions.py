"""Section 3 of the catalogue: version counters, and saved values that are overwritten.

The check is at the time of use in a backward pass, never at the write.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import MutationError
from retrograde.tracer.modes import allow_mutation_on_saved_tensors, no_grad
from retrograde.tracer.tensor import Tensor, tensor

OVERWRITTEN = "one of the variables needed for gradient computation has been modified"


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def rows(a: Tensor) -> Tensor:
    """Return the rows of a recurrence, written in place."""
    b = tensor(np.zeros((4, 2)))
    b[0] = 1.0
    for i in range(1, 4):
        b[i] = b[i - 1] * a[i]
    return b


@line(
    "3.1",
    "better",
    "a=L(1,1); b=a*2; c=b*b; b.add_(1); E(lambda: c.sum().backward())",
    torch="one of the variables needed for gradient computation has been modified by "
    "an inplace operation: [torch.FloatTensor [2]], which is output 0 of",
    ours="the same error, and it names the node and quotes the line of the write",
)
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
    assert "test_semantics_versions.py" in text
    assert "# the write" in text
    assert isinstance(caught.value, RuntimeError)


@line(
    "3.2",
    "kept",
    """
b=L(1,1,1,1)*2; y=(b[:2]*b[:2]).sum(); b[2:].zero_(); E(lambda: y.backward())
""",
    torch="one of the variables needed",
)
def test_the_check_is_per_storage() -> None:
    b = leaf(1, 1, 1, 1) * 2
    y = (b[:2] * b[:2]).sum()
    b[2:].zero_()
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


@line(
    "3.3",
    "kept",
    "b=L(1,1)*2; y=(b*b).sum(); b.add_(1); b.sub_(1); E(lambda: y.backward())",
    torch="one of the variables needed",
)
def test_restoring_the_value_does_not_help() -> None:
    b = leaf(1, 1) * 2
    y = (b * b).sum()
    b.add_(1)
    b.sub_(1)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


@line(
    "3.4",
    "numpy",
    """
a=L(2,2,2,2); b=torch.zeros(4); b[0]=1.
for i in range(1,4): b[i]=b[i-1]*a[i]
E(lambda: b.sum().backward())
""",
    torch="one of the variables needed",
    ours="over scalars b[i-1] is a copy, so that the gradient is right: [0, 7, 6, 4]; "
    "over rows it is the error",
)
def test_a_recurrence_written_in_place() -> None:
    a, b = leaf(2, 2, 2, 2), plain(0, 0, 0, 0)
    b[0] = 1.0
    for i in range(1, 4):
        b[i] = b[i - 1] * a[i]
    b.sum().backward()
    assert grad(a) == [0, 7, 6, 4]
    many = tensor(np.full((4, 2), 2.0), requires_grad=True)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        rows(many).sum().backward()


@line(
    "3.5",
    "kept",
    """
a=L(2,2,2,2)
with torch.autograd.graph.allow_mutation_on_saved_tensors():
    b=torch.zeros(4); b[0]=1.
    for i in range(1,4): b[i]=b[i-1]*a[i]
    b.sum().backward(); print(a.grad)
""",
    torch="tensor([0., 7., 6., 4.])",
)
def test_a_recurrence_is_right_where_writes_copy_what_is_saved() -> None:
    a = tensor(np.full((4, 2), 2.0), requires_grad=True)
    with allow_mutation_on_saved_tensors():
        rows(a).sum().backward()
    assert grad(a) == [[0, 0], [7, 7], [6, 6], [4, 4]]


@line(
    "3.6",
    "better",
    """
z=torch.zeros(4); v=z[:2]; d=z.detach(); D=z.data; v.add_(1)
print(z._version,d._version,D._version); d.add_(1); print(v._version)
""",
    torch="1 1 0 | 2",
    ours=".data shares the version, too: 1 1 1",
)
def test_views_detach_and_data_share_the_version() -> None:
    z = plain(0, 0, 0, 0)
    v, d, data = z[:2], z.detach(), z.data
    v.add_(1)
    assert (z._version, d._version, data._version) == (1, 1, 1)
    d.add_(1)
    data.add_(1)
    assert v._version == 3


@line(
    "3.7",
    "better",
    """
a=L(1,1); b=a*2; c=b*b; b.data.zero_(); c.sum().backward(); print(a.grad)
""",
    torch="tensor([0., 0.])",
    ours="writes through .data are counted: an error instead of a wrong gradient",
)
def test_writes_through_data_are_counted() -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b * b
    b.data.zero_()
    with pytest.raises(MutationError, match=OVERWRITTEN):
        c.sum().backward()


@line(
    "3.8",
    "kept",
    """
a=L(1,1); b=a*2; c=b*b; b.detach().zero_(); E(lambda: c.sum().backward())
""",
    torch="one of the variables needed",
)
def test_writes_through_detach_are_counted() -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b * b
    b.detach().zero_()
    with pytest.raises(MutationError, match=OVERWRITTEN):
        c.sum().backward()


IN_PLACE = [
    ("exp_", np.exp),
    ("sqrt_", lambda x: 0.5 / np.sqrt(x)),
    ("tanh_", lambda x: 1 - np.tanh(x) ** 2),
    ("reciprocal_", lambda x: -1 / x**2),
    ("expm1_", np.exp),
]


@pytest.mark.parametrize(("op", "slope"), IN_PLACE, ids=[op for op, _ in IN_PLACE])
@line(
    "3.9",
    "better",
    "b=L(1,1)*1; b.exp_(); b.add_(1); E(lambda: b.sum().backward())",
    torch="one of the variables needed",
    ours="an output that is saved in place is saved as a copy: no error",
)
def test_an_output_saved_in_place_is_right_after_another_write(
    op: str, slope: Callable[[Any], Any]
) -> None:
    a = leaf(1, 2)
    b = a * 1
    getattr(b, op)()
    b.add_(1)
    b.sum().backward()
    np.testing.assert_allclose(grad(a), slope(np.array([1.0, 2.0])))


@line(
    "3.10",
    "kept",
    """
a=L(1,1); b=a*1; b.sin_(); b.add_(1); b.sum().backward(); print(a.grad)
""",
    torch="tensor([0.5403, 0.5403])",
)
def test_an_input_saved_in_place_is_saved_as_a_copy() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.sin_()
    b.add_(1)
    b.sum().backward()
    np.testing.assert_allclose(grad(a), np.cos([1, 1]))


@line(
    "3.11",
    "kept",
    """
a=L(1,1); b=a*1; b.mul_(2); b.add_(1); b.mul_(3); b.sum().backward(); print(a.grad)
""",
    torch="tensor([6., 6.])",
)
def test_a_constant_factor_saves_nothing() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.mul_(2)
    b.add_(1)
    b.mul_(3)
    b.sum().backward()
    assert grad(a) == [6, 6]


@line(
    "3.12",
    "better",
    "a=L(2,2); b=a*1; b.mul_(b); E(lambda: b.sum().backward())",
    torch="one of the variables needed",
    ours="both operands are saved before the write: the gradient is [4, 4]",
)
def test_a_tensor_times_itself_in_place() -> None:
    a = leaf(2, 2)
    b = a * 1
    b.mul_(b)
    b.sum().backward()
    assert grad(a) == [4, 4]


@line(
    "3.13",
    "kept",
    """
a=L(1,1); w=Z(1,1); b=a*1; y=b*w; b.add_(1); y.sum().backward(); print(a.grad)
""",
    torch="tensor([1., 1.])",
)
def test_what_no_derivative_reads_is_not_saved() -> None:
    a, w = leaf(1, 1), plain(1, 1)
    b = a * 1
    y = b * w
    b.add_(1)  # w needs no gradient, so b was not saved
    y.sum().backward()
    assert grad(a) == [1, 1]


@line(
    "3.14",
    "kept",
    "w=Z(1,1); y=(L(1,1)*w).sum(); w.add_(1); E(lambda: y.backward())",
    torch="one of the variables needed",
)
def test_a_tensor_without_gradient_may_be_saved() -> None:
    w = plain(1, 1)
    y = (leaf(1, 1) * w).sum()
    w.add_(1)
    with pytest.raises(MutationError, match=OVERWRITTEN):
        y.backward()


@line(
    "3.15",
    "kept",
    "a=L(1,1); b=a*1; b.zero_().sum().backward(); print(a.grad)",
    torch="tensor([0., 0.])",
)
def test_zero_gives_zeros_and_not_none() -> None:
    a = leaf(1, 1)
    b = a * 1
    b.zero_().sum().backward()
    assert grad(a) == [0, 0]


@line(
    "3.16",
    "kept",
    """
a=L(2.); y=(a*3).sum()
with torch.no_grad(): a.mul_(2)
y.backward(); print(a.grad)
""",
    torch="tensor([3.])",
)
def test_a_linear_op_does_not_mind_a_write() -> None:
    a = leaf(2)
    y = (a * 3).sum()
    with no_grad():
        a.mul_(2)
    y.backward()
    assert grad(a) == [3]
