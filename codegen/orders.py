"""In which order of its axes a stack of products lies in memory.

A stack whose only users are one transpose of it, which is then reshaped, is stored as
that shows it: BLAS leaves any distance between rows, and the reshape is no copy. Heads
of attention are put side by side like this. Else C order is better:
short rows far apart cost time (half as much again for rows of 20).

    %o: f64[b,h,t,d] = matmul %p, %v
    %s: f64[b,t,h,d] = transpose %o {axes=(0, 2, 1, 3)}     # in C order
    %r: f64[b,t,h*d] = reshape %s {shape=(b, t, h*d)}       # no copy
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import dims
from ..ir.access import base_index
from ..ir.func import Func, Node, Operand, Value, walk
from ..ir.op import Kind
from .rows import has_calls, points

Order = tuple[int, ...]  # for each axis in memory, outermost first, that of the value


def orders_of(f: Func) -> Mapping[Value, Order]:
    """Return the order of axes of the products for which it is not C order."""
    nodes = list(walk(f.body))
    users: dict[Value, list[Node]] = {}
    kept: set[Operand] = set(f.results)  # what must lie in C order
    for node in nodes:
        kept.update(v.reuses for v in node.results if v.reuses is not None)
        for x in node.operands:
            if isinstance(x, Value):
                users.setdefault(x, []).append(node)
        for region in node.regions:
            kept.update(region.results)
    found = {}
    for node in nodes:
        if node.op.kind is not Kind.CONTRACTION or node.result.type.ndim < 3:
            continue
        v = node.result
        if v in kept or v.reuses is not None or v not in users:
            continue
        orders = {shown(n) for n in users[v]}
        order = orders.pop()
        matrix = (v.type.ndim - 2, v.type.ndim - 1)
        if orders or order is None or order[-1] not in matrix:
            continue
        if any(reshapes(n) for t in users[v] for n in users.get(t.result, ())):
            found[v] = order
    return found


def reshapes(node: Node) -> bool:
    """Tell whether a view divides positions: it takes axes together or apart."""
    if node.op.kind is not Kind.VIEW or len(node.operands) != 1:
        return False
    index, _ = points(node.result.type.shape)
    return any(map(has_calls, base_index(node, index, ())))


def shown(node: Node) -> Order | None:
    """Return the axes of its operand in the order in which a transpose has them."""
    if node.op.kind is not Kind.VIEW or len(node.operands) != 1:
        return None
    index = tuple(dims.symbol(f"@{k}") for k in range(node.result.type.ndim))
    base = base_index(node, index, ())
    if len(base) != len(index) or set(base) != set(index):
        return None
    return tuple(base.index(i) for i in index)
