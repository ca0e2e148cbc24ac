"""The graph of the tape: nodes, and where the gradients of their inputs go."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from ..ir.build import Builder
from . import tensor as _tensor
from .hooks import NodeHooks, RemovableHandle

Edge: TypeAlias = "tuple[Node, int]"

SEQUENCE = itertools.count()

_LEAF_SEQUENCE = itertools.count(-1, -1)

LEAVES = threading.RLock()  # guards what threads share: leaves and their gradients


TWICE = (
    "Trying to backward through the graph a second time (or directly access saved "
    "tensors after they have already been freed). Saved intermediate values of the "
    "graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if "
    "you need to access saved tensors after calling backward."
)


class Node:
    """One step of the eager graph.

    `edges` says for every input where its gradient goes; `pull` maps the gradients of
    the outputs to those of the inputs.
    """

    __slots__ = (
        "__weakref__",
        "_metadata",
        "around",
        "edges",
        "hooks",
        "retains",
        "sequence",
    )
    outputs: int | ClassVar[int] = 1  # type: ignore[valid-type]
    hands_on = False  # `pull` gets a gradient that it may change

    def __init__(self, edges: tuple[Edge | None, ...]) -> None:
        self.edges = edges
        self.sequence = next(SEQUENCE)
        self.hooks: dict[int, dict[int, Callable[[Any], Any]]] | None = None
        self.retains: dict[int, weakref.ref[_tensor.Tensor]] | None = None
        self.around: NodeHooks | None = None
        self._metadata: dict[Any, Any] | None = None

    def register_prehook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this runs; a tuple it returns is taken."""
        self.around = self.around or NodeHooks()
        return RemovableHandle(self.around.before, hook)

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this ran.

        A tuple that it returns stands for `grad_inputs` from then on.
        """
        self.around = self.around or NodeHooks()
        return RemovableHandle(self.around.after, hook)

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict for whatever users want to note about the node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where the gradients of the inputs go: (node, which of its outputs)."""
        return tuple((None, 0) if e is None else e for e in self.edges)

    def name(self) -> str:
        """Return the name that PyTorch prints."""
        return type(self).__name__

    def guards(self, nr: int) -> bool:
        """Tell whether an output is a view with a derivative of its own."""
        return False

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        """Return the gradient for every edge from those of the outputs."""
        raise NotImplementedError

    def release(self) -> None:
        """Drop what was saved."""

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad(Node):
    """Where the gradient of a leaf arrives; the leaf refers to it weakly."""

    __slots__ = ("variable",)

    def __init__(self, variable: _tensor.Tensor) -> None:
        super().__init__(())
        self.sequence = next(_LEAF_SEQUENCE)
        self.variable = variable
