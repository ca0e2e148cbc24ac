"""Where arrays lie: with the processor or on a device, and what a program makes of it.

A program runs on one device. It is that of the arrays that it is called with, or the
one that `compile` was told; NumPy arrays are copied there, but not beside arrays that
are there already: who mixes them has forgotten one, and would pay for it in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.errors import DeviceError, UnsupportedError
from ..runtime.devices import ARRAYS, DeviceArray
from ..runtime.devices import array as device_arrays
from .containers import Tree, flatten_tree, unflatten_tree
from .location import user_location
from .state import State

HOST = "the processor"


class Placement:
    """The arrays of one program, by where they lie."""

    def __init__(self, name: str, asked: str | None) -> None:
        self.name = name
        self.asked = asked  # by `compile`
        self.device: str | None = None  # of its DeviceArrays
        self.found: dict[str, list[str]] = {}

    @property
    def runs_on(self) -> str | None:
        """The device of the program; None for the processor."""
        return self.device or self.asked

    def enter(self, x: Any, what: str) -> None:
        """Note an array that the program reads; raises DeviceError where it cannot."""
        if not isinstance(x, ARRAYS):
            return
        if isinstance(x, DeviceArray):
            if self.asked not in (None, x.device):
                self._refuse(what, x.device)
            self.device = self.device or x.device
        elif not x.ndim:
            return  # a number, which goes with anything
        where = x.device if isinstance(x, DeviceArray) else HOST
        self.found.setdefault(where, []).append(what)

    def check(self) -> None:
        """Raise DeviceError where arrays lie on more than one device."""
        if len(self.found) < 2:
            return
        parts = [f"{', '.join(names)} on {d}" for d, names in self.found.items()]
        names = ", ".join(n for d, ns in self.found.items() if d == HOST for n in ns)
        raise DeviceError(
            f"{self.name}: {'; '.join(parts)}",
            location=user_location(),
            rule="All arrays of a call are on one device, or all are NumPy's.",
            hint=f"copy what is elsewhere: rg.device_array(x, {self.device!r})"
            + (f" for {names}" if names else ""),
        )

    def _refuse(self, what: str, device: str) -> None:
        raise DeviceError(
            f"{self.name}: {what} is on {device}, but the function was compiled for "
            f"{self.asked}",
            location=user_location(),
            rule="A function with a device runs there and nowhere else.",
            hint=f"pass rg.device_array(x, {self.asked!r}), or compile it without a "
            "device: then it runs where its arguments are",
        )


def on_host(fn: Callable[..., Any], leaves: Sequence[Any], tree: Tree) -> Any:
    """Run a function of arrays of a device, as it is, on copies that NumPy reads.

    Arrays that share memory share it there, too. In the end everything is copied back;
    results are arrays of the device, and views of arguments where they are that.
    """
    _check_reachable(fn, tree)
    given = {id(x): x for x in leaves if isinstance(x, DeviceArray)}
    regions = [_Region(xs) for xs in _sharing(list(given.values()))]
    stand_ins = {id(x): r.lying(x) for r in regions for x in r.arrays}
    args, kwargs = unflatten_tree(tree, [stand_ins.get(id(x), x) for x in leaves])
    try:
        outs, shape = flatten_tree(fn(*args, **kwargs))
    finally:
        for region in regions:
            region.write_back()
    same = {id(stand_ins[key]): x for key, x in given.items()}

    def moved(y: Any) -> Any:
        if id(y) in same:
            return same[id(y)]
        if not isinstance(y, np.ndarray | np.generic):
            return y
        views = (r.view(np.asarray(y)) for r in regions)
        found = next((v for v in views if v is not None), None)
        if found is not None:
            return found
        return device_arrays.uploaded(regions[0].arrays[0].place, np.asarray(y))

    return unflatten_tree(shape, list(map(moved, outs)))


def _check_reachable(fn: Callable[..., Any], tree: Tree) -> None:
    """Refuse what a function might reach but by its arguments and results."""
    state = State()
    state.search(fn)
    captured = [p.name for p, x in state.inputs if isinstance(x, DeviceArray)]
    if captured or not _is_plain(tree):
        raise UnsupportedError(
            "arrays of a device that share memory, and "
            + (f"the variable {captured[0]} there" if captured else "containers"),
            location=user_location(),
            rule="What is written into overlapping arrays is written by the function "
            "itself, on copies of its arguments.",
            hint="pass copies: x.copy()",
        )


def _is_plain(tree: Tree) -> bool:
    """Tell whether arguments are in tuples only, which nobody can change."""
    args, kwargs = tree.children
    return all(map(_is_fixed, (*args.children, *kwargs.children)))


def _is_fixed(tree: Tree) -> bool:
    return tree.kind in (None, tuple) and all(map(_is_fixed, tree.children))


def _sharing(arrays: Sequence[DeviceArray]) -> list[list[DeviceArray]]:
    """Return groups of arrays whose pieces of memory overlap."""
    out: list[list[DeviceArray]] = []
    end = 0
    for x in sorted(arrays, key=device_arrays.extent):
        low, high = device_arrays.extent(x)
        if out and low < end:
            out[-1].append(x)
            end = max(end, high)
        else:
            out.append([x])
            end = high
    return out


class _Region:
    """A piece of a device's memory in which arrays lie, with its copy on the host."""

    def __init__(self, arrays: list[DeviceArray]) -> None:
        self.arrays = arrays
        spans = list(map(device_arrays.extent, arrays))
        self.low = min(low for low, _ in spans)
        self.space = np.empty(max(high for _, high in spans) - self.low, np.uint8)
        arrays[0].place.read(self.low, self.space)

    def lying(self, x: DeviceArray) -> np.ndarray[Any, Any]:
        out = device_arrays.lying_in(x, self.space, self.low)
        out.flags.writeable = x.writable
        return out

    def write_back(self) -> None:
        self.arrays[0].place.write(self.low, self.space)

    def view(self, y: np.ndarray[Any, Any]) -> DeviceArray | None:
        """Return the array of the device that `y` stands for, if it lies here."""
        if not np.may_share_memory(y, self.space):
            return None
        x = self.arrays[0]
        offset = device_arrays.address_of(y) - device_arrays.address_of(self.space)
        at = self.low + offset
        return DeviceArray(x.place, x.memory, at, y.shape, y.dtype, y.strides)
