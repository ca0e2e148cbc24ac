"""Threads on one graph: views of one base, leaves, modes, functions of one's own."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from retrograde.tracer.function import Function
from retrograde.tracer.modes import (
    allow_mutation_on_saved_tensors,
    is_grad_enabled,
    no_grad,
)
from retrograde.tracer.tensor import Tensor, tensor

COUNT, ROUNDS = 8, 40


def leaf(values: Any) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def in_threads(work: Callable[[int], None]) -> None:
    """Call `work(k)` in threads that start together; raises what one of them raised."""
    barrier = threading.Barrier(COUNT)
    errors: list[BaseException] = []

    def run(k: int) -> None:
        barrier.wait()
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(COUNT)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


def test_independent_graphs() -> None:
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        for _ in range(ROUNDS):
            a = leaf(np.full(4, k + 1.0))
            b = a * 2
            b[:2] *= 3
            (b * b).sum().backward()
            assert a.grad is not None
            found[k] = a.grad.tolist()

    in_threads(work)
    for k, got in found.items():
        assert got == [72.0 * (k + 1)] * 2 + [8.0 * (k + 1)] * 2


def test_writes_into_disjoint_views_of_one_base() -> None:
    a = leaf(np.ones(COUNT))
    for _ in range(5):
        b = a * 1
        views = [b[k : k + 1] for k in range(COUNT)]

        def work(k: int, views: list[Tensor] = views) -> None:
            for _ in range(ROUNDS):
                views[k].mul_(1.5)
                views[k].sub_(0.25)

        in_threads(work)
        assert b._version == 2 * ROUNDS * COUNT
        a.grad = None
        (b * np.arange(1.0, COUNT + 1)).sum().backward()
        assert a.grad is not None
        want = np.arange(1.0, COUNT + 1) * 1.5**ROUNDS
        np.testing.assert_allclose(a.grad.tolist(), want, rtol=1e-12)


def test_views_that_are_read_while_others_are_written() -> None:
    a = leaf(np.ones(COUNT))
    b = a * 1
    views = [b[k : k + 1] for k in range(COUNT)]
    sums: dict[int, Tensor] = {}

    def work(k: int) -> None:
        for r in range(ROUNDS):
            if k % 2:
                views[k].mul_(1.0 + 1.0 / (r + 1))
            else:
                node = views[k].grad_fn  # follows the base
                assert node is not None
                sums[k] = views[k] * 2

    in_threads(work)
    a.grad = None
    total = sum((sums[k].sum() for k in sums), start=b.sum())
    total.backward()
    assert a.grad is not None
    grown = float(np.prod([1.0 + 1.0 / (r + 1) for r in range(ROUNDS)]))
    want = [grown if k % 2 else 3.0 for k in range(COUNT)]
    np.testing.assert_allclose(a.grad.tolist(), want, rtol=1e-12)


def test_writes_between_two_bases_do_not_wait_for_each_other() -> None:
    a = leaf(np.ones(COUNT))
    b, c = a * 1, a * 1

    def work(k: int) -> None:
        x, y = (b, c) if k % 2 else (c, b)
        for _ in range(ROUNDS):
            x[k : k + 1].add_(y[k : k + 1] * 0.5)

    in_threads(work)
    (b.sum() + c.sum()).backward()
    assert a.grad is not None
    np.testing.assert_allclose(a.grad.tolist(), 2 + 0.5 * ROUNDS)


def test_saved_values_are_kept_from_writes_of_other_threads() -> None:
    a = leaf(np.ones(COUNT))
    b = a * 1
    squares: dict[int, list[Tensor]] = {k: [] for k in range(COUNT)}

    def work(k: int) -> None:
        v = b[k : k + 1]
        with allow_mutation_on_saved_tensors():
            for _ in range(ROUNDS):
                squares[k].append((v * v).sum())
                v.add_(1.0)

    in_threads(work)
    every = [y for ys in squares.values() for y in ys]
    sum(every[1:], start=every[0]).backward()
    assert a.grad is not None
    want = 2 * sum(1.0 + r for r in range(ROUNDS))
    np.testing.assert_allclose(a.grad.tolist(), want)


def test_gradients_of_one_leaf_add_up() -> None:
    a = leaf(np.ones(3))

    def work(k: int) -> None:
        for _ in range(ROUNDS):
            (a * (k + 1)).sum().backward()

    in_threads(work)
    assert a.grad is not None
    assert a.grad.tolist() == [ROUNDS * sum(range(1, COUNT + 1))] * 3


def test_modes_are_those_of_a_thread() -> None:
    inside = threading.Barrier(COUNT)

    def work(k: int) -> None:
        assert is_grad_enabled()
        if k % 2:
            with no_grad():
                inside.wait()
                assert not (leaf([1.0]) * 2).requires_grad
                inside.wait()
        else:
            inside.wait()
            assert (leaf([1.0]) * 2).requires_grad
            inside.wait()
        assert is_grad_enabled()

    in_threads(work)


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


def test_functions_that_write_disjoint_views_of_one_base() -> None:
    a = leaf(np.ones(COUNT))
    b = a * 1
    views = [b[k : k + 1] for k in range(COUNT)]

    def work(k: int) -> None:
        for _ in range(10):
            Doubled.apply(views[k])

    in_threads(work)
    b.sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [2.0**10] * COUNT
