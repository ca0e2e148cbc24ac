"""The device whose kernels are interpreted: a GPU's answers without a GPU.

All is done at once and by one thread at a time, so that a fault is raised by the call
that has it. A graph is the list of what was recorded.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...ir.errors import DeviceError
from . import machine, ptx
from .interface import (
    ARCHITECTURE,
    EMULATED,
    Batch,
    Block,
    Code,
    Device,
    Fill,
    Function,
    Given,
    Graph,
    Launch,
    Memory,
    Step,
    bytes_of,
    check_launch,
    unrecordable,
)


class EmulatedFunction(Function):
    """A kernel as parsed PTX."""

    __slots__ = ("module",)

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.module = ptx.parse(code.ptx)


class _Block:
    """Bytes of the emulated memory; their address is noted when this dies.

    It may die in any thread and at any moment, so that the device gives the bytes back
    when it is next asked for something.
    """

    __slots__ = ("_address", "_dead")

    def __init__(self, address: int, dead: deque[int]) -> None:
        self._address = address
        self._dead = dead

    def __del__(self) -> None:
        self._dead.append(self._address)


class EmulatedGraph(Graph):
    """What was recorded, in order."""

    def __init__(self, device: Emulator, steps: list[Callable[[], None]]) -> None:
        self._device = device
        self._steps = steps

    def launch(self) -> None:
        self._device.run(self._steps)


class EmulatedBatch(Batch):
    """The steps, which are told one by one."""

    def __init__(self, device: Emulator, steps: Sequence[Step]) -> None:
        self._device = device
        self._steps = steps

    def launch(self, *given: int | float | bool) -> None:
        def now(x: Any) -> Any:
            if not isinstance(x, Given):
                return x
            value = given[x.index]
            return value + x.offset if x.offset else value  # -0.0 + 0 is 0.0

        device = self._device
        for step in self._steps:
            match step:
                case Launch(function, grid, block, args, shared):
                    device.launch(function, grid, block, list(map(now, args)), shared)
                case Fill(target, value, size):
                    device.fill(now(target), value, size)


class Emulator(Device):
    """A GPU that NumPy plays.

    `counts` says what its kernels did; set it to `Counts()` to begin again. Blocks and
    atomics come in the order of their numbers, or in one that a generator draws:
    `order`.
    """

    interprets = True

    def __init__(self) -> None:
        self.name = EMULATED
        self.architecture = ARCHITECTURE
        self.counts = machine.Counts()
        self.order: np.random.Generator | None = None
        self._space = machine.Space()
        self._dead: deque[int] = deque()  # addresses of memory that nobody has any more
        self._steps: list[Callable[[], None]] | None = None  # of a graph being recorded
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def _told(self, what: str, *, recorded: bool = False) -> Iterator[None]:
        """Be alone with the memory; name what was asked for in errors."""
        with self._lock:
            if self._steps is not None and not recorded:
                raise unrecordable(self.name, what)
            try:
                while self._dead:
                    self._space.free(self._dead.popleft())
                yield
            except ptx.PtxError as error:
                what = f"{self.name}: {what}: {error.what}"
                rest = str(error).splitlines()[1:]
                rule = "\n  ".join(line.strip() for line in rest)
                raise DeviceError(what, rule=rule) from error

    def _do(self, step: Callable[[], None]) -> None:
        """Do something now, or when the graph that is being recorded is launched."""
        if self._steps is None:
            step()
        else:
            self._steps.append(step)

    def in_use(self) -> int:
        """Return the bytes that are allocated."""
        with self._told("count"):
            return sum(allocation.size for allocation in self._space.live())

    def allocate(self, size: int) -> Memory:
        with self._told("allocation"):
            address = self._space.allocate(size)
        return Memory(address, size, _Block(address, self._dead))

    def take(self, size: int) -> Block:
        memory = self.allocate(size)
        return memory.address, memory

    def give(self, size: int, block: Block) -> None:
        """Do nothing: its owner dies."""

    def write(self, target: int, source: np.ndarray) -> None:
        with self._told("write"):
            self._space.write(target, bytes_of(source))

    def read(self, source: int, target: np.ndarray) -> None:
        with self._told("read"):
            self._space.read(source, bytes_of(target, writable=True))

    def copy(self, target: int, source: int, size: int) -> None:
        with self._told("copy", recorded=True):
            self._do(lambda: self._space.copy(target, source, size))

    def fill(self, target: int, value: int, size: int) -> None:
        with self._told("fill", recorded=True):
            self._do(lambda: self._space.fill(target, value, size))

    def load(self, code: Code) -> EmulatedFunction:
        with self._told(f"load of {code.entry}", recorded=True):
            return EmulatedFunction(code)

    def launch(
        self,
        function: Any,
        grid: int,
        block: int,
        args: Sequence[int | float | bool],
        shared: int = 0,
    ) -> None:
        check_launch(function, grid, block, args, shared)
        kept = tuple(args)
        with self._told(f"launch of {function.code.entry}", recorded=True):
            self._do(lambda: self._launch(function, grid, block, kept, shared))

    def _launch(
        self,
        function: EmulatedFunction,
        grid: int,
        block: int,
        args: tuple[int | float | bool, ...],
        shared: int,
    ) -> None:
        entry = function.code.entry
        self.counts += machine.launch(
            function.module,
            entry,
            grid,
            block,
            args,
            self._space,
            shared=shared,
            order=self.order,
        )

    def batch(self, kinds: Sequence[str], steps: Sequence[Step]) -> EmulatedBatch:
        return EmulatedBatch(self, steps)

    def record(self, run: Callable[[], object]) -> EmulatedGraph:
        with self._told("recording"):
            steps: list[Callable[[], None]] = []
            self._steps = steps
            try:
                run()
            finally:
                self._steps = None
        return EmulatedGraph(self, steps)

    def run(self, steps: Sequence[Callable[[], None]]) -> None:
        """Do the steps of a graph."""
        with self._told("launch of a graph"):
            for step in steps:
                step()

    def synchronize(self) -> None:
        with self._told("waiting"):
            pass
