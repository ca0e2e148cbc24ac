"""Loops with much arithmetic: how they keep the processor busy.

Note [large loops]
What one vector of elements needs is a chain of operations, each waiting for the one
before. Of a short chain the processor computes several at once, as later iterations fit
into its window; of a long one not even the next fits. So several vectors are computed
in turn in an iteration of a large loop (LLVM's `interleave.count`; it takes one by
itself where it sees many registers in use). Besides, a call of libmvec there has many
registers to save around it, so the exponential, the shortest polynomial, is inline.

Which loops are large depends on the width of vectors. Measured with 512 bits, f64 and
f32: Black-Scholes by a rational approximation 1.21 and 1.21 times as fast, by tanh 1.26
and 1.29, bundle adjustment 1.03 to 1.10 (f64). Four vectors gain no more, and the
logarithm is no faster inline. In loops of up to 30 operations neither gains anything,
and logaddexp takes 1.4 times as long.

With 256 bits (Zen 3) four vectors pay in much shorter loops, where arithmetic is the
bound, f64 and f32: the chain of three exponentials 1.31 and 1.38 times as fast, gelu
1.60 and 1.42, a polynomial 1.35, softplus 1.27, swish 1.17 and 1.29, Black-Scholes 1.42
and 1.26, the exponentials of a softmax 1.15 (f64; in f32 0.92, as a row has few groups
of four vectors). Where accesses are the bound, it costs registers: clip 0.76.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..runtime import vecmath
from ..runtime.vecmath import BINARY, UNARY
from .nests import (
    Apply,
    Bind,
    Check,
    Let,
    Load,
    Loop,
    Program,
    Set,
    Statement,
    Store,
    every,
    leaves,
    scalars_of,
)

LARGE = 60  # statements of one operation each, with vectors of 512 bits
VECTORS = 2
NARROW_LARGE = 128  # with shorter vectors: operations times the bytes of an element
NARROW_VECTORS = 4
DENSE = 8  # operations per access where arithmetic is the bound
DIVISION, FUNCTION = 4, 8  # operations that a quotient, an exp count as much as
FUNCTIONS = frozenset((*UNARY, *BINARY, "inline_exp", "power", "logaddexp"))
INTERLEAVED = "interleaved"  # what loops with several vectors have for `range`
INLINE = {"exp({0})": "inline_exp({0})"}


def interleave(p: Program) -> None:
    """Have the large innermost loops of a program compute several vectors in turn."""
    for s in every(p.body):
        if isinstance(s, Loop) and _is_straight(s.body):
            s.vectors = _vectors(s.body)
            if s.vectors and p.scalars == "scalar":
                _take_inline(s.body)


def _take_inline(body: Sequence[Statement]) -> None:
    for s in body:
        if isinstance(s, Let) and isinstance(s.value, Apply):
            x = s.value
            name = INLINE.get(x.template, x.template)
            s.value = Apply(name, x.args, x.dtype)


def _vectors(body: Sequence[Statement]) -> int:
    """Return how many vectors a loop computes in turn; 0: LLVM decides."""
    if vecmath.is_wide():
        return VECTORS if len(body) >= LARGE else 0
    nodes = [x for s in body for tree in scalars_of(s) for x in leaves(tree)]
    applied = [x for x in nodes if isinstance(x, Apply)]
    work = len(body) + sum(map(_weight, applied))
    accesses = sum(isinstance(x, Load) for x in nodes)
    accesses += sum(isinstance(s, Store) for s in body)
    floats = (x.dtype.itemsize for x in applied if x.dtype.kind == "f")
    size = min(floats, default=0)
    large = work >= DENSE * accesses and work * size >= NARROW_LARGE
    return NARROW_VECTORS if large else 0


def _weight(x: Apply) -> int:
    """Return for how many more operations an operation counts than for one."""
    if x.template.partition("(")[0] in FUNCTIONS:
        return FUNCTION
    return DIVISION * x.template.count(" / ")


def _is_straight(body: Iterable[Statement]) -> bool:
    return all(isinstance(s, Let | Set | Bind | Check | Store) for s in body)
