"""Fork-join for generated kernels: chunks of one loop on several threads.

A kernel's `parallel(part, chunks, ...)` becomes a call of the native function
`retrograde_parallel` (`forkjoin.py`). It posts a *job*: a function, its context and the
number of chunks. Sleeping workers join it; they and the caller take the next chunk from
a counter until none is left. The caller then waits for those who have joined.

Note [threads]
- Workers are POSIX threads made by the native code itself at the first job. They run no
  Python and need no GIL, so a job can start them wherever it is, in a forked child too,
  and the end of the process ends them. Signals stay with Python's own threads: workers
  block them all, but for those that a faulty instruction raises.
- One job at a time. A caller who finds the pool busy (another thread's kernel), has no
  workers, or is alone (`set_num_threads(1)`, no POSIX threads) runs all chunks itself,
  through the same function. So nothing waits for anything but running chunks.
- What is in a chunk depends on sizes only, and partial results are merged in order:
  the bits are the same whoever runs the chunks.
- A worker that wakes up late finds no seat: nobody waits for it. On a busy machine the
  caller does all the work, at the speed of one thread.
- A chunk that fails ends the job; of several the first one counts. Chunks are taken in
  order, so all before it have run, and the error is the one that one thread finds.
- Nobody spins while waiting, which would take the processor from others.

After a fork the child has one thread, and it is not in a job: the pool is made anew in
place, and starts its workers at its next job.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from pathlib import Path

from . import env

MOST = 256  # threads
# The pool, in words of 64 bits. What all threads change has a cache line of its own.
LIMIT, BUSY, FUNCTION, CONTEXT, CHUNKS, FAILED, SEATS, ACTIVE, STARTED = range(9)
NEXT, MUTEX, WAKE, DONE, MASK, WORDS = 16, 32, 48, 64, 80, 112
NONE = (1 << 63) - 1

POOL = (ctypes.c_int64 * WORDS)()
FUNCTIONS = (
    "pthread_create pthread_detach pthread_sigmask pthread_mutex_init "
    "pthread_mutex_lock pthread_mutex_unlock pthread_cond_init pthread_cond_wait "
    "pthread_cond_signal"
).split()
FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")


def available() -> int:
    """Return how many processors this process may use.

    >>> available() >= 1
    True
    """
    count = getattr(os, "process_cpu_count", None)  # Python 3.13
    if count is not None:
        return count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def get_num_threads() -> int:
    """Return how many threads a kernel runs on.

    >>> get_num_threads() >= 1
    True
    """
    if not POOL[LIMIT]:
        POOL[LIMIT] = min(env.num_threads() or available(), MOST)
    return POOL[LIMIT]


def set_num_threads(n: int) -> None:
    """Let kernels run on up to `n` threads; results do not depend on it.

    At first it is RETROGRADE_NUM_THREADS, or the number of processors that the process
    may use. Nothing is compiled anew. With 1, kernels run in the thread that calls.

    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of threads is an int from 1 on, not {n!r}")
    POOL[LIMIT] = min(n, MOST)
    _asked.append(n)
    limit_blas()


_asked: list[int] = []  # the numbers that the user has set


def limit_blas() -> None:
    """Give the BLAS that kernels call as many threads as the user wants, if he said so.

    SciPy carries its own copy of OpenBLAS, which kernels call; NumPy's is left alone.
    Kernels call it from one thread, while workers sleep: its own threads take nothing
    away from them.
    """
    n = _asked[-1] if _asked else env.num_threads()
    if n is None or "scipy.linalg" not in sys.modules:
        return
    from threadpoolctl import (
        ThreadpoolController,  # only here: it looks at all libraries
    )

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [x for x in found if {"scipy", "scipy.libs"} & {*Path(x.filepath).parts}]
    for library in own or found:
        library.set_num_threads(n)


def started() -> int:
    """Return how many workers there are."""
    return POOL[STARTED]


@functools.cache  # a forked child must not open libraries
def libc() -> ctypes.CDLL | None:
    """Return the library with POSIX threads; None where there is none."""
    if sys.platform == "win32":
        return None
    library = ctypes.CDLL(None)
    return library if all(hasattr(library, name) for name in FUNCTIONS) else None


def reset() -> None:
    """Make the pool: no job, no workers."""
    library = libc()
    limit = POOL[LIMIT]
    ctypes.memset(POOL, 0, ctypes.sizeof(POOL))
    POOL[LIMIT] = limit
    if library is None:
        return
    place = ctypes.addressof(POOL)
    library.pthread_mutex_init(ctypes.c_void_p(place + 8 * MUTEX), None)
    for word in (WAKE, DONE):
        library.pthread_cond_init(ctypes.c_void_p(place + 8 * word), None)
    mask = ctypes.c_void_p(place + 8 * MASK)
    library.sigfillset(mask)
    for name in FAULTS:
        library.sigdelset(mask, ctypes.c_int(getattr(signal, name)))
