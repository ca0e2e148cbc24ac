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

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Dim, Expr, Facts, Strict, Symbol
from ..ir.func import Block, Func, Node, Operand, Value, free_values
from ..ir.op import Kind
from ..ir.types import Shape, Type
from .dce import dce
from .pieces import Box, Piece, Sum, Sums, Users, gaps, moved, uses_of
from .rules import is_number
from .scope import ScopedBuilder, defined_symbol

SMALL = 32  # elements below which a group stays as it is, where the size is known
READS = 2  # of a padded copy at least, for it to pay in a loop
READS_ONCE = 3  # and where it must be filled each time
CHEAP = 3  # flops that may be done again at every shift to share a padded copy


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


# ---------------------------------------------------------------- what a group is


@dataclass(frozen=True, slots=True)
class Group:
    """How a sum is computed: `pieces` over `core`, some over rims, the rest alone."""

    shape: Shape
    base: Piece | None
    core: Box
    pieces: tuple[Piece, ...]
    hole: Box | None
    rims: tuple[tuple[Box, tuple[Piece, ...]], ...]
    alone: tuple[Piece, ...]

    def reads(self) -> Iterator[tuple[Piece, Box]]:
        """Yield the pieces with the boxes they are read for."""
        yield from ((p, self.core) for p in self.inside())
        yield from ((p, p.box) for p in self.alone)
        for box, pieces in self.rims:
            yield from ((p, box) for p in pieces)

    def inside(self) -> tuple[Piece, ...]:
        return tuple(p for p in self.pieces if p.hole is None)


def group_of(v: Value, sums: Sums) -> Group | None:
    """Return how to compute a sum at once, or None where that does not pay."""
    whole = Box.whole(v.type.shape)
    pieces = _with_one_hole(sums.known[v], sums)
    at = next((k for k, p in enumerate(pieces) if _is_base(p, v)), None)
    base = None if at is None else pieces[at]
    rest = tuple(p for k, p in enumerate(pieces) if k != at)
    if len(rest) < 2 or all(p.box == whole and p.hole is None for p in pieces):
        return None
    holes = {p.hole for p in pieces if p.hole is not None}
    if len(holes) > 1:
        return None
    hole = next(iter(holes), None)
    near = _largest_class(rest) if hole is None else _near(hole, rest)
    alone = tuple(p for p in rest if p not in near)
    core = hole or _hull([p.box for p in near])
    if len(near) < 2 or any(p.hole for p in alone) or _is_small(core):
        return None
    rims = _rims(core, near) if hole else ()
    return Group(v.type.shape, base, core, near, hole, tuple(rims), alone)


def _with_one_hole(pieces: Sum, sums: Sums) -> Sum:
    """Return the pieces with the same hole, where one does for all that have one."""
    holes = {p.hole: None for p in pieces if p.hole is not None}
    for hole in holes if len(holes) > 1 else ():
        if all(p.hole is None or sums.is_same_in(p.box, p.hole, hole) for p in pieces):
            return tuple(replace(p, hole=p.hole and hole) for p in pieces)
    return pieces


def _is_base(p: Piece, v: Value) -> bool:
    """Tell whether a piece is an array that the sum can be computed in."""
    whole = Box.whole(v.type.shape)
    same = p.value.type == v.type.array() and p.box == whole and p.at == whole.start
    return same and not p.negated


def _is_small(core: Box) -> bool:
    count = dims.product(core.shape)
    return isinstance(count, int) and count < SMALL


def _near(ref: Box, pieces: Sum) -> Sum:
    """Return the pieces whose boxes differ from `ref` by numbers at every end."""

    def is_near(p: Piece) -> bool:
        ends = (*gaps(p.box.start, ref.start), *gaps(p.box.stop, ref.stop))
        return all(isinstance(d, int) for d in ends)

    return tuple(p for p in pieces if is_near(p))


def _largest_class(pieces: Sum) -> Sum:
    return max((_near(p.box, pieces) for p in pieces), key=len)


def _hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box around boxes that are near each other."""
    first = boxes[0]
    starts = zip(*(_ints(b.start, first.start) for b in boxes), strict=True)
    stops = zip(*(_ints(b.stop, first.stop) for b in boxes), strict=True)
    low, high = [min(d) for d in starts], [max(d) for d in stops]
    return Box(moved(first.start, low), moved(first.stop, high))


def _ints(a: Sequence[Dim], b: Sequence[Dim]) -> list[int]:
    found = gaps(a, b)
    assert all(isinstance(d, int) for d in found)
    return [d for d in found if isinstance(d, int)]


def _rims(core: Box, pieces: Sum) -> Iterator[tuple[Box, Sum]]:
    """Yield the boxes around the core, with what reaches there; see Note [rims]."""
    for axis in range(len(core.start)):
        for above in (False, True):
            beyond = [p for p in pieces if _reaches(p, core, axis, above)]
            if beyond:
                hull = _hull([p.box for p in beyond])
                start = [*core.start[:axis], *hull.start[axis:]]
                stop = [*core.stop[:axis], *hull.stop[axis:]]
                if above:
                    start[axis] = core.stop[axis]
                else:
                    stop[axis] = core.start[axis]
                yield Box(tuple(start), tuple(stop)), tuple(beyond)


def _reaches(p: Piece, core: Box, axis: int, above: bool) -> bool:
    if above:
        return _ints(p.box.stop, core.stop)[axis] > 0
    return _ints(p.box.start, core.start)[axis] < 0


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


# ---------------------------------------------------------------- padded copies


Ends: TypeAlias = tuple[list[int], list[int]]  # at the low and high end of each axis


@dataclass(frozen=True, slots=True)
class Part:
    """What is read of a value: all of it, or a box."""

    value: Value
    box: Box

    def beyond(self, region: Box, facts: Facts) -> Ends:
        """Return how far a region, in the value's indices, goes beyond each end."""
        here, there = self.box, region
        low = gaps(here.start, there.start), gaps(here.stop, there.start)
        high = gaps(there.stop, here.stop), gaps(there.stop, here.start)
        return (
            [_most(a, b, facts) for a, b in zip(*low, strict=True)],
            [_most(a, b, facts) for a, b in zip(*high, strict=True)],
        )


