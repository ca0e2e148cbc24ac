"""Carries of loops: stand-ins for what changes, until they fit.

The body of a loop is traced once, with stand-ins for what changes from one iteration to
the next, and again until the stand-ins fit: these are the carries of a `for` or
`while`. See docs/loops.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.func import Node, Operand, Value
from ..ir.types import Type
from .assume import NeedsValue
from .branches import INT, is_older
from .containers import Tree, flatten_tree, unflatten_tree
from .location import user_location
from .slots import CannotCarry, Differs, Key, Slots, Snapshot
from .tensor import Tensor
from .trace import Trace
from .traceint import dim_of
from .unify import (
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


class Loop:
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
            and all(is_older(x._value, nodes) for nodes in self.inside)
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
