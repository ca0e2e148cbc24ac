"""Compiled gradients of NumPy programs with loops, views and in-place writes."""

from . import numpy
from .compare import compare
from .comparison import Comparison
from .gradcheck import check_grads, gradcheck, gradgradcheck
from .ir.errors import GradcheckError, RetrogradeError
from .runtime.devices import DeviceArray, device_array, from_dlpack
from .runtime.threads import get_num_threads, set_num_threads
from .tracer import autograd
from .tracer.checkpoint import checkpoint
from .tracer.containers import register_container
from .tracer.function import Function, once_differentiable
from .tracer.functional import (
    elementwise_grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    linearize,
)
from .tracer.jit import Compiled, compile
from .tracer.modes import (
    allow_mutation_on_saved_tensors,
    enable_grad,
    is_grad_enabled,
    no_grad,
    set_deterministic,
    set_grad_enabled,
    set_view_replay,
)
from .tracer.tensor import Tensor, from_numpy, tensor
from .tracer.transforms import grad, value_and_grad, vjp

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Compiled",
    "DeviceArray",
    "Function",
    "GradcheckError",
    "RetrogradeError",
    "Tensor",
    "allow_mutation_on_saved_tensors",
    "autograd",
    "check_grads",
    "checkpoint",
    "compare",
    "compile",
    "device_array",
    "elementwise_grad",
    "enable_grad",
    "from_dlpack",
    "from_numpy",
    "get_num_threads",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hvp",
    "is_grad_enabled",
    "jacobian",
    "jvp",
    "linearize",
    "no_grad",
    "numpy",
    "once_differentiable",
    "register_container",
    "set_deterministic",
    "set_grad_enabled",
    "set_num_threads",
    "set_view_replay",
    "tensor",
    "value_and_grad",
    "vjp",
]
