"""A reshape is a view exactly where NumPy's is, whatever made the array."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg

INDEX = np.array([0, 1, 1])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "multiply": lambda x: x * 2.0,
    "add_fortran": lambda x: x + np.ones(x.shape, order="F"),
    "add_broadcast": lambda x: x[:1] * x[:, :1],
    "spread": lambda x: np.broadcast_to(x, (2, *x.shape)) * 1.0,
    "copy_method": lambda x: x.copy(),
    "copy_fortran": lambda x: x.copy("F"),
    "copy_function": lambda x: np.copy(x),
    "array": lambda x: np.array(x),
    "array_fortran": lambda x: np.array(x, order="F"),
    "array_of_arrays": lambda x: np.array([x, x]),
    "ascontiguousarray": lambda x: np.ascontiguousarray(x) * 1.0,
    "asfortranarray": lambda x: np.asfortranarray(x) * 1.0,
    "astype": lambda x: x.astype(np.float32),
    "zeros_like": lambda x: np.zeros_like(x),
    "full_like": lambda x: np.full_like(x, 2.0),
    "ones_like_c": lambda x: np.ones_like(x, order="C"),
    "zeros_fortran": lambda x: np.zeros(x.shape, order="F") + 1.0,
    "where": lambda x: np.where(x > 0, x, 0.0),
    "select": lambda x: np.select([x > 0], [x], 0.0),
    "sum": lambda x: x.sum(axis=0),
    "max_last": lambda x: x.max(axis=-1),
    "cumsum": lambda x: np.cumsum(x, axis=0),
    "sort": lambda x: np.sort(x, axis=0),
    "argsort": lambda x: np.argsort(x, axis=0),
    "concatenate": lambda x: np.concatenate([x, x], axis=1),
    "stack": lambda x: np.stack([x, x], axis=1),
    "take": lambda x: np.take(x, INDEX, axis=1),
    "gather_first": lambda x: x[INDEX % 2],
    "gather_second": lambda x: x[:, INDEX],
    "gather_last": lambda x: x[..., INDEX],
    "repeat": lambda x: np.repeat(x, 2, axis=0),
    "roll": lambda x: np.roll(x, 1, axis=0),
    "pad": lambda x: np.pad(x, 1),
    "gradient": lambda x: np.gradient(x, axis=0),
    "round": lambda x: np.round(x, 1),
    "delete": lambda x: np.delete(x, 0, axis=0),
    "insert": lambda x: np.insert(x, 0, 1.0, axis=0),
    "triu": lambda x: np.triu(x),
    "diagonal": lambda x: np.diagonal(x).copy(),
    "ravel": lambda x: x[..., ::2].ravel(),
}
RNG = np.random.default_rng(0)
ARRAYS = {
    "c": RNG.standard_normal((2, 3)),
    "fortran": np.asfortranarray(RNG.standard_normal((2, 3))),
    "negative": RNG.standard_normal((2, 3))[::-1, ::-1],
    "strided": RNG.standard_normal((4, 6))[::2, ::2],
    "negative_transposed": RNG.standard_normal((3, 2))[:, ::-1].T,
    "fortran_3d": np.asfortranarray(RNG.standard_normal((2, 3, 4))),
    "permuted": RNG.standard_normal((3, 4, 2)).transpose(2, 0, 1),
    "swapped": RNG.standard_normal((2, 4, 3)).transpose(0, 2, 1)[:, ::-1],
}


def _program(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Write through what reshapes and ravels return: only views change the result."""

    def program(x: Any) -> Any:
        r = make(x)
        for k, part in enumerate((r.reshape(-1), r.T.reshape(-1), r.ravel())):
            part += k + 1
        part = r.T.ravel()
        part *= 3
        return r

    return program


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_reshape_and_ravel_are_views_where_numpys_are(
    make: Callable[[Any], Any], array: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROGRADE_INTERP", "1")
    program = _program(make)
    want = program(array)
    eager = program(rg.from_numpy(array))
    got = eager.numpy() if isinstance(eager, rg.Tensor) else eager
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(rg.compile(program)(array), want, rtol=1e-6)


def test_copy_of_a_strided_tensor_does_not_share_memory() -> None:
    x = rg.tensor(np.ones((3, 3)))
    for view in (x[:, 0], x[::-1, ::-1], x.T):
        y = view.copy()
        y += 5.0
    assert x.numpy().sum() == 9.0
