"""LAPACK's factorisations and BLAS's triangular solvers, for `linalg`.

They work as LAPACK does, on matrices that count columns first: a row-major matrix is
its transpose to them. `blas.register` binds the functions.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.extending import intrinsic

from .blas import CHAR, INT32, INT64, Emitter, pointers

types: Any = numba.types
cgutils: Any = numba.core.cgutils


def _letter(builder: Any, flag: Any, yes: str, no: str) -> Any:
    letter = builder.select(flag, CHAR(ord(yes)), CHAR(ord(no)))
    return cgutils.alloca_once_value(builder, letter)


def _info(e: Emitter, name: str, *args: Any) -> Any:
    """Call a LAPACK function; return its `info` as an int64."""
    builder = e.builder
    info = cgutils.alloca_once_value(builder, INT32(0))
    e.call(name, *args, info)
    return builder.sext(builder.load(info), INT64)


@intrinsic
def getrf(typingctx: Any, n: Any, a: Any, lda: Any, exchanges: Any) -> Any:
    """Factor an n x n matrix in place as P L U; the row exchanges are int32, from 1."""
    dtype = pointers("getrf", a)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n, a, lda, exchanges = args
        e = Emitter(context, builder, dtype)
        e.require_counts(n, lda)
        count = e.count(n)
        return _info(e, "getrf", count, count, a, e.count(lda), exchanges)

    size = types.int64
    return size(size, a, size, exchanges), emit


@intrinsic
def potrf(typingctx: Any, upper: Any, n: Any, a: Any, lda: Any) -> Any:
    """Factor a positive definite matrix in place; only one triangle is touched."""
    dtype = pointers("potrf", a)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        upper, n, a, lda = args
        e = Emitter(context, builder, dtype)
        e.require_counts(n, lda)
        side = _letter(builder, upper, "U", "L")
        return _info(e, "potrf", side, e.count(n), a, e.count(lda))

    size = types.int64
    return size(types.boolean, size, a, size), emit


@intrinsic
def trsm(
    typingctx: Any,
    upper: Any,
    transposed: Any,
    unit: Any,
    m: Any,
    n: Any,
    a: Any,
    b: Any,
) -> Any:
    """Solve X op(A) = B in place of the m x n matrix B, with A in one triangle."""
    dtype = pointers("trsm", a, b)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        upper, transposed, unit, m, n, a, b = args
        e = Emitter(context, builder, dtype)
        e.require_counts(m, n)
        e.call(
            "trsm",
            cgutils.alloca_once_value(builder, CHAR(ord("R"))),
            _letter(builder, upper, "U", "L"),
            _letter(builder, transposed, "T", "N"),
            _letter(builder, unit, "U", "N"),
            e.count(m),
            e.count(n),
            e.number(1.0),
            a,
            e.count(n),
            b,
            e.count(m),
        )
        return context.get_dummy_value()

    flag, size = types.boolean, types.int64
    return types.void(flag, flag, flag, size, size, a, b), emit


@intrinsic
def trsv(
    typingctx: Any, upper: Any, transposed: Any, unit: Any, n: Any, a: Any, x: Any
) -> Any:
    """Solve op(A) y = x in place of the vector x, with A in one triangle."""
    dtype = pointers("trsv", a, x)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        upper, transposed, unit, n, a, x = args
        e = Emitter(context, builder, dtype)
        e.require_counts(n)
        e.call(
            "trsv",
            _letter(builder, upper, "U", "L"),
            _letter(builder, transposed, "T", "N"),
            _letter(builder, unit, "U", "N"),
            e.count(n),
            a,
            e.count(n),
            x,
            e.count(INT64(1)),
        )
        return context.get_dummy_value()

    flag, size = types.boolean, types.int64
    return types.void(flag, flag, flag, size, a, x), emit


__all__ = ["getrf", "potrf", "trsm", "trsv"]
