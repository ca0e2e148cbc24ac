"""The tape: nodes of the eager graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.op import Op
from ..runtime.storage import Storage
from . import tensor as _tensor


def make_view(
    op: Op,
    t: Any,
    out: Any,
    data: Sequence[Any],
    operands: Sequence[Any],
    attrs: Mapping[str, Any],
) -> Any:
    """Return the view `out` of `t`, sharing its storage."""
    result = _tensor.Tensor(out, t._storage)
    result._base = t if t._base is None else t._base
    return result


def record_op(
    op: Op,
    operands: Sequence[Any],
    data: Sequence[Any],
    attrs: Mapping[str, Any],
    result: Any,
    overwritten: Storage | None,
) -> None:
    """Record an op."""


def prepare_write(target: Any, new: Any) -> bool:
    """Check whether a write is allowed."""
    return False


def rebase(target: Any, new: Any) -> None:
    """Rebase."""
