"""Groups of shifted additions, computed at once, have the same values."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from differences import check_joint, floats
from hypothesis import given, settings
from hypothesis import strategies as st
from stencils import STEPS, arguments, stencil

from retrograde.codegen import build
from retrograde.ir import dims
from retrograde.ir.func import Copier, Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes import manager
from retrograde.passes.pieces import taken_together
from retrograde.passes.shifts import shifts
from retrograde.passes.vjp import vjp

SIZES = (2, 3, 4, 5, 17)
COUNT = dims.as_symbol(STEPS)


def joint_of(f: Func) -> Func:
    f = manager.run(f, manager.PIPELINES["pure"])
    return manager.run(vjp(f, floats(f)), manager.PIPELINES["optimize"])


def scatters(f: Func) -> int:
    return sum(n.op.accumulates for n in walk(f.body))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SIZES), st.integers(0, 3))
def test_random_stencils_keep_their_gradients(seed: int, size: int, steps: int) -> None:
    joint = joint_of(stencil(seed))
    after = shifts(joint)
    verify(after)
    args = arguments(joint, seed, size)
    symbols = {s: steps for s in joint.symbols}
    expected = run(joint, *copy.deepcopy(args), symbols=symbols)
    for a, b in zip(run(after, *args, symbols=symbols), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SIZES), st.integers(0, 3))
def test_parts_taken_together_have_the_same_values(
    seed: int, size: int, steps: int
) -> None:
    joint = joint_of(unrolled(stencil(seed), steps))
    after = replace(joint, body=taken_together(joint.body))
    verify(after)
    args = arguments(joint, seed, size)
    expected = run(joint, *copy.deepcopy(args))
    for a, b in zip(run(after, *args), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SIZES), st.integers(0, 2))
def test_gradients_of_random_stencils_are_differences(
    seed: int, size: int, steps: int
) -> None:
    f = unrolled(stencil(seed), steps)
    f = manager.run(f, manager.PIPELINES["pure"])
    check_joint(f, shifts(joint_of(f)), arguments(f, seed, size), seed)


def unrolled(f: Func, steps: int) -> Func:
    """Return a stencil with its number of steps fixed."""
    return Copier({COUNT: steps}).func(f)


HEAT = """
traced @heat[steps](%u: f64[n], %k: f64) -> f64[n] where n - 2 >= 0 {
  for t in 0..steps {
    %v: f64[n - 2] &%u = slice %u, 1 {axis=0, size=n - 2, step=1}
    %a: f64[n - 2] &%u = slice %u, 2 {axis=0, size=n - 2, step=1}
    %b: f64[n - 2] &%u = slice %u, 0 {axis=0, size=n - 2, step=1}
    %c: f64[n - 2] = multiply %v, 2.0
    %d: f64[n - 2] = add %a, %b
    %e: f64[n - 2] = subtract %d, %c
    %g: f64[n - 2] = multiply %k, %e
    %h: f64[n - 2] = add %v, %g
    %v <- %h
    yield
  }
  return %u
}
"""

# The rows of one array: three reads of the row above, one of the row itself.
ROWS = """
traced @rows[steps](%u: f64[n,m], %c: f64[m]) -> f64[n,m] where n - 2 >= 0, m - 2 >= 0 {
  for t in 0..steps {
    for i in 1..n {
      %r: f64[m] &%u = select %u, i {axis=0}
      %w: f64[m - 2] &%r = slice %r, 1 {axis=0, size=m - 2, step=1}
      %z: f64[m - 2] &%r = slice %r, 2 {axis=0, size=m - 2, step=1}
      %p: f64[m] &%u = select %u, i - 1 {axis=0}
      %p0: f64[m - 2] &%p = slice %p, 0 {axis=0, size=m - 2, step=1}
      %p1: f64[m - 2] &%p = slice %p, 1 {axis=0, size=m - 2, step=1}
      %p2: f64[m - 2] &%p = slice %p, 2 {axis=0, size=m - 2, step=1}
      %d: f64[m - 2] &%c = slice %c, 1 {axis=0, size=m - 2, step=1}
      %s0: f64[m - 2] = add %p0, %p1
      %s1: f64[m - 2] = add %s0, %p2
      %s2: f64[m - 2] = add %s1, %z
      %s3: f64[m - 2] = multiply %s2, %d
      %w <- %s3
      yield
    }
    yield
  }
  return %u
}
"""

# Two arrays in turn, the first replaced, the second added to: a hole, and none.
TURNS = """
traced @turns[steps](%u: f64[n,m], %v: f64[n,m]) -> (f64[n,m], f64[n,m])
    where n - 2 >= 0, m - 2 >= 0 {
  for t in 0..steps {
    %m: f64[n - 2,m] &%u = slice %u, 1 {axis=0, size=n - 2, step=1}
    %c: f64[n - 2,m - 2] &%m = slice %m, 1 {axis=1, size=m - 2, step=1}
    %r: f64[n - 2,m] &%v = slice %v, 1 {axis=0, size=n - 2, step=1}
    %w: f64[n - 2,m - 2] &%r = slice %r, 0 {axis=1, size=m - 2, step=1}
    %e: f64[n - 2,m - 2] &%r = slice %r, 2 {axis=1, size=m - 2, step=1}
    %d: f64[n - 1,m] &%v = slice %v, 1 {axis=0, size=n - 1, step=1}
    %s: f64[n - 1,m] &%u = slice %u, 0 {axis=0, size=n - 1, step=1}
    %s1: f64[n - 1,m] &%u = slice %u, 1 {axis=0, size=n - 1, step=1}
    %a: f64[n - 2,m - 2] = add %w, %e
    %b: f64[n - 2,m - 2] = multiply %a, 0.5
    %c <- %b
    %f: f64[n - 1,m] = subtract %s1, %s
    %g: f64[n - 1,m] = multiply %f, 0.3
    %h: f64[n - 1,m] = add %d, %g
    %d <- %h
    yield
  }
  return %u, %v
}
"""
PROGRAMS = {"heat": HEAT, "rows": ROWS, "turns": TURNS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_groups_agree_with_the_interpreter(name: str) -> None:
    f = parse(PROGRAMS[name].replace("\n    where", " where"))
    joint = joint_of(f)
    assert scatters(shifts(joint)) < scatters(joint)
    kernel = build(manager.run(joint, manager.PIPELINES["lower"]))
    for size in SIZES[2:]:
        for steps in (0, 1, 3):
            args = arguments(joint, size, size)
            expected = run(joint, *copy.deepcopy(args), symbols={COUNT: steps})
            for a, b in zip(kernel(args, [steps]), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def adjoint(boxes: list[tuple[int, str]], factor: str = "%k") -> Func:
    """Return a Func that adds %x * factor into slices (start, size) of %d."""
    lines = [f"  %g: f64[n - 2] = multiply %x, {factor}"]
    last = "d"
    for k, (start, size) in enumerate(boxes):
        attrs = f"{{axis=0, size={size}, step=1}}"
        lines.append(
            f"  %d{k}: f64[n] = slice_scatter_add %{last}, %g, {start} {attrs}"
        )
        last = f"d{k}"
    head = "func @f(%d: f64[n], %x: f64[n - 2], %k: f64) -> f64[n] where n - 2 >= 0 {"
    return parse("\n".join([head, *lines, f"  return %{last}", "}"]))


def test_a_group_is_one_gather() -> None:
    f = shifts(adjoint([(0, "n - 2"), (2, "n - 2"), (1, "n - 2")]))
    assert [n.op.kind.name for n in f.nodes if n.op.accumulates] == []
    assert sum(n.op.kind is Kind.SCATTER for n in f.nodes) == 1


def test_infinite_factors_stay_where_they_are_added() -> None:
    f = adjoint([(0, "n - 2"), (2, "n - 2"), (1, "n - 2")])
    assert shifts(f) is not f
    args: list[Any] = [np.ones(6), np.array([1.0, 2.0, 0.5, 1.0]), np.inf]
    expected = run(f, *copy.deepcopy(args))
    np.testing.assert_array_equal(run(shifts(f), *args), expected)
    args[2] = np.nan
    expected = run(f, *copy.deepcopy(args))
    np.testing.assert_array_equal(run(shifts(f), *args), expected)


def test_one_addition_stays() -> None:
    f = adjoint([(1, "n - 2")])
    assert shifts(f) is f


def test_shifts_that_differ_by_a_symbol_stay() -> None:
    f = parse("""
    func @f[p](%d: f64[n], %g: f64[m]) -> f64[n] where n - m - p >= 0, p >= 0 {
      %a: f64[n] = slice_scatter_add %d, %g, 0 {axis=0, size=m, step=1}
      %b: f64[n] = slice_scatter_add %a, %g, p {axis=0, size=m, step=1}
      return %b
    }""")
    assert shifts(f) is f


def test_small_arrays_stay() -> None:
    f = parse("""
    func @f(%d: f64[5], %g: f64[3]) -> f64[5] {
      %a: f64[5] = slice_scatter_add %d, %g, 0 {axis=0, size=3, step=1}
      %b: f64[5] = slice_scatter_add %a, %g, 2 {axis=0, size=3, step=1}
      return %b
    }""")
    assert shifts(f) is f


def test_a_box_far_away_is_added_by_itself() -> None:
    f = parse("""
    func @f(%d: f64[n], %g: f64[n - 2], %e: f64[1]) -> f64[n] where n - 2 >= 0 {
      %a: f64[n] = slice_scatter_add %d, %g, 0 {axis=0, size=n - 2, step=1}
      %b: f64[n] = slice_scatter_add %a, %e, 1 {axis=0, size=1, step=1}
      %c: f64[n] = slice_scatter_add %b, %g, 2 {axis=0, size=n - 2, step=1}
      %h: f64[n] = slice_scatter_add %c, %g, 1 {axis=0, size=n - 2, step=1}
      return %h
    }""")
    g = shifts(f)
    assert sum(n.op.accumulates for n in g.nodes) == 1
    for n in (2, 3, 9):
        args = [np.arange(1.0, n + 1), np.arange(2.0, n), np.ones(1)]
        np.testing.assert_array_equal(run(g, *args), run(f, *args))


def test_padded_copies_are_filled_before_the_loop() -> None:
    f = shifts(joint_of(parse(HEAT)))
    loops = [n for n in f.nodes if n.op.kind is Kind.FOR]
    filled = [n for n in walk(loops[-1].regions[0]) if n.op.kind is Kind.CREATION]
    assert not filled
