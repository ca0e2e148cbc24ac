"""The host's half of a real GPU, held against a stub of its driver."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.launches import build_stub
from retrograde.ir.errors import DeviceError
from retrograde.runtime import vecmath
from retrograde.runtime.devices import device, packages

Run = Callable[..., str]


def opening(name: str) -> str:
    return f"print(failing(device, {name!r}))"


@pytest.mark.skipif(
    any(vecmath.open_library(name) is not None for name in packages.DRIVERS),
    reason="this machine has a driver",
)
def test_machine_without_a_driver_is_an_error():
    if not packages.version("cuda-core"):
        pytest.skip("needs cuda-core: pip install 'retrograde[test-cuda]'")
    with pytest.raises(DeviceError) as caught:
        device("cuda")
    assert caught.value.what == "cuda:0: there is no NVIDIA driver"
    assert "device='cuda:emu'" in caught.value.hint


def test_device_is_found_by_both_of_its_names(run: Run):
    script = """
one = device("cuda")
print(one.name, one.architecture, one is device("cuda:0"), one is device("cuda:1"))
"""
    assert run(script, STUB_COUNT="2") == "cuda:0 (9, 0) True False\n"


def test_number_that_is_too_large_is_an_error(run: Run):
    text = run(opening("cuda:2"), STUB_COUNT="2")
    assert text.startswith("cuda:2: there is no such GPU\n")
    assert "This process sees 2 (see CUDA_VISIBLE_DEVICES)." in text
    assert "hint: use 'cuda:0' or 'cuda:1'" in text


def test_driver_without_a_gpu_is_an_error(run: Run):
    text = run(opening("cuda"), STUB_FAIL="cuInit=100")
    assert text.startswith("cuda:0: the driver does not start: CUDA_ERROR_NO_DEVICE\n")
    assert "'cuda:emu'" in text


def test_driver_that_is_too_old_is_an_error(run: Run):
    text = run(opening("cuda"), STUB_VERSION="12080")
    assert text.startswith("cuda:0: the driver is too old: it is for CUDA 12.8\n")
    assert "hint: update the driver" in text


def test_arguments_arrive_as_the_bytes_of_their_kinds(run: Run):
    kinds = ("int32", "pointer", "bool", "float64", "float32", "bool", "int64")
    args = (-5, 2**63 + 1, True, -2.5, 0.1, False, -(2**40))
    sizes = b"stub 4 8 1 8 4 1 8\0"
    script = f"""
gpu = device("cuda")
function = gpu.load(code(*{kinds!r}, image={sizes!r}))
gpu.launch(function, 3, 128, {args!r})
gpu.launch(function, 2**20, 1024, list({args!r}), 4096)
nothing = gpu.load(code(image=b"stub"))
gpu.launch(nothing, 1, 32, ())
print(*log(), sep="\\n")
"""
    packed = [
        struct.pack(form, value).hex()
        for form, value in zip("iQ?df?q", args, strict=True)
    ]
    words = " ".join(packed)
    assert run(script).splitlines() == [
        f"launch kernel 3 128 0 {words}",
        f"launch kernel 1048576 1024 4096 {words}",
        "launch kernel 1 32 0",
    ]


def test_threads_do_not_mix_their_arguments(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("int64", "int64"))
sys.setswitchinterval(1e-6)

def work(number):
    for _ in range(1000):
        gpu.launch(function, 1, 32, (number, number))

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
pairs = [line.split()[-2:] for line in log()]
print(len(pairs), all(one == other for one, other in pairs))
"""
    assert run(script) == "4000 True\n"


