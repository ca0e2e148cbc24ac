"""vjp agrees with central differences, and so does vjp of vjp."""

import copy
from typing import Any

import numpy as np
import pytest
from differences import check_joint, floats, is_callable
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import arguments, program

from retrograde.ir.errors import GradientError, UnsupportedError
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize
from retrograde.passes.vjp import vjp


def pure_program(seed: int, size: int) -> Func:
    try:
        return functionalize(program(seed, size))
    except UnsupportedError:
        assume(False)
        raise


def joint_of(f: Func) -> Func:
    joint = vjp(f, floats(f))
    verify(joint)
    return joint


def cotangents(f: Func, args: list[Any], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    out = [np.asarray(r) for r in run(f, *copy.deepcopy(args))]
    return [
        rng.uniform(-1, 1, r.shape) if r.shape else np.float64(rng.uniform(-1, 1))
        for r in out
        if r.dtype.kind == "f"
    ]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 14))
def test_gradients_of_random_programs_are_differences(seed: int, size: int) -> None:
    f = pure_program(seed, size)
    joint = joint_of(f)
    assume(is_callable(joint))
    check_joint(f, joint, arguments(f, seed), seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 8))
def test_second_derivatives_of_random_programs(seed: int, size: int) -> None:
    f = pure_program(seed, size)
    joint = joint_of(f)
    assume(is_callable(joint))
    assume(sum(1 for _ in walk(joint.body)) < 400)
    args = arguments(f, seed)
    args += cotangents(f, args, seed)
    check_joint(joint, joint_of(joint), args, seed)


FIBONACCI = """
func @f(%a: f64[n], %w: f64) -> f64[n] where n - 2 >= 0 {
  %r: f64[n] = for i in 2..n carry(%c: f64[n] = %a) {
    %p: f64[] = select %c, i - 1 {axis=0}
    %q: f64[] = select %c, i - 2 {axis=0}
    %s: f64 = multiply %p, %w
    %t: f64 = add %s, %q
    %d: f64[n] = select_scatter %c, %t, i {axis=0}
    yield %d
  }
  return %r
}
"""
LINEAR = """
func @f(%x: f64[n]) -> f64[n] {
  %r: f64[n] = for i in 1..n carry(%c: f64[n] = %x) {
    %p: f64[] = select %c, i - 1 {axis=0}
    %v: f64[] = select %c, i {axis=0}
    %s: f64 = add %p, %v
    %d: f64[n] = select_scatter %c, %s, i {axis=0}
    yield %d
  }
  return %r
}
"""
TRIANGLE = """
func @f(%a: f64[n,n]) -> f64 where n - 2 >= 0 {
  %r: f64 = for i in 0..n carry(%c: f64 = 0.0) {
    %row: f64[n] = select %a, i {axis=0}
    %part: f64[i + 1] = slice %row, 0 {axis=0, size=i + 1, step=1}
    %e: f64[i + 1] = sin %part
    %m: f64[i + 1] = multiply %e, %c
    %g: f64[i + 1] = tanh %m
    %s: f64 = sum %g {axis=(0,)}
    %k: f64 = add %c, %s
    %n2: f64 = sin %k
    yield %n2
  }
  return %r
}
"""
NEWTON = """
func @f(%x: f64) -> f64 {
  %r: f64 = while carry(%y: f64 = %x) {
    %q: f64 = square %y
    %e: f64 = subtract %q, %x
    %s: f64 = absolute %e
    %c: bool = greater %s, 1e-12
    test %c
    %h: f64 = divide %x, %y
    %z: f64 = add %y, %h
    %m: f64 = multiply %z, 0.5
    yield %m
  }
  return %r
}
"""
NESTED = """
func @f(%a: f64[n,m], %b: f64[m]) -> f64[m] where n - 2 >= 0, m - 2 >= 0 {
  %r: f64[m] = for i in n - 1..-1 step -1 carry(%c: f64[m] = %b) {
    %d: f64[m] = for j in 1..m step 2 carry(%e: f64[m] = %c) {
      %p: f64[] = select %e, j - 1 {axis=0}
      %row: f64[m] = select %a, i {axis=0}
      %q: f64[] = select %row, j {axis=0}
      %t: f64 = multiply %p, %q
      %k: bool = greater %t, 0.0
      %o: f64 = cond %k {
        %u: f64 = sin %t
        yield %u
      } else {
        %u2: f64 = square %p
        yield %u2
      }
      %w: f64[m] = select_scatter %e, %o, j {axis=0}
      yield %w
    }
    yield %d
  }
  return %r
}
"""


