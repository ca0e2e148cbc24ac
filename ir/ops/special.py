"""Special functions: erf and erfc, from SciPy, which is imported at the first use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..build import Builder
from ..errors import DTypeError
from ..op import Kind, Partial, define
from ..types import F32, F64, DType, Type
from .elementwise import REALS, elementwise_samples, elementwise_type


def _dtype(name: str, x: Type) -> DType:
    """Return float32 where it holds every value of x, else float64, as SciPy does."""
    if x.weak:
        return F64
    for dtype in (F32, F64):
        if np.can_cast(x.dtype, dtype):
            return dtype
    raise DTypeError(f"{name}: not defined for {x}")


def _special(name: str, slope: Callable[..., Any]) -> None:
    def eager(x: Any) -> Any:
        from scipy import special

        return getattr(special, name)(x)

    define(
        name=name,
        kind=Kind.ELEMENTWISE,
        operands=("x",),
        infer=lambda x: elementwise_type(_dtype(name, x), (x,)),
        eager=eager,
        derivatives=(Partial(slope),),
        lower=name + "({0})",
        samples=lambda rng: elementwise_samples(rng, [REALS], "fi", False),
        computes=lambda x: (_dtype(name, x),),
        cost=20,
    )


def _bell(b: Builder, x: Any) -> Any:
    return b.multiply(b.exp(b.negative(b.multiply(x, x))), 2 / math.sqrt(math.pi))


_special("erf", _bell)
_special("erfc", lambda b, x: b.negative(_bell(b, x)))
