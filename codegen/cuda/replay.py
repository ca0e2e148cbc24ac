"""Calls that repeat an earlier one exactly are replayed as a graph.

Note [graphs of calls]
A training loop calls a function with the same arrays again and again, and memory for
its results and its arena comes from free lists: after a few calls, all addresses have
been there before. So the host function allocates first, and looks up what it has been
given: every address, size and number. When it sees one for the second time, what it
launches is recorded, and from then on the whole call is one graph. All that the kernels
get follows from what was looked up, so a graph never meets other addresses.

A call can be recorded when the host reads nothing back before it is done, and
allocates nothing on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...runtime.devices import Device

KEPT = 16  # graphs of a program, and calls that are remembered
MOST = 64  # recordings of a program: calls that still differ then will go on to
TRIPS = 2000  # through the host's loops, of a call that is recorded

Key = tuple[Any, ...]


class Calls:
    """The calls of one host function that may come again.

    `graphs` are those that were recorded, by what the host function has been given; the
    one that was used last is the last.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.graphs: dict[Key, Callable[[], None]] = {}
        self.seen: dict[Key, None] = {}
        self.left = MOST

    def other(self, work: Callable[..., int], key: Key) -> None:
        """Do what no graph does yet; record it when it comes for the second time."""
        if key in self.seen and self.left:
            del self.seen[key]
            self.left -= 1
            graph = self.device.record(lambda: work(*key))
            _keep(self.graphs, key, graph.launch)
            graph.launch()
        elif work(*key) <= TRIPS:
            _keep(self.seen, key, None)


def _keep(known: dict[Key, Any], key: Key, what: Any) -> None:
    known[key] = what
    if len(known) > KEPT:
        del known[next(iter(known))]
