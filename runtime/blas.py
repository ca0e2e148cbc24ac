"""Matrix products for generated kernels, through the BLAS that SciPy carries.

`register` binds functions of ``scipy.linalg.cython_blas`` to private names, and those
of ``cython_lapack`` that `lapack` uses. Call it before code that uses this module is
compiled, or loaded from a cache: it imports SciPy, so it is not done at import.

BLAS counts columns first and kernels count rows first: a row-major matrix is its
transpose to BLAS, so operands change places. BLAS also leaves the result alone where a
sum has no terms; these functions then write zeros.
"""

import ctypes
import functools
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic

from . import threads

__all__ = [
    "dot",
    "gemm",
    "gemm_add",
    "gemm_subtract",
    "gemv",
    "gemv_add",
    "gemv_subtract",
    "ger",
]

# Types and values of Numba and llvmlite are untyped Python to mypy.
types: Any = numba.types
cgutils: Any = numba.core.cgutils

PREFIX = "retrograde_"
FUNCTIONS = ("gemm", "gemv", "dot", "ger", "trsm", "trsv")
FACTORISATIONS = ("getrf", "potrf")  # of LAPACK
INT32, INT64 = ir.IntType(32), ir.IntType(64)
CHAR = ir.IntType(8)


def _has_wide_integers() -> bool:
    """Tell whether SciPy's BLAS counts with 64-bit integers."""
    from scipy.__config__ import CONFIG

    blas = CONFIG.get("Build Dependencies", {}).get("blas", {})
    return bool(blas.get("cython blas ilp64", False))


def _capsule_address(capsule: Any) -> int:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, name(capsule))
    assert isinstance(address, int)
    return address


@functools.cache
def register() -> None:
    """Bind SciPy's BLAS and LAPACK functions for LLVM; cheap after the first time."""
    from scipy.linalg import cython_blas, cython_lapack

    if _has_wide_integers():
        raise ImportError(
            "this SciPy was built for a BLAS with 64-bit integers (ILP64); "
            "retrograde needs the usual build with 32-bit integers"
        )
    libraries = ((cython_blas, FUNCTIONS), (cython_lapack, FACTORISATIONS))
    for library, functions in libraries:
        for name in (kind + f for f in functions for kind in "sd"):
            capsule = library.__pyx_capi__[name]
            llvm.add_symbol(PREFIX + name, _capsule_address(capsule))
    threads.limit_blas()


def describe() -> str:
    """Return one line about the BLAS in use, for the doctor."""
    import scipy
    from scipy.__config__ import CONFIG

    blas = CONFIG.get("Build Dependencies", {}).get("blas", {})
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    return f"{name} of SciPy {scipy.__version__}"


class Emitter:
    """Emit calls of one kernel's BLAS functions."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context = context
        self.builder = builder
        self.value = context.get_value_type(dtype)
        self.kind = "s" if dtype == types.float32 else "d"

    def require_counts(self, *counts: Any) -> None:
        """Refuse sizes that BLAS's 32-bit integers cannot hold."""
        excess = INT64(0)
        for count in counts:
            excess = self.builder.or_(excess, self.builder.lshr(count, INT64(31)))
        too_large = self.builder.icmp_unsigned("!=", excess, INT64(0))
        with self.builder.if_then(too_large, likely=False):
            message = "matrix product: a size does not fit in 32 bits"
            self.context.call_conv.return_user_exc(
                self.builder, OverflowError, (message,)
            )

    def at_least_one(self, count: Any) -> Any:
        one = INT64(1)
        small = self.builder.icmp_signed("<", count, one)
        return self.builder.select(small, one, count)

    def count(self, value: Any) -> Any:
        """Return the address of a 32-bit copy of an int64."""
        return cgutils.alloca_once_value(self.builder, self.builder.trunc(value, INT32))

    def number(self, value: float | Any) -> Any:
        constant = self.value(value) if isinstance(value, float) else value
        return cgutils.alloca_once_value(self.builder, constant)

    def transposed(self, flag: Any) -> Any:
        letter = self.builder.select(flag, CHAR(ord("T")), CHAR(ord("N")))
        return cgutils.alloca_once_value(self.builder, letter)

    def vector(self, n: Any, p: Any, step: Any) -> tuple[Any, Any]:
        """Return lowest address and step of a vector, as BLAS wants them.

        BLAS refuses step 0, which is no matter for vectors of at most one element,
        and means the last element in memory by the first of a negative step.
        """
        b = self.builder
        short = b.icmp_signed("<=", n, INT64(1))
        step = b.select(short, INT64(1), step)
        still = b.icmp_signed("==", step, INT64(0))
        with b.if_then(still, likely=False):
            message = "matrix product: a vector has stride 0"
            self.context.call_conv.return_user_exc(b, ValueError, (message,))
        backward = b.icmp_signed("<", step, INT64(0))
        last = b.mul(b.sub(n, INT64(1)), step)
        lowest = b.gep(p, [b.select(backward, last, INT64(0))])
        return lowest, self.count(step)

    def clear(self, rows: Any, columns: Any, p: Any, row: Any, column: Any) -> None:
        """Write zeros into a matrix with these strides."""
        b = self.builder
        with cgutils.for_range(b, rows, intp=INT64) as i:
            with cgutils.for_range(b, columns, intp=INT64) as j:
                at = b.add(b.mul(i.index, row), b.mul(j.index, column))
                b.store(self.value(0.0), b.gep(p, [at]))

    def call(self, name: str, *args: Any, result: Any = None) -> Any:
        symbol = PREFIX + self.kind + name
        function_type = ir.FunctionType(result or ir.VoidType(), [a.type for a in args])
        function = cgutils.get_or_insert_function(
            self.builder.module, function_type, symbol
        )
        return self.builder.call(function, args)


