"""Print a comparison as a table: coloured on a terminal, plain text elsewhere."""

import io
import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Comparison, Row

STYLES = {"ok": "green", "note": "yellow", "failed": "bold red"}
MARKS = {"ok": "✓", "note": "~", "failed": "✗"}


def render(comparison: "Comparison", *, colour: bool | None = None) -> str:
    """Return the table as text, with colours if stdout is a terminal."""
    from rich.console import Console  # imported only when used: it costs start-up time
    from rich.table import Table
    from rich.text import Text

    colour = sys.stdout.isatty() if colour is None else colour
    verdict = "ok" if comparison.ok else "failed"
    table = Table(title=None, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text(comparison.name, STYLES[verdict]))
    modes = _modes(comparison)
    for title in modes.values():
        table.add_column(title)
    for what, cells in _pivot(comparison).items():
        texts = [Text.assemble(*_cell(cells.get(mode))) for mode in modes]
        table.add_row(what, *texts)
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=colour,
        no_color=not colour,
        color_system="auto" if colour else None,
        width=100,
        highlight=False,
        legacy_windows=False,
    )
    console.print(table)
    for row in comparison.rows:
        if row.detail:
            mark, style = _mark(row)
            where = modes.get(row.mode, row.mode)
            text = f"{mark} {row.what} ({where}): {row.detail}"
            console.print(Text(text, style), soft_wrap=True)
    if line := _times(comparison):
        console.print(Text(line, "dim"), soft_wrap=True)
    for memory in comparison.memory:
        parts = (memory.arguments, memory.results, memory.scratch)
        names = ("arguments", "results", "scratch")
        sizes = [f"{n} {_size(b)}" for n, b in zip(names, parts, strict=True)]
        text = f"memory of {memory.what}: {', '.join(sizes)}"
        console.print(Text(text, "dim"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _modes(comparison: "Comparison") -> dict[str, str]:
    """Return the modes with their titles."""
    if comparison.device is None:
        return {"eager": "eager", "compiled": "compiled", "both": "eager = compiled"}
    return {
        "eager": "eager",
        "compiled": "compiled",
        "device": comparison.device,
        "both": "all equal",
    }


def _pivot(comparison: "Comparison") -> dict[str, dict[str, "Row"]]:
    lines: dict[str, dict[str, Row]] = {}
    for row in comparison.rows:
        lines.setdefault(row.what, {})[row.mode] = row
    return lines


def _cell(row: "Row | None") -> tuple[str | tuple[str, str], ...]:
    if row is None:
        return ("",)
    mark = _mark(row)
    if row.error is None or row.status == "note":
        return (mark,)
    return (mark, "" if row.error == 0 else f" {row.error:.0e}")


def _mark(row: "Row") -> tuple[str, str]:
    """Return a mark with its style: a sign where stdout can print it, else a word."""
    mark = MARKS[row.status]
    try:
        mark.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        mark = row.status
    return mark, STYLES[row.status]


def _times(comparison: "Comparison") -> str:
    parts = []
    for name, seconds in (
        ("eager", comparison.eager_time),
        ("compiled", comparison.compiled_time),
        (comparison.device or "device", comparison.device_time),
        ("first call", comparison.first_call),
    ):
        if not math.isnan(seconds):
            parts.append(f"{name} {_duration(seconds)}")
    if not math.isnan(comparison.speedup):
        parts.append(f"speed-up {comparison.speedup:.3g}")
    return ", ".join(parts)


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
