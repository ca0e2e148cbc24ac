"""The interpreter: NumPy's meaning of every kind of node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retrograde.ir.dims import Symbol
from retrograde.ir.errors import IndexRangeError, IRError, Location, ShapeError
from retrograde.ir.func import Func, substitute
from retrograde.ir.interp import bind_symbols, equal_results, run
from retrograde.ir.text import parse
from retrograde.ir.verify import verify


def read(text: str) -> Func:
    f = parse(text)
    verify(f)
    return f


CUMULATE = """
func @f(%x: f64[n]) -> f64[n] where n - 2 >= 0 {
  %y: f64[n] = for i in 1..n carry(%c: f64[n] = %x) {
    %p: f64[] = select %c, i - 1 {axis=0}
    %v: f64[] = select %c, i {axis=0}
    %t: f64 = add %v, %p
    %d: f64[n] = select_scatter %c, %t, i {axis=0}
    yield %d
  }
  return %y
}"""


def test_for_carries_its_state_from_one_iteration_to_the_next() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    (out,) = run(read(CUMULATE), x)
    np.testing.assert_array_equal(out, [1, 3, 6, 10])
    np.testing.assert_array_equal(x, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("bounds", "indices"),
    [
        ("0..n", [0, 1, 2, 3]),
        ("n - 1..-1 step -1", [3, 2, 1, 0]),
        ("1..n step 2", [1, 3]),
        ("n..0", []),
        ("3..n - 1", []),
    ],
)
def test_for_runs_over_pythons_range(bounds: str, indices: list[int]) -> None:
    f = read(
        "func @f(%x: f64[n]) -> ~i64 {\n"
        f"  %y: ~i64 = for i in {bounds} carry(%c: ~i64 = 0) {{\n"
        "    %t: ~i64 = multiply %c, 10\n    %d: ~i64 = add %t, i\n    yield %d\n"
        "  }\n  return %y\n}"
    )
    (out,) = run(f, np.zeros(4))
    assert out == sum(i * 10**k for k, i in enumerate(reversed(indices)))
    assert type(out) is int


def test_while_stops_when_its_test_fails() -> None:
    f = read(
        """func @f(%x: f64) -> (f64, ~i64) {
  %y: f64, %m: ~i64 = while carry(%c: f64 = %x, %k: ~i64 = 0) {
    %t: bool = greater %c, 1.0
    test %t
    %d: f64 = multiply %c, 0.5
    %j: ~i64 = add %k, 1
    yield %d, %j
  }
  return %y, %m
}"""
    )
    assert run(f, np.float64(5.0)) == [0.625, 3]
    assert run(f, np.float64(0.5)) == [0.5, 0]


def test_cond_runs_only_the_branch_that_is_taken() -> None:
    f = read(
        """func @f(%p: bool, %x: f64[n], %k: i64) -> f64 {
  %y: f64 = cond %p {
    %v: f64[] = select %x, %k {axis=0}
    %s: f64 = item %v
    yield %s
  } else {
    %t: f64 = sum %x {axis=(0,)}
    yield %t
  }
  return %y
}"""
    )
    x = np.array([1.0, 2.0])
    assert run(f, np.True_, x, np.int64(1)) == [2.0]
    assert run(f, np.False_, x, np.int64(9)) == [3.0]
    with pytest.raises(IndexRangeError):
        run(f, np.True_, x, np.int64(9))


def test_fused_means_its_nodes() -> None:
    f = read(
        """func @f(%x: f64[n]) -> f64[n] {
  %y: f64[n] = fused {
    %a: f64[n] = sin %x
    %b: f64[n] = multiply %a, %x
    yield %b
  }
  return %y
}"""
    )
    x = np.array([0.1, 0.2, 0.3])
    np.testing.assert_array_equal(run(f, x)[0], np.sin(x) * x)


def test_writes_go_through_views_into_arguments() -> None:
    f = read(
        """traced @f(%x: f64[n,3]) -> f64[3] {
  %v: f64[3] &%x = select %x, 1 {axis=0}
  %w: f64[3] &%v = flip %v {axis=(0,)}
  %t: f64[3] = multiply %v, 10.0
  %w <- %t
  return %v
}"""
    )
    x = np.arange(6.0).reshape(2, 3)
    (v,) = run(f, x)
    np.testing.assert_array_equal(x, [[0, 1, 2], [50, 40, 30]])
    assert np.shares_memory(v, x)


def test_sizes_bind_symbols_and_are_checked() -> None:
    f = read(
        "func @f(%x: f64[n,n + 1], %y: f64[m]) -> f64[m] where m - n >= 0 {\n"
        "  return %y\n}"
    )
    assert bind_symbols(f, [np.zeros((2, 3)), np.zeros(4)]) == {
        Symbol("n"): 2,
        Symbol("m"): 4,
    }
    with pytest.raises(ShapeError, match="size 2 where n \\+ 1 is expected"):
        run(f, np.zeros((2, 2)), np.zeros(4))
    with pytest.raises(ShapeError, match="holds only where m - n >= 0"):
        run(f, np.zeros((2, 3)), np.zeros(1))
    with pytest.raises(ShapeError, match="argument %y is f32"):
        run(f, np.zeros((2, 3)), np.zeros(4, np.float32))
    with pytest.raises(ShapeError, match=r"argument %y is f64\[1,4\]"):
        run(f, np.zeros((2, 3)), np.zeros((1, 4)))


def test_integer_parameters_are_given_by_name() -> None:
    f = read(
        "func @f[k](%x: f64[n]) -> f64[n] {\n"
        "  %y: f64[n] = multiply %x, k\n  return %y\n}"
    )
    (out,) = run(f, np.ones(2), symbols={Symbol("k"): 3})
    np.testing.assert_array_equal(out, [3, 3])
    with pytest.raises(IRError, match="no value for k"):
        run(f, np.ones(2))


MASKED = """
func @f(%x: f64[n], %m: bool[n]) -> f64[n] {
  %a: f64[c] = mask_select %x, %m {count=c}
  %b: f64[c] = multiply %a, c
  %y: f64[n] = mask_scatter %x, %b, %m
  return %y
}"""


def test_count_of_a_mask_becomes_a_symbol() -> None:
    x, m = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])
    np.testing.assert_array_equal(run(read(MASKED), x, m)[0], [2, 2, 6])


def test_known_count_of_a_mask_is_checked() -> None:
    text = """func @f(%x: f64[n], %m: bool[n], %k: bool[n]) -> f64[c] {
  %a: f64[c] = mask_select %x, %m {count=c}
  %b: f64[c] = mask_select %x, %k {count=c}
  %y: f64[c] = add %a, %b
  return %y
}"""
    x, m = np.array([1.0, 2.0, 3.0]), np.array([True, False, True])
    np.testing.assert_array_equal(run(read(text), x, m, m[[1, 0, 2]])[0], [3, 6])
    with pytest.raises(ShapeError, match="the mask selects 3, not 2"):
        run(read(text), x, m, m | True)


def test_symbol_defined_in_a_loop_is_new_in_every_iteration() -> None:
    f = read(
        """func @f(%x: f64[n], %z: f64) -> f64 {
  %y: f64 = for i in 0..n carry(%s: f64 = %z) {
    %v: f64[] = select %x, i {axis=0}
    %m: bool[n] = greater %x, %v
    %a: f64[c] = mask_select %x, %m {count=c}
    %t: f64 = sum %a {axis=(0,)}
    %u: f64 = add %s, %t
    yield %u
  }
  return %y
}"""
    )
    assert run(f, np.array([1.0, 2.0, 3.0]), np.float64(0)) == [5.0 + 3.0]


def test_size_makes_an_integer_a_symbol() -> None:
    f = read(
        """func @f(%x: i64[n]) -> i64[c] {
  %m: i64 = max %x {axis=(0,)}
  %k: i64 = size %m {count=c}
  %y: i64[c] = arange {size=c}
  return %y
}"""
    )
    np.testing.assert_array_equal(run(f, np.array([1, 3, 2]))[0], [0, 1, 2])


def test_wrong_declared_type_is_found_when_it_runs() -> None:
    f = parse(
        "func @f(%x: f64[n]) -> f64[n] {\n"
        "  %y: f64[n] = sum %x {axis=(0,)}\n  return %y\n}"
    )
    with pytest.raises(IRError, match=r"%y is declared f64\[n\], but the value is f64"):
        run(f, np.ones(2))


def test_index_error_names_the_users_line() -> None:
    f = read(
        "func @f(%x: f64[n], %k: i64[m]) -> f64[m] {\n"
        "  %y: f64[m] = gather %x, %k {axes=(0,), position=0}\n  return %y\n}"
    )
    f.nodes[0].loc = Location("train.py", 41, "loss", "x[k]")
    message = "index 7 is out of bounds for axis 0 with size 3"
    with pytest.raises(IndexRangeError, match=message) as caught:
        run(f, np.ones(3), np.array([0, 7]))
    assert "train.py:41" in str(caught.value)


def test_substituted_symbols_keep_the_meaning() -> None:
    x = np.array([1.0, 2.0, 3.0])
    f = substitute(read(CUMULATE), {Symbol("n"): 3})
    verify(f)
    assert "f64[3]" in str(f)
    assert "for i in 1..3" in str(f)
    assert equal_results(run(f, x), run(read(CUMULATE), x))


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([np.nan], [np.nan], True),
        ([1.0], [1.0 + 1e-16], True),
        ([1.0], [1.0 + 1e-15], False),
        ([np.ones(2)], [np.ones(3)], False),
        ([1, 2], [1], False),
        ([np.array([True])], [np.array([True])], True),
    ],
)
def test_results_are_compared_exactly(a: Any, b: Any, equal: bool) -> None:
    assert equal_results(a, b) is equal
