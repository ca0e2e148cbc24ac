"""Which values depend on others smoothly: the edges that derivatives travel along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ir.access import view_of
from ..ir.func import Block, Node, Operand, Value, custom_parts
from ..ir.op import Kind, Zero

LOOPS = (Kind.FOR, Kind.WHILE)


def differentiable(x: Operand) -> bool:
    """Tell whether an operand is a value that can have a cotangent."""
    return isinstance(x, Value) and x.type.is_inexact


def declares_derivative(node: Node) -> bool:
    """Tell whether the derivative of a node is not the one that its values have."""
    kind = node.op.kind
    if kind in (Kind.VIEW, Kind.SCATTER):
        return isinstance(view_of(node).derivative(0), Zero)
    return kind is Kind.CUSTOM


def active_operands(node: Node) -> Iterator[Value]:
    """Yield the operands of a node without branches that it has a derivative in."""
    if node.op.kind is Kind.CUSTOM:
        yield from (x for x in custom_parts(node)[0] if isinstance(x, Value))
        return
    for k, x in enumerate(node.operands):
        if isinstance(x, Value) and x.type.is_inexact:
            if not isinstance(node.op.derivative(k), Zero):
                yield x


def forward(nodes: Iterable[Node], active: set[Value]) -> None:
    """Add to `active` every value that depends on it."""
    for node in nodes:
        match node.op.kind:
            case Kind.FOR | Kind.WHILE:
                _forward_loop(node, active)
            case Kind.COND | Kind.CHECKPOINT | Kind.FUSED:
                for region in node.regions:
                    forward(region.nodes, active)
                    _mark(node.results, region.results, active)
            case _:
                if any(x in active for x in active_operands(node)):
                    active.update(v for v in node.results if v.type.is_inexact)


def _mark(targets: Iterable[Value], xs: Iterable[Operand], active: set[Value]) -> bool:
    new = [
        t
        for t, x in zip(targets, xs, strict=True)
        if isinstance(x, Value) and x in active and t.type.is_inexact
    ]
    grown = any(t not in active for t in new)
    active.update(new)
    return grown


def _forward_loop(node: Node, active: set[Value]) -> None:
    params = node.regions[0].params
    count = len(params)
    _mark(params, node.operands, active)
    _mark(node.results[:count], node.operands, active)
    while True:
        for region in node.regions:
            forward(region.nodes, active)
        _mark(node.results, node.regions[-1].results, active)
        if not _mark(params, node.regions[-1].results[:count], active):
            return


def backward(nodes: Iterable[Node], useful: set[Value]) -> None:
    """Add to `useful` every value that something in it depends on."""
    for node in reversed(list(nodes)):
        if not any(v in useful for v in node.results):
            continue
        match node.op.kind:
            case Kind.FOR | Kind.WHILE:
                loop_backward(node, useful)
            case Kind.COND | Kind.CHECKPOINT | Kind.FUSED:
                for region in node.regions:
                    _mark_back(node.results, region.results, useful)
                    backward(region.nodes, useful)
            case _:
                useful.update(active_operands(node))


def _mark_back(
    targets: Iterable[Value], xs: Iterable[Operand], useful: set[Value]
) -> None:
    for t, x in zip(targets, xs, strict=True):
        if t in useful and isinstance(x, Value) and x.type.is_inexact:
            useful.add(x)


def loop_backward(node: Node, useful: set[Value]) -> None:
    """Do `backward` for a loop: its carries, and what its regions capture."""
    params, last = node.regions[0].params, node.regions[-1].results
    count = len(params)
    _mark_back(node.results, last, useful)
    _mark_back(node.results[:count], node.operands, useful)
    _mark_back(node.results[:count], params, useful)
    while True:
        before = len(useful)
        for region in reversed(node.regions):
            backward(region.nodes, useful)
        _mark_back(params, last[:count], useful)
        if len(useful) == before:
            break
    _mark_back(params, node.operands, useful)


def defined_in(block: Block) -> set[Value]:
    """Return what a block defines itself: parameters and results of its nodes."""
    return {*block.params, *(v for n in block.nodes for v in n.results)}
