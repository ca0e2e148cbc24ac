"""The engine: runs the nodes of the eager graph backwards.

A node runs once, when everything that used it has run: nodes are taken from a heap in
the reverse order of their making, so chains of any length need no recursion.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.build import Builder
from ..ir.errors import GradientError, RetrogradeError, UnsupportedError
from ..ir.op import OPS
from ..runtime.devices import OPENED
from . import dispatch
from . import tensor as _tensor
from .builders import EAGER, tensor_builder
from .devices import at_home
from .location import user_location
from .modes import set_grad_enabled
from .tape import (
    LEAVES,
    AccumulateGrad,
    Array,
    AsStridedBackward0,
    Node,
    Owned,
    Part,
    ViewNode,
)


class Slot:
    """The gradient of one output while it is being added up.

    `owned` says that nobody else holds `value`, so that it may be changed. Parts wait
    until there is an array to add them into, or a view node passes them on.
    """

    __slots__ = ("owned", "parts", "value")

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.owned = False
        self.parts: list[Part] | tuple[()] = ()

    def add(self, g: Any) -> None:
        """Add a gradient computed on arrays."""
        if type(g) is Part:
            if self.value is None:
                if isinstance(self.parts, list):
                    self.parts.append(g)
                else:
                    self.parts = [g]
            else:
                self.value = g.add_into(self._mine())
        elif self.value is None:
            is_owned = type(g) is Owned
            self.value = g.array if is_owned else g
            self.owned = is_owned and isinstance(self.value, np.ndarray)
            if self.parts:
                self._take_parts()
        else:
            self._add_array(g)

    def _add_array(self, g: Any) -> None:
        is_owned = type(g) is Owned
        g = g.array if is_owned else g
        if self.owned and self.value.dtype == g.dtype:
            np.add(self.value, g, out=self.value)
        elif is_owned and isinstance(g, np.ndarray) and self.value.dtype == g.dtype:
            self.value, self.owned = np.add(g, self.value, out=g), True
        else:
            self.value = self.value + g
            self.owned = isinstance(self.value, np.ndarray)

    def _mine(self) -> Array:
        """Return the value as an array that may be changed."""
        if not self.owned:
            self.value, self.owned = np.array(self.value), True
        array: Array = self.value
        return array

    def _take_parts(self) -> None:
        parts, self.parts = self.parts, ()
        for part in parts:
            self.value = part.add_into(self._mine())

    def array(self) -> Any:
        """Return the whole gradient, or None where nothing came."""
        if self.value is None and self.parts:
            outline = self.parts[0].outline
            self.value, self.owned = np.zeros(outline.shape, outline.dtype), True
            self._take_parts()
        return self.value

    def mine(self) -> Any:
        """Return the whole gradient in an array that may be changed."""
        return self._mine() if self.array() is not None else None


class Run:
    """One backward pass."""

    def __init__(
        self,
        *,
        create_graph: bool,
        retain_graph: bool,
        in_tensors: bool = False,
        captures: Mapping[tuple[Node, int], Sequence[int]] | None = None,
        accumulating: bool = False,
    ) -> None:
        self.create_graph = create_graph
        self.tensors = create_graph or in_tensors  # gradients are Tensors, not arrays
        self.retain_graph = retain_graph
        self.captures = captures
        self.accumulating = accumulating  # into leaves that are captured
        self.captured: dict[int, Any] = {}
        self.needed: set[Node] | None = None
        self.received: dict[Node, list[Any]] = {}  # None, a gradient, or a Slot
        self.heap: list[tuple[int, Node]] = []
        self.builder: Builder = tensor_builder() if self.tensors else EAGER

    def execute(self, roots: Sequence[tuple[Node, int, Any]]) -> dict[int, Any]:
        """Send the gradients of the roots back; returns what was captured."""
        if self.captures is not None:
            self.needed = needed_nodes([r[0] for r in roots], self.captures)
        with set_grad_enabled(self.create_graph):
            for node, nr, ct in roots:
                if self.needed is None or node in self.needed:
                    self.send(node, nr, ct)
            while self.heap:
                self.step(heapq.heappop(self.heap)[1])
        return self.captured

    def send(self, node: Node, nr: int, g: Any) -> None:
        """Add a gradient to what output `nr` of a node has received."""
        received = self.received.get(node)
        if received is None:
            received = self.received[node] = [None] * node.outputs
            heapq.heappush(self.heap, (-node.sequence, node))
        slot = received[nr]
        if slot is None and type(g) is not Part and type(g) is not Owned:
            received[nr] = g
            return
        if type(slot) is not Slot:
            slot = received[nr] = Slot(slot)
        self.add(slot, g)

    def add(self, slot: Slot, g: Any) -> None:
        """Add a gradient to a slot."""
        if not self.tensors:
            slot.add(g)
        elif slot.value is None:
            slot.value = g
        else:
            slot.value = self.builder.add_cotangents(slot.value, g)

    def step(self, node: Node) -> None:
        """Run one node."""
        received = self.received.pop(node)
        if type(node) is AccumulateGrad:
            self.arrive(node, _slot(received[0]))
            return
        observed = (
            node.hooks is not None
            or node.retains is not None
            or node.around is not None
            or (self.captures is not None and self.captured_here(node))
        )
        if not observed and len(received) == 1 and not node.hands_on:
            (g,) = received
            if type(g) is Slot:
                if g.parts and isinstance(node, VIEWS) and self.pass_on(node, g):
                    return
                g = g.array()
            if g is not None and (self.needed is None or self.is_needed(node)):
                self.pull(node, (g,))
            return
        cts: list[Any] = []
        for nr, slot in enumerate(map(_slot, received)):
            if slot is None:
                cts.append(None)
            elif observed:
                g = self.observe(node, nr, slot)
                copied = g is not None and node.hands_on and not self.tensors
                cts.append(np.array(g) if copied else g)
            elif node.hands_on and not self.tensors:
                cts.append(slot.mine())
            else:
                cts.append(slot.array())
        if any(g is not None for g in cts) and self.is_needed(node):
            self.pull(node, cts)

    def is_needed(self, node: Node) -> bool:
        """Tell whether the gradients of the inputs of a node are wanted."""
        needed = self.needed
        return needed is None or any(e and e[0] in needed for e in node.edges)

    def captured_here(self, node: Node) -> bool:
        """Tell whether the gradient of an output of a node is captured."""
        captures = self.captures or {}
        return any((node, nr) in captures for nr in range(node.outputs))

    def pull(self, node: Node, cts: Sequence[Any]) -> None:
        """Run the rules of a node, and send on what they return."""
        outs: tuple[Any, ...] = ()
        if node.around is not None:
            cts = self.call_around(node.around.before, cts, ())
            outs = tuple(map(self.kept, cts))
        try:
            grads = self.pulled(node, cts)
        except RetrogradeError as error:
            if error.location is None:
                error.location = user_location()
            raise
        if not self.retain_graph:
            node.release()
        if node.around is not None:
            whole = [None if g is None else self.whole(g) for g in grads]
            grads = self.call_around(node.around.after, whole, (outs,))
        needed = self.needed
        for edge, g in zip(node.edges, grads, strict=True):
            if edge is not None and g is not None:
                if needed is None or edge[0] in needed:
                    self.send(edge[0], edge[1], g)

    def pulled(self, node: Node, cts: Sequence[Any]) -> Sequence[Any]:
        """Run the rules of a node where its gradients are."""
        if not self.tensors or not OPENED:
            return node.pull(self.builder, cts)
        first = next(g for g in cts if g is not None)
        with at_home(first._data):
            return node.pull(self.builder, cts)

    def pass_on(self, node: ViewNode | AsStridedBackward0, slot: Slot) -> bool:
        """Let a view node that received parts only pass them on unmade."""
        if slot.value is not None:
            return False
        if any(step.op.overlapping for step in node.steps):
            return False
        (edge,) = node.edges
        assert edge is not None
        for part in slot.parts:
            steps = (*node.steps, *part.steps)
            self.send(*edge, Part(node.outline, steps, part.ct))
        return True

    # Hooks and captures ---------------------------------------------------------------

    def observe(self, node: Node, nr: int, slot: Slot | None) -> Any:
        """Run the hooks of an output, store what is retained or captured."""
        g = None if slot is None else slot.array()
        if g is None:
            return None
        hooks = None if node.hooks is None else node.hooks.get(nr)
        if hooks:
            g = self.call_hooks(hooks.values(), g)
        ref = None if node.retains is None else node.retains.get(nr)
        t = None if ref is None else ref()
        if t is not None:
            self.retain(t, g)
        self.capture(node, nr, g)
        return g

    def capture(self, node: Node, nr: int, g: Any) -> None:
        for k in (self.captures or {}).get((node, nr), ()):
            self.captured[k] = g

    def call_hooks(self, hooks: Iterable[Any], g: Any) -> Any:
        """Pass a gradient through hooks, as a tensor that they may change."""
        t = self.kept(g)
        for hook in tuple(hooks):
            new = hook(t)
            if new is not None:
                t = _checked(hook, new, t)
        return self.inside(t)

    def call_around(
        self, hooks: Mapping[int, Any], gs: Sequence[Any], more: tuple[Any, ...]
    ) -> list[Any]:
        """Pass gradients through hooks of a node, as a tuple of tensors."""
        ts = tuple(map(self.kept, gs))
        for hook in tuple(hooks.values()):
            new = hook(ts, *more)
            if new is None:
                continue
            if not isinstance(new, tuple):
                raise GradientError(
                    f"expected tuple, but hook returned '{type(new).__name__}'"
                )
            if len(new) != len(ts):
                raise GradientError(
                    f"hook '{_name(hook)}' has returned an incorrect number of values "
                    f"(got {len(new)}, but expected {len(ts)})"
                )
            ts = tuple(
                None if x is None else _checked(hook, x, t)
                for x, t in zip(new, ts, strict=True)
            )
        return [None if t is None else self.inside(t) for t in ts]

    def whole(self, g: Any) -> Any:
        """Return what a node returned as an array, or a tensor."""
        slot = Slot()
        self.add(slot, g)
        return slot.value if self.tensors else slot.array()

    def kept(self, g: Any) -> Any:
        """Return a gradient as the user sees it, in memory of its own."""
        if g is None:
            return None
        if self.tensors:
            return self.outside(g if self.create_graph else dispatch.apply(COPY, (g,)))
        return self.outside(np.array(g)[()])

    def inside(self, t: Any) -> Any:
        """Return what the user sees as a gradient of the pass."""
        return conjugate(t) if self.tensors else conjugate(t)._data

    def outside(self, g: Any) -> Any:
        """Return a gradient as the user sees it."""
        return conjugate(g if self.tensors else _tensor.of(g))

    def retain(self, t: Any, g: Any) -> None:
        g = self.kept(g)
        t._grad = g if t._grad is None else dispatch.apply(ADD, (t._grad, g))

    def arrive(self, node: AccumulateGrad, slot: Slot | None) -> None:
        """Handle the gradient of a leaf."""
        t = node.variable
        if slot is None:
            return
        g = slot.array()
        if g is None:
            return
        if getattr(t._data, "shape", ()) != g.shape:
            raise GradientError(
                f"a leaf of shape {list(t.shape)} received a gradient of shape "
                f"{list(g.shape)}",
                rule="it was given other memory after it was used",
                location=user_location(),
            )
        owned = slot.owned
        if t._hooks is not None and t._hooks.before:
            g, owned = self.call_hooks(t._hooks.before.values(), g), False
        if self.captures is not None and not self.accumulating:
            self.capture(node, 0, g)
            return
        if node.around is not None:
            (g,), owned = self.call_around(node.around.before, (g,), ()), False
        with LEAVES:
            accumulate(t, g, owned, self.create_graph)
        if t._hooks is not None:
            for hook in tuple(t._hooks.after.values()):
                hook(t)
        if node.around is not None:
            self.call_around(node.around.after, (), ((self.kept(g),),))


def _slot(g: Any) -> Slot | None:
    """Return what an output has received as a slot."""
    return g if g is None or type(g) is Slot else Slot(g)


def _checked(hook: Any, new: Any, like: Any) -> Any:
    """Return what a hook returned as a tensor in place of another one."""
    if not isinstance(new, _tensor.Tensor | np.ndarray | np.generic):
        raise GradientError(
            f"expected Variable, but hook returned '{type(new).__name__}'"
        )
    t = _tensor.as_tensor(new)
    if like is not None and t.shape != like.shape:
        raise GradientError(f"hook '{_name(hook)}' has changed the size of value")
    return t


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


VIEWS = (ViewNode, AsStridedBackward0)
ADD = OPS["add"]
COPY = OPS["copy"]


def conjugate(t: Any) -> Any:
    """Turn a cotangent into a gradient, or back: they differ for complex numbers."""
    if t.dtype.kind != "c":
        return t
    if not t.requires_grad:
        return _tensor.of(np.conjugate(t._data))
    op = OPS.get("conjugate")
    if op is None:
        raise UnsupportedError(
            "recording the gradient of a complex tensor",
            location=user_location(),
            hint="use create_graph=False",
        )
    return dispatch.apply(op, (t,))


def accumulate(t: Any, g: Any, owned: bool, create_graph: bool) -> None:
    """Add a gradient to `t.grad`: in place, unless the gradient is itself recorded."""
    before = t._grad
    if create_graph or isinstance(g, _tensor.Tensor):
        g = conjugate(g)
        if before is None:
            t._grad = dispatch.apply(COPY, (g,))
        elif create_graph or before.requires_grad or before.type.scalar:
            t._grad = before + g
        else:
            dispatch.update(ADD, before, g)
        return
    if np.iscomplexobj(g):
        g = np.conjugate(g)
    if before is None:
        usable = owned and isinstance(g, np.ndarray) and g.shape == t._data.shape
        data = g if usable and g.dtype == t._data.dtype else None
        if data is None:
            data = np.empty(np.shape(t._data), t._data.dtype)
            data[...] = g
        t._grad = _tensor.of(data)
    elif before.requires_grad or not isinstance(before._data, np.ndarray):
        t._grad = before + g
    else:
        np.add(before._data, g, out=before._data, casting="same_kind")
        before._storage.wrote()


def needed_nodes(
    roots: Sequence[Node], captures: Mapping[tuple[Node, int], Sequence[int]]
) -> set[Node]:
    """Return the nodes from which a captured one can be reached."""
    targets = {node for node, _ in captures}
    found: set[Node] = set(roots)
    stack = list(found)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge[0] not in found:
                found.add(edge[0])
                stack.append(edge[0])
    needed: set[Node] = set()
    for node in sorted(found, key=lambda n: n.sequence):
        if node in targets or any(e is not None and e[0] in needed for e in node.edges):
            needed.add(node)
    return needed
