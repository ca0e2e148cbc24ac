"""Rewrite a pure Func by the table of rules in `rules.py`, in one pass over it.

Each node is rewritten until no rule applies; what a rule builds goes through the rules
too. Besides, a cond on a known condition becomes its branch, a carry that never changes
its initial value, a loop without iterations its initial values, and a checkpoint
without nodes what it yields.

    %y: f64[n] = power %x, 2.0           %y: f64[n] = square %x
    %z: f64[n] = multiply %y, 1.0        return %y
    return %z
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Strict
from ..ir.errors import RetrogradeError
from ..ir.func import Block, Func, Node, Operand, Value, custom_parts, type_of
from ..ir.op import Kind, Op
from .rules import GENERAL, RULES, General, Rule, matched
from .scope import ScopedBuilder, count_uses, defined_symbol

LOOPS = (Kind.FOR, Kind.WHILE)


def simplify(f: Func) -> Func:
    """Return `f` rewritten; a traced Func is returned as it is.

    >>> from ..ir.text import parse
    >>> print(simplify(parse('''func @f(%x: f64[n]) -> f64[n] {
    ...   %y: f64[n] = power %x, 2.0
    ...   %z: f64[n] = multiply %y, 1.0
    ...   return %z
    ... }''')))
    func @f(%x: f64[n]) -> f64[n] {
      %y: f64[n] = square %x
      return %y
    }
    """
    return f if f.stage == "traced" else Rewriter(f, RULES, GENERAL).func(f)


class Rewriter(ScopedBuilder):
    """A builder that applies rules to whatever is built through it.

    `rules` go by the op of a node and by pattern, `general` are tried on all nodes.
    """

    def __init__(
        self, f: Func, rules: Mapping[Op, Sequence[Rule]], general: Sequence[General]
    ) -> None:
        super().__init__(f, names_in(f))
        self.rules, self.general = rules, general
        self.values: dict[Value, Operand] = {}
        self.definitions: dict[Value, Node] = {}
        count_uses(f.body, self.uses)

    def func(self, f: Func) -> Func:
        with dims.deciding(Strict(self.facts)):
            for n in f.nodes:
                self.node(n)
            results = tuple(map(self.operand, f.results))
        block = self.finish(f.params, results)
        return Func(f.name, f.stage, block, f.symbols, f.facts, f.updates)

    def operand(self, x: Operand) -> Operand:
        while isinstance(x, Value) and x in self.values:
            x = self.values[x]
        return x

    def definition(self, x: Operand) -> Node | None:
        return self.definitions.get(x) if isinstance(x, Value) else None

    def apply(
        self,
        op: Op,
        operands: Sequence[Any],
        attrs: Mapping[str, Any],
        *,
        hint: str | Sequence[str] = "t",
        base: Value | None = None,
    ) -> Any:
        """Build one op, or what the rules make of it."""
        t = self.infer(op, operands, attrs)
        assert isinstance(hint, str)
        result = Value(hint, t)  # named only if it is kept
        node = Node(op, tuple(operands), dict(attrs), (result,), (), self.loc)
        simpler = self.rewritten(node)
        if simpler is not None:
            return simpler
        result.name = self.name(hint)
        self.append(node)
        self.uses.update(x for x in operands if isinstance(x, Value))
        return result

    def append(self, node: Node) -> None:
        super().append(node)
        self.learn(node)
        for v in node.results:
            self.definitions[v] = node

    # Nodes ------------------------------------------------------------------------

    def node(self, n: Node) -> None:
        """Add a node of the Func, or what replaces it."""
        self.loc = n.loc
        operands = tuple(map(self.operand, n.operands))
        if n.regions:
            self.control_node(n, operands)
            return
        node = Node(n.op, operands, n.attrs, n.results, (), n.loc)
        made = len(self.nodes)
        simpler = self.rewritten(node) if len(n.results) == 1 else None
        if simpler is None:
            self.append(node)
            return
        self.values[n.result] = simpler
        if self.uses[n.result]:
            self.uses.subtract(x for x in operands if isinstance(x, Value))
        if isinstance(simpler, Value):
            self.uses[simpler] += self.uses[n.result]
        fresh = made < len(self.nodes) and self.nodes[-1].results == (simpler,)
        if fresh and isinstance(simpler, Value):
            simpler.name = n.result.name

    def rewritten(self, node: Node) -> Operand | None:
        """Return what the first rule that applies makes of a node."""
        if defined_symbol(node) is not None:
            return None
        for rule in self.rules.get(node.op, ()):
            m = matched(rule.pattern, node, self.definition)
            if m is not None:
                new = self.attempt(node, rule.replacement, self, m)
                if new is not None:
                    return new
        for general in self.general:
            new = self.attempt(node, general, self, node, self.definition)
            if new is not None:
                return new
        return None

    def attempt(self, node: Node, rule: Any, *args: Any) -> Operand | None:
        """Return what a rule gives, if it has the type of the node's result."""
        made = len(self.nodes)
        try:
            new = rule(*args)
        except RetrogradeError:  # a question about dims that the facts leave open
            new = None
        if new is None or new is node.result or type_of(new) != node.result.type:
            for undone in self.nodes[made:]:
                self.uses.subtract(x for x in undone.operands if isinstance(x, Value))
            del self.nodes[made:]
            return None
        result: Operand = new
        return result

    # Regions ----------------------------------------------------------------------

    def control_node(self, n: Node, operands: tuple[Operand, ...]) -> None:
        match n.op.kind:
            case Kind.COND if isinstance(operands[0], bool):
                taken = n.regions[0 if operands[0] else 1]
                for inner in taken.nodes:
                    self.node(inner)
                given: Sequence[Operand] = tuple(map(self.operand, taken.results))
            case Kind.CHECKPOINT if not n.regions[0].nodes:
                given = tuple(map(self.operand, n.regions[0].results))
            case Kind.CUSTOM:  # whoever wanted the derivative has taken it
                given = custom_parts(n)[1]
                given = tuple(map(self.operand, given))
            case Kind.FOR if _is_empty(n):
                given = operands
            case Kind.FOR | Kind.WHILE:
                self.loop(n, operands)
                return
            case _:
                regions = tuple(self.region_of(n, r) for r in n.regions)
                new = Node(n.op, operands, n.attrs, n.results, regions, n.loc)
                self.append(new)
                return
        self.values.update(zip(n.results, given, strict=True))

    def loop(self, n: Node, operands: tuple[Operand, ...]) -> None:
        """Rewrite a loop; carries that never change become their initial values."""
        first, last = n.regions[0], n.regions[-1]
        keep = []
        count = len(first.params)
        for k, (p, y) in enumerate(zip(first.params, last.results, strict=False)):
            if y is p and type_of(operands[k]) == p.type:
                self.values[p] = self.values[n.results[k]] = operands[k]
            else:
                keep.append(k)
        inits = tuple(operands[k] for k in keep)
        params = tuple(first.params[k] for k in keep)
        blocks = []
        with self.region(n) as nodes:
            for inner in first.nodes:
                self.node(inner)
            if n.op.kind is Kind.WHILE:
                test = tuple(map(self.operand, first.results))
                blocks.append(Block(params, tuple(nodes), test))
                nodes.clear()
                params = ()
                for inner in last.nodes:
                    self.node(inner)
            keep += range(count, len(last.results))  # values that are stacked
            yields = tuple(self.operand(last.results[k]) for k in keep)
            blocks.append(Block(params, tuple(nodes), yields))
        results = tuple(n.results[k] for k in keep)
        self.append(Node(n.op, inits, n.attrs, results, tuple(blocks), n.loc))

    def region_of(self, n: Node, source: Block) -> Block:
        with self.region(n) as nodes:
            for inner in source.nodes:
                self.node(inner)
            results = tuple(map(self.operand, source.results))
        return Block(source.params, tuple(nodes), results)


def _is_empty(n: Node) -> bool:
    a = n.attrs
    bounds = (a["start"], a["stop"], a["step"])
    if not all(isinstance(d, int) for d in bounds):
        return False
    return len(range(*bounds)) == 0
