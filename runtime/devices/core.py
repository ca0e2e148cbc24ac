"""A real GPU, by cuda.core and the driver's own functions.

Note [one stream]
A device has one stream, which all threads share, since what one thread computed another
may read, and events between streams of threads would cost more than they give. Memory
comes from the pool of the device, by way of `pool`: both hand out in stream order what
was given back. A lock keeps calls of other threads out of a graph that is being
recorded, which has a stream of its own.

Note [cost of a launch]
A step of a small model is some hundred launches, so a launch has to cost the processor
about as much as it costs the driver. The addresses of a place for arguments never
change: `pack` writes the values there, `configure` the grid and the stream where they
are others than before, and the driver copies all before it returns. A place belongs to
one thread at a time, so no lock is needed. The driver is called by its address: so the
bindings, which convert each number once more, are not on the way. The launches of a
batch cost it one call: Note [batches] in `submit`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...ir.errors import DeviceError, DeviceMemoryError
from . import packages, submit
from .blas import Blas, calls_of
from .interface import (
    FORMATS,
    Batch,
    Block,
    Code,
    Device,
    Function,
    Graph,
    Launch,
    Memory,
    Step,
    bytes_of,
    check_launch,
    unrecordable,
)
from .pool import Pool, Pooled
from .products import Product

# CUlaunchConfig: grid, block, shared memory, stream, attributes and how many they are.
CONFIG = struct.Struct("7IPPI4x")
SMALL = 48 * 1024  # bytes of shared memory that need no leave
OLDEST = 12000  # the version of the driver's functions that are called by address
BROKEN = (
    "A fault of a kernel is reported by a later call, and nothing works after it in "
    "this process."
)
FIND = (
    "device='cuda:emu' finds accesses outside of arrays and says where; so does "
    "compute-sanitizer"
)
UPDATE = "update the driver, or install an older CUDA toolkit"
# By the driver's name of what went wrong: the rule, and a way out.
REASONS = {
    "CUDA_ERROR_NO_DEVICE": ("The driver finds no GPU.", packages.DRIVER),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "A forked process cannot use the GPU of its parent.",
        "start processes by multiprocessing.get_context('spawn')",
    ),
    "CUDA_ERROR_INVALID_IMAGE": ("The code is not for this GPU.", UPDATE),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ("The code is not for this GPU.", UPDATE),
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
        "The compiler is newer than the driver.",
        UPDATE,
    ),
    "CUDA_ERROR_ILLEGAL_ADDRESS": (BROKEN, FIND),
    "CUDA_ERROR_MISALIGNED_ADDRESS": (BROKEN, FIND),
    "CUDA_ERROR_LAUNCH_FAILED": (BROKEN, FIND),
    "CUDA_ERROR_LAUNCH_TIMEOUT": (BROKEN, "take a GPU that has no display"),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "A block has more registers or shared memory than the GPU has.",
        "launch with smaller blocks",
    ),
}


class Place:
    """Where a launch is packed, for one thread at a time: Note [cost of a launch].

    `given` are the driver's arguments. `config` is what `configure` packed last.
    """

    __slots__ = ("_pointers", "config", "configure", "given", "pack")

    def __init__(
        self,
        pack: Callable[..., None],
        configure: Callable[..., None],
        given: tuple[Any, ...],
        pointers: object,
    ) -> None:
        self.pack = pack
        self.configure = configure
        self.given = given
        self._pointers = pointers  # to which `given` points
        self.config: tuple[int, ...] = ()


class GpuFunction(Function):
    """A loaded kernel, with places for the arguments of a launch."""

    __slots__ = ("_kernel", "_layout", "handle", "places", "shared")

    def __init__(self, code: Code, kernel: Any) -> None:
        super().__init__(code)
        self._kernel = kernel  # keeps the code loaded
        self.handle = int(kernel.handle)  # a CUkernel, which passes for a CUfunction
        self.shared = SMALL - code.static  # dynamic shared memory that it may take
        self._layout = struct.Struct("".join(FORMATS[kind] for kind in code.kinds))
        self.places: list[Place] = []  # that no thread uses now

    def place(self) -> Place:
        """Return a new place."""
        size = self._layout.size
        config, values = map(ctypes.create_string_buffer, (CONFIG.size, max(size, 1)))
        start = ctypes.addressof(values)
        offsets = [start + offset for offset in _offsets(self.code.kinds)]
        pointers = (ctypes.c_void_p * max(len(offsets), 1))(*offsets)
        given = (
            ctypes.addressof(config),
            self.handle,
            ctypes.addressof(pointers),
            None,
        )
        return Place(
            functools.partial(self._layout.pack_into, values, 0),
            functools.partial(CONFIG.pack_into, config, 0),
            tuple(map(ctypes.c_void_p, given)),
            pointers,
        )


def _offsets(kinds: Sequence[str]) -> list[int]:
    """Return where `struct` puts values of these kinds."""
    formats = [FORMATS[kind] for kind in kinds]
    ends = [struct.calcsize("".join(formats[: n + 1])) for n in range(len(formats))]
    return [
        end - struct.calcsize(form) for end, form in zip(ends, formats, strict=True)
    ]


class GpuGraph(Graph):
    """A graph of the driver's."""

    def __init__(self, device: Gpu, graph: Any) -> None:
        self._device = device
        self._graph = graph
        self._given = ctypes.c_void_p(int(graph.handle)), device.stream
        self._launch = device.graph_launch

    def launch(self) -> None:
        if self._device.recording:
            self._device.refuse("launch of a graph")  # or wait for other threads
        status = self._launch(*self._given)
        if status:
            raise self._device.failure(status, "launch of a graph")


