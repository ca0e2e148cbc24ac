"""From a pure Func to a callable that runs on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir import dims
from ...ir.dims import Symbol
from ...ir.func import Func
from ...runtime.devices import Code, Device, Memory
from ..binder import failing, normal
from ..carried import uses_in
from ..emit import arena_slots, late_symbols
from ..invariants import Invariants
from ..kernels import lower
from ..nests import Buffer, Program, Reg, Result, drop_unused, listing
from .homes import homes_of
from .host import Host
from .kernel import POINTER, Printed, Printer
from .plan import Planner
from .steps import Launch, all_of

ROUTINES = frozenset({"sorting"})  # that kernels can call
ROUNDS = 8  # iterations of a thread that shares a loop with its block
BOUNDS = 256, 4  # threads of a block, and blocks at once: up to 64 registers


def build(func: Func, device: Device, name: str | None = None) -> DeviceKernel:
    """Compile a pure Func for a device; a kernel is compiled at its first launch."""
    p = lower(func, name or func.name, library=ROUTINES)
    drop_unused(p)
    planner = Planner(p)
    plan = planner.plan()
    p.buffers += planner.made
    homes = homes_of(p, plan)
    known = (*p.symbols, *(s for s, _, _ in p.sizes), *(s.symbol for s in p.steps))
    invariants = Invariants(known)
    uses = uses_in(p)
    kernels = {
        s.name: Printer(p, s, homes, uses, invariants).printed()
        for s in all_of(plan)
        if isinstance(s, Launch)
    }
    host = Host(p, plan, homes, kernels, invariants).source()
    return DeviceKernel(p, device, host, kernels)


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


class Loaded:
    """A kernel of a device, compiled and loaded when it is first launched."""

    def __init__(self, device: Device, name: str, printed: Printed) -> None:
        self.device = device
        self.name = name
        self.printed = printed
        self.function: Any = None

    def __call__(
        self, grid: int, block: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        if self.function is None:
            self.function = self.device.load(self.compiled())
        self.device.launch(self.function, grid, block, args, shared)

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
            architecture=self.device.architecture,
            cubin=not self.device.interprets,
            bounds=BOUNDS,
        )


@dataclass(slots=True)
class DeviceKernel:
    """A compiled Func: called with NumPy arrays, it copies them to the device and back.

    Arguments that the Func updates are written when nothing can fail any more.
    """

    program: Program
    device: Device
    host: str
    kernels: dict[str, Printed]
    run: Callable[..., Any] = field(init=False, repr=False)
    constants: list[Memory] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        device = self.device
        space: dict[str, Any] = {
            "allocate": device.allocate,
            "fill": device.fill,
            "read": self.read,
            "grown": self.grown,
            "threads_for": threads_for,
            "where": lambda condition, x, y: x if condition else y,
            "maximum": max,
            "minimum": min,
            "quotient": quotient,
        }
        for name, printed in self.kernels.items():
            space[name] = Loaded(device, name, printed)
        exec(compile(self.host, f"<host of {self.program.name}>", "exec"), space)
        self.run = space["run"]
        self.constants = [self.uploaded(data) for _, data in self.program.constants]

    @property
    def source(self) -> str:
        """The kernels and the host function."""
        return "\n".join([*(k.source for k in self.kernels.values()), self.host])

    @property
    def nests(self) -> str:
        return listing(self.program)

    def variant(self, args: Sequence[Any], symbols: Sequence[int]) -> DeviceKernel:
        return self

    def scratch(self, args: Sequence[Any], symbols: Sequence[int]) -> int:
        """Return the bytes of temporary memory that sizes alone decide."""
        values = self.sizes(args, symbols)
        return sum(dims.evaluate(size, values) for size, _ in arena_slots(self.program))

    def sizes(self, args: Sequence[Any], symbols: Sequence[int]) -> dict[Symbol, int]:
        values = dict(zip(self.program.symbols, symbols, strict=True))
        for s, k, axis in self.program.sizes:
            values[s] = args[k].shape[axis]
        return values

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

    def uploaded(self, x: np.ndarray[Any, Any]) -> Memory:
        memory = self.device.allocate(x.nbytes)
        if x.nbytes:
            self.device.write(memory.address, np.ascontiguousarray(x))
        return memory

    def __call__(self, args: Sequence[Any], symbols: Sequence[int] = ()) -> list[Any]:
        p = self.program
        given: list[Any] = []
        arrays: dict[int, np.ndarray[Any, Any]] = {}
        memories: dict[int, Memory] = {}
        for k, (x, param) in enumerate(zip(args, p.params, strict=True)):
            if isinstance(param, Reg):
                given.append(x)
                continue
            arrays[k] = normal(x, param.dtype)
            memories[k] = self.uploaded(arrays[k])
            given.append(memories[k].address)
        values = self.sizes(args, symbols)
        constants = [m.address for m in self.constants]
        status, found = self.run(*given, *values.values(), *constants)
        if status:
            failing(p.failures)(status)
        results, late = found
        values.update(zip(late_symbols(p), late, strict=True))
        out = []
        for r, memory in zip(p.results, results, strict=True):
            if r.updates is not None:
                self.device.read(memories[r.updates].address, arrays[r.updates])
                out.append(args[r.updates])
                if arrays[r.updates] is not args[r.updates]:
                    args[r.updates][...] = arrays[r.updates]
            else:
                out.append(self.result(r, memory, values))
        return out

    def result(self, r: Result, memory: Any, values: Any) -> Any:
        """Return a result as the CPU's kernels return it."""
        if isinstance(r.what, Buffer):
            a = np.empty([dims.evaluate(d, values) for d in r.shape], r.dtype)
            if a.size:
                self.device.read(memory.address, a)
            return a
        x = memory
        if isinstance(x, tuple):
            x = self.read(r.dtype.name, x[1])
        if r.weak:
            return x
        return r.dtype.type(x) if r.scalar else np.array(x, r.dtype)
