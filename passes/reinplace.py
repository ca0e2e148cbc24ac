"""Compute values in the buffers of operands that nobody reads any more.

Before: a pure Func, after fuse. After: the same, with marks `!%x`: the result is
computed in the buffer of %x. Marked are scatters (only their part is written), results
of elementwise nodes and fused groups that read %x at the very element they write, and
the carries of loops (one buffer from the initial value to the final one).

    %d: f64[n] = select_scatter %c, %p, i {axis=0}
    %d: f64[n] !%c = select_scatter %c, %p, i {axis=0}

A buffer may be overwritten where all of this is proven:
- it belongs to the block: a node of the block made it, or it is a carry of the loop;
- this node is the last that reads it, through any view;
- the node itself reads it only where it writes it. A scatter whose `new` is a view of
  its base elsewhere gets a copy of `new`: it is never larger than the base.

Note [updated parameters]
Memory of a parameter that the Func updates is the program's too, but the caller sees
it. It is overwritten only where no later node, nor the node itself, can find an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..ir.access import (
    Access,
    canonical,
    hazards,
    may_fail,
    part_type,
    place,
    reads_of,
    writes_of,
)
from ..ir.build import IRBuilder, names_in
from ..ir.dims import Facts, symbol
from ..ir.func import Block, Copier, Func, Node, Operand, Value, free_values, type_of
from ..ir.op import OPS, Kind
from ..ir.types import F64, Shape, Type
from ..ir.verify import loop_facts


def reinplace(f: Func) -> Func:
    """Return `f` with marks on values that are computed in place."""
    plan = _Plan(IRBuilder(tuple(names_in(f))))
    updated = {f.params[j] for _, j in f.updates}
    plan.block(f.body, f.size_facts(), visible=updated)
    body = _Marker(plan).block(f.body)
    return replace(f, body=body)


@dataclass(slots=True)
class _Plan:
    """What was decided: marks, and copies to be made before nodes."""

    names: IRBuilder
    marks: dict[Value, Value] = field(default_factory=dict)
    copies: dict[Node, Value] = field(default_factory=dict)  # of `new`, before it
    views: dict[Value, Node] = field(default_factory=dict)
    content: dict[Value, Value] = field(default_factory=dict)  # view -> what it shows

    def shown(self, v: Value) -> Value:
        return self.content.get(v, v)

    def block(
        self,
        b: Block,
        facts: Facts,
        *,
        own: Iterable[Value] = (),
        visible: Iterable[Value] = (),
    ) -> None:
        """Decide for a block; `own` are values from outside that it may overwrite."""
        for node in b.nodes:
            self.note_view(node)
        last = self.last_uses(b)
        owned = {v for v in own if v.type.shape}
        seen_by_caller = set(visible)
        safe = _safe_from(b, facts) if seen_by_caller else len(b.nodes)
        for k, node in enumerate(b.nodes):
            free = set(owned)
            if k >= safe:
                free |= seen_by_caller
            dead = {v for v in free if last.get(v, -1) <= k}
            taken = self.node(node, dead, facts)
            owned -= taken
            seen_by_caller -= taken
            self.regions(node, facts)
            if node.op.kind is not Kind.VIEW and (
                node.operands or node.op.lower is not None or node.regions
            ):
                owned.update(v for v in node.results if v.type.shape)

    def note_view(self, node: Node) -> None:
        if node.op.kind is Kind.VIEW and node.result.type.shape:
            base = node.operands[0]
            self.views[node.result] = node
            if isinstance(base, Value):
                self.content[node.result] = self.shown(base)

    def last_uses(self, b: Block) -> dict[Value, int]:
        """Return the last node that reads each value, through views too."""
        last: dict[Value, int] = {}
        for k, node in enumerate(b.nodes):
            for x in node.operands:
                if isinstance(x, Value):
                    last[self.shown(x)] = k
            for region in node.regions:
                for v in free_values(region):
                    last[self.shown(v)] = k
        for x in b.results:
            if isinstance(x, Value):
                last[self.shown(x)] = len(b.nodes)
        return last

    def regions(self, node: Node, facts: Facts) -> None:
        match node.op.kind:
            case Kind.FOR:
                (body,) = node.regions
                facts = facts.having(*loop_facts(node))
                self.block(body, facts, own=body.params)
            case Kind.WHILE:
                test, body = node.regions
                self.block(test, facts)
                self.block(body, facts, own=test.params)
            case Kind.COND:
                for region in node.regions:
                    self.block(region, facts)
            case _:
                pass

    def node(self, node: Node, dead: set[Value], facts: Facts) -> set[Value]:
        """Mark the results of one node; return the values whose buffers they take."""
        match node.op.kind:
            case Kind.FOR | Kind.WHILE:
                return self.carries(node, dead)
            case Kind.SCATTER | Kind.ELEMENTWISE:
                return self.group(node, (node,), node.results, dead, facts)
            case Kind.FUSED:
                (region,) = node.regions
                return self.group(node, region.nodes, region.results, dead, facts)
            case _:
                return set()

    def carries(self, node: Node, dead: set[Value]) -> set[Value]:
        taken: set[Value] = set()
        inside = {self.shown(v) for r in node.regions for v in free_values(r)}
        shown = [self.shown(x) for x in node.operands if isinstance(x, Value)]
        for x, v in zip(node.operands, node.results, strict=False):
            if not isinstance(x, Value) or x not in dead or x in inside:
                continue
            if shown.count(x) == 1 and x.type.array() == v.type.array():
                self.marks[v] = x
                taken.add(x)
        return taken

    def group(
        self,
        node: Node,
        inside: Sequence[Node],
        yielded: Sequence[Operand],
        dead: set[Value],
        facts: Facts,
    ) -> set[Value]:
        """Mark results of a nest; all of its reads are known before its writes."""
        makers = {v: n for n in inside for v in n.results}
        roots = [makers.get(x) if isinstance(x, Value) else None for x in yielded]
        nests = [r for r in roots if r is not None]
        if len(nests) != len(roots) or len({_space(r) for r in nests}) > 1:
            return set()
        reads = reads_of(inside, nests, self.views)
        bases = [r.operands[0] for r in nests if r.op.kind is Kind.SCATTER]
        taken: set[Value] = set()
        for v, root in zip(node.results, nests, strict=True):
            if not v.type.shape:
                continue
            if root.op.kind is Kind.SCATTER:
                x = root.operands[0]
                if isinstance(x, Value) and x in dead - taken and bases.count(x) == 1:
                    if self.scatter(node, root, x, reads, facts):
                        self.marks[v] = x
                        taken.add(x)
            elif root.op.kind is not Kind.REDUCTION:
                for x in _candidates(reads, v, dead - taken):
                    if x not in bases and _same_element(x, reads):
                        self.marks[v] = x
                        taken.add(x)
                        break
        return taken

    def scatter(
        self,
        node: Node,
        root: Node,
        x: Value,
        reads: Sequence[Access],
        facts: Facts,
    ) -> bool:
        of_base = [r for r in reads if r.value is x]
        if not hazards(writes_of(root), of_base, facts):
            return True
        new = root.operands[1]
        if node is not root or not isinstance(new, Value) or not new.type.shape:
            return False
        rest = reads_of((), (_without_new(root),), self.views)
        if hazards(writes_of(root), [r for r in rest if r.value is x], facts):
            return False
        self.copies[node] = new
        return True


def _safe_from(b: Block, facts: Facts) -> int:
    """Return the first position from which on nothing can fail."""
    safe = len(b.nodes)
    while safe and not may_fail(b.nodes[safe - 1], facts):
        safe -= 1
    return safe


def _space(root: Node) -> Shape:
    if root.op.kind is Kind.REDUCTION:
        return canonical(type_of(root.operands[0]).shape)
    if root.op.kind is Kind.SCATTER:
        return canonical(part_type(root).shape)
    return canonical(root.result.type.shape)


def _without_new(root: Node) -> Node:
    x, _, *rest = root.operands
    return replace(root, operands=(x, 0, *rest))


def _candidates(reads: Sequence[Access], v: Value, dead: set[Value]) -> Sequence[Value]:
    found = dict.fromkeys(r.value for r in reads)
    return [x for x in found if x in dead and x.type.array() == v.type.array()]


def _same_element(x: Value, reads: Sequence[Access]) -> bool:
    """Tell whether all reads of x are of the element at the point of the nest."""
    loops = [symbol(f"@{k}") for k in range(len(canonical(x.type.shape)))]
    here = place(x.type.shape, loops)
    return all(r.index == here for r in reads if r.value is x)


class _Marker(Copier):
    """Copies a Func with the marks of a plan."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self.plan = plan
        self.temporary = Value("", Type(F64))

    def block(self, b: Block) -> Block:
        params = tuple(self.define(p) for p in b.params)
        nodes: list[Node] = []
        for n in b.nodes:
            new = self.plan.copies.get(n)
            if new is not None:
                nodes.append(self.copy_of(new, n))
            nodes.append(self.node(n))
        return Block(params, tuple(nodes), tuple(self.operand(x) for x in b.results))

    def copy_of(self, new: Value, n: Node) -> Node:
        copied = Value(self.plan.names.name(new.name), new.type.array())
        source = self.operand(new)
        self.temporary = copied
        return Node(OPS["copy"], (source,), {}, (copied,), (), n.loc)

    def node(self, n: Node) -> Node:
        if n in self.plan.copies:
            x, _, *rest = n.operands
            operands = (x, self.temporary, *rest)
            n = Node(n.op, operands, n.attrs, n.results, n.regions, n.loc)
        return super().node(n)

    def define(self, v: Value) -> Value:
        new = super().define(v)
        reused: Operand | None = self.plan.marks.get(v)
        if isinstance(reused, Value):
            reused = self.values.get(reused, reused)
        new.reuses = reused if isinstance(reused, Value) else None
        return new
