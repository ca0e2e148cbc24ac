"""Arrays that are put together from slices are computed part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir import interp
from retrograde.ir.text import parse, show
from retrograde.ir.verify import verify
from retrograde.passes.parts import parts


def even_and_odd(x: Any, y: Any) -> Any:
    out = np.zeros_like(x)
    out[::2] = np.exp(-x[::2]) * y[::2]
    out[1::2] = x[1::2] * y[1::2]
    return np.sum(out * x)


def thirds(x: Any, y: Any) -> Any:
    out = np.empty_like(x)
    out[2::3] = x[2::3]
    out[::3] = y[::3] * 2.0
    out[1::3] = np.sin(x[1::3])
    return np.sum(out * y)


def two_halves(x: Any, y: Any) -> Any:
    k = x.shape[0] // 2
    out = np.zeros_like(x)
    out[:k] = x[:k] * y[:k]
    out[k:] = np.sin(x[k:])
    return np.sum(out * out)


def part_of_a_part(x: Any, y: Any) -> Any:
    out = np.zeros_like(x)
    out[1:] = x[1:] * y[1:]
    out[2:-1] += y[2:-1]
    return np.sum(np.exp(out))


def inner_points(x: Any, y: Any) -> Any:
    x[1:-1] += y[1:-1] * (x[2:] - 2 * x[1:-1] + x[:-2])
    return np.sum(x * x)


def rows_of_a_matrix(x: Any, y: Any) -> Any:
    out = np.zeros((3, x.shape[0]))
    out[0:1] = x
    out[1:] = np.outer(y[:2], x)
    return np.sum(np.sum(np.sin(out), axis=1) * np.array([1.0, 2.0, 3.0]))


def joined(x: Any, y: Any) -> Any:
    return np.sum(np.tanh(np.concatenate([x * y, y])) ** 2)


def needed_whole(x: Any, y: Any) -> Any:
    out = np.zeros_like(x)
    out[1:] = np.sin(x[1:])
    return np.sum(out * out) + out @ y + np.max(out * y)


def written_again(x: Any, y: Any) -> Any:
    out = np.full_like(x, 2.0)
    out[1:-1] = x[1:-1]
    first = np.sum(out * y)
    out[1:-1] += y[1:-1]
    return first + np.sum(out * x)


PROGRAMS = [
    even_and_odd,
    thirds,
    two_halves,
    part_of_a_part,
    inner_points,
    rows_of_a_matrix,
    joined,
    needed_whole,
    written_again,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_gradients(program: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    both = rg.value_and_grad(rg.compile(program), argnums=(0, 1))
    for n in (4, 5, 6, 7, 21, 600):
        x, y = rng.normal(size=(2, n))
        value, grads = both(x.copy(), y.copy())
        assert value == pytest.approx(program(x.copy(), y.copy()), rel=1e-12)
        want = rg.value_and_grad(program, argnums=(0, 1))(x.copy(), y.copy())
        for a, b in zip(grads, want[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("program", [even_and_odd, two_halves, joined])
def test_few_elements(program: Callable[..., Any], n: int) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, n))
    assert rg.compile(program)(x, y) == pytest.approx(program(x, y), abs=1e-14)


def test_no_pass_stores_zeros_or_copies() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 1000))
    for program, loops in ((even_and_odd, 2), (inner_points, 2)):
        both = rg.value_and_grad(rg.compile(program), argnums=(0, 1))
        nests = both.sections(x, y)["nests"]
        assert "move" not in nests
        assert "fill" not in nests
        long = [s for s in nests.splitlines() if "for " in s and "..2" not in s]
        assert len(long) == loops, nests


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # A maximum needs the whole: nothing is split for the sum alone.
        (
            """func @f(%x: f64[n], %a: f64[m]) -> (f64, f64) where n - m - 1 >= 0 {
              %p: f64[n] = slice_scatter %x, %a, 1 {axis=0, size=m, step=1}
              %y: f64[n] = multiply %p, 2.0
              %s: f64 = sum %y {axis=(0,), keepdims=False}
              %t: f64 = max %y {axis=(0,), keepdims=False}
              return %s, %t
            }""",
            1,
        ),
        # Nobody knows that the slice lies inside.
        (
            """func @f(%x: f64[n], %a: f64[m]) -> f64 {
              %p: f64[n] = slice_scatter %x, %a, 1 {axis=0, size=m, step=1}
              %s: f64 = sum %p {axis=(0,), keepdims=False}
              return %s
            }""",
            1,
        ),
        (
            """func @f(%x: f64[n], %a: f64[m]) -> f64 where n - m - 1 >= 0 {
              %p: f64[n] = slice_scatter %x, %a, 1 {axis=0, size=m, step=1}
              %s: f64 = sum %p {axis=(0,), keepdims=False}
              return %s
            }""",
            3,
        ),
        # A parameter that is updated keeps its buffer.
        (
            """func @f(%x: f64[n], %a: f64[m]) -> (f64, f64[n] into %x)
            where n - m - 1 >= 0 {
              %p: f64[n] = slice_scatter %x, %a, 1 {axis=0, size=m, step=1}
              %s: f64 = sum %p {axis=(0,), keepdims=False}
              return %s, %p
            }""",
            1,
        ),
    ],
)
def test_what_is_split(text: str, count: int) -> None:
    f = parse(text.replace("\n            where", " where"))
    g = parts(f)
    verify(g)
    assert show(g).count("= sum") == count
    x, a = np.random.default_rng(0).normal(size=(2, 9))
    for size in (0, 1, 5):
        want = interp.run(f, x.copy(), a[:size])
        got = interp.run(g, x.copy(), a[:size])
        for u, v in zip(got, want, strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-14)


def _random_func(rng: np.random.Generator, n: int) -> str:
    """Return a program of writes into slices of an array and what is made of it."""
    at, size = "%x", f"f64[{n}]"
    lines: list[str] = []
    if rng.random() < 0.6:
        value = rng.choice(["0.0", "1.5"])
        lines.append(f"%z: {size} = full {value} {{dtype=f64, shape=({n},)}}")
        at = "%z"
    arrays = [at, "%y"]
    sums = []
    for k in range(rng.integers(4, 9)):
        match rng.integers(4):
            case 0 | 1:
                step = int(rng.choice([1, 1, 2, 3]))
                start = int(rng.integers(0, step if step > 1 else n))
                most = (n - start + step - 1) // step
                count = most if step > 1 else int(rng.integers(0, most + 1))
                attrs = f"{{axis=0, size={count}, step={step}}}"
                new = rng.choice(["3.0", f"%v{k}"])
                lines.append(f"%v{k}: f64[{count}] = slice %y, {start} {attrs}")
                op = rng.choice(["slice_scatter", "slice_scatter_add"])
                lines.append(f"%a{k}: {size} = {op} {at}, {new}, {start} {attrs}")
                at = f"%a{k}"
                arrays.append(at)
            case 2:
                x, y = rng.choice(arrays, 2)
                lines.append(f"%e{k}: {size} = multiply {x}, {y}")
                arrays.append(f"%e{k}")
            case _:
                op = rng.choice(["sum", "sum", "max"])
                x = rng.choice(arrays)
                lines.append(f"%s{k}: f64 = {op} {x} {{axis=(0,), keepdims=False}}")
                sums.append(f"%s{k}")
    results = [*sums, *rng.choice(arrays, 2)]
    types = ["f64"] * len(sums) + [size] * 2
    head = f"func @f(%x: {size}, %y: {size}) -> ({', '.join(types)}) {{"
    return "\n  ".join([head, *lines, f"return {', '.join(results)}"]) + "\n}"


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n in (1, 2, 5, 6):
        f = parse(_random_func(rng, n))
        g = parts(f)
        verify(g)
        args = [*rng.normal(size=(2, n))]
        want, got = interp.run(f, *args), interp.run(g, *args)
        for u, v in zip(got, want, strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-13, atol=1e-15, err_msg=show(f))
