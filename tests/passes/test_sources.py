"""What the reverse of a loop saves: as little as all that it reads allows."""

import copy

import numpy as np
import pytest
from differences import check_joint, floats

from retrograde.codegen import build
from retrograde.ir import dims
from retrograde.ir.dims import Symbol
from retrograde.ir.func import Func, Value, substitute
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize
from retrograde.passes.limit import Known, limited
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vjp import vjp

N = Symbol("n")

# Three differences of one array, each times a number.
DIFFERENCES = """
traced @f[t](%x: f64[n], %p: f64[], %q: f64[], %r: f64[]) -> f64 where n - 4 >= 0 {
  for i in 0..t {
    %a: f64[n - 3] = slice %x, 0 {axis=0, size=n - 3, step=1}
    %b: f64[n - 3] = slice %x, 1 {axis=0, size=n - 3, step=1}
    %c: f64[n - 3] = slice %x, 2 {axis=0, size=n - 3, step=1}
    %d: f64[n - 3] = slice %x, 3 {axis=0, size=n - 3, step=1}
    %u: f64[n - 3] = subtract %a, %b
    %v: f64[n - 3] = subtract %b, %c
    %w: f64[n - 3] = subtract %c, %d
    %pu: f64[n - 3] = multiply %u, %p
    %qv: f64[n - 3] = multiply %v, %q
    %rw: f64[n - 3] = multiply %w, %r
    %s: f64[n - 3] = add %pu, %qv
    %y: f64[n - 3] = add %s, %rw
    %b <- %y
    yield
  }
  %t: f64 = sum %x {axis=(0,)}
  return %t
}
"""

# Overwrites a part that grows or shrinks, and reads what was there.
GROWING = """
traced @f(%x: f64[m,n]) -> f64 where n - 1 >= 0, m - 1 >= 0 {
  for i in RANGE {
    %a: f64[m,SIZE] = slice %x, 0 {axis=1, size=SIZE, step=1}
    %b: f64[m,SIZE] = cumsum %a {axis=1}
    %c: f64[m,SIZE] = multiply %b, %a
    %a <- %c
    yield
  }
  %s: f64 = sum %x {axis=(0, 1)}
  return %s
}
"""
RANGES = {
    "0..n": "i",
    "1..n + 1": "i",
    "0..n ": "n - i",
    "n - 1..-1 step -1": "i",
}


def joint_of(text: str) -> tuple[Func, Func]:
    f = functionalize(parse(text))
    joint = vjp(f, floats(f))
    verify(joint)
    return f, joint


def tapes(joint: Func) -> list[Value]:
    loops = [n for n in joint.nodes if n.op.kind is Kind.FOR]
    made = [v for n in loops for v in n.results]
    return [v for v in made if "_tape" in v.name or v.name.startswith("t.")]


def test_one_array_is_saved_instead_of_what_is_computed_from_it(
    rng: np.random.Generator,
) -> None:
    f, joint = joint_of(DIFFERENCES)
    (tape,) = tapes(joint)
    assert tape.type.shape[1:] == (dims.symbol("n"),)
    args = [rng.uniform(-1, 1, 7), *map(np.asarray, rng.uniform(-1, 1, 3))]
    for steps in (0, 1, 3):
        known = substitute(f, {Symbol("t"): steps})
        check_joint(known, vjp(known, floats(known)), args, steps)


@pytest.mark.parametrize("where", RANGES)
def test_entries_that_grow_lie_side_by_side(
    where: str, rng: np.random.Generator
) -> None:
    size = RANGES[where]
    f, joint = joint_of(GROWING.replace("RANGE", where).replace("SIZE", size))
    kernel = build(run_passes(joint, PIPELINES["lower"]))
    for n in (1, 2, 5):
        x = rng.uniform(-1, 1, (3, n))
        check_joint(f, joint, [x], n)
        sizes = {Symbol("m"): 3, N: n}
        bytes_of = [
            8 * int(np.prod([dims.evaluate(d, sizes) for d in v.type.shape]))
            for v in tapes(joint)
        ]
        assert max(bytes_of) <= 8 * 3 * n * (n + 1) // 2
        args = [x, np.float64(1.0), rng.uniform(-1, 1, x.shape)]
        want = run(joint, *copy.deepcopy(args))
        got = kernel(copy.deepcopy(args))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_second_derivative_and_limit_of_entries_that_grow(
    rng: np.random.Generator,
) -> None:
    text = GROWING.replace("RANGE", "0..n").replace("SIZE", "i")
    f, joint = joint_of(text)
    x = rng.uniform(-1, 1, (2, 6))
    second = vjp(joint, floats(joint))
    verify(second)
    args = [x, np.float64(0.7), rng.uniform(-1, 1, x.shape)]
    check_joint(joint, second, args, 6)
    sizes = {Symbol("m"): 2, N: 6}
    known = Known(sizes)
    within, _ = limited(f, floats(f), limit=600, sizes=known)
    want, got = (run(g, *copy.deepcopy(args)) for g in (joint, within))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
