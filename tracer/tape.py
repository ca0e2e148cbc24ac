"""The tape: nodes of the eager graph, what they save, and how views follow writes.

A node owns what it needs: its edges to earlier nodes and saved values. Tensors own
their node; nothing points forward, so a graph dies by reference count.

A write into a tensor makes its node the one that computed the new value. A write
through a view makes the node of the *base* a `CopySlices` with two edges: the base as
it was, and the new value. Views look at their base again when `storage.epoch` moved.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..ir.build import Builder, Shaped
from ..ir.errors import GradientError, MutationError
from ..ir.op import OPS, OUT, Kind, NoDerivative, Op, Partial, Vjp, Zero
from ..ir.types import DType, Type, type_of_array
from ..runtime.storage import Storage
from . import tensor as _tensor
from .builders import EAGER, EagerBuilder
from .location import user_location
from .modes import STATE
from .names import node_name

Edge: TypeAlias = "tuple[Node, int]"
Array: TypeAlias = "np.ndarray[Any, Any]"

_SEQUENCE = itertools.count()
_LEAF_SEQUENCE = itertools.count(-1, -1)
LEAVES = threading.RLock()  # guards what threads share: leaves and their gradients

TWICE = (
    "Trying to backward through the graph a second time (or directly access saved "
    "tensors after they have already been freed). Saved intermediate values of the "
    "graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if "
    "you need to access saved tensors after calling backward."
)


class Outline(Shaped):
    """Stands for an array of which only dtype and shape were kept."""

    __slots__ = ("_shape", "dtype")

    def __init__(self, data: Any) -> None:
        self.dtype: DType = data.dtype
        self._shape: tuple[int, ...] = data.shape

    @property
    def type(self) -> Type:  # type: ignore[override]
        return Type(self.dtype, self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape


class ViewStep(NamedTuple):
    """One view op with its indices and attributes."""

    op: Op
    indices: tuple[Any, ...]
    attrs: Mapping[str, Any]

    def view(self, x: Any) -> Any:
        """Return the view of an array."""
        return self.op.eager(x, *self.indices, **self.attrs)


def is_onto(step: ViewStep) -> bool:
    """Tell whether a view keeps every element exactly once."""
    scatter = step.op.scatter
    return scatter is not None and OPS[scatter].decompose is not None


class Part:
    """A gradient that is `ct` in one view of an array, and zero elsewhere."""

    __slots__ = ("ct", "outline", "steps")

    def __init__(self, outline: Outline, steps: tuple[ViewStep, ...], ct: Any) -> None:
        self.outline = outline
        self.steps = steps
        self.ct = ct

    def add_into(self, total: Array) -> Array:
        """Return `total` plus this; `total` is changed."""
        view = total
        for step in self.steps:
            view = step.view(view)
        if view is not total and not np.may_share_memory(view, total):
            if view.size:  # a reshape had to copy
                np.add(
                    total, pull_back(EAGER, self.outline, self.steps, self.ct), total
                )
            return total
        np.add(view, self.ct, out=view, casting="unsafe")
        return total


class Owned(NamedTuple):
    """A gradient in an array that nobody else holds: it may be changed."""

    array: Any


def pull_back(b: Builder, outline: Outline, steps: Sequence[ViewStep], ct: Any) -> Any:
    """Return the cotangent of an array from that of a view of it."""
    types = [outline.type]
    for step in steps[:-1]:
        indices = map(type_of_array, step.indices)
        types.append(step.op.infer(types[-1], *indices, **step.attrs))
    for step, type in zip(reversed(steps), reversed(types), strict=True):
        operands = (Shaped(type), *step.indices)
        ct = step.op.cotangent(b, 0, ct, None, operands, step.attrs)
    return ct


# ---------------------------------------------------------------- saved values


class Saved:
    """A value kept for the backward pass, with the version it was saved at.

    `edge` is where its gradient goes; for a node's own output it is filled in when the
    value is taken out, since the node would own itself otherwise.
    """

    __slots__ = ("__weakref__", "_data", "_edge", "_storage", "_version")

    def __init__(
        self, t: _tensor.Tensor, edge: Edge | None, overwritten: Storage | None
    ) -> None:
        data, storage = t._data, t._storage
        if storage is not None:
            if storage.shared or storage is overwritten:
                data, storage = data.copy(), None
            else:
                self._version = storage.version
                storage.register(self)
        self._data = data
        self._storage = storage
        self._edge = edge

    def keep(self) -> None:
        """Take a private copy: the memory is about to be written."""
        if self._storage is not None and self._storage.version == self._version:
            self._data = self._data.copy()
            self._storage = None

    def array(self, owner: Node) -> Any:
        """Return the data, or raise where it was overwritten."""
        storage = self._storage
        if storage is not None and storage.version != self._version:
            raise self._overwritten(owner, storage)
        return self._data

    def tensor(self, owner: Node, nr: int | None = None) -> Any:
        """Return a tensor whose gradient goes where the saved one's did."""
        data = self.array(owner)
        storage = self._storage
        if storage is None and isinstance(data, np.ndarray):
            storage = Storage()
        t = _tensor.Tensor(data, storage)
        edge = self._edge if nr is None else (owner, nr)
        if edge is not None:
            t._node, t._nr = edge
        return t

    def _overwritten(self, owner: Node, storage: Storage) -> MutationError:
        source = ""
        if self._edge is not None and not isinstance(self._edge[0], AccumulateGrad):
            source = f", which is output {self._edge[1]} of {self._edge[0].name()},"
        where = storage.last_write
        return MutationError(
            f"{owner.name()}: one of the variables needed for gradient computation has "
            f"been modified by an inplace operation: [{type_of_array(self._data)}]"
            f"{source} is at version {storage.version}; expected version "
            f"{self._version} instead.",
            rule=f"it was last written at {where}" if where else "",
            hint="copy before writing, x = x.copy(), or run under "
            "rg.allow_mutation_on_saved_tensors()",
        )


