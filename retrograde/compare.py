"""Hold eager mode and compiled code against NumPy: values, aliasing, gradients, time.

NumPy's own run of the program decides what values and aliasing are right; differences
of its values decide what gradients are right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import retrograde as rg

from .comparison import (
    TOLERANCES,
    Comparison,
    Mode,
    Row,
    close,
    describe,
    error_of,
    mismatch,
    precision_of,
)
from .footprint import Memory, measure
from .gradients import draw_cotangents, gradient_rows, run_reverse
from .leaves import (
    copy_apart,
    copy_sharing,
    is_array,
    is_float,
    leaves,
    rebuild,
    shares_memory,
)
from .program import Call, Program, make_program, run_direct, to_numpy
from .runtime.devices import device as find_device
from .runtime.devices import device_array

TIMED = "value and gradient"
BUDGET = 0.3  # seconds for the repetitions of one timing


def compare(
    f: Callable[..., Any],
    *args: Any,
    argnums: int | tuple[int, ...] | None = None,
    device: str | None = None,
    **kwargs: Any,
) -> Comparison:
    """Run f in NumPy, in eager mode and compiled, and compare all that can be seen.

    That is: values, final values of changed arguments, which results share memory with
    which arguments and with each other, and gradients, of eager mode against compiled
    code and of both against differences. No argument is changed. By default every
    positional argument that holds floats is differentiated.

    With a `device`, "cuda", "cuda:1" or "cuda:emu", or of a function that was compiled
    for one, the code for it is the third that is held against the others; its time is
    that of arrays that are on the device. Raises DeviceError where there is none.

    >>> import numpy as np, retrograde as rg
    >>> def f(x):
    ...     y = x**2
    ...     v = y[0]
    ...     v *= 2
    ...     return np.sum(y)
    >>> comparison = rg.compare(f, np.ones((3, 4)))
    >>> comparison.ok
    True
    """
    program = make_program(f, args, kwargs, argnums, device)
    try:
        reference = run_direct(program, program.plain, copy_sharing(program.args))
        again = run_direct(program, program.plain, copy_sharing(program.args))
    except Exception as error:
        return _stopped(program, Row("call", "numpy", "failed", describe(error)))
    if problem := _not_repeatable(reference, again):
        return _stopped(program, problem)
    # The first compiled run is timed before anything else has compiled the program.
    compiled = _Timing("compiled", _prepare(program, program.compiled, reference))
    eager = _Timing("eager", _prepare(program, program.plain, reference))
    timings = [eager, compiled]
    if program.on_device is not None:
        there = _prepare(program, program.on_device, reference, program.device)
        timings.append(_Timing("device", there))
    rows = [
        *_direct_rows(program, reference),
        *gradient_rows(program),
        *_joint_rows(timings),
    ]
    best = {timing.mode: timing.best() for timing in timings}
    memory = () if compiled.error else tuple(_memory(program, reference, compiled))
    return Comparison(
        program.name,
        tuple(rows),
        best["eager"],
        best["compiled"],
        compiled.first,
        memory,
        program.device,
        best.get("device", math.nan),
    )


def _stopped(program: Program, row: Row) -> Comparison:
    return Comparison(program.name, (row,), math.nan, math.nan, math.nan)


def _not_repeatable(reference: Call, again: Call) -> Row | None:
    """Return a failure if two NumPy runs on equal arguments differ."""
    first = reference.values + reference.finals
    second = again.values + again.finals
    same = len(first) == len(second) and not any(
        mismatch(b, a) or error_of(b, a) > 0
        for (_, a), (_, b) in zip(first, second, strict=True)
    )
    if same:
        return None
    detail = "two runs differ; pass random numbers and state in as arguments"
    return Row("repeatable", "numpy", "failed", detail)


# Direct calls.


def _direct_rows(program: Program, reference: Call) -> Iterator[Row]:
    arrays = [leaf for _, leaf in program.paths(program.args) if is_array(leaf)]
    overlap = any(shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    runs: list[tuple[Mode, Callable[..., Any], Any]] = [
        (mode, form, copy_sharing(program.args))
        for mode, form in program.forms.items()
        if mode != "eager"
    ]
    if not overlap:  # a tensor owns its memory: overlapping arguments cannot be wrapped
        tensors = rebuild(copy_sharing(program.args), _to_tensor)
        runs.insert(0, ("eager", program.plain, tensors))
    for mode, target, args in runs:
        try:
            call = run_direct(program, target, args)
        except Exception as error:
            yield Row("call", mode, "failed", describe(error))
            continue
        yield from _value_rows(mode, call, reference)
        yield _alias_row(mode, call.aliases, reference.aliases)


def _to_tensor(leaf: Any) -> Any:
    return rg.tensor(leaf) if is_array(leaf) else leaf


def _value_rows(mode: Mode, call: Call, reference: Call) -> Iterator[Row]:
    if [path for path, _ in call.values] != [path for path, _ in reference.values]:
        yield Row("result", mode, "failed", "another structure than NumPy's result")
        return
    tolerance = TOLERANCES[precision_of(reference.values + reference.finals)][0]
    for (path, got), (_, want) in zip(call.values, reference.values, strict=True):
        if mode != "eager" and is_array(got) != is_array(want):
            detail = f"a {type(got).__name__}, NumPy gives a {type(want).__name__}"
            yield Row(path, mode, "failed", detail)
        else:
            yield close(path, mode, got, want, tolerance)
    for (path, got), (_, want) in zip(call.finals, reference.finals, strict=True):
        yield close(f"final {path}", mode, got, want, tolerance)


def _alias_row(
    mode: Mode, got: frozenset[tuple[str, str]], want: frozenset[tuple[str, str]]
) -> Row:
    if got == want:
        return Row("aliasing", mode, "ok")
    wrong = [f"{a} must share memory with {b}" for a, b in sorted(want - got)]
    wrong += [f"{a} must not share memory with {b}" for a, b in sorted(got - want)]
    return Row("aliasing", mode, "failed", "; ".join(wrong))


# Time.


class _Timing:
    """One mode's value and gradient: its first run, its result, its fastest run."""

    def __init__(self, mode: Mode, call: Callable[[], Any]) -> None:
        self.mode = mode
        self.error: Exception | None = None
        self.result: Any = None
        self._call = call
        start = time.perf_counter()
        try:
            self.result = call()
        except Exception as error:
            self.error = error
        self.first = math.nan if self.error else time.perf_counter() - start

    def best(self) -> float:
        """Return the seconds of the fastest of a few runs, NaN if the first raised."""
        if self.error:
            return math.nan
        seconds: list[float] = []
        while len(seconds) < 2 or (sum(seconds) < BUDGET and len(seconds) < 1000):
            start = time.perf_counter()
            self._call()
            seconds.append(time.perf_counter() - start)
        return min(seconds)


