"""A copy never shares memory, whatever the strides of what is copied."""

import numpy as np
import pytest

import retrograde as rg

KEYS = ["[:, ::-1]", "[::-1]", "[::2, ::-2]", ".T", "[:1, ::-1]", "[:, :1]", "[::-1, 0]"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("method", ["copy", "clone", "contiguous"])
def test_a_copy_of_a_view_is_fresh(key, method):
    base = rg.tensor(np.arange(12.0).reshape(3, 4))
    view = eval(f"base{key}", {"base": base})
    want = np.array(view._data)
    copied = getattr(view, method)()
    if method != "contiguous" or not view._data.flags.c_contiguous:
        assert not np.shares_memory(copied._data, base._data)
    base.fill_(7.0)
    if copied is not view and not np.shares_memory(copied._data, base._data):
        np.testing.assert_array_equal(copied._data, want)
    assert method == "clone" or copied._data.flags.c_contiguous
