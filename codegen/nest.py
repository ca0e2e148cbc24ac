"""One loop nest from nodes over one index space.

The space is the shape of what is stored, or of what is reduced, without axes of size 1.
Values inside the group are computed at the index where they are wanted, once for each
index; results are stored, folded into accumulators, or written through a scatter's
index map. Stores come last in an iteration, so that an element may be computed in
place of one that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..ir import dims
from ..ir.access import (
    Index,
    base_index,
    canonical,
    gather_index,
    gathered_shape,
    indices_of,
    linear,
    negative_power,
    part_type,
    place,
    project,
    space_of,
    view_of,
)
from ..ir.dims import Dim, Symbol
from ..ir.errors import IndexRangeError, InternalError, RetrogradeError, ShapeError
from ..ir.func import Node, Operand, Value, type_of
from ..ir.op import Fold, Kind
from ..ir.types import BOOL, I64, DType, Shape, promote
from .collapse import collapse
from .folds import BLOCK, Axis, Reduce, fold, suffix
from .kernels import Stored, at, cast, compare, either, supported, whole, wrap
from .nests import (
    Apply,
    Bind,
    Buffer,
    Fill,
    Lit,
    Load,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
)
from .tiles import Tiling, tiling

if TYPE_CHECKING:
    from .kernels import Lowering

KINDS = frozenset(
    {Kind.ELEMENTWISE, Kind.REDUCTION, Kind.CREATION, Kind.SCATTER, Kind.GATHER}
)
_FIELD = re.compile(r"\{i(\d+)\}")


class NegativePowerError(RetrogradeError, ValueError):
    """An integer to a negative integer power, which has no integer value."""


class Nest:
    """Collects the statements of the innermost body."""

    def __init__(self, low: Lowering, nodes: Sequence[Node], axes: list[Axis]) -> None:
        self.low = low
        self.inside = {v: node for node in nodes for v in node.results}
        self.axes = axes
        self.memo: dict[tuple[Value, Index], Scalar] = {}
        self.flags: dict[Node, Reg] = {}
        self.given: dict[Node, tuple[Dim, ...]] = {}
        self.stores: list[Statement] = []
        self.reductions: list[Reduce] = []
        self.scalars: dict[Value, Scalar] = {}
        self.before: list[Statement] = []

    @property
    def index(self) -> list[Dim]:
        return [a.index for a in self.axes]

    def element(self, x: Operand, index: Index) -> Scalar:
        """Return the element of an operand at an index, computed if need be."""
        node = self.inside.get(x) if isinstance(x, Value) else None
        if node is None or not isinstance(x, Value):
            found = self.low.element(x, index)
            if not isinstance(found, Load) or not isinstance(x, Value):
                return found
            key = (x, index)
            if key not in self.memo:
                self.memo[key] = self.low.let(found)
            return self.memo[key]
        key = (x, index)
        known = self.memo.get(key)
        if known is None:
            known = self.low.let(self.compute(node, x, index))
            self.memo[key] = known
        return known

    def compute(self, node: Node, v: Value, index: Index) -> Scalar:
        supported(v.type.dtype)
        match node.op.kind:
            case Kind.VIEW:
                base = node.operands[0]
                return self.element(base, base_index(node, index, self.known(node)))
            case Kind.GATHER:
                found = self.gathered(node, index)
                return self.element(node.operands[0], found)
            case Kind.CREATION:
                return self.created(node, v, index)
            case Kind.ELEMENTWISE | Kind.COPY:
                return self.applied(node, v, index)
            case _:
                raise InternalError(f"{node.op.name} inside a nest")

    def first(self, x: Operand, index: Index, over: frozenset[Symbol]) -> Scalar | None:
        """Return the first element of a fold over some loops, if it is in memory."""
        found = None if x in self.inside else self.low.element(x, index)
        return found if isinstance(found, Load) else None

    def known(self, node: Node) -> tuple[Dim, ...]:
        """Return the checked index operands; the checks stand before the nest."""
        if node not in self.given:
            inner, self.low.body = self.low.body, self.before
            self.given[node] = self.low.given(node)
            self.low.body = inner
        return self.given[node]

    def applied(self, node: Node, v: Value, index: Index) -> Scalar:
        template = node.op.lower
        assert isinstance(template, str)
        shape = v.type.shape
        args = [
            self.element(x, project(index, shape, type_of(x).shape))
            for x in node.operands
        ]
        return apply(self.low, node, v.type.dtype, args, self.before)

    def created(self, node: Node, v: Value, index: Index) -> Scalar:
        template = node.op.lower
        assert isinstance(template, str)
        args = [self.element(x, ()) for x in node.operands]
        used = sorted({int(k) for k in _FIELD.findall(template)})
        count = len(args)
        for n, k in enumerate(used):
            template = template.replace(f"{{i{k}}}", f"{{{count + n}}}")
            args.append(at(index[k]))
        if node.op.arbitrary:
            return Lit(np.zeros((), v.type.dtype).item(), v.type.dtype)
        if template == "{0}":
            return cast(args[0], v.type.dtype)
        return Apply(template, tuple(args), v.type.dtype)

    def gathered(self, node: Node, index: Index) -> Index:
        """Return the index of a gather's base; a flag notes what is out of range."""
        shape = gathered_shape(node)
        position = node.attrs["position"]
        part = index[position : position + len(shape)]
        base = type_of(node.operands[0]).shape
        found = []
        for axis, x in zip(node.attrs["axes"], indices_of(node), strict=True):
            size = at(base[axis])
            raw = self.element(x, project(part, shape, type_of(x).shape))
            i = self.low.let(wrap(self.low.let(cast(raw, I64)), size))
            zero = Lit(0, I64)
            bad = self.low.let(either(compare("<", i, zero), compare(">=", i, size)))
            flag = self.flag(node, axis, base)
            self.low.emit(Set(flag.name, either(flag, bad)))
            s, d = self.low.symbol("g")
            self.low.emit(Bind(s, Apply("where({0}, {1}, {2})", (bad, zero, i), I64)))
            found.append(d)
        return gather_index(node, index, found)

    def flag(self, node: Node, axis: int, base: Shape) -> Reg:
        if node not in self.flags:
            name = self.low.fresh("bad")
            self.before.append(Set(name, Lit(False, BOOL)))
            self.flags[node] = Reg(name, BOOL)
            empty = [k for k in node.attrs["axes"] if not self.low.nonempty(base[k])]
            if empty:  # then no index is in range, not even 0
                sizes = [compare("==", at(base[k]), Lit(0, I64)) for k in empty]
                runs = at(dims.product(space_of(node)))
                some = compare("!=", runs, Lit(0, I64))
                inner, self.low.body = self.low.body, self.before
                bad = Apply("({0} & {1})", (either(*sizes), some), BOOL)
                self.fail_gather(node, bad)
                self.low.body = inner
        return self.flags[node]

    def fail_gather(self, node: Node, bad: Scalar) -> None:
        shown = type_of(node.operands[0])
        self.low.fail_where(
            bad,
            IndexRangeError,
            f"{node.op.name}: an index is out of bounds for axes "
            f"{node.attrs['axes']} of {shown}",
            node.loc,
        )


