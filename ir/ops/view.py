"""Views and their pure twins.

A view `v` reads part of an array in place. `v_scatter(x, new)` is `x` with that part
replaced, `v_scatter_add(x, new)` is `x` with `new` added to it; where an element
appears twice in the view, the last write wins and every addition counts. `new`
broadcasts to the shape of the view. Indices are in range and not negative, unless they
are values computed at run time: those wrap and are checked, as NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..dims import Dim
from ..errors import IndexRangeError, ShapeError
from ..op import Kind, Sample, Step, Vjp, Zero, define
from ..types import Shape, Type, broadcast_shapes, same_shape, show_shape
from .batch_views import (
    broadcast_batch,
    diagonal_batch,
    expand_batch,
    flip_batch,
    reshape_batch,
    select_batch,
    slice_batch,
    squeeze_batch,
    transpose_batch,
)

Axes = tuple[int, ...]
Samples = Callable[["np.random.Generator"], Iterator[Sample]]  # not yet imported


def view(
    name: str,
    *,
    shape: Callable[..., Shape],
    eager: Callable[..., Any],
    index_map: Callable[..., Sequence[Dim]],
    samples: Samples,
    indices: tuple[str, ...] = (),
    inverse: Callable[..., Any] | None = None,
    overlapping: bool = False,
    decides_layout: bool = False,
    steps: Callable[..., Sequence[Step]] | None = None,
    batch: Callable[..., Any] | None = None,
    zero: Zero | None = None,
) -> None:
    """Define a view op with its scatter and scatter_add twins.

    `shape(x, *indices, **attrs)` is the shape rule, `eager` must return a real NumPy
    view, `inverse(b, new, x, **attrs)` undoes a view that keeps every element; where an
    element appears several times in the view, it adds them up. With `zero` it has no
    derivative, and what is written through it leaves that of the base alone.
    """
    operands = ("x", *indices)

    def infer(x: Type, *rest: Any, **attrs: Any) -> Type:
        return Type(x.dtype, shape(x, *rest, **attrs))

    def vjp(b: Builder, ct: Any, out: Any, x: Any, *rest: Any, **attrs: Any) -> Any:
        if inverse is not None:
            return inverse(b, ct, x, **attrs)
        scatter_add = getattr(b, f"{name}_scatter_add")
        return scatter_add(b.zeros_like(x), ct, *rest, **attrs)

    index_rules = tuple(Vjp(_no_cotangent) for _ in indices)
    in_x = _for_variadic(vjp) if _is_variadic(indices) else vjp
    define(
        name=name,
        kind=Kind.VIEW,
        operands=operands,
        infer=infer,
        eager=eager,
        derivatives=(zero or Vjp(in_x, indices), *index_rules),
        lower=None,
        samples=samples,
        views=0,
        scatter=f"{name}_scatter",
        scatter_add=f"{name}_scatter_add",
        index_map=index_map,
        overlapping=overlapping,
        decides_layout=decides_layout,
        steps=steps,
        batch=batch,
    )
    for accumulates in (False, True):
        kind = (overlapping, accumulates, zero)
        _twin(name, shape, eager, samples, indices, inverse, *kind)


def _no_cotangent(b: Builder, *args: Any, **attrs: Any) -> None:
    return None


def _is_variadic(indices: tuple[str, ...]) -> bool:
    return bool(indices) and indices[-1].startswith("*")


def _for_variadic(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that is also told the position of its operand, and ignores it."""

    def told(b: Builder, position: int, *args: Any, **attrs: Any) -> Any:
        return rule(b, *args, **attrs)

    return told


