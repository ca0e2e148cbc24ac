"""What an index key means: NumPy's rules, from a key to views and index arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.errors import (
    DTypeError,
    IndexRangeError,
    ShapeError,
)
from ..ir.op import OPS
from . import dispatch
from .symbols import SymInt, clamp, from_end, is_int
from .values import concrete, constant, is_scalar, is_symbolic

_INVALID = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and "
    "integer or boolean arrays are valid indices"
)
_FULL = slice(None)
_PLAIN = frozenset((int, type(None)))
_SIMPLE = frozenset((int, slice))


_SELECT, _SLICE = OPS["select"], OPS["slice"]


def apply(name: str, *operands: Any, **attrs: Any) -> Any:
    """Apply the op of that name."""
    return dispatch.apply(OPS[name], operands, attrs)


def simple_view(x: Any, key: Any) -> Any:
    """Return the view that ints and slices alone name, or None for other keys."""
    parts = key if type(key) is tuple else (key,)
    shape = x.shape
    if len(parts) > len(shape) or not _SIMPLE.issuperset(map(type, parts)):
        return None
    axis = 0
    for source, k in enumerate(parts):
        n = shape[source]
        if type(k) is int:
            if not -n <= k < n:
                raise out_of_bounds(k, source, n)
            x = dispatch.apply(_SELECT, (x, k + n if k < 0 else k), {"axis": axis})
            continue
        if not (k.start is None and k.stop is None and k.step is None):
            start, size, step = slice_bounds(k, n)
            if not (is_literal(start, 0) and is_literal(step, 1) and same(size, n)):
                attrs = {"axis": axis, "size": size, "step": step}
                x = dispatch.apply(_SLICE, (x, start), attrs)
        axis += 1
    return x


@dataclass(slots=True)
class Plan:
    """What a key means: views first, then one advanced step.

    `arrays` maps axes of the array after the views to index arrays; `position` is where
    their broadcast shape goes. `mask` stands alone: it covers the axes from
    `mask_axis` on.
    """

    views: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(
        default_factory=list
    )
    axes: list[int] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    places: list[tuple[Any, int]] = field(default_factory=list)  # sizes, axes of x
    position: int = 0
    mask: Any = None
    mask_axis: int = 0
    copies: bool = False  # a 0-d array among the indices: NumPy copies
    scalar: bool = False  # every axis has an integer: the result is a scalar

    @property
    def advanced(self) -> bool:
        return bool(self.arrays) or self.mask is not None

    def view(self, x: Any) -> Any:
        """Return the view of `x` that the basic part of the key names."""
        for name, operands, attrs in self.views:
            x = apply(name, x, *operands, **attrs)
        return x


def is_array(k: object) -> bool:
    return hasattr(k, "dtype") and hasattr(k, "shape")


def as_index_array(k: Any) -> Any:
    """Return a list or tuple within a key as an array."""
    if not isinstance(k, list | tuple):
        raise IndexRangeError(_INVALID)
    if is_symbolic(k):
        from .functions.create import array

        return array(k)
    out = np.asarray(k)
    if out.size == 0 and out.dtype.kind == "f":
        out = out.astype(np.intp)
    return constant(out)


def _entries(key: Any) -> list[Any]:
    """Return the parts of a key, with lists made arrays."""
    parts = key if isinstance(key, tuple) else (key,)
    out = []
    for k in parts:
        simple = k is None or k is Ellipsis or isinstance(k, slice | bool)
        out.append(k if simple or is_int(k) or is_array(k) else _index_of_object(k))
    return out


def _index_of_object(k: Any) -> Any:
    if hasattr(k, "__index__"):
        return k.__index__()
    return as_index_array(list(k) if isinstance(k, range) else k)


def _axes_used(k: Any) -> int:
    """Return how many axes of the array a part of a key takes."""
    if k is None or k is Ellipsis or isinstance(k, bool | np.bool_):
        return 0
    if is_array(k) and k.dtype == np.bool_:
        return len(k.shape)
    return 1


def _with_ellipsis(parts: list[Any], ndim: int) -> list[Any]:
    """Return the parts with `...` replaced by the full slices that it stands for."""
    dots = [n for n, k in enumerate(parts) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexRangeError("an index can only have a single ellipsis ('...')")
    used = sum(map(_axes_used, parts))
    if used > ndim:
        raise IndexRangeError(
            f"too many indices for array: array is {ndim}-dimensional, "
            f"but {used} were indexed"
        )
    at = dots[0] if dots else len(parts)
    return [*parts[:at], *[_FULL] * (ndim - used), *parts[at + 1 :]]


def plan(shape: Sequence[Any], key: Any) -> Plan:
    """Work out what a key means for an array of that shape; raises NumPy's errors."""
    parts = _entries(key)
    dots = any(k is Ellipsis for k in parts)
    parts = _with_ellipsis(parts, len(shape))
    for k in parts:
        if is_array(k) and k.dtype.kind not in "biu":
            raise IndexRangeError(
                "arrays used as indices must be of integer (or boolean) type"
                if k.shape
                else _INVALID
            )
    return _Reader(shape, parts, dots).read()


