"""Run short loops of the program inside the nest that they repeat.

A loop of the program around one nest goes through all memory of the nest in every
iteration. Where its iterations are few numbers, and what an iteration of the nest's
outer loop touches is its own, that loop is put around it instead:

    for k in 0..3                           for i in 0..n
      for i in 0..n                           for k in 0..3
        for j in 0..m                           for j in 0..m
          d[i*p + j + k] += g[...]                d[i*p + j + k] += g[...]

What the nest touches in an iteration stays in a cache for all k, and one loop over i
is given to threads instead of three. Each element is still read and written in the
order of k, so no bit changes. The innermost loop, which has vectors, stays inside.

Note [rows]
Then the next loop of the nest is looked at, and put outside as well if at least two
loops stay inside. What is left may be a few elements long: a copy of 3 x 3 windows of 8
channels (float32) took 0.87 ms with rows of 26 points inside, 1.32 ms with one point,
3.29 ms as nine passes.

Note [few iterations]
Only loops with at most FEW iterations, known now, are moved. A loop of many, such as
one over time, may read other memory in every iteration, and all of it again for every
i, where it read it once before; few rows are read side by side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..ir import dims
from ..ir.dims import Facts
from .apart import Range, are_apart
from .carried import folds_of, uses_in
from .nests import Bind, Let, Loop, Program, Set, Statement, Store, every, inner

FEW = 64  # iterations, of all loops that are moved together


def interchange(p: Program) -> None:
    """Put loops of nests around short loops of the program, where that is the same."""
    _block(p.body, p.facts, uses_in(p))


def _block(
    body: list[Statement], facts: Facts, uses: Counter[str], rest: int = 1
) -> None:
    """Change the loops of a list; `rest` loops of a nest stay inside of all others."""
    for k, s in enumerate(body):
        if isinstance(s, Loop):
            body[k] = s = _exchanged(s, facts, uses, rest) or s
            run = Range.of(s)
            if run is not None and not s.block:
                known = facts.having(*run.facts)
                _block(s.body, known, uses, rest if s.ordered else 2)
        else:
            for part in inner(s):
                _block(part, facts, uses, rest)


def _exchanged(loop: Loop, facts: Facts, uses: Counter[str], rest: int) -> Loop | None:
    """Return a loop of the nest inside, with the loop of the program inside it."""
    around = _around(loop)
    nest = around[-1].body[-1] if around else None
    if not isinstance(nest, Loop) or not _is_movable(nest, around, rest):
        return None
    body: list[Statement] = [*around[-1].body[:-1], *nest.body]
    for outer in reversed(around):
        body = [replace(outer, body=body)]
    new = replace(nest, body=body)
    if folds_of(new, uses) != [] or not are_apart(new, facts):
        return None
    return new


def _around(loop: Loop) -> list[Loop]:
    """Return the short loops of the program, one inside the other, around a nest."""
    found: list[Loop] = []
    count = 1
    s: Statement = loop
    while isinstance(s, Loop) and s.ordered:
        trips = _trips(s)
        if trips is None or not s.body:
            return []
        count *= trips
        found.append(s)
        *before, s = s.body
        if not all(isinstance(x, Let) for x in before):
            return []
    return found if 1 < count <= FEW else []


def _trips(loop: Loop) -> int | None:
    match loop.start, loop.stop, loop.step:
        case int(start), int(stop), int(step) if step:
            return math.ceil((stop - start) / step)
    return None


def _is_movable(nest: Loop, around: Sequence[Loop], rest: int) -> bool:
    """Tell whether a loop has enough others inside, and could be outside `around`."""
    ends = dims.symbols_of(nest.start) | dims.symbols_of(nest.stop)
    plain = Let | Set | Bind | Store | Loop
    return (
        not nest.ordered
        and not nest.block
        and nest.step in (1, -1)
        and _depth(nest) > rest
        and not ends & {outer.index for outer in around}
        and all(isinstance(s, plain) for s in every([nest]))
    )


def _depth(loop: Loop) -> int:
    return 1 + max((_depth(s) for s in loop.body if isinstance(s, Loop)), default=0)
