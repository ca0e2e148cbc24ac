"""Loop programs, in NumPy and compiled, with gradients: `python -m benchmarks.loops`.

    python -m benchmarks.loops [--only NAME ...] [--quick] [--json] [--timeout S]

Every program runs in processes of its own, with an empty disk cache and one thread. A
gradient is held against differences before its time is taken. The last table holds
generated gradients against hand-written ones (`benchmarks/adjoints.py`). A program that
fails shows its error, and the exit status is 1.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

import retrograde as rg
from retrograde.differences import slope

from . import turns
from .adjoints import HANDS, Hand
from .measure import (
    RETURN_MEMORY,
    MeasurementError,
    cpu_seconds,
    machine,
    medians,
    peak_growth,
    run_child,
)
from .programs import PROGRAMS, Args, Program, Size, copied, differentiable, find

SECONDS = 2.0  # for the runs of one program
QUICK = 0.1
WIDTH = 120  # columns of the table, also where the terminal has fewer
RIGHT = 1e-6  # largest error of a gradient, relative to the sum of its terms
SAME = 1e-9  # largest difference from the gradient by hand, relative to its largest


@dataclass(frozen=True, slots=True)
class Times:
    """Figures of one program: seconds, and bytes of memory.

    `data` is the size of arguments and gradients, `memory` what computing a gradient
    needs beside them at its peak. `cold` is the processor time of the first gradient
    less that of a later one. `checked` tells whether differences confirm the gradient.
    """

    name: str
    size: Size
    numpy: float
    forward: float
    gradient: float
    cold: float
    data: int
    checked: bool
    memory: int | None = None

    @property
    def ratio(self) -> float:
        return self.gradient / self.forward


@dataclass(frozen=True, slots=True)
class Versus:
    """Seconds of a generated and of a hand-written gradient."""

    name: str
    size: Size
    ours: float
    hand: float

    @property
    def ratio(self) -> float:
        return self.ours / self.hand


@dataclass(frozen=True, slots=True)
class Failure:
    """A program that could not be measured, and why."""

    name: str
    size: Size
    error: str


Row = TypeVar("Row", Times | Failure, Versus | Failure)


# In the processes that measure.


@dataclass(frozen=True, slots=True)
class Setting:
    """A program's objective at one size, as NumPy code and compiled.

    `scale` is the size of what the objective adds up, which bounds its rounding errors.
    """

    args: Args
    weights: Args
    scale: float
    objective: Callable[..., Any]
    forward: Callable[..., Any]
    gradient: Callable[..., Any]
    wrt: tuple[int, ...]


def prepare(program: Program, size: Size) -> Setting:
    args = program.args(size)
    objective = program.objective()
    forward = rg.compile(objective)
    wrt = differentiable(args)
    gradient = rg.value_and_grad(forward, argnums=tuple(k + 1 for k in wrt))
    weights, results = program.weights(args), program.results(copied(args))
    terms = (np.sum(np.abs(w * r)) for w, r in zip(weights, results, strict=True))
    return Setting(args, weights, float(sum(terms)), objective, forward, gradient, wrt)


def time_program(program: Program, size: Size, seconds: float) -> Times:
    """Compile, check and time a program."""
    s = prepare(program, size)
    start = cpu_seconds()
    value, grads = s.gradient(s.weights, *s.args)
    first = cpu_seconds() - start
    known = s.objective(s.weights, *copied(s.args))
    check_value("value of the gradient", value, known)
    check_value("value", s.forward(s.weights, *copied(s.args)), known)
    checked = check_gradient(s, grads)
    numpy_time, forward, gradient = medians(
        [
            lambda: partial(s.objective, s.weights, *copied(s.args)),
            lambda: partial(s.forward, s.weights, *copied(s.args)),
            lambda: partial(s.gradient, s.weights, *s.args),
        ],
        seconds,
    )
    data = sum(np.asarray(x).nbytes for x in (*s.args, *grads))
    cold = first - gradient
    return Times(program.name, size, numpy_time, forward, gradient, cold, data, checked)


def measure_memory(program: Program, size: Size) -> int | None:
    """Return the peak of a gradient's memory beyond arguments and gradients.

    Code and small scratch memory come from a smaller run; where the large one compiles
    again, there is nothing to tell.
    """
    small = program.args(program.tests[-1])
    s = prepare(program, size)
    s.gradient(program.weights(small), *small)
    before = s.gradient.cache_info().misses  # type: ignore[attr-defined]
    growth = peak_growth(lambda: s.gradient(s.weights, *s.args))
    if growth is None or s.gradient.cache_info().misses != before:  # type: ignore[attr-defined]
        return None
    results = sum(np.asarray(s.args[k]).nbytes for k in s.wrt)
    return max(growth - results, 0)


def compare_with_hand(hand: Hand, size: Size, seconds: float) -> Versus:
    """Check that both gradients agree, and time them in turn."""
    s = prepare(hand.program, size)
    value, grads = s.gradient(s.weights, *s.args)
    known, wanted = hand.gradient(s.weights, *s.args)
    check_value("value", value, known)
    for g, want in zip(grads, wanted, strict=True):
        error = np.max(np.abs(g - want)) / np.max(np.abs(want))
        if not error <= SAME:
            raise MeasurementError(f"gradients differ by {error:.1e}")
    ours, by_hand = medians(
        [
            lambda: partial(s.gradient, s.weights, *s.args),
            lambda: partial(hand.gradient, s.weights, *s.args),
        ],
        seconds,
    )
    return Versus(hand.name, size, ours, by_hand)


def check_value(what: str, got: Any, want: Any) -> None:
    if not abs(got - want) <= SAME * max(abs(want), 1.0):
        raise MeasurementError(f"{what} is {got!r}, NumPy's is {want!r}")


def check_gradient(s: Setting, grads: Args) -> bool:
    """Hold the gradient against differences of values along a random direction.

    Return whether the differences can tell: at a kink, they cannot.
    """
    rng = np.random.default_rng(1)
    # Each argument moves as far as its gradient allows, so that none hides the others.
    steps = {
        k: rng.choice([-1.0, 1.0], np.shape(g)) / max(float(np.linalg.norm(g)), 1.0)
        for k, g in zip(s.wrt, grads, strict=True)
    }

    def along(t: float) -> float:
        moved = list(copied(s.args))
        for k, step in steps.items():
            moved[k] = s.args[k] + t * step
        return float(s.forward(s.weights, *moved))

    terms = [g * steps[k] for k, g in zip(s.wrt, grads, strict=True)]
    got = sum(float(np.sum(t)) for t in terms)
    allowed = RIGHT * max(sum(float(np.sum(np.abs(t))) for t in terms), 1.0)
    known = slope(along, max(s.scale, 1.0), 2.0**-52)
    if known.problem or known.doubt > 100 * allowed:
        return False
    if not abs(got - known.value) <= allowed + 2 * known.doubt:
        raise MeasurementError(f"slope {got:.9g}, by differences {known.value:.9g}")
    return True


def child(what: str, name: str, size: Size, seconds: float) -> Any:
    """Measure in this process, and return what JSON can say."""
    if what == "hand":
        (hand,) = [h for h in HANDS if h.name == name]
        return dataclasses.asdict(compare_with_hand(hand, size, seconds))
    program = find(name)
    if what == "memory":
        return measure_memory(program, size)
    return dataclasses.asdict(time_program(program, size, seconds))


# In the process that shows.


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and for how long."""

    only: tuple[str, ...]
    quick: bool
    timeout: float

    @property
    def seconds(self) -> float:
        return QUICK if self.quick else SECONDS

    def size(self, program: Program) -> Size:
        return program.tests[-1] if self.quick else program.bench

    def wants(self, program: Program) -> bool:
        return not self.only or program.name in self.only


