"""Indexing by arrays: gather and mask_select, each with two pure twins.

Unlike views these copy. With duplicate indices the last write in C order wins and the
values that were overwritten have no derivative; every addition counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..dims import Dim
from ..errors import DTypeError, IndexRangeError, ShapeError
from ..op import ZERO, Kind, Sample, Vjp, define
from ..types import I64, Shape, Type, broadcast_shapes, same_shape, show_shape

Axes = tuple[int, ...]

# ---------------------------------------------------------------- gather


def _rest(ndim: int, axes: Axes) -> Axes:
    return tuple(k for k in range(ndim) if k not in axes)


def _gather_shape(
    name: str, x: Type, indices: Sequence[Type], axes: Axes, position: int
) -> Shape:
    rest = _rest(x.ndim, axes)
    if (
        len(indices) != len(axes)
        or len(set(axes)) != len(axes)
        or not all(0 <= k < x.ndim for k in axes)
        or not 0 <= position <= len(rest)
        or not axes
    ):
        raise ShapeError(
            f"{name}: {len(indices)} index arrays for axes {axes} of {x}, "
            f"inserted at {position}"
        )
    for t in indices:
        if t.dtype.kind not in "iu":
            raise DTypeError(f"{name}: an index must hold integers, not {t}")
    kept = tuple(x.shape[k] for k in rest)
    found = broadcast_shapes(*(t.shape for t in indices))
    return (*kept[:position], *found, *kept[position:])


def _checked(x: Any, indices: Sequence[Any], axes: Axes) -> tuple[Any, ...]:
    """Return the index arrays, broadcast; raise where one lies outside its axis."""
    for k, index in zip(axes, indices, strict=True):
        size = x.shape[k]
        wrong = np.asarray((index < -size) | (index >= size))
        if wrong.any():
            value = np.asarray(index)[wrong].flat[0]
            raise IndexRangeError(
                f"index {value} is out of bounds for axis {k} with size {size}"
            )
    return tuple(np.broadcast_arrays(*indices))


def _gather(x: Any, *indices: Any, axes: Axes, position: int) -> Any:
    found = _checked(x, indices, axes)
    order = np.argsort(axes)
    first = int(axes[order[0]])
    together = len(axes) == max(axes) - first + 1
    if position == (first if together else 0):  # NumPy's place, and memory order
        key: list[Any] = [slice(None)] * (max(axes) + 1)
        for k in order:
            key[axes[k]] = found[k]
        return x[tuple(key)]
    lines = np.transpose(x, (*axes, *_rest(x.ndim, axes)))[found]
    n = found[0].ndim
    out = np.moveaxis(lines, range(n), range(position, position + n))
    return out if out.ndim else out[()]


def _elements(x: Any, indices: Sequence[Any], axes: Axes, position: int) -> Any:
    """Return the C-order positions in `x` of what `gather` reads."""
    order = np.arange(x.size).reshape(x.shape)
    return np.asarray(_gather(order, *indices, axes=axes, position=position))


def _gather_type(x: Type, *indices: Type, axes: Axes, position: int) -> Type:
    t = Type(x.dtype, _gather_shape("gather", x, indices, axes, position))
    return t if t.shape else t.as_scalar()


def _gather_vjp(
    b: Builder, operand: int, ct: Any, out: Any, x: Any, *indices: Any, **attrs: Any
) -> Any:
    return b.gather_scatter_add(b.zeros_like(x), ct, *indices, **attrs)


def _gather_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(3, 4, 5))
    one = np.array([2, 0, -1, 2])
    yield Sample((x, one), {"axes": (0,), "position": 0})
    yield Sample((x, one), {"axes": (2,), "position": 2})
    yield Sample((x, one.reshape(2, 2)), {"axes": (1,), "position": 1})
    yield Sample((x, one), {"axes": (1,), "position": 0})
    yield Sample(
        (x, np.array([[0], [2]]), np.array([1, -4, 3])),
        {"axes": (0, 2), "position": 1},
    )
    yield Sample((x, one[:2], one[:2]), {"axes": (2, 0), "position": 0})
    yield Sample((x, one, one, one), {"axes": (0, 1, 2), "position": 0})
    yield Sample((x.T, one.astype(np.int32)), {"axes": (0,), "position": 0})
    yield Sample((x[0, 0], np.array(3)), {"axes": (0,), "position": 0})
    yield Sample((x[0, 0], np.int64(-2)), {"axes": (0,), "position": 0})
    yield Sample((x, one[:0]), {"axes": (1,), "position": 1})
    yield Sample((x[:, :0], one), {"axes": (0,), "position": 0})
    yield Sample((x.astype(np.float32), one), {"axes": (0,), "position": 0})
    yield Sample((one, one % 2), {"axes": (0,), "position": 0}, differentiable=False)


define(
    name="gather",
    kind=Kind.GATHER,
    operands=("x", "*indices"),
    infer=_gather_type,
    eager=_gather,
    derivatives=(Vjp(_gather_vjp, ("*indices",)), ZERO),
    lower=None,
    samples=_gather_samples,
    scatter="gather_scatter",
    scatter_add="gather_scatter_add",
)

# ---------------------------------------------------------------- gather's twins


def _last_writes(b: Builder, x: Any, indices: Sequence[Any], axes: Axes) -> Any:
    """Tell which of the indices no later one repeats; of the shape of the indices."""
    shape = broadcast_shapes(*map(b.shape, indices))
    order = b.reshape(b.arange(size=dims.product(shape)), shape=shape)
    sizes = tuple(b.shape(x)[k] for k in axes)
    blank = b.full(-1, shape=sizes, dtype=I64)
    where = {"axes": tuple(range(len(axes))), "position": 0}
    written = b.gather_scatter(blank, order, *indices, **where)
    return b.equal(b.gather(written, *indices, **where), order)


def _twin(accumulates: bool) -> None:
    name = "gather_scatter_add" if accumulates else "gather_scatter"

    def infer(x: Type, new: Type, *indices: Type, axes: Axes, position: int) -> Type:
        part = _gather_shape(name, x, indices, axes, position)
        if not same_shape(broadcast_shapes(part, new.shape), part):
            raise ShapeError(
                f"{name}: {new} does not fit the part {show_shape(part)} of {x}"
            )
        return x.array()

    def run(x: Any, new: Any, *indices: Any, axes: Axes, position: int) -> Any:
        out = np.array(x, copy=True, order="C")
        where = _elements(out, indices, axes, position)
        flat, values = out.reshape(-1), np.broadcast_to(new, where.shape)
        if accumulates:
            np.add.at(flat, where.ravel(), values.ravel())
        else:
            flat[where.ravel()] = values.ravel()
        return out

    def in_base(
        b: Builder, at: int, ct: Any, out: Any, x: Any, new: Any, *i: Any, **attrs: Any
    ) -> Any:
        return ct if accumulates else b.gather_scatter(ct, 0, *i, **attrs)

    def in_new(
        b: Builder, at: int, ct: Any, out: Any, x: Any, new: Any, *i: Any, **attrs: Any
    ) -> Any:
        part = b.gather(ct, *i, **attrs)
        if not accumulates:
            kept = _last_writes(b, x, i, attrs["axes"])
            n = len(b.shape(kept))
            after = len(b.shape(part)) - n - attrs["position"]
            if after:
                kept = b.expand_dims(kept, axis=tuple(range(n, n + after)))
            part = b.where(kept, part, 0)
        return b.unbroadcast(part, new)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for s in _gather_samples(rng):
            x, *indices = s.args
            shape = np.shape(_gather(x, *indices, **s.attrs))
            new = rng.normal(size=shape).astype(x.dtype)
            yield Sample((x, new, *indices), s.attrs, s.differentiable)
            yield Sample((x, 2, *indices), s.attrs, s.differentiable)

    define(
        name=name,
        kind=Kind.SCATTER,
        operands=("x", "new", "*indices"),
        infer=infer,
        eager=run,
        derivatives=(
            Vjp(in_base, () if accumulates else ("*indices",)),
            Vjp(in_new, ("*indices",)),
            ZERO,
        ),
        lower=None,
        samples=samples,
        of="gather",
        accumulates=accumulates,
        overlapping=True,
    )


_twin(accumulates=False)
_twin(accumulates=True)

# ---------------------------------------------------------------- masks


def _check_mask(name: str, x: Type, mask: Type) -> None:
    if mask.dtype.kind != "b":
        raise DTypeError(f"{name}: a mask must be bool, not {mask}")
    if not same_shape(mask.shape, x.shape[: mask.ndim]):
        raise ShapeError(
            f"{name}: the mask {mask} does not fit {x}",
            rule="a mask has the sizes of the leading axes that it covers",
        )


def _mask_select_type(x: Type, mask: Type, *, count: Dim) -> Type:
    _check_mask("mask_select", x, mask)
    return Type(x.dtype, (count, *x.shape[mask.ndim :]))


def _mask_select(x: Any, mask: Any, count: int | None) -> Any:
    out = x[mask]
    if count is not None and count != len(out):
        raise ShapeError(f"mask_select: the mask selects {len(out)}, not {count}")
    return out


def _number_of(b: Builder, mask: Any) -> Any:
    """Return how many elements a mask selects."""
    axes = tuple(range(len(b.shape(mask))))
    chosen = b.astype(mask, dtype=np.dtype(np.int64))
    return b.sum(chosen, axis=axes, keepdims=False)


def _mask_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(3, 4))
    some = np.array([True, False, True])
    grid = rng.permutation(12).reshape(3, 4) < 5
    yield Sample((x, some), {"count": 2})
    yield Sample((x, grid), {"count": 5})
    yield Sample((x.T, grid.T), {"count": 5})
    yield Sample((x, ~some & some), {"count": 0})
    yield Sample((x[0], grid[0] | True), {"count": 4})
    yield Sample((x[:0], some[:0]), {"count": 0})
    yield Sample((x.astype(np.float32), some), {"count": 2})
    yield Sample((grid, some), {"count": 2}, differentiable=False)


define(
    name="mask_select",  # x[mask]; a new symbol as `count` comes to stand for its size
    kind=Kind.MASK,
    operands=("x", "mask"),
    infer=_mask_select_type,
    eager=_mask_select,
    derivatives=(
        Vjp(
            lambda b, ct, out, x, mask, count: b.mask_scatter(
                b.zeros_like(x), ct, mask
            ),
            ("mask",),
        ),
        ZERO,
    ),
    lower=None,
    samples=_mask_samples,
    scatter="mask_scatter",
    scatter_add="mask_scatter_add",
    counts=lambda b, x, mask: _number_of(b, mask),
)


def _mask_twin(accumulates: bool) -> None:
    name = "mask_scatter_add" if accumulates else "mask_scatter"

    def infer(x: Type, new: Type, mask: Type) -> Type:
        _check_mask(name, x, mask)
        rest = x.shape[mask.ndim :]
        if new.ndim != 1 + len(rest) or not same_shape(new.shape[1:], rest):
            raise ShapeError(
                f"{name}: {new} does not fit the part (count, *{show_shape(rest)}) "
                f"of {x}"
            )
        return x.array()

    def run(x: Any, new: Any, mask: Any) -> Any:
        count = int(np.count_nonzero(mask))
        if len(new) != count:
            raise ShapeError(
                f"{name}: {len(new)} values for {count} places that the mask selects"
            )
        out = np.array(x, copy=True, order="C")
        out[mask] = out[mask] + new if accumulates else new
        return out

    def in_base(b: Builder, ct: Any, out: Any, x: Any, new: Any, mask: Any) -> Any:
        if accumulates:
            return ct
        have, covered = len(b.shape(x)), len(b.shape(mask))
        if have > covered:
            mask = b.expand_dims(mask, axis=tuple(range(covered, have)))
        return b.where(mask, 0.0, ct)

    def in_new(b: Builder, ct: Any, out: Any, x: Any, new: Any, mask: Any) -> Any:
        part = b.mask_select(ct, mask, count=b.shape(new)[0])
        return b.cast(part, b.type_of(new))

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for s in _mask_samples(rng):
            x, mask = s.args
            new = rng.normal(size=x[mask].shape).astype(x.dtype)
            yield Sample((x, new, mask), {}, s.differentiable)

    define(
        name=name,
        kind=Kind.SCATTER,
        operands=("x", "new", "mask"),
        infer=infer,
        eager=run,
        derivatives=(
            Vjp(in_base, () if accumulates else ("mask",)),
            Vjp(in_new, ("mask",)),
            ZERO,
        ),
        lower=None,
        samples=samples,
        of="mask_select",
        accumulates=accumulates,
    )


_mask_twin(accumulates=False)
_mask_twin(accumulates=True)
