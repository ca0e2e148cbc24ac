"""Derivatives where they are delicate: zeros, ties, bounds, infinities, NaN."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from retrograde.ir.build import ArrayBuilder
from retrograde.ir.errors import GradientError
from retrograde.ir.op import OPS, Kind, NoDerivative, define

INF, NAN = float("inf"), float("nan")


def gradient(name: str, operand: int, /, *args: Any, **attrs: Any) -> Any:
    """Return the cotangent of one operand for a cotangent of ones."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        out = OPS[name].eager(*args, **attrs)
        ct = np.ones_like(np.asarray(out))[()]
        return OPS[name].cotangent(ArrayBuilder(), operand, ct, out, args, attrs)


def array(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, float)


@pytest.mark.parametrize(
    ("name", "position", "args", "want"),
    [
        ("power", 0, (array(0, 0, 0, 0), array(0, 1, 2, 3)), [0, 1, 0, 0]),
        ("power", 0, (array(0, 0), array(0.5, -1)), [INF, -INF]),
        ("power", 0, (array(-2, -2, -2), array(0, 2, 3)), [0, -4, 12]),
        ("power", 0, (array(-2, 0, 3), 2), [-4, 0, 6]),
        ("power", 0, (array(-2, 0, 3), 3.0), [12, 0, 27]),
        ("power", 0, (array(-2, 0, 3), 1), [1, 1, 1]),
        ("power", 0, (array(-2, 0, 3), 0), [0, 0, 0]),
        ("power", 0, (array(-2, 2), -1), [-0.25, -0.25]),
        ("power", 1, (array(0, 0, 1), array(2, 3, 5)), [0, 0, 0]),
        ("power", 1, (0.0, array(2, 3)), [0, 0]),
        ("power", 1, (array(np.e), array(2)), [np.e**2]),
        ("power", 1, (array(-2), array(2)), [NAN]),
        ("sqrt", 0, (array(0, 4),), [INF, 0.25]),
        ("absolute", 0, (array(-2, 0, 2),), [-1, 0, 1]),
        ("fabs", 0, (array(-2, 0, 2),), [-1, 0, 1]),
        ("hypot", 0, (array(0, 3), array(0, 4)), [0, 0.6]),
        ("hypot", 1, (array(0, 3), array(0, 4)), [0, 0.8]),
        ("arctan2", 0, (array(1, 1, -1), array(-1, 0, 0)), [-0.5, 0, 0]),
        ("arctan2", 1, (array(1, 1, -1), array(-1, 0, 0)), [-0.5, -1, 1]),
        ("logaddexp", 0, (array(-INF, -INF, 0), array(0, -INF, -INF)), [0, 0, 1]),
        ("logaddexp", 1, (array(-INF, -INF, 0), array(0, -INF, -INF)), [1, 0, 0]),
        ("logaddexp2", 0, (array(-INF, 1000), array(-INF, 1000)), [0, 0.5]),
        ("logaddexp", 0, (array(1000, -1000), array(0, 0)), [1, 0]),
        ("remainder", 0, (array(-7, 7), array(3, -3)), [1, 1]),
        ("remainder", 1, (array(-7, 7, 7), array(3, -3, 3)), [3, 3, -2]),
        ("fmod", 1, (array(-7, 7, 7), array(3, -3, 3)), [2, 2, -2]),
        ("maximum", 0, (array(1, 2, 3), array(2, 2, 2)), [0, 0.5, 1]),
        ("minimum", 1, (array(1, 2, 3), array(2, 2, 2)), [0, 0.5, 1]),
        ("fmax", 0, (array(1, NAN), array(NAN, 1)), [1, 0]),
        ("fmin", 1, (array(1, NAN), array(NAN, 1)), [0, 1]),
        ("clip", 0, (array(-2, -1, 0, 1, 2), -1.0, 1.0), [0, 1, 1, 1, 0]),
        ("clip", 1, (array(-2, -1, 2, 0), array(-1, -1, -1, 5), 1.0), [1, 0, 0, 0]),
        ("clip", 2, (array(-2, 1, 2, 0), -1.0, array(1, 1, 1, -5)), [0, 0, 1, 1]),
        ("heaviside", 1, (array(-1, 0, 1), array(0.5, 0.5, 0.5)), [0, 1, 0]),
        ("copysign", 0, (array(-2, 2, 3), array(1, -1, 1)), [-1, -1, 1]),
        ("divide", 1, (array(1, 0), array(2, 3)), [-0.25, 0]),
    ],
)
def test_partial_derivative_at_a_delicate_point(
    name: str, position: int, args: tuple[Any, ...], want: list[float]
) -> None:
    np.testing.assert_allclose(gradient(name, position, *args), want, rtol=1e-15)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -1.0])
