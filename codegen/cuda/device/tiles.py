"""Products of matrices, by tiles in shared memory.

A block computes a rectangle of the result, and each of its threads the sums of a few
rows and columns of that, in registers. Of both operands, the block keeps `depth` terms
of all lines (rows of the left matrix, columns of the right one) in shared memory,
twice: while threads compute with one half, the other one is filled.

Note [lines]
Operands have any steps. Neighbouring threads load neighbouring terms of a line where
these are neighbours in memory, and else neighbouring lines: so a matrix and its
transpose are loaded equally well. A tile has the lines side by side, with room between
the terms, which are then in different banks of the memory. What a thread computes is
groups of as many lines as fit an access of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba.cuda.extending import intrinsic

from ....runtime.intrinsics import Builder, Value
from ..steps import SIDE, THREADS_PER_BLOCK
from . import grid, memory, scalars
from .grid import INT32, INT64, device

__all__ = ["add_parts", "failed", "multiply_4_4", "multiply_8_4"]

types: Any = numba.types
AT_ONCE = 4  # terms that are added without a jump
# Intrinsics have a parameter more than their calls, to mypy.
barrier: Any = grid.barrier
block: Any = grid.block
blocks: Any = grid.blocks
divide: Any = scalars.divide
load: Any = memory.load
offset: Any = memory.offset
store: Any = memory.store
thread: Any = grid.thread
threads: Any = grid.threads


def _group(t: Any) -> int:
    """Return how many elements are one access."""
    return memory.WIDEST * 8 // int(t.bitwidth)


def _places(t: Any, each: int) -> list[int]:
    """Return where the lines of a thread are, from the first one on."""
    group = _group(t)
    return [k // group * (SIDE * group) + k % group for k in range(each)]


def _unpacked(b: Builder, x: Value) -> list[Value]:
    return [b.extract_value(x, k) for k in range(x.type.count)]


def _guarded(b: Builder, ok: Value, p: Value) -> Value:
    """Emit an element of memory, or zero where it is not there."""
    before = b.block
    with b.if_then(ok):
        x = b.load(p)
        inside = b.block
    found = b.phi(x.type)
    found.add_incoming(x, inside)
    found.add_incoming(x.type(0.0), before)
    return found


def _is_wide(b: Builder, p: Value, row: Value, column: Value, group: int) -> Value:
    """Emit whether groups of columns are accesses of 16 bytes in every row."""
    start = b.and_(b.ptrtoint(p, INT64), INT64(memory.WIDEST - 1))
    rest = b.or_(start, b.and_(row, INT64(group - 1)))
    fits = b.icmp_unsigned("==", rest, INT64(0))
    return b.and_(fits, b.icmp_unsigned("==", column, INT64(1)))


def _store_together(b: Builder, p: Value, xs: Sequence[Value]) -> None:
    kind = ir.VectorType(p.type.pointee, len(xs))
    vector = ir.Constant(kind, ir.Undefined)
    for k, x in enumerate(xs):
        vector = b.insert_element(vector, x, INT32(k))
    b.store(vector, b.bitcast(p, kind.as_pointer()), align=memory.WIDEST)


@intrinsic
def _first_line(typingctx: Any, p: Any, number: Any) -> tuple[Any, Any]:
    """Return the first line of the thread with a number in its row or column."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.mul(args[1], INT64(_group(p.dtype)))

    return types.int64(p, types.int64), code


