"""The nodes of ops, of views that follow their base, and of writes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..ir.build import Builder
from ..ir.errors import GradientError
from ..ir.op import OPS, OUT, Kind, NoDerivative, Op, Partial, Vjp
from ..ir.types import DType
from .builders import EagerBuilder
from .graph import TWICE, Edge, Node
from .names import RANKED, node_name
from .saved import Saved
from .views import (
    Array,
    Outline,
    Owned,
    Part,
    ViewStep,
    is_onto,
    may_repeat,
    pull_back,
    put,
    scatter,
)


class OpPlan(NamedTuple):
    """What recording an op needs, worked out once."""

    node: type[OpNode]
    rules: tuple[Any, ...]  # one derivative per operand
    names: tuple[tuple[int, ...], ...]  # what the rules read, in order
    variadic: bool
    ranked: dict[tuple[int, ...], type[OpNode]]  # other nodes for these operands
    known: dict[tuple[int, ...], frozenset[int]]

    def read_by(self, positions: tuple[int, ...]) -> frozenset[int]:
        """Return what the rules of some operands read."""
        found = self.known.get(positions)
        if found is None:
            found = frozenset(k for p in positions for k in self.names[p])
            self.known[positions] = found
        return found


@functools.cache
def _node_class(
    name: str, base: type[OpNode], ranks: tuple[int, ...] | None = None
) -> type[OpNode]:
    members = {"__slots__": (), "__module__": __name__}
    return type(node_name(name, ranks), (base,), members)


@functools.cache
def plan_of(name: str, count: int) -> OpPlan:
    """Return the plan of an op with that many operands."""
    op = OPS[name]
    return OpPlan(
        _node_class(name, ViewNode if op.kind is Kind.VIEW else OpNode),
        tuple(map(op.derivative, range(count))),
        tuple(op.reads(k, count) for k in range(count)),
        op.variadic,
        {r: _node_class(name, OpNode, r) for r in RANKED.get(name, ())},
        {},
    )


class OpNode(Node):
    """The node of an op; what its derivatives read is saved, of the rest the types."""

    __slots__ = ("attrs", "op", "operands", "out", "plan", "positions", "released")

    def __init__(
        self,
        edges: tuple[Edge, ...],
        op: Op,
        plan: OpPlan,
        positions: tuple[int, ...],
        operands: Sequence[Any],
        out: Any,
        attrs: Mapping[str, Any],
    ) -> None:
        Node.__init__(self, edges)
        self.op = op
        self.plan = plan
        self.positions = positions
        self.operands = operands
        self.out = out
        self.attrs = attrs
        self.released = False

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where gradients go, for every operand that can have one."""
        edges = dict(zip(self.positions, self.edges, strict=True))
        return tuple(
            edges.get(k) or (None, 0)
            for k, rule in enumerate(self.plan.rules)
            if k in edges or type(rule) in (Partial, Vjp)
        )

    def release(self) -> None:
        if self._saves():
            self.operands = ()
            self.out = None
            self.released = True

    def _saves(self) -> bool:
        """Tell whether anything was saved that must not be overwritten."""
        if type(self.out) is Saved:
            return True
        for x in self.operands:
            if type(x) is Saved:
                return True
        return False

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.released:
            raise GradientError(TWICE)
        (ct,) = cts
        out, operands = self.out, self.operands
        if not self._saves():
            pass
        elif isinstance(b, EagerBuilder):
            operands = [x.array(self) if type(x) is Saved else x for x in operands]
            if type(out) is Saved:
                out = out.array(self)
        else:
            operands = [x.tensor(self) if type(x) is Saved else x for x in operands]
            if type(out) is Saved:
                out = out.tensor(self, 0)
        return [self._cotangent(b, k, ct, out, operands) for k in self.positions]

    def _cotangent(
        self, b: Builder, position: int, ct: Any, out: Any, operands: Sequence[Any]
    ) -> Any:
        plan = self.plan
        rule = plan.rules[position]
        dtype = getattr(operands[position], "dtype", None)
        if dtype is not None and dtype.kind == "c":
            self._check_complex(rule, ct, dtype)
        if type(rule) is Partial:
            reads = [out if k == OUT else operands[k] for k in plan.names[position]]
            factor = rule.rule(b, *reads)
            return b.unbroadcast(b.scale(ct, factor), operands[position])
        if type(rule) is Vjp:
            if plan.variadic:
                return rule.rule(b, position, ct, out, *operands, **self.attrs)
            return rule.rule(b, ct, out, *operands, **self.attrs)
        if type(rule) is NoDerivative:
            return self.op.cotangent(b, position, ct, out, operands, self.attrs)
        return b.zeros_like(operands[position])

    def _check_complex(self, rule: Any, ct: Any, dtype: DType) -> None:
        """Refuse rules that hold for real numbers, or holomorphic functions, only."""
        if ct.dtype.kind == "c" and type(rule) in (Partial, Vjp):
            return
        raise GradientError(
            f"{self.op.name}: no derivative is known in {dtype}",
            rule="a function of a complex number that is not holomorphic",
            hint="write it in terms of the real and imaginary parts",
        )


