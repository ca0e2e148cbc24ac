"""Loops as regions: `for` over rows, `while` over a condition. See docs/loops.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir import dims
from ..ir.dims import Dim
from ..ir.func import Block, Node
from ..ir.op import OPS, Kind
from .branches import Thunk
from .carries import Integer, Loop
from .containers import flatten_tree
from .location import user_location
from .rows import Range, Rows
from .slots import CannotCarry, ComputesNothing, Slots, Snapshot
from .stacks import Sharing, Stack
from .tensor import Tensor
from .trace import HiddenTrace, Trace
from .unify import (
    as_condition,
    hint,
    is_python_int,
    is_value,
    type_in,
)

# ---------------------------------------------------------------- for


class ForLoop(Loop):
    """A loop over `Rows`, as a `for` over 0, 1, ... or over the range itself."""

    def __init__(
        self,
        trace: Trace,
        slots: Slots,
        rows: Rows,
        body: Callable[[Any], None],
        targets: Sequence[str],
    ) -> None:
        super().__init__(trace, slots)
        self.rows, self.body = rows, body
        self.targets = frozenset(targets)
        for k, name in enumerate(slots.names):
            if name in self.targets:
                self.carries.pop(("name", k, None), None)
        known = trace.assumptions
        self.trips: Dim = self._dim(rows.length)
        self.start, self.stop = map(self._dim, rows.bounds())
        name = targets[0] if targets else "i"
        with known.scope():
            self.index = known.symbol(None, [hint(name)])
        self.stacks: dict[int, Stack] = {}

    def position(self) -> Dim:
        return dims.add(self.index, dims.mul(self.start, -1))

    def is_counted(self) -> bool:
        return True

    def runs(self) -> bool:
        return self.trace.assumptions.decide(dims.add(self.trips, -1)) is True

    def attempt(self) -> bool:
        trace, known = self.trace, self.trace.assumptions
        for stack in self.stacks.values():
            stack.make(trace)
        (s,) = dims.symbols_of(self.index)
        last = dims.add(self.stop, -1)
        facts = (
            dims.add(self.index, dims.mul(self.start, -1)),
            dims.add(last, dims.mul(self.index, -1)),
        )
        with trace.region(*facts) as nodes:
            self.inside = (nodes,)
            known.ranges[s] = (self.start, last)
            known.visible.add(s)
            known.growing |= self.iterators
            start = self.stand_ins()
            for k, stack in self.stacks.items():
                start.items[k] = stack.stand_ins(len(self.before.items[k]))
                known.growing |= {id(stack.hidden), id(self.slots.containers[k].owner)}
            try:
                self.slots.restore(start)
                i = trace.integer(self.index)
                self.body(self.rows.at(i))
                after = self.slots.read()
            finally:
                self.slots.restore(self.before)
            fits = self._stack(start, after)
            carries = self.revise(start, self._without_targets(start, after))
            fits = fits and carries == self.carries
            if fits:
                yields = self.passed_on(after)
                params = tuple(self.params)
                shared = Sharing(nodes, params, yields)
                shared.add(tuple(self.stacks.values()), self.trace)
                block = Block(params, tuple(nodes), tuple(yields))
        if not fits:
            self.carries = carries
            return False
        self._check_computes(nodes)
        inits = self.initial_operands()
        attrs = {"index": self.index, "start": self.start, "stop": self.stop, "step": 1}
        types, hints = [p.type for p in params], [p.name for p in params]
        results = trace.control(OPS["for"], inits, attrs, [block], types, hints)
        trace.mutations.kept |= shared.outside(inits, results)
        ended = self._targets_after(after)
        self.finish(results, after, self.trips)
        self._bind(ended)
        self._unstack()
        return True

    def _check_computes(self, nodes: Sequence[Node]) -> None:
        """Leave a loop to Python that computes nothing but its own ints."""
        if all(n.op.kind is Kind.SIZE for n in nodes) and isinstance(self.trips, int):
            raise ComputesNothing("a loop of ints", location=user_location())

    # The target ------------------------------------------------------------------

    def _without_targets(self, start: Snapshot, after: Snapshot) -> Snapshot:
        """Return `after`, in which integer targets have not changed."""
        out = after.copy()
        for k, name in enumerate(self.slots.names):
            if name in self.targets and self._ends_known(after.names[k]):
                out.names[k] = start.names[k]
        return out

    def _ends_known(self, x: Any) -> bool:
        (s,) = dims.symbols_of(self.index)
        return (
            is_python_int(x)
            and dims.symbols_of(self._dim(x)) - {s} <= self.outer_symbols()
        )

    def _targets_after(self, after: Snapshot) -> dict[int, Any]:
        """Return the values of integer targets after the last iteration."""
        (s,) = dims.symbols_of(self.index)
        out: dict[int, Any] = {}
        for k, name in enumerate(self.slots.names):
            x = after.names[k]
            if name in self.targets and name in self.slots.live and self._ends_known(x):
                if not self.runs():
                    out[k] = None
                    continue
                last = {s: dims.add(self.stop, -1)}
                out[k] = self.trace.integer(dims.substitute(self._dim(x), last))
        return out

    def _bind(self, targets: dict[int, Any]) -> None:
        held = self.slots.read()
        for k, x in targets.items():
            if x is not None:
                held.names[k] = x
        self.slots.restore(held)

    # Lists that grow --------------------------------------------------------------

    def _stack(self, start: Snapshot, after: Snapshot) -> bool:
        """Write items appended to lists into arrays; tell whether these were there."""
        fits, known = True, self.trace.assumptions
        for k, count in self.slots.grown(start, after).items():
            items = after.items[k][-count:]
            label = self.slots.containers[k].name
            last = after.items[k][-count - 1] if k in self.stacks else None
            if last is not None and last is not start.items[k][-1]:
                raise CannotCarry(
                    f"{label}: a list that gets items elsewhere than at its end",
                    location=user_location(),
                    rule="A list that grows in a loop gets the items one after the "
                    "other.",
                    hint="append, and reverse the list after the loop",
                )
            leaves, tree = flatten_tree(list(items))
            for x in leaves:
                if not is_value(x):
                    raise CannotCarry(
                        f"{label}: a {type(x).__name__} is appended in a loop",
                        location=user_location(),
                        rule="A list that grows in a loop gets arrays and numbers.",
                    )
            types = tuple(self._outside(type_in(self.trace, x), label) for x in leaves)
            stack = self.stacks.get(k)
            if stack is None or (stack.tree, stack.types) != (tree, types):
                self.stacks[k] = Stack(
                    HiddenTrace(known), tree, types, self._fixed_trips()
                )
                fits = False
            else:
                stack.write(self.trace, leaves, self.trace.integer(self.position()))
            after.items[k] = list(start.items[k])
        return fits

    def _fixed_trips(self) -> int:
        trips = self.trace.assumptions.specialise(self.trips)
        self.trips = trips
        resolve = self.trace.assumptions.resolve
        self.start, self.stop = resolve(self.start), resolve(self.stop)
        return trips

    def _unstack(self) -> None:
        if not self.stacks:
            return
        held = self.slots.read()
        for k, stack in self.stacks.items():
            held.items[k] = [*self.before.items[k], *stack.items(self.trace)]
        self.slots.restore(held)


# ---------------------------------------------------------------- while


class WhileLoop(Loop):
    """A loop whose condition is computed."""

    def __init__(
        self, trace: Trace, slots: Slots, test: Thunk, body: Callable[[], None]
    ) -> None:
        super().__init__(trace, slots)
        self.test, self.body = test, body

    def attempt(self) -> bool:
        trace = self.trace
        with trace.region() as first:
            trace.assumptions.growing |= self.iterators
            start = self.stand_ins()
            try:
                self.slots.restore(start)
                condition = self.test()
                computed = as_condition(trace, condition)
                if computed is None and not condition:
                    raise self._known()
                condition = condition if computed is None else computed
                facts = trace.test_of(condition)
                with trace.region(*facts.true) as second:
                    self.inside = (first, second)
                    self.body()
                    after = self.slots.read()
                    for k in self.slots.grown(start, after):
                        raise CannotCarry(
                            f"{self.slots.containers[k].name}: a list that grows in a "
                            "loop that ends by a computed condition",
                            location=user_location(),
                            rule="How many items it gets is known only when the "
                            "program runs.",
                            hint="write into an array that is large enough",
                        )
                    self.slots.restore(self.before)
                    carries = self.revise(start, after)
                    fits = carries == self.carries
                    if fits:
                        yields = tuple(self.passed_on(after))
            finally:
                self.slots.restore(self.before)
        if not fits:
            self.carries = carries
            return False
        counted = self._as_range(condition, start, after)
        if counted is not None and all(_is_scalar_op(n) for n in first):
            raise Counted(counted)
        if not isinstance(condition, Tensor):
            raise self._known()
        params = tuple(self.params)
        test = Block(params, tuple(first), (trace.operand(condition),))
        block = Block((), tuple(second), yields)
        inits = self.initial_operands()
        types, hints = [p.type for p in params], [p.name for p in params]
        results = trace.control(OPS["while"], inits, {}, [test, block], types, hints)
        self.finish(results, after, None)
        return True

    def _known(self) -> CannotCarry:
        return CannotCarry(
            "a loop whose condition Python knows",
            location=user_location(),
            rule="It ends by something that cannot be computed.",
        )

    def _as_range(self, condition: Any, start: Snapshot, after: Snapshot) -> Any:
        """Return the range that a counter runs over, if that alone ends the loop."""
        test = self.trace.test_of(condition)
        facts = test.true
        if not test.exact:
            return None
        outer = self.outer_symbols()
        for key, carry in self.carries.items():
            if len(carry.leaves) != 1 or not isinstance(carry.leaves[0], Integer):
                continue
            given, now = self._dim(start.get(key)), self._dim(after.get(key))
            step = dims.add(now, dims.mul(given, -1))
            if not isinstance(step, int) or step == 0:
                continue
            # The condition: given <= last, or given >= last going down.
            way = 1 if step > 0 else -1
            last = dims.add(given, dims.mul(facts[0], way))
            if dims.symbols_of(last) <= outer:
                stop = self.trace.integer(dims.add(last, way))
                return Range(self.before.get(key), stop, step)
        return None


def _is_scalar_op(node: Node) -> bool:
    return node.op.kind in (Kind.SIZE, Kind.ELEMENTWISE) and not any(
        v.type.shape for v in node.results
    )


class Counted(Exception):
    """A `while` that is a `for` over a range."""

    def __init__(self, rows: Range) -> None:
        super().__init__(rows)
        self.rows = rows
