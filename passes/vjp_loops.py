"""The reverse of loops: a `for` over the reversed range.

Its carries are the cotangents of the carries and one accumulator per outside value that
the body reads. What the body's rules read comes from `tape.Sources`; a linear body
reads nothing and saves nothing. A `while` first runs to count its iterations, then runs
again as a `for` of that many, which is reversed.

    %r = for i in 0..n carry(%p = %a) { ... yield %q }
    %da, %dw = for i in n - 1..-1 step -1 carry(%dq = %dr, %dw = 0) { ... }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir.dims import Dim
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS
from ..ir.types import I64, Type
from . import activity
from .contents import Contents
from .cse import key_of
from .ranges import Range
from .reroot import Reroot
from .scope import Renamer, with_operands
from .tape import Sources, load, store
from .undo import Undo, scheduled, undo
from .vjp import Cotangents, Reversed, Reverser, Step, cotangent_type, replaced


def reverse_for(
    r: Reverser, node: Node, given: Sequence[Operand | None], ct: Cotangents
) -> Step:
    """Append the reversed loop; returns the forward loop with the tapes it needs."""
    (body,) = node.regions
    useful = {v for v, d in zip(node.results, given, strict=True) if d is not None}
    activity.loop_backward(node, useful)
    carried = [k for k, p in enumerate(body.params) if p in useful and p in r.active]
    outs = r.captured(node, useful)
    if not carried and not outs:
        return Step(node)
    loop = _Loop(r, node)
    inits = [_or_zeros(r, given[k], node.results[k]) for k in carried]
    inits += [_or_zeros(r, ct.get(v), v) for v in outs]
    with loop.entered():
        loop.reverse(carried, outs)
        plan = loop.plan()
    step = loop.with_tapes(plan)
    block = loop.prepared(plan, step)
    inits += [node.results[u.carry] for u in plan.undone]
    types = [p.type for p in block.params]
    hints = [f"d{v.name}" for v in (*(body.params[k] for k in carried), *outs)]
    hints += [u.param.name for u in plan.undone]
    new = r.b.control(node.op, inits, loop.head.attrs, [block], types, hints)
    ct.update(zip(outs, new[len(carried) :], strict=False))
    for k, d in zip(carried, new, strict=False):
        r.accumulate(ct, node.operands[k], d)
    return step


def _or_zeros(r: Reverser, d: Operand | None, like: Value) -> Operand:
    return r.total({} if d is None else {like: d}, like)


@dataclass(slots=True)
class _Plan:
    """Where the values come from that the reversed body reads."""

    sources: Sources
    derived: list[Step]  # what the forward loop may run besides, for tapes
    undone: Sequence[Undo] = ()

    def total(self) -> float:
        """Estimate the cost of an iteration: tapes, and values computed again."""
        return self.sources.total()


class _Loop:
    """One loop that is being reversed."""

    def __init__(self, r: Reverser, node: Node) -> None:
        self.r, self.node = r, node
        (self.body,) = node.regions
        self.forward = Range.of(node)
        attrs = self.forward.reversed(r.b).attrs()
        self.head = Node(node.op, (), attrs, loc=node.loc)
        self.contents = Contents(node, r.b.facts)
        self.back = Reversed([])
        self.fixed: dict[Value, Operand] = {
            p: x
            for p, x, y in zip(
                self.body.params, node.operands, self.body.results, strict=True
            )
            if y is p
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.r.loops.append(self.contents)
        yield
        self.r.loops.pop()

    # The reversed body ------------------------------------------------------------

    def reverse(self, carried: Sequence[int], outs: Sequence[Value]) -> None:
        """Reverse one iteration, in terms of the values of the forward iteration."""
        r, body = self.r, self.body
        sources = [*(body.params[k] for k in carried), *outs]
        params = tuple(r.b.value(cotangent_type(v.type), f"d{v.name}") for v in sources)
        inner: Cotangents = dict(zip(outs, params[len(carried) :], strict=True))
        with r.b.region(self.head) as nodes:
            for k, d in zip(carried, params, strict=False):
                r.accumulate(inner, body.results[k], d)
            steps = r.sweep(body.nodes, inner)
            results = [r.total(inner, v) for v in sources]
        self.back = Reversed(steps, params, nodes, results)

    def plan(self) -> _Plan:
        """Choose the sources of all values that the reversed body reads."""
        r, back = self.r, self.back
        derived = _derived(back)
        reroot = Reroot(r.b, r.loops)
        with r.b.region(self.node):
            reroot.nodes(s.node for s in (*back.steps, *derived))
            back.nodes = [*reroot.nodes(back.nodes, hoist=True)]
        cheap = {s.node.result for s in derived}
        derived += map(Step, reroot.hoisted)
        plan = self.sources(derived, cheap, reroot, ())
        for k in self.worth_undoing(plan.sources):
            with r.b.region(self.head):
                undone = undo(r.b, self.contents, k)
            if undone is not None:
                tried = (*plan.undone, undone)
                other = self.sources(derived, cheap, reroot, tried)
                if other is not None and other.total() < plan.total():
                    plan = other
        return plan

    def worth_undoing(self, sources: Sources) -> list[int]:
        """Return the carries whose states are on a tape, or parts of them."""
        found: dict[int, None] = {}
        for v in sources.taped:
            state = sources.state_of(v)
            if state in self.contents.carry:
                found.setdefault(self.contents.carry[state])
        return list(found)

    def sources(
        self,
        derived: Sequence[Step],
        cheap: set[Value],
        reroot: Reroot,
        undone: Sequence[Undo],
    ) -> _Plan:
        """Choose sources, with the writes into some carries undone."""
        fixed = dict(self.fixed)
        logged = [Step(n) for u in undone for n in u.logged]
        back = self.back
        for u in undone:
            fixed.update(u.states)
        steps = [*back.steps, *derived, *logged]
        sources = Sources(
            self.r.b,
            self.body,
            steps,
            self.forward,
            self.r.definers,
            fixed,
            reroot,
            cheap,
            [v for u in undone for v in u.saved],
        )
        nodes = [*(n for u in undone for n in u.nodes), *back.nodes]
        sources.want(Reversed(steps, back.params, nodes, back.results))
        return _Plan(sources, [*derived, *logged], undone)

    # Both loops -------------------------------------------------------------------

    def with_tapes(self, plan: _Plan) -> Step:
        """Return the forward loop with one more carry per tape."""
        sources, r, node = plan.sources, self.r, self.node
        if not sources.taped:
            return Step(node)
        trips = self.forward.trips(r.b)
        inits, tapes, params = [], [], []
        with r.b.block() as before:
            for v in sources.taped:
                shape = (trips, *_box(sources, v))
                like = Type(v.type.dtype, shape)
                inits.append(r.b.zeros(like))
                params.append(r.b.value(like, f"{v.name}_tape"))
                tapes.append(r.b.value(like, f"{v.name}_tape"))
        stored: dict[Value, Operand] = dict(zip(sources.taped, params, strict=True))
        with r.b.region(node) as nodes:
            self.forward_nodes(plan, nodes, stored)
        results = (*self.body.results, *stored.values())
        block = Block((*self.body.params, *params), tuple(nodes), results)
        operands, given = (*node.operands, *inits), (*node.results, *tapes)
        loop = Node(node.op, operands, node.attrs, given, (block,), node.loc)
        return Step(node, (*before, loop), tuple(tapes))

    def forward_nodes(
        self, plan: _Plan, nodes: list[Node], stored: dict[Value, Operand]
    ) -> None:
        """Append the forward body; each value is stored as soon as it is there.

        So a part is saved before it is overwritten, and the buffer need not be copied.
        """
        sources, at = plan.sources, self.forward.position()
        waiting = _needed(plan.derived, stored)
        missing = {v for n in (*self.body.nodes, *waiting) for v in n.results}
        missing |= {v for s in self.back.steps for v in s.extras}

        def done(values: Iterable[Value]) -> None:
            for v in values:
                missing.discard(v)
                if v in stored:
                    tape = stored[v]
                    assert isinstance(tape, Value)
                    stored[v] = store(self.r.b, tape, v, at, _box(sources, v))
            for n in list(waiting):
                if n in waiting and not missing.intersection(n.operands):
                    waiting.remove(n)
                    nodes.append(n)
                    done(n.results)

        done(self.body.params)
        for step in self.back.steps:
            again = step.replaced if sources.saves(step) else None
            nodes.extend(again or (step.node,))
            done((*step.node.results, *(step.extras if again else ())))

    def prepared(self, plan: _Plan, step: Step) -> Block:
        """Put loads, undone writes and recomputed values before a reversed body."""
        sources, r, back = plan.sources, self.r, self.back
        values: dict[Value, Operand] = dict(self.fixed)
        for u in plan.undone:
            values.update(u.states)
        with r.b.region(self.head) as before:
            for v, tape in zip(sources.taped, step.extras, strict=True):
                box = _box(sources, v)
                values[v] = load(r.b, tape, v, self.forward.position(), box)
            values = r.replay(sources.again(), values)
        restored = [n for u in plan.undone for n in u.nodes]
        order: dict[Node, int] = {}
        nodes = list(before)
        for n in (*restored, *back.nodes):
            nodes.append(with_operands(n, values))
            for u in plan.undone:
                if n in u.order:
                    order[nodes[-1]] = u.order[n]
        results = [replaced(x, values) for x in back.results]
        params = (*back.params, *(u.param for u in plan.undone))
        results += [u.before for u in plan.undone]
        return Block(params, tuple(scheduled(nodes, order)), tuple(results))


def _derived(back: Reversed) -> list[Step]:
    """Take out of a reversed body what no cotangent goes into."""
    reached = set(back.params)
    found: dict[object, Step] = {}
    same: dict[Value, Operand] = {}
    nodes = []
    for node in back.nodes:
        node = with_operands(node, same)
        plain = len(node.results) == 1 and "count" not in node.attrs
        if node.regions or not plain or reached.intersection(node.operands):
            reached.update(node.results)
            nodes.append(node)
            continue
        key = node.op, key_of((*node.operands, *sorted(node.attrs.items())))
        if key in found:
            same[node.result] = found[key].node.result
        else:
            found[key] = Step(node)
    back.nodes = nodes
    back.results = [replaced(x, same) for x in back.results]
    return list(found.values())


def _needed(steps: Sequence[Step], values: Iterable[Value]) -> list[Node]:
    """Return the nodes of steps that values depend on."""
    live: set[Operand] = set(values)
    found: list[Node] = []
    for step in reversed(steps):
        if live.intersection(step.node.results):
            found.append(step.node)
            live.update(step.node.operands)
    return found[::-1]


def _box(sources: Sources, v: Value) -> tuple[Dim, ...]:
    box = sources.box(v)
    assert box is not None
    return box


def reverse_while(
    r: Reverser, node: Node, given: Sequence[Operand | None], ct: Cotangents
) -> Step:
    """Count the iterations, then reverse a `for` of that many."""
    test, body = node.regions
    count = r.fresh_symbol("trips")
    with r.b.block() as before:
        counted = _counting(r, node)
        r.b.apply(OPS["size"], (counted,), {"count": count})
    attrs = {"index": r.fresh_symbol("trip"), "start": 0, "stop": count, "step": 1}
    block = Block(test.params, (*test.nodes, *body.nodes), body.results)
    loop = Node(OPS["for"], node.operands, attrs, node.results, (block,), node.loc)
    with r.b.assuming(count):
        step = reverse_for(r, loop, given, ct)
    if step.replaced is None:
        return Step(node, (*before, loop), (), ())
    return Step(node, (*before, *step.replaced), step.extras)


def _counting(r: Reverser, node: Node) -> Value:
    """Append a copy of a `while` that also counts; returns the count."""
    test, body = node.regions
    renamer = Renamer(r.b, {})
    one = Type(I64, scalar=True)
    counter = r.b.value(one, "count")
    first = renamer.block(test)
    first = Block((*first.params, counter), first.nodes, first.results)
    second = renamer.block(body)
    with r.b.block() as nodes:
        more = r.b.apply(OPS["add"], (counter, 1), {}, hint="count")
    second = Block((), (*second.nodes, *nodes), (*second.results, more))
    types = [*(v.type for v in node.results), one]
    hints = [*(v.name for v in node.results), "count"]
    operands = (*node.operands, 0)
    regions = (first, second)
    return r.b.control(node.op, operands, node.attrs, regions, types, hints)[-1]
