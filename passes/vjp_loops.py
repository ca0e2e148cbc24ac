"""The reverse of loops: a `for` over the reversed range.

Its carries are the cotangents of the carries and one accumulator per outside value that
the body reads. What the body's rules read comes from `tape.Sources`; a linear body
reads nothing and saves nothing. A `while` first runs to count its iterations, then runs
again as a `for` of that many, which is reversed.

    %r = for i in 0..n carry(%p = %a) { ... yield %q }
    %da, %dw = for i in n - 1..-1 step -1 carry(%dq = %dr, %dw = 0) { ... }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.dims import Dim
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS
from ..ir.types import I64, Type
from . import activity
from .ranges import Range
from .scope import Renamer, with_operands
from .tape import Sources, load, store
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
    forward = Range.of(node)
    backward = forward.reversed(r.b)
    head = Node(node.op, (), backward.attrs(), loc=node.loc)
    inits = [_or_zeros(r, given[k], node.results[k]) for k in carried]
    inits += [_or_zeros(r, ct.get(v), v) for v in outs]
    back = _reverse_body(r, head, body, carried, outs)
    fixed = {
        p: x
        for p, x, y in zip(body.params, node.operands, body.results, strict=True)
        if y is p
    }
    sources = Sources(r.b, body, back.steps, forward, r.definers, fixed)
    sources.want(back)
    step = _with_tapes(r, node, forward, back, sources)
    block = _prepared(r, head, back, sources, step, forward, fixed)
    names = [*(body.params[k] for k in carried), *outs]
    types = [cotangent_type(v.type) for v in names]
    hints = [f"d{v.name}" for v in names]
    new = r.b.control(node.op, inits, head.attrs, [block], types, hints)
    ct.update(zip(outs, new[len(carried) :], strict=True))
    for k, d in zip(carried, new, strict=False):
        r.accumulate(ct, node.operands[k], d)
    return step


def _or_zeros(r: Reverser, d: Operand | None, like: Value) -> Operand:
    return r.total({} if d is None else {like: d}, like)


def _reverse_body(
    r: Reverser, head: Node, body: Block, carried: Sequence[int], outs: Sequence[Value]
) -> Reversed:
    """Reverse one iteration, in terms of the values of the forward iteration."""
    sources = [*(body.params[k] for k in carried), *outs]
    params = tuple(r.b.value(cotangent_type(v.type), f"d{v.name}") for v in sources)
    inner: Cotangents = dict(zip(outs, params[len(carried) :], strict=True))
    with r.b.region(head) as nodes:
        for k, d in zip(carried, params, strict=False):
            r.accumulate(inner, body.results[k], d)
        steps = r.sweep(body.nodes, inner)
        results = [r.total(inner, v) for v in sources]
    return Reversed(steps, params, nodes, results)


def _with_tapes(
    r: Reverser, node: Node, forward: Range, back: Reversed, sources: Sources
) -> Step:
    """Return the forward loop with one more carry per tape."""
    if not sources.taped:
        return Step(node)
    (body,) = node.regions
    trips, at = forward.trips(r.b), forward.position()
    inits, tapes, params = [], [], []
    with r.b.block() as before:
        for v in sources.taped:
            shape = (trips, *_box(sources, v))
            like = Type(v.type.dtype, shape)
            inits.append(r.b.empty(shape=shape, dtype=like.dtype))
            params.append(r.b.value(like, f"{v.name}_tape"))
            tapes.append(r.b.value(like, f"{v.name}_tape"))
    with r.b.region(node) as nodes:
        for step in back.steps:
            again = step.replaced if sources.saves(step) else None
            nodes.extend(again or (step.node,))
        stored = [
            store(r.b, p, v, at, _box(sources, v))
            for p, v in zip(params, sources.taped, strict=True)
        ]
    block = Block((*body.params, *params), tuple(nodes), (*body.results, *stored))
    operands, results = (*node.operands, *inits), (*node.results, *tapes)
    loop = Node(node.op, operands, node.attrs, results, (block,), node.loc)
    return Step(node, (*before, loop), tuple(tapes))


def _box(sources: Sources, v: Value) -> tuple[Dim, ...]:
    box = sources.box(v)
    assert box is not None
    return box


def _prepared(
    r: Reverser,
    head: Node,
    back: Reversed,
    sources: Sources,
    step: Step,
    forward: Range,
    fixed: Mapping[Value, Operand],
) -> Block:
    """Put loads and recomputed values in front of a reversed body."""
    values: dict[Value, Operand] = dict(fixed)
    with r.b.region(head) as before:
        for v, tape in zip(sources.taped, step.extras, strict=True):
            box = _box(sources, v)
            values[v] = load(r.b, tape, v, forward.position(), box)
        values = r.replay(sources.again(), values)
    nodes = (*before, *(with_operands(n, values) for n in back.nodes))
    results = tuple(replaced(x, values) for x in back.results)
    return Block(back.params, nodes, results)


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
