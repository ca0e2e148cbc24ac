"""The driver: calls of compiled functions, specialisations, and what they look like.

A call flattens its arguments to leaves and looks for a specialisation whose guards
hold; without one the function is captured again. Arrays, Tensors and Python floats are
inputs; ints are symbols; bools, strings, None and other objects belong to the program.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from ..ir.dims import Dim, Expr, Symbol
from ..ir.errors import MutationError, UnsupportedError
from ..ir.func import Func
from ..ir.types import Type
from . import dispatch
from .capture import (
    EagerOperators,
    Out,
    Replay,
    Result,
    Results,
    Same,
    evaluate_attr,
    replay,
    run_traced,
)
from .containers import Tree, flatten_tree, unflatten_tree
from .convert import convert, operators
from .guards import Matcher, make_matcher
from .location import user_location
from .modes import STATE
from .program import Program, run_pass
from .record import run_recorded
from .state import (
    Changes,
    Container,
    Contents,
    Place,
    State,
    Swap,
    Way,
    containers_in,
    contents,
    found,
    replace_contents,
    structure,
)
from .symbols import SymInt
from .tensor import Tensor, of
from .trace import Static, Trace, check_plain
from .values import transforming

LOCK = threading.RLock()
NUMBERS = (float, complex)


class CacheInfo(NamedTuple):
    """Counts of one compiled function.

    `hits` and `misses` count calls that found a specialisation or had to capture one;
    `compiled` kernels were compiled by this process, `loaded` came from the disk cache.
    """

    hits: int
    misses: int
    specialisations: int
    compiled: int
    loaded: int


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


@dataclass(slots=True)
class Specialisation:
    """One program for one kind of arguments, and what it assumes."""

    program: Program
    stages: dict[str, Func]
    arguments: tuple[int, ...]  # leaf number of each parameter, until captured ones
    captured: tuple[Place | Any, ...]  # a place, or an object made while tracing
    match: Matcher
    ints: tuple[int | Place, ...]  # leaf numbers or places of the symbolic ints
    same: tuple[tuple[Place, int], ...]  # places that hold a parameter's array
    constants: tuple[tuple[Place, Any], ...]
    functions: tuple[tuple[Place, Any], ...]
    layouts: tuple[tuple[int, Hashable], ...]
    written: tuple[int, ...]  # parameters
    tree: Tree
    outs: tuple[Out, ...]
    effects: tuple[Effect, ...]
    rearranged: tuple[Rearrangement, ...]
    structures: tuple[tuple[Place, tuple[type, Any]], ...]
    statics: tuple[tuple[int, Static], ...]  # of parameters
    keep: tuple[Any, ...]  # objects whose identity is part of the key

    def values(self, leaves: Sequence[Any]) -> list[Any] | None:
        """Return what the parameters are in this call, or None if a guard fails."""
        for place, x in self.constants:
            now = place.get()
            if now is not x and (type(now) is not type(x) or now != x):
                return None
        for place, x in self.functions:
            now = place.get()
            if getattr(now, "__code__", now) is not x:
                return None
        for place, expected in self.structures:
            if structure(place.get()) != expected:
                return None
        values = [leaves[j] for j in self.arguments]
        for source in self.captured:
            values.append(source.get() if isinstance(source, Place) else source)
        if any(place.get() is not values[j] for place, j in self.same):
            return None
        for p, x in zip(self.program.func.params, values, strict=True):
            data = x._data if isinstance(x, Tensor) else x
            if isinstance(data, np.ndarray):
                if p.type.scalar or data.dtype != p.type.dtype:
                    return None
                if data.ndim != len(p.type.shape):
                    return None
            elif not p.type.scalar or not _is_scalar(data, p.type):
                return None
        if not all(static.holds(_data(values[j])) for j, static in self.statics):
            return None
        return values

    def symbols(
        self, leaves: Sequence[Any], values: Sequence[Any]
    ) -> dict[Symbol, int] | None:
        shapes = [getattr(x, "shape", ()) for x in values]
        ints = [leaves[j] if isinstance(j, int) else j.get() for j in self.ints]
        if any(type(i) is not int for i in ints):
            return None
        out = self.match(shapes, ints)
        if out is None:
            return None
        for j, layout in self.layouts:
            if layout_class(_data(values[j])) != layout:
                return None
        return out

    def overlapping(self, values: Sequence[Any]) -> bool:
        """Tell whether a written parameter shares memory with another one."""
        for j in self.written:
            x = _data(values[j])
            for k, y in enumerate(values):
                other = _data(y)
                if k != j and isinstance(other, np.ndarray):
                    if np.may_share_memory(x, other) and np.shares_memory(x, other):
                        return True
        return any(_overlaps_itself(_data(values[j])) for j in self.written)

    def run(
        self,
        bound: Any,
        leaves: Sequence[Any],
        values: list[Any],
        env: dict[Symbol, int],
    ) -> Any:
        self.check_writable(values)
        tensors = any(isinstance(x, Tensor) for x in values)
        if STATE.grad and any(map(_requires_grad, values)):
            results = run_recorded(self.program, values, env, self.written)
        else:
            results = self.program.run([_data(x) for x in values], env)
            for j in self.written:
                if isinstance(values[j], Tensor):
                    values[j]._storage.wrote()
            if tensors:
                results = [of(x) for x in results]

        def leaf(out: Out) -> Any:
            return self.leaf(out, bound, values, results, env)

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
            if not _data(x).flags.writeable:
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


def _data(x: Any) -> Any:
    return x._data if isinstance(x, Tensor) else x


def _overlaps_itself(x: np.ndarray[Any, Any]) -> bool:
    return 0 in x.strides and any(
        s == 0 and d > 1 for s, d in zip(x.strides, x.shape, strict=True)
    )


def layout_class(x: np.ndarray[Any, Any]) -> Hashable:
    """Return what decides whether a reshape of `x` is a view."""
    if x.flags.c_contiguous:
        return "C"
    if x.flags.f_contiguous:
        return "F"
    return tuple(s // x.itemsize for s in x.strides)


# ---------------------------------------------------------------- leaves


def _fits(x: int) -> bool:
    """Tell whether an int may be a symbol; larger ones are constants."""
    return -(2**62) < x < 2**62


def leaf_kind(x: Any) -> Hashable:
    """Return the part of the cache key for one leaf of the arguments."""
    x = _data(x)
    if isinstance(x, np.ndarray):
        return (x.dtype, x.ndim)
    if isinstance(x, np.generic):
        return (x.dtype, -1)
    cls = type(x)
    if cls is float or cls is complex or (cls is int and _fits(x)):
        return cls.__name__
    if x is None or isinstance(x, int | str | bytes | np.dtype):
        return (cls, x)
    return (cls, id(x))


def _is_native(x: Any) -> bool:
    """Tell whether compiled code can read a leaf: its bytes are in this CPU's order."""
    x = _data(x)
    return not isinstance(x, np.ndarray) or x.dtype.isnative


