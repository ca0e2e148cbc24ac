"""functionalize keeps the meaning of traced programs, or refuses."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import arguments, program

from retrograde.ir.errors import UnsupportedError
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


def check_same_meaning(f: Func, g: Func, args: list[Any]) -> None:
    """Compare the traced f with the pure g: results, and finals of parameters."""
    traced_args = copy.deepcopy(args)
    expected = [np.array(r) for r in run(f, *traced_args)]
    pure_args = copy.deepcopy(args)
    got = run(g, *pure_args)
    for a, b in zip(pure_args, args, strict=True):
        np.testing.assert_array_equal(a, b, "a pure Func changed an argument")
    for a, b in zip(got, expected, strict=False):
        np.testing.assert_allclose(a, b, **TOLERANCE)
    updated = {j: got[i] for i, j in g.updates}
    for j, (before, after) in enumerate(zip(args, traced_args, strict=True)):
        np.testing.assert_allclose(updated.get(j, before), after, **TOLERANCE)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 14))
def test_random_programs_keep_their_meaning(seed: int, size: int) -> None:
    f = program(seed, size)
    verify(f)
    assert show(parse(show(f))) == show(f)
    try:
        g = functionalize(f)
    except UnsupportedError:
        return
    verify(g)
    check_same_meaning(f, g, arguments(f, seed))


DOUBLE_BUFFER = """
traced @f(%u: f64[n], %v: f64[n]) -> (f64[n], f64[n]) where n - 2 >= 0 {
  %o: f64[n], %w: f64[n] = for t in 0..TRIPS carry(%p: f64[n] = %u, %q: f64[n] = %v) {
    %s: f64[n - 1] &%q = slice %q, 1 {axis=0, size=n - 1, step=1}
    %r: f64[n - 1] &%p = slice %p, 0 {axis=0, size=n - 1, step=1}
    %s <- %r
    yield %q, %p
  }
  %a: f64[n] = sin %u
  return %o, %a
}
"""
THREE_BUFFERS = """
traced @f(%u: f64[n], %v: f64[n], %x: f64[n]) -> f64[n] where n - 2 >= 0 {
  %o: f64[n], %w: f64[n], %z: f64[n] = for t in 0..TRIPS CARRIES {
    %s: f64[n - 1] &%q = slice %q, 1 {axis=0, size=n - 1, step=1}
    %r: f64[n - 1] &%p = slice %p, 0 {axis=0, size=n - 1, step=1}
    %s <- %r
    %g: f64[] &%e = select %e, 0 {axis=0}
    %g <- 7.0
    yield %q, %e, %p
  }
  return %w
}
""".replace("CARRIES", "carry(%p: f64[n] = %u, %q: f64[n] = %v, %e: f64[n] = %x)")
ROTATED_TWICE = """
traced @f(%u: f64[n], %v: f64[n]) -> f64[n] where n - 2 >= 0 {
  for k in 0..2 {
    %o: f64[n], %w: f64[n] = for t in 0..TRIPS carry(%p: f64[n] = %u, %q: f64[n] = %v) {
      %s: f64[n - 1] &%q = slice %q, 1 {axis=0, size=n - 1, step=1}
      %r: f64[n - 1] &%p = slice %p, 0 {axis=0, size=n - 1, step=1}
      %s <- %r
      yield %q, %p
    }
    yield
  }
  return %u
}
"""


@pytest.mark.parametrize("text", [DOUBLE_BUFFER, THREE_BUFFERS, ROTATED_TWICE])
@pytest.mark.parametrize("trips", ["0", "1", "2", "3", "4", "5", "n", "n - 1", "n + 1"])
def test_exchanged_arrays_are_found_again(
    text: str, trips: str, rng: np.random.Generator
) -> None:
    f = parse(text.replace("TRIPS", trips))
    verify(f)
    g = functionalize(f)
    verify(g)
    for size in (2, 3, 4):
        check_same_meaning(f, g, [rng.normal(size=size) for _ in f.params])


REFUSED = {
    "a condition decides which array is written": """
    traced @f(%c: bool, %x: f64[n], %y: f64[n]) -> f64[n] {
      %r: f64[n] = cond %c {
        yield %x
      } else {
        yield %y
      }
      %r <- 0.0
      return %x
    }""",
    "an array that was exchanged is written after the loop": """
    traced @f(%u: f64[n], %v: f64[n]) -> f64[n] {
      %o: f64[n], %w: f64[n] = for t in 0..n carry(%p: f64[n] = %u, %q: f64[n] = %v) {
        %q <- %p
        yield %q, %p
      }
      %o <- 0.0
      return %u
    }""",
    "the first iteration writes an argument": """
    traced @f(%x: f64[n]) -> f64[n] {
      %r: f64[n] = for t in 0..n carry(%p: f64[n] = %x) {
        %v: f64[] &%p = select %p, 0 {axis=0}
        %v <- 0.0
        %q: f64[n] = sin %p
        yield %q
      }
      return %r
    }""",
    "an exchanged array is read in the loop by its old name": """
    traced @f(%u: f64[n], %v: f64[n]) -> f64[n] {
      %o: f64[n], %w: f64[n] = for t in 0..n carry(%p: f64[n] = %u, %q: f64[n] = %v) {
        %q <- %p
        %p <- %u
        yield %q, %p
      }
      return %o
    }""",
    "an alias is read by the next iteration": """
    traced @f(%c: bool, %x: f64[n], %y: f64[n]) -> f64 {
      %r: f64[n] = cond %c {
        yield %x
      } else {
        yield %y
      }
      %u: f64 = for i in 0..n carry(%s: f64 = 0.0) {
        %t: f64 = sum %r {axis=(0,)}
        %x <- 1.0
        yield %t
      }
      return %u
    }""",
    "two carries begin as one array": """
    traced @f(%x: f64[n]) -> f64[n] {
      %u: f64[n] = sin %x
      %o: f64[n], %w: f64[n] = for t in 0..n carry(%p: f64[n] = %u, %q: f64[n] = %u) {
        %q <- 1.0
        %r: f64[n] = cos %p
        yield %q, %r
      }
      return %o
    }""",
    "a part of a view that repeats elements is written": """
    traced @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
      %v: f64[n] &%x = as_strided %x {offset=0, shape=(n,), strides=(0,)}
      %w: f64[n - 1] &%v = slice %v, 0 {axis=0, size=n - 1, step=1}
      %w <- 5.0
      return %x
    }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_values_cannot_express_is_refused(name: str) -> None:
    f = parse(REFUSED[name])
    verify(f)
    with pytest.raises(
        UnsupportedError, match=r"may or may not share|shows elements several"
    ):
        functionalize(f)


