"""Tensors over arrays that share memory share what is written, and its gradient."""

from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import UnsupportedError
from retrograde.tracer.sharing import wrap_all
from retrograde.tracer.tensor import tensor


@pytest.mark.parametrize("order", ["C", "F"])
def test_overlapping_arrays_are_views_of_one_base(order: Any) -> None:
    a = np.zeros((3, 4), order=order)
    x = tensor(np.arange(3.0), requires_grad=True)
    rows, columns, scalar = wrap_all([a[1:], a.T[::2], 2.0])
    rows[:, 0] = x[1:]
    assert a[:, 0].tolist() == [0, 1, 2]
    assert columns[0].tolist() == [0, 1, 2]
    assert scalar._data == 2.0
    (columns[0] * [1.0, 10.0, 100.0]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 10, 100]


def test_read_only_arrays_stay_so() -> None:
    a = np.zeros(4)
    b = a[1:]
    b.flags.writeable = False
    x, y = wrap_all([a, b])
    x.fill(1.0)
    assert y.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        y.fill(2.0)


def test_equal_views_are_one_tensor() -> None:
    a = np.zeros(4)
    x, y, z = wrap_all([a, a, a[:]])
    assert x is y is z
    assert x._base is None


def test_disjoint_arrays_have_storages_of_their_own() -> None:
    a = np.zeros(4)
    x, y = wrap_all([a[:2], a[2:]])
    assert x._storage is not y._storage


def test_other_dtypes_over_the_same_memory_are_refused() -> None:
    a = np.zeros(4)
    with pytest.raises(UnsupportedError, match="share memory"):
        wrap_all([a, a.view(np.int64)])
