"""Functions with a derivative of their own: `Function`, `once_differentiable`.

`forward` runs at once, unrecorded, and a node named after the class takes its place in
the graph. What `forward` keeps on `ctx` the node owns: Tensors are kept as saved values
are, with their versions. Inside a capture see `function_traced.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.build import Builder
from ..ir.errors import GradientBreakError, GradientError, MutationError
from ..ir.op import OPS
from ..runtime.devices import ARRAYS, DeviceArray
from . import dispatch, tape
from .builders import EagerBuilder
from .context import Context, overlaps, tensors_in
from .devices import made_there
from .engine import conjugate
from .location import user_location
from .modes import STATE, no_grad
from .tape import Edge, Node, Outline, Refusal, Saved
from .tensor import Tensor, of, wrap

ONCE = OPS["once"]
TWICE = (
    "trying to differentiate twice a function that was marked with @once_differentiable"
)
NOT_RETURNED = (
    "Some elements marked as dirty during the forward method were not returned as "
    "output. The inputs that are modified inplace must all be outputs of the Function."
)
SEVERAL = (
    "If your Function modifies inplace an input that is a view of another Tensor, your "
    "Function cannot return more than one Tensor. This is not supported by the current "
    "autograd engine."
)
BOTH = (
    "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You "
    "should only implement one of them."
)
NO_RULE = (
    "You must implement either the backward or vjp method for your custom "
    "autograd.Function to use it with backward mode AD."
)


class Function:
    """A function that says itself what its derivative is.

    Subclasses give static methods `forward(ctx, *args)` and `backward(ctx, *grads)`,
    or `forward(*args)` and `setup_context(ctx, inputs, output)`; `vjp` is another name
    of `backward`. They are called by `apply`. Arguments may be anything; Tensors among
    them have gradients. `backward` gets one gradient per output of `forward`, and
    returns one per argument, or None.

    >>> class Cube(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x**2
    >>> from retrograde.tracer.tensor import tensor
    >>> x = tensor([1.0, 2.0], requires_grad=True)
    >>> y = Cube.apply(x)
    >>> y
    tensor([1., 8.], grad_fn=<CubeBackward>)
    >>> y.sum().backward()
    >>> x.grad
    tensor([ 3., 12.])
    """

    def __init__(self) -> None:
        raise TypeError(
            f"{type(self).__name__} should not be instantiated: its methods are "
            f"static; call {type(self).__name__}.apply(...)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from `(ctx, *args)`."""
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Keep on `ctx` what `backward` needs; then `forward` is called without it."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradients of the arguments from those of the outputs."""
        raise NotImplementedError(NO_RULE)

    vjp = backward

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call the function on arguments, recorded with its own derivative."""
        args = with_defaults(cls, args)
        check_arguments(cls, args)
        trace = dispatch.trace_of(args)
        if trace is not None:
            from .function_traced import apply_traced

            return apply_traced(cls, trace, args)
        if not any(isinstance(x, Tensor) for x in args):
            return _on_arrays(cls, args)
        return _Call(cls, args).run()


def has_setup(cls: type[Function]) -> bool:
    """Tell whether a Function keeps what it needs in `setup_context`."""
    return cls.setup_context is not Function.setup_context


def rule_of(cls: type[Function]) -> Callable[..., Any]:
    """Return `backward` or `vjp`, whichever a Function has."""
    backward = cls.backward is not Function.backward
    if backward and cls.vjp is not Function.vjp:
        raise GradientError(BOTH, location=user_location())
    return cls.backward if backward else cls.vjp


def forward_of(
    cls: type[Function],
    ctx: Context,
    args: Sequence[Any],
    form: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f,
) -> Any:
    """Run `forward`, and `setup_context` where there is one."""
    if not has_setup(cls):
        return form(cls.forward)(ctx, *args)
    out = form(cls.forward)(*args)
    form(cls.setup_context)(ctx, tuple(args), out)
    return out


def with_defaults(cls: type[Function], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call, with defaults where `setup_context` sees them."""
    if not has_setup(cls) or getattr(cls.forward, "__defaults__", None) is None:
        return args
    bound = inspect.signature(cls.forward).bind(*args)
    bound.apply_defaults()
    return bound.args


def check_arguments(cls: type[Function], args: Sequence[Any]) -> None:
    """Raise where a container hides Tensors whose gradient would be lost."""
    for k, x in enumerate(args):
        if isinstance(x, list | tuple | dict | set):
            if STATE.grad and any(t.requires_grad for t in tensors_in(x)):
                raise GradientBreakError(
                    f"argument {k} of {cls.__name__} is a {type(x).__name__} that "
                    "holds Tensors which require a gradient",
                    location=user_location(),
                    rule="Only arguments that are Tensors get gradients.",
                    hint="pass each as an argument, or detach them",
                )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a `backward` whose result cannot be differentiated again.

    It runs unrecorded. Under `create_graph` its results require a gradient all the
    same, and differentiating them is an error: the second derivative is not lost in
    silence.

    >>> class Square(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...
    ...     @staticmethod
    ...     @once_differentiable
    ...     def backward(ctx, g):
    ...         return g * 2 * ctx.saved_tensors[0].numpy()
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        if dispatch.trace_of(grads) is not None:
            return _each(backward(ctx, *grads), lambda t: dispatch.apply(ONCE, (t,)))
        recorded = STATE.grad
        with no_grad():
            out = backward(ctx, *grads)
        node = ctx._node()
        return _each(out, lambda t: _refusing(t, node)) if recorded else out

    return once


def _each(out: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """Apply `f` to each gradient that `backward` returned."""
    parts = out if isinstance(out, tuple) else (out,)
    new = tuple(None if g is None else f(as_gradient(g)) for g in parts)
    return new if isinstance(out, tuple) else new[0]


def _refusing(g: Tensor, node: Node) -> Tensor:
    t = Tensor(g._data, g._storage)
    if tape.is_inexact(g._data):
        t._node = Refusal(node.edges, TWICE)
    return t


# ---------------------------------------------------------------- a call


def _on_arrays(cls: type[Function], args: Sequence[Any]) -> Any:
    """Call a Function on NumPy's arrays: its methods get Tensors, the caller arrays."""
    given = [tape.is_inexact(x) and isinstance(x, ARRAYS) for x in args]
    wrapped = [wrap(x) if w else x for x, w in zip(args, given, strict=True)]
    if not any(given):
        return _Call(cls, args).run()
    out = _Call(cls, wrapped).run()
    arrays = {id(t): x for t, x in zip(wrapped, args, strict=True)}
    outs = out if isinstance(out, tuple) else (out,)
    shown = [arrays.get(id(x), x._data) if isinstance(x, Tensor) else x for x in outs]
    return packed(out, shown)


class _Call:
    """One call of a Function on Tensors that hold data."""

    def __init__(self, cls: type[Function], args: Sequence[Any]) -> None:
        self.cls = cls
        self.args = args
        self.edges = tuple(
            tape.edge_of(x) if isinstance(x, Tensor) else None for x in args
        )
        self.recorded = STATE.grad and any(e is not None for e in self.edges)
        self.ctx = Context(tuple(e is not None for e in self.edges))
        tensors = [x for x in args if isinstance(x, Tensor)]
        self.versions = {id(x): x._version for x in tensors}
        self.roots = {id(x._storage) for x in tensors if x._storage is not None}

    def run(self) -> Any:
        with no_grad():
            out = forward_of(self.cls, self.ctx, self.args)
        outs = self.apart(outputs_of(out, self.cls))
        check_dirty(self.args, outs, self.ctx)
        if not self.recorded:
            self.bump()
            return packed(out, [self.plain(x) for x in outs])
        self.check_writes()
        self.bump()
        made = [self.output(x) for x in outs]
        node = node_class(self.cls.__name__)(self, made)
        self.ctx._pack(node, self.saving(outs), (*self.args, *made))
        shown = dict(zip(map(id, outs), made, strict=True))
        for nr, (x, t) in enumerate(zip(outs, made, strict=True)):
            if isinstance(t, Tensor):
                self.connect(node, nr, x, t)
        self.ctx._dirty = self.ctx._constant = ()
        return packed(out, [shown[id(x)] for x in outs])

    # Writes -----------------------------------------------------------------------

    def is_dirty(self, x: Any) -> bool:
        return any(x is d for d in self.ctx._dirty)

    def check_writes(self) -> None:
        """Check that what `forward` has written may be written, and was marked."""
        for k, (x, edge) in enumerate(zip(self.args, self.edges, strict=True)):
            if self.is_dirty(x):
                if x._leaf:
                    raise MutationError(
                        "a leaf Variable that requires grad has been used in an "
                        "in-place operation.",
                        location=user_location(),
                        hint="pass a copy, x.copy(), or call it under rg.no_grad()",
                    )
                tape.check_writes(self.args, [x])
            elif edge is not None and x._version != self.versions[id(x)]:
                if not any(x._storage is d._storage for d in self.ctx._dirty):
                    raise MutationError(
                        f"forward of {self.cls.__name__} has written into input {k}, "
                        f"{x.type}, without ctx.mark_dirty",
                        location=user_location(),
                        rule="The gradient would not see what was written.",
                        hint="call ctx.mark_dirty(x) and return x, or write into a "
                        "copy",
                    )

    def bump(self) -> None:
        """Count writes that `forward` made through NumPy."""
        for x in self.args:
            if isinstance(x, Tensor) and self.is_dirty(x) and x._storage is not None:
                if x._version == self.versions[id(x)]:
                    x._storage.wrote()

    # Outputs ----------------------------------------------------------------------

    def apart(self, outs: Sequence[Any]) -> tuple[Any, ...]:
        """Copy outputs that lie in memory of others: no graph relates the two."""
        new: list[Any] = []
        for x in outs:
            others = [y for y in new if y is not x]
            own = isinstance(x, (Tensor, *ARRAYS)) and not overlaps(x, self.args)
            new.append(x.copy() if own and overlaps(x, others) else x)
        return tuple(new)

    def plain(self, x: Any) -> Any:
        """Return an output of a call that is not recorded."""
        if isinstance(x, Tensor) and not self.is_dirty(x):
            if any(x is y for y in self.args):
                return _view_of(x)
        return as_output(x, self.args)

    def output(self, x: Any) -> Any:
        """Return what the caller gets for an output: a Tensor for the node to own."""
        if isinstance(x, Tensor):
            if self.is_dirty(x):
                return x
            if any(x is y for y in self.args):
                return _view_of(x)
            if x.requires_grad and tape.is_inexact(x._data):
                raise GradientBreakError(
                    f"forward of {self.cls.__name__} returns a Tensor, {x.type}, that "
                    "requires a gradient and is not among its inputs",
                    location=user_location(),
                    rule="Only inputs get gradients from a Function.",
                    hint="pass it as an argument",
                )
            t = Tensor(x._data, x._storage)
            if x._base is not None and id(x._storage) in self.roots:
                t._base, t._steps, t._seen = x._base, x._steps, x._seen
            return t
        return as_output(x, self.args)

    def connect(self, node: CustomNode, nr: int, x: Any, t: Tensor) -> None:
        """Make an output of the node a Tensor of the graph."""
        if not tape.is_inexact(t._data) or any(x is c for c in self.ctx._constant):
            return
        base, storage = t._base, t._storage
        if storage is not None and self.is_dirty(t):
            storage.epoch += 1  # views look at their base again
        if base is not None and self.is_dirty(t):
            tape.put_slices(t, (node, nr))
            return
        tape.set_node(t, node, nr)
        if base is not None:
            assert storage is not None
            t._seen = storage.epoch

    def saving(self, outs: Sequence[Any]) -> Callable[[Any], tuple[Saved, int | None]]:
        """Return what keeps a Tensor: as an input, an output, or as a constant."""
        edges = {id(x): e for x, e in zip(self.args, self.edges, strict=True)}
        constant = set(map(id, self.ctx._constant))
        numbers = {id(x): nr for nr, x in enumerate(outs) if id(x) not in constant}
        name = self.cls.__name__

        def keep(t: Any) -> tuple[Saved, int | None]:
            t = t if isinstance(t, Tensor) else of(np.array(t))
            nr = numbers.get(id(t))
            if nr is not None and tape.is_inexact(t._data):
                return Saved(t, None, None), nr
            edge = edges.get(id(t), tape.edge_of(t))
            if edge is None and id(t) not in edges and id(t) not in constant:
                edge = _inner(t, name, self.edges)
            return Saved(t, edge, None), None

        return keep


def check_dirty(args: Sequence[Any], outs: Sequence[Any], ctx: Context) -> None:
    """Check what `mark_dirty` says."""
    given = [x for x in args if any(x is d for d in ctx._dirty)]
    if any(not any(x is y for y in outs) for x in given):
        raise MutationError(NOT_RETURNED, location=user_location())
    several = sum(isinstance(y, (Tensor, *ARRAYS)) for y in outs) > 1
    if several and any(map(_is_view, given)):
        raise MutationError(
            SEVERAL, location=user_location(), hint="pass a copy of the view"
        )


def _is_view(x: Tensor) -> bool:
    return x._base is not None or getattr(x._value, "base", None) is not None


def _inner(t: Tensor, name: str, edges: tuple[Edge | None, ...]) -> Edge | None:
    """Return where the gradient of a value that is neither input nor output goes."""
    if not tape.is_inexact(t._data):
        return None
    return Refusal(
        edges,
        f"backward of {name} uses a saved value that is neither an input nor an "
        "output: its own derivative is not known",
        "save inputs and outputs, or take .detach() of it in backward where it is a "
        "constant",
    ), 0


def outputs_of(out: Any, cls: type[Function]) -> tuple[Any, ...]:
    """Return the outputs of `forward` as a tuple."""
    outs = tuple(out) if isinstance(out, tuple) else (out,)
    for x in outs:
        if isinstance(x, list | dict | set) and tensors_in(x):
            raise GradientBreakError(
                f"forward of {cls.__name__} returns a {type(x).__name__} of Tensors, "
                "which would have no gradient",
                location=user_location(),
                hint="return a tuple of Tensors",
            )
    return outs


def packed(out: Any, made: Sequence[Any]) -> Any:
    """Return outputs in the form in which `forward` returned them."""
    if not isinstance(out, tuple):
        return made[0]
    make: Any = getattr(type(out), "_make", tuple)
    return make(made)


def as_output(x: Any, args: Sequence[Any]) -> Any:
    """Return a Tensor for an array or float that `forward` computed with NumPy."""
    if isinstance(x, ARRAYS):
        return of(x.copy() if overlaps(x, args) else x)
    return of(x) if isinstance(x, np.generic | float | complex) else x


def _view_of(x: Tensor) -> Tensor:
    """Return another Tensor over the memory of `x`: a view of all of it."""
    if x._storage is None:
        return Tensor(x._data)
    with no_grad():
        t: Tensor = x[...]
    t._made_without_grad = x._made_without_grad
    return t


def _like(x: Any) -> Any:
    """Return what stands for an output where its gradient is made."""
    if not isinstance(x, Tensor):
        return None
    return Outline(x._data) if isinstance(x._data, ARRAYS) else x._data


# ---------------------------------------------------------------- the node


class CustomNode(Node):
    """The node of a Function."""

    __slots__ = ("ctx", "function", "inputs", "likes", "outputs", "outs", "shown")
    hands_on = True  # `backward` may change the gradients that it gets

    def __init__(self, call: _Call, made: Sequence[Any]) -> None:
        super().__init__(call.edges)
        self.function = call.cls
        self.ctx = call.ctx
        self.inputs = tuple(isinstance(x, Tensor) for x in call.args)
        self.likes = tuple(_like(x) for x in call.args)
        self.outputs = len(made)
        self.outs = tuple(map(_like, made))
        self.shown = frozenset(
            nr
            for nr, x in enumerate(made)
            if isinstance(x, Tensor) and x._base is not None and not call.is_dirty(x)
        )

    def guards(self, nr: int) -> bool:
        return nr in self.shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self.ctx, name)
        except AttributeError:
            raise AttributeError(
                f"{self.name()!r} object has no attribute {name!r}"
            ) from None

    def release(self) -> None:
        self.ctx._release()

    def pull(self, b: Builder, cts: Sequence[Any]) -> Sequence[Any]:
        eager = isinstance(b, EagerBuilder)
        grads = [
            self.given(ct, like, eager) for ct, like in zip(cts, self.outs, strict=True)
        ]
        out = rule_of(self.function)(self.ctx, *grads)
        returned = out if isinstance(out, tuple) else (out,)
        check_count(self.name(), returned, self.inputs)
        return [
            None if e is None or g is None else self.fitted(b, g, k)
            for k, (g, e) in enumerate(zip(returned, self.edges, strict=False))
        ]

    def given(self, ct: Any, like: Any, eager: bool) -> Any:
        """Return a gradient as `backward` gets it."""
        if like is None:
            return None
        if ct is None:
            if not self.ctx._materialize:
                return None
            shape = getattr(like, "shape", ())
            zeros = np.zeros(shape, getattr(like, "dtype", float))
            return of(made_there(zeros) if isinstance(like, Outline) else zeros)
        return conjugate(of(ct) if eager else ct)

    def fitted(self, b: Builder, g: Any, k: int) -> Any:
        """Return what `backward` returned as a cotangent of input `k`."""
        t, like = as_gradient(g), self.likes[k]
        check_shape(self.name(), k, t.shape, getattr(like, "shape", ()))
        t = conjugate(t)
        return b.unbroadcast(t._data if isinstance(b, EagerBuilder) else t, like)


@functools.cache
def node_class(name: str) -> type[CustomNode]:
    """Return the class of the nodes of Functions of a name."""
    return type(
        f"{name}Backward", (CustomNode,), {"__slots__": (), "__module__": __name__}
    )


def as_gradient(g: Any) -> Tensor:
    if isinstance(g, Tensor):
        return g
    if isinstance(g, DeviceArray):
        return of(g)
    if isinstance(g, np.ndarray | np.generic | int | float | complex):
        return of(made_there(np.asarray(g)))
    raise GradientError(
        f"expected Variable or None (got {type(g).__name__})", location=user_location()
    )


def check_count(name: str, grads: Sequence[Any], inputs: Sequence[bool]) -> None:
    """Check how many gradients `backward` returned, and for which inputs."""
    count = len(inputs)
    if len(grads) < count or any(g is not None for g in grads[count:]):
        raise GradientError(
            f"function {name} returned an incorrect number of gradients "
            f"(expected {count}, got {len(grads)})"
        )
    for k, (g, is_tensor) in enumerate(zip(grads, inputs, strict=False)):
        if g is not None and not is_tensor:
            raise GradientError(
                f"function {name} returned a gradient different than None at position "
                f"{k + 1}, but the corresponding forward input was not a Variable"
            )


def check_shape(name: str, k: int, have: Sequence[Any], want: Sequence[Any]) -> None:
    """Check that a gradient is one of input `k`, or sums up to one."""
    fits = len(have) >= len(want) and all(
        d in (1, h) for d, h in zip(reversed(want), reversed(have), strict=False)
    )
    if not fits:
        raise GradientError(
            f"Function {name} returned an invalid gradient at index {k} - got "
            f"{list(have)} but expected shape compatible with {list(want)}"
        )
