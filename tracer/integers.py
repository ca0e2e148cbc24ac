"""Integers that a traced program computes: symbols, and values that become guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Expr
from ..ir.func import Node, Operand, Value
from ..ir.op import OPS, Kind, Op
from ..ir.types import I64
from .devices import host_of
from .symbols import SymInt
from .tensor import Tensor
from .traceint import TraceInt

if TYPE_CHECKING:
    from .trace import Trace


class Static(NamedTuple):
    """An integer of a parameter that the program takes for granted: a guard."""

    parameter: Value
    steps: tuple[tuple[Op, Mapping[str, Any], tuple[int, ...]], ...]
    value: int | bool

    def holds(self, data: Any) -> bool:
        """Tell whether a parameter has the value."""
        return bool(self.read(data) == self.value)

    def read(self, data: Any) -> Any:
        data = host_of(data)
        for op, attrs, indices in self.steps:
            data = op.eager(data, *indices, **attrs)
        return data


class Integers:
    """The computed integers of a trace, as dims."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.known: dict[Value, Expr] = {}  # numbers that are symbols
        self.statics: list[Static] = []

    def computed(self, d: Dim) -> Tensor:
        """Return a dim as a value: as an index it wraps and is checked."""
        t: Tensor = self.trace.apply(OPS["number"], (self.trace.tensor(d),), {})
        return t

    def of(self, t: Any, letters: Sequence[str] = "cdefghij", *facts: Any) -> Any:
        """Return a computed 0-d integer as a `TraceInt` of a symbol of its own.

        `facts` are functions of the symbol: dims that are at least 0.
        """
        x = self.trace.operand(t)
        if isinstance(x, int | Expr):
            return self.trace.integer(x)
        static = None if self.trace.in_region else self.static(x)
        if static is not None:
            self.trace.root().integers.statics.append(static)
            return static.value
        if x in self.known:
            return self.trace.integer(self.known[x])
        sum_of_ints = self._arithmetic(x)
        if sum_of_ints is not None:
            return self.trace.integer(sum_of_ints)
        s = self.trace.assumptions.symbol(None, letters)
        self.trace.apply(OPS["size"], (t,), {"count": s})
        assert isinstance(x, Value)
        self.trace.assumptions.learn(
            *(f(s) for f in facts), *self._position_facts(x, s)
        )
        if x.type.scalar:  # an array may hold another one later
            self.known[x] = s
        return self.trace.integer(s)

    def _arithmetic(self, x: Operand) -> Dim | None:
        """Return what arithmetic of computed integers is, in terms of their symbols."""
        node = self._computing(x)
        on_dims = node.op.on_dims if node is not None else None
        if node is None or on_dims is None or self.trace.operand_type(x).dtype != I64:
            return None
        if any(self.trace.operand_type(o).dtype != I64 for o in node.operands):
            return None
        ints = [self.of(self.trace.tensor(o)) for o in node.operands]
        return on_dims(*(i if isinstance(i, int) else dims_of(i) for i in ints))

    def _computing(self, x: Operand) -> Node | None:
        """Return the node that computes a number, behind conversions.

        An array in between could be written.
        """
        while isinstance(x, Value) and x.type.scalar:
            node = self.trace.definitions.get(x)
            if node is None or node.op.kind is not Kind.COPY:
                return node
            (x,) = node.operands[:1]
        return None

    def _position_facts(self, x: Value, s: Expr) -> tuple[Dim, ...]:
        """Return the bounds of what may be a position in an array, as argmax gives."""
        node = self._computing(x)
        if node is None or not node.op.position:
            return ()
        shape = self.trace.operand_type(node.operands[0]).shape
        size = dims.product([shape[k] for k in node.attrs["axis"]])
        return s, dims.add(dims.add(size, dims.mul(s, -1)), -1)

    def size(self, d: Dim) -> Any:
        """Return a dim as one that the program has checked to be at least 0."""
        s = self.trace.assumptions.symbol(None, "cdefghij")
        self.trace.apply(
            OPS["size"], (self.computed(d),), {"count": s, "checked": True}
        )
        self.trace.assumptions.learn(s)
        return self.trace.integer(s)

    def static(self, v: Operand) -> Static | None:
        """Read an integer that a parameter holds, if that is what `v` is."""
        if not isinstance(v, Value):
            return None
        if v.type.shape or v.type.dtype.kind not in "biu":
            return None
        steps: list[tuple[Op, Mapping[str, Any], tuple[int, ...]]] = []
        trace = self.trace
        while trace.parent is not None or v in trace.definitions:
            if v in trace.definitions:
                node = trace.definitions[v]
                x, *indices = node.operands or (None,)
                numbers = (*indices, *node.attrs.values())
                if node.op.kind not in (Kind.VIEW, Kind.COPY):
                    return None
                if any(isinstance(i, Value | Expr) for i in numbers):
                    return None
                steps.append((node.op, node.attrs, tuple(indices)))  # type: ignore[arg-type]
            else:  # a parameter: what it stands for in the trace around
                if v in trace.mutations.roots or trace.parent is None:
                    return None
                origin = trace.inputs.origins.get(v)
                x = origin._value if isinstance(origin, Tensor) else None
                x = trace.inputs.stands_for.get(v, x)
                trace = trace.parent
            if not isinstance(x, Value):
                return None
            v = x
        data = trace.inputs.known.get(v, trace.layouts.known.get(v))
        if data is None or v not in trace.params or v in trace.mutations.roots:
            return None
        found = Static(v, tuple(reversed(steps)), 0)
        value = np.asarray(found.read(data)).item()
        return found._replace(value=value)


def dims_of(x: SymInt) -> Dim:
    """Return the dim that an integer of a trace stands for."""
    assert isinstance(x, TraceInt)
    return x.dim
