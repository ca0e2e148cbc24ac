"""Routines of a library: one call per matrix of a stack, or nests of `factors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.access import linear
from ..ir.errors import LinAlgError, UnsupportedError
from ..ir.func import Node, Operand, type_of
from ..ir.op import Routine
from ..ir.types import I64, DType, Shape
from . import factors
from .kernels import Stored, cast, compare, whole
from .nests import Argument, Buffer, Call, If, Lit, Load, Reg, Set, Store

if TYPE_CHECKING:
    from .kernels import Lowering

MATRIX = 2  # axes of an operand that one call takes


def lower(low: Lowering, node: Node) -> None:
    """Lower a routine to calls on matrices in C order, and a check of what they say.

    Where the target does not have it, it becomes nests.
    """
    routine = node.op.lower
    if not isinstance(routine, Routine):
        raise UnsupportedError(f"{node.op.name}: compiled code has no such op yet")
    if "linalg" not in low.library:
        factors.lower(low, node, routine)
        return
    v = node.result
    given = dict(zip(node.op.operands, node.operands, strict=True))
    types = tuple(map(type_of, node.operands))
    stack = types[0].shape[:-MATRIX]
    sizes = routine.sizes(*types)
    read = [_ready(low, given[name], v.type.dtype) for name in routine.reads]
    out = low.target(v) if v.type.shape else low.allocate(v.type.dtype, ())
    if routine.over:
        _spread(low, given[routine.over], out, v.type.shape)
    failed = low.variable(Lit(0, I64), "failed")
    with low.loops(stack) as index:
        args: list[Argument] = []
        for x in read:
            args.append((x.buffer, x.at((*index, 0, 0))))
        rest = len(v.type.shape) - len(stack)
        args.append((out, linear((*index, *(0,) * rest), v.type.shape)))
        flags = (bool(node.attrs[name]) for name in routine.flags)
        status = Reg(low.fresh("status"), I64)
        args += [*sizes, *flags]
        low.emit(Call(f"linalg.{routine.name}", tuple(args), status.name))
        bad = compare("!=", status, Lit(0, I64))
        low.emit(If(bad, [Set(failed.name, status)], []))
    if routine.error:
        bad = compare("!=", failed, Lit(0, I64))
        low.fail_where(bad, LinAlgError, routine.error, node.loc)
    low.define(v, whole(out, v.type.shape))


def _ready(low: Lowering, x: Operand, dtype: DType) -> Stored:
    """Return an operand in C order with the dtype of the result."""
    s = low.stored(x)
    if s.buffer.dtype == dtype:
        return low.contiguous(x)
    b = low.allocate(dtype, s.shape)
    _spread(low, x, b, s.shape)
    return whole(b, s.shape)


def _spread(low: Lowering, x: Operand, out: Buffer, shape: Shape) -> None:
    """Copy an operand into the corner of a buffer of that shape."""
    s = low.stored(x)
    if shape == s.shape and s.buffer.dtype == out.dtype:
        if s.buffer is not out or not s.whole:
            low.copy_into(out, s)
        return
    with low.loops(s.shape) as index:
        value = low.let(Load(s.buffer, s.at(index), s.buffer.dtype))
        low.emit(Store(out, linear(index, shape), cast(value, out.dtype)))
