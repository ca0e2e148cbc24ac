"""Where in the user's source we are: found only when something must be said."""

from __future__ import annotations

import linecache
import sys

from ..ir.errors import Location

_OURS = tuple(
    f"{__name__.split('.')[0]}.{part}"
    for part in ("tracer", "passes", "codegen", "ir", "runtime")
)


def user_location() -> Location | None:
    """Return the innermost place outside this package and NumPy."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith((*_OURS, "numpy")):
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            return Location(code.co_filename, frame.f_lineno, code.co_name, line)
        frame = frame.f_back  # type: ignore[assignment]
    return None