def _twin(
    name: str,
    shape: Callable[..., Shape],
    eager: Callable[..., Any],
    samples: Samples,
    indices: tuple[str, ...],
    inverse: Callable[..., Any] | None,
    overlapping: bool,
    accumulates: bool,
    zero: Zero | None,
) -> None:
    full_name = f"{name}_scatter_add" if accumulates else f"{name}_scatter"

    def infer(x: Type, new: Type, *rest: Any, **attrs: Any) -> Type:
        part = shape(x, *rest, **attrs)
        if not same_shape(broadcast_shapes(part, new.shape), part):
            raise ShapeError(
                f"{full_name}: {new} does not fit the part {show_shape(part)} of {x}"
            )
        return x.array()

    def run(x: Any, new: Any, *rest: Any, **attrs: Any) -> Any:
        out = np.array(x, copy=True, order="C")
        if not overlapping:
            part = eager(out, *rest, **attrs)
            if np.may_share_memory(part, out):
                part[...] = part + new if accumulates else new
                return out
        where = eager(np.arange(out.size).reshape(out.shape), *rest, **attrs)
        flat, values = out.reshape(-1), np.broadcast_to(new, where.shape)
        if accumulates:
            np.add.at(flat, where.ravel(), values.ravel())
        else:
            flat[where.ravel()] = values.ravel()
        return out

    def in_base(
        b: Builder, ct: Any, out: Any, x: Any, new: Any, *r: Any, **a: Any
    ) -> Any:
        keeps = accumulates or zero is not None
        return ct if keeps else getattr(b, full_name)(ct, 0, *r, **a)

    def in_new(
        b: Builder, ct: Any, out: Any, x: Any, new: Any, *r: Any, **a: Any
    ) -> Any:
        part = getattr(b, name)(ct, *r, **a)
        if overlapping and not accumulates:
            part = b.where(_last_writes(b, name, x, *r, **a), part, 0)
        return b.unbroadcast(part, new)

    def decomposed(b: Builder, x: Any, new: Any, **attrs: Any) -> Any:
        assert inverse is not None
        part = shape(b.type_of(x), **attrs)
        if b.shape(new) != part:
            new = b.broadcast_to(new, shape=part)
        whole = b.cast(inverse(b, new, x, **attrs), b.type_of(x))
        return b.add(x, whole) if accumulates else whole

    def twin_samples(rng: np.random.Generator) -> Iterator[Sample]:
        for s in samples(rng):
            x, *rest = s.args
            part = eager(x, *rest, **s.attrs)
            new = np.asarray(rng.normal(size=part.shape), x.dtype)
            yield Sample((x, new, *rest), s.attrs, s.differentiable)
            yield Sample((x, 1.5, *rest), s.attrs, s.differentiable)

    index_rules = tuple(Vjp(_no_cotangent) for _ in indices)
    rules: tuple[Callable[..., Any], ...] = (in_base, in_new)
    if _is_variadic(indices):
        rules = tuple(map(_for_variadic, rules))
    define(
        name=full_name,
        kind=Kind.SCATTER,
        operands=("x", "new", *indices),
        infer=infer,
        eager=run,
        derivatives=(
            Vjp(rules[0], () if accumulates else indices),
            zero or Vjp(rules[1], indices),
            *index_rules,
        ),
        lower=None,
        samples=twin_samples,
        of=name,
        accumulates=accumulates,
        decompose=decomposed if inverse is not None and not overlapping else None,
        overlapping=overlapping,
    )


def _last_writes(b: Builder, name: str, x: Any, *rest: Any, **attrs: Any) -> Any:
    """Tell which elements of an overlapping view keep what was written to them."""
    part = getattr(b, name)(b.zeros_like(x), *rest, **attrs)
    shape = b.shape(part)
    order = b.reshape(b.arange(size=dims.product(shape)), shape=shape)
    blank = b.full(-1, shape=b.shape(x), dtype=b.type_of(order).dtype)
    written = getattr(b, f"{name}_scatter")(blank, order, *rest, **attrs)
    return b.equal(getattr(b, name)(written, *rest, **attrs), order)


# ---------------------------------------------------------------- select and slice


def _select_shape(x: Type, index: Any, *, axis: int) -> Shape:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"select: {x} has no axis {axis}")
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def _select(x: Any, index: Any, *, axis: int) -> Any:
    return x[(slice(None),) * axis + (int(index), ...)]


def _select_map(index: Sequence[Dim], x: Type, at: Dim, *, axis: int) -> Sequence[Dim]:
    return (*index[:axis], at, *index[axis:])


def _select_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(3, 4))
    yield Sample((x, 0), {"axis": 0})
    yield Sample((x, 3), {"axis": 1})
    yield Sample((x, np.int64(-1)), {"axis": 1})
    yield Sample((x.T, 1), {"axis": 0})
    yield Sample((rng.normal(size=(3,)), 2), {"axis": 0})
    yield Sample((rng.normal(size=(2, 0)), 1), {"axis": 0})


view(
    "select",
    shape=_select_shape,
    eager=_select,
    index_map=_select_map,
    samples=_select_samples,
    indices=("index",),
    batch=select_batch,
)


def _slice_shape(x: Type, start: Any, *, axis: int, size: Dim, step: Dim = 1) -> Shape:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"slice: {x} has no axis {axis}")
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


