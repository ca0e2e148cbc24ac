"""Loops as regions: the body is traced with stand-ins for what changes.

The body of a loop is traced once, with stand-ins for what changes from one iteration to
the next, and again until the stand-ins fit: these are the carries of a `for` or
`while`. See docs/loops.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS, Kind
from ..ir.types import Type
from .assume import NeedsValue, dim_of
from .branches import INT, Thunk, is_older
from .containers import Tree, flatten_tree, unflatten_tree
from .location import user_location
from .rows import Range, Rows
from .slots import CannotCarry, ComputesNothing, Differs, Key, Slots, Snapshot
from .stacks import Sharing, Stack
from .tensor import Tensor
from .trace import HiddenTrace, Trace
from .unify import (
    as_condition,
    as_type,
    differ,
    flatten_pair,
    hint,
    is_missing,
    is_python_int,
    is_same,
    is_value,
    join,
    nothing,
    type_in,
)

ATTEMPTS = 20


# ---------------------------------------------------------------- carries


@dataclass(frozen=True, slots=True)
class Fixed:
    """A leaf that stays what it is."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A leaf that is a value of this type at the start of every iteration."""

    type: Type


@dataclass(frozen=True, slots=True)
class Integer:
    """A Python int that changes: a symbol in every iteration."""

    rises: bool = False  # it never gets smaller than it was at first
    falls: bool = False


@dataclass(frozen=True, slots=True)
class Counter:
    """A Python int that changes by the same amount in every iteration."""

    step: Dim


Leaf: TypeAlias = Fixed | Carried | Integer | Counter


@dataclass(frozen=True, slots=True)
class Carry:
    """How a slot that changes is passed on: its structure and its leaves."""

    tree: Tree
    leaves: tuple[Leaf, ...]


Carries: TypeAlias = dict[Key, Carry]


