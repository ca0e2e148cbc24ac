"""Edges of tensors: where their gradient goes, also after their base was written."""

from __future__ import annotations

import weakref

from ..ir.errors import MutationError
from ..runtime.storage import Storage
from . import tensor as _tensor
from .graph import LEAVES, AccumulateGrad, Edge, Node
from .location import user_location
from .modes import STATE
from .nodes import AsStridedBackward0, ViewNode, view_node
from .views import Outline, ViewStep

GUARDED = (
    "This view was created inside a custom Function (or because an input was returned "
    "as-is) and the autograd logic to handle view+inplace would override the custom "
    "backward associated with the custom Function, leading to incorrect gradients. "
    "This behavior is forbidden. You can fix this by cloning the output of the custom "
    "Function."
)


def edge_of(t: _tensor.Tensor) -> Edge | None:
    """Return where the gradient of a tensor goes, or None."""
    if t._base is not None and t._seen != t._storage.epoch:  # type: ignore[union-attr]
        follow_base(t, t._base)
    node = t._node
    if node is not None:
        return node, t._nr
    return (accumulator(t), 0) if t._leaf else None


def accumulator(t: _tensor.Tensor) -> AccumulateGrad:
    """Return the one AccumulateGrad of a leaf."""
    found = None if t._accumulator is None else t._accumulator()
    if found is None:
        with LEAVES:  # two threads must not make one each
            found = None if t._accumulator is None else t._accumulator()
            if found is None:
                found = AccumulateGrad(t)
                t._accumulator = weakref.ref(found)
    return found


def check_guard(t: _tensor.Tensor, what: str) -> None:
    """Raise where a written view has a derivative of its own, which would be lost."""
    node, nr = t._node, t._nr
    while isinstance(node, ViewNode):
        edge = node.edges[0]
        assert edge is not None
        node, nr = edge
    if node is not None and node.guards(nr):
        assert t._node is not None
        name = t._node.name().partition("Backward")[0]
        raise MutationError(
            f"Output {t._nr} of {name} is a view and {what} modified inplace. "
            f"{GUARDED}",
            location=user_location(),
        )


def follow_base(
    t: _tensor.Tensor, base: _tensor.Tensor, with_hooks: bool = True
) -> None:
    """Bring the node of a view up to date after its base changed.

    Its hooks come along where another alias was written: what had them is not in the
    graph of the new value.
    """
    storage = base._storage
    assert storage is not None
    if t._made_without_grad or storage is not t._storage:
        return  # a constant, or the base has been given other memory since
    with storage.lock:
        if t._seen != storage.epoch:  # no other thread has done it meanwhile
            _rebase_view(t, base, storage, with_hooks)


def _rebase_view(
    t: _tensor.Tensor, base: _tensor.Tensor, storage: Storage, with_hooks: bool
) -> None:
    check_guard(t, "its base or another view of its base has been")
    edge = edge_of(base)
    before = t._node
    if edge is not None:
        t._leaf = False
        t._node = _node_of_view(edge, base, t._steps)
        hooks = None if before is None else (before.hooks or {}).get(t._nr)
        if hooks and with_hooks:
            t._node.hooks = {0: hooks}
    elif before is not None:  # the base was detached in place
        t._node = None
    move_retained(before, t._nr, t)
    t._nr = 0
    t._seen = storage.epoch


def _node_of_view(
    edge: Edge, base: _tensor.Tensor, steps: tuple[ViewStep, ...]
) -> Node:
    """Return the node of a view of a base that was written."""
    if not STATE.view_replay:
        return AsStridedBackward0(edge, Outline(base._data), steps)
    data = base._data
    for step in steps:
        edge = (view_node(step, data, edge), 0)
        data = step.view(data)
    return edge[0]


def move_retained(before: Node | None, nr: int, t: _tensor.Tensor) -> None:
    """Let `retain_grad` follow a tensor to its new node."""
    if before is None or before.retains is None or t._node is None:
        return
    ref = before.retains.get(nr)
    if ref is not None and ref() is t:
        del before.retains[nr]
        retain(t._node, t._nr, t)


def retain(node: Node, nr: int, t: _tensor.Tensor) -> None:
    """Have the gradient of an output stored in `t.grad`."""
    if node.retains is None:
        node.retains = {}
    node.retains[nr] = weakref.ref(t)


def set_node(t: _tensor.Tensor, node: Node, nr: int = 0) -> None:
    """Give a tensor that was written a new node."""
    before, before_nr = t._node, t._nr
    t._node, t._nr = node, nr
    t._leaf = False
    move_retained(before, before_nr, t)
