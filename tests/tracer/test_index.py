"""Indexing of eager tensors against NumPy: values, aliasing, errors, no change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrograde.ir.errors import IndexRangeError, RetrogradeError, ShapeError
from retrograde.tracer.keys import slice_bounds
from retrograde.tracer.tensor import Tensor, tensor, wrap

SHAPES = [(5,), (3, 4), (2, 3, 4), (1, 4), (0, 3), (), (4, 1, 2)]


def base(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.asarray(np.arange(float(np.prod(shape, dtype=int))).reshape(shape) + 1)


def strided(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return an array of that shape that is not contiguous."""
    if not shape:
        return base(shape)
    return np.repeat(base(shape), 2, axis=-1)[..., ::2]


ends = st.none() | st.integers(-7, 7)
slices = st.builds(slice, ends, ends, st.none() | st.integers(-3, 3).filter(bool))
numbers = st.integers(-5, 4)
basic = st.one_of(slices, slices, numbers, st.none(), st.just(Ellipsis))


@st.composite
def index_arrays(draw: Any) -> Any:
    shape = draw(st.sampled_from([(2,), (3,), (1,), (2, 2), (3, 1), (0,), ()]))
    count = int(np.prod(shape, dtype=int))
    values = draw(st.lists(st.integers(-3, 2), min_size=count, max_size=count))
    out = np.array(values, dtype=np.int64).reshape(shape)
    return draw(st.sampled_from([out, out.tolist()])) if shape != (0,) else out


@st.composite
def masks(draw: Any) -> Any:
    shape = draw(
        st.sampled_from([(5,), (3,), (4,), (3, 4), (2, 3), (2,), (1,), (2, 3, 4)])
    )
    count = int(np.prod(shape, dtype=int))
    values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return np.array(values).reshape(shape)


advanced = st.one_of(
    basic, basic, index_arrays(), index_arrays(), masks(), st.booleans()
)


def keys(part: Any) -> Any:
    return part | st.lists(part, min_size=0, max_size=4).map(tuple)


def attempt(f: Any) -> Any:
    """Return a result, or the exception it ended with."""
    try:
        return f()
    except (IndexError, ValueError, TypeError) as error:
        return error


def assert_same_outcome(want: Any, got: Any) -> None:
    if isinstance(want, Exception):
        families = [
            c for c in (IndexError, ValueError, TypeError) if isinstance(want, c)
        ]
        assert isinstance(got, RetrogradeError), f"NumPy: {want!r}, ours: {got!r}"
        assert isinstance(got, tuple(families)), f"NumPy: {want!r}, ours: {got!r}"
        return
    assert isinstance(got, Tensor), f"NumPy: {want!r}, ours: {got!r}"
    data = got._data
    assert isinstance(data, np.ndarray) == isinstance(want, np.ndarray)
    assert (data.shape, data.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(data, want)


def as_tensors(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(as_tensors, key))
    return wrap(key) if isinstance(key, np.ndarray) else key


def check_read(x: Any, key: Any) -> None:
    t = wrap(x)
    want = attempt(lambda: x[key])
    got = attempt(lambda: t[key])
    assert_same_outcome(want, got)
    assert_same_outcome(want, attempt(lambda: t[as_tensors(key)]))
    if isinstance(want, np.ndarray) and want.size:
        assert np.shares_memory(want, x) == np.shares_memory(got._data, x)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SHAPES), st.booleans(), keys(basic))
def test_basic_keys_read_as_numpy(shape: Any, contiguous: bool, key: Any) -> None:
    check_read(base(shape) if contiguous else strided(shape), key)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(SHAPES), keys(advanced))
def test_any_keys_read_as_numpy(shape: Any, key: Any) -> None:
    check_read(base(shape), key)


VALUES = [
    2.5,
    7,
    np.float32(1.5),
    True,
    "fit",
    "fit_ones",
    "row",
    np.array([1.0, 2.0]),
    np.ones((3, 1)),
    np.array([[5.0]]),
    [1.0, 2.0, 3.0],
]