def test_batch_does_its_steps_with_what_it_is_given(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(24)
function = gpu.load(code("pointer", "int64"))
kinds = "int32", "float32", "float32", "bool", "float64", "pointer"
other = gpu.load(code(*kinds, image=b"stub 4 4 4 1 8 8\\0"))
steps = [
    Launch(function, 3, 128, (Given(0) + 16, 7), 100000),
    Fill(Given(0) + 8, 255, 8),
    Launch(other, 1, 32, (-5, 0.5, Given(1), Given(2), Given(1), 2**63 + 1)),
]
batch = gpu.batch(("pointer", "float64", "bool"), steps)
print(log())
for number, truth in ((-0.0, True), (0.1, False)):
    batch.launch(memory.address, number, truth)
    print(log() == [
        f"launch kernel 3 128 100000 {words('QQ', memory.address + 16, 7)}",
        "fill 255 8",
        "launch kernel 1 32 0 "
        + words("iff?dQ", -5, 0.5, number, truth, number, 2**63 + 1),
    ])
values = np.zeros(24, np.uint8)
gpu.read(memory.address, values)
print(values[8:16].tolist())
graph = gpu.record(lambda: batch.launch(memory.address, 1.0, True))
print(log())
graph.launch()
print(len(log()))
"""
    words = """
import struct
def words(forms, *values):
    return " ".join(struct.pack(f, x).hex() for f, x in zip(forms, values))
"""
    found = run(words + script).splitlines()
    assert found == ["[]", "True", "True", str([255] * 8), "['read 24', 'wait']", "3"]


def test_threads_do_not_mix_what_they_give_a_batch(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("int64", "int64"))
steps = [Launch(function, 1, 32, (Given(0), Given(0)))] * 10
batch = gpu.batch(["int64"], steps)
sys.setswitchinterval(1e-6)

def work(number):
    for _ in range(200):
        batch.launch(number)

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
graph = gpu.record(lambda: batch.launch(5))
for thread in threads: thread.join()
pairs = [line.split()[-2:] for line in log()]
print(len(pairs), all(one == other for one, other in pairs))
graph.launch()
print(len(log()))
"""
    assert run(script) == "8000 True\n10\n"


def test_batch_that_fails_names_its_step(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(8)
one = gpu.load(code("pointer", "int64"))
two = gpu.load(Code("other", ("pointer", "int64"), "", b"stub 8 8\\0", 0))
given = Given(0), 1
start, end = Launch(one, 1, 32, given), Launch(two, 1, 32, given)
for step in (end, Fill(given[0], 1, 8)):
    batch = gpu.batch(["pointer"], [start, step])
    for fault in (b"cuLaunchKernel=719", b"cuMemsetD8Async=719", b""):
        stub.stub_fail(fault)
        try:
            batch.launch(memory.address)
        except DeviceError as error:
            print(error.what)
batch = gpu.batch(["pointer"], [end])
stub.stub_fail(b"cuLaunchKernel=719")
print(failing(batch.launch, memory.address))
print(failing(batch.launch, -1).rule)
print(failing(gpu.batch, ["pointer"], [Launch(two, 0, 32, given)]).what)
print(failing(gpu.batch, ["float32"], [end]).what)
print(failing(gpu.batch, [], [Launch(two, 1, 32, (0.5, 1))]).what)
"""
    assert run(script).splitlines() == [
        "cuda:0: launch of kernel: CUDA_ERROR_LAUNCH_FAILED",
        "cuda:0: launch of kernel: CUDA_ERROR_LAUNCH_FAILED",
        "cuda:0: fill: CUDA_ERROR_LAUNCH_FAILED",
        "cuda:0: launch of other: CUDA_ERROR_LAUNCH_FAILED",
        "  A fault of a kernel is reported by a later call, and nothing works after "
        "it in this process.",
        "  hint: device='cuda:emu' finds accesses outside of arrays and says where; "
        "so does compute-sanitizer",
        "What it is given is to be (pointer).",
        "launch of other: grid is 0",
        "launch of other: a float32 is given for a pointer",
        "launch of other: required argument is not an integer",
    ]


def test_copies_move_bytes_in_any_thread(run: Run):
    script = """
gpu = device("cuda")
source, target = np.arange(10.0), np.zeros((2, 5))

def work():
    one, other = gpu.allocate(80), gpu.allocate(80)
    print(one.address % 256, other.address % 256, one.size)
    gpu.write(one.address, source)
    gpu.copy(other.address, one.address, 80)
    gpu.fill(other.address, 0, 40)
    gpu.copy(other.address, one.address, 0)
    gpu.read(other.address, target)
    gpu.synchronize()

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(target.tolist())
print(log())
"""
    one, two, three = run(script).splitlines()
    assert one == "0 0 80"
    assert two == "[[0.0, 0.0, 0.0, 0.0, 0.0], [5.0, 6.0, 7.0, 8.0, 9.0]]"
    assert three == "['write 80', 'copy 80', 'fill 0 40', 'read 80', 'wait', 'wait']"


def test_memory_that_the_driver_reads_when_it_likes_is_waited_for(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(80)
gpu.write(memory.address, np.zeros(10))
print(log())
"""
    assert run(script) == "['write 80']\n"
    assert run(script, STUB_PINNED="1") == "['write 80', 'wait']\n"


def test_memory_is_used_again_when_its_object_dies(run: Run):
    script = """
gpu = device("cuda")
gc.disable()
kept = [gpu.allocate(1000) for _ in range(3)]
for _ in range(100):
    gpu.allocate(5000)
print(stub.stub_live(), stub.stub_allocations())
addresses = [memory.address for memory in kept]
del kept
again = [gpu.allocate(1000) for _ in range(3)]
print(sorted(memory.address for memory in again) == sorted(addresses))
print(stub.stub_live(), stub.stub_allocations())
"""
    assert run(script).splitlines() == ["8000 4", "True", "8000 4"]


def test_free_memory_goes_back_to_the_driver_when_much_comes(run: Run):
    script = """
gpu = device("cuda")
for n in range(100):
    gpu.allocate((1 << 26) + n)
print(stub.stub_live() < 1 << 31)
"""
    assert run(script) == "True\n"


def test_free_memory_goes_back_to_the_driver_when_it_has_no_more(run: Run):
    script = """
gpu = device("cuda")
gpu.allocate(1000)
stub.stub_fail(b"cuMemAllocFromPoolAsync=2")
failing(gpu.allocate, 2000)
stub.stub_fail(b"")
print(stub.stub_live())
"""
    assert run(script) == "0\n"


def test_allocation_without_room_is_an_error(run: Run):
    script = """
gpu = device("cuda")
kept = gpu.allocate(1000)
error = failing(gpu.allocate, 2**33)
print(isinstance(error, DeviceMemoryError), isinstance(error, MemoryError))
print(error)
gpu.allocate(10)
"""
    kinds, what, rule, hint = run(script).splitlines()
    assert kinds == "True True"
    assert what == "cuda:0: no room for 8589934592 bytes"
    assert "of 2147483648 bytes, of which this process uses 1000." in rule
    assert "hint: drop what is not needed" in hint


def test_graph_does_what_was_recorded_and_no_more(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(24)
function = gpu.load(code("pointer", "int64"))

def step():
    gpu.fill(memory.address, 7, 8)
    gpu.launch(function, 1, 32, (1, 2))
    gpu.copy(memory.address + 8, memory.address, 8)

graph = gpu.record(step)
print(log())
gpu.launch(function, 1, 32, (3, 4))
graph.launch()
graph.launch()
print([line.split()[0] for line in log()])
values = np.zeros(24, np.uint8)
gpu.read(memory.address, values)
print(values.tolist()[:16])
"""
    assert run(script).splitlines() == [
        "[]",
        str(["launch", *(["fill", "launch", "copy"] * 2)]),
        str([7] * 16),
    ]


def test_graph_of_another_thread_is_not_disturbed(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("int64", "int64"))
begun, done = threading.Event(), threading.Event()

def other():
    begun.wait()
    gpu.launch(function, 1, 32, (1, 1))
    done.set()

def step():
    begun.set()
    assert not done.wait(0.1)
    gpu.launch(function, 1, 64, (2, 2))

thread = threading.Thread(target=other)
thread.start()
graph = gpu.record(step)
thread.join()
print([line.split()[3] for line in log()])
graph.launch()
print([line.split()[3] for line in log()])
"""
    assert run(script).splitlines() == ["['32']", "['64']"]


def test_what_no_graph_can_hold_is_an_error(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(8)
graph = gpu.record(lambda: gpu.fill(memory.address, 0, 8))
values = np.zeros(1)
for call in (
    lambda: gpu.allocate(8),
    lambda: gpu.write(memory.address, values),
    lambda: gpu.read(memory.address, values),
    lambda: gpu.record(lambda: None),
    gpu.synchronize,
    graph.launch,
):
    print(failing(gpu.record, call).what)
graph.launch()
print(log(), stub.stub_live())
"""
    names = ["allocation", "write", "read", "recording", "waiting", "launch of a graph"]
    *errors, last = run(script).splitlines()
    assert errors == [f"cuda:0: {name} while a graph is recorded" for name in names]
    assert last == "['fill 0 8'] 8"


def test_error_within_a_recording_ends_it(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("int64", "int64"))

def step():
    gpu.launch(function, 1, 32, (1, 2))
    raise KeyError("of the program")

try:
    gpu.record(step)
except KeyError as error:
    print(error)
gpu.launch(function, 1, 64, (1, 2))
print([line.split()[3] for line in log()])
stub.stub_fail(b"cuStreamEndCapture=901")
print(failing(gpu.record, lambda: gpu.launch(function, 1, 32, (1, 2))).what)
"""
    assert run(script).splitlines() == [
        "'of the program'",
        "['64']",
        "cuda:0: recording: CUDA_ERROR_INVALID_VALUE",
    ]


WRONG = {
    "function, 1, 32, (1,)": "launch of kernel: 1 arguments for 2 parameters "
    "(pointer, int32)",
    "function, 0, 32, (1, 2)": "launch of kernel: grid is 0",
    "function, 1, 2048, (1, 2)": "launch of kernel: block is 2048",
    "function, 1, 32, (1, 2.5)": "launch of kernel: required argument is not an "
    "integer",
    "function, 1, 32, (1, 2), 10**6": "cuda:0: launch of kernel: 1000000 bytes of "
    "shared memory",
}


def test_launches_that_are_wrong_are_errors(run: Run):
    script = "gpu = device('cuda')\n"
    script += "function = gpu.load(code('pointer', 'int32', static=1024))\n"
    for call in WRONG:
        script += f"print(failing(gpu.launch, {call}).what)\n"
    script += "print(failing(gpu.launch, function, 1, 32, (1, 2**31)).rule)\n"
    script += "print(failing(gpu.launch, function, 1, 32, (1, 2), 10**6).rule)\n"
    script += "print(log())\n"
    *found, kinds, most, log = run(script).splitlines()
    assert found == list(WRONG.values())
    assert kinds == "The arguments are to be (pointer, int32)."
    assert most == "A block may take 231424 bytes beside what its code declares."
    assert log == "[]"


def test_shared_memory_is_enlarged_where_it_must_be(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("pointer", "int64"))
for size in (100, 49152, 100000, 200000, 50):
    gpu.launch(function, 1, 32, (1, 2), size)
print([line.split()[4] for line in log()])
"""
    assert run(script) == "['100', '49152', '100000', '200000', '50']\n"


def test_fault_of_a_kernel_says_how_to_find_it(run: Run):
    script = """
gpu = device("cuda")
function = gpu.load(code("pointer", "int64"))
stub.stub_fail(b"cuLaunchKernel=719,cuStreamSynchronize=700")
print(failing(gpu.launch, function, 1, 32, (1, 2)))
print(failing(gpu.synchronize))
"""
    text = run(script)
    assert "cuda:0: launch of kernel: CUDA_ERROR_LAUNCH_FAILED\n" in text
    assert "cuda:0: waiting: CUDA_ERROR_ILLEGAL_ADDRESS\n" in text
    assert text.count("hint: device='cuda:emu' finds accesses outside of arrays") == 2


def test_code_for_another_gpu_is_an_error(run: Run):
    script = """
gpu = device("cuda")
print(failing(gpu.load, code("pointer", image=b"no code")))
"""
    text = run(script)
    assert text.startswith("cuda:0: load of kernel: CUDA_ERROR_INVALID_IMAGE\n")
    assert "The code is not for this GPU." in text


def test_arrays_that_are_no_plain_bytes_are_errors(run: Run):
    script = """
gpu = device("cuda")
memory = gpu.allocate(800)
print(failing(gpu.write, memory.address, np.zeros((10, 10))[:, 0]))
fixed = np.zeros(10)
fixed.setflags(write=False)
print(failing(gpu.read, memory.address, fixed).what)
gpu.write(memory.address, fixed)
gpu.write(memory.address, np.zeros((0, 3)))
print(log())
"""
    what, _, hint, last, log = run(script).splitlines()
    assert what == "an array of strides (80,) and shape (10,)"
    assert hint == "  hint: np.ascontiguousarray(x)"
    assert last == "an array that is read-only cannot be read into"
    assert log == "['write 80']"


def test_forked_process_is_told_that_it_cannot(run: Run):
    script = """
import os
gpu = device("cuda")
stub.stub_fail(b"cuInit=3")
child = os.fork()
if child == 0:
    print(failing(device, "cuda"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(gpu is device("cuda"))
"""
    text = run(script)
    assert "CUDA_ERROR_NOT_INITIALIZED\n  A forked process cannot use the GPU" in text
    assert text.endswith("True\n")


def test_launches_are_timed_on_the_stub(tmp_path: Path):
    if not packages.version("cuda-core") or not packages.version("numba-cuda"):
        pytest.skip("needs the packages: pip install 'retrograde[test-cuda]'")
    if not build_stub(tmp_path):
        pytest.skip("the stub of the driver needs gcc and Linux")
    command = [sys.executable, "-m", "benchmarks.launches", "--stub", "--repeats", "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line[:12].strip() for line in done.stdout.splitlines()[1:]]
    each = ["launch", "graph", "batch", "allocate", "fill", "write"]
    wanted = [*each, "ten kernels", "ten, a graph", "graph / 20", "batch / 20"]
    assert names == wanted


SHARING = """
import retrograde as rg

class Cuda:
    def __init__(self, x):
        self.__cuda_array_interface__ = x.__cuda_array_interface__

class DLPack:
    def __init__(self, x):
        self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__
"""


def test_arrays_are_shared_with_other_libraries(run: Run):
    script = """
for dtype in "?bBhHiIqQefdFD":
    d = rg.device_array(np.arange(12).reshape(3, 4).astype(dtype), "cuda")
    for other in (Cuda, DLPack):
        for view in (d, d[1:, ::2], d[0, 0], d[:, :0]):
            x = rg.from_dlpack(other(view))
            assert (x.shape, x.dtype, x.device) == (view.shape, d.dtype, "cuda:0")
            assert x.strides == view.strides or not x.size
            assert not x.size or x.address == view.address
        x = rg.from_dlpack(other(d))
        x[...] = d.copy()
        assert np.array_equal(x.numpy(), d.numpy())
print(d.__dlpack_device__())
"""
    assert run(SHARING + script) == "(2, 0)\n"


def test_memory_of_another_library_lives_as_long_as_the_array(run: Run):
    script = """
d = rg.device_array(np.ones(64), "cuda")
x = rg.from_dlpack(DLPack(d))
address = d.address
del d
gc.collect()
print(rg.device_array(np.ones(64), "cuda").address == address)
del x
gc.collect()
print(rg.device_array(np.ones(64), "cuda").address == address)
"""
    assert run(SHARING + script) == "False\nTrue\n"


def test_array_that_dlpack_cannot_describe_is_an_error(run: Run):
    script = """
d = rg.device_array(np.ones(4), "cuda")
for call in (d[::-1].__dlpack__, lambda: d.__dlpack__(dl_device=(1, 0))):
    try:
        call()
    except BufferError as error:
        print(error)
"""
    text = run(SHARING + script)
    assert "negative strides" in text
    assert "handed out there" in text