def pointers(name: str, *pointers: Any) -> Any:
    """Return the one element type of the operands."""
    dtype = getattr(pointers[0], "dtype", None)
    same = all(p == types.CPointer(dtype) for p in pointers) if dtype else False
    if not same or dtype not in (types.float32, types.float64):
        given = ", ".join(map(str, pointers))
        raise TypingError(f"{name} needs pointers to float32 or float64, not {given}")
    return dtype


def _make_gemm(name: str, alpha: float, beta: float) -> Any:
    @intrinsic
    def multiply(
        typingctx: Any,
        ta: Any,
        tb: Any,
        m: Any,
        n: Any,
        k: Any,
        a: Any,
        lda: Any,
        b: Any,
        ldb: Any,
        c: Any,
        ldc: Any,
    ) -> Any:
        dtype = pointers(name, a, b, c)

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ta, tb, m, n, k, a, lda, b, ldb, c, ldc = args
            e = Emitter(context, builder, dtype)
            lda, ldb, ldc = map(e.at_least_one, (lda, ldb, ldc))
            e.require_counts(m, n, k, lda, ldb, ldc)
            empty = builder.icmp_signed("==", k, INT64(0))
            with builder.if_else(empty, likely=False) as (without, with_terms):
                with without:
                    if beta == 0.0:
                        e.clear(m, n, c, ldc, INT64(1))
                with with_terms:
                    e.call(
                        "gemm",
                        e.transposed(tb),
                        e.transposed(ta),
                        *map(e.count, (n, m, k)),
                        e.number(alpha),
                        b,
                        e.count(ldb),
                        a,
                        e.count(lda),
                        e.number(beta),
                        c,
                        e.count(ldc),
                    )
            return context.get_dummy_value()

        flag, size = types.boolean, types.int64
        counts = (size, size, size)
        return types.void(flag, flag, *counts, a, size, b, size, c, size), emit

    return multiply


def _make_gemv(name: str, alpha: float, beta: float) -> Any:
    @intrinsic
    def multiply(
        typingctx: Any,
        ta: Any,
        m: Any,
        n: Any,
        a: Any,
        lda: Any,
        x: Any,
        incx: Any,
        y: Any,
        incy: Any,
    ) -> Any:
        dtype = pointers(name, a, x, y)

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ta, m, n, a, lda, x, incx, y, incy = args
            e = Emitter(context, builder, dtype)
            lda = e.at_least_one(lda)
            e.require_counts(m, n, lda)
            terms, results = builder.select(ta, m, n), builder.select(ta, n, m)
            empty = builder.icmp_signed("==", terms, INT64(0))
            with builder.if_else(empty, likely=False) as (without, with_terms):
                with without:
                    if beta == 0.0:
                        e.clear(results, INT64(1), y, incy, INT64(1))
                with with_terms:
                    x, incx = e.vector(terms, x, incx)
                    y, incy = e.vector(results, y, incy)
                    e.call(
                        "gemv",
                        e.transposed(builder.not_(ta)),
                        e.count(n),
                        e.count(m),
                        e.number(alpha),
                        a,
                        e.count(lda),
                        x,
                        incx,
                        e.number(beta),
                        y,
                        incy,
                    )
            return context.get_dummy_value()

        flag, size = types.boolean, types.int64
        return types.void(flag, size, size, a, size, x, size, y, size), emit

    return multiply


gemm = _make_gemm("gemm", 1.0, 0.0)
gemm_add = _make_gemm("gemm_add", 1.0, 1.0)
gemm_subtract = _make_gemm("gemm_subtract", -1.0, 1.0)
gemv = _make_gemv("gemv", 1.0, 0.0)
gemv_add = _make_gemv("gemv_add", 1.0, 1.0)
gemv_subtract = _make_gemv("gemv_subtract", -1.0, 1.0)


@intrinsic
def dot(typingctx: Any, n: Any, x: Any, incx: Any, y: Any, incy: Any) -> Any:
    """Return the sum of the products of two vectors."""
    dtype = pointers("dot", x, y)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n, x, incx, y, incy = args
        e = Emitter(context, builder, dtype)
        e.require_counts(n)
        x, incx = e.vector(n, x, incx)
        y, incy = e.vector(n, y, incy)
        return e.call("dot", e.count(n), x, incx, y, incy, result=e.value)

    size = types.int64
    return dtype(size, x, size, y, size), emit


@intrinsic
def ger(
    typingctx: Any,
    m: Any,
    n: Any,
    alpha: Any,
    x: Any,
    incx: Any,
    y: Any,
    incy: Any,
    a: Any,
    lda: Any,
) -> Any:
    """Add ``alpha * outer(x, y)`` to a row-major m x n matrix."""
    dtype = pointers("ger", x, y, a)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        m, n, alpha, x, incx, y, incy, a, lda = args
        e = Emitter(context, builder, dtype)
        lda = e.at_least_one(lda)
        e.require_counts(m, n, lda)
        x, incx = e.vector(m, x, incx)
        y, incy = e.vector(n, y, incy)
        scale = e.number(alpha)
        counts = e.count(n), e.count(m)
        e.call("ger", *counts, scale, y, incy, x, incx, a, e.count(lda))
        return context.get_dummy_value()

    size = types.int64
    return types.void(size, size, dtype, x, size, y, size, a, size), emit