def apply(
    low: Lowering,
    node: Node,
    dtype: DType,
    args: Sequence[Scalar],
    before: list[Statement] | None = None,
) -> Scalar:
    """Apply an elementwise op's template to scalars."""
    template = node.op.lower
    assert isinstance(template, str)
    if node.op.computes is not None:
        wanted = node.op.computes(*map(type_of, node.operands))
        for d in wanted:
            supported(d)
        args = [cast(a, d) for a, d in zip(args, wanted, strict=True)]
    if template == "{0}":
        return cast(args[0], dtype)
    if negative_power(node):
        low.fail_where(
            compare("<", low.let(args[1]), Lit(0, args[1].dtype)),
            NegativePowerError,
            f"{node.op.name}: integers to negative integer powers are not allowed",
            node.loc,
        )
    return Apply(template, tuple(args), dtype)


# ---------------------------------------------------------------- lowering a group


def lower(
    low: Lowering,
    nodes: Sequence[Node],
    results: Sequence[Operand],
    outs: Sequence[Value],
    order: Sequence[int] = (),
) -> None:
    """Lower a group: `results` are computed by `nodes` and become the values `outs`.

    `order` has a 1 or -1 for each loop, for the direction in which it must run.
    """
    inside = {v: node for node in nodes for v in node.results}
    roots: list[tuple[Value, Node, Value]] = []
    for r, out in zip(results, outs, strict=True):
        node = inside.get(r) if isinstance(r, Value) else None
        if node is None or not isinstance(r, Value):
            _pass_on(low, r, out)
        else:
            roots.append((r, node, out))
    for space, members in _by_space(roots).items():
        _nest(low, nodes, space, members, order)


