"""Recording: the results of ops get their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.op import OUT, Op, Zero
from ..runtime.devices import ARRAYS
from ..runtime.storage import Storage
from . import tensor as _tensor
from .edges import edge_of
from .graph import Edge
from .modes import STATE
from .nodes import plan_of, view_node
from .saved import Saved
from .views import Outline, ViewStep


def is_inexact(data: Any) -> bool:
    """Tell whether data can have a gradient."""
    dtype = getattr(data, "dtype", None)
    return dtype.kind in "fc" if dtype is not None else type(data) in (float, complex)


def make_view(
    op: Op,
    t: _tensor.Tensor,
    out: Any,
    data: Sequence[Any],
    attrs: Mapping[str, Any],
) -> _tensor.Tensor:
    """Return the view `out` of `t`, sharing its storage."""
    storage = t._storage
    assert storage is not None
    if isinstance(op.derivative(0), Zero):
        return t.detach()
    result = _tensor.Tensor(out, storage)
    indices = tuple(
        x.item() if isinstance(x, (*ARRAYS, np.generic)) else x for x in data[1:]
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
    edges: dict[int, Edge] = {}
    for k, x in enumerate(operands):
        if type(x) is tensor:
            edge = edge_of(x)
            if edge is not None:
                edges[k] = edge
    if not edges or not is_inexact(result._data):
        return
    plan = plan_of(op, len(data), tuple(edges))
    kept: list[Any] = [None] * (len(data) + 1)
    saves = plan.saves_out
    for k, is_read in plan.keeps:
        x, d = operands[k], data[k]
        is_array = isinstance(d, ARRAYS)
        if not is_read:
            kept[k] = Outline(d) if is_array else d
        elif type(x) is tensor and (is_array or k in edges):
            kept[k] = Saved(x, edges.get(k), overwritten)
            saves = True
        else:  # others may write into an array
            kept[k] = d.copy() if is_array else d
    if plan.saves_out:
        kept[OUT] = Saved(result, None, None)
    elif plan.asks_out:
        out = result._data
        kept[OUT] = Outline(out) if isinstance(out, ARRAYS) else out
    node = plan.node
    if plan.ranked:
        node = plan.ranked.get(tuple(map(np.ndim, data)), node)
    result._node = node(tuple(edges.values()), plan, kept, saves, attrs)
