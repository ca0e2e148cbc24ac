"""Captured state: what a function reads and writes besides its arguments.

Before a trace, the variables, attributes and items that the function can name are
searched. Arrays, Tensors and floats found there become inputs: for the time of the
trace their places hold traced values, and at every call they are read anew through the
same places. Ints, strings and other constants found there are guards. After the trace
every place is restored; a place that the function bound to another traced value is
written at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy as np

from ..ir.errors import UnsupportedError
from .tensor import Tensor

Step: TypeAlias = tuple[str, Hashable]  # ("attr", name) or ("item", key)
MISSING = object()
DEPTH = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where captured state lives: a cell or an object, and steps from there."""

    root: CellType | dict[str, Any] | Any
    steps: tuple[Step, ...]
    name: str

    def _start(self) -> tuple[Any, tuple[Step, ...]]:
        if isinstance(self.root, CellType):
            try:
                return self.root.cell_contents, self.steps
            except ValueError:
                return MISSING, ()
        return self.root, self.steps

    def get(self) -> Any:
        """Return what the place holds now, or MISSING."""
        x, steps = self._start()
        for kind, key in steps:
            try:
                x = x.__dict__[key] if kind == "attr" else x[key]
            except (LookupError, AttributeError, TypeError):
                return MISSING
        return x

    def set(self, value: Any) -> None:
        """Let the place hold `value`."""
        if not self.steps:
            assert isinstance(self.root, CellType)
            self.root.cell_contents = value
            return
        parent = Place(self.root, self.steps[:-1], self.name)
        kind, key = self.steps[-1]
        owner = parent.get()
        if kind == "attr":
            owner.__dict__[key] = value
        elif isinstance(owner, tuple):
            items: list[Any] = list(owner)
            items[key] = value  # type: ignore[call-overload]
            make: Any = tuple if type(owner) is tuple else type(owner)._make  # type: ignore[attr-defined]
            parent.set(make(items))
        else:
            owner[key] = value

    def step(self, kind: str, key: Hashable) -> Place:
        shown = f"{self.name}.{key}" if kind == "attr" else f"{self.name}[{key!r}]"
        return Place(self.root, (*self.steps, (kind, key)), shown)


def is_input(x: object) -> bool:
    """Tell whether captured `x` is read at every call: arrays, Tensors and floats."""
    if isinstance(x, Tensor):
        return not x.is_traced
    return isinstance(x, np.ndarray | np.generic | float | complex) and not (
        isinstance(x, np.ndarray) and x.dtype.kind not in "biufc"
    )


def is_constant(x: object) -> bool:
    """Tell whether captured `x` is part of the program, guarded by its value."""
    return x is None or isinstance(x, int | str | bytes | np.dtype)


