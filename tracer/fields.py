"""What a Tensor is made of: its data, storage, place in the graph, and geometry."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

from ..ir.func import type_of
from ..ir.types import DType, Type, type_of_array
from ..runtime.storage import Storage

if TYPE_CHECKING:
    from .dispatch import Trace
    from .graph import AccumulateGrad, Node
    from .tensor import Tensor
    from .views import ViewStep


@functools.cache
def part(name: str) -> Any:
    """Return a module of this package that itself needs Tensor."""
    return importlib.import_module(f".{name}", __package__)


class Fields:
    """The fields of a Tensor, and what they say about its type."""

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_base",
        "_data",
        "_grad",
        "_hooks",
        "_leaf",
        "_made_without_grad",
        "_node",
        "_nr",
        "_seen",
        "_steps",
        "_storage",
        "_trace",
        "_value",
    )

    _data: Any
    _storage: Storage | None
    _trace: Trace | None
    _value: Any
    _node: Node | None
    _nr: int
    _leaf: bool
    _base: Tensor | None
    _steps: tuple[ViewStep, ...]
    _seen: int
    _made_without_grad: bool
    _grad: Tensor | None
    _accumulator: weakref.ref[AccumulateGrad] | None
    _hooks: Any

    def __init__(self, data: Any, storage: Storage | None = None) -> None:
        self._data = data
        self._storage = storage
        self._trace = None
        self._value = None
        self._node = None
        self._nr = 0
        self._leaf = False
        self._base = None
        self._steps = ()
        self._seen = 0
        self._made_without_grad = False
        self._grad = None
        self._accumulator = None
        self._hooks = None

    # What it is -------------------------------------------------------------------

    @property
    def is_traced(self) -> bool:
        """Whether this stands for a value of a trace."""
        return self._trace is not None

    @property
    def type(self) -> Type:
        """The IR type; its marks tell arrays, NumPy scalars and Python numbers."""
        if self._trace is not None:
            return type_of(self._value)
        return type_of_array(self._data)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the axes: ints, or what the trace lets Python see."""
        if self._trace is not None:
            return self._trace.shape_of(self)
        return getattr(self._data, "shape", ())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        size = 1
        for d in self.shape:
            size = size * d
        return size

    @property
    def dtype(self) -> DType:
        """The NumPy dtype."""
        dtype: DType | None = getattr(self._data, "dtype", None)
        return self.type.dtype if dtype is None else dtype
