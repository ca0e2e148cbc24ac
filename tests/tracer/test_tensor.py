"""Tensor behaves as the NumPy array, scalar or number that it holds."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import (
    IndexRangeError,
    ShapeError,
    UnsupportedError,
)
from retrograde.tracer.tensor import Tensor, as_tensor, from_numpy, tensor, wrap


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def check(got: Any, want: Any) -> None:
    """Compare data, dtype and whether it is an array, a scalar or a number."""
    assert isinstance(got, Tensor)
    assert type(got._data) is type(want)
    np.testing.assert_array_equal(got._data, want)
    assert got.dtype == np.asarray(want).dtype


# ---------------------------------------------------------------- operators

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
OTHERS = [
    2,
    2.5,
    np.float32(1.5),
    np.float64(0.5),
    np.array([1.0, 2.0, 4.0]),
    np.array([[1.0], [2.0]]),
    [1.0, 2.0, 3.0],
]


@pytest.mark.parametrize("f", BINARY)
@pytest.mark.parametrize("other", OTHERS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_operators_give_what_numpy_gives(f: Any, other: Any, dtype: Any) -> None:
    x = np.array([1, 2, 3], dtype)
    check(f(tensor(x), other), f(x, other))
    if not isinstance(other, list):
        check(f(other, tensor(x)), f(other, x))
        check(f(tensor(x), as_tensor(other)), f(x, other))


@pytest.mark.parametrize("f", BITWISE)
def test_bitwise_operators(f: Any) -> None:
    x, y = np.array([1, 6, 3]), np.array([2, 3, 1])
    check(f(tensor(x), y), f(x, y))
    check(f(y, tensor(x)), f(y, x))
    check(f(3, tensor(x)), f(3, x))


@pytest.mark.parametrize("f", [operator.neg, operator.pos, abs, np.sin, np.isnan])
def test_unary_operators(f: Any) -> None:
    x = np.array([1.0, -2.0])
    check(f(tensor(x)), f(x))
    check(f(tensor(x)[0]), f(x[0]))
    check(~tensor([True, False]), ~np.array([True, False]))


def test_divmod_and_matmul() -> None:
    x, m = np.array([5.0, -7.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    for got, want in zip(divmod(tensor(x), 3), divmod(x, 3), strict=True):
        check(got, want)
    for got, want in zip(divmod(9, tensor(x)), divmod(9, x), strict=True):
        check(got, want)
    check(tensor(m) @ x, m @ x)
    check(x @ tensor(m), x @ m)


def test_python_numbers_stay_weak() -> None:
    t = as_tensor(2.0) * 3 + 1
    assert type(t._data) is float
    check(t * np.ones(2, np.float32), np.full(2, 7, np.float32))
    assert type((as_tensor(7) // 2)._data) is int


def test_operands_that_are_nothing_to_numpy() -> None:
    with pytest.raises(TypeError):
        tensor([1.0]) + object()  # type: ignore[operator]
    assert (tensor([1.0]) == None) is False  # noqa: E711
    with pytest.raises(ShapeError, match=r"add: cannot take f64\[2\], f64\[3\]") as e:
        tensor([1.0, 2.0]) + np.ones(3)
    assert "test_tensor.py" in str(e.value)


@pytest.mark.parametrize(
    "f", [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow]
)
def test_operators_in_place(f: Any) -> None:
    x = np.array([1.0, 2.0])
    t = kept = tensor(x)
    t = f(t, 3)
    want = f(x.copy(), 3)
    assert t is kept
    check(t, want)


# ---------------------------------------------------------------- protocols


def test_ufunc_out() -> None:
    x, out, y = leaf(1, 2), tensor(np.zeros(2)), leaf(5, 5) * 1
    assert np.multiply(x, x, out=out) is out
    assert out.tolist() == [1, 4]
    np.add(y, x, out=(y,))
    np.sin(x, out=out)
    (out + y).sum().backward()
    np.testing.assert_allclose(grad(x), np.cos([1, 2]) + 1)


def test_ufunc_where_has_no_derivative_elsewhere() -> None:
    x = leaf(0, 4, 9)
    y = np.sqrt(x, where=np.array([False, True, True]), out=tensor(np.ones(3)))
    assert y.tolist() == [1, 2, 3]
    y.sum().backward()
    np.testing.assert_allclose(grad(x), [0, 1 / 4, 1 / 6])
    a = np.zeros(2)
    np.add(tensor([1.0, 2.0]), 1, out=a, where=[True, False])
    assert a.tolist() == [2, 0]


def test_ufunc_dtype() -> None:
    x = np.array([1.0, 2.0])
    check(np.add(tensor(x), 1, dtype=np.float32), np.add(x, 1, dtype=np.float32))


@pytest.mark.parametrize("u", [np.add, np.multiply, np.maximum, np.minimum])
def test_ufunc_reduce(u: np.ufunc) -> None:
    x = np.array([[1.0, 5.0], [3.0, 2.0]])
    check(u.reduce(tensor(x)), u.reduce(x))
    check(u.reduce(tensor(x), axis=1), u.reduce(x, axis=1))
    check(u.reduce(tensor(x), axis=None), u.reduce(x, axis=None))
    check(u.outer(tensor(x), [1.0, 2.0]), u.outer(x, [1.0, 2.0]))


def test_ufunc_accumulate() -> None:
    x = np.array([[1.0, 5.0], [3.0, 2.0]])
    check(np.add.accumulate(tensor(x)), np.add.accumulate(x))
    check(np.multiply.accumulate(tensor(x), axis=1), np.multiply.accumulate(x, axis=1))
    check(np.maximum.accumulate(tensor(x), axis=1), np.maximum.accumulate(x, axis=1))
    check(np.minimum.accumulate(tensor(x)), np.minimum.accumulate(x))
    check(np.add.reduceat(tensor(x), [0, 1, 0]), np.add.reduceat(x, [0, 1, 0]))
    check(np.divide.accumulate(tensor(x), axis=1), np.divide.accumulate(x, axis=1))
    check(np.subtract.reduce(tensor(x), axis=1), np.subtract.reduce(x, axis=1))
    with pytest.raises(UnsupportedError):
        np.subtract.reduce(tensor(x), axis=(0, 1))


@pytest.mark.parametrize("u", [np.add, np.subtract, np.multiply, np.maximum, np.power])
@pytest.mark.parametrize(
    "key",
    [
        [0, 0, 1],
        slice(1, None),
        (np.array([0, 1]), 1),
        1,
        [[0], [1]],
        (slice(None), [1, 1]),
        np.array([[True, False], [False, False], [False, True]]),
    ],
    ids=str,
)
def test_ufunc_at(u: np.ufunc, key: Any) -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    t, v = tensor(x), np.array([2.0, 3.0])
    v = v[0] if isinstance(key, int) else v
    if isinstance(key, tuple):
        v = np.array([2.0, 3.0])
    u.at(t, key, v)
    u.at(x, key, v)
    check(t, x)


def test_ufunc_at_has_a_gradient() -> None:
    x, v = leaf(1, 2), leaf(3, 5)
    t = x * 1
    np.multiply.at(t, [0, 0], v)
    assert t.tolist() == [15, 2]
    t.sum().backward()
    assert (grad(x), grad(v)) == ([15, 1], [5, 3])


# ---------------------------------------------------------------- memory


def test_tensor_copies_and_from_numpy_shares() -> None:
    a = np.zeros(2)
    tensor(a).fill(1)
    assert a.tolist() == [0, 0]
    from_numpy(a).fill(1)
    assert a.tolist() == [1, 1]
    assert wrap(a).numpy() is a


def test_scalars_copy_and_ellipsis_views() -> None:
    x = tensor([1.0, 2.0])
    s, v = x[0], x[0, ...]
    x[0] = 5.0
    assert (s.item(), v.item()) == (1.0, 5.0)
    assert (s._base, v._base) == (None, x)


def test_negative_steps_are_views() -> None:
    x = leaf(1, 2, 3) * 1
    x[::-1][:2] *= 10
    assert x.tolist() == [1, 20, 30]


def test_methods() -> None:
    x = np.array([[3.0, 1.0], [2.0, 4.0]])
    t = tensor(x)
    check(t.T, x.T)
    check(t.flatten(), x.flatten())
    check(t.reshape(4), x.reshape(4))
    check(t.reshape(1, -1), x.reshape(1, -1))
    check(t.transpose(), x.transpose())
    check(t.transpose(1, 0), x.transpose(1, 0))
    check(t.astype(np.float32), x.astype(np.float32))
    check(t.mean(axis=0), x.mean(axis=0))
    check(t.std(), x.std())
    check(t.argmin(axis=1), x.argmin(axis=1))
    check(t.max(axis=1, keepdims=True), x.max(axis=1, keepdims=True))
    t.sort()
    x.sort()
    check(t, x)
    assert (t.size, t.ndim, t.nbytes, len(t)) == (4, 2, 32, 2)
    assert 4.0 in t


def test_contiguous_keeps_the_gradient() -> None:
    a = tensor(np.arange(4.0).reshape(2, 2), requires_grad=True)
    c = a.T.contiguous()
    assert c._data.flags.c_contiguous
    (c * [[1.0, 2.0], [3.0, 4.0]]).sum().backward()
    assert grad(a) == [[1, 3], [2, 4]]


def test_copies_and_pickles() -> None:
    a = leaf(1, 2)
    for b in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert (b.tolist(), b.requires_grad, b.is_leaf) == ([1, 2], True, True)
    assert copy.copy(a).grad_fn is not None
    with pytest.raises(RuntimeError):
        copy.deepcopy(a * 1)


def test_iteration() -> None:
    assert [x.item() for x in tensor([1.0, 2.0])] == [1, 2]
    for f in (len, iter):
        with pytest.raises(TypeError):
            f(tensor(1.0))  # type: ignore[operator]
    with pytest.raises(IndexRangeError):
        tensor([1.0])[1]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (lambda: leaf(1), "tensor([1.], requires_grad=True)"),
        (lambda: leaf(1) * 2, "tensor([2.], grad_fn=<MulBackward0>)"),
        (lambda: tensor([1], np.float32), "tensor([1.], dtype=float32)"),
        (lambda: tensor([1.0])[0], "tensor(np.float64(1.0))"),
        (lambda: as_tensor(2), "tensor(2)"),
    ],
)
def test_text(make: Callable[[], Tensor], text: str) -> None:
    assert repr(make()) == text
