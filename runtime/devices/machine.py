"""Runs translated PTX: threads as lanes, blocks group by group, barriers and errors.

Note [order]
Of all frames that can go on, the one at the lowest block goes on, so that threads which
parted meet again where their paths do. Blocks run in groups of some thousand threads,
one group after the other; atomics happen in the order of threads. A run is therefore
deterministic, and one of those that a GPU may choose. With an `order`, a generator of
random numbers, groups come in another order, and so do the atomics of one instruction:
another run of those.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import arithmetic, warps
from .counts import Counts, Traffic
from .emitter import plain
from .flow import flow
from .geometry import Geometry, geometry
from .lanes import EXIT, LANES, Frame, meet
from .ptx import Instruction, Module, PtxError, parse
from .races import Races
from .space import Allocation, Space
from .translate import Program, translate

__all__ = ["Counts", "Module", "PtxError", "Space", "launch", "parse"]

LIMIT = 1024  # threads of a block

Extent = int | tuple[int, ...]


def launch(
    module: Module,
    entry: str,
    grid: Extent,
    block: Extent,
    args: Sequence[int | float | bool],
    space: Space,
    shared: int = 0,
    *,
    races: bool = True,
    sectors: bool = True,
    order: np.random.Generator | None = None,
) -> Counts:
    """Run an entry of a module on a grid of blocks, and return what it did.

    `args` are the entry's parameters in order, pointers as addresses of `space`;
    `shared` is the size of its dynamic shared memory in bytes. PtxError says what the
    program did wrong; `races` switches the search for data races, `sectors` the count
    of sectors, and `order` draws one: Note [order]. Memory is then as the program left
    it.
    """
    program = prepared(module, entry)
    blocks, threads = extent(grid), extent(block)
    size = math.prod(threads)
    if not 0 < size <= LIMIT:
        raise PtxError(f"a block of {size} threads, which has to have 1 to {LIMIT}")
    values = parameters(program, args) | addresses(program, module, space)
    traffic = Traffic(sectors)
    found = Races(size, program.accesses) if races else None
    count, step = math.prod(blocks), max(1, LANES // size)
    starts = list(range(0, count, step))
    if order is not None:
        order.shuffle(starts)
    total = 0
    touched: set[Allocation] = set()
    try:
        with np.errstate(all="ignore"):
            for start in starts:
                group = Group(program, space, traffic, found, touched, values, shared)
                group.order = order
                held = min(step, count - start)
                group.place(geometry(blocks, threads, start, held))
                try:
                    total += group.run()
                finally:
                    group.close()
            if found is not None:
                found.finish()
    finally:
        for access in program.accesses:
            access.last = None  # of this space; another one has the same addresses
    for allocation in touched:
        allocation.settle()
    return Counts(
        1, total, traffic.read, traffic.written, traffic.sectors, traffic.least
    )


def prepared(module: Module, entry: str) -> Program:
    """Return the translation of an entry, made at its first launch."""
    found = module.programs.get(entry)
    if not isinstance(found, Program):
        found = module.programs[entry] = translate(flow(module, entry), HELPERS)
    return found


HELPERS: dict[str, Any] = {
    "shuffle": warps.shuffle,
    "vote": warps.vote,
    "match": warps.match,
    "active": warps.active,
    "meet_warp": warps.meet_warp,
    "reduce_block": warps.reduce_block,
}


def extent(given: Extent) -> tuple[int, int, int]:
    """Return the three extents of a grid or block."""
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise PtxError(f"{given} is no extent: one to three numbers from 1 on")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def parameters(program: Program, args: Sequence[int | float | bool]) -> dict[str, Any]:
    """Return the values of the entry's parameters by register."""
    declared = program.flow.entry.parameters
    if len(args) != len(declared):
        raise PtxError(f"{len(args)} arguments for {len(declared)} parameters")
    values = {}
    for declaration, given in zip(declared, args, strict=True):
        dtype = getattr(arithmetic, plain(declaration.type))
        if np.dtype(dtype).kind == "i":
            bits = 8 * np.dtype(dtype).itemsize
            number = int(given) & ((1 << bits) - 1)
            value = dtype(number - (1 << bits) if number >> (bits - 1) else number)
        else:
            value = dtype(given)
        values[f"param {declaration.name}"] = value
    return values


def addresses(program: Program, module: Module, space: Space) -> dict[str, Any]:
    """Return the addresses of the module's variables, put into space at first use."""
    if not program.flow.variables:
        return {}
    known = space.globals.setdefault(module, {})
    for name, variable in program.flow.variables.items():
        if name not in known:
            known[name] = space.allocate(variable.size, name)
            data = variable.initial or bytes(variable.size)
            space.write(known[name], np.frombuffer(data, np.uint8))
    return {f"&{name}": np.int64(known[name]) for name in program.flow.variables}


