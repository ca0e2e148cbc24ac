"""One cache folder, several processes and threads: each thing is compiled once."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen import compile as codegen
from retrograde.runtime import cache

PROGRAM = """
import numpy as np
import retrograde as rg


@rg.compile
def loss(x, y):
    t = np.tanh(x * y)
    t[1:] += t[:-1]
    return (t**2).sum()


def first(x, y):
    return float(loss(x, y)), rg.grad(loss, argnums=(0, 1))(x, y)
"""
MAIN = """
if __name__ == "__main__":
    import json
    from retrograde.codegen import compile as codegen
    value, gradients = first(np.linspace(0, 1, 9), np.linspace(1, 2, 9))
    stats = codegen.stats()
    out = [value, [g.tolist() for g in gradients], stats.compiled, stats.loaded]
    print(json.dumps(out))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(folder))
    monkeypatch.setenv("RETROGRADE_VERIFY", "0")
    codegen.forget()
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "shared_program.py"
    file.write_text(PROGRAM + MAIN)
    return file


def start(script: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def answer(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors == ""
    return json.loads(out)


def natives(place: Path) -> list[Path]:
    return sorted(place.rglob("*.native"))


def test_eight_processes_on_an_empty_cache(place: Path, script: Path) -> None:
    answers = [answer(p) for p in [start(script) for _ in range(8)]]
    assert all(a[:2] == answers[0][:2] for a in answers)
    assert sum(a[2] for a in answers) == 2  # the function and its gradient
    assert sum(a[3] for a in answers) == 14
    for file in natives(place):
        assert cache.fetch(file.stem, ".native") is not None
    assert not list(place.rglob(".new-*"))


def test_killed_compilation_leaves_a_usable_cache(place: Path, script: Path) -> None:
    process = start(script)
    while not list(place.rglob("*.py")):  # it is about to compile
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert natives(place) == []
    began = time.monotonic()
    assert answer(start(script))[2:] == [2, 0]
    assert time.monotonic() - began < 60
    assert answer(start(script))[2:] == [0, 2]


def compiled_anew(tmp_path: Path) -> Any:
    """Return value and gradients in this process, and what was compiled for them."""
    codegen.forget()
    file = tmp_path / "program_of_tests.py"
    file.write_text(PROGRAM)
    space: dict[str, Any] = {"__name__": "program_of_tests"}
    exec(compile(PROGRAM, str(file), "exec"), space)
    x, y = np.linspace(0, 1, 9), np.linspace(1, 2, 9)
    value, gradients = space["first"](x, y)
    stats = codegen.stats()
    found = [value, *(g.tolist() for g in gradients)]
    return found, (stats.compiled, stats.loaded)


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "swapped", "open"])
def test_damage_of_any_entry_is_repaired(
    place: Path, tmp_path: Path, damage: str
) -> None:
    good, counts = compiled_anew(tmp_path)
    assert counts == (2, 0)
    files = [f for f in sorted(place.rglob("*")) if f.is_file() and f.suffix]
    kinds = {f.suffix for f in files}
    before = {f: f.read_bytes() for f in files}
    for kind in kinds:
        same = [f for f in files if f.suffix == kind]
        for f, other in zip(same, [*same[1:], same[0]], strict=True):
            if damage == "open":
                f.chmod(0o666)
            elif damage == "swapped":
                f.write_bytes(before[other])
            else:
                bad = {"cut": before[f][:-9], "empty": b"", "garbage": b"\xff" * 999}
                f.write_bytes(bad[damage])
    assert compiled_anew(tmp_path) == (good, (2, 0))
    assert {f: f.read_bytes() for f in files if f.suffix == ".py"} == {
        f: data for f, data in before.items() if f.suffix == ".py"
    }
    assert compiled_anew(tmp_path) == (good, (0, 2))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_folder_that_takes_nothing_does_not_fail_a_call(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    good, _ = compiled_anew(tmp_path)
    cache.clear()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache.os, "replace", refuse)
    assert compiled_anew(tmp_path) == (good, (2, 0))
    if code == errno.EROFS:
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        assert compiled_anew(tmp_path) == (good, (2, 0))
    assert natives(place) == []
    assert not list(place.rglob(".new-*"))


def cube(x: Any) -> Any:
    return (x * x * x).sum()


def test_threads_trace_and_compile_once(place: Path) -> None:
    f = rg.compile(cube)
    x = np.linspace(0, 1, 7)
    barrier = threading.Barrier(4)
    found = []

    def work() -> None:
        barrier.wait()
        value, gradient = rg.value_and_grad(f)(x)
        found.append((float(value), gradient.tolist()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found)
    np.testing.assert_allclose(found[0][1], 3 * x**2)
    info = rg.value_and_grad(f).cache_info()
    assert (info.misses, info.specialisations, info.compiled) == (1, 1, 1)
    assert codegen.stats().compiled == 1
