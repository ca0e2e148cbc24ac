"""Loops whose iterations are shared out among threads.

The iterations must be apart in memory (`apart.py`), but for additions to elements whose
place the program computes, which become atomic, and no variable may go from one to the
next, except for folds (`carried.py`). Loops nested in each other with nothing between
become one, if they are all apart; and of

    for i in 0..n
      for j in 0..m
        r[j] += x[i*m + j]

it is the inner loop that is shared out, with the outer one in each thread. Where that
gives too few iterations, or the outer loop does more, blocks take iterations of the
outer loop and add to rows of their own, which are added up afterwards. So it is with
maxima, and all that has a neutral element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from ...ir import dims
from ...ir.dims import Dim, Facts
from ..apart import Range, are_apart
from ..carried import Fold, folds_of, neutral_of, start_anew
from ..nests import (
    Apply,
    Bind,
    Buffer,
    Check,
    If,
    Let,
    Load,
    Loop,
    Scalar,
    Set,
    Statement,
    Store,
    copied,
    every,
    inner,
    rewrite,
)
from .steps import touched

SUM = "({0} + {1})"
PLAIN = Let | Set | Bind | Store | Loop | If | Check


def is_plain(loop: Loop) -> bool:
    """Tell whether a loop holds what threads can do apart from each other."""
    return Range.of(loop) is not None and all(
        isinstance(s, PLAIN) for s in every([loop])
    )


def shared(
    loop: Loop,
    facts: Facts,
    uses: Counter[str],
    own: Collection[Buffer] = (),
    in_order: bool = False,
) -> tuple[list[Loop], list[Fold]] | None:
    """Return the loops to share out, outermost first, and their folds; None: not so.

    The loop is changed: folds start anew, additions become atomic; of floats, which may
    have to be `in_order`, they do not then. Rows of the buffers `own` belong to an
    iteration.
    """
    folds = folds_of(loop, uses)
    if folds is None:
        return None
    added = set() if own else added_to(loop)
    if in_order:
        added = {b for b in added if b.dtype.kind != "f"}
    if not are_apart(loop, facts, own, added):
        swapped = _exchanged(loop, facts) if not folds and not own else None
        if swapped is None:
            return None
        loop = swapped
        added = set()
    loops = [loop] if own else _flat(loop, facts, added)
    for f in folds:
        start_anew(loop, f)
    if added:
        _make_atomic(loop, added)
    return loops, folds


def _flat(loop: Loop, facts: Facts, added: Collection[Buffer]) -> list[Loop]:
    """Return a loop and those directly in it that can be shared out with it."""
    loops = [loop]
    while len(loops[-1].body) == 1 and not loops[-1].block:
        s = loops[-1].body[0]
        run = Range.of(loops[-1])
        assert run is not None
        facts = facts.having(*run.facts)
        if not isinstance(s, Loop) or s.ordered or Range.of(s) is None:
            break
        outer = {x.index for x in loops}
        bounds = dims.symbols_of(s.start) | dims.symbols_of(s.stop)
        if bounds & outer or not are_apart(s, facts, (), added):
            break
        loops.append(s)
    return loops


def _exchanged(loop: Loop, facts: Facts) -> Loop | None:
    """Return two loops in the other order, if the inner one's iterations are apart."""
    s = loop.body[0]
    if len(loop.body) != 1 or loop.block or not isinstance(s, Loop):
        return None
    bounds = dims.symbols_of(s.start) | dims.symbols_of(s.stop)
    if s.block or s.ordered or loop.index in bounds or not isinstance(s.step, int):
        return None
    swapped = replace(s, body=[replace(loop, body=s.body)])
    return swapped if are_apart(swapped, facts) else None


def trips(loop: Loop) -> Dim:
    """Return how many iterations a loop has."""
    run = Range.of(loop)
    assert run is not None
    assert isinstance(loop.step, int)
    size = abs(loop.step)
    some = dims.maximum(dims.add(run.some, size), 0)
    return some if size == 1 else dims.floordiv(some, size)


def shareable(
    body: Sequence[Statement], facts: Facts, uses: Counter[str], in_order: bool
) -> Iterator[Loop]:
    """Yield the loops in an iteration that the threads of a block can share."""
    for s in body:
        known = facts
        if isinstance(s, Loop):
            run = Range.of(s)
            loop = copied(s)
            assert isinstance(loop, Loop)
            if is_plain(s) and shared(loop, facts, uses, (), in_order) is not None:
                yield s
            known = facts.having(*run.facts) if run else facts
        for part in inner(s):
            yield from shareable(part, known, uses, in_order)


