"""NumPy ufuncs called on tensors: `np.sin(t)`, `np.add.at`, `out=`, `where=`.

The names of the functions are those of the ufunc methods; `__array_ufunc__` of Tensor
looks them up.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.errors import GradientBreakError, ShapeError, UnsupportedError
from ..ir.op import OPS, Op
from . import dispatch
from .convert import active_operators
from .devices import refuse_host
from .location import user_location
from .modes import STATE
from .tensor import Tensor, as_tensor, of, way_out

# What a ufunc's methods are in the namespace.
REDUCTIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}
SCANS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.cumsum,
    np.multiply: np.cumprod,
    np.maximum: np.maximum.accumulate,
    np.minimum: np.minimum.accumulate,
}
# `u.at` is `v.at` of the values mapped: subtract.at(x, i, v) is add.at(x, i, -v).
AS_ADDITION: dict[np.ufunc, Callable[[Any], Any]] = {
    np.add: operator.pos,
    np.subtract: operator.neg,
}


@functools.cache
def op_of(ufunc: np.ufunc) -> Op | None:
    """Return the op that a ufunc is, of NumPy or of SciPy."""
    special = sys.modules.get("scipy.special")
    if special is not None and getattr(special, ufunc.__name__, None) is ufunc:
        return OPS.get(ufunc.__name__)
    return next((op for op in OPS.values() if op.eager is ufunc), None)


@functools.cache
def functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table of NumPy functions, which is written in terms of Tensor."""
    module = importlib.import_module(".functions", __package__)
    table: dict[Callable[..., Any], Callable[..., Any]] = module.FUNCTIONS
    return table


def unsupported(ufunc: np.ufunc, what: str, hint: str = "") -> UnsupportedError:
    """Return the error for a use of a ufunc that tensors do not have."""
    home = "numpy." if getattr(np, ufunc.__name__, None) is ufunc else ""
    return UnsupportedError(
        f"{home}{ufunc.__name__}{what}: not supported on tensors",
        location=user_location(),
        hint=hint or way_out(()),
    )


def loses_gradient(operands: Sequence[Any]) -> bool:
    """Tell whether a result in a plain ndarray would lose a gradient."""
    return any(
        isinstance(x, Tensor) and (x.is_traced or (STATE.grad and x.requires_grad))
        for x in operands
    )


def _tensor(x: Any) -> Tensor:
    """Return an operand as a Tensor; a list is a constant where a trace is active."""
    if isinstance(x, list | tuple):
        x = importlib.import_module(".functions.core", __package__).asarray(x)
    return as_tensor(x)


def array_of(x: Any) -> Any:
    """Return the data of a Tensor; anything else as it is."""
    return x._data if isinstance(x, Tensor) else x


def check_plain_target(function: Any, operands: Sequence[Any]) -> None:
    """Raise where a plain ndarray would take what requires a gradient, or is not near.

    What is on a device is copied to the host by name only.
    """
    if loses_gradient(operands):
        raise GradientBreakError(
            f"{function.__name__.strip('_')}: a tensor that requires a gradient is "
            "written into a plain ndarray",
            location=user_location(),
            rule="an ndarray holds no gradient: it would be lost",
            hint="make the array a tensor (rg.tensor(a)), or .detach() the operand",
        )
    for x in operands:
        if isinstance(x, Tensor):
            refuse_host(x, function.__name__.strip("_"))


