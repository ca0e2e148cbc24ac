"""The memory of compiled calls: arguments, results, and what they take beside these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .leaves import is_array, leaves, rebuild, shares_memory
from .program import to_numpy


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one kind of call; results do not count what is an argument's memory.

    `scratch` is what the compiled code takes out for tapes and other temporaries. What
    only the run can size is not part of it, nor are copies of arguments.
    """

    what: str
    arguments: int
    results: int
    scratch: int

    @property
    def peak(self) -> int:
        return self.arguments + self.results + self.scratch


def measure(
    what: str, call: Any, args: Any, result: Any, *, counted: Any = None
) -> Memory | None:
    """Return the memory of a compiled call; `counted` are the arguments that count."""
    scratch = getattr(call, "scratch_bytes", None)
    if scratch is None:  # it is no compiled function
        return None
    given = _arrays(args if counted is None else counted)
    made = [a for a in _arrays(result) if not any(shares_memory(a, x) for x in given)]
    return Memory(what, _bytes(given), _bytes(made), scratch(*args))


def _arrays(x: Any) -> list[np.ndarray[Any, Any]]:
    return [leaf for _, leaf in leaves(rebuild(x, to_numpy)) if is_array(leaf)]


def _bytes(arrays: list[np.ndarray[Any, Any]]) -> int:
    return sum(a.nbytes for a in arrays)