def inner_length(
    loops: Sequence[Loop], among: Container[Loop] | None = None, *, flat: bool = False
) -> Dim | None:
    """Return the iterations of the longest loop in an iteration; None without any.

    An iteration is one of all the loops, nested in each other. Loops inside whose
    bounds depend on their indices, or on what the iteration computes, do not count, nor
    do those that are not `among` some. With `flat`, loops directly in each other are
    one.
    """
    body = loops[-1].body
    computed = {s.symbol for s in every(body) if isinstance(s, Bind)}
    computed |= {s.index for s in every([*loops]) if isinstance(s, Loop)}
    found: Dim = 0
    for s in every(body):
        count: Dim = 1
        while isinstance(s, Loop) and (run := Range.of(s)) is not None:
            counts = among is None or s in among
            if counts and not dims.symbols_of(run.some) & computed:
                count = dims.mul(count, dims.add(run.some, 1))
                found = dims.maximum(found, count)
            if not flat or len(s.body) != 1:
                break
            s = s.body[0]
    return found if found != 0 else None


# ---------------------------------------------------------------- additions


def added_to(loop: Loop) -> set[Buffer]:
    """Return the buffers of which a loop does nothing but add to elements."""
    times = Counter(b for b, _ in touched(loop))
    sums = Counter(
        s.buffer
        for s in every([loop])
        if isinstance(s, Store) and term_of(s) is not None
    )
    computed = {s.symbol for s in every([loop]) if isinstance(s, Bind)}
    plus = Counter(
        s.buffer for s in every([loop]) if isinstance(s, Store) and s.combine
    )
    found = {b for b, n in sums.items() if times[b] == 2 * n - plus[b]}
    return {
        s.buffer
        for s in every([loop])
        if isinstance(s, Store)
        and s.buffer in found
        and dims.symbols_of(s.offset) & computed
    }


def folds_of_rows(loop: Loop) -> dict[Buffer, str]:
    """Return the buffers into whose elements, at known places, a loop only folds."""
    times = Counter(b for b, _ in touched(loop))
    computed = {s.symbol for s in every([loop]) if isinstance(s, Bind)}
    found: Counter[tuple[Buffer, str]] = Counter()
    for s in every([loop]):
        step = step_of(s) if isinstance(s, Store) else ""
        if isinstance(s, Store) and step:
            known = not dims.symbols_of(s.offset) & (computed | {loop.index})
            found[s.buffer, step] += known
    return {b: step for (b, step), n in found.items() if n and times[b] == 2 * n}


def step_of(s: Store) -> str:
    """Return the step by which a store folds a value into its element; "": none."""
    x, b = s.value, s.buffer
    if term_of(s) is not None:
        return "" if s.combine else SUM
    if s.combine or not isinstance(x, Apply) or x.dtype != b.dtype:
        return ""
    known = neutral_of(x.template, x.dtype) is not None
    return x.template if known and x.args[0] == Load(b, s.offset, b.dtype) else ""


def in_rows(body: Sequence[Statement], rows: Mapping[Buffer, Buffer]) -> None:
    """Let statements fold into other buffers."""

    def leaf(x: Scalar) -> Scalar:
        if isinstance(x, Load) and x.buffer in rows:
            return Load(rows[x.buffer], x.offset, x.dtype)
        return x

    for s in every(list(body)):
        if isinstance(s, Store) and s.buffer in rows:
            s.buffer, s.value = rows[s.buffer], rewrite(s.value, leaf)


def term_of(s: Store) -> Scalar | None:
    """Return what a store adds to its element; None where it does something else."""
    x = s.value
    if s.combine:
        return x if s.combine == "add" else None
    if not isinstance(x, Apply) or x.template != SUM or x.dtype.kind == "b":
        return None
    old = Load(s.buffer, s.offset, s.buffer.dtype)
    if x.dtype != s.buffer.dtype:
        return None
    a, b = x.args
    return b if a == old else a if b == old else None


def _make_atomic(loop: Loop, added: Collection[Buffer]) -> None:
    for s in every([loop]):
        term = term_of(s) if isinstance(s, Store) and s.buffer in added else None
        if isinstance(s, Store) and term is not None:
            s.value, s.combine = term, "add"
