"""Loops and branches of the program, and sizes that it computes.

Every carry of a loop has one place for all iterations: a variable, or a buffer. What an
iteration yields is put there at its end; a value that was computed in the carry's own
buffer is there already.
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
from .nests import Bind, Buffer, Grow, If, Lit, Loop, Reg, Set, Store, While

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
) -> None:
    """Put what is yielded into the carries, all at once."""
    moves: list[tuple[Carry, Stored | Reg | Lit]] = []
    buffers = [c for c in carries if isinstance(c, Buffer)]
    for x, v, c in zip(yielded, values, carries, strict=True):
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
    with low.into() as body:
        low.block(region)
        _give_back(low, region.results, region.params, carries)
        low.close()
    del low.ranges[index]
    low.facts = facts
    low.emit(Loop(index, a["start"], a["stop"], step, body))
    _define(low, node.results, carries)


def while_loop(low: Lowering, node: Node) -> None:
    """Lower a `while`: the test is run before every iteration."""
    test, region = node.regions
    carries = _enter(low, node)
    _define(low, test.params, carries)
    count: Dim | None = node.attrs.get("count")
    stacks = _stacks(low, node, count)
    with low.into() as before:
        low.block(test, also=free_values(region))
        condition = low.let(low.element(test.results[0], ()))
    with low.into() as body:
        low.block(region)
        _stack(low, region.results[len(carries) :], stacks, count)
        _give_back(low, region.results[: len(carries)], test.params, carries)
        if count is not None:
            low.emit(Bind(_symbol(count), at(dims.add(count, 1))))
        low.close()
    low.close()
    low.emit(While(before, condition, body))
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
