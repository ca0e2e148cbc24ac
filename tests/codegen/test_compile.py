"""Generated source becomes native code once per machine, and never a wrong one."""

import inspect
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from retrograde.codegen import compile as codegen
from retrograde.codegen.compile import compile_entry, compile_source, key_of, stats
from retrograde.runtime import cache, vecmath

VECTOR = types.Array(types.float64, 1, "C", readonly=True)
TARGET = types.Array(types.float64, 1, "C")
MATRIX = types.Array(types.float64, 2, "C")

POINTWISE = """
from retrograde.runtime.memory import load, pointer, reassoc_add, store
from retrograde.runtime.vecmath import exp

def weight(x):
    return exp(-x * x)

def entry(x, out, n):
    p = pointer(x)
    q = pointer(out)
    total = 0.0
    for i in range(n):
        value = weight(load(p, i, 0, 2))
        store(q, i, value, 1, 2)
        total = reassoc_add(total, value)
    return total
"""
POINTWISE_SIGNATURE = (VECTOR, TARGET, types.int64)

MIXED = """
import numpy as np
from retrograde.runtime import blas
from retrograde.runtime.memory import fill, load, pointer, store

def entry(a, n, check):
    scratch = np.empty(n * n, np.float64)
    p = pointer(scratch)
    q = pointer(a)
    fill(p, 0, n * n, 1.0)
    blas.gemm(False, False, n, n, n, q, n, q, n, p, n)
    total = 0.0
    for i in range(n * n):
        total += load(p, i, 0, 1)
    if check >= n:
        raise IndexError("index is out of bounds")
    z = complex(total, 1.0) ** 2
    return scratch[check], z, total / (check - check), 7 // n, -7 % n
"""
MIXED_SIGNATURE = (MATRIX, types.int64, types.int64)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(folder))
    codegen.forget()
    yield folder
    codegen.forget()


def check_pointwise(call: Any) -> None:
    x = np.linspace(-2, 2, 101)
    out = np.empty_like(x)
    total = call(x, out, x.size)
    np.testing.assert_allclose(out, np.exp(-x * x), rtol=1e-15)
    np.testing.assert_allclose(total, np.exp(-x * x).sum(), rtol=1e-14)


def check_mixed(call: Any) -> None:
    a = np.arange(9.0).reshape(3, 3)
    first, z, infinite, quotient, remainder = call(a, 3, 1)
    product = a @ a
    assert first == product.ravel()[1]
    np.testing.assert_allclose(z, complex(product.sum(), 1) ** 2, rtol=1e-15)
    assert (infinite, quotient, remainder) == (np.inf, 2, 2)
    with pytest.raises(IndexError, match="index is out of bounds"):
        call(a, 3, 3)


def natives(place: Path) -> list[Path]:
    return sorted(place.rglob("*.native"))


def test_entry_and_its_helpers_are_compiled():
    check_pointwise(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))
    assert stats() == codegen.Stats(compiled=1)


def test_second_request_is_served_by_the_process():
    first = compile_entry(POINTWISE, "entry", POINTWISE_SIGNATURE)
    assert compile_entry(POINTWISE, "entry", POINTWISE_SIGNATURE) is first
    assert stats() == codegen.Stats(compiled=1, reused=1)


def test_division_scratch_blas_and_errors_work():
    call = compile_source(MIXED, "entry", MIXED_SIGNATURE, uses_blas=True)
    check_mixed(call)


def test_products_are_rounded_unless_contraction_is_asked_for():
    source = "def entry(x, y):\n    return x * x - y * y\n"
    signature = (types.float64, types.float64)
    exact = compile_source(source, "entry", signature)
    assert exact(0.1, 0.1) == 0
    fused = compile_source(source, "entry", signature, contract=True)
    assert abs(fused(0.1, 0.1)) < 1e-17


def test_key_depends_on_all_that_code_depends_on():
    signatures = [POINTWISE_SIGNATURE, (TARGET, TARGET, types.int64)]
    keys = {
        key_of(source, entry, signature, contract)
        for source in (POINTWISE, POINTWISE + "\n")
        for entry in ("entry", "weight")
        for signature in signatures
        for contract in (False, True)
    }
    assert len(keys) == 16


@pytest.mark.parametrize(
    ("owner", "name"),
    [(numba, "__version__"), (np, "__version__"), (sys, "version")],
)
def test_key_depends_on_versions(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
):
    key = key_of(POINTWISE, "entry", POINTWISE_SIGNATURE, False)
    codegen.surroundings.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, "0.0")
        other = key_of(POINTWISE, "entry", POINTWISE_SIGNATURE, False)
    codegen.surroundings.cache_clear()
    assert key != other
    assert key == key_of(POINTWISE, "entry", POINTWISE_SIGNATURE, False)


