"""Tensor: an array, NumPy scalar or Python number that can be differentiated.

Values, aliasing and errors are NumPy's; the autograd surface is PyTorch's. A Tensor
holds real NumPy data in eager mode, and an IR value inside a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import ops  # noqa: F401 - defines the ops
from ..ir.errors import (
    DTypeError,
    GradientBreakError,
    GradientError,
    ShapeError,
    UnsupportedError,
)
from ..ir.op import OPS
from ..runtime.devices import ARRAYS, DeviceArray, device_array
from ..runtime.storage import Storage
from . import dispatch, tape
from .arithmetic import Arithmetic
from .arrays import ArrayMethods
from .devices import HOST, OnDevices, host_of, refuse_host
from .fields import part
from .location import user_location
from .modes import STATE
from .views import repeats

if TYPE_CHECKING:
    from .tape import Node

Array = np.ndarray[Any, Any]


class MissingAttributeError(UnsupportedError, AttributeError):
    """An attribute of ndarray that Tensors do not have."""


HINTS = {
    "view": "use x[...] for another view, astype for another dtype",
    "setflags": "copy the array instead",
}


class Tensor(Arithmetic, ArrayMethods, OnDevices):
    """An array, scalar or number with values of NumPy and gradients of PyTorch.

    >>> x = tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).shape
    (2,)
    """

    __slots__ = ()
    __array_priority__ = 1000.0

    @classmethod
    def traced(cls, trace: dispatch.Trace, value: Any) -> Tensor:
        """Return a tensor that stands for an IR value or literal of a trace."""
        t = cls(None)
        t._trace = trace
        t._value = value
        return t

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in bytes; only eager tensors have them."""
        data = self._python("strides", breaks=False)
        return tuple((data if isinstance(data, ARRAYS) else np.asarray(data)).strides)

    def __repr__(self) -> str:
        if self._trace is not None:
            return f"Tensor({self._value!r})"
        data = host_of(self._data)
        body = repr(data)
        if isinstance(data, np.ndarray):
            body = np.array2string(data, separator=", ", prefix="tensor(")
            if data.dtype not in (np.float64, np.int64, np.bool_):
                body += f", dtype={data.dtype}"
        elif isinstance(data, np.generic):
            body = f"np.{data.dtype}({data})"
        if data is not self._data:
            body += f", device={self.device!r}"
        node = self.grad_fn
        if node is not None:
            return f"tensor({body}, grad_fn=<{node.name()}>)"
        return f"tensor({body}{', requires_grad=True' if self._leaf else ''})"

    def __format__(self, spec: str) -> str:
        return format(self._python("format", breaks=False), spec) if spec else str(self)

    def __round__(self, ndigits: int | None = None) -> Any:
        return self.round(ndigits or 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            raise MissingAttributeError(
                f"Tensor has no attribute {name!r}, which NumPy's arrays have",
                location=user_location(),
                hint=HINTS.get(name, "call it on x.detach().numpy()"),
            )
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    def __hash__(self) -> int:
        if self._trace is not None and self.type.scalar:
            raise GradientBreakError(
                f"a computed number, {self.type}, as the key of a dict or in a set",
                location=user_location(),
                rule="Numbers are found by their value, which is not there yet.",
                hint="use operator.index(k), which is checked at every call, or arrays",
            )
        return object.__hash__(self)

    # NumPy's protocols ------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        return getattr(part("ufuncs"), method.strip("_"))(ufunc, inputs, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        ours = part("functions").FUNCTIONS.get(function)
        if ours is None:
            module = getattr(function, "__module__", None) or "numpy"
            raise UnsupportedError(
                f"{module}.{function.__name__}: not supported on tensors",
                location=user_location(),
                hint=way_out(args),
            )
        return ours(*args, **kwargs)

    # Items ------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return part("index").getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        part("index").setitem(self, key, value)

    def __len__(self) -> int:
        if self._trace is not None:
            return int(self._trace.convert_to_python(self, "len"))
        if not self.shape:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        if self._trace is not None:
            return iter(self._trace.convert_to_python(self, "iter"))
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[k] for k in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any())

    # Conversions to Python --------------------------------------------------------

    def _python(self, kind: str, breaks: bool = True) -> Any:
        """Return the data for a conversion that forgets the gradient."""
        if self._trace is not None:
            return self._trace.convert_to_python(self, kind)
        if breaks and STATE.grad and self.requires_grad:
            raise GradientBreakError(
                f"{kind}: {self.type} requires a gradient, which would be lost",
                location=user_location(),
                rule="a conversion to a Python or NumPy object is not recorded",
                hint="call .item(), or .detach() first, if that is what you want",
            )
        return self._data

    def __bool__(self) -> bool:
        return bool(self._python("bool", breaks=False))

    def __float__(self) -> float:
        return float(self._python("float"))

    def __int__(self) -> int:
        return int(self._python("int"))

    def __complex__(self) -> complex:
        return complex(self._python("complex"))

    def __index__(self) -> int:
        data = self._python("index")
        return int(data.__index__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        data = self._python("array")
        refuse_host(self, "np.asarray")
        if copy is not True and self._storage is not None:
            self._storage.share()
        return np.array(data, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        data = self._python("DLPack capsule")
        data = data if isinstance(data, ARRAYS) else np.asarray(data)
        if self._storage is not None:
            self._storage.share()
        return data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        data = self._python("DLPack device", breaks=False)
        data = data if isinstance(data, ARRAYS) else np.asarray(data)
        return data.__dlpack_device__()

    def item(self, *index: int) -> Any:
        """Return one element as a Python number, without its gradient."""
        if self._trace is not None:
            return self._trace.item(self, index)
        data = self._python("item", breaks=False)
        return (data if isinstance(data, ARRAYS) else np.asarray(data)).item(*index)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers, without gradients."""
        data = self._python("tolist", breaks=False)
        return np.asarray(data).tolist() if self._trace is None else data

    def numpy(self) -> Any:
        """Return the NumPy array over the same memory.

        From then on the memory is shared: values saved from it are saved as copies.
        Raises a TypeError for what is on a device: `t.cpu().numpy()` copies it.
        """
        data = self._python("numpy")
        refuse_host(self, "numpy")
        if self._storage is not None:
            self._storage.share()
        return data

    # Autograd ---------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this are recorded."""
        if self._trace is not None:
            return bool(self._trace.leaves.requires(self))
        if self._base is not None:
            return tape.edge_of(self) is not None
        return self._leaf or self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make this a leaf whose gradient is wanted, or a constant; returns self."""
        if self._trace is not None:
            self._trace.leaves.make(self, requires_grad)
            return self
        edge = tape.edge_of(self)
        if self._node is not None:
            if not requires_grad:
                raise GradientError(
                    "you can only change requires_grad flags of leaf variables.",
                    location=user_location(),
                    hint="use .detach() for a tensor without gradient",
                )
            return self
        if requires_grad and not tape.is_inexact(self._data):
            raise GradientError(
                "only Tensors of floating point dtype can require gradients",
                location=user_location(),
                rule=f"this is {self.type}",
            )
        if requires_grad != (edge is not None):
            self._leaf = requires_grad
            if self._base is None and self._storage is not None:
                self._storage.epoch += 1  # views made before now have a gradient
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation computed this."""
        if self._trace is not None:
            return bool(self._trace.leaves.is_leaf(self))
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that computed this, or None."""
        if self._trace is not None:
            raise self._on_tape("grad_fn")
        if self._base is not None:
            tape.edge_of(self)
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this is."""
        return self._nr

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` has added up so far."""
        if self._trace is not None:
            held: Tensor | None = self._trace.leaves.grad(self)
            return held
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"assigned grad has type {type(value).__name__}; it must be a Tensor"
            )
        if value is not None and value.dtype != self.dtype:
            raise DTypeError(
                f"attempting to assign a gradient of dtype {value.dtype} to a tensor "
                f"of dtype {self.dtype}.",
                location=user_location(),
            )
        if value is not None and value.shape != self.shape:
            raise ShapeError(
                f"attempting to assign a gradient of size '{list(value.shape)}' to a "
                f"tensor of size '{list(self.shape)}'.",
                location=user_location(),
            )
        if self._trace is not None:
            self._trace.leaves.set_grad(self, value)
        else:
            self._grad = value

    def _on_tape(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} of a traced value, {self.type}",
            location=user_location(),
            rule="In a compiled function there are no nodes of the tape.",
            hint="use it outside of the compiled function",
        )

    @property
    def _version(self) -> int:
        return 0 if self._storage is None else self._storage.version

    def _is_view(self) -> bool:
        return self._base is not None

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradients of this to the `.grad` of the leaves it depends on."""
        part("autograd").backward(
            (self,), (gradient,), retain_graph, create_graph, inputs
        )

    def retain_grad(self) -> None:
        """Have `backward` store the gradient of this tensor, though it is no leaf."""
        if self._trace is not None:
            raise self._on_tape("retain_grad")
        edge = tape.edge_of(self)
        if edge is None:
            raise GradientError(
                "can't retain_grad on Tensor that has requires_grad=False",
                location=user_location(),
            )
        if self._node is not None:
            tape.retain(*edge, self)

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this tensor."""
        node = self.grad_fn
        ref = None if node is None else (node.retains or {}).get(self._nr)
        return ref is not None and ref() is self

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Call `hook` with the gradient of this; its result replaces the gradient."""
        return part("autograd").register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Call `hook(t)` after the gradient of this leaf was added to `.grad`."""
        return part("autograd").register_post_accumulate_grad_hook(self, hook)

    def detach(self) -> Tensor:
        """Return a tensor over the same memory that has no gradient."""
        if self._trace is not None:
            result: Tensor = self._trace.detach(self)
            return result
        return Tensor(self._data, self._storage)

    @property
    def data(self) -> Tensor:
        """This without its gradient, over the same memory; writes are counted.

        Assigning gives the tensor other memory and leaves its place in the graph: what
        was saved from it stays what it was.
        """
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        if self._trace is not None:
            raise self._on_tape("data")
        if self._base is not None:
            raise GradientError(
                "a view cannot be given other memory", location=user_location()
            )
        source = as_tensor(value)
        if source.dtype != self.dtype:
            raise DTypeError(
                f"data of {source.dtype} cannot be given to a tensor of {self.dtype}",
                location=user_location(),
            )
        tape.take_memory(self, source)

    def set_(self, source: Any) -> Tensor:
        """Give this the memory of another tensor; this has no derivative."""
        if self._trace is not None:
            raise self._on_tape("set_")
        tape.replace_memory(self, as_tensor(source))
        return self

    def detach_(self) -> Tensor:
        """Cut this tensor off its graph, in place."""
        if self._trace is not None:
            raise self._on_tape("detach_")
        if self._base is not None:
            raise GradientError(
                "Can't detach views in-place. Use detach() instead.",
                location=user_location(),
            )
        self._node, self._nr, self._leaf = None, 0, False
        if self._storage is not None:
            self._storage.epoch += 1
        return self

    # Copies of objects ----------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise GradientError(
                "Only Tensors created explicitly by the user (graph leaves) support "
                "the deepcopy protocol at the moment.",
                location=user_location(),
            )
        whole = isinstance(self._data, DeviceArray)
        data = self._data.copy() if whole else np.array(self._data)
        result = of(data) if self._storage else Tensor(self._data)
        result._leaf = self._leaf
        memo[id(self)] = result
        if self._grad is not None:
            result._grad = self._grad.detach().copy()
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise GradientError(
                "only leaves can be pickled",
                location=user_location(),
                hint="pickle x.detach()",
            )
        return _rebuild, (self._python("pickle", breaks=False), self._leaf)


def way_out(args: Any) -> str:
    """Return what a user can do about a function that tensors do not have."""
    if dispatch.trace_of(args) is not None:
        return "call it outside the compiled function and pass the result in"
    return "call it on x.detach().numpy() if its gradient is not needed"


def of(data: Any) -> Tensor:
    """Return a tensor over data that nobody else writes: its memory is taken over."""
    return Tensor(data, Storage() if isinstance(data, ARRAYS) else None)


def _rebuild(data: Any, requires_grad: bool) -> Tensor:
    """Return a tensor from what was pickled."""
    t = of(data)
    t._leaf = requires_grad
    return t


def wrap(data: Any) -> Tensor:
    """Return a tensor over `data` without copying; the memory stays the caller's."""
    is_array = isinstance(data, ARRAYS)
    return Tensor(data, Storage(shared=True) if is_array else None)


def as_tensor(x: Any) -> Tensor:
    """Return `x` if it is a tensor, else a tensor over its data."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.ndarray | np.generic | DeviceArray | int | float | complex):
        return wrap(x)
    return wrap(np.asarray(x))


def from_numpy(array: Array) -> Tensor:
    """Return a tensor over the memory of an array: writes are seen on both sides.

    >>> a = np.zeros(2)
    >>> from_numpy(a).fill(1.0)
    >>> a
    array([1., 1.])
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"from_numpy: expected an ndarray, not {type(array).__name__}")
    if array.flags.writeable and repeats(array):
        raise UnsupportedError(
            "from_numpy: an array that shows elements several times",
            location=user_location(),
            rule="a write into it would write elements more than once",
            hint="wrap the array under it, and take the view from that: .as_strided",
        )
    return wrap(array)


def tensor(
    data: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    device: str | None = None,
) -> Tensor:
    """Return a tensor with a copy of `data`, in the memory of a device if asked.

    A `DeviceArray` is copied where it is, unless `device` names another place.

    >>> tensor([1.0, 2.0], requires_grad=True)
    tensor([1., 2.], requires_grad=True)
    """
    if dispatch.active_trace() is not None:
        copy = part("functions").FUNCTIONS[np.array](data, dtype=dtype)
        t: Tensor = dispatch.apply(OPS["detach"], (copy,))
    elif device not in (None, HOST) or isinstance(as_data(data), DeviceArray):
        t = of(_on_device(data, dtype, device))
    else:
        t = of(np.array(data, dtype=dtype))  # raises where a gradient would be lost
    return t.requires_grad_() if requires_grad else t


def as_data(x: Any) -> Any:
    """Return the data of a tensor, anything else as it is."""
    return x._data if isinstance(x, Tensor) else x


def _on_device(data: Any, dtype: Any, device: str | None) -> Any:
    """Return a copy of some data on a device, or of a device's on the host."""
    if isinstance(data, Tensor):
        data = data._python("tensor")
    if device == HOST:
        return np.array(data.numpy(), dtype=dtype)
    return device_array(data, device or data.device, dtype)
