"""Containers flatten to leaves and come back as they were."""

from collections import namedtuple
from dataclasses import dataclass

import pytest

from retrograde.ir.errors import UnsupportedError
from retrograde.tracer.containers import (
    flatten_tree,
    map_tree,
    register_container,
    unflatten_tree,
)

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Layer:
    w: float
    b: float


@dataclass
class Checked:
    value: float

    def __post_init__(self):
        self.value = float(self.value)


@pytest.mark.parametrize(
    "tree",
    [
        1.0,
        (),
        [],
        {},
        (1.0, [2.0, {"a": 3.0}]),
        {"b": 1.0, "a": (2.0,)},
        Point(1.0, [2.0]),
        Layer(1.0, 2.0),
        [None, "s", True, Layer((1.0,), {})],
    ],
)
def test_round_trip(tree):
    leaves, structure = flatten_tree(tree)
    again = unflatten_tree(structure, leaves)
    assert again == tree
    assert type(again) is type(tree)


def test_structures_compare_by_shape_not_by_leaves():
    assert flatten_tree([1.0, {"a": 2.0}])[1] == flatten_tree([5.0, {"a": "x"}])[1]
    assert flatten_tree([1.0, {"a": 2.0}])[1] != flatten_tree([1.0, {"b": 2.0}])[1]
    assert hash(flatten_tree((1.0,))[1]) == hash(flatten_tree((2.0,))[1])


def test_dict_order_is_kept():
    assert list(map_tree(lambda x: x, {"z": 1, "a": 2})) == ["z", "a"]


def test_dataclass_is_rebuilt_without_its_checks():
    marker = object()
    assert map_tree(lambda _: marker, Checked(1.0)).value is marker


def test_registered_class_is_a_container():
    class Box:
        def __init__(self, inside, label):
            self.inside, self.label = inside, label

    register_container(Box, lambda b: ((b.inside,), b.label), lambda d, c: Box(c[0], d))
    leaves, tree = flatten_tree((Box([1.0, 2.0], "l"), 3.0))
    assert leaves == [1.0, 2.0, 3.0]
    box, _ = unflatten_tree(tree, [4.0, 5.0, 6.0])
    assert (box.inside, box.label) == ([4.0, 5.0], "l")
    with pytest.raises(ValueError, match="registered already"):
        register_container(Box, lambda b: ((), None), lambda d, c: None)


def test_a_container_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(UnsupportedError, match="contains itself"):
        flatten_tree(loop)
    same = [1.0]
    assert flatten_tree((same, same))[0] == [1.0, 1.0]
