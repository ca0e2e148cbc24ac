"""Adapter between retrograde's public names and a conformance corpus of programs.

The corpus's runner hands over programs `f(*arrays)` with arguments and weights, and
checks what comes back. Weights are cotangents of the results, in flat order.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import retrograde as rg

SUPPORTS_MUT_COTANGENTS = True

Function = Callable[..., Any]
Flat = list[Any]
Result = tuple[Flat, Flat, Flat]

DEVICE = os.environ.get("RETROGRADE_CORPUS_DEVICE") or None  # of compiled code
jit = functools.partial(rg.compile, device=DEVICE)
compiled = functools.cache(jit)


def numpy_namespace() -> Any:
    """Return the namespace that the programs use: NumPy's unless asked otherwise."""
    if os.environ.get("RETROGRADE_CORPUS_NUMPY") == "retrograde":
        return rg.numpy
    return np


def value_and_vjp(
    f: Function, args: Flat, cotangents: Flat | None, mut_cotangents: Flat | None = None
) -> Result:
    """Return outputs, final arguments and gradients of f."""
    (value, finals), pullback = rg.vjp(f, *args, finals=True)
    flat = list(_flatten(value))
    given = [None] * len(flat) if cotangents is None else cotangents
    weights = _weights(value, iter(given))
    kept = [None] * len(args) if mut_cotangents is None else mut_cotangents
    grads = pullback((weights, tuple(kept)))
    return _numbers(flat), _numbers(finals), _numbers(grads)


def value_and_vjp_compiled(
    f: Function, args: Flat, cotangents: Flat | None, mut_cotangents: Flat | None = None
) -> Result:
    """Return the same through compiled code; f is compiled once for all its calls."""
    return value_and_vjp(compiled(f), args, cotangents, mut_cotangents)


def hvp(f: Function, args: Flat, cotangents: Flat, vectors: Flat) -> Flat:
    """Return Hessian-vector products: the gradient of <gradient, vectors>."""
    return _hvp(_product(f), args, cotangents, vectors)


def hvp_compiled(f: Function, args: Flat, cotangents: Flat, vectors: Flat) -> Flat:
    """Return the same through compiled code."""
    return _hvp(_product_compiled(f), args, cotangents, vectors)


def call(f: Function, args: Flat) -> tuple[Flat, Flat]:
    """Call f on tensors; return outputs and arguments, whose memory can be compared."""
    tensors = [rg.tensor(array) for array in args]
    return list(_flatten(f(*tensors))), tensors


def shares_memory(a: Any, b: Any) -> bool:
    """Tell whether two arrays or tensors have an element in common."""
    x, y = _number(a), _number(b)
    both = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    return both and np.shares_memory(x, y)


def _product(f: Function) -> Function:
    def product(weights: tuple[Flat, Flat], *args: Any) -> Any:
        cotangents, vectors = weights
        value, pullback = rg.vjp(f, *args)
        grads = pullback(_weights(value, iter(cotangents)))
        total = 0.0
        for i in range(len(vectors)):
            if vectors[i] is not None and grads[i] is not None:
                total = total + np.sum(grads[i] * vectors[i])
        return total

    return product


@functools.cache
def _product_compiled(f: Function) -> Function:
    return compiled(_product(compiled(f)))


def _hvp(product: Function, args: Flat, cotangents: Flat, vectors: Flat) -> Flat:
    chosen = [i for i, vector in enumerate(vectors) if vector is not None]
    grad = rg.grad(product, argnums=tuple(i + 1 for i in chosen))
    found = dict(zip(chosen, grad((cotangents, vectors), *args), strict=True))
    return _numbers([found.get(i) for i in range(len(args))])


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _weights(value: Any, flat: Iterator[Any]) -> Any:
    """Arrange flat cotangents like the value; None stands for zeros."""
    if isinstance(value, (tuple, list)):
        return type(value)([_weights(item, flat) for item in value])
    return next(flat)


def _number(leaf: Any) -> Any:
    return leaf.detach().numpy() if isinstance(leaf, rg.Tensor) else leaf


def _numbers(flat: Any) -> Flat:
    return [_number(leaf) for leaf in flat]
