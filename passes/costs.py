"""Estimates of sizes and operations, by which passes choose between forms.

They need not be right: they choose between programs that compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.func import Node, Value
from ..ir.op import Kind
from ..ir.types import Type

# Estimates: a size that is not known counts as this many elements.
USUAL_SIZE = 64
# Writing an element to a tape and reading it back, in units of simple operations.
TAPE_COST = 4.0
# An element of what is no part of a loop nest: read, written, and read again.
PASS_COST = 5.0
HUGE = 1e100
FREE = frozenset({Kind.VIEW, Kind.CREATION, Kind.COPY, Kind.SIZE})
NEVER_AGAIN = frozenset({Kind.RANDOM, Kind.EXTERN})


def estimate(d: Dim) -> float:
    """Return a usual value of a dim; a symbol that is subtracted is half as large."""
    usual = {s: USUAL_SIZE for s in dims.symbols_of(d)}
    if isinstance(d, Expr):
        for monomial, c in d.terms:
            if c < 0:
                usual.update(
                    (s, USUAL_SIZE // 2) for s in monomial if isinstance(s, Symbol)
                )
    return float(max(dims.evaluate(d, usual), 1))


def elements(t: Type) -> float:
    return math.prod(map(estimate, t.shape))


def work(nodes: Iterable[Node]) -> float:
    """Estimate the number of operations of nodes."""
    total = 0.0
    for node in nodes:
        inner = sum(work(r.nodes) for r in node.regions)
        if node.op.kind is Kind.FOR:
            a = node.attrs
            inner *= estimate(dims.add(a["stop"], dims.mul(a["start"], -1)))
        elif node.op.kind is Kind.WHILE:
            inner *= USUAL_SIZE
        total += inner
        if node.op.kind not in FREE and not node.regions:
            xs = [x.type for x in node.operands if isinstance(x, Value)]
            size = max(map(elements, (*xs, *(v.type for v in node.results))), default=1)
            total += size * _each(node)
    return total


def _each(node: Node) -> float:
    """Estimate the operations per element of a node's largest array."""
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return node.op.cost / 8
        case Kind.ROUTINE:
            return float(USUAL_SIZE)
    return PASS_COST


def saved_cost(t: Type) -> float:
    """Estimate the cost of a tape's entry of that type."""
    return TAPE_COST * elements(t) * t.dtype.itemsize / 8
