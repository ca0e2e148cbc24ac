"""Whole-array operations: products, scans, sorts, joins, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.errors import UnsupportedError
from ..ir.func import Node

if TYPE_CHECKING:
    from .kernels import Lowering


def lower(low: Lowering, node: Node) -> None:
    """Lower a node that is no nest by itself."""
    raise UnsupportedError(f"{node.op.name}: compiled code has no such op yet")
