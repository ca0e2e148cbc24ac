"""NumPy's names for torch: what programs bind to `np` when torch runs them.

Most of torch's functions take NumPy's keywords (`axis`, `keepdims`). Defined here are
those that differ.
"""

from typing import Any

import torch

SAME = (
    "abs arange arctan2 argmax cos diagonal einsum empty_like exp expm1 eye hypot "
    "linalg log log1p logaddexp matmul mean ones_like outer reshape sin sqrt square "
    "stack sum tanh where zeros_like"
)
globals().update({name: getattr(torch, name) for name in SAME.split()})


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.amax(x, () if axis is None else axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.amin(x, () if axis is None else axis, keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.var(x, axis, correction=0, keepdim=keepdims)


def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return torch.std(x, axis, correction=0, keepdim=keepdims)


def maximum(x: Any, y: Any) -> Any:
    return torch.maximum(x, y) if torch.is_tensor(y) else torch.clamp(x, min=y)


def minimum(x: Any, y: Any) -> Any:
    return torch.minimum(x, y) if torch.is_tensor(y) else torch.clamp(x, max=y)


def clip(x: Any, low: Any, high: Any) -> Any:
    return torch.clamp(x, low, high)


def cumsum(x: Any, axis: int = 0) -> Any:
    return torch.cumsum(x, axis)


def concatenate(parts: Any, axis: int = 0) -> Any:
    return torch.cat(tuple(parts), axis)


def copy(x: Any) -> Any:
    return x.clone()


def dot(x: Any, y: Any) -> Any:
    return x @ y


def transpose(x: Any, axes: Any) -> Any:
    return x.permute(axes)
