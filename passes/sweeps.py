"""Loops that go through the parts of an array, each once.

Before: a pure Func. After: the same values, where loops fill an array or use it up:

- If every part is written and none is read, nothing is seen of what was there before:
  zeros in which the loops start need not be stored.
- If every part is read at most before it is written, and the array is not used after
  the loops, the writes have no effect: all parts are read from the array as it was.
  That is the reverse of the first, which reads the cotangent of a part and zeroes it.

    %d: f64[n,m] = for i in 0..n carry(%c = %g)      for i in 0..n
      %r: f64[m] = select %c, i {axis=0}               %r: f64[m] = select %g, i
      %e: f64[n,m] = select_scatter %c, 0, i           ...
      ...

Note [each once]
The parts are slices of one axis, or single indices, at a place that is a sum of indices
of loops times numbers: as digits of a number, so that each step of a loop is longer
than all that the loops with shorter steps go through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..ir import dims
from ..ir.access import indices_of, steps_of, view_of, writes_part
from ..ir.build import names_in
from ..ir.dims import Dim, Facts, Symbol
from ..ir.func import Block, Func, Node, Operand, Value, walk
from ..ir.op import OPS, Kind
from ..ir.verify import loop_facts
from .dce import dce
from .rules import FULL, is_dim, same_place
from .scope import ScopedBuilder, values_of
from .simplify import Rewriter


@dataclass(frozen=True, slots=True)
class Run:
    """The values that the index of a loop takes, in any order."""

    index: Symbol
    low: Dim
    count: Dim

    @staticmethod
    def of(loop: Node) -> Run | None:
        a = loop.attrs
        index, start, stop = dims.as_symbol(a["index"]), a["start"], a["stop"]
        if index is None or a["step"] not in (1, -1):
            return None
        if a["step"] == 1:
            return Run(index, start, dims.add(stop, dims.mul(start, -1)))
        return Run(index, dims.add(stop, 1), dims.add(start, dims.mul(stop, -1)))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The write in the innermost of the loops through which a carry goes."""

    write: Node
    runs: tuple[Run, ...]
    reads: bool  # whether parts are read

    def covers(self, facts: Facts) -> bool:
        """Tell whether every part of the array is written."""
        size, low = self.length(facts, exact=True)
        (step,) = steps_of(self.write)
        return low == 0 and size == step.base.shape[step.attrs["axis"]]

    def is_apart(self, facts: Facts) -> bool:
        """Tell whether no part comes twice."""
        return self.length(facts, exact=False)[0] is not None

    def length(self, facts: Facts, *, exact: bool) -> tuple[Dim | None, Dim]:
        """Return how far all parts reach and where they start; see Note [each once].

        The length is None where parts may overlap, or where there are gaps and it has
        to be `exact`.
        """
        (step,) = steps_of(self.write)
        (at,) = step.indices
        reach: Dim = step.attrs.get("size", 1)
        rest: Dim = at
        low: Dim = 0
        digits = [(_slope(at, run.index), run) for run in self.runs]
        if all(isinstance(by, int) for by, _ in digits):
            digits.sort(key=lambda digit: abs(int(str(digit[0]))))
        else:
            digits.reverse()  # the innermost loop first
        for by, run in digits:
            rest = dims.substitute(rest, {run.index: 0})
            back = isinstance(by, int) and by < 0
            length = dims.mul(by, -1) if back else by
            known = facts.proves(run.count) and facts.proves(dims.add(length, -1))
            gap = dims.add(length, dims.mul(reach, -1))
            if not known or (gap != 0 if exact else not facts.proves(gap)):
                return None, 0
            end = dims.add(run.low, dims.add(run.count, -1))
            low = dims.add(low, dims.mul(by, end if back else run.low))
            longest = dims.mul(length, dims.add(run.count, -1))
            reach = dims.add(reach, longest)
        terms = (dims.mul(by, dims.symbol(run.index.name)) for by, run in digits)
        if dims.add(rest, _sum(terms)) != at:
            return None, 0
        return reach, dims.add(rest, low)


def _sum(terms: Iterator[Dim]) -> Dim:
    total: Dim = 0
    for d in terms:
        total = dims.add(total, d)
    return total


def _slope(d: Dim, s: Symbol) -> Dim:
    zero, one = (dims.substitute(d, {s: k}) for k in (0, 1))
    return dims.add(one, dims.mul(zero, -1))


