"""The reverse of loops: right gradients, and no more memory than is needed."""

import copy
from typing import Any

import numpy as np
import pytest
from differences import check_joint, floats
from traced_loops import LOOPS, arguments, program

from retrograde.codegen import build
from retrograde.ir import dims
from retrograde.ir.dims import Symbol
from retrograde.ir.errors import IRError
from retrograde.ir.func import Block, Func, Node, Value, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.partition import partition
from retrograde.passes.vjp import vjp

# Megabytes of tapes at n = 300 (lstm: 100 steps).
MEGABYTES = {
    "prefix": 0.0,
    "cholesky": 0.0,
    "cholesky_by_elements": 0.0,
    "trisolv": 0.0,
    "durbin": 0.37,
    "lu": 0.0,
    "lu_by_rows": 0.0,
    "lu_pivoting": 1.5,
    "seidel_2d": 0.0,
    "seidel_nonlinear": 2.2,
    "gramschmidt": 217.0,  # every column, before each of its updates
    "floyd_warshall": 81.0,  # bytes, not floats
    "adi": 8.7,
    "jacobi_nonlinear": 0.0075,
    "nbody": 3.0,
    "lstm": 1.5,
}


def pure(name: str) -> Func:
    return run_passes(program(name), PIPELINES["pure"])


def joint_of(f: Func) -> Func:
    joint = vjp(f, floats(f))
    verify(joint)
    joint = run_passes(joint, PIPELINES["optimize"])
    verify(joint)
    return joint


def cotangents(f: Func, args: list[Any], rng: np.random.Generator) -> list[Any]:
    out = run(f, *copy.deepcopy(args))
    return [
        rng.uniform(-1, 1, r.shape) if r.shape else np.float64(rng.uniform(-1, 1))
        for r in map(np.asarray, out)
    ]


@pytest.mark.parametrize("name", LOOPS)
def test_gradients_of_loops_are_differences(
    name: str, rng: np.random.Generator
) -> None:
    f = pure(name)
    joint = joint_of(f)
    for n in (2, 3, 6) if f.facts.known else (1, 2, 3, 6):
        check_joint(f, joint, arguments(f, rng, n=n, t=n - 1), n)


@pytest.mark.parametrize("name", LOOPS)
def test_second_derivatives_of_loops(name: str, rng: np.random.Generator) -> None:
    f = pure(name)
    joint = joint_of(f)
    second = vjp(joint, floats(joint))
    verify(second)
    for n in (2, 3):
        args = arguments(f, rng, n=n, t=n)
        check_joint(joint, second, args + cotangents(f, args, rng), n)


@pytest.mark.parametrize("name", LOOPS)
def test_a_pullback_may_be_called_twice(name: str, rng: np.random.Generator) -> None:
    f = pure(name)
    count = len(f.results)
    forward, backward = partition(vjp(f, floats(f)), count)
    args = arguments(f, rng, n=4, t=3)
    cts = cotangents(f, args, rng)
    saved = run(forward, *copy.deepcopy(args))[count:]
    kept = copy.deepcopy(saved)
    sizes = {Symbol("n"): 4, Symbol("t"): 3}
    symbols = {s: sizes[s] for s in backward.symbols}
    first = run(backward, *saved, *cts, symbols=symbols)
    for a, b in zip(saved, kept, strict=True):
        np.testing.assert_array_equal(a, b)
    again = run(backward, *saved, *cts, symbols=symbols)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


def tapes(joint: Func) -> list[Value]:
    loops = [n for n in joint.nodes if n.op.kind in (Kind.FOR, Kind.WHILE)]
    return [v for n in loops for v in n.results if "_tape" in v.name]


@pytest.mark.parametrize("name", LOOPS)
def test_tapes_are_as_small_as_they_can_be(name: str) -> None:
    sizes = {Symbol("n"): 300, Symbol("t"): 100}
    found = sum(
        dims.evaluate(v.type.size, sizes) * v.type.dtype.itemsize
        for v in tapes(joint_of(pure(name)))
    )
    assert found <= MEGABYTES[name] * 1e6


MATRICES = [
    name for name, text in LOOPS.items() if "[n,n]" in text and name != "floyd_warshall"
]


