"""Loops with much arithmetic: several vectors at a time, inline exponentials."""

import math
from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.codegen.large import LARGE
from retrograde.ir.text import parse
from retrograde.passes import manager
from retrograde.runtime import threads, vecmath


def program(count: int, dtype: str = "f64") -> str:
    """Return the text of a Func with `count` operations on each element."""
    lines = [f"func @f(%x: {dtype}[n]) -> ({dtype}[n], {dtype}) {{"]
    lines += [f"  %v0: {dtype}[n] = exp %x"]
    for k in range(1, count):
        op = "add" if k % 2 else "multiply"
        lines.append(f"  %v{k}: {dtype}[n] = {op} %v{k - 1}, 0.5")
    last = f"%v{count - 1}"
    lines.append(f"  %s: {dtype} = sum {last} {{axis=(0,), keepdims=False}}")
    return "\n".join([*lines, f"  return {last}, %s", "}"])


def kernel(count: int, dtype: str = "f64", precise: bool = False) -> Any:
    f = manager.run(parse(program(count, dtype)), manager.PIPELINES["lower"])
    return build(f, precise=precise)


def expected(x: Any, count: int) -> Any:
    y = np.exp(x)
    for k in range(1, count):
        y = y + 0.5 if k % 2 else y * 0.5
    return y


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("size", [0, 1, 7, 33, 1000])
def test_large_loop_of_any_size(dtype: str, size: int) -> None:
    x = np.random.default_rng(size).normal(size=size).astype("f8")
    x = x.astype({"f64": "f8", "f32": "f4"}[dtype])
    y, total = kernel(2 * LARGE, dtype)([x], [size])
    tolerance = 4 * np.finfo(x.dtype).eps
    np.testing.assert_allclose(y, expected(x, 2 * LARGE), rtol=tolerance)
    np.testing.assert_allclose(total, y.sum(dtype="f8"), rtol=tolerance)


@pytest.mark.parametrize(
    ("wide", "count", "vectors"),
    [(True, 2 * LARGE, 2), (True, LARGE // 2, 0), (False, LARGE // 2, 4)],
)
def test_vectors_in_turn_depend_on_their_width(
    wide: bool, count: int, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vecmath, "is_wide", lambda: wide)
    source = kernel(count).source
    assert (f"in interleaved({vectors}, " in source) == (vectors > 0)
    assert ("inline_exp(" in source) == (vectors > 0)


@pytest.mark.parametrize(
    ("text", "large"),
    [
        ("  %t: f64[n] = exp %x\n  %u: f64[n] = exp %t\n  %y: f64[n] = exp %u", True),
        ("  %y: f64[n] = multiply %x, %x", False),  # bound by memory
        ("  %t: f64[n] = add %x, 1.0\n  %y: f64[n] = divide %t, %x", False),
    ],
)
def test_short_vectors_are_in_turn_where_arithmetic_is_the_bound(
    text: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vecmath, "is_wide", lambda: False)
    head = "func @f(%x: f64[n]) -> f64 {\n"
    tail = "\n  %s: f64 = sum %y {axis=(0,), keepdims=False}\n  return %s\n}"
    f = manager.run(parse(head + text + tail), manager.PIPELINES["lower"])
    assert ("interleaved" in build(f).source) == large


def test_precise_exponentials_stay_those_of_the_c_library() -> None:
    x = np.linspace(-700, 700, 501)
    y, _ = kernel(2 * LARGE, precise=True)([x], [x.size])
    first = np.array([math.exp(v) for v in x])
    for k in range(1, 2 * LARGE):
        first = first + 0.5 if k % 2 else first * 0.5
    np.testing.assert_array_equal(y, first)


def test_special_values_in_large_loops() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 800.0, -800.0, 1e-320] * 9)
    y, _ = kernel(2 * LARGE)([x], [x.size])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y, expected(x, 2 * LARGE), rtol=1e-15)


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_bits_do_not_depend_on_threads(dtype: str) -> None:
    x = np.linspace(-3, 3, 100_003).astype({"f64": "f8", "f32": "f4"}[dtype])
    compiled = kernel(2 * LARGE, dtype)
    before = threads.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            y, total = compiled([x], [x.size])
            found.append((y.tobytes(), total.tobytes()))
    finally:
        threads.set_num_threads(before)
    assert found[0] == found[1] == found[2]
