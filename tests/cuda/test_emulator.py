"""The device whose kernels are interpreted keeps the promises of every device."""

import gc
import threading

import numpy as np
import pytest

from retrograde.codegen.cuda.target import compile_kernel
from retrograde.ir.errors import DeviceError
from retrograde.runtime.devices import Code, Device, Fill, Given, Launch, device
from retrograde.runtime.devices.emulator import Emulator

# out[i] = x[i] * factor, one element per thread, for those below n.
PTX = """
.version 9.0
.target sm_90
.address_size 64

.visible .entry scale(
    .param .u64 scale_param_0,
    .param .u64 scale_param_1,
    .param .u64 scale_param_2,
    .param .f32 scale_param_3
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<10>;

    ld.param.u64 %rd1, [scale_param_0];
    ld.param.u64 %rd2, [scale_param_1];
    ld.param.u64 %rd3, [scale_param_2];
    ld.param.f32 %f1, [scale_param_3];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.s64.s32 %rd4, %r4;
    setp.ge.s64 %p1, %rd4, %rd3;
    @%p1 bra $L__BB0_2;

    cvta.to.global.u64 %rd5, %rd1;
    cvta.to.global.u64 %rd6, %rd2;
    shl.b64 %rd7, %rd4, 2;
    add.s64 %rd8, %rd6, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    ld.global.f32 %f2, [%rd8];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd9], %f3;

$L__BB0_2:
    ret;
}
"""
SCALE = Code("scale", ("pointer", "pointer", "int64", "float32"), PTX, b"", 0)


@pytest.fixture
def emulator() -> Emulator:
    return Emulator()


def values(where: Device, address: int, count: int) -> list[float]:
    found = np.empty(count, np.float32)
    where.read(address, found)
    return found.tolist()


def test_name_gives_one_device():
    assert device("cuda:emu") is device("cuda:emu")
    assert isinstance(device("cuda:emu"), Emulator)
    assert device("cuda:emu").architecture == (9, 0)


def test_kernel_reads_and_writes_memory(emulator: Emulator):
    x = emulator.allocate(400)
    out = emulator.allocate(400)
    emulator.write(x.address, np.arange(100, dtype=np.float32))
    emulator.fill(out.address, 0, 400)
    scale = emulator.load(SCALE)
    emulator.launch(scale, 3, 32, (out.address, x.address, 90, 2.0))
    assert values(emulator, out.address, 100) == [2.0 * n for n in range(90)] + [0] * 10


def test_counts_are_those_of_the_kernels(emulator: Emulator):
    x = emulator.allocate(4096)
    emulator.write(x.address, np.zeros(1024, np.float32))
    scale = emulator.load(SCALE)
    for _ in range(2):
        emulator.launch(scale, 8, 128, (x.address, x.address, 1024, 2.0))
    counts = emulator.counts
    assert (counts.launches, counts.read, counts.written) == (2, 8192, 8192)
    assert counts.sectors == 2 * 2 * 4096 // 32
    assert counts.efficiency == 1


def test_copies_and_fills_move_bytes(emulator: Emulator):
    memory = emulator.allocate(12)
    emulator.write(memory.address, np.float32([1, 2, 3]))
    emulator.copy(memory.address + 8, memory.address, 4)
    emulator.fill(memory.address + 4, 0, 4)
    assert values(emulator, memory.address, 3) == [1, 0, 1]


def test_memory_is_given_back_when_its_object_dies(emulator: Emulator):
    kept = emulator.allocate(1000)
    assert kept.address % 256 == 0
    gc.disable()
    try:
        for _ in range(100):
            emulator.allocate(5000)
        assert emulator.in_use() == 1000
        del kept
        assert emulator.in_use() == 0
    finally:
        gc.enable()


def test_memory_of_an_object_that_died_is_not_found(emulator: Emulator):
    address = emulator.allocate(100).address
    with pytest.raises(DeviceError, match="cuda:emu: write: "):
        emulator.write(address, np.zeros(4, np.float32))


def test_graph_does_what_was_recorded_and_no_more(emulator: Emulator):
    memory = emulator.allocate(8)
    emulator.write(memory.address, np.float32([1, 1]))
    scale = emulator.load(SCALE)

    def step() -> None:
        emulator.launch(scale, 1, 32, (memory.address, memory.address, 1, 3.0))
        emulator.copy(memory.address + 4, memory.address, 4)

    graph = emulator.record(step)
    assert values(emulator, memory.address, 2) == [1, 1]
    assert emulator.counts.launches == 0
    graph.launch()
    emulator.launch(scale, 1, 32, (memory.address, memory.address, 1, 0.5))
    assert values(emulator, memory.address, 2) == [1.5, 3]
    graph.launch()
    assert values(emulator, memory.address, 2) == [4.5, 4.5]
    assert emulator.counts.launches == 3


def test_arguments_of_a_recorded_launch_are_those_of_then(emulator: Emulator):
    memory = emulator.allocate(4)
    emulator.write(memory.address, np.float32([1]))
    scale = emulator.load(SCALE)
    args = [memory.address, memory.address, 1, 3.0]
    graph = emulator.record(lambda: emulator.launch(scale, 1, 32, args))
    args[3] = 100.0
    graph.launch()
    assert values(emulator, memory.address, 1) == [3]


