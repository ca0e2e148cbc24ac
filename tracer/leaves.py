"""Leaves and their gradients inside a trace: `requires_grad`, `.grad`, `backward`.

The graph of a traced value is the trace itself. `backward` makes a pure Func of the
nodes so far, differentiates it in the leaves, and appends what computes the gradients;
the values that are computed twice thereby are merged later. A leaf is a parameter that
stands for a Tensor that requires grad, or a value that was made one in the function.
Its gradient is that of the value it had at first: writes into leaves happen under
`no_grad` and pass it on.

`.grad` of an argument or a captured Tensor is state like any captured place: read at
every call where the function reads it, and set after the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ir.errors import GradientError, ShapeError, UnsupportedError
from ..ir.func import Block, Func, Node, Operand, Value, free_values, walk
from ..ir.op import OPS, Kind
from ..passes import activity
from ..passes.limit import limited_vjp
from . import dispatch
from .assume import NeedsValue
from .location import user_location
from .modes import STATE, enable_grad, no_grad
from .program import run_pass, vectorized, without_checks
from .tensor import Tensor

if TYPE_CHECKING:
    from .trace import Trace

COPY, ADD, DETACH = OPS["copy"], OPS["add"], OPS["detach"]
LEAF, INNER, PLAIN = "leaf", "inner", "plain"  # of the graph outside


def kind_of(x: Any) -> str:
    """Tell what an argument is to the tape: a leaf, an inner tensor, or nothing."""
    if not isinstance(x, Tensor) or not x.requires_grad:
        return PLAIN
    return LEAF if x.is_leaf else INNER


def grad_of(x: Any) -> Any:
    """Return the gradient that a Tensor holds."""
    return x._grad if isinstance(x, Tensor) else None


class GradOf(NamedTuple):
    """Where a parameter is found: the gradient that another one holds."""

    parameter: int


class Leaves:
    """The leaves of one trace, and what they hold."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.used = False  # the function asked for what Tensors are to the tape
        self.released = False  # `backward` ran
        self.given: dict[Value, Tensor] = {}  # parameters that are Tensors
        self.made: dict[Value, None] = {}  # values that became leaves
        self.grads: dict[Value, Tensor | None] = {}  # those that were read or set
        self.holders: dict[Value, Value] = {}  # gradients that are parameters: whose
        self.before: dict[Value, Tensor | None] = {}  # the same, when they were read
        self.first: dict[Value, Value] = {}  # what written arrays held at first
        self._tracker: Tracker | None = None

    def enter(self, v: Value, x: Tensor) -> None:
        """Note what a parameter stands for."""
        self.given[v] = x
        if self._tracker is not None and kind_of(x) != PLAIN:
            self._tracker.roots.add(v)

    def kind(self, v: Value) -> str:
        """Return what a value was to the tape before the call, or became since."""
        return LEAF if v in self.made else kind_of(self.given.get(v))

    def describe(self, results: Any) -> Bookkeeping | None:
        """Return what a program has to know and do; None where nothing was asked.

        `results` is a `capture.Results`, which takes what becomes a gradient.
        """
        if not self.used and not self.made:
            return None
        trace = self.trace
        params = trace.params
        changed = [
            v
            for v, g in self.grads.items()
            if v not in self.before or g is not self.before[v]
        ]
        for v in self.grads:
            trace.operand(trace.tensor(v))  # among the parameters
        outs = {
            v: None if self.grads[v] is None else results.out(self.grads[v])
            for v in changed
        }
        made = {v: results.number(v).number for v in self.made}
        return Bookkeeping(
            kinds=tuple(
                (j, self.kind(v)) for j, v in enumerate(params) if v.type.is_inexact
            ),
            without_grad=tuple(
                params.index(v)
                for v, g in self.before.items()
                if g is None and v not in self.made
            ),
            grads=tuple(
                (params.index(v), out) for v, out in outs.items() if v not in self.made
            ),
            leaves=tuple(made.values()),
            leaf_grads=tuple((made[v], outs[v]) for v in self.made if v in outs),
            released=self.released or bool(self.made),
        )

    def before_write(self, root: Value) -> None:
        """Keep what an array holds, where a gradient may be wanted."""
        trace = self.trace
        if root in self.first or trace.parent is not None or trace.in_region:
            return
        if root not in trace.params and root not in self.made:
            return
        if not self.all() or self._is_written(root):
            return
        with enable_grad():
            self.first[root] = trace.apply(COPY, (trace.tensor(root),), {})._value

    # What Tensors ask -------------------------------------------------------------

    def root(self, t: Tensor) -> Value | None:
        x = self.trace.operand(t)
        return root_of(x) if isinstance(x, Value) else None

    def is_leaf(self, t: Tensor) -> bool:
        v = self.root(t)
        own = v is not None and v is t._value and self.kind(v) == LEAF
        return own or not self.requires(t)

    def requires(self, t: Tensor) -> bool:
        """Tell whether the gradient of `t` goes anywhere."""
        self.used = True
        v = self.root(t)
        if v is None or not v.type.is_inexact:
            return False
        tracker = self.tracker()
        if self.trace.in_region and v not in tracker.seen:
            self._check_place("requires_grad")
        return tracker.holds(self.trace.operand(t))

    def tracker(self) -> Tracker:
        if self._tracker is None:
            start = [v for v in self.given if self.kind(v) != PLAIN]
            self._tracker = Tracker(self.trace, [*start, *self.made])
        self._tracker.catch_up()
        return self._tracker

    def make(self, t: Tensor, leaf: bool) -> None:
        """Make a value a leaf."""
        v = self.root(t)
        if not leaf:
            if self.requires(t):
                raise UnsupportedError(
                    f"requires_grad_(False) of {t.type}, which requires grad",
                    location=user_location(),
                    hint="use x.detach()",
                )
            return
        if v is None or not v.type.is_inexact:
            raise GradientError(
                "only Tensors of floating point dtype can require gradients",
                location=user_location(),
                rule=f"this is {t.type}",
            )
        if (self.kind(v) == LEAF and v is t._value) or self.requires(t):
            return
        if v is not t._value and self.trace.mutations.is_detached(t._value):
            v = self.trace.mutations.unshare(t)
        if (
            v is not t._value
            or v in self.trace.params
            or v in self.trace.mutations.roots
        ):
            raise UnsupportedError(
                f"requires_grad_: {t.type} is an argument, a view or was written",
                location=user_location(),
                rule="A compiled function makes leaves of arrays of its own.",
                hint="copy it first: x = x.copy()",
            )
        self.made[v] = None
        self._tracker = None

    def grad(self, t: Tensor) -> Tensor | None:
        """Return what `t.grad` is at this point of the function."""
        self.used = True
        v = self.root(t)
        if v is None or v is not t._value:
            return None
        if v not in self.grads:
            held = grad_of(self.given.get(v))
            self.grads[v] = None if held is None else self._held(v, held)
            self.before[v] = self.grads[v]
        return self.grads[v]

    def _held(self, v: Value, held: Tensor) -> Tensor:
        trace = self.trace
        owner = trace.operand(trace.tensor(v))
        assert isinstance(owner, Value)
        t = trace.inputs.capture(held, f"{v.name}_grad")
        trace.operand(t)
        self.holders[t._value] = owner
        return t

    def set_grad(self, t: Tensor, new: Any) -> None:
        self.used = True
        v = self.root(t)
        self._check_place("setting .grad")
        if v is None or v is not t._value:
            raise UnsupportedError(
                f"setting .grad of {t.type}, a view or a number",
                location=user_location(),
                hint="set it on the tensor that is the leaf",
            )
        if new is not None and new.shape != t.shape:
            raise ShapeError(
                f"attempting to assign a gradient of size '{list(new.shape)}' to a "
                f"tensor of size '{list(t.shape)}'.",
                location=user_location(),
            )
        self.grads[v] = new

    # Backward ---------------------------------------------------------------------

    def backward(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Any],
        create_graph: bool,
        inputs: Sequence[Tensor] | None,
    ) -> None:
        """Add the gradients of `outputs` to those of the leaves."""
        wanted = self.all() if inputs is None else [self._leaf(t) for t in inputs]
        found = self.gradients(outputs, gradients, wanted, create_graph)
        self.released = True
        for v, g in found.items():
            self._accumulate(self.trace.tensor(v), g, create_graph)

    def grad_of(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Any],
        inputs: Sequence[Tensor],
        create_graph: bool,
    ) -> list[Tensor | None]:
        """Return the gradients of `outputs` in `inputs`, None where there is none.

        An input that is no leaf is taken for one: what it was made from does not count.
        """
        out: list[Tensor | None] = []
        for t in inputs:
            v = self.root(t)
            if v is None or v is not t._value or not self.requires(t):
                raise GradientError(
                    "One of the differentiated Tensors does not require grad",
                    location=user_location(),
                    rule=f"{t.type} is a view, or nothing depends on it",
                )
            found = self.gradients(outputs, gradients, [v], create_graph).get(v)
            out.append(None if found is None else self.trace.fresh(found._value))
        return out

    def all(self) -> list[Value]:
        params = [v for v in self.trace.params if self.kind(v) == LEAF]
        return [*params, *self.made]

    def _leaf(self, t: Tensor) -> Value:
        v = self.root(t)
        if v is None or v is not t._value or self.kind(v) != LEAF:
            raise UnsupportedError(
                f"backward: {t.type} among the inputs is no leaf",
                location=user_location(),
                hint="use rg.grad for a function of it",
            )
        return v

    def _accumulate(self, t: Tensor, g: Tensor, create_graph: bool) -> None:
        before = self.grad(t)
        if before is None:
            self.grads[t._value] = self.trace.fresh(g._value)
        elif create_graph or before.type.scalar:
            self.grads[t._value] = before + g
        else:
            with no_grad():
                dispatch.update(ADD, before, g)

    def gradients(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Any],
        wanted: Sequence[Value],
        create_graph: bool,
    ) -> dict[Value, Tensor]:
        """Return the gradients of `outputs` in those values that they depend on."""
        from .linearize import inline

        self.used = True
        trace = self.trace
        self._check_place("backward()")
        for k, t in enumerate(outputs):
            self._check_output(t, k)
        results = [trace.operand(t) for t in outputs]
        pure = self._pure(wanted, results)
        reached = [v for v in wanted if self._reaches(pure, v)]
        read = {*free_values(Block((), pure.nodes, pure.results))}
        given = [
            self._first(v, p, p in read)
            for v, p in zip(self._params, pure.params, strict=True)
        ]
        cts: dict[int, Any] = {}
        seed: dict[int, Operand] = {}
        for i, (t, g) in enumerate(zip(outputs, gradients, strict=True)):
            if g is None:
                seed[i] = 1.0
            else:
                cts[i] = trace.operand(trace.as_cotangent(g, t.type))
        wrt = tuple(self._params.index(v) for v in reached)
        joint = limited_vjp(
            pure,
            wrt,
            tuple(cts),
            seed=seed,
            limit=STATE.memory_limit,
            sizes=trace.assumptions,
        )
        out = inline(trace, joint, [*given, *cts.values()])[len(results) :]
        found = {}
        for v, x in zip(reached, out, strict=True):
            g = trace.tensor(x)
            found[v] = g if create_graph else trace.apply(DETACH, (g,), {})
        return found

    def _check_place(self, what: str) -> None:
        """Refuse what works in the outermost block of a function only."""
        if self.trace.parent is None and not self.trace.in_region:
            return
        kind = NeedsValue if self.trace.in_region else UnsupportedError
        raise kind(
            f"{what} in a loop, a branch or a transform",
            location=user_location(),
            rule="A gradient is computed where its graph was built, and kept in one "
            "place.",
            hint="use rg.grad there, or compile the body as a function of its own",
        )

    def _check_output(self, t: Tensor, k: int) -> None:
        if not t.is_traced or not self.requires(t):
            raise GradientError(
                f"element {k} of tensors does not require grad and does not have a "
                "grad_fn",
                location=user_location(),
                hint="mark an input: rg.tensor(x, requires_grad=True)",
            )
        outside = [v for v in self.trace.params if self.kind(v) == INNER]
        tracker = Tracker(self.trace, outside)
        tracker.catch_up()
        v = self.root(t)
        if v is not None and tracker.holds(self.trace.operand(t)):
            raise UnsupportedError(
                "backward() inside a compiled function into a graph outside of it",
                location=user_location(),
                rule="An argument was computed from tensors that require grad.",
                hint="pass leaves, or call backward() on the result of the function",
            )

    def _pure(self, wanted: Sequence[Value], results: Sequence[Operand]) -> Func:
        """Return the pure Func from parameters and leaves to the outputs."""
        trace = self.trace
        cut = [v for v in (*self.made, *wanted) if v not in trace.params]
        self._params = [*trace.params, *dict.fromkeys(cut)]
        defined = set(cut)
        nodes = [n for n in trace.nodes if not defined & set(n.results)]
        block = Block(tuple(self._params), tuple(nodes), tuple(results))
        pure = run_pass(trace.func(block), "functionalize")
        body = replace(pure.body, results=pure.results[: len(results)])
        pure = without_checks(replace(pure, body=body, updates=()))
        return vectorized(run_pass(run_pass(pure, "dce"), "cse"))

    def _reaches(self, pure: Func, v: Value) -> bool:
        active = {pure.params[self._params.index(v)]}
        activity.forward(pure.nodes, active)
        return any(x in active for x in pure.results if isinstance(x, Value))

    def _is_written(self, root: Value) -> bool:
        """Tell whether an array has been written so far."""
        return any(
            n.op.kind is Kind.WRITE and root_of(n.operands[0]) is root  # type: ignore[arg-type]
            for n in walk(Block((), tuple(self.trace.nodes)))
        )

    def _first(self, v: Value, p: Value, is_read: bool) -> Value:
        """Return what a parameter held at first."""
        if v in self.first:
            return self.first[v]
        if is_read and self._is_written(v):
            raise UnsupportedError(
                f"backward: {p} was written before there was a leaf",
                location=user_location(),
                hint="copy the array before it is written",
            )
        return v