def test_generated_files_lie_in_the_cache_folder_only(place: Path):
    compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE)
    files = [file for file in place.rglob("*.*") if file.is_file()]
    assert sorted(file.suffix for file in files) == [".native", ".py"]
    assert next(f for f in files if f.suffix == ".py").read_text() == POINTWISE
    ours = Path(codegen.__file__).resolve().parent
    assert not [*ours.rglob("*.nb[ic]")]


def test_loaded_code_computes_the_same():
    check_pointwise(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))
    codegen.forget()
    loaded = compile_entry(POINTWISE, "entry", POINTWISE_SIGNATURE)
    assert loaded.loaded
    check_pointwise(loaded.call)
    assert stats() == codegen.Stats(loaded=1)


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage", "foreign"])
def test_damaged_entries_are_compiled_again(place: Path, damage: str):
    compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE)
    (entry,) = natives(place)
    good = entry.read_bytes()
    if damage == "cut":
        entry.write_bytes(good[: len(good) // 2])
    elif damage == "flip":
        middle = len(good) // 2
        entry.write_bytes(good[:middle] + b"\xff\x00" + good[middle + 2 :])
    else:  # a whole entry of something else
        data = b"not a pickle" if damage == "garbage" else b"\x80\x04K\x01."
        assert cache.store(entry.stem, ".native", data)
    codegen.forget()
    check_pointwise(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))
    assert stats() == codegen.Stats(compiled=1)
    codegen.forget()
    check_pointwise(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))
    assert stats() == codegen.Stats(loaded=1)


def test_without_a_folder_code_lives_in_memory_and_shows_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    compiled = compile_entry(POINTWISE, "entry", POINTWISE_SIGNATURE)
    check_pointwise(compiled.call)
    assert compiled.filename.startswith("<retrograde ")
    key = key_of(POINTWISE, "entry", POINTWISE_SIGNATURE, False)
    module = sys.modules[f"_retrograde_{key}"]
    assert "exp(-x * x)" in inspect.getsource(module.weight.py_func)


