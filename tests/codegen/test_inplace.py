"""Loops write where their arrays are: no copies, no memory beyond the region."""

import copy
from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import Fill, Loop, Move, Program, While, every
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vjp import vjp

PURE = PIPELINES["pure"]
LOWER = (*PIPELINES["optimize"], *PIPELINES["lower"])

INTERIOR = """traced @interior[q](%a: f64[n,n], %b: f64[n,n]) -> f64 where n - 3 >= 0 {
  for t in 0..q {
    %r: f64[n - 2,n] &%a = slice %a, 1 {axis=0, size=n - 2, step=1}
    %c: f64[n - 2,n - 2] &%r = slice %r, 1 {axis=1, size=n - 2, step=1}
    %w: f64[n - 2,n - 2] &%r = slice %r, 0 {axis=1, size=n - 2, step=1}
    %x: f64[n - 2,n] &%b = slice %b, 1 {axis=0, size=n - 2, step=1}
    %d: f64[n - 2,n - 2] &%x = slice %x, 1 {axis=1, size=n - 2, step=1}
    %s: f64[n - 2,n - 2] = add %c, %w
    %d <- %s
    %e: f64[n - 2,n - 2] &%x = slice %x, 2 {axis=1, size=n - 2, step=1}
    %u: f64[n - 2,n - 2] = multiply %e, %d
    %v: f64[n - 2,n - 2] = tanh %u
    %c <- %v
    yield
  }
  %z: f64 = sum %a {axis=(0, 1), keepdims=False}
  return %z
}"""

FORWARD = """traced @forward(%a: f64[n,n]) -> f64[n,n] where n - 3 >= 0 {
  for i in 1..n - 1 {
    %p: f64[n] &%a = select %a, i - 1 {axis=0}
    %r: f64[n] &%a = select %a, i {axis=0}
    %c: f64[n - 2] &%r = slice %r, 1 {axis=0, size=n - 2, step=1}
    %e: f64[n - 2] &%r = slice %r, 2 {axis=0, size=n - 2, step=1}
    %w: f64[n - 2] &%p = slice %p, 0 {axis=0, size=n - 2, step=1}
    %s: f64[n - 2] = add %e, %w
    %c <- %s
    for j in 1..n - 1 {
      %b: f64[] &%r = select %r, j - 1 {axis=0}
      %x: f64[] &%r = select %r, j {axis=0}
      %y: f64 = multiply %x, %b
      %x <- %y
      yield
    }
    yield
  }
  return %a
}"""

BACKWARD = """traced @backward(%a: f64[n,n]) -> f64[n,n] where n - 3 >= 0 {
  %l: f64[n - 1,n] &%a = slice %a, 0 {axis=0, size=n - 1, step=1}
  %h: f64[n - 1,n] &%a = slice %a, 1 {axis=0, size=n - 1, step=1}
  %s: f64[n - 1,n] = add %l, %h
  %h <- %s
  %t: f64[n,n] &%a = transpose %a {axes=(1, 0)}
  %x: f64[n] &%t = select %t, 2 {axis=0}
  %d: f64[n] &%a = diagonal %a {axis1=0, axis2=1, offset=0, size=n}
  %x <- %d
  return %a
}"""

BRANCH = """traced @branch(%a: f64[n], %lim: f64) -> f64[n] {
  for i in 0..n {
    %x: f64[] &%a = select %a, i {axis=0}
    %c: bool = less %x, %lim
    cond %c {
      %m: f64 = multiply %x, %x
      %x <- %m
      yield
    } else {
      yield
    }
    yield
  }
  return %a
}"""


def pure(text: str) -> Func:
    return run_passes(parse(text), PURE, verify=True)


def lowered(f: Func) -> Func:
    return run_passes(f, LOWER, verify=True)


def arguments(f: Func, n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    args: list[Any] = []
    for p in f.params:
        shape = (n,) * p.type.ndim
        args.append(rng.uniform(-1, 1, shape) if shape else np.float64(0.25))
    return args


def check(f: Func, n: int, q: int, kernel: Any) -> None:
    args = arguments(f, n)
    want = run(f, *copy.deepcopy(args), symbols=dict.fromkeys(f.symbols, q))
    got = kernel(copy.deepcopy(args), [q] * len(f.symbols))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)


def moved_in_loops(p: Program) -> list[Any]:
    loops = [s for s in every(p.body) if isinstance(s, Loop | While)]
    inside = [s for loop in loops for s in every(loop.body)]
    return [s for s in inside if isinstance(s, Move | Fill)]


@pytest.mark.parametrize("text", [INTERIOR, FORWARD, BACKWARD, BRANCH])
def test_writes_need_no_other_memory(text: str) -> None:
    f = pure(text)
    g = lowered(f)
    p = lower(g, "f")
    assert not [b for b in p.buffers if b.place in ("arena", "local")]
    assert not moved_in_loops(p)
    kernel = build(g)
    for n in (3, 6):
        check(f, n, 3, kernel)