def sweeps(f: Func) -> Func:
    """Return `f` without the zeros and the writes that nobody sees."""
    if f.stage == "traced" or not any(n.op.kind is Kind.FOR for n in walk(f.body)):
        return f
    b = ScopedBuilder(f, names_in(f))
    body = _block(f.body, f.size_facts(), b)
    if body is f.body:
        return f
    return dce(Rewriter(f, {}, ()).func(replace(f, body=body)))


def _block(block: Block, facts: Facts, b: ScopedBuilder) -> Block:
    """Return a block in which such loops are changed; the same where there are none."""
    maker = {v: n for n in block.nodes for v in n.results}
    used = {v for n in block.nodes for v in values_of(n)} | {*block.results}
    nodes: list[Node] = []
    for node in block.nodes:
        if node.op.kind is Kind.FOR:
            new, zeros = _loop(node, maker, used, facts, b)
            nodes += [*zeros, new]
        else:
            nodes.append(_inside(node, facts, b))
    same = len(nodes) == len(block.nodes) and all(map(_is, nodes, block.nodes))
    return block if same else Block(block.params, tuple(nodes), block.results)


def _is(a: object, b: object) -> bool:
    return a is b


def _inside(node: Node, facts: Facts, b: ScopedBuilder) -> Node:
    if node.op.kind is Kind.FOR:
        facts = facts.having(*loop_facts(node))
    regions = tuple(_block(r, facts, b) for r in node.regions)
    same = all(map(_is, regions, node.regions))
    return node if same else replace(node, regions=regions)


def _loop(
    loop: Node,
    maker: dict[Value, Node],
    used: set[Operand],
    facts: Facts,
    b: ScopedBuilder,
) -> tuple[Node, list[Node]]:
    """Return a loop with its carries looked at, and new initial values for it."""
    operands = list(loop.operands)
    zeros: list[Node] = []
    new = loop
    for k, x in enumerate(loop.operands):
        sweep = _sweep(loop, k)
        if sweep is None:
            continue
        init = maker.get(x) if isinstance(x, Value) else None
        if loop.results[k] not in used and sweep.is_apart(facts):
            new = _without_write(new, k)
        elif (
            init is not None
            and init.op is FULL
            and not sweep.reads
            and sweep.covers(facts)
        ):
            t = init.result.type
            blank = Value(b.name(init.result.name), t)
            attrs = {"shape": t.shape, "dtype": t.dtype}
            zeros.append(Node(OPS["empty"], (), attrs, (blank,), (), loop.loc))
            operands[k] = blank
    if zeros:
        new = replace(new, operands=tuple(operands))
    return _inside(new, facts, b), zeros


def _sweep(loop: Node, k: int) -> Sweep | None:
    """Return how a carry is written, if loops do nothing else with it."""
    run = Run.of(loop)
    (body,) = loop.regions
    p, y = body.params[k], body.results[k]
    last = next((n for n in body.nodes if y in n.results), None)
    if run is None or last is None or not isinstance(y, Value):
        return None
    others = [n for n in body.nodes if n is not last and p in values_of(n)]
    later = any(y in values_of(n) for n in body.nodes)
    if later or p in body.results or [*body.results].count(y) > 1:
        return None
    if [*values_of(last)].count(p) > 1:
        return None
    if last.op.kind is Kind.FOR:
        j = last.results.index(y)
        if others or last.operands[j] is not p:
            return None
        inner = _sweep(last, j)
        return inner and replace(inner, runs=(run, *inner.runs))
    if not _writes_slice(last) or last.operands[0] is not p:
        return None
    if not all(n.op is view_of(last) and same_place(n, last, 1) for n in others):
        return None
    return Sweep(last, (run,), bool(others))


def _writes_slice(node: Node) -> bool:
    """Tell whether a node writes a slice of one axis, or one index, at a dim."""
    if not writes_part(node) or node.op.accumulates or len(steps_of(node)) != 1:
        return False
    (step,) = steps_of(node)
    axis, by = step.attrs.get("axis"), step.attrs.get("step", 1)
    one = isinstance(axis, int) and by == 1 and len(step.indices) == 1
    return one and all(map(is_dim, indices_of(node)))


def _without_write(loop: Node, k: int) -> Node:
    """Return loops that hand a carry on as it is."""
    (body,) = loop.regions
    p, y = body.params[k], body.results[k]
    nodes: Sequence[Node] = body.nodes
    last = next(n for n in body.nodes if y in n.results)
    results = body.results
    if last.op.kind is Kind.FOR:
        inner = _without_write(last, last.results.index(y))
        nodes = tuple(inner if n is last else n for n in nodes)
    else:
        results = tuple(p if j == k else x for j, x in enumerate(results))
    region = Block(body.params, tuple(nodes), results)
    return replace(loop, regions=(region,))
