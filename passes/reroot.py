"""Let reads of a carried buffer's states read the loop's result instead.

A view of a state whose part survives the loop (`contents.py`) is the same view of the
result, which needs no tape; so is a value that was put into a part that survives. A
view inside a nested loop or branch that does not survive is taken out of it as far as
its indices allow, so that this slice can be saved instead of the whole state.

    %p = select %c, i - 1           %p = select %r, i - 1        # %r: the loop's result

Where the loop itself stands in a loop, its result is a state of a buffer there, and is
free to read only if the part survives that loop, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..ir.access import may_fail
from ..ir.dims import symbols_of
from ..ir.func import Block, Node, Operand, Value, dims_of_node
from ..ir.op import Kind
from .boxes import Bounds, box_of
from .contents import Chain, Contents
from .costs import estimate, saved_cost
from .scope import ScopedBuilder

SHARED = 0.75  # what an outer loop saves may serve reads in other loops, too
Inner = tuple[Bounds, ...]  # of the loops around a nested node, innermost first


@dataclass(frozen=True, slots=True)
class Price:
    """What a loop around has to save, and its cost per iteration of ours.

    All reads of the same array pay it once.
    """

    array: object
    cost: float


@dataclass(slots=True)
class Reroot:
    """Rewrites reads of one loop's states, in forward and in reversed nodes."""

    b: ScopedBuilder
    loops: Sequence[Contents]  # the loops around, outermost first; the last is ours
    chains: dict[Value, Chain] = field(default_factory=dict)  # rooted at a state
    hoisted: list[Node] = field(default_factory=list)
    known: dict[object, Value] = field(default_factory=dict)  # what is hoisted so far
    same: dict[Value, Value] = field(default_factory=dict)  # hoisted as a whole
    used: set[Operand] = field(default_factory=set)  # by other nodes than views
    left_out: set[Value] = field(default_factory=set)

    @property
    def own(self) -> Contents:
        return self.loops[-1]

    # Nodes ------------------------------------------------------------------------

    def nodes(
        self, nodes: Iterable[Node], inner: Inner | None = None, *, hoist: bool = False
    ) -> Chain:
        """Return nodes with the views in their regions read from results.

        With `hoist` other views are taken out of regions. `inner` is None outside.
        """
        out: list[Node] = []
        nodes = tuple(nodes)
        if inner is None:
            self.used.update(used_beside_views(Block((), nodes)))
        for node in nodes:
            if any(x in self.same for x in node.operands if isinstance(x, Value)):
                operands = tuple(map(self.operand, node.operands))
                node = replace(node, operands=operands)
            if node.regions:
                out.append(self.control(node, inner or (), hoist=hoist))
            elif node.op.kind is Kind.VIEW:
                out += self.view(node, inner, hoist=hoist)
            else:
                out.append(node)
        return tuple(out)

    def operand(self, x: Operand) -> Operand:
        return self.same.get(x, x) if isinstance(x, Value) else x

    def control(self, node: Node, inner: Inner, *, hoist: bool) -> Node:
        over = Bounds.of(node) if node.op.kind is Kind.FOR else None
        inner = inner if over is None else (over, *inner)
        regions = []
        for r in node.regions:
            nodes = self.nodes(r.nodes, inner, hoist=hoist)
            regions.append(Block(r.params, nodes, tuple(map(self.operand, r.results))))
        return replace(node, regions=tuple(regions))

    def view(self, node: Node, inner: Inner | None, *, hoist: bool) -> Iterable[Node]:
        x = node.operands[0]
        if not isinstance(x, Value) or (self.level(x) is None and x not in self.chains):
            return (node,)
        chain = self.chains[node.result] = (*self.chains.get(x, ()), node)
        if inner is None:
            self.known.setdefault(key_of(x, node), node.result)
            return (node,)
        if self.level(root_of(chain)) != len(self.loops) - 1:
            return (node,)
        if node.result not in self.used:  # only by views, which are chains themselves
            self.left_out.add(node.result)
            return ()
        here = self.own.survives(root_of(chain), box_of(chain, inner, self.own.local))
        price = self.price(chain, inner) if here else None
        cost = price.cost if price is not None else 0.0 if here else math.inf
        fixed = self.fixed(chain) if hoist and cost else ()
        if fixed and saved_cost(fixed[-1].result.type) < cost:
            return self.taken_out(chain, fixed)
        if here:
            return self.rooted(chain, self.own.final(root_of(chain)))
        missing = [k for k, n in enumerate(chain) if n.result in self.left_out]
        chain = chain[min(missing) :] if missing else (node,)
        return self.rooted(chain, chain[0].operands[0])

    def rooted(self, chain: Chain, at: Operand) -> Chain:
        """Return a chain of views of another array, with the same last result."""
        out: list[Node] = []
        for node in chain:
            results = node.results
            if node is not chain[-1]:
                results = tuple(self.b.value(v.type, v.name) for v in results)
            operands = (at, *node.operands[1:])
            out.append(replace(node, operands=operands, results=results))
            at = results[0]
        return tuple(out)

    # Taking views out of regions --------------------------------------------------

    def fixed(self, chain: Chain) -> Chain:
        """Return the first views of a chain, which an iteration of ours has once."""
        count = 0
        for node in chain:
            indices = node.operands[1:]
            if any(isinstance(x, Value) for x in indices) or self.varies(node):
                break
            if may_fail(node, self.own.facts):
                break
            count += 1
        return chain[:count]

    def varies(self, node: Node, loop: Contents | None = None) -> bool:
        local = (loop or self.own).local
        return any(symbols_of(d) & local for d in dims_of_node(node))

    def taken_out(self, chain: Chain, fixed: Chain) -> Chain:
        at = root_of(chain)
        for node in fixed:
            key = key_of(at, node)
            if key not in self.known:
                v = self.b.value(node.result.type, node.result.name)
                operands = (at, *node.operands[1:])
                self.hoisted.append(replace(node, operands=operands, results=(v,)))
                self.known[key] = v
            at = self.known[key]
        if len(fixed) == len(chain):
            self.same[chain[-1].result] = at
        return self.rooted(chain[len(fixed) :], at)

    # Other ways to make a value ---------------------------------------------------

    def found(self, v: Value) -> Iterator[tuple[Chain, Price | None]]:
        """Yield nodes that read a value from the loop's result, with their price."""
        chains = list(self.own.places.get(v, ()))
        if v in self.chains and root_of(self.chains[v]) in self.own.carry:
            chains.append(self.chains[v])
        for chain in chains:
            box = box_of(chain, (), self.own.local)
            if self.own.survives(root_of(chain), box):
                nodes = self.rooted(chain, self.own.final(root_of(chain)))
                yield self.ending(nodes, v), self.price(chain, ())

    def shown(self, v: Value, states: Collection[Value]) -> Iterator[Chain]:
        """Yield views that show a value in one of some states that it was put into."""
        for chain in self.own.places.get(v, ()):
            if root_of(chain) in states:
                yield self.ending(self.rooted(chain, root_of(chain)), v)

    def ending(self, nodes: Chain, v: Value) -> Chain:
        """Give the last node the result `v`, converted to its type."""
        *rest, last = nodes
        if not v.type.scalar:
            return (*rest, replace(last, results=(v,)))
        part = self.b.value(last.result.type, v.name)
        with self.b.block() as made:
            self.b.number(part) if v.type.weak else self.b.item(part)
        return (*rest, replace(last, results=(part,)), replace(made[0], results=(v,)))

    # Costs ------------------------------------------------------------------------

    def level(self, x: Value) -> int | None:
        """Return which of the loops around has `x` as a state."""
        for k, loop in enumerate(self.loops):
            if x in loop.carry:
                return k
        return None

    def reading(self, v: Value) -> Price | None:
        """Return the price of reading a view of an outer loop's state."""
        chain = self.chains.get(v)
        if chain is None or root_of(chain) in self.own.carry:
            return None
        return self.price(chain, ())

    def price(self, chain: Chain, inner: Inner) -> Price | None:
        """Estimate, per iteration of ours, what reading a chain of views costs.

        Nothing, if the part survives all loops around; else an outer loop must save
        what does not vary inside it.
        """
        root = root_of(chain)
        level = self.level(root)
        around = list(inner)
        for k in reversed(range(len(self.loops))):
            loop = self.loops[k]
            if k == level:
                if not loop.survives(root, box_of(chain, around, loop.local)):
                    return self.amortised(root, chain, k)
                root = loop.final(root)
                level = self.level(root)
            if loop.bounds is not None:
                around.append(loop.bounds)
        return None

    def amortised(self, root: Value, chain: Chain, level: int) -> Price:
        saved, views = root.type, []
        for node in chain:
            if self.varies(node, self.loops[level]):
                break
            if any(isinstance(x, Value) for x in node.operands[1:]):
                break
            saved = node.result.type
            views.append(key_of(root, node))
        trips = (loop.trips() for loop in self.loops[level + 1 :])
        cost = SHARED * saved_cost(saved) / math.prod(map(estimate, trips))
        return Price(tuple(views) or root, cost)


def key_of(base: Value, view: Node) -> object:
    """Return what views of one base have in common that are the same."""
    return base, view.op, view.operands[1:], tuple(sorted(view.attrs.items()))


def used_beside_views(block: Block) -> Iterator[Operand]:
    """Yield what other nodes than views use, and what regions yield."""
    for node in block.nodes:
        yield from node.operands[1 if node.op.kind is Kind.VIEW else 0 :]
        for region in node.regions:
            yield from used_beside_views(region)
            yield from region.results


def root_of(chain: Chain) -> Value:
    root = chain[0].operands[0]
    assert isinstance(root, Value)
    return root
