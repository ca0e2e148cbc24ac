"""Loops with many operations: how they keep the processor busy.

Note [large loops]
What one vector of elements needs is a chain of operations, each waiting for the one
before. Of a short chain the processor computes several at once, as later iterations fit
into its window; of a long one not even the next fits. So two vectors are computed in
turn in an iteration of a large loop (LLVM's `interleave.count`; it takes one by itself
where it sees many registers in use). Besides, a call of libmvec there has many
registers to save around it, so the exponential, the shortest polynomial, is inline.

Measured with 512 bits, f64 and f32: Black-Scholes by a rational approximation 1.21 and
1.21 times as fast, by tanh 1.26 and 1.29, bundle adjustment 1.03 to 1.10 (f64). Four
vectors gain no more, and the logarithm is no faster inline. In loops of up to 30
operations neither gains anything, and logaddexp takes 1.4 times as long.
"""

from __future__ import annotations

from collections.abc import Iterable

from .nests import (
    Apply,
    Bind,
    Check,
    Let,
    Loop,
    Program,
    Set,
    Statement,
    Store,
    every,
)

LARGE = 60  # statements of one operation each
VECTORS = 2
DENSE = 8  # statements per access, see Note [512 bits] of vecmath
INLINE = {"exp({0})": "inline_exp({0})"}


def inline_in_large_loops(p: Program) -> None:
    """Take inline functions in the large innermost loops of a program."""
    for s in every(p.body):
        if isinstance(s, Loop) and len(s.body) >= LARGE and _is_straight(s.body):
            for inner in s.body:
                if isinstance(inner, Let) and isinstance(inner.value, Apply):
                    x = inner.value
                    name = INLINE.get(x.template, x.template)
                    inner.value = Apply(name, x.args, x.dtype)


def _is_straight(body: Iterable[Statement]) -> bool:
    return all(isinstance(s, Let | Set | Bind | Check | Store) for s in body)
