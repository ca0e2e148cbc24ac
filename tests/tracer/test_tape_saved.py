"""Version counters, and what happens to saved values that are overwritten."""

from typing import Any

import numpy as np

from retrograde.tracer.modes import allow_mutation_on_saved_tensors
from retrograde.tracer.tensor import Tensor, from_numpy, tensor

OVERWRITTEN = "one of the variables needed for gradient computation has been modified"


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


def test_arrays_of_the_user_are_saved_as_copies() -> None:
    a, w = leaf(1, 1), np.array([2.0, 3.0])
    u = from_numpy(w)
    y = (a * w + a * u).sum()
    w[...] = 0
    y.backward()
    assert grad(a) == [4, 6]


def test_copies_on_write_are_made_once_and_only_where_needed() -> None:
    a = leaf(1, 2, 3)
    with allow_mutation_on_saved_tensors():
        b = a * 2
        c = b * b
        for _ in range(3):
            b.add_(1)
        d = b * b
        (c.sum() + d.sum()).backward()
    # c: 8a, d: 4(2a + 3)
    assert grad(a) == [8 + 20, 16 + 28, 24 + 36]


def test_values_freed_with_their_graph_are_not_kept() -> None:
    b = leaf(1, 2) * 1
    storage = b._storage
    assert storage is not None
    for _ in range(100):
        _ = b * b
    storage.register(Keeper())
    assert storage._keepers is not None
    assert len(storage._keepers) < 20


class Keeper:
    def keep(self) -> None:
        raise AssertionError