def _slice(x: Any, start: Any, *, axis: int, size: int, step: int = 1) -> Any:
    """Return `size` elements from `start` on, `step` apart; all must be in range."""
    start = int(start)
    last = start + (size - 1) * step
    n = x.shape[axis]
    if size and not (0 <= start < n and 0 <= last < n):
        raise IndexRangeError(
            f"slice: elements {start} to {last} are outside axis {axis} of size {n}"
        )
    stop: int | None = start + size * step
    if step < 0 and stop is not None and stop < 0:
        stop = None
    if not size:
        start, stop, step = 0, 0, 1
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _slice_map(
    index: Sequence[Dim], x: Type, start: Dim, *, axis: int, size: Dim, step: Dim = 1
) -> Sequence[Dim]:
    at = dims.add(start, dims.mul(index[axis], step))
    return (*index[:axis], at, *index[axis + 1 :])


def _slice_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(5, 4))
    yield Sample((x, 1), {"axis": 0, "size": 3, "step": 1})
    yield Sample((x, 0), {"axis": 1, "size": 2, "step": 2})
    yield Sample((x, 4), {"axis": 0, "size": 5, "step": -1})
    yield Sample((x.T, 3), {"axis": 0, "size": 2, "step": -2})
    yield Sample((x, 2), {"axis": 0, "size": 0, "step": 1})
    yield Sample((x, np.int64(1)), {"axis": 1, "size": 2, "step": 1})


view(
    "slice",
    shape=_slice_shape,
    eager=_slice,
    index_map=_slice_map,
    samples=_slice_samples,
    indices=("start",),
    batch=slice_batch,
)

# ---------------------------------------------------------------- bijections


def _detached_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 2), (), (0,)):
        yield Sample((rng.normal(size=shape),), {}, differentiable=False)


view(
    "detached",  # another name for an array, of which no derivative is taken
    shape=lambda x: x.shape,
    eager=lambda x: np.asarray(x)[...],
    index_map=lambda index, x: index,
    samples=_detached_samples,
    inverse=lambda b, new, x: new,
    zero=Zero("the value was detached"),
)


def _transpose_shape(x: Type, *, axes: tuple[int, ...]) -> Shape:
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"transpose: {axes} is not an order of the axes of {x}")
    return tuple(x.shape[k] for k in axes)


def _transpose_map(
    index: Sequence[Dim], x: Type, *, axes: tuple[int, ...]
) -> Sequence[Dim]:
    return tuple(index[axes.index(k)] for k in range(len(axes)))


def _transpose_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(2, 3, 4))
    yield Sample((x,), {"axes": (2, 0, 1)})
    yield Sample((x,), {"axes": (0, 1, 2)})
    yield Sample((rng.normal(size=()),), {"axes": ()})
    yield Sample((rng.normal(size=(0, 3)),), {"axes": (1, 0)})


def _untranspose(b: Builder, new: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    return b.transpose(new, axes=tuple(axes.index(k) for k in range(len(axes))))


view(
    "transpose",
    shape=_transpose_shape,
    eager=lambda x, axes: np.transpose(x, axes),
    index_map=_transpose_map,
    samples=_transpose_samples,
    inverse=_untranspose,
    batch=transpose_batch,
)


def _reshape_shape(x: Type, *, shape: Shape) -> Shape:
    if not dims.same(x.size, dims.product(shape)):
        raise ShapeError(
            f"reshape: {x} has {x.size} elements, {show_shape(shape)} has "
            f"{dims.product(shape)}"
        )
    return tuple(shape)


def linear_index(index: Sequence[Dim], shape: Shape) -> Dim:
    """Return the position of `index` in an array of that shape in C order."""
    flat: Dim = 0
    for i, d in zip(index, shape, strict=True):
        flat = dims.add(dims.mul(flat, d), i)
    return flat


def index_of(flat: Dim, shape: Shape) -> tuple[Dim, ...]:
    """Return the index at a position in C order; undoes `linear_index`.

    An array without elements has no position; what is returned for it is never used.
    """
    if 0 in shape:
        return (0,) * len(shape)
    out: list[Dim] = []
    for d in reversed(shape[1:]):
        quotient = dims.floordiv(flat, d)
        out.append(dims.add(flat, dims.mul(dims.mul(quotient, d), -1)))
        flat = quotient
    return (flat, *reversed(out)) if shape else ()


def _reshape_map(index: Sequence[Dim], x: Type, *, shape: Shape) -> Sequence[Dim]:
    return index_of(linear_index(index, shape), x.shape)


def _reshape_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(2, 6))
    yield Sample((x,), {"shape": (3, 4)})
    yield Sample((x,), {"shape": (12,)})
    yield Sample((x,), {"shape": (2, 1, 6)})
    yield Sample((rng.normal(size=(1,)),), {"shape": ()})
    yield Sample((rng.normal(size=()),), {"shape": (1, 1)})
    yield Sample((rng.normal(size=(0, 3)),), {"shape": (3, 0)})


