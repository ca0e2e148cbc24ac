"""What a device can do, whichever it is, and how it is found by its name.

Note [order on a device]
A device does what it is told in the order in which it was told, by whichever thread:
there is one queue per device. `write`, `fill`, `copy`, `launch` and `Graph.launch` only
enter it; `read` and `synchronize` wait until all that was entered is done. Memory is
given back in the same order, so an object that dies right after a launch that uses its
memory does no harm. A fault of a kernel is reported by the call itself or by any later
one, whatever that one does.
"""

from __future__ import annotations

import abc
import functools
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...ir.errors import DeviceError
from .products import Product

ALIGNMENT = 256  # bytes, of every allocation
THREADS = 1024  # most threads of a block
BLOCKS = 2**31 - 1  # most blocks of a grid
SCRATCH = 32 << 20  # bytes, what cuBLAS wants on an H200
ARCHITECTURE = (9, 0)  # of the emulator, and where none is named

# Format characters of `struct`, whose native alignment is that of kernel parameters.
FORMATS = {
    "pointer": "Q",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
    "float64": "d",
    "float32": "f",
    "bool": "?",
}


@dataclass(frozen=True, slots=True)
class Code:
    """Hold a compiled kernel, for any device of its architecture.

    `kinds` are those of the parameters in order, keys of `FORMATS`; `static` is the
    number of bytes of shared memory that the kernel itself declares. Where `cubin` is
    empty, the driver assembles the PTX.
    """

    entry: str
    kinds: tuple[str, ...]
    ptx: str
    cubin: bytes
    static: int


Block = tuple[int, object]  # an address, and whose death gives the bytes back


class Memory:
    """Bytes on a device, aligned to `ALIGNMENT`; given back when the object dies."""

    __slots__ = ("__weakref__", "_owner", "address", "size")

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.address = address
        self.size = size
        self._owner = owner  # whose death gives the bytes back


class Function:
    """A kernel that a device has loaded."""

    __slots__ = ("code",)

    def __init__(self, code: Code) -> None:
        self.code = code


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """What a batch gets at each launch: a number, or an address and a distance to it.

    >>> given = Given(0) + 16
    >>> given.index, given.offset
    (0, 16)
    """

    index: int
    offset: int = 0

    def __add__(self, distance: int) -> Given:
        return Given(self.index, self.offset + distance)


@dataclass(frozen=True, eq=False, slots=True)
class Launch:
    """A launch of a batch: what `Device.launch` takes, with `Given` arguments."""

    function: Function
    grid: int
    block: int
    args: Sequence[int | float | bool | Given]
    shared: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Fill:
    """A fill of a batch: what `Device.fill` takes, with a `Given` target."""

    target: int | Given
    value: int
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class Multiply:
    """A product by the device's library: what `Device.multiply` takes."""

    product: Product
    places: tuple[int | Given, ...]  # of result, left, right, and of SCRATCH bytes


Step: TypeAlias = Launch | Fill


class Batch(abc.ABC):
    """Launches and fills that are entered one by one, all by one call.

    Unlike a graph, it can be launched with other addresses and numbers each time, by
    several threads at once.
    """

    @abc.abstractmethod
    def launch(self, *given: int | float | bool) -> None:
        """Do the steps, in order, with what is given."""


class Graph(abc.ABC):
    """Launches, copies and fills that are entered into the queue all at once.

    The addresses are those of the recording: whoever keeps a graph keeps the memory
    that it uses.
    """

    @abc.abstractmethod
    def launch(self) -> None:
        """Do once more, in order, what was recorded."""


