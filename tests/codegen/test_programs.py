"""Random programs compute the same after fuse, after reinplace, and compiled."""

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.codegen.compile import forget
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import Loop, every
from retrograde.ir.errors import RetrogradeError, UnsupportedError
from retrograde.ir.func import Func
from retrograde.ir.interp import equal_results, run
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.cancel import cancel
from retrograde.passes.functionalize import functionalize
from retrograde.passes.fuse import fuse
from retrograde.passes.inline import inline
from retrograde.passes.reinplace import reinplace
from retrograde.passes.rows import rows
from retrograde.passes.unnest import unnest
from retrograde.passes.vjp import vjp
from retrograde.runtime import vecmath

sys.path.append(str(Path(__file__).parent.parent / "passes"))
from programs import arguments, program


def case(seed: int, size: int, joint: bool) -> tuple[Func, list[Any]]:
    """Return a random pure Func, or its joint Func, with arguments."""
    try:
        f = functionalize(program(seed, size))
        args = arguments(f, seed)
        if not joint:
            return f, args
        floats = [k for k, p in enumerate(f.params) if p.type.is_inexact]
        both = vjp(f, floats)
    except UnsupportedError:
        assume(False)
        raise
    rng = np.random.default_rng(seed)
    for r in map(np.asarray, run(f, *copy.deepcopy(args))):
        if r.dtype.kind == "f":
            ct = rng.uniform(-1, 1, r.shape)
            args.append(ct if r.shape else np.float64(ct))
    return both, args


def outcome(call: Any, *args: Any) -> Any:
    """Return the results, or the type of the error."""
    try:
        return call(*copy.deepcopy(args))
    except RetrogradeError as error:
        return type(error)


def agree(got: Any, want: Any) -> bool:
    if isinstance(want, type) or isinstance(got, type):
        return got is want
    return all(
        np.shape(x) == np.shape(y) and np.allclose(x, y, rtol=1e-9, atol=1e-11)
        for x, y in zip(got, want, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 12), st.booleans())
def test_passes_keep_the_meaning(seed: int, size: int, joint: bool) -> None:
    f, args = case(seed, size, joint)
    want = outcome(run, f, *args)
    lowered = [f]
    for step in (unnest, cancel, fuse, rows, inline, reinplace):
        lowered.append(step(lowered[-1]))
        verify(lowered[-1])
    for g in lowered[1:]:
        got = outcome(run, g, *args)
        same = got is want if isinstance(want, type) else equal_results(got, want)
        assert same, f"{f}\n{g}"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 8), st.booleans(), st.booleans())
def test_compiled_programs_agree(
    seed: int, size: int, joint: bool, optimised: bool
) -> None:
    f, args = case(seed, size // 4 + 1 if joint else size, joint)
    g = reinplace(inline(rows(fuse(cancel(unnest(f)))))) if optimised else inline(f)
    kernel = build(g)
    assert agree(outcome(lambda *a: kernel(a), *args), outcome(run, f, *args)), str(g)


JOINT = """func @joint(%x: f64[n], %y: f64[n], %ct: f64) -> (f64, f64[n], f64[n]) {
  %nx: f64[n] = negative %x
  %xx: f64[n] = multiply %nx, %x
  %e: f64[n] = exp %xx
  %t: f64[n] = multiply %e, %y
  %nt: f64[n] = negative %t
  %ent: f64[n] = exp %nt
  %q: f64[n] = add %ent, 1.0
  %r: f64[n] = divide %t, %q
  %th: f64[n] = tanh %x
  %u: f64[n] = add %r, %th
  %s: f64 = sum %u {axis=(0,), keepdims=False}
  %du: f64[n] = broadcast_to %ct {shape=(n,)}
  %th2: f64[n] = square %th
  %dth: f64[n] = subtract 1.0, %th2
  %dx1: f64[n] = multiply %du, %dth
  %dt1: f64[n] = divide %du, %q
  %rq: f64[n] = divide %r, %q
  %nrq: f64[n] = negative %rq
  %dq: f64[n] = multiply %du, %nrq
  %dent: f64[n] = multiply %dq, %ent
  %dt2: f64[n] = negative %dent
  %dt: f64[n] = add %dt1, %dt2
  %de: f64[n] = multiply %dt, %y
  %dy: f64[n] = multiply %dt, %e
  %dxx: f64[n] = multiply %de, %e
  %dnx: f64[n] = multiply %dxx, %x
  %dx2: f64[n] = multiply %dxx, %nx
  %dx3: f64[n] = negative %dnx
  %dx4: f64[n] = add %dx2, %dx3
  %dx: f64[n] = add %dx4, %dx1
  return %s, %dx, %dy
}"""


@pytest.fixture(scope="module")
def joint() -> Func:
    return reinplace(fuse(parse(JOINT)))


def test_value_and_gradient_are_one_nest(joint: Func) -> None:
    p = lower(joint, "joint")
    loops = [s for s in every(p.body) if isinstance(s, Loop)]
    assert len(loops) == 1
    assert not any(b.place == "arena" for b in p.buffers)


@pytest.fixture
def compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile anew: code that comes from the disk has no assembly to show."""
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path))
    forget()
    yield
    forget()


@pytest.mark.usefixtures("compiled_here")
def test_the_nest_is_vectorised(joint: Func) -> None:
    kernel = build(joint)
    if not vecmath.describe().startswith("libmvec"):
        pytest.skip("this machine has no vector functions")
    assembly = kernel.compiled.assembly()
    # Calls of libmvec, or polynomials of whole vectors where they are inline.
    assert re.search(r"_ZGV|vfmadd\w+pd\b.*%[yz]mm", assembly)
    x, y = np.random.default_rng(0).normal(size=(2, 5000))
    s, dx, dy = kernel([x, y, np.float64(1.0)])
    want = run(parse(JOINT), x, y, np.float64(1.0))
    for got, expected in zip((s, dx, dy), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


def test_sums_are_as_accurate_as_numpy() -> None:
    text = """func @total(%x: f32[n]) -> f32 {
  %s: f32 = sum %x {axis=(0,), keepdims=False}
  return %s
}"""
    x = np.random.default_rng(0).uniform(0, 1, 1_000_003).astype("f4")
    exact = np.sum(x, dtype="f8")
    (got,) = build(parse(text))([x])
    assert abs(got - exact) <= 4 * max(abs(np.sum(x) - exact), exact * 2.0**-24)


@pytest.mark.usefixtures("compiled_here")
def test_float32_kernels_compute_in_float32() -> None:
    text = """func @f(%x: f32[n]) -> (f32[n], f32) {
  %a: f32[n] = multiply %x, 0.1
  %b: f32[n] = exp %a
  %c: f32[n] = deg2rad %b
  %d: f32[n] = power %c, 2
  %s: f32 = sum %d {axis=(0,), keepdims=False}
  return %d, %s
}"""
    assembly = build(fuse(parse(text))).compiled.assembly()
    assert "cvtps2pd" not in assembly  # only the returned number becomes a double