def _pass_on(low: Lowering, r: Operand, out: Value) -> None:
    """Define a result that the region does not compute."""
    place = low.values[r] if isinstance(r, Value) else low.element(r, ())
    low.values[out] = place


def _by_space(
    roots: Sequence[tuple[Value, Node, Value]],
) -> dict[Shape, list[tuple[Value, Node, Value]]]:
    """Group the results by index space."""
    spaces: dict[Shape, list[tuple[Value, Node, Value]]] = {}
    for root in roots:
        spaces.setdefault(space_of(root[1]), []).append(root)
    return spaces


def _nest(
    low: Lowering,
    nodes: Sequence[Node],
    space: Shape,
    roots: Sequence[tuple[Value, Node, Value]],
    steps: Sequence[int] = (),
) -> None:
    each = steps or (1,) * len(space)
    axes = [Axis(*low.symbol("i"), d, s) for d, s in zip(space, each, strict=True)]
    nest = Nest(low, nodes, axes)
    nest.before = low.body
    buffers = [buffer_of(low, node, out) for _, node, out in roots]
    with low.into() as body:
        _warm(nest, nodes, space)
        for (r, node, out), b in zip(roots, buffers, strict=True):
            _root(nest, r, node, out, b)
    if body or nest.stores or nest.reductions:
        _assemble(nest, axes, body)
    for node, flag in nest.flags.items():
        nest.fail_gather(node, flag)
    for (_, node, out), b in zip(roots, buffers, strict=True):
        _define(nest, node, out, b)


def buffer_of(low: Lowering, node: Node, out: Value) -> Buffer | None:
    """Return the buffer of a result, with the base of a scatter in it."""
    t = out.type
    if node.op.kind is not Kind.SCATTER:
        return low.target(out) if t.shape else None
    if not t.shape:
        b = low.allocate(t.dtype, ())
        low.emit(Store(b, 0, cast(low.element(node.operands[0], ()), t.dtype)))
        return b
    b = low.target(out)
    base = node.operands[0]
    known = low.values[base] if isinstance(base, Value) else None
    if not isinstance(known, Stored):  # one number at every index
        low.emit(Fill(b, 0, t.size, cast(low.element(base, ()), t.dtype)))
    elif known.buffer is not b and base not in low.blank:
        low.copy_into(b, known)
    return b


def _define(nest: Nest, node: Node, out: Value, b: Buffer | None) -> None:
    low = nest.low
    if b is not None:
        low.define(out, whole(b, out.type.shape))
        return
    for r in nest.reductions:
        if r.node is node:
            low.values[out] = Reg(r.name, out.type.dtype)
            return
    low.values[out] = nest.scalars[out]


def _warm(nest: Nest, nodes: Sequence[Node], space: Shape) -> None:
    """Compute the nodes in order: no deep recursion, and a readable listing."""
    for node in nodes:
        if node.op.kind in (Kind.REDUCTION, Kind.SCATTER, Kind.CREATION, Kind.VIEW):
            continue
        v = node.result
        if canonical(v.type.shape) == space:
            nest.element(v, place(v.type.shape, nest.index))


def _root(nest: Nest, r: Value, node: Node, out: Value, b: Buffer | None) -> None:
    low = nest.low
    match node.op.kind:
        case Kind.CREATION if node.op.arbitrary and b is not None:
            low.blank.add(out)
        case Kind.REDUCTION:
            reduction(nest, node, None if b is None else whole(b, out.type.shape))
        case Kind.SCATTER:
            assert b is not None
            scatter(nest, node, whole(b, out.type.shape))
        case _:
            shape = r.type.shape
            index = place(shape, nest.index)
            x = cast(nest.element(r, index), out.type.dtype)
            if b is None:
                nest.scalars[out] = low.let(x)
            else:
                nest.stores.append(Store(b, linear(index, shape), x))


