"""NumPy's indexing rules in terms of ops.

`getitem` and `setitem` serve eager and traced Tensors alike: they only compose ops.
Basic keys become a chain of view ops; index arrays become `gather` and
`gather_scatter`, masks `mask_select`, `mask_scatter` and `where`. Every error is raised
before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.errors import (
    DTypeError,
    IndexRangeError,
    RetrogradeError,
    ShapeError,
)
from ..ir.op import OPS
from . import dispatch
from .keys import (
    Plan,
    apply,
    as_index_array,
    broadcast_index,
    in_range,
    is_array,
    is_literal,
    is_one,
    plan,
    same,
    show,
    simple_view,
)
from .location import user_location
from .symbols import SymInt, is_int
from .values import concrete, constant, is_scalar, is_symbolic

_ITEM = OPS["item"]


def getitem(x: Any, key: Any) -> Any:
    """Return x[key]: a view for basic keys, a copy for index arrays and masks."""
    try:
        return _getitem(x, key)
    except RetrogradeError as error:
        raise _located(error) from None


def setitem(x: Any, key: Any, value: Any) -> None:
    """Do x[key] = value, with NumPy's casting and broadcasting."""
    try:
        dispatch.refuse_complex(x, value)
        _setitem(x, key, value)
    except RetrogradeError as error:
        raise _located(error) from None


def _located(error: RetrogradeError) -> RetrogradeError:
    if error.location is None:
        error.location = user_location()
    return error


def _getitem(x: Any, key: Any) -> Any:
    view = simple_view(x, key)
    if view is not None:
        if not view.shape:
            return dispatch.apply(_ITEM, (view,))
        return alias(x) if view is x else view
    if is_scalar(x) and is_int(key):
        raise IndexRangeError("invalid index to scalar variable.")
    p = plan(x.shape, key)
    part = p.view(x)
    if p.mask is not None:
        return _masked(part, p.mask, p.mask_axis)
    if p.arrays:
        arrays = in_range(p, broadcast_index(p.arrays))
        return apply("gather", part, *arrays, axes=tuple(p.axes), position=p.position)
    if p.scalar:
        return apply("item", part)
    if p.copies or (part is x and is_scalar(x)):
        return apply("copy", part)
    return alias(part) if part is x else part


def alias(x: Any) -> Any:
    """Return a view of all of `x`."""
    if not x.shape:
        return apply("transpose", x, axes=())
    return apply("slice", x, 0, axis=0, size=x.shape[0], step=1)


def _mask_first(x: Any, mask: Any, axis: int) -> Any:
    """Return a view of `x` with the axes of the mask in front."""
    covered = range(axis, axis + len(mask.shape))
    rest = (k for k in range(len(x.shape)) if k not in covered)
    return apply("transpose", x, axes=(*covered, *rest)) if axis else x


def _masked(x: Any, mask: Any, axis: int) -> Any:
    part = _mask_first(x, mask, axis)
    out = apply("mask_select", part, mask, count=count_of(mask))
    if not axis:
        return out
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(out.shape)))
    return apply("transpose", out, axes=order)


def count_of(mask: Any) -> Any:
    """Return how many elements a mask selects, or None where that is computed."""
    values = concrete(mask)
    return None if values is None else int(np.count_nonzero(values))


# ---------------------------------------------------------------- writing


def _setitem(x: Any, key: Any, value: Any) -> None:
    if is_scalar(x):
        raise DTypeError(f"'{x.type}' object does not support item assignment")
    value = as_value(value)
    view = simple_view(x, key)
    if view is not None:
        if not view.shape and _shape(value):
            raise ShapeError("setting an array element with a sequence.")
        dispatch.write(view, _fitted(value, view.shape), kind="unsafe")
        return
    p = plan(x.shape, key)
    if _is_full_mask(x, key) and len(_shape(value)) > 1:
        raise DTypeError(
            "NumPy boolean array indexing assignment requires a 0 or 1-dimensional "
            f"input, input has {len(_shape(value))} dimensions"
        )
    target = p.view(x)
    if p.mask is not None:
        _write_masked(target, p.mask, p.mask_axis, value)
    elif p.arrays:
        _write_gathered(target, p, value)
    else:
        if p.scalar and _shape(value):
            raise ShapeError("setting an array element with a sequence.")
        dispatch.write(target, _fitted(value, target.shape), kind="unsafe")


def _is_full_mask(x: Any, key: Any) -> bool:
    """Tell whether a key is one mask for all axes and nothing else."""
    if isinstance(key, tuple) and len(key) == 1:
        (key,) = key
    if isinstance(key, list):
        key = as_index_array(key)
    if isinstance(key, bool):
        return not x.shape
    is_mask = is_array(key) and key.dtype == np.bool_
    return is_mask and len(key.shape) == len(x.shape)