class GpuBatch(Batch):
    """Steps as words that native code reads: Note [batches] in `submit`."""

    def __init__(
        self, device: Gpu, kinds: Sequence[str], steps: Sequence[Step]
    ) -> None:
        self._device = device
        self._kinds = kinds
        self._steps = steps  # they keep their functions loaded
        self._words, self._starts = submit.encoded(kinds, steps)
        self._address = ctypes.c_void_p(ctypes.addressof(self._words))
        self._pack = submit.packer(kinds)

    def launch(self, *given: int | float | bool) -> None:
        try:
            values = self._pack(*given)
        except (struct.error, OverflowError, TypeError) as error:
            raise DeviceError(
                f"{self._device.name}: a batch of launches: {error}",
                rule=f"What it is given is to be ({', '.join(self._kinds)}).",
            ) from error
        failed = self._device.submit(self._address, values)
        if failed:
            raise self._failure(failed)

    def _failure(self, failed: int) -> DeviceError:
        """Return the error of the step that the driver did not take."""
        start, status = divmod(failed, submit.FAILED)
        what = "fill"
        if start in self._starts:
            step = self._steps[self._starts.index(start)]
            if isinstance(step, Launch):
                what = f"launch of {step.function.code.entry}"
        return self._device.failure(status, what)


class Gpu(Device):
    """A GPU of this machine; see Note [one stream]."""

    def __init__(self, number: int) -> None:
        self.name = f"cuda:{number}"
        self.number = number
        self._driver = driver = _started(self.name)
        (count,) = self._checked(driver.cuDeviceGetCount(), "cannot count GPUs")
        if number >= count:
            raise DeviceError(
                f"{self.name}: there is no such GPU",
                rule=f"This process sees {count} (see CUDA_VISIBLE_DEVICES).",
                hint="use " + " or ".join(f"'cuda:{n}'" for n in range(count))
                if count
                else packages.DRIVER,
            )
        from cuda.core import Device as CoreDevice
        from cuda.core import ObjectCode
        from cuda.core._utils.cuda_utils import CUDAError

        self._failure = CUDAError
        self._code = ObjectCode
        self._core = CoreDevice(number)
        self._core.set_current()
        (self._context,) = self._checked(driver.cuCtxGetCurrent(), "no context")
        self.architecture = tuple(self._core.compute_capability)
        self._stream = self._core.create_stream()
        self._memory = self._core.memory_resource
        self._pool = Pool(self._fresh)
        self._main = int(self._stream.handle)
        self.recording = 0  # the stream of the graph that is being recorded
        self.stream = ctypes.c_void_p(self._main)
        self._lock = threading.RLock()
        self._blas: Blas | None = None
        self._has_blas: bool | None = None  # not known yet
        attributes = driver.CUpointer_attribute
        self._memory_type = attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        pointer = ctypes.c_void_p
        self._context_pointer = pointer(int(self._context))
        self._launch = self._entry("cuLaunchKernelEx", 4 * [pointer])
        self.graph_launch = self._entry("cuGraphLaunch", 2 * [pointer])
        self._set_context = self._entry("cuCtxSetCurrent", [pointer])
        kinds = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, pointer]
        self._memset = self._entry("cuMemsetD8Async", kinds)

    def _entry(self, name: str, kinds: Sequence[Any]) -> Callable[..., int]:
        """Return a function of the driver's; see Note [cost of a launch]."""
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self._address(name))

    def _address(self, name: str) -> int:
        found = self._driver.cuGetProcAddress(name.encode(), OLDEST, 0)
        address, _ = self._checked(found, f"no {name}")
        return int(address)

    def _checked(self, result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        """Return the values of a call of the driver's, or raise its error."""
        status, *values = result
        if status:
            raise self._error(status, what)
        return tuple(values)

    def _error(self, status: Any, what: str) -> DeviceError:
        name = str(status.name)
        rule, hint = REASONS.get(name, ("", ""))
        if not rule:
            _, text = self._driver.cuGetErrorString(status)
            rule = f"The driver says: {(text or b'').decode()}."
        return DeviceError(f"{self.name}: {what}: {name}", rule=rule, hint=hint)

    def failure(self, status: int, what: str) -> DeviceError:
        """Return the error of a status of the driver's."""
        return self._error(self._driver.CUresult(status), what)

    def _enter(self, what: str) -> None:
        """Make the GPU that of this thread; refuse what no graph can hold."""
        if self.recording:
            raise unrecordable(self.name, what)
        self._checked(self._driver.cuCtxSetCurrent(self._context), what)

    def allocate(self, size: int) -> Memory:
        if self.recording:
            self._enter("allocation")
        return Pooled(size, self._pool)

    def take(self, size: int) -> Block:
        return self._pool.take(size)

    def give(self, size: int, block: Block) -> None:
        self._pool.give(size, block)

    def _fresh(self, size: int) -> tuple[int, object]:
        """Allocate from the driver; the bytes are given back when the object dies."""
        with self._lock:
            self._enter("allocation")
            try:
                buffer = self._memory.allocate(max(size, 1), stream=self._stream)
            except self._failure as error:
                raise self._no_room(size, error) from error
        return int(buffer.handle), buffer

    def _no_room(self, size: int, error: Exception) -> DeviceError:
        reason = str(error).split(":")[0]
        if "OUT_OF_MEMORY" not in reason:
            return DeviceError(f"{self.name}: allocation of {size} bytes: {reason}")
        status, free, total = self._driver.cuMemGetInfo()
        used = self._memory.attributes.used_mem_current
        rule = f"This process uses {used} bytes."
        if not status:
            rule = (
                f"Free are {free} of {total} bytes, of which this process uses {used}."
            )
        return DeviceMemoryError(
            f"{self.name}: no room for {size} bytes",
            rule=rule,
            hint="drop what is not needed any more, or compute in smaller pieces",
        )

    def write(self, target: int, source: np.ndarray) -> None:
        data = bytes_of(source)
        if not data.size:
            return
        address = data.__array_interface__["data"][0]
        driver = self._driver
        with self._lock:
            self._enter("write")
            result = driver.cuMemcpyHtoDAsync(target, address, data.size, self._main)
            self._checked(result, "write")
            pinned = self._is_pinned(address)
        if pinned:
            self.synchronize()

    def _is_pinned(self, address: int) -> bool:
        """Tell whether the driver knows memory of the host, and reads it when it likes.

        From other memory it has copied by the time that it returns.
        """
        status, _ = self._driver.cuPointerGetAttribute(self._memory_type, address)
        return not status

    def read(self, source: int, target: np.ndarray) -> None:
        data = bytes_of(target, writable=True)
        if not data.size:
            return
        driver = self._driver
        with self._lock:
            self._enter("read")
            result = driver.cuMemcpyDtoHAsync(
                data.__array_interface__["data"][0], source, data.size, self._main
            )
            self._checked(result, "read")
        self._checked(driver.cuStreamSynchronize(self._main), "read")

    def copy(self, target: int, source: int, size: int) -> None:
        if not size:
            return
        driver = self._driver
        with self._lock:
            self._checked(driver.cuCtxSetCurrent(self._context), "copy")
            queue = self.recording or self._main
            result = driver.cuMemcpyDtoDAsync(target, source, size, queue)
            self._checked(result, "copy")

    def fill(self, target: int, value: int, size: int) -> None:
        if not size:
            return
        queue = self._main
        recording = self.recording
        if recording:
            self._lock.acquire()
            queue = self.recording or queue
        try:
            status = self._set_context(self._context_pointer)
            status = status or self._memset(target, value, size, queue)
        finally:
            if recording:
                self._lock.release()
        if status:
            raise self._error(self._driver.CUresult(status), "fill")

    @contextlib.contextmanager
    def _converted(self, what: str) -> Iterator[None]:
        """Raise cuda.core's errors as errors of the device."""
        try:
            yield
        except self._failure as error:
            name, _, text = str(error).partition(": ")
            rule, hint = REASONS.get(name, (text, ""))
            what = f"{self.name}: {what}: {name}"
            raise DeviceError(what, rule=rule, hint=hint) from error

    def load(self, code: Code) -> GpuFunction:
        with self._lock, self._converted(f"load of {code.entry}"):
            self._checked(self._driver.cuCtxSetCurrent(self._context), "load")
            if code.cubin:
                image = self._code.from_cubin(code.cubin)
            else:
                image = self._code.from_ptx(code.ptx.encode())
            kernel = image.get_kernel(code.entry)
        return GpuFunction(code, kernel)

    def launch(
        self,
        function: Any,
        grid: int,
        block: int,
        args: Sequence[int | float | bool],
        shared: int = 0,
    ) -> None:
        # By Note [cost of a launch], nothing is checked that the driver checks, and the
        # lock is for those who record, and for those who have to wait for them.
        queue = self._main
        recording = self.recording
        if recording:
            self._lock.acquire()
            queue = self.recording or queue
        try:
            try:
                place = function.places.pop()
            except IndexError:
                place = function.place()
            place.pack(*args)
            config = (grid, block, shared, queue)
            if config != place.config:
                place.configure(grid, 1, 1, block, 1, 1, shared, queue, 0, 0)
                place.config = config
            if shared > function.shared:
                self._enlarge(function, shared)
            status = self._launch(*place.given)
            function.places.append(place)
        except (struct.error, OverflowError, TypeError) as error:
            check_launch(function, grid, block, args, shared)
            raise submit.unfit(function, error) from error
        finally:
            if recording:
                self._lock.release()
        if status:
            check_launch(function, grid, block, args, shared)
            what = f"launch of {function.code.entry}"
            raise self._error(self._driver.CUresult(status), what)

    def batch(self, kinds: Sequence[str], steps: Sequence[Step]) -> GpuBatch:
        for s in steps:
            if isinstance(s, Launch):
                function: Any = s.function
                check_launch(function, s.grid, s.block, s.args, s.shared)
                if s.shared > function.shared:
                    self._enlarge(function, s.shared)
        return GpuBatch(self, kinds, steps)

    @functools.cached_property
    def _submit(self) -> Callable[..., int]:
        driver = submit.Driver(
            launch=self._address("cuLaunchKernel"),
            fill=self._address("cuMemsetD8Async"),
            enter=self._address("cuCtxSetCurrent"),
            context=int(self._context),
        )
        return submit.compiled(driver)

    def submit(self, batch: Any, values: bytes) -> int:
        """Enter the steps of a batch; return 0, or what `submit` says of a failure."""
        if not self.recording:
            return self._submit(batch, values, self._main)
        with self._lock:
            return self._submit(batch, values, self.recording or self._main)

    def multiplies(self, p: Product) -> bool:
        if self._has_blas is None:
            if self.recording:
                return False  # no library starts while a graph is recorded
            with self._lock:
                if self._has_blas is None:  # no other thread was first
                    result = self._driver.cuCtxSetCurrent(self._context)
                    self._checked(result, "product")
                    self._blas = Blas.opened(self.name)
                    self._has_blas = self._blas is not None
        return self._has_blas and calls_of(p) is not None

    def multiply(self, p: Product, c: int, a: int, b: int, scratch: int) -> None:
        assert self._blas is not None
        with self._lock:
            self._checked(self._driver.cuCtxSetCurrent(self._context), "product")
            self._blas.multiply(p, (c, a, b), self.recording or self._main, scratch)

    def _enlarge(self, function: GpuFunction, shared: int) -> None:
        """Let a function take more shared memory than every GPU has."""
        entry = function.code.entry
        limit = self._core.properties.max_shared_memory_per_block_optin
        limit -= function.code.static
        if shared > limit:
            raise DeviceError(
                f"{self.name}: launch of {entry}: {shared} bytes of shared memory",
                rule=f"A block may take {limit} bytes beside what its code declares.",
            )
        driver = self._driver
        attributes = driver.CUfunction_attribute
        attribute = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel = driver.CUkernel(function.handle)
        result = driver.cuKernelSetAttribute(attribute, shared, kernel, self._core_id())
        self._checked(result, f"shared memory of {entry}")
        function.shared = shared

    def _core_id(self) -> Any:
        return self._driver.CUdevice(self._core.device_id)

    def record(self, run: Callable[[], object]) -> GpuGraph:
        with self._lock:
            self._enter("recording")
            with self._converted("recording"):
                builder = self._core.create_graph_builder()
                try:
                    builder.begin_building()
                    self._run_into(int(builder.stream.handle), run)
                    builder.end_building()
                    return GpuGraph(self, builder.complete())
                finally:
                    builder.close()

    def _run_into(self, queue: int, run: Callable[[], object]) -> None:
        self.recording = queue
        try:
            run()
        finally:
            self.recording = 0

    def refuse(self, what: str) -> None:
        """Refuse what no graph can hold, once other threads have recorded theirs."""
        with self._lock:
            self._enter(what)

    def synchronize(self) -> None:
        with self._lock:
            self._enter("waiting")
        self._checked(self._driver.cuStreamSynchronize(self._main), "waiting")

    def wait_for_others(self) -> None:
        """Wait for all streams of this process, those of other libraries too."""
        with self._lock:
            self._enter("waiting")
        self._checked(self._driver.cuCtxSynchronize(), "waiting")


def _started(name: str) -> Any:
    """Return the driver's functions, once it runs and is new enough."""
    packages.require("cuda-core", "drives GPUs")
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
    except Exception as error:
        if type(error).__name__ not in ("DynamicLibNotFoundError", "RuntimeError"):
            raise
        raise DeviceError(
            f"{name}: there is no NVIDIA driver",
            rule=str(error).splitlines()[0],
            hint=packages.DRIVER,
        ) from error
    if status:
        what = f"{name}: the driver does not start: {status.name}"
        rule, hint = REASONS.get(status.name, ("", packages.DRIVER))
        raise DeviceError(what, rule=rule, hint=hint)
    _, version = driver.cuDriverGetVersion()
    packages.check_driver(name, version)
    return driver
