"""Minimum cuts of a network, by Dinic's algorithm in integers.

Cutting an edge costs its capacity. The cheapest set of edges without which no path
leads from the source to the sink costs as much as the largest flow between them.
"""

from __future__ import annotations

import math
from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """Directed edges between numbered nodes, two of which are source and sink.

    Every path into the sink must have a finite edge. Capacities are integers, or
    `math.inf`: sums are exact, so the same network always has the same cut.
    """

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # of each node
        self.head: list[int] = []  # of each edge; edge `e ^ 1` leads back
        self.left: list[float] = []

    def node(self) -> int:
        """Add a node."""
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: float) -> None:
        """Add an edge."""
        for a, b, c in ((tail, head, capacity), (head, tail, 0)):
            self.edges[a].append(len(self.head))
            self.head.append(b)
            self.left.append(c)

    def cut(self) -> set[int]:
        """Return the nodes on the side of the source, of the cheapest cut.

        Of several it is the one that is nearest to the sink.
        """
        while (level := self._levels()) is not None:
            self._saturate(level)
        found, waiting = {SINK}, [SINK]
        while waiting:
            for e in self.edges[waiting.pop()]:
                if self.left[e ^ 1] and self.head[e] not in found:
                    found.add(self.head[e])
                    waiting.append(self.head[e])
        return {k for k in range(len(self.edges)) if k not in found}

    def _levels(self) -> list[int] | None:
        """Return the distances from the source; None where no path is left."""
        level = [-1] * len(self.edges)
        level[SOURCE] = 0
        waiting = deque([SOURCE])
        while waiting:
            k = waiting.popleft()
            for e in self.edges[k]:
                if self.left[e] and level[self.head[e]] < 0:
                    level[self.head[e]] = level[k] + 1
                    waiting.append(self.head[e])
        return level if level[SINK] >= 0 else None

    def _saturate(self, level: list[int]) -> None:
        """Send along shortest paths what they can take."""
        tried = [0] * len(self.edges)
        path: list[int] = []
        at = SOURCE
        while True:
            if at == SINK:
                flow = min(self.left[e] for e in path)
                assert flow < math.inf
                for e in path:
                    self.left[e] -= flow
                    self.left[e ^ 1] += flow
                path, at = [], SOURCE
            elif tried[at] < len(self.edges[at]):
                e = self.edges[at][tried[at]]
                if self.left[e] and level[self.head[e]] == level[at] + 1:
                    path.append(e)
                    at = self.head[e]
                else:
                    tried[at] += 1
            elif path:  # nothing goes on from here
                at = self.head[path.pop() ^ 1]
                tried[at] += 1
            else:
                return
