"""A line on the terminal that says what is being compiled, when that takes long.

Nothing is shown before `DELAY` seconds, and nothing at all where standard error is no
terminal: then a notebook gets one plain line, other programs none. RETROGRADE_PROGRESS
is 0 for never and 1 for always.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from . import env

DELAY = 2.0  # seconds
_local = threading.local()


class Display:
    """What is compiled now, and the line about it once there is one."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.stage = ""
        self._status: Any = None
        self._closed = False
        self._lock = threading.Lock()

    def text(self) -> str:
        return f"compiling {self.what}" + (f": {self.stage}" if self.stage else "")

    def show(self) -> None:
        """Show the line, unless there is nothing to wait for any more."""
        with self._lock:
            if self._closed:
                return
            if not _is_terminal():
                print(f"compiling {self.what} ...", file=errors(), flush=True)
                return
            self._status = console().status("")
            self._status.start()
            self._refresh()

    def at(self, stage: str) -> None:
        """Note what is done now."""
        self.stage = stage
        with self._lock:
            self._refresh()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._status is not None:
                self._status.stop()

    def _refresh(self) -> None:
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(self.text()))


def console() -> Any:
    """Return what the line is shown on."""
    from rich.console import Console  # only where something is shown

    return Console(stderr=True)


def errors() -> Any:
    """Return standard error, None where there is none."""
    return sys.stderr


def _is_terminal() -> bool:
    try:
        return bool(errors().isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _wanted() -> bool:
    choice = env.progress()
    if choice is None:
        return _is_terminal() or "ipykernel" in sys.modules
    return choice and errors() is not None


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Say that `what` is being compiled, if it takes long; not inside another one."""
    if getattr(_local, "display", None) is not None or not _wanted():
        yield
        return
    display = _local.display = Display(what)
    timer = threading.Timer(DELAY, display.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        _local.display = None
        timer.cancel()
        display.close()


def stage(name: str) -> None:
    """Say what is done now for what this thread compiles."""
    display = getattr(_local, "display", None)
    if display is not None:
        display.at(name)
