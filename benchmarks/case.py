"""A program of the benchmarks, and the same program in the names of a peer."""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Args = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int], Args]


@dataclass(frozen=True, slots=True)
class Case:
    """A program in plain NumPy that returns one number, and how to draw its arguments.

    `draw` gets the size, about the number of elements; every float array it returns is
    differentiated. `sizes` and `dtypes` are those of the group where there are none. A
    peer whose arrays cannot be written has a program of its own in `jax`; one in
    `torch` is for what torch calls differently. `writes` tells that arguments are
    changed. `tiny` is the size in tests.
    """

    function: Callable[..., Any]
    draw: Draw
    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    tiny: int = 24
    writes: bool = False
    jax: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    def args(self, size: int, dtype: str) -> Args:
        """Return the arguments: the same numbers in every precision."""
        drawn = self.draw(np.random.default_rng(size), size)
        return tuple(
            x.astype(np.float32).astype(dtype) if is_float(x) else x for x in drawn
        )


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def differentiable(args: Args) -> tuple[int, ...]:
    """Return which arguments are differentiated."""
    return tuple(k for k, x in enumerate(args) if is_float(x))


def copied(args: Args) -> Args:
    """Return the arguments for a program that may change them."""
    return tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args)


def rebound(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Return a function of a module with other values for some of its globals.

    The functions of the module that it calls see the new values, too: with `np=jnp` the
    same text is a program for JAX.
    """
    assert isinstance(function, FunctionType)
    space = dict(function.__globals__)
    for name, value in list(space.items()):
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            space[name] = FunctionType(
                value.__code__, space, name, value.__defaults__, value.__closure__
            )
    space.update(names)
    found: Callable[..., Any] = space[function.__name__]
    return found
