"""Checkpoints: functions whose inside is computed again for the gradient.

Inside a capture the function is traced into a `checkpoint` region of the trace. On the
tape it is one node (`recompute.py`). Elsewhere it just runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir.errors import UnsupportedError
from ..ir.func import Block, Node, Operand, Value
from ..ir.op import OPS
from . import dispatch
from .containers import flatten_tree, unflatten_tree
from .convert import convert
from .location import user_location
from .recompute import is_recorded, run_recomputed
from .state import State, Swap, containers_in
from .tensor import Tensor
from .trace import Trace


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with its inside computed again when a gradient needs it.

    Of a call only what enters it is kept: its arguments and the arrays that it
    captures. That saves the memory of all that lies between, for the time of running
    `f` once more. Values, gradients and effects are those of `f`, which may write into
    its arguments and call other checkpoints; it has to compute the same when it runs
    again, so it may not draw random numbers.

    >>> import numpy as np
    >>> import retrograde as rg
    >>> block = checkpoint(lambda x: np.sin(np.exp(x)))
    >>> rg.grad(lambda x: np.sum(block(block(x))))(np.zeros(2))
    array([-0.8534175, -0.8534175])
    """
    if not callable(f):
        raise TypeError(f"checkpoint needs a function, not {type(f).__name__}")
    return Checkpoint(f)


class Checkpoint:
    """A function that is a checkpoint whenever it is called."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "f")
        self.__doc__ = getattr(fn, "__doc__", None)

    @property
    def __signature__(self) -> Any:
        return inspect.signature(self.fn)

    def __repr__(self) -> str:
        return f"<checkpoint {getattr(self.fn, '__qualname__', self.fn)!s}>"

    def __rg_function__(self) -> Callable[..., Any]:
        return self.fn

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else functools.partial(self, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = dispatch.active_trace()
        if trace is not None:
            assert isinstance(trace, Trace)
            return _traced(trace, self.fn, args, kwargs)
        if is_recorded(self.fn, args, kwargs):
            return run_recomputed(self.fn, args, kwargs)
        return convert(self.fn)(*args, **kwargs)


# ---------------------------------------------------------------- inside a capture


def _traced(
    trace: Trace, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    state = State()
    state.search(fn)
    swap = Swap(state)
    given = list(containers_in((args, kwargs)))
    swap.begin(given)
    try:
        with trace.region() as nodes:
            out = convert(fn)(*args, **kwargs)
    finally:
        changes = swap.restore()
    known = {id(c.owner) for c in (*state.containers, *given)}
    leaves, tree = flatten_tree(out, lambda c: id(c) in known)
    leaving = _Leaving(trace, nodes)
    changes.map(leaving.note)
    for x in leaves:
        leaving.note(x)
    leaving.end()
    changes.map(leaving.out).apply()
    return unflatten_tree(tree, list(map(leaving.out, leaves)))


class _Leaving:
    """What leaves a region: arrays of its own as results, views taken again outside."""

    def __init__(self, trace: Trace, nodes: list[Node]) -> None:
        self.trace = trace
        self.nodes = nodes
        self.inside = {v for n in nodes for v in n.results}
        self.results: dict[Value, Operand] = {}  # of the region: what they become
        self.tensors: dict[int, tuple[Tensor, Tensor]] = {}

    def is_inside(self, x: Any) -> bool:
        return isinstance(x, Value) and x in self.inside

    def note(self, x: Any) -> Any:
        """Make what a Tensor needs a result of the region."""
        if isinstance(x, Tensor) and x._trace is self.trace:
            self._note(x._value)
        return x

    def _note(self, v: Operand) -> None:
        while isinstance(v, Value) and self.is_inside(v):
            if v.base is None:
                self._check(v)
                self.results.setdefault(v, v)
                return
            for x in self.trace.node_of(v).operands[1:]:
                self._note(x)
            v = v.base

    def _check(self, v: Value) -> None:
        t = self.trace.operand_type(v)
        unknown = [str(d) for d in t.shape if self.trace.hidden(d)]
        if unknown:
            names = ", ".join(unknown)
            raise UnsupportedError(
                f"checkpoint: a result {t}, whose size {names} the data decides",
                location=user_location(),
                rule="The size of what a mask selects is known inside the checkpoint "
                "only.",
                hint="return a sum of it, or select outside",
            )

    def end(self) -> None:
        """Append the region."""
        if not self.nodes:
            return
        block = Block((), tuple(self.nodes), tuple(self.results))
        types = [v.type for v in self.results]
        hints = [v.name for v in self.results]
        made = self.trace.control(OPS["checkpoint"], (), {}, [block], types, hints)
        for v, t in zip(self.results, made, strict=True):
            self.results[v] = t._value
        self.trace.ended |= self.inside

    def out(self, x: Any) -> Any:
        """Return a Tensor as it is outside: the same object where it can be."""
        if not isinstance(x, Tensor) or x._trace is not self.trace:
            return x
        if not self.is_inside(x._value):
            return x
        if id(x) not in self.tensors:
            self.tensors[id(x)] = (x, self.trace.tensor(self._operand(x._value)))
        return self.tensors[id(x)][1]

    def _operand(self, v: Operand) -> Operand:
        if not isinstance(v, Value) or not self.is_inside(v):
            return v
        if v in self.results:
            return self.results[v]
        node = self.trace.node_of(v)
        xs = [self.trace.tensor(self._operand(x)) for x in node.operands]
        self.results[v] = self.trace.apply(node.op, xs, node.attrs)._value
        return self.results[v]
