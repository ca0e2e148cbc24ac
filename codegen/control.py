"""Loops and branches of the program, and sizes that it computes.

Every carry of a loop has one place for all iterations: a variable, or a buffer. What an
iteration yields is put there at its end; a value that was computed in the carry's own
buffer is there already.

Note [exchanged buffers]
Where an iteration yields a whole buffer of its own as the next value of a carry, or two
carries in each other's place, the buffers exchange their memory, and nothing is copied.
After the loop each gets its own memory back, with its contents: what else was laid out
in that memory need not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..ir import dims
from ..ir.dims import Dim, Symbol
from ..ir.errors import OutcomeError, ShapeError
from ..ir.func import Node, Operand, Value, free_values, type_of
from ..ir.types import I64
from ..ir.verify import loop_facts
from .kernels import Stored, at, cast, compare, whole
from .nests import (
    Apply,
    Bind,
    Buffer,
    Grow,
    If,
    Lit,
    Load,
    Loop,
    Reg,
    Rotate,
    Set,
    Statement,
    Store,
    While,
)
from .recurrences import improved

if TYPE_CHECKING:
    from .kernels import Lowering

Carry = Reg | Buffer


def _enter(low: Lowering, node: Node) -> list[Carry]:
    """Give every carry its place, with the initial value in it."""
    carries: list[Carry] = []
    for x, p, v in zip(
        node.operands, node.regions[0].params, node.results, strict=False
    ):
        if not p.type.shape:
            start = cast(low.element(x, ()), p.type.dtype)
            carries.append(low.variable(start, "carry"))
            continue
        b = low.target(v)
        source = low.stored(x)
        if not (source.buffer is b and source.whole):
            low.copy_into(b, source)
        carries.append(b)
    return carries


def _define(low: Lowering, values: Sequence[Value], carries: Sequence[Carry]) -> None:
    for v, c in zip(values, carries, strict=True):
        low.values[v] = whole(c, v.type.shape) if isinstance(c, Buffer) else c


def _give_back(
    low: Lowering,
    yielded: Sequence[Operand],
    values: Sequence[Value],
    carries: Sequence[Carry],
    first: int,
) -> list[Rotate]:
    """Put what is yielded into the carries, all at once.

    `first` is the number of the first buffer that the iteration made. Returns the
    buffers that have exchanged memory instead.
    """
    moves: list[tuple[Carry, Stored | Reg | Lit]] = []
    buffers = [c for c in carries if isinstance(c, Buffer)]
    turns = _rotations(low, yielded, carries, first)
    turned = {b for r in turns for b in r.buffers}
    for x, v, c in zip(yielded, values, carries, strict=True):
        if c in turned:
            continue
        if isinstance(c, Reg):
            value = low.element(x, ())
            if value == c:
                continue
            copied = low.variable(cast(value, c.dtype), "next")
            moves.append((c, copied))
            continue
        source = low.stored(x)
        if source.buffer is c and source.whole:
            continue
        if source.buffer in buffers:  # another carry, or a view of this one
            b = low.allocate(v.type.dtype, v.type.shape)
            low.copy_into(b, source)
            source = whole(b, v.type.shape)
        moves.append((c, source))
    for c, s in moves:
        if isinstance(c, Reg):
            assert not isinstance(s, Stored)
            low.emit(Set(c.name, s))
        else:
            assert isinstance(s, Stored)
            low.copy_into(c, s)
    low.body.extend(turns)
    return turns


def _rotations(
    low: Lowering, yielded: Sequence[Operand], carries: Sequence[Carry], first: int
) -> list[Rotate]:
    """Return the exchanges of memory; see Note [exchanged buffers]."""
    places = [low.values[x] if isinstance(x, Value) else None for x in yielded]
    sources = [p.buffer for p in places if isinstance(p, Stored)]
    next_of: dict[Buffer, Buffer] = {}  # whose memory a carry takes
    for p, c in zip(places, carries, strict=True):
        if not isinstance(p, Stored) or not isinstance(c, Buffer) or not p.whole:
            continue
        b = p.buffer
        alike = b is not c and b.dtype == c.dtype and b.size == c.size
        if alike and sources.count(b) == 1:
            next_of[c] = b
    found: list[Rotate] = []
    for c in [c for c in next_of if c not in sources or next_of.get(c) in carries]:
        chain = [c]
        while (last := next_of.get(chain[-1])) is not None and last not in chain:
            chain.append(last)
        ends = last is c or (c not in sources and _is_scratch(low, chain[-1], first))
        if len(chain) > 1 and ends and not any(c in r.buffers for r in found):
            found.append(Rotate(chain))
    return found


def _is_scratch(low: Lowering, b: Buffer, first: int) -> bool:
    """Tell whether an iteration has memory of its own for a buffer."""
    made = low.buffers[first:]
    alone = sum(other.scope == b.scope for other in made) == 1
    return b in low.alive[-1] and b.place == "arena" and alone


def _counted(
    low: Lowering, turns: Sequence[Rotate], body: list[Statement]
) -> list[Reg]:
    """Count rotations, up to a full turn."""
    counts = []
    for r in turns:
        oldest = r.buffers[0].eldest()
        for b in r.buffers[1:]:
            if b.eldest() is not oldest:
                b.eldest().kin = oldest
        count = low.variable(Lit(0, I64), "turns")
        last = compare("==", count, Lit(len(r.buffers) - 1, I64))
        more = Apply("({0} + {1})", (count, Lit(1, I64)), I64)
        after = Apply("where({0}, {1}, {2})", (last, Lit(0, I64), more), I64)
        body.append(Set(count.name, after))
        counts.append(count)
    return counts


def _turn_back(low: Lowering, turns: Sequence[Rotate], counts: Sequence[Reg]) -> None:
    """Give buffers their own memory again, with their contents."""
    for r, count in zip(turns, counts, strict=True):
        *_, last = r.buffers
        symbol, number = low.symbol("k")
        low.emit(Bind(symbol, count))
        with low.into() as body:
            with low.loops((last.size,)) as (i,):
                xs = [low.let(Load(b, i, b.dtype)) for b in r.buffers]
                for b, x in zip([last, *r.buffers], xs, strict=False):
                    low.emit(Store(b, i, x))
            low.emit(Rotate(r.buffers[::-1]))
        low.emit(Loop(low.symbol("k")[0], 0, number, 1, body))


def loop(low: Lowering, node: Node) -> None:
    """Lower a `for`."""
    (region,) = node.regions
    a = node.attrs
    index = dims.as_symbol(a["index"])
    assert index is not None
    step = a["step"]
    carries = _enter(low, node)
    _define(low, region.params, carries)
    facts = low.facts
    low.facts = facts.having(*loop_facts(node))
    down = isinstance(step, int) and step < 0
    first, last = a["start"], dims.add(a["stop"], 1 if down else -1)
    low.ranges[index] = (last, first) if down else (first, last)
    made = len(low.buffers)
    with low.into() as body:
        low.block(region)
        turns = _give_back(low, region.results, region.params, carries, made)
        low.close()
    del low.ranges[index]
    low.facts = facts
    counts = _counted(low, turns, body)
    around = Loop(index, a["start"], a["stop"], step, body)
    found = [around] if turns else improved(low, around, facts)
    for s in found:
        if isinstance(s, Loop):
            s.ordered = True
    low.body.extend(found)
    _turn_back(low, turns, counts)
    _define(low, node.results, carries)


def while_loop(low: Lowering, node: Node) -> None:
    """Lower a `while`: the test is run before every iteration."""
    test, region = node.regions
    carries = _enter(low, node)
    _define(low, test.params, carries)
    made = len(low.buffers)
    count: Dim | None = node.attrs.get("count")
    stacks = _stacks(low, node, count)
    with low.into() as before:
        low.block(test, also=free_values(region))
        condition = low.let(low.element(test.results[0], ()))
    with low.into() as body:
        low.block(region)
        _stack(low, region.results[len(carries) :], stacks, count)
        yielded = region.results[: len(carries)]
        turns = _give_back(low, yielded, test.params, carries, made)
        if count is not None:
            low.emit(Bind(_symbol(count), at(dims.add(count, 1))))
        low.close()
    low.close()
    counts = _counted(low, turns, body)
    low.emit(While(before, condition, body))
    _turn_back(low, turns, counts)
    _define(low, node.results, [*carries, *stacks])


def _symbol(count: Dim) -> Symbol:
    s = dims.as_symbol(count)
    assert s is not None
    return s


def _stacks(low: Lowering, node: Node, count: Dim | None) -> list[Buffer]:
    """Start counting, and make the buffers that grow with every iteration."""
    if count is None:
        return []
    low.late.add(_symbol(count))
    low.known.add(_symbol(count))
    low.emit(Bind(_symbol(count), Lit(0, I64)))
    return [low.target(v) for v in node.results[len(node.operands) :]]


def _stack(
    low: Lowering,
    yielded: Sequence[Operand],
    stacks: Sequence[Buffer],
    count: Dim | None,
) -> None:
    """Append what is yielded to the buffers that hold an entry per iteration."""
    for x, b in zip(yielded, stacks, strict=True):
        assert count is not None
        entry = dims.product(type_of(x).shape)
        low.emit(Grow(b, dims.mul(dims.add(count, 1), entry)))
        start = dims.mul(count, entry)
        if type_of(x).shape:
            low.copy_into(b, low.stored(x), start)
        else:
            low.emit(Store(b, start, cast(low.element(x, ()), b.dtype)))


def branch(low: Lowering, node: Node) -> None:
    """Lower a `cond`: both branches leave their values in the same places."""
    condition = low.let(low.element(node.operands[0], ()))
    places: list[Carry] = []
    for v in node.results:
        if v.type.shape:
            places.append(low.target(v))
        else:
            places.append(low.variable(Lit(_zero(v), v.type.dtype), "either"))
    lists = []
    for region in node.regions:
        with low.into() as body:
            low.block(region)
            for x, p in zip(region.results, places, strict=True):
                if isinstance(p, Reg):
                    low.emit(Set(p.name, cast(low.element(x, ()), p.dtype)))
                    continue
                source = low.stored(x)
                if not (source.buffer is p and source.whole):
                    low.copy_into(p, source)
            low.close()
        lists.append(body)
    low.emit(If(condition, *lists))
    _define(low, node.results, places)


def _zero(v: Value) -> object:
    return np.zeros((), v.type.dtype).item()


def size(low: Lowering, node: Node) -> None:
    """Lower `size`: the symbol stands for the computed integer from here on."""
    count = node.attrs["count"]
    symbol = dims.as_symbol(count)
    x = low.let(cast(low.element(node.operands[0], ()), I64))
    if symbol is None or symbol in low.known:  # a number, or computed again
        low.values[node.result] = x
        return
    if node.attrs.get("checked"):
        low.fail_where(
            compare("<", x, Lit(0, I64)),
            ShapeError,
            "negative dimensions are not allowed",
            node.loc,
        )
    low.late.add(symbol)
    low.known.add(symbol)
    low.emit(Bind(symbol, x))


def check(low: Lowering, node: Node) -> None:
    """Leave the kernel where a value is not the one that the program is for."""
    value, number = node.attrs["value"], node.attrs["number"]
    x = low.element(node.operands[0], ())
    other = Lit(value, x.dtype)
    low.fail_where(
        compare("!=", low.let(x), other),
        OutcomeError,
        f"{node.op.name}: outcome {number} is not {value}",
        node.loc,
        number=number,
    )