class _Reader:
    """Walks over the parts of a key once, from the left."""

    def __init__(self, shape: Sequence[Any], parts: list[Any], dots: bool) -> None:
        self.shape = shape
        self.parts = parts
        self.plan = Plan()
        self.source = 0  # the next axis of the array
        self.axis = 0  # the next axis after the views so far
        self.kept = 0  # axes before here that stay in the result
        self.groups = 0  # runs of neighbouring advanced parts
        self.in_group = False
        self.plan.scalar = not dots
        self.fancy = any(self._is_fancy(k) for k in parts)

    @staticmethod
    def _is_fancy(k: Any) -> bool:
        if isinstance(k, bool):
            return True
        if not is_array(k):
            return False
        return bool(k.shape) or k.dtype == np.bool_

    def read(self) -> Plan:
        out = self.plan
        for k in self.parts:
            if k is None:
                self.new_axis()
            elif isinstance(k, slice):
                self.slice(k)
            elif self._is_fancy(k):
                self.array(k)
            else:
                self.integer(k)
        if self.groups > 1:
            out.position = 0
        out.scalar = out.scalar and not self.axis
        return out

    def keep(self) -> None:
        self.axis += 1
        self.kept += 1
        self.in_group = False

    def enter_group(self) -> None:
        if not self.in_group:
            self.groups += 1
            self.in_group = True
            if self.groups == 1:
                self.plan.position = self.kept

    def new_axis(self) -> None:
        self.plan.views.append(("expand_dims", (), {"axis": (self.axis,)}))
        self.keep()

    def slice(self, k: slice) -> None:
        n = self.shape[self.source]
        if not (k.start is None and k.stop is None and k.step is None):
            start, size, step = slice_bounds(k, n)
            if not (is_literal(start, 0) and is_literal(step, 1) and same(size, n)):
                attrs = {"axis": self.axis, "size": size, "step": step}
                self.plan.views.append(("slice", (start,), attrs))
        self.source += 1
        self.keep()

    def integer(self, k: Any) -> None:
        at = index_operand(k, self.shape[self.source], self.source)
        if is_array(k) and not isinstance(k, np.generic):
            self.plan.copies |= not is_scalar(k)
        self.plan.views.append(("select", (at,), {"axis": self.axis}))
        self.source += 1
        if self.fancy:
            self.enter_group()

    def array(self, k: Any) -> None:
        self.enter_group()
        if not isinstance(k, bool) and k.dtype != np.bool_:
            self.index_array(k)
            self.plan.places.append((self.shape[self.source - 1], self.source - 1))
            return
        if isinstance(k, bool) or not k.shape:
            self.boolean(k)
            return
        for n, d in enumerate(k.shape):
            have = self.shape[self.source + n]
            if d != have:
                raise IndexRangeError(
                    "boolean index did not match indexed array along axis "
                    f"{self.source + n}; size of axis is {have} but size of "
                    f"corresponding boolean axis is {d}"
                )
        if self._is_lone_mask():
            self.plan.mask, self.plan.mask_axis = k, self.axis
            self.source += len(k.shape)
            self.axis += len(k.shape)
            return
        from .functions.choice import nonzero

        for index in nonzero(k):
            self.plan.places.append((self.shape[self.source], self.source))
            self.index_array(index)

    def _is_lone_mask(self) -> bool:
        """Tell whether only integers index beside a mask, and its axis stays put."""
        advanced = [
            n
            for n, p in enumerate(self.parts)
            if p is not None and not isinstance(p, slice)
        ]
        if sum(map(self._is_fancy, self.parts)) > 1:
            return False
        together = len(advanced) == advanced[-1] - advanced[0] + 1
        return together or self.axis == 0

    def index_array(self, k: Any) -> None:
        self.plan.axes.append(self.axis)
        self.plan.arrays.append(k)
        self.source += 1
        self.axis += 1

    def boolean(self, k: Any) -> None:
        value = bool(k)
        self.plan.views.append(("expand_dims", (), {"axis": (self.axis,)}))
        self.plan.places.append((1, self.axis))
        self.plan.axes.append(self.axis)
        self.plan.arrays.append(constant(np.zeros(int(value), np.intp)))
        self.axis += 1


