"""A copy never shares memory, whatever the strides of what is copied."""

import numpy as np
import pytest

import retrograde as rg

KEYS = [
    "[:, ::-1]",
    "[::-1]",
    "[::2, ::-2]",
    ".T",
    "[:1, ::-1]",
    "[:, :1]",
    "[::-1, 0]",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("method", ["copy", "clone", "contiguous"])
def test_a_copy_of_a_view_is_fresh(key, method):
    base = rg.tensor(np.arange(12.0).reshape(3, 4))
    view = eval(f"base{key}", {"base": base})
    want = np.array(view._data)
    copied = getattr(view, method)()
    assert method == "clone" or copied._data.flags.c_contiguous
    if method == "contiguous" and view._data.flags.c_contiguous:
        assert copied is view
        return
    assert not np.shares_memory(copied._data, base._data)
    base.fill_(7.0)
    np.testing.assert_array_equal(copied._data, want)


def test_a_number_spread_over_an_updated_argument_fills_all_of_it():
    def f(x, y):
        x[..., 0:] = -y[-2]
        y[:] = y[-2]
        return x[2:, :].copy()

    x, y = np.arange(4.0).reshape(1, 4), np.arange(4.0)
    rg.compile(f)(x, y)
    np.testing.assert_array_equal(x, np.full((1, 4), -2.0))
    np.testing.assert_array_equal(y, np.full(4, 2.0))
