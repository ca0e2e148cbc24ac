"""The nodes of ops, of views that follow their base, and of writes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ..ir.build import Builder
from ..ir.errors import GradientError
from ..ir.op import OUT, Derivative, Kind, NoDerivative, Op, Partial, Vjp
from ..ir.types import DType
from .builders import EAGER, EagerBuilder
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

# How the gradient of one operand is computed: its position and derivative; of a Partial
# also the rule, what that reads among the operands and the result, and, where it reads
# nothing, the factor itself.
Pull: TypeAlias = tuple[
    int, Derivative, Callable[..., Any] | None, tuple[int, ...], Any
]


@dataclass(frozen=True, slots=True)
class OpPlan:
    """What recording an op needs, worked out once for the operands with a gradient."""

    op: Op
    node: type[OpNode]
    ranked: dict[tuple[int, ...], type[OpNode]]  # other nodes for these operands
    rules: tuple[Any, ...]  # one derivative per operand
    positions: tuple[int, ...]  # of the operands with a gradient
    pulls: tuple[Pull, ...]  # one for each of them
    keeps: tuple[tuple[int, bool], ...]  # what they ask of: is more read than the type?
    saves_out: bool  # they read the result
    asks_out: bool  # they may ask for its type


@functools.cache
def _node_class(
    name: str, base: type[OpNode], ranks: tuple[int, ...] | None = None
) -> type[OpNode]:
    members = {"__slots__": (), "__module__": __name__}
    return type(node_name(name, ranks), (base,), members)


@functools.cache
def plan_of(op: Op, count: int, positions: tuple[int, ...]) -> OpPlan:
    """Return the plan of an op with `count` operands, of which some have gradients."""
    rules = tuple(map(op.derivative, range(count)))
    reads = {k for p in positions for k in op.reads(p, count)}
    asks_all = any(type(rules[p]) is Vjp for p in positions)
    asked = range(count) if asks_all else sorted((reads | set(positions)) - {OUT})

    def pull(k: int) -> Pull:
        rule = rules[k]
        if type(rule) is not Partial:
            return k, rule, None, (), None
        names = op.reads(k, count)
        return k, rule, rule.rule, names, None if names else rule.rule(EAGER)

    return OpPlan(
        op,
        _node_class(op.name, ViewNode if op.kind is Kind.VIEW else OpNode),
        {r: _node_class(op.name, OpNode, r) for r in RANKED.get(op.name, ())},
        rules,
        positions,
        tuple(map(pull, positions)),
        tuple((k, k in reads) for k in asked),
        OUT in reads,
        asks_all,
    )


class OpNode(Node):
    """The node of an op; what its derivatives read is saved, of the rest the types.

    `kept` holds the operands, and at the end, at `OUT`, the result.
    """

    __slots__ = ("attrs", "kept", "plan", "saves")

    def __init__(
        self,
        edges: tuple[Edge, ...],
        plan: OpPlan,
        kept: Sequence[Any],
        saves: bool,
        attrs: Mapping[str, Any],
    ) -> None:
        Node.__init__(self, edges)
        self.plan = plan
        self.kept: Sequence[Any] | None = kept
        self.saves = saves  # something that must not be overwritten
        self.attrs = attrs

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where gradients go, for every operand that can have one."""
        edges = dict(zip(self.plan.positions, self.edges, strict=True))
        return tuple(
            edges.get(k) or (None, 0)
            for k, rule in enumerate(self.plan.rules)
            if k in edges or type(rule) in (Partial, Vjp)
        )

    def release(self) -> None:
        if self.saves:
            self.kept = None

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        kept = self.kept
        if kept is None:
            raise GradientError(TWICE)
        if self.saves:
            kept = self._taken(b, kept)
        (ct,) = cts
        grads = []
        for position, rule, partial, reads, factor in self.plan.pulls:
            like = kept[position]
            dtype = getattr(like, "dtype", None)
            if dtype is not None and dtype.kind == "c":
                self._check_complex(rule, ct, dtype)
            if partial is None:
                grads.append(self._cotangent(b, position, rule, ct, kept))
            else:
                if reads:
                    factor = partial(b, *map(kept.__getitem__, reads))
                grads.append(b.unbroadcast(b.scale(ct, factor), like))
        return grads

    def _taken(self, b: Builder, kept: Sequence[Any]) -> Sequence[Any]:
        """Return what is kept, with saved values as the builder takes them."""
        if isinstance(b, EagerBuilder):
            return [x.array(self) if type(x) is Saved else x for x in kept]
        taken = [x.tensor(self) if type(x) is Saved else x for x in kept[:OUT]]
        out = kept[OUT]
        return [*taken, out.tensor(self, 0) if type(out) is Saved else out]

    def _cotangent(
        self, b: Builder, position: int, rule: Any, ct: Any, kept: Sequence[Any]
    ) -> Any:
        """Return the gradient of an operand whose rule is no Partial."""
        *operands, out = kept
        op = self.plan.op
        if type(rule) is Vjp:
            if op.variadic:
                return rule.rule(b, position, ct, out, *operands, **self.attrs)
            return rule.rule(b, ct, out, *operands, **self.attrs)
        if type(rule) is NoDerivative:
            return op.cotangent(b, position, ct, out, operands, self.attrs)
        return b.zeros_like(operands[position])

    def _check_complex(self, rule: Any, ct: Any, dtype: DType) -> None:
        """Refuse rules that hold for real numbers, or holomorphic functions, only."""
        if ct.dtype.kind == "c" and type(rule) in (Partial, Vjp):
            return
        raise GradientError(
            f"{self.plan.op.name}: no derivative is known in {dtype}",
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
        assert self.kept is not None
        return (ViewStep(self.plan.op, tuple(self.kept[1:OUT]), self.attrs),)

    @property
    def outline(self) -> Outline:
        assert self.kept is not None
        x: Outline = self.kept[0]
        return x

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        (step,) = self.steps
        if not isinstance(b, EagerBuilder) or step.op.overlapping or is_onto(step):
            return super().pull(b, cts)
        return (Part(self.outline, (step,), cts[0]),)


def view_node(step: ViewStep, viewed: Any, edge: Edge) -> Node:
    """Return the node of one view of an array."""
    op, indices, attrs = step
    plan = plan_of(op, 1 + len(indices), (0,))
    kept = (Outline(viewed), *indices, None)
    return plan.node((edge,), plan, kept, False, attrs)


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