class Device(abc.ABC):
    """A device; see Note [order on a device].

    Sizes are in bytes. Whatever fails raises a `DeviceError`.
    """

    name: str
    architecture: tuple[int, int]  # for which its code is compiled
    interprets = False  # whether it runs PTX, and needs no cubin

    @functools.cached_property
    def copiers(self) -> dict[tuple[int, int, bool], Function]:
        """The loaded kernels of `strided`."""
        return {}

    @functools.cached_property
    def multipliers(self) -> dict[object, Function]:
        """The loaded kernels that multiply matrices, by the keys of their maker."""
        return {}

    @abc.abstractmethod
    def allocate(self, size: int) -> Memory:
        """Return new memory with an address of its own.

        What is in it is not known, and an error on a device that notices reads of it.
        """

    @abc.abstractmethod
    def take(self, size: int) -> Block:
        """Return memory for one call, which gives it back at its end.

        A call that raises need not: the bytes go back when their owner dies.
        """

    @abc.abstractmethod
    def give(self, size: int, block: Block) -> None:
        """Give memory of `take` back, after all that was told to use it."""

    @abc.abstractmethod
    def write(self, target: int, source: np.ndarray) -> None:
        """Copy a C-contiguous array to an address; it may be changed right after."""

    @abc.abstractmethod
    def read(self, source: int, target: np.ndarray) -> None:
        """Fill a C-contiguous array from an address, after all that was told before."""

    @abc.abstractmethod
    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes from one address of the device to another; they do not overlap."""

    @abc.abstractmethod
    def fill(self, target: int, value: int, size: int) -> None:
        """Set bytes to one value, from 0 to 255."""

    @abc.abstractmethod
    def load(self, code: Code) -> Function:
        """Return the function of a kernel; it costs much, so callers keep it."""

    @abc.abstractmethod
    def launch(
        self,
        function: Function,
        grid: int,
        block: int,
        args: Sequence[int | float | bool],
        shared: int = 0,
    ) -> None:
        """Run a kernel with `grid` blocks of `block` threads.

        `args` are addresses and numbers, one for each of the code's kinds; `shared` is
        the size of the dynamic shared memory of a block.
        """

    def multiplies(self, p: Product) -> bool:
        """Tell whether a library of the device's computes such products."""
        return False

    def multiply(self, p: Product, c: int, a: int, b: int, scratch: int) -> None:
        """Multiply matrices by the library, which `multiplies` them.

        `c`, `a` and `b` are the addresses of result, left and right, and `scratch` that
        of SCRATCH bytes.
        """
        raise DeviceError(f"{self.name}: there is no library for products of matrices")

    @abc.abstractmethod
    def batch(self, kinds: Sequence[str], steps: Sequence[Step]) -> Batch:
        """Return the batch of some steps; `kinds` are those of what it is given.

        A `float64` that is given can be an argument for a `float32`.
        """

    @abc.abstractmethod
    def record(self, run: Callable[[], object]) -> Graph:
        """Return what `run` launches, copies and fills as a graph; nothing is done yet.

        `run` may load functions, but not allocate, read, write or wait.
        """

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all that the device was told is done."""


def check_launch(
    function: Function, grid: int, block: int, args: Sequence[object], shared: int
) -> None:
    """Raise the error of a launch that no device would take."""
    kinds = function.code.kinds
    what = f"launch of {function.code.entry}"
    if len(args) != len(kinds):
        listed = ", ".join(kinds)
        raise DeviceError(
            f"{what}: {len(args)} arguments for {len(kinds)} parameters ({listed})",
            rule="A kernel takes one argument for each of its parameters.",
        )
    for name, value, most in (("grid", grid, BLOCKS), ("block", block, THREADS)):
        if not 1 <= value <= most:
            raise DeviceError(
                f"{what}: {name} is {value}",
                rule=f"The {name} of a launch is from 1 to {most}.",
                hint="launch nothing where there is nothing to do" if not value else "",
            )
    if shared < 0:
        raise DeviceError(f"{what}: {shared} bytes of shared memory")


def bytes_of(array: np.ndarray, *, writable: bool = False) -> np.ndarray:
    """Return the bytes of an array of the host, which a device reads or writes."""
    if not array.flags.c_contiguous:
        raise DeviceError(
            f"an array of strides {array.strides} and shape {array.shape}",
            rule="A device copies from and to C-contiguous arrays.",
            hint="np.ascontiguousarray(x)",
        )
    if writable and not array.flags.writeable:
        raise DeviceError("an array that is read-only cannot be read into")
    return array.reshape(-1).view(np.uint8)


def unrecordable(name: str, what: str) -> DeviceError:
    """Return the error of what no graph can hold."""
    return DeviceError(
        f"{name}: {what} while a graph is recorded",
        rule="A graph holds launches, copies and fills.",
        hint="allocate, read and write before the recording",
    )


EMULATED = "cuda:emu"
RULE = (
    f"Devices are 'cuda', which is 'cuda:0', 'cuda:1' and so on, and '{EMULATED}'; "
    "without device= it is the processor."
)

OPENED: dict[str, Device] = {}  # by name
_lock = threading.Lock()


def _own_again() -> None:
    """Forget what a forked child cannot use."""
    global _lock
    _lock = threading.Lock()
    OPENED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_again)


def device(name: str) -> Device:
    """Return the device of a name, always the same one in a process.

    >>> device("cuda:emu").name
    'cuda:emu'
    """
    full = "cuda:0" if name == "cuda" else name
    known = OPENED.get(full)
    if known is not None:
        return known
    with _lock:
        if full not in OPENED:
            OPENED[full] = _open(full)
        return OPENED[full]


def _open(name: str) -> Device:
    if name == EMULATED:
        from . import emulator

        return emulator.Emulator()
    number = isinstance(name, str) and re.fullmatch(r"cuda:(0|[1-9][0-9]*)", name)
    if not number:
        raise DeviceError(f"unknown device {name!r}", rule=RULE)
    from .core import Gpu

    return Gpu(int(number[1]))
