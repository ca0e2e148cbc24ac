"""What a benchmark program is: a function, its inputs, its sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rng = np.random.Generator
Size = tuple[int, ...]
Args = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A function that changes its arguments in place, with how to call it.

    `inputs(rng, *size)` draws arguments on which the program is well conditioned.
    `outputs` are the positions of the changed arguments that hold results; what the
    function returns, numbers or arrays, are results as well. Every float argument is
    differentiable. `tests` are small sizes, at `bench` NumPy takes 10 to 1000 ms.
    """

    function: Callable[..., Any]
    inputs: Callable[..., Args]
    outputs: tuple[int, ...]
    tests: tuple[Size, Size, Size]
    bench: Size

    @property
    def name(self) -> str:
        return self.function.__name__

    def args(self, size: Size, seed: int = 0) -> Args:
        """Draw arguments that depend on nothing but the size and the seed."""
        return self.inputs(np.random.default_rng(seed), *size)

    def results(self, args: Args) -> list[Any]:
        """Call the function, which changes `args`, and return its results."""
        returned = self.function(*args)
        return [*in_tuple(returned), *(args[k] for k in self.outputs)]

    def weights(self, args: Args, seed: int = 0) -> Args:
        """Draw one weight per element of every result."""
        rng = np.random.default_rng(seed)
        return tuple(rng.normal(size=np.shape(r)) for r in self.results(copied(args)))

    def objective(self) -> Callable[..., Any]:
        """Return `f(weights, *args)`: the sum of the results times their weights."""
        function, outputs = self.function, self.outputs

        def objective(weights: Args, *args: Any) -> Any:
            returned = function(*args)
            results = [*in_tuple(returned), *(args[k] for k in outputs)]
            total = 0.0
            for w, r in zip(weights, results, strict=True):
                total = total + np.sum(w * r)
            return total

        return objective


def in_tuple(returned: Any) -> Args:
    """Return what a function returned as a tuple, empty for None."""
    if returned is None:
        return ()
    return returned if isinstance(returned, tuple) else (returned,)


def differentiable(args: Args) -> tuple[int, ...]:
    """Return the positions of the float arguments."""
    return tuple(k for k, x in enumerate(args) if np.asarray(x).dtype.kind == "f")


def copied(args: Args) -> Args:
    """Return arguments that a program may change."""
    return tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args)
