"""simplify, cse, dce and partition keep the answer, on random programs and by hand."""

import copy
import time

import numpy as np
import pytest
from differences import floats
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import arguments, program
from test_vjp import cotangents, pure_program

from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.cse import cse
from retrograde.passes.dce import dce
from retrograde.passes.manager import PASSES
from retrograde.passes.partition import partition
from retrograde.passes.vjp import vjp

KEEPING = ("simplify", "cse", "dce", "inline")


def count(f: Func) -> int:
    return sum(1 for _ in walk(f.body))


@settings(max_examples=75, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 12), st.permutations(KEEPING))
def test_passes_keep_answers(seed: int, size: int, names: list[str]) -> None:
    f = pure_program(seed, size)
    args = arguments(f, seed)
    joint = vjp(f, floats(f))
    both = args + cotangents(f, args, seed)
    for start, inputs in ((f, args), (joint, both)):
        expected = run(start, *copy.deepcopy(inputs))
        g = start
        for name in names:
            before, g = g, PASSES[name](g)
            verify(g)
            assert count(g) <= count(before) or name == "simplify"
            for a, b in zip(run(g, *copy.deepcopy(inputs)), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 12))
def test_dce_keeps_the_writes_of_traced_programs(seed: int, size: int) -> None:
    f = program(seed, size)
    g = dce(f)
    verify(g)
    ours, theirs = arguments(f, seed), arguments(f, seed)
    for a, b in zip(run(g, *ours), run(f, *theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 12))
def test_forward_and_pullback_are_the_joint(seed: int, size: int) -> None:
    f = pure_program(seed, size)
    args = arguments(f, seed)
    joint = vjp(f, floats(f))
    cts = cotangents(f, args, seed)
    n = len(f.results)
    forward, backward = partition(joint, n)
    verify(forward)
    verify(backward)
    expected = run(joint, *copy.deepcopy(args), *cts)
    symbols = {s: args[0].shape["nm".index(s.name)] for s in backward.symbols}
    out = run(forward, *copy.deepcopy(args))
    for _ in range(2):  # a pullback does not use up what was saved
        grads = run(backward, *out[n:], *cts, symbols=symbols)
        for a, b in zip([*out[:n], *grads], expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_dead_carries_go() -> None:
    f = parse("""
    func @f(%x: f64[n], %y: f64[n]) -> f64[n] {
      %a: f64[n], %b: f64[n] = for i in 0..n carry(%p: f64[n] = %x, %q: f64[n] = %y) {
        %u: f64[n] = sin %p
        %v: f64[n] = add %q, %y
        yield %u, %v
      }
      return %a
    }""")
    g = dce(f)
    assert len(g.nodes[0].results) == 1
    assert count(g) == 2


def test_a_computed_size_lives_as_long_as_its_symbol() -> None:
    f = parse("""
    func @f(%k: i64) -> f64[s] {
      %m: i64 = add %k, 1
      %z: i64 = size %m {count=s}
      %o: f64[s] = full 1.0 {dtype=f64, shape=(s,)}
      return %o
    }""")
    assert count(dce(f)) == 3


def test_equal_literals_of_other_types_are_different() -> None:
    f = parse("""
    func @f(%x: f64[n]) -> (f64[n], f64[n], f64[n]) {
      %a: f64[n] = copysign %x, 0.0
      %b: f64[n] = copysign %x, -0.0
      %c: f64[n] = copysign %x, 0
      return %a, %b, %c
    }""")
    assert count(cse(f)) == 3


def test_a_branch_does_not_know_what_the_other_computed() -> None:
    f = parse("""
    func @f(%c: bool, %x: f64) -> f64 {
      %r: f64 = cond %c {
        %a: f64 = sin %x
        yield %a
      } else {
        %b: f64 = sin %x
        yield %b
      }
      return %r
    }""")
    assert count(cse(f)) == 3
    verify(cse(f))


def test_what_is_cheap_or_unneeded_is_computed_in_the_pullback() -> None:
    f = parse("""
    func @f(%x: f64[n]) -> f64 {
      %a: f64[n] = multiply %x, 2.0
      %b: f64[n] = sin %a
      %s: f64 = sum %b {axis=(0,)}
      return %s
    }""")
    forward, backward = partition(vjp(f, [0]), 1)
    assert [str(x) for x in forward.results[1:]] == ["%x: f64[n]"]
    assert [n.op.name for n in backward.nodes][:1] == ["multiply"]


def chain(length: int) -> Func:
    lines = [f"  %v{k}: f64[n] = sin %v{k - 1}" for k in range(1, length)]
    head = "func @f(%v0: f64[n]) -> f64[n] {"
    return parse("\n".join([head, *lines, f"  return %v{length - 1}", "}"]))


@pytest.mark.parametrize("name", KEEPING)
def test_time_grows_linearly(name: str) -> None:
    def seconds(f: Func) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            PASSES[name](f)
            best = min(best, time.process_time() - start)
        return best

    small, large = seconds(chain(500)), seconds(chain(4000))
    assert large < 40 * small  # it would be 64 times if it grew with the square