def test_what_no_graph_can_hold_is_an_error(emulator: Emulator):
    memory = emulator.allocate(4)
    found = np.zeros(1, np.float32)
    graph = emulator.record(lambda: emulator.fill(memory.address, 0, 4))
    calls = {
        "allocation": lambda: emulator.allocate(4),
        "write": lambda: emulator.write(memory.address, found),
        "read": lambda: emulator.read(memory.address, found),
        "recording": lambda: emulator.record(lambda: None),
        "waiting": emulator.synchronize,
        "launch of a graph": graph.launch,
    }
    for name, call in calls.items():
        with pytest.raises(DeviceError) as caught:
            emulator.record(call)
        assert caught.value.what == f"cuda:emu: {name} while a graph is recorded"
    graph.launch()
    assert values(emulator, memory.address, 1) == [0]


def test_graph_of_another_thread_is_not_disturbed(emulator: Emulator):
    memory = emulator.allocate(8)
    begun, done = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait()
        emulator.fill(memory.address, 1, 4)
        done.set()

    def step() -> None:
        begun.set()
        assert not done.wait(0.05)
        emulator.fill(memory.address + 4, 2, 4)

    thread = threading.Thread(target=other)
    thread.start()
    graph = emulator.record(step)
    thread.join()
    found = np.zeros(4, np.uint8)
    emulator.read(memory.address, found)
    assert found.tolist() == [1] * 4
    emulator.fill(memory.address, 0, 4)
    graph.launch()
    emulator.read(memory.address, found)
    assert found.tolist() == [0] * 4


def test_batch_does_its_steps_with_what_it_is_given(emulator: Emulator):
    memory = emulator.allocate(16)
    scale = emulator.load(SCALE)
    first, number = Given(0), Given(1)
    steps = [
        Fill(first, 0, 16),
        Fill(first + 4, 0x3F, 8),
        Launch(scale, 1, 32, (first + 4, first + 4, 2, number)),
    ]
    batch = emulator.batch(("pointer", "float32"), steps)
    value = np.full(1, 0x3F3F3F3F, np.uint32).view(np.float32)[0]
    for x in (2.0, -0.0):
        batch.launch(memory.address, x)
        found = np.zeros(4, np.float32)
        emulator.read(memory.address, found)
        assert found.tolist() == [0.0, value * x, value * x, 0.0]
        assert np.signbit(found[1]) == np.signbit(x)


def test_fault_is_raised_by_the_launch_that_has_it(emulator: Emulator):
    x = emulator.allocate(400)
    emulator.write(x.address, np.zeros(100, np.float32))
    scale = emulator.load(SCALE)
    with pytest.raises(DeviceError) as caught:
        emulator.launch(scale, 4, 32, (x.address, x.address, 101, 2.0))
    assert caught.value.what.startswith("cuda:emu: launch of scale: ")
    assert "ld.global.f32" in caught.value.rule
    emulator.launch(scale, 4, 32, (x.address, x.address, 100, 2.0))


def test_code_that_is_no_ptx_is_an_error(emulator: Emulator):
    code = Code("scale", (), PTX.replace("mul.f32", "mul.f33"), b"", 0)
    with pytest.raises(DeviceError, match=r"^cuda:emu: (load|launch) of scale: "):
        emulator.launch(emulator.load(code), 1, 32, ())


WRONG = {
    "1 arguments for 4 parameters (pointer, pointer, int64, float32)": (1, 32, (1,)),
    "grid is 0": (0, 32, (1, 2, 3, 4.0)),
    "block is 2048": (1, 2048, (1, 2, 3, 4.0)),
    "-1 bytes of shared memory": (1, 32, (1, 2, 3, 4.0), -1),
}


@pytest.mark.parametrize("what", WRONG)
def test_launches_that_are_wrong_are_errors(emulator: Emulator, what: str):
    with pytest.raises(DeviceError) as caught:
        emulator.launch(emulator.load(SCALE), *WRONG[what])
    assert caught.value.what == f"launch of scale: {what}"


def test_arrays_that_are_no_plain_bytes_are_errors(emulator: Emulator):
    memory = emulator.allocate(800)
    with pytest.raises(DeviceError, match="an array of strides"):
        emulator.write(memory.address, np.zeros((10, 10))[:, 0])
    fixed = np.zeros(10)
    fixed.setflags(write=False)
    emulator.write(memory.address, fixed)
    with pytest.raises(DeviceError, match="read-only"):
        emulator.read(memory.address, fixed)


@pytest.mark.cuda_emulated
def test_compiled_kernel_computes_what_numpy_does(emulator: Emulator, rng):
    source = """
from numba import cuda
from numba.cuda.types import float64

def smooth(out, x, n):
    words = cuda.shared.array(130, float64)
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    words[t + 1] = x[i] if i < n else 0.0
    if t == 0:
        words[0] = x[i - 1] if i > 0 else 0.0
        last = i + cuda.blockDim.x
        words[cuda.blockDim.x + 1] = x[last] if last < n else 0.0
    cuda.syncthreads()
    if i < n:
        out[i] = words[t] + words[t + 1] + words[t + 2]
"""
    kinds = ("pointer", "pointer", "int64")
    code = compile_kernel(source, "smooth", kinds, dtypes=["f8", "f8"], cubin=False)
    x = rng.normal(size=300)
    inputs, outputs = emulator.allocate(x.nbytes), emulator.allocate(x.nbytes)
    emulator.write(inputs.address, x)
    smooth = emulator.load(code)
    emulator.launch(smooth, 3, 128, (outputs.address, inputs.address, 300))
    found = np.empty_like(x)
    emulator.read(outputs.address, found)
    padded = np.concatenate([[0], x, [0]])
    np.testing.assert_array_equal(found, padded[:-2] + padded[1:-1] + padded[2:])
