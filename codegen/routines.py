"""Whole-array operations: scans, sorts, joins, masks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..ir import dims
from ..ir.access import Index, linear
from ..ir.dims import Dim
from ..ir.errors import ShapeError, UnsupportedError
from ..ir.func import Node, Operand, type_of
from ..ir.op import Fold, Kind
from ..ir.types import I64, DType, Shape, promote
from . import library, products
from .folds import start_of, step
from .kernels import at, cast, compare, plus, supported, whole
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


def lower(low: Lowering, node: Node) -> None:
    """Lower a node that is no nest by itself."""
    for v in node.results:
        supported(v.type.dtype)
    match node.op.kind:
        case Kind.CONTRACTION:
            products.lower(low, node)
        case Kind.JOIN:
            _join(low, node)
        case Kind.SCAN:
            _scan(low, node)
        case Kind.SORT:
            _sort(low, node)
        case Kind.ROUTINE:
            library.lower(low, node)
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
            stepped = step(fold, acc, dtype, **given)
            if fold.start == "first":
                is_first = compare("==", at(i), Lit(0, I64))
                chosen = (is_first, *given.values(), stepped)
                stepped = Apply("where({0}, {1}, {2})", chosen, dtype)
            low.emit(Set(acc.name, stepped))
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
