"""What a trace assumes of sizes is decided once, and becomes a guard."""

import pytest

from retrograde.ir import dims
from retrograde.ir.dims import evaluate
from retrograde.ir.errors import UnsupportedError
from retrograde.tracer.assume import Assumptions
from retrograde.tracer.guards import make_matcher


def test_small_sizes_stay_literal_and_others_become_symbols():
    a = Assumptions()
    assert a.size(0) == 0
    assert a.size(1) == 1
    n = a.size(5)
    assert dims.as_symbol(n) is not None
    assert a.facts.proves(n - 2)


def test_equal_sizes_are_unified_by_substitution():
    a = Assumptions()
    n, m = a.size(5), a.size(4)
    assert a.same(n - 1, m)
    assert a.resolve(n) == a.resolve(m) + 1
    assert a.same(n - 1, m)


def test_different_sizes_are_told_apart_by_a_fact():
    a = Assumptions()
    n, m = a.size(5), a.size(4)
    assert not a.same(n, m)
    assert a.facts.proves(n - m - 1)


def test_a_comparison_is_remembered_as_a_fact():
    a = Assumptions()
    n = a.size(9)
    assert a.at_least(n, 6)
    assert a.facts.proves(n - 6)
    assert not a.at_least(n, 10)
    assert a.facts.proves(9 - n)


def test_specialising_makes_a_number_of_every_symbol_involved():
    a = Assumptions()
    n, m = a.size(5), a.size(3)
    assert a.specialise(n * m) == 15
    assert evaluate(a.resolve(n * m), {}) == 15
    k = a.size(7)
    assert a.specialise(k // 2) == 3
    assert a.resolve(k) == 7


def test_equality_without_a_linear_symbol_specialises():
    a = Assumptions()
    n = a.size(4)
    assert a.same(n * n, 16)
    assert a.resolve(n) == 4


def test_sizes_computed_from_data_decide_nothing():
    a = Assumptions()
    count = a.symbol(None, "c")
    with pytest.raises(UnsupportedError, match="known only when the program runs"):
        a.equals(count, 3)


@pytest.mark.parametrize(
    ("shapes", "ints", "holds"),
    [
        ([(6, 3), (5,)], [7], True),
        ([(6, 3), (4,)], [7], False),
        ([(6, 2), (5,)], [7], False),
        ([(3, 3), (2,)], [7], False),
        ([(6, 3), (5,)], [2], False),
    ],
)
def test_matcher_binds_symbols_and_checks_the_rest(shapes, ints, holds):
    n, k = dims.symbol("n"), dims.symbol("k")
    match = make_matcher([(n, 3), (n - 1,)], [k], [n - 4, k - 3])
    env = match(shapes, ints)
    assert (env is not None) == holds
    if env:
        assert {s.name: v for s, v in env.items()} == {"n": 6, "k": 7}