def test_a_condition_that_writes_is_refused() -> None:
    f = parse("""
    traced @f(%x: f64[n]) -> f64 {
      %r: f64 = while carry(%k: f64 = 0.0) {
        %x <- %k
        %c: bool = less %k, 3.0
        test %c
        %j: f64 = add %k, 1.0
        yield %j
      }
      return %r
    }""")
    with pytest.raises(UnsupportedError, match=r"its condition writes"):
        functionalize(f)


def test_regions_carry_exactly_what_they_write() -> None:
    f = parse("""
    traced @f(%x: f64[n], %y: f64[n]) -> f64[n] {
      %a: f64[n] = sin %x
      for i in 0..n {
        %v: f64[] &%a = select %a, i {axis=0}
        %w: f64[] &%y = select %y, i {axis=0}
        %v <- %w
        yield
      }
      return %a
    }""")
    g = functionalize(f)
    (loop,) = (n for n in walk(g.body) if n.regions)
    assert len(loop.operands) == 1
    assert g.updates == ()


def test_a_view_that_overlaps_itself_is_read_back() -> None:
    f = parse("""
    traced @f(%x: f64[n], %v: f64[n]) -> (f64[n], f64[n]) {
      %w: f64[n] &%x = as_strided %x {offset=0, shape=(n,), strides=(0,)}
      %w <- %v
      %a: f64[n] = sin %w
      %b: f64[n] = sin %x
      return %a, %b
    }""")
    g = functionalize(f)
    check_same_meaning(f, g, [np.arange(4.0), np.array([3.0, 5.0, 7.0, 9.0])])


def test_a_write_converts_and_broadcasts() -> None:
    f = parse("""
    traced @f(%x: f64[n], %y: f32[2,n], %k: i64[]) -> f32[2,n] {
      %k <- 2.75
      %y <- %x
      %v: f32[n] &%y = select %y, %k {axis=0}
      %v <- %k
      return %y
    }""")
    verify(f)
    g = functionalize(f)
    verify(g)
    args = [np.array([0.1, 1e-30]), np.zeros((2, 2), np.float32), np.array(0)]
    with pytest.raises(IndexError):
        run(g, *args)
    f = parse(show(f).replace("2.75", "1.75"))
    check_same_meaning(f, functionalize(f), args)


SCALAR_CARRY = """
traced @f(%x: f64[n]) -> f64 where n - 2 >= 0 {
  %z: f64[] = full 2.0 {dtype=f64, shape=()}
  %s: f64 = for i in 0..n carry(%c: f64 = %z) {
    %v: f64[] &%x = select %x, i {axis=0}
    %v <- %c
    yield %c
  }
  %t: f64 = add %s, %s
  return %t
}
"""


def test_a_scalar_carry_that_starts_as_an_array() -> None:
    f = parse(SCALAR_CARRY)
    g = functionalize(f)
    verify(g)
    check_same_meaning(f, g, [np.zeros(3)])


UPDATE = """traced @f(%x: f64[n], %t: f64[3]) -> f64[n] where n - 5 >= 0 {
  %v: f64[3] &%x = slice %x, 1 {axis=0, size=3, step=1}
  %s: f64[3] = add %v, %t
  %v <- %s
BETWEEN
  %w: f64[3] &%x = slice %x, 1 {axis=0, size=3, step=1}
  %w <- NEW
  return %x
}"""
BETWEEN = {
    "nothing": ("", "%v", 1),
    "a write that overlaps": (
        """%o: f64[3] &%x = slice %x, 2 {axis=0, size=3, step=1}
        %o <- %t""",
        "%s",
        3,
    ),
    "a write elsewhere": (
        """%o: f64[] &%x = select %x, 0 {axis=0}
        %o <- 1.0""",
        "%s",
        3,
    ),
    "another value": ("", "%t", 2),
    "a loop that may write": (
        """for i in 0..n {
        %o: f64[] &%x = select %x, i {axis=0}
        %o <- 1.0
        yield
        }""",
        "%s",
        3,
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_update_that_is_assigned_again_is_one_write(name: str) -> None:
    """`x[1:4] += t` adds in place to a view, then assigns the view to `x[1:4]`."""
    between, new, count = BETWEEN[name]
    f = parse(UPDATE.replace("BETWEEN", between).replace("NEW", new))
    verify(f)
    g = functionalize(f)
    verify(g)
    assert sum(n.op.kind is Kind.SCATTER for n in walk(g.body)) == count
    rng = np.random.default_rng(0)
    check_same_meaning(f, g, [rng.normal(size=6), rng.normal(size=3)])
