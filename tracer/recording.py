"""Recording: the results of ops get their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.op import OUT, Op
from ..runtime.storage import Storage
from . import tensor as _tensor
from .edges import edge_of
from .graph import Edge
from .modes import STATE
from .nodes import plan_of, view_node
from .saved import Saved
from .views import Array, Outline, ViewStep


def is_inexact(data: Any) -> bool:
    """Tell whether data can have a gradient."""
    dtype = getattr(data, "dtype", None)
    return dtype.kind in "fc" if dtype is not None else type(data) in (float, complex)


def make_view(
    op: Op,
    t: _tensor.Tensor,
    out: Array,
    data: Sequence[Any],
    attrs: Mapping[str, Any],
) -> _tensor.Tensor:
    """Return the view `out` of `t`, sharing its storage."""
    storage = t._storage
    assert storage is not None
    result = _tensor.Tensor(out, storage)
    indices = tuple(
        x.item() if isinstance(x, np.ndarray | np.generic) else x for x in data[1:]
    )
    result._base = t if t._base is None else t._base
    result._steps = (*t._steps, ViewStep(op, indices, attrs))
    result._seen = storage.epoch
    if op.overlapping:
        storage.repeats = True
    if not STATE.grad:
        result._made_without_grad = True
        return result
    result._made_without_grad = t._made_without_grad
    edge = edge_of(t)
    if edge is not None:
        result._node = view_node(result._steps[-1], t._data, edge)
    return result


def record_op(
    op: Op,
    operands: Sequence[Any],
    data: Sequence[Any],
    attrs: Mapping[str, Any],
    result: _tensor.Tensor,
    overwritten: Storage | None,
) -> None:
    """Hang the node of an op on its result, if an operand requires a gradient."""
    tensor = _tensor.Tensor
    edges: list[Edge | None] = []
    positions: tuple[int, ...] = ()
    for k, x in enumerate(operands):
        edge = None
        if type(x) is tensor and (
            x._node is not None or x._leaf or x._base is not None
        ):
            edge = edge_of(x)
        edges.append(edge)
        if edge is not None:
            positions = (*positions, k)
    if not positions or not is_inexact(result._data):
        return
    plan = plan_of(op.name, len(data))
    reads = plan.reads[positions[0]]
    for k in positions[1:]:
        reads = reads | plan.reads[k]
    kept = []
    for k, d in enumerate(data):
        if isinstance(d, np.ndarray) and k not in reads:
            kept.append(Outline(d))
        elif edges[k] is None and not isinstance(d, np.ndarray):
            kept.append(d)
        else:
            kept.append(_kept(operands[k], d, edges[k], k in reads, overwritten))
    node = plan.node(
        tuple([e for e in edges if e is not None]),
        op,
        plan,
        positions,
        kept,
        None,
        attrs,
    )
    if OUT in reads:
        node.out = Saved(result, None, None)
    elif isinstance(result._data, np.ndarray):
        node.out = Outline(result._data)
    else:
        node.out = result._data
    result._node = node


def _kept(
    x: Any, data: Any, edge: Edge | None, is_read: bool, overwritten: Storage | None
) -> Any:
    """Return what a node keeps of an operand: the value, or its outline."""
    is_array = isinstance(data, np.ndarray)
    if not is_read:
        return Outline(data) if is_array else data
    if isinstance(x, _tensor.Tensor):
        if not is_array and edge is None:
            return data
        return Saved(x, edge, overwritten)
    return data.copy() if is_array else data  # others may write into it
