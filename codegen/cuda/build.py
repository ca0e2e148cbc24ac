"""From a pure Func to a callable that runs on a device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.func import Func
from ...ir.types import DType
from ...runtime.devices import Code, Device, DeviceArray, Function, Memory
from ...runtime.devices.array import uploaded
from ..binder import failing, normal
from ..invariants import Invariants
from ..lower import lower
from ..nests import Buffer, Program, Result, drop_unused, listing
from ..recipe import Caller, written
from .calls import caller_of
from .homes import homes_of
from .host import Host
from .kernel import POINTER, Printed, Printer
from .plan import Planner
from .products import Products
from .replay import Calls
from .steps import Launch, all_of

ROUTINES = frozenset({"products", "sorting"})  # of the host, and of kernels
ROUNDS = 8  # iterations of a thread that shares a loop with its block
MOST = 256  # threads of a block


def build(
    func: Func,
    device: Device,
    name: str | None = None,
    *,
    fastmath: bool = False,
    deterministic: bool = False,
) -> DeviceKernel:
    """Compile a pure Func for a device; a kernel is compiled at its first launch."""
    p = lower(func, name or func.name, library=ROUTINES)
    p.deterministic = deterministic
    drop_unused(p)
    planner = Planner(p)
    plan = planner.plan()
    p.buffers += planner.made
    homes = homes_of(p, plan)
    known = (*p.symbols, *(s for s, _, _ in p.sizes), *(s.symbol for s in p.steps))
    invariants = Invariants(known)
    kernels = {
        s.name: Printer(p, s, homes, invariants).printed()
        for s in all_of(plan)
        if isinstance(s, Launch)
    }
    host = Host(p, plan, homes, kernels, invariants)
    calls = Calls(device, len(host.known()), list(host.given().values()))
    caller = caller_of(p, homes)
    return DeviceKernel(p, device, host.source(), kernels, caller, calls, fastmath)


def threads_for(length: int) -> int:
    """Return how many threads of a block share loops of a length.

    Each has some iterations to do, for bringing together what threads have takes time.

    >>> threads_for(3), threads_for(500), threads_for(5000)
    (32, 64, 256)
    """
    return min(max(1 << ((length - 1) // ROUNDS).bit_length(), 32), 256)


def quotient(x: float, y: float) -> float:
    """Return ``x / y`` as kernels have it.

    >>> quotient(1.0, 0.0)
    inf
    """
    with np.errstate(all="ignore"):
        return float(np.divide(x, y))


class Unloaded:
    """A kernel of a device, compiled and loaded when it is first launched.

    Where the host launches it by its name, that names in the host's `space` the launch
    itself from then on.
    """

    def __init__(
        self,
        device: Device,
        name: str,
        printed: Printed,
        space: dict[str, Any],
        fastmath: bool,
    ) -> None:
        self.device = device
        self.name = name
        self.printed = printed
        self.space = space
        self.fastmath = fastmath

    def __call__(
        self, grid: int, block: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        launch = functools.partial(self.device.launch, self.function)
        self.space[self.name] = launch
        launch(grid, block, args, shared)

    @functools.cached_property
    def function(self) -> Function:
        return self.device.load(self.compiled())

    def compiled(self) -> Code:
        """Return the code of the kernel, for the device."""
        from .target import compile_kernel  # only here: it may need Numba's compiler

        params = [kind for _, kind in self.printed.params]
        pointers = [x.removeprefix(POINTER) for x in params if x.startswith(POINTER)]
        return compile_kernel(
            self.printed.source,
            self.name,
            ["pointer" if x.startswith(POINTER) else x for x in params],
            dtypes=pointers,
            fastmath=self.fastmath,
            architecture=self.device.architecture,
            cubin=not self.device.interprets,
            bounds=(MOST, self.printed.at_once),
        )


class DeviceKernel:
    """A compiled Func, called with arrays of its device; see `calls`.

    Called with NumPy arrays, it copies them to the device, and back what it returns and
    what the Func updates, when nothing can fail any more.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        host: str,
        kernels: dict[str, Printed],
        caller: Caller,
        calls: Calls,
        fastmath: bool = False,
    ) -> None:
        self.program = program
        self.device = device
        self.host = host
        self.kernels = kernels
        self.caller = caller
        self.calls = calls
        self.fastmath = fastmath
        self._kept: dict[int, tuple[Any, DeviceArray]] = {}
        self.space = self._space()
        self.call: Callable[..., list[Any]] = self.space["call"]
        self.scratch: Callable[..., int] = self.space["scratch"]
        self.through_host = ThroughHost(self)

    def _space(self) -> dict[str, Any]:
        """Return what the text of the host names, and the functions that it defines."""
        device, p = self.device, self.program
        space: dict[str, Any] = {
            "allocate": device.allocate,
            "take": device.take,
            "give": device.give,
            "fill": device.fill,
            "read": self.read,
            "grown": self.grown,
            "threads_for": threads_for,
            "where": lambda condition, x, y: x if condition else y,
            "maximum": max,
            "minimum": min,
            "quotient": quotient,
            "DeviceArray": DeviceArray,
            "dtype": np.dtype,
            "place": device,
            "graphs": self.calls.graphs,
            "other": self.calls.other,
            "there": self.there,
            "number": self.number,
            "fail": failing(p.failures),
            "multiply": Products(device),
            "constants": [uploaded(device, data) for _, data in p.constants],
        }
        for name, printed in self.kernels.items():
            space[name] = Unloaded(device, name, printed, space, self.fastmath)
        exec(compile(self.host, f"<host of {p.name}>", "exec"), space)
        text = written(self.caller)
        exec(compile(text, f"<call of {p.name}>", "exec"), space)
        return space

    @property
    def source(self) -> str:
        """The kernels and the host function."""
        return "\n".join([*(k.source for k in self.kernels.values()), self.host])

    @property
    def nests(self) -> str:
        return listing(self.program)

    def variant(self, args: Sequence[Any], symbols: Sequence[int]) -> Any:
        """Return what is called with these arguments."""
        there = any(type(x) is DeviceArray for x in args)
        return self if there else self.through_host

    def __call__(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> list[Any]:
        return self.variant(args, symbols).call(args, symbols)  # type: ignore[no-any-return]

    # What the text of the host calls ----------------------------------------------

    def read(self, dtype: str, address: int) -> Any:
        """Return one element of device memory."""
        out = np.empty(1, dtype)
        self.device.read(address, out)
        return out[0].item()

    def grown(self, memory: Memory, size: int) -> Memory:
        """Return more memory with the same contents."""
        new = self.device.allocate(max(size, 2 * memory.size))
        self.device.copy(new.address, memory.address, memory.size)
        return new

    def there(self, k: int, x: Any) -> DeviceArray:
        """Return an argument in C order on the device.

        Arrays that were made while tracing do not change, and are copied once.
        """
        if isinstance(x, DeviceArray):
            return x.copy()
        known = self._kept.get(k)
        if known is not None and known[0] is x:
            return known[1]
        copied = uploaded(self.device, normal(x, self.program.params[k].dtype))
        if x.ndim:
            self._kept[k] = x, copied
        return copied

    def number(self, x: Any, dtype: DType) -> DeviceArray:
        """Return a number that the host has computed."""
        return uploaded(self.device, np.array(x, dtype))


class ThroughHost:
    """Calls a kernel with NumPy arrays."""

    def __init__(self, kernel: DeviceKernel) -> None:
        self.kernel = kernel
        self.scratch = kernel.scratch

    @property
    def source(self) -> str:
        return self.kernel.source

    @property
    def nests(self) -> str:
        return self.kernel.nests

    def call(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> list[Any]:
        """Copy arguments to the device, and back what was computed."""
        p = self.kernel.program
        arrays: dict[int, np.ndarray[Any, Any]] = {}
        given = list(args)
        for k, param in enumerate(p.params):
            if isinstance(param, Buffer):
                arrays[k] = normal(args[k], param.dtype)
                given[k] = uploaded(self.kernel.device, arrays[k])
        out = self.kernel.call(given, symbols)
        for j, r in enumerate(p.results):
            if r.updates is None:
                out[j] = _shown(r, out[j])
                continue
            given[r.updates].place.read(given[r.updates].address, arrays[r.updates])
            out[j] = args[r.updates]
            if arrays[r.updates] is not out[j]:
                out[j][...] = arrays[r.updates]
        return out

    __call__ = call


def _shown(r: Result, x: DeviceArray) -> Any:
    """Return a result as kernels of the processor return it."""
    if isinstance(r.what, Buffer):
        return x.numpy()
    if r.weak:
        return x.item()
    return r.dtype.type(x.item()) if r.scalar else x.numpy()