def as_value(value: Any) -> Any:
    """Return what is assigned as a Tensor, array or number."""
    if isinstance(value, SymInt):
        return apply("full", value, shape=(), dtype=np.dtype(np.int64))
    if isinstance(value, list | tuple):
        if is_symbolic(value):
            from .functions.create import array

            return array(value)
        fixed = np.asarray(value)
        return fixed if _has_array(value) else constant(fixed)
    return value


def _has_array(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return any(map(_has_array, x))
    return isinstance(x, np.ndarray)


def _shape(x: Any) -> tuple[Any, ...]:
    return tuple(getattr(x, "shape", ()))


def _fits(have: Sequence[Any], want: Sequence[Any]) -> bool:
    pairs = zip(reversed(have), reversed(want), strict=False)
    return len(have) <= len(want) and all(
        d is w or is_one(d) or d == w for d, w in pairs
    )


def _without_leading_ones(value: Any, ndim: int) -> Any:
    """Drop leading axes of size 1 that the target does not have."""
    shape = _shape(value)
    extra = len(shape) - ndim
    if extra > 0 and all(map(is_one, shape[:extra])):
        return apply("squeeze", value, axis=tuple(range(extra)))
    return value


def _fitted(value: Any, shape: Sequence[Any]) -> Any:
    if not hasattr(value, "shape"):
        return value
    fitted = _without_leading_ones(value, len(shape))
    if not _fits(_shape(fitted), shape):
        raise ShapeError(
            f"could not broadcast input array from shape {show(_shape(value))} "
            f"into shape {show(shape)}"
        )
    return fitted


def _cast(value: Any, target: Any) -> Any:
    """Return `value` in the dtype of the target, as assignments cast."""
    if getattr(value, "dtype", None) == target.dtype:
        return value
    if isinstance(value, int | float | complex | bool | np.generic):
        return np.asarray(value).astype(target.dtype)[()]
    return apply("astype", value, dtype=target.dtype)


def _write_gathered(target: Any, p: Plan, value: Any) -> None:
    inner = broadcast_index(p.arrays)
    rest = [d for n, d in enumerate(target.shape) if n not in p.axes]
    want = (*rest[: p.position], *inner, *rest[p.position :])
    fitted = _without_leading_ones(value, len(want))
    if not _fits(_shape(fitted), want):
        raise _mismatch(value, want)
    arrays = in_range(p, inner)
    operands = (target, _cast(fitted, target), *arrays)
    attrs = {"axes": tuple(p.axes), "position": p.position}
    dispatch.apply_into(OPS["gather_scatter"], operands, attrs, target)


def _mismatch(value: Any, want: Sequence[Any]) -> ShapeError:
    return ShapeError(
        f"shape mismatch: value array of shape {show(_shape(value))} could not be "
        f"broadcast to indexing result of shape {show(want)}"
    )


def _write_masked(target: Any, mask: Any, axis: int, value: Any) -> None:
    covered = len(mask.shape)
    count = count_of(mask)
    value = _selected_first(value, axis, covered, target.shape, count)
    target = _mask_first(target, mask, axis)
    rest = tuple(target.shape[covered:])
    have = _shape(value)
    if len(have) <= len(rest) or (is_literal(have[0], 1) and not same(count, 1)):
        # every selected element gets the same value
        if len(have) > len(rest):
            value = apply("squeeze", value, axis=(0,))
        if rest:
            after = tuple(range(covered, covered + len(rest)))
            mask = apply("expand_dims", mask, axis=after)
        operands = (mask, _cast(value, target), target)
        dispatch.apply_into(OPS["where"], operands, {}, target)
        return
    if not _same_sizes(have[1:], rest):
        value = apply("broadcast_to", value, shape=(have[0], *rest))
    operands = (target, _cast(value, target), mask)
    dispatch.apply_into(OPS["mask_scatter"], operands, {}, target)


def _same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def _selected_first(
    value: Any, axis: int, covered: int, shape: Sequence[Any], count: Any
) -> Any:
    """Check the value of a masked write; return it with the selected axis in front."""
    if not _shape(value):
        return value
    before, after = tuple(shape[:axis]), tuple(shape[axis + covered :])
    ndim = len(before) + 1 + len(after)
    fitted = _without_leading_ones(value, ndim)
    have = _shape(fitted)
    selected = len(have) - 1 - len(after)  # where the selected axis is in the value
    size = have[selected] if selected >= 0 else 1
    wrong = count is not None and not is_literal(size, 1) and size != count
    if wrong and ndim == 1:
        raise ShapeError(
            f"NumPy boolean array indexing assignment cannot assign {size} input "
            f"values to the {count} output values where the mask is true"
        )
    others = [d for k, d in enumerate(have) if k != selected]
    if wrong or not _fits(others, (*before, *after)):
        raise _mismatch(value, (*before, "n" if count is None else count, *after))
    if selected > 0:
        order = (selected, *(k for k in range(len(have)) if k != selected))
        fitted = apply("transpose", fitted, axes=order)
    if 0 <= selected < axis:
        missing = tuple(range(1, 1 + axis - selected))
        fitted = apply("expand_dims", fitted, axis=missing)
    return fitted
