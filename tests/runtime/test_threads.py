"""The pool: any number of threads, forks, several callers, errors, the end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types

from retrograde.codegen.compile import compile_entry
from retrograde.runtime import threads

THREADS = (1, 2, 3, 8)
NUMBERS = itertools.count()
pytestmark = pytest.mark.skipif(threads.libc() is None, reason="no POSIX threads")

PARTS = """
from retrograde.runtime.memory import load, pointer, size, store
from retrograde.runtime.scalar import exp

def part_0(chunk, p_x, p_y, n):
    bad = False
    for i in range(chunk * 100, min(chunk * 100 + 100, n)):
        v = load(p_x, i, 0, 2)
        if v > 50.0:
            bad = True
        store(p_y, i, exp(v), 1, 2)
    if bad:
        return chunk + 1
    return 0

def entry(x, y):
    n = size(x, 0)
    failed = parallel(part_0, (n + 99) // 100, pointer(x), pointer(y), n)
    return failed
"""


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def kernel() -> Any:
    args = [types.Array(types.float64, 1, "C", readonly=r) for r in (True, False)]
    return compile_entry(PARTS, "entry", tuple(args), kernel=True).call


@pytest.mark.parametrize("n", [0, 1, 100, 101, 5000])
def test_every_chunk_runs_once(n: int) -> None:
    x = np.linspace(0.0, 1.0, n)
    wanted = None
    for count in THREADS:
        threads.set_num_threads(count)
        y = np.zeros(n)
        assert kernel()(x, y) == 0
        wanted = y if wanted is None else wanted
        assert y.tobytes() == wanted.tobytes()
    np.testing.assert_allclose(wanted, np.exp(x))
    assert threads.started() <= 7


def test_the_first_chunk_that_fails_counts() -> None:
    x = np.zeros(20_000)
    x[[7_777, 7_999, 8_000, 19_000]] = 99.0
    for count in THREADS * 5:
        threads.set_num_threads(count)
        assert kernel()(x, np.zeros_like(x)) == 78


def test_several_callers_at_once() -> None:
    threads.set_num_threads(4)
    call = kernel()
    x = np.linspace(0.0, 1.0, 50_000)
    wrong: list[object] = []

    def work(k: int) -> None:
        mine, y = x + k, np.zeros_like(x)
        wanted = np.exp(mine)
        for _ in range(50):
            y[:] = 0.0
            if call(mine, y) or not np.allclose(y, wanted, rtol=1e-14):
                wrong.append(k)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_the_number_of_threads_is_checked(n: Any) -> None:
    with pytest.raises(ValueError, match="number of threads"):
        threads.set_num_threads(n)


def test_more_threads_than_there_can_be() -> None:
    threads.set_num_threads(10**6)
    assert threads.get_num_threads() == threads.MOST


# What needs a process of its own ---------------------------------------------------

HEAD = """
import os, sys, threading
import numpy as np
import retrograde as rg
from retrograde.runtime import threads

@rg.compile
def f(x):
    return np.sum(np.exp(-x * x)), np.sin(x) + x

x = np.linspace(-1.0, 1.0, 200_000)
"""


def run(tmp_path: Path, body: str, **env: str) -> str:
    """Run a script; return what it prints."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + body)
    paths = [str(Path.cwd()), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **env}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alone_no_thread_is_started(tmp_path: Path) -> None:
    out = run(tmp_path, "f(x); print(threads.started())", RETROGRADE_NUM_THREADS="1")
    assert out.split() == ["0"]


FORK = """
want = [np.asarray(r).tobytes() for r in f(x)]

def right():
    return [np.asarray(r).tobytes() for r in f(x)] == want

def child():
    before = threads.started()
    good = right() and before == 0 and threads.started() == 2
    os._exit(0 if good else 1)

def fork():
    pid = os.fork()
    if pid == 0:
        child()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert threads.started() == 2
codes = [fork()]
stop = threading.Event()
busy = [threading.Thread(target=lambda: [right() for _ in iter(stop.is_set, True)])]
busy[0].start()
codes += [fork() for _ in range(10)]
stop.set()
busy[0].join()
print(codes, right())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_works_and_has_threads_again(tmp_path: Path) -> None:
    out = run(tmp_path, FORK, RETROGRADE_NUM_THREADS="3")
    assert out.strip() == f"{[0] * 11} True"


MASKS = """
threads.set_num_threads(3)
f(x)
tasks = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
masks = []
for t in tasks:
    for line in open(f"/proc/self/task/{t}/status"):
        if line.startswith("SigBlk"):
            masks.append(int(line.split()[1], 16))
print(sum(bool(m & 2) for m in masks))  # SIGINT is number 2: the second bit
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_leave_signals_to_python(tmp_path: Path) -> None:
    assert int(run(tmp_path, MASKS)) == 2