def ask(
    options: Options,
    what: str,
    name: str,
    size: Size,
    cache: str,
    extra: dict[str, str] | None = None,
) -> Any:
    arguments = [
        "benchmarks.loops",
        f"--child={what}",
        f"--only={name}",
        f"--size={','.join(map(str, size))}",
        f"--seconds={options.seconds}",
    ]
    return run_child(arguments, options.timeout, cache=cache, extra=extra)


def measured(options: Options) -> Iterator[Times | Failure]:
    for program in PROGRAMS:
        if not options.wants(program):
            continue
        size = options.size(program)
        with tempfile.TemporaryDirectory() as cache:
            try:
                found = ask(options, "times", program.name, size, cache)
                memory = ask(
                    options, "memory", program.name, size, cache, RETURN_MEMORY
                )
                yield Times(**{**found, "size": size, "memory": memory})
            except MeasurementError as error:
                yield Failure(program.name, size, str(error))


def versus(options: Options) -> Iterator[Versus | Failure]:
    for hand in HANDS:
        program = hand.program
        if not options.wants(program):
            continue
        with tempfile.TemporaryDirectory() as cache:
            for size in program.tests[-1:] if options.quick else hand.sizes:
                try:
                    found = ask(options, "hand", hand.name, size, cache)
                    yield Versus(**{**found, "size": size})
                except MeasurementError as error:
                    yield Failure(hand.name, size, str(error))


