"""Minimum cuts against all cuts of small networks."""

import itertools
import math
import random

import pytest

from retrograde.passes.mincut import SINK, SOURCE, Network

Edge = tuple[int, int, float]


def drawn(seed: int, count: int) -> list[Edge]:
    """Return edges between random nodes; those into the sink are finite."""
    rng = random.Random(seed)
    edges: list[Edge] = []
    for _ in range(3 * count):
        tail, head = rng.sample(range(count), 2)
        if tail != SINK and head != SOURCE:
            endless = head != SINK and rng.random() < 0.2
            edges.append((tail, head, math.inf if endless else rng.randrange(10)))
    return edges


def cost(edges: list[Edge], near: set[int]) -> float:
    return sum(c for a, b, c in edges if a in near and b not in near)


@pytest.mark.parametrize("seed", range(20))
def test_cut_is_minimal_and_the_one_nearest_to_the_sink(seed: int) -> None:
    count = 8
    edges = drawn(seed, count)
    network = Network()
    for _ in range(count - 2):
        network.node()
    for edge in edges:
        network.edge(*edge)
    inner = range(2, count)
    sides = (
        {SOURCE, *chosen}
        for k in range(len(inner) + 1)
        for chosen in itertools.combinations(inner, k)
    )
    costs = {frozenset(near): cost(edges, near) for near in sides}
    least = min(costs.values())
    best = [near for near, c in costs.items() if c == least]
    found = network.cut()
    assert found == set().union(*best)
