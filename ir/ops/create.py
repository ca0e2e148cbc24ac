"""Creation, copies and scalars: full, arange, constant, copy, item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..build import Builder
from ..errors import ShapeError
from ..op import Kind, Op, Sample, Vjp, Zero, define
from ..types import F64, I64, DType, Shape, Type
from .batch import Axis, Batched, same

# ---------------------------------------------------------------- creation


def _full_type(value: Type, *, shape: Shape, dtype: DType) -> Type:
    if value.shape:
        raise ShapeError(f"full: the value must be a scalar, not {value}")
    return Type(dtype, tuple(shape))


def _full_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((1.5,), {"shape": (2, 3), "dtype": F64})
    yield Sample((np.float64(0.5),), {"shape": (4,), "dtype": F64})
    yield Sample((0,), {"shape": (), "dtype": F64})
    yield Sample((7,), {"shape": (0, 2), "dtype": I64}, differentiable=False)


def _full_vjp(b: Builder, ct: Any, out: Any, value: Any, **attrs: Any) -> Any:
    axes = tuple(range(len(b.shape(ct))))
    return b.cast(b.sum(ct, axis=axes, keepdims=False), b.type_of(value))


def _full_batch(
    b: Builder,
    op: Op,
    xs: Sequence[Any],
    axes: Sequence[Axis],
    *,
    shape: Shape,
    dtype: DType,
) -> Batched:
    (x,) = xs
    x = x if b.type_of(x).dtype == dtype else b.astype(x, dtype=dtype)
    if shape:
        x = b.expand_dims(x, axis=tuple(range(1, len(shape) + 1)))
        x = b.broadcast_to(x, shape=(*b.shape(x)[:1], *shape))
    return x, 0


define(
    name="full",
    kind=Kind.CREATION,
    operands=("value",),
    infer=_full_type,
    eager=lambda value, shape, dtype: np.full(shape, value, dtype),
    derivatives=(Vjp(_full_vjp),),
    lower="{0}",  # from the operand; {i0}, {i1}, ... are the indices
    samples=_full_samples,
    batch=_full_batch,
)


def _empty(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Return an array of what shows where it is read: NaN, or a large number."""
    if dtype.kind in "fc":
        return np.full(shape, np.nan, dtype)
    return np.full(shape, True if dtype.kind == "b" else np.iinfo(dtype).max, dtype)


def _empty_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), {"shape": (2, 3), "dtype": F64})
    yield Sample((), {"shape": (0,), "dtype": I64})


define(
    name="empty",  # memory that is written before it is read
    kind=Kind.CREATION,
    operands=(),
    infer=lambda shape, dtype: Type(dtype, tuple(shape)),
    eager=_empty,
    derivatives=(),
    lower="nan",
    samples=_empty_samples,
    arbitrary=True,
)


def _arange_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), {"size": 5})
    yield Sample((), {"size": 0})


define(
    name="arange",  # 0, 1, ..., size - 1 as int64; other ranges are arithmetic on it
    kind=Kind.CREATION,
    operands=(),
    infer=lambda size: Type(I64, (size,)),
    eager=lambda size: np.arange(size),
    derivatives=(),
    lower="{i0}",
    samples=_arange_samples,
)


def _nested(x: Any) -> Any:
    return tuple(map(_nested, x)) if isinstance(x, list) else x


def constant_attrs(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the attributes of `constant` that make the array `x`."""
    return {
        "data": _nested(x.reshape(-1).tolist()),
        "shape": x.shape,
        "dtype": x.dtype,
    }


def _constant_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), constant_attrs(rng.normal(size=(2, 2))))
    yield Sample((), constant_attrs(np.array([True, False])))
    yield Sample((), constant_attrs(np.zeros((0, 3))))


define(
    name="constant",  # the elements in C order, written into the program
    kind=Kind.CREATION,
    operands=(),
    infer=lambda data, shape, dtype: Type(dtype, tuple(shape)),
    eager=lambda data, shape, dtype: np.array(data, dtype).reshape(shape),
    derivatives=(),
    lower=None,
    samples=_constant_samples,
)

# ---------------------------------------------------------------- copies


def _copy_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.normal(size=(3, 4))
    yield Sample((x,))
    yield Sample((x[:, ::-2],))
    yield Sample((np.zeros((0,)),))


define(
    name="copy",  # fresh memory; in a pure Func it is the identity
    kind=Kind.COPY,
    operands=("x",),
    infer=lambda x: x.array(),
    eager=lambda x: np.array(x, copy=True, order="K"),
    derivatives=(Vjp(lambda b, ct, out, x: ct),),
    lower="{0}",
    samples=_copy_samples,
    decompose=lambda b, x: x,
)


def _item_type(x: Type) -> Type:
    if x.shape:
        raise ShapeError(f"item: only a 0-d array has one item, not {x}")
    return x.as_scalar()


def _item_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.asarray(rng.normal()),))


define(
    name="number",  # a Python number with the value of a 0-d array or scalar
    kind=Kind.COPY,
    operands=("x",),
    infer=lambda x: Type(_item_type(x).dtype, weak=True),
    eager=lambda x: np.asarray(x).item(),
    derivatives=(Vjp(lambda b, ct, out, x: ct),),
    batch=same,
    lower="{0}",
    samples=_item_samples,
)


def _detach_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for s in _copy_samples(rng):
        yield Sample(s.args, differentiable=False)


define(
    name="item",  # a NumPy scalar with the value of a 0-d array
    kind=Kind.COPY,
    operands=("x",),
    infer=_item_type,
    eager=lambda x: x[()] if isinstance(x, np.ndarray) else x,
    derivatives=(Vjp(lambda b, ct, out, x: ct),),
    batch=same,
    lower="{0}",
    samples=_item_samples,
    decompose=lambda b, x: x,
)


define(
    name="detach",  # the same values, of which no derivative is taken
    kind=Kind.COPY,
    operands=("x",),
    infer=lambda x: x,
    eager=lambda x: (
        np.array(x, copy=True, order="K") if isinstance(x, np.ndarray) else x
    ),
    derivatives=(Zero("the value was detached"),),
    lower="{0}",
    samples=_detach_samples,
)
