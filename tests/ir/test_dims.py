"""Dims: the normal form against plain integers, and proofs against assignments."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from retrograde.ir import dims
from retrograde.ir.dims import Dim, Expr, Facts, Strict, Symbol, symbol
from retrograde.ir.errors import IRError

NAMES = ("i", "m", "n")
Tree = Any  # an int, a name, or (operator, tree, tree)

LEAVES = st.integers(-4, 4) | st.sampled_from(NAMES)
TREES = st.recursive(
    LEAVES,
    lambda t: st.tuples(st.sampled_from(["+", "-", "*", "//", "min", "max"]), t, t),
    max_leaves=7,
)
LINEAR = st.recursive(
    LEAVES,
    lambda t: (
        st.tuples(st.sampled_from(["+", "-", "min", "max"]), t, t)
        | st.tuples(st.just("//"), t, st.integers(1, 3))
    ),
    max_leaves=5,
)
ENVS = st.fixed_dictionaries({name: st.integers(-5, 6) for name in NAMES})
GRID = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product(range(-2, 4), repeat=3)
]


def make(tree: Tree) -> Dim:
    match tree:
        case int():
            return tree
        case str():
            return symbol(tree)
        case ("+", a, b):
            return dims.add(make(a), make(b))
        case ("-", a, b):
            return dims.add(make(a), dims.mul(make(b), -1))
        case ("*", a, b):
            return dims.mul(make(a), make(b))
        case ("//", a, b):
            divisor = make(b)
            assume(divisor != 0)
            return dims.floordiv(make(a), divisor)
        case ("min", a, b):
            return dims.minimum(make(a), make(b))
        case ("max", a, b):
            return dims.maximum(make(a), make(b))
    raise AssertionError(tree)


def value(tree: Tree, env: Mapping[str, int]) -> int:
    match tree:
        case int():
            return tree
        case str():
            return env[tree]
        case (op, a, b):
            x, y = value(a, env), value(b, env)
            if op == "//":
                assume(y != 0)
            results = {"+": x + y, "-": x - y, "*": x * y, "//": x // (y or 1)}
            return results.get(op, min(x, y) if op == "min" else max(x, y))
    raise AssertionError(tree)


def symbols(env: Mapping[str, int]) -> dict[Symbol, Any]:
    return {Symbol(k): v for k, v in env.items()}


@given(TREES, ENVS)
def test_normal_form_keeps_the_value(tree: Tree, env: dict[str, int]) -> None:
    want = value(tree, env)
    assert dims.evaluate(make(tree), symbols(env)) == want


@given(TREES)
def test_text_reads_back_as_the_same_dim(tree: Tree) -> None:
    d = make(tree)
    assert dims.parse_dim(str(d)) == d


@given(TREES, TREES, ENVS)
def test_substitution_commutes_with_evaluation(
    tree: Tree, other: Tree, env: dict[str, int]
) -> None:
    inner = value(other, env)
    want = value(tree, {**env, "n": inner})
    d = dims.substitute(make(tree), {Symbol("n"): make(other)})
    assert dims.evaluate(d, symbols(env)) == want


@given(TREES, TREES, TREES)
def test_laws_of_a_ring_hold_as_equality(a: Tree, b: Tree, c: Tree) -> None:
    x, y, z = make(a), make(b), make(c)
    assert dims.add(x, y) == dims.add(y, x)
    assert dims.mul(x, y) == dims.mul(y, x)
    assert dims.add(dims.add(x, y), z) == dims.add(x, dims.add(y, z))
    assert dims.mul(dims.mul(x, y), z) == dims.mul(x, dims.mul(y, z))
    assert dims.mul(x, dims.add(y, z)) == dims.add(dims.mul(x, y), dims.mul(x, z))
    assert dims.add(x, dims.mul(x, -1)) == 0


@given(TREES, TREES)
def test_extrema_commute_and_absorb(a: Tree, b: Tree) -> None:
    x, y = make(a), make(b)
    for extreme in (dims.minimum, dims.maximum):
        assert extreme(x, y) == extreme(y, x)
        assert extreme(x, extreme(x, y)) == extreme(x, y)
        assert extreme(x, x) == x


@given(TREES, st.integers(1, 5))
def test_division_takes_out_exact_multiples(tree: Tree, by: int) -> None:
    d = make(tree)
    assert dims.floordiv(dims.mul(d, by), by) == d
    assert dims.add(dims.mul(dims.floordiv(d, by), by), _mod(d, by)) == d


def _mod(d: Dim, by: int) -> Dim:
    return d % by


@given(TREES)
def test_an_expression_is_never_constant(tree: Tree) -> None:
    d = make(tree)
    assert isinstance(d, Expr) == bool(dims.symbols_of(d))


def test_operators_of_expressions_match_the_functions() -> None:
    n = symbol("n")
    assert 2 - n == dims.add(2, dims.mul(n, -1))
    assert -n + n == 0
    assert (n * n) // n == n
    assert 7 // (n * 0 + 2) == 3
    assert dims.evaluate(17 % n, {Symbol("n"): 5}) == 2
    assert dims.evaluate(17 // n, {Symbol("n"): 5}) == 3


@pytest.mark.parametrize(
    "text", ["n +", "n / 2", "n ** 2", "f(n)", "n.x", "2.5", "'a'"]
)
def test_what_is_not_a_dim_is_refused(text: str) -> None:
    with pytest.raises(IRError, match="is not a dim"):
        dims.parse_dim(text)


def test_evaluation_names_the_missing_symbol() -> None:
    with pytest.raises(IRError, match="no value for m"):
        dims.evaluate(symbol("n") + symbol("m"), {Symbol("n"): 1})


# ---------------------------------------------------------------- facts


@settings(max_examples=300)
@given(st.lists(LINEAR, max_size=4), TREES)
def test_what_is_proved_holds_wherever_the_facts_hold(
    facts: list[Tree], goal: Tree
) -> None:
    known = Facts().having(*map(make, facts))
    d = make(goal)
    if not known.proves(d):
        return
    for env in GRID:
        if all(dims.evaluate(e, symbols(env)) >= 0 for e in known.known):
            try:
                found = dims.evaluate(d, symbols(env))
            except ZeroDivisionError:
                continue
            assert found >= 0


@settings(max_examples=300)
@given(st.lists(LINEAR, max_size=4), LINEAR, LINEAR)
def test_what_is_said_to_differ_differs(facts: list[Tree], a: Tree, b: Tree) -> None:
    known = Facts().having(*map(make, facts))
    x, y = make(a), make(b)
    if known.differ(x, y):
        for env in GRID:
            if all(dims.evaluate(e, symbols(env)) >= 0 for e in known.known):
                assert dims.evaluate(x, symbols(env)) != dims.evaluate(y, symbols(env))


@pytest.mark.parametrize(
    ("facts", "goal"),
    [
        (["n - 2"], "n - 1"),
        (["i - 1", "n - i - 1"], "n - 2"),
        (["i", "n - i - 1"], "n - i - 1 + i"),
        (["i - 1", "n - 1 - i"], "n - 1 - (i - 1)"),
        (["n"], "max(n - 1, 0)"),
        (["n", "m"], "n*m"),
        (["n"], "n - n//2"),
        (["i", "n//2 - i - 1"], "n - 2*i - 1"),
        (["n - 3"], "(n - 1)//2 - 1"),
        (["n"], "2*((n + 1)//2) - n"),
        (["n - 3"], "min(n, 4) - 3"),
        (["n", "m - n"], "m - min(n, m)"),
        (["n - 2"], "n - max(n - 1, 0)"),
        (["n - 2", "m"], "m*n - 2*m"),
        (["n - 2", "m - 2", "i"], "i*m*n - 2*i*m - 2*i*n + 4*i"),
    ],
)
def test_usual_bounds_are_proved(facts: list[str], goal: str) -> None:
    known = Facts().having(*map(dims.parse_dim, facts))
    assert known.proves(dims.parse_dim(goal))


@pytest.mark.parametrize(
    ("facts", "goal"),
    [
        ([], "n"),
        (["n"], "n - 1"),
        (["n - i"], "i"),
        (["n"], "-n"),
        (["n - 1", "m"], "m*n - 2*m"),
        (["n - 2"], "m*n - 2*m"),
        (["n - 2", "m"], "m*n - 2*m - 1"),
    ],
)
def test_what_does_not_follow_is_not_proved(facts: list[str], goal: str) -> None:
    assert not Facts().having(*map(dims.parse_dim, facts)).proves(dims.parse_dim(goal))


def test_strict_decides_from_facts_and_raises_where_they_end() -> None:
    n = symbol("n")
    with dims.deciding(Strict(Facts().having(n - 2))):
        assert not dims.same(n, 1)
        assert dims.same(n + 1, 1 + n)
        assert dims.at_least(n, 2)
        assert not dims.at_least(1, n)
        with pytest.raises(IRError, match="not known to be equal"):
            dims.same(n, 3)
        with pytest.raises(IRError, match="not known whether"):
            dims.at_least(n, 3)
    with pytest.raises(IRError):
        dims.same(n, 1)


def test_dims_of_another_process_are_the_same() -> None:
    script = (
        "import pickle, sys; from retrograde.ir import dims; n = dims.symbol('n')\n"
        "made = [n, 2 * n + 1, n // 2, dims.minimum(n, 5)]\n"
        "sys.stdout.buffer.write(pickle.dumps(made))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True
    )
    n = symbol("n")
    own = [n, 2 * n + 1, n // 2, dims.minimum(n, 5)]
    found = pickle.loads(done.stdout)
    assert found == own
    assert set(found) == set(own)