def reduction(nest: Nest, node: Node, memory: Stored | None) -> Reduce:
    """Add a fold to the nest; its results go to `memory`, or stay in a register."""
    fold = node.op.lower
    assert isinstance(fold, Fold)
    assert node.op.computes is not None
    (x,) = node.operands
    t = type_of(x)
    index = place(t.shape, nest.index)
    (wanted,) = node.op.computes(t)
    supported(wanted)
    value = cast(nest.element(x, index), wanted)
    axis = node.attrs["axis"]
    keep = node.attrs.get("keepdims", False)
    loops = iter(nest.axes)
    over = frozenset(
        a.symbol
        for k, a in ((k, next(loops)) for k, d in enumerate(t.shape) if d != 1)
        if k in axis
    )
    where = tuple(
        0 if k in axis else i for k, i in enumerate(index) if keep or k not in axis
    )
    offset = memory.at(where) if memory is not None else 0
    b = memory.buffer if memory is not None else None
    r = Reduce(node, fold, value, over, b, offset)
    nest.reductions.append(r)
    level = suffix(nest.axes, over)
    if fold.start == "first" and level + len(over) == len(nest.axes):
        zeros = [0 if a.symbol in over else a.index for a in nest.axes]
        found = nest.first(x, place(t.shape, zeros), over)
        if over and found is not None:
            # Taken twice: a fold that starts with an element is idempotent.
            r.first = cast(found, wanted)
    if fold.start == "first":
        _need_elements(nest, node, t.shape)
    return r


def _need_elements(nest: Nest, node: Node, shape: Shape) -> None:
    """Check that a reduction which needs a first element has one."""
    low = nest.low
    empty = [k for k in node.attrs["axis"] if not low.nonempty(shape[k])]
    if not empty:
        return
    bad = either(*(compare("==", at(shape[k]), Lit(0, I64)) for k in empty))
    some = compare("!=", at(node.result.type.size), Lit(0, I64))
    inner, low.body = low.body, nest.before
    low.fail_where(
        Apply("({0} & {1})", (bad, some), BOOL),
        ShapeError,
        f"{node.op.name}: zero-size array has no identity, {type_of(node.operands[0])}",
        node.loc,
    )
    low.body = inner


def scatter(nest: Nest, node: Node, memory: Stored) -> None:
    """Store what a scatter writes into memory that holds its base."""
    x, new = node.operands[:2]
    base = type_of(x)
    part = part_type(node).shape
    index = place(part, nest.index)
    if view_of(node).kind is Kind.GATHER:
        where = nest.gathered(node, index)
    else:
        where = base_index(node, index, nest.known(node))
    offset = memory.at(where)
    value = nest.element(new, project(index, part, type_of(new).shape))
    if node.op.accumulates:
        dtype = promote(base, type_of(new)).dtype
        old: Scalar = Load(memory.buffer, offset, base.dtype)
        value = Apply("({0} + {1})", (cast(old, dtype), cast(value, dtype)), dtype)
    nest.stores.append(Store(memory.buffer, offset, cast(value, base.dtype)))


# ---------------------------------------------------------------- loops around a body


def _assemble(nest: Nest, axes: list[Axis], body: list[Statement]) -> None:
    """Put the loops around the body, and starts and ends of folds between them."""
    low = nest.low
    body.extend(nest.stores)
    axes = collapse(low.rows, axes, body, nest.reductions)
    overlaps = any(n.op.overlapping for n in nest.inside.values())
    tiles = Tiling(axes) if overlaps else tiling(axes, body, nest.reductions)
    axes, depth = tiles.axes, len(axes)
    before: list[list[Statement]] = [[] for _ in range(depth + 1)]
    after: list[list[Statement]] = [[] for _ in range(depth + 1)]
    opening: list[Statement] = []
    closing: list[Statement] = []
    for r in nest.reductions:
        fold(low, r, axes, body, before, after, opening, closing)
    last = axes[-1] if axes else None
    if tiles.tiled:
        body = tiles.loops(low, body, opening, closing)
        depth -= 2
    for k in reversed(range(depth)):
        a = axes[k]
        loop = a.loop(body)
        if a is last and opening:
            loop.block, loop.opening, loop.closing = BLOCK, opening, closing
        body = [*before[k], loop, *after[k]]
    if not depth:
        body = [*before[0], *body, *after[0]]
    low.body.extend(body)
