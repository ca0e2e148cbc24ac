"""What users call: `backward`, `grad`, and the hooks of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.errors import DeviceError, GradientError, ShapeError
from ..ir.op import OPS
from ..runtime.devices import ARRAYS
from . import dispatch, tape
from .devices import filled, in_tensors
from .engine import Run, accumulate, conjugate
from .location import user_location
from .modes import no_grad
from .tape import AccumulateGrad, Node, NodeHooks, RemovableHandle
from .tensor import Tensor, as_tensor, of


def _many(x: Any) -> tuple[Any, ...]:
    return (x,) if isinstance(x, Tensor) or x is None else tuple(x)


def _roots(
    outputs: Sequence[Tensor], gradients: Sequence[Any], tensors: bool
) -> list[tuple[Node, int, Any]]:
    """Return where to start: nodes with the gradients of their outputs."""
    if len(gradients) != len(outputs):
        raise GradientError(
            f"got {len(outputs)} tensors and {len(gradients)} gradients",
            location=user_location(),
        )
    roots = []
    for k, (t, g) in enumerate(zip(outputs, gradients, strict=True)):
        edge = tape.edge_of(t)
        if edge is None:
            raise GradientError(
                f"element {k} of tensors does not require grad and does not have a "
                "grad_fn",
                location=user_location(),
                hint="mark an input: rg.tensor(x, requires_grad=True)",
            )
        roots.append((*edge, _first(t, g, k, tensors)))
    return roots


def _first(t: Tensor, g: Any, k: int, tensors: bool) -> Any:
    """Return the gradient that one output starts with."""
    if g is None:
        if t.size != 1:
            raise GradientError(
                "grad can be implicitly created only for scalar outputs",
                location=user_location(),
                hint=f"the output is {t.type}: pass its gradient, or sum it",
            )
        like = t._data if isinstance(t._data, ARRAYS) else np.asarray(t._data)
        g = of(filled(like, 1))
        return g if tensors else g._data
    g = as_tensor(g)
    if g.shape != t.shape:
        raise ShapeError(
            f"Mismatch in shape: grad_output[{k}] has a shape of {list(g.shape)} and "
            f"output[{k}] has a shape of {list(t.shape)}.",
            location=user_location(),
        )
    if g.dtype != t.dtype:
        g = dispatch.apply(OPS["astype"], (g,), {"dtype": t.dtype})
    if g.device != t.device:
        raise DeviceError(
            f"grad_output[{k}] is on {g.device} and output[{k}] on {t.device}.",
            location=user_location(),
            hint=f"move it: g.to({t.device!r})",
        )
    g = conjugate(g)
    return g if tensors else g._data


def backward(
    outputs: Any,
    gradients: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of `outputs` to the `.grad` of the leaves they depend on.

    >>> from retrograde.tracer.tensor import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> backward(x * x)
    >>> x.grad
    tensor(6.)
    """
    tensors = _many(outputs)
    grads = (None,) * len(tensors) if gradients is None else _many_or_one(gradients)
    trace = dispatch.trace_of(tensors)
    if trace is not None:
        wanted = None if inputs is None else _many(inputs)
        trace.leaves.backward(tensors, grads, create_graph, wanted)
        return
    how = create_graph or in_tensors(tensors)
    roots = _roots(tensors, grads, how)
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        Run(create_graph=create_graph, retain_graph=keep, in_tensors=how).execute(roots)
        return
    wanted = _many(inputs)
    if not wanted:
        raise GradientError("`inputs` argument to `backward()` cannot be empty.")
    found = _captured(roots, wanted, create_graph, keep, how, accumulating=True)
    for k, t in enumerate(wanted):
        if k in found and not t.retains_grad:
            accumulate(t, found[k], False, create_graph)


def _many_or_one(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, list | tuple) else (x,)


