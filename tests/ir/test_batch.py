"""An op with a new axis computes, at each entry, what it computes without."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from retrograde.ir import dims
from retrograde.ir.build import ArrayBuilder
from retrograde.ir.dims import Symbol
from retrograde.ir.errors import RetrogradeError
from retrograde.ir.op import OPS, Kind, Op, Sample
from retrograde.ir.ops.batch import Over, rule_of
from retrograde.ir.types import type_of_array

COUNT = 3
T = Symbol("@t")
OVER = Over(T, COUNT)
VIEWS = [op for op in OPS.values() if op.kind is Kind.VIEW and op.batch is not None]
OTHERS = [
    op for op in OPS.values() if op.kind is not Kind.VIEW and rule_of(op) is not None
]


class Checking(ArrayBuilder):
    """Computes what has a type, as the builders of the IR do."""

    def apply(self, op: Op, operands: Any, attrs: Any) -> Any:
        op.infer(*map(self.type_of, operands), **attrs)
        return super().apply(op, operands, attrs)


def stacked(x: Any, axis: int) -> np.ndarray[Any, Any]:
    """Return different arrays along a new axis."""
    return np.stack([np.roll(x, k) for k in range(COUNT)], axis)


def same(found: Any, wanted: Any) -> None:
    close = 1e-5 if np.asarray(wanted).dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype


def places(op: Op, s: Sample) -> list[tuple[int | None, ...]]:
    """Return where the new axis may be in each operand; None: it has none."""
    choices = [
        (None, *sorted({0, np.ndim(x)})) if isinstance(x, np.ndarray) else (None,)
        for x in s.args
    ]
    return [p for p in product(*choices) if any(k is not None for k in p)][:24]


@pytest.mark.parametrize("op", OTHERS, ids=lambda op: op.name)
def test_entries_are_what_the_op_computes(op: Op, rng: np.random.Generator) -> None:
    rule = rule_of(op)
    assert rule is not None
    known = 0
    for s in op.samples(rng):
        for axes in places(op, s):
            xs = [
                x if p is None else stacked(x, p)
                for x, p in zip(s.args, axes, strict=True)
            ]
            try:
                found = rule(Checking(), op, xs, axes, **s.attrs)
            except (RetrogradeError, np.linalg.LinAlgError):
                continue
            if found is None:
                continue
            known += 1
            out, axis = found
            for k in range(COUNT):
                entry = [
                    x if p is None else np.roll(x, k)
                    for x, p in zip(s.args, axes, strict=True)
                ]
                with np.errstate(all="ignore"):
                    wanted = np.asarray(op.eager(*entry, **s.attrs))
                same(np.take(out, k, axis), wanted)
    assert known or not any(places(op, s) for s in op.samples(rng))


def viewed(op: Op, x: Any, axis: int | None, indices: Any, attrs: Any) -> Any:
    assert op.batch is not None
    found = op.batch(type_of_array(x), axis, *indices, over=OVER, **attrs)
    if found is None:
        return None
    steps, after = found
    for s in steps:
        assert type_of_array(x).shape == s.base.shape
        x = s.op.eager(x, *s.indices, **s.attrs)
    return x, after


@pytest.mark.parametrize("op", VIEWS, ids=lambda op: op.name)
def test_views_of_many_arrays_are_their_views(op: Op, rng: np.random.Generator) -> None:
    for s in op.samples(rng):
        x, *indices = s.args
        if not all(isinstance(i, int) for i in indices):
            continue
        for p in range(x.ndim + 1):
            found = viewed(op, stacked(x, p), p, indices, s.attrs)
            assert found is not None
            out, axis = found
            for k in range(COUNT):
                same(
                    np.take(out, k, axis), op.eager(np.roll(x, k), *indices, **s.attrs)
                )


@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (4, -2), (0, 2)])
@pytest.mark.parametrize("size", [None, 1])
def test_an_index_that_runs_takes_a_slice_or_a_diagonal(
    first: int, step: int, size: int | None, rng: np.random.Generator
) -> None:
    op = OPS["select" if size is None else "slice"]
    index = dims.add(first, dims.mul(dims.symbol(T.name), step))
    x = rng.normal(size=(5, 6, 7))
    for axis in range(3):
        attrs = {"axis": axis} if size is None else {"axis": axis, "size": 1}
        for p in (None, 0, 1, 2, 3):
            given = x if p is None else stacked(x, p)
            found = viewed(op, given, p, (index,), attrs)
            assert found is not None
            out, after = found
            for k in range(COUNT):
                entry = x if p is None else np.roll(x, k)
                same(np.take(out, k, after), op.eager(entry, first + step * k, **attrs))


def test_windows_have_no_views() -> None:
    t = dims.symbol(T.name)
    x = type_of_array(np.zeros(9))
    batch = OPS["slice"].batch
    assert batch is not None
    assert batch(x, None, t, over=OVER, axis=0, size=2) is None
    assert OVER.line(dims.floordiv(t, 2)) is None
    assert OVER.line(t * t) is None
    assert OVER.line(dims.symbol("n") - 3 * t) == (dims.symbol("n"), -3)
