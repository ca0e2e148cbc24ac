"""A group over rows: one loop over the rows, inside it what is done for each of them.

`ir/stages.py` plans what is done when. For each time and space there is a *part*: loops
over the rest of the space, or, where that is nothing, statements. What does not depend
on these loops is computed before them and stays in registers. Values that are kept for
later parts are in the memory of results, or in private buffers that hold one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.access import Index, canonical, linear, place, space_of
from ..ir.dims import Dim, Symbol
from ..ir.func import Node, Operand, Value
from ..ir.op import Kind
from ..ir.stages import LIBRARY, Do, Plan, Task, memory_shape, plan, row_axes
from ..ir.types import Shape
from .collapse import collapse
from .folds import BLOCK, Axis, Reduce, fold
from .kernels import Stored, cast, whole
from .nest import Nest, buffer_of, reduction, scatter
from .nests import Bind, Buffer, Load, Reg, Scalar, Statement, Store, every

if TYPE_CHECKING:
    from .kernels import Lowering


def lower(low: Lowering, node: Node) -> None:
    """Lower a `fused` node with an attribute `rows`."""
    (region,) = node.regions
    found = plan(region.nodes, region.results, node.attrs["rows"])
    outs = dict(zip(region.results, node.results, strict=True))
    nest = _RowNest(low, region.nodes, found, outs)
    nest.run()
    nest.assemble()
    nest.finish()


@dataclass(slots=True)
class _Part:
    """Loops over what is not rows; with none, only folds over rows."""

    axes: list[Axis]
    body: list[Statement]
    reductions: list[Reduce]


@dataclass(slots=True)
class _Levels:
    """What stands before and after the loops of each level, from the outside."""

    before: list[list[Statement]]
    after: list[list[Statement]]
    opening: list[Statement] = field(default_factory=list)
    closing: list[Statement] = field(default_factory=list)

    def deeper(self, count: int) -> _Levels:
        """Return levels that go on for loops inside."""
        count += 1
        inner = _Levels(
            [*self.before, *([] for _ in range(count))],
            [*self.after, *([] for _ in range(count))],
        )
        if count == 1:
            inner.opening, inner.closing = self.opening, self.closing
        return inner


class _RowNest(Nest):
    def __init__(
        self,
        low: Lowering,
        nodes: Sequence[Node],
        planned: Plan,
        outs: dict[Operand, Value],
    ) -> None:
        self.rows = [Axis(*low.symbol("i"), d) for d in planned.rows]
        super().__init__(low, nodes, list(self.rows))
        self.nodes = nodes
        self.plan = planned
        self.outs = outs
        self.before = low.body
        self.once: list[Statement] = []  # for each row, before the next part
        self.parts: list[list[Statement] | _Part] = []
        self.moving: set[Symbol] = set()  # what changes inside the loops of a part
        self.done: dict[Value, Scalar | Stored] = {}
        self.memory: dict[Value, Stored] = {}
        self.registers: dict[Value, str] = {}  # of results that are no arrays
        for v in outs:
            if isinstance(v, Value):
                self.make_result(v)

    # Memory -----------------------------------------------------------------------

    def make_result(self, v: Value) -> None:
        out, node = self.outs[v], self.inside[v]
        filled = node.op.kind is Kind.SCATTER and v in self.plan.kept
        b = self.low.target(out) if filled else buffer_of(self.low, node, out)
        if b is not None:
            self.memory[v] = whole(b, out.type.shape)

    def memory_of(self, v: Value) -> Stored:
        """Return where a value is kept: its result's memory, or a row's."""
        if v not in self.memory:
            shape = v.type.shape
            _, rest = row_axes(shape, len(self.rows))
            row = memory_shape(shape, len(self.rows))
            inner, self.low.body = self.low.body, self.before
            b = self.low.allocate(v.type.dtype, row, "row")
            self.low.body = inner
            b.private = True

            def at(index: Index) -> Dim:
                return linear([index[k] for k in rest], row)

            self.memory[v] = Stored(b, at, shape)
        return self.memory[v]

    def release(self, time: int) -> None:
        """Give free the rows that nothing reads after a time."""
        alive = self.low.alive[-1]
        for v, memory in self.memory.items():
            b = memory.buffer
            if b.private and b in alive and self.plan.last[v] <= time:
                del alive[b]
                self.low.release(b)

    # Elements ---------------------------------------------------------------------

    def element(self, x: Operand, index: Index) -> Scalar:
        if self.low.body is self.once or self.moves(index):
            return self.known_element(x, index)
        with self.outside():
            return self.known_element(x, index)

    def known_element(self, x: Operand, index: Index) -> Scalar:
        found = self.done.get(x) if isinstance(x, Value) else None
        if found is None or not isinstance(x, Value) or (x, index) in self.memo:
            return super().element(x, index)
        if isinstance(found, Stored):
            b = found.buffer
            found = self.low.let(Load(b, found.at(index), b.dtype))
            self.memo[x, index] = found
        return found

    def moves(self, index: Index) -> bool:
        return any(dims.symbols_of(d) & self.moving for d in index)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Emit what follows before the loops of the part."""
        inner, self.low.body = self.low.body, self.once
        try:
            yield
        finally:
            self.low.body = inner

    def gathered(self, node: Node, index: Index) -> Index:
        found = super().gathered(node, index)
        if self.low.body is not self.once:
            self.moving.update(
                s.symbol for s in every(self.low.body) if isinstance(s, Bind)
            )
        return found

    def first(self, x: Operand, index: Index, over: frozenset[Symbol]) -> Scalar | None:
        """Return the first element of a row; the bits are those that the loop has."""
        rows = {a.symbol for a in self.rows}
        if not isinstance(x, Value) or x not in self.inside or over & rows:
            return super().first(x, index, over)
        if x in self.done or self.plan.flops.get(x, LIBRARY) < LIBRARY:
            return self.element(x, index)
        return None

    # Parts ------------------------------------------------------------------------

    def run(self) -> None:
        """Emit all tasks, in order of their times."""
        saved = self.low.body
        for time, group in itertools.groupby(self.plan.tasks, lambda t: t.time):
            tasks = list(group)
            self.low.body = self.once
            self.axes = list(self.rows)
            self.warm(time, self.plan.rows)
            spaces = dict.fromkeys(t.space for t in tasks)
            for space in spaces:
                self.part(time, space, [t for t in tasks if t.space == space])
            for t in tasks:
                if t.do is not Do.FILL:
                    self.complete(t.node)
            self.release(time)
        self.parts.append(self.once)
        self.low.body = saved

    def part(self, time: int, space: Shape, tasks: Sequence[Task]) -> None:
        inner = [Axis(*self.low.symbol("j"), d) for d in space[len(self.rows) :]]
        self.axes = [*self.rows, *inner]
        self.moving.update(a.symbol for a in inner)
        self.stores, self.reductions = [], []
        if inner:
            with self.low.into() as body:
                self.warm(time, space)
                self.do(tasks)
            body.extend(self.stores)
        else:
            body = []
            self.do(tasks)
            self.once.extend(self.stores)
        self.parts += [self.once, _Part(inner, body, self.reductions)]
        self.once = []
        self.low.body = self.once

    def warm(self, time: int, space: Shape) -> None:
        """Compute nodes in order: no deep recursion, and a readable listing."""
        for node in self.nodes:
            v = node.result
            if node.op.kind not in (Kind.ELEMENTWISE, Kind.GATHER):
                continue
            if time in self.plan.computed.get(v, ()) and space_of(node) == space:
                self.element(v, place(v.type.shape, self.index))

    def do(self, tasks: Sequence[Task]) -> None:
        for t in tasks:
            v = t.node.result
            match t.do:
                case Do.STORE:
                    self.store(v, v)
                case Do.FILL:
                    base = t.node.operands[0]
                    self.store(0 if base in self.low.blank else base, v)
                case Do.SCATTER:
                    scatter(self, t.node, self.memory_of(v))
                case Do.FOLD:
                    self.fold(t.node)

    def store(self, x: Operand, v: Value) -> None:
        """Store the element of `x` at this point where `v` is kept."""
        memory = self.memory_of(v)
        index = place(v.type.shape, self.index)
        value = cast(self.element(x, index), v.type.dtype)
        self.stores.append(Store(memory.buffer, memory.at(index), value))

    def fold(self, node: Node) -> None:
        v = node.result
        over_rows = set(node.attrs["axis"]) & set(
            row_axes(_shape_of(node.operands[0]), len(self.rows))[0]
        )
        single = canonical(v.type.shape) == self.plan.rows and not over_rows
        if v.type.shape and not single:
            reduction(self, node, self.memory_of(v))
            return
        r = reduction(self, node, None)
        r.result = self.registers[v] = self.low.fresh("v")

    def complete(self, node: Node) -> None:
        """Make a value known to what is done later."""
        v = node.result
        if v not in self.registers:
            self.done[v] = self.memory[v]
            return
        found = Reg(self.registers[v], v.type.dtype)
        self.done[v] = found
        if v in self.memory:
            index = place(v.type.shape, [a.index for a in self.rows])
            memory = self.memory[v]
            self.once.append(Store(memory.buffer, memory.at(index), found))

    # Loops ------------------------------------------------------------------------

    def assemble(self) -> None:
        """Put the loops around the parts, and starts and ends of folds between them."""
        parts = [p for p in self.parts if isinstance(p, _Part)]
        plain = [s for p in self.parts if isinstance(p, list) for s in p]
        statements = [*plain, *(s for p in parts for s in p.body)]
        reductions = [r for p in parts for r in p.reductions]
        rows = collapse(self.low.rows, self.rows, statements, reductions)
        levels = _Levels([[] for _ in rows], [[] for _ in rows])
        body: list[Statement] = []
        for p in self.parts:
            body += p if isinstance(p, list) else self.loops(p, rows, levels)
        self.low.body.extend(_around(rows, body, levels, 0))

    def loops(self, p: _Part, rows: Sequence[Axis], outer: _Levels) -> list[Statement]:
        axes = collapse(self.low.rows, p.axes, p.body, p.reductions)
        levels = outer.deeper(len(axes))
        for r in p.reductions:
            fold(
                self.low,
                r,
                [*rows, *axes],
                p.body,
                levels.before,
                levels.after,
                levels.opening,
                levels.closing,
            )
        if not axes:
            return [*levels.before[-1], *p.body, *levels.after[-1]]
        return _around(axes, p.body, levels, len(rows))

    def finish(self) -> None:
        """Check the gathers, and define the results."""
        for node, flag in self.flags.items():
            self.fail_gather(node, flag)
        for v, out in self.outs.items():
            assert isinstance(v, Value)
            if v in self.memory:
                buffer: Buffer = self.memory[v].buffer
                self.low.define(out, whole(buffer, out.type.shape))
            else:
                self.low.values[out] = Reg(self.registers[v], out.type.dtype)


def _shape_of(x: Operand) -> Shape:
    assert isinstance(x, Value)
    return x.type.shape


def _around(
    axes: Sequence[Axis], body: list[Statement], levels: _Levels, first: int
) -> list[Statement]:
    """Put loops around a body; `first` is the level of the outermost."""
    for k in reversed(range(len(axes))):
        loop = axes[k].loop(body)
        if k == len(axes) - 1 and levels.opening:
            loop.block = BLOCK
            loop.opening, loop.closing = levels.opening, levels.closing
        body = [*levels.before[first + k], loop, *levels.after[first + k]]
    return body
