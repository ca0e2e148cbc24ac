"""Checkpoints on the tape: one node, which runs its function again when pulled.

The function runs as it is, recorded; then its graph is let go, and a node takes its
place that has the same edges to what is outside. The node keeps what the function
started from: its arguments and what it captures, as they were. When it is pulled, the
function runs again on these, and the graph that comes of it is walked up to the same
edges. Places that the function captures hold what they held for that time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.build import Builder
from ..ir.errors import GradientError, Location, MutationError
from ..ir.types import type_of_array
from ..runtime.storage import Storage
from . import dispatch, tape
from .builders import EagerBuilder
from .containers import flatten_tree, unflatten_tree
from .convert import active_operators, convert, operators
from .engine import Run, Slot
from .jit import LOCK
from .location import user_location
from .modes import STATE, allow_mutation_on_saved_tensors, enable_grad
from .state import Contents, Place, State, contents, copied, replace_contents
from .tape import Edge, Node, Saved, ViewStep
from .tensor import Tensor
from .values import inside_transform, transforming

SAMPLE = 64  # elements of a result that are compared with those of the first run


def is_recorded(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Tell whether a call of `fn` goes on the tape, as far as one can see."""
    if not STATE.grad:
        return False
    leaves, _ = flatten_tree((tuple(args), dict(kwargs)))
    return any(map(_requires_grad, leaves)) or any(
        _requires_grad(x) for _, x in _state_of(fn, leaves).inputs
    )


def _requires_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _state_of(fn: Any, leaves: Sequence[Any]) -> State:
    state = State()
    state.search(fn)
    for x in leaves:
        if not isinstance(x, Tensor | np.ndarray | np.generic | int | float | str):
            state.search_object(x)
    return state


