"""Check gradients: eager mode against compiled code, and each against differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import retrograde as rg

from .comparison import SMALL, TOLERANCES, Mode, Row, close, describe, precision_of
from .differences import Slope, slope
from .leaves import copy_apart, is_array, is_float, leaves, rebuild
from .program import Call, Program, run_direct, to_numpy


@dataclass(frozen=True, slots=True)
class Pull:
    """What one reverse-mode run gave: values, final arguments, gradients."""

    values: list[Any]
    finals: list[Any]
    grads: tuple[Any, ...]


def gradient_rows(program: Program) -> Iterator[Row]:
    """Check values and gradients of reverse mode.

    Transforms see private copies of their arguments, so the run to compare with is
    NumPy's on arguments that share no memory.
    """
    if not program.argnums:
        return
    reference = run_direct(program, program.plain, copy_apart(program.args))
    rng = np.random.default_rng(0)
    cotangents = draw_cotangents(program, reference, rng)
    pulls: dict[Mode, Pull] = {}
    for mode, target in program.forms.items():
        try:
            pulls[mode] = run_reverse(target, copy_apart(program.args), cotangents)
        except Exception as error:
            yield Row("gradient", mode, "failed", describe(error))
            continue
        yield from _forward_rows(mode, pulls[mode], reference)
    precision = precision_of(list(program.paths(program.args)) + reference.values)
    for i in program.argnums:
        directions = [draw_direction(leaf, rng) for _, leaf in leaves(program.args[i])]
        reached = _slope(program, reference, i, directions, cotangents, precision)
        for mode, pull in pulls.items():
            yield _slope_row(program, i, mode, pull, directions, reached, precision)
        if "eager" in pulls and len(pulls) == len(program.forms):
            yield _agreement_row(program, i, pulls, precision)


def run_reverse(
    target: Callable[..., Any], args: Any, cotangents: tuple[Any, Any]
) -> Pull:
    """Run value and pullback once, with weights for the result and final arguments."""
    (value, finals), pullback = rg.vjp(target, *args, finals=True)
    grads = pullback(cotangents)
    return Pull(
        [to_numpy(leaf) for _, leaf in leaves(value)],
        [leaf for _, leaf in leaves(rebuild(finals, to_numpy)) if is_array(leaf)],
        tuple(rebuild(grads, to_numpy)),
    )


def draw_cotangents(
    program: Program, reference: Call, rng: np.random.Generator
) -> tuple[Any, Any]:
    """Draw weights for the result and for every argument that was changed.

    They have the structure of the result and of the arguments; None stands for zeros.
    """

    def draw(leaf: Any) -> Any:
        if not is_float(leaf):
            return None
        return np.asarray(rng.standard_normal(np.shape(leaf)), np.asarray(leaf).dtype)

    finals = iter(reference.finals)

    def draw_if_changed(before: Any) -> Any:
        if not is_array(before):
            return None
        _, after = next(finals)
        nan = after.dtype.kind == "f"
        return None if np.array_equal(after, before, equal_nan=nan) else draw(after)

    return rebuild(reference.value, draw), rebuild(program.args, draw_if_changed)


def _forward_rows(mode: Mode, pull: Pull, reference: Call) -> Iterator[Row]:
    """Check what reverse mode computed on its way; report only what is wrong."""
    for what, got, want in (
        ("result of vjp", pull.values, reference.values),
        ("final arguments of vjp", pull.finals, reference.finals),
    ):
        if len(got) != len(want):
            detail = f"{len(got)} arrays, NumPy has {len(want)}"
            yield Row(what, mode, "failed", detail)
            continue
        tolerance = TOLERANCES[precision_of(want)][0]
        for value, (path, right) in zip(got, want, strict=True):
            row = close(f"{what}: {path}", mode, value, right, tolerance)
            if row.status == "failed":
                yield row


def draw_direction(leaf: Any, rng: np.random.Generator) -> Any:
    """Draw a direction in proportion to the entries, so that signs stay as they are."""
    if not is_float(leaf):
        return None
    sizes = np.abs(np.asarray(leaf, np.float64))
    typical = math.sqrt(float(np.mean(sizes**2))) if sizes.size else 0.0
    sizes = np.where(sizes > 0, sizes, typical or 1.0)
    return rng.standard_normal(sizes.shape) * sizes


def moved_args(
    args: tuple[Any, ...], index: int, directions: list[Any], step: float
) -> tuple[Any, ...]:
    remaining = iter(directions)

    def move(leaf: Any) -> Any:
        direction = next(remaining)
        if direction is None:
            return leaf
        if not is_array(leaf):
            return type(leaf)(leaf + step * float(direction))
        locked = not leaf.flags.writeable
        leaf.flags.writeable = True
        leaf += (step * direction).astype(leaf.dtype)
        leaf.flags.writeable = not locked
        return leaf

    copies = copy_apart(args)
    return (*copies[:index], rebuild(copies[index], move), *copies[index + 1 :])


def _slope(
    program: Program,
    reference: Call,
    index: int,
    directions: list[Any],
    cotangents: tuple[Any, Any],
    precision: np.dtype[Any],
) -> Slope:
    """Differentiate the weighted NumPy run along one direction of one argument."""
    value, finals = cotangents
    arrays = [is_array(leaf) for _, leaf in program.paths(program.args)]
    weights = [weight for _, weight in leaves(value)]
    pairs = zip(program.paths(finals), arrays, strict=True)
    weights += [weight for (_, weight), kept in pairs if kept]

    def terms(call: Call) -> list[Any]:
        outputs = [leaf for _, leaf in call.values + call.finals]
        return [
            np.asarray(weight, np.float64) * np.asarray(output, np.float64)
            for weight, output in zip(weights, outputs, strict=True)
            if weight is not None
        ]

    shapes = [np.shape(leaf) for _, leaf in reference.values + reference.finals]

    def moved(step: float) -> float:
        args = moved_args(program.args, index, directions, step)
        try:
            call = run_direct(program, program.plain, args)
        except Exception:  # nearby arguments may be outside what the program takes
            return math.nan
        if [np.shape(leaf) for _, leaf in call.values + call.finals] != shapes:
            return math.nan
        return math.fsum(float(term.sum()) for term in terms(call))

    scale = sum(float(np.abs(term).sum()) for term in terms(reference))
    with np.errstate(all="ignore"):
        return slope(moved, scale, float(np.finfo(precision).eps))


def _slope_row(
    program: Program,
    index: int,
    mode: Mode,
    pull: Pull,
    directions: list[Any],
    reached: Slope,
    precision: np.dtype[Any],
) -> Row:
    what = f"gradient of {program.names[index]}"
    products = []
    for (path, leaf), grad, direction in zip(
        leaves(program.args[index], program.names[index]),
        _grad_leaves(pull, index, len(directions)),
        directions,
        strict=True,
    ):
        if direction is None or grad is None:
            continue
        if np.shape(grad) != np.shape(leaf):
            shapes = f"{np.shape(grad)}, the argument {np.shape(leaf)}"
            return Row(what, mode, "failed", f"the gradient of {path} is {shapes}")
        products.append(np.asarray(grad, np.float64) * direction)
    if reached.problem:
        return Row(what, mode, "note", f"no differences: {reached.problem}")
    total = math.fsum(float(p.sum()) for p in products)
    size = max(abs(reached.value), sum(float(np.abs(p).sum()) for p in products), SMALL)
    error = abs(total - reached.value)
    allowed = TOLERANCES[precision][2] * size
    if reached.doubt > 10 * allowed and error <= reached.doubt:
        return Row(
            what, mode, "note", f"differences are too noisy here (±{reached.doubt:.1g})"
        )
    if error <= allowed + 3 * reached.doubt:
        return Row(what, mode, "ok", "", error / size)
    detail = f"{total:.9g} along a direction, differences give {reached.value:.9g}"
    return Row(what, mode, "failed", detail, error / size)


def _agreement_row(
    program: Program, index: int, pulls: dict[Mode, Pull], precision: np.dtype[Any]
) -> Row:
    what = f"gradient of {program.names[index]}"
    tolerance = TOLERANCES[precision][1]
    originals = list(leaves(program.args[index], program.names[index]))
    grads = {mode: _grad_leaves(p, index, len(originals)) for mode, p in pulls.items()}
    largest = 0.0
    for k, (path, leaf) in enumerate(originals):
        if not is_float(leaf):
            continue
        eager, *others = (
            np.asarray(np.zeros_like(leaf) if found[k] is None else found[k])
            for found in grads.values()
        )
        for other in others:
            row = close(path, "both", other, eager, tolerance)
            if row.status == "failed":
                return Row(what, "both", "failed", f"{path}: {row.detail}", row.error)
            largest = max(largest, row.error or 0.0)
    return Row(what, "both", "ok", "", largest)


def _grad_leaves(pull: Pull, index: int, count: int) -> list[Any]:
    grad = pull.grads[index]
    if grad is None:
        return [None] * count
    return [leaf for _, leaf in leaves(grad)]
