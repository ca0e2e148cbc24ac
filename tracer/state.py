"""Captured state: what a function reads and writes besides its arguments.

Before a trace, the variables, attributes and items that the function can name are
searched. Arrays, Tensors and floats found there become inputs: for the time of the
trace their places hold traced values, and at every call they are read anew through the
same places. Ints, strings and other constants found there are guards. After the trace
every place is restored; a place that the function bound to another traced value is
written at every call.
"""

from __future__ import annotations

import builtins
import functools
import sys
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import (
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy as np

from ..runtime.devices import DeviceArray
from .containers import flatten_tree, map_tree, parts_of
from .named import named
from .tensor import Tensor

Step: TypeAlias = tuple[str, Hashable]  # ("attr", name) or ("item", key)
Fixed: TypeAlias = tuple[dict[str, Any], str, Any]  # a namespace, a name, what it means
MISSING = object()
LIBRARIES = ("numpy", "scipy", "numba", "builtins", "retrograde", "functools")
DESCRIPTORS = (MemberDescriptorType, GetSetDescriptorType)
DEPTH = 8
WIDTH = 256  # items of a container that are searched


@dataclass(frozen=True, slots=True)
class Place:
    """Where captured state lives: a cell or an object, and steps from there."""

    root: CellType | dict[str, Any] | Any
    steps: tuple[Step, ...]
    name: str

    @property
    def key(self) -> Hashable:
        """What tells places apart while their roots live."""
        return id(self.root), self.steps

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
        """Let the place hold `value`, or nothing where that is MISSING."""
        if not self.steps:
            if isinstance(self.root, CellType):  # else: an object, which stays
                self.root.cell_contents = value
                if value is MISSING:
                    del self.root.cell_contents
            return
        parent = Place(self.root, self.steps[:-1], self.name)
        kind, key = self.steps[-1]
        owner = parent.get()
        if value is MISSING:
            del owner[key]
        elif isinstance(owner, type):
            setattr(owner, str(key), value)
        elif kind == "attr":
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
    return isinstance(x, INPUTS) and not (
        isinstance(x, np.ndarray) and x.dtype.kind not in "biufc"
    )


INPUTS = (np.ndarray, np.generic, float, complex, DeviceArray)
CONSTANTS = (int, str, bytes, np.dtype, float, complex, np.generic)


def is_constant(x: object) -> bool:
    """Tell whether captured `x` is part of the program, guarded by its value."""
    return x is None or isinstance(x, int | str | bytes | np.dtype)


Contents: TypeAlias = list[Any] | dict[Any, Any]
Way: TypeAlias = Place | tuple[Step, ...]  # a place, or steps into the arguments


@dataclass(slots=True)
class Container:
    """A list, dict or object that the function can reach and change."""

    way: Way
    owner: Any
    before: Contents = field(init=False)

    def __post_init__(self) -> None:
        self.before = copied(contents(self.owner))

    @property
    def name(self) -> str:
        return self.way.name if isinstance(self.way, Place) else "of an argument"

    def structure(self) -> tuple[type, Any]:
        return structure(self.owner)


def contents(x: Any) -> Contents:
    """Return the list or dict that holds the items or attributes of `x`."""
    if isinstance(x, list | dict):
        return x
    found: dict[Any, Any] = vars(x)
    return found


def copied(x: Contents) -> Contents:
    return dict(x) if isinstance(x, dict) else list(x)


def replace_contents(x: Contents, new: Contents) -> None:
    """Give a list or dict other items, in place."""
    if isinstance(x, list):
        x[:] = new
        return
    for key in [k for k in x if k not in new]:
        del x[key]
    assert isinstance(new, dict)
    x.update(new)


def structure(x: Any) -> tuple[type, Any]:
    """Return what a program takes for granted about a captured container."""
    if isinstance(x, list | tuple):
        return type(x), len(x)
    return type(x), tuple(x if isinstance(x, dict) else getattr(x, "__dict__", ()))


def containers_in(x: Any, way: tuple[Step, ...] = ()) -> Iterator[Container]:
    """Yield what can be changed in arguments, outermost first."""
    if isinstance(x, Tensor | np.ndarray | DeviceArray) or len(way) > DEPTH + 2:
        return
    if isinstance(x, list | tuple | dict):
        if len(way) > 1 and not isinstance(x, tuple):
            yield Container(way, x)
        pairs = x.items() if isinstance(x, dict) else enumerate(x)
        for key, item in list(pairs):
            yield from containers_in(item, (*way, ("item", key)))
    elif parts_of(x) is not None and hasattr(x, "__dict__"):
        yield Container(way, x)
        for key, item in list(vars(x).items()):
            yield from containers_in(item, (*way, ("attr", key)))


def unsearched(x: Any) -> tuple[Any, ...]:
    """Return what a container holds beyond what is searched."""
    if isinstance(x, list | tuple):
        return tuple(x[WIDTH:])
    if isinstance(x, dict):
        return tuple(list(x.items())[WIDTH:])
    return tuple(Opaque(x).read())


def agree(x: Any, y: Any) -> bool:
    """Tell whether two objects that are part of a program are the same to it."""
    return x is y or (
        type(x) is type(y) and isinstance(x, CONSTANTS) and bool(x == y or x != x)
    )


def stands_for(f: Any) -> Any:
    """Return what tells a function from others: its code, unless it holds values."""
    if type(f) is not FunctionType or f.__closure__ or f.__defaults__:
        return f
    return f if f.__kwdefaults__ else f.__code__


MUTABLE = (set, deque, bytearray, array)


class Opaque:
    """An object whose changes are seen and undone, but not understood."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def read(self) -> list[Any]:
        """Return what the object holds now."""
        if isinstance(self.owner, MUTABLE):
            return list(self.owner)
        return [getattr(self.owner, k, MISSING) for k in _slots_of(self.owner)]

    def restore(self, held: list[Any]) -> None:
        """Let the object hold what it held."""
        x = self.owner
        if isinstance(x, set):
            x.clear()
            x.update(held)
        elif isinstance(x, deque):
            x.clear()
            x.extend(held)
        elif isinstance(x, bytearray):
            x[:] = bytes(held)
        elif isinstance(x, array):
            x[:] = array(x.typecode, held)
        else:
            for k, value in zip(_slots_of(x), held, strict=True):
                if value is not MISSING:
                    setattr(x, k, value)
                elif hasattr(x, k):
                    delattr(x, k)


def _slots_of(x: Any) -> list[str]:
    """Return the slots in which an object without a dict keeps its attributes."""
    every = (vars(c).get("__slots__", ()) for c in type(x).__mro__)
    return [k for s in every for k in ((s,) if isinstance(s, str) else s)]


def found(way: Way, arguments: Any) -> Any:
    """Return the container at a place, or at steps into the arguments."""
    if isinstance(way, Place):
        return way.get()
    for kind, key in way:
        arguments = getattr(arguments, str(key)) if kind == "attr" else arguments[key]
    return arguments


@dataclass(slots=True)
class State:
    """Everything a function captures.

    What is no input is guarded: `constants` by value, `functions` and all that is not
    looked into by identity, `structures` by type and keys, `aliases` by being one
    object, `rests` by the items that are not searched, `fixed` by identity: attributes
    of modules that are not the user's, and that no global hides a builtin. An input of
    which the program asks neither values nor sizes is guarded by its type, dtype and
    rank.
    """

    inputs: list[tuple[Place, Any]] = field(default_factory=list)
    constants: list[tuple[Place, Any]] = field(default_factory=list)
    functions: list[tuple[Place, Any]] = field(default_factory=list)
    aliases: list[tuple[Place, Place]] = field(default_factory=list)
    rests: list[tuple[Place, tuple[Any, ...]]] = field(default_factory=list)
    variables: list[Place] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    structures: list[tuple[Place, tuple[type, Any]]] = field(default_factory=list)
    opaque: list[tuple[Place, Opaque]] = field(default_factory=list)
    iterators: list[Iterator[Any]] = field(default_factory=list)
    fixed: dict[tuple[int, str], Fixed] = field(default_factory=dict)
    compares: bool = False  # whether code asks if two objects are one
    _seen: set[int] = field(default_factory=set)
    _places: dict[int, Place] = field(default_factory=dict)  # of objects
    _seen_places: set[Hashable] = field(default_factory=set)

    def search(self, f: Any) -> None:
        """Search what a callable can name, and what those functions can name."""
        if isinstance(f, MethodType) and isinstance(f.__self__, type):
            self._class(f.__self__)
            if _is_user(f.__func__):
                self.search(f.__func__)
        elif isinstance(f, MethodType):
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
        free = f.__code__.co_freevars
        code = named(f.__code__)
        names = sorted(code.names)
        self.compares |= code.compares
        places = [
            *(Place(c, (), n) for n, c in zip(free, f.__closure__ or (), strict=True)),
            *(Place(f.__globals__, (("item", n),), n) for n in names),
        ]
        for place in places:
            x = place.get()
            if x is not MISSING:
                self._variable(place, x)
            elif place.name in code.stored:
                self.variables.append(place)
            if isinstance(x, ModuleType):
                self._module(x, names)
        held = {place.name: place.get() for place in places}
        for chain in code.chains:
            self._chain(chain, held.get(chain[0], MISSING), f.__globals__)
        for x in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            if not is_input(x) and not is_constant(x):
                self._value(Place(x, (), "default"), x, 0)

    def _chain(self, chain: Sequence[str], x: Any, scope: dict[str, Any]) -> None:
        """Note the attributes of foreign modules that code names, and builtins."""
        if x is MISSING and hasattr(builtins, chain[0]):
            self.fixed[id(scope), chain[0]] = (scope, chain[0], MISSING)
        for name in chain[1:]:
            if not isinstance(x, ModuleType):
                return
            holds = vars(x)
            owned = _is_own(x)
            x = holds.get(name, MISSING)
            if not owned and x is not MISSING:
                self.fixed[id(holds), name] = (holds, name, x)

    def _variable(self, place: Place, x: Any) -> None:
        self.variables.append(place)
        self._value(place, x, 0)

    def _module(self, module: ModuleType, names: Sequence[str]) -> None:
        """Search what code that names a module of the user's may mean."""
        if not _is_own(module):
            return
        for name in names:
            x = vars(module).get(name, MISSING)
            place = Place(module, (("attr", name),), f"{module.__name__}.{name}")
            if x is MISSING or place.key in self._seen_places:
                continue
            self._seen_places.add(place.key)
            self._variable(place, x)
            if isinstance(x, ModuleType):
                self._module(x, names)

    def _class(self, cls: type) -> None:
        """Search the methods and the data of a class of the user's."""
        for base in cls.__mro__:
            if id(base) in self._seen or not _is_user(base) or issubclass(base, Enum):
                continue
            self._seen.add(id(base))
            self.structures.append((Place(base, (), base.__name__), structure(base)))
            for name, x in list(vars(base).items()):
                place = Place(base, (("attr", name),), f"{base.__name__}.{name}")
                functions = _functions_in(x)
                if functions or isinstance(x, type):
                    self.functions.append((place, stands_for(x)))
                elif not name.startswith("__") and not isinstance(x, DESCRIPTORS):
                    self._variable(place, x)
                for f in functions:
                    self._function(f)

    def _value(self, place: Place, x: Any, depth: int) -> None:
        if is_input(x):
            self.inputs.append((place, x))
        elif is_constant(x):
            self.constants.append((place, x))
        elif isinstance(x, FunctionType):
            self.functions.append((place, stands_for(x)))
            if _is_user(x):
                self._function(x)
        elif isinstance(x, type):
            self.functions.append((place, x))
            self._class(x)
        elif depth >= DEPTH or not self._object(place, x, depth):
            self.functions.append((place, x))

    def _object(self, place: Place, x: Any, depth: int) -> bool:
        """Search an object; tells whether what it is and holds is guarded."""
        if id(x) in self._seen:
            first = self._places.get(id(x))
            if first is not None and first.key != place.key:
                self.aliases.append((place, first))
            return first is not None
        self._seen.add(id(x))
        if isinstance(x, FunctionType | MethodType | functools.partial):
            self.search(x)
            return False
        if hasattr(x, "__rg_function__"):
            self.search(x.__rg_function__())
            return False
        if isinstance(x, list | tuple):
            self._items(place, x, "item", enumerate(x[:WIDTH]), depth)
        elif isinstance(x, dict):
            self._items(place, x, "item", list(x.items())[:WIDTH], depth)
        elif isinstance(getattr(x, "__dict__", None), dict) and _is_user(type(x)):
            self._items(place, x, "attr", list(vars(x).items()), depth)
            self._class(type(x))
        elif isinstance(x, Iterator):
            self.iterators.append(x)
        elif isinstance(x, MUTABLE) or (_slots_of(x) and _is_user(type(x))):
            self.opaque.append((place, Opaque(x)))
            self.structures.append((place, structure(x)))
            self.rests.append((place, unsearched(x)))
            for item in unsearched(x):
                if not is_input(item) and not is_constant(item):
                    self._value(Place(item, (), place.name), item, depth + 1)
            self._class(type(x))
        else:
            return False
        self._places[id(x)] = place
        return True

    def _items(
        self,
        place: Place,
        x: Any,
        kind: str,
        items: Iterable[tuple[Any, Any]],
        depth: int,
    ) -> None:
        self._contains(place, x)
        if kind == "item" and len(x) > WIDTH:
            self.rests.append((place, unsearched(x)))
        for key, item in items:
            self._value(place.step(kind, key), item, depth + 1)

    def _contains(self, place: Place, x: Any) -> None:
        self.structures.append((place, structure(x)))
        if not isinstance(x, tuple):
            self.containers.append(Container(place, x))


def _call_of(f: Any) -> Any:
    return vars(type(f)).get("__call__")


def _is_user(x: Any) -> bool:
    module = getattr(x, "__module__", None) or ""
    return module.partition(".")[0] not in LIBRARIES


def _is_own(module: ModuleType) -> bool:
    """Tell whether what a module holds may be the user's, and may change."""
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names or top in LIBRARIES:
        return False
    return "site-packages" not in (getattr(module, "__file__", None) or "")


def _functions_in(x: Any) -> list[FunctionType]:
    """Return the functions behind what a class holds: methods, properties."""
    if isinstance(x, property):
        parts = [x.fget, x.fset, x.fdel]
    elif isinstance(x, functools.cached_property):
        parts = [x.func]
    else:
        parts = [x.__func__ if isinstance(x, staticmethod | classmethod) else x]
    return [f for f in parts if isinstance(f, FunctionType)]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a function did to the state that it can reach, while it was traced."""

    variables: list[tuple[Place, Any]]  # bound to something else
    containers: list[tuple[Container, Contents, Contents]]  # with: held before, after

    def map(self, f: Callable[[Any], Any]) -> Changes:
        """Apply `f` to the Tensors among what is there now."""

        def new(x: Any) -> Any:
            if not any(isinstance(leaf, Tensor) for leaf in flatten_tree(x)[0]):
                return x
            return map_tree(lambda t: f(t) if isinstance(t, Tensor) else t, x)

        def items(now: Contents) -> Contents:
            if isinstance(now, dict):
                return {key: new(x) for key, x in now.items()}
            return [new(x) for x in now]

        return Changes(
            [(place, new(x)) for place, x in self.variables],
            [(c, before, items(now)) for c, before, now in self.containers],
        )

    def apply(self) -> None:
        """Make the changes again, after they were undone."""
        for place, x in self.variables:
            place.set(x)
        for c, _, now in self.containers:
            replace_contents(contents(c.owner), now)


class Swap:
    """Holds traced values in captured places, and restores the places afterwards."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.held: list[tuple[Place, Any]] = []
        self._variables: list[tuple[Place, Any]] = []
        self._containers: list[tuple[Container, Contents]] = []

    def put(self, place: Place, original: Any, traced: Any) -> None:
        place.set(traced)
        self.held.append((place, original))

    def begin(self, containers: Sequence[Container] = ()) -> None:
        """Remember what everything holds now; `containers` are others to watch."""
        self._variables = [(p, p.get()) for p in self.state.variables]
        watched = (*self.state.containers, *containers)
        self._containers = [(c, copied(contents(c.owner))) for c in watched]

    def restore(self) -> Changes:
        """Restore everything; returns what had changed."""
        variables = []
        for place, held in self._variables:
            now = place.get()
            if now is not held:
                variables.append((place, now))
        containers = []
        for c, before in self._containers:
            now = contents(c.owner)
            if not _same(now, before):
                containers.append((c, before, copied(now)))
        for c in self.state.containers:
            replace_contents(contents(c.owner), c.before)
        for place, held in self._variables:
            if place.get() is not held:
                place.set(held)
        for place, original in reversed(self.held):
            place.set(original)
        self.held.clear()
        return Changes(variables, containers)


def _same(a: Contents, b: Contents) -> bool:
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return tuple(a) == tuple(b) and all(a[k] is b[k] for k in a)
    return all(x is y for x, y in zip(a, b, strict=True))