class ViewNode(OpNode):
    """The node of a view: its gradient is a part of the gradient of its operand."""

    __slots__ = ()

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where the gradient of what is viewed goes."""
        return tuple(e for e in self.edges if e is not None)

    @property
    def steps(self) -> tuple[ViewStep, ...]:
        return (ViewStep(self.op, tuple(self.operands[1:]), self.attrs),)

    @property
    def outline(self) -> Outline:
        x = self.operands[0]
        assert isinstance(x, Outline)
        return x

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        (step,) = self.steps
        if not isinstance(b, EagerBuilder) or self.op.overlapping or is_onto(step):
            return super().pull(b, cts)
        return (Part(self.outline, (step,), cts[0]),)


def view_node(step: ViewStep, viewed: Any, edge: Edge) -> Node:
    """Return the node of one view of an array."""
    op, indices, attrs = step
    plan = plan_of(op.name, 1 + len(indices))
    operands = (Outline(viewed), *indices)
    return plan.node((edge,), op, plan, (0,), operands, None, attrs)


class AsStridedBackward0(Node):
    """The node of a view whose base was written: the whole chain of views at once."""

    __slots__ = ("outline", "steps")

    def __init__(
        self, edge: Edge, outline: Outline, steps: tuple[ViewStep, ...]
    ) -> None:
        super().__init__((edge,))
        self.outline = outline
        self.steps = steps

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if isinstance(b, EagerBuilder) and not any(
            s.op.overlapping for s in self.steps
        ):
            return (Part(self.outline, self.steps, cts[0]),)
        return (pull_back(b, self.outline, self.steps, cts[0]),)


class CopyBackwards(Node):
    """The node of a tensor that was overwritten as a whole."""

    __slots__ = ("new", "old")

    def __init__(self, old: Edge | None, new: Edge | None, like: Any, old_like: Any):
        super().__init__((old, new))
        self.new = like
        self.old = old_like

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        (ct,) = cts
        old, new = self.edges
        return (
            None if old is None else b.zeros_like(self.old),
            None if new is None else b.unbroadcast(ct, self.new),
        )


class CopySlices(Node):
    """The node of a base that was written through a view."""

    __slots__ = ("like", "outline", "released", "steps")
    hands_on = True

    def __init__(
        self,
        old: Edge | None,
        new: Edge | None,
        outline: Outline,
        steps: tuple[ViewStep, ...],
        like: Any,
    ) -> None:
        super().__init__((old, new))
        self.outline = outline
        self.steps = steps
        self.like = like  # the value that was written, or its outline
        self.released = False

    @property
    def fn(self) -> Node | None:
        """The node that computed what was written."""
        return None if self.edges[1] is None else self.edges[1][0]

    def release(self) -> None:
        self.released = True

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.released:
            raise GradientError(TWICE)
        (ct,) = cts
        if isinstance(b, EagerBuilder):
            return self._pull_in_place(b, ct)
        new = None
        if self.edges[1] is not None:
            new = ct
            for step in self.steps:
                new = b.apply(step.op, (new, *step.indices), step.attrs)
            mask = self._mask()
            if mask is not None:
                new = b.where(mask, new, 0.0)
            new = b.unbroadcast(new, self.like)
        old = None if self.edges[0] is None else self._cleared(b, ct)
        return old, new

    def _pull_in_place(self, b: EagerBuilder, ct: Array) -> Sequence[Any]:
        """Take the part out of `ct` and leave zeros there."""
        view = ct
        for step in self.steps:
            view = step.view(view)
        new: Any = None
        if self.edges[1] is not None:
            mask = self._mask()
            new = view.copy() if mask is None else np.where(mask, view, 0.0)
            new = Owned(b.unbroadcast(new, self.like))
        if view.size and not np.may_share_memory(view, ct):
            return Owned(self._cleared(b, ct)), new
        view[...] = 0
        return Owned(ct), new

    def _cleared(self, b: Builder, ct: Any) -> Any:
        """Return `ct` with zeros in the part that was written."""
        if not self._overlaps():
            return scatter(b, ct, self.steps, 0.0)
        # one element can be inside and outside of a view of a view that overlaps
        shape = self.outline.shape
        part: Any = np.arange(math.prod(shape)).reshape(shape)
        for step in self.steps:
            part = step.view(part)
        kept = np.ones(math.prod(shape), bool)
        kept[part] = False
        return b.where(kept.reshape(shape), ct, 0.0)

    def _overlaps(self) -> bool:
        return any(step.op.overlapping for step in self.steps)

    def _mask(self) -> Array | None:
        """Tell which elements keep what was written, where the view overlaps."""
        if not self._overlaps():
            return None
        written: Any = np.full(self.outline.shape, -1)
        for step in self.steps:
            written = step.view(written)
        if not may_repeat(written):
            return None
        order = np.arange(written.size).reshape(written.shape)
        put(written, order)
        mask: Array = written == order
        return mask


class Refusal(Node):
    """The node of a value whose derivative in what is behind `edges` is not known."""

    __slots__ = ("hint", "why")

    def __init__(
        self, edges: tuple[Edge | None, ...], why: str, hint: str = ""
    ) -> None:
        super().__init__(edges)
        self.why = why
        self.hint = hint

    def name(self) -> str:
        return "NotImplemented"

    def pull(self, b: Builder, cts: Sequence[Any]) -> NoReturn:
        raise GradientError(self.why, hint=self.hint)
