"""Whole-array operations: products, scans, sorts, joins, masks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ..ir import dims
from ..ir.access import Index, linear, project
from ..ir.dims import Dim
from ..ir.errors import ShapeError, UnsupportedError
from ..ir.func import Node, Operand, type_of
from ..ir.op import Fold, Kind
from ..ir.types import F32, F64, I64, DType, Shape, Type, promote
from .kernels import Stored, at, cast, compare, plus, supported, whole
from .nest import BLOCK, start_of, step
from .nests import (
    Apply,
    At,
    Bind,
    Buffer,
    Call,
    If,
    Lit,
    Load,
    Loop,
    Pointer,
    Reg,
    Scalar,
    Set,
    Store,
)

if TYPE_CHECKING:
    from .kernels import Lowering

SMALL = 4096  # multiplications that are not worth a call of BLAS


def lower(low: Lowering, node: Node) -> None:
    """Lower a node that is no nest by itself."""
    for v in node.results:
        supported(v.type.dtype)
    match node.op.kind:
        case Kind.CONTRACTION:
            _matmul(low, node)
        case Kind.JOIN:
            _join(low, node)
        case Kind.SCAN:
            _scan(low, node)
        case Kind.SORT:
            _sort(low, node)
        case Kind.MASK:
            _mask_select(low, node)
        case Kind.SCATTER:
            _mask_scatter(low, node)
        case _:
            raise UnsupportedError(f"{node.op.name}: compiled code has no such op yet")


# ---------------------------------------------------------------- joins and scans


def _join(low: Lowering, node: Node) -> None:
    v = node.result
    axis = node.attrs["axis"]
    out = low.target(v)
    start: Dim = 0
    for x in node.operands:
        shape = type_of(x).shape
        with low.loops(shape) as index:
            value = cast(low.let(low.element(x, index)), v.type.dtype)
            moved = (*index[:axis], dims.add(index[axis], start), *index[axis + 1 :])
            low.emit(Store(out, linear(moved, v.type.shape), value))
        start = dims.add(start, shape[axis])
    low.define(v, whole(out, v.type.shape))


def _scan(low: Lowering, node: Node) -> None:
    fold = node.op.lower
    assert isinstance(fold, Fold)
    assert node.op.computes is not None
    v = node.result
    dtype = v.type.dtype
    axis = node.attrs["axis"]
    shape = v.type.shape
    wanted = node.op.computes(*map(type_of, node.operands))
    names = node.op.operands
    out = low.target(v)
    with low.loops(tuple(1 if k == axis else d for k, d in enumerate(shape))) as rest:
        first = cast(start_of(fold), dtype)
        acc = low.variable(first, "acc")
        s, i = low.symbol("i")
        index = (*rest[:axis], i, *rest[axis + 1 :])
        with low.into() as body:
            given = {
                name: cast(low.let(low.element(x, index)), d)
                for name, x, d in zip(names, node.operands, wanted, strict=True)
            }
            low.emit(Set(acc.name, step(fold, acc, dtype, **given)))
            low.emit(Store(out, linear(index, shape), acc))
        low.emit(Loop(s, 0, shape[axis], 1, body))
    low.define(v, whole(out, shape))


# ---------------------------------------------------------------- sorts


def _sort(low: Lowering, node: Node) -> None:
    """Lower a sort by lines, or a search by elements, as the template says."""
    template = node.op.lower
    assert isinstance(template, str)
    function = template.partition("(")[0]
    if re.search(r"\{1\}", template):
        _search(low, node, function)
        return
    v = node.result
    (x,) = node.operands
    axis = node.attrs["axis"]
    shape = v.type.shape
    n = shape[axis]
    out = low.target(v)
    positions = v.type.dtype == I64 and function.startswith("arg")
    key_dtype = type_of(x).dtype
    keys = low.allocate(key_dtype, (n,))
    scratch = low.allocate(v.type.dtype, (n,))
    order = low.allocate(I64, (n,)) if positions else keys
    with low.loops(tuple(1 if k == axis else d for k, d in enumerate(shape))) as rest:

        def along(i: Dim) -> Index:
            return (*rest[:axis], i, *rest[axis + 1 :])

        s, i = low.symbol("i")
        with low.into() as body:
            value = low.let(low.element(x, along(i)))
            low.emit(Store(keys, i, value))
        low.emit(Loop(s, 0, n, 1, body))
        pointers: list[Pointer] = [(keys, 0), (scratch, 0)]
        if positions:
            pointers.insert(1, (order, 0))
        low.emit(Call(f"sorting.{function}", (*pointers, n)))
        s, i = low.symbol("i")
        low.emit(
            Loop(
                s,
                0,
                n,
                1,
                [Store(out, linear(along(i), shape), Load(order, i, v.type.dtype))],
            )
        )
    low.define(v, whole(out, shape))


def _search(low: Lowering, node: Node, function: str) -> None:
    assert node.op.computes is not None
    x, y = node.operands
    v = node.result
    dtype, _ = node.op.computes(type_of(x), type_of(y))
    keys = _as_dtype(low, x, dtype)
    n = type_of(x).shape[0]
    out = low.target(v) if v.type.shape else None
    found = Reg(low.fresh("found"), I64)
    with low.loops(type_of(y).shape) as index:
        value = low.let(cast(low.let(low.element(y, index)), dtype))
        args = ((keys, 0), n, value, bool(node.attrs["right"]))
        low.emit(Call(f"sorting.{function}", args, found.name))
        if out is not None:
            low.emit(Store(out, linear(index, v.type.shape), found))
    if out is None:
        low.values[v] = found
    else:
        low.define(v, whole(out, v.type.shape))


def _as_dtype(low: Lowering, x: Operand, dtype: DType) -> Buffer:
    """Return an operand in C order with a dtype."""
    s = low.stored(x)
    if s.buffer.dtype == dtype:
        return low.contiguous(x).buffer
    b = low.allocate(dtype, s.shape)
    with low.loops(s.shape) as index:
        value = low.let(Load(s.buffer, s.at(index), s.buffer.dtype))
        low.emit(Store(b, linear(index, s.shape), cast(value, dtype)))
    return b


# ---------------------------------------------------------------- masks


def _count(low: Lowering, mask: Operand) -> Scalar:
    """Count what a mask selects."""
    count = low.variable(Lit(0, I64), "count")
    with low.loops(type_of(mask).shape) as index:
        chosen = low.let(low.element(mask, index))
        low.emit(Set(count.name, plus(count, cast(chosen, I64))))
    return count


def _mask_select(low: Lowering, node: Node) -> None:
    x, mask = node.operands
    v = node.result
    count = _count(low, mask)
    size = node.attrs["count"]
    symbol = dims.as_symbol(size)
    if symbol is not None and symbol not in low.known:
        low.late.add(symbol)
        low.known.add(symbol)
        low.emit(Bind(symbol, count))
        low.facts = low.facts.having(size)
    else:
        low.fail_where(
            compare("!=", count, at(size)),
            ShapeError,
            f"{node.op.name}: the mask does not select {size} elements",
            node.loc,
        )
    out = low.target(v)

    def write(n: Dim, index: Index, rest: Index) -> None:
        value = low.let(low.element(x, (*index, *rest)))
        low.emit(Store(out, linear((n, *rest), v.type.shape), value))

    _each_selected(low, mask, v.type.shape[1:], write)
    low.define(v, whole(out, v.type.shape))


def _each_selected(low: Lowering, mask: Operand, rest: Shape, write: object) -> None:
    """Run `write(n, index, rest)` for all that the n-th selected index covers."""
    assert callable(write)
    s, n = low.symbol("n")
    low.emit(Bind(s, Lit(0, I64)))
    with low.loops(type_of(mask).shape) as index:
        chosen = low.let(low.element(mask, index))
        with low.into() as then:
            with low.loops(rest) as inner:
                write(n, index, inner)
            low.emit(Bind(s, plus(At(n, I64), Lit(1, I64))))
        low.emit(If(chosen, then, []))


def _mask_scatter(low: Lowering, node: Node) -> None:
    x, new, mask = node.operands
    v = node.result
    count = _count(low, mask)
    size = type_of(new).shape[0]
    low.fail_where(
        compare("!=", count, at(size)),
        ShapeError,
        f"{node.op.name}: {size} values for another number of places that the mask "
        "selects",
        node.loc,
    )
    base = low.stored(x)
    out = low.target(v) if v.type.shape else low.allocate(v.type.dtype, ())
    if base.buffer is not out:
        low.copy_into(out, base)
    dtype = promote(type_of(x), type_of(new)).dtype

    def write(n: Dim, index: Index, rest: Index) -> None:
        value = low.let(low.element(new, (n, *rest)))
        where = linear((*index, *rest), v.type.shape)
        if node.op.accumulates:
            old = Load(out, where, v.type.dtype)
            value = Apply("({0} + {1})", (cast(old, dtype), cast(value, dtype)), dtype)
        low.emit(Store(out, where, cast(value, v.type.dtype)))

    _each_selected(low, mask, type_of(new).shape[1:], write)
    low.define(v, whole(out, v.type.shape))


# ---------------------------------------------------------------- products


def _matmul(low: Lowering, node: Node) -> None:
    """Lower matmul: a stack of matrix products, vectors as matrices of one line."""
    x, y = node.operands
    v = node.result
    assert node.op.computes is not None
    dtype = node.op.computes(type_of(x), type_of(y))[0]
    supported(dtype)
    left = _Matrix(low, x, column=False)
    right = _Matrix(low, y, column=True)
    m, k, n = left.rows, left.columns, right.columns
    stack = v.type.shape[: max(len(left.stack), len(right.stack))]
    out = low.target(v) if v.type.shape else low.allocate(dtype, ())
    product = dims.product((m, k, n))
    small = isinstance(product, int) and product <= SMALL
    vectors = m == 1 and n == 1
    if dtype not in (F32, F64) or small or vectors:
        _plain_product(low, left, right, stack, out, dtype)
    else:
        left.prepare(dtype)
        right.prepare(dtype)
        with low.loops(stack) as index:
            where = dims.mul(linear(index, stack), dims.mul(m, n))
            _blas_product(low, left, right, index, stack, out, where)
    low.define(v, whole(out, v.type.shape))


class _Matrix:
    """One operand as a stack of matrices."""

    def __init__(self, low: Lowering, x: Operand, *, column: bool) -> None:
        self.low = low
        t: Type = type_of(x)
        self.stored = low.stored(x)
        self.vector = t.ndim == 1
        self.column = column
        self.rows: Dim
        self.columns: Dim
        self.stack: Shape = t.shape[:-2]
        if self.vector:
            size = t.shape[0]
            self.rows, self.columns = (size, 1) if column else (1, size)
        else:
            self.rows, self.columns = t.shape[-2:]

    def where(self, index: Index, stack: Shape, i: Dim, j: Dim) -> Dim:
        """Return the offset of element (i, j) of the matrix at an index of `stack`."""
        if self.vector:
            return self.stored.at((i if self.column else j,))
        return self.stored.at((*project(index, stack, self.stack), i, j))

    def element(self, index: Index, stack: Shape, i: Dim, j: Dim) -> Scalar:
        b = self.stored.buffer
        return Load(b, self.where(index, stack, i, j), b.dtype)

    def prepare(self, dtype: DType) -> None:
        """See to it that BLAS can take the operand: dtype and strides."""
        s = self.stored
        if s.buffer.dtype == dtype and self.steps() is not None:
            return
        b = self.low.allocate(dtype, s.shape)
        with self.low.loops(s.shape) as index:
            value = self.low.let(Load(s.buffer, s.at(index), s.buffer.dtype))
            self.low.emit(Store(b, linear(index, s.shape), cast(value, dtype)))
        self.stored = Stored(b, lambda index: linear(index, s.shape), s.shape, True)

    def steps(self) -> tuple[bool, Dim] | None:
        """Return (is transposed, leading dimension), None where there is neither.

        For a vector it is (False, step).
        """
        stack = tuple(dims.symbol(f"_m{k}") for k in range(len(self.stack)))
        i, j = dims.symbol("_mi"), dims.symbol("_mj")
        d = self.where(stack, self.stack, i, j)
        rows = _slope(d, i)
        columns = _slope(d, j)
        if rows is None or columns is None:
            return None
        facts = self.low.facts
        if self.vector:
            along = rows if self.column else columns
            ok = along != 0 and (
                isinstance(along, int) or facts.proves(dims.add(along, -1))
            )
            return (False, along) if ok else None
        if columns == 1 and facts.proves(rows - self.columns):
            return False, rows
        if rows == 1 and facts.proves(columns - self.rows):
            return True, columns
        return None


def _slope(d: Dim, i: Dim) -> Dim | None:
    """Return the constant step of `d` along the symbol `i`."""
    s = dims.as_symbol(i)
    assert s is not None
    zero = dims.substitute(d, {s: 0})
    slope = dims.add(dims.substitute(d, {s: 1}), dims.mul(zero, -1))
    if s in dims.symbols_of(slope):
        return None
    if dims.add(zero, dims.mul(slope, i)) != d:
        return None
    others = {x for x in dims.symbols_of(slope) if x.name.startswith("_m")}
    return None if others else slope


def _plain_product(
    low: Lowering,
    left: _Matrix,
    right: _Matrix,
    stack: Shape,
    out: Buffer,
    dtype: DType,
) -> None:
    m, k, n = left.rows, left.columns, right.columns
    with low.loops((*stack, m, n)) as index:
        *at_stack, i, j = index
        acc = low.variable(Lit(np.zeros((), dtype).item(), dtype), "acc")
        s, at_k = low.symbol("k")
        with low.into() as body:
            here = tuple(at_stack)
            x = cast(low.let(left.element(here, stack, i, at_k)), dtype)
            y = cast(low.let(right.element(here, stack, at_k, j)), dtype)
            product = Apply("({0} * {1})", (x, y), dtype)
            blocked = dtype.kind == "f"
            if not blocked:
                total = Apply("({0} + {1})", (acc, product), dtype)
                low.emit(Set(acc.name, total))
        loop = Loop(s, 0, k, 1, body)
        if blocked:
            part = Reg(low.fresh("part"), dtype)
            body.append(Set(part.name, product, plus=True))
            loop.block = BLOCK
            loop.opening = [Set(part.name, Lit(0.0, dtype))]
            added = Apply("({0} + {1})", (acc, part), dtype)
            loop.closing = [Set(acc.name, added)]
        low.emit(loop)
        low.emit(Store(out, linear(index, (*stack, m, n)), acc))


def _blas_product(
    low: Lowering,
    left: _Matrix,
    right: _Matrix,
    index: Index,
    stack: Shape,
    out: Buffer,
    where: Dim,
) -> None:
    m, k, n = left.rows, left.columns, right.columns
    a = (left.stored.buffer, left.where(index, stack, 0, 0))
    b = (right.stored.buffer, right.where(index, stack, 0, 0))
    c = (out, where)
    ta, lda = left.steps() or (False, 1)
    tb, ldb = right.steps() or (False, 1)
    if right.vector and not left.vector:
        rows, columns = (k, m) if ta else (m, k)
        low.emit(Call("blas.gemv", (ta, rows, columns, a, lda, b, ldb, c, 1)))
    elif left.vector and not right.vector:
        rows, columns = (n, k) if tb else (k, n)
        low.emit(Call("blas.gemv", (not tb, rows, columns, b, ldb, a, lda, c, 1)))
    else:
        low.emit(Call("blas.gemm", (ta, tb, m, n, k, a, lda, b, ldb, c, n)))
