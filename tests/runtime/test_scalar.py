"""The neutral scalar functions have NumPy's meaning, at every delicate value."""

import itertools
from typing import Any

import numba
import numpy as np
import pytest

from retrograde.runtime import scalar

ONE = {
    "absolute": "fib",
    "sign": "fiu",
    "invert": "ib",
    "logical_not": "fib",
    "isnan": "f",
    "isinf": "f",
    "isfinite": "f",
    "signbit": "f",
}
TWO = {
    "maximum": "fib",
    "minimum": "fib",
    "fmax": "fi",
    "fmin": "fi",
    "logical_and": "fib",
    "logical_or": "fib",
    "logical_xor": "fib",
    "fmod": "fiu",
    "floor_divide": "fiu",
    "remainder": "fiu",
    "left_shift": "iu",
    "right_shift": "iu",
    "heaviside": "f",
    "power": "fiu",
    "logaddexp": "f",
    "logaddexp2": "f",
}
VALUES: dict[str, list[Any]] = {
    "f": [0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 7.25, -0.3],
    "i": [0, 1, -1, 5, -7, 3, -128],
    "u": [0, 1, 2, 3, 200],
    "b": [False, True],
}
DTYPES = {"f": ["f8", "f4"], "i": ["i8", "i4", "i1"], "u": ["u1", "u8"], "b": ["?"]}
CASES = [
    (name, count, dtype, kind)
    for table, count in ((ONE, 1), (TWO, 2))
    for name, kinds in table.items()
    for kind in kinds
    for dtype in DTYPES[kind]
]


def over_arrays(name: str, count: int) -> Any:
    """Return a compiled loop over arrays of operands."""
    function = getattr(scalar, name)
    if count == 1:

        def one(x: Any, out: Any) -> None:
            for k in range(x.size):
                out[k] = function(x[k])

        return numba.njit(error_model="numpy")(one)

    def two(x: Any, y: Any, out: Any) -> None:
        for k in range(x.size):
            out[k] = function(x[k], y[k])

    return numba.njit(error_model="numpy")(two)


@pytest.mark.parametrize(
    ("name", "count", "dtype", "kind"), CASES, ids=lambda x: str(x)
)
def test_function_is_numpys(name: str, count: int, dtype: str, kind: str) -> None:
    points = itertools.product(VALUES[kind], repeat=count)
    if name == "power" and kind == "i":
        points = (p for p in points if p[1] >= 0)
    columns = [np.array(c).astype(dtype) for c in zip(*points, strict=True)]
    with np.errstate(all="ignore"):
        want = getattr(np, name)(*columns)
    got = np.empty_like(want)
    over_arrays(name, count)(*columns, got)
    tolerance = 2e-6 if dtype == "f4" else 1e-14
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_multiply_add_rounds_at_most_twice(dtype: str) -> None:
    function = numba.njit(lambda x, y, z: scalar.multiply_add(x, y, z))
    t = np.dtype(dtype).type
    exact = [
        (2.0, 3.0, -1.5),
        (np.inf, 1.0, 2.0),
        (-0.0, 1.0, -0.0),
        (np.nan, 0.0, 1.0),
    ]
    for x, y, z in exact:
        np.testing.assert_equal(function(t(x), t(y), t(z)), t(x) * t(y) + t(z))
    third = t(1) / t(3)
    np.testing.assert_allclose(
        function(third, third, t(1)), 10 / 9, rtol=4e-16 if dtype == "f8" else 2e-7
    )
