"""How each framework computes the value and the gradient of a case.

A framework is a function of a case and its arguments. It returns a call that takes
nothing and computes everything (on arrays that lie where the framework wants them), and
what makes NumPy of its result.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from .case import Args, Case, copied, differentiable, is_float, rebound

THREADS = "BENCHMARK_THREADS"  # the environment variable


class Computed(NamedTuple):
    """A value and its gradients; without gradients where a framework has none."""

    value: float
    grads: Args | None


class Prepared(NamedTuple):
    """What is timed, and what its result means."""

    call: Callable[[], Any]
    read: Callable[[Any], Computed]


def threads() -> int:
    """Return how many threads this process is measured with."""
    return int(os.environ.get(THREADS, "1"))


def ours(case: Case, args: Args) -> Prepared:
    import retrograde as rg

    compiled = rg.compile(case.function)
    return run(case, args, compiled, rg.value_and_grad)


def eager(case: Case, args: Args) -> Prepared:
    import retrograde as rg

    return run(case, args, case.function, rg.value_and_grad)


def run(case: Case, args: Args, function: Any, value_and_grad: Any) -> Prepared:
    """Prepare what takes and returns arrays of NumPy."""
    if case.plain:
        return Prepared(partial(function, *args), as_value)
    both = value_and_grad(function, differentiable(args))
    return Prepared(partial(both, *args), as_numpy)


def jax(case: Case, args: Args) -> Prepared:
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)
    function = rebound(case.form(case.jax), np=jnp)
    arrays = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args]
    if not case.plain:
        function = jax.value_and_grad(function, argnums=differentiable(args))
    compiled = jax.jit(function)
    read = as_value if case.plain else as_numpy
    return Prepared(lambda: jax.block_until_ready(compiled(*arrays)), read)


def torch_program(case: Case) -> Callable[..., Any]:
    from . import torch_numpy

    function = rebound(case.form(case.torch), np=torch_numpy)
    if not case.writes:
        return function
    import torch

    def on_copies(*args: Any) -> Any:
        return function(*(x.clone() if torch.is_tensor(x) else x for x in args))

    return on_copies


def torch_args(args: Args) -> Args:
    import torch

    torch.set_num_threads(threads())
    return tuple(torch.tensor(x) if isinstance(x, np.ndarray) else x for x in args)


def torch(case: Case, args: Args) -> Prepared:
    import torch

    function, tensors = torch_program(case), torch_args(args)
    if case.plain:
        return Prepared(partial(function, *tensors), as_value)
    wrt = [tensors[k].requires_grad_() for k in differentiable(args)]

    def call() -> Any:
        value = function(*tensors)
        grads = torch.autograd.grad(value, wrt)
        return value.detach(), [g.contiguous() for g in grads]

    return Prepared(call, as_numpy)


def torch_compiled(case: Case, args: Args) -> Prepared:
    import torch

    torch.compiler.reset()  # after eight programs it would compile no more
    function, tensors = torch_program(case), torch_args(args)
    if case.plain:
        compiled = torch.compile(function, dynamic=True)
        return Prepared(partial(compiled, *tensors), as_value)
    gradient = torch.func.grad_and_value(function, argnums=differentiable(args))

    def both(*args: Any) -> Any:
        """Compute both in one graph: faster than a compiled value, differentiated.

        Gradients are arrays, as everybody else's: not arguments, nor numbers expanded.
        """
        grads, value = gradient(*args)
        return value, [g.clone(memory_format=torch.contiguous_format) for g in grads]

    return Prepared(partial(torch.compile(both, dynamic=True), *tensors), as_numpy)


def autograd(case: Case, args: Args) -> Prepared:
    import autograd
    from autograd import numpy as anp

    function = rebound(case.form(), np=anp)
    return run(case, args, function, autograd.value_and_grad)


def forward(case: Case, args: Args) -> Prepared:
    """Return NumPy's value alone."""

    def call() -> Any:
        return case.function(*(copied(args) if case.writes else args))

    return Prepared(call, as_value)


def copy(case: Case, args: Args) -> Prepared:
    """Return a copy of as many bytes as arguments and gradients have."""
    pairs = [(np.empty_like(x), x) for x in args if is_float(x)]
    count = threads()
    if count == 1:
        return Prepared(partial(copy_all, pairs), lambda _: Computed(0.0, None))
    pool = ThreadPoolExecutor(count)
    parts = [
        [
            (np.array_split(to.ravel(), count)[k], np.array_split(x.ravel(), count)[k])
            for to, x in pairs
        ]
        for k in range(count)
    ]

    def call() -> None:
        list(pool.map(copy_all, parts))

    return Prepared(call, lambda _: Computed(0.0, None))


def copy_all(pairs: list[tuple[Any, Any]]) -> None:
    for to, x in pairs:
        np.copyto(to, x)


def as_value(result: Any) -> Computed:
    return Computed(float(result), None)


def as_numpy(result: Any) -> Computed:
    value, grads = result
    return Computed(float(value), tuple(np.asarray(g) for g in grads))


FRAMEWORKS: dict[str, Callable[[Case, Args], Prepared]] = {
    "ours": ours,
    "eager": eager,
    "jax": jax,
    "torch": torch,
    "torch.compile": torch_compiled,
    "autograd": autograd,
    "numpy": forward,
    "copy": copy,
}
PACKAGES = {
    "jax": "jax",
    "torch": "torch",
    "torch.compile": "torch",
    "autograd": "autograd",
}
PEERS = ("jax", "torch", "torch.compile", "autograd")


def load(name: str) -> None:
    """Import what a framework needs, so that no first run pays for it."""
    import_module(PACKAGES.get(name, "retrograde"))


def is_installed(name: str) -> bool:
    """Tell whether the package of a framework is there."""
    return name not in PACKAGES or find_spec(PACKAGES[name]) is not None
