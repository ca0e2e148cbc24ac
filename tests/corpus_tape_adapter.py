"""The corpus on the bare tape: leaves, `backward`, overwritten saved values refused.

NumPy's functions are those of `rg.numpy`, whose new arrays are Tensors.
"""

from collections.abc import Callable, Iterator
from typing import Any

import retrograde as rg

SUPPORTS_MUT_COTANGENTS = True

Flat = list[Any]


def numpy_namespace() -> Any:
    """Return the namespace that the programs use."""
    return rg.numpy


def value_and_vjp(
    f: Callable[..., Any],
    args: Flat,
    cotangents: Flat | None,
    mut_cotangents: Flat | None = None,
) -> tuple[Flat, Flat, Flat]:
    """Return outputs, final arguments and the gradients of leaves."""
    leaves = [rg.tensor(a, requires_grad=a.dtype.kind == "f") for a in args]
    inputs = [t * 1.0 if t.requires_grad else t for t in leaves]
    outputs = list(flatten(f(*inputs)))
    weighted = [
        *zip(outputs, cotangents or [], strict=False),
        *zip(inputs, mut_cotangents or [], strict=False),
    ]
    loss: Any = 0.0
    for x, c in weighted:
        if c is not None and isinstance(x, rg.Tensor) and x.requires_grad:
            loss = loss + (x * c).sum()
    if isinstance(loss, rg.Tensor):
        loss.backward()
    grads = [t.grad if t.requires_grad else None for t in leaves]
    return plain(outputs), plain(inputs), plain(grads)


def flatten(x: Any) -> Iterator[Any]:
    """Yield arrays and numbers of nested containers."""
    if isinstance(x, dict):
        x = [*x.values()]
    if isinstance(x, tuple | list):
        for item in x:
            yield from flatten(item)
    else:
        yield x


def plain(items: Flat) -> Flat:
    """Return copies without gradients."""
    return [x.detach().numpy().copy() if isinstance(x, rg.Tensor) else x for x in items]
