"""Operations on Tensors of a device, one by one, with their gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.tracer.devices import COMPILED

pytestmark = pytest.mark.cuda_emulated

EMU = "cuda:emu"
RNG = np.random.default_rng(0)
A, B = RNG.uniform(0.5, 2, (2, 4, 5))
V = RNG.uniform(0.5, 2, 5)
INDEX = np.array([0, 2, 2, 1])


def in_place(a: Any, b: Any, v: Any) -> Any:
    x = a * 1.0
    x += b
    x[1] *= v
    x[:, 2] = 3.0
    x[0] = b[1]
    return x


def views_of_views(a: Any, b: Any, v: Any) -> Any:
    x = a.copy()
    y = x[1:]
    y *= 2
    z = x.T
    z[0] += 1
    return x * b


def out_arguments(a: Any, b: Any, v: Any) -> Any:
    x = a * 2
    np.multiply(x, b, out=x)
    x.sin_()
    return x


def set_at_indices(a: Any, b: Any, v: Any) -> Any:
    x = a * 1
    x[INDEX] = b
    return x


def set_at_mask(a: Any, b: Any, v: Any) -> Any:
    x = a * 1
    x[x > 1] = 0
    return x * b


def softmax(a: Any, b: Any, v: Any) -> Any:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, v: a + b,
    "broadcast": lambda a, b, v: a * v + 2,
    "divide": lambda a, b, v: 1 - a / b,
    "power": lambda a, b, v: a**b + a**2,
    "elementary": lambda a, b, v: np.sin(a) * np.exp(b),
    "sum": lambda a, b, v: a.sum(0) * v,
    "keepdims": lambda a, b, v: a / a.sum(1, keepdims=True),
    "mean": lambda a, b, v: a.mean() * b.mean(1),
    "max": lambda a, b, v: a.max(1) + b.min(),
    "var": lambda a, b, v: a.var(0) + b.std(),
    "prod": lambda a, b, v: a.prod(1),
    "norm": lambda a, b, v: np.linalg.norm(a),
    "matmul": lambda a, b, v: a @ b.T,
    "matvec": lambda a, b, v: a @ v,
    "dot": lambda a, b, v: np.dot(v, v) * a,
    "outer": lambda a, b, v: np.outer(v, v),
    "einsum": lambda a, b, v: np.einsum("ij,kj->ik", a, b),
    "where": lambda a, b, v: np.where(a > b, a, b * 2),
    "compare": lambda a, b, v: (a > 1) * a,
    "clip": lambda a, b, v: np.clip(a, 0.7, 1.5),
    "maximum": lambda a, b, v: np.maximum(a, b),
    "transpose": lambda a, b, v: a.T @ b,
    "reshape": lambda a, b, v: a.reshape(2, 10) * b.reshape(2, 10),
    "reshape_copies": lambda a, b, v: a.T.reshape(-1) * 2,
    "select": lambda a, b, v: a[1] * a[:, 2][0],
    "slice": lambda a, b, v: a[1:, ::2] * b[:-1, 1::2][:, :1],
    "reverse": lambda a, b, v: a[::-1] * b,
    "newaxis": lambda a, b, v: v[None] * a[:, :1],
    "diagonal": lambda a, b, v: np.diagonal(a[:, :4]),
    "broadcast_to": lambda a, b, v: np.broadcast_to(v, (4, 5)) * a,
    "gather": lambda a, b, v: a[INDEX] * b,
    "gather_two": lambda a, b, v: a[INDEX, [0, 1, 2, 3]],
    "take": lambda a, b, v: np.take(a, INDEX, axis=0),
    "mask": lambda a, b, v: a[A > 1] * 2,
    "computed_mask": lambda a, b, v: a[b > 1].sum(),
    "concatenate": lambda a, b, v: np.concatenate([a, b], axis=1),
    "stack": lambda a, b, v: np.stack([a[0], v]),
    "split": lambda a, b, v: np.split(a, 2)[1],
    "roll": lambda a, b, v: np.roll(a, 1, 0),
    "repeat": lambda a, b, v: np.repeat(v, 2),
    "tile": lambda a, b, v: np.tile(v, 3),
    "pad": lambda a, b, v: np.pad(v, 2),
    "tril": lambda a, b, v: np.tril(a),
    "cumsum": lambda a, b, v: np.cumsum(a, 1),
    "sort": lambda a, b, v: np.sort(a, 1),
    "argmax": lambda a, b, v: a.argmax(1),
    "searchsorted": lambda a, b, v: np.searchsorted(np.sort(v), v),
    "zeros_like": lambda a, b, v: np.zeros_like(a) + b,
    "arrays": lambda a, b, v: a * np.ones(5),
    "astype": lambda a, b, v: a.astype(np.float32) * 2,
    "detach": lambda a, b, v: a.detach() * b,
    "item": lambda a, b, v: a * float(v[0].detach()),
    "iterate": lambda a, b, v: sum(r.sum() for r in a),
    "fill": lambda a, b, v: (a * 1).fill_(2.0) + b,
    "copy": lambda a, b, v: (a * 1).copy_(b) * a,
    "in_place": in_place,
    "views_of_views": views_of_views,
    "out_arguments": out_arguments,
    "set_at_indices": set_at_indices,
    "set_at_mask": set_at_mask,
    "softmax": softmax,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operation_and_its_gradient(name: str):
    host = [rg.tensor(x, requires_grad=True) for x in (A, B, V)]
    mine = [rg.tensor(x, requires_grad=True, device=EMU) for x in (A, B, V)]
    expected, found = PROGRAMS[name](*host), PROGRAMS[name](*mine)
    assert (found.device, found.shape) == (EMU, expected.shape)
    assert found.dtype == expected.dtype
    assert found.requires_grad == expected.requires_grad
    values = found.detach().cpu().numpy()
    np.testing.assert_allclose(values, expected.detach().numpy(), rtol=1e-10)
    if not expected.requires_grad:
        return
    (expected * expected).sum().backward()
    (found * found).sum().backward()
    for x, y in zip(host, mine, strict=True):
        assert (x.grad is None) == (y.grad is None)
        if x.grad is not None and y.grad is not None:
            assert y.grad.device == EMU
            gradient = y.grad.cpu().numpy()
            np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", "?bBhHiIqQfd")
def test_dtypes(dtype: str):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    t = rg.tensor(x, device=EMU)
    for f in (lambda x: x + x, lambda x: x.sum(), lambda x: x > 1, lambda x: x[1:] * 2):
        found, expected = f(t), f(rg.tensor(x))
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.cpu().numpy(), expected.numpy())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_empty_and_single_arrays(shape: tuple[int, ...]):
    t = rg.tensor(np.full(shape, 2.0), device=EMU, requires_grad=True)
    loss = (np.sin(t) * t).sum()
    loss.backward()
    assert t.grad is not None
    assert t.grad.shape == shape
    expected = np.full(shape, np.cos(2) * 2 + np.sin(2))
    np.testing.assert_allclose(t.grad.cpu().numpy(), expected)


def test_views_share_memory_and_versions():
    t = rg.tensor(A, device=EMU)
    view = t[1:].T
    view += 1
    assert t._version == view._version == 1
    np.testing.assert_allclose(t.cpu().numpy()[1:], A[1:] + 1)


def test_sizes_make_no_new_programs():
    for n in (3, 5, 8):
        np.arctan(rg.tensor(np.ones(n), device=EMU))
    (found,) = [f for (name, *_), f in COMPILED.items() if name == "arctan"]
    assert found.cache_info().specialisations == 1
