"""The graph that programs see: nodes, their names, and where they lead.

It is that of the pure program, made anew in every iteration, and dies with its output.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from retrograde.tracer.graph import AccumulateGrad, Node
from retrograde.tracer.modes import no_grad
from retrograde.tracer.tensor import Tensor, tensor


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def plain(*values: float) -> Tensor:
    return tensor(np.array(values, float))


def node(t: Tensor) -> Node:
    found = t.grad_fn
    assert found is not None
    return found


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


# ---------------------------------------------------------------- names and edges

NAMES: dict[str, Callable[[Tensor], Tensor]] = {
    "PowBackward0": lambda a: a**2,
    "MulBackward0": lambda a: a * 2,
    "AddBackward0": lambda a: a + 1,
    "SubBackward0": lambda a: a - 1,
    "DivBackward0": lambda a: a / 2,
    "NegBackward0": lambda a: -a,
    "ExpBackward0": np.exp,
    "SumBackward0": np.sum,
    "SelectBackward0": lambda a: a[0, ...],
    "SliceBackward0": lambda a: a[1:],
    "PermuteBackward0": np.transpose,
    "ViewBackward0": lambda a: a.reshape(3, 1),
    "ExpandBackward0": lambda a: np.broadcast_to(a, (2, 3)),
    "IndexBackward0": lambda a: a[[0, 1]],
    "AsStridedBackward0": lambda a: a.as_strided((2, 2), (1, 1)),
    "CatBackward0": lambda a: np.concatenate([a, a]),
    "WhereBackward0": lambda a: np.where([True, False, True], a, a),
    "CloneBackward0": lambda a: a.copy(),
}


@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_named_after_their_op(name: str) -> None:
    made = node(NAMES[name](leaf(1, 2, 3)))
    assert (made.name(), type(made).__name__) == (name, name)
    assert repr(made) == f"<{name}>"


def test_next_functions_are_nodes_with_the_number_of_their_output() -> None:
    a, w = leaf(1, 2), plain(3, 4)
    b = a * w
    c = b + a
    assert node(c).next_functions == ((node(b), 0), (node(c).next_functions[1][0], 0))
    (first, _), second = node(b).next_functions
    assert isinstance(first, AccumulateGrad)
    assert second == (None, 0)  # w requires no gradient
    assert (first.name(), first.variable, first.next_functions) == (
        "AccumulateGrad",
        a,
        (),
    )
    assert node(np.where([True, False], w, b)).next_functions == (
        (None, 0),
        (node(b), 0),
    )
    assert len(node(a[[0, 1]]).next_functions) == 1  # an index has no gradient


def test_a_leaf_has_one_accumulate_grad_for_as_long_as_it_is_used() -> None:
    a = leaf(1, 2)
    assert a.grad_fn is None
    b, c = a * 2, a[:1]
    one, _ = node(b).next_functions[0]
    other, _ = node(c).next_functions[0]
    assert one is other
    assert isinstance(one, AccumulateGrad)
    gone = weakref.ref(one)
    del b, c, one, other
    assert gone() is None
    assert isinstance(node(a + 1).next_functions[0][0], AccumulateGrad)


def test_an_op_in_place_is_the_op() -> None:
    a = leaf(1, 2)
    b = a * 3
    before = node(b)
    b.mul_(2)
    assert (node(b).name(), node(b).next_functions) == (
        "MulBackward0",
        ((before, 0), (None, 0)),
    )
    b.sin_()
    assert node(b).name() == "SinBackward0"


def test_a_write_through_a_view_is_one_node_of_the_base() -> None:
    a, x = leaf(1, 2, 3), leaf(5)
    b = a * 3
    before = node(b)
    v = b[:1]
    v.mul_(x)
    copy = node(b)
    assert copy.name() == "CopySlices"
    (old, _), (new, _) = copy.next_functions
    assert old is before
    assert new is not None
    assert new.name() == "MulBackward0"
    assert node(v).next_functions == ((copy, 0),)


def test_metadata_is_a_dict_of_the_node() -> None:
    b = leaf(1) * 2
    assert node(b).metadata == {}
    node(b).metadata["note"] = 7
    assert node(b).metadata == {"note": 7}


def test_only_what_aliases_a_write_gets_a_new_node() -> None:
    a = leaf(1, 2)
    b = a * 1
    c, d = b * 2, b[:1]
    nodes = node(a * 1), node(c)
    b.mul_(3)
    assert node(c) is nodes[1]
    assert node(d).next_functions == ((node(b), 0),)


def test_the_graph_follows_python() -> None:
    a = leaf(2)
    for n in (1, 3, 2):
        a.grad = None
        y = a
        for _ in range(n):
            y = y * a if n > 1 else y + a
        y.backward()
        assert grad(a) == [(n + 1) * 2.0**n if n > 1 else 2]


# ---------------------------------------------------------------- lifetime


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_dropping_the_output_frees_nodes_and_buffers() -> None:
    a = leaf(1, 2, 3)
    b = a * 2
    v = b[1:]
    v.mul_(a[1:])
    c = np.exp(b)
    c.retain_grad()
    c.register_hook(lambda g: g * 2)
    watched = [weakref.ref(node(t)) for t in (b, v, c)]
    watched += [weakref.ref(t._data) for t in (b, c)]
    watched += [weakref.ref(t) for t in (b, v, c)]
    y = (c * c).sum()
    del b, v, c
    assert sum(r() is not None for r in watched) >= 3  # the graph holds nodes, values
    del y
    assert [r() for r in watched] == [None] * len(watched)
    assert a._accumulator is None or a._accumulator() is None


@pytest.mark.usefixtures("no_collector")
def test_nodes_that_a_write_replaced_are_freed() -> None:
    a = leaf(1, 2)
    b = a * 1
    v = b[:1]
    stale = weakref.ref(node(v))
    b.mul_(2)
    assert node(v).name() == "AsStridedBackward0"
    assert stale() is None
    old = weakref.ref(node(b))
    b.zero_()
    assert old() is not None  # its input: gradients of zero, not None
    with no_grad():
        b = b.detach()
    del v
    assert old() is None


@pytest.mark.usefixtures("no_collector")
def test_leaves_with_gradients_and_hooks_die_too() -> None:
    a = leaf(1, 2)
    a.register_hook(lambda g: g)
    a.register_post_accumulate_grad_hook(lambda t: None)
    y = (a * a).sum()
    y.backward()
    gone = weakref.ref(a), weakref.ref(y)
    del a, y
    assert [r() for r in gone] == [None, None]