@pytest.mark.parametrize("text", [INTERIOR, FORWARD])
def test_gradients_copy_no_more_than_regions(text: str) -> None:
    f = pure(text)
    g = vjp(f, [0], [], seed={0: 1.0}) if f.name == "interior" else vjp(f, [0], [0])
    check(g, 6, 3, build(lowered(g)))


ROTATIONS = {
    "swap": """func @f[q](%u: f64[n,n], %v: f64[n,n]) -> (f64[n,n], f64[n,n]) {
  %a: f64[n,n], %b: f64[n,n] = for t in 0..q carry(%x: f64[n,n] = %u, %y: f64[n,n] = %v) {
    %h: f64[n,n] = multiply %x, 0.5
    %z: f64[n,n] = add %y, %h
    yield %z, %x
  }
  return %a, %b
}""",  # noqa: E501
    "new": """func @f[q](%u: f64[n,n]) -> f64[n,n] {
  %a: f64[n,n] = for t in 0..q carry(%x: f64[n,n] = %u) {
    %h: f64[n,n] = matmul %x, %x
    yield %h
  }
  return %a
}""",
    "three": """func @f[q](%u: f64[n,n], %v: f64[n,n]) -> (f64[n,n], f64[n,n]) {
  %a: f64[n,n], %b: f64[n,n] = for t in 0..q carry(%x: f64[n,n] = %u, %y: f64[n,n] = %v) {
    %h: f64[n,n] = matmul %x, %y
    yield %h, %x
  }
  return %a, %b
}""",  # noqa: E501
    "while": """func @f(%u: f64[n,n], %v: f64[n,n], %lim: f64) -> (f64[n,n], f64[n,n]) {
  %a: f64[n,n], %b: f64[n,n], %k: f64 = while carry(%x: f64[n,n] = %u, %y: f64[n,n] = %v, %c: f64 = 0.0) {
    %t: bool = less %c, %lim
    test %t
    %h: f64[n,n] = matmul %x, %y
    %e: f64 = add %c, 0.1
    yield %y, %h, %e
  }
  return %a, %b
}""",  # noqa: E501
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_carries_exchange_memory(name: str) -> None:
    f = parse(ROTATIONS[name])
    g = lowered(f)
    assert not moved_in_loops(lower(g, "f"))
    kernel = build(g)
    for q in range(5):
        check(f, 3, q, kernel)


def test_small_operands_are_copied_not_the_matrix() -> None:
    f = pure("""traced @floyd(%a: f64[n,n]) -> f64[n,n] where n - 2 >= 0 {
  for k in 0..n {
    %c: f64[n] &%a = select %a, k {axis=1}
    %q: f64[n,1] &%c = expand_dims %c {axis=(1,)}
    %r: f64[n] &%a = select %a, k {axis=0}
    %o: f64[n,n] = add %q, %r
    %m: f64[n,n] = minimum %a, %o
    %a <- %m
    yield
  }
  return %a
}""")
    p = lower(lowered(f), "f")
    sizes = {str(b.size) for b in p.buffers if b.place == "arena"}
    assert sizes == {"n"}
    check(f, 5, 0, build(lowered(f)))


def test_tapes_are_written_once_and_in_place() -> None:
    """The tape of the inner loop is a row of the outer one's, and is not cleared."""
    f = pure("""traced @f(%a: f64[n,n]) -> f64 where n - 2 >= 0 {
  for i in 1..n {
    for j in 0..n {
      %r: f64[n] &%a = select %a, i {axis=0}
      %s: f64[n] &%a = select %a, i - 1 {axis=0}
      %x: f64[] &%r = select %r, j {axis=0}
      %y: f64[] &%s = select %s, j {axis=0}
      %m: f64 = multiply %x, %y
      %t: f64 = sin %m
      %x <- %t
      yield
    }
    yield
  }
  %z: f64 = sum %a {axis=(0, 1), keepdims=False}
  return %z
}""")
    g = vjp(f, [0], [], seed={0: 1.0})
    p = lower(lowered(g), "f")
    assert not moved_in_loops(p)
    check(g, 5, 0, build(lowered(g)))


def test_slices_that_are_empty_in_some_iterations_are_in_range() -> None:
    f = pure("""traced @f(%a: f64[n,n], %x: f64[n]) -> f64[n] where n - 2 >= 0 {
  for i in 0..n {
    %r: f64[n] &%a = select %a, i {axis=0}
    %l: f64[i] &%r = slice %r, 0 {axis=0, size=i, step=1}
    %y: f64[i] &%x = slice %x, 0 {axis=0, size=i, step=1}
    %d: f64 = matmul %l, %y
    %e: f64[] &%x = select %x, i {axis=0}
    %e <- %d
    %u: f64[n - i - 1] &%r = slice %r, i + 1 {axis=0, size=n - i - 1, step=1}
    %w: f64[n - i - 1] = multiply %u, 2.0
    %u <- %w
    yield
  }
  return %x
}""")
    check(f, 4, 0, build(lowered(f)))
