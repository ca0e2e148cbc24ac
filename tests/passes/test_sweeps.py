"""Loops that fill an array store no zeros before; those that use it up none after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir import interp
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.sweeps import sweeps

FILL = """func @f(%x: f64[n], %t: f64) -> f64[{size}] where n - 2 >= 0 {{
  %z: f64[{size}] = full 0.0 {{dtype=f64, shape=({size},)}}
  %r: f64[{size}] = for i in {outer} carry(%c: f64[{size}] = %z) {{
    %s: f64[{size}] = for j in {inner} carry(%d: f64[{size}] = %c) {{
      %v: f64 = multiply %t, i + 10*j
      %e: f64[{size}] = select_scatter %d, %v, {at} {{axis=0}}
      yield %e
    }}
    yield %s
  }}
  return %r
}}"""

DRAIN = """func @f(%x: f64[n], %t: f64) -> f64 where n - 2 >= 0 {{
  %z: f64[{size}] = full %t {{dtype=f64, shape=({size},)}}
  %r: f64[{size}], %q: f64 = for i in {outer} carry(%c: f64[{size}] = %z, %a: f64 = 0.0) {{
    %s: f64[{size}], %p: f64 = for j in {inner} carry(%d: f64[{size}] = %c, %b: f64 = %a) {{
      %v: f64[] = select %d, {at} {{axis=0}}
      %w: f64 = add %b, %v
      %e: f64[{size}] = select_scatter %d, 0, {at} {{axis=0}}
      yield %e, %w
    }}
    yield %s, %p
  }}
  return %q
}}"""  # noqa: E501

# Size, loops, index; whether every element is met, and whether none is met twice.
PLACES = [
    (9, "0..3", "0..3", "3*i + j", True, True),
    (9, "2..-1 step -1", "0..3", "i + 3*j", True, True),
    (9, "2..-1 step -1", "2..-1 step -1", "8 - 3*i - j", True, True),
    (9, "0..3", "1..4", "3*i + j - 1", True, True),
    (10, "0..3", "0..3", "3*i + j", False, True),
    (10, "0..3", "0..3", "3*i + j + 1", False, True),
    (9, "0..3", "0..3", "2*i + j", False, False),
    (9, "0..3", "0..3", "4*i", False, False),
    (12, "0..3", "0..3", "4*i + j", False, True),
    ("3*n", "0..n", "0..3", "3*i + j", True, True),
    ("3*n", "0..3", "0..n", "n*i + j", True, True),
    ("n", "0..1", "0..n", "j", False, False),
]


@pytest.mark.parametrize(("size", "outer", "inner", "at", "all_", "once"), PLACES)
def test_which_loops_are_seen(
    size: Any, outer: str, inner: str, at: str, all_: bool, once: bool
) -> None:
    names = {"size": size, "outer": outer, "inner": inner, "at": at}
    for text, word, seen in ((FILL, "full", all_), (DRAIN, "select_scatter", once)):
        f = parse(text.format(**names))
        g = sweeps(f)
        verify(g)
        assert (word not in show(g)) == seen, show(g)
        for n in (2, 5):
            want = interp.run(f, np.ones(n), np.float64(1.5))
            got = interp.run(g, np.ones(n), np.float64(1.5))
            np.testing.assert_array_equal(got[0], want[0])


def filled(x: Any) -> Any:
    out = np.zeros((4, x.shape[0]))
    for i in range(2):
        for j in range(2):
            out[2 * i + j] = np.sin(x) * (out[0] if i + j > 5 else 1.0)
    return np.sum(out * out)


def patches(x: Any) -> Any:
    n = x.shape[0]
    out = np.empty((n - 2, 3))
    for i in range(3):
        out[:, i] = x[i : n - 2 + i]
    return np.sum((out @ np.ones(3)) ** 2)


@pytest.mark.parametrize("program", [filled, patches])
def test_values_and_gradients(program: Any) -> None:
    both = rg.value_and_grad(rg.compile(program))
    for n in (3, 4, 30):
        x = np.random.default_rng(0).normal(size=n)
        value, grad = both(x)
        want, expected = rg.value_and_grad(program)(x)
        np.testing.assert_allclose(value, want, rtol=1e-12)
        np.testing.assert_allclose(grad, expected, rtol=1e-11, atol=1e-13)