@pytest.mark.parametrize("usable", [True, False])
def test_tracebacks_show_generated_lines(
    usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not usable:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    source = f"TOO_SOON = 1 // 0  # {usable}\n\ndef entry(x):\n    return x\n"
    with pytest.raises(ZeroDivisionError) as caught:
        compile_source(source, "entry", (types.int64,))
    text = "".join(traceback.format_exception(caught.value))
    assert "TOO_SOON = 1 // 0" in text
    key = key_of(source, "entry", (types.int64,), False)
    assert f"_retrograde_{key}" not in sys.modules


def test_source_that_does_not_type_raises_and_stores_nothing(place: Path):
    source = "def entry(x):\n    return x.nothing\n"
    with pytest.raises(TypingError, match="nothing"):
        compile_source(source, "entry", (types.int64,))
    assert natives(place) == []
    assert stats() == codegen.Stats()


def test_large_constants_stay_out_of_the_disk_cache(place: Path):
    source = (
        "import numpy as np\nTABLE = np.arange(400_000.0)\n"
        "def entry(i):\n    return TABLE[i]\n"
    )
    assert compile_source(source, "entry", (types.int64,))(399_999) == 399_999
    assert natives(place) == []
    codegen.forget()
    assert compile_source(source, "entry", (types.int64,))(7) == 7
    assert stats() == codegen.Stats(compiled=1)


def test_threads_compile_one_entry_once():
    barrier = threading.Barrier(4)
    calls = []

    def work() -> None:
        barrier.wait()
        calls.append(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 4
    assert stats() == codegen.Stats(compiled=1, reused=3)
    check_pointwise(calls[0])


def test_other_threads_run_while_a_kernel_does():
    source = (
        "def entry(n):\n    x = 0.5\n    for i in range(n):\n"
        "        x = 3.7 * x * (1.0 - x)\n    return x\n"
    )
    call = compile_source(source, "entry", (types.int64,))
    start = time.perf_counter()
    call(20_000_000)
    alone = time.perf_counter() - start
    thread = threading.Thread(target=call, args=(100_000_000,))
    stamps = [time.perf_counter()]
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        stamps.append(time.perf_counter())
    thread.join()
    # With the lock held the loop would stand still for the whole kernel, 5 x alone.
    assert max(np.diff(stamps)) < 2.5 * alone


BODY = """
vector = types.Array(types.float64, 1, "C", readonly=True)
target = types.Array(types.float64, 1, "C")
matrix = types.Array(types.float64, 2, "C")
first = codegen.compile_source(
    POINTWISE, "entry", (vector, target, types.int64))
x = np.linspace(-2, 2, 101)
out = np.empty_like(x)
total = first(x, out, 101)
scipy_for_pointwise = "scipy.linalg" in sys.modules
second = codegen.compile_source(
    MIXED, "entry", (matrix, types.int64, types.int64), uses_blas=True)
a = np.arange(9.0).reshape(3, 3)
value, z, infinite, quotient, remainder = second(a, 3, 1)
try:
    second(a, 3, 3)
    error = None
except IndexError as caught:
    error = str(caught)
counts = codegen.stats()
# Compiling is still possible after loading without Numba's typing rules.
third = codegen.compile_source(
    "def entry(x):\\n    return x + 1\\n", "entry", (types.int64,))
print(json.dumps(dict(
    total=total, out=out.tolist(), value=value, z=[z.real, z.imag],
    infinite=infinite == np.inf, integers=[quotient, remainder], error=error,
    compiled=counts.compiled, loaded=counts.loaded, third=third(41),
    scipy=scipy_for_pointwise, cpu=time.process_time())))
"""


def second_process() -> Any:
    script = "\n".join(
        [
            "import json, sys, time",
            "import numpy as np",
            "from numba import types",
            "from retrograde.codegen import compile as codegen",
            f"POINTWISE, MIXED = {POINTWISE!r}, {MIXED!r}",
            BODY,
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_second_process_loads_native_code_without_compiling():
    first = compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE)
    check_mixed(compile_source(MIXED, "entry", MIXED_SIGNATURE, uses_blas=True))
    x = np.linspace(-2, 2, 101)
    out = np.empty_like(x)
    total = first(x, out, 101)
    seen = second_process()
    assert (seen["compiled"], seen["loaded"]) == (0, 2)
    assert not seen["scipy"]
    assert seen["total"] == total
    assert seen["out"] == out.tolist()
    product = np.arange(9.0).reshape(3, 3) @ np.arange(9.0).reshape(3, 3)
    assert seen["value"] == product.ravel()[1]
    np.testing.assert_allclose(complex(*seen["z"]), complex(product.sum(), 1) ** 2)
    assert seen["infinite"]
    assert seen["integers"] == [2, 2]
    assert seen["error"] == "index is out of bounds"
    assert seen["third"] == 42


def test_processes_that_compile_at_the_same_time_agree(place: Path):
    script = (
        "import numpy as np\nfrom numba import types\n"
        "from retrograde.codegen.compile import compile_source\n"
        f"SOURCE = {POINTWISE!r}\n"
        "v = types.Array(types.float64, 1, 'C', readonly=True)\n"
        "t = types.Array(types.float64, 1, 'C')\n"
        "call = compile_source(SOURCE, 'entry', (v, t, types.int64))\n"
        "x = np.linspace(-2, 2, 101)\nprint(call(x, np.empty(101), 101).hex())\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ.copy(),
        )
        for _ in range(3)
    ]
    answers = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(answers) == 1
    assert len(natives(place)) == 1
    check_pointwise(compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE))
    assert stats() == codegen.Stats(loaded=1)


@pytest.mark.skipif(
    not any(name.startswith("_ZGV") for name in vecmath.symbols()),
    reason="no libmvec here",
)
def test_loop_with_helper_is_vectorised():
    compiled = compile_entry(POINTWISE, "entry", POINTWISE_SIGNATURE)
    assert "_ZGV" in compiled.assembly()


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="needs the checkout")
def test_kernel_of_the_documentation_works():
    blocks = DOCUMENT.read_text().split("```python\n")[1:]
    sources = [block.split("```")[0] for block in blocks]
    (source,) = [text for text in sources if "def entry" in text]
    signature = (VECTOR, VECTOR, TARGET, types.int64)
    call = compile_source(source, "entry", signature)
    x, y = np.random.default_rng(0).normal(size=(2, 100))
    out = np.empty(100)
    total = call(x, y, out, 100)
    np.testing.assert_allclose(out, np.exp(-x * x) * y, rtol=1e-14)
    np.testing.assert_allclose(total, (np.exp(-x * x) * y).sum(), rtol=1e-12)


def test_callable_refuses_what_is_not_an_array_of_this_item_size():
    call = compile_source(POINTWISE, "entry", POINTWISE_SIGNATURE)
    out = np.zeros(3)
    for wrong in ([1.0, 2.0, 3.0], np.ones(3, np.float32)):
        with pytest.raises(TypeError, match="can't unbox array"):
            call(wrong, out, 3)
