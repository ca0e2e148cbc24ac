"""Compute equal things once: a node equal to one that dominates it is replaced by it.

Pure Funcs only; a traced Func is returned as it is, since equal arrays are different
memory there. Nodes with regions are kept, and inside a region what is outside counts
as computed. One hash per node, so the cost is linear.

    %a: f64 = sin %x        %a: f64 = sin %x
    %b: f64 = sin %x        %c: f64 = add %a, %a
    %c: f64 = add %a, %b
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable
from typing import Any

from ..ir.dims import Expr
from ..ir.func import Block, Copier, Func, Node, Operand, Value
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
        if n.regions or n.op.kind in KEPT or defined_symbol(n) is not None:
            regions = tuple(map(self.block, n.regions))
            return Node(n.op, operands, n.attrs, n.results, regions, n.loc)
        attrs = tuple((k, key_of(a)) for k, a in sorted(n.attrs.items()))
        types = tuple(v.type for v in n.results)
        key = (n.op, tuple(map(key_of, operands)), attrs, types)
        before = self.known.get(key)
        if before is not None:
            self.values.update(zip(n.results, before, strict=True))
            return None
        self.known[key] = n.results
        return Node(n.op, operands, n.attrs, n.results, (), n.loc)
