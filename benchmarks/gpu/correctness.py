"""Values and gradients of a device against those of the processor.

    python -m benchmarks.gpu.correctness DEVICE NUMBER COUNT SEED [tiny] [alone]

The process does every COUNT-th check. All memory that the device hands out is filled
with NaN first. With `alone` nothing is compared and nothing is filled: that is what a
sanitizer watches.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import retrograde as rg
from retrograde.ir.errors import IndexRangeError, UnsupportedError
from retrograde.runtime.devices import Device, DeviceArray, Memory, device

from .cases import FAILING, Check, Failing, checks, share
from .records import Emit, Record, emit

# Largest error of an element, relative to the element and to the mean magnitude.
BOUNDS = {"float32": 3e-4, "float64": 1e-9}
FEW = 10_000  # elements, of which one may be at a kink
SMALL = 2000  # the largest size under a sanitizer


def poisoned(place: Device) -> None:
    """Let a device fill all memory with NaN before it hands it out."""
    allocate = place.allocate

    def filled(size: int) -> Memory:
        memory = allocate(size)
        place.fill(memory.address, 0xFF, size)
        return memory

    place.allocate = filled  # type: ignore[method-assign]


def mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """Return a container with every array changed."""
    if isinstance(x, dict):
        return {key: mapped(change, value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return type(x)(mapped(change, value) for value in x)
    return change(x) if isinstance(x, np.ndarray | DeviceArray) else x


def there(x: Any, name: str) -> Any:
    return mapped(lambda a: rg.device_array(a, name), x)


def here(x: Any) -> Any:
    """Return copies on the host: what a program changes must not change the rest."""
    return mapped(lambda a: np.array(a), x)


def widened(x: Any) -> Any:
    return mapped(lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a, x)


def flat(x: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays and numbers of a result, in order."""
    if isinstance(x, dict):
        x = tuple(x.values())
    if isinstance(x, tuple | list):
        return [a for part in x for a in flat(part)]
    return [np.asarray(x)]


def difference(found: Any, known: Any, dtype: str) -> str:
    """Say where results differ, or nothing."""
    ours, theirs = flat(found), flat(known)
    if len(ours) != len(theirs):
        return f"{len(ours)} results for {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.shape != b.shape:
            return f"result {k} has shape {a.shape}, not {b.shape}"
        if b.dtype.kind != "f":
            bad = a != b
        else:
            size = np.abs(b)
            allowed = BOUNDS[dtype] * (size + np.mean(size) if b.size else size)
            bad = ~(np.abs(a - b) <= allowed) & ~(np.isnan(a) & np.isnan(b))
        if np.count_nonzero(bad) > b.size // FEW:
            place = tuple(int(x) for x in np.argwhere(bad)[0])
            return (
                f"result {k} at {place}: {a[place]!r}, not {b[place]!r} "
                f"({np.count_nonzero(bad)} of {b.size})"
            )
    return ""


class Checker:
    """Checks on one device."""

    def __init__(self, name: str, seed: int, alone: bool, tiny: bool) -> None:
        self.name = name
        self.seed = seed
        self.alone = alone
        self.tiny = tiny  # one small size and one dtype

    def check(self, c: Check) -> Record:
        """Run a check at all sizes; the record has the first failure of each kind."""
        start = time.perf_counter()
        record: Record = {"what": "check", "name": c.name, "runs": 0, "bad": []}
        try:
            for form in ("value", "gradient") if c.wrt else ("value",):
                self.form(c, form, record)
        except UnsupportedError as error:
            record["unsupported"] = str(error).splitlines()[0]
        except Exception as error:
            record["bad"].append(f"{type(error).__name__}: {error}")
        record["seconds"] = time.perf_counter() - start
        return record

    def form(self, c: Check, form: str, record: Record) -> None:
        on_device: Any = rg.compile(c.function, device=self.name)
        on_host: Any = rg.compile(c.function)
        if form == "gradient":
            on_device = rg.value_and_grad(on_device, c.wrt)
            on_host = rg.value_and_grad(on_host, c.wrt)
        sizes = [n for n in c.sizes if not self.alone or np.max(n) <= SMALL]
        for size in sizes[1:2] or sizes if self.tiny else sizes:
            for dtype in c.dtypes[:1] if self.tiny else c.dtypes:
                args = c.draw(self.seed, size, dtype)
                text = self.run(on_device, on_host, args, dtype)
                record["runs"] += 1
                if text:
                    record["bad"].append(f"{form}, {dtype}, size {size}: {text}")
                    return

    def run(self, on_device: Any, on_host: Any, args: Any, dtype: str) -> str:
        """Say what is wrong with a run, or nothing."""
        first = there(args, self.name)
        result = here(on_device(*first))
        if self.alone:
            return ""
        known_args = widened(here(args))
        known = here(on_host(*known_args))
        text = difference(result, known, dtype)
        if not text:
            text = difference(here(first), known_args, dtype)
            text = text and f"arguments afterwards: {text}"
        return text or self.repeated(on_device, args, result)

    def repeated(self, on_device: Any, args: Any, result: Any) -> str:
        """Say where a second run has other bits, unless it adds atomically."""
        again = here(on_device(*there(args, self.name)))
        same = all(
            a.tobytes() == b.tobytes()
            for a, b in zip(flat(result), flat(again), strict=True)
        )
        if same or "atomic_add" in on_device.source(*there(args, self.name)):
            return ""
        return "two runs differ in their bits"

    def failing(self, f: Failing) -> Record:
        """Check that a program fails where it should, and writes nothing."""
        bad = []
        compiled = rg.compile(f.function, device=self.name)
        for size in (40,) if self.tiny else (40, 5000):
            args = f.args(np.random.default_rng(self.seed), size)
            given = there(args, self.name)
            try:
                compiled(*given)
                bad.append(f"size {size}: no error")
            except IndexRangeError as error:
                if f.line not in str(error):
                    bad.append(f"size {size}: the line is not in the error: {error}")
            pairs = zip(args, here(given), strict=True)
            if any(a.tobytes() != b.tobytes() for a, b in pairs):
                bad.append(f"size {size}: arguments were written before the error")
        name = f"error of {f.function.__name__}"
        return {"what": "check", "name": name, "runs": 1, "bad": bad}


def run(checker: Checker, tiny: bool, number: int, count: int, say: Emit) -> None:
    for c in share(checks(tiny), number, count):
        say(checker.check(c))
    for f in share(list(FAILING), number, count):
        say(checker.failing(f))


def main(arguments: Sequence[str]) -> int:
    name, number, count, seed, *options = arguments
    alone, tiny = "alone" in options, "tiny" in options
    if not alone:
        poisoned(device(name))
    checker = Checker(name, int(seed), alone, tiny)
    run(checker, tiny, int(number), int(count), emit)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
