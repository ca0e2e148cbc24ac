"""Compiled programs on the tape: a node with a compiled pullback."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.build import Builder
from ..ir.dims import Symbol
from ..ir.errors import GradientError
from ..ir.func import type_of
from ..ir.op import OPS
from ..runtime.devices import DeviceArray
from . import dispatch, tape
from .builders import EagerBuilder
from .program import Program
from .tensor import Tensor, of

NUMBERS = (bool, int, float, complex)


def run_recorded(
    program: Program,
    values: Sequence[Any],
    env: Mapping[Symbol, int],
    written: Sequence[int] = (),
    *,
    quiet: Sequence[int] = (),
    constant: Collection[int] = (),
    released: bool = False,
) -> list[Any]:
    """Run a program on Tensors and arrays; its results carry a `grad_fn`.

    `written` numbers the parameters that are updated; their results are the same
    objects. The node saves the arguments as they were before the call, and its pullback
    is the program's vjp: recorded itself when the backward pass is. Parameters that are
    `quiet` keep their place in the graph: they are written under `no_grad`. `constant`
    results have no gradient. Where the program has run a backward pass itself, its
    graph is `released`.
    """
    func = program.func
    targets = [values[j] for j in written]
    tape.check_writes(values, [values[j] for j in written if j not in quiet])
    skipped = {i for i, j in func.updates if j in quiet} | set(constant)
    wrt = tuple(
        j
        for j, (x, p) in enumerate(zip(values, func.params, strict=True))
        if isinstance(x, Tensor) and x.requires_grad and p.type.is_inexact
    )
    saved: list[Any] = []
    if not released and any(
        type_of(x).is_inexact for i, x in enumerate(func.results) if i not in skipped
    ):
        saved = [_before(x) if j in written else x for j, x in enumerate(values)]
    tape.before_writes([t for t in targets if isinstance(t, Tensor)])
    arrays = program.run([array_of(x) for x in values], env)
    updated = dict(func.updates)
    results = [
        values[updated[i]] if i in updated else shown(x, i in constant)
        for i, x in enumerate(arrays)
    ]
    for j in quiet:
        if isinstance(values[j], Tensor):
            values[j]._storage.wrote()
    inputs = list(values)
    inexact = [i for i, t in enumerate(results) if i not in skipped and _inexact(t)]

    def backward(b: Builder, cts: Sequence[Any], *args: Any) -> list[Any]:
        if released:
            raise GradientError(tape.TWICE)
        chosen = tuple(i for i in inexact if cts[i] is not None)
        grads: list[Any] = [None] * len(inputs)
        if not chosen:
            return grads
        pullback = program.vjp(wrt, chosen, env)
        given = [*args, *(cts[i] for i in chosen)]
        pullback = pullback.taking_arrays(_held_numbers(pullback, given))
        if isinstance(b, EagerBuilder):
            out = pullback.run(_as_declared(pullback, map(array_of, given)), env)
        else:
            out = run_recorded(pullback, given, env)
        for j, g in zip(wrt, out, strict=True):
            grads[j] = g
        return grads

    outputs = [None if i in skipped else x for i, x in enumerate(results)]
    tape.record("CompiledBackward", inputs, outputs, backward, saved)
    return results


def shown(x: Any, constant: bool) -> Any:
    """Return a result: a Tensor, or a Python number that has no gradient."""
    return x if constant and type(x) in NUMBERS else of(x)


def array_of(x: Any) -> Any:
    """Return the data of a Tensor; arrays and numbers are their own."""
    return x._data if isinstance(x, Tensor) else x


def _before(x: Any) -> Any:
    """Return a written argument as it is before the call, connected to its graph."""
    if isinstance(x, Tensor):
        return dispatch.apply(OPS["copy"], (x,), {})
    return x.copy()


def _inexact(x: Any) -> bool:
    data = array_of(x)
    return (
        data if isinstance(data, DeviceArray) else np.asarray(data)
    ).dtype.kind in "fc"


def _held_numbers(program: Program, given: Sequence[Any]) -> tuple[int, ...]:
    """Return the scalars of a program for which there are arrays of a device."""
    return tuple(
        j
        for j, (p, x) in enumerate(zip(program.func.params, given, strict=True))
        if p.type.scalar and isinstance(array_of(x), DeviceArray)
    )


def _as_declared(program: Program, args: Any) -> list[Any]:
    """Give scalars to parameters that are scalars: the tape may hold 0-d arrays."""
    return [
        np.asarray(x)[()] if p.type.scalar else np.asarray(x)
        for p, x in zip(program.func.params, args, strict=True)
    ]