def test_power_by_a_number_makes_few_cheap_ops(exponent: float) -> None:
    calls: list[str] = []

    class Counter(ArrayBuilder):
        def apply(self, op: Any, operands: Any, attrs: Any) -> Any:
            calls.append(op.name)
            return super().apply(op, operands, attrs)

    x = np.array([1.0, 2.0])
    OPS["power"].cotangent(Counter(), 0, np.ones(2), None, (x, exponent), {})
    allowed = {0: 1, 1: 0, 2: 2}.get(exponent, 3)
    assert len(calls) <= allowed
    assert "where" not in calls


@pytest.mark.parametrize(
    ("x", "want"),
    [
        ([2.0, 3.0, 4.0], [12, 8, 6]),
        ([2.0, 0.0, 4.0], [0, 8, 0]),
        ([0.0, 0.0, 4.0], [0, 0, 0]),
        ([0.0], [1]),
        ([], []),
    ],
)
def test_product_has_the_right_slope_at_zeros(x: list[float], want: list[int]) -> None:
    got = gradient("prod", 0, np.array(x), axis=(0,), keepdims=False)
    np.testing.assert_array_equal(got, want)


def test_extremum_shares_the_cotangent_among_ties() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    got = gradient("max", 0, x, axis=(1,), keepdims=False)
    np.testing.assert_allclose(got, [[0, 0.5, 0.5], [1 / 3] * 3])
    got = gradient("min", 0, x, axis=(0, 1), keepdims=True)
    np.testing.assert_allclose(got, [[1, 0, 0], [0, 0, 0]])


def test_nan_takes_the_cotangent_of_an_extremum() -> None:
    x = np.array([1.0, NAN, 3.0, NAN])
    got = gradient("max", 0, x, axis=(0,), keepdims=False)
    np.testing.assert_array_equal(got, [0, 0.5, 0, 0.5])


def test_an_infinite_cotangent_stays_out_of_what_was_not_chosen() -> None:
    b, x = ArrayBuilder(), np.array([-1.0, 1.0])
    ct = np.array([INF, 1.0])
    for name, args in (("maximum", (x, 0.0)), ("clip", (x, 0.0, 5.0))):
        out = OPS[name].eager(*args)
        got = OPS[name].cotangent(b, 0, ct, out, args, {})
        np.testing.assert_array_equal(got, [0, 1])


def test_overwritten_duplicates_have_no_slope() -> None:
    x, new = np.zeros(3), np.array([1.0, 2.0, 3.0, 4.0])
    index = np.array([0, 2, 0, -1])
    at = {"axes": (0,), "position": 0}
    out = OPS["gather_scatter"].eager(x, new, index, **at)
    np.testing.assert_array_equal(out, [3, 0, 4])
    got = gradient("gather_scatter", 1, x, new, index, **at)
    np.testing.assert_array_equal(got, [0, 0, 1, 1])
    got = gradient("gather_scatter", 0, x, new, index, **at)
    np.testing.assert_array_equal(got, [0, 1, 0])
    got = gradient("gather_scatter_add", 1, x, new, index, **at)
    np.testing.assert_array_equal(got, [1, 1, 1, 1])


def test_sorting_sends_cotangents_back_in_order() -> None:
    x, ct = np.array([3.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0])
    got = OPS["sort"].cotangent(
        ArrayBuilder(), 0, ct, np.sort(x), (x,), {"axis": 0}
    )  # fmt: skip
    np.testing.assert_array_equal(got, [30, 10, 20])


@pytest.mark.parametrize("name", ["floor", "sign", "greater", "argmax", "any"])
def test_what_does_not_vary_has_no_cotangent(name: str) -> None:
    args = (np.ones(2),) * len(OPS[name].operands)
    attrs = {"axis": (0,)} if OPS[name].kind is Kind.REDUCTION else {}
    assert gradient(name, 0, *args, **attrs) is None


def test_a_missing_derivative_is_an_error_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retrograde.ir.op.OPS", {})
    op = define(
        name="opaque",
        kind=Kind.EXTERN,
        operands=("x",),
        infer=lambda x: x,
        eager=lambda x: x,
        derivatives=(NoDerivative("it is a black box"),),
        lower=None,
        samples=lambda rng: iter(()),
    )
    with pytest.raises(
        GradientError, match="opaque: not differentiable in x"
    ) as caught:
        op.cotangent(ArrayBuilder(), 0, 1.0, 1.0, (1.0,), {})
    assert "it is a black box" in str(caught.value)


def test_python_numbers_stay_python_numbers_in_operators() -> None:
    b = ArrayBuilder()
    assert type(b.add(1, 2)) is int
    assert type(b.divide(1, 2)) is float
    assert b.multiply(np.ones(2, np.float32), b.divide(1.0, 3.0)).dtype == np.float32
