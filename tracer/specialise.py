"""Capture a function for one kind of arguments: arguments -> Specialisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.dims import Dim, Expr
from ..ir.errors import MayShareError, RetrogradeError, UnsupportedError
from ..ir.func import Value
from ..runtime.devices import ARRAYS
from .assume import NeedsValue
from .capture import (
    Out,
    Replay,
    Results,
    run_traced,
)
from .containers import Tree, unflatten_tree
from .guards import make_matcher
from .inputs import check_plain
from .leaves import Bookkeeping, GradOf, without_gradient
from .location import user_location
from .modes import options, run_on
from .outcomes import Answer, Path, Raised
from .program import Program, run_pass
from .record import array_of
from .specialisation import (
    Effect,
    Identities,
    New,
    Rearrangement,
    Specialisation,
    captured_kind,
    fits_int64,
    is_array_like,
    layout_class,
)
from .state import (
    Changes,
    Container,
    Contents,
    Place,
    State,
    Swap,
    containers_in,
)
from .symbols import SymInt
from .trace import Trace

NOTHING: Mapping[Path, Answer] = {}


def specialise(
    fn: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Tree,
    disputed: Mapping[Path, Answer] = NOTHING,
) -> Specialisation:
    """Capture `fn` for these arguments.

    Captured ints are constants of the program. Those that it changes, counters, become
    symbols: it is traced once more. `disputed` are answers to questions that programs
    have answered: see Note [disputes]. Raises Raised where the function itself raises.
    """
    try:
        return _specialised(fn, leaves, tree, disputed, unrolled=False)
    except UnsupportedError as error:
        refused = error
    if isinstance(refused, NeedsValue):
        raise refused
    try:  # what cannot be said of a loop can often be said of its iterations
        return _specialised(fn, leaves, tree, disputed, unrolled=True)
    except MayShareError:
        pass
    except UnsupportedError:
        raise refused from None
    try:
        return _specialised(fn, leaves, tree, disputed, unrolled=True, apart=True)
    except UnsupportedError:
        raise refused from None


def _specialised(
    fn: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Tree,
    disputed: Mapping[Path, Answer],
    *,
    unrolled: bool,
    apart: bool = False,
) -> Specialisation:
    counters: set[Hashable] = set()
    while True:
        attempt = _Specialiser(fn, leaves, tree, frozenset(counters))
        attempt.trace.outcomes.disputed = disputed
        attempt.trace.unrolled, attempt.trace.apart = unrolled, apart
        try:
            made = attempt.run()
        except RetrogradeError:
            raise
        except Exception as error:
            if attempt.trace.outcomes.path:
                raise Raised from error
            raise
        if isinstance(made, Specialisation):
            return made
        counters |= made


def is_input_leaf(x: Any) -> bool:
    x = array_of(x)
    if isinstance(x, bool):
        return False
    if isinstance(x, int):
        return fits_int64(x)
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
    return isinstance(x, (np.generic, float, complex, int, *ARRAYS))


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


def _positions(tree: Tree, hints: Sequence[str]) -> Iterator[str]:
    """Yield for every leaf of the arguments which one it is in, for errors."""
    names = iter(hints)
    for k, child in enumerate(tree.children[0].children):
        for _ in range(child.leaves):
            yield f"argument {k} ({next(names)})"
    yield from (f"argument {name}" for name in names)


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
        self.leaves = leaves
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
        for x, what in zip(leaves, _positions(tree, hints), strict=True):
            self.trace.placement.enter(array_of(x), what)
        self.trace.placement.check()
        run_on(self.trace.placement.runs_on)
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
        t = trace.inputs.argument(x, hint)
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
            grads = trace.leaves.describe(results)
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
        return self._finish(tree, outs, effects, rearranged, grads, results)

    def _counts(self, place: Place, x: Any) -> bool:
        """Tell whether a place is an int that the function sets to an int."""
        return type(place.get()) is int and (type(x) is int or isinstance(x, SymInt))

    def _swap(self, swap: Swap, place: Place, x: Any) -> None:
        t = self.arguments.get(id(x)) if is_array_like(x) else None
        if t is None:
            t = self.trace.inputs.capture(x, _hint(place), shared=is_array_like(x))
            if is_array_like(x):
                self.arguments[id(x)] = t  # one object in all its places
        swap.put(place, x, t)
        self.places.setdefault(t._value, []).append(place)

    def _identities(self) -> Identities | None:
        places = [p for p, x in self.state.inputs if is_array_like(x)]
        if not (places and self.state.compares):
            return None
        return Identities.of(self.leaves, places)

    def _source(self, v: Value) -> Any:
        """Return where a captured parameter is found at a call."""
        if v in self.places:
            return self.places[v][0]
        owner = self.trace.leaves.holders.get(v)
        if owner is not None:
            return GradOf(self.trace.params.index(owner))
        return self.trace.inputs.origins[v]

    def _finish(
        self,
        tree: Tree,
        outs: tuple[Out, ...],
        effects: tuple[Effect, ...],
        rearranged: tuple[Rearrangement, ...],
        bookkeeping: Bookkeeping | None,
        results: Results,
    ) -> Specialisation:
        trace = self.trace
        captured_func = trace.finish(results.operands)
        pure = run_pass(captured_func, "functionalize")
        count = len(self.numbers)
        captured = tuple(self._source(v) for v in trace.params[count:])
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
            (j, layout_class(trace.layouts.known[v]))
            for j, v in enumerate(trace.params)
            if v in trace.layouts.asked
        )
        constant, quiet = without_gradient(trace, results.operands)
        # A transform shows the stages of the function it transforms.
        stages = trace.stages or {"capture": captured_func, "functionalize": pure}
        return Specialisation(
            program=Program(pure, options()._replace(device=trace.placement.runs_on)),
            device=trace.placement.device,
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
            aliases=tuple(self.state.aliases),
            rests=tuple(self.state.rests),
            fixed=tuple(self.state.fixed.values()),
            identities=self._identities(),
            unused=tuple(
                (place, captured_kind(x))
                for v, x in trace.inputs.pending.items()
                for place in self.places.get(v, ())
            ),
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
            sizes=tuple(results.sizes.items()),
            outcomes=tuple(trace.outcomes.path),
            bookkeeping=bookkeeping,
            quiet=tuple(j for _, j in pure.updates if trace.params[j] in quiet),
            constant=constant,
            statics=tuple(
                (trace.params.index(s.parameter), s) for s in trace.integers.statics
            ),
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
