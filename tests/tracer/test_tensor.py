"""Tensor: NumPy's values."""

import numpy as np

from retrograde.tracer.tensor import tensor


def test_operators_give_numpy_values() -> None:
    x = tensor([1.0, 2.0])
    assert (2 * x + x[...] if False else 2 * x + x).tolist() == [3.0, 6.0]
    x += 1
    assert x.tolist() == [2.0, 3.0]
    assert isinstance((x > 1)._data, np.ndarray)
