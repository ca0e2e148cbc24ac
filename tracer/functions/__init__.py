"""NumPy's functions in terms of ops, written once for eager, tape and trace.

`FUNCTIONS` maps NumPy's functions to ours, with the same signatures. `CREATION` holds
those that make arrays from nothing: they always return Tensors. `BUILTINS` holds
Python's own functions. `INTERCEPTS` is what calls in converted user code go through:
each entry is the original wherever no Tensor and no transform is involved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.op import OPS, Op
from ..values import inside_transform, is_symbolic
from . import (  # noqa: F401
    applied,
    choice,
    create,
    einsum,
    elementwise,
    join,
    linalg,
    nans,
    padding,
    quantiles,
    reduce,
    scans,
    sets,
    shapes,
    sorting,
    statistics,
)
from .builtins import BUILTINS
from .core import CREATION, FUNCTIONS, AxisError

UFUNCS: dict[np.ufunc, Op] = {
    op.eager: op for op in OPS.values() if isinstance(op.eager, np.ufunc)
}


def _where_symbolic(
    original: Callable[..., Any], ours: Callable[..., Any], always: bool
) -> Callable[..., Any]:
    """Return a function that chooses between NumPy's function and ours.

    With `always`, ours is taken everywhere inside a transform: arrays that are made
    there are Tensors.
    """

    @functools.wraps(original, updated=())
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if (always and inside_transform()) or is_symbolic(args) or is_symbolic(kwargs):
            return ours(*args, **kwargs)
        return original(*args, **kwargs)

    return chosen


INTERCEPTS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{f: _where_symbolic(f, ours, False) for f, ours in FUNCTIONS.items()},
    **{f: _where_symbolic(f, ours, True) for f, ours in CREATION.items()},
    **BUILTINS,
}

__all__ = [
    "BUILTINS",
    "CREATION",
    "FUNCTIONS",
    "INTERCEPTS",
    "UFUNCS",
    "AxisError",
    "is_symbolic",
]
