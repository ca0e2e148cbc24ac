"""Calls that repeat earlier ones are batches of launches, or graphs.

Note [graphs of calls]
A training loop calls a function with the same sizes again and again, and memory for its
results and its arena comes from free lists: after a few calls, all addresses have been
there before. So the host function allocates first, and looks up what it has been given.

- What the host computes with (sizes, and numbers that it reads) decides which kernels
  are launched, with which grids. When it comes for the second time, the launches become
  a batch, which is given addresses and other numbers anew each time.
- What is the same in these, too, is recorded when it comes again, and from then on the
  whole call is one graph.

All that the kernels get follows from what was looked up, so neither meets anything
else. It works where the host reads nothing back before the call is done, and allocates
nothing on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...runtime.devices import (
    Batch,
    Device,
    Fill,
    Function,
    Given,
    Launch,
    Multiply,
)
from .products import Products

KEPT = 16  # graphs and batches of a program, and calls that are remembered
MOST = 64  # recordings of a program: calls that still differ then will go on to
TRIPS = 2000  # through the host's loops, of a call that is remembered

Key = tuple[Any, ...]
Work = Callable[..., int]


class Calls:
    """The calls of one host function that may come again.

    A key is the first `known` values, which the host reads, then what a batch is given,
    of some kinds, then what else tells calls apart. `graphs` are those that were
    recorded; the one that was used last is the last.
    """

    def __init__(self, device: Device, known: int, kinds: Sequence[str]) -> None:
        self.device = device
        self.products = Products(device)
        self.enter = self.launch, device.fill, self.products
        self.known = known
        self.kinds = tuple(kinds)
        self.graphs: dict[Key, Callable[[], None]] = {}
        self.batches: dict[Key, Batch] = {}
        self.met: dict[Key, bool] = {}  # of which the next one gets a batch
        self.seen: dict[Key, bool] = {}  # of which the next one becomes a graph
        self.left = MOST

    def other(self, work: Work, key: Key) -> None:
        """Do what no graph does yet; remember it, or record it where it comes again."""
        known = key[: self.known]
        given = key[self.known : self.known + len(self.kinds)]
        batch = self.batches.get(known)
        if batch is None:
            if not self.met.pop(known, False):
                if work(*self.enter, *known, *given) <= TRIPS:
                    _keep(self.met, known, True)
                return
            batch = self.batch(work, known)
            _keep(self.batches, known, batch)
        if self.left and self.seen.pop(key, False):
            self.left -= 1
            graph = self.device.record(functools.partial(batch.launch, *given))
            _keep(self.graphs, key, graph.launch)
            graph.launch()
        else:
            batch.launch(*given)
            _keep(self.seen, key, True)

    def launch(
        self, kernel: Any, grid: int, block: int, args: Sequence[Any], shared: int = 0
    ) -> None:
        self.device.launch(kernel.function, grid, block, args, shared)

    def batch(self, work: Work, known: Key) -> Batch:
        """Return what the host launches and fills, for anything that it is given."""
        steps: list[Launch | Fill | Multiply] = []

        def launch(
            kernel: Any, grid: int, block: int, args: Key, shared: int = 0
        ) -> None:
            function: Function = kernel.function
            steps.append(Launch(function, grid, block, args, shared))

        def fill(target: Any, value: int, size: int) -> None:
            if size:
                steps.append(Fill(target, value, size))

        def multiply(*args: Any) -> None:
            steps.extend(self.products.steps(*args))

        work(launch, fill, multiply, *known, *map(Given, range(len(self.kinds))))
        return batch_of(self.device, self.kinds, steps)


class Parts(Batch):
    """Batches, with products by a library between them."""

    def __init__(self, parts: Sequence[Callable[..., None]]) -> None:
        self.parts = parts

    def launch(self, *given: int | float | bool) -> None:
        for part in self.parts:
            part(*given)


def batch_of(
    device: Device, kinds: Sequence[str], steps: Sequence[Launch | Fill | Multiply]
) -> Batch:
    """Return a batch of steps, some of which may be a library's."""
    parts: list[Callable[..., None]] = []
    pending: list[Launch | Fill] = []
    for s in steps:
        if not isinstance(s, Multiply):
            pending.append(s)
            continue
        if pending:
            parts.append(device.batch(kinds, pending).launch)
            pending = []
        parts.append(functools.partial(_multiply, device, s))
    if not parts:
        return device.batch(kinds, pending)
    if pending:
        parts.append(device.batch(kinds, pending).launch)
    return Parts(parts)


def _multiply(device: Device, s: Multiply, *given: Any) -> None:
    """Enter a product by a library, at the addresses that a batch is given."""
    c, a, b, scratch = (
        given[x.index] + x.offset if isinstance(x, Given) else x for x in s.places
    )
    device.multiply(s.product, c, a, b, scratch)


def _keep(known: dict[Key, Any], key: Key, what: Any) -> None:
    """Keep what came last; other threads may do so at the same time."""
    known[key] = what
    if len(known) > KEPT:
        for oldest in list(known)[:-KEPT]:
            known.pop(oldest, None)