def as_row(found: Times | Versus | Failure) -> turns.Row:
    """Return what `python -m benchmarks` shows; `size` is the product of the sides."""
    name = f"{found.name}, by hand" if isinstance(found, Versus) else found.name
    row = turns.Row("loops", name, math.prod(found.size), "float64", 1)
    match found:
        case Times():
            row.seconds.update(ours=found.gradient, value=found.forward)
            row.seconds["numpy"] = found.numpy
            row.first["ours"] = found.cold
        case Versus():
            row.seconds.update({"ours": found.ours, "by hand": found.hand})
        case Failure():
            row.errors["ours"] = found.error
    return row


def failures(
    rows: list[Times | Failure], hands: list[Versus | Failure]
) -> list[Failure]:
    return [row for row in (*rows, *hands) if isinstance(row, Failure)]


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def sides(size: Size) -> str:
    return " x ".join(map(str, size))


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.1f}"


def show(rows: list[Times | Failure], hands: list[Versus | Failure]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    table = Table(title=machine(), box=None, pad_edge=False, title_justify="left")
    titles = ("NumPy ms", "forward ms", "gradient ms", "gradient/forward")
    table.add_column("program")
    table.add_column("size")
    for title in (*titles, "data MB", "memory MB", "cold s"):
        table.add_column(title, justify="right")
    for row in rows:
        if isinstance(row, Failure):
            table.add_row(row.name, sides(row.size), "[red]failed[/]")
            continue
        table.add_row(
            row.name,
            sides(row.size),
            milliseconds(row.numpy),
            milliseconds(row.forward),
            milliseconds(row.gradient),
            f"{row.ratio:.2f}{'' if row.checked else ' ?'}",
            megabytes(row.data),
            megabytes(row.memory),
            f"{row.cold:.2f}",
        )
    console.print(table)
    ratios = [row.ratio for row in rows if isinstance(row, Times)]
    mean = geometric_mean(ratios)
    console.print(
        f"geometric mean of gradient/forward over {len(ratios)} programs: {mean:.2f}"
    )
    if any(isinstance(row, Times) and not row.checked for row in rows):
        console.print("?: differences cannot tell whether the gradient is right")
    if hands:
        show_hands(console, hands)
    for failure in failures(rows, hands):
        console.print(f"[red]{failure.name} {sides(failure.size)}[/]: ", end="")
        console.print(failure.error, markup=False)


def show_hands(console: Any, hands: list[Versus | Failure]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("\ngradient")
    table.add_column("\nsize")
    for title in ("generated ms", "by hand ms", "generated/by hand"):
        table.add_column(f"\n{title}", justify="right")
    for row in hands:
        if isinstance(row, Failure):
            table.add_row(row.name, sides(row.size), "[red]failed[/]")
            continue
        times = milliseconds(row.ours), milliseconds(row.hand), f"{row.ratio:.2f}"
        table.add_row(row.name, sides(row.size), *times)
    console.print(table)


def as_json(rows: list[Times | Failure], hands: list[Versus | Failure]) -> str:
    ratios = [row.ratio for row in rows if isinstance(row, Times)]
    return json.dumps(
        {
            "machine": machine(),
            "programs": [dataclasses.asdict(row) for row in rows],
            "by hand": [dataclasses.asdict(row) for row in hands],
            "mean": geometric_mean(ratios) if ratios else None,
        },
        indent=1,
    )


def main() -> int:
    """Print tables and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, few runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        size = tuple(map(int, given.size.split(",")))
        print(json.dumps(child(given.child, given.only[0], size, given.seconds)))
        return 0
    unknown = set(given.only) - {p.name for p in PROGRAMS}
    if unknown:
        parser.error(f"no program is called {', '.join(sorted(unknown))}")
    options = Options(tuple(given.only), given.quick, given.timeout)
    rows = [watched(row) for row in measured(options)]
    hands = [watched(row) for row in versus(options)]
    if given.json:
        print(as_json(rows, hands))
    else:
        show(rows, hands)
    return 1 if failures(rows, hands) else 0


def watched(row: Row) -> Row:
    """Say on stderr what has been measured: all of it takes minutes."""
    result = "failed" if isinstance(row, Failure) else f"{row.ratio:.2f}"
    print(f"{row.name} {sides(row.size)}: {result}", file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
