"""Times in turn, memory, and processes of one thread to measure them in."""

import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

# What is timed: called outside the clock, it returns the call that is timed.
Prepare = Callable[[], Callable[[], Any]]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RETROGRADE_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
# Large blocks go back to the system when they are freed, so that pages show them.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
PROCESS = Path("/proc/self")


class MeasurementError(Exception):
    """A process that measures has failed; the text says why."""


def medians(calls: Sequence[Prepare], seconds: float) -> list[float]:
    """Return the median seconds of some calls that run in turn: A B A B ...

    The first round is not counted; at least three are.
    """
    times: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    while len(times[0]) < 4 or time.perf_counter() - start < seconds:
        for prepare, known in zip(calls, times, strict=True):
            call = prepare()
            before = time.perf_counter()
            call()
            known.append(time.perf_counter() - before)
    return [statistics.median(known[1:]) for known in times]


def peak_growth(call: Callable[[], Any]) -> int | None:
    """Return by how many bytes the memory of the process grows while a call runs.

    The system counts pages, to about 0.3 MB. None where it cannot be asked.
    """
    try:
        (PROCESS / "clear_refs").write_text("5")  # the peak starts anew
        before = memory_status("VmRSS")
        result = call()  # kept until the peak is read
        growth = memory_status("VmHWM") - before
    except OSError:
        return None
    del result
    return max(growth, 0)


def memory_status(field: str) -> int:
    """Return a field of the process's status, in bytes."""
    for line in (PROCESS / "status").read_text().splitlines():
        name, _, text = line.partition(":")
        if name == field:
            return int(text.split()[0]) * 1024
    raise OSError(f"the system does not count {field}")


def cpu_seconds() -> float:
    """Return the processor time of this process and of those it has waited for."""
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(who) for who in both]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def run_child(
    arguments: Sequence[str],
    timeout: float,
    *,
    cache: str | None = None,
    extra: dict[str, str] | None = None,
) -> Any:
    """Run `python -m ...` in a process of one thread; return the JSON it prints last.

    Its disk cache is the folder `cache`, by default an empty one.
    """
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **os.environ,
            **ONE_THREAD,
            **(extra or {}),
            "RETROGRADE_CACHE_DIR": cache or empty,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"took over {timeout:g} s") from None
    if done.returncode:
        raise MeasurementError(_last_error(done.stderr, done.returncode))
    return json.loads(done.stdout.splitlines()[-1])


def _last_error(text: str, status: int) -> str:
    """Return the first line of the error that a traceback ends with."""
    named = [
        line for line in text.splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)
    ]
    return named[-1] if named else f"ended with status {status}"


def machine(*packages: str) -> str:
    """Describe the machine and the versions in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    names = ("numpy", "numba", *packages)
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} cores; Python {python}, {versions}"
