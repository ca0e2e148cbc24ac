"""Functions with a pullback of their own on the tape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.build import Builder
from ..ir.errors import GradientError
from . import tensor as _tensor
from .builders import EagerBuilder
from .edges import edge_of, set_node
from .graph import TWICE, Edge, Node
from .location import user_location
from .modes import STATE
from .recording import is_inexact
from .saved import Saved
from .writes import outline_of, put_slices


class FunctionNode(Node):
    """The node of a function with several outputs and a pullback of its own."""

    __slots__ = ("backward", "likes", "outputs", "released", "saved", "types")

    def __init__(
        self,
        edges: tuple[Edge | None, ...],
        backward: Callable[..., Sequence[Any]],
        likes: tuple[Any, ...],
        outputs: int,
    ) -> None:
        super().__init__(edges)
        self.backward: Callable[..., Sequence[Any]] | None = backward
        self.likes = likes
        self.outputs = outputs
        self.saved: tuple[tuple[Any, int | None], ...] = ()
        self.released = False

    def release(self) -> None:
        self.backward = None
        self.saved = ()

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.backward is None:
            raise GradientError(TWICE)
        values = [self._value(b, x, nr) for x, nr in self.saved]
        grads = tuple(self.backward(b, cts, *values))
        if len(grads) < len(self.edges) or any(
            g is not None for g in grads[len(self.edges) :]
        ):
            raise GradientError(
                f"function {self.name()} returned an incorrect number of gradients "
                f"(expected {len(self.edges)}, got {len(grads)})"
            )
        return [
            None if g is None or e is None else self._fitted(b, g, k)
            for k, (g, e) in enumerate(zip(grads, self.edges, strict=False))
        ]

    def _value(self, b: Builder, x: Any, nr: int | None) -> Any:
        if type(x) is not Saved:
            return x
        return x.array(self) if isinstance(b, EagerBuilder) else x.tensor(self, nr)

    def _fitted(self, b: Builder, g: Any, k: int) -> Any:
        like = self.likes[k]
        want, have = b.shape(like), b.shape(g)
        fits = len(have) >= len(want) and all(
            d in (1, h) for d, h in zip(reversed(want), reversed(have), strict=False)
        )
        if not fits:
            raise GradientError(
                f"Function {self.name()} returned an invalid gradient at index {k} - "
                f"got {have} but expected shape compatible with {want}"
            )
        return b.unbroadcast(g, like)


@functools.cache
def _function_node(name: str) -> type[FunctionNode]:
    return type(name, (FunctionNode,), {"__slots__": (), "__module__": __name__})


def record(
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    backward: Callable[..., Sequence[Any]],
    saved: Sequence[Any] = (),
) -> None:
    """Hang a function that has been computed on the tape.

    `inputs` are the operands (what is no Tensor has no gradient), `outputs` fresh
    Tensors over memory of their own, or the *same objects* as inputs that the function
    has written: their version is bumped and they, or their bases, are rebased. Call
    `check_writes` before the function writes, and `before_writes` too.

    `backward(b, cts, *saved)` gets a builder, one cotangent per output (None for
    zero), and the saved values: arrays, or with create_graph Tensors whose gradients
    go on, in which case what it computes must be made of recorded operations. It
    returns one gradient per input, or None. `saved` may hold inputs, outputs, fresh
    Tensors and plain values; those of inputs must not be among the written ones.
    """
    tensor = _tensor.Tensor
    written = [t for t in outputs if any(t is x for x in inputs)]
    edges = tuple(edge_of(x) if isinstance(x, tensor) else None for x in inputs)
    for t in written:
        assert t._storage is not None
        with t._storage.lock:
            t._storage.wrote()
        if t._storage.has_keepers:
            t._storage.last_write = user_location()
    if not STATE.grad or all(e is None for e in edges):
        return
    likes = tuple(outline_of(x._data) if isinstance(x, tensor) else x for x in inputs)
    node = _function_node(name)(edges, backward, likes, len(outputs))
    node.saved = tuple(_saved_of(x, outputs) for x in saved)
    for nr, t in enumerate(outputs):
        if not isinstance(t, tensor) or not is_inexact(t._data):
            continue
        if t._base is not None and any(w is t for w in written):
            put_slices(t, (node, nr))
        else:
            set_node(t, node, nr)


def _saved_of(x: Any, outputs: Sequence[Any]) -> tuple[Any, int | None]:
    if not isinstance(x, _tensor.Tensor):
        return (x, None)
    for nr, t in enumerate(outputs):
        if t is x:
            return Saved(x, None, None), nr
    return Saved(x, edge_of(x), None), None
