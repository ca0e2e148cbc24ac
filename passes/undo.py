"""Undo the writes of a loop: its reverse restores a private copy of the buffer.

Before every write the forward loop logs what is overwritten; the log is a tape like any
other. The reversed loop carries the buffer, from its final value backwards, and puts
the old contents back write by write, so that it has every state again when the rules
read it. Nothing that the forward loop left is changed by that: the carry is a value.

    %c2 = slice_scatter %c, %t, i        %old = slice %c, i  -> tape
                                         %u = slice_scatter %u2, %old, i     # is %c
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import dims
from ..ir.access import view_of
from ..ir.dims import Dim, Symbol
from ..ir.func import Block, Node, Operand, Value, free_values
from ..ir.op import OPS, Kind, Op
from .boxes import Box
from .contents import Chain, Contents, Write, written
from .ranges import at_least_zero
from .scope import ScopedBuilder, defined_symbol, mentioned

View = tuple[Op, tuple[Operand, ...], Mapping[str, object]]  # with indices, attributes


@dataclass(slots=True)
class Undo:
    """How the states of one carry come back in the reversed loop."""

    carry: int
    param: Value  # of the reversed loop: the buffer after the iteration
    before: Value  # the buffer before the iteration
    logged: list[Node] = field(default_factory=list)  # of the forward loop
    saved: list[Value] = field(default_factory=list)  # what must be on a tape
    nodes: list[Node] = field(default_factory=list)  # of the reversed loop
    states: dict[Value, Operand] = field(default_factory=dict)
    order: dict[Node, int] = field(default_factory=dict)  # last write first


def undo(b: ScopedBuilder, contents: Contents, carry: int) -> Undo | None:
    """Plan to undo the writes into a carry, if all of them can be."""
    p = contents.body.params[carry]
    param = b.value(p.type, f"{p.name}_undone")
    plan = Undo(carry, param, param)
    for write in contents.paths[carry]:
        if not _undo_write(b, contents, plan, write):
            return None
        plan.states[write.before] = plan.before
    return plan


def _undo_write(b: ScopedBuilder, contents: Contents, plan: Undo, write: Write) -> bool:
    plan.states[write.after] = plan.before
    for views in _parts(b, contents, write):
        if views is None:
            return False
        with b.block() as logged:
            old = _descend(b, write.before, views)[-1]
        with b.block() as nodes:
            steps = _descend(b, plan.before, views[:-1])
            new: Operand = old
            for base, (op, where, attrs) in zip(
                reversed(steps), reversed(views), strict=True
            ):
                assert op.scatter is not None
                twin = OPS[op.scatter]
                new = b.apply(twin, (base, new, *where), attrs, hint=plan.param.name)
        assert isinstance(new, Value)
        plan.before = new
        plan.logged += logged
        plan.nodes += nodes
        plan.order.update(dict.fromkeys(nodes, -write.position))
        plan.saved.append(old)
        indices = (x for _, where, _ in views for x in where)
        plan.saved += (x for x in indices if isinstance(x, Value))
    return True


def _descend(b: ScopedBuilder, x: Value, views: Sequence[View]) -> list[Value]:
    """Take views one after the other; returns all, `x` first."""
    found = [x]
    for op, where, attrs in views:
        found.append(b.apply(op, (found[-1], *where), attrs, hint="old"))
    return found


def _parts(
    b: ScopedBuilder, contents: Contents, write: Write
) -> Iterable[tuple[View, ...] | None]:
    """Yield views of the parts that a write changes; None for one without a view."""
    if write.node.op.kind is Kind.SCATTER:
        return map(_views_of, written(write.node, contents.makers))
    boxes = dict.fromkeys(write.boxes)
    return (_slices(b, contents, write.before, box) for box in boxes)


def _views_of(chain: Chain) -> tuple[View, ...] | None:
    if any(view_of(n).kind is Kind.MASK for n in chain):
        return None
    return tuple((view_of(n), n.operands[2:], n.attrs) for n in chain)


def _slices(
    b: ScopedBuilder, contents: Contents, state: Value, box: Box
) -> tuple[View, ...] | None:
    """Return slices that take a box out; an axis not proven in range is whole."""
    found: list[View] = []
    for axis, ((low, high), size) in enumerate(zip(box, state.type.shape, strict=True)):
        last = dims.add(size, -1)
        inside = contents.facts.proves(low)
        inside &= contents.facts.proves(dims.add(last, dims.mul(high, -1)))
        if not inside or (low, high) == (0, last):
            continue
        count: Dim = dims.add(dims.add(high, dims.mul(low, -1)), 1)
        with b.assuming(*contents.facts.known):
            count = at_least_zero(b, count)
        found.append((OPS["slice"], (low,), {"axis": axis, "size": count, "step": 1}))
    return tuple(found) or None


def scheduled(nodes: Sequence[Node], own: Mapping[Node, int]) -> list[Node]:
    """Order nodes so that a state is read before the next write is undone.

    Then a buffer can be restored in place. `own` gives the nodes that undo a write
    their place among each other.
    """
    if not own:
        return list(nodes)
    makers: dict[Value | Symbol, Node] = {v: n for n in nodes for v in n.results}
    for n in nodes:
        s = defined_symbol(n)
        if s is not None:
            makers.setdefault(s, n)
    needs = {
        n: [makers[x] for x in _used(n) if x in makers and makers[x] is not n]
        for n in nodes
    }
    first = min(own.values()) - 1
    level: dict[Node, int] = {}
    out: dict[Node, None] = {}

    def enter(node: Node) -> int:
        if node not in level:
            level[node] = max((own.get(node, first), *map(enter, needs[node])))
        return level[node]

    def emit(node: Node) -> None:
        if node not in out:
            for n in needs[node]:
                emit(n)
            out[node] = None

    for node in sorted(nodes, key=enter):
        emit(node)
    return list(out)


def _used(node: Node) -> list[Value | Symbol]:
    return [*free_values(Block((), (node,))), *mentioned((node,))]