def _is_scalar(x: Any, t: Type) -> bool:
    """Tell whether a number has the type that a parameter was traced with."""
    if isinstance(x, np.generic):
        return not t.weak and x.dtype == t.dtype
    return t.weak and type(x) in NUMBERS and np.dtype(type(x)) == t.dtype


def is_array_like(x: Any) -> bool:
    return isinstance(x, Tensor | np.ndarray)


def identity_pattern(leaves: Sequence[Any]) -> Hashable:
    """Return which array leaves are the same object as an earlier one."""
    arrays = [id(x) for x in leaves if is_array_like(x)]
    if len(set(arrays)) == len(arrays):
        return None
    return tuple(arrays.index(i) for i in arrays)


class Compiled:
    """A compiled function: call it as the function it was made from.

    A direct call changes its array arguments exactly as NumPy would, and its results
    alias arguments and each other as NumPy's would. NumPy in, NumPy out; Tensors in,
    Tensors out, with a `grad_fn` when something requires a gradient.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn, updated=())
        if not _is_plain(fn):
            del self.__wrapped__
        self._specialisations: dict[Hashable, list[Specialisation]] = {}
        self._signature: inspect.Signature | None = None
        self.derived: dict[Hashable, Any] = {}
        self._hits = 0
        self._misses = 0

    __wrapped__: Callable[..., Any]

    def __repr__(self) -> str:
        return f"<compiled {getattr(self.fn, '__qualname__', self.fn)!s}>"

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else MethodType(self, obj)

    def __rg_function__(self) -> Callable[..., Any]:
        """Return the function whose captured state is this one's."""
        return self.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if dispatch.active_trace() is not None:
            return convert(self.fn)(*args, **kwargs)
        bound = self._bind(args, kwargs)
        leaves, tree = flatten_tree(bound)
        key = (tree, tuple(map(leaf_kind, leaves)), identity_pattern(leaves))
        ready = self._find(key, leaves)
        if ready is None:
            if not all(map(_is_native, leaves)):
                return self.uncompiled(args, kwargs)
            ready = self._specialise(key, leaves, tree)
        else:
            self._hits += 1
        spec, values, env = ready
        if spec.written and spec.overlapping(values):
            return self.uncompiled(args, kwargs)
        return spec.run(bound, leaves, values, env)

    def uncompiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the function itself: NumPy's meaning for arguments that overlap."""
        leaves, _ = flatten_tree((tuple(args), dict(kwargs)))
        if any(isinstance(x, Tensor) for x in leaves):
            with operators(EagerOperators()), transforming():
                return convert(self.fn)(*args, **kwargs)
        return self.fn(*args, **kwargs)

    # Specialisations ----------------------------------------------------------------

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._signature is None:
            self._signature = _signature(self.fn)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _find(
        self, key: Hashable, leaves: Sequence[Any]
    ) -> tuple[Specialisation, list[Any], dict[Symbol, int]] | None:
        for spec in self._specialisations.get(key, ()):
            values = spec.values(leaves)
            if values is not None:
                env = spec.symbols(leaves, values)
                if env is not None:
                    return spec, values, env
        return None

    def _specialise(
        self, key: Hashable, leaves: Sequence[Any], tree: Tree
    ) -> tuple[Specialisation, list[Any], dict[Symbol, int]]:
        with LOCK:
            self._misses += 1
            spec = specialise(self.fn, leaves, tree)
            self._specialisations.setdefault(key, []).append(spec)
        values = spec.values(leaves)
        env = None if values is None else spec.symbols(leaves, values)
        if values is None or env is None:
            raise UnsupportedError(
                f"{self!r} changes its own assumptions while it runs",
                location=user_location(),
                hint="do not change captured ints or strings inside the function",
            )
        return spec, values, env

    def specialisation(self, *args: Any, **kwargs: Any) -> Specialisation:
        """Return the specialisation that a call would use, without running it."""
        leaves, tree = flatten_tree(self._bind(args, kwargs))
        key = (tree, tuple(map(leaf_kind, leaves)), identity_pattern(leaves))
        ready = self._find(key, leaves) or self._specialise(key, leaves, tree)
        return ready[0]

    # What it looks like -------------------------------------------------------------

    def ir(self, *args: Any, stage: str = "functionalize", **kwargs: Any) -> str:
        """Return the IR for these arguments after a stage.

        Stages are "capture", "functionalize", "vjp" (of transforms), "simplify", "cse",
        "dce", "fuse" and "reinplace". Raises ValueError for others.
        """
        stages = self.stages(*args, **kwargs)
        if stage not in stages:
            raise ValueError(f"there is no stage {stage!r}; there are {list(stages)}")
        return str(stages[stage])

    def stages(self, *args: Any, **kwargs: Any) -> dict[str, Func]:
        """Return the Funcs of all stages for these arguments, in order."""
        spec = self.specialisation(*args, **kwargs)
        spec.program.optimised()
        return {**spec.stages, **spec.program.stages}

    def source(self, *args: Any, **kwargs: Any) -> str:
        """Return the generated source for these arguments."""
        return str(self.specialisation(*args, **kwargs).program.kernel.source)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the IR after each stage, the loop nests and the generated source."""
        return "\n".join(self.sections(*args, **kwargs).values())

    def sections(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """Return the parts of `explain`: every stage, "nests" and "source"."""
        stages = self.stages(*args, **kwargs).items()
        parts = {name: f"# after {name}\n{f}\n" for name, f in stages}
        kernel = self.specialisation(*args, **kwargs).program.kernel
        parts["nests"] = f"# nests\n{kernel.nests}\n"
        parts["source"] = f"# source\n{kernel.source}\n"
        return parts

    def cache_info(self) -> CacheInfo:
        """Return how often this function was captured, compiled and served."""
        specs = [s for group in self._specialisations.values() for s in group]
        builds = [s.program.builds() for s in specs]
        compiled, loaded = (sum(b[k] for b in builds) for k in range(2))
        return CacheInfo(self._hits, self._misses, len(specs), compiled, loaded)


def _is_plain(fn: Any) -> bool:
    return not hasattr(fn, "__rg_function__")


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        if isinstance(fn, np.ufunc):  # its defaults exclude each other
            raise TypeError
        return inspect.signature(fn)
    except (TypeError, ValueError):
        kind = inspect.Parameter
        return inspect.Signature(
            [
                kind("args", kind.VAR_POSITIONAL),
                kind("kwargs", kind.VAR_KEYWORD),
            ]
        )


def specialise(
    fn: Callable[..., Any], leaves: Sequence[Any], tree: Tree
) -> Specialisation:
    """Capture `fn` for these arguments.

    Captured ints are constants of the program. Those that it changes, counters, become
    symbols: it is traced once more.
    """
    counters: set[Hashable] = set()
    while True:
        attempt = _Specialiser(fn, leaves, tree, frozenset(counters))
        made = attempt.run()
        if isinstance(made, Specialisation):
            return made
        counters |= made


def is_input_leaf(x: Any) -> bool:
    x = _data(x)
    if isinstance(x, bool):
        return False
    if isinstance(x, int):
        return _fits(x)
    check_plain(x, "as an argument")
    if isinstance(x, np.ndarray) and (
        x.dtype.kind not in "biufc" or x.dtype.char in "gG"
    ):
        raise UnsupportedError(
            f"an array of dtype {x.dtype} as an argument",
            location=user_location(),
            rule="Compiled functions take arrays of bools, integers and floats.",
            hint="convert it first",
        )
    return isinstance(x, np.ndarray | np.generic | float | complex | int)


def _name(fn: Any) -> str:
    name = getattr(fn, "__name__", "") or type(fn).__name__
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text.strip("_") or "f"


def _hints(fn: Any, tree: Tree) -> list[str]:
    """Return a name for every leaf of the arguments."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = []
    args, kwargs = tree.children
    assert isinstance(kwargs.data, tuple)
    out: list[str] = []
    for k, child in enumerate(args.children):
        name = names[k] if k < len(names) else "x"
        out += [name] * child.leaves
    for name, child in zip(kwargs.data, kwargs.children, strict=True):
        out += [str(name)] * child.leaves
    return out


