"""Remove views and writes: traced -> func.

Before: views share memory with what they are taken from, `%v <- %t` changes it.
After: every value is a value. A write through a chain of views becomes the chain of
scatter twins up to the root, whose newest value is what later reads see; a view that is
read after its root was written is replayed from that value. Regions carry exactly the
storages that they write; parameters that are written are returned, with `updates`.

    %v: f64[] &%y = select %y, 0 {axis=0}     %v: f64[] = select %y, 0 {axis=0}
    %t: f64 = multiply %v, 2.0                %t: f64 = multiply %v, 2.0
    %v <- %t                                  %y.1: f64[n] = select_scatter %y, %t, 0
    return %y                                 return %y.1
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir import dims
from ..ir.dims import Dim, Strict
from ..ir.errors import MayShareError, UnsupportedError
from ..ir.func import Block, Func, Node, Operand, Value, type_of, walk
from ..ir.op import OPS, Kind
from ..ir.types import Type
from .aliases import Aliases, Rotation, is_array, viewed
from .cse import key_of
from .ranges import Range
from .scope import ScopedBuilder


def functionalize(f: Func) -> Func:
    """Return the pure Func with the meaning of a traced one.

    >>> from ..ir.text import parse
    >>> print(functionalize(parse('''
    ... traced @f(%x: f64[3]) -> f64[3] {
    ...   %v: f64[] &%x = select %x, 0 {axis=0}
    ...   %v <- 1.0
    ...   return %x
    ... }''')))
    func @f(%x: f64[3]) -> (f64[3], f64[3] into %x) {
      %v: f64[] = select %x, 0 {axis=0}
      %x.1: f64[3] = select_scatter %x, 1.0, 0 {axis=0}
      return %x.1, %x.1
    }
    """
    return f if f.stage == "func" else _Functionalizer(f).run()


@dataclass(frozen=True, slots=True)
class _View:
    """How a view is taken: from what, with which operands (already values)."""

    base: Value
    node: Node
    rest: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """The newest value of a storage; every write gives a new stamp."""

    value: Operand
    stamp: int
    written: bool = False  # put there as it is, not read


class _Functionalizer:
    def __init__(self, f: Func) -> None:
        self.f = f
        self.aliases = Aliases(f)
        self.b = ScopedBuilder(f)
        self.stamps = itertools.count()
        self.content: dict[Value, _Content] = {}
        self.views: dict[Value, _View] = {}
        self.first: dict[object, Value] = {}  # of all views of one part
        self.again: dict[Value, Value] = {}
        self.scalars: dict[Value, Operand] = {}
        # Values of views that are still right: they hold for one stamp of the root.
        self.fresh: ChainMap[Value, _Content] = ChainMap()

    def run(self) -> Func:
        params = tuple(map(self.param, self.f.params))
        with dims.deciding(Strict(self.b.facts)):
            self.nodes(self.f.body)
            results = [self.read(x) for x in self.f.results]
        updates = []
        for j, p in enumerate(self.f.params):
            if is_array(p) and self.content[p].value is not params[j]:
                updates.append((len(results), j))
                results.append(self.content[p].value)
        return Func(
            self.f.name,
            "func",
            self.b.finish(params, results),
            self.f.symbols,
            self.f.facts,
            (*self.f.updates, *updates),
        )

    # Storages ---------------------------------------------------------------------

    def param(self, p: Value) -> Value:
        new = self.b.value(p.type, p.name)
        self.bind(p, new)
        return new

    def bind(self, v: Value, new: Operand) -> None:
        """Make `new` the value of `v`: of a scalar, or of a storage of its own."""
        if is_array(v):
            self.set(v, new)
        else:
            self.scalars[v] = new

    def set(self, root: Value, new: Operand) -> None:
        self.content[root] = _Content(new, next(self.stamps))

    def read(self, x: Operand) -> Operand:
        """Return the present value of an operand, replaying stale views."""
        if not isinstance(x, Value):
            return x
        if not is_array(x):
            return self.scalars[x]
        x = self.resolved(x)
        if x not in self.views:
            return self.content[x].value
        stamp = self.content[self.aliases.root(x)].stamp
        known = self.fresh.get(x)
        if known is None or known.stamp != stamp:
            view = self.views[x]
            operands = (self.read(view.base), *view.rest)
            attrs = view.node.attrs
            value = self.b.apply(view.node.op, operands, attrs, hint=x.name)
            known = self.fresh[x] = _Content(value, stamp)
        return known.value

    # Nodes ------------------------------------------------------------------------

    def nodes(self, block: Block) -> None:
        for node in block.nodes:
            self.b.loc = node.loc
            match node.op.kind:
                case Kind.WRITE:
                    self.write(node)
                case Kind.FOR | Kind.WHILE:
                    self.loop(node)
                case Kind.COND | Kind.CHECKPOINT:
                    self.branches(node)
                case Kind.CUSTOM:
                    self.custom(node)
                case _ if viewed(node) is not None:
                    self.view(node)
                case _:
                    self.plain(node)

    def plain(self, node: Node) -> None:
        operands = tuple(map(self.read, node.operands))
        results = tuple(self.b.value(v.type, v.name) for v in node.results)
        new = Node(node.op, operands, node.attrs, results, (), node.loc)
        self.b.append(new)
        self.b.learn(new)
        for v, value in zip(node.results, results, strict=True):
            self.bind(v, value)

    def view(self, node: Node) -> None:
        base, position = viewed(node), node.op.views
        assert base is not None
        assert position == 0
        rest = tuple(map(self.read, node.operands[1:]))
        how = key_of((*rest, *sorted(node.attrs.items())))
        first = self.first.setdefault((node.op, self.resolved(base), how), node.result)
        self.again[node.result] = first
        if first is node.result:
            self.views[first] = _View(base, node, rest)
        self.read(first)

    def resolved(self, v: Value) -> Value:
        """Return what `v` certainly is; of views of one part, the first."""
        v = self.aliases.resolved(v)
        return self.again.get(v, v)

    def write(self, node: Node) -> None:
        target, new = node.operands
        assert isinstance(target, Value)
        value = self.read(new)
        target = self.resolved(target)
        root = self.aliases.root(target)
        self.check(root, node)
        if self.is_there(target, value):
            return
        if target in self.views and not self.unbroken(self.views[target].base):
            raise UnsupportedError(
                f"write: %{target.name} ({target.type}) is a part of a view that shows "
                "elements several times",
                location=node.loc,
                rule="which of them are written is known for such a view as a whole.",
                hint="write into the array that it is a view of",
            )
        stamp = next(self.stamps)
        self.put(target, value, stamp)
        # What was put into a view need not be read back, if it can be read as it is.
        # A view in between is read from its root, where its cotangent will lie.
        if target in self.views and type_of(value) == target.type:
            if self.unbroken(target):
                self.fresh[target] = _Content(value, stamp, written=True)

    def is_there(self, v: Value, value: Operand) -> bool:
        """Tell whether the last write of all put just that value into a view.

        `x[i] += t` does: it adds in place to a view, and then assigns the view to x[i].
        """
        known = self.fresh.get(v)
        if known is None or not known.written or known.value is not value:
            return False
        return known.stamp == self.content[self.aliases.root(v)].stamp

    def put(self, v: Value, new: Operand, stamp: int) -> None:
        """Make `new` the value of `v`, and of all that `v` is a view of."""
        view = self.views.get(v)
        if view is None:
            self.content[v] = _Content(self.whole(new, v), stamp)
            return
        op, base = view.node.op, self.resolved(view.base)
        assert op.scatter is not None
        operands = (self.read(base), new, *view.rest)
        attrs, hint = view.node.attrs, base.name
        whole = self.b.apply(OPS[op.scatter], operands, attrs, hint=hint)
        self.put(base, whole, stamp)

    def unbroken(self, v: Value) -> bool:
        """Tell whether no view from `v` up to its root overlaps itself."""
        v = self.resolved(v)
        while v in self.views:
            if self.views[v].node.op.overlapping:
                return False
            v = self.resolved(self.views[v].base)
        return True

    def whole(self, new: Operand, root: Value) -> Operand:
        """Return `new` as a value of the type of a storage that it fills."""
        have, want = type_of(new), root.type
        if have == want:
            return new
        if not have.shape:
            return self.named(root, "full", new, shape=want.shape, dtype=want.dtype)
        if have.dtype != want.dtype:
            new = self.named(root, "astype", new, dtype=want.dtype)
        if have.shape != want.shape:
            new = self.named(root, "broadcast_to", new, shape=want.shape)
        return new

    def named(self, like: Value, op: str, x: Operand, **attrs: object) -> Value:
        result = self.b.apply(OPS[op], (x,), attrs, hint=like.name)
        assert isinstance(result, Value)
        return result

    def check(self, root: Value, node: Node) -> None:
        """Refuse a write that another name of the same memory could see."""
        other = self.aliases.conflict(root, self.aliases.start[node])
        if other is None:
            return
        raise MayShareError(
            f"write: %{root.name} ({root.type}) may or may not share memory with "
            f"%{other.name} ({other.type}), which is used later",
            location=node.loc,
            rule="which array a name stands for must not depend on a traced condition "
            "or on the iteration where one of the arrays is written.",
            hint="write into a copy, or copy the values instead of rebinding the name",
        )

    # Control flow -----------------------------------------------------------------

    @contextmanager
    def branch(self, node: Node) -> Iterator[list[Node]]:
        """Build a region; storages have their old contents again after it."""
        content, fresh = dict(self.content), self.fresh
        self.fresh = fresh.new_child()
        with self.b.region(node) as nodes:
            yield nodes
        self.content, self.fresh = content, fresh

    def loop(self, node: Node) -> None:
        written = self.aliases.written(node)
        first = node.regions[0]
        kept = [k for k, p in enumerate(first.params) if p not in self.aliases.same]
        inits = [self.read(node.operands[k]) for k in kept]
        inits += [self.content[r].value for r in written]
        if node.op.kind is Kind.WHILE and self.writes(first):
            raise UnsupportedError(
                "while: its condition writes into an array",
                location=node.loc,
                rule="the condition of a loop is computed once more than its body.",
                hint="move the write into the body, or loop over a range and break",
            )
        params = [
            self.b.value(first.params[k].type, first.params[k].name) for k in kept
        ]
        params += [self.b.value(r.type.array(), r.name) for r in written]
        blocks = []
        with self.branch(node) as nodes:
            for k, p in zip(kept, params, strict=False):
                self.bind(first.params[k], p)
            for r, p in zip(written, params[len(kept) :], strict=True):
                self.set(r, p)
            self.nodes(first)
            if node.op.kind is Kind.WHILE:
                test = tuple(self.read(x) for x in first.results)
                blocks.append(Block(tuple(params), tuple(nodes), test))
                nodes.clear()
                self.nodes(node.regions[1])
            last = node.regions[-1].results
            stacks = range(len(first.params), len(last))
            out = [self.read(last[k]) for k in kept]
            out += [self.content[r].value for r in written]
            out += [self.read(last[k]) for k in stacks]
            own = () if blocks else tuple(params)
            blocks.append(Block(own, tuple(nodes), tuple(out)))
        self.results(node, inits, blocks, kept, written, stacks)
        for rotation in self.aliases.rotations(node):
            self.unrotate(rotation)

    def unrotate(self, rotation: Rotation) -> None:
        """Find the contents of arrays that a loop exchanged, after the loop.

        After t iterations, what was in slot k is t places before it.
        """
        loop, slots = rotation.loop, rotation.slots
        length = len(slots)
        trips = Range.of(loop).trips(self.b)
        turns = dims.add(trips, dims.mul(dims.floordiv(trips, length), -length))
        now = [self.read(loop.results[s]) for s in slots]
        for k, root in enumerate(rotation.roots):
            if self.aliases.last.get(root, -1) > self.aliases.end[loop]:
                after = [now[(k - t) % length] for t in range(length)]
                self.set(root, self.chosen(turns, after, root))

    def chosen(self, turns: Dim, values: Sequence[Operand], like: Value) -> Operand:
        """Return `values[turns]`."""
        if isinstance(turns, int):
            return values[turns]
        if len(values) == 1:
            return values[0]
        test = self.b.apply(OPS["equal"], (turns, 0), {})
        with self.b.block() as nodes:
            rest = self.chosen(dims.add(turns, -1), values[1:], like)
        blocks = [Block((), (), (values[0],)), Block((), tuple(nodes), (rest,))]
        types, hints = [like.type.array()], [like.name]
        return self.b.control(OPS["cond"], (test,), {}, blocks, types, hints)[0]

    def writes(self, block: Block) -> bool:
        return any(n.op.kind is Kind.WRITE for n in walk(block))

    def branches(self, node: Node) -> None:
        """Handle a cond, or a checkpoint: a region that is always taken."""
        written = self.aliases.written(node)
        kept = [k for k, r in enumerate(node.results) if r not in self.aliases.same]
        blocks = []
        for source in node.regions:
            with self.branch(node) as nodes:
                self.nodes(source)
                out = [self.read(source.results[k]) for k in kept]
                out += [self.content[r].value for r in written]
                blocks.append(Block((), tuple(nodes), tuple(out)))
        operands = list(map(self.read, node.operands))
        self.results(node, operands, blocks, kept, written)

    def custom(self, node: Node) -> None:
        """Handle a rule for a derivative: a region that writes what it made itself."""
        (rule,) = node.regions
        operands = list(map(self.read, node.operands))
        params = [self.b.value(p.type, p.name) for p in rule.params]
        with self.branch(node) as nodes:
            for p, new in zip(rule.params, params, strict=True):
                self.bind(p, new)
            self.nodes(rule)
            out = tuple(map(self.read, rule.results))
        block = Block(tuple(params), tuple(nodes), out)
        self.results(node, operands, [block], range(len(node.results)), ())

    def results(
        self,
        node: Node,
        operands: Sequence[Operand],
        blocks: Sequence[Block],
        kept: Sequence[int],
        written: Sequence[Value],
        stacks: Sequence[int] = (),
    ) -> None:
        """Append the control node and bind what it gives."""
        given = [node.results[k] for k in kept]
        stacked = [node.results[k] for k in stacks]
        types: list[Type] = [v.type for v in given]
        types += [r.type.array() for r in written]
        types += [v.type for v in stacked]
        hints = [v.name for v in (*given, *written, *stacked)]
        self.b.loc = node.loc
        new = self.b.control(node.op, operands, node.attrs, blocks, types, hints)
        self.b.learn(self.b.nodes[-1])
        end = len(given) + len(written)
        for v, value in zip(
            (*given, *stacked), (*new[: len(given)], *new[end:]), strict=True
        ):
            self.bind(v, value)
        for r, value in zip(written, new[len(given) : end], strict=True):
            self.set(r, value)
