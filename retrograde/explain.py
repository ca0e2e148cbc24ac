"""Show how a function and its gradient compile, stage by stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import retrograde as rg

from .gradients import draw_cotangents
from .leaves import copy_sharing, is_float
from .program import Program, make_program, run_direct

MAIN = ("capture", "functionalize", "vjp", "nests", "source")


def explain(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    every: bool = False,
    direct: bool = False,
) -> str:
    """Return the IR after the main stages, the loop nests and the generated source.

    Shown is the joint program of value and gradient, where anything can be
    differentiated; `direct` asks for the program of a plain call. With `every`, the
    passes between differentiation and code generation are shown, too. No argument is
    changed.

    >>> text = explain(lambda x: (x**2).sum(), (np.ones(3),))
    >>> [line for line in text.splitlines() if line.startswith("# ")]
    ['# after capture', '# after functionalize', '# after vjp', '# nests', '# source']
    """
    program = make_program(f, args, kwargs or {}, None)
    compiled: Any = program.compiled
    args = program.args
    if program.argnums and not direct:
        compiled, args = joint(program)
    sections = compiled.sections(*args)
    return "\n".join(text for name, text in sections.items() if every or name in MAIN)


def joint(program: Program) -> tuple[Any, tuple[Any, ...]]:
    """Return the compiled value and gradient, and arguments for it.

    Of a function that does not return one number it takes weights of the results first.
    """
    reference = run_direct(program, program.plain, copy_sharing(program.args))
    results = [leaf for _, leaf in reference.values]
    if len(results) == 1 and is_float(results[0]) and np.ndim(results[0]) == 0:
        both = rg.value_and_grad(program.compiled, argnums=program.argnums)
        return both, program.args
    weights, _ = draw_cotangents(program, reference, np.random.default_rng(0))

    def value_and_pullback(weights: Any, *args: Any) -> Any:
        value, pullback = rg.vjp(program.compiled, *args)
        return value, pullback(weights)

    value_and_pullback.__name__ = program.name
    return rg.compile(value_and_pullback), (weights, *program.args)
