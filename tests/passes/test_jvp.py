"""jvp agrees with vjp, which agrees with differences, and so does jvp of vjp."""

import copy
from typing import Any

import numpy as np
import pytest
from differences import floats, inner, is_callable
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import arguments, program
from traced_loops import LOOPS
from traced_loops import arguments as loop_arguments
from traced_loops import program as loop_program

from retrograde.codegen import build
from retrograde.ir.build import IRBuilder
from retrograde.ir.errors import GradientError, UnsupportedError
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import CONTROL, OPS, Kind, NoDerivative
from retrograde.ir.text import parse
from retrograde.ir.types import type_of_array
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize
from retrograde.passes.jvp import jvp
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vjp import vjp

PLAIN = [op for op in OPS.values() if op.kind not in CONTROL]


def drawn(rng: np.random.Generator, x: Any) -> Any:
    t = rng.uniform(-1, 1, np.shape(x)).astype(np.asarray(x).dtype)
    return t if isinstance(x, np.ndarray) else t[()]


def pushed(f: Func) -> Func:
    """Return the verified jvp of a Func, without what is dead."""
    g = jvp(f, floats(f))
    verify(g)
    g = run_passes(g, PIPELINES["optimize"])
    verify(g)
    return g


def check(f: Func, args: list[Any], seed: int = 0) -> Func:
    """Compare `<ct, J v>` with `<J^T ct, v>`."""
    rng = np.random.default_rng(seed)
    g, joint, wrt = pushed(f), vjp(f, floats(f)), floats(f)
    with np.errstate(all="ignore"):
        out = run(f, *copy.deepcopy(args))
        tangents = [drawn(rng, args[j]) for j in wrt]
        both = run(g, *copy.deepcopy(args), *copy.deepcopy(tangents))
        smooth = [y for y in map(np.asarray, out) if y.dtype.kind == "f"]
        cts = [drawn(rng, y if y.shape else y[()]) for y in smooth]
        grads = run(joint, *copy.deepcopy(args), *cts)[len(out) :]
    for a, b in zip(both, map(np.asarray, out), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-6 if b.dtype == np.float32 else 1e-12)
    pushes = both[len(out) :]
    for t, y in zip(pushes, smooth, strict=True):
        assert (np.shape(t), np.asarray(t).dtype) == (y.shape, y.dtype)
    size = sum(
        np.sum(np.abs(np.multiply(a, b))) for a, b in zip(grads, tangents, strict=True)
    )
    eps = max(np.finfo(np.asarray(y).dtype).eps for y in (*smooth, *tangents))
    assert abs(inner(pushes, cts) - inner(grads, tangents)) <= 1e4 * eps * (1 + size)
    return g


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 14))
def test_tangents_of_random_programs(seed: int, size: int) -> None:
    try:
        f = functionalize(program(seed, size))
    except UnsupportedError:
        assume(False)
        raise
    assume(is_callable(vjp(f, floats(f))))
    check(f, arguments(f, seed), seed)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 8))
def test_tangents_of_gradients(seed: int, size: int) -> None:
    try:
        f = functionalize(program(seed, size))
    except UnsupportedError:
        assume(False)
        raise
    joint = vjp(f, floats(f))
    assume(is_callable(joint) and is_callable(vjp(joint, floats(joint))))
    assume(sum(1 for _ in walk(joint.body)) < 300)
    args = arguments(f, seed)
    out = [np.asarray(y) for y in run(f, *copy.deepcopy(args))]
    rng = np.random.default_rng(seed)
    cts = [drawn(rng, y if y.shape else y[()]) for y in out if y.dtype.kind == "f"]
    check(joint, [*args, *cts], seed)


@pytest.mark.parametrize("name", LOOPS)
def test_tangents_of_loops(name: str, rng: np.random.Generator) -> None:
    f = run_passes(loop_program(name), PIPELINES["pure"])
    for n in (2, 4):
        check(f, loop_arguments(f, rng, n=n, t=n - 1))


@pytest.mark.parametrize("name", ["prefix", "cholesky", "lstm", "gramschmidt"])
def test_tangents_of_gradients_of_loops(name: str, rng: np.random.Generator) -> None:
    f = run_passes(loop_program(name), PIPELINES["pure"])
    joint = vjp(f, floats(f))
    args = loop_arguments(f, rng, n=4, t=3)
    out = [np.asarray(y) for y in run(f, *copy.deepcopy(args))]
    check(joint, [*args, *(drawn(rng, y if y.shape else y[()]) for y in out)])


def test_tangents_of_loops_are_not_stacked(rng: np.random.Generator) -> None:
    """A loop carries its tangents: no array has an entry per iteration."""
    f = run_passes(loop_program("jacobi_nonlinear"), PIPELINES["pure"])
    g = pushed(f)
    (loop,) = (n for n in g.nodes if n.op.kind is Kind.FOR)
    assert len(loop.results) == 2
    assert {v.type for v in loop.results} == {f.params[0].type}


@pytest.mark.parametrize("op", PLAIN, ids=lambda op: op.name)
def test_tangents_of_ops(op: Any) -> None:
    for s in op.samples(np.random.default_rng(7)):
        types = [type_of_array(x) for x in s.args]
        with np.errstate(all="ignore"):
            out = type_of_array(op.eager(*s.args, **s.attrs))
        if (
            not s.differentiable
            or not out.is_inexact
            or any(isinstance(d, NoDerivative) for d in op.derivatives)
        ):
            continue
        if out.dtype.kind == "c" or any(t.dtype.kind == "c" for t in types):
            continue
        b = IRBuilder()
        params = [b.value(t, f"x{k}") for k, t in enumerate(types)]
        result = b.apply(op, params, s.attrs)
        check(Func("f", "func", b.finish(params, [result])), list(s.args))


WHILE = """
func @f(%x: f64) -> f64 {
  %r: f64, %k: f64 = while carry(%y: f64 = %x, %z: f64 = 1.0) {
    %c: bool = less %y, 50.0
    test %c
    %q: f64 = square %y
    %w: f64 = multiply %z, %y
    yield %q, %w
  }
  %s: f64 = add %r, %k
  return %s
}
"""


def test_kernels_agree(rng: np.random.Generator) -> None:
    f = parse(WHILE)
    g = check(f, [np.float64(1.3)])
    kernel = build(run_passes(g, PIPELINES["lower"]))
    got = kernel([np.float64(1.3), np.float64(1.0)], [])
    np.testing.assert_allclose(got, run(g, np.float64(1.3), np.float64(1.0)))


def test_only_floats_have_tangents() -> None:
    f = parse("func @f(%k: i64) -> i64 {\n  return %k\n}")
    with pytest.raises(GradientError, match="no derivative in parameter"):
        jvp(f, [0])
