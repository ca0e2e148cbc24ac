"""The methods that Tensors share with NumPy's arrays, and copies and fills in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from ..ir.errors import ShapeError
from ..ir.op import OPS
from . import dispatch
from .fields import Fields, part
from .location import user_location


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is a function of the NumPy namespace."""
    name = function.__name__

    def method(self: Fields, *args: Any, **kwargs: Any) -> Any:
        return part("functions").FUNCTIONS[function](self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Call numpy.{name} on this tensor."
    return method


class ArrayMethods(Fields):
    """What ndarray has, as functions of the NumPy namespace."""

    __slots__ = ()

    all = _function(np.all)
    any = _function(np.any)
    argmax = _function(np.argmax)
    argmin = _function(np.argmin)
    argsort = _function(np.argsort)
    choose = _function(np.choose)
    clip = _function(np.clip)
    cumprod = _function(np.cumprod)
    cumsum = _function(np.cumsum)
    diagonal = _function(np.diagonal)
    dot = _function(np.dot)
    max = _function(np.max)
    mean = _function(np.mean)
    min = _function(np.min)
    nonzero = _function(np.nonzero)
    prod = _function(np.prod)
    ptp = _function(np.ptp)
    put = _function(np.put)
    ravel = _function(np.ravel)
    repeat = _function(np.repeat)
    round = _function(np.round)
    searchsorted = _function(np.searchsorted)
    squeeze = _function(np.squeeze)
    std = _function(np.std)
    sum = _function(np.sum)
    swapaxes = _function(np.swapaxes)
    take = _function(np.take)
    trace = _function(np.trace)
    var = _function(np.var)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        """Return the slices along an axis where a condition is true."""
        return part("functions").FUNCTIONS[np.compress](condition, self, axis, out)

    # Copies and NumPy's methods ---------------------------------------------------

    def copy(self, order: str = "C") -> Any:
        """Return a copy in fresh memory; its gradient goes through."""
        return part("order").ordered(self._applied("copy"), order, self)

    def clone(self) -> Any:
        """Return a copy in fresh memory; its gradient goes through."""
        return self._applied("copy")

    def contiguous(self) -> Any:
        """Return this, or a copy if the memory is not in C order."""
        return self if part("order").is_contiguous(self) else self.copy()

    def _applied(self, name: str, *operands: Any, **attrs: Any) -> Any:
        return dispatch.apply(OPS[name], (self, *operands), attrs)

    def __copy__(self) -> Any:
        return self.copy()

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> Any:
        """Return this converted to a dtype."""
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        return part("order").ordered(self._applied("astype", dtype=dtype), order, self)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return this with another shape: a view where memory allows."""
        if len(shape) == 1:
            (shape,) = shape
        return part("functions").FUNCTIONS[np.reshape](self, shape, order=order)

    def transpose(self, *axes: Any) -> Any:
        """Return a view with the axes reordered."""
        if len(axes) == 1 and not isinstance(axes[0], int):
            (axes,) = axes
        return part("functions").FUNCTIONS[np.transpose](self, axes or None)

    @property
    def flat(self) -> Any:
        """The elements in C order, to be read, written and iterated over."""
        return part("flat").Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[...] = value

    @property
    def T(self) -> Any:
        """A view with the axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """A view with the last two axes swapped."""
        return part("functions").FUNCTIONS[np.matrix_transpose](self)

    @property
    def real(self) -> Any:
        """The real part."""
        if self.dtype.kind != "c":
            return self
        return part("functions").FUNCTIONS[np.real](self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return part("functions").FUNCTIONS[np.imag](self)

    def conj(self) -> Any:
        """Return the complex conjugate; this itself where it is real."""
        if self.dtype.kind != "c":
            return self
        return part("functions").FUNCTIONS[np.conjugate](self)

    conjugate = conj

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.size * self.dtype.itemsize)

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return self.dtype.itemsize

    def as_strided(
        self, shape: Sequence[int], strides: Sequence[int], offset: int = 0
    ) -> Any:
        """Return a view by strides, and an offset from the first element, in elements.

        Elements may occur several times in it. Of several values that one write puts
        into one element, the last is kept.
        """
        return part("functions.shapes").as_strided(self, shape, strides, offset)

    def flatten(self, order: str = "C") -> Any:
        """Return a 1-D copy."""
        return part("functions").FUNCTIONS[np.ravel](self, order=order).copy()

    def fill(self, value: Any) -> None:
        """Write one value into every element."""
        dispatch.write(self, value, kind="unsafe")

    def fill_(self, value: Any) -> Self:
        """Write one value into every element; returns self."""
        dispatch.write(self, value, kind="unsafe")
        return self

    def zero_(self) -> Self:
        """Write zeros; returns self."""
        return self.fill_(0)

    def copy_(self, source: Any) -> Self:
        """Write another tensor, converted and broadcast; returns self."""
        source = part("tensor").as_tensor(source)
        if len(source.shape) > len(self.shape):
            raise ShapeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast "
                f"shape {list(source.shape)}",
                location=user_location(),
            )
        dispatch.write(self, source, kind="unsafe")
        return self

    def index_put_(
        self, indices: Sequence[Any], values: Any, accumulate: bool = False
    ) -> Self:
        """Write values at index arrays, or add them, each as often as it occurs."""
        key = tuple(indices)
        if accumulate:
            part("ufuncs").at(np.add, (self, key, values), {})
        else:
            part("index").setitem(self, key, values)
        return self

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """Write a 0-d value where the mask is true; returns self."""
        value = part("tensor").as_tensor(value)
        if value.shape:
            raise ShapeError(
                "masked_fill_ only supports a 0-dimensional value tensor, but got "
                f"tensor with {value.ndim} dimension(s).",
                location=user_location(),
            )
        new = dispatch.apply(OPS["where"], (mask, value, self))
        dispatch.write(self, new)
        return self

    def sort(self, axis: int = -1) -> None:
        """Sort in place along an axis."""
        dispatch.write(self, part("functions").FUNCTIONS[np.sort](self, axis))

    def partition(self, kth: Any, axis: int = -1) -> None:
        """Sort in place along an axis, which puts what belongs at `kth` there."""
        dispatch.write(self, part("functions").FUNCTIONS[np.partition](self, kth, axis))

    def argpartition(self, kth: Any, axis: int | None = -1) -> Any:
        """Return positions of elements in an order that has those of `kth` in place."""
        return part("functions").FUNCTIONS[np.argpartition](self, kth, axis)