class _Specialiser:
    """Traces a function once, for arguments of one kind."""

    def __init__(
        self,
        fn: Callable[..., Any],
        leaves: Sequence[Any],
        tree: Tree,
        counters: frozenset[Hashable],
    ) -> None:
        self.fn = fn
        self.tree = tree
        self.counters = counters
        self.keep = tuple(x for x in leaves if not is_input_leaf(x))
        self.trace = Trace(name=_name(fn))
        self.arguments: dict[int, Any] = {}  # id of an array -> its traced value
        self.numbers: list[int] = []
        self.ints: list[tuple[int | Place, Dim]] = []
        self.places: dict[Any, list[Place]] = {}
        self.state = State()
        self.state.search(fn)
        hints = _hints(fn, tree)
        self.traced = [self._argument(j, x, hints[j]) for j, x in enumerate(leaves)]

    def _argument(self, j: int, x: Any, hint: str) -> Any:
        """Return what the function gets for one leaf of its arguments."""
        trace = self.trace
        if is_array_like(x) and id(x) in self.arguments:
            return self.arguments[id(x)]
        if not is_input_leaf(x):
            self.state.search_object(x)
            return x
        before = len(trace.params)
        t = trace.argument(x, hint)
        if len(trace.params) > before:
            self.numbers.append(j)
        elif isinstance(x, int):
            self.ints.append((j, t.dim))
        if is_array_like(x):
            self.arguments[id(x)] = t
        return t

    def run(self) -> Specialisation | set[Hashable]:
        """Return the specialisation, or the keys of ints that have to be symbols."""
        args, kwargs = unflatten_tree(self.tree, self.traced)
        trace = self.trace
        swap = Swap(self.state)
        try:
            for place, x in self.state.inputs:
                self._swap(swap, place, x)
            for place, x in self.state.constants:
                if place.key in self.counters and type(x) is int:
                    t = trace.integer(trace.assumptions.symbol(x, [_hint(place)]))
                    self.ints.append((place, t.dim))
                    swap.put(place, x, t)
            given = list(containers_in((args, kwargs)))
            swap.begin(given)
            out = run_traced(trace, self.fn, args, kwargs)
            watched = (*self.state.containers, *given)
            results = Results(trace, {id(c.owner): c.way for c in watched})
            leaves, tree = results.flatten(out)
            outs = tuple(map(results.out, leaves))
        finally:
            changes = swap.restore()
        counters = {p.key for p, x in _changed(changes) if self._counts(p, x)}
        if counters - self.counters:
            return counters
        effects = tuple(
            Effect(place, _new(results, x)) for place, x in changes.variables
        )
        rearranged = tuple(
            _rearrangement(results, c, before, after)
            for c, before, after in changes.containers
        )
        return self._finish(tree, outs, effects, rearranged, results)

    def _counts(self, place: Place, x: Any) -> bool:
        """Tell whether a place is an int that the function sets to an int."""
        return type(place.get()) is int and (type(x) is int or isinstance(x, SymInt))

    def _swap(self, swap: Swap, place: Place, x: Any) -> None:
        t = self.arguments.get(id(x)) if is_array_like(x) else None
        if t is None:
            t = self.trace.capture(x, _hint(place), shared=is_array_like(x))
        swap.put(place, x, t)
        self.places.setdefault(t._value, []).append(place)

    def _finish(
        self,
        tree: Tree,
        outs: tuple[Out, ...],
        effects: tuple[Effect, ...],
        rearranged: tuple[Rearrangement, ...],
        results: Results,
    ) -> Specialisation:
        trace = self.trace
        captured_func = trace.finish(results.operands)
        pure = run_pass(captured_func, "functionalize")
        count = len(self.numbers)
        captured = tuple(
            self.places[v][0] if v in self.places else trace.origins[v]
            for v in trace.params[count:]
        )
        same = tuple(
            (place, j)
            for j, v in enumerate(trace.params)
            for place in self.places.get(v, ())[0 if j < count else 1 :]
        )
        resolve = trace.assumptions.resolve
        ints = [resolve(d) for _, d in self.ints]
        match = make_matcher(
            [p.type.shape for p in pure.params], ints, pure.facts.known
        )
        layouts = tuple(
            (j, layout_class(trace.layouts[v]))
            for j, v in enumerate(trace.params)
            if v in trace.layout_read
        )
        # A transform shows the stages of the function it transforms.
        stages = trace.stages or {"capture": captured_func, "functionalize": pure}
        return Specialisation(
            program=Program(pure),
            stages=stages,
            arguments=tuple(self.numbers),
            captured=captured,
            same=same,
            match=match,
            ints=tuple(j for j, _ in self.ints),
            constants=tuple(
                (place, x)
                for place, x in self.state.constants
                if place.key not in self.counters or type(x) is not int
            ),
            functions=tuple(self.state.functions),
            layouts=layouts,
            written=tuple(j for _, j in pure.updates),
            tree=tree,
            outs=tuple(_resolved(o, resolve) for o in outs),
            effects=tuple(
                Effect(e.place, _resolved_new(e.new, resolve)) for e in effects
            ),
            rearranged=tuple(
                Rearrangement(
                    r.way,
                    tuple(
                        (k, _resolved_new(x, resolve) if isinstance(x, New) else x)
                        for k, x in r.items
                    ),
                )
                for r in rearranged
            ),
            structures=tuple(self.state.structures),
            statics=tuple((trace.params.index(s.parameter), s) for s in trace.statics),
            keep=self.keep,
        )