def _unreshape(b: Builder, new: Any, x: Any, *, shape: Shape) -> Any:
    return b.reshape(new, shape=b.shape(x))


view(
    "reshape",
    shape=_reshape_shape,
    eager=lambda x, shape: np.reshape(x, shape),
    index_map=_reshape_map,
    samples=_reshape_samples,
    inverse=_unreshape,
    decides_layout=True,
    batch=reshape_batch,
)


def _squeeze_shape(x: Type, *, axis: tuple[int, ...]) -> Shape:
    for k in axis:
        if not dims.same(x.shape[k], 1):
            raise ShapeError(f"squeeze: axis {k} of {x} does not have size 1")
    return tuple(d for k, d in enumerate(x.shape) if k not in axis)


def _expand_shape(x: Type, *, axis: tuple[int, ...]) -> Shape:
    ndim = x.ndim + len(axis)
    if len(set(axis)) != len(axis) or not all(0 <= k < ndim for k in axis):
        raise ShapeError(f"expand_dims: axes {axis} do not fit {x}")
    rest = iter(x.shape)
    return tuple(1 if k in axis else next(rest) for k in range(ndim))


def _squeeze_map(
    index: Sequence[Dim], x: Type, *, axis: tuple[int, ...]
) -> Sequence[Dim]:
    rest = iter(index)
    return tuple(0 if k in axis else next(rest) for k in range(x.ndim))


def _expand_map(
    index: Sequence[Dim], x: Type, *, axis: tuple[int, ...]
) -> Sequence[Dim]:
    return tuple(i for k, i in enumerate(index) if k not in axis)


def _squeeze_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.normal(size=(1, 3, 1)),), {"axis": (0, 2)})
    yield Sample((rng.normal(size=(1, 3, 1)),), {"axis": (2,)})
    yield Sample((rng.normal(size=(1,)),), {"axis": (0,)})


def _expand_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.normal(size=(3, 2)),), {"axis": (0, 2)})
    yield Sample((rng.normal(size=()),), {"axis": (0,)})
    yield Sample((rng.normal(size=(3,)),), {"axis": (1,)})


view(
    "squeeze",
    shape=_squeeze_shape,
    eager=lambda x, axis: np.squeeze(x, axis),
    index_map=_squeeze_map,
    samples=_squeeze_samples,
    inverse=lambda b, new, x, axis: b.expand_dims(new, axis=axis),
    batch=squeeze_batch,
)
view(
    "expand_dims",
    shape=_expand_shape,
    eager=lambda x, axis: np.expand_dims(np.asarray(x), axis),
    index_map=_expand_map,
    samples=_expand_samples,
    inverse=lambda b, new, x, axis: b.squeeze(new, axis=axis),
    batch=expand_batch,
)


def _flip_map(index: Sequence[Dim], x: Type, *, axis: tuple[int, ...]) -> Sequence[Dim]:
    return tuple(
        dims.add(dims.add(x.shape[k], -1), dims.mul(i, -1)) if k in axis else i
        for k, i in enumerate(index)
    )


def _flip_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.normal(size=(3, 2)),), {"axis": (0,)})
    yield Sample((rng.normal(size=(3, 2)),), {"axis": (0, 1)})
    yield Sample((rng.normal(size=(0,)),), {"axis": (0,)})


view(
    "flip",
    shape=lambda x, axis: x.shape,
    eager=lambda x, axis: np.flip(x, axis),
    index_map=_flip_map,
    samples=_flip_samples,
    inverse=lambda b, new, x, axis: b.flip(new, axis=axis),
    batch=flip_batch,
)

# ---------------------------------------------------------------- diagonal, broadcast


def _diagonal_shape(
    x: Type, *, offset: int = 0, axis1: int = 0, axis2: int = 1, size: Dim
) -> Shape:
    rest = tuple(d for k, d in enumerate(x.shape) if k not in (axis1, axis2))
    return (*rest, size)


def _diagonal(
    x: Any, *, offset: int = 0, axis1: int = 0, axis2: int = 1, size: int
) -> Any:
    out = np.diagonal(x, offset, axis1, axis2)
    out.flags.writeable = x.flags.writeable
    return out


