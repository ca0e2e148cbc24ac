"""Which values of a traced Func share memory, for how long they are used, who writes.

A *root* is a value with memory of its own, as far as one looks: a parameter, the result
of an op that is not a view, and also the array results and carries of control flow,
which may in truth be the memory of something else. `same` resolves those that are for
certain (a carry that is yielded unchanged, a cond that yields one value either way).
For the rest, `sources` and `partners` say what they may be; a write to one while the
other is still used cannot be expressed by values and is found with `conflict`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..ir.func import Block, Func, Node, Operand, Value, walk
from ..ir.op import Kind

LOOPS = (Kind.FOR, Kind.WHILE)


def is_array(x: Operand) -> bool:
    """Tell whether an operand has memory that can be written."""
    return isinstance(x, Value) and not x.type.scalar


def viewed(node: Node) -> Value | None:
    """Return the value that the result of a node is a view of."""
    if node.op.views is None:
        return None
    x = node.operands[node.op.views]
    return x if isinstance(x, Value) and is_array(x) else None


def yields(node: Node) -> tuple[Operand, ...]:
    """Return what the body of a loop passes to its next iteration."""
    return node.regions[-1].results[: len(node.operands)]


def operands_of(block: Block) -> Iterator[Operand]:
    """Yield every operand in a block, yields and inner regions included."""
    for node in block.nodes:
        yield from node.operands
        for region in node.regions:
            yield from operands_of(region)
    yield from block.results


@dataclass(frozen=True, slots=True)
class Rotation:
    """Carries of a loop that change places: slot `slots[k]` gets slot `slots[k + 1]`.

    `roots` are the arrays that the slots hold before the loop.
    """

    loop: Node
    slots: tuple[int, ...]
    roots: tuple[Value, ...]


class Aliases:
    """The aliasing of one traced Func; computed once, then asked."""

    def __init__(self, f: Func) -> None:
        self.f = f
        self.node_of: dict[Value, Node] = {}
        self.block_of: dict[Value, Block] = {}
        self.loop_of: dict[Value, tuple[Node, int]] = {}
        self.parent: dict[Block, Block] = {}
        self.owner: dict[Block, Node] = {}
        self.start: dict[Node, int] = {}
        self.end: dict[Node, float] = {}
        self.born: dict[Value, float] = {}
        self.same: dict[Value, Value] = {}
        self.last: dict[Value, float] = {}
        self.partners: dict[Value, set[Value]] = {}
        self._sources: dict[Value, frozenset[Value]] = {}
        self._clock = 0
        self._enter(f.body)
        self._resolve(f.body)
        self._live(f.body)
        for p in f.params:
            if is_array(p):
                self.last[p] = math.inf
        self._control = [n for n in walk(f.body) if n.regions]
        while any([self._relate(n) for n in self._control]):
            pass
        self._mixed = self._mixed_roots()
        self.rotation_of: dict[Value, Rotation] = {}
        for n in self._control:
            self._find_rotations(n)

    # Structure --------------------------------------------------------------------

    def _enter(self, block: Block) -> None:
        for p in block.params:
            self.block_of[p] = block
            self.born.setdefault(p, self._clock)
        for node in block.nodes:
            self._clock += 1
            self.start[node] = self._clock
            outer = block
            for region in node.regions:
                self.parent[region] = outer
                self.owner[region] = node
                if node.op.kind is Kind.WHILE:
                    outer = region  # the body sees what the test defines
                if node.op.kind in LOOPS:
                    for k, p in enumerate(region.params):
                        self.loop_of[p] = (node, k)
                self._enter(region)
            self._clock += 1
            self.end[node] = self._clock
            for v in node.results:
                self.node_of[v] = node
                self.block_of[v] = block
                self.born[v] = self._clock

    def _resolve(self, block: Block) -> None:
        for node in block.nodes:
            for region in node.regions:
                self._resolve(region)
            if node.op.kind in LOOPS:
                params = node.regions[0].params
                results = node.results[: len(params)]  # what is stacked is new
                for p, init, y, r in zip(
                    params, node.operands, yields(node), results, strict=True
                ):
                    kept = isinstance(y, Value) and self.resolved(y) is p
                    if kept and isinstance(init, Value) and is_array(init):
                        self.same[p] = self.same[r] = init
            elif node.op.kind is Kind.COND:
                left, right = (x.results for x in node.regions)
                for a, b, r in zip(left, right, node.results, strict=True):
                    if a is b and isinstance(a, Value) and is_array(a):
                        self.same[r] = a

    def resolved(self, v: Value) -> Value:
        """Return the value that `v` certainly is."""
        while v in self.same:
            v = self.same[v]
        return v

    def root(self, v: Value) -> Value:
        """Return the value whose memory `v` lies in."""
        while True:
            v = self.resolved(v)
            node = self.node_of.get(v)
            base = viewed(node) if node is not None else None
            if base is None:
                return v
            v = base

    def inside(self, v: Value, node: Node) -> bool:
        """Tell whether `v` is defined in a region of `node`."""
        block = self.block_of[v]
        while block in self.parent:
            if self.owner[block] is node:
                return True
            block = self.parent[block]
        return False

    # Liveness ---------------------------------------------------------------------

    def _live(self, block: Block) -> None:
        for node in block.nodes:
            for x in node.operands:
                self._use(x, block, self.start[node])
            for region in node.regions:
                self._live(region)
        at = self.end[self.owner[block]] if block in self.owner else math.inf
        for x in block.results:
            self._use(x, block, at)

    def _use(self, x: Operand, block: Block, at: float) -> None:
        if not isinstance(x, Value) or not is_array(x):
            return
        root = self.root(x)
        home = self.block_of[root]
        while block is not home:  # a use in a loop is a use until its end
            owner, block = self.owner[block], self.parent[block]
            leaves = self.owner.get(block) is not owner
            if leaves and owner.op.kind in LOOPS:
                at = max(at, self.end[owner])
        self.last[root] = max(self.last.get(root, -1), at)

    # What a control result or carry may be ----------------------------------------

    def sources(self, x: Operand) -> frozenset[Value]:
        """Return every root that an operand may lie in."""
        if not isinstance(x, Value) or not is_array(x):
            return frozenset()
        root = self.root(x)
        if root not in self._sources:
            self._sources[root] = frozenset({root})  # breaks cycles
            self._sources[root] = frozenset({root, *self._origins(root)})
        return self._sources[root]

    def _origins(self, root: Value) -> Iterator[Value]:
        node = self.node_of.get(root)
        if node is None or not node.regions:
            return
        k = node.results.index(root)
        if node.op.kind in LOOPS:
            return  # what it may be is in `partners`, so that pairs are told apart
        for region in node.regions:
            for s in self.sources(region.results[k]):
                if not self.inside(s, node):
                    yield s

    def outer(self, loop: Node, k: int) -> set[Value]:
        """Return the roots outside a loop that its carry number `k` may be."""
        found: set[Value] = set()
        todo, done = [k], {k}
        while todo:
            j = todo.pop()
            found |= self.sources(loop.operands[j])
            for s in self._reached(yields(loop)[j], loop):
                if self.loop_of.get(s, (None, 0))[0] is loop:
                    m = self.loop_of[s][1]
                    if m not in done:
                        done.add(m)
                        todo.append(m)
                elif not self.inside(s, loop):
                    found.add(s)
        return found

    def _reached(self, x: Operand, loop: Node) -> Iterator[Value]:
        for s in self.sources(x):
            yield s
            if self.inside(s, loop) and self.loop_of.get(s, (None, 0))[0] is not loop:
                yield from self.partners.get(s, ())

    def may(self, a: Operand, b: Operand) -> bool:
        """Tell whether two operands may share memory."""
        left, right = self.sources(a), self.sources(b)
        return not left.isdisjoint(right) or any(
            not self.partners.get(s, set()).isdisjoint(right) for s in left
        )

    def _pair(self, a: Value, b: Value) -> bool:
        if a is b or b in self.partners.get(a, ()):
            return False
        self.partners.setdefault(a, set()).add(b)
        self.partners.setdefault(b, set()).add(a)
        return True

    def _relate(self, node: Node) -> bool:
        if node.op.kind not in LOOPS:
            return False
        params, changed = node.regions[0].params, False
        arrays = [k for k, p in enumerate(params) if is_array(p) and p not in self.same]
        for k in arrays:
            for s in self.outer(node, k):
                for t in (s, *self.partners.get(s, ())):
                    if not self.inside(t, node) and t not in node.results:
                        changed |= self._pair(params[k], t)
                        changed |= self._pair(node.results[k], t)
            for j in arrays:
                meets = j < k and (
                    self.may(node.operands[j], node.operands[k])
                    or self._yields_meet(node, j, k)
                )
                if meets:
                    changed |= self._pair(params[j], params[k])
                    changed |= self._pair(node.results[j], node.results[k])
        return changed

    def _yields_meet(self, node: Node, j: int, k: int) -> bool:
        # Within one iteration two carries that only share outer origins differ as long
        # as they differed before: `old, new = new, old` never makes them meet.
        return any(
            s is t or t in self.partners.get(s, ())
            for s in self.sources(yields(node)[j])
            for t in self.sources(yields(node)[k])
        )

    # Conflicts --------------------------------------------------------------------

    def _mixed_roots(self) -> set[Value]:
        mixed: set[Value] = set(self.partners)
        for node in self._control:
            for r in node.results:
                if is_array(r) and r not in self.same:
                    mixed |= self.sources(r)
        return mixed

    def conflict(self, root: Value, at: float) -> Value | None:
        """Return a value that may share memory with `root` and is used after `at`."""
        if root not in self._mixed:
            return None
        for other in self._mixed:
            lives = self.born[other] < at < self.last.get(other, -1)
            rotation = self.rotation_of.get(root)
            if rotation is not None and other in rotation.roots:
                continue  # found again by where the rotation ends
            if other is not root and lives and self.may(other, root):
                return other
        return None

    # Rotations --------------------------------------------------------------------

    def _find_rotations(self, node: Node) -> None:
        """Find carries that a `for` only exchanges: `old, new = new, old`."""
        if node.op.kind is not Kind.FOR:
            return
        params = node.regions[0].params
        moves: dict[int, int] = {}
        for k, y in enumerate(yields(node)):
            v = self.resolved(y) if isinstance(y, Value) else None
            loop, j = self.loop_of.get(v, (None, 0)) if v is not None else (None, 0)
            if loop is node and is_array(params[k]) and params[k] not in self.same:
                moves[k] = j
        for k in moves:
            slots = [k]
            while moves.get(slots[-1]) not in (None, *slots):
                slots.append(moves[slots[-1]])
            if params[k] in self.rotation_of or moves.get(slots[-1]) != k:
                continue
            inits = [node.operands[s] for s in slots]
            if len(slots) > 1 and self._apart(node, inits):
                roots = tuple(self.root(x) for x in inits if isinstance(x, Value))
                rotation = Rotation(node, tuple(slots), roots)
                self.rotation_of.update((params[s], rotation) for s in slots)

    def _apart(self, node: Node, inits: Sequence[Operand]) -> bool:
        """Tell whether initial values are whole, different arrays, not used inside."""
        whole = all(
            isinstance(x, Value) and is_array(x) and self.root(x) is self.resolved(x)
            for x in inits
        )
        if not whole or any(
            self.may(x, y) for k, x in enumerate(inits) for y in inits[:k]
        ):
            return False
        roots = {self.root(x) for x in inits if isinstance(x, Value)}
        used = (x for r in node.regions for x in operands_of(r))
        return not any(self.root(x) in roots for x in used if isinstance(x, Value))

    def rotations(self, node: Node) -> list[Rotation]:
        """Return the rotations of a loop that writes into what it rotates."""
        mine = {r for r in self.rotation_of.values() if r.loop is node}
        targets = {
            self.root(x)
            for n in (n for region in node.regions for n in walk(region))
            if n.op.kind is Kind.WRITE and isinstance(x := n.operands[0], Value)
        }
        params = node.regions[0].params
        ordered = sorted(mine, key=lambda r: r.slots)
        return [r for r in ordered if any(params[s] in targets for s in r.slots)]

    def _storages(self, root: Value, within: Node) -> Iterator[Value]:
        """Yield a written root, and what it may be by a rotation inside a node."""
        yield root
        rotation = self.rotation_of.get(root)
        if rotation is not None and rotation.loop is not within:
            for r in rotation.roots:
                if self.last.get(r, -1) > self.end[rotation.loop]:
                    yield from self._storages(r, within)

    def written(self, node: Node) -> list[Value]:
        """Return the roots outside `node` that its regions write, in order."""
        found: dict[Value, None] = {}
        for region in node.regions:
            for inner in walk(region):
                if inner.op.kind is Kind.WRITE:
                    target = inner.operands[0]
                    assert isinstance(target, Value)
                    for root in self._storages(self.root(target), node):
                        if not self.inside(root, node):
                            found.setdefault(root)
        return list(found)
