"""Drop what no result depends on: nodes, carries and results of regions.

Works on traced and pure Funcs alike. A write is always kept, with the regions that it
stands in. What a carry needs is found by one walk over the whole graph, so the cost is
linear; a carry that only feeds itself is dead.

    %r: f64[n], %k: f64[n] = for i in 0..n carry(%c: f64[n] = %x, %d: f64[n] = %y) {
      ...                        # only %c is used: %d and %k go
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.func import Block, Func, Node, Operand, Value, dims_of_node
from ..ir.op import Kind
from .scope import defined_symbol, definers

LOOPS = (Kind.FOR, Kind.WHILE)
EFFECTS = (Kind.WRITE, Kind.CHECK)


def dce(f: Func) -> Func:
    """Return `f` without dead nodes, carries and region results.

    >>> from ..ir.text import parse
    >>> print(dce(parse('''func @f(%x: f64) -> f64 {
    ...   %y: f64 = sin %x
    ...   %z: f64 = cos %x
    ...   return %z
    ... }''')))
    func @f(%x: f64) -> f64 {
      %z: f64 = cos %x
      return %z
    }
    """
    live = _Live(f)
    block = live.kept(f.body)
    return Func(f.name, f.stage, block, f.symbols, f.facts, f.updates)


class _Live:
    def __init__(self, f: Func) -> None:
        self.node_of: dict[Value, tuple[Node, int]] = {}
        self.carry_of: dict[Value, tuple[Node, int]] = {}
        # One symbol may be defined in several regions: all of them are kept then.
        self.defines: dict[Symbol, list[Node]] = {}
        self.definers = definers(f)
        self.around: dict[Node, Node | None] = {}
        self.values: set[Value] = set()
        self.nodes: set[Node] = set()
        self.symbols: set[Symbol] = set()
        self.todo: list[Value | Node] = []
        effects: list[Node] = []
        self.enter(f.body, None, effects)
        self.need(f.results)
        for node in effects:
            self.run(node)
            self.need(node.operands)
        self.spread()

    def enter(self, block: Block, around: Node | None, effects: list[Node]) -> None:
        for node in block.nodes:
            self.around[node] = around
            for k, v in enumerate(node.results):
                self.node_of[v] = (node, k)
            s = defined_symbol(node)
            if s is not None and node in self.definers:
                self.defines.setdefault(s, []).append(node)
            if node.op.kind in EFFECTS:
                effects.append(node)
            if node.op.kind in LOOPS:
                for k, p in enumerate(node.regions[0].params):
                    self.carry_of[p] = (node, k)
            for region in node.regions:
                self.enter(region, node, effects)

    # Marking ----------------------------------------------------------------------

    def need(self, xs: Iterable[Operand]) -> None:
        for x in xs:
            if isinstance(x, Value):
                if x not in self.values:
                    self.values.add(x)
                    self.todo.append(x)
                self.need_dims(x.type.shape)
            elif isinstance(x, Expr):
                self.need_dims((x,))

    def need_dims(self, xs: Iterable[Dim]) -> None:
        for d in xs:
            for s in dims.symbols_of(d):
                if s not in self.symbols:
                    self.symbols.add(s)
                    for node in self.defines.get(s, ()):
                        if node.regions:  # it counts its iterations
                            self.run(node)
                        else:
                            self.need(node.results)

    def run(self, node: Node) -> None:
        """Mark a node as executed: its dims, its tests, and what it stands in."""
        if node not in self.nodes:
            self.nodes.add(node)
            self.todo.append(node)

    def spread(self) -> None:
        while self.todo:
            x = self.todo.pop()
            if isinstance(x, Node):
                self.spread_node(x)
            elif x in self.carry_of:
                self.spread_carry(*self.carry_of[x])
            elif x in self.node_of:
                self.spread_result(*self.node_of[x])

    def spread_node(self, node: Node) -> None:
        self.need_dims(dims_of_node(node))
        around = self.around[node]
        if around is not None:
            self.run(around)
        if node.op.kind is Kind.COND:
            self.need(node.operands)
        elif node.op.kind is Kind.WHILE:
            self.need(node.regions[0].results)

    def spread_result(self, node: Node, k: int) -> None:
        self.run(node)
        if node.op.kind in LOOPS and k < len(node.operands):
            self.spread_carry(node, k)
        elif node.op.kind in LOOPS:
            self.need(node.regions[-1].results[k : k + 1])
        elif node.op.kind is Kind.CUSTOM:
            self.need((*node.operands, *node.regions[0].results))
        elif node.regions:
            self.need(r.results[k] for r in node.regions)
        else:
            self.need(node.operands)

    def spread_carry(self, node: Node, k: int) -> None:
        self.need((node.regions[0].params[k], node.results[k]))
        self.need((node.operands[k], node.regions[-1].results[k]))

    # Rebuilding -------------------------------------------------------------------

    def kept(self, block: Block) -> Block:
        nodes = tuple(self.kept_node(n) for n in block.nodes if n in self.nodes)
        return Block(block.params, nodes, block.results)

    def kept_node(self, node: Node) -> Node:
        if not node.regions:
            return node
        keep = [k for k, v in enumerate(node.results) if v in self.values]
        regions = [self.kept(r) for r in node.regions]
        operands = node.operands
        if node.op.kind is Kind.CUSTOM:  # all its values belong to its rule
            rule = tuple(regions)
            return Node(node.op, operands, node.attrs, node.results, rule, node.loc)
        if node.op.kind in LOOPS:
            carries = [k for k in keep if k < len(operands)]
            operands = tuple(operands[k] for k in carries)
            regions[0].params = tuple(regions[0].params[k] for k in carries)
        for r in regions:
            if r is regions[-1] or node.op.kind is not Kind.WHILE:
                r.results = tuple(r.results[k] for k in keep)
        results = tuple(node.results[k] for k in keep)
        return Node(node.op, operands, node.attrs, results, tuple(regions), node.loc)
