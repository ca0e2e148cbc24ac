"""Chains of products: cheaper orders of the same values, derivatives included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrograde as rg
import retrograde.ir.ops
from retrograde.ir.func import walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.passes.chains import best_splits, chains
from retrograde.passes.dce import dce


def products(text: str) -> list[str]:
    """Return the types of the products that are left, in order."""
    f = dce(chains(parse(text)))
    return [str(n.result.type) for n in walk(f.body) if n.op.kind is Kind.CONTRACTION]


VECTOR = """func @f(%a: f64[n,n], %b: f64[n,n], %c: f64[n,n], %v: f64[n]) -> f64[n] {
  %t: f64[n,n] = matmul %a, %b
  %u: f64[n,n] = matmul %t, %c
  %y: f64[n] = matmul %u, %v
  return %y
}"""
TURNED = """func @f(%a: f64[n,k], %b: f64[k,n], %v: f64[n]) -> f64[n] {
  %t: f64[n,n] = matmul %a, %b
  %u: f64[n,n] = transpose %t {axes=(1, 0)}
  %y: f64[n] = matmul %u, %v
  return %y
}"""
SMALL = """func @f(%a: f64[n,n], %b: f64[n,n], %c: f64[n,2]) -> f64[n,2] {
  %t: f64[n,n] = matmul %a, %b
  %y: f64[n,2] = matmul %t, %c
  return %y
}"""
EQUAL = """func @f(%a: f64[n,k], %b: f64[k,m], %c: f64[m,q]) -> f64[n,q] {
  %t: f64[n,m] = matmul %a, %b
  %y: f64[n,q] = matmul %t, %c
  return %y
}"""
TWICE = """func @f(%a: f64[n,n], %b: f64[n,n], %v: f64[n]) -> (f64[n], f64[n,n]) {
  %t: f64[n,n] = matmul %a, %b
  %y: f64[n] = matmul %t, %v
  return %y, %t
}"""
MIXED = """func @f(%a: f32[n,n], %b: f32[n,n], %v: f64[n]) -> f64[n] {
  %t: f32[n,n] = matmul %a, %b
  %y: f64[n] = matmul %t, %v
  return %y
}"""
LOOP = """func @f(%a: f64[n,n], %b: f64[n,n], %v: f64[n]) -> f64[n] {
  %t: f64[n,n] = matmul %a, %b
  %y: f64[n] = for i in 0..n carry(%c: f64[n] = %v) {
    %d: f64[n] = matmul %t, %c
    yield %d
  }
  return %y
}"""
DIAGONAL = """func @f(%a: f64[n,k], %b: f64[k,m]) -> f64[min(m, n)] {
  %t: f64[n,m] = matmul %a, %b
  %d: f64[min(m, n)] = diagonal %t {offset=0, axis1=0, axis2=1, size=min(m, n)}
  return %d
}"""
VECTORS = ["f64[n]", "f64[n]", "f64[n]"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (VECTOR, VECTORS),
        (TURNED, ["f64[k]", "f64[n]"]),
        (SMALL, ["f64[n,2]", "f64[n,2]"]),
        (EQUAL, ["f64[n,m]", "f64[n,q]"]),
        (TWICE, ["f64[n,n]", "f64[n]"]),
        (MIXED, ["f32[n,n]", "f64[n]"]),
        (LOOP, ["f64[n,n]", "f64[n]"]),
        (DIAGONAL, []),
    ],
)
def test_the_order_and_the_value(text: str, left: list[str]) -> None:
    assert products(text) == left
    f = parse(text)
    rng = np.random.default_rng(0)
    sizes = {"n": 4, "k": 3, "m": 5, "q": 2}
    args = [
        rng.normal(size=[sizes.get(str(d), d) for d in p.type.shape]).astype(
            p.type.dtype
        )
        for p in f.params
    ]
    tolerance = 1e-6 if "f32" in text else 1e-12
    for got, want in zip(run(chains(f), *args), run(f, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@given(st.lists(st.integers(1, 50), min_size=3, max_size=7))
def test_no_order_is_cheaper(sizes: list[int]) -> None:
    def least(i: int, j: int) -> float:
        if j == i + 1:
            return 0.0
        return min(
            least(i, k) + least(k, j) + sizes[i] * sizes[k] * sizes[j]
            for k in range(i + 1, j)
        )

    assert best_splits([float(d) for d in sizes])[1] == least(0, len(sizes) - 1)


def chain(a: Any, b: Any, c: Any, v: Any) -> Any:
    return np.sum(np.tanh(a @ b @ c @ v)) + np.sum(((a @ b).T @ v) ** 2)


def trace(a: Any, b: Any, c: Any, v: Any) -> Any:
    return np.trace(a @ b) * np.trace(b @ c) + np.sum(np.diagonal(c @ a) * v)


def several(a: Any, b: Any, c: Any, v: Any) -> Any:
    r = np.linalg.multi_dot([v, a, b, c, v]) + np.einsum("ij,jk,kl,l->", a, b, c, v)
    return r + np.sum(np.sin(np.einsum("ij,kj,lk,im->lm", a, b, c, a)))


@pytest.mark.parametrize("program", [chain, trace, several])
def test_derivatives_are_those_of_the_program(program: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    args = [*rng.normal(size=(3, 4, 4)), rng.normal(size=4)]
    want, grads = rg.value_and_grad(program, argnums=(0, 1, 2, 3))(*args)
    np.testing.assert_allclose(want, program(*args), rtol=1e-12)
    assert rg.gradcheck(program, tuple(rg.tensor(x, requires_grad=True) for x in args))
    got = rg.value_and_grad(rg.compile(program), argnums=(0, 1, 2, 3))(*args)
    for x, y in zip([got[0], *got[1]], [want, *grads], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "text",
    ["ij,jk,kl->il", "ij,j,j->i", "a,b,c->", "ab,cb,db,eb->acde", "i,j,k,l,m,n->n"],
)
def test_einsum_of_many_operands(text: str) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=[3] * len(s)) for s in text.partition("->")[0].split(",")]
    got = np.einsum(text, *map(rg.tensor, xs))
    np.testing.assert_allclose(np.asarray(got), np.einsum(text, *xs), rtol=1e-12)


def test_a_long_chain_is_ordered_quickly() -> None:
    count = 150
    lines = ["func @f(%a: f64[n,n], %v: f64[n]) -> f64[n] {"]
    lines += ["  %t0: f64[n,n] = matmul %a, %a"]
    lines += [f"  %t{k + 1}: f64[n,n] = matmul %t{k}, %a" for k in range(count)]
    lines += [f"  %y: f64[n] = matmul %t{count}, %v", "  return %y", "}"]
    left = products("\n".join(lines))
    assert left.count("f64[n]") > 90  # of the last hundred products
    few = "\n".join([*lines[:22], "  %y: f64[n] = matmul %t20, %v", *lines[-2:]])
    assert products(few) == ["f64[n]"] * 22