@pytest.mark.parametrize("text", [FIBONACCI, LINEAR, TRIANGLE, NEWTON, NESTED])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_loops_written_by_hand(text: str, size: int, rng: np.random.Generator) -> None:
    f = parse(text)
    verify(f)
    args: list[Any] = []
    for p in f.params:
        shape = tuple(size for _ in p.type.shape)
        x = rng.uniform(0.5, 1.5, shape)
        args.append(np.float64(x) if p.type.scalar else x)
    joint = joint_of(f)
    check_joint(f, joint, args, 1)
    args += cotangents(f, args, 2)
    second = joint_of(joint)
    check_joint(joint, second, args, 3)


def sizes_of_tapes(joint: Func) -> list[str]:
    loops = [n for n in walk(joint.body) if n.op.kind is Kind.FOR]
    return [str(v.type) for v in loops[0].results[1:]]


def test_a_linear_body_saves_nothing() -> None:
    assert sizes_of_tapes(vjp(parse(LINEAR), [0])) == []


def test_what_survives_in_the_result_is_not_saved() -> None:
    assert sizes_of_tapes(vjp(parse(FIBONACCI), [0, 1])) == []


READ_AND_SUM = [
    "%v: f64[] = select %x, 0 {axis=0}",
    "%s: f64 = sum %x {axis=(0,)}",
]
PART_AND_SUM = [
    "%v: f64[] = select %u, 0 {axis=0}",
    "%s: f64 = sum %x {axis=(0,)}",
    "%u: f64[3] = slice %x, 1 {axis=0, size=3, step=1}",
]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_read_adds_into_the_cotangent_that_comes(order: tuple[int, ...]) -> None:
    check_no_zeros([READ_AND_SUM[k] for k in order])


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0), (2, 0, 1)])
def test_a_read_of_a_part_adds_into_the_whole(order: tuple[int, ...]) -> None:
    check_no_zeros([PART_AND_SUM[k] for k in order])


def check_no_zeros(lines: list[str]) -> None:
    body = "\n".join([*lines, "return %s, %v"])
    f = parse(f"func @f(%x: f64[4]) -> (f64, f64[]) {{\n{body}\n}}")
    joint = joint_of(f)
    names = [n.op.name for n in joint.nodes]
    assert "select_scatter_add" in names
    assert "full" not in names
    assert "add" not in names
    check_joint(f, joint, [np.arange(4.0)], 0)


def test_a_saved_python_number_stays_one() -> None:
    f = parse("""
    func @f(%x: f32[n], %k: ~f64) -> f32[n] {
      %r: f32[n], %c2: ~f64 = for i in 0..3 carry(%p: f32[n] = %x, %c: ~f64 = %k) {
        %q: f32[n] = multiply %p, %c
        %d: ~f64 = multiply %c, %c
        yield %q, %d
      }
      return %r
    }""")
    joint = joint_of(f)
    x = np.ones(2, np.float32)
    got = run(joint, x, 2.0, x)
    np.testing.assert_array_equal(got[1], np.full(2, 2**7, np.float32))
    assert got[2] == 2 * 7 * 2**6


def test_seeds_replace_cotangent_parameters() -> None:
    f = parse("""
    func @f(%x: f32[n]) -> f32 {
      %y: f32[n] = square %x
      %s: f32 = sum %y {axis=(0,)}
      return %s
    }""")
    joint = vjp(f, [0], [], seed={0: 1.0})
    verify(joint)
    assert len(joint.params) == 1
    x = np.arange(3, dtype=np.float32)
    s, dx = run(joint, x)
    assert dx.dtype == np.float32
    np.testing.assert_array_equal(dx, 2 * x)
    assert s == 5


def test_results_may_be_parameters_duplicates_and_literals() -> None:
    f = parse("""
    func @f(%x: f64, %k: i64) -> (f64, f64, ~f64, i64) {
      return %x, %x, 2.0, %k
    }""")
    joint = vjp(f, [0])
    verify(joint)
    got = run(joint, np.float64(3), np.int64(1), *map(np.float64, (1, 10, 100)))
    assert got == [3, 3, 2, 1, 11]


def test_an_independent_parameter_gets_zeros() -> None:
    f = parse("func @f(%x: f64[n], %y: f64[n]) -> f64[n] {\n  return %y\n}")
    got = run(vjp(f, [0]), np.ones(2), np.ones(2), np.ones(2))
    np.testing.assert_array_equal(got[1], np.zeros(2))


def test_an_integer_parameter_is_refused() -> None:
    f = parse("func @f(%k: i64) -> i64 {\n  return %k\n}")
    with pytest.raises(GradientError, match=r"no derivative in parameter %k"):
        vjp(f, [0])
