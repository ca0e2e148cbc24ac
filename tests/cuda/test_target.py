"""The compiler of kernels: PTX, cubins, the disk cache, and what machine code has."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrograde.codegen.cuda import target
from retrograde.codegen.cuda.inspect import inspect
from retrograde.codegen.cuda.target import compile_kernel, static_size
from retrograde.ir.errors import DeviceError, InternalError
from retrograde.runtime.devices import Code, packages

emulated = pytest.mark.cuda_emulated

SCALE = """
from numba import cuda
from numba.cuda.types import float32

half = float32(0.5)

def kernel(out, x, n, factor):
    i = cuda.grid(1)
    while i < n:
        out[i] = x[i] * half * factor
        i += cuda.gridsize(1)
"""
KINDS = ("pointer", "pointer", "int64", "float32")

SHARED = """
from numba import cuda
from numba.cuda.types import float32

def reverse(out, n):
    words = cuda.shared.array(64, float32)
    words[cuda.threadIdx.x] = float32(n)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = words[63 - cuda.threadIdx.x]
"""


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a disk cache of its own."""
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def scale(**options: object) -> Code:
    return compile_kernel(SCALE, "kernel", KINDS, dtypes=("f4", "f4"), **options)


@emulated
def test_kernel_has_the_name_of_its_function():
    code = scale(cubin=False)
    assert code.entry == "kernel"
    assert ".visible .entry kernel(" in code.ptx
    assert "kernel_param_3" in code.ptx
    assert "_Z" not in code.ptx
    assert code.kinds == KINDS
    assert code.cubin == b""


@emulated
def test_kernel_is_for_the_architecture_that_is_asked_for():
    assert ".target sm_90" in scale(cubin=False).ptx
    assert ".target sm_80" in scale(cubin=False, architecture=(8, 0)).ptx


@emulated
def test_types_of_the_pointers_are_those_of_dtypes():
    one = compile_kernel(SCALE, "kernel", KINDS, dtypes=("f8", "f4"), cubin=False)
    assert "st.global.f64" in one.ptx
    assert "ld.global.f32" in one.ptx


@emulated
def test_parameters_have_the_widths_of_their_kinds():
    source = "def f(p, a, b, c, d, e):\n    if e: p[a] = b + c + d\n"
    kinds = ("pointer", "int64", "int32", "float64", "float32", "bool")
    ptx = compile_kernel(source, "f", kinds, dtypes=["f8"], cubin=False).ptx
    words = [line.split()[1] for line in ptx.splitlines() if "\t.param " in line]
    assert words == [".u64", ".u64", ".u32", ".f64", ".f32", ".u8"]


@emulated
def test_fastmath_is_an_option():
    source = "import math\n\ndef f(p):\n    p[0] = math.tanh(p[0])\n"
    makes = [
        compile_kernel(source, "f", ["pointer"], dtypes=["f4"], fastmath=fast).ptx
        for fast in (False, True)
    ]
    assert "tanh.approx" not in makes[0]
    assert "tanh.approx" in makes[1]


@emulated
def test_static_shared_memory_is_counted():
    code = compile_kernel(SHARED, "reverse", ["pointer", "int64"], dtypes=["f4"])
    assert code.static == 256


def test_static_size_counts_alignment_and_no_dynamic_memory():
    text = ".visible .shared .align 4 .b8 a[6];\n\t.shared .align 8 .b8 b[8];\n"
    assert static_size(text + ".extern .shared .align 16 .b8 c[];\n") == 16
    assert static_size(".global .align 4 .b8 a[6];\n") == 0


@emulated
def test_cubin_is_machine_code_with_a_report():
    code = scale()
    assert code.cubin.startswith(b"\x7fELF")
    report = inspect(code)
    assert 0 < report.registers < 64
    assert (report.spills, report.stack, report.local_accesses) == (0, 0, 0)
    if not report.sass:
        pytest.skip("nvdisasm is not installed")
    assert "FMUL" in {name.split(".")[0] for name in report.instructions}
    assert report.doubles == 0
    assert report.barriers == 0
    shared = compile_kernel(SHARED, "reverse", ["pointer", "int64"], dtypes=["f4"])
    assert inspect(shared).barriers == 1