def root_of(v: Value) -> Value:
    """Return the value whose memory a view shows."""
    while v.base is not None:
        v = v.base
    return v


class Tracker:
    """Finds the values of a trace that depend on some smoothly, node by node."""

    def __init__(self, trace: Trace, start: Iterable[Value]) -> None:
        self.trace = trace
        self.roots = set(start)
        self.seen = {*trace.params, *start}
        self.done = 0

    def holds(self, x: Operand) -> bool:
        if not isinstance(x, Value) or self.trace.mutations.is_detached(x):
            return False
        return root_of(x) in self.roots

    def catch_up(self) -> None:
        nodes = self.trace.nodes
        while self.done < len(nodes):
            self.follow(nodes[self.done])
            self.seen.update(nodes[self.done].results)
            self.done += 1

    def follow(self, node: Node) -> None:
        if node.regions:
            self.follow_regions(node)
        elif node.op.kind is Kind.WRITE:
            target, new = node.operands
            assert isinstance(target, Value)
            cut = self.trace.mutations.is_detached(target)
            if self.holds(new) and target.type.is_inexact and not cut:
                self.roots.add(root_of(target))
        elif any(map(self.holds, activity.active_operands(node))):
            self.roots.update(v for v in node.results if v.type.is_inexact)

    def follow_regions(self, node: Node) -> None:
        """Take everything that a region changes for dependent on all it reads."""
        if not any(map(self.holds, free_values(Block((), (node,))))):
            return
        self.roots.update(v for v in node.results if v.type.is_inexact)
        for region in node.regions:
            for inner in walk(region):
                if inner.op.kind is Kind.WRITE and isinstance(inner.operands[0], Value):
                    self.roots.add(root_of(inner.operands[0]))


