"""How elementwise ops are declared: types, samples and dtypes from the NumPy ufunc."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..dims import Dim
from ..errors import DTypeError
from ..op import Derivative, Kind, Op, Partial, Sample, define
from ..types import DType, Type, broadcast_shapes, promote, scalar_type

_WEAK: dict[str, type] = {"b": bool, "i": int, "f": float, "c": complex}

Interval = tuple[float, float]
REALS: Interval = (-2.0, 2.0)


@cache
def _resolved(ufunc: np.ufunc, *types: tuple[DType, bool]) -> tuple[DType, ...]:
    given: list[Any] = [
        _WEAK[dtype.kind] if weak and dtype.kind != "b" else dtype
        for dtype, weak in types
    ]
    if all(isinstance(g, type) for g in given):
        given = [dtype for dtype, _ in types]
    return tuple(ufunc.resolve_dtypes((*given, None)))


def ufunc_dtypes(ufunc: np.ufunc, types: Sequence[Type]) -> tuple[DType, ...]:
    """Return the dtypes of operands and result as NumPy resolves them (NEP 50)."""
    try:
        return _resolved(ufunc, *[(t.dtype, t.weak) for t in types])
    except TypeError as error:
        shown = ", ".join(map(str, types))
        raise DTypeError(
            f"{ufunc.__name__}: not defined for {shown}", rule=str(error).split("\n")[0]
        ) from None


def elementwise_type(dtype: DType, types: Sequence[Type], weak: bool = False) -> Type:
    """Return the type of a ufunc's result: 0-d results are scalars, as in NumPy.

    With `weak`, Python numbers alone give a Python number, as Python's operators do.
    """
    shape = broadcast_shapes(*(t.shape for t in types))
    if shape:
        return Type(dtype, shape)
    weak = weak and all(t.weak for t in types) and dtype.kind != "b"
    return scalar_type(dtype, weak)


def elementwise(
    ufunc: np.ufunc,
    lower: str,
    derivatives: Sequence[Derivative | Callable[..., Any]],
    domain: Sequence[Interval] = (),
    *,
    name: str = "",
    eager: Callable[..., Any] | None = None,
    cost: int = 1,
    kinds: str = "f",
    kink: bool = False,
    weak: bool = False,
    on_dims: Callable[..., Dim] | None = None,
    signs: tuple[int, ...] = (),
    multiplies: bool = False,
    computes: Callable[..., Sequence[DType]] | None = None,
) -> Op:
    """Define an elementwise op from its ufunc.

    `derivatives` holds one entry per operand: a callable is a `Partial` rule. `domain`
    holds one interval per operand from which samples are drawn, `kinds` the dtype kinds
    of samples ("f", "i", "b"). An op that is another one than the ufunc's has a `name`
    and an `eager` of its own. Operands become the dtypes of the ufunc's loop, or
    those that `computes` says.
    """
    nin = ufunc.nin
    domains = list(domain) or [REALS] * nin

    def infer(*types: Type) -> Type:
        return elementwise_type(ufunc_dtypes(ufunc, types)[-1], types, weak)

    def of_loop(*types: Type) -> Sequence[DType]:
        return ufunc_dtypes(ufunc, types)[:-1]

    return define(
        name=name or ufunc.__name__,
        kind=Kind.ELEMENTWISE,
        operands=("x", "y", "z")[:nin],
        infer=infer,
        eager=eager or ufunc,
        derivatives=tuple(d if not callable(d) else Partial(d) for d in derivatives),
        lower=lower,
        samples=lambda rng: elementwise_samples(rng, domains, kinds, kink),
        computes=computes or of_loop,
        weak=weak,
        cost=cost,
        on_dims=on_dims,
        signs=signs,
        multiplies=multiplies,
    )


_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((2, 1), (1, 3)),
    ((), ()),
    ((0, 2), (1, 2)),
    ((5,), ()),
]


def elementwise_samples(
    rng: np.random.Generator, domains: Sequence[Interval], kinds: str, kink: bool
) -> Iterator[Sample]:
    """Yield usual, broadcast, 0-d, empty, strided, float32 and integer arguments."""

    def draw(shape: tuple[int, ...], domain: Interval, dtype: Any) -> Any:
        if np.dtype(dtype).kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        if np.dtype(dtype).kind in "iu":
            low, high = max(domain[0] * 3, -6), domain[1] * 3 + 1
            return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
        return np.asarray(rng.uniform(*domain, shape), dtype)

    def sample(dtypes: Sequence[Any], k: int, strided: bool = False) -> Sample:
        args = []
        for n, (domain, dtype) in enumerate(zip(domains, dtypes, strict=True)):
            x = draw(_SHAPES[k][min(n, 1)], domain, dtype)
            args.append(np.repeat(x, 2, axis=-1)[..., ::-2] if strided else x)
        is_float = all(np.dtype(d).kind == "f" for d in dtypes)
        return Sample(tuple(args), differentiable=is_float and not kink)

    n = len(domains)
    if "f" in kinds:
        yield from (sample([np.float64] * n, k) for k in range(len(_SHAPES)))
        yield sample([np.float64] * n, 0, strided=True)
        yield sample([np.float32] * n, 1)
        if n == 2:
            yield sample([np.float32, np.float64], 1)
            yield Sample((draw((3,), domains[0], np.float64), 1.5))
            yield Sample((np.float32(1.25), 0.5))
            single = draw((3,), domains[1], np.float32)
            yield Sample((1.25, single), differentiable=not kink)
    if "i" in kinds:
        yield from (sample([np.int64] * n, k) for k in (0, 1, 3))
        yield sample([np.int32] * n, 0)
        if "f" in kinds and n == 2:
            yield sample([np.float64, np.int64], 1)
    if "b" in kinds:
        yield sample([np.bool_] * n, 1)


def promoted_type(*types: Type) -> Type:
    """Return the broadcast type of the promoted dtype."""
    return elementwise_type(promote(*types).dtype, types)
