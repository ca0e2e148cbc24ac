"""Run a function at a point and give its derivative there, as a linear map.

It can be pulled (reverse mode) and pushed (forward mode), on the tape or in a capture.

Inside a capture the function is traced into a Func of its own, made pure and
differentiated there, and the result is inlined. Either way it runs on private copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.errors import GradientError
from ..ir.func import Block, Copier, Func, Node, Operand, Value, type_of
from ..ir.op import OPS
from ..ir.types import type_of_array
from ..passes.jvp import jvp
from ..passes.limit import limited_vjp
from ..passes.partition import split
from ..passes.vjp import cotangent_type
from ..runtime.devices import ARRAYS, DeviceArray
from . import autograd, dispatch
from .capture import run_traced
from .containers import Tree, flatten_tree, unflatten_tree
from .convert import convert, operators
from .devices import HOST, beside, copied, filled
from .inputs import check_plain
from .jit import LOCK
from .location import user_location
from .modes import STATE, allow_mutation_on_saved_tensors, enable_grad
from .operators import EagerOperators
from .program import run_pass, vectorized
from .specialisation import is_array_like
from .state import State, Swap
from .tensor import Tensor, of
from .trace import Trace
from .values import transforming


@dataclass(slots=True)
class Linear:
    """A function at a point: the leaves of its result, and its derivative.

    `pull(cotangents)` takes one cotangent per result leaf (None for zero) and returns
    one gradient per leaf that was asked for. `push(tangents)` takes one tangent for
    each of those (None for zero) and returns one per result leaf, None where that is
    not a float. `pulling(k)` returns a function that pulls a cotangent of result leaf
    k alone, for many calls: what does not depend on the cotangent is computed before.
    """

    leaves: list[Any]
    tree: Tree
    pull: Callable[[Sequence[Any]], list[Any]]
    push: Callable[[Sequence[Any]], list[Any]]
    pulling: Callable[[int], Callable[[Any], list[Any]]]
    write_back: Callable[[], None] = lambda: None


def linearize(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wrt: Sequence[int],
) -> Linear:
    """Run `fn` on private copies; `wrt` numbers leaves of `(args, kwargs)`."""
    trace = dispatch.active_trace()
    leaves, tree = flatten_tree((tuple(args), dict(kwargs)))
    for x in leaves:
        check_plain(x, "as an argument")
    if trace is not None:
        assert isinstance(trace, Trace)
        return _linearize_traced(trace, fn, leaves, tree, wrt)
    return _linearize_eager(fn, leaves, tree, wrt)


# ---------------------------------------------------------------- inside a capture


def _linearize_traced(
    outer: Trace,
    fn: Callable[..., Any],
    leaves: list[Any],
    tree: Tree,
    wrt: Sequence[int],
) -> Linear:
    inner = Trace(outer, getattr(fn, "__name__", "f"))
    given: list[Operand] = []
    numbers: dict[int, int] = {}
    traced: list[Any] = []
    for j, x in enumerate(leaves):
        if is_array_like(x) or (isinstance(x, float | np.generic) and j in wrt):
            operand = outer.operand(outer.fresh(outer.operand(x)))
            numbers[j] = len(given)
            given.append(operand)
            t = inner.parameter(outer.operand_type(operand), f"x{j}")
            inner.inputs.stands_for[t._value] = operand
            traced.append(t)
        else:
            traced.append(x)
    args, kwargs = unflatten_tree(tree, traced)
    state = State()
    state.search(fn)
    swap = Swap(state)
    swap.begin()
    try:
        outs, out_tree = flatten_tree(run_traced(inner, fn, args, kwargs))
    finally:
        changes = swap.restore()
    positions: dict[int, int] = {}
    results: list[Operand] = []
    for k, x in enumerate(outs):
        if isinstance(x, Tensor):
            positions[k] = len(results)
            results.append(inner.operand(x))
    kept = _Kept(inner, results)
    changes = changes.map(kept.add)
    traced_func = inner.finish(results)
    pure = run_pass(traced_func, "functionalize")
    inexact = {k: type_of(pure.results[i]).is_inexact for k, i in positions.items()}
    stages = outer.root().stages
    stages.setdefault("capture", traced_func)
    stages.setdefault("functionalize", pure)
    targets = [inner.inputs.origins[v] for v in inner.params[len(given) :]]
    # Copies: what is read stays as it is now, whatever is written later.
    given += [outer.operand(outer.fresh(outer.operand(x))) for x in targets]
    values = inline(outer, pure, given)
    for i, j in pure.updates:
        if j >= len(numbers):  # captured: written once, after value and gradients
            target = outer.operand(targets[j - len(numbers)])
            outer.write(outer.tensor(target), outer.tensor(values[i]))
    changes.map(lambda x: kept.value(x, outer, values)).apply()
    shown = [
        outer.fresh(values[positions[k]]) if k in positions else x
        for k, x in enumerate(outs)
    ]

    home = outer.builder.nodes
    limit = STATE.memory_limit

    def joint_of(results: Sequence[int], seed: Mapping[int, Operand]) -> Func:
        joint = limited_vjp(
            vectorized(pure),
            tuple(numbers[j] for j in wrt),
            tuple(results),
            seed=seed,
            limit=limit,
            sizes=outer.assumptions,
        )
        stages.setdefault("vjp", joint)
        return joint

    def cotangent_of(ct: Any, i: int) -> Operand:
        return outer.operand(outer.as_cotangent(ct, type_of(pure.results[i])))

    def learn(out: Sequence[Operand]) -> None:
        """Take the results from a joint Func, which has computed them, too."""
        if outer.builder.nodes is home:
            for k, i in positions.items():
                outer.replace(shown[k], outer.fresh(out[i]))

    def pull(cotangents: Sequence[Any]) -> list[Any]:
        seed: dict[int, Operand] = {}
        values: dict[int, Any] = {}
        for k, ct in enumerate(cotangents):
            if ct is not None and k in positions and inexact[k]:
                is_number = isinstance(ct, int | float)
                (seed if is_number else values)[positions[k]] = ct
        joint = joint_of(tuple(values), seed)
        cts = [cotangent_of(ct, i) for i, ct in values.items()]
        out = inline(outer, joint, [*given, *cts])
        learn(out)
        return [outer.fresh(x) for x in out[len(pure.results) :]]

    def pulling(k: int) -> Callable[[Any], list[Any]]:
        if k not in positions:  # nothing that was computed
            return lambda ct: pull(())
        joint = joint_of((positions[k],), {})
        *params, ct_param = joint.params
        forward, backward = split(joint.nodes, (ct_param,))
        copier = _Inliner(outer, dict(zip(params, given, strict=True)))
        copier.append(forward)
        count = len(pure.results)
        learn([copier.operand(x) for x in joint.results[:count]])

        def pull_one(ct: Any) -> list[Any]:
            copier.values[ct_param] = cotangent_of(ct, positions[k])
            copier.append(backward)
            return [outer.fresh(copier.operand(x)) for x in joint.results[count:]]

        return pull_one

    def push(tangents: Sequence[Any]) -> list[Any]:
        pairs = zip(wrt, tangents, strict=True)
        by_param = {numbers[j]: t for j, t in pairs if t is not None}
        joint = jvp(vectorized(pure), tuple(by_param))
        stages.setdefault("jvp", joint)
        ts = []
        for k, t in by_param.items():
            like = cotangent_type(pure.params[k].type)
            ts.append(outer.operand(outer.as_cotangent(t, like, "argument")))
        out = inline(outer, joint, [*given, *ts])
        learn(out)
        smooth = [i for i, x in enumerate(pure.results) if type_of(x).is_inexact]
        found = dict(zip(smooth, out[len(pure.results) :], strict=True))
        return [
            outer.fresh(found[positions[k]])
            if inexact.get(k)
            else 0.0
            if isinstance(x, float)
            else None
            for k, x in enumerate(outs)
        ]

    return Linear(shown, out_tree, pull, push, pulling)


class _Kept:
    """Values of an inner trace that the function left in variables and containers."""

    def __init__(self, inner: Trace, results: list[Operand]) -> None:
        self.inner = inner
        self.results = results
        self.positions: dict[int, int] = {}
        self._alive: list[Tensor] = []

    def add(self, x: Any) -> Any:
        """Make a value a result of the inner trace."""
        if isinstance(x, Tensor) and x._trace is self.inner:
            self.positions[id(x)] = len(self.results)
            self.results.append(self.inner.operand(x))
            self._alive.append(x)
        return x

    def value(self, x: Any, outer: Trace, values: Sequence[Operand]) -> Any:
        """Return the value in the outer trace."""
        at = self.positions.get(id(x))
        return x if at is None else outer.fresh(values[at])


def inline(trace: Trace, f: Func, operands: Sequence[Operand]) -> list[Operand]:
    """Append the nodes of a pure Func to a trace; returns its results there."""
    copier = _Inliner(trace, dict(zip(f.params, operands, strict=True)))
    copier.append(f.nodes)
    return [copier.operand(x) for x in f.results]


class _Inliner(Copier):
    """Copies pure nodes into a traced Func: fresh names, and alias marks for views."""

    def __init__(self, trace: Trace, values: Mapping[Value, Operand]) -> None:
        super().__init__(trace.assumptions.equal, values)
        self.trace = trace

    def define(self, v: Value) -> Value:
        new = super().define(v)
        new.name = self.trace.builder.name(v.name)
        return new

    def append(self, nodes: Sequence[Node]) -> None:
        """Append copies of nodes to the block that is open."""
        for n in nodes:
            self.trace.append(self.node(n))

    def block(self, b: Block) -> Block:
        params = tuple(self.define(p) for p in b.params)
        with self.trace.builder.block() as nodes:
            self.append(b.nodes)
        return Block(params, tuple(nodes), tuple(self.operand(x) for x in b.results))

    def node(self, n: Node) -> Node:
        new = super().node(n)
        if n.op.views is not None:
            new.operands, base = self.trace.viewed(n.op, new.operands, new.attrs)
            for v in new.results:
                v.base = base
        return new


# ---------------------------------------------------------------- eager


COPY, POSITIVE = OPS["copy"], OPS["positive"]


class _Depth:
    """Counts the eager transforms that run around each other in a thread."""

    def __init__(self) -> None:
        self.local = threading.local()

    @property
    def value(self) -> int:
        return getattr(self.local, "value", 0)

    def __enter__(self) -> None:
        self.local.value = self.value + 1

    def __exit__(self, *error: object) -> None:
        self.local.value = self.value - 1


DEPTH = _Depth()


def _linearize_eager(
    fn: Callable[..., Any], leaves: list[Any], tree: Tree, wrt: Sequence[int]
) -> Linear:
    state = State()
    state.search(fn)
    create_graph = (
        DEPTH.value > 0
        or any(map(_requires_grad, leaves))
        or any(_requires_grad(x) for _, x in state.inputs)
    )
    inside = create_graph or any(isinstance(x, Tensor) for x in leaves)
    with enable_grad():
        inputs = {j: _input(leaves[j]) for j in wrt}
        private = [_private(inputs.get(j, x)) for j, x in enumerate(leaves)]
    args, kwargs = unflatten_tree(tree, private)
    swap = Swap(state)
    held: dict[int, tuple[Any, Tensor]] = {}
    with ExitStack() as stack:
        stack.enter_context(DEPTH)
        stack.enter_context(enable_grad())
        stack.enter_context(allow_mutation_on_saved_tensors())
        stack.enter_context(operators(EagerOperators()))
        stack.enter_context(transforming())
        captured = [(p, x) for p, x in state.inputs if isinstance(x, ARRAYS)]
        stack.enter_context(beside([*leaves, *(x for _, x in captured)]))
        if captured:  # their places hold Tensors meanwhile: one thread at a time
            stack.enter_context(LOCK)
        try:
            for place, x in captured:
                if place.get() is x:
                    known = held.setdefault(id(x), (x, _copy_of(x)))
                    swap.put(place, x, known[1])
            swap.begin()
            out = convert(fn)(*args, **kwargs)
        finally:
            changes = swap.restore()
    outs, out_tree = flatten_tree(out)

    def pull(cotangents: Sequence[Any]) -> list[Any]:
        pairs = [
            (x, ct)
            for x, ct in zip(outs, cotangents, strict=True)
            if ct is not None and isinstance(x, Tensor) and x.requires_grad
        ]
        points = [inputs[j] for j in wrt]
        if not pairs or not points:
            return [_shown(_zeros(x), inside) for x in points]
        tracked = any(_requires_grad(ct) for _, ct in pairs)
        grads = autograd.grad(
            [x for x, _ in pairs],
            points,
            [_cotangent(ct, x) for x, ct in pairs],
            retain_graph=True,
            create_graph=create_graph or tracked,
            allow_unused=True,
            materialize_grads=True,
        )
        shown = zip(grads, points, strict=True)
        return [_like(g, x, inside or tracked) for g, x in shown]

    def push(tangents: Sequence[Any]) -> list[Any]:
        """Pull cotangents that are variables, and pull what that is linear in them."""
        smooth = [x for x in outs if isinstance(x, Tensor) and x.requires_grad]
        pairs = [(inputs[j], t) for j, t in zip(wrt, tangents, strict=True)]
        points = [x for x, t in pairs if t is not None]
        ts = [_cotangent(t, x, "argument") for x, t in pairs if t is not None]
        found: Mapping[int, Any] = {}
        tracked = any(map(_requires_grad, ts))
        if smooth and points:
            cts = [_zeros(x).requires_grad_() for x in smooth]
            grads = autograd.grad(
                smooth,
                points,
                cts,
                retain_graph=True,
                create_graph=True,
                allow_unused=True,
            )
            kept = [(g, t) for g, t in zip(grads, ts, strict=True) if g is not None]
            pushed = autograd.grad(
                [g for g, _ in kept],
                cts,
                [t for _, t in kept],
                create_graph=create_graph or tracked,
                allow_unused=True,
                materialize_grads=True,
            )
            found = {id(x): t for x, t in zip(smooth, pushed, strict=True)}
        tangents = [found.get(id(x), _no_change(x)) for x in outs]
        return [
            _like(t, x, inside or tracked) if isinstance(x, Tensor) else t
            for t, x in zip(tangents, outs, strict=True)
        ]

    def pulling(k: int) -> Callable[[Any], list[Any]]:
        count = len(outs)
        return lambda ct: pull([ct if j == k else None for j in range(count)])

    def write_back() -> None:
        for array, t in held.values():
            if t._version:
                array[...] = t._data
        kept: dict[int, Any] = {id(t): array for array, t in held.values()}
        kept.update((id(x), x) for _, x in state.inputs if isinstance(x, Tensor))

        def outside(t: Tensor) -> Any:
            return kept[id(t)] if id(t) in kept else _shown(t, inside)

        changes.map(outside).apply()

    shown = [_shown(x, inside) if isinstance(x, Tensor) else x for x in outs]
    return Linear(shown, out_tree, pull, push, pulling, write_back)


def _requires_grad(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _copy_of(x: Any) -> Tensor:
    return of(x.copy(order="K"))


def _input(x: Any) -> Tensor:
    """Return what is differentiated in: a leaf, or a value of an outer graph."""
    if isinstance(x, Tensor) and x.requires_grad:
        same = COPY if isinstance(x._data, ARRAYS) else POSITIVE
        return dispatch.apply(same, (x,))  # type: ignore[no-any-return]
    return of(x._data if isinstance(x, Tensor) else x).requires_grad_()


def _private(x: Any) -> Any:
    """Return a private copy of an argument leaf, which the function may write."""
    if isinstance(x, ARRAYS):
        return _copy_of(x)
    if isinstance(x, Tensor):
        return dispatch.apply(
            COPY if x.type.shape or not x.type.scalar else POSITIVE, (x,)
        )
    return x


def _shown(x: Any, inside: bool) -> Any:
    """Return a value to the caller: NumPy in, NumPy out.

    The caller may write into it, so derivatives keep copies of what they need of it.
    """
    if inside or not isinstance(x, Tensor):
        return x
    if x._storage is not None:
        x._storage.share()
    return x._data


def _like(g: Any, x: Tensor, inside: bool) -> Any:
    """Return the gradient of an input: that of a scalar is a scalar."""
    g = _shown(g, inside)
    is_array = isinstance(x._data, ARRAYS)
    return g[()] if isinstance(g, np.ndarray) and not is_array else g


def _zeros(x: Tensor) -> Tensor:
    return of(filled(x._data, 0) if isinstance(x._data, ARRAYS) else 0.0 * x._data)


def _no_change(x: Any) -> Any:
    """Return the tangent of a result that depends on no argument, if it is a float."""
    if isinstance(x, Tensor):
        return _zeros(x) if x.dtype.kind in "fc" else None
    if isinstance(x, (*ARRAYS, np.generic)):
        return filled(x, 0) if x.dtype.kind in "fc" else None
    return 0.0 if isinstance(x, float) else None


def _cotangent(ct: Any, like: Tensor, what: str = "result") -> Tensor:
    """Return a cotangent with the type of the result it belongs to; or a tangent."""
    if isinstance(ct, Tensor) and ct.shape == like.shape:
        return ct
    data = ct._data if isinstance(ct, Tensor) else ct
    if not isinstance(data, DeviceArray):
        data = np.asarray(data, like.dtype)
    if like.device != HOST:
        data = copied(data, like.device)
    if data.shape != like.shape:
        name = "cotangent" if what == "result" else "tangent"
        raise GradientError(
            f"a {name} {type_of_array(data)} for the {what} {like.type}",
            location=user_location(),
            rule=f"A {name} has the shape of its {what}.",
        )
    return of(data)
