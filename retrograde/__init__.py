"""Compiled gradients of NumPy programs with loops, views and in-place writes."""

from .compare import compare
from .comparison import Comparison
from .ir.errors import RetrogradeError

__all__ = ["Comparison", "RetrogradeError", "compare"]