def in_range(p: Plan, selected: Sequence[Any]) -> list[Any]:
    """Return the index arrays; raise where known ones are out of range.

    Where nothing is selected NumPy does not look at the indices.
    """
    if any(is_literal(d, 0) for d in selected):
        return [constant(np.zeros(tuple(selected), np.intp))] * len(p.arrays)
    for k, (size, axis) in zip(p.arrays, p.places, strict=True):
        values = concrete(k)
        if values is None or isinstance(size, SymInt) or not values.size:
            continue
        low, high = values.min(), values.max()
        if low < -size or high >= size:
            bad = (values < -size) | (values >= size)
            raise out_of_bounds(values[bad][0], axis, size)
    return p.arrays


def out_of_bounds(k: Any, axis: int, size: Any) -> IndexRangeError:
    return IndexRangeError(
        f"index {k} is out of bounds for axis {axis} with size {size}"
    )


def same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def is_literal(k: Any, value: int) -> bool:
    """Tell whether `k` is that Python int, asking no decider."""
    return isinstance(k, int) and k == value


def is_one(d: Any) -> bool:
    """Tell whether a size is 1; one that only the program knows is not."""
    return not (isinstance(d, SymInt) and d.is_open) and bool(d == 1)


def index_operand(k: Any, size: Any, axis: int) -> Any:
    """Return an integer index as an operand: in range, or a value that wraps."""
    if is_array(k) and not isinstance(k, np.generic):
        value = concrete(k)
        if value is None:
            return k
        k = int(value)
    if isinstance(k, SymInt):
        return k.as_index(size)
    k = int(k)
    if isinstance(size, SymInt) and size.is_open:
        return size.like(k).as_index(size)
    if not -size <= k < size:
        raise out_of_bounds(k, axis, size)
    return k + size if k < 0 else k


def _bound(k: Any, what: str = "slice indices") -> Any:
    """Return a part of a slice as an int or SymInt."""
    if k is None or isinstance(k, int | SymInt):
        return k
    if is_array(k) and concrete(k) is None and k.dtype.kind in "iu" and not k.shape:
        return dispatch.active_trace().integers.of(k)  # type: ignore[union-attr]
    try:
        return k.__index__()
    except (AttributeError, TypeError):
        raise DTypeError(
            f"{what} must be integers or None or have an __index__ method"
        ) from None


def slice_bounds(k: slice, n: Any) -> tuple[Any, Any, Any]:
    """Return (start, size, step) of a slice of n elements, clamped as NumPy does.

    >>> slice_bounds(slice(None, None, -2), 5)
    (4, 3, -2)
    >>> slice_bounds(slice(-2, 100), 5)
    (3, 2, 1)
    """
    if type(n) is int and _PLAIN.issuperset(map(type, (k.start, k.stop, k.step))):
        if k.step == 0:
            raise ShapeError("slice step cannot be zero")
        found = k.indices(n)
        size = len(range(*found))
        return (found[0], size, found[2]) if size else (0, 0, 1)
    start, stop = _bound(k.start), _bound(k.stop)
    step = 1 if k.step is None else _bound(k.step)
    if step == 0:
        raise ShapeError("slice step cannot be zero")
    backward = step < 0
    low, high = (-1, n - 1) if backward else (0, n)
    first = _clamped(start, n, low, high, high if backward else low)
    last = _clamped(stop, n, low, high, low if backward else high)
    if backward:
        gap, pace = first - last, -step
    else:
        gap, pace = last - first, step
    if gap is n and pace == 1:
        return first, n, step
    gap = _at_least_zero(gap)
    if is_literal(gap, 0):
        return 0, 0, 1
    return first, gap if pace == 1 else (gap + pace - 1) // pace, step


def _at_least_zero(gap: Any) -> Any:
    """Return a length: 0 where the end of a slice lies before its start."""
    if isinstance(gap, SymInt) and gap.is_open:
        return gap.clamped(0, None)
    return gap if gap > 0 else 0


def _clamped(k: Any, n: Any, low: Any, high: Any, default: Any) -> Any:
    if k is None:
        return default
    return clamp(from_end(k, n), low, high)


def broadcast_index(arrays: Sequence[Any]) -> tuple[Any, ...]:
    out: list[Any] = []
    ndim = max(len(a.shape) for a in arrays)
    for axis in range(-ndim, 0):
        dim: Any = 1
        for d in (a.shape[axis] for a in arrays if len(a.shape) >= -axis):
            if is_literal(dim, 1):
                dim = d
            elif not is_literal(d, 1) and d != dim:
                shapes = " ".join(show(a.shape) for a in arrays)
                raise IndexRangeError(
                    "shape mismatch: indexing arrays could not be broadcast together "
                    f"with shapes {shapes} "
                )
        out.append(dim)
    return tuple(out)


def show(shape: Sequence[Any]) -> str:
    inner = ",".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
