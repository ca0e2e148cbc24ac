"""Lists that grow in a loop: their items are the rows of arrays that the loop fills.

An array that is appended is copied into its row. That is the same as long as nobody
writes into the one and reads the other: `Sharing` finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.func import Block, Node, Operand, Value, walk
from ..ir.op import OPS, Kind
from ..ir.types import Type
from .containers import Tree, unflatten_tree
from .leaves import root_of
from .location import user_location
from .slots import CannotCarry
from .tensor import Tensor
from .trace import HiddenTrace, Trace


class Stack:
    """Arrays for the items that a list gets in a loop."""

    def __init__(
        self, hidden: HiddenTrace, tree: Tree, types: tuple[Type, ...], trips: int
    ) -> None:
        self.tree, self.types, self.trips = tree, types, trips
        self.arrays: list[Tensor] = []
        self.appended: list[Operand] = []  # in an iteration
        self.hidden = hidden  # whoever reads an item inside the loop meets this

    def stand_ins(self, count: int) -> list[Any]:
        """Return what stands for the items, `count` of them there before the loop.

        There is one more, so that the end of a list differs from its start.
        """
        poison, last = (Tensor.traced(self.hidden, 0.0) for _ in range(2))
        return [*[poison] * count, last]

    def make(self, trace: Trace) -> None:
        """Append the arrays, where they are not there."""
        if not self.arrays:
            for t in self.types:
                attrs = {"shape": (self.trips, *t.shape), "dtype": t.dtype}
                array = trace.apply(OPS["full"], (0,), attrs)
                trace.stacks.add(trace.operand(array))
                self.arrays.append(array)

    def write(self, trace: Trace, leaves: Sequence[Any], at: Any) -> None:
        self.appended = [trace.operand(x) for x in leaves]
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


class Sharing:
    """The memory that items of lists share with what is there beside them.

    An array that an iteration makes, and passes on to nobody, is the item's own.
    Others are shared: with arrays outside of the loop, with its carries. Where the loop
    itself writes into those, no copy will do. After it, nobody may (`Trace.kept`).
    """

    def __init__(
        self, nodes: Sequence[Node], params: Sequence[Value], yields: Sequence[Operand]
    ) -> None:
        self.block = Block((), tuple(nodes), ())
        self.params = params
        self.made = _made(nodes)
        self.passed_on = {r for x in yields for r in self._roots(x)}
        self.arrays: set[Value] = set()  # outside of the loop
        self.carried = False

    def add(self, stacks: Sequence[Stack], trace: Trace) -> None:
        """Take in what lists got in an iteration."""
        for stack in stacks:
            self._add(stack, trace)
        rows = {trace.operand(a) for stack in stacks for a in stack.arrays}
        written = {
            root_of(n.operands[0])
            for n in walk(self.block)
            if n.op.kind is Kind.WRITE and isinstance(n.operands[0], Value)
        }
        shared = self.arrays | (set(self.params) if self.carried else set())
        if not (written - rows).isdisjoint(shared):
            raise CannotCarry(
                "a list gets an array in a loop that also writes into it",
                location=user_location(),
                rule="The items of a list that grows in a loop are copies.",
                hint="append a copy",
            )

    def _add(self, stack: Stack, trace: Trace) -> None:
        for x, array in zip(stack.appended, stack.arrays, strict=True):
            roots = self._roots(x)
            passed_on = roots & self.passed_on
            given = {r for r in roots if r not in self.made}
            if not (passed_on or given):
                continue
            self.carried |= bool(passed_on) or not given.isdisjoint(self.params)
            mine = trace.operand(array)
            self.arrays |= {*given, *([mine] if isinstance(mine, Value) else [])}

    def outside(self, inits: Sequence[Operand], results: Sequence[Any]) -> set[Value]:
        """Return the roots outside of the loop that share memory with an item."""
        found = self.arrays - set(self.params)
        if self.carried:
            found |= {root_of(x) for x in inits if isinstance(x, Value)}
            found |= {t._value for t in results if isinstance(t._value, Value)}
        return found

    def _roots(self, x: Operand) -> set[Value]:
        """Return the roots that an operand may lie in, made by the body or not."""
        found: set[Value] = set()
        todo = [x]
        while todo:
            x = todo.pop()
            if not isinstance(x, Value) or x.type.scalar:
                continue
            root = root_of(x)
            if root in found:
                continue
            found.add(root)
            node = self.made.get(root)
            if node is not None and node.regions:
                starts = () if node.op.kind is Kind.COND else node.operands
                todo += [*starts, *(y for r in node.regions for y in r.results)]
        return found


def _made(nodes: Sequence[Node]) -> dict[Value, Node]:
    """Return the values that nodes and their regions make, and by which node."""
    out: dict[Value, Node] = {}
    for node in nodes:
        for v in node.results:
            out[v] = node
        for region in node.regions:
            out |= dict.fromkeys(region.params, node)
            out |= _made(region.nodes)
    return out
