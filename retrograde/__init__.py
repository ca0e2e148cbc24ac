"""Compiled gradients of NumPy programs with loops, views and in-place writes."""

from . import numpy
from .compare import compare
from .comparison import Comparison
from .ir.errors import RetrogradeError
from .tracer import autograd
from .tracer.checkpoint import checkpoint
from .tracer.containers import register_container
from .tracer.function import Function, once_differentiable
from .tracer.jit import Compiled, compile
from .tracer.modes import (
    allow_mutation_on_saved_tensors,
    enable_grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from .tracer.tensor import Tensor, from_numpy, tensor
from .tracer.transforms import grad, value_and_grad, vjp

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Compiled",
    "Function",
    "RetrogradeError",
    "Tensor",
    "allow_mutation_on_saved_tensors",
    "autograd",
    "checkpoint",
    "compare",
    "compile",
    "enable_grad",
    "from_numpy",
    "grad",
    "is_grad_enabled",
    "no_grad",
    "numpy",
    "once_differentiable",
    "register_container",
    "set_grad_enabled",
    "tensor",
    "value_and_grad",
    "vjp",
]
