"""Loops of independent iterations become array operations, and no others do."""

import copy
from typing import Any

import numpy as np
import pytest
from differences import check_joint, floats
from independent_loops import KEPT, LOOPS, Loop

import retrograde as rg
from retrograde.ir import dims
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vectorize import vectorize
from retrograde.passes.vjp import vjp

SIZES = (2, 3, 4, 5)

each_loop = pytest.mark.parametrize("loop", LOOPS, ids=lambda p: p.name)


def loops(f: Func) -> int:
    return sum(n.op.kind is Kind.FOR for n in walk(f.body))


def captured(loop: Loop, rng: np.random.Generator) -> Func:
    args = loop.arguments(rng, loop.sizes[0])
    return parse(rg.compile(loop.function).ir(*args, stage="functionalize"))


def vectorized(f: Func) -> Func:
    g = vectorize(run_passes(f, PIPELINES["optimize"]))
    verify(g)
    assert show(parse(show(g))) == show(g)
    return g


def assert_same(f: Func, g: Func, *args: Any, **symbols: int) -> None:
    given = {dims.Symbol(s): n for s, n in symbols.items()}
    expected = run(f, *copy.deepcopy(args), symbols=given)
    found = run(g, *copy.deepcopy(args), symbols=given)
    for a, b in zip(found, expected, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        if np.asarray(b).dtype.kind in "ib":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@each_loop
def test_values_stay(loop: Loop, rng: np.random.Generator) -> None:
    f = captured(loop, rng)
    g = vectorized(f)
    assert loops(g) == loop.left, show(g)
    for n in loop.sizes:
        assert_same(f, g, *loop.arguments(rng, n))


@each_loop
def test_gradients_are_differences(loop: Loop, rng: np.random.Generator) -> None:
    g = vectorized(captured(loop, rng))
    if loop.smooth and floats(g):
        joint = vjp(g, floats(g))
        for n in loop.sizes[:2]:
            check_joint(g, joint, list(loop.arguments(rng, n)), n)


@each_loop
def test_second_derivatives_are_differences(
    loop: Loop, rng: np.random.Generator
) -> None:
    g = vectorized(captured(loop, rng))
    if loop.smooth and floats(g):
        joint = vjp(g, floats(g))
        args = list(loop.arguments(rng, loop.sizes[0]))
        cts = [
            np.asarray(rng.uniform(-1, 1, np.shape(r)))[()]
            for r in run(g, *copy.deepcopy(args))
            if np.asarray(r).dtype.kind == "f"
        ]
        check_joint(joint, vjp(joint, floats(joint)), args + cts, 3)


@pytest.mark.parametrize("loop", [*LOOPS, *KEPT], ids=lambda p: p.name)
def test_loops_of_derivatives(loop: Loop, rng: np.random.Generator) -> None:
    """The reverse of a loop is a loop that adds into parts of cotangents."""
    f = captured(loop, rng)
    if not floats(f):
        return
    joint = vjp(f, floats(f))
    g = vectorized(joint)
    for n in loop.sizes[:2]:
        args = loop.arguments(rng, n)
        out = run(f, *copy.deepcopy(args))
        cts = [np.asarray(rng.normal(size=np.shape(r)))[()] for r in out]
        kinds = [np.asarray(r).dtype.kind for r in out]
        cts = [ct for ct, kind in zip(cts, kinds, strict=True) if kind == "f"]
        assert_same(joint, g, *args, *cts)


@pytest.mark.parametrize("loop", KEPT, ids=lambda p: p.name)
def test_loops_that_depend_on_their_order_stay(
    loop: Loop, rng: np.random.Generator
) -> None:
    f = captured(loop, rng)
    g = vectorized(f)
    assert loops(g) == loop.left == loops(f), show(g)
    for n in loop.sizes:
        assert_same(f, g, *loop.arguments(rng, n))


@pytest.mark.parametrize("name", ["orthogonalised", "rank_two", "elements", "buffers"])
def test_compiled_gradients_agree(name: str, rng: np.random.Generator) -> None:
    (loop,) = [p for p in LOOPS if p.name == name]

    def objective(*args: Any) -> Any:
        loop.function(*args)
        return sum(np.sum(np.sin(x)) for x in args)

    args = loop.arguments(rng, 5)
    every = tuple(range(len(args)))
    value, grads = rg.value_and_grad(objective, argnums=every)(*args)
    np.testing.assert_allclose(value, objective(*copy.deepcopy(args)), rtol=1e-12)
    along = [rng.uniform(-1, 1, x.shape) for x in args]
    ahead, behind = (
        objective(*(x + h * v for x, v in zip(args, along, strict=True)))
        for h in (1e-6, -1e-6)
    )
    slope = sum(np.sum(g * v) for g, v in zip(grads, along, strict=True))
    np.testing.assert_allclose((ahead - behind) / 2e-6, slope, rtol=1e-6)


# ---------------------------------------------------------------- trip counts


TRIPS = """
traced @f[t](%x: f64[n], %y: f64[n], %a: f64[n,n]) -> f64 where t >= 0, n - t >= 0 {
  %s: f64 = item 0.0
  %r: f64 = for i in 0..t carry(%c: f64 = %s) {
    %p: f64[] &%x = select %x, i {axis=0}
    %q: f64[] &%y = select %y, i {axis=0}
    %u: f64 = multiply %p, %q
    %d: f64 = add %c, %u
    %v: f64[n] &%a = select %a, i {axis=1}
    %w: f64[n] = multiply %v, inf
    %q <- %u
    %v <- %w
    yield %d
  }
  return %r
}
"""


def test_loops_of_no_and_of_one_iteration(rng: np.random.Generator) -> None:
    f = functionalize(parse(TRIPS))
    g = vectorized(f)
    assert loops(g) == 0
    for n in (2, 5):
        for t in (0, 1, n):
            args = (rng.normal(size=n), rng.normal(size=n), rng.normal(size=(n, n)))
            assert_same(f, g, *args, t=t)


EMPTY = """
func @f(%x: f64[0,n], %y: f64[n]) -> (f64[0,n], f64[n]) {
  %a: f64[0,n], %b: f64[n] = for j in 0..n carry(%c: f64[0,n] = %x, %d: f64[n] = %y) {
    %v: f64[0] = select %c, j {axis=1}
    %s: f64 = sum %v {axis=(0,), keepdims=False}
    %w: f64[0] = multiply %v, 2.0
    %e: f64[0,n] = select_scatter %c, %w, j {axis=1}
    %g: f64[n] = select_scatter %d, %s, j {axis=0}
    yield %e, %g
  }
  return %a, %b
}
"""


def test_arrays_may_be_empty(rng: np.random.Generator) -> None:
    f = parse(EMPTY)
    g = vectorized(f)
    assert loops(g) == 0
    assert_same(f, g, np.zeros((0, 3)), rng.normal(size=3))


DOWN = """func @f(%x: f64[n], %y: f64[n]) -> f64[n] where n - 2 >= 0 {{
  %z: f64[n] = for i in n - 1..{stop} step {step} carry(%c: f64[n] = %y) {{
    %a: f64[] = select %x, i {{axis=0}}
    %t: f64 = multiply %a, i
    %d: f64[n] = select_scatter %c, %t, i {{axis=0}}
    yield %d
  }}
  return %z
}}"""


@pytest.mark.parametrize(("stop", "step"), [(-1, -1), (0, -1), (-1, -2), (1, -3)])
def test_loops_that_run_down(stop: int, step: int, rng: np.random.Generator) -> None:
    f = parse(DOWN.format(stop=stop, step=step))
    g = vectorized(f)
    assert step != -1 or loops(g) == 0
    for n in SIZES:
        assert_same(f, g, rng.normal(size=n), rng.normal(size=n))


# ---------------------------------------------------------------- what stays


def kept(text: str) -> Func:
    f = parse(text)
    simple = run_passes(f, PIPELINES["optimize"])
    assert vectorize(simple) is simple
    return f


def test_an_index_that_may_be_out_of_range_is_left_to_fail() -> None:
    f = kept("""func @f(%x: f64[n], %y: f64[m]) -> f64[m] {
      %z: f64[m] = for i in 0..m carry(%c: f64[m] = %y) {
        %a: f64[] = select %x, i {axis=0}
        %d: f64[m] = select_scatter %c, %a, i {axis=0}
        yield %d
      }
      return %z
    }""")
    with pytest.raises(rg.RetrogradeError):
        run(f, np.zeros(2), np.zeros(3))


def test_what_is_in_range_only_where_an_iteration_runs_is_not_read_before() -> None:
    kept("""func @f[t](%x: f64[n], %y: f64[n]) -> f64[n] where n - t >= 0, t >= 0 {
      %z: f64[n] = for i in 0..t carry(%c: f64[n] = %y) {
        %a: f64[] = select %x, t - 1 {axis=0}
        %d: f64[n] = select_scatter %c, %a, i {axis=0}
        yield %d
      }
      return %z
    }""")


def test_an_update_that_was_lost_stays_lost(rng: np.random.Generator) -> None:
    """The second addition starts from what the carry was before the first."""
    f = parse("""func @f(%x: f64[n], %y: f64[2]) -> f64[2] {
      %z: f64[2] = for i in 0..n carry(%c: f64[2] = %y) {
        %a: f64[] = select %x, i {axis=0}
        %o: f64[] = select %c, 0 {axis=0}
        %s: f64 = add %o, %a
        %t: f64 = subtract %o, %a
        %d: f64[2] = select_scatter %c, %s, 0 {axis=0}
        %e: f64[2] = select_scatter %d, %t, 0 {axis=0}
        yield %e
      }
      return %z
    }""")
    g = vectorized(f)
    for n in (1, 2, 5):
        assert_same(f, g, rng.normal(size=n), rng.normal(size=2))


def test_a_carry_of_another_carry_stays(rng: np.random.Generator) -> None:
    f = kept("""func @f(%x: f64[n], %y: f64[n]) -> (f64[n], f64[n]) {
      %p: f64[n], %q: f64[n] = for i in 0..n carry(%c: f64[n] = %x, %d: f64[n] = %y) {
        %a: f64[] = select %c, i {axis=0}
        %e: f64[n] = select_scatter %d, %a, i {axis=0}
        yield %e, %c
      }
      return %p, %q
    }""")
    assert_same(f, f, rng.normal(size=3), rng.normal(size=3))


def test_narrow_sums_are_taken_in_the_dtype_of_the_carry(
    rng: np.random.Generator,
) -> None:
    f = parse("""func @f(%x: i32[n], %w: f32[n], %a: i32, %b: f64) -> (i32, f64) {
      %p: i32, %q: f64 = for i in 0..n carry(%c: i32 = %a, %d: f64 = %b) {
        %u: i32[] = select %x, i {axis=0}
        %v: i32 = multiply %u, %u
        %s: i32 = add %c, %v
        %k: f32[] = select %w, i {axis=0}
        %l: f32 = multiply %k, %k
        %t: f64 = add %d, %l
        yield %s, %t
      }
      return %p, %q
    }""")
    g = vectorized(f)
    assert loops(g) == 0
    x = np.full(7, 40000, np.int32)  # wraps around
    w = rng.uniform(0, 1, 7).astype(np.float32)
    with np.errstate(over="ignore"):
        assert_same(f, g, x, w, np.int32(3), np.float64(0.5))


ADDED = """
func @f(%x: f64[n], %a: f64[n,m], %y: f64[k], %c: f64[n,m]) -> (f64[k], f64[n,m])
    where k - 3 >= 0, m - 2 >= 0 {
  %z: f64[k], %w: f64[n,m] = for i in 0..n carry(%p: f64[k] = %y, %q: f64[n,m] = %c) {
    %e: f64[] = select %x, i {axis=0}
    %r: f64[k] = select_scatter_add %p, %e, 0 {axis=0}
    %s: f64[k] = select_scatter_add %r, 2.0, 1 {axis=0}
    %o: f64[] = select %s, 2 {axis=0}
    %d: f64 = subtract %o, %e
    %t: f64[k] = select_scatter_add %s, %d, 2 {axis=0}
    %v: f64[m] = select %a, i {axis=0}
    %u: f64[m] = multiply %v, %e
    %f: f64[n,m] = select_scatter_add %q, %u, i {axis=0}
    %l: f64[m] = select %f, i {axis=0}
    %g: f64[m] = select_scatter_add %l, %e, 1 {axis=0}
    %h: f64[n,m] = select_scatter %f, %g, i {axis=0}
    yield KEPT, %h
  }
  return %z, %w
}
""".replace(" -> (f64[k], f64[n,m])\n    where", " -> (f64[k], f64[n,m]) where")


@pytest.mark.parametrize(("kept", "left"), [("%s", 0), ("%t", 1)])
def test_additions_into_parts_of_cotangents(
    kept: str, left: int, rng: np.random.Generator
) -> None:
    """What is added may be of what is there: then the order counts."""
    f = parse(ADDED.replace("KEPT", kept))
    g = vectorized(f)
    assert loops(g) == left, show(g)
    for n in (1, 4):
        shapes = ((n,), (n, 3), (5,), (n, 3))
        assert_same(f, g, *(rng.normal(size=s) for s in shapes))


def small_differences(x, y, w, s):
    for i in range(x.shape[0]):
        s[0] += x[i] - y[i]
        s[1] += w[i] * (x[i] - y[i])


def test_small_differences_stay_exact(rng: np.random.Generator) -> None:
    """Sums of large numbers, subtracted after, would have lost them."""
    y = rng.uniform(1e9, 2e9, 50)
    x, w, s = y + 2.0**-20, np.ones(50), np.zeros(2)
    f = parse(rg.compile(small_differences).ir(x, y, w, s, stage="functionalize"))
    g = vectorized(f)
    assert loops(g) == 0
    assert run(g, x, y, w, s)[0].tolist() == [50 * 2.0**-20] * 2
