"""Tensors on devices: where they are, how they move, and ops on them.

An op on arrays of a device is a compiled function of its own, kept by op and
attributes; as with any compiled function, other dtypes or numbers of axes are other
programs, and other sizes are not. Views are views: shapes and strides over the same
memory. What derivative rules make of nothing, zeros for instance, is made on the device
whose gradient they compute (`at_home`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.errors import DeviceError, UnsupportedError
from ..ir.op import OPS, Kind, Op
from ..runtime.devices import ARRAYS, DeviceArray
from ..runtime.devices import array as device_arrays
from ..runtime.devices import device as device_of
from . import dispatch
from .containers import flatten_tree
from .fields import Fields, part
from .location import user_location
from .modes import HOME, STATE, Options

if TYPE_CHECKING:
    from .tensor import Tensor

HOST = "cpu"
NUMBERS = (bool, int, float, complex, np.generic)


class HostAccessError(DeviceError, TypeError):
    """A conversion that would copy from a device without a word."""


class OnDevices(Fields):
    """What Tensors have to do with devices."""

    __slots__ = ()

    @property
    def device(self) -> str:
        """The name of the device that holds this: "cpu", "cuda:0", "cuda:emu"."""
        if self._trace is not None:
            return self._trace.placement.runs_on or HOST
        return self._data.device if isinstance(self._data, DeviceArray) else HOST

    def to(self, device: str) -> Tensor:
        """Return this on a device; itself where it is there already.

        Gradients go back to where this is. In a compiled function everything is on one
        device: raises UnsupportedError for others.

        >>> from .tensor import tensor
        >>> tensor([1.0, 2.0]).to("cuda:emu")
        tensor([1., 2.], device='cuda:emu')
        """
        x: Any = self
        name = HOST if device == HOST else device_of(device).name
        if name == self.device:
            return x  # type: ignore[no-any-return]
        if self._trace is not None:
            raise UnsupportedError(
                f"to({device!r}) in a program for {self.device}",
                location=user_location(),
                rule="A compiled program runs on one device.",
                hint="move what it returns",
            )
        return _moved(x, name)

    def cpu(self) -> Tensor:
        """Return this in the memory of the host; itself where it is there already."""
        return self.to(HOST)


def _moved(x: Tensor, name: str) -> Tensor:
    """Copy a Tensor to a device, or to the host, and record that."""
    from . import tape

    source, result = x.device, part("tensor").of(copied(x._data, name))

    def backward(b: Any, cts: Sequence[Any]) -> tuple[Any]:
        (ct,) = cts
        return (None if ct is None else ct.to(source),)

    if STATE.grad and x.requires_grad:
        Crossings.recorded = True
        tape.record("ToCopyBackward0", (x,), (result,), backward)
    return result  # type: ignore[no-any-return]


class Crossings:
    """Whether graphs of this process may lead from one device to another."""

    recorded = False


def in_tensors(tensors: Sequence[Tensor]) -> bool:
    """Tell whether gradients of these are to be computed with Tensors.

    Rules that compute with NumPy directly do for arrays of the host only.
    """
    on_device = any(isinstance(t._data, DeviceArray) for t in tensors)
    return on_device or Crossings.recorded


def host_of(x: Any) -> Any:
    """Return a copy on the host of what is on a device, anything else as it is."""
    return x.numpy() if isinstance(x, DeviceArray) else x


def outline_of(x: Any) -> Any:
    """Return an array of the host with the strides of `x`; not its values."""
    return device_arrays.outline(x) if isinstance(x, DeviceArray) else x


def share_memory(x: Any, y: Any) -> bool:
    """Tell whether two arrays have an element in common."""
    return np.may_share_memory(x, y) and np.shares_memory(x, y)


def made_there(x: Any) -> Any:
    """Return an array of the host where the gradients of this thread are computed."""
    return x if HOME.place is None else device_arrays.uploaded(HOME.place, x)


def copied(x: Any, name: str) -> Any:
    """Return a copy of an array or number on a device, or on the host."""
    if name == HOST:
        return x.numpy() if isinstance(x, DeviceArray) else np.array(x)
    return device_arrays.device_array(x, name)


def refuse_host(x: Tensor, what: str) -> None:
    """Raise where a Tensor is on a device and NumPy wants its memory."""
    if isinstance(x._data, DeviceArray):
        raise HostAccessError(
            f"{what}: can't convert {x.device} device type tensor to numpy",
            location=user_location(),
            rule="NumPy's arrays are in the memory of the host.",
            hint="use t.cpu() to copy the tensor to host memory first: t.cpu().numpy()",
        )


def filled(like: Any, value: Any) -> Any:
    """Return an array of one value, with the shape, dtype and place of another one."""
    if not isinstance(like, DeviceArray):
        return np.full_like(like, value, subok=False)
    one = device_arrays.uploaded(like.place, np.array(value, like.dtype))
    return one.viewed(lambda a: np.broadcast_to(a, like.shape)).copy()


# Ops ------------------------------------------------------------------------------


class OpCall:
    """An op with its attributes, as the function that is compiled for it."""

    __slots__ = ("attrs", "op")

    def __init__(self, op: Op, attrs: Mapping[str, Any]) -> None:
        self.op = op
        self.attrs = attrs

    def __call__(self, *operands: Any) -> Any:
        return dispatch.apply(self.op, operands, self.attrs)


COMPILED: dict[Any, Callable[..., Any]] = {}  # by op, options and attributes


def run(op: Op, operands: Sequence[Any], data: Sequence[Any], attrs: Any) -> Any:
    """Run an op of which an operand is on a device, or which makes an array there.

    NumPy arrays that are no Tensors are copied there; raises DeviceError for Tensors of
    other places.
    """
    place = _place_of(op, operands, data)
    if op.views is not None and isinstance(data[op.views], DeviceArray):
        found = view(op, data, attrs)
        if found is not None:
            return found
    given = [
        device_arrays.uploaded(place, x) if isinstance(x, np.ndarray) and x.ndim else x
        for x in data
    ]
    arrays = [id(x) for x in given if isinstance(x, DeviceArray)]
    if not arrays:
        out = op.eager(*data, **attrs)
        made = isinstance(out, np.ndarray) and op.kind is Kind.CREATION
        return device_arrays.uploaded(place, out) if made else out
    if len(set(arrays)) < len(arrays):  # one program for x * y and x * x
        given = [x.alias() if isinstance(x, DeviceArray) else x for x in given]
    return _compiled(op, attrs)(*given)


def _place_of(op: Op, operands: Sequence[Any], data: Sequence[Any]) -> Any:
    """Return the device of the operands; raise where there are several."""
    places = [x.place for x in data if isinstance(x, DeviceArray)]
    place = places[0] if places else HOME.place
    strangers = [
        k
        for k, (t, x) in enumerate(zip(operands, data, strict=True))
        if (isinstance(x, DeviceArray) and x.place is not place)
        or (isinstance(x, np.ndarray) and x.ndim and t is not x and not HOME.place)
    ]
    if strangers:
        names = [getattr(t, "device", HOST) for t in operands]
        raise DeviceError(
            f"{op.name}: operand {strangers[0]} is on {names[strangers[0]]}, others on "
            f"{place.name}",
            location=user_location(),
            rule="The operands of an operation are on one device.",
            hint=f"move it: t.to({place.name!r})",
        )
    return place


def view(op: Op, data: Sequence[Any], attrs: Mapping[str, Any]) -> DeviceArray | None:
    """Return the view that an op makes, or None where it has to copy."""
    k = op.views
    assert k is not None
    shared = True

    def make(a: Any) -> Any:
        nonlocal shared
        operands = [a if j == k else host_of(x) for j, x in enumerate(data)]
        out = np.asarray(op.eager(*operands, **attrs))
        shared = not out.size or np.may_share_memory(out, a)
        return out if shared else a

    found: DeviceArray = data[k].viewed(make)
    return found if shared else None


def _compiled(op: Op, attrs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the compiled function of an op with these attributes, in this mode."""
    options = Options(deterministic=STATE.deterministic)
    key = op.name, options, *((k, type(a), a) for k, a in attrs.items())
    found = COMPILED.get(key)
    if found is None:
        made = part("jit").Compiled(OpCall(op, attrs), options)
        found = COMPILED.setdefault(key, made)
    return found


