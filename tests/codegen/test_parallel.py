"""Loops in chunks compute what the loop computes, the same bits on any thread count.

Chunks are made as small as they can be, and run in the wrong order: what one iteration
leaves for another one would be seen at any size, and without a race.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import COMMON, close
from hypothesis import assume, given, settings
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
    @settings(COMMON, max_examples=25)
    @given(st.integers(0, 10**9), st.integers(1, 12), st.booleans())
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
