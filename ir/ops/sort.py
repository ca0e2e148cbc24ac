"""Sorting along an axis: sort, argsort, and searchsorted in a sorted vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..build import Builder
from ..errors import ShapeError
from ..op import ZERO, Kind, Sample, Vjp, define
from ..types import I64, Type, promote


def _check(name: str, x: Type, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{name}: {x} has no axis {axis}")


def along(b: Builder, positions: Any, axis: int) -> tuple[Any, ...]:
    """Return an index array per axis that picks `positions` along one of them."""
    shape = b.shape(positions)
    out = []
    for k, d in enumerate(shape):
        if k == axis:
            out.append(positions)
            continue
        others = tuple(j for j in range(len(shape)) if j != k)
        index = b.arange(size=d)
        out.append(b.expand_dims(index, axis=others) if others else index)
    return tuple(out)


def _sort_vjp(b: Builder, ct: Any, out: Any, x: Any, axis: int) -> Any:
    indices = along(b, b.argsort(x, axis=axis), axis)
    axes = tuple(range(len(indices)))
    return b.gather_scatter_add(b.zeros_like(x), ct, *indices, axes=axes, position=0)


def _argsort_type(x: Type, *, axis: int) -> Type:
    _check("argsort", x, axis)
    return Type(I64, x.shape)


def _sort_type(x: Type, *, axis: int) -> Type:
    _check("sort", x, axis)
    return x


def _sort_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.permutation(np.linspace(-1.9, 1.7, 24)).reshape(2, 3, 4)
    for axis in range(3):
        yield Sample((x,), {"axis": axis})
    yield Sample((x[0, 0],), {"axis": 0})
    yield Sample((x.T,), {"axis": 1})
    yield Sample((x.astype(np.float32),), {"axis": 1})
    yield Sample((x[:0],), {"axis": 0})
    yield Sample((x[:, :0],), {"axis": 0})
    ties = rng.integers(0, 3, (3, 6))
    yield Sample((ties,), {"axis": 1}, differentiable=False)
    yield Sample((np.array([2.0, np.nan, -np.inf, 1.0]),), {"axis": 0}, False)


define(
    name="sort",
    kind=Kind.SORT,
    operands=("x",),
    infer=_sort_type,
    eager=lambda x, axis: np.sort(x, axis, kind="stable"),
    derivatives=(Vjp(_sort_vjp, ("x",)),),
    lower="sort({0})",  # of one line along the axis
    samples=_sort_samples,
)
define(
    name="argsort",  # stable
    kind=Kind.SORT,
    operands=("x",),
    infer=_argsort_type,
    eager=lambda x, axis: np.argsort(x, axis, kind="stable"),
    derivatives=(ZERO,),
    lower="argsort({0})",
    samples=_sort_samples,
)

# ---------------------------------------------------------------- searchsorted


def _searchsorted_type(x: Type, y: Type, *, right: bool) -> Type:
    if x.ndim != 1:
        raise ShapeError(f"searchsorted: a sorted vector is needed, not {x}")
    return Type(I64, y.shape) if y.shape else Type(I64, scalar=True)


def _searchsorted(x: Any, y: Any, right: bool) -> Any:
    return np.searchsorted(x, y, "right" if right else "left")


def _searchsorted_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([-1.0, 0.0, 0.0, 0.5, 2.0])
    y = np.array([[0.0, -3.0], [2.0, 5.0], [0.25, np.nan]])
    for right in (False, True):
        yield Sample((x, y), {"right": right})
        yield Sample((x, np.float64(0.5)), {"right": right})
        yield Sample((np.arange(4), np.array([2, 3])), {"right": right})
        yield Sample((x[:0], y), {"right": right})


define(
    name="searchsorted",  # where y belongs in the sorted x, before or after its equals
    kind=Kind.SORT,
    operands=("x", "y"),
    infer=_searchsorted_type,
    eager=_searchsorted,
    derivatives=(ZERO, ZERO),
    lower="searchsorted({0}, {1}, {right})",  # of the vector and one element
    samples=_searchsorted_samples,
    computes=lambda x, y: (promote(x, y).dtype,) * 2,
)
