"""Compiled elementary functions: accurate, right at the edges, vectorised."""

import functools
import math
import re
from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from benchmarks.accuracy import FUNCTIONS, arguments, errors, reference
from retrograde.codegen import build
from retrograde.codegen.compile import forget
from retrograde.ir.errors import DTypeError
from retrograde.ir.func import Func
from retrograde.ir.op import OPS, Kind
from retrograde.ir.text import parse
from retrograde.ir.types import I64
from retrograde.runtime import vecmath

ULP = 4
COUNT = 1003  # many vectors and a remainder
DTYPES = {"f64": np.float64, "f32": np.float32}
EDGES = (
    "0 -0 inf -inf nan 1 -1 0.5 -0.5 2 -3 1e-8 -1e-8 1e-20 1e30 -1e30 22.5 -22.5 88.72 "
    "-87.5 -103.97 -104.5 709.78 -708.5 -745.13 -746 1023.5 -1074.5 9007199254740993"
)
has_vectors = vecmath.describe().startswith("libmvec")
needs_vectors = pytest.mark.skipif(not has_vectors, reason="no libmvec here")


@pytest.fixture(autouse=True, scope="module")
def compiled_here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compile anew: code that comes from the disk has no assembly to show."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kernels")
        patch.setenv("RETROGRADE_CACHE_DIR", str(folder))
        forget()
        yield
        forget()


def edges(dtype: Any) -> np.ndarray:
    """Return special values, the largest, the smallest and denormal ones."""
    info = np.finfo(dtype)
    few = [info.max, info.tiny, info.smallest_subnormal, 1 - info.epsneg, 1 + info.eps]
    some = [float(x) for x in EDGES.split()] + [float(x) for x in few]
    with np.errstate(over="ignore"):
        return np.array([*some, *(-float(x) for x in few)]).astype(dtype)


def text_of(name: str, dtype: str, count: int) -> str:
    """Return a Func of one op, or of a power with a literal exponent."""
    t = f"{dtype}[n]"
    op, _, literal = name.partition("**")
    names = [f"%a{k}" for k in range(count)]
    params = ", ".join(f"{a}: {t}" for a in names)
    operands = ", ".join([*names, literal] if literal else names)
    result = "power" if op == "x" else op
    lines = [f"func @f({params}) -> {t} {{", f"  %r: {t} = {result} {operands}"]
    return "\n".join([*lines, "  return %r", "}"])


COMPOSED = {
    "sigmoid": """func @f(%x: T[n]) -> T[n] {
  %m: T[n] = negative %x
  %e: T[n] = exp %m
  %s: T[n] = add %e, 1.0
  %r: T[n] = divide 1.0, %s
  return %r
}""",
    "softplus": """func @f(%x: T[n]) -> T[n] {
  %r: T[n] = logaddexp %x, 0.0
  return %r
}""",
}


@functools.cache
def kernel(name: str, dtype: str) -> Any:
    if name in COMPOSED:
        return build(fused(parse(COMPOSED[name].replace("T", dtype))))
    return build(parse(text_of(name, dtype, FUNCTIONS[name].count)))


def fused(f: Func) -> Func:
    from retrograde.passes.fuse import fuse
    from retrograde.passes.inline import inline

    return inline(fuse(f))


every = pytest.mark.parametrize("name", FUNCTIONS)
both = pytest.mark.parametrize("dtype", DTYPES)


@both
@every
def test_functions_are_accurate(name: str, dtype: str) -> None:
    count = 83 if name in ("erf", "erfc") else COUNT
    x = arguments(name, DTYPES[dtype], count, seed=1)
    (got,) = kernel(name, dtype)(x)
    assert np.max(errors(name, got, reference(name, *x), *x)) <= ULP


@both
@every
def test_functions_are_right_at_the_edges(name: str, dtype: str) -> None:
    x = edges(DTYPES[dtype])
    if FUNCTIONS[name].count == 2:
        args = [a.ravel() for a in np.meshgrid(x, x)]
    else:
        args = [np.resize(x, 3 * 64 + 17)]
    if name == "sigmoid":  # what exp overflows for is 0
        args = [np.where(np.isfinite(a), np.clip(a, -80, 80), a) for a in args]
    if name in ("erf", "erfc"):
        exact = np.vectorize(getattr(math, name), otypes=[np.longdouble])(*args)
    else:
        exact = reference(name, *args)
    (got,) = kernel(name, dtype)(args)
    assert np.max(errors(name, got, exact, *args)) <= ULP
    with np.errstate(over="ignore"):
        rounded = exact.astype(got.dtype)
    if not name.startswith("logaddexp"):  # its zeros are rounded
        known = ~np.isnan(rounded)
        signs = np.signbit(got[known]), np.signbit(rounded[known])
        np.testing.assert_array_equal(*signs)


def is_vectorised(assembly: str) -> bool:
    """Tell whether there are packed calls for scalar ones, or packed instructions."""
    vectors = re.search(r"_ZGV|retrograde_fmod\d\d_\d", assembly)
    if re.search(r"retrograde_[a-z]+\d*(64|32)\b", assembly):
        return vectors is not None
    return re.search(r"%[yz]mm", assembly) is not None


DOUBLE = re.compile(r"\bv(?:fn?m|add|sub|mul|div|sqrt|max|min|round|cmp|cvt)\w*[sp]d\b")
ARRAYS = {"where": ["bool", "T", "T"], "override": ["T", "T"]}


def one_op(name: str, dtype: str) -> Func | None:
    """Return a Func of an op of arrays, None where it is not defined for them."""
    op = OPS[name]
    kinds = ARRAYS.get(name, ["T"] * len(op.operands))
    attrs = " {dtype=i64}" if name == "astype" else ""
    names = [f"%a{k}" for k in range(len(kinds))]
    types = [f"{kind.replace('T', dtype)}[n]" for kind in kinds]
    params = ", ".join(f"{a}: {t}" for a, t in zip(names, types, strict=True))
    probe = parse(f"func @f({params}) -> () {{\n  return\n}}")
    given = {"dtype": I64} if attrs else {}
    try:
        result = op.infer(*(p.type for p in probe.params), **given)
    except DTypeError:
        return None
    return parse(
        f"func @f({params}) -> {result} {{\n"
        f"  %r: {result} = {name} {', '.join(names)}{attrs}\n  return %r\n}}"
    )


ELEMENTWISE = [name for name, op in OPS.items() if op.kind is Kind.ELEMENTWISE]


@needs_vectors
@both
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loops_of_elementwise_ops_are_vectorised(name: str, dtype: str) -> None:
    f = one_op(name, dtype)
    if f is None:
        pytest.skip(f"{name} is not defined for {dtype}")
    assembly = build(f).compiled.assembly()
    assert is_vectorised(assembly)
    if dtype == "f32" and name != "float_power":  # NumPy computes it in float64
        assert DOUBLE.findall(assembly) == []