@intrinsic
def _is_null(typingctx: Any, p: Any) -> tuple[Any, Any]:
    """Tell whether a pointer leads nowhere."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.icmp_unsigned("==", b.ptrtoint(args[0], INT64), INT64(0))

    return types.boolean(p), code


# Intrinsics have a parameter more than their calls, to mypy.
first_line: Any = _first_line
is_null: Any = _is_null


@device
def failed(status: Any) -> Any:
    """Tell whether a check of the program has failed; null: it has none."""
    return not is_null(status) and load(status, 0) != 0


class Side(NamedTuple):
    """What the threads do with the tile of one operand; see `_side`."""

    tile: Any
    row: Any
    start: Any
    fetched: Any
    put: Any


def _side(name: str, each: int, depth: int) -> Side:
    """Return what handles tiles of an operand, of 16 * `each` lines."""
    size = SIDE * each
    count = size * depth // THREADS_PER_BLOCK  # elements that a thread brings
    lines_more, terms_more = THREADS_PER_BLOCK // depth, THREADS_PER_BLOCK // size
    line_bits, term_bits = size.bit_length() - 1, depth.bit_length() - 1

    def pitch(t: Any) -> int:
        return size + _group(t)

    @intrinsic
    def tile(typingctx: Any, p: Any) -> tuple[Any, Any]:
        """Return the shared memory of two tiles."""
        room = 2 * depth * pitch(p.dtype)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return memory.array(context, b, p.dtype, name, room)

        return p(p), code

    @intrinsic
    def row(typingctx: Any, p: Any, term: Any) -> tuple[Any, Any]:
        """Return where the lines start, of one term."""

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.mul(args[1], INT64(pitch(p.dtype)))

        return types.int64(p, types.int64), code

    @device
    def start(along: Any) -> Any:
        """Return the line and the term of the first element that a thread brings."""
        me = thread()
        if along:
            return me >> term_bits, me & (depth - 1)
        return me & (size - 1), me >> line_bits

    @intrinsic
    def fetched(
        typingctx: Any,
        p: Any,
        line: Any,
        lines: Any,
        line_step: Any,
        term: Any,
        terms: Any,
        term_step: Any,
        along: Any,
    ) -> tuple[Any, Any]:
        """Return the elements that a thread brings, zero where there are none.

        The first one is at `p`; `lines` and `terms` are how many of the tile there are.
        """
        t = types.UniTuple(p.dtype, count)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p, line, lines, line_step, term, terms, term_step, along = args
            line, lines, term, terms = (
                b.trunc(x, INT32) for x in (line, lines, term, terms)
            )
            more_lines = b.select(along, INT32(lines_more), INT32(0))
            more_terms = b.select(along, INT32(0), INT32(terms_more))
            more = b.mul(
                b.select(along, INT64(lines_more), INT64(terms_more)),
                b.select(along, line_step, term_step),
            )
            found = []
            for _ in range(count):
                here = b.icmp_signed("<", line, lines)
                ok = b.and_(here, b.icmp_signed("<", term, terms))
                found.append(_guarded(b, ok, p))
                line, term = b.add(line, more_lines), b.add(term, more_terms)
                p = b.gep(p, [more])
            return context.make_tuple(b, signature.return_type, found)

        return t(p, *[types.int64] * 6, types.boolean), code

    @intrinsic
    def put(typingctx: Any, p: Any, where: Any, along: Any, xs: Any) -> tuple[Any, Any]:
        """Put what a thread brings into a tile."""
        wide = pitch(p.dtype)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p, where, along, xs = args
            more = b.select(along, INT64(lines_more), INT64(terms_more * wide))
            for x in _unpacked(b, xs):
                b.store(x, b.gep(p, [where], inbounds=True))
                where = b.add(where, more)
            return context.get_dummy_value()

        return types.void(p, types.int64, types.boolean, xs), code

    return Side(tile, row, start, fetched, put)


class Sums(NamedTuple):
    """What a thread does with its sums; see `_sums`."""

    zeros: Any
    added: Any
    joined: Any
    finish: Any


def _sums(rows_each: int, columns_each: int) -> Sums:
    """Return what handles the sums of a thread, of some rows and columns."""
    total = rows_each * columns_each

    def terms_of(b: Builder, t: Any, p: Value, each: int, which: int) -> list[Value]:
        """Return a term of each line of a thread, of which the first one is at `p`."""
        group, pitch = _group(t), SIDE * each + _group(t)
        vector = ir.VectorType(p.type.pointee, group).as_pointer()
        found = []
        for place in _places(t, each)[::group]:
            at = b.gep(p, [INT32(which * pitch + place)], inbounds=True)
            x = b.load(b.bitcast(at, vector), align=memory.WIDEST)
            found += [b.extract_element(x, INT32(j)) for j in range(group)]
        return found

    @intrinsic
    def zeros(typingctx: Any, p: Any) -> tuple[Any, Any]:
        t = types.UniTuple(p.dtype, total)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return ir.Constant(context.get_value_type(t), [0.0] * total)

        return t(p), code

    @intrinsic
    def added(
        typingctx: Any, sums: Any, xs: Any, x_at: Any, ys: Any, y_at: Any
    ) -> tuple[Any, Any]:
        """Return the sums of a thread with the products of several terms."""
        t = xs.dtype

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            found = _unpacked(b, args[0])
            xs, ys = (
                b.gep(p, [b.trunc(where, INT32)], inbounds=True)
                for p, where in (args[1:3], args[3:5])
            )
            for k in range(AT_ONCE):
                left = terms_of(b, t, xs, rows_each, k)
                right = terms_of(b, t, ys, columns_each, k)
                pairs = [(x, y) for x in left for y in right]
                found = [b.fma(x, y, z) for (x, y), z in zip(pairs, found, strict=True)]
            return context.make_tuple(b, signature.return_type, found)

        return sums(sums, xs, types.int64, ys, types.int64), code

    def elements(b: Builder, t: Any, args: Any) -> Iterator[tuple[Value, Value]]:
        """Yield whether each result of a thread is there, and its address."""
        p, rows, row_step, columns, column_step = args
        right = [INT64(k) for k in _places(t, columns_each)]
        there = [b.icmp_signed("<", k, columns) for k in right]
        steps = [b.mul(k, column_step) for k in right]
        for down in map(INT64, _places(t, rows_each)):
            here = b.icmp_signed("<", down, rows)
            start = b.gep(p, [b.mul(down, row_step)])
            for k, step in zip(there, steps, strict=True):
                yield b.and_(here, k), b.gep(start, [step])

    @intrinsic
    def joined(
        typingctx: Any,
        p: Any,
        rows: Any,
        row_step: Any,
        columns: Any,
        column_step: Any,
        sums: Any,
        sign: Any,
    ) -> tuple[Any, Any]:
        """Return what is in memory, with the sums of a thread added `sign` times."""

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            *where, sums, sign = args
            factor = b.sitofp(sign, where[0].type.pointee)
            places = elements(b, p.dtype, where)
            found = [
                b.fma(factor, x, _guarded(b, *at))
                for x, at in zip(_unpacked(b, sums), places, strict=True)
            ]
            return context.make_tuple(b, signature.return_type, found)

        return sums(p, *[types.int64] * 4, sums, types.int64), code

    @intrinsic
    def finish(
        typingctx: Any,
        p: Any,
        rows: Any,
        row_step: Any,
        columns: Any,
        column_step: Any,
        sums: Any,
    ) -> tuple[Any, Any]:
        """Store the sums of a thread, by accesses of 16 bytes where that can be."""
        group = _group(p.dtype)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            *where, sums = args
            wide = _is_wide(b, where[0], where[2], where[4], group)
            xs = _unpacked(b, sums)
            places = elements(b, p.dtype, where)
            for k in range(0, total, group):
                several = list(islice(places, group))
                last, _ = several[-1]
                with b.if_else(b.and_(wide, last)) as (then, otherwise):
                    with then:
                        _store_together(b, several[0][1], xs[k : k + group])
                    with otherwise:
                        for x, (ok, at) in zip(xs[k:], several, strict=False):
                            with b.if_then(ok):
                                b.store(x, at)
            return context.get_dummy_value()

        return types.void(p, *[types.int64] * 4, sums), code

    return Sums(zeros, added, joined, finish)


def _tiles(rows_each: int, columns_each: int, depth: int) -> Any:
    """Return the function that computes a block's part of a stack of products."""
    height, width = SIDE * rows_each, SIDE * columns_each
    left_tile, left_row, left_start, left_fetched, left_put = _side(
        "left", rows_each, depth
    )
    right_tile, right_row, right_start, right_fetched, right_put = _side(
        "right", columns_each, depth
    )
    zeros, added, joined, finish = _sums(rows_each, columns_each)

    @device
    def tile(
        c: Any,
        a: Any,
        b: Any,
        m: Any,
        n: Any,
        k: Any,
        sign: Any,
        steps: Any,
        top: Any,
        left: Any,
    ) -> None:
        c_row, c_column, a_row, a_column, b_row, b_column = steps
        along_a, along_b = a_column == 1, b_row == 1
        line_a, term_a = left_start(along_a)
        line_b, term_b = right_start(along_b)
        tile_a, tile_b = left_tile(a), right_tile(b)
        to_a, to_b = left_row(a, term_a) + line_a, right_row(b, term_b) + line_b
        a = offset(a, (top + line_a) * a_row + term_a * a_column)
        b = offset(b, (left + line_b) * b_column + term_b * b_row)
        i, j = first_line(a, thread() // SIDE), first_line(b, thread() % SIDE)
        m, n = m - top, n - left
        rows, columns, terms = min(m, height), min(n, width), min(k, depth)
        sums, half = zeros(c), 0
        xs = left_fetched(a, line_a, rows, a_row, term_a, terms, a_column, along_a)
        ys = right_fetched(b, line_b, columns, b_column, term_b, terms, b_row, along_b)
        while k > 0:
            x, y = left_row(a, half), right_row(b, half)
            left_put(tile_a, x + to_a, along_a, xs)
            right_put(tile_b, y + to_b, along_b, ys)
            barrier()
            k -= depth
            terms = min(k, depth)
            a, b = offset(a, depth * a_column), offset(b, depth * b_row)
            xs = left_fetched(a, line_a, rows, a_row, term_a, terms, a_column, along_a)
            ys = right_fetched(
                b, line_b, columns, b_column, term_b, terms, b_row, along_b
            )
            x, y = x + i, y + j
            for q in range(0, depth, AT_ONCE):
                x_at, y_at = x + left_row(a, q), y + right_row(b, q)
                sums = added(sums, tile_a, x_at, tile_b, y_at)
            half = depth - half
        c, m, n = offset(c, (top + i) * c_row + (left + j) * c_column), m - i, n - j
        if sign != 0:
            sums = joined(c, m, c_row, n, c_column, sums, sign)
        finish(c, m, c_row, n, c_column, sums)

    @device
    def multiply(
        c: Any,
        a: Any,
        b: Any,
        m: Any,
        n: Any,
        k: Any,
        sign: Any,
        part: Any,
        part_step: Any,
        steps: Any,
        count: Any,
        inner: Any,
        outer: Any,
    ) -> None:
        """Compute the block's tile of a stack of products.

        `sign` times they are added to `c`, or replace what is there where it is 0.
        `steps` are those of rows and columns of the three, `inner` and `outer` those
        along the stack, of which the inner axis has `count` matrices. Sums of more than
        `part` terms are cut into such parts, whose results are `part_step` apart.
        """
        high = divide(n + width - 1, width)
        number = block()
        rest = divide(number, high)
        left = (number - rest * high) * width
        high = divide(m + height - 1, height)
        number, rest = rest, divide(rest, high)
        top = (number - rest * high) * height
        high = max(divide(k + part - 1, part), 1)
        number, rest = rest, divide(rest, high)
        which = number - rest * high
        first = which * part
        terms = min(part, k - first)
        number, rest = rest, divide(rest, count)
        inside = number - rest * count
        c = offset(c, inside * inner[0] + rest * outer[0] + which * part_step)
        a = offset(a, inside * inner[1] + rest * outer[1] + first * steps[3])
        b = offset(b, inside * inner[2] + rest * outer[2] + first * steps[4])
        tile(c, a, b, m, n, terms, sign, steps, top, left)

    return multiply


multiply_4_4, multiply_8_4 = _tiles(4, 4, 16), _tiles(8, 4, 8)


@device
def add_parts(
    c: Any, parts: Any, m: Any, n: Any, count: Any, sign: Any, row: Any, column: Any
) -> None:
    """Add up the results of the parts of sums, in their order."""
    size = m * n
    for e in range(thread() + threads() * block(), size, threads() * blocks()):
        i = divide(e, n)
        where = i * row + (e - i * n) * column
        total = load(parts, e)
        for k in range(1, count):
            total += load(parts, k * size + e)
        if sign > 0:
            total = load(c, where) + total
        elif sign < 0:
            total = load(c, where) - total
        store(c, where, total)
