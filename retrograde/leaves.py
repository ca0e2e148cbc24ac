"""Walk nested arguments and results, and copy them with all that they share.

A leaf is anything that is not a tuple, list, dict or dataclass. Its path reads like the
expression that reaches it: `params['w'][0]`.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

Leaf = tuple[str, Any]


def leaves(tree: Any, path: str = "") -> Iterator[Leaf]:
    """Yield the path and the value of every leaf, in order.

    >>> list(leaves({"w": [1.0, 2.0], "b": 3.0}, "params"))
    [("params['w'][0]", 1.0), ("params['w'][1]", 2.0), ("params['b']", 3.0)]
    """
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, item in enumerate(tree):
            yield from leaves(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name), f"{path}.{field.name}")
    else:
        yield path, tree


def rebuild(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a tree of the same structure with every leaf replaced, in order.

    >>> rebuild((1, [2, 3]), lambda leaf: leaf * 10)
    (10, [20, 30])
    """
    result: Any
    if isinstance(tree, dict):
        result = copy.copy(tree)
        for key, item in tree.items():
            result[key] = rebuild(item, replace)
        return result
    if isinstance(tree, (tuple, list)):
        items = [rebuild(item, replace) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        result = copy.copy(tree)
        for field in dataclasses.fields(tree):
            item = rebuild(getattr(tree, field.name), replace)
            object.__setattr__(result, field.name, item)
        return result
    return replace(tree)


def is_array(leaf: Any) -> bool:
    """Tell whether a leaf is memory that a program can write to."""
    return isinstance(leaf, np.ndarray)


def is_float(leaf: Any) -> bool:
    """Tell whether a leaf can be differentiated: a real float number or array."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind == "f"
    return isinstance(leaf, float)


def shares_memory(a: Any, b: Any) -> bool:
    """Tell whether two leaves are arrays with an element in common."""
    if not (is_array(a) and is_array(b)):
        return False
    try:
        # NumPy's stubs know two of the numbers that it takes here.
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return bool(np.may_share_memory(a, b))


def copy_sharing(tree: Any) -> Any:
    """Copy all arrays of a tree so that the copies share memory as the arrays do.

    Strides, offsets and read-only marks are kept, too.

    >>> base = np.arange(4.0)
    >>> head, tail = copy_sharing((base[:3], base[::-2]))
    >>> head[1] = 7.0
    >>> tail, base
    (array([3., 7.]), array([0., 1., 2., 3.]))
    """
    arrays = {id(leaf): leaf for _, leaf in leaves(tree) if _is_copyable(leaf)}
    copies: dict[int, Any] = {}
    for group in _overlapping(list(arrays.values())):
        copies.update(_copy_group(group))

    def replace(leaf: Any) -> Any:
        if id(leaf) in copies:
            return copies[id(leaf)]
        return leaf.copy() if is_array(leaf) else leaf

    return rebuild(tree, replace)


def copy_apart(tree: Any) -> Any:
    """Copy all arrays of a tree so that no two copies share memory.

    >>> x = np.zeros(2)
    >>> a, b = copy_apart((x, x))
    >>> np.shares_memory(a, b)
    False
    """

    def replace(leaf: Any) -> Any:
        if not _is_copyable(leaf):
            return leaf.copy() if is_array(leaf) else leaf
        return _copy_group([leaf])[id(leaf)]

    return rebuild(tree, replace)


def _is_copyable(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and not leaf.dtype.hasobject and leaf.size > 0


def _overlapping(arrays: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Group arrays whose address ranges overlap: each group lies in one allocation."""
    group: list[np.ndarray] = []
    end = 0
    for array in sorted(arrays, key=lambda a: byte_bounds(a)[0]):
        low, high = byte_bounds(array)
        if group and low >= end:
            yield group
            group = []
        end = max(end, high) if group else high
        group.append(array)
    if group:
        yield group


def _copy_group(arrays: list[np.ndarray]) -> dict[int, np.ndarray]:
    """Lay one new buffer out as the memory below the arrays is laid out."""
    low = min(byte_bounds(a)[0] for a in arrays)
    high = max(byte_bounds(a)[1] for a in arrays)
    buffer = np.zeros(high - low + 64, np.uint8)
    shift = (low - buffer.ctypes.data) % 64  # the same alignment as the original
    copies = {}
    for array in arrays:
        offset = array.__array_interface__["data"][0] - low + shift
        twin: np.ndarray = np.ndarray(
            array.shape, array.dtype, buffer.data, offset, array.strides
        )
        # Elements that overlap hold one value, so writing some of them twice is fine.
        np.copyto(twin, array)
        twin.flags.writeable = array.flags.writeable
        copies[id(array)] = twin
    return copies
