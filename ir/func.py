"""Func, Node, Value, Block: what a program is made of.

A Func is never edited; passes build a new one. Values are compared by identity, Funcs
by their text without locations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from . import dims
from .dims import Dim, Expr, Facts, Symbol
from .errors import Location
from .op import Op
from .types import Type, type_of_literal


@dataclass(eq=False, slots=True)
class Value:
    """One SSA value.

    `base` marks a view in a traced Func (`&%base`): the value shares memory with it.
    `reuses` marks a value that is computed in the buffer of an operand (`!%base`);
    `reinplace` sets it and it changes no meaning.
    """

    name: str
    type: Type
    base: Value | None = None
    reuses: Value | None = None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


Operand: TypeAlias = Value | int | float | bool | complex | Expr
Attrs: TypeAlias = Mapping[str, Any]


@dataclass(eq=False, slots=True, repr=False)
class Block:
    """Parameters, nodes in order, and results: a function body or a region."""

    params: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    results: tuple[Operand, ...] = ()


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """One application of an op; a control node has regions."""

    op: Op
    operands: tuple[Operand, ...]
    attrs: Attrs = field(default_factory=dict)
    results: tuple[Value, ...] = ()
    regions: tuple[Block, ...] = ()
    loc: Location | None = None

    def __repr__(self) -> str:
        from .text import show_node

        return show_node(self)

    @property
    def result(self) -> Value:
        """The only result of a node that has one."""
        (value,) = self.results
        return value


@dataclass(eq=False, slots=True)
class Func:
    """A whole program: `stage` is "traced" (views and writes) or "func" (pure).

    `symbols` are integer parameters that are not sizes of arguments; `facts` are what
    may be assumed of symbols, checked once when the function is entered. `updates`
    pairs results with parameters: result i is the final value of parameter j, whose
    memory the caller wants it in. `verified` is set by the verifier: a Func need not be
    checked as a result of one pass and again as the operand of the next one.
    """

    name: str
    stage: str
    body: Block
    symbols: tuple[Symbol, ...] = ()
    facts: Facts = field(default_factory=Facts)
    updates: tuple[tuple[int, int], ...] = ()
    verified: bool = field(default=False, init=False)

    @property
    def params(self) -> tuple[Value, ...]:
        return self.body.params

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.body.nodes

    @property
    def results(self) -> tuple[Operand, ...]:
        return self.body.results

    def __eq__(self, other: object) -> bool:
        from .text import show

        return isinstance(other, Func) and show(self) == show(other)

    def __hash__(self) -> int:
        return hash((self.name, len(self.nodes)))

    def __str__(self) -> str:
        from .text import show

        return show(self)

    def size_facts(self) -> Facts:
        """Return the facts with "sizes are at least 0" added."""
        sizes = (d for p in self.params for d in p.type.shape)
        return self.facts.having(*(d for d in sizes if dims.as_symbol(d)))


def type_of(x: Operand) -> Type:
    """Return the type of an operand: a value, a literal or a dim."""
    return x.type if isinstance(x, Value) else type_of_literal(x)


def custom_parts(
    node: Node,
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Return what a custom node has a derivative in, and its values."""
    count = len(node.operands) - len(node.results)
    return node.operands[:count], node.operands[count:]


def walk(block: Block) -> Iterator[Node]:
    """Yield every node of a block and of the regions inside it, in order."""
    for node in block.nodes:
        yield node
        for region in node.regions:
            yield from walk(region)


def free_values(block: Block) -> tuple[Value, ...]:
    """Return the values a block uses and does not define, in order of first use."""
    defined: set[Value] = set()
    free: dict[Value, None] = {}

    def use(x: object) -> None:
        if isinstance(x, Value) and x not in defined:
            free.setdefault(x)

    def visit(b: Block) -> None:
        defined.update(b.params)
        for node in b.nodes:
            for x in node.operands:
                use(x)
            for region in node.regions:
                visit(region)
            defined.update(node.results)
        for x in b.results:
            use(x)

    visit(block)
    return tuple(free)


def dims_of_node(node: Node) -> Iterator[Dim]:
    """Yield every dim that a node mentions: in operands, attributes, result types."""
    for x in node.operands:
        if isinstance(x, Expr):
            yield x
    for a in node.attrs.values():
        yield from _dims_in(a)
    for v in node.results:
        yield from v.type.shape


def _dims_in(a: object) -> Iterator[Dim]:
    if isinstance(a, Expr):
        yield a
    elif isinstance(a, tuple):
        for x in a:
            yield from _dims_in(x)


def substitute(f: Func, values: Mapping[Symbol, Dim]) -> Func:
    """Replace symbols by dims everywhere in `f`."""
    if not values:
        return f
    return Copier(values).func(f)


class Copier:
    """Copies blocks, with values and symbols replaced on the way.

    `values` maps operands already known (parameters, say); subclasses override `node`
    to rewrite while copying.
    """

    def __init__(
        self,
        symbols: Mapping[Symbol, Dim] | None = None,
        values: Mapping[Value, Operand] | None = None,
    ) -> None:
        self.symbols = dict(symbols or {})
        self.values: dict[Value, Operand] = dict(values or {})

    def operand(self, x: Operand) -> Operand:
        if isinstance(x, Value):
            return self.values.get(x, x)
        return dims.substitute(x, self.symbols) if isinstance(x, Expr) else x

    def define(self, v: Value) -> Value:
        new = Value(v.name, v.type.substitute(self.symbols))
        for mark in ("base", "reuses"):
            old = getattr(v, mark)
            mapped = self.values.get(old, old) if old is not None else None
            setattr(new, mark, mapped if isinstance(mapped, Value) else None)
        self.values[v] = new
        return new

    def attr(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return dims.substitute(a, self.symbols)
        if isinstance(a, tuple):
            return tuple(self.attr(x) for x in a)
        return a

    def node(self, n: Node) -> Node:
        operands = tuple(self.operand(x) for x in n.operands)
        attrs = {k: self.attr(a) for k, a in n.attrs.items()}
        regions = tuple(self.block(r) for r in n.regions)
        results = tuple(self.define(v) for v in n.results)
        return Node(n.op, operands, attrs, results, regions, n.loc)

    def block(self, b: Block) -> Block:
        params = tuple(self.define(p) for p in b.params)
        nodes = tuple(self.node(n) for n in b.nodes)
        return Block(params, nodes, tuple(self.operand(x) for x in b.results))

    def func(self, f: Func) -> Func:
        body = self.block(f.body)
        known = (dims.substitute(e, self.symbols) for e in f.facts.known)
        facts = Facts(tuple(e for e in known if isinstance(e, Expr)))
        symbols = tuple(s for s in f.symbols if s not in self.symbols)
        return Func(f.name, f.stage, body, symbols, facts, f.updates)
