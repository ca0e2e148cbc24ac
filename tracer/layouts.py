"""Layouts of traced arrays: the strides that they have in the call being captured.

NumPy decides by strides whether a reshape is a view, and in which order a result lies.
A trace follows with arrays that have these strides and no data of interest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.dims import Dim, Expr
from ..ir.func import Node, Operand, Value, custom_parts
from ..ir.op import Kind, Op
from .order import empty
from .tensor import Tensor

if TYPE_CHECKING:
    from .trace import Trace

# Whose results follow the order of their operands; the eager op tells how.
KEEPING = frozenset(
    {
        Kind.ELEMENTWISE,
        Kind.COPY,
        Kind.REDUCTION,
        Kind.SCAN,
        Kind.SORT,
        Kind.JOIN,
        Kind.GATHER,
    }
)


class Layouts:
    """The layouts of a trace's values, in this call."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.known: dict[Value, Any] = {}  # arrays with the strides of values
        self.asked: set[Value] = set()  # parameters whose layout decides something
        self.orders: dict[Value, tuple[str, Any]] = {}  # of `order.ordered`

    def keeps_memory(self, op: Op, x: Value, attrs: Mapping[str, Any]) -> bool:
        """Tell whether a reshape of `x` is a view, as NumPy decides by strides."""
        if len(x.type.shape) < 2 and x.base is None:
            return True
        if _long(self._resolved_shape(x)) == _long(attrs["shape"]):
            return True
        dummy = self.of(x)
        shape = tuple(self.trace.assumptions.value(d) for d in attrs["shape"])
        try:
            np.reshape(dummy, shape, copy=False)
        except ValueError:
            return False
        return True

    def _resolved_shape(self, x: Value) -> Sequence[Dim]:
        return [self.trace.assumptions.resolve(d) for d in x.type.shape]

    def of(self, x: Value) -> np.ndarray[Any, Any]:
        """Return an array with the strides that `x` has in this call, not its data."""
        known = self.known.get(x)
        if known is not None:
            if x in self.trace.params:
                self.asked.add(x)
            return known  # type: ignore[no-any-return]
        node = self.trace.definitions.get(x)
        shape = tuple(self.trace.assumptions.value(d) for d in x.type.shape)
        if x in self.orders:
            out = self._chosen(x, shape)
        elif node is None:
            out = np.empty(shape, x.type.dtype)
        elif node.op.views is not None and isinstance(node.operands[0], Value):
            base = self.of(node.operands[0])
            rest = [self._hint_operand(i) for i in node.operands[1:]]
            attrs = {k: self._hint(a) for k, a in node.attrs.items()}
            out = node.op.eager(base, *rest, **attrs)
        elif node.op.kind is Kind.CUSTOM:
            value = custom_parts(node)[1][node.results.index(x)]
            known = self.of(value) if isinstance(value, Value) else None
            out = np.empty(shape, x.type.dtype) if known is None else known
        elif node.op.kind is Kind.CHECKPOINT:
            inside = node.regions[0].results[node.results.index(x)]
            assert isinstance(inside, Value)
            out = self.of(inside)
        else:
            out = self._laid_out(node, shape, x.type.dtype)
        self.known[x] = out
        return out

    def _chosen(self, x: Value, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the layout that a function of the front end has chosen."""
        order, like = self.orders[x]
        if order in "CF":
            return np.empty(shape, x.type.dtype, "F" if order == "F" else "C")
        if isinstance(like, Tensor):
            model = self.trace.operand(like)
            like = self.of(model) if isinstance(model, Value) else like._data
        if not isinstance(like, np.ndarray):
            return np.empty(shape, x.type.dtype)
        return empty(shape, x.type.dtype, order, like)

    def _laid_out(
        self, node: Node, shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray[Any, Any]:
        """Return the layout of a fresh result: the order of the operands, mostly."""
        kind = node.op.kind
        if len(shape) < 2 or 0 in shape or kind not in KEEPING:
            return np.empty(shape, dtype)
        arrays = [
            self.of(i) for i in node.operands if isinstance(i, Value) and i.type.shape
        ]
        if kind == Kind.COPY and arrays[0].shape == shape:
            return np.empty_like(arrays[0], dtype=dtype, order="K", subok=False)
        if kind == Kind.ELEMENTWISE:
            return _like(arrays, shape, dtype)
        if kind == Kind.GATHER:
            arrays[1:] = [np.zeros(a.shape, a.dtype) for a in arrays[1:]]
        elif all(a.flags.c_contiguous for a in arrays):
            return np.empty(shape, dtype)
        attrs = {k: self._hint(a) for k, a in node.attrs.items()}
        with np.errstate(all="ignore"):
            return np.asarray(node.op.eager(*arrays, **attrs))

    def _hint_operand(self, x: Operand) -> int:
        return self.trace.assumptions.value(x) if isinstance(x, int | Expr) else 0

    def _hint(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return self.trace.assumptions.value(a)
        return tuple(map(self._hint, a)) if isinstance(a, tuple) else a


def _long(shape: Sequence[Dim]) -> list[Dim]:
    """Return the sizes that are not 1: adding and removing those moves nothing."""
    return [d for d in shape if d != 1]


def _like(
    arrays: Sequence[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: Any
) -> np.ndarray[Any, Any]:
    """Return an array laid out as NumPy lays out the result of elementwise ops."""
    if not arrays:
        return np.empty(shape, dtype)
    if all(a.flags.c_contiguous and a.shape == shape for a in arrays):
        return np.empty(shape, dtype)
    flags = [["readonly"]] * len(arrays) + [["writeonly", "allocate"]]
    it = np.nditer(
        [*arrays, None],  # type: ignore[arg-type]
        flags=["zerosize_ok", "refs_ok"],
        op_flags=flags,  # type: ignore[arg-type]
        op_dtypes=[*(a.dtype for a in arrays), dtype],
    )
    return it.operands[-1]
