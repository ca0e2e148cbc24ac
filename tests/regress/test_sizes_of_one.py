"""Computed sizes that are 1 in this call broadcast, as they do in NumPy."""

from typing import Any

import numpy as np
import pytest

import retrograde as rg


def test_writes_of_parts_whose_size_is_one_in_this_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows(x: Any, y: Any) -> Any:
        y[:] = 0.5 * x[::2]
        return y

    def last(x: Any, y: Any) -> Any:
        x[None, :, ::-1] = -y[:-1]
        return x

    monkeypatch.setenv("RETROGRADE_INTERP", "1")
    x, y = np.arange(8.0).reshape(2, 4), np.ones(4)
    np.testing.assert_array_equal(rg.compile(rows)(x, y.copy()), rows(x, y.copy()))
    np.testing.assert_array_equal(rg.compile(last)(x, y[:2]), last(x, y[:2]))
