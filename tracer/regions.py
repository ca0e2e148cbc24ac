"""Control flow as regions: branches and loops of Python traced once each.

A branch traces both ways and joins what they leave in every slot (`slots.py`). A loop
traces its body with stand-ins for what changes from one iteration to the next, until
the stand-ins fit: these are its carries. See docs/loops.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.errors import RetrogradeError, UnsupportedError
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS, Kind
from ..ir.types import I64, Type
from .assume import NeedsValue, dim_of
from .containers import Tree, flatten_tree, unflatten_tree
from .location import user_location
from .rows import Rows
from .slots import CannotCarry, Key, Slots, Snapshot
from .symbols import is_int
from .tensor import Tensor
from .trace import HiddenTrace, Trace
from .unify import (
    as_type,
    flatten_pair,
    is_missing,
    is_same,
    is_value,
    join,
    nothing,
    type_in,
)

Thunk: TypeAlias = Callable[[], Any]
INT = Type(I64, weak=True)
ATTEMPTS = 12


# ---------------------------------------------------------------- branches


@dataclass(slots=True)
class _Side:
    """What one way of a branch did."""

    nodes: list[Node]
    after: Snapshot
    result: Any


@dataclass(slots=True)
class _Join:
    """Collects the results of a cond: leaf by leaf, for both sides."""

    trace: Trace
    sides: Sequence[_Side]
    yields: tuple[list[Operand], list[Operand]] = field(
        default_factory=lambda: ([], [])
    )
    types: list[Type] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    facts: list[tuple[Dim, Dim] | None] = field(default_factory=list)

    def value(self, a: Any, b: Any, what: str, ours: bool) -> Callable[[], Any]:
        """Join two objects; returns what gives the joined one after the cond."""
        if is_missing(a) or is_missing(b):
            return self.missing(a, b, what, ours)
        xs, ys, tree = flatten_pair(a, b, what)
        leaves = [self.leaf(x, y, what) for x, y in zip(xs, ys, strict=True)]
        return lambda: unflatten_tree(tree, [leaf() for leaf in leaves])

    def missing(self, a: Any, b: Any, what: str, ours: bool) -> Callable[[], Any]:
        if (is_missing(a) and is_missing(b)) or not ours:
            gone = a if is_missing(a) else b
            return lambda: gone
        there, side = (b, 1) if is_missing(a) else (a, 0)
        leaves, tree = flatten_tree(there)
        made = [self.one_sided(x, side, what) for x in leaves]
        return lambda: unflatten_tree(tree, [leaf() for leaf in made])

    def one_sided(self, x: Any, side: int, what: str) -> Callable[[], Any]:
        """Yield a leaf of one side, of which the other side has nothing."""
        if not isinstance(x, Tensor) and not (is_int(x) and not isinstance(x, int)):
            return lambda: x
        want = type_in(self.trace, x)
        number = self.add(want, what)
        self.put(side, x, want)
        with self.trace.reopened(self.sides[1 - side].nodes):
            self.yields[1 - side].append(nothing(self.trace, want))
        return self.result(number)

    def leaf(self, x: Any, y: Any, what: str) -> Callable[[], Any]:
        if is_same(x, y):
            return lambda: x
        if not is_value(x) or not is_value(y):
            flatten_pair((x,), y, what)  # raises
        if is_python_int(x) and is_python_int(y):
            number = self.add(INT, what, self.bounds(x, y))
            want = INT
        else:
            want = join(
                self.trace, type_in(self.trace, x), type_in(self.trace, y), what
            )
            number = self.add(want, what)
        self.put(0, x, want)
        self.put(1, y, want)
        return self.result(number)

    def bounds(self, x: Any, y: Any) -> tuple[Dim, Dim] | None:
        """Return the smaller and the larger of two ints, if that is known."""
        a, b = dim_of(x), dim_of(y)
        assert a is not None
        assert b is not None
        known = self.trace.assumptions
        if known.proves(dims.add(b, dims.mul(a, -1))):
            return a, b
        return (b, a) if known.proves(dims.add(a, dims.mul(b, -1))) else None

    def add(self, want: Type, what: str, facts: Any = None) -> int:
        self.types.append(want)
        self.hints.append(hint(what))
        self.facts.append(facts)
        return len(self.types) - 1

    def put(self, side: int, x: Any, want: Type) -> None:
        with self.trace.reopened(self.sides[side].nodes):
            self.yields[side].append(as_type(self.trace, x, want))

    def result(self, number: int) -> Callable[[], Any]:
        return lambda: self.made[number]

    made: list[Any] = field(default_factory=list)

    def emit(self, condition: Tensor) -> None:
        """Append the cond."""
        if not self.types and not any(has_effect(s.nodes) for s in self.sides):
            return
        blocks = [
            Block((), tuple(s.nodes), tuple(y))
            for s, y in zip(self.sides, self.yields, strict=True)
        ]
        results = self.trace.control(
            OPS["cond"],
            (self.trace.operand(condition),),
            {},
            blocks,
            self.types,
            self.hints,
        )
        for t, want, bounds in zip(results, self.types, self.facts, strict=True):
            self.made.append(t if want != INT else _as_int(self.trace, t, bounds))


def _as_int(trace: Trace, t: Tensor, bounds: tuple[Dim, Dim] | None) -> Any:
    if bounds is None:
        return trace.as_int(t)
    low, high = (
        None if trace.hidden(d) else d for d in bounds
    )  # symbols of the branches are gone
    facts = []
    if low is not None:
        facts.append(lambda s: dims.add(s, dims.mul(low, -1)))
    if high is not None:
        facts.append(lambda s: dims.add(high, dims.mul(s, -1)))
    return trace.as_int(t, "cdefghij", *facts)


def is_python_int(x: Any) -> bool:
    """Tell whether a leaf is a Python int, concrete or symbolic."""
    return is_int(x) and not hasattr(x, "dtype")


def has_effect(nodes: Sequence[Node]) -> bool:
    """Tell whether nodes write memory or can fail, here or in their regions."""
    return any(
        n.op.kind is Kind.WRITE or any(has_effect(r.nodes) for r in n.regions)
        for n in nodes
    )


def hint(what: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in what).strip("_")
    return text if text and not text[0].isdigit() else "t"


def branch(
    trace: Trace, condition: Tensor, then: Thunk, orelse: Thunk, slots: Slots
) -> Any:
    """Trace both ways of a branch as a `cond`; returns the joined result."""
    before = slots.read()
    test = trace.test_of(condition)
    sides = []
    for way, facts in ((then, test.true), (orelse, test.false)):
        try:
            with trace.region(*facts) as nodes:
                result = way()
                sides.append(_Side(nodes, slots.read(), result))
        finally:
            slots.restore(before)
    for side in sides:
        grown = slots.grown(before, side.after)
        for k in grown:
            raise CannotCarry(
                f"{slots.containers[k].name}: a list that grows in a branch",
                location=user_location(),
                rule="How many items it has would depend on computed values.",
                hint="append on both ways, or keep the values in an array",
            )
    merged = _Join(trace, sides)
    keys = {k: None for s in sides for k in slots.changed(before, s.after)}
    left, right = (s.after for s in sides)
    joined = {
        key: merged.value(
            left.get(key), right.get(key), slots.label(key), slots.is_ours(key)
        )
        for key in keys
    }
    result = merged.value(sides[0].result, sides[1].result, "value", ours=False)
    merged.emit(condition)
    final = before.copy()
    for side in sides:
        slots.unbind(final, before, side.after)
    for key, made in joined.items():
        final.set(key, made())
    slots.restore(final)
    return result()


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
        self.inits: list[Operand] = []
        self.yields: list[Operand] = []
        self.made: list[Any] = []
        self.visible = set(trace.assumptions.visible)

    def run(self) -> None:
        """Trace the loop as a region. Raises `NeedsValue` where that cannot be."""
        for _ in range(ATTEMPTS):
            if self.attempt():
                return
        raise CannotCarry(
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
            key: Key = ("name", k, None)
            if name not in self.slots.live or isinstance(x, bool):
                continue
            if is_python_int(x):
                out[key] = Carry(flatten_tree(x)[1], (Integer(),))
            elif is_value(x) and type_in(self.trace, x).scalar:
                t = type_in(self.trace, x)
                out[key] = Carry(flatten_tree(x)[1], (Carried(t),))
        return out

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
                return self.trace.as_int(t, [name], *facts)
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
            self._leaf(*parts, what)
            for parts in zip(leaves, xs, givens, ys, strict=True)
        )
        if all(isinstance(leaf, Fixed) for leaf in new):
            return None
        return Carry(tree, new)

    def _from_nothing(
        self, key: Key, given: Any, now: Any, old: Carry | None
    ) -> Carry | None:
        """Carry a name that has no value before the loop."""
        what = self.slots.label(key)
        if not self.slots.is_ours(key) and not self.runs():
            raise self._unbound(what)
        leaves, tree = flatten_tree(now)
        if old is not None and old.tree != tree:
            flatten_pair(given, now, what)  # raises
        new: list[Leaf] = []
        for k, x in enumerate(leaves):
            if not isinstance(x, Tensor) and not is_value(x):
                if old is not None:
                    return old
                raise self._unbound(what)
            have = type_in(self.trace, x)
            if old is not None and isinstance(was := old.leaves[k], Carried):
                have = join(self.trace, was.type, have, what)
            new.append(Carried(self._outside(have, what)))
        return Carry(tree, tuple(new))

    def _unbound(self, what: str) -> CannotCarry:
        return CannotCarry(
            f"{what} has a value only after some iterations of a loop",
            location=user_location(),
            rule="What a loop passes on has a value before the loop; there may be no "
            "iteration.",
            hint=f"give {what} a value before the loop",
        )

    def _leaf(self, leaf: Leaf, first: Any, given: Any, now: Any, what: str) -> Leaf:
        if isinstance(leaf, Fixed) and is_same(given, now):
            return leaf
        if is_same(given, now) and not isinstance(leaf, Carried):
            return Fixed()
        if not is_value(first) or not is_value(now):
            flatten_pair((first,), now, what)  # raises
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
                return self.trace.as_int(next(given), "cdefghij", *facts)
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
        self.stacks: dict[int, _Stack] = {}

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
            known.ranges[s] = (self.start, last)
            known.visible.add(s)
            start = self.stand_ins()
            for k, stack in self.stacks.items():
                poison = Tensor.traced(stack.hidden, 0.0)
                start.items[k] = [poison] * len(self.before.items[k])
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
                block = Block(params, tuple(nodes), tuple(yields))
        if not fits:
            self.carries = carries
            return False
        self._check_computes(nodes)
        inits = self.initial_operands()
        attrs = {"index": self.index, "start": self.start, "stop": self.stop, "step": 1}
        types, hints = [p.type for p in params], [p.name for p in params]
        results = trace.control(OPS["for"], inits, attrs, [block], types, hints)
        ended = self._targets_after(after)
        self.finish(results, after, self.trips)
        self._bind(ended)
        self._unstack()
        return True

    def _check_computes(self, nodes: Sequence[Node]) -> None:
        """Leave a loop to Python that computes nothing but its own ints."""
        if all(n.op.kind is Kind.SIZE for n in nodes) and isinstance(self.trips, int):
            raise CannotCarry("a loop that computes nothing", location=user_location())

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
                self.stacks[k] = _Stack(
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


class _Stack:
    """Arrays for the items that a list gets in a loop."""

    def __init__(
        self, hidden: HiddenTrace, tree: Tree, types: tuple[Type, ...], trips: int
    ) -> None:
        self.tree, self.types, self.trips = tree, types, trips
        self.arrays: list[Tensor] = []
        self.hidden = hidden  # whoever reads an item inside the loop meets this

    def make(self, trace: Trace) -> None:
        """Append the arrays, where they are not there."""
        if not self.arrays:
            for t in self.types:
                attrs = {"shape": (self.trips, *t.shape), "dtype": t.dtype}
                array = trace.apply(OPS["full"], (0,), attrs)
                trace.stacks.add(trace.operand(array))
                self.arrays.append(array)

    def write(self, trace: Trace, leaves: Sequence[Any], at: Any) -> None:
        for array, x in zip(self.arrays, leaves, strict=True):
            index = at.as_index(self.trips) if hasattr(at, "as_index") else at
            trace.write(trace.apply(OPS["select"], (array, index), {"axis": 0}), x)

    def items(self, trace: Trace) -> list[Any]:
        """Return the items that the list has got."""
        out: list[Any] = []
        for k in range(self.trips):
            leaves = []
            for array, t in zip(self.arrays, self.types, strict=True):
                x = trace.apply(OPS["select"], (array, k), {"axis": 0})
                if t.scalar:
                    x = trace.apply(OPS["number" if t.weak else "item"], (x,), {})
                leaves.append(x)
            out += unflatten_tree(self.tree, leaves)
        return out


# ---------------------------------------------------------------- while


class WhileLoop(_Loop):
    """A loop whose condition is computed."""

    def __init__(
        self, trace: Trace, slots: Slots, test: Thunk, body: Callable[[], None]
    ) -> None:
        super().__init__(trace, slots)
        self.test, self.body = test, body
        self.static = False  # whether Python knows the condition

    def attempt(self) -> bool:
        trace = self.trace
        with trace.region() as first:
            start = self.stand_ins()
            try:
                self.slots.restore(start)
                condition = self.test()
                facts = trace.test_of(condition)
                with trace.region(*facts.true) as second:
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
        if not isinstance(condition, Tensor):
            self.static = True
            raise CannotCarry(
                "a loop whose condition Python knows",
                location=user_location(),
                rule="It ends by something that cannot be computed.",
            )
        params = tuple(self.params)
        test = Block(params, tuple(first), (trace.operand(condition),))
        block = Block((), tuple(second), yields)
        inits = self.initial_operands()
        types, hints = [p.type for p in params], [p.name for p in params]
        results = trace.control(OPS["while"], inits, {}, [test, block], types, hints)
        self.finish(results, after, None)
        return True


__all__ = [
    "CannotCarry",
    "Expr",
    "ForLoop",
    "NeedsValue",
    "RetrogradeError",
    "UnsupportedError",
    "WhileLoop",
    "branch",
]
