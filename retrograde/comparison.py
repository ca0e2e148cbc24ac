"""What a comparison found: rows, times, and when two results count as equal."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .footprint import Memory
from .ir.errors import RetrogradeError
from .leaves import Leaf, is_float
from .table import render

Mode = Literal["numpy", "eager", "compiled", "device", "both"]
Status = Literal["ok", "note", "failed"]

# Largest accepted error of a value, of a gradient against the other mode's, and of a
# gradient against differences, relative to the largest entry, per precision.
TOLERANCES = {
    np.dtype(np.float16): (1e-2, 3e-2, 1e-1),
    np.dtype(np.float32): (1e-4, 1e-3, 1e-2),
    np.dtype(np.float64): (1e-10, 1e-9, 1e-6),
}
SMALL = 1e-3  # entries below this are compared as if they were this large


@dataclass(frozen=True, slots=True)
class Row:
    """One check: what was compared, in which mode, how it ended, and the largest error.

    Mode "both" compares eager mode with compiled code, that for a device, too, where
    there is one; every other mode is compared with NumPy. A "note" says why something
    could not be checked.
    """

    what: str
    mode: Mode
    status: Status
    detail: str = ""
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found; times are seconds per value and gradient, or NaN.

    `memory` is that of the compiled call and of value and gradient, where known. Where
    there is a `device`, its time is that of arrays that are there.
    """

    name: str
    rows: tuple[Row, ...]
    eager_time: float
    compiled_time: float
    first_call: float
    memory: tuple[Memory, ...] = ()
    device: str | None = None
    device_time: float = math.nan

    @property
    def ok(self) -> bool:
        """Tell whether no check failed."""
        return all(row.status != "failed" for row in self.rows)

    @property
    def speedup(self) -> float:
        """How many times faster compiled code is than eager mode."""
        return self.eager_time / self.compiled_time

    def assert_ok(self) -> None:
        """Raise AssertionError, with the table, if a check failed."""
        if not self.ok:
            raise AssertionError(render(self, colour=False))

    def __str__(self) -> str:
        return render(self)


def precision_of(items: list[Leaf]) -> np.dtype[Any]:
    """Return the coarsest known float type among leaves, double precision if none."""
    kinds = [np.asarray(leaf).dtype for _, leaf in items if is_float(leaf)]
    known = [kind for kind in kinds if kind in TOLERANCES]
    return min(known, key=lambda kind: kind.itemsize, default=np.dtype(np.float64))


def mismatch(got: Any, want: Any) -> str:
    """Say how two leaves differ other than in their numbers, or return nothing."""
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return f"shape {a.shape}, must be {b.shape}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype}, must be {b.dtype}"
    return ""


def error_of(got: Any, want: Any) -> float:
    """Return the largest error relative to the largest finite entry."""
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else math.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a) & np.isfinite(b) | same).all():
        return math.inf
    size = float(np.max(np.abs(b[np.isfinite(b)]), initial=SMALL))
    wide = np.result_type(a.dtype, np.float64)
    apart = np.subtract(a, b, dtype=wide, where=~same, out=np.zeros(a.shape, wide))
    return float(np.max(np.abs(apart))) / size


def close(what: str, mode: Mode, got: Any, want: Any, tolerance: float) -> Row:
    """Compare two leaves and return the row that tells."""
    if problem := mismatch(got, want):
        return Row(what, mode, "failed", problem)
    error = error_of(got, want)
    if error <= tolerance:
        return Row(what, mode, "ok", "", error)
    return Row(what, mode, "failed", f"off by {error:.2g} (relative)", error)


def describe(error: Exception) -> str:
    """Return the type and first line of an error, and its place or the way out."""
    lines = str(error).splitlines() or [""]
    shown = f"{type(error).__name__}: {lines[0]}"
    if isinstance(error, RetrogradeError):
        if error.location is not None:
            return f"{shown}, at {error.location.file}:{error.location.line}"
        return f"{shown}; {error.hint}" if error.hint else shown
    return shown
