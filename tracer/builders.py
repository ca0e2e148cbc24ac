"""Builders for derivative rules on the tape: at once on arrays, or recorded."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.build import ArrayBuilder, Builder, Shaped
from ..ir.op import OPS, Op
from ..ir.types import Type, type_of_array
from . import dispatch
from . import tensor as _tensor

REALS = (int, float)
SMALL = 256  # elements that are copied sooner than a view of them is made


class EagerBuilder(ArrayBuilder):
    """Computes on arrays, without asking for types where shapes will do."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            eager = OPS[name].eager
        except KeyError:
            raise AttributeError(f"there is no op {name!r}") from None
        self.__dict__[name] = eager  # found directly from now on
        return eager

    def shape(self, x: Any) -> tuple[Any, ...]:
        return getattr(x, "shape", ())

    def broadcast_like(self, x: Any, like: Any) -> Any:
        shape = self.shape(like)
        if self.shape(x) == shape:
            return x
        if math.prod(shape) > SMALL:
            return np.broadcast_to(x, shape)
        out = np.empty(shape, x.dtype)  # what np.broadcast_to does costs more
        out[...] = x
        return out

    def scale(self, ct: Any, factor: Any) -> Any:
        if isinstance(factor, REALS):
            if factor == 1:
                return ct
            if factor == -1:
                return np.negative(ct)
        return np.multiply(ct, factor)

    def unbroadcast(self, ct: Any, like: Any) -> Any:
        dtype = getattr(like, "dtype", None)
        if dtype is None:
            return super().unbroadcast(ct, like)
        if like.shape != ct.shape:
            ct = _sum_to(ct, like.shape)
        return ct if ct.dtype == dtype else to_dtype(ct, dtype)

    def cast(self, x: Any, like: Type) -> Any:
        x = np.asarray(x) if isinstance(x, int | float | complex) else x
        return x if x.dtype == like.dtype else to_dtype(x, like.dtype)


def to_dtype(x: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a cotangent; a real operand takes the real part of a complex one."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    return x.astype(dtype)


def _sum_to(ct: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes that `shape` was broadcast along."""
    extra = ct.ndim - len(shape)
    axes = tuple(
        k
        for k, d in enumerate(ct.shape)
        if k < extra or (shape[k - extra] == 1 and d != 1)
    )
    return np.sum(ct, axis=axes).reshape(shape) if axes else ct


EAGER = EagerBuilder()


class TensorBuilder(Builder):
    """Computes on tensors, so that the backward pass is itself recorded."""

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        return dispatch.apply(op, operands, attrs)

    def type_of(self, x: Any) -> Type:
        if isinstance(x, _tensor.Tensor | Shaped):
            return x.type
        return type_of_array(x)


@functools.cache
def tensor_builder() -> TensorBuilder:
    """Return the one TensorBuilder."""
    return TensorBuilder()