@dataclass(slots=True)
class State:
    """Everything a function captures."""

    inputs: list[tuple[Place, Any]] = field(default_factory=list)
    constants: list[tuple[Place, Any]] = field(default_factory=list)
    functions: list[tuple[Place, Any]] = field(default_factory=list)
    lists: list[tuple[str, Any, Any]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def search(self, f: Any) -> None:
        """Search what a callable can name, and what those functions can name."""
        if isinstance(f, MethodType):
            self._object(Place(f.__self__, (), "self"), f.__self__, 0)
            self.search(f.__func__)
        elif isinstance(f, functools.partial):
            self._object(Place(f, (), "partial"), f.func, 0)
            for k, x in enumerate(f.args):
                self._value(Place(f.args, (("item", k),), f"args[{k}]"), x, 0)
            for key, x in f.keywords.items():
                self._value(Place(f.keywords, (("item", key),), key), x, 0)
        elif isinstance(f, FunctionType):
            self._function(f)
        elif hasattr(f, "__rg_function__"):
            self.search(f.__rg_function__())
        elif isinstance(_call_of(f), FunctionType):
            self._object(Place(f, (), "self"), f, 0)
            self._function(_call_of(f))

    def search_object(self, x: Any, name: str = "argument") -> None:
        """Search an object that is an argument but no container or array."""
        if callable(x):
            self.search(x)
        else:
            self._object(Place(x, (), name), x, 0)

    def _function(self, f: FunctionType) -> None:
        if id(f.__code__) in self._seen and not f.__closure__:
            return
        if id(f) in self._seen:
            return
        self._seen.update((id(f), id(f.__code__)))
        names = f.__code__.co_freevars
        for name, cell in zip(names, f.__closure__ or (), strict=True):
            place = Place(cell, (), name)
            x = place.get()
            if x is not MISSING:
                self._value(place, x, 0)
        for name in sorted(set(_names(f.__code__))):
            if name in f.__globals__:
                place = Place(f.__globals__, (("item", name),), name)
                self._value(place, f.__globals__[name], 0)
        for k, x in enumerate(f.__defaults__ or ()):
            if callable(x):
                self._value(Place(f.__defaults__, (("item", k),), "default"), x, 0)

    def _value(self, place: Place, x: Any, depth: int) -> None:
        if is_input(x):
            self.inputs.append((place, x))
        elif is_constant(x):
            self.constants.append((place, x))
        elif isinstance(x, ModuleType | BuiltinFunctionType | type):
            self.functions.append((place, x))
        elif isinstance(x, FunctionType):
            self.functions.append((place, x.__code__))
            if _is_user(x):
                self._function(x)
        elif depth < DEPTH:
            self._object(place, x, depth)

    def _object(self, place: Place, x: Any, depth: int) -> None:
        if id(x) in self._seen:
            return
        self._seen.add(id(x))
        if isinstance(x, list | tuple):
            if isinstance(x, list):
                self.lists.append((place.name, x, list(x)))
            for k, item in enumerate(x[:256]):
                self._value(place.step("item", k), item, depth + 1)
        elif isinstance(x, dict):
            self.lists.append((place.name, x, dict(x)))
            for key, item in list(x.items())[:256]:
                self._value(place.step("item", key), item, depth + 1)
        elif isinstance(x, FunctionType | MethodType | functools.partial):
            self.search(x)
        elif hasattr(x, "__rg_function__"):
            self.search(x.__rg_function__())
        elif hasattr(x, "__dict__") and _is_user(type(x)):
            for key, item in list(vars(x).items()):
                self._value(place.step("attr", key), item, depth + 1)
            for method in _methods(type(x)):
                self._function(method)


def _call_of(f: Any) -> Any:
    return vars(type(f)).get("__call__")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_user(x: Any) -> bool:
    module = getattr(x, "__module__", None) or ""
    top = module.partition(".")[0]
    return top not in ("numpy", "scipy", "numba", "builtins", "retrograde", "functools")


def _methods(cls: type) -> Iterator[FunctionType]:
    for base in cls.__mro__:
        if _is_user(base):
            for x in vars(base).values():
                if isinstance(x, FunctionType):
                    yield x


class Swap:
    """Holds traced values in captured places, and restores the places afterwards."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.held: list[tuple[Place, Any, Any]] = []  # place, original, traced

    def put(self, place: Place, original: Any, traced: Any) -> None:
        place.set(traced)
        self.held.append((place, original, traced))

    def restore(self) -> list[tuple[Place, Any]]:
        """Restore every place; returns the places that were bound to something new."""
        changed = []
        for place, original, traced in reversed(self.held):
            now = place.get()
            if now is not traced and now is not MISSING:
                changed.append((place, now))
            place.set(original)
        self.held.clear()
        return changed

    def check_containers(self) -> None:
        """Undo changes of captured lists and dicts, and refuse them when traced."""
        for name, container, before in self.state.lists:
            same = len(container) == len(before) and all(
                a is b for a, b in zip(_items(container), _items(before), strict=True)
            )
            if same or not any(map(_is_traced, _items(container))):
                continue
            container.clear()
            if isinstance(container, dict):
                container.update(before)
            else:
                container.extend(before)
            raise UnsupportedError(
                f"the container {name} from outside was changed",
                rule="A compiled function may write arrays and rebind variables that "
                "it captures; containers that it captures cannot keep traced values.",
                hint="return the values instead",
            )


def _items(x: list[Any] | dict[Any, Any]) -> list[Any]:
    return list(x.values()) if isinstance(x, dict) else x


def _is_traced(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_traced


Reader = Callable[[], Any]