# ---------------------------------------------------------------- nodes


class RemovableHandle:
    """Takes a hook away again."""

    __slots__ = ("_hooks", "_key")
    _keys = itertools.count()

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Any) -> None:
        self._hooks = hooks
        self._key = next(self._keys)
        hooks[self._key] = hook

    def remove(self) -> None:
        """Take the hook away."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *args: object) -> None:
        self.remove()


class NodeHooks:
    """What is called before and after a node, or the gradient of a leaf."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: dict[int, Callable[..., Any]] = {}
        self.after: dict[int, Callable[..., Any]] = {}


class Node:
    """One step of the eager graph.

    `edges` says for every input where its gradient goes; `pull` maps the gradients of
    the outputs to those of the inputs.
    """

    __slots__ = ("__weakref__", "around", "edges", "hooks", "retains", "sequence")
    outputs: int | ClassVar[int] = 1  # type: ignore[valid-type]
    hands_on = False  # `pull` gets a gradient that it may change

    def __init__(self, edges: tuple[Edge | None, ...]) -> None:
        self.edges = edges
        self.sequence = next(_SEQUENCE)
        self.hooks: dict[int, dict[int, Callable[[Any], Any]]] | None = None
        self.retains: dict[int, weakref.ref[_tensor.Tensor]] | None = None
        self.around: NodeHooks | None = None

    def register_prehook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this runs; a tuple it returns is taken."""
        self.around = self.around or NodeHooks()
        return RemovableHandle(self.around.before, hook)

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this ran.

        A tuple that it returns stands for `grad_inputs` from then on.
        """
        self.around = self.around or NodeHooks()
        return RemovableHandle(self.around.after, hook)

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where the gradients of the inputs go."""
        return tuple((None, 0) if e is None else e for e in self.edges)

    def name(self) -> str:
        """Return the name that PyTorch prints."""
        return type(self).__name__

    def guards(self, nr: int) -> bool:
        """Tell whether an output is a view with a derivative of its own."""
        return False

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        """Return the gradient for every edge from those of the outputs."""
        raise NotImplementedError

    def release(self) -> None:
        """Drop what was saved."""

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGrad(Node):
    """Where the gradient of a leaf arrives; the leaf refers to it weakly."""

    __slots__ = ("variable",)

    def __init__(self, variable: _tensor.Tensor) -> None:
        super().__init__(())
        self.sequence = next(_LEAF_SEQUENCE)
        self.variable = variable


class OpPlan(NamedTuple):
    """What recording an op needs, worked out once."""

    node: type[OpNode]
    rules: tuple[Any, ...]  # one derivative per operand
    reads: tuple[frozenset[int], ...]
    names: tuple[tuple[int, ...], ...]  # what a Partial's rule is called with
    variadic: bool


@functools.cache
def _node_class(name: str, base: type[OpNode]) -> type[OpNode]:
    return type(node_name(name), (base,), {"__slots__": (), "__module__": __name__})


@functools.cache
def plan_of(name: str, count: int) -> OpPlan:
    """Return the plan of an op with that many operands."""
    op = OPS[name]
    ordered = [op.reads(k, count) for k in range(count)]
    return OpPlan(
        _node_class(name, ViewNode if op.kind is Kind.VIEW else OpNode),
        tuple(map(op.derivative, range(count))),
        tuple(map(frozenset, ordered)),
        tuple(ordered),
        op.variadic,
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

    def release(self) -> None:
        if type(self.out) is Saved or any(type(x) is Saved for x in self.operands):
            self.operands = ()
            self.out = None
            self.released = True

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.released:
            raise GradientError(TWICE)
        (ct,) = cts
        out = self.out
        if isinstance(b, EagerBuilder):
            operands = [x.array(self) if type(x) is Saved else x for x in self.operands]
            if type(out) is Saved:
                out = out.array(self)
        else:
            operands = [
                x.tensor(self) if type(x) is Saved else x for x in self.operands
            ]
            if type(out) is Saved:
                out = out.tensor(self, 0)
        return [self._cotangent(b, k, ct, out, operands) for k in self.positions]

    def _cotangent(
        self, b: Builder, position: int, ct: Any, out: Any, operands: list[Any]
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
        old = None if self.edges[0] is None else scatter(b, ct, self.steps, 0.0)
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
            return Owned(scatter(b, ct, self.steps, 0.0)), new
        view[...] = 0
        return Owned(ct), new

    def _mask(self) -> Array | None:
        """Tell which elements keep what was written, where the view overlaps."""
        if not any(step.op.overlapping for step in self.steps):
            return None
        written: Any = np.full(self.outline.shape, -1)
        for step in self.steps:
            written = step.view(written)
        order = np.arange(written.size).reshape(written.shape)
        written[...] = order
        mask: Array = written == order
        return mask


def scatter(b: Builder, x: Any, steps: Sequence[ViewStep], new: Any) -> Any:
    """Return `x` with the view that `steps` lead to replaced by `new`."""
    inputs = []
    for step in steps:
        inputs.append(x)
        x = b.apply(step.op, (x, *step.indices), step.attrs)
    for step, base in zip(reversed(steps), reversed(inputs), strict=True):
        assert step.op.scatter is not None
        new = b.apply(OPS[step.op.scatter], (base, new, *step.indices), step.attrs)
    return new


# ---------------------------------------------------------------- edges of tensors


def edge_of(t: _tensor.Tensor) -> Edge | None:
    """Return where the gradient of a tensor goes, or None."""
    if t._base is not None and t._seen != t._storage.epoch:  # type: ignore[union-attr]
        _follow_base(t, t._base)
    node = t._node
    if node is not None:
        return node, t._nr
    return (accumulator(t), 0) if t._leaf else None


def accumulator(t: _tensor.Tensor) -> AccumulateGrad:
    """Return the one AccumulateGrad of a leaf."""
    found = None if t._accumulator is None else t._accumulator()
    if found is None:
        with LEAVES:  # two threads must not make one each
            found = None if t._accumulator is None else t._accumulator()
            if found is None:
                found = AccumulateGrad(t)
                t._accumulator = weakref.ref(found)
    return found


GUARDED = (
    "This view was created inside a custom Function (or because an input was returned "
    "as-is) and the autograd logic to handle view+inplace would override the custom "
    "backward associated with the custom Function, leading to incorrect gradients. "
    "This behavior is forbidden. You can fix this by cloning the output of the custom "
    "Function."
)


def _check_guard(t: _tensor.Tensor, what: str) -> None:
    """Raise where a written view has a derivative of its own, which would be lost."""
    node, nr = t._node, t._nr
    while isinstance(node, ViewNode):
        edge = node.edges[0]
        assert edge is not None
        node, nr = edge
    if node is not None and node.guards(nr):
        assert t._node is not None
        name = t._node.name().partition("Backward")[0]
        raise MutationError(
            f"Output {t._nr} of {name} is a view and {what} modified inplace. "
            f"{GUARDED}",
            location=user_location(),
        )


def _follow_base(
    t: _tensor.Tensor, base: _tensor.Tensor, with_hooks: bool = True
) -> None:
    """Bring the node of a view up to date after its base changed.

    Its hooks come along where another alias was written: what had them is not in the
    graph of the new value.
    """
    storage = base._storage
    assert storage is not None
    if t._made_without_grad:
        return
    with storage.lock:
        if t._seen != storage.epoch:  # no other thread has done it meanwhile
            _rebase_view(t, base, storage, with_hooks)


def _rebase_view(
    t: _tensor.Tensor, base: _tensor.Tensor, storage: Storage, with_hooks: bool
) -> None:
    _check_guard(t, "its base or another view of its base has been")
    edge = edge_of(base)
    before = t._node
    if edge is not None:
        t._leaf = False
        t._node = AsStridedBackward0(edge, Outline(base._data), t._steps)
        hooks = None if before is None else (before.hooks or {}).get(t._nr)
        if hooks and with_hooks:
            t._node.hooks = {0: hooks}
    elif before is not None:  # the base was detached in place
        t._node = None
    move_retained(before, t._nr, t)
    t._nr = 0
    t._seen = storage.epoch


def move_retained(before: Node | None, nr: int, t: _tensor.Tensor) -> None:
    """Let `retain_grad` follow a tensor to its new node."""
    if before is None or before.retains is None or t._node is None:
        return
    ref = before.retains.get(nr)
    if ref is not None and ref() is t:
        del before.retains[nr]
        retain(t._node, t._nr, t)


def retain(node: Node, nr: int, t: _tensor.Tensor) -> None:
    """Have the gradient of an output stored in `t.grad`."""
    if node.retains is None:
        node.retains = {}
    node.retains[nr] = weakref.ref(t)


# ---------------------------------------------------------------- recording


def is_inexact(data: Any) -> bool:
    """Tell whether data can have a gradient."""
    dtype = getattr(data, "dtype", None)
    return dtype.kind in "fc" if dtype is not None else type(data) in (float, complex)


def make_view(
    op: Op,
    t: _tensor.Tensor,
    out: Array,
    data: Sequence[Any],
    attrs: Mapping[str, Any],
) -> _tensor.Tensor:
    """Return the view `out` of `t`, sharing its storage."""
    storage = t._storage
    assert storage is not None
    if isinstance(op.derivative(0), Zero):
        return t.detach()
    result = _tensor.Tensor(out, storage)
    indices = tuple(
        x.item() if isinstance(x, np.ndarray | np.generic) else x for x in data[1:]
    )
    result._base = t if t._base is None else t._base
    result._steps = (*t._steps, ViewStep(op, indices, attrs))
    result._seen = storage.epoch
    if not STATE.grad:
        result._made_without_grad = True
        return result
    result._made_without_grad = t._made_without_grad
    edge = edge_of(t)
    if edge is not None:
        plan = plan_of(op.name, len(data))
        operands = (Outline(t._data), *indices)
        result._node = plan.node((edge,), op, plan, (0,), operands, None, attrs)
    return result


def record_op(
    op: Op,
    operands: Sequence[Any],
    data: Sequence[Any],
    attrs: Mapping[str, Any],
    result: _tensor.Tensor,
    overwritten: Storage | None,
) -> None:
    """Hang the node of an op on its result, if an operand requires a gradient."""
    tensor = _tensor.Tensor
    edges: list[Edge | None] = []
    positions: tuple[int, ...] = ()
    for k, x in enumerate(operands):
        edge = None
        if type(x) is tensor and (
            x._node is not None or x._leaf or x._base is not None
        ):
            edge = edge_of(x)
        edges.append(edge)
        if edge is not None:
            positions = (*positions, k)
    if not positions or not is_inexact(result._data):
        return
    plan = plan_of(op.name, len(data))
    reads = plan.reads[positions[0]]
    for k in positions[1:]:
        reads = reads | plan.reads[k]
    kept = []
    for k, d in enumerate(data):
        if isinstance(d, np.ndarray) and k not in reads:
            kept.append(Outline(d))
        elif edges[k] is None and not isinstance(d, np.ndarray):
            kept.append(d)
        else:
            kept.append(_kept(operands[k], d, edges[k], k in reads, overwritten))
    node = plan.node(
        tuple([e for e in edges if e is not None]),
        op,
        plan,
        positions,
        kept,
        None,
        attrs,
    )
    if OUT in reads:
        node.out = Saved(result, None, None)
    elif isinstance(result._data, np.ndarray):
        node.out = Outline(result._data)
    else:
        node.out = result._data
    result._node = node


def _kept(
    x: Any, data: Any, edge: Edge | None, is_read: bool, overwritten: Storage | None
) -> Any:
    """Return what a node keeps of an operand: the value, or its outline."""
    is_array = isinstance(data, np.ndarray)
    if not is_read:
        return Outline(data) if is_array else data
    if isinstance(x, _tensor.Tensor):
        if not is_array and edge is None:
            return data
        return Saved(x, edge, overwritten)
    return data.copy() if is_array else data  # others may write into it


# ---------------------------------------------------------------- writes


class Rebase(NamedTuple):
    """What a write will do to the graph, found before anything changes."""

    old: Edge | None  # of the base
    new: Edge | None
    like: Any


def prepare_write(
    target: _tensor.Tensor, new: Any, new_edge: Edge | None
) -> Rebase | None:
    """Check whether autograd allows a write; return how to rebase, if at all.

    `new_edge` is where the gradient of `new` goes.
    """
    if not STATE.grad:
        return None
    base = target._base
    is_tensor = isinstance(new, _tensor.Tensor)
    target_edge = edge_of(target)
    old = target_edge if base is None else edge_of(base)
    if new_edge is None and old is None and target_edge is None:
        return None
    if not is_inexact(target._data):
        return None
    _check_write(target, base)
    data = new._data if is_tensor else new
    return Rebase(old, new_edge, _outline(data))


def _outline(data: Any) -> Any:
    return Outline(data) if isinstance(data, np.ndarray) else data


def _check_write(target: _tensor.Tensor, base: _tensor.Tensor | None) -> None:
    what = ""
    if target._leaf:
        what = "a leaf Variable that requires grad is being used"
    elif base is not None and base._leaf:
        what = "a view of a leaf Variable that requires grad is being used"
    if what:
        raise MutationError(
            f"{what} in an in-place operation.",
            location=user_location(),
            rule=f"the write into {target.type} would lose its gradient",
            hint="write into a copy, x = x.copy(), or under rg.no_grad()",
        )
    if base is not None:
        _check_guard(target, "is being")
    if target._made_without_grad:
        raise MutationError(
            "A view was created in no_grad mode and is being modified inplace with "
            "grad mode enabled.",
            location=user_location(),
            hint="make the view with grad mode enabled, or write under rg.no_grad()",
        )


def rebase(target: _tensor.Tensor, plan: Rebase, result: Any = None) -> None:
    """Make the graph follow a write that has happened.

    `result` is a fresh tensor that was computed for the write: the target takes over
    its node if nothing is lost on the way.
    """
    base = target._base
    if base is not None:
        like = plan.like
        set_node(
            base,
            CopySlices(plan.old, plan.new, Outline(base._data), target._steps, like),
        )
        if target._node is not None and target._node.hooks:
            _follow_base(target, base, with_hooks=False)  # they are of the old value
        return
    node = None if result is None else result._node
    same = node is not None and (
        getattr(plan.like, "dtype", None) == target._data.dtype
        and plan.like.shape == target._data.shape
    )
    if node is not None and same:
        set_node(target, node, result._nr)
        return
    old = plan.old if result is None else None
    set_node(target, CopyBackwards(old, plan.new, plan.like, _outline(target._data)))


def set_node(t: _tensor.Tensor, node: Node, nr: int = 0) -> None:
    """Give a tensor that was written a new node."""
    before, before_nr = t._node, t._nr
    t._node, t._nr = node, nr
    t._leaf = False
    move_retained(before, before_nr, t)


# ---------------------------------------------------------------- extension


class FunctionNode(Node):
    """The node of a function with several outputs and a pullback of its own."""

    __slots__ = ("backward", "likes", "outputs", "released", "saved", "types")

    def __init__(
        self,
        edges: tuple[Edge | None, ...],
        backward: Callable[..., Sequence[Any]],
        likes: tuple[Any, ...],
        outputs: int,
    ) -> None:
        super().__init__(edges)
        self.backward: Callable[..., Sequence[Any]] | None = backward
        self.likes = likes
        self.outputs = outputs
        self.saved: tuple[tuple[Any, int | None], ...] = ()
        self.released = False

    def release(self) -> None:
        self.backward = None
        self.saved = ()

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        if self.backward is None:
            raise GradientError(TWICE)
        values = [self._value(b, x, nr) for x, nr in self.saved]
        grads = tuple(self.backward(b, cts, *values))
        if len(grads) < len(self.edges) or any(
            g is not None for g in grads[len(self.edges) :]
        ):
            raise GradientError(
                f"function {self.name()} returned an incorrect number of gradients "
                f"(expected {len(self.edges)}, got {len(grads)})"
            )
        return [
            None if g is None or e is None else self._fitted(b, g, k)
            for k, (g, e) in enumerate(zip(grads, self.edges, strict=False))
        ]

    def _value(self, b: Builder, x: Any, nr: int | None) -> Any:
        if type(x) is not Saved:
            return x
        return x.array(self) if isinstance(b, EagerBuilder) else x.tensor(self, nr)

    def _fitted(self, b: Builder, g: Any, k: int) -> Any:
        like = self.likes[k]
        want, have = b.shape(like), b.shape(g)
        fits = len(have) >= len(want) and all(
            d in (1, h) for d, h in zip(reversed(want), reversed(have), strict=False)
        )
        if not fits:
            raise GradientError(
                f"Function {self.name()} returned an invalid gradient at index {k} - "
                f"got {have} but expected shape compatible with {want}"
            )
        return b.unbroadcast(g, like)


@functools.cache
def _function_node(name: str) -> type[FunctionNode]:
    return type(name, (FunctionNode,), {"__slots__": (), "__module__": __name__})


def check_writes(inputs: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise where autograd forbids a function of `inputs` to write into `written`.

    To be called before the function runs: nothing has happened yet when this raises.
    """
    tensor = _tensor.Tensor
    if not STATE.grad:
        return
    if any(isinstance(x, tensor) and edge_of(x) is not None for x in inputs):
        for t in written:
            if isinstance(t, tensor) and is_inexact(t._data):
                _check_write(t, t._base)