def _captured(
    roots: list[tuple[Node, int, Any]],
    wanted: Sequence[Tensor],
    create_graph: bool,
    keep: bool,
    in_tensors: bool,
    *,
    accumulating: bool = False,
) -> dict[int, Any]:
    captures: dict[tuple[Node, int], list[int]] = {}
    for k, t in enumerate(wanted):
        edge = tape.edge_of(t)
        if edge is None:
            raise GradientError(
                "One of the differentiated Tensors does not require grad",
                location=user_location(),
            )
        captures.setdefault(edge, []).append(k)
    run = Run(
        create_graph=create_graph,
        retain_graph=keep,
        in_tensors=in_tensors,
        captures=captures,
        accumulating=accumulating,
    )
    return run.execute(roots)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `outputs` in `inputs`; no `.grad` changes.

    >>> from retrograde.tracer.tensor import tensor
    >>> x = tensor(3.0, requires_grad=True)
    >>> grad(x * x, x)
    (tensor(6.),)
    """
    tensors, wanted = _many(outputs), _many(inputs)
    if not wanted:
        raise GradientError("`inputs` argument to `grad()` cannot be empty.")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when "
            "materialize_grads=True, but got: allow_unused=False."
        )
    grads: tuple[Any, ...] = (None,) * len(tensors)
    if grad_outputs is not None:
        grads = _many_or_one(grad_outputs)
    trace = dispatch.trace_of(tensors)
    if trace is not None:
        traced = trace.leaves.grad_of(tensors, grads, wanted, create_graph)
        return tuple(
            _result(g, t, k, True, bool(allow_unused), materialize_grads)
            for k, (g, t) in enumerate(zip(traced, wanted, strict=True))
        )
    how = create_graph or in_tensors(tensors)
    roots = _roots(tensors, grads, how)
    keep = create_graph if retain_graph is None else retain_graph
    found = _captured(roots, wanted, create_graph, keep, how)
    return tuple(
        _result(found.get(k), t, k, create_graph, bool(allow_unused), materialize_grads)
        for k, t in enumerate(wanted)
    )


def _result(
    g: Any, t: Tensor, k: int, create_graph: bool, allow_unused: bool, zeros: bool
) -> Tensor | None:
    if g is None and zeros:
        like = t._data if isinstance(t._data, ARRAYS) else np.asarray(t._data)
        return of(filled(like, 0))
    if g is None:
        if allow_unused:
            return None
        raise GradientError(
            f"The differentiated Tensor at index {k} appears to not have been used in "
            "the graph. Set allow_unused=True if this is the desired behavior.",
            location=user_location(),
        )
    if create_graph:
        result: Tensor = conjugate(g)
        return result
    # A copy: results never alias each other or what the caller passed in.
    if isinstance(g, Tensor):
        with no_grad():
            copied: Tensor = conjugate(g).clone()
        return copied
    data = np.array(np.conjugate(g) if np.iscomplexobj(g) else g)
    return of(data)


# ---------------------------------------------------------------- hooks


def register_hook(t: Tensor, hook: Callable[[Any], Any]) -> RemovableHandle:
    """Call `hook` with the gradient of `t`; what it returns replaces the gradient."""
    if t.is_traced:
        raise t._on_tape("register_hook")
    edge = tape.edge_of(t)
    if edge is None:
        raise GradientError(
            "cannot register a hook on a tensor that doesn't require gradient",
            location=user_location(),
        )
    node, nr = edge
    if isinstance(node, AccumulateGrad):
        leaf = node.variable
        leaf._hooks = leaf._hooks or NodeHooks()
        return RemovableHandle(leaf._hooks.before, hook)
    if node.hooks is None:
        node.hooks = {}
    return RemovableHandle(node.hooks.setdefault(nr, {}), hook)


def register_post_accumulate_grad_hook(
    t: Tensor, hook: Callable[[Any], Any]
) -> RemovableHandle:
    """Call `hook(t)` after the gradient of a leaf was added to `t.grad`."""
    if not t.requires_grad:
        raise GradientError(
            "cannot register a hook on a tensor that doesn't require gradient",
            location=user_location(),
        )
    if not t.is_leaf:
        raise GradientError(
            "post accumulate grad hooks cannot be registered on non-leaf tensors",
            location=user_location(),
        )
    t._hooks = t._hooks or NodeHooks()
    return RemovableHandle(t._hooks.after, hook)