class Group:
    """Blocks that run together: their threads, memory, and what they wait for."""

    def __init__(
        self,
        program: Program,
        space: Space,
        traffic: Traffic,
        races: Races | None,
        touched: set[Allocation],
        values: dict[str, Any],
        dynamic: int,
    ) -> None:
        self.program, self.space, self.traffic = program, space, traffic
        self.races, self.touched, self.inputs = races, touched, values
        self.shared_size = program.flow.shared + dynamic
        self.local_size = program.flow.local + -program.flow.local % 16
        self.pending: dict[int, list[Frame]] = {}
        self.heap: list[int] = []
        self.waiting: list[tuple[int, Frame, Instruction]] = []
        self.exited: Any = None
        self.epoch: Any = 0
        self.meeting: Any = 0
        self.order: np.random.Generator | None = None

    def place(self, geometry: "Geometry") -> None:
        """Give every thread its number, its place in its block, and memory."""
        self.geometry = geometry
        self.threads, self.ragged = geometry.threads, geometry.ragged
        self.first_block = geometry.start
        self.first = geometry.start * geometry.threads
        self.block, self.lane, self.warp = geometry.block, geometry.lane, geometry.warp
        self.warp_masks, count = geometry.warp_masks, geometry.count
        stride = self.shared_size + -self.shared_size % 256
        self.shared = Allocation("shared memory", 0, stride * count)
        self.shared_start: Any = self.block * stride if count > 1 else np.int64(0)
        size = count * geometry.threads
        self.local = Allocation("local memory", 0, self.local_size * size)
        self.root = Frame(self, geometry.every, [None] * len(self.program.names), None)
        flow = self.program.flow
        self.inputs["%dynamic_smem_size"] = np.int32(self.shared_size - flow.shared)
        self.inputs["%total_smem_size"] = np.int32(self.shared_size)
        for name in flow.inputs:
            value = self.inputs.get(name)
            if value is None:
                value = geometry.special(name)
            self.root.values[self.program.slots[name]] = value

    # What frames ask for.

    def thread(self, lane: int) -> str:
        """Name a thread for errors."""
        block, inside = divmod(lane, self.threads)
        return f"thread {inside} of block {block + self.first_block}"

    def rows(self, frame: Frame) -> "warps.Rows":
        """Return the warps of a frame."""
        if not frame.whole:
            return warps.Rows(frame)
        if self.geometry.rows is None:
            self.geometry.rows = warps.Rows(frame)
        return self.geometry.rows

    def times(self, lanes: Any) -> tuple[Any, Any]:
        """Return how many barriers and meetings of their warp threads have passed."""
        epoch, meeting = self.epoch, self.meeting
        if epoch.__class__ is np.ndarray:
            epoch = epoch[self.block[lanes]]
        if meeting.__class__ is np.ndarray:
            meeting = meeting[self.warp[lanes]]
        return epoch, meeting

    def pass_barrier(self) -> None:
        self.epoch = self.epoch + 1

    def pass_warps(self, frame: Frame) -> None:
        """Count a meeting of the warps of a frame."""
        if not frame.whole:
            met = np.zeros(len(self.warp_masks), np.int64)
            met[self.warp[frame.lanes]] = 1
            self.meeting = self.meeting + met
        else:
            self.meeting = self.meeting + 1

    def send(self, frame: Frame, target: int) -> None:
        """Let a frame go on at a block when its turn comes."""
        if target in self.pending:
            self.pending[target].append(frame)
        else:
            self.pending[target] = [frame]
            heapq.heappush(self.heap, target)

    # The run. Note [order]

    def run(self) -> int:
        """Run all threads to their end; return the number of instructions."""
        code, sizes, heap = self.program.code, self.program.sizes, self.heap
        frame, at, done = self.root, 0, 0
        while True:
            if heap and heap[0] <= at:
                self.send(frame, at)
                frame, at = self.next()
            done += sizes[at] * frame.size
            target = code[at](frame)
            if target >= 0:
                at = target
                continue
            if target == EXIT and self.leave(frame):
                break
            if not heap and not self.release():
                break
            frame, at = self.next()
        if self.races is not None:
            self.races.finish(self.shared)
        return done

    def close(self) -> None:
        """Free what the group holds; it and its root frame refer to each other."""
        self.root.values.clear()
        self.shared.free()
        self.local.free()

    def next(self) -> tuple[Frame, int]:
        """Return all threads that are at the lowest block, as one frame."""
        at = heapq.heappop(self.heap)
        return meet(self.pending.pop(at), self.program.live[at]), at

    def leave(self, frame: Frame) -> bool:
        """Let threads exit; tell whether all have gone at once."""
        if frame.whole:
            return True
        if self.exited is None:
            self.exited = np.zeros(self.root.size, bool)
        self.exited[frame.lanes] = True
        return False

    def release(self) -> bool:
        """Let the threads at barriers go on; False if there are none."""
        if not self.waiting:
            return False
        waiting, self.waiting = self.waiting, []
        places = np.full(self.root.size, -1)
        for number, (_, frame, _) in enumerate(waiting):
            places[frame.lanes] = number
        targets = np.array([-1, *(target for target, _, _ in waiting)])[places + 1]
        rows = targets.reshape(-1, self.threads)
        wrong = (rows != rows[:, :1]).any(axis=1)
        if wrong.any():
            self.stuck(int(np.argmax(wrong)), places, targets, waiting)
        passed = (rows[:, 0] >= 0).astype(np.int64)
        self.epoch = self.epoch + (passed if not passed.all() else 1)
        for target, frame, _ in waiting:
            self.send(frame, target)
        return True

    def stuck(
        self,
        block: int,
        places: Any,
        targets: Any,
        waiting: list[tuple[int, Frame, Instruction]],
    ) -> None:
        """Raise the error of a barrier that some threads of a block do not reach."""
        mine = slice(block * self.threads, (block + 1) * self.threads)
        here = mine.start + int(np.argmax(targets[mine] >= 0))
        other = mine.start + int(np.argmax(targets[mine] != targets[here]))
        at = waiting[places[here]][2]
        if places[other] < 0:
            raise PtxError(
                f"{self.thread(here)} waits at a barrier that {self.thread(other)} "
                "never reaches: it has ended",
                at=at,
                rule="all threads of a block have to reach the same barriers",
            )
        elsewhere = waiting[places[other]][2]
        raise PtxError(
            f"divergent barrier: {self.thread(here)} waits here, "
            f"{self.thread(other)} at line {elsewhere.line}",
            at=at,
            rule="all threads of a block have to reach the same barriers",
        )
