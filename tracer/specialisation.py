"""One program for one kind of arguments: its guards, its call, its effects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import interp
from ..ir.dims import Expr, Symbol
from ..ir.errors import MutationError, OutcomeError
from ..ir.func import Func
from ..ir.types import Type
from ..runtime.devices import ARRAYS, DeviceArray
from .capture import (
    Out,
    Result,
    Same,
    evaluate_attr,
    replay,
)
from .containers import Tree, unflatten_tree
from .devices import host_of, outline_of, share_memory
from .guards import Matcher
from .inputs import PLAIN
from .integers import Static
from .leaves import Bookkeeping, GradOf, grad_of
from .location import user_location
from .modes import STATE
from .outcomes import Path
from .program import Program, only_results, run_pass
from .record import array_of, run_recorded, shown
from .state import (
    MISSING,
    Contents,
    Fixed,
    Place,
    Way,
    agree,
    contents,
    found,
    replace_contents,
    stands_for,
    structure,
    unsearched,
)
from .tensor import Tensor
from .views import repeats

NUMBERS = (float, complex)


@dataclass(frozen=True, slots=True)
class New:
    """An object that the function makes: its structure and leaves."""

    tree: Tree
    outs: tuple[Out, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """A captured variable that the function binds: it is set after every call."""

    place: Place
    new: New


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A container whose items the function changes, after every call.

    `items` are keys (None in a list) with what is there: a `New`, or the key of the
    item that was there before.
    """

    way: Way
    items: tuple[tuple[Hashable, New | Hashable], ...]


@dataclass(frozen=True, slots=True)
class Identities:
    """Which captured arrays are the same object as an argument, or as another one."""

    places: tuple[Place, ...]
    pattern: Hashable

    @classmethod
    def of(cls, leaves: Sequence[Any], places: Sequence[Place]) -> Identities:
        held = [place.get() for place in places]
        return cls(tuple(places), identity_pattern([*leaves, *held]))

    def hold(self, leaves: Sequence[Any]) -> bool:
        """Tell whether they are what they were."""
        return Identities.of(leaves, self.places).pattern == self.pattern