def run_recomputed(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run `fn`, and record one node that will run it again."""
    start = _Start(fn, args, kwargs)
    mark = next(tape.SEQUENCE)
    with allow_mutation_on_saved_tensors():
        out = convert(fn)(*args, **kwargs)
    start.finish()
    tensors = start.given(args, kwargs)
    outs, _ = flatten_tree(out)
    ends = list(_ends(outs, tensors, start, mark))
    if not ends:
        return out
    edges = dict.fromkeys(_edges_before([e for _, _, e in ends], mark))
    for given in start.inputs:
        if given.written and given.edge is not None:
            edges.setdefault(given.edge)
    samples = [_Sample.of(t) for _, t, _ in ends]
    where = [place for place, _, _ in ends]
    node = CheckpointBackward(tuple(edges), start, where, samples)
    for nr, (_, t, _) in enumerate(ends):
        tape.set_node(t, node, nr)
        if t._storage is not None:
            t._storage.epoch += 1  # views look at their base again
    return out


End = tuple[str, int]  # the root of a result, or of an input that was written


def _root(t: Tensor) -> Tensor:
    return t if t._base is None else t._base


def _ends(
    outs: Sequence[Any], tensors: Sequence[Tensor], start: _Start, mark: int
) -> Iterator[tuple[End, Tensor, Edge]]:
    """Yield the tensors outside that a node made after `mark` has computed."""
    found: set[int] = set()
    every = [(("out", k), x) for k, x in enumerate(outs) if isinstance(x, Tensor)]
    every += [(("in", k), x) for k, x in enumerate(tensors) if start.inputs[k].written]
    for place, x in every:
        t = _root(x)
        edge = tape.edge_of(t)
        if edge is not None and edge[0].sequence >= mark and id(t) not in found:
            found.add(id(t))
            yield place, t, edge


def _edges_before(roots: Sequence[Edge], mark: int) -> Iterator[Edge]:
    """Yield the edges that lead out of the graph that was made after `mark`."""
    seen: set[Node] = set()
    todo = [node for node, _ in roots]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for edge in node.edges:
            if edge is None:
                continue
            if edge[0].sequence < mark:
                yield edge
            else:
                todo.append(edge[0])


# ---------------------------------------------------------------- what it started from


class _Given:
    """A tensor that the function was given, as it was: whole, or a view of another."""

    __slots__ = ("edge", "root", "saved", "steps", "storage", "version", "written")

    def __init__(self, t: Tensor, root: int | None) -> None:
        self.edge = tape.edge_of(t)
        self.root = root
        self.steps: tuple[ViewStep, ...] = t._steps
        self.saved = Saved(t, self.edge, None) if root is None else None
        self.storage = t._storage
        self.version = 0 if t._storage is None else t._storage.version
        self.written = False

    def finish(self) -> None:
        if self.storage is not None:
            self.written = self.storage.version != self.version
            self.storage = None


@dataclass(frozen=True, slots=True)
class _Array:
    """A plain array that the function was given, and a copy of it."""

    copy: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Number:
    """The number of an input."""

    position: int


class _Start:
    """What a function started from, so that it can run again."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.fn = fn
        self.operators = active_operators()
        self.transforming = inside_transform()
        self.location: Location | None = user_location()
        self.inputs: list[_Given] = []
        self._positions: dict[int, int] = {}
        self._tensors: list[Tensor] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], _Array]] = []
        leaves, self.tree = flatten_tree((tuple(args), dict(kwargs)))
        self.leaves = list(map(self.keep, leaves))
        state = _state_of(fn, leaves)
        held = [*state.inputs, *state.constants]
        self.places = [(place, self.keep(x)) for place, x in held]
        known = {id(x) for _, x in state.inputs}
        self.variables = [
            (p, x) for p in state.variables if id(x := p.get()) not in known
        ]
        self.containers = [
            (c.owner, _without(c.before, known)) for c in state.containers
        ]
        self.random = np.random.get_state()

    def keep(self, x: Any) -> Any:
        """Return what stands for a value until the function runs again."""
        if isinstance(x, Tensor):
            return _Number(self.position(x))
        if isinstance(x, np.ndarray):
            array = _Array(x.copy())
            self._arrays.append((x, array))
            return array
        return x

    def position(self, t: Tensor) -> int:
        if id(t) not in self._positions:
            root = None if t._base is None else self.position(t._base)
            self._positions[id(t)] = len(self.inputs)
            self.inputs.append(_Given(t, root))
            self._tensors.append(t)
        return self._positions[id(t)]

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors that were given; they are not kept."""
        tensors, self._tensors = self._tensors, []
        self._positions = {}
        return tensors

    def finish(self) -> None:
        """Note what the function has written."""
        for given in self.inputs:
            given.finish()
        for given in self.inputs:
            if given.root is not None:
                given.written = self.inputs[given.root].written
        for x, array in self._arrays:
            if not np.array_equal(x, array.copy, equal_nan=x.dtype.kind in "fc"):
                raise MutationError(
                    f"checkpoint: {type_of_array(x)}, a plain array, is written inside",
                    location=self.location,
                    rule="The function runs again for the gradient; what it writes "
                    "must be a Tensor then, whose contents before are kept.",
                    hint="pass rg.tensor(x), or write outside",
                )
        self._arrays = []

    # Running again --------------------------------------------------------------------

    def again(self, owner: Node) -> tuple[list[Any], list[Tensor]]:
        """Run the function as it ran; returns leaves of its result, and its inputs."""
        tensors: list[Tensor] = []
        for given in self.inputs:
            tensors.append(self.tensor(given, tensors, owner))

        def value(x: Any) -> Any:
            if isinstance(x, _Number):
                return tensors[x.position]
            return x.copy if isinstance(x, _Array) else x

        leaves = [value(x) for x in self.leaves]
        args, kwargs = unflatten_tree(self.tree, leaves)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.as_it_was(value))
            stack.enter_context(operators(self.operators))
            stack.enter_context(allow_mutation_on_saved_tensors())
            if self.transforming:
                stack.enter_context(transforming())
            out = convert(self.fn)(*args, **kwargs)
            return flatten_tree(out)[0], tensors

    def tensor(self, given: _Given, made: Sequence[Tensor], owner: Node) -> Tensor:
        """Return a tensor as it was given, with its edge; over a copy if written."""
        if given.saved is not None:
            t: Tensor = given.saved.tensor(owner)
            if given.written and isinstance(t._data, np.ndarray):
                t._data, t._storage = t._data.copy(), Storage()
            return t
        assert given.root is not None
        root = made[given.root]
        if given.written:
            t = root
            for step in given.steps:
                t = dispatch.apply(step.op, (t, *step.indices), step.attrs)
            return t
        data = root._data
        for step in given.steps:
            data = step.view(data)
        t = Tensor(data, root._storage)
        if given.edge is not None:
            t._node, t._nr = given.edge
        return t

    @contextlib.contextmanager
    def as_it_was(self, value: Callable[[Any], Any]) -> Iterator[None]:
        """Let everything that the function captures hold what it held."""
        with LOCK:
            places = [(p, p.get()) for p, _ in self.places]
            variables = [(p, p.get()) for p, _ in self.variables]
            containers = [(x, copied(contents(x))) for x, _ in self.containers]
            random = np.random.get_state()
            try:
                _replace(self.containers)
                _set(self.variables)
                _set([(p, value(x)) for p, x in self.places])
                np.random.set_state(self.random)
                yield
            finally:
                _set(places[::-1])
                _replace(containers)
                _set(variables)
                np.random.set_state(random)


def _without(held: Contents, known: set[int]) -> Contents:
    """Return contents without the tensors and arrays in it, which places hold."""
    if isinstance(held, dict):
        return {k: None if id(x) in known else x for k, x in held.items()}
    return [None if id(x) in known else x for x in held]


def _set(held: Sequence[tuple[Place, Any]]) -> None:
    for place, x in held:
        if place.get() is not x:
            place.set(x)


def _replace(held: Sequence[tuple[Any, Contents]]) -> None:
    for owner, before in held:
        replace_contents(contents(owner), before)


# ---------------------------------------------------------------- the node


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some elements of a result: another run must give them again."""

    shape: tuple[int, ...]
    values: np.ndarray[Any, Any]

    @staticmethod
    def of(t: Tensor) -> _Sample:
        x = np.asarray(t._data)
        at = np.linspace(0, max(x.size - 1, 0), min(SAMPLE, x.size)).astype(int)
        return _Sample(x.shape, x.reshape(-1)[at])

    def agrees(self, other: _Sample) -> bool:
        if self.shape != other.shape or self.values.dtype != other.values.dtype:
            return False
        near = float(np.finfo(self.values.dtype).eps) ** 0.5
        scale = np.max(np.abs(self.values), initial=0, where=np.isfinite(self.values))
        return np.allclose(
            self.values, other.values, near, near * scale, equal_nan=True
        )


