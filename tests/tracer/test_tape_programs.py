"""Random programs of views and writes: Tensor against NumPy and differences."""

from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import MutationError
from retrograde.tracer.autograd import grad as grad_of
from retrograde.tracer.modes import allow_mutation_on_saved_tensors
from retrograde.tracer.tensor import Tensor, tensor

STEP = 1e-6


def a_view(t: Any, rng: np.random.Generator) -> Any:
    """Return a random view of an array or tensor of at least one axis."""
    match rng.integers(6 if t.ndim == 2 else 4):
        case 0:
            low = int(rng.integers(0, t.shape[0]))
            return t[low : int(rng.integers(low + 1, t.shape[0] + 1))]
        case 1:
            return t[:: -int(rng.integers(1, 3))]
        case 2:
            return t[..., int(rng.integers(-t.shape[-1], t.shape[-1])) :]
        case 3:
            return t.reshape(-1)
        case 4:
            return t.T
        case _:
            return t[int(rng.integers(t.shape[0]))]


def fitted(u: Any, t: Any, rng: np.random.Generator) -> Any:
    """Return something made from `u` that broadcasts to the shape of `t`."""
    if u.shape == t.shape:
        return u
    if u.ndim == 1 and t.ndim and u.shape[0] >= t.shape[-1]:
        return u[: t.shape[-1]]
    return np.mean(u) + float(rng.normal())


def program(x: Any, y: Any, seed: int, steps: int) -> Any:
    """Run a random program; the same calls for arrays and for tensors."""
    rng = np.random.default_rng(seed)
    b = x * 1.0
    pool = [b, x * y, y + 0.0]
    reads: list[Any] = []
    for _ in range(steps):
        t = pool[int(rng.integers(len(pool)))]
        u = pool[int(rng.integers(len(pool)))]
        what = int(rng.integers(9))
        if what <= 2 and t.ndim:
            pool.append(a_view(t, rng))
        elif what == 3:
            reads.append(np.sum(np.sin(t)))
        elif t.ndim == 0:
            reads.append(t * 1.0)
        elif what == 4:
            t *= fitted(u, t, rng)
        elif what == 5:
            t += np.cos(fitted(u, t, rng))
        elif what == 6:
            t[...] = fitted(u, t, rng) * 0.7
        elif what == 7:
            index = int(rng.integers(t.shape[0]))
            t[index] = 0.5 * t[index - 1] - 0.1
        else:
            pool.append(np.tanh(t) * fitted(u, t, rng))
    for t in pool:
        reads.append(np.sum(np.sin(t)))
    total: Any = 0.0
    for k, r in enumerate(reads):
        total = total + r * (1.0 + 0.1 * k)
    return total


def slope(f: Any, args: tuple[Any, ...], directions: tuple[Any, ...]) -> Any:
    up, down = (
        f(*(a + h * d for a, d in zip(args, directions, strict=True)))
        for h in (STEP, -STEP)
    )
    return (up - down) / (2 * STEP)


@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [(4, 3), (3, 3), (6,), (2, 5)][seed % 4]
    args = tuple(rng.normal(size=shape) for _ in range(2))
    directions = tuple(rng.normal(size=shape) for _ in range(2))
    steps = 4 + seed % 17

    def along(*values: Any) -> tuple[Any, Any]:
        """Return the value and its derivative along the directions, recorded."""
        leaves = [tensor(v, requires_grad=True) for v in values]
        with allow_mutation_on_saved_tensors():
            out = program(*leaves, seed, steps)
            grads = grad_of(out, leaves, create_graph=True)
        parts = [np.sum(g * d) for g, d in zip(grads, directions, strict=True)]  # type: ignore[operator]
        return leaves, (out, parts[0] + parts[1])

    leaves, (out, first) = along(*args)
    want = program(*args, seed, steps)
    assert isinstance(out, Tensor)
    np.testing.assert_allclose(out.item(), want, rtol=1e-12)

    def plain(*values: Any) -> Any:
        return program(*values, seed, steps)

    np.testing.assert_allclose(
        first.item(), slope(plain, args, directions), rtol=1e-5, atol=1e-6
    )
    # Not recorded: in place on arrays.
    with allow_mutation_on_saved_tensors():
        program(*leaves, seed, steps).backward()
    got = sum(
        np.sum(t.grad._data * d)
        for t, d in zip(leaves, directions, strict=True)
        if t.grad is not None
    )
    np.testing.assert_allclose(got, first.item(), rtol=1e-10, atol=1e-12)
    second = grad_of(first, leaves, allow_unused=True, materialize_grads=True)
    got = sum(
        np.sum(g._data * d)
        for g, d in zip(second, directions, strict=True)
        if g is not None
    )
    np.testing.assert_allclose(
        got,
        slope(lambda *v: along(*v)[1][1].item(), args, directions),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_right_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [(4, 3), (3, 3), (6,), (2, 5)][seed % 4]
    args = [tensor(rng.normal(size=shape), requires_grad=True) for _ in range(2)]
    with allow_mutation_on_saved_tensors():
        want = grad_of(program(*args, seed, 12), args)
    out = program(*args, seed, 12)
    try:
        got = grad_of(out, args)
    except MutationError:
        return
    for g, w in zip(got, want, strict=True):
        assert g is not None
        assert w is not None
        np.testing.assert_array_equal(g._data, w._data)