def record(
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    backward: Callable[..., Sequence[Any]],
    saved: Sequence[Any] = (),
) -> None:
    """Hang a function that has been computed on the tape.

    `inputs` are the operands (what is no Tensor has no gradient), `outputs` fresh
    Tensors over memory of their own, or the *same objects* as inputs that the function
    has written: their version is bumped and they, or their bases, are rebased. Call
    `check_writes` before the function writes, and `before_writes` too.

    `backward(b, cts, *saved)` gets a builder, one cotangent per output (None for
    zero), and the saved values: arrays, or with create_graph Tensors whose gradients
    go on, in which case what it computes must be made of recorded operations. It
    returns one gradient per input, or None. `saved` may hold inputs, outputs, fresh
    Tensors and plain values; those of inputs must not be among the written ones.
    """
    tensor = _tensor.Tensor
    written = [t for t in outputs if any(t is x for x in inputs)]
    edges = tuple(edge_of(x) if isinstance(x, tensor) else None for x in inputs)
    for t in written:
        assert t._storage is not None
        with t._storage.lock:
            t._storage.wrote()
        if t._storage.has_keepers:
            t._storage.last_write = user_location()
    if not STATE.grad or all(e is None for e in edges):
        return
    likes = tuple(_outline(x._data) if isinstance(x, tensor) else x for x in inputs)
    node = _function_node(name)(edges, backward, likes, len(outputs))
    node.saved = tuple(_saved_of(x, outputs) for x in saved)
    for nr, t in enumerate(outputs):
        if not isinstance(t, tensor) or not is_inexact(t._data):
            continue
        if t._base is not None and any(w is t for w in written):
            put_slices(t, (node, nr))
        else:
            set_node(t, node, nr)


def put_slices(t: _tensor.Tensor, new: Edge) -> None:
    """Rebase the base of a view that a function has written."""
    base = t._base
    assert base is not None
    assert base._storage is not None
    with base._storage.lock:
        old, like = edge_of(base), Outline(t._data)
        base_node = CopySlices(old, new, Outline(base._data), t._steps, like)
        set_node(base, base_node)


def _saved_of(x: Any, outputs: Sequence[Any]) -> tuple[Any, int | None]:
    if not isinstance(x, _tensor.Tensor):
        return (x, None)
    for nr, t in enumerate(outputs):
        if t is x:
            return Saved(x, None, None), nr
    return Saved(x, edge_of(x), None), None


def before_writes(written: Sequence[Any]) -> None:
    """Have saved values copied that a function is about to overwrite, if wanted."""
    for t in written:
        if STATE.copy_on_write and t._storage is not None:
            t._storage.release_keepers()
