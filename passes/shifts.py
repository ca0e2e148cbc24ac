"""Make one gather of a group of shifted additions.

Before: a pure Func, after vjp, simplify, cse and dce. After: the same values, up to the
order of float additions. Reading an array at several shifts has the adjoint "add into
each of these slices of the cotangent", one pass over memory per shift. Each value that
is such a sum (see `pieces.py`) is computed at once instead, over the hull of the boxes:

    %a = slice_scatter_add %d, %g, 0        %p = slice_scatter (zeros), %g, 2
    %b = slice_scatter_add %a, %h, 1        %s = (%p from 2) + (%p from 0)
    %c = slice_scatter_add %b, %g, 2        %c = %d + %s + (%h between zeros, from 0)

What is read beyond its ends is padded with zeros first: exact, whatever the factors
are, and nothing in the gather depends on where a point lies. %g is often a slice of
the very array that is updated, which then needs a temporary anyway.

Note [rims]
Where the array added to is set to zero in a box first (a hole), the gather runs over
that box and replaces it. Around it stand at most two rims per axis, added to by the
pieces that reach there: first those beyond the box in axis 0, then those within it in
axis 0 and beyond it in axis 1, and so on.

Note [scratch]
The rim of zeros of a padded copy stays, so in a `for` the copy is a carry: it is
filled once before the loop, and its middle is overwritten in every iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Facts, Strict, Symbol
from ..ir.func import Block, Func, Node, Operand, Value, free_values
from ..ir.op import Kind
from ..ir.types import Shape, Type
from .dce import dce
from .groups import Group, Paddings, Part, back, cheap_step, group_of, part_of
from .pieces import Box, Piece, Sum, Sums, Users, gaps, moved, taken_together, uses_of
from .scope import ScopedBuilder, defined_symbol

READS = 2  # of a padded copy at least, for it to pay in a loop
READS_ONCE = 3  # and where it must be filled each time


def shifts(f: Func) -> Func:
    """Return `f` with groups of shifted additions computed at once."""
    if f.stage == "traced":
        return f
    s = _Shifter(f)
    with dims.deciding(Strict(s.facts)):
        body = s.rewritten(f.body)
    if not s.changed:
        return f
    return dce(replace(f, body=body))


# ---------------------------------------------------------------- which values


def chosen_in(
    block: Block, facts: Facts, refused: Collection[Value]
) -> tuple[Sums, dict[Value, Group]]:
    """Return the sums to be computed at once among the nodes of a block.

    A sum that is computed for its own sake is an array like others for other sums.
    """
    leaves: set[Value] = set()
    sums = Sums(block.nodes, facts)
    if not any(n.op.accumulates and v in sums.known for v, n in sums.node_of.items()):
        return sums, {}
    users = uses_of(block.nodes)
    more = {x for x in sums.known if _is_read_twice(x, users, sums)}
    while True:
        if more:
            leaves |= more
            sums = Sums(block.nodes, facts, leaves, sums.proven)
        chosen, seen = _demanded(block, sums, refused)
        computed = {x for x in seen if _is_computed(x, sums)} | chosen.keys()
        more = {x for x in computed if _is_part(x, users, sums)} - leaves
        if not more:
            return sums, chosen


def _is_computed(x: Value, sums: Sums) -> bool:
    """Tell whether a value is neither a view nor what could be one."""
    return sums.node_of[x].op.kind is not Kind.VIEW and not sums.is_plain(x)


def _is_read_twice(x: Value, users: Users, sums: Sums) -> bool:
    """Tell whether several slices read a sum: then it is computed only once."""
    if len(sums.known[x]) < 2:
        return False
    return sum(n.op.kind is Kind.VIEW for n in users.get(x, ())) > 1


def _is_part(x: Value, users: Users, sums: Sums) -> bool:
    return any(v in sums.known for n in users.get(x, ()) for v in n.results)


def _demanded(
    block: Block, sums: Sums, refused: Collection[Value]
) -> tuple[dict[Value, Group], set[Value]]:
    """Return the sums that must be computed, and the groups among them."""
    todo: list[Operand] = list(block.results)
    for n in block.nodes:
        if not all(v in sums.known or v in sums.open for v in n.results):
            todo.extend(n.operands)
        for region in n.regions:
            todo.extend(free_values(region))
    seen: set[Value] = set()
    found: dict[Value, Group] = {}
    while todo:
        x = todo.pop()
        if not isinstance(x, Value) or x in seen:
            continue
        if x in sums.open:
            todo.extend(sums.node_of[x].operands)
        if x not in sums.known:
            continue
        seen.add(x)
        group = None if x in refused else group_of(x, sums)
        if group is None:
            todo.extend(sums.node_of[x].operands)
        else:
            found[x] = group
            todo.extend(p.value for p in sums.known[x])
    return found, seen


# ---------------------------------------------------------------- writing them


@dataclass(slots=True)
class Place:
    """A block that is built, and what a `for` around it carries in addition."""

    loop: Node | None = None
    inner: frozenset[Symbol] = frozenset()  # symbols that mean something only inside
    carries: list[tuple[Value, Operand]] = field(default_factory=list)
    windows: dict[tuple[Any, ...], Operand] = field(default_factory=dict)


class _Shifter(ScopedBuilder):
    def __init__(self, f: Func) -> None:
        super().__init__(f, names_in(f))
        self.values: dict[Value, Operand] = {}
        self.changed = False
        self.place = Place()

    def operand(self, x: Operand) -> Operand:
        return self.values.get(x, x) if isinstance(x, Value) else x

    # Nodes ------------------------------------------------------------------------

    def rewritten(self, block: Block) -> Block:
        """Return a block with its groups computed at once; nodes go to the builder."""
        taken = taken_together(block)
        chosen, paddings = self.paying(taken)
        if chosen:
            block = taken
        for n in block.nodes:
            group = chosen.get(n.results[0]) if len(n.results) == 1 else None
            if group is None:
                self.node(n)
            else:
                self.loc = n.loc
                self.changed = True
                self.values[n.result] = self.named(
                    n.result, self.sum(group, n.result.type, paddings)
                )
        results = tuple(map(self.operand, block.results))
        return Block(block.params, tuple(self.nodes), results)

    def paying(self, block: Block) -> tuple[dict[Value, Group], Paddings]:
        """Return the groups of a block that pay, and what they read."""
        refused: set[Value] = set()
        while True:
            sums, chosen = chosen_in(block, self.facts, refused)
            paddings = Paddings(chosen.values(), sums)
            poor = {v for v, g in chosen.items() if not self.pays(g, paddings)}
            if not poor:
                return chosen, paddings
            refused |= poor

    def pays(self, group: Group, paddings: Paddings) -> bool:
        """Tell whether padded copies are read often enough by a group."""
        sources = {paddings.source[part_of(p, group)] for p, _ in group.reads()}
        wanted = 0
        for source in sources & paddings.found.keys():
            wanted += READS if self.stays(paddings.shape(source)) else READS_ONCE
        return len(group.pieces) >= wanted

    def stays(self, shape: Shape) -> bool:
        """Tell whether an array can be carried by the loop around; Note [scratch]."""
        symbols = set().union(*map(dims.symbols_of, shape))
        return self.place.loop is not None and not symbols & self.place.inner

    def named(self, v: Value, x: Operand) -> Operand:
        """Give what takes the place of a value its name, if it was made just now."""
        assert isinstance(x, Value)
        if self.nodes and self.nodes[-1].results == (x,):
            x.name = v.name
        return x

    def node(self, n: Node) -> None:
        operands = tuple(map(self.operand, n.operands))
        if not n.regions:
            self.append(Node(n.op, operands, n.attrs, n.results, (), n.loc))
            self.learn(n)
            return
        around = self.place
        regions, places = [], []
        for r in n.regions:
            self.place = self.inside(n, r)
            places.append(self.place)
            with self.region(n):
                regions.append(self.rewritten(r))
        self.place = around
        results = n.results
        if n.op.kind is Kind.FOR:
            operands, results, regions = self.with_scratch(
                n, operands, places[0], regions[0]
            )
        self.append(Node(n.op, operands, n.attrs, results, tuple(regions), n.loc))

    def inside(self, n: Node, r: Block) -> Place:
        if n.op.kind is not Kind.FOR:
            return Place()
        index = dims.as_symbol(n.attrs["index"])
        symbols = {index, *map(defined_symbol, r.nodes)}
        return Place(n, frozenset(s for s in symbols if s is not None))

    def with_scratch(
        self, n: Node, operands: Sequence[Operand], place: Place, body: Block
    ) -> tuple[tuple[Operand, ...], tuple[Value, ...], list[Block]]:
        """Add the carries that padded copies live in; see Note [scratch]."""
        params = [p for p, _ in place.carries]
        inits = [self.zeros(p.type) for p in params]
        extra = [self.value(p.type, p.name) for p in params]
        yields = [y for _, y in place.carries]
        body = Block((*body.params, *params), body.nodes, (*body.results, *yields))
        return (*operands, *inits), (*n.results, *extra), [body]

    # Sums -------------------------------------------------------------------------

    def sum(self, group: Group, t: Type, paddings: Paddings) -> Operand:
        """Build a group; see the note at the top and Note [rims]."""
        out = self.operand(group.base.value) if group.base else None
        inside = group.inside()
        is_all = group.hole is None and group.core == Box.whole(group.shape)
        if is_all and not group.alone:
            return self.total(inside, group.core, group, paddings, out)
        if out is None:
            out = self.zeros(Type(t.dtype, t.shape))
        replaces = group.base is None or group.base.hole is not None
        if inside:
            new = self.total(inside, group.core, group, paddings)
            out = self.put(out, new, group.core, adds=not replaces)
        elif group.base is not None:
            out = self.put(out, 0, group.core, adds=False)
        alone = [(p.box, (p,)) for p in group.alone]
        for box, pieces in (*group.rims, *alone):
            new = self.total(pieces, box, group, paddings)
            out = self.put(out, new, box, adds=True)
        return out

    def total(
        self,
        pieces: Sum,
        region: Box,
        group: Group,
        paddings: Paddings,
        start: Operand | None = None,
    ) -> Operand:
        """Add up what pieces are in a region, in order."""
        for p in pieces:
            x = self.read(p, region, group, paddings)
            if start is None:
                start = self.negative(x) if p.negated else x
            else:
                start = self.subtract(start, x) if p.negated else self.add(start, x)
        assert start is not None
        return start

    def read(self, p: Piece, region: Box, group: Group, paddings: Paddings) -> Operand:
        """Return a piece over a region, with zeros where it does not count."""
        part = part_of(p, group)
        region = region.moved(back(p.at))
        source = paddings.source[part]
        if source not in paddings.found:
            return self.window(self.operand(p.value), region)
        low = paddings.found[source].low
        corner = gaps(low, part.box.start)
        x = self.window(self.padded(source, paddings), region.moved(corner))
        steps = []
        v = part.value
        while v is not source.value:
            step = cheap_step(paddings.node_of[v])
            assert step is not None
            steps.append((step[0], v := step[1]))
        for n, v in reversed(steps):
            operands = tuple(x if y is v else y for y in n.operands)
            x = self.apply(n.op, operands, n.attrs)
        return x

    def padded(self, source: Part, paddings: Paddings) -> Value:
        """Return the padded copy of a part, made where it is first needed."""
        padding = paddings.found[source]
        if padding.copy is None:
            x = self.window(self.operand(source.value), source.box)
            t = Type(source.value.type.dtype, paddings.shape(source))
            base = self.scratch(t, source.value.name)
            middle = Box(tuple(padding.low), moved(source.box.shape, padding.low))
            padding.copy = self.put(base, x, middle, adds=False)
            if self.place.carries and self.place.carries[-1][0] is base:
                self.place.carries[-1] = (base, padding.copy)
        return padding.copy

    def scratch(self, t: Type, name: str) -> Value:
        """Return an array whose rim is zero, to be overwritten in the middle."""
        if not self.stays(t.shape):
            zeros = self.zeros(t)
            assert isinstance(zeros, Value)
            return zeros
        p = self.value(t, f"{name}_pad")
        self.place.carries.append((p, p))
        return p

    # Boxes of arrays ---------------------------------------------------------------

    def window(self, x: Operand, box: Box) -> Operand:
        """Return a box of an array, as slices; the same one for the same box."""
        assert isinstance(x, Value)
        found: Operand = x
        for axis in _cut(x, box):
            key = (found, axis, box.start[axis], box.shape[axis])
            if key not in self.place.windows:
                attrs = {"axis": axis, "size": box.shape[axis], "step": 1}
                new = self.slice(found, box.start[axis], **attrs)
                self.place.windows[key] = new
            found = self.place.windows[key]
        return found

    def put(self, x: Operand, new: Operand, box: Box, *, adds: bool) -> Any:
        """Replace a box of an array, or add to it: an axis at a time."""
        assert isinstance(x, Value)
        axes = _cut(x, box)
        if not axes and adds:
            return self.add(x, new)
        return self.put_along(x, new, box, axes or [0], adds)

    def put_along(
        self, x: Any, new: Any, box: Box, axes: Sequence[int], adds: bool
    ) -> Any:
        axis, *rest = axes
        start = box.start[axis]
        attrs = {"axis": axis, "size": box.shape[axis], "step": 1}
        if not rest:
            twin = self.slice_scatter_add if adds else self.slice_scatter
            return twin(x, new, start, **attrs)
        part = self.put_along(self.slice(x, start, **attrs), new, box, rest, adds)
        return self.slice_scatter(x, part, start, **attrs)


def _cut(x: Value, box: Box) -> list[int]:
    """Return the axes along which a box is not all of an array."""
    ends = zip(box.start, box.stop, x.type.shape, strict=True)
    return [k for k, (a, b, size) in enumerate(ends) if a != 0 or b != size]