def _most(gap: Dim, if_empty: Dim, facts: Facts) -> int:
    """Return by how much an end is exceeded, at most: what it is for an empty part."""
    if isinstance(gap, int):
        return max(gap, 0)
    if facts.proves(dims.mul(gap, -1)):
        return 0
    assert isinstance(if_empty, int)
    return max(if_empty, 0)


def _back(at: Shape) -> Shape:
    return tuple(dims.mul(d, -1) for d in at)


def part_of(p: Piece, group: Group) -> Part:
    """Return the part of its value that a piece adds, as a box of the value.

    Where the sum ends before the value does, the value is not cut: nothing is read
    there, and parts that are equal can share a padded copy.
    """
    start, stop = [], []
    for k, size in enumerate(p.value.type.shape):
        low, high = p.at[k], dims.add(p.at[k], size)
        cut = p.box.start[k] != 0 or _far(low, group.core.start[k])
        start.append(dims.add(p.box.start[k], dims.mul(low, -1)) if cut else 0)
        cut = p.box.stop[k] != group.shape[k] or _far(high, group.core.stop[k])
        stop.append(dims.add(p.box.stop[k], dims.mul(low, -1)) if cut else size)
    return Part(p.value, Box(tuple(start), tuple(stop)))


def _far(a: Dim, b: Dim) -> bool:
    return not isinstance(dims.add(a, dims.mul(b, -1)), int)


@dataclass(slots=True)
class Padding:
    """How many zeros a part needs at its ends, and the copy that has them."""

    low: list[int]
    high: list[int]
    copy: Value | None = None

    @staticmethod
    def none(ndim: int) -> Padding:
        return Padding([0] * ndim, [0] * ndim)

    def cover(self, ends: Iterable[Ends]) -> None:
        for low, high in ends:
            self.low = list(map(max, self.low, low))
            self.high = list(map(max, self.high, high))


class Paddings:
    """The padded copies that the groups of a block read; shared where possible."""

    def __init__(self, groups: Iterable[Group], sums: Sums) -> None:
        self.node_of = sums.node_of
        self.source: dict[Part, Part] = {}
        self.found: dict[Part, Padding] = {}
        ends: dict[Part, list[Ends]] = {}
        for group in groups:
            for p, region in group.reads():
                part = part_of(p, group)
                end = part.beyond(region.moved(_back(p.at)), sums.facts)
                ends.setdefault(part, []).append(end)
        needy = [part for part, e in ends.items() if any(map(any, itertools.chain(*e)))]
        wanted = Counter(s for part in needy for s in self.sources(part))
        for part in needy:
            shared = (s for s in self.sources(part) if wanted[s] > 1)
            self.source[part] = source = next(shared, part)
            padding = self.found.setdefault(source, Padding.none(len(part.box.start)))
            padding.cover(ends[part])
        for part in ends:  # read from a copy that is there anyway
            padded = (s for s in self.sources(part) if s in self.found)
            self.source.setdefault(part, next(padded, part))

    def sources(self, part: Part) -> Iterator[Part]:
        """Yield the part, and parts that it can be computed from after padding."""
        yield part
        v, cost = part.value, 0
        while (step := cheap_step(self.node_of.get(v))) is not None:
            node, v = step
            cost += node.op.cost
            if cost > CHEAP:
                return
            yield replace(part, value=v)

    def shape(self, source: Part) -> Shape:
        """Return the shape of the padded copy of a part."""
        padding = self.found[source]
        return moved(moved(source.box.shape, padding.low), padding.high)


def cheap_step(n: Node | None) -> tuple[Node, Value] | None:
    """Return a node that maps zero to zero, element by element, and its operand."""
    if n is None or n.op.kind is not Kind.ELEMENTWISE or n.attrs:
        return None
    values = [x for x in n.operands if isinstance(x, Value)]
    if len(values) != 1 or any(isinstance(x, Expr) for x in n.operands):
        return None
    (v,) = values
    if v.type.array() != n.result.type.array() or v.type.dtype.kind != "f":
        return None
    zero = np.zeros((), v.type.dtype)
    with np.errstate(all="ignore"):
        image = n.op.eager(*(zero if x is v else x for x in n.operands))
    return (n, v) if is_number(abs(float(image)), 0.0) else None


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
        chosen, paddings = self.paying(block)
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
        region = region.moved(_back(p.at))
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
