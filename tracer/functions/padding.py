"""Padding: constants, copies of what is there, and what is computed of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from .. import dispatch
from ..index import getitem
from ..order import ordered
from ..symbols import is_int
from .core import apply, asarray, implements, shape_of, unsupported
from .create import full
from .join import concatenate
from .quantiles import median
from .reduce import max, mean, min

_MODES = ("constant", "edge", "wrap", "reflect", "symmetric", "linear_ramp")
_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": max,
    "minimum": min,
    "mean": mean,
    "median": median,
}


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    x = asarray(array)
    widths = _pad_widths(pad_width, len(x.shape))
    if not isinstance(mode, str) or mode not in (*_MODES, *_STATISTICS):
        modes = ", ".join((*_MODES, *_STATISTICS))
        raise unsupported(f"pad: mode={mode!r}", f"there are rules for {modes}")
    values = kwargs.pop("constant_values", 0)
    ends = kwargs.pop("end_values", 0)
    if kwargs:
        raise unsupported(f"pad: {sorted(kwargs)}", "these arguments have no rule")
    if mode == "constant":
        return _pad_constant(x, widths, values)
    if mode in ("linear_ramp", *_STATISTICS) and x.dtype.kind != "f":
        raise unsupported(f"pad: mode={mode!r} of {x.dtype}", "the values are rounded")
    for k, (low, high) in enumerate(widths):
        if mode == "linear_ramp":
            before, after = _ramps(x, k, low, high, ends)
        elif mode in _STATISTICS:
            line = _STATISTICS[mode](x, k, keepdims=True)
            before, after = [line] * int(low), [line] * int(high)
        else:
            slices = _pad_slices(mode, low, high, x.shape[k])
            before, after = ([_along(x, k, p) for p in side] for side in slices)
        parts = [*before, x, *after]
        x = concatenate(parts, k) if len(parts) > 1 else x
    return ordered(apply("copy", x), "A", array)


def _along(x: Any, k: int, key: Any) -> Any:
    return getitem(x, (*(slice(None),) * k, key))


def _pad_widths(width: Any, ndim: int) -> list[tuple[Any, Any]]:
    if is_int(width):
        return [(width, width)] * ndim
    pairs = [tuple(p) if not is_int(p) else (p,) for p in width]
    if all(len(p) == 1 for p in pairs):
        flat = [p[0] for p in pairs]
        if len(flat) == 2 and all(map(is_int, width)):
            return [(flat[0], flat[1])] * ndim
        pairs = [(d, d) for d in flat]
    if len(pairs) == 1:
        pairs = pairs * ndim
    if len(pairs) != ndim:
        raise ShapeError(f"pad_width {width} does not fit {ndim} axes")
    return [(p[0], p[1]) for p in pairs]


def _pad_constant(x: Any, widths: list[tuple[Any, Any]], values: Any) -> Any:
    if isinstance(values, list | tuple) and shape_of(asarray(values)):
        return _pad_sides(x, widths, np.broadcast_to(values, (len(widths), 2)))
    if not isinstance(values, int | float | complex) and shape_of(asarray(values)):
        raise unsupported("pad: an array of constant_values", "a list or number has")
    shape = tuple(a + d + b for d, (a, b) in zip(x.shape, widths, strict=True))
    out = ordered(full(shape, values, x.dtype), "A", x)
    inner = tuple(slice(a, a + d) for d, (a, _) in zip(x.shape, widths, strict=True))
    dispatch.write(getitem(out, inner) if inner else out, x)
    return out


def _pad_sides(x: Any, widths: list[tuple[Any, Any]], values: Any) -> Any:
    """Pad with a constant for each side of each axis; the last axis has the corners."""
    given = x
    for k, sizes in enumerate(widths):
        low, high = (
            full((*x.shape[:k], size, *x.shape[k + 1 :]), value.item(), x.dtype)
            for size, value in zip(sizes, values[k], strict=True)
        )
        x = concatenate([low, x, high], k)
    return ordered(x, "A", given)


def _ramps(x: Any, k: int, low: Any, high: Any, ends: Any) -> tuple[list[Any], ...]:
    """Return lines that lead from end values to the edges of an axis."""
    if shape_of(asarray(ends)):
        raise unsupported("pad: end_values differ by side", "one value has a rule")

    def ramp(at: int, size: int) -> list[Any]:
        edge = _along(x, k, slice(at, at + 1))
        gap = apply("subtract", edge, ends)
        steps = (apply("multiply", gap, j / size) for j in range(size))
        return [apply("add", step, ends) for step in steps]

    return ramp(0, int(low)), ramp(x.shape[k] - 1, int(high))[::-1]


def _pad_slices(mode: str, low: Any, high: Any, n: Any) -> tuple[list[Any], list[Any]]:
    """Return the slices that go before and after along one axis."""
    if mode == "edge":
        return [slice(0, 1)] * int(low), [slice(n - 1, n)] * int(high)
    most = n - 1 if mode == "reflect" else n
    if low > most or high > most:
        raise unsupported(f"pad: mode={mode!r} wider than the array", "it repeats")
    if mode == "wrap":
        before = [slice(n - low, n)] if low != 0 else []
        return before, [slice(0, high)] if high != 0 else []
    first = 1 if mode == "reflect" else 0
    start = low + first - 1
    before = [slice(start, first - 1 if first else None, -1)] if low != 0 else []
    start, stop = n - 1 - first, n - 1 - first - high
    after = [slice(start, stop if stop >= 0 else None, -1)] if high != 0 else []
    return before, after