@dataclass(slots=True)
class Specialisation:
    """One program for one kind of arguments, and what it assumes."""

    program: Program
    device: str | None  # of the arrays that it takes; None where they are NumPy's
    stages: dict[str, Func]
    arguments: tuple[int, ...]  # leaf number of each parameter, until captured ones
    captured: tuple[Place | Any, ...]  # a place, or an object made while tracing
    match: Matcher
    ints: tuple[int | Place, ...]  # leaf numbers or places of the symbolic ints
    same: tuple[tuple[Place, int], ...]  # places that hold a parameter's array
    constants: tuple[tuple[Place, Any], ...]
    functions: tuple[tuple[Place, Any], ...]
    aliases: tuple[tuple[Place, Place], ...]
    rests: tuple[tuple[Place, tuple[Any, ...]], ...]
    fixed: tuple[Fixed, ...]
    identities: Identities | None  # where the function asks if two objects are one
    unused: tuple[tuple[Place, Hashable], ...]  # inputs that are no parameters
    layouts: tuple[tuple[int, Hashable], ...]
    written: tuple[int, ...]  # parameters
    tree: Tree
    outs: tuple[Out, ...]
    effects: tuple[Effect, ...]
    rearranged: tuple[Rearrangement, ...]
    structures: tuple[tuple[Place, tuple[type, Any]], ...]
    statics: tuple[tuple[int, Static], ...]  # of parameters
    sizes: tuple[tuple[Symbol, int], ...]  # open symbols, results that tell them
    outcomes: Path  # of computed values, in the order in which Python asked
    bookkeeping: Bookkeeping | None  # where the function looks at the tape
    quiet: tuple[int, ...]  # written parameters, but under `no_grad` only
    constant: frozenset[int]  # results without a gradient
    keep: tuple[Any, ...]  # objects whose identity is part of the key

    def knows_state(self) -> bool:
        """Tell whether captured constants and functions are what they were."""
        for names, name, x in self.fixed:
            if names.get(name, MISSING) is not x:
                return False
        for place, x in self.constants:
            now = place.get()
            if now is not x and (type(now) is not type(x) or now != x):
                return False
        for place, x in self.functions:
            if stands_for(place.get()) is not x:
                return False
        for place, expected in self.structures:
            if structure(place.get()) != expected:
                return False
        if any(place.get() is not first.get() for place, first in self.aliases):
            return False
        if any(captured_kind(place.get()) != kind for place, kind in self.unused):
            return False
        for place, items in self.rests:
            now = unsearched(place.get())
            if len(now) != len(items) or not all(map(agree, now, items)):
                return False
        return True

    def values(self, leaves: Sequence[Any]) -> list[Any] | None:
        """Return what the parameters are in this call, or None if a guard fails."""
        if not self.knows_state():
            return None
        if self.identities is not None and not self.identities.hold(leaves):
            return None
        values = [leaves[j] for j in self.arguments]
        for source in self.captured:
            if isinstance(source, Place):
                values.append(source.get())
            elif isinstance(source, GradOf):
                values.append(grad_of(values[source.parameter]))
            else:
                values.append(source)
        if any(place.get() is not values[j] for place, j in self.same):
            return None
        for p, x in zip(self.program.func.params, values, strict=True):
            data = x._data if isinstance(x, Tensor) else x
            if isinstance(data, np.ndarray):
                if p.type.scalar or data.dtype != p.type.dtype:
                    return None
                if type(data) not in PLAIN:  # whoever captures it refuses it
                    return None
                if data.ndim != len(p.type.shape):
                    return None
            elif isinstance(data, DeviceArray):
                if data.device != self.device or data.dtype != p.type.dtype:
                    return None
                if p.type.scalar or data.ndim != len(p.type.shape):
                    return None
            elif not p.type.scalar or not _is_scalar(data, p.type):
                return None
        if self.device is not None and not self._is_there(values):
            return None
        if self.bookkeeping is not None and not self.bookkeeping.holds(values):
            return None
        if not all(static.holds(array_of(values[j])) for j, static in self.statics):
            return None
        return values

    def _is_there(self, values: Sequence[Any]) -> bool:
        """Tell whether captured arrays are there, but for those of the trace."""
        captured = zip(self.captured, values[len(self.arguments) :], strict=True)
        return not any(
            isinstance(source, Place) and isinstance(x, np.ndarray) and x.ndim
            for source, x in ((s, array_of(x)) for s, x in captured)
        )

    def symbols(
        self, leaves: Sequence[Any], values: Sequence[Any]
    ) -> dict[Symbol, int] | None:
        shapes = [getattr(x, "shape", ()) for x in values]
        ints = [leaves[j] if isinstance(j, int) else j.get() for j in self.ints]
        if any(type(i) is not int for i in ints):
            return None
        out = self.match(shapes, ints)
        return out if out is not None and self.laid_out(values) else None

    def laid_out(self, values: Sequence[Any]) -> bool:
        """Tell whether arrays that the function reshapes lie as they did."""
        return all(layout_class(array_of(values[j])) == at for j, at in self.layouts)

    @property
    def decides(self) -> bool:
        """Whether values of the arguments, or computed ones, chose this program."""
        return bool(self.outcomes or self.statics)

    def differs(
        self, values: Sequence[Any], env: Mapping[Symbol, int]
    ) -> OutcomeError | None:
        """Return the error of a call in which a computed value is another one."""
        if not self.outcomes:
            return None
        checks = run_pass(
            only_results(self.program.func, len(self.program.func.results)), "dce"
        )
        try:
            interp.run(checks, *(host_of(array_of(x)) for x in values), symbols=env)
        except OutcomeError as error:
            return error
        return None

    def overlapping(self, values: Sequence[Any]) -> bool:
        """Tell whether a written parameter shares memory with another one."""
        for j in self.written:
            x = array_of(values[j])
            for k, y in enumerate(values):
                other = array_of(y)
                if k != j and isinstance(other, ARRAYS) and share_memory(x, other):
                    return True
        return any(repeats(outline_of(array_of(values[j]))) for j in self.written)

    def run(
        self,
        bound: Any,
        leaves: Sequence[Any],
        values: list[Any],
        env: dict[Symbol, int],
    ) -> Any:
        self.check_writable(values)
        books = self.bookkeeping
        tensors = any(isinstance(x, Tensor) for x in values)
        tensors = tensors or (books is not None and bool(books.leaves))
        if STATE.grad and any(map(_requires_grad, values)):
            results = run_recorded(
                self.program,
                values,
                env,
                self.written,
                quiet=self.quiet,
                constant=self.constant,
                released=books is not None and books.released,
            )
        else:
            results = self.program.run([array_of(x) for x in values], env)
            for j in self.written:
                if isinstance(values[j], Tensor):
                    values[j]._storage.wrote()
            if tensors:
                results = [shown(x, i in self.constant) for i, x in enumerate(results)]
        if self.sizes:  # that only the run has told
            env = {**env, **{s: int(array_of(results[i])) for s, i in self.sizes}}
        return self.returned(bound, values, results, env)

    def returned(
        self,
        bound: Any,
        values: Sequence[Any],
        results: Sequence[Any],
        env: Mapping[Symbol, int],
    ) -> Any:
        """Do what the program does besides computing, and return its result."""
        books = self.bookkeeping

        def leaf(out: Out) -> Any:
            return self.leaf(out, bound, values, results, env)

        if books is not None:
            books.apply(values, results, leaf)
        made = [leaf(o) for o in self.outs]
        if self.effects or self.rearranged:
            self.apply_effects(bound, leaf)
        return unflatten_tree(self.tree, made)

    def apply_effects(self, bound: Any, leaf: Callable[[Out], Any]) -> None:
        """Set what the function set: variables, items and attributes."""

        def make(new: New) -> Any:
            return unflatten_tree(new.tree, [leaf(out) for out in new.outs])

        todo: list[tuple[Contents, Contents]] = []
        for change in self.rearranged:
            now = contents(found(change.way, bound))
            before: Any = now
            items = [
                make(x) if isinstance(x, New) else before[x] for _, x in change.items
            ]
            keys = [key for key, _ in change.items]
            new = (
                dict(zip(keys, items, strict=True)) if isinstance(now, dict) else items
            )
            todo.append((now, new))
        bindings = [(effect.place, make(effect.new)) for effect in self.effects]
        for place, x in bindings:
            place.set(x)
        for old, new in todo:
            replace_contents(old, new)

    def leaf(
        self,
        out: Out,
        bound: Any,
        values: Sequence[Any],
        results: Sequence[Any],
        env: Mapping[Symbol, int],
    ) -> Any:
        """Return one leaf of the result."""
        source = out.source
        if isinstance(source, Same):
            return found(source.way, bound)
        if isinstance(source, tuple):
            return source[1]
        if isinstance(source, Expr):
            return evaluate_attr(source, env)
        x = results[source.number] if isinstance(source, Result) else values[source]
        return replay(x, out.views, results, env) if out.views else x

    def check_writable(self, values: Sequence[Any]) -> None:
        for j in self.written:
            x = values[j]
            if not array_of(x).flags.writeable:
                raise ReadOnlyError(
                    f"argument {self.program.func.params[j].name} is written, but its "
                    "array is read-only",
                    location=user_location(),
                    rule="assignment destination is read-only",
                    hint="pass a copy",
                )