def put(target: Any, value: Any) -> None:
    """Write a value, converted and broadcast, into an array; one of both is a device's.

    Raises ValueError where it does not broadcast.
    """
    if not isinstance(target, DeviceArray):
        np.copyto(target, value.numpy(), casting="unsafe")
        return
    if isinstance(value, DeviceArray) and value.dtype != target.dtype:
        value = run(OPS["astype"], (value,), (value,), {"dtype": target.dtype})
    target[...] = value


# Where derivatives make arrays ----------------------------------------------------


@contextmanager
def inside_function(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Let a function of Tensors make what it needs besides where they are.

    Raises DeviceError where they are on several devices.
    """
    if HOME.place is not None or dispatch.active_trace() is not None:
        yield
        return
    tensors = [
        x
        for x in flatten_tree((tuple(args), dict(kwargs)))[0]
        if isinstance(x, Fields) and isinstance(x._data, ARRAYS) and x.ndim
    ]
    places = {getattr(x._data, "device", HOST): x._data for x in tensors}
    if len(places) > 1:
        raise DeviceError(
            f"tensors on {' and '.join(places)}",
            location=user_location(),
            rule="The operands of an operation are on one device.",
            hint="move them: t.to(device)",
        )
    with at_home(next(iter(places.values()), None)):
        yield


@contextmanager
def beside(leaves: Iterable[Any]) -> Iterator[None]:
    """Let a function that is run with Tensors make its arrays where its arguments are.

    Nothing changes where these are on several devices.
    """
    data = [x._data if isinstance(x, Fields) else x for x in leaves]
    arrays = [x for x in data if isinstance(x, ARRAYS) and x.ndim]
    if len({getattr(x, "device", HOST) for x in arrays}) != 1 or HOME.place is not None:
        yield
        return
    with at_home(arrays[0]):
        yield


@contextmanager
def at_home(x: Any) -> Iterator[None]:
    """Let what is made of nothing be made where an array is."""
    before = HOME.place
    HOME.place = x.place if isinstance(x, DeviceArray) else None
    try:
        yield
    finally:
        HOME.place = before
