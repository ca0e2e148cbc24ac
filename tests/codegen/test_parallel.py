"""Loops in chunks compute what the loop computes, the same bits on any thread count.

Chunks are made as small as they can be, and run in the wrong order: what one iteration
leaves for another one would be seen at any size, and without a race.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import COMMON, close
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import retrograde as rg
from retrograde.codegen import build, nests, parallel
from retrograde.codegen.kernels import at
from retrograde.ir import dims
from retrograde.ir.errors import UnsupportedError
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.passes.cancel import cancel
from retrograde.passes.functionalize import functionalize
from retrograde.passes.fuse import fuse
from retrograde.passes.inline import inline
from retrograde.passes.reinplace import reinplace
from retrograde.passes.unnest import unnest
from retrograde.passes.vjp import vjp
from retrograde.runtime import threads

sys.path.append(str(Path(__file__).parent.parent / "passes"))
from programs import arguments, program

THREADS = (1, 2, 3, 8)
parallelise = parallel.parallelise


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[nests.Program]:
    """Give every iteration a chunk; run the last one first; return the programs."""
    found: list[nests.Program] = []

    def backward(p: nests.Program) -> None:
        parallelise(p)
        found.append(p)
        for s in nests.every(p.body):
            if isinstance(s, nests.Parallel):
                q = dims.symbol(f"_q{s.index.name[1:]}")
                index = dims.as_symbol(q)
                assert index is not None
                last = dims.add(dims.add(s.count, -1), dims.mul(q, -1))
                s.body.insert(0, nests.Bind(s.index, at(last)))
                s.index = index

    monkeypatch.setattr(parallel, "parallelise", backward)
    monkeypatch.setattr(parallel, "GRAIN", 1)
    monkeypatch.setattr(parallel, "UNIT", 1)
    return found


def parts_in(programs: list[nests.Program]) -> int:
    return sum(
        isinstance(s, nests.Parallel) for p in programs for s in nests.every(p.body)
    )


def same_bits(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def on_all(call: Callable[[], list[Any]]) -> list[Any]:
    """Return the results of a call, which are the same for any number of threads."""
    threads.set_num_threads(1)
    want = copy.deepcopy(call())
    for n in THREADS[1:]:
        threads.set_num_threads(n)
        assert same_bits(call(), want)
    return want


def case(seed: int, size: int, joint: bool) -> tuple[Func, list[Any], Any]:
    """Return a random Func, or its joint Func, arguments, and results or an error."""
    f = functionalize(program(seed, size))
    args = arguments(f, seed)
    if joint:
        results = run(f, *copy.deepcopy(args))
        floats = [k for k, p in enumerate(f.params) if p.type.is_inexact]
        f = vjp(f, floats)
        rng = np.random.default_rng(seed)
        for r in map(np.asarray, results):
            if r.dtype.kind == "f":
                ct = rng.uniform(-1, 1, r.shape)
                args.append(ct if r.shape else np.float64(ct))
    try:
        return f, args, run(f, *copy.deepcopy(args))
    except rg.RetrogradeError as error:
        return f, args, type(error)


def test_random_programs_agree_with_the_interpreter(tiny: list[nests.Program]) -> None:
    @settings(COMMON, max_examples=6)
    @given(st.integers(0, 10**9), st.integers(1, 12), st.booleans())
    @example(1583, 9, True)  # a constant and an index of chunks had one name
    def check(seed: int, size: int, joint: bool) -> None:
        try:
            f, args, want = case(seed, size, joint)
            for step in (unnest, cancel, fuse, inline, reinplace):
                f = step(f)
            kernel = build(f, name="f")
        except UnsupportedError:
            assume(False)
            raise
        if isinstance(want, type):
            for n in THREADS:
                threads.set_num_threads(n)
                with pytest.raises(want):
                    kernel(copy.deepcopy(args))
            return
        got = on_all(lambda: kernel(copy.deepcopy(args)))
        for k, (x, y) in enumerate(zip(got, want, strict=True)):
            close(x, y, f"result {k}")

    check()
    assert parts_in(tiny) > 25


# NumPy programs ---------------------------------------------------------------------


def folds(x: Any, y: Any) -> Any:
    return (
        np.sum(x * y),
        np.max(x),
        np.min(x * y),
        np.any(x > 0.9),
        np.all(x > -2.0),
        np.sum(x > 0),
        np.prod((4 * x).astype(np.int64)),
    )


def columns(x: Any, y: Any) -> Any:
    return np.sum(x * y, axis=0), np.max(x, axis=0), np.sum(x * x, axis=1), np.min(y)


def rows(x: Any, y: Any) -> Any:
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True) + y, np.mean(x, axis=0)


def turned(x: Any, y: Any) -> Any:
    z = np.empty((x.shape[1], x.shape[0]))
    z[:] = (x * y).T
    z[1:, ::2] += 1.0
    return z, z[::-1] * 2.0


def in_place(x: Any, y: Any) -> Any:
    x[1:-1, 1:-1] = 0.25 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])
    x[0] += y[1]
    x[1:] -= x[:-1]
    x[:, :-1] *= 0.5
    return x


def steps(x: Any, y: Any) -> Any:
    for _ in range(3):
        x[1:-1, 1:-1] = y[1:-1, 1:-1] * (x[:-2, 1:-1] + x[2:, 1:-1])
        x[:, 0] = x[:, 1]
        y = y + 0.1 * x
    return np.sum(x * y), x


def picked(x: Any, y: Any) -> Any:
    k = np.arange(x.shape[0])[::-1]
    z = x[k] * y
    z[k[:2]] = 0.0
    return z, np.sum(x[y > 0.0])


PROGRAMS = (folds, columns, rows, turned, in_place, steps, picked)


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("shape", [(7, 5), (3, 9)])
def test_programs_are_numpys(
    tiny: list[nests.Program], f: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    args = list(rng.uniform(-1.0, 1.0, (2, *shape)))
    want = f(*copy.deepcopy(args))
    compiled = rg.compile(f)
    got = on_all(lambda: flat(compiled(*copy.deepcopy(args))))
    for k, (a, b) in enumerate(zip(got, flat(want), strict=True)):
        close(a, b, f"result {k}")
    assert parts_in(tiny)


@pytest.mark.parametrize("f", [columns, rows, in_place, steps, picked])
def test_gradients_are_those_of_eager_mode(
    tiny: list[nests.Program], f: Callable[..., Any]
) -> None:
    def loss(x: Any, y: Any) -> Any:
        total = 0.0
        for k, r in enumerate(flat(f(x * 1.0, y * 1.0))):
            total = total + np.sum(np.sin(r + k))
        return total

    rng = np.random.default_rng(4)
    args = list(rng.uniform(-1.0, 1.0, (2, 6, 5)))
    value, grads = rg.value_and_grad(loss, argnums=(0, 1))(*args)
    compiled = rg.value_and_grad(rg.compile(loss), argnums=(0, 1))

    def call() -> list[Any]:
        v, g = compiled(*args)
        return [v, *g]

    got = on_all(call)
    for k, (a, b) in enumerate(zip(got, [value, *grads], strict=True)):
        close(a, b, f"result {k}")
    assert parts_in(tiny)


def flat(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def outside(x: Any, k: Any) -> Any:
    return x[k] * 2.0


def test_an_index_out_of_range_is_found_in_any_chunk(tiny: list[nests.Program]) -> None:
    f = rg.compile(outside)
    k = np.arange(9)
    for n in THREADS:
        threads.set_num_threads(n)
        assert np.array_equal(f(np.ones(9), k), np.full(9, 2.0))
        with pytest.raises(rg.RetrogradeError, match="out of bounds"):
            f(np.ones(8), k)
    assert parts_in(tiny)


# Sizes ------------------------------------------------------------------------------


def chain(x: Any, y: Any) -> Any:
    t = np.exp(-x * x) * y
    return np.sum(t / (1 + np.exp(-t)) + np.tanh(x))


def test_large_and_small_arrays_have_variants() -> None:
    both = rg.value_and_grad(rg.compile(chain), argnums=(0, 1))
    rng = np.random.default_rng(5)
    for n in (3, 100_000, 4, 30_001, 0, 1, 100_000):
        x, y = rng.standard_normal((2, n))

        def call(x: Any = x, y: Any = y) -> list[Any]:
            value, grads = both(x, y)
            return [value, *grads]

        got = on_all(call)
        eager, grads = rg.value_and_grad(chain, argnums=(0, 1))(x, y)
        for k, (a, b) in enumerate(zip(got, [eager, *grads], strict=True)):
            close(a, b, f"result {k} of {n} elements")


def test_the_first_call_decides_which_variant_is_compiled() -> None:
    f = rg.compile(chain)
    f(np.ones(100_000), np.ones(100_000))
    assert "parallel" in f.specialisation(np.ones(3), np.ones(3)).program.kernel.nests
    g = rg.compile(chain)
    g(np.ones(3), np.ones(3))
    nests_of = g.specialisation(np.ones(3), np.ones(3)).program.kernel.nests
    assert "parallel" not in nests_of


def test_loops_that_are_tied_stay() -> None:
    @rg.compile
    def f(x: Any) -> Any:
        return np.cumsum(x), np.prod(x)

    x = np.random.default_rng(6).uniform(0.9, 1.1, 200_000)
    sums, product = f(x)
    close(sums, np.cumsum(x), "sums")
    close(product, np.prod(x), "product")


def test_several_python_threads_call_the_same_and_other_functions() -> None:
    def stencil(x: Any, y: Any) -> Any:
        for _ in range(3):
            x[1:-1] = y[1:-1] + 0.5 * (x[:-2] + x[2:])
        return np.sum(x, axis=0), x

    both = rg.value_and_grad(rg.compile(chain), argnums=(0, 1))
    other = rg.compile(stencil)
    rng = np.random.default_rng(8)
    threads.set_num_threads(4)
    cases = [rng.standard_normal((2, 300, 300)) for _ in range(8)]

    def call(k: int) -> list[Any]:
        x, y = (a.copy() for a in cases[k])
        value, grads = both(x, y)
        return [value, *grads, *other(x, y)]

    want = [copy.deepcopy(call(k)) for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for k, got in enumerate(pool.map(call, range(8))):
                assert same_bits(got, want[k]), k
