"""The reverse of loops: a `for` over the reversed range.

Its carries are the cotangents of the carries and one accumulator per outside value that
the body reads. What the body's rules read comes from `sources.py`; a linear body
reads nothing and saves nothing. A `while` counts its iterations and stacks what is
read; its reverse is a `for` of that many.

    %r = for i in 0..n carry(%p = %a) { ... yield %q }
    %da, %dw = for i in n - 1..-1 step -1 carry(%dq = %dr, %dw = 0) { ... }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..ir import dims
from ..ir.dims import Dim
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS, Kind
from ..ir.types import Type
from . import activity
from .contents import Contents
from .costs import saved_cost
from .cse import key_of
from .ranges import Range
from .reroot import Reroot
from .scope import with_operands
from .sources import Sources
from .tape import Layout, load, store
from .undo import Undo, scheduled, undo
from .vjp import Cotangents, Reversed, Reverser, Step, cotangent_type, replaced


def reverse_for(
    r: Reverser,
    node: Node,
    given: Sequence[Operand | None],
    ct: Cotangents,
    source: Node | None = None,
) -> Step:
    """Append the reversed loop; returns the forward loop with the tapes it needs.

    `source` is the `while` that a `for` stands for.
    """
    (body,) = node.regions
    useful = {v for v, d in zip(node.results, given, strict=True) if d is not None}
    activity.loop_backward(node, useful)
    carried = [k for k, p in enumerate(body.params) if p in useful and p in r.active]
    outs = r.captured(node, useful)
    if not carried and not outs:
        return Step(source or node)
    loop = _Loop(r, node)
    inits = [_or_zeros(r, given[k], node.results[k]) for k in carried]
    inits += [_or_zeros(r, r.known(ct, v), v) for v in outs]
    with loop.entered():
        loop.reverse(carried, outs)
        plan = loop.plan()
    step = loop.with_tapes(plan) if source is None else loop.stacking(plan, source)
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
    return r.total(Cotangents([] if d is None else [(like, d)]), like)


RESTORING = 0.25  # the cost of putting an old value back, in that of a tape's entry


@dataclass(slots=True)
class _Plan:
    """Where the values come from that the reversed body reads."""

    sources: Sources
    derived: list[Step]  # what the forward loop may run besides, for tapes
    undone: Sequence[Undo] = ()
    layouts: dict[Value, Layout] = field(default_factory=dict)  # of what is saved

    def total(self) -> float:
        """Estimate the cost of an iteration: tapes, and values computed again."""
        restored = (saved_cost(v.type) for u in self.undone for v in u.saved)
        return self.sources.total() + RESTORING * sum(restored)


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
        inner = Cotangents(zip(outs, params[len(carried) :], strict=True))
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
        trips = self.forward.capacity(r.b)
        inits, tapes, params = [], [], []
        plan.layouts = {v: self.layout(sources, v, trips) for v in sources.taped}
        with r.b.block() as before:
            for v, layout in plan.layouts.items():
                like = Type(v.type.dtype, layout.shape)
                inits.append(r.b.empty(shape=like.shape, dtype=like.dtype))
                params.append(r.b.value(like, f"{v.name}_tape"))
                tapes.append(r.b.value(like, f"{v.name}_tape"))
        uneven = [layout.side is not None for layout in plan.layouts.values()]
        r.saved(node, trips, [t.type for t in tapes], uneven)
        stored: dict[Value, Operand] = dict(zip(sources.taped, params, strict=True))

        def save(v: Value) -> None:
            tape = stored[v]
            assert isinstance(tape, Value)
            stored[v] = store(r.b, tape, v, plan.layouts[v])

        with r.b.region(node) as nodes:
            self.forward_nodes(plan, self.back.steps, nodes, save, plan.derived)
        results = (*self.body.results, *stored.values())
        block = Block((*self.body.params, *params), tuple(nodes), results)
        operands, given = (*node.operands, *inits), (*node.results, *tapes)
        loop = Node(node.op, operands, node.attrs, given, (block,), node.loc)
        return Step(node, (*before, loop), tuple(tapes))

    def layout(self, sources: Sources, v: Value, trips: Dim) -> Layout:
        """Return how the entries for `v` lie on their tape."""
        found = None
        if not self.r.loops and self.forward.most is None:
            found = Layout.side_by_side(self.r.b, self.forward, v)
        return found or Layout.stacked(self.forward, trips, _box(sources, v))

    def stacking(self, plan: _Plan, source: Node) -> Step:
        """Return the `while` that also stacks the values that are read."""
        sources, r = plan.sources, self.r
        trips = self.node.attrs["stop"]
        saved: dict[Value, Operand] = {v: v for v in sources.taped}
        for v in saved:
            plan.layouts[v] = Layout.stacked(self.forward, trips, _box(sources, v))
        types = [Type(v.type.dtype, plan.layouts[v].shape) for v in saved]
        tapes = [
            r.b.value(t, f"{v.name}_tape") for v, t in zip(saved, types, strict=True)
        ]

        def save(v: Value) -> None:  # before a part of a buffer is overwritten
            made = self.contents.makers.get(v)
            shared = made is None or made.op.kind is Kind.VIEW
            saved[v] = r.b.copy(v) if v.type.shape and shared else v

        test, body = source.regions
        steps, count = self.back.steps, len(test.nodes)
        with r.b.region(self.node) as nodes:
            self.forward_nodes(plan, steps[:count], nodes, save)
            split = len(nodes)
            rest = steps[count : count + len(body.nodes)]
            self.forward_nodes(plan, rest, nodes, save, plan.derived)
        first = Block(test.params, tuple(nodes[:split]), test.results)
        results = (*body.results, *saved.values())
        second = Block((), tuple(nodes[split:]), results)
        given = (*source.results, *tapes)
        attrs = {**source.attrs, "count": trips}
        loop = Node(
            source.op, source.operands, attrs, given, (first, second), source.loc
        )
        known = "count" in source.attrs
        symbol = dims.as_symbol(trips)
        assert symbol is not None
        return Step(source, (loop,), tuple(tapes), () if known else (symbol,))

    def forward_nodes(
        self,
        plan: _Plan,
        steps: Sequence[Step],
        nodes: list[Node],
        save: Callable[[Value], None],
        derived: Sequence[Step] | None = None,
    ) -> None:
        """Append forward nodes; each value is saved as soon as it is there.

        So a part is saved before it is overwritten, and the buffer need not be copied.
        With `derived`, parameters are saved too, and what is derived for tapes.
        """
        sources = plan.sources
        waiting = _needed(derived or (), sources.taped)
        missing = {v for s in steps for v in (*s.node.results, *s.extras)}
        missing |= {v for n in waiting for v in n.results}

        def done(values: Iterable[Value]) -> None:
            for v in values:
                missing.discard(v)
                if v in sources.taped:
                    save(v)
            for n in list(waiting):
                if n in waiting and not missing.intersection(n.operands):
                    waiting.remove(n)
                    nodes.append(n)
                    done(n.results)

        if derived is not None:
            done(self.body.params)
        for step in steps:
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
                values[v] = load(r.b, tape, v, plan.layouts[v])
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
    """Reverse a `while` as the `for` that it turns out to be, with the count it had.

    The forward loop stays a `while`: it counts, and stacks what the reverse reads. What
    it stacks already is written into arrays by the `for`.
    """
    test, body = node.regions
    count = node.attrs.get("count") or r.fresh_symbol("trips")
    trip = r.fresh_symbol("trip")
    attrs = {"index": trip, "start": 0, "stop": count, "step": 1}
    stacks = node.results[len(node.operands) :]
    params = [r.b.value(v.type, v.name) for v in stacks]
    with r.b.assuming(count), r.b.block():
        inits = [r.b.zeros(v.type) for v in stacks]
        with r.b.block() as stores:
            entries = body.results[len(node.operands) :]
            stored = [
                r.b.select_scatter(p, x, trip, axis=0)
                for p, x in zip(params, entries, strict=True)
            ]
        r.active.update(p for p, v in zip(params, stacks, strict=True) if v in r.active)
        activity.forward(stores, r.active)
        results = (*body.results[: len(node.operands)], *stored)
        nodes = (*test.nodes, *body.nodes, *stores)
        block = Block((*test.params, *params), nodes, results)
        operands = (*node.operands, *inits)
        loop = Node(OPS["for"], operands, attrs, node.results, (block,), node.loc)
    with r.b.assuming(count):
        return reverse_for(r, loop, given, ct, node)
