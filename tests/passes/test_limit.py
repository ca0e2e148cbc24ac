"""Gradients within a memory limit: the same bits, and the tapes that were promised."""

import numpy as np
import pytest
from differences import check_joint, floats

from retrograde.ir import dims
from retrograde.ir.dims import Symbol
from retrograde.ir.errors import MemoryLimitError
from retrograde.ir.func import Block, Func, substitute
from retrograde.ir.interp import equal_results, run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.functionalize import functionalize
from retrograde.passes.limit import Known, limited, total
from retrograde.passes.vjp import differentiated, vjp

LOGISTIC = """
traced @f[t](%x: f64[n], %r: f64[n]) -> f64 where n - 2 >= 0 {
  for i in RANGE {
    %a: f64[n] = subtract 1.0, %x
    %b: f64[n] = multiply %x, %a
    %c: f64[n] = multiply %b, %r
    %d: f64[n] = sin %c
    %x <- %d
    yield
  }
  %s: f64 = sum %x {axis=(0,)}
  return %s
}
"""
RANGES = {
    "up": "0..t",
    "from 2": "2..t + 2",
    "by 3": "1..3*t step 3",
    "down": "t - 1..-1 step -1",
    "down by 2": "2*t..0 step -2",
}
T, N = Symbol("t"), Symbol("n")


def logistic(where: str) -> Func:
    return functionalize(parse(LOGISTIC.replace("RANGE", RANGES[where])))


def within(f: Func, limit: int, sizes: dict[Symbol, int]) -> Func:
    known = Known(sizes)
    joint, tapes = limited(f, floats(f), limit=limit, sizes=known)
    verify(joint)
    assert dims.evaluate(total(tapes), sizes) <= limit
    assert all(dims.evaluate(e, sizes) >= 0 for e in known.facts)
    return joint


def depth(block: Block) -> int:
    """Return how deep loops are nested."""
    loops = (n.op.kind is Kind.FOR for n in block.nodes)
    inner = (max(map(depth, n.regions), default=0) for n in block.nodes)
    return max((a + b for a, b in zip(loops, inner, strict=True)), default=0)


@pytest.mark.parametrize("where", RANGES)
@pytest.mark.parametrize(("levels", "entries"), [(2, 20), (3, 15), (4, 13)])
def test_blocks_give_the_same_bits(
    where: str, levels: int, entries: int, rng: np.random.Generator
) -> None:
    f = logistic(where)
    plain, joint = vjp(f, floats(f)), within(f, 16 * entries, {T: 100, N: 2})
    assert depth(joint.body) == levels
    args = [rng.uniform(0, 1, 2), rng.uniform(1, 2, 2), np.float64(1.5), np.ones(2)]
    for t in (0, 1, 2, 7, 8, 9, 16, 31, 60, 100, 131):
        want = run(plain, *args, symbols={T: t})
        assert equal_results(run(joint, *args, symbols={T: t}), want), t


def test_a_tape_that_fits_is_left_alone() -> None:
    f = logistic("up")
    plain = vjp(f, floats(f))
    assert within(f, 1600, {T: 100, N: 2}) == plain
    assert within(f, 1599, {T: 100, N: 2}) != plain


@pytest.mark.parametrize("trips", [10, 100, 1000, 10**6])
def test_the_least_limit_that_an_error_names_is_enough(trips: int) -> None:
    f, sizes = logistic("up"), {T: trips, N: 7}
    with pytest.raises(MemoryLimitError) as caught:
        within(f, 56 * 5, sizes)
    error = caught.value
    assert error.what == (
        "memory_limit: 280 bytes are too few for the tape of this loop: it takes "
        f"{56 * trips} bytes"
    )
    least = int(error.hint.split()[3])
    assert error.hint == f"a limit of {least} bytes would do"
    within(f, least, sizes)
    with pytest.raises(MemoryLimitError):
        within(f, least - 1, sizes)


def test_a_program_serves_all_trip_counts_that_its_blocks_allow() -> None:
    f = logistic("up")
    limit, n = 16 * 200, 2
    joints = {str(within(f, limit, {T: t, N: n})) for t in (201, 1000, 5000, 9999)}
    assert len(joints) == 1
    assert str(within(f, limit, {T: 10**4 + 1, N: n})) not in joints


