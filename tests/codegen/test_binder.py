"""Kernels take arrays of any layout, and change nothing but what is updated."""

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.codegen.binder import Kernel
from retrograde.ir.errors import IndexRangeError, MutationError, ShapeError
from retrograde.ir.text import parse
from retrograde.passes.fuse import fuse
from retrograde.passes.reinplace import reinplace


def kernel(text: str) -> Kernel:
    return build(reinplace(fuse(parse(text))))


TWICE = """func @twice(%x: f64[n,m]) -> (f64[n,m], f64) {
  %y: f64[n,m] = multiply %x, 2.0
  %s: f64 = sum %y {axis=(0, 1), keepdims=False}
  return %y, %s
}"""

UPDATE = """func @update(%x: f64[n], %k: i64) -> f64[n] into %x {
  %y: f64[n] = multiply %x, 2.0
  %z: f64[n] = select_scatter %y, 7.0, %k {axis=0}
  return %z
}"""


@pytest.fixture(scope="module")
def twice() -> Kernel:
    return kernel(TWICE)


@pytest.fixture(scope="module")
def update() -> Kernel:
    return kernel(UPDATE)


def test_any_layout_is_taken(twice: Kernel) -> None:
    base = np.arange(48.0).reshape(6, 8)
    misaligned = np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view("f8")
    read_only = base.copy()
    read_only.flags.writeable = False
    for x in (
        base,
        base.T,
        base[::-2, 1::3],
        np.broadcast_to(base[0], (3, 8)),
        read_only,
        misaligned.reshape(6, 8),
        base.astype(">f8"),
        base[:0],
    ):
        y, s = twice([x])
        np.testing.assert_array_equal(y, np.asarray(x, "f8") * 2)
        assert y.flags.c_contiguous
        assert y.flags.owndata
        assert isinstance(s, np.float64)
        assert s == y.sum()


def test_results_are_fresh_in_every_call(twice: Kernel) -> None:
    x = np.ones((2, 2))
    (first, _), (second, _) = twice([x]), twice([x])
    assert not np.shares_memory(first, second)


def test_update_writes_into_the_given_array(update: Kernel) -> None:
    x = np.arange(4.0)
    (y,) = update([x, 1])
    assert y is x
    np.testing.assert_array_equal(x, [0.0, 7.0, 4.0, 6.0])


def test_update_of_a_strided_array_reaches_it(update: Kernel) -> None:
    base = np.arange(8.0)
    view = base[::-2]
    (y,) = update([view, -1])
    assert y is view
    np.testing.assert_array_equal(base, [0.0, 7.0, 2.0, 6.0, 4.0, 10.0, 6.0, 14.0])


def test_failed_check_changes_nothing(update: Kernel) -> None:
    x = np.arange(4.0)
    with pytest.raises(IndexRangeError, match="axis 0"):
        update([x, 4])
    np.testing.assert_array_equal(x, np.arange(4.0))


def test_read_only_array_is_not_updated(update: Kernel) -> None:
    x = np.arange(4.0)
    x.flags.writeable = False
    with pytest.raises(MutationError):
        update([x, 0])


def test_parameter_as_result_is_copied() -> None:
    k = kernel(
        """func @same(%x: f64[n]) -> (f64[n], f64[n], f64[n]) {
  %r: f64[n] = flip %x {axis=(0,)}
  return %x, %x, %r
}"""
    )
    x = np.arange(3.0)
    a, b, c = k([x])
    assert not any(np.shares_memory(p, q) for p, q in ((a, x), (b, x), (c, x), (a, b)))
    np.testing.assert_array_equal(c, x[::-1])


def test_updates_may_exchange_two_parameters() -> None:
    k = kernel(
        """func @swap(%x: f64[n], %y: f64[n]) -> (f64[n] into %x, f64[n] into %y) {
  return %y, %x
}"""
    )
    x, y = np.zeros(3), np.ones(3)
    k([x, y])
    np.testing.assert_array_equal(x, np.ones(3))
    np.testing.assert_array_equal(y, np.zeros(3))


def test_gather_outside_raises_and_wraps_inside() -> None:
    k = kernel(
        """func @take(%x: f64[n], %i: i64[m]) -> f64[m] {
  %y: f64[m] = gather %x, %i {axes=(0,), position=0}
  return %y
}"""
    )
    x = np.arange(3.0)
    np.testing.assert_array_equal(k([x, np.array([-1, 0])])[0], [2.0, 0.0])
    for bad in (3, -4):
        with pytest.raises(IndexRangeError):
            k([x, np.array([0, bad])])
    with pytest.raises(IndexRangeError):
        k([x[:0], np.array([0, 0])])


def test_number_of_selected_elements_shapes_the_result() -> None:
    k = kernel(
        """func @positive(%x: f64[n,3]) -> (f64[c,3], f64) {
  %s: f64[n] = select %x, 0 {axis=1}
  %p: bool[n] = greater %s, 0.0
  %y: f64[c,3] = mask_select %x, %p {count=c}
  %z: f64[c,3] = multiply %y, 2.0
  %t: f64 = sum %z {axis=(0, 1), keepdims=False}
  return %z, %t
}"""
    )
    x = np.array([[1.0, 2, 3], [-1, 5, 6], [2, 0, 1]])
    for data in (x, -np.abs(x)):
        y, total = k([data])
        np.testing.assert_array_equal(y, data[data[:, 0] > 0] * 2)
        assert total == y.sum()


def test_negative_size_is_an_error() -> None:
    k = kernel(
        """func @zeros(%k: i64) -> f64[c] {
  %n: i64 = size %k {checked=True, count=c}
  %y: f64[c] = full 1.5 {dtype=f64, shape=(c,)}
  return %y
}"""
    )
    np.testing.assert_array_equal(k([np.int64(2)])[0], [1.5, 1.5])
    with pytest.raises(ShapeError):
        k([np.int64(-1)])


def test_one_number_everywhere_can_be_written_into() -> None:
    k = kernel(
        """func @f(%x: f64) -> (f64[3], f64[3]) {
  %a: f64[3] = broadcast_to %x {shape=(3,)}
  %b: f64[3] = select_scatter %a, 5.0, 1 {axis=0}
  return %a, %b
}"""
    )
    a, b = k([2.0])
    np.testing.assert_array_equal(a, [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(b, [2.0, 5.0, 2.0])


def test_results_of_several_dtypes_in_any_order() -> None:
    k = kernel(
        """func @f(%x: f64[n]) -> (f64[n], f32[n,1], bool[n]) {
  %a: f32[n] = astype %x {dtype=f32}
  %b: bool[n] = greater %a, 0.5
  %c: f32[n,1] = expand_dims %a {axis=(1,)}
  %d: f64[n] = multiply %x, %b
  return %d, %c, %b
}"""
    )
    x = np.array([0.25, 0.75])
    d, c, b = k([x])
    np.testing.assert_array_equal(d, [0.0, 0.75])
    np.testing.assert_array_equal(c, np.array([[0.25], [0.75]], "f4"))
    np.testing.assert_array_equal(b, [False, True])
