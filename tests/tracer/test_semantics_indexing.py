"""Section 5 of the catalogue: overlap, broadcasting, dtypes, indexing."""

from typing import Any

import numpy as np
import pytest
from catalogue import line

from retrograde.ir.errors import DTypeError, IndexRangeError, ShapeError
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


@line(
    "5.1",
    "numpy",
    "b=torch.ones(1); E(lambda: b.expand(3).add_(1))",
    torch="unsupported operation: more than one element of the written-to tensor "
    "refers to a single memory location.",
    ours="what broadcast_to returns is read-only",
)
def test_broadcast_views_are_read_only() -> None:
    b = plain(1)
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(b, (3,)).add_(1)
    assert (b.tolist(), b._version) == ([1], 0)


@line(
    "5.2",
    "numpy",
    "b=torch.ones(1); b.expand(3).zero_(); b.expand(3)[0]=5; print(b)",
    torch="tensor([5.])",
    ours="also for fills and single elements; a view by strides of zero may be "
    "written, and the last value stays",
)
def test_the_last_of_several_values_for_one_element_stays() -> None:
    b = plain(1)
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(b, (3,)).zero_()
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(b, (3,))[0] = 5
    v, y = b.as_strided((3,), (0,)), leaf(7, 8, 9)
    v.copy_(y)
    assert b.tolist() == [9]
    v.sum().backward()
    assert grad(y) == [0, 0, 3]


@line(
    "5.3",
    "numpy",
    """
b=torch.arange(5.); E(lambda: b[1:].add_(b[:-1])); E(lambda: b[1:].copy_(b[:-1]))
""",
    torch="unsupported operation: some elements of the input tensor and the written-to "
    "tensor refer to a single memory location. | unsupported",
    ours="operands are read before anything is written",
)
def test_a_write_reads_overlapping_operands_first() -> None:
    a = leaf(0, 1, 2, 3, 4)
    b = a * 1
    b[1:].add_(b[:-1])
    assert b.tolist() == [0, 1, 3, 5, 7]
    b[1:].copy_(b[:-1])
    assert b.tolist() == [0, 0, 1, 3, 5]
    (b * [1.0, 10.0, 100.0, 1000.0, 10000.0]).sum().backward()
    assert grad(a) == [111, 1100, 11000, 10000, 0]


@line(
    "5.4",
    "better",
    """
b=torch.arange(16.).reshape(4,4); m=b.numpy().copy(); b[1:,1:]+=b[:-1,:-1]
m[1:,1:]+=m[:-1,:-1]; print((b.numpy()==m).all())
""",
    torch="False",
    ours="what NumPy computes, and its gradient",
)
def test_strided_operands_that_overlap_are_read_first() -> None:
    m = np.arange(16.0).reshape(4, 4)
    a = tensor(m, requires_grad=True)
    b = a * 1
    b[1:, 1:] += b[:-1, :-1]
    m[1:, 1:] += m[:-1, :-1]
    np.testing.assert_array_equal(b.tolist(), m)
    b.sum().backward()
    want = np.ones((4, 4))
    want[:-1, :-1] += 1
    np.testing.assert_array_equal(grad(a), want)


@line(
    "5.5",
    "better",
    "b=torch.arange(5.); b.unfold(0,3,1).mul_(2); print(b)",
    torch="tensor([ 0.,  4., 16., 12.,  8.])",
    ours="windows are read first, and one value stays: [0, 2, 4, 6, 8]",
)
def test_windows_that_overlap_are_read_first() -> None:
    a, y = leaf(0, 1, 2, 3, 4), tensor(np.ones((3, 3)), requires_grad=True)
    b = a * 1
    windows = np.lib.stride_tricks.sliding_window_view(b, 3, writeable=True)
    windows *= 2
    assert b.tolist() == [0, 2, 4, 6, 8]
    windows += y
    assert b.tolist() == [1, 3, 5, 7, 9]
    (b * [1.0, 10.0, 100.0, 1000.0, 10000.0]).sum().backward()
    assert grad(a) == [2, 20, 200, 2000, 20000]
    assert grad(y) == [[1, 0, 0], [10, 0, 0], [100, 1000, 10000]]