class CheckpointBackward(Node):
    """The node of a checkpoint."""

    __slots__ = ("ends", "outputs", "samples", "start")

    def __init__(
        self,
        edges: tuple[Edge | None, ...],
        start: _Start,
        ends: Sequence[End],
        samples: Sequence[_Sample],
    ) -> None:
        super().__init__(edges)
        self.start: _Start | None = start
        self.ends = ends
        self.samples = samples
        self.outputs = len(ends)

    def release(self) -> None:
        self.start = None

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.start is None:
            raise GradientError(tape.TWICE)
        mark = next(tape.SEQUENCE)
        with enable_grad():
            outs, tensors = self.start.again(self)
        roots = []
        for (kind, k), before, ct in zip(self.ends, self.samples, cts, strict=True):
            made = outs if kind == "out" else tensors
            t = made[k] if k < len(made) else None
            t = _root(t) if isinstance(t, Tensor) else None
            edge = None if t is None else tape.edge_of(t)
            if t is None or edge is None or not before.agrees(_Sample.of(t)):
                raise self._differs()
            if ct is not None:
                roots.append((*edge, ct))
        run = _Inside(mark, create_graph=not isinstance(b, EagerBuilder))
        run.execute(roots)
        return [None if e is None else run.arrived_at(e) for e in self.edges]

    def _differs(self) -> GradientError:
        assert self.start is not None
        name = getattr(self.start.fn, "__name__", "f")
        return GradientError(
            f"checkpoint: {name} computes something else when it runs again",
            location=self.start.location,
            rule="A checkpoint keeps what its function starts from: arguments, and "
            "variables, attributes and items that the function names.",
            hint="draw random numbers, and change other state, outside",
        )


class _Inside(Run):
    """A backward pass through the graph that was made after a mark."""

    def __init__(self, mark: int, *, create_graph: bool) -> None:
        super().__init__(create_graph=create_graph, retain_graph=create_graph)
        self.mark = mark
        self.arrived: dict[Edge, Slot] = {}

    def send(self, node: Node, nr: int, g: Any) -> None:
        if node.sequence >= self.mark:
            super().send(node, nr, g)
        else:
            self.add(self.arrived.setdefault((node, nr), Slot()), g)

    def arrived_at(self, edge: Edge) -> Any:
        """Return the gradient that came out at an edge."""
        slot = self.arrived.get(edge)
        if slot is None:
            return None
        return slot.value if self.create_graph else slot.array()
