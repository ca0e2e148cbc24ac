"""NumPy ufuncs called on tensors: `np.sin(t)`, `np.add.at`, `out=`, `where=`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.errors import UnsupportedError
from ..ir.op import OPS, Op
from . import dispatch
from .location import user_location


@functools.cache
def op_of(ufunc: np.ufunc) -> Op | None:
    """Return the op that a ufunc is."""
    for op in OPS.values():
        if op.eager is ufunc:
            return op
    return None


def functions() -> Any:
    """Return the table of NumPy functions; it is written in terms of Tensor."""
    return importlib.import_module(".functions", __package__).FUNCTIONS


def call(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply a ufunc to tensors."""
    op = op_of(ufunc)
    if op is None:
        function = functions().get(ufunc)
        if function is None:
            raise UnsupportedError(
                f"{ufunc.__name__}: no such op", location=user_location()
            )
        return function(*inputs, **kwargs)
    return dispatch.apply(op, inputs)
