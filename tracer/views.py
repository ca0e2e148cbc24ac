"""Chains of views, and gradients that are nonzero in a view only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..ir.build import Builder, Shaped
from ..ir.op import OPS, Op
from ..ir.types import DType, Type, type_of_array
from ..runtime.devices import DeviceArray
from .builders import EAGER

Array: TypeAlias = "np.ndarray[Any, Any]"


class Outline(Shaped):
    """Stands for an array of which only dtype and shape were kept."""

    __slots__ = ("dtype", "shape")

    def __init__(self, data: Any) -> None:
        self.dtype: DType = data.dtype
        self.shape: tuple[int, ...] = data.shape

    @property
    def type(self) -> Type:  # type: ignore[override]
        return Type(self.dtype, self.shape)


class ViewStep(NamedTuple):
    """One view op with its indices and attributes."""

    op: Op
    indices: tuple[Any, ...]
    attrs: Mapping[str, Any]

    def view(self, x: Any) -> Any:
        """Return the view of an array."""
        if isinstance(x, DeviceArray):
            return x.viewed(self.view)
        return self.op.eager(x, *self.indices, **self.attrs)


def is_onto(step: ViewStep) -> bool:
    """Tell whether a view keeps every element exactly once."""
    scatter = step.op.scatter
    return scatter is not None and OPS[scatter].decompose is not None


def may_repeat(x: Array) -> bool:
    """Tell whether a view may show one element several times."""
    flags = x.flags
    if flags.c_contiguous or flags.f_contiguous:
        return False
    axes = zip(x.strides, x.shape, strict=True)
    reach = x.itemsize
    for stride, size in sorted((abs(s), d) for s, d in axes if d > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False


def repeats(x: Array) -> bool:
    """Tell whether a view shows one element several times."""
    if not may_repeat(x):
        return False
    places: Any = 0
    for k, (stride, size) in enumerate(zip(x.strides, x.shape, strict=True)):
        along = stride * np.arange(size)
        places = places + along.reshape(-1, *(1,) * (x.ndim - 1 - k))
    return np.unique(places).size < x.size


def put(view: Array, new: Any) -> None:
    """Write into a view; of several values for one element, the last in C order stays.

    NumPy leaves their order open.
    """
    if view.ndim > 1 and may_repeat(view):
        view.flat[...] = np.broadcast_to(new, view.shape)
    else:
        np.copyto(view, new, casting="unsafe")


class Part:
    """A gradient that is `ct` in one view of an array, and zero elsewhere."""

    __slots__ = ("ct", "outline", "steps")

    def __init__(self, outline: Outline, steps: tuple[ViewStep, ...], ct: Any) -> None:
        self.outline = outline
        self.steps = steps
        self.ct = ct

    def add_into(self, total: Array) -> Array:
        """Return `total` plus this; `total` is changed."""
        view = total
        for step in self.steps:
            view = step.view(view)
        if view is not total and not np.may_share_memory(view, total):
            if view.size:  # a reshape had to copy
                np.add(
                    total, pull_back(EAGER, self.outline, self.steps, self.ct), total
                )
            return total
        np.add(view, self.ct, out=view, casting="unsafe")
        return total


class Owned(NamedTuple):
    """A gradient in an array that nobody else holds: it may be changed."""

    array: Any


def pull_back(b: Builder, outline: Outline, steps: Sequence[ViewStep], ct: Any) -> Any:
    """Return the cotangent of an array from that of a view of it."""
    types = [outline.type]
    for step in steps[:-1]:
        indices = map(type_of_array, step.indices)
        types.append(step.op.infer(types[-1], *indices, **step.attrs))
    for step, type in zip(reversed(steps), reversed(types), strict=True):
        operands = (Shaped(type), *step.indices)
        ct = step.op.cotangent(b, 0, ct, None, operands, step.attrs)
    return ct


def scatter(b: Builder, x: Any, steps: Sequence[ViewStep], new: Any) -> Any:
    """Return `x` with the view that `steps` lead to replaced by `new`."""
    inputs = []
    for step in steps:
        inputs.append(x)
        x = b.apply(step.op, (x, *step.indices), step.attrs)
    for step, base in zip(reversed(steps), reversed(inputs), strict=True):
        assert step.op.scatter is not None
        new = b.apply(OPS[step.op.scatter], (base, new, *step.indices), step.attrs)
    return new
