"""Tables of rows, what moved against other rows, and both as JSON."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .frameworks import PEERS
from .turns import Row

WIDTH = 140  # columns of a table, also where the terminal has fewer
MEMORY = 0.7  # a row whose copy takes this share of the time is bound by memory
CALLS = 3e-5  # seconds: below these, calls are what is measured
SLOWER = 1.0  # rows below are marked
ERROR = 80  # letters of an error in JSON: longer ones name files
MOVED = 0.15  # smallest change that is shown

SHOWN = ("ours", "value", "by hand", "eager", *PEERS, "numpy", "copy")


def geometric_mean(ratios: Iterable[float]) -> float:
    known = list(ratios)
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def duration(seconds: float | None) -> str:
    """Write seconds with three digits and a unit."""
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def count(size: int) -> str:
    """Write 1000000 as 1e6, and nothing where a row has no size."""
    if not size:
        return ""
    power = len(str(size)) - 1
    return f"1e{power}" if size == 10**power and size >= 1000 else str(size)


def bound(row: Row) -> str:
    """Say what bounds a row: calls, memory or arithmetic."""
    if row.fastest is None or row.copying is None:
        return ""
    if row.fastest < CALLS:
        return "calls"
    return "memory" if row.copying > MEMORY else "arithmetic"


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table of the rows of one group and number of threads."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    names = [n for n in SHOWN if any(n in r.seconds or n in r.errors for r in rows)]
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    table.add_column("program", no_wrap=True)
    last = ("best peer/ours", "copy/best", "bound by")
    has_peers = any(row.best for row in rows)
    for name in ("size", "dtype", *names, *(last if has_peers else ())):
        table.add_column(name, justify="right", no_wrap="/" not in name)
    for row in rows:
        cells = [
            "failed" if n in row.errors else duration(row.seconds.get(n)) for n in names
        ]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        if row.ratio is not None and row.ratio < SLOWER:
            ratio = f"[red]{ratio} <[/]"
        share = "-" if row.copying is None else f"{row.copying:.2f}"
        short = row.dtype.replace("float", "f")
        ends = (ratio, share, bound(row)) if has_peers else ()
        table.add_row(row.program, count(row.size), short, *cells, *ends)
    console.print(table)
    for line in summary(rows):
        console.print(line, markup=False)
    for row in rows:
        for name, text in row.errors.items():
            place = f"{row.program} {count(row.size)} {row.dtype}"
            console.print(f"{place}, {name}: {text}", markup=False)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the geometric means of the ratios, by what bounds the rows."""
    lines = []
    for what in ("calls", "arithmetic", "memory", ""):
        ratios = [r.ratio for r in rows if bound(r) == what and r.ratio is not None]
        if ratios:
            mean, least = geometric_mean(ratios), min(ratios)
            lines.append(
                f"{len(ratios)} rows bound by {what or '?'}: best peer/ours "
                f"{mean:.2f} in the geometric mean, {least:.2f} at least"
            )
    return lines


def as_json(machine: str, rows: Sequence[Row]) -> str:
    """Return everything that was measured, times to four digits, a row per line."""
    lines = ",\n".join(json.dumps(flat(row)) for row in rows)
    return f'{{"machine": {json.dumps(machine)},\n"rows": [\n{lines}\n]}}'


def flat(row: Row) -> dict[str, Any]:
    """Return a row as JSON has it."""
    found = dataclasses.asdict(row)
    for name in ("seconds", "cpu", "first"):
        found[name] = {k: float(f"{v:.4g}") for k, v in found[name].items()}
    found["errors"] = {k: v[:ERROR] for k, v in row.errors.items()}
    return found


def load(path: Path) -> list[Row]:
    """Read the rows of a file that `as_json` wrote."""
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """How our time of a row has changed: new over old, and the same of the peers.

    Peers do not change: where their times moved, the machine did, and `change` is what
    is left when that is taken out.
    """

    row: Row
    ours: float
    peers: float

    @property
    def change(self) -> float:
        return self.ours / self.peers


def moves(rows: Sequence[Row], baseline: Sequence[Row]) -> list[Move]:
    """Return the changes of the rows that both have, largest gain first."""
    known = {row.key: row for row in baseline}
    found = []
    for row in rows:
        old = known.get(row.key)
        if old is None or "ours" not in old.seconds or "ours" not in row.seconds:
            continue
        common = (old.seconds.keys() & row.seconds.keys()) - {"ours", "eager"}
        peers = geometric_mean(row.seconds[k] / old.seconds[k] for k in common)
        ours = row.seconds["ours"] / old.seconds["ours"]
        found.append(Move(row, ours, peers if common else 1.0))
    return sorted(found, key=lambda move: move.change)


def changes(rows: Sequence[Row], baseline: Sequence[Row]) -> list[str]:
    """Say what moved against a baseline, and what failed or appeared."""
    every = moves(rows, baseline)
    moved = [move for move in every if abs(math.log(move.change)) > math.log1p(MOVED)]
    lines = [
        f"{len(every)} rows in both, {len(moved)} moved by over {MOVED:.0%}; "
        f"new/old {geometric_mean(m.change for m in every):.2f} in the geometric mean"
        if every
        else "no row is in both"
    ]
    for move in moved:
        row = move.row
        lines.append(
            f"{move.change:6.2f}  {row.group} {row.program} {count(row.size)} "
            f"{row.dtype}, {row.threads} thread{'s' * (row.threads > 1)} "
            f"(ours {move.ours:.2f}, peers {move.peers:.2f})"
        )
    fine = {row.key for row in baseline if "ours" not in row.errors}
    for row in rows:
        if "ours" in row.errors and row.key in fine:
            lines.append(f"fails now: {row.group} {row.program}: {row.errors['ours']}")
    return lines
