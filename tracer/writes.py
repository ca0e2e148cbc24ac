"""Writes: what autograd forbids, and what they do to the graph.

A write into a tensor makes its node the one that computed the new value. A write
through a view makes the node of the *base* a `CopySlices` with two edges: the base as
it was, and the new value. Views look at their base again when `storage.epoch` moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir.errors import MutationError
from ..runtime.devices import ARRAYS
from . import tensor as _tensor
from .edges import check_guard, edge_of, follow_base, set_node
from .graph import Edge
from .location import user_location
from .modes import STATE
from .nodes import CopyBackwards, CopySlices, Refusal
from .recording import is_inexact
from .views import Outline


class Rebase(NamedTuple):
    """What a write will do to the graph, found before anything changes."""

    old: Edge | None  # of the base
    new: Edge | None
    like: Any


def prepare_write(
    target: _tensor.Tensor, new: Any, new_edge: Edge | None
) -> Rebase | None:
    """Check whether autograd allows a write; return how to rebase, if at all.

    `new_edge` is where the gradient of `new` goes.
    """
    if not STATE.grad:
        return None
    base = target._base
    target_edge = edge_of(target)
    old = target_edge if base is None else edge_of(base)
    if new_edge is None and old is None and target_edge is None:
        return None
    if not is_inexact(target._data):
        return None
    _check_write(target, base)
    data = new._data if isinstance(new, _tensor.Tensor) else new
    return Rebase(old, new_edge, outline_of(data))


def outline_of(data: Any) -> Any:
    return Outline(data) if isinstance(data, ARRAYS) else data


def _check_write(target: _tensor.Tensor, base: _tensor.Tensor | None) -> None:
    if base is not None and base._storage is not target._storage:
        raise MutationError(
            "a view of memory that its base no longer has is being written.",
            location=user_location(),
            rule="set_ or .data has given the base other memory since the view was "
            "made: what is written here would have no gradient",
            hint="make the view anew, or write under rg.no_grad()",
        )
    what = ""
    if target._leaf:
        what = "a leaf Variable that requires grad is being used"
    elif base is not None and base._leaf:
        what = "a view of a leaf Variable that requires grad is being used"
    if what:
        raise MutationError(
            f"{what} in an in-place operation.",
            location=user_location(),
            rule=f"the write into {target.type} would lose its gradient",
            hint="write into a copy, x = x.copy(), or under rg.no_grad()",
        )
    if base is not None:
        check_guard(target, "is being")
    if target._made_without_grad:
        raise MutationError(
            "A view was created in no_grad mode and is being modified inplace with "
            "grad mode enabled.",
            location=user_location(),
            hint="make the view with grad mode enabled, or write under rg.no_grad()",
        )


def rebase(target: _tensor.Tensor, plan: Rebase, result: Any = None) -> None:
    """Make the graph follow a write that has happened.

    `result` is a fresh tensor that was computed for the write: the target takes over
    its node if nothing is lost on the way.
    """
    base = target._base
    if base is not None:
        like = plan.like
        set_node(
            base,
            CopySlices(plan.old, plan.new, Outline(base._data), target._steps, like),
        )
        if target._node is not None and target._node.hooks:
            follow_base(target, base, with_hooks=False)  # they are of the old value
        return
    node = None if result is None else result._node
    same = node is not None and (
        getattr(plan.like, "dtype", None) == target._data.dtype
        and plan.like.shape == target._data.shape
    )
    if node is not None and same:
        set_node(target, node, result._nr)
        return
    old = plan.old if result is None else None
    set_node(target, CopyBackwards(old, plan.new, plan.like, outline_of(target._data)))


def put_slices(t: _tensor.Tensor, new: Edge) -> None:
    """Rebase the base of a view that a function has written."""
    base = t._base
    assert base is not None
    assert base._storage is not None
    with base._storage.lock:
        old, like = edge_of(base), Outline(t._data)
        set_node(base, CopySlices(old, new, Outline(base._data), t._steps, like))


def replace_memory(t: _tensor.Tensor, source: _tensor.Tensor) -> None:
    """Give a tensor the memory of another one: `set_`, which has no derivative.

    Values that were saved from it stay what they were. Views of it keep the old memory,
    and do not follow it any more.
    """
    if t._base is not None:
        raise MutationError(
            "a view cannot be given other memory", location=user_location()
        )
    edges = (edge_of(t), edge_of(source)) if STATE.grad else (None, None)
    if any(e is not None for e in edges):
        if t._leaf:
            _check_write(t, None)
        set_node(t, Refusal(edges, "derivative for set_ is not implemented"))
    take_memory(t, source)


def take_memory(t: _tensor.Tensor, source: _tensor.Tensor) -> None:
    """Let a tensor have the data and version of another one from now on."""
    if not isinstance(source._data, ARRAYS):
        source = _tensor.of(np.array(source._data))
    t._data, t._storage = source._data, source._storage


def check_writes(inputs: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise where autograd forbids a function of `inputs` to write into `written`.

    To be called before the function runs: nothing has happened yet when this raises.
    """
    tensor = _tensor.Tensor
    if not STATE.grad:
        return
    if any(isinstance(x, tensor) and edge_of(x) is not None for x in inputs):
        for t in written:
            if isinstance(t, tensor) and is_inexact(t._data):
                _check_write(t, t._base)


def before_writes(written: Sequence[Any]) -> None:
    """Have saved values copied that a function is about to overwrite, if wanted."""
    for t in written:
        if STATE.copy_on_write and t._storage is not None:
            t._storage.release_keepers()