def value_for(x: Any, key: Any, kind: Any) -> Any:
    """Return a value: `fit` is of the shape that the key selects."""
    if not isinstance(kind, str):
        return kind
    part = attempt(lambda: x[key])
    if isinstance(part, Exception):
        return 1.0
    new = np.arange(np.size(part), dtype=float).reshape(np.shape(part)) * -1.5
    if kind == "fit_ones":
        return new[None, None]
    return new[-1] if kind == "row" and new.ndim and len(new) else new


def check_write(x: Any, key: Any, kind: Any) -> None:
    value = value_for(x, key, kind)
    mine, theirs = x.copy(), x.copy()
    want = attempt(lambda: theirs.__setitem__(key, value))
    for k, v in ((key, value), (as_tensors(key), as_tensors(value))):
        mine = x.copy()
        t = wrap(mine)
        got = attempt(lambda t=t, k=k, v=v: t.__setitem__(k, v))
        if isinstance(want, Exception):
            assert_same_outcome(want, got)
            np.testing.assert_array_equal(mine, x)
        else:
            assert got is None, got
            np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SHAPES), keys(basic), st.sampled_from(VALUES))
def test_basic_keys_write_as_numpy(shape: Any, key: Any, kind: Any) -> None:
    check_write(base(shape), key, kind)


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(SHAPES), keys(advanced), st.sampled_from(VALUES))
def test_any_keys_write_as_numpy(shape: Any, key: Any, kind: Any) -> None:
    check_write(base(shape), key, kind)


@pytest.mark.parametrize("n", range(6))
def test_slice_bounds_are_those_of_slice_indices(n: int) -> None:
    ends = [None, *range(-8, 9)]
    for start in ends:
        for stop in ends:
            for step in (None, 1, 2, 3, -1, -2, -3):
                s = slice(start, stop, step)
                want = list(range(*s.indices(n)))
                first, size, pace = slice_bounds(s, n)
                assert [first + k * pace for k in range(size)] == want, (s, n)


def test_writing_integers_truncates_as_assignment_does() -> None:
    t = tensor(np.array([1, 2, 3]))
    t[0] = 1.9
    t[[1, 2]] = np.array([-1.9, 2**53 + 1.0])
    assert t.tolist() == [1, -1, 2**53]


def test_masked_write_keeps_large_integers() -> None:
    t = tensor(np.array([2**60 + 1, 5]))
    t[np.array([False, True])] = 1.5
    assert t.tolist() == [2**60 + 1, 1]


def test_duplicate_indices_keep_the_last_write() -> None:
    t = tensor(np.zeros(3))
    t[[0, 0, 1]] = np.array([1.0, 2.0, 3.0])
    t[[0, 0]] += 1.0
    assert t.tolist() == [3.0, 3.0, 0.0]


def test_element_is_a_scalar_and_ellipsis_gives_a_view() -> None:
    t = tensor(np.arange(3.0))
    s, v = t[0], t[0, ...]
    assert s.type.scalar
    assert not v.type.scalar
    v += 5.0
    assert (s.item(), t[0].item()) == (0.0, 5.0)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        ((0, -5), "index -5 is out of bounds for axis 1 with size 4"),
        (([0, 7],), "index 7 is out of bounds for axis 0 with size 3"),
        (
            (0, 0, 0),
            "too many indices for array: array is 2-dimensional, but 3 were indexed",
        ),
        ((..., ...), "an index can only have a single ellipsis ('...')"),
        (
            np.array([True, False]),
            "boolean index did not match indexed array along axis 0; size of axis is "
            "3 but size of corresponding boolean axis is 2",
        ),
    ],
)
def test_errors_say_what_numpy_says(key: Any, message: str) -> None:
    t = tensor(np.zeros((3, 4)))
    with pytest.raises(IndexRangeError) as caught:
        t[key]
    assert caught.value.what == message
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_wrong_value_changes_nothing_and_names_both_shapes() -> None:
    t = tensor(np.zeros((3, 2)))
    with pytest.raises(ShapeError, match=r"from shape \(3,\) into shape \(2,\)"):
        t[0] = np.ones(3)
    with pytest.raises(ShapeError, match="cannot assign 3 input values to the 2"):
        t[:, 0][np.array([True, False, True])] = np.ones(3)
    assert not t._data.any()
