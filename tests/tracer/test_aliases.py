"""Overlapping aliases give the right gradient in every order of writes and uses."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.modes import allow_mutation_on_saved_tensors, set_view_replay
from retrograde.tracer.tensor import Tensor, tensor

Array = npt.NDArray[np.float64]
TINY = 1e-30
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def slopes(f: Callable[[Any], Any], x: Array) -> Array:
    """Return the gradient of an analytic function of an array, by complex steps."""
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[k] += TINY * 1j
        out[k] = f(moved).imag / TINY
    return out


# Each step writes through one alias or reads one. `s` adds up what is read.


def write_row(y: Any, row: Any, column: Any, s: Any) -> Any:
    row *= 2.0
    return s


def write_column(y: Any, row: Any, column: Any, s: Any) -> Any:
    column *= column + y[1, 1:2]
    return s


def write_base(y: Any, row: Any, column: Any, s: Any) -> Any:
    y *= y.T + 1.0
    return s


def read_row(y: Any, row: Any, column: Any, s: Any) -> Any:
    return s + np.sum(np.sin(row) * np.array([1.0, 2.0, 3.0]))


def read_column(y: Any, row: Any, column: Any, s: Any) -> Any:
    return s + np.sum(np.sin(column) * np.array([4.0, 5.0, 6.0]))


STEPS = (write_row, write_column, write_base, read_row, read_column)
ORDERS = list(itertools.permutations(STEPS))
X = np.linspace(0.3, 1.1, 9).reshape(3, 3)


def program(order: Any, x: Any) -> Any:
    y = x * 1.0
    row, column = y[0, :], y[:, 0]
    s: Any = 0.0
    for step in order:
        s = step(y, row, column, s)
    return s + np.sum(np.cos(y))


def gradient(order: Any, replay: bool) -> Any:
    x = tensor(X, requires_grad=True)
    with set_view_replay(replay), allow_mutation_on_saved_tensors():
        program(order, x).backward()
    assert x.grad is not None
    return x.grad.numpy()


@pytest.mark.parametrize("first", range(5))
def test_two_aliases_in_every_order(first: int) -> None:
    for order in ORDERS[24 * first : 24 * (first + 1)]:
        want = slopes(lambda x, order=order: program(order, x), X)  # type: ignore[misc]
        np.testing.assert_allclose(gradient(order, False), want, **CLOSE)
        np.testing.assert_allclose(gradient(order, True), want, **CLOSE)


# ---------------------------------------------------------------- replay


def chain(t: Tensor | None) -> list[str]:
    """Return the names of the nodes from a tensor's on, along the first edges."""
    assert t is not None
    node, names = t.grad_fn, []
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return names


def test_replayed_views_show_the_ops_that_made_them() -> None:
    a = tensor(np.arange(12.0), requires_grad=True)
    b = a * 1
    v = b.reshape(3, 4).T[1:3]
    w = v[:, 2]
    b.mul_(2)
    assert chain(v)[:2] == ["AsStridedBackward0", "MulBackward0"]
    with set_view_replay(True):
        assert chain(w)[:5] == [
            "SelectBackward0",
            "SliceBackward0",
            "PermuteBackward0",
            "ViewBackward0",
            "MulBackward0",
        ]
    assert chain(v)[0] == "AsStridedBackward0"
    assert chain(w)[0] == "SelectBackward0"  # until the next write
    (w * [1.0, 10.0]).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [0] * 9 + [2, 20, 0]


def test_view_replay_is_a_mode() -> None:
    with set_view_replay(True), set_view_replay(False):
        a = tensor([1.0, 2.0], requires_grad=True)
        b = a * 1
        v = b[:1]
        b.mul_(2)
        assert chain(v)[0] == "AsStridedBackward0"


@pytest.mark.parametrize("replay", [False, True])
def test_second_derivatives_through_rebased_views(replay: bool) -> None:
    a = tensor([2.0, 3.0, 5.0], requires_grad=True)
    with set_view_replay(replay):
        b = a * a
        v, w = b[:2], b[1:]
        v.mul_(a[1:])  # b = [a0 a0 a1, a1 a1 a2, a2 a2]
        y = (w * w).sum()  # a1^4 a2^2 + a2^4
        (g,) = grad_of(y, a, create_graph=True)
        assert g is not None
        assert g.tolist() == [0, 4 * 27 * 25, 2 * 81 * 5 + 4 * 125]
        (h,) = grad_of(g.sum(), a)
    assert h is not None
    assert h.tolist() == [0, 12 * 9 * 25 + 8 * 27 * 5, 8 * 27 * 5 + 2 * 81 + 12 * 25]


# ---------------------------------------------------------------- strided overlap


@st.composite
def strided(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Draw a size, and shape, strides and offset of a view of so many elements."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    strides = tuple(draw(st.integers(-2, 3)) for _ in range(ndim))
    ends = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
    low, high = sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
    return high - low + 2, shape, strides, -low


def in_order(b: Array, v: Array, new: Any) -> None:
    """Write element by element, in C order."""
    new = np.broadcast_to(new, v.shape).copy()
    for k in np.ndindex(v.shape):
        v[k] = new[k]


@given(strided(), st.booleans())
def test_writes_that_repeat_elements_keep_the_last(case: Any, fortran: bool) -> None:
    n, shape, strides, offset = case
    rng = np.random.default_rng(n)
    b0, weights = rng.normal(size=(2, n))
    y0 = np.asarray(rng.normal(size=shape), order="F" if fortran else "C")

    def plain(b: Any, y: Any) -> Any:
        c = b.astype(np.result_type(b, y))
        bytes_ = tuple(c.itemsize * s for s in strides)
        v = np.lib.stride_tricks.as_strided(c[offset:], shape, bytes_)
        in_order(c, v, y)
        in_order(c, v, v * 2.0)
        return c @ weights

    b, y = tensor(b0, requires_grad=True), tensor(y0, requires_grad=True)
    c = b * 1.0
    v = c.as_strided(shape, strides, offset)
    v[...] = y * 1.0
    v *= 2.0
    out = (c * weights).sum()
    np.testing.assert_allclose(out.item(), plain(b0, y0))
    gb, gy = grad_of(out, (b, y), materialize_grads=True)
    assert gb is not None
    assert gy is not None
    np.testing.assert_allclose(gb.numpy(), slopes(lambda x: plain(x, y0), b0), **CLOSE)
    np.testing.assert_allclose(gy.numpy(), slopes(lambda x: plain(b0, x), y0), **CLOSE)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_part_of_a_view_that_overlaps_itself(create_graph: bool, order: Any) -> None:
    a0 = np.asarray(np.arange(9.0).reshape(3, 3), order=order)
    a, x = tensor(a0, requires_grad=True), tensor([5.0, 7.0], requires_grad=True)
    b = a * 1
    flat = (b if order == "C" else b.T).reshape(9)
    assert flat._base is b
    part = flat.as_strided((2, 2), (1, 1), 2)[0]  # elements 2 and 3, again in row 1
    part.copy_(x)
    weights = np.arange(1.0, 10.0).reshape(3, 3)
    ga, gx = grad_of((b * weights).sum(), (a, x), create_graph=create_graph)
    want = weights.copy()
    places = (want if order == "C" else want.T).ravel()
    assert ga is not None
    assert gx is not None
    assert gx.tolist() == places[2:4].tolist()
    for k in (2, 3):
        want[divmod(k, 3) if order == "C" else divmod(k, 3)[::-1]] = 0
    assert ga.tolist() == want.tolist()
