"""The tape: the eager graph, and what the rest of the package does with it.

A node owns what it needs: its edges to earlier nodes and saved values. Tensors own
their node; nothing points forward, so a graph dies by reference count.

`graph` holds nodes and leaves, `hooks` what runs before and after them, `nodes` those
of ops, views and writes, `saved` what they keep, `views` chains of views, `edges` where
the gradient of a tensor goes, `recording` how results get nodes, `writes` what a write
does, `pullbacks` functions with a pullback of their own.
"""

from .edges import accumulator, edge_of, move_retained, retain, set_node
from .graph import LEAVES, SEQUENCE, TWICE, AccumulateGrad, Edge, Node
from .hooks import NodeHooks, RemovableHandle
from .nodes import (
    AsStridedBackward0,
    CopyBackwards,
    CopySlices,
    OpNode,
    Refusal,
    ViewNode,
)
from .pullbacks import FunctionNode, record
from .recording import is_inexact, make_view, record_op
from .saved import Saved
from .views import Array, Outline, Owned, Part, ViewStep, pull_back, put, scatter
from .writes import (
    Rebase,
    before_writes,
    check_writes,
    prepare_write,
    put_slices,
    rebase,
    replace_memory,
    take_memory,
)

__all__ = [
    "LEAVES",
    "SEQUENCE",
    "TWICE",
    "AccumulateGrad",
    "Array",
    "AsStridedBackward0",
    "CopyBackwards",
    "CopySlices",
    "Edge",
    "FunctionNode",
    "Node",
    "NodeHooks",
    "OpNode",
    "Outline",
    "Owned",
    "Part",
    "Rebase",
    "Refusal",
    "RemovableHandle",
    "Saved",
    "ViewNode",
    "ViewStep",
    "accumulator",
    "before_writes",
    "check_writes",
    "edge_of",
    "is_inexact",
    "make_view",
    "move_retained",
    "prepare_write",
    "pull_back",
    "put",
    "put_slices",
    "rebase",
    "record",
    "record_op",
    "replace_memory",
    "retain",
    "scatter",
    "set_node",
    "take_memory",
]