def _diagonal_map(
    index: Sequence[Dim],
    x: Type,
    *,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    size: Dim,
) -> Sequence[Dim]:
    rest = iter(index[:-1])
    along = index[-1]
    at = {
        axis1: dims.add(along, max(-offset, 0)),
        axis2: dims.add(along, max(offset, 0)),
    }
    return tuple(at[k] if k in at else next(rest) for k in range(x.ndim))


def _diagonal_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(3, 4))
    yield Sample((x,), {"offset": 0, "axis1": 0, "axis2": 1, "size": 3})
    yield Sample((x,), {"offset": 1, "axis1": 0, "axis2": 1, "size": 3})
    yield Sample((x,), {"offset": -2, "axis1": 1, "axis2": 0, "size": 2})
    y = rng.normal(size=(2, 3, 3))
    yield Sample((y,), {"offset": 0, "axis1": 1, "axis2": 2, "size": 3})


view(
    "diagonal",
    shape=_diagonal_shape,
    eager=_diagonal,
    index_map=_diagonal_map,
    samples=_diagonal_samples,
    batch=diagonal_batch,
)


def _broadcast_shape(x: Type, *, shape: Shape) -> Shape:
    if not same_shape(broadcast_shapes(x.shape, shape), shape):
        raise ShapeError(f"broadcast_to: {x} does not broadcast to {show_shape(shape)}")
    return tuple(shape)


def _broadcast_map(index: Sequence[Dim], x: Type, *, shape: Shape) -> Sequence[Dim]:
    extra = len(shape) - x.ndim
    return tuple(
        0 if d == 1 and shape[extra + k] != 1 else index[extra + k]
        for k, d in enumerate(x.shape)
    )


def _broadcast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.normal(size=(3,)),), {"shape": (2, 3)})
    yield Sample((rng.normal(size=(2, 1)),), {"shape": (2, 3)})
    yield Sample((rng.normal(size=()),), {"shape": (2,)})
    yield Sample((rng.normal(size=(1, 3)),), {"shape": (0, 3)})
    yield Sample((rng.normal(size=(2, 3)),), {"shape": (2, 3)})


view(
    "broadcast_to",
    shape=_broadcast_shape,
    eager=lambda x, shape: np.broadcast_to(x, shape),
    index_map=_broadcast_map,
    samples=_broadcast_samples,
    inverse=lambda b, new, x, shape: b.unbroadcast(new, x),
    overlapping=True,
    batch=broadcast_batch,
)

# ---------------------------------------------------------------- as_strided


def _as_strided(
    x: Any, *, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Any:
    """View a C-contiguous array by strides and an offset in elements."""
    reach = [offset, offset]
    for d, s in zip(shape, strides, strict=True):
        reach[s > 0] += (d - 1) * s
    if math.prod(shape) and not (0 <= reach[0] and reach[1] < x.size):
        raise IndexRangeError(
            f"as_strided: elements {reach[0]} to {reach[1]} are outside the "
            f"{x.size} elements of the base"
        )
    flat = np.ascontiguousarray(x).reshape(-1)  # also of a broadcast array
    item = flat.itemsize
    return np.lib.stride_tricks.as_strided(
        flat[offset:] if math.prod(shape) else flat[:0],
        shape,
        tuple(s * item for s in strides),
        writeable=x.flags.writeable and x.flags.c_contiguous,  # never lose a write
    )


def _as_strided_map(
    index: Sequence[Dim], x: Type, *, shape: Shape, strides: Shape, offset: Dim
) -> Sequence[Dim]:
    flat = offset
    for i, s in zip(index, strides, strict=True):
        flat = dims.add(flat, dims.mul(i, s))
    return index_of(flat, x.shape)


def _as_strided_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(8,))
    yield Sample((x,), {"shape": (3, 2), "strides": (2, 1), "offset": 1})
    yield Sample((x,), {"shape": (3, 2), "strides": (1, 1), "offset": 0})
    yield Sample((x,), {"shape": (4,), "strides": (-2,), "offset": 7})
    yield Sample((x.reshape(2, 4),), {"shape": (2, 2), "strides": (4, 2), "offset": 1})
    same = np.broadcast_to(x[0], (8,))
    yield Sample((same,), {"shape": (4,), "strides": (2,), "offset": 0})


view(
    "as_strided",
    shape=lambda x, shape, strides, offset: tuple(shape),
    eager=_as_strided,
    index_map=_as_strided_map,
    samples=_as_strided_samples,
    overlapping=True,
)
