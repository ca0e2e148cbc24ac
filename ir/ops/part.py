"""A view of a view of ... as one view.

`part(x, *indices; steps)` takes the views `steps` one after the other; each is a tuple
of a name and its attributes, such as `("slice", "axis", 0, "size", n - 2)`, and takes
its own index operands from `indices`. With its twins a write through a chain of views
is one write into the buffer at the root: no view in between is ever an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..dims import Dim
from ..errors import IRError
from ..op import OPS, Kind, Op, Sample, Step
from ..types import Shape, Type
from .view import view

Coded = tuple[Any, ...]


def coded(op: Op, attrs: Mapping[str, Any]) -> Coded:
    """Return one step as an attribute holds it."""
    return (op.name, *(x for pair in sorted(attrs.items()) for x in pair))


@cache
def _decoded(step: Coded) -> tuple[Op, dict[str, Any]]:
    name, *rest = step
    op = OPS.get(name)
    if op is None or op.kind is not Kind.VIEW or op.overlapping:
        raise IRError(f"part: {name!r} is no view with an element at each place")
    return op, dict(zip(rest[::2], rest[1::2], strict=True))


def _takes(op: Op) -> int:
    return len(op.operands) - 1


def _steps(x: Type, *indices: Any, steps: tuple[Coded, ...]) -> Sequence[Step]:
    found: list[Step] = []
    base, rest = x, list(indices)
    for op, attrs in map(_decoded, steps):
        mine, rest = tuple(rest[: _takes(op)]), rest[_takes(op) :]
        if len(mine) != _takes(op):
            break
        found.append(Step(op, base, mine, attrs))
        base = op.infer(base, *mine, **attrs)
    if rest or len(found) != len(steps):
        raise IRError(f"part: {len(indices)} indices do not fit the steps {steps}")
    return found


def _shape(x: Type, *indices: Any, steps: tuple[Coded, ...]) -> Shape:
    last = _steps(x, *indices, steps=steps)[-1]
    t: Type = last.op.infer(last.base, *last.indices, **last.attrs)
    return t.shape


def _eager(x: Any, *indices: Any, steps: tuple[Coded, ...]) -> Any:
    rest = list(indices)
    for op, attrs in map(_decoded, steps):
        mine, rest = rest[: _takes(op)], rest[_takes(op) :]
        x = op.eager(x, *mine, **attrs)
    return x


def _map(
    index: Sequence[Dim], x: Type, *indices: Dim, steps: tuple[Coded, ...]
) -> Sequence[Dim]:
    for step in reversed(_steps(x, *indices, steps=steps)):
        assert step.op.index_map is not None
        index = step.op.index_map(index, step.base, *step.indices, **step.attrs)
    return index


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(4, 5))
    row = ("select", "axis", 0)
    yield Sample((x, 1, 1), {"steps": (row, ("slice", "axis", 0, "size", 3))})
    yield Sample((x, np.int64(2), 4), {"steps": (row, ("select", "axis", 0))})
    rows, columns = (("slice", "axis", k, "size", 2, "step", 1) for k in (0, 1))
    yield Sample((x, 1, 2), {"steps": (rows, columns)})
    yield Sample((x, 3), {"steps": (("transpose", "axes", (1, 0)), row)})
    yield Sample((x, 0), {"steps": (("flip", "axis", (0,)), row)})


view(
    "part",
    shape=_shape,
    eager=_eager,
    index_map=_map,
    samples=_samples,
    indices=("*indices",),
    steps=_steps,
)

__all__ = ["coded"]