@line(
    "5.6",
    "kept",
    """
b=torch.zeros(3); E(lambda: b.add_(torch.ones(2,3)))
E(lambda: torch.zeros(()).add_(torch.ones(1)))
""",
    torch="output with shape [3] doesn't match the broadcast shape [2, 3] | output "
    "with shape [] doesn't match",
)
def test_a_target_does_not_grow() -> None:
    b = plain(0, 0, 0)
    with pytest.raises(ShapeError, match=r"doesn't match the broadcast shape \[2, 3\]"):
        b.add_(np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"doesn't match the broadcast shape \[1\]"):
        tensor(0.0).add_(np.ones(1))
    assert (b.tolist(), b._version) == ([0, 0, 0], 0)


@line(
    "5.7",
    "kept",
    """
b=torch.zeros(3); b[:]=torch.ones(1,3); print(b)
E(lambda: b.copy_(torch.ones(1,3)))
""",
    torch="tensor([1., 1., 1.]) | output with shape [3] doesn't match",
)
def test_an_assignment_drops_leading_ones_and_copy_does_not() -> None:
    b = plain(0, 0, 0)
    b[:] = np.ones((1, 3))
    assert b.tolist() == [1, 1, 1]
    with pytest.raises(ShapeError, match=r"output with shape \[3\] doesn't match"):
        b.copy_(np.ones((1, 3)))


@line(
    "5.8",
    "numpy",
    """
i=torch.zeros(2,dtype=torch.int64); E(lambda: i.add_(1.5)); E(lambda: i.div_(2))
""",
    torch="result type Float can't be cast to the desired output type Long | result",
    ours="NumPy's error: an operation in place casts by the rule same_kind",
)
def test_floats_are_not_added_to_integers_in_place() -> None:
    i = tensor([0, 0])
    with pytest.raises(DTypeError, match="cannot cast") as caught:
        i += 1.5
    assert isinstance(caught.value, TypeError)
    assert "same_kind" in str(caught.value)
    with pytest.raises(TypeError):
        i.div_(2)
    assert i.tolist() == [0, 0]


@line(
    "5.9",
    "kept",
    """
i=torch.zeros(2,dtype=torch.int64); i[0]=1.9; i[1]=-1.9; print(i)
f=torch.zeros(2); f+=torch.ones(2,dtype=torch.float64); print(f.dtype)
""",
    torch="tensor([ 1, -1]) | torch.float32",
)
def test_an_assignment_casts() -> None:
    i = tensor([0, 0])
    i[0], i[1] = 1.9, -1.9
    assert i.tolist() == [1, -1]
    f = tensor(np.zeros(2, np.float32))
    f += np.ones(2)
    assert f.dtype == np.float32


@line(
    "5.10",
    "kept",
    """
a=torch.ones(2,dtype=torch.float64,requires_grad=True); b=torch.zeros(2); b.copy_(a)
b.sum().backward(); print(a.grad.dtype)
""",
    torch="torch.float64",
)
def test_a_write_casts_the_gradient_back() -> None:
    a = leaf(1, 1)
    b = tensor(np.zeros(2, np.float32))
    b.copy_(a)
    assert name(b) == "CopyBackwards"
    b.sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == np.float64


@line(
    "5.11",
    "kept",
    """
a=torch.ones(2,requires_grad=True); i=torch.zeros(2,dtype=torch.int64); i.copy_(a)
print(i.requires_grad)
""",
    torch="False",
)
def test_integers_take_no_gradient() -> None:
    i = tensor([0, 0])
    i.copy_(leaf(1, 2))
    assert (i.tolist(), i.requires_grad) == ([1, 2], False)


@line(
    "5.12",
    "better",
    """
y=L(1,2,3); b=torch.zeros(3); b[torch.tensor([0,0,1])]=y; print(b.tolist())
b.sum().backward(); print(y.grad)
""",
    torch="[2.0, 3.0, 0.0] | tensor([1., 1., 1.])",
    ours="values that were overwritten have no gradient: [0, 1, 1]",
)
def test_overwritten_duplicates_have_no_gradient() -> None:
    y, b = leaf(1, 2, 3), plain(0, 0, 0)
    b[np.array([0, 0, 1])] = y
    assert b.tolist() == [2, 3, 0]
    b.sum().backward()
    assert grad(y) == [0, 1, 1]