PROGRAMS = {
    "nested": """
    func @f[t](%x: f64[n], %w: f64[n]) -> f64[n] where n - 2 >= 0 {
      %r: f64[n] = for s in 0..t carry(%c: f64[n] = %x) {
        %d: f64[n] = for i in 1..n carry(%e: f64[n] = %c) {
          %p: f64[] = select %e, i - 1 {axis=0}
          %q: f64[] = select %e, i {axis=0}
          %k: f64[] = select %w, i {axis=0}
          %m: f64 = multiply %p, %q
          %o: f64 = multiply %m, %k
          %u: f64 = sin %o
          %v: f64[n] = select_scatter %e, %u, i {axis=0}
          yield %v
        }
        yield %d
      }
      return %r
    }""",
    "triangle": """
    func @f[t](%x: f64[n], %w: f64[n]) -> f64[n] where n - 2 >= 0 {
      %r: f64[n] = for s in 0..t carry(%c: f64[n] = %x) {
        %d: f64[n] = for i in 0..s carry(%e: f64[n] = %c) {
          %u: f64[n] = sin %e
          %v: f64[n] = multiply %u, %w
          yield %v
        }
        yield %d
      }
      return %r
    }""",
    "growing sizes": """
    func @f[t](%x: f64[n], %w: f64[n]) -> f64[n] where n - 3 >= 0, 3 - n >= 0, t >= 0 {
      %e: f64[t + 3] = full 0.5 {dtype=f64, shape=(t + 3,)}
      %b: f64[t + 3] = slice_scatter %e, %x, 0 {axis=0, size=n, step=1}
      %r: f64[t + 3] = for s in n..t + 3 carry(%c: f64[t + 3] = %b) {
        %p: f64[s] = slice %c, 0 {axis=0, size=s, step=1}
        %q: f64[s] = sin %p
        %u: f64[s] = cos %q
        %m: f64[s] = multiply %q, %u
        %h: f64 = sum %m {axis=(0,)}
        %k: f64 = tanh %h
        %d: f64[t + 3] = select_scatter %c, %k, s {axis=0}
        %v: f64[s] = slice %d, 1 {axis=0, size=s, step=1}
        %v2: f64[s] = multiply %v, 1.01
        %g: f64[t + 3] = slice_scatter %d, %v2, 0 {axis=0, size=s, step=1}
        yield %g
      }
      %z: f64[n] = slice %r, t {axis=0, size=n, step=1}
      %y: f64[n] = multiply %z, %w
      return %y
    }""",
    "several carries": """
    func @f[t](%x: f64[n], %w: f64[n]) -> f64[n] where n - 2 >= 0 {
      %r: f64[n], %q: f64[n], %k: f64[n], %h: f64 = for s in 0..t \
carry(%a: f64[n] = %x, %b: f64[n] = %w, %fixed: f64[n] = %w, %z: f64 = 1.0) {
        %c: f64[n] = multiply %b, %fixed
        %d: f64[n] = sin %c
        %e: f64 = multiply %z, 0.9
        %g: f64[n] = multiply %d, %e
        yield %b, %g, %fixed, %e
      }
      %y: f64[n] = multiply %q, %r
      %y2: f64[n] = multiply %y, %h
      return %y2
    }""",
    "branch": """
    func @f[t](%x: f64[n], %w: f64[n]) -> f64[n] where n - 2 >= 0 {
      %v: f64[] = select %x, 0 {axis=0}
      %test: bool = greater %v, -10.0
      %r: f64[n] = cond %test {
        %y: f64[n] = for s in 0..t carry(%c: f64[n] = %x) {
          %u: f64[n] = sin %c
          %m: f64[n] = multiply %u, %w
          yield %m
        }
        yield %y
      } else {
        yield %x
      }
      %z: f64[n] = checkpoint {
        %y2: f64[n] = for s in 0..t carry(%c2: f64[n] = %r) {
          %u2: f64[n] = tanh %c2
          %m2: f64[n] = multiply %u2, %w
          yield %m2
        }
        yield %y2
      }
      return %z
    }""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_within_a_limit(name: str, rng: np.random.Generator) -> None:
    f = parse(PROGRAMS[name])
    verify(f)
    sizes = {T: 40, N: 3}
    plain, tapes = differentiated(f, floats(f))
    joint = within(f, dims.evaluate(total(tapes), sizes) // 2, sizes)
    assert depth(joint.body) > depth(plain.body)
    args = [rng.uniform(0.5, 1, 3), rng.uniform(0.5, 1.5, 3), rng.uniform(0, 1, 3)]
    for t in (0, 1, 5, 40):
        want = run(plain, *args, symbols={T: t})
        assert equal_results(run(joint, *args, symbols={T: t}), want), t


def test_second_derivatives_through_blocks(rng: np.random.Generator) -> None:
    f = substitute(parse(PROGRAMS["several carries"]), {T: 60})
    _, tapes = differentiated(f, floats(f))
    joint = within(f, dims.evaluate(total(tapes), {N: 3}) // 2, {N: 3})
    assert depth(joint.body) == 2
    args = [rng.uniform(0.5, 1, 3), rng.uniform(0.5, 1.5, 3), rng.uniform(0, 1, 3)]
    second, tapes = differentiated(joint, floats(joint))
    check_joint(joint, second, args, 1)
    args += [np.ones_like(r) for r in run(joint, *args)]
    want = run(second, *args)
    limit = dims.evaluate(total(tapes), {N: 3}) - 100
    assert equal_results(run(within(joint, limit, {N: 3}), *args), want)
