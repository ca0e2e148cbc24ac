"""The scalar functions of kernels: their PTX, interpreted, against the processor."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest
from device_kernels import DTYPES, FLOATS, SIGNED, compiled, run, type_name

from retrograde.runtime import instructions, precise, scalar

pytest.importorskip("numba_cuda")
pytestmark = pytest.mark.cuda_emulated

# ---------------------------------------------------------------- scalar functions

TWO = [name for name, f in instructions.FUNCTIONS.items() if f.count == 2]
TWO += ["arctan2", "copysign", "hypot"]
NO_FLOATS = ["invert", "left_shift", "right_shift"]
NO_BOOLS = ["left_shift", "right_shift"]
TO_BOOL = [name for name, f in instructions.FUNCTIONS.items() if f.boolean]
CALLS = {
    "where": "where(x < y, x, y)",
    "multiply_add": "multiply_add(x, y, y)",
    "power": "power(x, y)",
}
INTEGER_POWER = "power(x, absolute(y))"
SIGN_IS_OPEN = ["maximum", "minimum", "fmax", "fmin"]  # of two zeros either

CALLED = [name for name in scalar.__all__ if name not in instructions.FUNCTIONS]
EXACT = ["copysign", "rint", "sqrt"]
# Units in the last place between libdevice and the C library: 2 here, of erfc 3, and
# one for other C libraries. What is not called is exact, but for a fused multiply-add.
ULPS = dict.fromkeys(scalar.__all__, 0) | dict.fromkeys([*CALLED, "power"], 3)
ULPS |= {"erfc": 4, "multiply_add": 1} | dict.fromkeys(EXACT, 0)
# Their last step may cancel: units of the larger argument.
OF_ARGUMENTS = {"logaddexp": 4, "logaddexp2": 4}
# A reduction of arguments above 1e5 goes through float64.
MAY_USE_F64 = ["cos", "sin", "tan"]


def is_floats_only(name: str) -> bool:
    f = instructions.FUNCTIONS.get(name)
    return f is None or f.floats


def names_for(dtype: str) -> list[str]:
    if dtype in FLOATS:
        return [name for name in scalar.__all__ if name not in NO_FLOATS]
    names = [name for name in scalar.__all__ if not is_floats_only(name)]
    return [name for name in names if dtype != "bool" or name not in NO_BOOLS]


def call(name: str, dtype: str) -> str:
    if name == "power" and dtype in SIGNED:
        return INTEGER_POWER
    return CALLS.get(name, f"{name}(x, y)" if name in TWO else f"{name}(x)")


def samples(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of arguments: all of the special values, and random ones."""
    rng = np.random.default_rng(3)
    if dtype == "bool":
        points: list[Any] = [False, True]
        more = np.zeros((2, 0), bool)
    elif dtype in FLOATS:
        about = np.finfo(dtype)
        size = [0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 100.0, 1e7, math.inf]
        size += [about.tiny, about.max, about.eps, float(about.smallest_subnormal)]
        points = [math.nan, *size, *(-x for x in size)]
        more = np.concatenate(
            [rng.normal(size=(2, 200)), 20 * rng.normal(size=(2, 200))], axis=1
        )
    else:
        info = np.iinfo(dtype)
        points = [0, 1, 2, 3, 5, 7, 63, info.max - 1, info.max, info.min, info.min + 1]
        points += [-1, -2, -3, -7] if info.min else [200]
        more = (
            rng.integers(-90, 100, (2, 200))
            if info.min
            else rng.integers(0, 250, (2, 200))
        )
    pairs = np.array(list(itertools.product(points, repeat=2)), dtype).T
    x, y = np.concatenate([pairs, more.astype(dtype)], axis=1)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def on_device(calls: Sequence[str], x: np.ndarray, y: np.ndarray, out: Any) -> str:
    names = [f"q{k}" for k in range(len(out))]
    lines = [f"        store({q}, i, {c})\n" for q, c in zip(names, calls, strict=True)]
    source = (
        f"def kernel(p, r, {', '.join(names)}):\n"
        "    i = block()*threads() + thread()\n"
        f"    if i < {x.size}:\n"
        "        x = load(p, i)\n        y = load_constant(r, i)\n" + "".join(lines)
    )
    return run(source, x, y, *out, grid=-(-x.size // 256), block=256)


def on_processor(calls: Sequence[str], x: np.ndarray, y: np.ndarray, out: Any) -> None:
    names = [f"q{k}" for k in range(len(out))]
    lines = [f"        {q}[i] = {c}\n" for q, c in zip(names, calls, strict=True)]
    source = (
        f"def loop(p, r, {', '.join(names)}):\n"
        "    for i in range(p.size):\n"
        "        x = p[i]\n        y = r[i]\n" + "".join(lines)
    )
    module = {name: getattr(precise, name) for name in scalar.__all__}
    exec(source, module)
    numba.njit(error_model="numpy")(module["loop"])(x, y, *out)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return distances in units in the last place; 0 for two NaN."""
    word = f"i{got.itemsize}"
    low = np.iinfo(word).min

    def rank(a: np.ndarray) -> np.ndarray:
        bits = a.view(word).astype(object)
        return np.where(a.view(word) < 0, low - bits, bits)

    distance = np.abs(rank(got) - rank(want))
    return np.where(np.isnan(got) & np.isnan(want), 0, distance).astype(float)


def check_floats(name: str, got: Any, want: Any, x: np.ndarray, y: np.ndarray) -> None:
    special = ~np.isfinite(want)
    np.testing.assert_array_equal(got[special], want[special], err_msg=name)
    if name in OF_ARGUMENTS:
        usual = ~special
        size = np.maximum(np.abs(x), np.abs(y))[usual]
        unit = np.maximum(size, 1) * np.finfo(x.dtype).eps
        wrong = np.abs(got[usual] - want[usual]) > OF_ARGUMENTS[name] * unit
        assert not wrong.any(), name
        return
    wrong = ulps(got, want) > ULPS[name]
    if name not in SIGN_IS_OPEN:
        wrong |= (np.signbit(got) != np.signbit(want)) & ~np.isnan(want)
    shown = [z[wrong][:5] for z in (x, y, got, want)]
    assert not wrong.any(), f"{name}: x, y, got, want: {shown}"


GROUP = 11
CASES = [
    (dtype, names_for(dtype)[k : k + GROUP])
    for dtype in DTYPES
    for k in range(0, len(names_for(dtype)), GROUP)
]


@pytest.mark.parametrize(
    ("dtype", "names"), CASES, ids=lambda v: v if isinstance(v, str) else v[0]
)
def test_scalar_functions_are_the_processors(dtype: str, names: list[str]) -> None:
    x, y = samples(dtype)
    calls = [call(name, dtype) for name in names]
    got, want = (
        [np.zeros(x.size, bool if name in TO_BOOL else dtype) for name in names]
        for _ in range(2)
    )
    on_device(calls, x, y, got)
    on_processor(calls, x, y, want)
    for name, g, w in zip(names, got, want, strict=True):
        if g.dtype.kind == "f":
            check_floats(name, g, w, x, y)
        else:
            wrong = g != w
            shown = [z[wrong][:5] for z in (x, y, g, w)]
            assert not wrong.any(), f"{name}: x, y, got, want: {shown}"


def test_functions_of_float32_use_no_float64() -> None:
    names = [n for n in names_for("float32") if n not in MAY_USE_F64]
    parameters = ", ".join(f"q{k}" for k in range(len(names)))
    lines = [
        f"    store(q{k}, 0, {call(name, 'float32')})\n" for k, name in enumerate(names)
    ]
    source = (
        f"def kernel(p, {parameters}):\n    x = load(p, 0)\n    y = load(p, 1)\n"
        + "".join(lines)
    )
    dtypes = ["bool" if name in TO_BOOL else "float32" for name in names]
    ptx = compiled(source, "float32", *dtypes)
    assert ".f32" in ptx
    assert ".f64" not in ptx


def as_integer(x: float, dtype: str) -> int:
    """Return what an x86 processor makes of a float, by an int32 or an int64."""
    info = np.iinfo(dtype)
    if dtype == "uint64" and 2.0**63 <= x < 2.0**64:
        return int(x)
    wide = info.bits == 64 or dtype == "uint32"
    least = -(2**63) if wide else -(2**31)
    whole = int(x) if math.isfinite(x) else least
    whole = whole if least <= whole < -least else least
    whole %= 2**info.bits
    return whole if whole <= info.max else whole - 2**info.bits


@pytest.mark.parametrize("old", DTYPES)
def test_conversions_are_numpys(old: str) -> None:
    x, _ = samples(old)
    if old in FLOATS:
        far = [127.9, 128.0, 300.7, -129.0, 65537.0, 2.0**31, 2.0**32 + 512, 2.0**40]
        far += [2.0**63, -(2.0**63), 1.8e19, 2.0**64, 1e30, -1e30, -(2.0**31)]
        x = np.concatenate([x, np.array(far, old)])
    out = [np.zeros(x.size, new) for new in DTYPES]
    calls = [f"convert(x, {type_name(new)})" for new in DTYPES]
    on_device(calls, x, x, out)
    with np.errstate(all="ignore"):
        for got in out:
            want = x.astype(got.dtype)
            if x.dtype.kind == "f" and got.dtype.kind in "iu":
                whole = [as_integer(float(v), got.dtype.name) for v in x]
                want = np.array(whole, got.dtype)
            np.testing.assert_array_equal(got, want, err_msg=str(got.dtype))


def test_short_divisions_take_32_bits() -> None:
    x = np.array([0, 1, 6, 7, 2**31, 2**32 - 1, 2**32 - 1, 10**9], np.int64)
    y = np.array([1, 1, 7, 7, 3, 2**32 - 1, 10, 7], np.int64)
    out = [np.zeros(8, np.int64) for _ in range(2)]
    source = (
        "def kernel(p, q, a, b):\n"
        "    i = thread()\n"
        "    if i < 8:\n"
        "        x = load(p, i)\n"
        "        y = load(q, i)\n"
        "        store(a, i, divide(x, y))\n"
        "        store(b, i, x - y*divide(x, y))\n"
    )
    ptx = run(source, x, y, *out)
    np.testing.assert_array_equal(out[0], x // y)
    np.testing.assert_array_equal(out[1], x % y)
    assert "div.u32" in ptx
    assert "div.s64" not in ptx
