"""NumPy functions on eager tensors against NumPy itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grouped import every

from retrograde.tracer.functions import FUNCTIONS
from retrograde.tracer.tensor import Tensor, tensor

RNG = np.random.default_rng(7)
A = RNG.normal(size=(3, 4))
B = RNG.normal(size=(3, 4))
C = RNG.normal(size=(2, 3, 4))
V = RNG.normal(size=4)
W = RNG.normal(size=6)
S = RNG.normal(size=(3, 3))
P = RNG.uniform(0.5, 2.0, (3, 4))
I = np.array([[3, -1, 4], [1, -5, 9]])  # noqa: E741
F = A.astype(np.float32)
M = A > 0
N = np.where(A > 0.8, np.nan, A)
Z = np.asarray(1.5)
SPD = S @ S.T + 3 * np.eye(3)
E = np.zeros((0, 3))

Case = tuple[str, tuple[Any, ...], dict[str, Any]]
CASES: list[Case] = []


def add(name: str, *args: Any, **kwargs: Any) -> None:
    CASES.append((name, args, kwargs))


# Reductions
for name in ("sum", "prod", "mean", "max", "min", "var", "std", "ptp", "any", "all"):
    for x in (A, I, M, F, Z):
        if name == "ptp" and x is M:
            continue
        add(name, x)
    for axis in (0, -1, (0, 2), None, (2, 0, 1)):
        add(name, C, axis=axis)
        add(name, C, axis, keepdims=True)
    if name not in ("max", "min", "ptp", "mean", "var", "std"):
        add(name, E)
        add(name, E, axis=0)
    add(name, [[1.0, 2.0], [3.0, 4.5]], 1)
add("sum", F, dtype=np.float64)
add("sum", I, dtype=np.float32, axis=0)
add("sum", A, initial=3.0)
add("sum", A, where=M)
add("sum", A, axis=1, where=M, initial=2.0)
add("prod", A, axis=0, where=M)
add("max", A, initial=0.5)
add("max", A, axis=0, where=M, initial=-3.0)
add("min", E, initial=2.0)
add("mean", A, where=M)
add("mean", A, axis=0, where=M)
add("mean", F, dtype=np.float64)
add("mean", A.astype(np.float16))
add("var", A, ddof=1)
add("var", A, axis=1, ddof=1, keepdims=True)
add("var", A, correction=1)
add("std", A, 0, ddof=2)
add("var", A, where=M)
add("average", A)
add("average", A, 1, P)
add("average", A, 1, np.arange(1.0, 5.0))
add("average", A, weights=P, returned=True)
add("average", I)
add("average", I, axis=0, weights=[1, 2])
add("average", C, axis=(0, 2), weights=RNG.uniform(1, 2, (2, 4)))
for name in ("argmax", "argmin"):
    add(name, A)
    add(name, A, 1)
    add(name, C, -2, keepdims=True)
    add(name, A, keepdims=True)
    add(name, V)
add("count_nonzero", I, axis=0)
add("count_nonzero", M, axis=1, keepdims=True)
add("median", V)
add("median", A, axis=0)
add("median", A, axis=1, keepdims=True)
add("median", C, axis=(0, 2))
add("median", C)
add("median", N, axis=1)
add("median", I)
add("quantile", V, 0.3)
add("quantile", A, [0.0, 0.25, 1.0], axis=1)
add("quantile", A, 0.9, axis=0, keepdims=True)
add("percentile", W, 37)
add("percentile", A, [10, 50], axis=0)
for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"):
    add(name, N)
    add(name, N, axis=1)
    add(name, N, axis=0, keepdims=True)
    add(name, I)
add("cumsum", A)
add("cumsum", A, axis=0)
add("cumsum", I, axis=1)
add("cumsum", F, dtype=np.float64)
add("cumsum", Z)
add("cumprod", A, -1)
add("cumprod", M)
add("nancumsum", N, axis=0)
add("cumulative_sum", V, include_initial=True)
add("cumulative_prod", A, axis=1)
add("diff", A)
add("diff", A, 2)
add("diff", A, axis=0)
add("diff", V, prepend=0.0)
add("diff", A, append=B[:, :2], axis=1)
add("diff", M)
add("diff", I, n=1, axis=0)
add("ediff1d", A)
add("ediff1d", V, to_begin=[1.0], to_end=[2.0, 3.0])
add("gradient", V)
add("gradient", A)
add("gradient", A, 0.5, axis=1)
add("trapezoid", V)
add("trapezoid", A, dx=0.5, axis=0)
add("trapezoid", A, np.arange(4.0) ** 2)

# Elementwise
add("clip", A, -0.5, 0.5)
add("clip", A, None, 0.5)
add("clip", A, 0.0, None)
add("clip", F, -0.5, 0.5)
add("clip", A, -P, P)
add("clip", I, 0, 3)
add("clip", A, min=-0.1, max=0.1)
add("where", M, A, B)
add("where", M, A, 0.0)
add("where", M, F, 1)
add("where", A[0] > 0, A, 1.0)
add("where", M)
add("where", True, A, B)
add("round", A, 2)
add("round", A)
add("round", I)
add("round", F, 1)
add("fix", A)
add("sinc", A)
add("sinc", np.zeros(2))
add("isclose", A, A + 1e-9)
add("isclose", A, B)
add("isclose", N, N, equal_nan=True)
add("allclose", A, A)
add("allclose", A, B)
add("array_equal", A, A)
add("array_equal", A, C)
add("array_equal", N, N, equal_nan=True)
add("array_equiv", A, A[0])
add("nan_to_num", N)
add("nan_to_num", np.array([np.inf, -np.inf, np.nan, 1.0]))
add("nan_to_num", np.array([np.inf, 1.0]), posinf=2.0)
add("real", A)
add("imag", A)
add("isreal", A)
add("iscomplexobj", A)
add("result_type", F, 1.0)
add("can_cast", F, np.float64)
add("polyval", [1.0, 2.0, 3.0], A)
add("polyval", V, 2.0)
add("interp", A, np.arange(-2.0, 3.0), RNG.normal(size=5))
add("interp", 0.3, np.arange(-2.0, 3.0), RNG.normal(size=5))
add("interp", np.array([-9.0, 9.0, 2.0]), np.arange(3.0), V[:3], left=0.0, right=1.0)
add("isposinf", np.array([np.inf, 1.0]))

# Shapes
add("reshape", A, (2, 6))
add("reshape", A, -1)
add("reshape", A, (2, -1, 3))
add("reshape", A.T, (2, 6))
add("reshape", A.T, -1)
add("reshape", A, (4, 3), order="F")
add("reshape", A[:, ::2], (6,))
add("reshape", A[:, ::2], (3, 2, 1))
add("reshape", [1.0, 2.0], (2, 1))
add("ravel", A)
add("ravel", A.T)
add("ravel", A, "F")
add("ravel", A.T, "K")
add("ravel", C.transpose(1, 2, 0), "K")
add("ravel", C.transpose(1, 0, 2), "A")
add("reshape", A.T, (6, 2), order="A")
add("ravel", A[:, :2])
add("ravel", Z)
add("transpose", A)
add("transpose", C, (1, 2, 0))
add("transpose", C, (-1, 0, 1))
add("permute_dims", C, (2, 1, 0))
add("matrix_transpose", C)
add("swapaxes", C, 0, -1)
add("moveaxis", C, 0, -1)
add("moveaxis", C, [0, 1], [-1, 0])
add("rollaxis", C, 2)
add("rollaxis", C, 0, 3)
add("squeeze", A[None, :, None])
add("squeeze", A[None, :, None], 0)
add("squeeze", A[None, :, None], (0, 2))
add("squeeze", A)
add("expand_dims", A, 1)
add("expand_dims", A, (0, -1))
add("broadcast_to", V, (3, 4))
add("broadcast_to", 2.0, (3,))
add("broadcast_arrays", A, V, 1.0)
add("broadcast_shapes", (3, 1), (4,))
add("flip", A)
add("flip", A, 1)
add("flip", C, (0, 2))
add("fliplr", A)
add("flipud", V)
for k in range(-1, 4):
    add("rot90", A, k)
add("rot90", C, 1, (1, 2))
add("roll", A, 1)
add("roll", A, -2, axis=1)
add("roll", A, (1, 2), axis=(0, 1))
add("roll", V, 9)
add("roll", V, 0)
add("roll", E, 1, axis=0)
add("diagonal", A)
add("diagonal", A, 1)
add("diagonal", A, -2)
add("diagonal", C, 1, 2, 1)
add("diagonal", A, 9)
add("diag", V)
add("diag", V, 1)
add("diag", V, -2)
add("diag", A)
add("diag", A, -1)
add("diagflat", A[:2, :2], 1)
add("trace", A)
add("trace", C, 1, 1, 2)
add("trace", I)
add("tril", A)
add("tril", C, -1)
add("triu", A, 1)
add("triu", V)
add("triu", I)
add("atleast_1d", Z)
add("atleast_1d", A)
add("atleast_2d", V)
add("atleast_2d", Z, A)
add("atleast_3d", V)
add("atleast_3d", A)
add("shape", A)
add("ndim", A)
add("size", A)
add("size", A, 1)

# Joins
add("concatenate", [A, B])
add("concatenate", (A, B), axis=1)
add("concatenate", [A, V[None]], 0)
add("concatenate", [A, I[:, :1]], axis=None)
add("concatenate", [F, A])
add("concatenate", [V, [1, 2]])
add("stack", [A, B])
add("stack", [A, B], axis=-1)
add("stack", [F, I[[0, 1, 1]][:, [0, 1, 2, 2]]], 1)
add("stack", C)
add("vstack", [V, A])
add("hstack", [V, W])
add("hstack", [A, B])
add("hstack", [Z, Z])
add("dstack", [A, B])
add("dstack", [V, V])
add("column_stack", [V, V])
add("column_stack", [A, V[:3]])
add("append", V, 1.0)
add("append", A, B, axis=0)
add("block", [[A, B], [B, A]])
add("block", [V, 1.0])
add("split", W, 3)
add("split", A, [1, 3], axis=1)
add("array_split", W, 4)
add("array_split", A, 2, 1)
add("hsplit", A, 2)
add("vsplit", A, 3)
add("dsplit", C, 2)
add("unstack", A)
add("unstack", C, axis=1)
add("tile", V, 2)
add("tile", A, (2, 1))
add("tile", V, (2, 2))
add("tile", A, 1)
add("tile", V, (1, 1))
add("tile", Z, 3)
add("repeat", V, 2)
add("repeat", A, 2, axis=1)
add("repeat", A, [1, 0, 2], axis=0)
add("pad", V, 2)
add("pad", A, ((1, 0), (0, 2)))
add("pad", A, 1, constant_values=5.0)
add("pad", V, (1, 2), mode="edge")
add("pad", V, (1, 2), mode="wrap")
add("pad", A, (1, 2), mode="reflect")
add("delete", A, 1, axis=0)
add("delete", V, [0, 2])
add("insert", V, 1, 9.0)
add("insert", A, 1, V[:3], axis=1)

# Products
add("dot", V, V)
add("dot", A, V)
add("dot", A, B.T)
add("dot", V, 2.0)
add("dot", C, A.T)
add("dot", C, RNG.normal(size=(2, 4, 3)))
add("dot", C, V)
add("dot", I, I.T)
add("vdot", A, B)
add("inner", V, V)
add("inner", A, B)
add("inner", A, 2.0)
add("inner", C, V)
add("outer", V, W)
add("outer", A, V)
add("tensordot", A, B, 2)
add("tensordot", C, A, ([1, 2], [0, 1]))
add("tensordot", C, A, ((2,), (1,)))
add("tensordot", V, W, 0)
add("tensordot", A, V, 1)
add("kron", V, W)
add("kron", A, B)
add("kron", A, V)
add("cross", V[:3], W[:3])
add("cross", S, S[0])
add("cross", S, S.T, axis=0)
add("linalg.norm", V)
add("linalg.norm", A)
add("linalg.norm", C, axis=2)
add("linalg.norm", A, axis=1, keepdims=True)
add("linalg.norm", A, keepdims=True)
add("linalg.norm", I)
for order in (1, 2, 3, np.inf, -np.inf, 0, 0.5):
    add("linalg.norm", V, order)
for order in (1, -1, np.inf, -np.inf, "fro"):
    add("linalg.norm", A, order)
add("linalg.norm", C, 1, axis=(0, 2), keepdims=True)
add("linalg.solve", SPD, V[:3])
add("linalg.solve", SPD, A)
add("linalg.solve", SPD, C)
add("linalg.solve", SPD, I.T[:, :1])
add("linalg.inv", SPD)
add("linalg.inv", np.stack([SPD, SPD * 2]))
add("linalg.det", SPD)
add("linalg.det", np.stack([SPD, SPD.T * 2]))
add("linalg.matrix_power", SPD, -2)
add("linalg.vector_norm", A)
add("linalg.matrix_norm", C)
add("linalg.matrix_power", S, 3)
add("linalg.matrix_power", S, 0)
add("linalg.multi_dot", [A, B.T, A])
add("vecdot", A, B)
add("cov", A)
add("cov", V)
add("cov", A, rowvar=False, ddof=0)
for mode in ("full", "same", "valid"):
    add("convolve", W, V, mode)
    add("convolve", V[:3], W, mode)
    add("correlate", W, V, mode)
for text, xs in {
    "ij,jk->ik": (A, B.T),
    "ij,jk,kl->il": (A, B.T, A),
    "...i,...i->...": (C, C),
    "ijk,ljk->il": (C, C),
    "ii->i": (S,),
    "ii": (S,),
    "ij->ji": (A,),
    "ij->": (A,),
    "ij->j": (A,),
    "i,j->ij": (V, W),
    "i,i->": (V, V),
    "i,i": (V, V),
    "bij,bjk->bik": (C, C.transpose(0, 2, 1)),
    "ij,ij->ij": (A, B),
    "ij,j->i": (A, V),
    "ij,kl->ijkl": (A, S),
    "ijj->i": (RNG.normal(size=(2, 3, 3)),),
    "...ij->...ji": (C,),
    "ij,ij,ij->i": (A, B, P),
    "ba,b": (A, V[:3]),
    "i,->i": (V, 2.0),
    "ij,ij->i": (A, B[:, :1]),
}.items():
    add("einsum", text, *xs)
add("einsum", A, [0, 1], B, [2, 1], [0, 2])

# Choosing
add("take", V, [0, -1])
add("take", A, 1, axis=0)
add("take", A, [[0, 1], [2, 0]], axis=1)
add("take", A, 5)
add("take", A, [7, -9], axis=1, mode="wrap")
add("take", A, [7, -9], axis=1, mode="clip")
add("take_along_axis", A, np.argsort(A, axis=1), axis=1)
add("take_along_axis", A, np.argsort(A, axis=0), 0)
add("take_along_axis", A, np.array([1, 5]), axis=None)
add("compress", [True, False, True], A, axis=0)
add("compress", [False, True], V)
add("extract", M, A)
add("choose", np.array([0, 1, 1, 0]), [V, V * 2])
add("choose", np.array([0, 5, -1, 0]), [V, 0.0], mode="clip")
add("select", [M, A < -1.0], [A, B], 7.0)
add("select", [M], [A])
add("nonzero", A > 0)
add("flatnonzero", M)
add("argwhere", M)
add("unravel_index", np.array([5, 7]), (3, 4))
add("unravel_index", 5, (3, 4))
add("ravel_multi_index", (np.array([1, 2]), np.array([0, 3])), (3, 4))
add("ix_", np.array([0, 2]), np.array([True, False, True]))
add("sort", A)
add("sort", A, axis=0)
add("sort", A, axis=None)
add("argsort", A, axis=0)
add("argsort", V, kind="stable")
add("argsort", A, axis=None)
add("searchsorted", np.sort(V), A)
add("searchsorted", np.sort(V), 0.1, side="right")
add("digitize", A, [-1.0, 0.0, 1.0])
add("bincount", np.array([0, 2, 2, 1]), V)
add("bincount", np.array([0, 2, 2, 1]), minlength=5)
add("lexsort", (V, V > 0))
add("lexsort", (A, M), axis=0)
add("histogram", W, [-1.0, 0.0, 0.5, 2.0])
add("histogram", W, 3, weights=W**2)
add("histogram", W, 4, (-1.0, 1.0), density=True)
add("histogram_bin_edges", W, 3)
for ties in (np.array([[3, 1], [1, 2]]), np.array([np.nan, 1, np.nan, 1], "f4")):
    add("unique", ties)
    add("unique", ties, return_index=True, return_inverse=True, return_counts=True)
add("unique", np.array([np.nan, np.nan], "f4"), equal_nan=False)
add("unique", A)
add("unique", E)
add("isin", I, [1, 9])
add("isin", I, [], invert=True)
add("intersect1d", I, [4, 1, 7])
add("setdiff1d", I, [4, 1, 7])
add("union1d", I, [4, 7, 7])
add("setxor1d", I, [4, 7, 7])
add("corrcoef", A)
add("corrcoef", V, V**2)
for name in ("nanargmax", "nanargmin", "nanmedian"):
    add(name, N)
    add(name, N, axis=1)
    add(name, N[:, :1], axis=0, keepdims=True)
add("nanmedian", np.array([[np.nan, np.nan], [1.0, 2.0]]), axis=1)
for method in ("lower", "higher", "midpoint", "nearest"):
    add("quantile", W, [0.1, 0.5, 0.9], method=method)
add("gradient", A, np.cumsum(P[:, 0]), axis=0)
add("gradient", A, 2.0, np.cumsum(P[0]), edge_order=2)
add("gradient", A, edge_order=2, axis=1)
for mode in ("symmetric", "linear_ramp", "mean", "maximum", "minimum", "median"):
    add("pad", A, ((1, 2), (0, 3)), mode=mode)
add("pad", A, 1, mode="linear_ramp", end_values=2.0)
add("pad", A, 1, constant_values=((1, 2), (3, 4)))
add("resize", A, (2, 3))
add("resize", A, (5, 4))
add("resize", E, (2,))
add("apply_along_axis", lambda v: v / np.sum(v), 1, A)
add("apply_along_axis", lambda v: np.outer(v, v), 1, C)
add("apply_over_axes", np.sum, C, [0, 2])

# Copies and likes
add("zeros_like", A)
add("zeros_like", I, dtype=np.float32)
add("ones_like", F)
add("ones_like", A, shape=(2,))
add("full_like", A, 3)
add("full_like", I, 2.7)
add("empty_like", A[:0])
add("array", A)
add("array", A, dtype=np.float32)
add("array", [V, V])
add("array", [V[0], 1.0, 2])
add("array", [[V[0], 1.0], [0.0, V[1]]])
add("array", [F[0, 0], 1.0])
add("array", V, ndmin=3)
add("asarray", A)
add("asarray", I, np.float64)
add("asarray", [V, V])
add("copy", A.T)
add("linspace", V[0], V[1], 5)
add("linspace", V, V * 2, 4)
add("linspace", 0.0, V[1], 3, endpoint=False)
add("linspace", V[0], 1, 1)
add("logspace", V[0], 1.0, 4)
add("meshgrid", V, W)
add("meshgrid", V, W, indexing="ij", sparse=True)
add("vander", V)
add("vander", V, 3, increasing=True)
add("astype", A, np.float32)


def lifted(x: Any) -> Any:
    """Return `x` with its arrays as Tensors."""
    if isinstance(x, np.ndarray):
        t = tensor(0.0)
        return type(t)(x, t._storage)
    if isinstance(x, np.floating):
        return Tensor(x)
    if isinstance(x, list | tuple):
        return type(x)(map(lifted, x))
    return x


def numpy_function(name: str) -> Callable[..., Any]:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def copied(x: Any) -> Any:
    """Return arguments with fresh arrays of the same layout."""
    if isinstance(x, np.ndarray):
        return np.array(x, order="K") if x.flags.forc else _same_layout(x)
    if isinstance(x, list | tuple):
        return type(x)(map(copied, x))
    return x


def _same_layout(x: Any) -> Any:
    out = np.lib.stride_tricks.as_strided(
        np.zeros(sum((d - 1) * s for d, s in zip(x.shape, x.strides, strict=True)) + 8)
        .view(np.uint8)
        .view(x.dtype),
        x.shape,
        x.strides,
    )
    out[...] = x
    return out


def arrays_in(x: Any) -> list[Any]:
    if isinstance(x, Tensor):
        return arrays_in(x._data)
    if isinstance(x, list | tuple):
        return [a for e in x for a in arrays_in(e)]
    return [x] if isinstance(x, np.ndarray) else []


def assert_same(want: Any, got: Any) -> None:
    """Values, dtype, shape, and array or scalar."""
    if isinstance(want, list | tuple):
        assert isinstance(got, type(want))
        assert len(want) == len(got)
        for w, g in zip(want, got, strict=True):
            assert_same(w, g)
        return
    if isinstance(want, np.ndarray | np.generic):
        if isinstance(want, np.bool_) and isinstance(got, bool):
            got = np.bool_(got)
        assert isinstance(got, Tensor), f"{got!r} is no Tensor"
        data = got._data
        assert isinstance(data, np.ndarray) == isinstance(want, np.ndarray)
        assert (data.shape, data.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(
            data, want, rtol=1e-6 if want.dtype.itemsize <= 4 else 1e-12, atol=1e-14
        )
        return
    assert got == want


def name_of(case: Any) -> str:
    return str(case[0])


@every(CASES, name_of)
def test_function_gives_what_numpy_gives(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    function = numpy_function(name)
    theirs, mine = copied(args), copied(args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = function(*theirs, **kwargs)
        got = FUNCTIONS[function](*lifted(mine), **kwargs)
    assert_same(want, got)
    for w, g in zip(arrays_in(want), arrays_in(got), strict=True):
        alias = [np.shares_memory(w, x) for x in arrays_in(theirs) if x.size and w.size]
        ours = [np.shares_memory(g, x) for x in arrays_in(mine) if x.size and g.size]
        assert alias == ours, f"aliasing: NumPy {alias}, ours {ours}"


# ---------------------------------------------------------------- gradients

STEP = 1e-6
PIECEWISE_CONSTANT = {"round", "fix", "count_nonzero", "sign"}


def is_delicate(x: Any) -> bool:
    """Tell what has no precise difference: float32, orders that follow the layout."""
    return x is np.float32 or (isinstance(x, str) and x in ("A", "K"))


SMOOTH = [
    (name, args, kwargs)
    for name, args, kwargs in CASES
    if name not in PIECEWISE_CONSTANT
    and not any(map(is_delicate, (*args, *kwargs.values())))
    and not (name == "interp" and "left" in kwargs)  # jumps
    and not (name == "nanmedian" and isinstance(args[0], np.ndarray))  # NaN moves
    and not (name == "median" and args[0] is N)
    and not (name == "nan_to_num" and args[0].ndim == 1)
]


def float_leaves(x: Any) -> list[Any]:
    """Return the float64 arrays among arguments."""
    if isinstance(x, np.ndarray):
        return [x] if x.dtype == np.float64 and x.size else []
    if isinstance(x, list | tuple):
        return [a for e in x for a in float_leaves(e)]
    return []


def moved(x: Any, by: dict[int, Any], step: float) -> Any:
    """Return arguments with every float64 array moved along its direction."""
    if id(x) in by:
        return x + step * by[id(x)]
    if isinstance(x, list | tuple):
        return type(x)(moved(e, by, step) for e in x)
    return x


def with_leaves(x: Any, leaves: dict[int, Tensor]) -> Any:
    if id(x) in leaves:
        return leaves[id(x)]
    if isinstance(x, list | tuple):
        return type(x)(with_leaves(e, leaves) for e in x)
    return x


def float_results(x: Any) -> list[Any]:
    if isinstance(x, list | tuple):
        return [r for e in x for r in float_results(e)]
    dtype = getattr(x, "dtype", None)
    return [x] if dtype is not None and dtype.kind == "f" else []


def loss(results: list[Any], cts: list[Any]) -> Any:
    total: Any = 0.0
    for r, ct in zip(results, cts, strict=True):
        total = total + (r * ct).sum()
    return total


@every(SMOOTH, name_of)
def test_gradient_is_that_of_central_differences(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    function = numpy_function(name)
    rng = np.random.default_rng(3)
    xs = {id(x): x for x in float_leaves(args)}
    if name in ("interp", "searchsorted", "clip", "extract", "select", "sinc"):
        xs = dict(list(xs.items())[:1])
    directions = {
        k: np.where(np.isfinite(x), rng.normal(size=x.shape), 0.0)
        for k, x in xs.items()
    }
    leaves = {k: tensor(x, requires_grad=True) for k, x in xs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = float_results(function(*args, **kwargs))
        results = float_results(
            FUNCTIONS[function](*with_leaves(args, leaves), **kwargs)
        )
        results = [r for r in results if isinstance(r, Tensor)]
        if not leaves or not results or not any(r.requires_grad for r in results):
            if name in ("sum", "mean", "reshape", "concatenate", "einsum", "matmul"):
                assert not leaves or not wanted, "a gradient is lost"
            return
        cts = [rng.normal(size=np.shape(w)) for w in wanted]
        loss(results, cts).backward()
        ends = [
            loss(float_results(function(*moved(args, directions, h), **kwargs)), cts)
            for h in (STEP, -STEP)
        ]
    want = (ends[0] - ends[1]) / (2 * STEP)
    got = 0.0
    for k, leaf in leaves.items():
        if leaf.grad is not None:
            got += float(np.nansum(np.asarray(leaf.grad.detach()) * directions[k]))
    assert got == pytest.approx(want, rel=2e-6, abs=2e-7)
