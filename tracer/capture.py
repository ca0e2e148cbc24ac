"""From a Python function and arguments to a traced Func and what its results are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.errors import UnsupportedError
from ..ir.func import Node, Operand, Value
from ..ir.op import Op
from ..runtime.devices import DeviceArray
from . import dispatch
from .containers import Tree, flatten_tree
from .convert import convert, operators
from .integers import dims_of
from .location import user_location
from .modes import enable_grad
from .operators import TraceOperators
from .state import Way
from .symbols import SymInt
from .tensor import Tensor
from .trace import Trace


@dataclass(frozen=True, slots=True)
class Replay:
    """One view of a result: an op with indices that are dims or result numbers."""

    op: Op
    indices: tuple[int | Expr | Result, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The number of a result of the Func."""

    number: int


@dataclass(frozen=True, slots=True)
class Same:
    """A container that the function got, found where it lies in a call."""

    way: Way


@dataclass(frozen=True, slots=True)
class Out:
    """What one leaf of the result is.

    `source` is a parameter number, a `Result`, `Same`, or ("constant", object);
    `views` are replayed on it in order.
    """

    source: Any
    views: tuple[Replay, ...] = ()


@dataclass(slots=True)
class Results:
    """Collects the results of a Func: each value once."""

    trace: Trace
    known: Mapping[int, Way] = field(default_factory=dict)  # containers, by id
    operands: list[Operand] = field(default_factory=list)
    sizes: dict[Symbol, int] = field(default_factory=dict)  # open: results that tell
    _numbers: dict[Value, int] = field(default_factory=dict)

    def number(self, x: Operand) -> Result:
        if isinstance(x, Value):
            if x not in self._numbers:
                self._numbers[x] = len(self.operands)
                self.operands.append(x)
            return Result(self._numbers[x])
        self.operands.append(x)
        return Result(len(self.operands) - 1)

    def out(self, x: Any) -> Out:
        """Describe a leaf that the function returned."""
        if isinstance(x, SymInt):
            return self._number(self._dim(dims_of(x)))
        if not isinstance(x, Tensor):
            if id(x) in self.known:
                return Out(Same(self.known[id(x)]))
            _refuse_traced_attributes(x)
            return Out(("constant", x))
        v = self.trace.operand(x)
        if not isinstance(v, Value):
            return self._number(v)
        views: list[Replay] = []
        while v.base is not None:
            views.append(self._replay(self.trace.node_of(v)))
            v = v.base
        if v in self.trace.params:
            return Out(self.trace.params.index(v), tuple(reversed(views)))
        return Out(self.number(v), tuple(reversed(views)))

    def flatten(self, x: Any) -> tuple[list[Any], Tree]:
        """Return leaves and structure; containers that the function got are leaves."""
        return flatten_tree(x, lambda c: id(c) in self.known)

    def _number(self, x: Any) -> Out:
        return Out(x if isinstance(x, Expr) else ("constant", x))

    def _replay(self, node: Node) -> Replay:
        indices = tuple(
            self.number(i) if isinstance(i, Value) else self._dim(i)
            for i in node.operands[1:]
        )
        attrs = {k: _map_dims(self._dim, a) for k, a in node.attrs.items()}
        return Replay(node.op, indices, attrs)

    def _dim(self, i: Any) -> int | Expr:
        d = self.trace.assumptions.resolve(i)
        assert isinstance(d, int | Expr)
        for s in sorted(self.trace.assumptions.open(d) - self.sizes.keys(), key=str):
            value = self.trace.operand(
                self.trace.integers.computed(dims.symbol(s.name))
            )
            self.sizes[s] = self.number(value).number
        return d


def _refuse_traced_attributes(x: Any) -> None:
    """Raise where an object that is no container keeps traced values."""
    held = getattr(x, "__dict__", None)
    if not isinstance(held, dict) or isinstance(x, type | ModuleType):
        return
    for name, item in held.items():
        if any(isinstance(i, Tensor) and i.is_traced for i in flatten_tree(item)[0]):
            raise UnsupportedError(
                f"a {type(x).__name__} that holds a computed value in .{name} "
                "leaves the compiled function",
                location=user_location(),
                rule="Results are arrays, numbers and containers of them.",
                hint="return the values, make it a dataclass, or register the class "
                "with register_container",
            )


def _map_dims(f: Callable[[Dim], Dim], a: Any) -> Any:
    if isinstance(a, Expr):
        return f(a)
    return tuple(_map_dims(f, x) for x in a) if isinstance(a, tuple) else a


def run_traced(
    trace: Trace, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run the converted `fn` into `trace`; returns its result.

    What is traced does not depend on whether the caller records: `no_grad` counts
    where the function itself enters it.
    """
    with dispatch.tracing(trace), operators(TraceOperators()), enable_grad():
        return convert(fn)(*args, **kwargs)


def evaluate_attr(a: Any, env: Mapping[dims.Symbol, int]) -> Any:
    """Evaluate the dims in an attribute."""
    if isinstance(a, Expr):
        return dims.evaluate(a, env)
    return tuple(evaluate_attr(x, env) for x in a) if isinstance(a, tuple) else a


def replay(
    x: Any, views: Sequence[Replay], results: Sequence[Any], env: Mapping[Any, int]
) -> Any:
    """Make the views of an actual array or Tensor."""
    for step in views:
        indices = [
            results[i.number] if isinstance(i, Result) else evaluate_attr(i, env)
            for i in step.indices
        ]
        attrs = {k: evaluate_attr(a, env) for k, a in step.attrs.items()}
        if isinstance(x, Tensor):
            x = dispatch.apply(step.op, (x, *indices), attrs)
            continue
        view = functools.partial(
            _viewed, step.op, list(map(np.asarray, indices)), attrs
        )
        x = x.viewed(view) if isinstance(x, DeviceArray) else view(x)
    return x


def _viewed(op: Op, indices: Sequence[Any], attrs: Mapping[str, Any], x: Any) -> Any:
    x = op.eager(x, *indices, **attrs)
    if op.overlapping and _repeats(x):
        x.flags.writeable = False  # as NumPy's broadcast_to and windows
    return x


def _repeats(x: np.ndarray[Any, Any]) -> bool:
    """Tell whether a view shows more elements than its memory has."""
    reach = sum((d - 1) * abs(s) for d, s in zip(x.shape, x.strides, strict=True))
    return bool(x.size > 1 + reach // x.itemsize)
