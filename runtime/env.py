"""Read the RETROGRADE_* environment variables: the only place that does.

Values are read when they are asked for, never at import, so that a test or a session
can change them. ``python -m retrograde doctor`` prints all of them.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PREFIX = "RETROGRADE_"
FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Switch:
    """Describe one environment variable."""

    name: str
    default: str
    doc: str

    @property
    def variable(self) -> str:
        """Return the full name of the environment variable.

        >>> Switch("VERIFY", "", "").variable
        'RETROGRADE_VERIFY'
        """
        return PREFIX + self.name

    def text(self) -> str:
        """Return the value as text, the default where it is not set."""
        return os.environ.get(self.variable, self.default).strip()

    def flag(self) -> bool:
        """Tell whether the value means yes."""
        return self.text().lower() not in FALSE


VERIFY = Switch("VERIFY", "0", "1: verify the IR after every pass")
DUMP = Switch("DUMP", "", "<pass>|all|source: print the IR after passes, or the source")
STOP_AFTER = Switch("STOP_AFTER", "", "<pass>: end the pipeline after this pass")
INTERP = Switch("INTERP", "0", "1: run the final IR with the interpreter")
ACCEPT = Switch("ACCEPT", "0", "1: rewrite golden files with what the tests got")
CACHE_DIR = Switch("CACHE_DIR", "", "folder of the disk cache; empty: the user's cache")
CACHE_MIB = Switch("CACHE_MIB", "1024", "most MiB of the disk cache; 0: no limit")
PROGRESS = Switch(
    "PROGRESS", "", "0|1: never|always say what is compiled; empty: on a terminal"
)
NUM_THREADS = Switch("NUM_THREADS", "", "threads of a kernel; empty: one per processor")
# Of other libraries: read for the doctor's report only.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
SWITCHES = (
    VERIFY,
    DUMP,
    STOP_AFTER,
    INTERP,
    ACCEPT,
    CACHE_DIR,
    CACHE_MIB,
    PROGRESS,
    NUM_THREADS,
)


def verify() -> bool:
    """Tell whether the IR is verified after every pass."""
    return VERIFY.flag()


def dump() -> str:
    """Return what to print: a pass, ``all``, ``source`` or nothing."""
    return DUMP.text()


def stop_after() -> str:
    """Return the pass after which the pipeline ends, or an empty string."""
    return STOP_AFTER.text()


def interp() -> bool:
    """Tell whether the final IR is interpreted instead of compiled."""
    return INTERP.flag()


def accept() -> bool:
    """Tell whether golden files are rewritten."""
    return ACCEPT.flag()


def cache_dir() -> Path | None:
    """Return the folder chosen for the disk cache, or None for the user's default."""
    text = CACHE_DIR.text()
    return Path(text).expanduser() if text else None


def cache_limit() -> int:
    """Return the most bytes that the disk cache may hold, 0 for no limit.

    Raises ValueError where the variable is not a number of MiB.
    """
    text = CACHE_MIB.text()
    if not text.isdecimal():
        raise ValueError(f"{CACHE_MIB.variable} is a number of MiB, not {text!r}")
    return int(text) << 20


def progress() -> bool | None:
    """Tell whether to say what is compiled; None where nothing is set."""
    return PROGRESS.flag() if PROGRESS.text() else None


def num_threads() -> int | None:
    """Return the number of threads of a kernel, or None for one per processor.

    Raises ValueError where the variable is not a number from 1 on.
    """
    text = NUM_THREADS.text()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{NUM_THREADS.variable} is a number from 1 on, not {text!r}")
    return int(text)


def thread_limits() -> dict[str, str]:
    """Return the thread limits of other libraries that are set."""
    return {name: os.environ[name] for name in THREADS if name in os.environ}


def describe() -> str:
    """Return one line per variable: name, value, meaning.

    >>> describe().splitlines()[0].split()[0]
    'RETROGRADE_VERIFY'
    """
    width = max(len(s.variable) for s in SWITCHES)
    return "\n".join(f"{s.variable:{width}}  {s.text()!r:8}  {s.doc}" for s in SWITCHES)