class ReadOnlyError(MutationError, ValueError):
    """A read-only array that the function writes."""


def _requires_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def layout_class(x: np.ndarray[Any, Any]) -> Hashable:
    """Return what decides whether a reshape of `x` is a view."""
    if x.flags.c_contiguous:
        return "C"
    if x.flags.f_contiguous:
        return "F"
    return tuple(s // x.itemsize for s in x.strides)


# ---------------------------------------------------------------- leaves


def fits_int64(x: int) -> bool:
    """Tell whether an int may be a symbol; larger ones are constants."""
    return -(2**62) < x < 2**62


def leaf_kind(x: Any) -> Hashable:
    """Return the part of the cache key for one leaf of the arguments."""
    x = array_of(x)
    if isinstance(x, np.ndarray):
        return (x.dtype, x.ndim)
    if isinstance(x, np.generic):
        return (x.dtype, -1)
    if isinstance(x, DeviceArray):
        return (x.dtype, x.ndim, x.device)
    cls = type(x)
    if cls is float or cls is complex or (cls is int and fits_int64(x)):
        return cls.__name__
    if x is None or isinstance(x, int | str | bytes | np.dtype):
        return (cls, x)
    return (cls, id(x))


def captured_kind(x: Any) -> Hashable:
    """Return what Python may see of a captured array or number without reading it."""
    return (type(x), leaf_kind(x))


def is_native(x: Any) -> bool:
    """Tell whether compiled code can read a leaf: its bytes are in this CPU's order."""
    x = array_of(x)
    return not isinstance(x, np.ndarray) or x.dtype.isnative


def _is_scalar(x: Any, t: Type) -> bool:
    """Tell whether a number has the type that a parameter was traced with."""
    if isinstance(x, np.generic):
        return not t.weak and x.dtype == t.dtype
    return t.weak and type(x) in NUMBERS and np.dtype(type(x)) == t.dtype


def is_array_like(x: Any) -> bool:
    return isinstance(x, Tensor | np.ndarray | DeviceArray)


def identity_pattern(leaves: Sequence[Any]) -> Hashable:
    """Return which array leaves are the same object as an earlier one."""
    arrays = [id(x) for x in leaves if is_array_like(x)]
    if len(set(arrays)) == len(arrays):
        return None
    return tuple(arrays.index(i) for i in arrays)
