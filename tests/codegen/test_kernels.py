"""Compiled kernels compute what the eager functions of the ops compute."""

from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.ir.build import IRBuilder
from retrograde.ir.errors import ShapeError
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.op import CONTROL, OPS, Kind, Op, Sample
from retrograde.ir.text import parse_type
from retrograde.ir.types import type_of_array
from retrograde.passes.fuse import fuse
from retrograde.passes.reinplace import reinplace
from retrograde.passes.simplify import simplify

TOLERANCE = {"f4": 2e-6, "f8": 1e-13}
TRIED = [
    op
    for op in OPS.values()
    if op.kind not in {*CONTROL, Kind.WRITE} and not op.arbitrary
]


def add(b: IRBuilder, op: Op, sample: Sample) -> tuple[list[Any], list[Any], Any]:
    """Append an op; return parameters, arguments and the result."""
    params, operands = [], []
    for a in sample.args:
        if type(a) in (bool, int, float):
            operands.append(a)
        else:
            params.append(b.value(type_of_array(a), "x"))
            operands.append(params[-1])
    out = b.apply(op, operands, sample.attrs)
    args = [a for a in sample.args if type(a) not in (bool, int, float)]
    return params, args, out


def raises(op: Op, sample: Sample) -> bool:
    try:
        op.eager(*sample.args, **sample.attrs)
    except (ValueError, IndexError):
        return True
    return False


def program(op: Op) -> tuple[Func, list[Any]]:
    """Return one Func with the samples of an op, elementwise ones one per dtype."""
    b = IRBuilder()
    params, args, results = [], [], []
    seen = set()
    for sample in op.samples(np.random.default_rng(0)):
        kinds = tuple((np.ndim(a), np.asarray(a).dtype) for a in sample.args)
        is_like_another = op.kind is Kind.ELEMENTWISE and kinds in seen
        seen.add(kinds)
        if is_like_another or raises(op, sample):
            continue
        more, values, out = add(b, op, sample)
        params += more
        args += values
        results.append(out)
    return Func(op.name, "func", b.finish(params, results)), args


def assert_same(got: Any, want: Any) -> None:
    """Compare type, dtype, shape and elements."""
    assert type(got) is type(want)
    a, b = np.asarray(got), np.asarray(want)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind == "f":
        tolerance = TOLERANCE[a.dtype.str[1:]]
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", TRIED, ids=lambda op: op.name)
def test_compiled_op_is_eager_op(op: Op) -> None:
    f, args = program(op)
    if not f.results:
        pytest.skip("no samples")
    if op.kind in (Kind.ROUTINE, Kind.REDUCTION):
        f = simplify(f)  # some are made of others
    if len(op.name) % 2:  # half of them through the passes
        f = reinplace(fuse(f))
    got = build(f)(args)
    for x, y in zip(got, run(f, *args), strict=True):
        assert_same(x, y)


@pytest.mark.parametrize("name", ["max", "argmin"])
def test_empty_reduction_without_identity_is_an_error(name: str) -> None:
    b = IRBuilder()
    x = b.value(parse_type("f64[n,m]"), "x")
    result = getattr(b, name)(x, axis=(1,))
    kernel = build(simplify(Func("f", "func", b.finish([x], [result]))))
    with pytest.raises(ShapeError):
        kernel([np.zeros((2, 0))])
    assert kernel([np.zeros((0, 0))])[0].shape == (0,)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u4", "i8", "u8", "f4", "f8"])
def test_arithmetic_of_every_dtype_wraps_and_rounds_as_numpy(dtype: str) -> None:
    rng = np.random.default_rng(1)
    high = 100 if dtype[0] != "f" else 4
    x, y = (rng.integers(1, high, 40).astype(dtype) for _ in range(2))
    b = IRBuilder()
    p, q = b.value(type_of_array(x), "x"), b.value(type_of_array(y), "y")
    results = [
        getattr(b, name)(p, q)
        for name in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "floor_divide",
            "remainder",
            "maximum",
            "less",
            "power",
        )
    ]
    results += [b.negative(p), b.multiply(p, 3), b.sum(p, axis=(0,)), b.sign(p)]
    results += [b.astype(p, dtype=np.dtype(t)) for t in ("f4", "i2", "u8", "?")]
    f = fuse(Func("f", "func", b.finish([p, q], results)))
    with np.errstate(all="ignore"):
        want = run(f, x, y)
    for got, expected in zip(build(f)([x, y]), want, strict=True):
        assert_same(got, expected)