def _prepare(
    program: Program,
    target: Callable[..., Any],
    reference: Call,
    device: str | None = None,
) -> Callable[[], Any]:
    """Return value and gradient as one call, made the way people make it.

    That is `value_and_grad` where the result is one number, else `vjp` with random
    weights, and a plain call where nothing can be differentiated. With a device, arrays
    are there, and the call is over when the device is done.
    """
    args = _moved(copy_apart(program.args), device)
    if not program.argnums:
        return _waiting(
            lambda: target(*_moved(copy_apart(program.args), device)), device
        )
    if _is_one_number(reference):
        both = rg.value_and_grad(target, argnums=program.argnums)
        return _waiting(lambda: both(*args), device)
    drawn = draw_cotangents(program, reference, np.random.default_rng(0))
    weights = _moved(drawn, device)

    def pull() -> Any:
        found = run_reverse(target, args, weights)
        return found.values, tuple(found.grads[i] for i in program.argnums)

    return pull  # its results are NumPy's


def _moved(tree: Any, device: str | None) -> Any:
    """Return a tree with its arrays on a device; the tree itself without one."""
    if device is None:
        return tree
    return rebuild(tree, lambda x: device_array(x, device) if is_array(x) else x)


def _waiting(call: Callable[[], Any], device: str | None) -> Callable[[], Any]:
    """Return a call that is over when the device is done."""
    if device is None:
        return call

    def finished() -> Any:
        result = call()
        find_device(device).synchronize()
        return result

    return finished


def _memory(program: Program, reference: Call, gradient: _Timing) -> Iterator[Memory]:
    """Yield the memory of the direct call, and of value and gradient."""
    args = copy_sharing(program.args)
    found = [measure("value", program.compiled, args, reference.value)]
    if program.argnums:
        args = copy_apart(program.args)
        if _is_one_number(reference):
            both = rg.value_and_grad(program.compiled, argnums=program.argnums)
            found.append(measure("gradient", both, args, gradient.result))
        else:
            back = getattr(program.compiled, "derived", {}).get(("vjp", True))
            weights = draw_cotangents(program, reference, np.random.default_rng(0))
            pull = (args, weights)
            found.append(measure("gradient", back, pull, gradient.result, counted=args))
    yield from (m for m in found if m is not None)


def _is_one_number(reference: Call) -> bool:
    results = [leaf for _, leaf in reference.values]
    return len(results) == 1 and is_float(results[0]) and np.ndim(results[0]) == 0


def _joint_rows(timings: Sequence[_Timing]) -> Iterator[Row]:
    """Check the results of the timed runs, which take a path of their own."""
    for timing in timings:
        if timing.error:
            yield Row(TIMED, timing.mode, "failed", describe(timing.error))
    eager, *others = timings
    for timing in others:
        if not (eager.error or timing.error):
            yield from _joint_rows_of(eager, timing)


def _joint_rows_of(eager: _Timing, other_timing: _Timing) -> Iterator[Row]:
    one, other = (
        list(leaves(rebuild(timing.result, to_numpy)))
        for timing in (eager, other_timing)
    )
    if [path for path, _ in one] != [path for path, _ in other]:
        yield Row(TIMED, "both", "failed", "the gradients differ in structure")
        return
    tolerance = TOLERANCES[precision_of(one)][1]
    for (path, want), (_, got) in zip(one, other, strict=True):
        if want is not None or got is not None:
            row = close(f"{TIMED}{path}", "both", got, want, tolerance)
            if row.status == "failed":
                yield row
