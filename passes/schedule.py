"""Order nodes by need, else as they stood."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..ir.errors import InternalError
from ..ir.func import Node


@dataclass(eq=False, slots=True)
class Item:
    """Nodes that stay together; `place` is where the last of them stood."""

    place: int
    nodes: Sequence[Node]
    needs: list[Item] = field(default_factory=list)  # what must come before
    first: int = 0  # where the first of them stood


def in_order(items: Sequence[Item]) -> Iterator[Node]:
    """Yield the nodes of all items."""
    waiting = {i: {j for j in i.needs if j is not i} for i in items}
    after: dict[Item, list[Item]] = {}
    for i, needs in waiting.items():
        for j in needs:
            after.setdefault(j, []).append(i)
    number = {i: k for k, i in enumerate(items)}
    ready = [(i.place, number[i], i) for i in items if not waiting[i]]
    heapq.heapify(ready)
    while ready:
        *_, i = heapq.heappop(ready)
        del waiting[i]
        yield from i.nodes
        for j in after.get(i, ()):
            waiting[j].discard(i)
            if not waiting[j]:
                heapq.heappush(ready, (j.place, number[j], j))
    if waiting:
        raise InternalError("groups of nodes need each other")
