"""Loop programs in plain in-place NumPy, for tests and benchmarks."""

from . import dynamics, factorisations, matrices, ragged, signals, stencils
from .program import Args, Array, Program, Size, copied, differentiable

PROGRAMS: tuple[Program, ...] = (
    *stencils.PROGRAMS,
    *factorisations.PROGRAMS,
    *matrices.PROGRAMS,
    *signals.PROGRAMS,
    *dynamics.PROGRAMS,
    *ragged.PROGRAMS,
)

__all__ = ["PROGRAMS", "Args", "Array", "Program", "Size", "copied", "differentiable"]


def find(name: str) -> Program:
    """Return the program of a name."""
    (program,) = [p for p in PROGRAMS if p.name == name]
    return program
