"""Op records and builders: what an author declares, and what follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retrograde.ir import interp
from retrograde.ir.build import ArrayBuilder, IRBuilder, Shaped
from retrograde.ir.errors import DTypeError, IndexRangeError, IRError, ShapeError
from retrograde.ir.func import Func
from retrograde.ir.op import OPS, OUT, ZERO, Kind, Op, Partial, define
from retrograde.ir.ops.elementwise import elementwise
from retrograde.ir.text import parse, parse_type, show
from retrograde.ir.verify import verify


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Op]:
    """Let a test define ops without leaving them behind."""
    copy = dict(OPS)
    for module in ("op", "build", "text"):
        monkeypatch.setattr(f"retrograde.ir.{module}.OPS", copy)
    return copy


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "name": "probe",
        "kind": Kind.ELEMENTWISE,
        "operands": ("x", "y"),
        "infer": lambda x, y: x,
        "eager": lambda x, y: x + y,
        "derivatives": (ZERO, ZERO),
        "lower": "({0} + {1})",
        "samples": lambda rng: iter(()),
        **changes,
    }


def test_one_call_makes_an_elementwise_op(table: dict[str, Op]) -> None:
    spacing = lambda b, x: b.multiply(b.cos(x), 2)  # noqa: E731
    elementwise(np.sin, "sin({0})", [spacing], name="wave", cost=20)
    b = IRBuilder()
    x = b.value(parse_type("f32[n]"), "x")
    y = b.wave(x)
    d = table["wave"].cotangent(b, 0, y, y, (x,), {})
    f = Func("f", "func", b.finish([x], [y, d]))
    verify(f)
    assert show(parse(show(f))) == show(f)
    value = np.array([0.5, 1.0], np.float32)
    out, slope = interp.run(f, value)
    np.testing.assert_array_equal(out, np.sin(value))
    np.testing.assert_array_equal(slope, out * (np.cos(value) * 2))


def test_definitions_are_checked(table: dict[str, Op]) -> None:
    define(**fields())
    with pytest.raises(ValueError, match="'probe' is already defined"):
        define(**fields())
    with pytest.raises(ValueError, match="one derivative per operand"):
        define(**fields(name="other", derivatives=(ZERO,)))
    with pytest.raises(ValueError, match="reads unknown"):
        define(**fields(name="other", derivatives=(Partial(lambda b, z: z), ZERO)))
    with pytest.raises(TypeError):
        define(name="other")
    assert "other" not in table


def test_reads_are_positions_of_what_a_rule_names() -> None:
    assert OPS["multiply"].reads(0) == (1,)
    assert OPS["add"].reads(0) == ()
    assert OPS["divide"].reads(1) == (1, OUT)
    assert OPS["exp"].reads(0) == (OUT,)
    assert OPS["floor"].reads(0) == ()
    assert OPS["max"].reads(0) == (0, OUT)
    assert OPS["select_scatter"].reads(1) == (2,)
    assert OPS["select_scatter_add"].reads(0) == ()


def test_reads_of_a_variadic_op_need_the_number_of_operands() -> None:
    gather = OPS["gather"]
    assert gather.reads(0, 3) == (1, 2)
    assert gather.reads(2, 3) == ()
    assert OPS["gather_scatter"].reads(1, 4) == (2, 3)
    assert OPS["concatenate"].reads(5) == ()
    with pytest.raises(ValueError, match="'gather': the number of operands"):
        gather.reads(0)


def test_a_boolean_partial_chooses(table: dict[str, Op]) -> None:
    positive = Partial(lambda b, x: b.greater(x, 0))
    probe = define(**fields(derivatives=(positive, ZERO)))
    x, ct = np.array([1.0, -1.0]), np.array([np.inf, np.nan])
    got = probe.cotangent(ArrayBuilder(), 0, ct, None, (x, x), {})
    np.testing.assert_array_equal(got, [np.inf, 0])


def test_ones_in_partials_cost_nothing() -> None:
    b = IRBuilder()
    x = b.value(parse_type("f64[n]"), "x")
    assert OPS["add"].cotangent(b, 0, x, None, (x, x), {}) is x
    assert not b.nodes
    OPS["subtract"].cotangent(b, 1, x, None, (x, x), {})
    assert [n.op.name for n in b.nodes] == ["negative"]


@pytest.mark.parametrize(
    ("ct", "like", "want"),
    [
        ("f64[n,3]", "f64[3]", "f64[3]"),
        ("f64[n,3]", "f64[1,3]", "f64[1,3]"),
        ("f64[n,3]", "f64[n,1]", "f64[n,1]"),
        ("f64[2,n,3]", "f64[n,1]", "f64[n,1]"),
        ("f64[n,3]", "f64", "f64"),
        ("f64[n,3]", "f32[]", "f32"),
        ("f64[n,1]", "f64[n,1]", "f64[n,1]"),
        ("f64[n]", "f32[n]", "f32[n]"),
    ],
)
def test_unbroadcast_undoes_broadcasting(ct: str, like: str, want: str) -> None:
    b = IRBuilder()
    x = b.unbroadcast(b.value(parse_type(ct), "ct"), Shaped(parse_type(like)))
    assert str(x.type) == want


def test_builders_agree_on_types() -> None:
    t = parse_type("f32[2,3]")
    assert IRBuilder().type_of(Shaped(t)) == ArrayBuilder().type_of(Shaped(t)) == t
    assert ArrayBuilder().size(np.zeros((2, 3)), (0, 1)) == 6
    assert IRBuilder().size(Shaped(t)) == 6
    assert IRBuilder().size(Shaped(t), 1) == 3


def test_unknown_op_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="there is no op 'sine'"):
        ArrayBuilder().sine(1.0)


def test_names_are_made_unique() -> None:
    b = IRBuilder(["x", "x.1"])
    assert [b.name("x"), b.name("x"), b.name("y"), b.name("")] == [
        "x.2",
        "x.3",
        "y",
        "t",
    ]


def test_open_region_cannot_be_finished() -> None:
    b = IRBuilder()
    with b.block(), pytest.raises(IRError, match="a region is still open"):
        b.finish([], [])


# ---------------------------------------------------------------- refusals at run time


def test_gather_refuses_what_is_out_of_range() -> None:
    x, at = np.zeros((2, 3)), {"axes": (1,), "position": 1}
    for index in (3, -4):
        message = f"index {index} is out of bounds for axis 1 with size 3"
        with pytest.raises(IndexRangeError, match=message):
            OPS["gather"].eager(x, np.array([0, index]), **at)
        with pytest.raises(IndexRangeError, match=message):
            OPS["gather_scatter"].eager(x, 1.0, np.array([0, index]), **at)
    empty = np.zeros(0, np.int64)
    assert OPS["gather"].eager(x[:, :0], empty, **at).shape == (2, 0)


def test_masks_refuse_wrong_counts() -> None:
    x, mask = np.arange(3.0), np.array([True, False, True])
    with pytest.raises(ShapeError, match="the mask selects 2, not 3"):
        OPS["mask_select"].eager(x, mask, count=3)
    for name in ("mask_scatter", "mask_scatter_add"):
        with pytest.raises(ShapeError, match=f"{name}: 3 values for 2 places"):
            OPS[name].eager(x, x, mask)


def test_empty_extrema_raise_as_numpy_does() -> None:
    with pytest.raises(ValueError, match="zero-size array to reduction"):
        OPS["max"].eager(np.zeros((2, 0)), axis=(1,))
    with pytest.raises(ValueError, match="empty sequence"):
        OPS["argmin"].eager(np.zeros(0), axis=(0,))


@pytest.mark.parametrize(
    ("op", "types", "attrs", "error", "text"),
    [
        ("max", "f64[2,0]", {"axis": (1,)}, ShapeError, "max: no element of f64[2,0]"),
        ("argmin", "f64[0]", {"axis": (0,)}, ShapeError, "argmin: no element"),
        ("argmax", "f64[2,3,4]", {"axis": (0, 1)}, ShapeError, "argmax: one axis or"),
        ("sum", "f64[2]", {"axis": (1,)}, ShapeError, "sum: axes (1,) do not fit"),
        ("cumsum", "f64[2]", {"axis": 1}, ShapeError, "cumsum: f64[2] has no axis 1"),
        ("sort", "f64", {"axis": 0}, ShapeError, "sort: f64 has no axis 0"),
        ("matmul", "f64[3,4] f64[2,4]", {}, ShapeError, "matmul: inner sizes differ"),
        ("matmul", "f64[3,4] f64", {}, ShapeError, "matmul: an operand is a scalar"),
        ("matmul", "f64[2,3,4] f64[3,4,5]", {}, ShapeError, "shapes (3,) and (2,)"),
        ("concatenate", "f64[2,3] f64[2,4]", {"axis": 0}, ShapeError, "concatenate: "),
        ("concatenate", "f64[2,3] f64[3]", {"axis": 0}, ShapeError, "concatenate: "),
        ("concatenate", "f64 f64", {"axis": 0}, ShapeError, "concatenate: f64 has no"),
        ("gather", "f64[3] f64[2]", {"axes": (0,), "position": 0}, DTypeError,
         "gather: an index must hold integers, not f64[2]"),
        ("gather", "f64[3] i64[2]", {"axes": (1,), "position": 0}, ShapeError,
         "gather: 1 index arrays for axes (1,) of f64[3]"),
        ("gather_scatter", "f64[3] f64[3] i64[2]", {"axes": (0,), "position": 0},
         ShapeError, "shapes (3,) and (2,) do not broadcast"),
        ("mask_select", "f64[3] i64[3]", {"count": 2}, DTypeError, "mask_select: a"),
        ("mask_scatter", "f64[3,2] f64[2] bool[3]", {}, ShapeError, "mask_scatter: "),
        ("linear_recurrence", "f64[3] f64[4]", {"axis": 0}, ShapeError, "linear_rec"),
        ("searchsorted", "f64[3,2] f64", {"right": False}, ShapeError, "searchsorted:"),
        ("erf", "c128[3]", {}, DTypeError, "erf: not defined for c128[3]"),
        ("invert", "f64[3]", {}, DTypeError, "invert: not defined for f64[3]"),
        ("item", "f64[3]", {}, ShapeError, "item: only a 0-d array has one item"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused(
    op: str, types: str, attrs: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        OPS[op].infer(*map(parse_type, types.split()), **attrs)
    assert str(caught.value).startswith(text)


def test_only_elementwise_ops_declare_partials() -> None:
    for op in OPS.values():
        partial = any(isinstance(d, Partial) for d in op.derivatives)
        assert not partial or op.kind is Kind.ELEMENTWISE
