"""Group nodes over one index space into `fused` nodes.

Before: a pure Func, after simplify, cse and dce. After: the same values; elementwise
chains, what they create, gather and scatter, and the reductions of their results stand
in one `fused` node per index space. A fused region means its nodes inlined.

    %t: f64[n] = multiply %x, %y            %s: f64 = fused {
    %u: f64[n] = exp %t                       %t: f64[n] = multiply %x, %y
    %s: f64 = sum %u {axis=(0,), ...}         %u: f64[n] = exp %t
                                              %s.1: f64 = sum %u {axis=(0,), ...}
                                              yield %s.1
                                            }

Note [levels]
Every node has a level. A value that crosses from one group to another (because it is
reduced, or read at other indices) raises the level by one; within a group, and between
nodes that are not grouped, it need not. Nodes of one space, one level and a common
value form a group. Levels never fall along a use and rise where a group is left, so no
two groups can need each other. All of it is linear in the number of uses.

Note [cheap values]
A value that costs no more than the load that would replace it is computed again in
every group that wants it, at any index: constants, ranges, one or two flops on what is
in memory. Nothing else is computed twice.

Note [checks]
What stands after an `expect` may rely on it: a loop may not end, an index may be out of
range. No group reaches across one, and everything stays behind those it stood behind.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..ir.access import (
    Order,
    base_index,
    canonical,
    gathered_shape,
    hazards,
    in_sequence,
    index_dims,
    indices_of,
    joined,
    need_of,
    part_type,
    place,
    reads_of,
    to_copy,
    view_of,
    volume,
    writes_of,
)
from ..ir.build import IRBuilder, names_in
from ..ir.dims import Expr, Facts, Symbol, as_symbol, symbol, symbols_of
from ..ir.func import (
    Block,
    Func,
    Node,
    Operand,
    Value,
    dims_of_node,
    free_values,
    type_of,
    walk,
)
from ..ir.op import OPS, Kind
from ..ir.types import Shape
from ..ir.verify import loop_facts
from .late import late_folds
from .schedule import Item, in_order

GROUPED = frozenset(
    {Kind.ELEMENTWISE, Kind.CREATION, Kind.GATHER, Kind.REDUCTION, Kind.SCATTER}
)
CHEAP = 3  # flops and loads together
Key = tuple[Shape, int]  # space, stretch


def fuse(f: Func) -> Func:
    """Return `f` with nodes over one index space grouped."""
    names = IRBuilder(tuple(names_in(f)))
    known = set(f.symbols)
    for p in f.params:
        known.update(*map(symbols_of, p.type.shape), ())
    body = Fuser(names, f.body, f.size_facts(), frozenset(known)).block()
    return replace_body(f, body)


def replace_body(f: Func, body: Block) -> Func:
    return replace(f, body=body)


@dataclass(eq=False, slots=True)
class Unit:
    """What is scheduled as one: a group, or a node that is not grouped."""

    members: list[int]
    level: int
    key: Key | None = None
    roots: list[Value] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)  # units that come before
    order: Order = field(default_factory=dict)  # in which its loops must run
    emitted: tuple[Node, ...] = ()


class Fuser:
    """Fuses one block; regions are fused first."""

    def __init__(
        self,
        names: IRBuilder,
        block: Block,
        facts: Facts,
        known: frozenset[Symbol],
    ) -> None:
        self.names = names
        self.facts = facts
        self.source = block
        # Symbols that nodes of this block define; where one is known it is checked.
        self.sizes: dict[Symbol, int] = {}
        for k, n in enumerate(block.nodes):
            s = as_symbol(n.attrs.get("count", 0))
            if s is not None and s not in known:
                self.sizes.setdefault(s, k)
        self.known = known | self.sizes.keys()
        self.nodes = [self.regions(n) for n in block.nodes]
        self.at = {v: k for k, n in enumerate(self.nodes) for v in n.results}
        self.keys: list[Key | None] = []
        self.checks: list[int] = []  # see Note [checks]
        for n in self.nodes:
            key = self.view_key(n) or key_of(n, len(self.checks))
            if n.op.kind is Kind.CHECK:
                self.checks.append(len(self.keys))
            self.keys.append(key)
        self.cost: dict[Value, tuple[int, int]] = {}  # of cheap values: flops, loads
        self.hard: set[Value] = set()
        self.reads: list[tuple[tuple[Operand, Value], ...]] = []  # see read_by
        self.level = [0] * len(self.nodes)
        self.users: list[list[int]] = [[] for _ in self.nodes]
        self.alone: set[int] = set()

    def sized_by(self, node: Node) -> set[int]:
        """Return the nodes that define symbols which a node mentions."""
        if not self.sizes:
            return set()
        found = set(symbols_of_node(node))
        return {self.sizes[s] for s in found & self.sizes.keys()}

    def regions(self, node: Node) -> Node:
        """Fuse inside the regions of a node."""
        if not node.regions or node.op.kind is Kind.FUSED:
            return node
        facts = self.facts
        if node.op.kind is Kind.FOR:
            facts = facts.having(*loop_facts(node))
        known = self.known
        blocks = []
        for r in node.regions:
            fuser = Fuser(self.names, r, facts, known)
            blocks.append(fuser.block())
            if node.op.kind is Kind.WHILE:  # the body sees what the test defines
                known = fuser.known
        return Node(
            node.op, node.operands, node.attrs, node.results, tuple(blocks), node.loc
        )

    def block(self) -> Block:
        self.find_cheap()
        self.find_hard()
        self.reads = [tuple(self.read_by(k)) for k in range(len(self.nodes))]
        self.find_levels()
        self.sink()
        if late_folds(self):
            self.sink()
        units = self.units()
        self.separate(units)
        nodes = self.emit(units)
        return Block(self.source.params, nodes, self.source.results)

    # Facts about single values ----------------------------------------------------

    def definition(self, x: Operand) -> Node | None:
        k = self.at.get(x) if isinstance(x, Value) else None
        return self.nodes[k] if k is not None else None

    def view_key(self, node: Node) -> Key | None:
        """Return the space of a view that only adds or drops axes of size 1."""
        if node.op.kind is not Kind.VIEW or not node.result.type.shape:
            return None
        base = node.operands[0]
        k = self.at.get(base) if isinstance(base, Value) else None
        key = self.keys[k] if k is not None and k < len(self.keys) else None
        if (
            k is None
            or key is None
            or any(isinstance(x, Value) for x in indices_of(node))
        ):
            return None
        if self.nodes[k].op.kind in (Kind.REDUCTION, Kind.SCATTER):
            return None
        shape = node.result.type.shape
        if canonical(shape) != key[0] or key[1] != len(self.checks):
            return None
        loops = [symbol(f"@{n}") for n in range(len(key[0]))]
        at = base_index(node, place(shape, loops), index_dims(node))
        return key if at == place(type_of(base).shape, loops) else None

    def is_grouped(self, x: Operand) -> bool:
        k = self.at.get(x) if isinstance(x, Value) else None
        return k is not None and self.keys[k] is not None and k not in self.alone

    def find_cheap(self) -> None:
        """See Note [cheap values]."""
        for k, node in enumerate(self.nodes):
            if len(node.results) != 1 or not node.result.type.shape:
                continue
            cost = self.cost_of(k, node)
            if cost is not None and sum(cost) <= CHEAP:
                self.cost[node.result] = cost

    def cost_of(self, k: int, node: Node) -> tuple[int, int] | None:
        match node.op.kind:
            case Kind.CREATION if self.keys[k] is not None:
                return 0, 0
            case Kind.VIEW:
                base, *given = node.operands
                plain = not any(isinstance(x, Value) for x in given)
                return (
                    self.cost.get(base) if plain and isinstance(base, Value) else None
                )
            case Kind.ELEMENTWISE:
                flops, loads = node.op.cost, 0
                for x in node.operands:
                    if not type_of(x).shape:
                        continue
                    assert isinstance(x, Value)
                    if x in self.cost:
                        flops += self.cost[x][0]
                        loads += self.cost[x][1]
                    elif self.is_grouped(x):
                        return None
                    else:
                        loads += 1
                return flops, loads
            case _:
                return None

    def find_hard(self) -> None:
        """Find the values that must be in memory whatever is grouped."""
        for x in self.source.results:
            if isinstance(x, Value):
                self.hard.add(x)
        for k in reversed(range(len(self.nodes))):
            node = self.nodes[k]
            for x in self.hard_uses(k, node):
                self.hard.add(x)
            for region in node.regions:
                self.hard.update(free_values(region))

    def hard_uses(self, k: int, node: Node) -> Iterator[Value]:
        values = [x for x in node.operands if isinstance(x, Value)]
        if node.op.kind is Kind.VIEW and node.result in self.cost:
            if node.result in self.hard:
                yield from values
        elif self.keys[k] is None:
            yield from values
        elif node.op.kind in (Kind.GATHER, Kind.SCATTER):
            if isinstance(node.operands[0], Value):
                yield node.operands[0]

    # Levels -----------------------------------------------------------------------

    def leaves(self, x: Operand) -> Iterator[Value]:
        """Yield what a use reads: the operand, or what a cheap one is made from."""
        if not isinstance(x, Value):
            return
        if x not in self.cost:
            yield x
            return
        node = self.definition(x)
        assert node is not None
        for y in node.operands:
            yield from self.leaves(y)

    def read_by(self, k: int) -> Iterator[tuple[Operand, Value]]:
        """Yield what node k reads, with the operand that leads there."""
        node = self.nodes[k]
        in_memory = set(self.hard_uses(k, node))
        for x in node.operands:
            if isinstance(x, Value) and x in in_memory:
                yield x, x
            else:
                yield from ((x, leaf) for leaf in self.leaves(x))
        for region in node.regions:
            yield from ((v, v) for v in free_values(region))

    def joins(self, k: int, x: Value) -> bool:
        """Tell whether node k may compute its operand x in its own iteration."""
        j = self.at.get(x)
        if j is None or self.keys[k] is None or self.keys[j] != self.keys[k]:
            return False
        node, maker = self.nodes[k], self.nodes[j]
        if maker.op.kind in (Kind.REDUCTION, Kind.SCATTER):
            return False
        if node.op.kind in (Kind.GATHER, Kind.SCATTER) and x is node.operands[0]:
            return False
        key = self.keys[k]
        assert key is not None
        is_index = x in node.operands[-len(indices_of(node)) or len(node.operands) :]
        if view_of(node).kind is Kind.GATHER and is_index:
            if canonical(gathered_shape(node)) != key[0]:
                return False
        return canonical(x.type.shape) == key[0]

    def is_blank(self, j: int) -> bool:
        """Tell whether node j needs nothing: it is alone in its group, before all."""
        node = self.nodes[j]
        plain = not any(isinstance(x, Value) for x in node.operands)
        return plain and node.op.kind is Kind.CREATION and not self.sized_by(node)

    def find_levels(self) -> None:
        """See Note [levels]."""
        for k, node in enumerate(self.nodes):
            level = 0
            for x, leaf in self.reads[k]:
                j = self.at.get(leaf)
                if j is None:
                    continue
                self.users[j].append(k)
                within = x is leaf and self.joins(k, leaf)
                crosses = self.keys[j] is not None and not within
                crosses = crosses and not self.is_blank(j)
                level = max(level, self.level[j] + crosses)
            for j in self.sized_by(node) - {k}:
                level = max(level, self.level[j])
            self.level[k] = level

    def sink(self) -> None:
        """Move what only later groups use to them, where less is stored thereby."""
        for k in reversed(range(len(self.nodes))):
            node = self.nodes[k]
            users = self.users[k]
            if self.keys[k] is None or node.op.kind in (Kind.REDUCTION, Kind.SCATTER):
                continue
            v = node.result
            if not users or v in self.hard or v in self.cost:
                continue
            to = min(self.level[u] for u in users)
            if to <= self.level[k] or not all(
                self.joins(u, v) and v in self.nodes[u].operands for u in users
            ):
                continue
            stored = {
                x
                for o in node.operands
                for x in self.leaves(o)
                if self.is_grouped(x) and self.joins(k, x)
            }
            if len(stored) <= 1:
                self.level[k] = to

    # Groups -----------------------------------------------------------------------

    def units(self) -> list[Unit]:
        """Join nodes of one key and level that share a value."""
        parent = list(range(len(self.nodes)))

        def find(k: int) -> int:
            while parent[k] != k:
                parent[k] = parent[parent[k]]
                k = parent[k]
            return k

        seen: dict[tuple[Key, int, Value], int] = {}
        for k in range(len(self.nodes)):
            key = self.keys[k]
            if key is None or not self.is_kept(k):
                continue
            for x, leaf in self.reads[k]:
                j = self.at.get(leaf)
                near = j is not None and x is leaf and self.joins(k, leaf)
                if near and j is not None and self.level[j] == self.level[k]:
                    parent[find(k)] = find(j)
                elif leaf.type.shape:
                    first = seen.setdefault((key, self.level[k], leaf), k)
                    parent[find(k)] = find(first)
        groups: dict[int, Unit] = {}
        for k in range(len(self.nodes)):
            if self.keys[k] is None:
                groups[k] = Unit([k], self.level[k])
            elif self.is_kept(k):
                unit = groups.setdefault(find(k), Unit([], self.level[k], self.keys[k]))
                unit.members.append(k)
        return [u for u in groups.values() if u.members]

    def is_kept(self, k: int) -> bool:
        """Tell whether a node has a place of its own: cheap ones only if in memory."""
        results = self.nodes[k].results
        return not (results and results[0] in self.cost) or results[0] in self.hard

    def separate(self, units: list[Unit]) -> None:
        """Take scatters out of groups that read their base elsewhere.

        Alone they can be done in place, once what they write has been computed.
        """
        for unit in list(units):
            if unit.key is None or len(unit.members) < 2:
                continue
            for k in list(unit.members):
                node = self.nodes[k]
                if node.op.kind is not Kind.SCATTER or len(unit.members) < 2:
                    continue
                if self.clashes(unit, node):
                    unit.members.remove(k)
                    self.alone.add(k)
                    self.level[k] = unit.level + 1
                    units.append(Unit([k], unit.level + 1))
                    for x in node.operands[1:]:
                        self.keep(x, units)

    def keep(self, x: Operand, units: list[Unit]) -> None:
        """See to it that a value is in memory."""
        k = self.at.get(x) if isinstance(x, Value) else None
        if k is None or not isinstance(x, Value) or x in self.hard:
            return
        was_kept = self.is_kept(k)
        self.hard.add(x)
        if not was_kept:
            if self.keys[k] is not None:
                units.append(Unit([k], self.level[k], self.keys[k]))
            else:  # a view, which has its unit: what it is a view of, too
                for y in self.nodes[k].operands:
                    self.keep(y, units)

    def clashes(self, unit: Unit, node: Node) -> bool:
        """Tell whether a scatter in a unit could not be done in place."""
        nodes = [self.nodes[k] for k in unit.members]
        inlined = nodes + [self.nodes[self.at[v]] for v in self.cost]
        reads = reads_of(inlined, nodes, self.view_definitions())
        base, write = node.operands[0], writes_of(node)
        if not isinstance(base, Value):
            return False
        mine = [r for r in reads if r.value is base]
        bad = hazards(write, mine, self.facts)
        if bad and to_copy(bad, volume(part_type(node).shape)) is None:
            return True
        needs = [need_of(write, r, self.facts) for r in mine if r not in bad]
        order = joined([*in_sequence(write), *needs], unit.order)
        folds = any(n.op.kind is Kind.REDUCTION for n in nodes)
        if order is None or (folds and -1 in order.values()):
            return True
        unit.order = order
        return False

    def view_definitions(self) -> dict[Value, Node]:
        return {n.result: n for n in self.nodes if n.op.kind is Kind.VIEW}

    # Output -----------------------------------------------------------------------

    def emit(self, units: list[Unit]) -> tuple[Node, ...]:
        owner: dict[Value, int] = {}
        for i, u in enumerate(units):
            for k in u.members:
                for v in self.nodes[k].results:
                    owner[v] = i
        needed = set(self.hard)
        order = sorted(range(len(units)), key=lambda i: -max(units[i].members))
        for i in sorted(order, key=lambda i: -units[i].level):
            u = units[i]
            if u.key is None:
                self.emit_single(u, needed, owner)
            else:
                u.roots = [
                    self.nodes[k].result
                    for k in u.members
                    if self.nodes[k].result in needed
                ]
                if u.roots:
                    self.emit_group(u, needed, owner)
        self.keep_behind_checks(units)
        return tuple(self.schedule(units))

    def keep_behind_checks(self, units: list[Unit]) -> None:
        """See Note [checks]."""
        at = {k: i for i, u in enumerate(units) for k in u.members}
        for u in units:
            before = bisect.bisect_left(self.checks, min(u.members))
            if before:
                u.needs.add(at[self.checks[before - 1]])

    def emit_single(self, u: Unit, needed: set[Value], owner: dict[Value, int]) -> None:
        (k,) = u.members
        node = self.nodes[k]
        if node.op.kind is Kind.VIEW and node.result in self.cost:
            if node.result not in self.hard:
                return
        used = [x for x in node.operands if isinstance(x, Value)]
        for region in node.regions:
            used.extend(free_values(region))
        for x in used:
            needed.add(x)
            if x in owner:
                u.needs.add(owner[x])
        self.need_sizes(u, node, owner)
        u.emitted = (node,)

    def need_sizes(self, u: Unit, node: Node, owner: dict[Value, int]) -> None:
        for k in self.sized_by(node):
            u.needs.update(owner[v] for v in self.nodes[k].results)

    def emit_group(self, u: Unit, needed: set[Value], owner: dict[Value, int]) -> None:
        members = set(u.members)
        inner: dict[Value, Value] = {}
        nodes: list[Node] = []

        def copy(v: Value) -> Value:
            """Bring the definition of a value into the region."""
            stack: list[tuple[Value, bool]] = [(v, False)]
            while stack:
                x, ready = stack.pop()
                if x in inner:
                    continue
                node = self.definition(x)
                here = node is not None and (self.at[x] in members or x in self.cost)
                if not here or node is None:
                    inner[x] = x
                    needed.add(x)
                    if x in owner:
                        u.needs.add(owner[x])
                    continue
                values = [y for y in node.operands if isinstance(y, Value)]
                if not ready:
                    stack.append((x, True))
                    stack.extend(
                        (y, False) for y in reversed(self.inward(node, values))
                    )
                    continue
                self.copy_node(node, x, inner, nodes, needed, owner, u)
            return inner[v]

        shown = self.shown_by_roots(u)
        u.roots = [r for r in u.roots if r not in shown]
        for r in u.roots:
            copy(r)
        if len(nodes) == 1:
            u.emitted = (self.nodes[self.at[u.roots[0]]], *shown.values())
            return
        results = tuple(inner[r] for r in u.roots)
        region = Block((), tuple(nodes), results)
        loc = self.nodes[self.at[u.roots[-1]]].loc
        fused = Node(OPS["fused"], (), {}, tuple(u.roots), (region,), loc)
        u.emitted = (fused, *shown.values())

    def shown_by_roots(self, u: Unit) -> dict[Value, Node]:
        """Return roots that are a view or a part of another root, as views of it.

        What is written into a part need not be stored a second time.
        """
        found: dict[Value, Node] = {}
        for s in u.roots:
            node = self.nodes[self.at[s]]
            if node.op.kind is Kind.VIEW and node.operands[0] in u.roots:
                if s not in self.source.results:
                    found[s] = node
            if node.op.kind is not Kind.SCATTER or view_of(node).kind is not Kind.VIEW:
                continue
            new = node.operands[1]
            if node.op.accumulates or node.op.overlapping or new not in u.roots:
                continue
            assert isinstance(new, Value)
            if new.type == part_type(node) and new not in self.source.results:
                operands = (s, *indices_of(node))
                view = view_of(node)
                found[new] = Node(view, operands, node.attrs, (new,), (), node.loc)
        return found

    def inward(self, node: Node, values: list[Value]) -> list[Value]:
        """Return the operands that may be computed inside; not a base in memory."""
        if node.op.kind in (Kind.GATHER, Kind.SCATTER):
            return [x for x in values if x is not node.operands[0]]
        return values

    def copy_node(
        self,
        node: Node,
        x: Value,
        inner: dict[Value, Value],
        nodes: list[Node],
        needed: set[Value],
        owner: dict[Value, int],
        u: Unit,
    ) -> None:
        operands: list[Operand] = []
        for y in node.operands:
            outside = isinstance(y, Value) and (
                y not in inner
                or (
                    node.op.kind in (Kind.GATHER, Kind.SCATTER)
                    and y is node.operands[0]
                )
            )
            if outside and isinstance(y, Value):
                needed.add(y)
                if y in owner:
                    u.needs.add(owner[y])
                operands.append(y)
            else:
                operands.append(inner[y] if isinstance(y, Value) else y)
        self.need_sizes(u, node, owner)
        v = Value(self.names.name(x.name), x.type)
        inner[x] = v
        nodes.append(Node(node.op, tuple(operands), node.attrs, (v,), (), node.loc))

    def schedule(self, units: list[Unit]) -> Iterator[Node]:
        """Order the units by need, else as the nodes stood."""
        items = {
            i: Item(max(u.members), u.emitted) for i, u in enumerate(units) if u.emitted
        }
        for i, item in items.items():
            item.needs = [items[j] for j in units[i].needs]
        return in_order(list(items.values()))


def symbols_of_node(node: Node) -> Iterator[Symbol]:
    """Yield the symbols that a node mentions, in its regions too."""
    for region in node.regions:
        for inner in walk(region):
            yield from symbols_of_node(inner)
        for x in region.results:
            if isinstance(x, Expr):
                yield from symbols_of(x)
    for d in dims_of_node(node):
        yield from symbols_of(d)


def key_of(node: Node, stretch: int) -> Key | None:
    """Return the index space of a node that can be grouped."""
    if node.op.kind not in GROUPED or len(node.results) != 1:
        return None
    t = node.result.type
    match node.op.kind:
        case Kind.CREATION if node.op.lower is None:
            return None
        case Kind.SCATTER if view_of(node).kind is Kind.MASK:
            return None
        case Kind.SCATTER:
            return (canonical(part_type(node).shape), stretch) if t.shape else None
        case Kind.REDUCTION:
            shape = type_of(node.operands[0]).shape
            return (canonical(shape), stretch) if shape else None
        case _:
            return (canonical(t.shape), stretch) if t.shape else None
