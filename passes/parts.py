"""Compute an array that is put together from parts part by part.

Before: a pure Func, after `cancel`. After: the same values, up to the order of float
additions. An array whose slices were written has parts: the slices, and the rest of
what they were written into. Elementwise functions of such an array, and its sums, are
computed from the parts, so that no pass over the whole array stands between the writes
and what reads them, and zeros that are written over are never stored:

    %z: f64[n] = full 0.0                            %y = multiply %a, 2.0
    %p: f64[n] = slice_scatter %z, %a, 0 {size=m}    %z = multiply %b, 2.0
    %q: f64[n] = slice_scatter %p, %b, m {size=n-m}  %s = add (sum %y), (sum %z)
    %r: f64[n] = multiply %q, 2.0
    %s: f64 = sum %r {axis=(0,)}

What needs such an array in memory gets it: the parts are written into new memory, or
into what the first of them was written into.

Note [what is split]
Parts are slices of one axis: intervals, or every k-th element from each of the first k.
The first write goes into a value that is equal everywhere, or into a parameter that
keeps its value, so that nothing is computed twice and no buffer is lost that could have
been reused. An elementwise node is split where all that uses it is split too, or needs
it in memory anyway, and where no operand would have to be stored for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import dims
from ..ir.access import view_of, volume
from ..ir.dims import Dim, Facts
from ..ir.func import Block, Func, Node, Operand, Value, type_of, walk
from ..ir.op import OPS, Fold, Kind
from ..ir.types import Shape, Type
from ..ir.verify import loop_facts
from .cse import cse
from .dce import dce
from .rules import FULL, RULES, is_dim, is_number, number_for_full, view_of_full
from .scope import values_of
from .simplify import Rewriter

SLICE = OPS["slice"]
MOST_PARTS = 4
MOST_NODES = 40  # that are split; each comes once per part
SUM = "({acc} + {x})"


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of an axis."""

    start: Dim
    size: Dim
    step: Dim = 1

    @property
    def stop(self) -> Dim:
        return dims.add(self.start, self.size)


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of an array along an axis; they cover it, and no two overlap."""

    axis: int
    parts: tuple[Part, ...]

    def refined(self, p: Part, facts: Facts) -> Cut | None:
        """Return a cut of which `p` is a part, where all others are cut less."""
        if p.size == 0:
            return None
        if p in self.parts:
            return self
        for k, q in enumerate(self.parts):
            found = _around(p, q, facts)
            if found is not None:
                parts = (*self.parts[:k], *found, *self.parts[k + 1 :])
                return Cut(self.axis, parts) if len(parts) <= MOST_PARTS else None
        return None


def _around(p: Part, q: Part, facts: Facts) -> tuple[Part, ...] | None:
    """Return `p` and the rest of `q`, if `p` is a slice of it of a known form."""
    if q.step != 1:
        return None
    if p.step == 1:
        left = dims.add(p.start, dims.mul(q.start, -1))
        right = dims.add(q.stop, dims.mul(p.stop, -1))
        if not (facts.proves(left) and facts.proves(right)):
            return None
        three = (Part(q.start, left), p, Part(p.stop, right))
        return tuple(x for x in three if x.size != 0)
    if not isinstance(p.step, int) or p.step < 1 or q.start != 0:
        return None
    found = tuple(
        Part(k, dims.floordiv(dims.add(q.size, p.step - 1 - k), p.step), p.step)
        for k in range(p.step)
    )
    return found if p in found else None


def parts(f: Func) -> Func:
    """Return `f` with arrays in parts computed part by part."""
    if f.stage == "traced" or not any(_part(n) for n in walk(f.body)):
        return f
    updated = {f.params[j] for _, j in f.updates}
    kept = [p for p in f.params if p not in updated]
    cuts = dict(_cuts(f.body, f.size_facts(), kept))
    return dce(cse(_Splitter(f, cuts).func(f))) if cuts else f


def _part(node: Node) -> Part | None:
    """Return the part of its base that a node writes, or shows, if it is a slice."""
    scatters = node.op.kind is Kind.SCATTER
    if view_of(node) is not SLICE or not is_dim(node.operands[1 + scatters]):
        return None
    start: Any = node.operands[1 + scatters]
    return Part(start, node.attrs["size"], node.attrs.get("step", 1))


def _cuts(
    block: Block, facts: Facts, kept: Collection[Value]
) -> Iterator[tuple[Value, Cut]]:
    """Yield the values that are split, in a block and its regions."""
    yield from _Cutter(block, facts, kept).cuts().items()
    for node in block.nodes:
        inner = facts
        if node.op.kind is Kind.FOR:
            inner = facts.having(*loop_facts(node))
        for region in node.regions:
            yield from _cuts(region, inner, ())


class _Cutter:
    """Decides what is split in one block; see Note [what is split]."""

    def __init__(self, block: Block, facts: Facts, kept: Collection[Value]) -> None:
        self.block, self.facts, self.kept = block, facts, kept
        self.maker = {v: n for n in block.nodes for v in n.results}
        self.users: dict[Value, list[Node]] = {}
        for n in block.nodes:
            for v in set(values_of(n)):
                self.users.setdefault(v, []).append(n)
        self.refused: set[Value] = set()
        self.cut: dict[Value, Cut] = {}

    def cuts(self) -> Mapping[Value, Cut]:
        if not any(n.op.kind is Kind.SCATTER and _part(n) for n in self.block.nodes):
            return {}
        while True:
            self.find()
            bad = {n.result for n in self.split_nodes() if not self.pays(n)}
            if not bad:
                break
            self.refused |= bad
        if sum(1 for _ in self.split_nodes()) > MOST_NODES:
            return {}
        useful = self.useful()
        return {v: c for v, c in self.cut.items() if v in useful}

    def useful(self) -> set[Value]:
        """Return what is split to some end: parts are used, or zeros are not stored."""
        found: set[Value] = set()
        for n in reversed(self.block.nodes):
            v = n.results[0] if n.results else None
            if v not in self.cut:
                continue
            users = self.users.get(v, ())
            if n.op.kind is Kind.ELEMENTWISE or self.is_over_number(n.operands[0]):
                found.add(v)
            elif any(self.uses_parts(u, v) or found & {*u.results} for u in users):
                found.add(v)
        return found

    def is_over_number(self, x: Operand) -> bool:
        """Tell whether writes go into a number that would be stored everywhere."""
        maker = self.maker.get(x) if isinstance(x, Value) else None
        if maker is not None and maker.op.kind is Kind.SCATTER:
            return maker.result in self.cut and self.is_over_number(maker.operands[0])
        return maker is not None and maker.op is FULL

    def uses_parts(self, u: Node, v: Value) -> bool:
        """Tell whether a user computes with the parts of a value."""
        cut = self.cut[v]
        if u.op.kind is Kind.REDUCTION:
            return sums(u, cut.axis)
        if u.op.kind is Kind.VIEW:
            return _part(u) in cut.parts and u.attrs["axis"] == cut.axis
        return self.cut_by(u, v) is not None

    def split_nodes(self) -> Iterator[Node]:
        """Yield the elementwise nodes that are split."""
        yield from (
            n
            for n in self.block.nodes
            if n.op.kind is Kind.ELEMENTWISE and n.result in self.cut
        )

    def find(self) -> None:
        self.cut = {}
        for n in self.block.nodes:
            found = None
            if n.op.kind is Kind.SCATTER:
                found = self.of_scatter(n)
            elif _may_split(n) and n.result not in self.refused:
                found = self.of_elementwise(n)
            if found is not None:
                self.cut[n.result] = found
        for n in reversed(self.block.nodes):
            if not _may_split(n) or n.result in self.cut or n.result in self.refused:
                continue
            cuts = {self.cut_by(u, n.result) for u in self.users.get(n.result, ())}
            if len(cuts) == 1 and n.result not in self.block.results:
                (cut,) = cuts
                if cut is not None:
                    self.cut[n.result] = cut

    def of_scatter(self, n: Node) -> Cut | None:
        p, base, new = _part(n), n.operands[0], n.operands[1]
        if p is None or not isinstance(base, Value) or base.type != n.result.type:
            return None
        t, axis = base.type, n.attrs["axis"]
        if isinstance(new, Value) and new.type != _part_type(t, axis, p):
            return None
        cut = self.cut.get(base)
        if cut is None and self.is_root(base):
            cut = Cut(axis, (Part(0, t.shape[axis]),))
        if cut is None or cut.axis != axis:
            return None
        return cut.refined(p, self.facts)

    def is_root(self, x: Value) -> bool:
        return x in self.kept or _is_blank(self.maker.get(x))

    def of_elementwise(self, n: Node) -> Cut | None:
        cuts = {
            self.cut[x]
            for x in n.operands
            if isinstance(x, Value) and x in self.cut and self.spans(x, n)
        }
        return cuts.pop() if len(cuts) == 1 else None

    def spans(self, x: Operand, n: Node) -> bool:
        return type_of(x).shape == n.result.type.shape

    def cut_by(self, user: Node, x: Value) -> Cut | None:
        """Return the cut of an elementwise user that reads `x` element by element."""
        if user.op.kind is not Kind.ELEMENTWISE or not self.spans(x, user):
            return None
        return self.cut.get(user.result)

    def pays(self, n: Node) -> bool:
        """Tell whether all around a node lets it be split without more memory."""
        v = n.result
        users = self.users.get(v, ())
        return all(self.is_there(x, n) for x in n.operands) and all(
            self.takes_parts(u, v) for u in users
        )

    def is_there(self, x: Operand, n: Node) -> bool:
        """Tell whether an operand is split too, or in memory anyway."""
        if not isinstance(x, Value) or self.cut.get(x) == self.cut[n.result]:
            return True
        maker = self.maker.get(x)
        if maker is None or not x.type.shape:
            return True
        return maker.op.kind not in (Kind.ELEMENTWISE, Kind.GATHER)

    def takes_parts(self, u: Node, v: Value) -> bool:
        """Tell whether a user takes the parts of a value, or needs it in memory."""
        match u.op.kind:
            case Kind.ELEMENTWISE:
                return self.cut_by(u, v) == self.cut[v]
            case Kind.REDUCTION:
                return sums(u, self.cut[v].axis)
            case Kind.SCATTER:
                return u.operands[0] is v and v not in u.operands[1:]
            case Kind.GATHER:
                return u.operands[0] is v
            case _:
                return True


def _may_split(n: Node) -> bool:
    return (
        n.op.kind is Kind.ELEMENTWISE
        and len(n.results) == 1
        and bool(n.result.type.shape)
    )


def _is_blank(n: Node | None) -> bool:
    """Tell whether a node makes an array of one number, or of none."""
    if n is None or n.op.kind is not Kind.CREATION:
        return False
    return n.op.arbitrary or n.op is FULL


def _part_type(t: Type, axis: int, p: Part) -> Type:
    shape = tuple(p.size if k == axis else d for k, d in enumerate(t.shape))
    return Type(t.dtype, shape)


def sums(node: Node, axis: int) -> bool:
    """Tell whether a node adds up what lies along an axis."""
    fold = node.op.lower
    return isinstance(fold, Fold) and fold.step == SUM and axis in node.attrs["axis"]


class _Splitter(Rewriter):
    """Rewrites a Func; `parts` has the parts of what was not made as a whole."""

    def __init__(self, f: Func, cuts: Mapping[Value, Cut]) -> None:
        super().__init__(f, {SLICE: RULES[SLICE]}, (view_of_full, number_for_full))
        self.cuts = cuts
        self.parts: dict[Value, list[Operand]] = {}
        # What a value was written into, and the parts that were not written.
        self.rest: dict[Value, tuple[Value, set[Part]]] = {}

    def operand(self, x: Operand) -> Operand:
        if isinstance(x, Value) and x in self.parts and x not in self.values:
            self.values[x] = self.joined(x)
        return super().operand(x)

    def joined(self, v: Value) -> Any:
        """Write the parts of a value into memory."""
        cut, t = self.cuts[v], v.type
        whole: Any
        whole, rest = self.rest.get(v, (None, set()))
        if whole is None:
            whole = self.apply(OPS["empty"], (), {"shape": t.shape, "dtype": t.dtype})
        scatter = OPS[SLICE.scatter or ""]
        parts = zip(cut.parts, self.parts[v], strict=True)
        # The largest first, so that nothing stands between it and what computes it.
        for p, x in sorted(parts, key=lambda part: -volume((part[0].size,))):
            if p not in rest:
                operands = (whole, x, p.start)
                whole = self.apply(scatter, operands, _attrs(cut.axis, p), hint=v.name)
        return whole

    def node(self, n: Node) -> None:
        self.loc = n.loc
        for used in dict.fromkeys(values_of(n)) if n.regions else ():
            self.operand(used)  # what the regions use is made in front of the node
        if len(n.results) == 1 and n.result in self.cuts:
            make = self.scatter if n.op.kind is Kind.SCATTER else self.elementwise
            self.parts[n.result] = make(n, self.cuts[n.result])
            return
        x: Operand = n.operands[0] if n.operands else 0
        if isinstance(x, Value) and x in self.parts:
            cut = self.cuts[x]
            if n.op.kind is Kind.REDUCTION and sums(n, cut.axis):
                self.values[n.result] = self.total(n, self.parts[x])
                return
            p = _part(n) if n.op.kind is Kind.VIEW else None
            if p in cut.parts and n.attrs["axis"] == cut.axis:
                self.values[n.result] = self.parts[x][cut.parts.index(p)]
                return
        super().node(n)

    def total(self, n: Node, parts: Sequence[Operand]) -> Any:
        first, *others = (self.apply(n.op, (x,), n.attrs) for x in parts)
        for x in others:
            first = self.add(first, x)
        return first

    def elementwise(self, n: Node, cut: Cut) -> list[Operand]:
        shape = n.result.type.shape
        made = []
        for k in range(len(cut.parts)):
            operands = [self.at(x, shape, cut, k) for x in n.operands]
            made.append(self.apply(n.op, operands, n.attrs, hint=n.result.name))
        return made

    def at(self, x: Operand, shape: Shape, cut: Cut, k: int) -> Any:
        """Return what an operand of an elementwise node has in a part of the result."""
        if isinstance(x, Value) and self.cuts.get(x) == cut and x.type.shape == shape:
            return self.parts[x][k]
        t = type_of(x)
        axis = cut.axis - (len(shape) - t.ndim)
        x = self.operand(x)
        if axis < 0 or (t.shape[axis] == 1 and shape[cut.axis] != 1):
            return x
        return self.slice_of(x, axis, cut.parts[k])

    def slice_of(self, x: Any, axis: int, p: Part) -> Any:
        return self.apply(SLICE, (x, p.start), _attrs(axis, p))

    def scatter(self, n: Node, cut: Cut) -> list[Operand]:
        """Return the parts of an array after a write into one of them."""
        base, new = n.operands[:2]
        written = _part(n)
        assert isinstance(base, Value)
        assert written is not None
        before = self.before(n, base, cut, written)
        t = _part_type(base.type, cut.axis, written)
        x: Any = self.operand(new)
        if not isinstance(x, Value):
            x = self.full(x, shape=t.shape, dtype=t.dtype)
        k = cut.parts.index(written)
        if n.op.accumulates and not _is_zero(self.definition(before[k])):
            x = self.add(before[k], x)
        return [x if j == k else y for j, y in enumerate(before)]

    def before(self, n: Node, base: Value, cut: Cut, written: Part) -> list[Any]:
        """Return the parts of the base of a write, cut as its result is."""
        known = self.parts.get(base)
        if known is None:
            whole = self.operand(base)
            assert isinstance(whole, Value)
            made = self.definition(whole)
            if made is None or made.op is not FULL:
                self.rest[n.result] = whole, {*cut.parts} - {written}
            return [self.slice_of(whole, cut.axis, p) for p in cut.parts]
        old = self.cuts[base].parts
        gone = next((q for q in old if q not in cut.parts), None)
        if base in self.rest:
            whole, rest = self.rest[base]
            new = {*cut.parts} - {*old} if gone in rest else set()
            self.rest[n.result] = whole, ((rest & {*cut.parts}) | new) - {written}
        found = dict(zip(old, known, strict=True))
        if gone is not None:
            for p in cut.parts:
                if p not in found:
                    found[p] = self.slice_of(found[gone], cut.axis, _in(p, gone))
        return [found[p] for p in cut.parts]


def _is_zero(n: Node | None) -> bool:
    return n is not None and n.op is FULL and is_number(n.operands[0], 0)


def _in(p: Part, q: Part) -> Part:
    """Return where a part lies in another one."""
    return Part(dims.add(p.start, dims.mul(q.start, -1)), p.size, p.step)


def _attrs(axis: int, p: Part) -> dict[str, Any]:
    return {"axis": axis, "size": p.size, "step": p.step}
