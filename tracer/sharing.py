"""Tensors over arrays of the user that may share memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..ir.errors import UnsupportedError
from ..ir.op import OPS
from . import dispatch
from .location import user_location
from .tensor import Array, Tensor, wrap


def owner_of(array: Array) -> Array:
    """Return the array that holds the memory which `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def layout(array: Array) -> Hashable:
    """Return what tells whether two arrays are the same view of the same memory."""
    pointer = array.__array_interface__["data"][0]
    return pointer, array.shape, array.strides, array.dtype


def wrap_all(values: Sequence[Any]) -> list[Tensor]:
    """Return tensors over values, which share what their arrays share.

    Equal views become one Tensor. Arrays in one allocation that overlap become views of
    one base, so that a write through one is seen, with its gradient, through the other.

    >>> a = np.zeros(4)
    >>> x, y = wrap_all([a[:3], a[1:]])
    >>> x._base is y._base is not None
    True
    """
    arrays = [x for x in values if isinstance(x, np.ndarray)]
    found: dict[Hashable, Tensor] = {}
    bases: dict[int, Tensor] = {}
    for x in arrays:
        if layout(x) in found:
            continue
        others = (y for y in arrays if layout(y) != layout(x))
        if any(np.may_share_memory(x, y) for y in others):
            found[layout(x)] = _part_of(x, bases)
        else:
            found[layout(x)] = wrap(x)
    return [found[layout(x)] if isinstance(x, np.ndarray) else wrap(x) for x in values]


def _part_of(array: Array, bases: dict[int, Tensor]) -> Tensor:
    """Return an array as a view of a tensor over all of its memory."""
    owner = owner_of(array)
    if owner.dtype != array.dtype:
        raise UnsupportedError(
            f"arrays of {array.dtype} and {owner.dtype} share memory",
            location=user_location(),
            hint="pass a copy of one of them",
        )
    base = bases.get(id(owner))
    if base is None:
        base = bases[id(owner)] = wrap(_in_memory_order(owner))
    first = owner.__array_interface__["data"][0]
    offset = array.__array_interface__["data"][0] - first
    attrs = {
        "shape": array.shape,
        "strides": tuple(s // array.itemsize for s in array.strides),
        "offset": offset // array.itemsize,
    }
    result: Tensor = dispatch.apply(OPS["as_strided"], (base,), attrs)
    if not array.flags.writeable:
        result._data.flags.writeable = False
    return result


def _in_memory_order(owner: Array) -> Array:
    """Return an owner with its axes in the order of memory: C-contiguous."""
    order = sorted(range(owner.ndim), key=lambda k: -abs(owner.strides[k]))
    ordered = owner.transpose(order)
    if not ordered.flags.c_contiguous:
        raise UnsupportedError(
            "arrays that share memory lie in an allocation with gaps",
            location=user_location(),
            hint="pass a copy of one of them",
        )
    return ordered