@line(
    "5.13",
    "better",
    """
x=L(1,2,3); y=L(9,9,9); b=x*1; b[torch.tensor([0,0,1])]+=y; b.sum().backward()
print(x.grad, y.grad)
""",
    torch="tensor([2., 1., 1.]) tensor([1., 1., 1.])",
    ours="one addition per distinct index: [1, 1, 1] and [0, 1, 1]",
)
def test_augmented_duplicates_count_once() -> None:
    x, y = leaf(1, 2, 3), leaf(9, 9, 9)
    b = x * 1
    b[np.array([0, 0, 1])] += y
    b.sum().backward()
    assert (grad(x), grad(y)) == ([1, 1, 1], [0, 1, 1])


@line(
    "5.14",
    "kept",
    """
y=L(1,2,3); b=torch.zeros(3); b.index_put_((torch.tensor([0,0,1]),),y,accumulate=True)
print(b.tolist()); (b*Z(1,10,100)).sum().backward(); print(y.grad)
""",
    torch="[3.0, 3.0, 0.0] | tensor([ 1.,  1., 10.])",
)
def test_accumulating_writes_count_every_duplicate() -> None:
    y, b, c = leaf(1, 2, 3), plain(0, 0, 0), plain(0, 0, 0)
    assert b.index_put_((np.array([0, 0, 1]),), y, accumulate=True) is b
    assert b.tolist() == [3, 3, 0]
    (b * [1.0, 10.0, 100.0]).sum().backward()
    assert grad(y) == [1, 1, 10]
    np.add.at(c, np.array([0, 0, 1]), y)
    assert c.tolist() == [3, 3, 0]
    (c * [1.0, 10.0, 100.0]).sum().backward()
    assert grad(y) == [2, 2, 20]
    c.index_put_((np.array([2, 2]),), leaf(5, 6))
    assert c.tolist() == [3, 3, 6]


@line(
    "5.15",
    "kept",
    """
a=L(5,7); b=L(1,1,1)*1; m=Z(1,0,1).bool(); b[m]=a; b[m]*=2; print(n(b))
(b*Z(1,2,3)).sum().backward(); print(a.grad)
""",
    torch="IndexPutBackward0 | tensor([2., 6.])",
)
def test_masks_may_be_written() -> None:
    a, b = leaf(5, 7), leaf(1, 1, 1) * 1
    m = np.array([True, False, True])
    b[m] = a
    b[m] *= 2
    assert name(b) == "IndexPutBackward0"
    (b * [1.0, 2.0, 3.0]).sum().backward()
    assert grad(a) == [2, 6]


@line(
    "5.16",
    "kept",
    """
b=torch.zeros(3); b[torch.tensor([0,1])][0]=5; b[1:][torch.tensor([True,False])]=7
print(b)
""",
    torch="tensor([0., 7., 0.])",
)
def test_index_arrays_copy_and_slices_of_slices_are_views() -> None:
    b = plain(0, 0, 0)
    b[np.array([0, 1])][0] = 5
    b[1:][np.array([True, False])] = 7
    assert b.tolist() == [0, 7, 0]


@line(
    "5.17",
    "kept",
    """
a=L(1,1,1); s=L(2.)[0]; b=a*1; b.masked_fill_(Z(1,0,1).bool(),s); b.sum().backward()
print(a.grad)
""",
    torch="tensor([0., 1., 0.])",
)
def test_masked_fill() -> None:
    a, s = leaf(1, 1, 1), tensor(2.0, requires_grad=True)
    b = a * 1
    b.masked_fill_(np.array([True, False, True]), s * 1)
    b.sum().backward()
    assert grad(a) == [0, 1, 0]
    assert grad(s) == 2


