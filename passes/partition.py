"""Cut a joint Func in two: the forward part, and the pullback.

The forward part returns its results and the residuals: what the pullback reads of it.
Each value that is read is saved, or computed again in the pullback where that is cheap
or where the forward part does not need it itself. Nodes that depend on cotangents are
in the pullback only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import UnsupportedError
from ..ir.func import Block, Func, Node, Operand, Value, free_values, type_of
from ..ir.op import OPS, Kind
from ..ir.types import I64, Type
from .costs import FREE, TAPE_COST, elements
from .dce import dce
from .scope import (
    ScopedBuilder,
    defined_symbol,
    definers,
    mentioned,
    with_operands,
)
from .sources import Needed, Sources
from .vjp import Reversed, Step

CHEAP = 2  # the cost of an elementwise op up to which it is computed again


def partition(
    joint: Func, n_results: int, n_cotangents: int | None = None
) -> tuple[Func, Func]:
    """Return the forward Func and the backward Func of a joint Func.

    The first `n_results` results are the forward results, the last `n_cotangents`
    parameters are cotangents (by default one per float result, as `vjp` adds them).
    Forward: parameters -> results, residuals. Backward: residuals, cotangents -> the
    other results. A residual may be a parameter of the forward Func or one of its
    results: a caller who may change those must copy them.

    >>> from ..ir.text import parse
    >>> from .vjp import vjp
    >>> f = parse('''func @f(%x: f64[n]) -> f64[n] {
    ...   %y: f64[n] = exp %x
    ...   return %y
    ... }''')
    >>> forward, backward = partition(vjp(f, [0]), 1)
    >>> print(backward)
    func @f.backward(%y: f64[n], %ct: f64[n]) -> f64[n] {
      %dx: f64[n] = multiply %ct, %y
      return %dx
    }
    """
    results = joint.results[:n_results]
    if n_cotangents is None:
        n_cotangents = sum(type_of(x).is_inexact for x in results)
    cut = len(joint.params) - n_cotangents
    params, cotangents = joint.params[:cut], joint.params[cut:]
    forward, backward = split(joint.nodes, cotangents)
    b = ScopedBuilder(joint, names_in(joint))
    needed = _reachable(forward, results)
    sources = _Residuals(
        b, Block(params, tuple(forward)), forward, needed, definers(joint)
    )
    sources.want(Reversed([], cotangents, backward, [*joint.results[n_results:]]))
    name = joint.name.removesuffix(".joint")
    saved = tuple(sources.taped)
    counts = _counts(sources, (*saved, *cotangents))
    first = Block(params, tuple(forward), (*results, *saved, *counts))
    made, values = _defined_again(b, counts)
    back_nodes = [*made, *sources.again(), *backward]
    inputs = (*saved, *values, *cotangents)
    second = Block(inputs, tuple(back_nodes), joint.results[n_results:])
    return (
        dce(Func(f"{name}.forward", "func", first, joint.symbols, joint.facts)),
        _renamed(_closed(f"{name}.backward", second, joint)),
    )


def split(
    nodes: Sequence[Node], cotangents: Sequence[Value]
) -> tuple[list[Node], list[Node]]:
    """Tell the nodes that depend on cotangents from the others."""
    reached = set(cotangents)
    forward: list[Node] = []
    backward: list[Node] = []
    for node in nodes:
        if any(v in reached for v in free_values(Block((), (node,)))):
            reached.update(node.results)
            backward.append(node)
        else:
            forward.append(node)
    return forward, backward


def _reachable(nodes: Sequence[Node], results: Iterable[Operand]) -> set[Node]:
    """Return the nodes that results depend on."""
    live = {x for x in results if isinstance(x, Value)}
    found: set[Node] = set()
    for node in reversed(nodes):
        if any(v in live for v in node.results):
            found.add(node)
            live.update(free_values(Block((), (node,))))
    return found


class _Residuals(Sources):
    """Saves whole values; what only the pullback needs may be computed there."""

    def __init__(
        self,
        b: ScopedBuilder,
        block: Block,
        nodes: Sequence[Node],
        needed: set[Node],
        known: set[Node],
    ) -> None:
        self.needed = needed
        self.symbols: dict[Symbol, None] = {}
        super().__init__(b, block, [Step(n) for n in nodes], None, known)

    def repeating(self, nodes: Sequence[Node]) -> float:
        """Return the cost of computing nodes in the pullback, or inf."""
        if not any(n in self.needed for n in nodes):
            return 0.0
        cheap = all(
            n.op.kind in FREE or (n.op.kind is Kind.ELEMENTWISE and n.op.cost <= CHEAP)
            for n in nodes
        )
        return 0.0 if cheap else math.inf

    def saving(self, v: Value) -> float:
        return TAPE_COST * elements(v.type)

    def is_local(self, x: Needed) -> bool:
        """Tell whether something must be saved or made; symbols are handed over."""
        return isinstance(x, Value) and super().is_local(x)

    def want(self, back: Reversed) -> None:
        """Choose sources, and note the symbols that are needed."""
        super().want(back)
        needs: list[Needed] = [*mentioned(back.nodes)]
        for x in (*needs, *(x for made in self.wanted for x in made.inputs)):
            if isinstance(x, Symbol) and x in self.counts:
                self.symbols.setdefault(x)


def _counts(sources: _Residuals, inputs: Sequence[Value]) -> list[Expr]:
    """Return the symbols defined in the forward part that must be handed over."""
    made_again = {s for n in sources.again() for s in _defines(n)}
    bound = {dims.as_symbol(d) for v in inputs for d in v.type.shape} | made_again
    left = [s for s in sources.symbols if s not in bound]
    mixed = {s for v in inputs for d in v.type.shape for s in dims.symbols_of(d)}
    for s in left:
        if s in mixed:
            raise UnsupportedError(
                f"partition: the size {s}, which the data decides, is read by the "
                "pullback, but no saved value has it as a size",
                hint="use value_and_grad, which needs no pullback",
            )
    return [dims.symbol(s.name) for s in left]


def _defines(node: Node) -> set[Symbol]:
    s = defined_symbol(node)
    return set() if s is None else {s}


def _defined_again(
    b: ScopedBuilder, counts: Sequence[Expr]
) -> tuple[list[Node], list[Value]]:
    """Make parameters for sizes, and the nodes that define their symbols."""
    params = []
    with b.block() as nodes:
        for s in counts:
            p = b.value(Type(I64, scalar=True), f"size_{s}")
            b.apply(OPS["size"], (p,), {"count": s})
            params.append(p)
    return nodes, params


def _closed(name: str, block: Block, joint: Func) -> Func:
    """Make a Func of a block: what it cannot solve for becomes integer parameters."""
    free = mentioned(block.nodes)
    shapes: list[Dim] = [d for p in block.params for d in p.type.shape]
    bound = {s for d in shapes if (s := dims.as_symbol(d)) is not None}
    defined = {s for n in block.nodes for s in _defines(n)}
    inner = _indices(block)
    every = [*free, *(s for d in shapes for s in sorted(dims.symbols_of(d), key=str))]
    symbols = dict.fromkeys(s for s in every if s not in bound | defined | inner)
    known = bound | set(symbols)
    facts = [e for e in joint.facts.known if dims.symbols_of(e) <= known]
    return dce(Func(name, "func", block, tuple(symbols), Facts(tuple(facts))))


def _indices(block: Block) -> set[Symbol]:
    """Return the symbols that loops and regions define."""
    found: set[Symbol] = set()
    for node in block.nodes:
        if node.op.kind is Kind.FOR:
            s = dims.as_symbol(node.attrs["index"])
            assert s is not None
            found.add(s)
        for region in node.regions:
            found |= _indices(region)
            for n in region.nodes:
                found |= _defines(n)
    return found


def _renamed(f: Func) -> Func:
    """Give the parameters values of their own: two Funcs share none."""
    params = tuple(Value(p.name, p.type) for p in f.params)
    values = dict(zip(f.params, params, strict=True))
    nodes = tuple(with_operands(n, values) for n in f.nodes)
    results = tuple(values.get(x, x) if isinstance(x, Value) else x for x in f.results)
    return Func(f.name, f.stage, Block(params, nodes, results), f.symbols, f.facts)
