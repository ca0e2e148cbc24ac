"""File locks, so that of several processes one makes a thing and the others wait.

Note [locks]
The kernel keeps these locks and frees them when their owner ends, however it ends: a
lock cannot be stale. They belong to a process, not to an open file, so a child that is
forked meanwhile does not inherit them; threads of one process are kept apart by locks
of `threading`. An owner that does not move (stopped, or on a machine that is gone)
blocks nobody for longer than `WAIT`, and where there are no locks (a file system
without them, a folder that cannot be written) everybody makes the thing: twice the
work, the same result, since entries are written whole.

There are 256 files of each kind, chosen by the first digits of the key. Two keys that
share a file wait for each other, which does no harm: a thread holds at most one lock of
a kind, and takes those of different kinds in one order.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

WAIT = 60.0  # seconds, longer than what is made under a lock takes
SHORTEST, LONGEST = 0.002, 0.05  # seconds between two looks at a lock
_threads: dict[Path, threading.Lock] = {}
_guard = threading.Lock()


def _own_again() -> None:
    """Forget the locks of threads that a forked child does not have."""
    global _guard
    _guard = threading.Lock()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_again)

try:
    import fcntl

    def _try(number: int) -> None:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _try(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]


@contextlib.contextmanager
def held(file: Path | None) -> Iterator[bool]:
    """Hold the lock of a file for a while; tell whether it is held.

    It is not after `WAIT` seconds, or where there are no locks.
    """
    if file is None:
        yield False
        return
    until = time.monotonic() + WAIT
    with _guard:
        mine = _threads.setdefault(file, threading.Lock())
    if not mine.acquire(timeout=WAIT):
        yield False
        return
    try:
        number = _opened(file)
        try:
            yield number is not None and _taken(number, until)
        finally:
            if number is not None:
                os.close(number)  # frees the lock
    finally:
        mine.release()


def _opened(file: Path) -> int | None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None


def _taken(number: int, until: float) -> bool:
    """Wait for a lock; tell whether it was got."""
    pause = SHORTEST
    while True:
        try:
            _try(number)
            return True
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= until:
                return False
        except OSError:
            return False  # there are no locks here
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