def _new(results: Results, x: Any) -> New:
    leaves, tree = results.flatten(x)
    return New(tree, tuple(map(results.out, leaves)))


def _resolved_new(new: New, resolve: Callable[[Dim], Dim]) -> New:
    return New(new.tree, tuple(_resolved(out, resolve) for out in new.outs))


def _items(x: Contents) -> list[tuple[Hashable, Any]]:
    return list(x.items() if isinstance(x, dict) else enumerate(x))


def _changed(changes: Changes) -> Iterator[tuple[Place, Any]]:
    """Yield the captured places that hold something else after the trace."""
    yield from changes.variables
    for c, before, after in changes.containers:
        old = dict(_items(before))
        for key, x in _items(after):
            if isinstance(c.way, Place) and key in old and old[key] is not x:
                kind = "item" if isinstance(c.owner, list | dict) else "attr"
                yield c.way.step(kind, key), x


def _rearrangement(
    results: Results, c: Container, before: Contents, after: Contents
) -> Rearrangement:
    """Describe the items of a container after the call by those before it."""
    keys = {id(x): key for key, x in reversed(_items(before))}
    same = dict(_items(before))
    items = []
    for key, x in _items(after):
        if key in same and same[key] is x:
            items.append((key, key))
        elif id(x) in keys:
            items.append((key, keys[id(x)]))
        else:
            items.append((key, _new(results, x)))
    return Rearrangement(c.way, tuple(items))


