"""A program of the benchmarks, and the same program in the names of a peer."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Args = tuple[Any, ...]
Draw = Callable[[np.random.Generator, int], Args]


@dataclass(frozen=True, slots=True)
class Case:
    """A program in plain NumPy that returns one number, and how to draw its arguments.

    `draw` gets the size, about the number of elements; every float array it returns is
    differentiated. `sizes` and `dtypes` are those of the group where there are none,
    `tiny` is the size in tests. `writes` tells that arguments are changed. `pure` is
    the same program without writes, for all peers; `jax` and `torch` are for what one
    of them calls differently. Of a `plain` program the value alone is timed.
    """

    function: Callable[..., Any]
    draw: Draw
    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    tiny: int = 24
    writes: bool = False
    plain: bool = False
    pure: Callable[..., Any] | None = None
    jax: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    def form(self, own: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return the program of a peer: its own, the pure one, or NumPy's."""
        return own or self.pure or self.function

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


def rebound(function: Callable[..., Any], np: Any) -> Callable[..., Any]:
    """Return a function of a module with another library for `np`.

    Its module is loaded once more, under a name of its own: the functions that it calls
    see the other library, too, and torch.compile finds the globals it looks for.
    """
    name = f"{function.__module__}_{np.__name__.replace('.', '_')}"
    if name not in sys.modules:
        spec = importlib.util.find_spec(function.__module__)
        assert spec is not None
        assert spec.origin is not None
        other = importlib.util.spec_from_file_location(name, spec.origin)
        assert other is not None
        assert other.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(other)
        other.loader.exec_module(module)
        vars(module)["np"] = np
    found: Callable[..., Any] = getattr(sys.modules[name], function.__name__)
    return found
