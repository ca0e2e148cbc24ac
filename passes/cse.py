"""Compute equal things once: a node equal to one that dominates it is replaced by it.

Pure Funcs only; a traced Func is returned as it is, since equal arrays are different
memory there. Inside a region what is outside counts as computed; what was computed in
a region is not known after it, so that two checkpoints share nothing, unless they are
equal as a whole. Memory to be written stays apart, too: tapes that were one `empty`
would be copies of it. One hash per node and region around it, so the cost is linear.

    %a: f64 = sin %x        %a: f64 = sin %x
    %b: f64 = sin %x        %c: f64 = add %a, %a
    %c: f64 = add %a, %b
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable
from typing import Any

from ..ir.dims import Expr
from ..ir.func import Block, Copier, Func, Node, Operand, Value, walk
from ..ir.op import Kind
from .scope import defined_symbol

KEPT = frozenset({Kind.RANDOM, Kind.EXTERN, Kind.WRITE})


def cse(f: Func) -> Func:
    """Return `f` with equal nodes merged.

    >>> from ..ir.text import parse
    >>> print(cse(parse('''func @f(%x: f64) -> f64 {
    ...   %a: f64 = sin %x
    ...   %b: f64 = sin %x
    ...   %c: f64 = add %a, %b
    ...   return %c
    ... }''')))
    func @f(%x: f64) -> f64 {
      %a: f64 = sin %x
      %c: f64 = add %a, %a
      return %c
    }
    """
    return f if f.stage == "traced" else _Merger().func(f)


def merged(b: Block) -> Block:
    """Return a region with equal nodes merged; the values in it stay the same."""
    return _Merger().block(b)


def key_of(x: Any) -> Hashable:
    """Return a key that tells 1, 1.0, True, 0.0, -0.0 and nan apart."""
    if isinstance(x, Value | Expr):
        return x
    if isinstance(x, tuple):
        return tuple(map(key_of, x))
    return type(x).__name__, repr(x)


class _Merger(Copier):
    def __init__(self) -> None:
        super().__init__()
        self.known: ChainMap[Hashable, tuple[Value, ...]] = ChainMap()

    def define(self, v: Value) -> Value:
        self.values[v] = v
        return v

    def block(self, b: Block) -> Block:
        nodes: list[Node] = []
        self.known = self.known.new_child()
        for n in b.nodes:
            new = self.merged(n)
            if new is not None:
                nodes.append(new)
        # The body of a `while` sees what its test computed, but a region's own nodes
        # are not known to its siblings.
        self.known = self.known.parents
        results: tuple[Operand, ...] = tuple(map(self.operand, b.results))
        return Block(b.params, tuple(nodes), results)

    def merged(self, n: Node) -> Node | None:
        """Return the node over merged operands, or None where it is known."""
        operands = tuple(map(self.operand, n.operands))
        regions = tuple(map(self.block, n.regions))
        new = Node(n.op, operands, n.attrs, n.results, regions, n.loc)
        inside = (m for r in regions for m in walk(r))
        if (
            n.op.arbitrary
            or defined_symbol(n) is not None
            or any(m.op.kind in KEPT for m in (n, *inside))
        ):
            return new
        key = node_key(new, {})
        before = self.known.get(key)
        if before is not None:
            self.values.update(zip(n.results, before, strict=True))
            return None
        self.known[key] = n.results
        return new


def node_key(n: Node, local: dict[Value, int]) -> Hashable:
    """Return a key of what a node computes; values of regions count by position."""

    def key(x: Any) -> Hashable:
        return ("local", local[x]) if x in local else key_of(x)

    operands = tuple(map(key, n.operands))
    attrs = tuple((k, key_of(a)) for k, a in sorted(n.attrs.items()))
    types = tuple(v.type for v in n.results)
    regions = []
    for r in n.regions:
        for p in r.params:
            local[p] = len(local)
        nodes = []
        for m in r.nodes:
            nodes.append(node_key(m, local))
            for v in m.results:
                local[v] = len(local)
        results = tuple(map(key, r.results))
        regions.append((tuple(p.type for p in r.params), tuple(nodes), results))
    return n.op, operands, attrs, types, tuple(regions)
