"""Worker processes, one per framework, and their times in turn: A B C A B C ..."""

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .case import Case
from .checks import Digest, Reference, disagreement, problem
from .frameworks import PEERS, THREADS

ROUNDS = 3  # at least


def environment(threads: int, folder: str) -> dict[str, str]:
    """Return the variables that bound the threads, and put caches into a folder."""
    count = str(threads)
    known = {
        name: count
        for name in (
            THREADS,
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUMBA_NUM_THREADS",
            "RETROGRADE_NUM_THREADS",
            "NPROC",  # XLA's
        )
    }
    eigen = "true" if threads > 1 else "false"
    known["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={count}"
    )
    known["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else a pool of processes starts
    known["RETROGRADE_CACHE_DIR"] = os.path.join(folder, "retrograde")
    known["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
    return {**os.environ, **known}


class WorkerError(Exception):
    """A worker could not do what it was asked; the text says why."""


class Worker:
    """A process that computes with one framework; it starts anew after it died."""

    def __init__(self, framework: str, threads: int, folder: str) -> None:
        self.framework = framework
        self.environment = environment(threads, folder)
        self.process: subprocess.Popen[str] | None = None

    def ask(self, *request: Any, timeout: float) -> dict[str, Any]:
        """Send a request and return the answer."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", self.framework],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self.environment,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        if not ready:
            self.close()
            raise WorkerError(f"took over {timeout:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a case at one size: seconds by framework.

    `cpu` is processor time over wall time, `first` the processor time of the first run,
    with everything that it compiles. `errors` are those of frameworks without a time.
    """

    group: str
    program: str
    size: int
    dtype: str
    threads: int
    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether our result is wrong or missing, and not just not supported."""
        error = self.errors.get("ours", "")
        return bool(error) and not error.startswith("UnsupportedError")

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        return self.group, self.program, self.size, self.dtype, self.threads

    @property
    def best(self) -> str | None:
        """The fastest of the peers, if there is one."""
        times = {k: v for k, v in self.seconds.items() if k in PEERS}
        return min(times, key=times.__getitem__) if times else None

    @property
    def ratio(self) -> float | None:
        """How many times as long the fastest peer takes."""
        if self.best is None or "ours" not in self.seconds:
            return None
        return self.seconds[self.best] / self.seconds["ours"]

    @property
    def copying(self) -> float | None:
        """A copy's share of the time of the fastest: 1 where memory is the bound."""
        if "copy" not in self.seconds or self.fastest is None:
            return None
        return self.seconds["copy"] / self.fastest

    @property
    def fastest(self) -> float | None:
        """The least seconds of those that compute value and gradient."""
        times = [v for k, v in self.seconds.items() if k in (*PEERS, "ours")]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds: for the batches of one row, and for one answer at most.

    `clock` is the one whose times count: "wall", or "cpu" where other programs run.
    """

    seconds: float
    timeout: float
    clock: str = "wall"


class Turns:
    """The workers of one number of threads."""

    def __init__(self, names: Sequence[str], threads: int, budget: Budget) -> None:
        self.threads = threads
        self.budget = budget
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.workers = {
            name: Worker(name, threads, str(Path(self.folder.name))) for name in names
        }
        self.checker = Worker("numpy", threads, self.folder.name)
        self.references: dict[tuple[str, str, int], Reference] = {}

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self.workers.values(), self.checker):
            worker.close()
        self.folder.cleanup()

    def known(self, group: str, name: str, size: int) -> Reference:
        """Return what NumPy says; it is asked once for every precision."""
        key = group, name, size
        if key not in self.references:
            found = self.checker.ask("reference", *key, timeout=self.budget.timeout)
            self.references[key] = Reference(**found)
        return self.references[key]

    def measure(self, group: str, case: Case, size: int, dtype: str) -> Row:
        """Check every framework's result, and time those that are right."""
        row = Row(group, case.name, size, dtype, self.threads)
        known = self.known(group, case.name, size)
        digests: dict[str, Digest] = {}
        for name, worker in self.workers.items():
            if case.plain and name == "autograd":
                continue  # its value is NumPy's
            try:
                found = worker.ask(
                    "prepare",
                    group,
                    case.name,
                    size,
                    dtype,
                    timeout=self.budget.timeout,
                )
            except WorkerError as error:
                row.errors[name] = str(error)
                continue
            row.first[name] = found["first"]
            digests[name] = Digest(**found["digest"])
            if name != "copy" and (text := problem(digests[name], known, dtype)):
                row.errors[name] = text
        self.compare(digests, row)
        self.time([name for name in digests if name not in row.errors], row)
        return row

    def compare(self, digests: dict[str, Digest], row: Row) -> None:
        """Hold our gradient against that of each peer whose slope is right."""
        if "ours" not in digests or "ours" in row.errors:
            return
        for name in PEERS:
            if name in digests and name not in row.errors:
                text = disagreement(digests["ours"], digests[name], row.dtype)
                if text:
                    row.errors["ours"] = f"{name}: {text}"

    def time(self, names: list[str], row: Row) -> None:
        known: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        start, rounds = time.perf_counter(), 0
        while names and (
            rounds < ROUNDS or time.perf_counter() - start < self.budget.seconds
        ):
            rounds += 1
            for name in names:
                found = self.workers[name].ask("time", timeout=self.budget.timeout)
                known[name].append(found)
        for name, times in known.items():
            row.seconds[name] = statistics.median(t[self.budget.clock] for t in times)
            wall, cpu = (sum(t[clock] for t in times) for clock in ("wall", "cpu"))
            row.cpu[name] = cpu / wall
