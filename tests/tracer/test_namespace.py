"""The namespace `retrograde.numpy`: NumPy's names, for Tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retrograde.numpy as rnp
from retrograde.ir.errors import UnsupportedError
from retrograde.tracer.tensor import Tensor, tensor


def same(t: Any, want: Any) -> None:
    assert isinstance(t, Tensor)
    data = t._data
    assert (data.shape, data.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(data, want, rtol=1e-15)


CREATION: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("zeros", (3,), {}),
    ("zeros", ((2, 3), np.int32), {}),
    ("ones", ((2, 3),), {"dtype": np.float32}),
    ("ones", (2,), {}),
    ("full", (3, 2.5), {}),
    ("full", ((2, 2), 7), {}),
    ("full", (2, [1.0, 2.0]), {}),
    ("full", (2, 2.7), {"dtype": int}),
    ("eye", (3,), {}),
    ("eye", (3, 4, 1), {}),
    ("eye", (2, 3, -1), {"dtype": int}),
    ("identity", (3,), {}),
    ("tri", (3, 4, 1), {}),
    ("arange", (5,), {}),
    ("arange", (2, 9, 3), {}),
    ("arange", (9, 2, -2), {}),
    ("arange", (5, 2), {}),
    ("arange", (0.5, 2.0, 0.3), {}),
    ("arange", (3,), {"dtype": float}),
    ("arange", (4.0,), {}),
    ("linspace", (0, 1, 7), {}),
    ("linspace", (0, 1, 4, False), {}),
    ("logspace", (0, 2, 5), {}),
    ("geomspace", (1.0, 8.0, 4), {}),
    ("array", ([1, 2, 3],), {}),
    ("array", ([[1.5, 2]],), {"dtype": np.float32}),
    ("array", (3.0,), {}),
    ("asarray", ([True, False],), {}),
    ("indices", ((2, 3),), {}),
    ("hanning", (5,), {}),
    ("vander", ([1.0, 2.0, 3.0],), {}),
    ("fromiter", ([1, 2], float), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    CREATION,
    ids=[f"{n}-{c[0]}" for n, c in enumerate(CREATION)],
)
def test_creation_makes_tensors(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    same(getattr(rnp, name)(*args, **kwargs), getattr(np, name)(*args, **kwargs))


def test_fromfunction_and_index_grids() -> None:
    got = rnp.fromfunction(lambda i, j: i * 10 + j, (2, 3))
    same(got, np.fromfunction(lambda i, j: i * 10 + j, (2, 3)))
    for mine, theirs in zip(rnp.tril_indices(3), np.tril_indices(3), strict=True):
        same(mine, theirs)


def test_arrays_of_tensors_are_stacked_and_keep_gradients() -> None:
    t = tensor(2.0, requires_grad=True)
    u = tensor(np.array([1.0, 3.0]), requires_grad=True)
    m = rnp.array([[t, 1.0], [0.0, u[0] * t]])
    same(m.detach(), np.array([[2.0, 1.0], [0.0, 2.0]]))
    (m * np.array([[1.0, 5.0], [7.0, 10.0]])).sum().backward()
    assert t.grad.item() == 1.0 + 10.0
    assert u.grad.tolist() == [20.0, 0.0]


def test_written_buffer_keeps_gradients() -> None:
    x = tensor(np.array([1.0, 2.0]), requires_grad=True)
    y = rnp.zeros(3)
    y[1:] = x * 3
    y[0] = x[1]
    rnp.sum(y * rnp.arange(1.0, 4.0)).backward()
    assert x.grad.tolist() == [6.0, 10.0]


def test_ufuncs_dtypes_and_constants_are_numpys_own() -> None:
    assert rnp.sin is np.sin
    assert rnp.float32 is np.float32
    assert rnp.pi == np.pi
    assert rnp.newaxis is None
    assert rnp.abs is np.abs


def test_functions_take_plain_arrays_too() -> None:
    same(rnp.cumsum(np.array([1.0, 2.0])), np.array([1.0, 3.0]))
    same(rnp.linalg.norm(np.array([3.0, 4.0])), np.float64(5.0))


def test_unknown_name_says_what_to_do() -> None:
    with pytest.raises(AttributeError, match=r"numpy\.unwrap is not there.*detach"):
        rnp.unwrap  # noqa: B018
    with pytest.raises(AttributeError, match="neither here nor in numpy"):
        rnp.does_not_exist  # noqa: B018
    with pytest.raises(AttributeError, match=r"numpy\.linalg\.svd is not there"):
        rnp.linalg.svd  # noqa: B018


def test_unsupported_function_names_itself_and_a_way_out() -> None:
    t = tensor(np.ones(3))
    with pytest.raises(UnsupportedError, match="unwrap") as caught:
        np.unwrap(t)
    assert caught.value.location is not None
    assert "detach" in str(caught.value)


def test_out_takes_tensors_and_refuses_lost_gradients() -> None:
    x = tensor(np.array([[1.0, 2.0], [3.0, 4.0]]), requires_grad=True)
    out = rnp.zeros(2)
    assert rnp.sum(x, axis=0, out=out) is out
    out.sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with pytest.raises(TypeError, match="requires a gradient"):
        rnp.sum(x, axis=0, out=np.zeros(2))
    plain = np.zeros(2)
    rnp.sum(x.detach(), axis=0, out=plain)
    assert plain.tolist() == [4.0, 6.0]


WRITERS: list[tuple[str, Any]] = [
    ("put", lambda f, a: f(a, [0, -1], [5.0, 6.0])),
    ("put", lambda f, a: f(a, [0, 14], 9.0, mode="wrap")),
    ("put", lambda f, a: f(a, [0, 5, 7], [1.5])),
    ("putmask", lambda f, a: f(a, np.arange(12).reshape(3, 4) % 2 == 0, [7.0, 8.0])),
    ("putmask", lambda f, a: f(a, np.ones((3, 4), bool), -1.0)),
    ("place", lambda f, a: f(a, np.arange(12).reshape(3, 4) % 3 == 0, [7.0, 8.0, 9.0])),
    ("copyto", lambda f, a: f(a, 3.0)),
    ("copyto", lambda f, a: f(a, np.arange(4.0), where=np.eye(3, 4) > 0)),
    ("fill_diagonal", lambda f, a: f(a, 5.0)),
    ("fill_diagonal", lambda f, a: f(a, np.array([1.0, 2.0, 3.0]))),
    ("put_along_axis", lambda f, a: f(a, np.array([[1], [0], [3]]), 9.0, 1)),
]


@pytest.mark.parametrize(
    ("name", "call"), WRITERS, ids=[f"{n}-{w[0]}" for n, w in enumerate(WRITERS)]
)
def test_functions_that_write_do_as_numpy(name: str, call: Any) -> None:
    theirs = np.arange(12.0).reshape(3, 4)
    t = tensor(theirs)
    call(getattr(np, name), theirs)
    call(getattr(rnp, name), t)
    np.testing.assert_array_equal(t._data, theirs)
    if name != "fill_diagonal":
        return
    cube = np.zeros((3, 3, 3))
    u = tensor(cube)
    np.fill_diagonal(cube, 4.0)
    rnp.fill_diagonal(u, 4.0)
    np.testing.assert_array_equal(u._data, cube)
