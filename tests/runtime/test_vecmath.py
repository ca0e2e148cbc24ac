"""Elementary functions: as accurate as promised, vectorised, right at the edges."""

import os
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from retrograde.runtime import scalar, vecmath
from retrograde.runtime.memory import load, pointer, store

EXACT = "sqrt fabs floor ceil trunc rint".split()
EXACT_BINARY = "copysign maximum minimum fmax fmin".split()
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.0, -3.0, 1e30, -1e30]
has_vectors = any(name.startswith("_ZGV") for name in vecmath.symbols())
DTYPES = (np.float64, np.float32)


def kernel(name: str, dtype: Any, count: int) -> Any:
    function = getattr(vecmath if hasattr(vecmath, name) else scalar, name)
    kind = types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C")
    if count == 1:

        def run(x, out):
            p = pointer(x)
            q = pointer(out)
            for i in range(x.size):
                store(q, i, function(load(p, i, 0, 2)), 1, 2)

    else:

        def run(x, y, out):
            p = pointer(x)
            r = pointer(y)
            q = pointer(out)
            for i in range(x.size):
                store(q, i, function(load(p, i, 0, 3), load(r, i, 1, 3)), 2, 3)

    return numba.njit([(kind,) * (count + 1)], error_model="numpy")(run)


def apply(name: str, *x: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the function of the arrays, and the assembly that computed it."""
    out = np.empty_like(x[0])
    run = kernel(name, x[0].dtype, len(x))
    run(*x, out)
    return out, "".join(run.inspect_asm().values())


def edges(dtype: Any) -> np.ndarray:
    """Return special values, often enough to fill vectors and a remainder."""
    info = np.finfo(dtype)
    few = [info.tiny, info.smallest_subnormal, -info.smallest_subnormal, info.max]
    return np.resize(np.array(SPECIAL + few, dtype), 5 * 16 + 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_instructions_equal_numpy(name: str, dtype: Any):
    x = np.concatenate([edges(dtype), np.linspace(-3, 3, 25, dtype=dtype)])
    with np.errstate(all="ignore"):
        expect = getattr(np, name)(x)
    out = apply(name, x)[0]
    np.testing.assert_array_equal(out, expect)
    known = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(out[known]), np.signbit(expect[known]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT_BINARY)
def test_binary_instructions_equal_numpy(name: str, dtype: Any):
    x, y = (a.ravel() for a in np.meshgrid(edges(dtype)[:16], edges(dtype)[:16]))
    out = apply(name, x.copy(), y.copy())[0]
    np.testing.assert_array_equal(out, getattr(np, name)(x, y))


@pytest.mark.parametrize("argument", [types.int64, types.boolean, types.complex128])
def test_other_types_are_refused(argument: Any):
    with pytest.raises(TypingError, match="exp needs float32 or float64"):
        numba.njit((argument,))(lambda x: vecmath.exp(x))


def test_mixed_precision_is_refused():
    with pytest.raises(TypingError, match="pow needs float32 or float64, not"):
        numba.njit((types.float32, types.float64))(lambda x, y: vecmath.pow(x, y))


def test_symbols_are_sorted_and_hold_every_scalar_function():
    names = vecmath.symbols()
    assert list(names) == sorted(set(names))
    scalar = {n for n in names if n.startswith("retrograde_")}
    assert len(scalar) == 2 * len(vecmath.UNARY + vecmath.BINARY)


NARROW = """
import re
import numba, numpy as np
from numba import types
from retrograde.runtime import scalar, vecmath
from retrograde.runtime.memory import load, pointer, store
a = types.Array(types.float64, 1, "C")
@numba.njit([(a, a)])
def run(x, out):
    for i in range(x.size):
        store(pointer(out), i, vecmath.exp(load(pointer(x), i, 0, 2)), 1, 2)
x = np.linspace(-1, 1, 1003)
out = np.empty_like(x)
run(x, out)
np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)
print(*sorted(set(re.findall("_ZGV.", "".join(run.inspect_asm().values())))))
"""


@pytest.mark.skipif(not has_vectors, reason="no libmvec here")
@pytest.mark.parametrize(
    ("features", "expect"),
    [
        ("+sse,+sse2", set()),
        ("+sse,+sse2,+sse3,+ssse3,+sse4.1", {"_ZGVb"}),
        ("+sse,+sse2,+sse3,+ssse3,+sse4.1,+avx,+avx2", {"_ZGVb", "_ZGVd"}),
    ],
)
def test_vector_width_follows_what_numba_targets(features: str, expect: set[str]):
    env = os.environ | {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, "-c", NARROW],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(done.stdout.split())
    assert found <= expect
    assert bool(found) == bool(expect)


WITHOUT_LIBRARIES = """
import ctypes, ctypes.util, numba
class Refuse(ctypes.CDLL):
    def __init__(self, *args, **kwargs):
        raise OSError("no libraries")
numba.njit("f8(f8)")(lambda x: x + 1)  # lets LLVM and SciPy open what they need
ctypes.CDLL, ctypes.util.find_library = Refuse, lambda name: None
from retrograde.runtime import scalar, vecmath
assert vecmath.symbols() == ()
assert vecmath.describe().startswith(("polynomials", "scalar"))
import math
run = numba.njit("f8(f8)")(lambda x: vecmath.tanh(x))
assert abs(run(0.3) - math.tanh(0.3)) < 1e-15
"""


def test_import_is_safe_where_libraries_are_missing():
    subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES], check=True)
