"""Measure groups of programs against peers: `python -m benchmarks [GROUP ...]`.

    python -m benchmarks [GROUP ...] [--only NAME ...] [--quick] [--peers jax,torch]
                         [--threads 1,2] [--json FILE] [--against BASELINE.json]
                         [--clock cpu]

Every framework runs in a process of its own, per number of threads; the processes take
turns. A result is held against NumPy's float64 value and against differences before its
time is taken. The exit status is 1 where a result of ours is wrong or missing.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

from . import compilation, loops, report
from .case import Case
from .frameworks import PACKAGES, PEERS, is_installed
from .groups import GROUPS, SIZES, WITHOUT
from .measure import machine
from .turns import Budget, Row, Turns, WorkerError

EVERY = (*GROUPS, "loops", "compile")
SECONDS, TIMEOUT = 0.6, 120.0  # of a row, and of one answer
QUICK_SECONDS, QUICK_TIMEOUT = 0.05, 60.0
QUICK_PEERS = ("jax", "torch")  # without --peers: the others take long to start
QUICK_LOOPS = ("seidel_2d", "cholesky", "trisolv", "heat_3d", "kalman")
QUICK_SIZE = 1_000  # the largest that is measured quickly
LARGE = 1_000_000  # float32 up to here, several threads from here
MINUTES = 38.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and until when (of the monotonic clock)."""

    groups: tuple[str, ...]
    only: tuple[str, ...]
    quick: bool
    peers: tuple[str, ...]
    threads: tuple[int, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    clock: str
    until: float

    @property
    def budget(self) -> Budget:
        if self.quick:
            return Budget(QUICK_SECONDS, QUICK_TIMEOUT, self.clock)
        return Budget(SECONDS, TIMEOUT, self.clock)

    def is_in_time(self, _: Row) -> bool:
        return time.monotonic() < self.until

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only

    def points(self, group: str, case: Case, threads: int) -> Iterator[tuple[int, str]]:
        """Return the sizes and dtypes at which a case is measured."""
        every = case.sizes or SIZES[group]
        sizes = [size for size in every if threads == 1 or size >= LARGE]
        sizes = sizes or [every[-1]]
        if self.quick:
            sizes = [size for size in every if size <= QUICK_SIZE] or [every[0]]
        narrow = [size for size in sizes if size <= LARGE][::-2]
        if self.quick:
            narrow = []
        for size in self.sizes or sizes:
            for dtype in self.dtypes or case.dtypes or ("float64", "float32"):
                if dtype == "float64" or self.sizes or size in narrow:
                    yield size, dtype


def of_cases(options: Options, group: str, threads: int) -> Iterator[Row]:
    """Measure the cases of a group, one row after the other."""
    peers = [name for name in options.peers if name not in WITHOUT.get(group, ())]
    names = ("ours", *peers, "numpy", "copy")
    with Turns(names, threads, options.budget) as turns:
        for case in GROUPS[group]:
            if not options.wants(case.name):
                continue
            for size, dtype in options.points(group, case, threads):
                try:
                    yield turns.measure(group, case, size, dtype)
                except WorkerError as error:
                    row = Row(group, case.name, size, dtype, threads)
                    row.errors["ours"] = str(error)
                    yield row


def of_loops(options: Options) -> Iterator[Row]:
    """Measure loop programs, and their gradients against those written by hand."""
    only = options.only or (QUICK_LOOPS if options.quick else ())
    wanted = loops.Options(only, options.quick, options.budget.timeout)
    for found in chain(loops.measured(wanted), loops.versus(wanted)):
        yield loops.as_row(found)


def measured(options: Options, group: str, threads: int) -> Iterator[Row]:
    if group == "compile":
        peers = [name for name in options.peers if name in ("jax", "torch.compile")]
        rows = compilation.measured(
            () if options.quick else peers, options.budget, options.quick
        )
        yield from (row for row in rows if options.wants(row.program))
    elif group == "loops":
        yield from of_loops(options)
    else:
        yield from of_cases(options, group, threads)


def watched(row: Row) -> Row:
    """Say on stderr what has been measured: all of it takes minutes."""
    result = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    errors = f" ({', '.join(row.errors)} failed)" if row.errors else ""
    where = f"{row.program} {report.count(row.size)} {row.dtype}"
    print(f"{where}: {result}{errors}", file=sys.stderr, flush=True)
    return row


def words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(float(word)) for word in words(text))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(EVERY))
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs")
    parser.add_argument("--peers", type=words, metavar="NAMES")
    parser.add_argument("--threads", type=numbers, metavar="COUNTS")
    parser.add_argument("--sizes", type=numbers, default=(), metavar="SIZES")
    parser.add_argument("--dtypes", type=words, default=(), metavar="NAMES")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="whose times count"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="start no row after so many"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="show what moved since this JSON"
    )
    given = parser.parse_args(arguments)
    given.threads = given.threads or ((1,) if given.quick else (1, 2))
    given.peers = given.peers or (QUICK_PEERS if given.quick else PEERS)
    for name in given.groups:
        if name not in EVERY:
            parser.error(f"no group is called {name}; there are {', '.join(EVERY)}")
    return given


def main() -> int:
    """Print tables and return the exit status."""
    given = parse()
    peers = tuple(name for name in given.peers if is_installed(name))
    for name in given.peers:
        if name not in peers:
            print(f"{name} is not installed and left out")
    options = Options(
        tuple(given.groups) or EVERY,
        tuple(given.only),
        given.quick,
        peers,
        given.threads,
        given.sizes,
        given.dtypes,
        given.clock,
        time.monotonic() + 60 * given.minutes,
    )
    described = machine(*dict.fromkeys(PACKAGES[p] for p in peers if p in PACKAGES))
    described += ", processor time" if options.clock == "cpu" else ""
    print(described)
    rows: list[Row] = []
    for group in options.groups:
        single = group in ("loops", "compile", "overhead")
        for threads in options.threads[:1] if single else options.threads:
            in_time = takewhile(options.is_in_time, measured(options, group, threads))
            found = [watched(row) for row in in_time]
            rows += found
            if found:
                title = f"{group}, {threads} thread{'s' * (threads > 1)}"
                report.show(title, found)
    if time.monotonic() > options.until:
        print(f"{given.minutes:g} minutes are over: what was not begun is left out")
    for line in compilation.over_limits(rows):
        print(line)
    if not rows:
        print("no program of the groups has such a name")
        return 1
    if given.json:
        given.json.write_text(report.as_json(described, rows) + "\n")
    if given.against:
        print("\n".join(report.changes(rows, report.load(given.against))))
    return 1 if any(row.fails for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