def call(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc elementwise."""
    op = op_of(ufunc)
    if op is not None and not kwargs:
        return dispatch.apply(op, inputs)
    kwargs = dict(kwargs)
    if ufunc.nout > 1:
        return _several(ufunc, inputs, kwargs)
    (out,) = kwargs.pop("out", None) or (None,)
    where = kwargs.pop("where", True)
    dtype = kwargs.pop("dtype", None)
    if out is not None and not isinstance(out, Tensor):
        check_plain_target(ufunc, inputs)
    if dtype is not None:
        inputs = [_tensor(x).astype(dtype, copy=False) for x in inputs]
    for name in kwargs:
        if name not in ("casting", "order", "subok"):
            raise unsupported(ufunc, f" with {name}=")
    if where is not True:
        return _masked(ufunc, inputs, out, where)
    if op is not None and out is None:
        return dispatch.apply(op, inputs)
    if op is not None and isinstance(out, Tensor):
        dispatch.apply_into(op, inputs, {}, out)
        return out
    return _into(
        out, _plain_call(ufunc, inputs) if op is None else dispatch.apply(op, inputs)
    )


def _several(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc of several results."""
    outs = kwargs.pop("out", None) or (None,) * ufunc.nout
    if not all(isinstance(x, Tensor | None) for x in outs):
        check_plain_target(ufunc, inputs)
    if kwargs.pop("where", True) is not True:
        raise unsupported(ufunc, " with where=")
    dtype = kwargs.pop("dtype", None)
    if dtype is not None:
        inputs = [_tensor(x).astype(dtype, copy=False) for x in inputs]
    results = _plain_call(ufunc, inputs)
    return tuple(_into(out, x) for out, x in zip(outs, results, strict=True))


def _plain_call(ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
    """Apply a ufunc that is no op: as a composition, or on plain values."""
    function = functions().get(ufunc)
    if function is not None:
        return function(*inputs)
    if loses_gradient(inputs):
        raise unsupported(ufunc, "")
    data = [x._data if isinstance(x, Tensor) else x for x in inputs]
    result = ufunc(*data)
    return tuple(map(of, result)) if isinstance(result, tuple) else of(result)


def _into(out: Any, result: Any) -> Any:
    """Put a result where `out=` says."""
    if out is None:
        return result
    if isinstance(out, Tensor):
        dispatch.write(out, result)
        return out
    np.copyto(out, result._data, casting="same_kind")
    return out


def _masked(ufunc: np.ufunc, inputs: Sequence[Any], out: Any, where: Any) -> Any:
    """Compute where a mask is true only, so that nothing else has a derivative."""
    tensors = [_tensor(x) for x in inputs]
    mask = _tensor(where)
    shapes = [t.shape for t in (*tensors, mask)]
    shape = np.broadcast_shapes(*shapes) if out is None else out.shape
    broadcast = functions()[np.broadcast_to]
    mask = broadcast(mask, shape) if mask.shape != shape else mask
    parts = [broadcast(t, shape)[mask] if t.shape else t for t in tensors]
    part = call(ufunc, parts, {})
    if out is None:
        out = dispatch.apply(OPS["full"], (0,), {"shape": shape, "dtype": part.dtype})
    if isinstance(out, Tensor):
        out[mask] = part
    else:
        out[mask._data] = part._data
    return out


def reduce(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Reduce along an axis: `np.add.reduce(x)` is a sum along the first axis."""
    function = REDUCTIONS.get(ufunc)
    kwargs = {"axis": 0, **kwargs}
    (out,) = kwargs.pop("out", None) or (None,)
    if out is not None and not isinstance(out, Tensor):
        check_plain_target(ufunc, inputs)
    if function is None:
        return _into(out, _last(ufunc, *inputs, **kwargs))
    return _into(out, functions()[function](*inputs, **kwargs))


def accumulate(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Reduce the leading parts of an axis: `np.add.accumulate(x)` is a cumsum."""
    function = SCANS.get(ufunc)
    kwargs = {"axis": 0, **kwargs}
    (out,) = kwargs.pop("out", None) or (None,)
    if out is not None and not isinstance(out, Tensor):
        check_plain_target(ufunc, inputs)
    if function is None:
        return _into(out, _one_after_the_other(ufunc, ".accumulate", *inputs, **kwargs))
    return _into(out, functions()[function](*inputs, **kwargs))


def _last(
    ufunc: np.ufunc, x: Any, axis: Any = 0, keepdims: bool = False, **more: Any
) -> Any:
    """Return what a ufunc that is no reduction of its own accumulates in the end."""
    x = _tensor(x)
    if axis is None and x.ndim == 1:
        axis = 0
    steps = _one_after_the_other(ufunc, ".reduce", x, axis, **more)
    last = functions()[np.take](steps, -1, axis=axis)
    return functions()[np.expand_dims](last, axis) if keepdims else last


def _one_after_the_other(
    ufunc: np.ufunc, method: str, x: Any, axis: Any = 0, **more: Any
) -> Any:
    """Accumulate along one axis, as a loop."""
    x = _tensor(x)
    given = [k for k, v in more.items() if v not in (None, np._NoValue, True)]
    if given or not isinstance(axis, int) or ufunc.nin != 2 or ufunc.nout != 1:
        raise unsupported(ufunc, f"{method} with {given or f'axis={axis!r}'}")
    lines = functions()[np.moveaxis](x, axis, 0)
    n = lines.shape[0]
    if n == 0:
        raise ShapeError(
            f"zero-size array to reduction operation {ufunc.__name__}",
            location=user_location(),
        )
    dtype = ufunc.resolve_dtypes((x.dtype, x.dtype, None))[-1]
    if dispatch.active_trace() is None:
        items = [_tensor(lines[0]).astype(dtype, copy=False)]
        for i in range(1, n):
            items.append(call(ufunc, (items[-1], lines[i]), {}))
        out = functions()[np.stack](items)
    else:
        attrs = {"shape": lines.shape, "dtype": dtype}
        out = dispatch.apply(OPS["full"], (0,), attrs)
        out[0] = lines[0]

        def step(i: Any) -> None:
            out[i + 1] = call(ufunc, (out[i], lines[i + 1]), {})

        active_operators().each(n - 1, step)
    return functions()[np.moveaxis](out, 0, axis)


def outer(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc to every pair of elements."""
    x, y = map(_tensor, inputs)
    if y.ndim:
        axes = tuple(range(x.ndim, x.ndim + y.ndim))
        x = dispatch.apply(OPS["expand_dims"], (x,), {"axis": axes})
    return call(ufunc, (x, y), kwargs)


def reduceat(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Reduce slices that begin at indices, which must be known."""
    x, indices, *rest = inputs
    kwargs = dict(kwargs)
    (out,) = kwargs.pop("out", None) or (None,)
    axis = kwargs.pop("axis", 0)
    x = _tensor(x)
    if rest or kwargs.pop("dtype", None) is not None or kwargs:
        raise unsupported(ufunc, ".reduceat with more than indices and an axis")
    starts = [int(k) for k in indices]
    lines = functions()[np.moveaxis](x, axis, 0)
    n = lines.shape[0]
    parts = []
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        part = lines[start:stop] if start < stop else lines[start : start + 1]
        parts.append(reduce(ufunc, (part,), {}))
    found = functions()[np.moveaxis](functions()[np.stack](parts), 0, axis)
    return _into(out, found)


def at(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Apply a ufunc in place at indices, every occurrence of an index by itself."""
    x, key, *values = inputs
    if not isinstance(x, Tensor):
        check_plain_target(ufunc, values)
        ufunc.at(x, *(v._data if isinstance(v, Tensor) else v for v in inputs[1:]))
        return
    keys = key if isinstance(key, tuple) else (key,)
    arrays = [_index_array(k) for k in keys]
    if any(a is None for a in arrays):
        if not any(isinstance(k, list | np.ndarray | Tensor) for k in keys):
            x[key] = call(ufunc, (x[key], *values), {})  # no index occurs twice
            return
        arrays = _places(x, key)
    if ufunc in AS_ADDITION and values:
        new = AS_ADDITION[ufunc](_tensor(values[0]))
        attrs = {"axes": tuple(range(len(arrays))), "position": 0}
        operands = (x, new, *arrays)
        dispatch.apply_into(OPS["gather_scatter_add"], operands, attrs, x)
    else:
        _one_by_one(ufunc, x, arrays, values)


def _places(x: Tensor, key: Any) -> list[Any]:
    """Return index arrays for all axes that select what a key selects."""
    numbers = dispatch.apply(OPS["arange"], (), {"size": math.prod(x.shape)})
    found = functions()[np.reshape](numbers, x.shape)[key]
    return list(functions()[np.unravel_index](found, x.shape))


def _index_array(key: Any) -> Any:
    """Return an integer array (or tensor) to index one axis with, or None."""
    if isinstance(key, list) or (isinstance(key, int) and not isinstance(key, bool)):
        key = importlib.import_module(".values", __package__).constant(np.asarray(key))
    is_array = isinstance(key, Tensor | np.ndarray | np.integer)
    return key if is_array and key.dtype.kind in "iu" else None


def _one_by_one(ufunc: np.ufunc, x: Tensor, keys: Any, values: Sequence[Any]) -> None:
    """Apply a ufunc at one index after the other."""
    shapes = importlib.import_module(".functions.shapes", __package__)
    tensors = [_tensor(k) for k in keys]
    shape = shapes.broadcast_shape(*(k.shape for k in tensors))
    count, rest = math.prod(shape), x.shape[len(keys) :]

    def rows(t: Tensor, *more: Any) -> Tensor:
        full = functions()[np.broadcast_to](t, (*shape, *more))
        lines: Tensor = full.reshape((count, *more))
        return lines

    places = [rows(k) for k in tensors]
    operands = [rows(_tensor(v), *rest) for v in values]

    def step(i: Any) -> None:
        target = (*(p[i] for p in places), ...)
        old = dispatch.apply(OPS["copy"], (x[target],))  # to be overwritten
        x[target] = call(ufunc, (old, *(v[i, ...] for v in operands)), {})

    active_operators().each(count, step)