@line(
    "5.18",
    "kept",
    """
b=Z(1,1,1); E(lambda: b.masked_fill_(Z(1,0,1).bool(),torch.ones(1)))
E(lambda: b[Z(1,0).bool()])
""",
    torch="masked_fill_ only supports a 0-dimensional value tensor, but got tensor "
    "with 1 dimension(s). | The shape of the mask [2] at index 0 does not match the "
    "shape of the indexed tensor [3] at index 0",
)
def test_masks_and_fills_that_do_not_fit() -> None:
    b = plain(1, 1, 1)
    with pytest.raises(ShapeError, match="only supports a 0-dimensional value"):
        b.masked_fill_(np.array([True, False, True]), np.ones(1))
    with pytest.raises(IndexRangeError, match="boolean index did not match"):
        b[np.array([True, False])]


@line(
    "5.19",
    "kept",
    "b=Z(1,1,1); E(lambda: b.__setitem__(Z(1,0,1).bool(), torch.ones(3)))",
    torch="shape mismatch: value tensor of shape [3] cannot be broadcast to indexing "
    "result of shape [2]",
)
def test_a_masked_value_that_does_not_fit() -> None:
    b = plain(1, 1, 1)
    with pytest.raises(
        ShapeError, match=r"cannot assign 3 input values to the 2 output"
    ):
        b[np.array([True, False, True])] = np.zeros(3)
    assert b.tolist() == [1, 1, 1]


@line(
    "5.20",
    "numpy",
    """
t=torch.arange(3.); s=t[0]; t[0]=9; m=np.arange(3.); q=m[0]; m[0]=9; print(s.item(), q)
""",
    torch="9.0 0.0",
    ours="t[0] is a copy, t[0, ...] a 0-d view",
)
def test_scalars_copy_and_ellipsis_views() -> None:
    t = tensor(np.arange(3.0))
    s, v = t[0], t[0, ...]
    t[0] = 9
    assert (s.item(), v.item()) == (0.0, 9.0)
    assert (s._base, v._base) == (None, t)


@line(
    "5.21",
    "numpy",
    """
t=torch.arange(3.); t[0],t[2]=t[2],t[0]; m=np.arange(3.); m[0],m[2]=m[2],m[0]
print(t.tolist(), m.tolist())
""",
    torch="[2.0, 1.0, 2.0] [2.0, 1.0, 0.0]",
    ours="elements can be swapped",
)
def test_elements_can_be_swapped() -> None:
    a = leaf(0, 1, 2)
    t = a * 1
    t[0], t[2] = t[2], t[0]
    assert t.tolist() == [2, 1, 0]
    (t * [1.0, 10.0, 100.0]).sum().backward()
    assert grad(a) == [100, 10, 1]


@line(
    "5.22",
    "numpy",
    """
t=torch.arange(3.); m=np.arange(3.); E(lambda: t[::-1])
print(t.flip(0)._is_view(), np.shares_memory(np.flip(m),m))
""",
    torch="step must be greater than zero | False True",
    ours="negative steps and flips are views, which may be written",
)
def test_negative_steps_and_flips_are_views() -> None:
    a = leaf(0, 1, 2)
    t = a * 1
    t[::-1][:2] *= 10
    np.flip(t)[0] *= 2
    assert (t[::-1]._base, np.flip(t)._base) == (t, t)
    assert t.tolist() == [0, 10, 40]
    t.sum().backward()
    assert grad(a) == [1, 10, 20]


@line(
    "5.23",
    "kept",
    """
a=L(1,1,0); (torch.maximum(a,Z(1,0,0)).sum()+a.amax()).backward(); print(a.grad)
""",
    torch="tensor([1.0000, 1.5000, 0.5000])",
)
def test_ties_share_the_gradient() -> None:
    a = leaf(1, 1, 0)
    (np.maximum(a, plain(1, 0, 0)).sum() + a.max()).backward()
    assert grad(a) == [1, 1.5, 0.5]


@line(
    "5.24",
    "kept",
    "a=L(0,1); (a.clamp(0,1)+a.abs()).sum().backward(); print(a.grad)",
    torch="tensor([1., 2.])",
)
def test_kinks() -> None:
    a = leaf(0, 1)
    (np.clip(a, 0, 1) + np.abs(a)).sum().backward()
    assert grad(a) == [1, 2]
