"""How views take a new axis (`batch.py`): which views of a batched array they are.

A rule returns the views one after the other, so that they also say how to write into
the part, and the position of the new axis in the last one. An index that runs with the
iterations makes a `select` a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..dims import Dim
from ..op import OPS, Step
from ..types import Shape, Type
from .batch import Axis, Over, shifted

Views: TypeAlias = tuple[Sequence[Step], Axis]
Axes: TypeAlias = tuple[int, ...]


def steps(x: Type, *moves: tuple[str, Sequence[Any], dict[str, Any]]) -> list[Step]:
    """Return views one after the other, each with the type that it is taken of."""
    found: list[Step] = []
    for name, indices, attrs in moves:
        found.append(Step(OPS[name], x, tuple(indices), attrs))
        x = OPS[name].infer(x, *indices, **attrs)
    return found


def select_batch(
    x: Type, p: Axis, index: Any, *, over: Over, axis: int
) -> Views | None:
    """Select, or take a slice where the index runs; along a diagonal where x runs."""
    a = axis if p is None else shifted(axis, p)
    if not over.varies(index):
        at = p if p is None else p - (a < p)
        return steps(x, ("select", (index,), {"axis": a})), at
    line = over.line(index)
    if line is None:
        return None
    first, step = line
    cut = {"axis": a, "size": over.size, "step": step}
    if p is None:
        return steps(x, ("slice", (first,), cut)), a
    along = {"offset": 0, "axis1": p, "axis2": a, "size": over.size}
    return steps(x, ("slice", (first,), cut), ("diagonal", (), along)), x.ndim - 2


def slice_batch(
    x: Type, p: Axis, start: Any, *, over: Over, axis: int, size: Dim, step: Dim = 1
) -> Views | None:
    if not over.varies(start):
        a = axis if p is None else shifted(axis, p)
        cut = {"axis": a, "size": size, "step": step}
        return steps(x, ("slice", (start,), cut)), p
    if size != 1:  # overlapping windows
        return None
    found = select_batch(x, p, start, over=over, axis=axis)
    if found is None:
        return None
    views, at = found
    assert at is not None
    part = views[-1].op.infer(views[-1].base, *views[-1].indices, **views[-1].attrs)
    back = ("expand_dims", (), {"axis": (shifted(axis, at),)})
    return (*views, *steps(part, back)), at + (axis < at)


def transpose_batch(x: Type, p: int, *, over: Over, axes: tuple[int, ...]) -> Views:
    order = [shifted(k, p) for k in axes]
    order.insert(p, p)
    return steps(x, ("transpose", (), {"axes": tuple(order)})), p


def reshape_batch(x: Type, p: int, *, over: Over, shape: Shape) -> Views:
    order = (p, *(k for k in range(x.ndim) if k != p))
    front = [("transpose", (), {"axes": order})] if p else []
    whole = {"shape": (over.size, *shape)}
    return steps(x, *front, ("reshape", (), whole)), 0


def squeeze_batch(x: Type, p: int, *, over: Over, axis: Axes) -> Views:
    axes = tuple(shifted(k, p) for k in axis)
    return steps(x, ("squeeze", (), {"axis": axes})), p - sum(k < p for k in axes)


def expand_batch(x: Type, p: int, *, over: Over, axis: Axes) -> Views:
    """Add axes; the new axis of the iterations stays right before the same axis."""
    kept = [k for k in range(x.ndim - 1 + len(axis)) if k not in axis]
    at = kept[p] if p < len(kept) else x.ndim - 1 + len(axis)
    axes = tuple(shifted(k, at) for k in axis)
    return steps(x, ("expand_dims", (), {"axis": axes})), at


def flip_batch(x: Type, p: int, *, over: Over, axis: Axes) -> Views:
    axes = tuple(shifted(k, p) for k in axis)
    return steps(x, ("flip", (), {"axis": axes})), p


def diagonal_batch(
    x: Type, p: int, *, over: Over, axis1: int = 0, axis2: int = 1, **attrs: Any
) -> Views:
    a, c = shifted(axis1, p), shifted(axis2, p)
    along = {**attrs, "axis1": a, "axis2": c}
    return steps(x, ("diagonal", (), along)), p - (a < p) - (c < p)


def broadcast_batch(x: Type, p: int, *, over: Over, shape: Shape) -> Views:
    at = len(shape) - (x.ndim - 1 - p)
    whole = {"shape": (*shape[:at], over.size, *shape[at:])}
    return steps(x, ("broadcast_to", (), whole)), at
