"""Results of a part: JSON objects, one a line, so that nothing is lost in a crash."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
Emit = Callable[[Record], None]
MARK = "record: "  # begins a line that is a record: libraries print, too


def emit(record: Record) -> None:
    """Print a record of this process."""
    print(MARK + json.dumps(record), flush=True)


def records_in(text: str) -> list[Record]:
    """Return the records of what a process has printed, also of half a last line."""
    found = []
    for line in text.splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):
                found.append(json.loads(line.removeprefix(MARK)))
    return found


@dataclass(slots=True)
class Child:
    """A process that prints records, and has to end before `limit`."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    seconds: float
    started: float = field(default_factory=time.monotonic)
    process: Any = None
    output: Any = None

    def start(self) -> "Child":
        self.output = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            self.command,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.environment},
            start_new_session=True,  # so that it ends with all that it has started
        )
        return self

    def finish(self) -> list[Record]:
        """Wait, and return its records; the last one says how it ended if badly."""
        left = self.seconds - (time.monotonic() - self.started)
        try:
            status = self.process.wait(max(left, 0.1))
            ending = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            ending = f"took over {self.seconds:.0f} s"
            self.kill()
        self.output.seek(0)
        text = self.output.read()
        self.output.close()
        records = records_in(text)
        if ending:
            lines = [x for x in text.splitlines() if not x.startswith(MARK)]
            records.append({"what": self.name, "error": ending, "output": lines[-15:]})
        return records

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def python(module: str, *arguments: str) -> list[str]:
    """Return the command of a module of this Python."""
    return [sys.executable, "-m", module, *arguments]