# ---------------------------------------------------------------- at every call


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """What a program assumes of its Tensors, and what becomes of their gradients.

    `grads` pairs parameters, or results that are leaves, with what their gradient is
    after the call: None, or a leaf of the result as in `Specialisation.outs`.
    """

    kinds: tuple[tuple[int, str], ...]
    without_grad: tuple[int, ...]
    grads: tuple[tuple[int, Any], ...]
    leaves: tuple[int, ...]  # results
    leaf_grads: tuple[tuple[int, Any], ...]
    released: bool

    def holds(self, values: Sequence[Any]) -> bool:
        """Tell whether the Tensors of a call are what was assumed."""
        return all(kind_of(values[j]) == kind for j, kind in self.kinds) and all(
            grad_of(values[j]) is None for j in self.without_grad
        )

    def apply(self, values: Sequence[Any], results: Sequence[Any], leaf: Any) -> None:
        """Set the gradients after a call."""
        for i in self.leaves:
            results[i].requires_grad_()
        new = [(values[j], out) for j, out in self.grads]
        new += [(results[i], out) for i, out in self.leaf_grads]
        made = [(t, None if out is None else leaf(out)) for t, out in new]
        for t, g in made:
            t._grad = g


def without_gradient(
    trace: Trace, operands: Sequence[Operand]
) -> tuple[frozenset[int], frozenset[Value]]:
    """Return the numbers of results, and the written parameters, off the graph.

    Their gradient goes nowhere: whatever requires one, unless the function has asked.
    """
    leaves = trace.leaves
    start = [
        v
        for v in trace.params
        if v.type.is_inexact and (not leaves.used or leaves.kind(v) != PLAIN)
    ]
    tracker = Tracker(trace, [*start, *leaves.made])
    tracker.catch_up()
    results = (
        i for i, x in enumerate(operands) if x in leaves.made or not tracker.holds(x)
    )
    written = (
        v
        for v in trace.params
        if v not in trace.mutations.recorded or not tracker.holds(v)
    )
    return frozenset(results), frozenset(written)
