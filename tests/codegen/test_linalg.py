"""Routines of linear algebra in kernels: NumPy's values, errors and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen import build
from retrograde.codegen.nests import Call, every
from retrograde.ir.errors import LinAlgError
from retrograde.ir.text import parse
from retrograde.passes import manager
from retrograde.passes.vjp import vjp

SIZES = (0, 1, 7, 70)
TOLERANCE = {"f8": 1e-9, "f4": 2e-3}


def solved(a: Any, b: Any, c: Any) -> Any:
    return (
        np.linalg.solve(a, b),
        np.linalg.solve(a.T, c),
        np.linalg.inv(a),
        np.linalg.det(a / 4),
        np.linalg.slogdet(a),
    )


def factored(a: Any, b: Any, c: Any) -> Any:
    k = a @ a.T + np.eye(len(a), dtype=a.dtype)
    low = np.linalg.cholesky(k)
    up = np.linalg.cholesky(k, upper=True)
    return low, up, np.linalg.solve(low, b), np.linalg.solve(low.T, c)


def matrices(n: int, dtype: str, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, n)) + 3 * np.eye(n)
    b, c = rng.normal(size=(n, 3)), rng.normal(size=n)
    return a.astype(dtype), b.astype(dtype), c.astype(dtype)


def layouts(a: Any, b: Any, c: Any) -> list[tuple[Any, Any, Any]]:
    n = len(a)
    apart = np.zeros((2 * n + 1, n + 2), a.dtype)[::2][:n, :n]
    apart[...] = a
    back = np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]
    return [
        (a, b, c),
        (np.asfortranarray(a), np.asfortranarray(b), c[::-1].copy()[::-1]),
        (apart, np.repeat(b, 2, 1)[:, ::2], np.repeat(c, 2)[::2]),
        (back, b[::-1].copy()[::-1], c),
    ]


def agree(got: Any, want: Any, tolerance: float) -> None:
    for x, y in zip(got, want, strict=True):
        if isinstance(y, tuple):
            agree(x, y, tolerance)
            continue
        assert np.asarray(x).dtype == np.asarray(y).dtype
        scale = max(1.0, float(np.max(np.abs(y), initial=0)))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("program", [solved, factored])
def test_every_size_and_layout(program: Callable[..., Any], dtype: str) -> None:
    kernel = rg.compile(program)
    for n in SIZES:
        for args in layouts(*matrices(n, dtype, n)):
            agree(kernel(*args), program(*args), TOLERANCE[dtype])


def stacked(a: Any, b: Any) -> Any:
    k = a @ np.swapaxes(a, 1, 2) + np.eye(a.shape[1])
    return (
        np.linalg.solve(a, b),
        np.linalg.solve(a[0], b),
        np.linalg.inv(a),
        np.linalg.det(a),
        np.linalg.slogdet(a),
        np.linalg.cholesky(k),
        np.linalg.solve(np.linalg.cholesky(k), b),
    )


def test_stacks_of_matrices() -> None:
    rng = np.random.default_rng(2)
    kernel = rg.compile(stacked)
    for p, n, k in ((4, 3, 2), (2, 3, 1), (1, 1, 1), (3, 0, 2), (2, 2, 0)):
        a = rng.normal(size=(p, n, n)) + 2 * np.eye(n)
        b = rng.normal(size=(p, n, k))
        agree(kernel(a, b), stacked(a, b), 1e-9)
        turned = np.swapaxes(np.swapaxes(a, 1, 2).copy(), 1, 2)
        agree(kernel(turned, b), stacked(a, b), 1e-9)


def empty(a: Any) -> Any:
    return np.linalg.inv(a), np.linalg.det(a), np.linalg.cholesky(a)


def test_no_matrix_at_all() -> None:
    a = np.zeros((0, 3, 3))
    agree(rg.compile(empty)(a), empty(a), 0)


def test_a_singular_matrix_has_a_determinant() -> None:
    for a in (np.ones((3, 3)), np.zeros((2, 2)), np.full((2, 2), np.nan)):
        with np.errstate(all="ignore"):
            want = np.linalg.det(a), *np.linalg.slogdet(a)
        sign, log = rg.compile(lambda a: np.linalg.slogdet(a))(a)
        got = rg.compile(lambda a: np.linalg.det(a))(a), sign, log
        np.testing.assert_array_equal(got, want)


def test_a_determinant_overflows_no_sooner_than_numpys() -> None:
    a = np.diag([1e200, 1e200, 1e-200, 1e-200])
    got = rg.compile(lambda a: np.linalg.det(a))(a)
    np.testing.assert_allclose(got, np.linalg.det(a), rtol=1e-12)


# ---------------------------------------------------------------- errors


def writes_first(a: Any, b: Any, out: Any) -> Any:
    out[:] = 7.0
    out += np.linalg.solve(a, b)
    return out.sum()


def writes_first_too(a: Any, b: Any, out: Any) -> Any:
    out[:] = 7.0
    out += np.linalg.cholesky(a)[0] * b
    return out.sum()


@pytest.mark.parametrize(
    ("program", "a", "message"),
    [
        (writes_first, np.ones((3, 3)), "Singular matrix"),
        (writes_first_too, -np.eye(3), "Matrix is not positive definite"),
    ],
)
def test_an_error_is_numpys_and_comes_before_any_write(
    program: Callable[..., Any], a: Any, message: str
) -> None:
    with pytest.raises(np.linalg.LinAlgError, match=message):
        program(a, np.ones(3), np.zeros(3))
    for f in (program, rg.compile(program)):
        out = np.zeros(3)
        with pytest.raises(LinAlgError, match=message) as caught:
            f(rg.tensor(a), np.ones(3), out)
        assert caught.value.location is not None
        assert caught.value.location.function == program.__name__
        if f is not program:
            np.testing.assert_array_equal(out, 0)


def test_one_singular_matrix_of_a_stack_is_enough() -> None:
    a = np.stack([np.eye(2), np.ones((2, 2)), np.eye(2)])
    with pytest.raises(np.linalg.LinAlgError):
        rg.compile(lambda a: np.linalg.inv(a))(a)


def test_nan_is_no_singular_matrix() -> None:
    a = np.eye(3)
    a[1, 1] = np.nan
    got = rg.compile(lambda a: np.linalg.solve(a, np.ones(3)))(a)
    assert np.isnan(got[1])


# ---------------------------------------------------------------- derivatives


def of_solve(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.solve(a, b))) + np.sum(np.linalg.solve(a.T, b) ** 2)


def of_parts(a: Any, b: Any) -> Any:
    sign, log = np.linalg.slogdet(a)
    return np.sum(np.tanh(np.linalg.inv(a)) @ b) + np.linalg.det(a / 3) + sign * log


def of_cholesky(a: Any, b: Any) -> Any:
    low = np.linalg.cholesky(a @ a.T + np.eye(3))
    inner = np.linalg.solve(low.T, np.linalg.solve(low, b))
    return np.sum(b * inner) + np.sum(np.log(np.diag(low))) + np.sum(np.sin(low))


def of_triangle(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.cholesky(a @ a.T + np.eye(3), upper=True)) @ b)


def of_stack(a: Any, b: Any) -> Any:
    many = np.stack([a, 2 * a, a.T])
    x = np.linalg.solve(many, np.stack([b, b, -b]))
    return np.sum(x**2) + np.sum(np.linalg.det(many)) + np.sum(np.linalg.inv(many))


def in_a_loop(a: Any, b: Any) -> Any:
    x = b.copy()
    for _ in range(3):
        x = np.linalg.solve(a, np.sin(x))
    return np.sum(x * x)


def of_each(a: Any, b: Any) -> Any:
    many = np.stack([a, 2 * a, a.T])
    out = 0.0 * b[:, 0]
    for i in range(3):
        out[i] = np.linalg.det(many[i]) + np.sum(np.linalg.solve(many[i], b[i]))
    return np.sum(out**2) + np.sum(np.linalg.cholesky(a @ many[1].T))


@pytest.mark.parametrize(
    "program",
    [of_solve, of_parts, of_cholesky, of_triangle, of_stack, in_a_loop, of_each],
)
def test_derivatives_of_both_orders(program: Callable[..., Any]) -> None:
    a, b, _ = matrices(3, "f8", 5)
    want = rg.value_and_grad(program, argnums=(0, 1))(a, b)
    got = rg.value_and_grad(rg.compile(program), argnums=(0, 1))(a, b)
    agree([got[0], *got[1]], [want[0], *want[1]], 1e-11)
    inputs = tuple(rg.tensor(x, requires_grad=True) for x in (a, b))
    assert rg.gradcheck(program, inputs)
    assert rg.gradgradcheck(program, inputs)
    if program in (of_solve, of_cholesky):
        assert rg.gradgradcheck(rg.compile(program), inputs)


def test_only_the_lower_triangle_has_a_derivative() -> None:
    a = np.array([[4.0, 1.0], [1.0, 3.0]])
    for f in (np.linalg.cholesky, rg.compile(lambda a: np.linalg.cholesky(a))):
        assert rg.gradcheck(f, (rg.tensor(a, requires_grad=True),))
        t = rg.tensor(a, requires_grad=True)
        f(t).sum().backward()
        assert t.grad is not None
        assert np.asarray(t.grad)[0, 1] == 0


# ---------------------------------------------------------------- factors are shared

SHARED = """func @f(%a: f64[n,n], %b: f64[n,k]) -> f64 {
  %x: f64[n,k] = solve %a, %b
  %d: f64 = det_log %a
  %s: f64 = sum %x {axis=(0, 1), keepdims=False}
  %r: f64 = add %s, %d
  return %r
}"""
DEFINITE = """func @f(%a: f64[n,n], %b: f64[n,k]) -> f64 {
  %l: f64[n,n] = cholesky %a
  %x: f64[n,k] = solve %l, %b
  %s: f64 = sum %x {axis=(0, 1), keepdims=False}
  return %s
}"""


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (SHARED, {"lu": 1, "lu_solve": 3, "lu_log": 1}),
        (DEFINITE, {"cholesky": 1, "triangular_solve": 4}),
    ],
)
def test_a_matrix_is_factored_once(text: str, calls: dict[str, int]) -> None:
    from retrograde.codegen.lower import lower

    joint = vjp(parse(text), [0, 1], seed={0: 1.0})
    stages = (*manager.PIPELINES["optimize"], *manager.PIPELINES["lower"])
    f = manager.run(joint, stages, verify=True)
    names = [s.function for s in every(lower(f, "f").body) if isinstance(s, Call)]
    found = [n.removeprefix("linalg.") for n in names if n.startswith("linalg.")]
    assert {n: found.count(n) for n in found} == calls
    build(f)