@pytest.mark.parametrize("name", MATRICES)
def test_no_iteration_of_the_reverse_makes_a_matrix(name: str) -> None:
    """Only parts of the carried cotangents are read and written."""

    def inside(block: Block, depth: int = 0) -> list[Node]:
        found = []
        for node in block.nodes:
            if depth:
                found.append(node)
            for region in node.regions:
                found += inside(region, depth + 1)
        return found

    joint = joint_of(pure(name))
    allowed = (Kind.SCATTER, Kind.FOR, Kind.WHILE, Kind.COND, Kind.VIEW)
    for node in inside(joint.body):
        for v in node.results:
            whole = [str(d) for d in v.type.shape] == ["n", "n"]
            assert not whole or node.op.kind in allowed, node


@pytest.mark.parametrize("name", ["prefix", "seidel_nonlinear", "jacobi_nonlinear"])
def test_compiled_reverse_loops_agree(name: str, rng: np.random.Generator) -> None:
    f = pure(name)
    joint = joint_of(f)
    kernel = build(run_passes(joint, PIPELINES["lower"]))
    for n in (3, 6):
        args = arguments(f, rng, n=n)
        args += cotangents(f, args, rng)
        got = kernel(copy.deepcopy(args))
        want = run(joint, *copy.deepcopy(args))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- overwritten parts

OVERWRITTEN = {
    # What is read has been overwritten at the end: the old value must be saved.
    "same element": """
traced @f(%x: f64[n]) -> f64[n] {
  for i in 1..n {
    %p: f64[] &%x = select %x, i - 1 {axis=0}
    %v: f64[] &%x = select %x, i {axis=0}
    %t: f64 = multiply %p, %v
    %v <- %t
    yield
  }
  return %x
}""",
    # A later iteration writes what this one reads.
    "read ahead": """
traced @f(%x: f64[n]) -> f64[n] {
  for i in 0..n - 1 {
    %p: f64[] &%x = select %x, i + 1 {axis=0}
    %v: f64[] &%x = select %x, i {axis=0}
    %s: f64 = sin %p
    %t: f64 = multiply %s, %v
    %v <- %t
    yield
  }
  return %x
}""",
    # The same iteration writes it again, after it was read.
    "later in the iteration": """
traced @f(%x: f64[n]) -> f64[n] {
  for i in 1..n {
    %p: f64[] &%x = select %x, i - 1 {axis=0}
    %v: f64[] &%x = select %x, i {axis=0}
    %t: f64 = multiply %p, %v
    %v <- %t
    %q: f64[] &%x = select %x, i - 1 {axis=0}
    %u: f64 = multiply %q, 0.5
    %q <- %u
    yield
  }
  return %x
}""",
    # Downwards and by twos, the parts overlap.
    "overlapping parts": """
traced @f(%x: f64[n]) -> f64[n] {
  for i in n - 2..0 step -2 {
    %p: f64[n-i] &%x = slice %x, 0 {axis=0, size=n-i, step=1}
    %v: f64[n-i] &%x = slice %x, i {axis=0, size=n-i, step=1}
    %s: f64[n-i] = sin %p
    %t: f64[n-i] = multiply %s, %v
    %v <- %t
    yield
  }
  return %x
}""",
    # The row that is written is data.
    "computed index": """
traced @f(%x: f64[n,3], %k: i64) -> f64[n,3] {
  for i in 1..n {
    %r: f64[3] &%x = select %x, %k {axis=0}
    %p: f64[3] &%x = select %x, i {axis=0}
    %t: f64[3] = multiply %r, %p
    %r <- %t
    %w: f64[n,3] = sin %x
    %s: f64[3] = sum %w {axis=(0,)}
    %p <- %s
    yield
  }
  return %x
}""",
    # A branch writes a part, or none.
    "in a branch": """
traced @f(%x: f64[n]) -> f64[n] {
  for i in 1..n {
    %p: f64[] &%x = select %x, i - 1 {axis=0}
    %q: f64 = item %p
    %c: bool = greater %q, 0.2
    cond %c {
      %v: f64[] &%x = select %x, i {axis=0}
      %t: f64 = multiply %q, %v
      %v <- %t
      yield
    } else {
      %z: f64[] &%x = select %x, 0 {axis=0}
      %u: f64 = multiply %q, %z
      %z <- %u
      yield
    }
  }
  return %x
}""".replace("    }\n  }\n", "    }\n    yield\n  }\n"),
    # An inner loop overwrites rows that the outer one has read.
    "inner loop": """
traced @f(%x: f64[n,n]) -> f64[n,n] {
  for i in 0..n {
    for j in 0..n {
      %a: f64[n] &%x = select %x, i {axis=0}
      %b: f64[n] &%x = select %x, j {axis=0}
      %s: f64[n] = multiply %a, %b
      %t: f64[n] = sin %s
      %b <- %t
      yield
    }
    yield
  }
  return %x
}""",
}


