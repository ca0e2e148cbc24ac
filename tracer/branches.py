"""Branches on computed values: both ways are traced, and joined leaf by leaf.

What the two ways leave in a slot (`slots.py`) becomes one result of a `cond`, where it
is not the same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..ir import dims
from ..ir.dims import Dim
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS, Kind
from ..ir.types import I64, Type
from .containers import flatten_tree, unflatten_tree
from .leaves import root_of
from .location import user_location
from .slots import CannotCarry, Slots, Snapshot
from .symbols import is_int
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

Thunk: TypeAlias = Callable[[], Any]
INT = Type(I64, weak=True)


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
        leaves = [self.leaf(x, y, what, ours) for x, y in zip(xs, ys, strict=True)]
        return lambda: unflatten_tree(tree, [leaf() for leaf in leaves])

    def missing(self, a: Any, b: Any, what: str, ours: bool) -> Callable[[], Any]:
        if is_missing(a) and is_missing(b):
            return lambda: a
        if not ours:
            raise CannotCarry(
                f"{what} has a value only on one way of a branch",
                location=user_location(),
                rule="Whether there is a value must not depend on computed values.",
                hint=f"give {what} a value before the branch, or on both ways",
            )
        there, side = (b, 1) if is_missing(a) else (a, 0)
        leaves, tree = flatten_tree(there)
        made = [self.one_sided(x, side, what) for x in leaves]
        return lambda: unflatten_tree(tree, [leaf() for leaf in made])

    def one_sided(self, x: Any, side: int, what: str) -> Callable[[], Any]:
        """Yield a leaf of one side, of which the other side has nothing.

        What was there before the branch is what it is: an array keeps its memory.
        """
        if not isinstance(x, Tensor) and not (is_int(x) and not isinstance(x, int)):
            return lambda: x
        if isinstance(x, Tensor) and is_older(x._value, self.sides[side].nodes):
            return lambda: x
        want = type_in(self.trace, x)
        number = self.add(want, what)
        self.put(side, x, want)
        with self.trace.reopened(self.sides[1 - side].nodes):
            self.yields[1 - side].append(nothing(self.trace, want))
        return self.result(number)

    def leaf(self, x: Any, y: Any, what: str, ours: bool) -> Callable[[], Any]:
        if is_same(x, y):
            return lambda: x
        if ours and (is_missing(x) or is_missing(y)):
            side = 1 if is_missing(x) else 0
            return self.one_sided((x, y)[side], side, what)
        if not is_value(x) or not is_value(y) or self.is_apart(x, y):
            raise differ(x, y, what)
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

    def is_apart(self, *found: Any) -> bool:
        """Tell whether memory from before the branch must not get another name."""
        return self.trace.root().apart and any(
            isinstance(x, Tensor)
            and isinstance(x._value, Value)
            and x.shape
            and is_older(root_of(x._value), s.nodes)
            for x, s in zip(found, self.sides, strict=True)
        )

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
        return trace.integers.of(t)
    low, high = (
        None if trace.hidden(d) else d for d in bounds
    )  # symbols of the branches are gone
    facts = []
    if low is not None:
        facts.append(lambda s: dims.add(s, dims.mul(low, -1)))
    if high is not None:
        facts.append(lambda s: dims.add(high, dims.mul(s, -1)))
    return trace.integers.of(t, "cdefghij", *facts)


def is_older(v: Any, nodes: Sequence[Node]) -> bool:
    """Tell whether `v` is a value that none of these nodes computes."""
    return isinstance(v, Value) and not any(v in node.results for node in nodes)


def has_effect(nodes: Sequence[Node]) -> bool:
    """Tell whether nodes write memory or can fail, here or in their regions."""
    return any(
        n.op.kind is Kind.WRITE or any(has_effect(r.nodes) for r in n.regions)
        for n in nodes
    )


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
            left.get(key), right.get(key), slots.label(key), slots.may_lack(key)
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