def _resolved(out: Out, resolve: Callable[[Dim], Dim]) -> Out:
    """Put what was assumed later into the dims of a result."""

    def fix(a: Any) -> Any:
        if isinstance(a, Expr):
            return resolve(a)
        return tuple(map(fix, a)) if isinstance(a, tuple) else a

    views = tuple(
        Replay(v.op, fix(v.indices), {k: fix(a) for k, a in v.attrs.items()})
        for v in out.views
    )
    source = out.source
    if isinstance(source, Expr):
        d = resolve(source)
        source = d if isinstance(d, Expr) else ("constant", d)
    return Out(source, views)


def _hint(place: Place) -> str:
    text = "".join(c if c.isalnum() else "_" for c in place.name).strip("_")
    return text if text and not text[0].isdigit() else "c"


def compile(fn: Callable[..., Any] | None = None) -> Any:
    """Compile a function of NumPy arrays; also a decorator.

    The function is captured when it is first called with arguments of a new kind, and
    compiled. It may write into its arguments and through views; a call has the effects
    that NumPy's would have.

    >>> @compile
    ... def double_first_row(x):
    ...     y = x**2
    ...     v = y[0]
    ...     v *= 2
    ...     return y
    >>> double_first_row(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[ 2.,  8.],
           [ 9., 16.]])
    """
    if fn is None:
        return compile
    if isinstance(fn, Compiled):
        return fn
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(Compiled(fn.__func__))
    if not callable(fn):
        raise TypeError(f"compile needs a function, not {type(fn).__name__}")
    return Compiled(fn)