@pytest.mark.parametrize("text", OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_overwritten_parts_are_saved(text: str, rng: np.random.Generator) -> None:
    f = run_passes(parse(text), PIPELINES["pure"])
    joint = joint_of(f)
    for n in (1, 2, 3, 4, 5):
        args: list[Any] = [rng.uniform(0.1, 0.9, arg.shape) for arg in shapes(f, n)]
        args += [np.int64(n // 2)] * (len(f.params) - len(args))
        check_joint(f, joint, args, n)


def shapes(f: Func, n: int) -> list[Any]:
    sizes = {Symbol("n"): n}
    found = [p for p in f.params if p.type.is_inexact]
    return [np.empty([dims.evaluate(d, sizes) for d in p.type.shape]) for p in found]


# ---------------------------------------------------------------- while

COUNTING = """
func @f(%x: f64[n], %k: f64) -> (f64[n], f64) {
  %r: f64[n], %s: f64 = while carry(%y: f64[n] = %x, %t: f64 = %k) {
    %c: bool = less %t, 4.0
    test %c
    %z: f64[n] = sin %y
    %v: f64[] = select %z, 0 {axis=0}
    %u: f64 = multiply %v, %t
    %w: f64[n] = select_scatter %z, %u, n - 1 {axis=0}
    %t2: f64 = add %t, 1.0
    yield %w, %t2
  }
  return %r, %s
}
"""
STACKS = """
func @f(%k: f64) -> (f64[q], f64[q,2], f64) {
  %t: f64, %a: f64[q], %b: f64[q,2] = while carry(%c: f64 = %k) {count=q} {
    %l: bool = less %c, 3.0
    test %l
    %p: f64[2] = full %c {dtype=f64, shape=(2,)}
    %d: f64 = add %c, 1.0
    yield %d, %c, %p
  }
  return %a, %b, %t
}
"""


@pytest.mark.parametrize("start", [0.5, 3.5, 9.0])
def test_a_while_runs_once_and_stacks(start: float, rng: np.random.Generator) -> None:
    f = parse(COUNTING)
    joint = joint_of(f)
    loops = [n for n in walk(joint.body) if n.op.kind is Kind.WHILE]
    assert len(loops) == 1
    args: list[Any] = [rng.uniform(0.2, 0.9, 3), np.float64(start)]
    check_joint(f, joint, args, 0)
    args += cotangents(f, args, rng)
    second = joint_of(joint)
    check_joint(joint, second, args, 1)


@pytest.mark.parametrize("start", [0.5, 2.5, 9.0, -20.0])
def test_stacks_grow_in_kernels(start: float) -> None:
    f = parse(STACKS)
    verify(f)
    assert parse(str(f)) == f
    want = run(f, np.float64(start))
    assert want[0].shape == (max(0, int(np.ceil(3 - start))),)
    kernel = build(run_passes(f, ["simplify", "cse", "dce", "fuse", "reinplace"]))
    for a, b in zip(kernel([np.float64(start)]), want, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.shape(a) == np.shape(b)


def test_stacks_of_a_while_that_nobody_reads_go() -> None:
    text = STACKS.replace("-> (f64[q], f64[q,2], f64)", "-> f64")
    f = parse(text.replace("return %a, %b, %t", "return %t"))
    (loop,) = run_passes(f, ["dce"]).nodes
    assert len(loop.results) == 1
    assert len(loop.regions[1].results) == 1


def test_stacks_without_a_count_are_refused() -> None:
    f = parse(STACKS.replace(" {count=q}", "").replace("[q", "[2"))
    with pytest.raises(IRError, match="stacks values defines their count"):
        verify(f)
