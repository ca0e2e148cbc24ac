"""How long a process takes to its first compiled gradient: `python -m benchmarks.warm`.

For every program of the demo a process computes one compiled gradient and ends; another
one does the same with the disk cache that the first one filled. Counted is the CPU time
of the whole process, imports included. The exit status is 1 where a warm process takes
longer than LIMIT.
"""

import os
import subprocess
import sys
import tempfile

from retrograde import demo

LIMIT = 1.0  # seconds of CPU time
REPEAT = 3  # warm processes; the fastest counts

CHILD = """
import resource
import sys

import numpy as np

import retrograde as rg
from retrograde import demo

(example,) = [e for e in demo.EXAMPLES if e.name == sys.argv[1]]
args = example.arguments(False)
value, pullback = rg.vjp(rg.compile(example.function), *args)
pullback(np.ones_like(value))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime)
"""


def first_gradient(name: str, folder: str) -> float:
    """Return the CPU seconds of a process that computes one gradient of a program."""
    environment = {
        **os.environ,
        "RETROGRADE_CACHE_DIR": os.path.join(folder, "cache"),
        "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode"),
        "OPENBLAS_NUM_THREADS": "1",  # idle threads spin, and count
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> int:
    """Print a table and return the exit status."""
    slow = False
    print(f"{'CPU seconds to the first gradient':34} {'cold':>6} {'warm':>6}")
    for example in demo.EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            cold = first_gradient(example.name, folder)
            warm = min(first_gradient(example.name, folder) for _ in range(REPEAT))
        slow = slow or warm > LIMIT
        print(f"{example.name:34} {cold:6.2f} {warm:6.2f}", flush=True)
    print(f"limit of a warm process: {LIMIT} s; {'too slow' if slow else 'ok'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
