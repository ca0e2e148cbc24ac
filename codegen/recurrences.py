"""Make loops fast whose iterations need what the one before has computed.

The innermost loops of a program are rewritten when they are complete: what the next
iteration touches again stays in registers (`windows.py`), and what it waits for is the
last operand of the sums it is in (`chains.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.dims import Facts
from .chains import shortened
from .flat import flat, without_copies
from .kernels import at, compare
from .nests import If, Lit, Loop, Statement
from .places import Run, tracks_of
from .windows import windowed

if TYPE_CHECKING:
    from .kernels import Lowering


def improved(low: Lowering, loop: Loop, facts: Facts) -> list[Statement]:
    """Return the statements that do what a loop does; `facts` are those around it."""
    run = Run.of(loop, facts)
    body = flat(low, loop.body)
    if run is None or body is None:
        return [loop]
    tracks = tracks_of(run, body)
    around = windowed(low, run, body, tracks) if tracks is not None else None
    before, body, after = around or ([], body, [])
    body = without_copies(body)
    shorter = shortened(low, body, tracks or [])
    if around is None and shorter is None:
        return [loop]
    loop.body = body if shorter is None else shorter
    if not (before or after) or facts.proves(dims.add(run.count, -1)):
        return [*before, loop, *after]
    some = compare(">", at(run.count), Lit(0, at(run.count).dtype))
    return [If(some, [*before, loop, *after], [])]
