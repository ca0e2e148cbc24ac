"""Types: dtype, shape, and the two marks `scalar` and `weak`.

``f64[n,3]`` is an array, ``f64`` without brackets a NumPy scalar (immutable, 0-d), and
``~f64`` a Python number, whose dtype gives way to that of arrays (NEP 50).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from . import dims
from .dims import Dim, Symbol
from .errors import IRError, ShapeError

DType: TypeAlias = "np.dtype[Any]"
Shape: TypeAlias = tuple[Dim, ...]

NAMES: dict[str, DType] = {
    "bool": np.dtype(np.bool_),
    **{f"i{8 * k}": np.dtype(f"i{k}") for k in (1, 2, 4, 8)},
    **{f"u{8 * k}": np.dtype(f"u{k}") for k in (1, 2, 4, 8)},
    **{f"f{8 * k}": np.dtype(f"f{k}") for k in (2, 4, 8)},
    **{f"c{8 * k}": np.dtype(f"c{k}") for k in (8, 16)},
}
SHORT: dict[DType, str] = {d: n for n, d in NAMES.items()}
BOOL, I64, F64, F32 = NAMES["bool"], NAMES["i64"], NAMES["f64"], NAMES["f32"]


def short(dtype: DType) -> str:
    """Return the short name of a dtype: "f64" for float64."""
    try:
        return SHORT[np.dtype(dtype)]
    except KeyError:
        raise IRError(f"dtype {dtype} has no place in the IR") from None


@dataclass(frozen=True, slots=True)
class Type:
    """A dtype and a shape; `scalar` marks NumPy scalars, `weak` Python numbers."""

    dtype: DType
    shape: Shape = ()
    scalar: bool = False
    weak: bool = False

    def __post_init__(self) -> None:
        if (self.scalar or self.weak) and self.shape:
            raise IRError("a scalar has no shape")
        if self.weak and not self.scalar:
            object.__setattr__(self, "scalar", True)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        return dims.product(self.shape)

    @property
    def is_inexact(self) -> bool:
        """Whether values of this type can have a derivative."""
        return self.dtype.kind in "fc"

    def __str__(self) -> str:
        if self.weak:
            return f"~{short(self.dtype)}"
        if self.scalar:
            return short(self.dtype)
        return f"{short(self.dtype)}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__

    def array(self) -> Type:
        """Return the array type of the same dtype and shape, without marks."""
        return Type(self.dtype, self.shape) if self.scalar else self

    def as_scalar(self) -> Type:
        """Return the NumPy scalar type of a 0-d type."""
        return self if self.shape else Type(self.dtype, scalar=True)

    def with_dtype(self, dtype: DType) -> Type:
        return replace(self, dtype=np.dtype(dtype), weak=False)

    def with_shape(self, shape: Sequence[Dim]) -> Type:
        return Type(self.dtype, tuple(shape))

    def substitute(self, values: Mapping[Symbol, Dim]) -> Type:
        if all(isinstance(d, int) for d in self.shape):
            return self
        return replace(
            self, shape=tuple(dims.substitute(d, values) for d in self.shape)
        )


@cache
def scalar_type(dtype: DType, weak: bool = False) -> Type:
    """Return the type of NumPy scalars, or of Python numbers."""
    return Type(dtype, scalar=True, weak=weak)


def type_of_literal(x: object) -> Type:
    """Return the type of a Python number or of a dim used as an operand."""
    if isinstance(x, bool):
        return scalar_type(BOOL)
    if isinstance(x, int | dims.Expr):
        return scalar_type(I64, weak=True)
    if isinstance(x, float):
        return scalar_type(F64, weak=True)
    if isinstance(x, complex):
        return scalar_type(NAMES["c128"], weak=True)
    raise IRError(f"{x!r} is not an operand")


def type_of_array(x: object) -> Type:
    """Return the type of an array, of NumPy or a device, NumPy scalar or number."""
    if isinstance(x, np.ndarray):
        return Type(x.dtype, x.shape)
    if isinstance(x, np.generic):
        return Type(x.dtype, scalar=True)
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return Type(x.dtype, x.shape)
    return type_of_literal(x)


_WEAK_SAMPLE: dict[str, object] = {"i": 0, "f": 0.0, "c": 0j, "b": False}


def promote(*types: Type) -> Type:
    """Return the promoted dtype by NumPy's rules, as a 0-d type (weak if all are)."""
    if all(t.weak for t in types):
        best = max(types, key=lambda t: "bifc".index(t.dtype.kind))
        return Type(best.dtype, weak=True)
    samples = [_WEAK_SAMPLE[t.dtype.kind] if t.weak else t.dtype for t in types]
    return Type(np.result_type(*samples), scalar=True)  # type: ignore[arg-type]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Broadcast shapes by NumPy's rule; a symbol that may be 1 asks the decider."""
    given = [s for s in shapes if s]
    if not given or given.count(given[0]) == len(given):
        return given[0] if given else ()
    ndim = max(map(len, given))
    out: list[Dim] = []
    for axis in range(-ndim, 0):
        dim: Dim = 1
        for s in shapes:
            if len(s) < -axis:
                continue
            d = s[axis]
            if dim == 1:
                dim = d
            elif d == 1 or dims.same(d, dim):
                continue
            elif not isinstance(dim, int) and dims.same(dim, 1):
                dim = d
            elif not isinstance(d, int) and dims.same(d, 1):
                continue
            else:
                raise ShapeError(
                    f"shapes {show_shape(s)} and "
                    f"{show_shape(tuple(out) + (dim,) + (1,) * (-axis - 1))} "
                    "do not broadcast"
                )
        out.append(dim)
    return tuple(out)


def show_shape(shape: Shape) -> str:
    inner = ",".join(map(str, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def same_shape(a: Shape, b: Shape) -> bool:
    """Tell whether two shapes are equal, asking the decider where it is open."""
    return len(a) == len(b) and all(map(dims.same, a, b))