class _Loop:
    """What `for` and `while` share: stand-ins for what changes, until they fit."""

    op: str

    def __init__(self, trace: Trace, slots: Slots) -> None:
        self.trace = trace
        self.slots = slots
        self.before = slots.read()
        self.carries: Carries = self._guess()
        self.params: list[Value] = []
        self.symbols: dict[tuple[Key, int], Symbol | None] = {}  # of changing ints
        self.inside: tuple[list[Node], ...] = ()  # nodes of the present attempt
        self.inits: list[Operand] = []
        self.yields: list[Operand] = []
        self.made: list[Any] = []
        self.visible = set(trace.assumptions.visible)
        held = [*self.before.names, *self.before.variables]
        self.iterators = {id(x) for x in held if isinstance(x, Iterator)}
        self.iterators |= slots.iterators

    def run(self) -> None:
        """Trace the loop as a region. Raises `NeedsValue` where that cannot be."""
        guesses: list[Carries] = []
        untried: list[Carries] = []
        reason: NeedsValue | None = None
        for _ in range(ATTEMPTS):
            try:
                if self.attempt():
                    return
            except NeedsValue as error:
                reason = error
                new = [g for g in self._directions(error) if g not in guesses]
                guesses += new
                untried += new
                if not untried:
                    raise
                self.carries = untried.pop()
        raise reason or CannotCarry(
            "the variables of a loop keep changing their types",
            location=user_location(),
            rule="A name has one type at the start of every iteration.",
        )

    def attempt(self) -> bool:
        """Trace the body once; tell whether the stand-ins fitted."""
        raise NotImplementedError

    def _guess(self) -> Carries:
        """Return the carries that are likely: numbers that the body binds again."""
        out: Carries = {}
        for k, name in enumerate(self.slots.names):
            x = self.before.names[k]
            key = self.slots.key_of(k)
            if name not in self.slots.live or isinstance(x, bool):
                continue
            if is_python_int(x):
                out[key] = Carry(flatten_tree(x)[1], (Integer(),))
            elif is_value(x) and type_in(self.trace, x).scalar:
                t = type_in(self.trace, x)
                out[key] = Carry(flatten_tree(x)[1], (Carried(t),))
        return out

    def _directions(self, error: NeedsValue) -> Iterator[Carries]:
        """Yield carries in which an int rises or falls, for a body that needs to know.

        An attempt fits only where it does.
        """
        unknown = {
            (key, k): self.symbols.get((key, k))
            for key, carry in self.carries.items()
            for k, leaf in enumerate(carry.leaves)
            if leaf == Integer()
        }
        named = [at for at, s in unknown.items() if s in error.symbols]
        for key, k in named or unknown:
            for way in (Integer(falls=True), Integer(rises=True)):
                tree, leaves = self.carries[key].tree, list(self.carries[key].leaves)
                leaves[k] = way
                yield {**self.carries, key: Carry(tree, tuple(leaves))}

    # Stand-ins ------------------------------------------------------------------------

    def stand_ins(self) -> Snapshot:
        """Return what the slots hold at the start of an iteration."""
        self.params, self.inits = [], []
        start = self.before.copy()
        for key, carry in self.carries.items():
            leaves = self._initial(key, carry)
            name = hint(self.slots.label(key))
            new = [
                self._stand_in(leaf, x, name)
                for leaf, x in zip(carry.leaves, leaves, strict=True)
            ]
            for k, (leaf, x) in enumerate(zip(carry.leaves, new, strict=True)):
                if isinstance(leaf, Integer):
                    self.symbols[key, k] = dims.as_symbol(self._dim(x))
            start.set(key, unflatten_tree(carry.tree, new))
        return start

    def _initial(self, key: Key, carry: Carry) -> list[Any]:
        """Return the leaves that a slot has before the loop."""
        x = self.before.get(key)
        if is_missing(x):
            return [x] * len(carry.leaves)
        return flatten_tree(x)[0]

    def _stand_in(self, leaf: Leaf, x: Any, name: str) -> Any:
        match leaf:
            case Fixed():
                return x
            case Counter(step):
                return self.trace.integer(
                    dims.add(self._dim(x), dims.mul(step, self.position()))
                )
            case Carried(want):
                return self.trace.tensor(self._param(want, x, name))
            case Integer(rises, falls):
                t = self.trace.tensor(self._param(INT, x, name))
                first = self._dim(x)
                facts: list[Any] = []
                if rises:
                    facts.append(lambda s: dims.add(s, dims.mul(first, -1)))
                if falls:
                    facts.append(lambda s: dims.add(first, dims.mul(s, -1)))
                return self.trace.integers.of(t, [name], *facts)
        raise AssertionError(leaf)

    def _param(self, want: Type, x: Any, name: str) -> Value:
        v = self.trace.builder.value(want, name)
        self.params.append(v)
        self.inits.append(x)
        return v

    def _dim(self, x: Any) -> Dim:
        d = dim_of(x)
        assert d is not None
        return self.trace.assumptions.resolve(d)

    def position(self) -> Dim:
        """Return the number of the iteration, where there is such a dim."""
        raise NotImplementedError

    def is_counted(self) -> bool:
        """Tell whether `position` can be asked."""
        return False

    def runs(self) -> bool:
        """Tell whether there certainly is an iteration."""
        return False

    # After an iteration -----------------------------------------------------------

    def revise(self, start: Snapshot, after: Snapshot) -> Carries:
        """Return the carries with which the next attempt may fit."""
        out: Carries = {}
        keys = dict.fromkeys([*self.carries, *self.slots.changed(start, after)])
        for key in keys:
            carry = self._revised(key, start.get(key), after.get(key))
            if carry is not None:
                out[key] = carry
        return out

    def _revised(self, key: Key, given: Any, now: Any) -> Carry | None:
        what, old = self.slots.label(key), self.carries.get(key)
        first = self.before.get(key)
        if is_missing(now):
            if is_missing(first):
                return None
            raise self._unbound(what)
        if is_missing(first):
            return self._from_nothing(key, given, now, old)
        xs, ys, tree = flatten_pair(first, now, what)
        givens = flatten_tree(given)[0]
        leaves = old.leaves if old is not None else (Fixed(),) * len(xs)
        new = tuple(
            self._leaf(key, *parts)
            for parts in zip(leaves, xs, givens, ys, strict=True)
        )
        appeared = any(
            is_missing(x) and not is_missing(y) for x, y in zip(xs, ys, strict=True)
        )
        if all(isinstance(leaf, Fixed) for leaf in new) and not appeared:
            return None
        return Carry(tree, new)

    def _from_nothing(
        self, key: Key, given: Any, now: Any, old: Carry | None
    ) -> Carry | None:
        """Carry a name that has no value before the loop."""
        what = self.slots.label(key)
        if not self.slots.may_lack(key) and not self.runs():
            raise self._unbound(what)
        leaves, tree = flatten_tree(now)
        same = map(is_same, flatten_tree(given)[0], leaves)
        if old is not None and old.tree == tree and all(same):
            return None  # the loop does not bind it, as it turns out
        if old is not None and old.tree != tree:
            flatten_pair(given, now, what)  # raises
        new: list[Leaf] = []
        for k, x in enumerate(leaves):
            if not isinstance(x, Tensor) and not is_value(x):
                if old is not None:
                    return old
                raise self._unbound(what)
            new.append(self._new_leaf(key, old.leaves[k] if old else None, x))
        return Carry(tree, tuple(new))

    def _new_leaf(self, key: Key, old: Leaf | None, x: Any) -> Leaf:
        """Carry a leaf that has no value before the loop."""
        what = self.slots.label(key)
        if self.slots.may_lack(key) and self._is_older(x):
            return Fixed()
        have = type_in(self.trace, x)
        if isinstance(old, Carried):
            have = join(self.trace, old.type, have, what)
        return Carried(self._outside(have, what))

    def _is_older(self, x: Any) -> bool:
        """Tell whether `x` was there before the loop: the same in all iterations."""
        return (
            isinstance(x, Tensor)
            and x._value not in self.params
            and all(is_older(x, nodes) for nodes in self.inside)
        )

    def _unbound(self, what: str) -> Differs:
        return Differs(
            f"{what} has a value only after some iterations of a loop",
            location=user_location(),
            rule="What a loop passes on has a value before the loop; there may be no "
            "iteration.",
            hint=f"give {what} a value before the loop",
        )

    def _leaf(self, key: Key, leaf: Leaf, first: Any, given: Any, now: Any) -> Leaf:
        what = self.slots.label(key)
        if isinstance(leaf, Fixed) and is_same(given, now):
            return leaf
        if is_missing(first) and self.slots.may_lack(key) and is_value(now):
            return self._new_leaf(key, leaf, now)
        if is_same(given, now) and not isinstance(leaf, Carried):
            return Fixed()
        if not is_value(first) or not is_value(now):
            raise differ(first, now, what)
        if is_python_int(first) and is_python_int(now):
            return self._integer(leaf, given, now)
        want = type_in(self.trace, first)
        if isinstance(leaf, Carried):
            want = join(self.trace, want, leaf.type, what)
        want = join(self.trace, want, type_in(self.trace, now), what)
        return Carried(self._outside(want, what))

    def _outside(self, t: Type, what: str) -> Type:
        """Return a type that makes sense outside the loop."""
        for d in t.shape:
            if not dims.symbols_of(d) <= self.outer_symbols():
                raise CannotCarry(
                    f"{what} has a shape that depends on the iteration: {t}",
                    location=user_location(),
                    rule="What a loop passes on has one shape.",
                    hint="make the array as large as it gets before the loop, and "
                    "write into a part of it",
                )
        return t

    def outer_symbols(self) -> set[Symbol]:
        return {*self.trace.assumptions.hints, *self.visible}

    def _integer(self, leaf: Leaf, given: Any, now: Any) -> Leaf:
        if not isinstance(leaf, Integer | Counter):
            return Integer()
        known = self.trace.assumptions
        step = known.resolve(dims.add(self._dim(now), dims.mul(self._dim(given), -1)))
        if self.is_counted() and dims.symbols_of(step) <= self.outer_symbols():
            return Counter(step) if step != 0 else Fixed()
        rises = known.proves(step)
        falls = known.proves(dims.mul(step, -1))
        if isinstance(leaf, Integer):
            return Integer(rises, falls)
        return Integer()

    def passed_on(self, after: Snapshot) -> list[Operand]:
        """Return what the region yields, converted to the types of the carries."""
        out = []
        for key, carry in self.carries.items():
            now = after.get(key)
            leaves = flatten_tree(now)[0]
            for leaf, x in zip(carry.leaves, leaves, strict=True):
                if isinstance(leaf, Carried):
                    out.append(as_type(self.trace, x, leaf.type))
                elif isinstance(leaf, Integer):
                    out.append(self.trace.operand(x))
        return out

    # After the loop -----------------------------------------------------------------

    def initial_operands(self) -> list[Operand]:
        """Return what the carries are before the loop."""
        return [
            nothing(self.trace, p.type)
            if is_missing(x)
            else as_type(self.trace, x, p.type)
            for p, x in zip(self.params, self.inits, strict=True)
        ]

    def finish(
        self, results: Sequence[Tensor], after: Snapshot, trips: Dim | None
    ) -> None:
        """Let the slots hold what they hold after the loop."""
        final = self.before.copy()
        self.slots.unbind(final, self.before, after)
        given = iter(results)
        for key, carry in self.carries.items():
            first = self._initial(key, carry)
            now = flatten_tree(after.get(key))[0]
            leaves = [
                self._final(leaf, x, y, given, trips)
                for leaf, x, y in zip(carry.leaves, first, now, strict=True)
            ]
            final.set(key, unflatten_tree(carry.tree, leaves))
        self.slots.restore(final)

    def _final(
        self, leaf: Leaf, first: Any, now: Any, given: Iterator[Tensor], trips: Any
    ) -> Any:
        match leaf:
            case Fixed():
                return now
            case Counter(step):
                return self.trace.integer(
                    dims.add(self._dim(first), dims.mul(step, trips))
                )
            case Integer(rises, falls):
                low = high = self._dim(first)
                facts: list[Any] = []
                if rises:
                    facts.append(lambda s: dims.add(s, dims.mul(low, -1)))
                if falls:
                    facts.append(lambda s: dims.add(high, dims.mul(s, -1)))
                return self.trace.integers.of(next(given), "cdefghij", *facts)
        return next(given)


# ---------------------------------------------------------------- for


class ForLoop(_Loop):
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


class WhileLoop(_Loop):
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
