"""A chain of elementwise operations and its gradient are one pass over the data."""

import ast

import numpy as np

import retrograde as rg


def chain(x, y):
    t = np.exp(-x * x) * y
    return np.sum(t / (1 + np.exp(-t)) + np.tanh(x))


def loops_of(source: str) -> list[ast.For]:
    """Return the outermost loops of the entry."""
    (entry,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "entry"
    ]
    return [node for node in entry.body if isinstance(node, ast.For)]


def calls(node: ast.AST, name: str) -> list[str]:
    """Return the first arguments of the calls of a function."""
    return [
        ast.unparse(call.args[0])
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == name
    ]


def test_value_and_gradient_of_a_chain_are_one_nest():
    both = rg.value_and_grad(rg.compile(chain), argnums=(0, 1))
    x, y = np.random.default_rng(0).standard_normal((2, 1000))
    loops = loops_of(both.source(x, y))
    assert len(loops) == 1
    assert sorted(calls(loops[0], "load")) == ["p_a0", "p_a1"]
    assert len(calls(loops[0], "store")) == 2
    exps = [x for name in ("exp", "inline_exp") for x in calls(loops[0], name)]
    assert len(exps) == 2
    assert len(calls(loops[0], "tanh")) == 1
