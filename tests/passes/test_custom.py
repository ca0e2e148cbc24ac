"""Values with a derivative of their own, and detached views, through the passes."""

import numpy as np
import pytest

from retrograde.ir.errors import IRError
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.cse import cse
from retrograde.passes.dce import dce
from retrograde.passes.functionalize import functionalize
from retrograde.passes.jvp import jvp
from retrograde.passes.simplify import simplify
from retrograde.passes.vjp import vjp

X = np.array([1.0, 2.0, 3.0])
CUSTOM = """func @f(%x: f64[n], %w: f64[n]) -> (f64[n], f64[n]) where n - 2 >= 0 {
  %t: f64[n] = multiply %x, %w
  %u: f64[n] = exp %x
  %k: f64[n] = multiply %w, 100.0
  %y: f64[n], %z: f64[n] = custom %t, %u of %x params(%o: f64[n], %p: f64[n], %do: f64[n], %dp: f64[n]) {
    %a: f64[n] = multiply %do, %k
    %b: f64[n] = multiply %dp, %p
    %c: f64[n] = add %a, %b
    yield %c
  }
  return %y, %z
}"""  # noqa: E501
TRACED = """traced @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
  %t: f64[n] = copy %x
  %t <- 0.0
  %y: f64[n] = custom %t of %x params(%o: f64[n], %do: f64[n]) {
    %b: f64[n] = copy %do
    %v: f64[] &%b = select %b, 0 {axis=0}
    %v <- 7.0
    yield %b
  }
  %x <- %y
  return %y
}"""


def kinds(f: Func) -> set[Kind]:
    return {n.op.kind for n in walk(f.body)}


def test_text_and_verifier() -> None:
    for text in (CUSTOM, TRACED):
        f = parse(text)
        verify(f)
        assert show(f) == text
        assert show(parse(show(f))) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yield %c", "yield %c, %c", "values are expected"),
        ("yield %c", "yield 1.0", "but the region passes"),
        ("%dp: f64[n])", "%dp: f64)", "but the region passes"),
        ("custom %t, %u of", "custom %t, 2.0 of", "but the region passes"),
        ("multiply %do, %k", "multiply %do, %c", "before it is defined"),
    ],
)
def test_verifier_refuses(old: str, new: str, message: str) -> None:
    assert old in CUSTOM
    with pytest.raises(IRError, match=message):
        verify(parse(CUSTOM.replace(old, new, 1)))


def test_its_values_are_those_that_were_computed() -> None:
    f = parse(CUSTOM)
    want = [X * X, np.exp(X)]
    for g in (f, dce(f), cse(f), simplify(f)):
        verify(g)
        np.testing.assert_equal(run(g, X, X), want)
    assert Kind.CUSTOM not in kinds(simplify(f))
    assert Kind.CUSTOM in kinds(dce(cse(f)))


def test_its_derivative_is_the_rule() -> None:
    joint = vjp(parse(CUSTOM), [0, 1])
    verify(joint)
    ct = np.array([1.0, 10.0, 100.0])
    *_, dx, dw = run(joint, X, X, ct, 2 * ct)
    np.testing.assert_allclose(dx, ct * 100 * X + 2 * ct * np.exp(X))
    np.testing.assert_allclose(dw, 0 * X)  # the rule gives none


def test_its_second_derivative_is_that_of_the_rule() -> None:
    f = parse(CUSTOM)
    joint = vjp(f, [0], [1])  # (x, w, ct) -> (y, z, dx = ct * z)
    again = vjp(dce(joint), [0, 1, 2], [2])
    verify(again)
    ct, outer = np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0])
    *_, dx, dw, dct = run(again, X, X, ct, outer)
    # dx = ct * z, and z has the rule dz/dx = z
    np.testing.assert_allclose(dx, outer * ct * np.exp(X))
    np.testing.assert_allclose(dw, 0 * X)
    np.testing.assert_allclose(dct, outer * np.exp(X))


def test_rules_may_write_what_they_made() -> None:
    f = functionalize(parse(TRACED))
    verify(f)
    y, x = run(f, X)
    np.testing.assert_equal([y, x], np.zeros((2, 3)))
    joint = vjp(f, [0], [0])
    verify(joint)
    np.testing.assert_equal(run(joint, X, 5 * X)[-1], [7.0, 10.0, 15.0])


def test_a_rule_that_counts_is_used_twice() -> None:
    text = """func @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
      %y: f64[n] = custom %x of %x params(%o: f64[n], %do: f64[n]) {
        %m: bool[n] = greater %o, 1.5
        %s: f64[c] = mask_select %o, %m {count=c}
        %q: f64[c] = multiply %s, %s
        %r: f64 = sum %q {axis=(0,), keepdims=False}
        %d: f64[n] = multiply %do, %r
        yield %d
      }
      %z: f64[n] = custom %y of %y params(%o2: f64[n], %do2: f64[n]) {
        %m2: bool[n] = greater %o2, 1.5
        %s2: f64[c] = mask_select %o2, %m2 {count=c}
        %r2: f64 = sum %s2 {axis=(0,), keepdims=False}
        %d2: f64[n] = multiply %do2, %r2
        yield %d2
      }
      return %z
    }"""
    joint = vjp(parse(text), [0])
    verify(joint)
    again = vjp(joint, [0], [1])
    verify(again)
    dx = run(joint, X, np.ones(3))[-1]
    np.testing.assert_allclose(dx, np.full(3, 13.0 * 5.0))


def test_a_detached_view_passes_writes_on_and_no_derivative() -> None:
    text = """traced @f(%x: f64[n], %w: f64[n]) -> f64[n] where n - 2 >= 0 {
      %y: f64[n] = multiply %x, 2.0
      %z: f64[n] &%y = detached %y
      %v: f64[] &%z = select %z, 0 {axis=0}
      %e: f64[] = select %w, 1 {axis=0}
      %v <- %e
      %r: f64[n] = multiply %y, %z
      return %r
    }""".replace("%e: f64[] = select", "%e: f64[] &%w = select")
    f = functionalize(parse(text))
    verify(f)
    y = np.array([2.0, 4.0, 6.0])  # w[1] is 2
    np.testing.assert_equal(run(f, X, X)[0], y * y)
    joint = vjp(f, [0, 1], [0])
    verify(joint)
    *_, dx, dw = run(joint, X, X, np.ones(3))
    np.testing.assert_allclose(dx, 2 * y)
    np.testing.assert_allclose(dw[0], 0.0)


def test_its_tangent_is_that_of_the_rule() -> None:
    text = """func @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
      %y: f64[n] = custom %x of %x params(%o: f64[n], %do: f64[n]) {
        %d: f64[n] = for i in 0..n carry(%c: f64[n] = %do) {
          %s: f64[] = select %o, i {axis=0}
          %t: f64[] = select %c, i {axis=0}
          %u: f64 = multiply %s, %t
          %e: f64[n] = select_scatter %c, %u, i {axis=0}
          yield %e
        }
        %r: f64[n] = flip %d {axis=(0,)}
        yield %r
      }
      return %y
    }"""
    f = jvp(parse(text), [0])
    verify(f)
    y, dy = run(f, X, np.array([1.0, 10.0, 100.0]))
    np.testing.assert_equal([y, dy], [X, [100.0, 20.0, 3.0]])
