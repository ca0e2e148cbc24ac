"""The manager runs passes in order, verifies, dumps, and names the guilty one."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
from differences import check_joint, floats, is_callable
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import arguments
from test_vjp import pure_program

from retrograde.ir.errors import InternalError, UnsupportedError
from retrograde.ir.func import Block, Func
from retrograde.ir.interp import run as interpret
from retrograde.ir.text import parse
from retrograde.passes.manager import PASSES, PIPELINES, run
from retrograde.passes.vjp import vjp

TEXT = """
traced @f(%x: f64[n]) -> f64[n] {
  %y: f64[n] = power %x, 2.0
  %v: f64[] &%y = select %y, 0 {axis=0}
  %v <- 1.0
  return %y
}
"""


def test_passes_run_in_order_and_are_dumped() -> None:
    seen: list[str] = []
    f = run(
        parse(TEXT),
        PIPELINES["pure"],
        verify=True,
        dump=lambda name, func: seen.append(f"{name} {func.stage}"),
    )
    assert seen == [f"{name} func" for name in PIPELINES["pure"]]
    np.testing.assert_array_equal(interpret(f, np.array([3.0, 2.0]))[0], [1, 4])


def test_every_pipeline_names_passes() -> None:
    for names in PIPELINES.values():
        assert set(names) <= set(PASSES)


def broken(f: Func) -> Func:
    return Func(f.name, f.stage, Block((), f.nodes, f.results))


def failing(f: Func) -> Func:
    raise KeyError("lost")


@pytest.mark.parametrize("bad", [broken, failing])
def test_the_guilty_pass_is_named(bad: Callable[[Func], Func]) -> None:
    with pytest.raises(InternalError) as caught:
        run(
            parse(TEXT),
            ["functionalize", "cse", "bad"],
            verify=True,
            extra={"bad": bad},
        )
    text = str(caught.value)
    assert text.startswith("pass 'bad' (after functionalize, cse): ")
    assert "select_scatter" in text
    assert "RETROGRADE_VERIFY=1" in text


def test_errors_of_the_program_pass_through() -> None:
    f = parse("""
    traced @f(%c: bool, %x: f64[n], %y: f64[n]) -> f64[n] {
      %r: f64[n] = cond %c {
        yield %x
      } else {
        yield %y
      }
      %r <- 0.0
      return %x
    }""")
    with pytest.raises(UnsupportedError):
        run(f, ["functionalize"])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 12))
def test_gradients_through_whole_pipelines(seed: int, size: int) -> None:
    f = run(pure_program(seed, size), PIPELINES["optimize"], verify=True)
    extra = {"vjp": lambda g: vjp(g, floats(g))}
    names = ["vjp", *PIPELINES["optimize"]]
    joint = run(f, names, verify=True, extra=extra)
    assume(is_callable(joint))
    args = arguments(f, seed)
    check_joint(f, joint, copy.deepcopy(args), seed)
