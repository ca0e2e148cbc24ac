"""DeviceArray: an array in the memory of a device, with NumPy's shapes and strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...ir.errors import (
    DTypeError,
    IndexRangeError,
    InternalError,
    MutationError,
    ShapeError,
)
from . import interface
from .interface import Device, Memory
from .strided import copy_strided

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]

WIDE = 16  # bytes that kernels load at once: arrays begin at a multiple of that
BASIC = (int, np.integer, slice, type(None), type(Ellipsis))


class Flags:
    """What NumPy's flags of these names tell of an array; `writeable` can be set."""

    __slots__ = ("_array",)

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    @property
    def c_contiguous(self) -> bool:
        return self._array.whole

    @property
    def f_contiguous(self) -> bool:
        x = self._array
        return _is_whole(x.shape[::-1], x.strides[::-1], x.dtype.itemsize)

    @property
    def writeable(self) -> bool:
        return self._array.writable

    @writeable.setter
    def writeable(self, value: bool) -> None:
        self._array.writable = value


class DeviceArray:
    """An array in the memory of a device.

    It is what compiled functions take and return there: they read it where it lies and
    write it in place. Indexing with integers and slices, and `reshape`, give views of
    the same memory. `numpy()` copies it to the host, and so does `np.asarray`; it has
    no arithmetic of its own. Make one with `device_array`, or over the memory of
    another library with `from_dlpack`.

    >>> x = device_array([[1.0, 2.0], [3.0, 4.0]], "cuda:emu")
    >>> x.shape, x.dtype, x.device
    ((2, 2), dtype('float64'), 'cuda:emu')
    >>> x[:, 1].numpy()
    array([2., 4.])
    """

    __slots__ = (
        "__weakref__",
        "_strides",
        "address",
        "dtype",
        "memory",
        "place",
        "ready",
        "shape",
        "whole",
        "writable",
    )

    def __init__(
        self,
        place: Device,
        memory: Memory,
        address: int,
        shape: Shape,
        dtype: np.dtype[Any],
        strides: Shape | None = None,
        writable: bool = True,
    ) -> None:
        self.place = place
        self.memory = memory  # alive as long as this
        self.address = address  # of the first element
        self.shape = shape
        self.dtype = dtype
        self.writable = writable
        if strides is None or _is_whole(shape, strides, dtype.itemsize):
            self.whole, self._strides = True, None
            self.ready = not address % WIDE  # for kernels as it is
        else:
            self.whole = self.ready = False
            self._strides = strides

    @property
    def device(self) -> str:
        """The name of the device."""
        return self.place.name

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> Shape:
        """The strides in bytes."""
        if self._strides is None:
            return c_strides(self.shape, self.dtype.itemsize)
        return self._strides

    @property
    def flags(self) -> Flags:
        """How the elements lie, and whether they may be written."""
        return Flags(self)

    def __repr__(self) -> str:
        body = np.array2string(self.numpy(), separator=", ", prefix="DeviceArray(")
        return f"DeviceArray({body}, dtype={self.dtype}, device={self.device!r})"

    # Copies to the host -----------------------------------------------------------

    def numpy(self) -> Array:
        """Return a copy on the host; it waits for the device."""
        out = np.empty(self.shape, self.dtype)
        if out.size:
            x = self.contiguous()
            self.place.read(x.address, out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError(
                f"an array on {self.device} has no memory that NumPy can share: "
                "x.numpy() copies it"
            )
        out = self.numpy()
        return out if dtype is None else out.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Refuse NumPy's ufuncs, which would copy to the host without a word."""
        own = (None, np.ndarray.__array_ufunc__, DeviceArray.__array_ufunc__)
        if any(getattr(type(x), "__array_ufunc__", None) not in own for x in inputs):
            return NotImplemented  # a Tensor takes arrays of its device
        raise TypeError(
            f"numpy.{ufunc.__name__} of an array on {self.device}: call it in a "
            "compiled function, on rg.tensor(x), or on x.numpy()"
        )

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        if function in (np.shape, np.ndim, np.size) and len(args) == 1 and not kwargs:
            return getattr(self, function.__name__)
        if function in (np.may_share_memory, np.shares_memory):
            return _share_memory(*args[:2])
        raise TypeError(
            f"numpy.{function.__name__} of an array on {self.device}: call it in a "
            "compiled function, on rg.tensor(x), or on x.numpy()"
        )

    def item(self, *index: int) -> Any:
        """Return one element as a Python number; it waits for the device."""
        x = self[index] if index else self
        if x.size != 1:
            raise ShapeError(
                f"item: an array of {x.size} elements",
                rule="A Python number is made of one element.",
                hint="name it: x.item(0, 0)",
            )
        return x.numpy().item()

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[k] for k in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return device_array, (self.numpy(), self.device)

    # Copies on the device ---------------------------------------------------------

    def copy(self, order: str = "C") -> DeviceArray:
        """Return a copy on the same device, in C order whatever `order` says."""
        out = empty(self.place, self.shape, self.dtype)
        out.assign(self)
        return out

    def contiguous(self) -> DeviceArray:
        """Return this, or a copy where it is not in C order."""
        return self if self.whole else self.copy()

    def assign(self, source: DeviceArray) -> None:
        """Copy elements from an array of the same device, shape and dtype."""
        copy_strided(
            self.place,
            self.address,
            source.address,
            self.shape,
            (self.strides, source.strides),
            self.dtype.itemsize,
        )

    # Views ------------------------------------------------------------------------

    def alias(self) -> DeviceArray:
        """Return another array over the same memory."""
        return DeviceArray(
            self.place,
            self.memory,
            self.address,
            self.shape,
            self.dtype,
            self._strides,
            self.writable,
        )

    def viewed(self, view: Callable[[Array], Array]) -> DeviceArray:
        """Return the view that a function makes of an array of this shape and strides.

        The function gets memory of the host with nothing in it, and must not look.
        """
        model = outline(self)
        out = view(model)
        offset = address_of(out) - address_of(model)
        if out.size and not np.may_share_memory(out, model):
            raise InternalError(f"{view} makes no view of {self.shape}")
        return DeviceArray(
            self.place,
            self.memory,
            self.address + (offset if out.size else 0),
            out.shape,
            out.dtype,
            out.strides,
            self.writable and out.flags.writeable,
        )

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view with another shape; raises ShapeError where that is none."""
        wanted = shape[0] if len(shape) == 1 else shape
        if self.whole:
            return self.viewed(lambda a: a.reshape(wanted))
        try:
            return self.viewed(lambda a: np.reshape(a, wanted, copy=False))
        except ValueError as error:
            raise ShapeError(
                f"reshape of {self.shape} with strides {self.strides} to {wanted}",
                rule=str(error),
                hint="copy it first: x.copy().reshape(shape)",
            ) from None

    def __getitem__(self, key: Any) -> DeviceArray:
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, bool) or not isinstance(k, BASIC) for k in parts):
            raise IndexRangeError(
                "an array of a device is indexed with integers, slices, ... and None",
                rule="Other indices make copies.",
                hint="index it in a compiled function, or x.numpy()[key]",
            )
        if not any(k is Ellipsis for k in parts):
            parts = (*parts, Ellipsis)  # a view of no axes, too
        return self.viewed(lambda a: a[parts])

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        check_writable(self)
        if isinstance(value, DeviceArray):
            source = moved(value, self.place)
            if source.dtype != self.dtype:
                raise DTypeError(
                    f"assignment of {source.dtype} to an array of {self.dtype}",
                    rule="Copies on a device do not convert.",
                    hint="convert it in a compiled function",
                )
            if overlap(source, target):
                source = source.copy()
        else:
            source = device_array(np.asarray(value).astype(self.dtype), self.device)
        shape = target.shape
        target.assign(source.viewed(lambda a: np.broadcast_to(a, shape)))

    # Other libraries --------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interop().cuda_array_interface(self)  # type: ignore[no-any-return]

    def __dlpack__(self, **options: Any) -> Any:
        return _interop().dlpack(self, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _interop().dlpack_device(self)  # type: ignore[no-any-return]


def _interop() -> Any:
    from . import interop  # only here: it needs the driver

    return interop


ARRAYS = (np.ndarray, DeviceArray)


def c_strides(shape: Shape, itemsize: int) -> Shape:
    """Return the strides of an array in C order.

    >>> c_strides((2, 3), 8)
    (24, 8)
    """
    out = []
    for d in reversed(shape):
        out.append(itemsize)
        itemsize *= max(d, 1)
    return tuple(reversed(out))


def _is_whole(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Tell whether elements lie in C order without gaps, as NumPy has it."""
    if 0 in shape:
        return True
    wanted = c_strides(shape, itemsize)
    return all(d == 1 or a == b for d, a, b in zip(shape, strides, wanted, strict=True))


def address_of(x: Array) -> int:
    """Return where an array of the host begins."""
    return int(x.__array_interface__["data"][0])


def extent(x: DeviceArray) -> tuple[int, int]:
    """Return the addresses of the first byte and behind the last one."""
    if not x.size:
        return x.address, x.address
    steps = [(d - 1) * s for d, s in zip(x.shape, x.strides, strict=True)]
    low = x.address + sum(s for s in steps if s < 0)
    return low, x.address + sum(s for s in steps if s > 0) + x.dtype.itemsize


def outline(x: DeviceArray, bounds: tuple[int, int] | None = None) -> Array:
    """Return an array of the host with the same shape and strides, and no values.

    With `bounds`, it lies in memory of these addresses as `x` does.
    """
    low, high = bounds or extent(x)
    space = np.empty(high - low, np.uint8)
    return lying_in(x, space, low)


def lying_in(x: DeviceArray, space: Array, low: int) -> Array:
    """Return the array of the host that lies in `space`, which stands for `low` on."""
    if not x.size:
        return np.empty(x.shape, x.dtype)
    return np.ndarray(x.shape, x.dtype, space, x.address - low, x.strides)


def overlap(a: DeviceArray, b: DeviceArray) -> bool:
    """Tell whether two arrays of one device share memory."""
    (low, high), (start, stop) = extent(a), extent(b)
    if low >= stop or start >= high:
        return False
    if a.whole and b.whole:
        return True
    first = min(low, start)
    space = np.empty(max(high, stop) - first, np.uint8)
    return np.shares_memory(lying_in(a, space, first), lying_in(b, space, first))


def _share_memory(a: Any, b: Any) -> bool:
    """Tell whether two arrays, of the host or of devices, have an element in common."""
    there = isinstance(a, DeviceArray) and isinstance(b, DeviceArray)
    return there and a.place is b.place and bool(overlap(a, b))


def check_writable(x: DeviceArray) -> None:
    if not x.writable:
        raise MutationError(
            f"an array on {x.device} that is read-only", hint="write into a copy"
        )


def empty(place: Device, shape: Shape, dtype: np.dtype[Any]) -> DeviceArray:
    """Return a new array, of which nobody knows what is in it."""
    memory = place.allocate(math.prod(shape) * dtype.itemsize)
    return DeviceArray(place, memory, memory.address, shape, dtype)


def uploaded(place: Device, x: Array) -> DeviceArray:
    """Return a copy of an array of the host."""
    out = empty(place, x.shape, x.dtype)
    if x.size:
        place.write(out.address, np.ascontiguousarray(x))
    return out


def moved(x: DeviceArray, place: Device) -> DeviceArray:
    """Return an array, or a copy of it on another device."""
    return x if x.place is place else uploaded(place, x.numpy())


def device_array(x: Any, device: str = "cuda", dtype: Any = None) -> DeviceArray:
    """Return a copy of an array, list or number in the memory of a device.

    `x` may be an array of NumPy, a DeviceArray of any device, or an array of another
    library on a GPU (`from_dlpack` takes that without a copy). dtypes are bool,
    integers, floats and complex numbers, of which compiled functions compute with all
    but float16 and complex numbers. Raises DTypeError for others, and DeviceError where
    there is no such device.

    >>> device_array(np.arange(3), "cuda:emu").tolist()
    [0, 1, 2]
    """
    place = interface.device(device)
    if hasattr(x, "__cuda_array_interface__") and not isinstance(x, DeviceArray):
        x = from_dlpack(x)
    if isinstance(x, DeviceArray) and dtype in (None, x.dtype):
        return x.copy() if x.place is place else moved(x, place)
    a = np.asarray(x, dtype)
    a = a.astype(a.dtype.newbyteorder("="), copy=False)
    _check_dtype(a.dtype)
    return uploaded(place, a)


def _check_dtype(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc" or dtype.char in "gG":
        raise DTypeError(
            f"an array of dtype {dtype} on a device",
            rule="Devices have arrays of bools, integers, floats and complex numbers.",
            hint="convert it first",
        )


def from_dlpack(x: Any) -> DeviceArray:
    """Return a DeviceArray over the memory of another library's array on a GPU.

    Nothing is copied: writes are seen on both sides. `x` has `__dlpack__` or
    `__cuda_array_interface__`, as arrays of PyTorch, JAX, CuPy and Numba have. What
    was told its device before is waited for; whoever uses both from then on, on
    streams of their own, has to synchronise. Raises BufferError where `x` is not on a
    GPU.
    """
    if isinstance(x, DeviceArray):
        return x.alias()
    out: DeviceArray = _interop().imported(x)
    _check_dtype(out.dtype)
    return out
