"""A process that computes with one framework and answers one request per line.

    python -m benchmarks.worker FRAMEWORK

A request is a list in JSON: what to do, and its arguments. The answer is a JSON object;
one with the key `error` tells what went wrong.
"""

import contextlib
import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .case import Args
from .checks import digest, reference
from .frameworks import FRAMEWORKS, Prepared, load
from .groups import find
from .measure import cpu_seconds

BATCH = 4e-3  # seconds that a timed batch of calls takes at least


class Worker:
    """The state between two requests: what is timed, and how often at a time."""

    def __init__(self, framework: str) -> None:
        load(framework)
        self.framework = framework
        self.call: Callable[[], Any] | None = None
        self.count = 1

    def prepare(self, group: str, name: str, size: int, dtype: str) -> dict[str, Any]:
        """Compile, run and summarise a case; then time its calls."""
        self.call = None
        gc.collect()
        case = find(group, name)
        args: Args = case.args(size, dtype)
        start = cpu_seconds()
        prepared: Prepared = FRAMEWORKS[self.framework](case, args)
        result = prepared.call()
        first = cpu_seconds() - start
        summary = digest(args, prepared.read(result))
        del result
        self.call = prepared.call
        before = time.perf_counter()
        self.call()
        once = max(time.perf_counter() - before, 1e-7)
        self.count = max(1, round(BATCH / once))
        return {"first": first, "digest": dataclasses.asdict(summary)}

    def reference(self, group: str, name: str, size: int) -> dict[str, Any]:
        """Return what NumPy and differences say, in float64."""
        self.call = None
        case = find(group, name)
        return dataclasses.asdict(reference(case, case.args(size, "float64")))

    def time(self) -> dict[str, Any]:
        """Return seconds and processor seconds of one call."""
        assert self.call is not None
        call, count = self.call, self.count
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(count):
            call()
        wall = time.perf_counter() - start
        return {"wall": wall / count, "cpu": (time.process_time() - cpu) / count}

    def answer(self, request: list[Any]) -> dict[str, Any]:
        what, *arguments = request
        try:
            found: dict[str, Any] = getattr(self, what)(*arguments)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            return {"error": f"{type(error).__name__}: {text}"}
        return found


def main(framework: str) -> None:
    """Answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print must not look like an answer
    worker = Worker(framework)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            print(json.dumps(worker.answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
