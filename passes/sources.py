"""Where the reverse of a region gets the values of the forward region from.

Each value that is read is computed again from others, read from the loop's result where
it survives (`reroot.py`), or saved on a tape (`tape.py`). The choice is the cheapest
one for all of them together, by a symbolic count of bytes and operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.errors import GradientError
from ..ir.func import Block, Node, Value, free_values
from ..ir.op import Kind
from .costs import HUGE, NEVER_AGAIN, saved_cost, work
from .mincut import SINK, SOURCE, Network
from .ranges import Range
from .reroot import Price, Reroot, root_of
from .scope import ScopedBuilder, defined_symbol, mentioned

if TYPE_CHECKING:
    from .vjp import Reversed, Step

Needed: TypeAlias = Value | Symbol

WHOLE = 1.01  # breaks ties between a parameter and its parts
UNIT = 1024  # capacities are costs in this unit, rounded
IMPOSSIBLE = 1e3 * HUGE


@dataclass(eq=False, slots=True)
class Made:
    """A way to make values of a region: by a step, what replaces it, from results."""

    step: int
    nodes: tuple[Node, ...]
    work: float  # cost of computing it again, apart from its inputs
    inputs: list[Needed]
    values: tuple[Value, ...]
    price: Price | None = None
    instead: Made | None = None  # what it replaces: it makes all that that one does
    again: float = math.inf  # estimate: the cost together with all that it needs


class Sources:
    """Decides for each value that is read: saved or computed again.

    Note [the cheapest sources are a minimum cut]
    What the reverse reads is needed. A needed value is saved, which costs its bytes, or
    computed by a step, which costs operations and needs the step's inputs; parameters
    have no step. So this is a network in which an edge is cut where its tail is
    needed, or a step that is run, and its head is not:

        source -> value     what is read
        value -> step       the cost of saving the value
        step -> value       its inputs; cannot be cut
        step -> sink        the cost of computing it

    The minimum cut is the best choice for all values at once: one array is saved
    instead of three that are computed from it, whatever each of them costs by itself.
    What a loop around has to save for a step (`Price`) is a node between steps and the
    sink, paid once. Where a value can be made in several ways (by its step, or read
    from the loop's result), the network has the one that is cheapest by itself.
    When it is known what is saved, what else can be read from that becomes another way,
    and the choice is made again.
    """

    def __init__(
        self,
        b: ScopedBuilder,
        block: Block,
        steps: Sequence[Step],
        loop: Range | None,
        definers: set[Node],
        fixed: Iterable[Value] = (),
        reroot: Reroot | None = None,
        derived: Iterable[Value] = (),
        logs: Iterable[Value] = (),
    ) -> None:
        self.reroot = reroot
        self.definers = definers
        self.derived = set(derived)
        self.b, self.block, self.steps, self.loop = b, block, steps, loop
        self.made: dict[Value, list[Made]] = {}
        self.order: list[Made] = []
        self.counts: dict[Symbol, Made] = {}
        self.fixed = set(fixed)
        self.logs = set(logs)
        self.params = set(block.params) - self.fixed
        self.taped: dict[Value, None] = {}
        self.kept: dict[Value, None] = {}  # what is saved, whatever else is chosen
        self.wanted: dict[Made, None] = {}
        self.boxes: dict[Value, tuple[Dim, ...] | None] = {}
        for k, step in enumerate(steps):
            self._enter_step(k, step)

    # Ways to make values ----------------------------------------------------------

    def _enter_step(self, k: int, step: Step) -> None:
        results, reroot = step.node.results, self.reroot
        nodes = (step.node,) if reroot is None else reroot.nodes((step.node,))
        own = defined_symbol(step.node) if self._defines(step.node) else None
        price = None
        if reroot is not None and len(results) == 1:
            price = reroot.reading(step.node.result)
        made = Made(k, nodes, self.repeating(nodes), [], results, price)
        self._enter(made, [own] if own else [])
        if step.replaced is not None:
            nodes = step.replaced if reroot is None else reroot.nodes(step.replaced)
            more = self.repeating(nodes)
            more = more if more == math.inf else max(more - made.work, 0.0)
            new = Made(k, nodes, more, [], step.extras, None, made)
            self._enter(new, step.symbols)
        if reroot is not None:
            for v in results:
                for nodes, price in reroot.found(v):
                    self._enter(Made(k, nodes, 0.0, [], (v,), price))

    def _enter(self, made: Made, symbols: Iterable[Symbol] = ()) -> None:
        made.inputs = self.inputs(made.nodes)
        made.again = self._total(made)
        self.order.append(made)
        self.counts.update((s, made) for s in symbols)
        for v in made.values:
            if v not in self.fixed:
                self.made.setdefault(v, []).append(made)

    def _defines(self, node: Node) -> bool:
        return node in self.definers or node.op.kind is Kind.SIZE

    def _total(self, made: Made) -> float:
        """Estimate the cost of computing a step again, with what it reads."""
        costs = [made.work, *map(self._cost, filter(self.is_local, made.inputs))]
        if made.instead is not None:
            costs.append(made.instead.work)
        ways = [w for x in made.inputs if (w := self.way(x)) is not None]
        if made.price is not None and all(w.price != made.price for w in ways):
            costs.append(made.price.cost)
        return math.inf if math.inf in costs else min(sum(costs), HUGE)

    def _cost(self, x: Needed) -> float:
        """Estimate the cost of a value or symbol by itself."""
        way = self.way(x)
        again = math.inf if way is None else way.again
        return min(again, self.saving(x)) if isinstance(x, Value) else again

    def way(self, x: Needed) -> Made | None:
        """Return how a value or symbol is made, if this region makes it."""
        if isinstance(x, Symbol):
            return self.counts.get(x)
        ways = self.made.get(x)
        return min(ways, key=lambda made: made.again) if ways else None

    def repeating(self, nodes: Sequence[Node]) -> float:
        """Return the cost of computing nodes again, apart from their inputs."""
        if any(n.op.kind in NEVER_AGAIN for n in nodes):
            return math.inf
        return work(nodes)

    def inputs(self, nodes: Sequence[Node]) -> list[Needed]:
        """Return what nodes read that this region defines."""
        found: dict[Needed, None] = {}
        for v in free_values(Block((), tuple(nodes))):
            if v in self.made or v in self.params:
                found.setdefault(v)
        own = {defined_symbol(n) for n in nodes}
        for s in mentioned(nodes):
            if s in self.counts and s not in own:
                found.setdefault(s)
        return list(found)

    # Tapes ------------------------------------------------------------------------

    def saving(self, v: Value) -> float:
        """Estimate the cost of a tape of `v` per iteration; inf where it cannot be.

        What the reverse derives is saved only where that is a choice: one byte.
        """
        if v in self.kept:
            return 0.0
        if v in self.derived and v.type.dtype.kind != "b":
            return math.inf
        if self.box(v) is None:
            return math.inf
        return saved_cost(v.type) * (WHOLE if v in self.params else 1.0)

    def box(self, v: Value) -> tuple[Dim, ...] | None:
        """Return the shape of a tape's entry for `v`, if there can be one.

        It is found from what holds around the loop, and kept.
        """
        if v not in self.boxes:
            self.boxes[v] = self._box(v)
        return self.boxes[v]

    def _box(self, v: Value) -> tuple[Dim, ...] | None:
        if self.loop is None:
            return None
        shape = []
        for d in v.type.shape:
            if dims.symbols_of(d) & self.counts.keys():
                return None
            largest = self.loop.largest(self.b, d)
            if largest is None:
                return None
            shape.append(largest)
        return tuple(shape)

    # The choice -------------------------------------------------------------------

    def want(self, back: Reversed) -> None:
        """Choose sources for everything that a reversed region reads."""
        needs: list[Needed] = [*back.needs(), *mentioned(back.nodes)]
        local = [x for x in needs if self.is_local(x)]
        self.choose(local)
        if self.taped and self.loop is not None:
            self.kept = self.taped
            for k, step in enumerate(self.steps):
                for v in step.node.results:
                    self._enter_kept(k, v)
            self.order.sort(key=lambda made: made.step)
            self.choose(local)

    def choose(self, needs: Sequence[Needed]) -> None:
        """Find the cheapest sources, and note what is saved and what is computed."""
        self.taped, self.wanted = {}, {}
        for x in _Choice(self, needs).run():
            if isinstance(x, Value):
                self.taped.setdefault(x)
            elif x.again == math.inf:
                raise _unavailable(x.nodes[0])
            else:
                self.wanted.setdefault(x)

    def _enter_kept(self, k: int, v: Value) -> None:
        """Enter how to read a value from what is saved for other reasons.

        What was put into an array is a view of it.
        """
        if v in self.kept or self.reroot is None:
            return
        for nodes in self.reroot.shown(v, self.kept):
            inputs = self.inputs(nodes)
            if all(x in self.kept for x in inputs):
                self._enter(Made(k, nodes, 0.0, [], (v,)))

    def is_local(self, x: Needed) -> bool:
        """Tell whether a value or symbol must be saved or made by this region."""
        return self.way(x) is not None or x in self.params

    def total(self) -> float:
        """Estimate the cost of what was chosen, per iteration; inf if impossible."""
        if any(self.box(v) is None for v in self.taped):
            return math.inf
        saved = sum(saved_cost(v.type) for v in self.taped)
        prices = dict.fromkeys(made.price for made in self.wanted)
        around = sum(p.cost for p in prices if p is not None)
        return saved + around + sum(made.work for made in self.wanted)

    def state_of(self, v: Value) -> Value:
        """Return the state of a carry that a value is a view of, or the value."""
        chain = self.reroot.chains.get(v) if self.reroot is not None else None
        return v if chain is None else root_of(chain)

    def again(self) -> list[Node]:
        """Return the forward nodes to compute again, in order."""
        less = {made.instead for made in self.wanted}
        found = (m for m in self.order if m in self.wanted and m not in less)
        return [n for made in found for n in made.nodes]

    def saves(self, step: Step) -> bool:
        """Tell whether the forward loop must run what replaces a step."""
        return any(v in self.taped for v in step.extras)


@dataclass(slots=True)
class _Choice:
    """The network of Note [the cheapest sources are a minimum cut], and its cut."""

    sources: Sources
    needs: Sequence[Needed]
    network: Network = field(default_factory=Network)
    of: dict[object, int] = field(default_factory=dict)  # nodes of the network
    waiting: list[Needed | Made] = field(default_factory=list)

    def run(self) -> list[Value | Made]:
        """Return what is saved and what is computed, as it is found from the needs."""
        for x in self.needs:
            self.network.edge(SOURCE, self.node(x), math.inf)
        while self.waiting:
            self.enter(self.waiting.pop())
        needed = self.network.cut()
        found: dict[Value | Made, None] = {}
        seen: set[object] = set()
        left: list[Needed | Made] = [*reversed(self.needs)]
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            made = at if isinstance(at, Made) else self.way(at)
            if made is not None and self.of[made] in needed:
                found.setdefault(made)
                left += reversed(self.below(made))
            elif isinstance(at, Value):
                found.setdefault(at)
        return list(found)

    def node(self, x: object) -> int:
        """Return the node of the network that stands for something."""
        if x not in self.of:
            self.of[x] = self.network.node()
            if isinstance(x, Price):
                self.network.edge(self.of[x], SINK, _capacity(x.cost))
            else:
                self.waiting.append(x)  # type: ignore[arg-type]
        return self.of[x]

    def enter(self, x: Needed | Made) -> None:
        """Add the edges that lead away from a value, a symbol or a step."""
        network, node = self.network, self.of[x]
        if isinstance(x, Made):
            network.edge(node, SINK, _capacity(x.work))
            for y in (*self.below(x), *([] if x.price is None else [x.price])):
                network.edge(node, self.node(y), math.inf)
            return
        made = self.way(x)
        saving = self.sources.saving(x) if isinstance(x, Value) else math.inf
        if made is None:
            network.edge(node, SINK, _capacity(saving))
        else:
            possible = math.inf if saving == math.inf else _capacity(saving)
            network.edge(node, self.node(made), possible)

    def way(self, x: Needed) -> Made | None:
        """Return how something is made; None for what has to be saved."""
        s = self.sources
        return None if x in s.logs or x in s.kept else s.way(x)

    def below(self, made: Made) -> list[Needed | Made]:
        """Return what a step needs."""
        inputs = [x for x in made.inputs if self.sources.is_local(x)]
        return [*inputs, *([] if made.instead is None else [made.instead])]


def _capacity(cost: float) -> int:
    return round(min(cost, IMPOSSIBLE) * UNIT)


def _unavailable(node: Node) -> GradientError:
    return GradientError(
        f"{node.op.name}: its values are read by the gradient, but can neither be "
        "saved nor computed again",
        location=node.loc,
        rule="a value is saved once per iteration, in an array of fixed size.",
        hint="move the operation out of the branch or loop",
    )
