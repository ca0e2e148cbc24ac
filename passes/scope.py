"""What the passes share: a builder that knows the facts of the scope it builds in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..ir import dims
from ..ir.build import IRBuilder
from ..ir.dims import Dim, Expr, Strict, Symbol
from ..ir.func import (
    Block,
    Copier,
    Func,
    Node,
    Operand,
    Value,
    dims_of_node,
    free_values,
    walk,
)
from ..ir.op import Kind
from ..ir.verify import loop_facts


class ScopedBuilder(IRBuilder):
    """An IRBuilder whose questions about dims are answered from the facts in scope."""

    def __init__(self, f: Func, taken: Iterable[str] = ()) -> None:
        super().__init__(list(taken))
        self.facts = f.size_facts()
        self.uses: Counter[Value] = Counter()  # of values, where a pass counts them

    def used_once(self, v: Value) -> bool:
        """Tell whether one node at most uses a value, as far as it is known."""
        return self.uses[v] <= 1

    @contextmanager
    def assuming(self, *facts: Dim) -> Iterator[None]:
        """Add facts inside a block of code."""
        saved = self.facts
        self.facts = saved.having(*facts)
        try:
            with dims.deciding(Strict(self.facts)):
                yield
        finally:
            self.facts = saved

    @contextmanager
    def region(self, node: Node) -> Iterator[list[Node]]:
        """Collect the nodes of a region of `node`, under what holds inside it."""
        facts = loop_facts(node) if node.op.kind is Kind.FOR else ()
        with self.block() as nodes, self.assuming(*facts):
            yield nodes

    def learn(self, node: Node) -> None:
        """Take in what a node says about the symbol that it defines."""
        s = defined_symbol(node)
        if s is not None and node.op.kind is not Kind.SIZE:
            self.facts = self.facts.having(node.attrs["count"])


def defined_symbol(node: Node) -> Symbol | None:
    """Return the symbol that a node defines by its attribute `count`."""
    count = node.attrs.get("count")
    return dims.as_symbol(count) if isinstance(count, Expr) else None


def definers(f: Func) -> set[Node]:
    """Return the nodes that define a symbol.

    A node whose `count` is known already where it stands checks it instead.
    """
    found: set[Node] = set()

    def visit(block: Block, known: set[Symbol]) -> set[Symbol]:
        known = set(known)
        for node in block.nodes:
            s = defined_symbol(node)
            if s is not None and s not in known:
                known.add(s)
                found.add(node)
            inner = known
            for region in node.regions:
                after = visit(region, inner)
                inner = after if node.op.kind is Kind.WHILE else known
        return known

    sizes = (d for p in f.params for d in p.type.shape)
    visit(f.body, {*f.symbols, *(s for d in sizes for s in dims.symbols_of(d))})
    return found


def symbols_in(f: Func) -> set[str]:
    """Return the names of all symbols of a Func, those of regions included."""
    found = {s.name for s in f.symbols}
    for p in f.params:
        for d in p.type.shape:
            found.update(s.name for s in dims.symbols_of(d))
    for node in walk(f.body):
        s = defined_symbol(node)
        if s is not None:
            found.add(s.name)
        if node.op.kind is Kind.FOR:
            found.add(str(node.attrs["index"]))
    return found


def fresh_symbol(hint: str, taken: set[str]) -> Expr:
    """Make a symbol that is not taken yet; it is from then on."""
    name, k = hint, 0
    while name in taken:
        k += 1
        name = f"{hint}{k}"
    taken.add(name)
    return dims.symbol(name)


class Renamer(Copier):
    """Copies nodes under fresh names, so that both copies may stand in one Func."""

    def __init__(self, b: IRBuilder, values: Mapping[Value, Operand]) -> None:
        super().__init__({}, values)
        self.b = b

    def define(self, v: Value) -> Value:
        new = super().define(v)
        new.name = self.b.name(v.name)
        return new


def with_operands(node: Node, values: Mapping[Value, Operand]) -> Node:
    """Return the node with operands replaced, here and in its regions.

    What the node defines stays the same values.
    """

    def get(x: Operand) -> Operand:
        return values.get(x, x) if isinstance(x, Value) else x

    regions = tuple(
        Block(
            r.params,
            tuple(with_operands(n, values) for n in r.nodes),
            tuple(map(get, r.results)),
        )
        for r in node.regions
    )
    operands = tuple(map(get, node.operands))
    return Node(node.op, operands, node.attrs, node.results, regions, node.loc)


def operands_within(node: Node) -> Iterator[Operand]:
    """Yield the operands of a node and of all nodes and yields in its regions."""
    yield from node.operands
    for region in node.regions:
        for inner in region.nodes:
            yield from operands_within(inner)
        yield from region.results


def count_uses(block: Block, uses: Counter[Value]) -> None:
    """Count how often values are used by nodes whose results are used."""
    uses.update(x for x in block.results if isinstance(x, Value))
    for node in reversed(block.nodes):
        if node.regions or any(uses[v] for v in node.results):
            for region in node.regions:
                count_uses(region, uses)
            uses.update(x for x in node.operands if isinstance(x, Value))


def mentioned(nodes: Iterable[Node]) -> list[Symbol]:
    """Return the symbols that nodes mention, in their regions too."""
    found: dict[Symbol, None] = {}
    for node in nodes:
        for inner in (node, *(n for r in node.regions for n in walk(r))):
            every: list[object] = [*dims_of_node(inner)]
            for region in inner.regions:
                every += (x for x in region.results if not isinstance(x, Value))
                every += (d for p in region.params for d in p.type.shape)
            for d in every:
                if isinstance(d, Expr):
                    found.update(dict.fromkeys(sorted(dims.symbols_of(d), key=str)))
    return list(found)


def pairs(a: Sequence[Value], b: Sequence[Operand]) -> Iterator[tuple[Value, Operand]]:
    """Zip values with operands; the lengths must agree."""
    return zip(a, b, strict=True)


def views_first(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a block with every view right after what it is taken from.

    Views cost nothing. So later reads are seen to be of what was there before a write.
    They stay behind checks that they stood behind: an index may rely on one.
    """
    made: dict[Value | Symbol, int] = {}
    checked = -1
    for k, node in enumerate(nodes):
        made.update(dict.fromkeys(node.results, k))
        s = defined_symbol(node)
        if s is not None:
            made.setdefault(s, k)
    places = list(range(len(nodes)))
    for k, node in enumerate(nodes):
        if node.op.kind is Kind.CHECK:
            checked = k
        if node.op.kind is Kind.VIEW:
            used: set[Value | Symbol] = set()
            used.update(x for x in node.operands if isinstance(x, Value) and x in made)
            for d in dims_of_node(node):
                used |= dims.symbols_of(d) & made.keys()
            places[k] = max(checked, *(places[made[x]] for x in used), -1)
    order = sorted(range(len(nodes)), key=lambda k: (places[k], k))
    return [nodes[k] for k in order]


def views_last(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a block with every view right before its first use."""
    maker = {v: k for k, n in enumerate(nodes) for v in n.results}
    places = [len(nodes) if n.op.kind is Kind.VIEW else k for k, n in enumerate(nodes)]
    for k in reversed(range(len(nodes))):
        for v in values_of(nodes[k]):
            j = maker.get(v)
            if j is not None and nodes[j].op.kind is Kind.VIEW:
                places[j] = min(places[j], places[k])
    is_view = [n.op.kind is Kind.VIEW for n in nodes]
    order = sorted(range(len(nodes)), key=lambda k: (places[k], not is_view[k], k))
    return [nodes[k] for k in order]


def values_of(node: Node) -> Iterator[Value]:
    """Yield the values that a node uses, in its regions too."""
    yield from (x for x in node.operands if isinstance(x, Value))
    for region in node.regions:
        yield from free_values(region)