@emulated
def test_report_finds_what_is_computed_in_float64():
    wrong = SCALE.replace("float32(0.5)", "0.5")
    code = compile_kernel(wrong, "kernel", KINDS, dtypes=("f4", "f4"))
    report = inspect(code)
    if not report.sass:
        pytest.skip("nvdisasm is not installed")
    assert report.doubles > 0


@emulated
def test_report_finds_spills():
    source = "from numba import cuda\nfrom numba.cuda.types import float32\n"
    source += "def f(p, n):\n    a = cuda.local.array(100, float32)\n"
    source += "    for i in range(n):\n        a[i] = p[i]\n"
    source += "    for i in range(n):\n        p[i] = a[n - i]\n"
    report = inspect(compile_kernel(source, "f", ["pointer", "int64"], dtypes=["f4"]))
    assert report.stack >= 400
    if not report.sass:
        pytest.skip("nvdisasm is not installed")
    assert report.local_accesses > 0


@emulated
def test_cubin_is_left_out_where_the_linker_is_missing(monkeypatch):
    monkeypatch.setattr(packages, "can_link", lambda: False)
    code = scale()
    assert code.ptx
    assert code.cubin == b""
    with pytest.raises(
        DeviceError, match="kernel cannot be inspected: nvjitlink is mi"
    ):
        inspect(code)


@emulated
def test_second_compilation_comes_from_disk(cold: Path, monkeypatch):
    first = scale()
    names = {file.suffix for file in cold.rglob("*") if file.is_file()}
    assert {".ptx", ".cubin", ".py"} <= names

    def never(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(target, "_compile", never)
    monkeypatch.setattr(target, "link", never)
    assert scale() == first
    with pytest.raises(AssertionError, match="compiled again"):
        scale(fastmath=True)


@emulated
def test_process_with_a_warm_cache_does_not_import_numba():
    scale()
    script = f"""
import sys
from retrograde.codegen.cuda.target import compile_kernel
code = compile_kernel({SCALE!r}, "kernel", {KINDS!r}, dtypes=("f4", "f4"))
assert code.cubin
print([name for name in ("numba", "cuda.core", "cuda.bindings") if name in sys.modules])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@emulated
def test_damaged_entry_is_compiled_again(cold: Path):
    first = scale()
    (file,) = cold.rglob("*.ptx")
    file.write_bytes(file.read_bytes()[:-9])
    assert scale() == first


@emulated
def test_source_of_a_kernel_is_on_disk_for_people(cold: Path):
    scale(cubin=False)
    (file,) = cold.rglob("*.py")
    assert file.read_text() == SCALE


@emulated
def test_number_of_dtypes_is_that_of_pointers():
    with pytest.raises(InternalError, match="1 dtypes for the pointers"):
        compile_kernel(SCALE, "kernel", KINDS, dtypes=[np.float32])


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ("", "the package numba-cuda is missing"),
        ("0.29", "numba-cuda 0.29 is not supported"),
    ],
)
def test_compiler_that_is_missing_or_old_is_an_error(
    cold: Path, monkeypatch, found: str, what: str
):
    monkeypatch.setattr(target, "_numba_cuda", target._numba_cuda.__wrapped__)
    known = importlib.metadata.version

    def version(package: str) -> str:
        if package != "numba-cuda":
            return known(package)
        if found:
            return found
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(DeviceError, match=what) as caught:
        scale(cubin=False)
    assert "pip install" in caught.value.hint


@emulated
def test_compiler_that_is_built_into_numba_is_an_error(cold: Path, monkeypatch):
    from numba import cuda

    monkeypatch.setattr(cuda, "implementation", "Built-in")
    monkeypatch.setattr(target, "_numba_cuda", target._numba_cuda.__wrapped__)
    with pytest.raises(DeviceError, match=r"^numba.cuda is the one that is built"):
        scale(cubin=False)


def test_missing_library_of_the_toolkit_is_an_error():
    class DynamicLibNotFoundError(RuntimeError):
        pass

    error = target._explained(DynamicLibNotFoundError("no libnvvm\nat all"))
    assert isinstance(error, DeviceError)
    assert error.what == "a library of the CUDA toolkit is missing: no libnvvm"
    assert "retrograde[cuda]" in error.hint
    other = ValueError("of the kernel")
    assert target._explained(other) is other
