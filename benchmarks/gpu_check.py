"""Check and measure a machine with an NVIDIA GPU: `python -m benchmarks.gpu_check`.

    python -m benchmarks.gpu_check [--json FILE] [--minutes N] [--parts NAMES]
                                   [--rehearse]

Parts, each with its share of the minutes, in processes of their own: `environment`,
`correctness` (against the processor), `recording` (compilation and graphs),
`sanitizer` (compute-sanitizer on small arrays, if it is installed) and `speed`
(against a copy, torch.compile, JAX and CuPy, those that are installed). Results are
written as JSON after each part; a table and the goals come last. The exit status is 1
if something is wrong; goals do not count.

`--rehearse` needs no GPU: values are those of the interpreter, all else runs on a stub
of the driver, with tiny arrays.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

if not __package__:  # run as a file: the processes it starts need the folder, too
    root = str(Path(__file__).resolve().parents[1])
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))
    __package__ = "benchmarks"

from .gpu.records import Child, Record, python
from .gpu.speed import FRAMEWORKS, PACKAGES
from .gpu.summary import Results, lines, problems
from .launches import build_stub

# Shares of the time, in the order in which parts run.
PARTS = {
    "environment": 0.05,
    "correctness": 0.35,
    "recording": 0.1,
    "sanitizer": 0.12,
    "speed": 0.38,
}
SHARES = {"ours": 0.34, "torch.compile": 0.3, "jax": 0.22, "cupy": 0.14}  # of `speed`
TOOLS = ("memcheck", "racecheck", "initcheck")
PROCESSES = 8  # of `correctness` at most: they compile, mostly for the processor
WATCHED = 3  # every so-manieth check runs under the sanitizer
PASSES_ALL = '#!/bin/sh\nshift 4\nexec "$@"\n'  # stands for a sanitizer in a rehearsal


class Session:
    """One run of the parts."""

    def __init__(self, folder: Path, seconds: float, rehearse: bool) -> None:
        self.folder = folder
        self.end = time.monotonic() + seconds
        self.seconds = seconds
        self.options = ["tiny"] if rehearse else []
        self.rehearse = rehearse
        self.seed = str(int.from_bytes(os.urandom(4), "little"))
        self.stub: dict[str, str] = {}
        if rehearse:
            if not build_stub(folder):
                raise SystemExit("--rehearse needs gcc and Linux")
            self.stub = {"LD_LIBRARY_PATH": str(folder), "STUB_QUIET": "1"}

    def child(self, name: str, command: Sequence[str], share: float) -> Child:
        """Start a process with a share of the whole time, or with what is left."""
        seconds = min(share * self.seconds, self.end - time.monotonic())
        cold = self.folder / ("cold" if name == "recording" else "cache")
        known = os.environ.get("RETROGRADE_CACHE_DIR") if self.rehearse else None
        environment = {
            "RETROGRADE_CACHE_DIR": known or str(cold),
            "RETROGRADE_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **self.stub,
        }
        return Child(name, command, environment, seconds).start()

    def environment(self, share: float) -> list[Record]:
        command = python("benchmarks.gpu.environment", "cuda:0")
        return self.child("environment", command, share).finish()

    def correctness(self, share: float) -> list[Record]:
        count = (
            1 if self.rehearse else min(PROCESSES, max(1, (os.cpu_count() or 2) // 2))
        )
        name = "cuda:emu" if self.rehearse else "cuda:0"
        children = [
            self.child("correctness", self.checking(name, k, count), share)
            for k in range(count)
        ]
        return [record for child in children for record in child.finish()]

    def checking(self, name: str, number: int, count: int, *more: str) -> list[str]:
        numbers = (str(number), str(count), self.seed)
        options = (*self.options, *more)
        return python("benchmarks.gpu.correctness", name, *numbers, *options)

    def recording(self, share: float) -> list[Record]:
        options = () if self.rehearse else ("compare",)
        command = python("benchmarks.gpu.recording", "cuda:0", *self.options, *options)
        return self.child("recording", command, share).finish()

    def sanitizer(self, share: float) -> list[Record]:
        tool = self.tool()
        if tool is None:
            return [{"what": "compute-sanitizer", "verdict": "not installed"}]
        found: list[Record] = []
        for name in TOOLS:
            command = [tool, "--tool", name, "--error-exitcode", "9"]
            command += self.checking("cuda:0", 0, WATCHED, "alone")
            records = self.child("sanitizer", command, share / len(TOOLS)).finish()
            errors = [r for r in records if "error" in r]
            done = [r["name"] for r in records if r.get("what") == "check"]
            verdict = "clean" if not errors else errors[0]["error"]
            found.append({"what": name, "verdict": verdict, "programs": done})
            if errors and not errors[0]["error"].startswith("took over"):
                found[-1] |= {"error": verdict, "output": errors[0]["output"]}
        return found

    def tool(self) -> str | None:
        """Return the sanitizer's path; that of its stand-in in a rehearsal."""
        if self.rehearse:
            path = self.folder / "compute-sanitizer"
            path.write_text(PASSES_ALL)
            path.chmod(0o755)
            return str(path)
        homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
        places = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes)]
        places += [f"{home}/compute-sanitizer" for home in homes]
        return shutil.which("compute-sanitizer", path=os.pathsep.join(places))

    def speed(self, share: float) -> list[Record]:
        found: list[Record] = []
        for name in FRAMEWORKS:
            if name in PACKAGES and find_spec(PACKAGES[name]) is None:
                found.append({"what": "peer", "name": name, "missing": True})
                continue
            command = python("benchmarks.gpu.speed", name, "cuda:0", *self.options)
            child = self.child("speed", command, share * SHARES[name])
            records = child.finish()
            found += [{"framework": name, **record} for record in records]
        return found


def run(session: Session, parts: Sequence[str], file: Path | None) -> Results:
    """Run parts; the file has all results so far after each of them."""
    results: Results = {}
    for part in parts:
        start = time.monotonic()
        results[part] = getattr(session, part)(PARTS[part])
        took = time.monotonic() - start
        print(f"{part}: {len(results[part])} results in {took:.0f} s", flush=True)
        if file is not None:
            document = {"seed": session.seed, "results": results}
            new = file.with_suffix(".new")
            new.write_text(json.dumps(document, indent=1))
            new.replace(file)
    return results


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(
            f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}"
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        session = Session(Path(folder), 60 * options.minutes, options.rehearse)
        results = run(session, parts, options.json)
    print("\n".join(lines(results)))
    return int(any(problems(results)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
