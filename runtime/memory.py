"""Typed pointers for generated kernels, as Numba intrinsics.

Generated loops address memory through pointers and int64 element indices: cheaper to
compile than NumPy indexing, without wrap-around, and with a promise that LLVM cannot
find out by itself: that two buffers do not share memory.

Note [alias scopes]
LLVM vectorises a loop over several pointers only if it can prove, or check at run time,
that they do not overlap, and gives up on the checks at about 16 pointers. Each access
of buffer ``k`` of ``total`` therefore carries ``!alias.scope {k}`` and ``!noalias {all
others}``. The promise holds for the whole function: buffers which share memory at
different times need the same ``k``, or ``k = -1``, which promises nothing. Inlining
gives the scopes of a callee fresh identities, so functions do not disturb each other.

Note [half precision]
Numba has no float16 on CPUs, not even as the element type of an argument. Such arrays
arrive as their ``uint16`` view; `load_half` and `store_half` convert to and from
float32 with the processor's instructions. A float64 is first shortened to float32 by
rounding to odd, which makes the second rounding the only one that counts; LLVM's own
conversion would call a library function that a process does not have.
"""

import functools
import platform
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic, register_jitable

from . import instructions

__all__ = [
    "address",
    "cast",
    "convert",
    "copy",
    "fill",
    "freed",
    "grown",
    "load",
    "load_half",
    "offset",
    "part",
    "pointer",
    "reassoc_add",
    "size",
    "stack",
    "store",
    "store_half",
    "stride",
    "taken",
]

# Types and values of Numba and llvmlite are untyped Python to mypy.
types: Any = numba.types
cgutils: Any = numba.core.cgutils
Signature = Any
Emit = Callable[[Any, Any, Any, Any], Any]
Scope = tuple[Any, Any]

NO_SCOPE = -1
INT64 = ir.IntType(64)
_scopes: "WeakKeyDictionary[Any, dict[tuple[int, int], Scope]]" = WeakKeyDictionary()


@functools.cache
def has_half() -> bool:
    """Tell whether this processor converts float16 by itself."""
    intel = platform.machine().lower() in ("x86_64", "amd64")
    return not intel or bool(llvm.get_host_cpu_features().get("f16c"))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypingError(message)


def _element(p: Any, name: str) -> Any:
    _require(isinstance(p, types.CPointer), f"{name} needs a pointer, not {p}")
    return p.dtype


def _half(p: Any, name: str) -> None:
    dtype = _element(p, name)
    _require(dtype == types.uint16, f"{name} needs a pointer to uint16, not {p}")
    _require(has_half(), f"{name}: this processor has no float16 conversion (F16C)")


def _literal(value: Any, name: str) -> int:
    is_literal = isinstance(value, types.IntegerLiteral)
    _require(is_literal, f"{name} must be a literal int, not {value}")
    return int(value.literal_value)


def _buffer(k: Any, total: Any, name: str) -> tuple[int, int]:
    """Return the buffer's number and the number of buffers as Python ints."""
    number, count = _literal(k, f"{name}: k"), _literal(total, f"{name}: total")
    _require(
        number == NO_SCOPE or 0 <= number < count,
        f"{name}: buffer number {number} is not one of {count}",
    )
    return number, count


def _scope(module: Any, k: int, total: int) -> Scope:
    """Return the two metadata nodes of buffer `k`; see Note [alias scopes]."""
    known = _scopes.setdefault(module, {})
    if (k, total) not in known:
        domain = module.add_metadata([f"retrograde.{total}"])
        names = [
            module.add_metadata([f"retrograde.{number}.{total}", domain])
            for number in range(total)
        ]
        for number, name in enumerate(names):
            others = [other for other in names if other is not name]
            known[number, total] = (
                module.add_metadata([name]),
                module.add_metadata(others),
            )
    return known[k, total]


def _mark(builder: Any, instruction: Any, k: int, total: int) -> Any:
    if k != NO_SCOPE and total > 1:
        scope, others = _scope(builder.module, k, total)
        instruction.set_metadata("alias.scope", scope)
        instruction.set_metadata("noalias", others)
    return instruction


def _at(builder: Any, p: Any, i: Any) -> Any:
    return builder.gep(p, [i], inbounds=True)


def _parts(builder: Any, ptr: Any) -> tuple[Any, Any]:
    """Return pointers to the real and the imaginary part of a complex element."""
    zero, one = ir.IntType(32)(0), ir.IntType(32)(1)
    return (
        builder.gep(ptr, [zero, zero], inbounds=True),
        builder.gep(ptr, [zero, one], inbounds=True),
    )


def _load(context: Any, builder: Any, dtype: Any, ptr: Any, k: int, total: int) -> Any:
    if isinstance(dtype, types.Complex):
        value = context.make_complex(builder, dtype)
        real, imag = _parts(builder, ptr)
        value.real = _mark(builder, builder.load(real), k, total)
        value.imag = _mark(builder, builder.load(imag), k, total)
        return value._getvalue()
    raw = _mark(builder, builder.load(ptr), k, total)
    return context.data_model_manager[dtype].from_data(builder, raw)


def _store(
    context: Any, builder: Any, dtype: Any, value: Any, ptr: Any, k: int, total: int
) -> None:
    if isinstance(dtype, types.Complex):
        pair = context.make_complex(builder, dtype, value=value)
        real, imag = _parts(builder, ptr)
        _mark(builder, builder.store(pair.real, real), k, total)
        _mark(builder, builder.store(pair.imag, imag), k, total)
        return
    raw = context.data_model_manager[dtype].as_data(builder, value)
    _mark(builder, builder.store(raw, ptr), k, total)


def _convert(context: Any, builder: Any, value: Any, old: Any, new: Any) -> Any:
    """Cast as C does on common machines where C leaves the result open."""
    old = types.unliteral(old)
    if isinstance(old, types.Complex) and not isinstance(new, types.Complex):
        pair = context.make_complex(builder, old, value=value)
        part = old.underlying_float
        if new == types.boolean:
            real = _convert(context, builder, pair.real, part, new)
            return builder.or_(real, _convert(context, builder, pair.imag, part, new))
        return _convert(context, builder, pair.real, part, new)
    if not isinstance(old, types.Complex) and not isinstance(new, types.Complex):
        return instructions.convert(builder, value, old, new)
    return context.cast(builder, value, old, new)


def _round_to_odd(builder: Any, value: Any) -> Any:
    """Shorten a float64 to float32 so that rounding again rounds once."""
    near = builder.fptrunc(value, ir.FloatType())
    back = builder.fpext(near, ir.DoubleType())
    word = ir.IntType(32)
    inexact = builder.fcmp_ordered("!=", back, value)
    magnitude = builder.select(
        builder.fcmp_ordered("<", value, value.type(0.0)), builder.fneg(value), value
    )
    reached = builder.select(
        builder.fcmp_ordered("<", back, back.type(0.0)), builder.fneg(back), back
    )
    beyond = builder.fcmp_ordered(">", reached, magnitude)
    bits = builder.sub(builder.bitcast(near, word), builder.zext(beyond, word))
    odd = builder.or_(bits, builder.zext(inexact, word))
    return builder.bitcast(odd, ir.FloatType())


def _is_element(value: Any) -> bool:
    return isinstance(types.unliteral(value), (types.Number, types.Boolean))


@intrinsic
def pointer(typingctx: Any, a: Any) -> tuple[Signature, Emit]:
    """Return the pointer to the first element of an array."""
    _require(isinstance(a, types.Array), f"pointer needs an array, not {a}")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(a)(context, builder, args[0]).data

    return types.CPointer(a.dtype)(a), emit


def _geometry(a: Any, axis: Any, name: str) -> int:
    _require(isinstance(a, types.Array), f"{name} needs an array, not {a}")
    number = _literal(axis, f"{name}: axis")
    _require(0 <= number < a.ndim, f"{name}: {a.ndim}-d array has no axis {number}")
    return number


@intrinsic(prefer_literal=True)
def size(typingctx: Any, a: Any, axis: Any) -> tuple[Signature, Emit]:
    """Return ``a.shape[axis]``."""
    number = _geometry(a, axis, "size")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(a)(context, builder, args[0])
        return builder.extract_value(array.shape, number)

    return types.int64(a, axis), emit


@intrinsic(prefer_literal=True)
def stride(typingctx: Any, a: Any, axis: Any) -> tuple[Signature, Emit]:
    """Return ``a.strides[axis] // a.itemsize``."""
    number = _geometry(a, axis, "stride")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(a)(context, builder, args[0])
        steps = builder.extract_value(array.strides, number)
        element = context.get_abi_sizeof(context.get_data_type(a.dtype))
        return builder.sdiv(steps, INT64(element))

    return types.int64(a, axis), emit


@intrinsic
def offset(typingctx: Any, p: Any, i: Any) -> tuple[Signature, Emit]:
    """Return the pointer `i` elements further."""
    _element(p, "offset")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _at(builder, *args)

    return p(p, types.int64), emit


@intrinsic
def cast(typingctx: Any, p: Any, dtype: Any) -> tuple[Signature, Emit]:
    """Return the same address as a pointer to elements of `dtype`."""
    _element(p, "cast")
    is_dtype = isinstance(dtype, types.NumberClass)
    _require(is_dtype, f"cast needs a scalar type such as np.float32, not {dtype}")
    result = types.CPointer(dtype.dtype)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(p, dtype), emit


@intrinsic
def part(typingctx: Any, p: Any, i: Any, dtype: Any) -> tuple[Signature, Emit]:
    """Return the pointer to elements of `dtype` that start `i` bytes after `p`.

    LLVM does not learn how it was computed: the sizes of all that lies before would be
    part of every address that it reasons about.
    """
    _require(_element(p, "part") == types.uint8, f"part needs a pointer to bytes: {p}")
    is_dtype = isinstance(dtype, types.NumberClass)
    _require(is_dtype, f"part needs a scalar type such as np.float32, not {dtype}")
    result = types.CPointer(dtype.dtype)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = context.get_value_type(result)
        start = builder.bitcast(_at(builder, *args[:2]), to)
        # No instruction at all, but one whose result could be anything.
        return builder.asm(ir.FunctionType(to, [to]), "", "=r,0", [start], False)

    return result(p, types.int64, dtype), emit


@intrinsic(prefer_literal=True)
def stack(typingctx: Any, n: Any, dtype: Any) -> tuple[Signature, Emit]:
    """Return a pointer to `n` elements (a literal) that live as long as the call."""
    count = _literal(n, "stack: n")
    is_dtype = isinstance(dtype, types.NumberClass)
    _require(is_dtype, f"stack needs a scalar type such as np.float32, not {dtype}")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(dtype.dtype)
        return cgutils.alloca_once(builder, element, size=INT64(count))

    return types.CPointer(dtype.dtype)(n, dtype), emit


ALIGN = 64


@intrinsic
def taken(typingctx: Any, n: Any, dtype: Any) -> tuple[Signature, Emit]:
    """Return a pointer to `n` elements that live until they are `freed`."""
    is_dtype = isinstance(dtype, types.NumberClass)
    _require(is_dtype, f"taken needs a scalar type such as np.float32, not {dtype}")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b, byte = builder, ir.IntType(8).as_pointer()
        kind = ir.FunctionType(byte, [INT64])
        malloc = cgutils.get_or_insert_function(b.module, kind, "retrograde_malloc")
        each = context.get_abi_sizeof(context.get_data_type(dtype.dtype))
        size = b.add(b.mul(args[0], INT64(each)), INT64(2 * ALIGN))
        raw = b.ptrtoint(b.call(malloc, [size]), INT64)
        start = b.and_(b.add(raw, INT64(2 * ALIGN - 1)), INT64(-ALIGN))
        before = b.inttoptr(b.sub(start, INT64(8)), INT64.as_pointer())
        b.store(raw, before)  # `freed` needs it
        return b.inttoptr(start, context.get_value_type(types.CPointer(dtype.dtype)))

    return types.CPointer(dtype.dtype)(types.int64, dtype), emit


@intrinsic
def freed(typingctx: Any, p: Any) -> tuple[Signature, Emit]:
    """Give back what has been `taken`."""
    _element(p, "freed")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        b, byte = builder, ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte])
        free = cgutils.get_or_insert_function(b.module, kind, "retrograde_free")
        start = b.ptrtoint(args[0], INT64)
        before = b.inttoptr(b.sub(start, INT64(8)), INT64.as_pointer())
        b.call(free, [b.inttoptr(b.load(before), byte)])
        return context.get_dummy_value()

    return types.void(p), emit


@intrinsic
def address(typingctx: Any, p: Any) -> tuple[Signature, Emit]:
    """Return the address as an int64."""
    _element(p, "address")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], INT64)

    return types.int64(p), emit


@intrinsic(prefer_literal=True)
def load(typingctx: Any, p: Any, i: Any, k: Any, total: Any) -> tuple[Signature, Emit]:
    """Return ``p[i]`` of buffer `k` of `total`; see Note [alias scopes]."""
    dtype = _element(p, "load")
    scope = _buffer(k, total, "load")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(context, builder, dtype, _at(builder, *args[:2]), *scope)

    return dtype(p, types.int64, k, total), emit


@intrinsic(prefer_literal=True)
def store(
    typingctx: Any, p: Any, i: Any, value: Any, k: Any, total: Any
) -> tuple[Signature, Emit]:
    """Set ``p[i] = value``, cast to the element type; see Note [alias scopes]."""
    dtype = _element(p, "store")
    scope = _buffer(k, total, "store")
    value = types.unliteral(value)
    _require(_is_element(value), f"store: {value} is not a number")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _convert(context, builder, args[2], value, dtype)
        _store(context, builder, dtype, element, _at(builder, *args[:2]), *scope)
        return context.get_dummy_value()

    return types.void(p, types.int64, value, k, total), emit


@intrinsic(prefer_literal=True)
def load_half(
    typingctx: Any, p: Any, i: Any, k: Any, total: Any
) -> tuple[Signature, Emit]:
    """Return a float16 element as float32; see Note [half precision]."""
    _half(p, "load_half")
    scope = _buffer(k, total, "load_half")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _mark(builder, builder.load(_at(builder, *args[:2])), *scope)
        return builder.fpext(builder.bitcast(word, ir.HalfType()), ir.FloatType())

    return types.float32(p, types.int64, k, total), emit


@intrinsic(prefer_literal=True)
def store_half(
    typingctx: Any, p: Any, i: Any, value: Any, k: Any, total: Any
) -> tuple[Signature, Emit]:
    """Round `value` to float16 and store it; see Note [half precision]."""
    _half(p, "store_half")
    scope = _buffer(k, total, "store_half")
    value = types.unliteral(value)
    _require(_is_element(value), f"store_half: {value} is not a number")
    middle = types.float64 if value == types.float64 else types.float32

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = _convert(context, builder, args[2], value, middle)
        if middle == types.float64:
            wide = _round_to_odd(builder, wide)
        half = builder.fptrunc(wide, ir.HalfType())
        word = builder.bitcast(half, ir.IntType(16))
        _mark(builder, builder.store(word, _at(builder, *args[:2])), *scope)
        return context.get_dummy_value()

    return types.void(p, types.int64, value, k, total), emit


@intrinsic
def convert(typingctx: Any, value: Any, dtype: Any) -> tuple[Signature, Emit]:
    """Cast a scalar to `dtype` as ``ndarray.astype`` does."""
    is_dtype = isinstance(dtype, types.NumberClass)
    _require(is_dtype, f"convert needs a scalar type such as np.int32, not {dtype}")
    _require(_is_element(value), f"convert: {value} is not a number")
    old, new = types.unliteral(value), dtype.dtype

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _convert(context, builder, args[0], old, new)

    return new(old, dtype), emit


@intrinsic
def copy(
    typingctx: Any, p: Any, i: Any, q: Any, j: Any, n: Any
) -> tuple[Signature, Emit]:
    """Set ``p[i:i+n] = q[j:j+n]``; the two may overlap."""
    dtype = _element(p, "copy")
    _require(p == q, f"copy: element types differ, {p} and {q}")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, start = _at(builder, *args[:2]), _at(builder, *args[2:4])
        element = context.get_abi_sizeof(context.get_data_type(dtype))
        cgutils.raw_memmove(builder, to, start, args[4], element)
        return context.get_dummy_value()

    index = types.int64
    return types.void(p, index, q, index, index), emit


@intrinsic
def fill(typingctx: Any, p: Any, i: Any, n: Any, value: Any) -> tuple[Signature, Emit]:
    """Set ``p[i:i+n] = value``, cast to the element type."""
    dtype = _element(p, "fill")
    value = types.unliteral(value)
    _require(_is_element(value), f"fill: {value} is not a number")

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = _at(builder, *args[:2])
        element = _convert(context, builder, args[3], value, dtype)
        with cgutils.for_range(builder, args[2], intp=INT64) as loop:
            target = _at(builder, start, loop.index)
            _store(context, builder, dtype, element, target, NO_SCOPE, 0)
        return context.get_dummy_value()

    return types.void(p, types.int64, types.int64, value), emit


_copy: Any = copy  # as they are called inside of compiled functions
_pointer: Any = pointer


@register_jitable
def grown(a: Any, size: int) -> Any:
    """Return a copy of an array with room for `size` elements, or for twice its own.

    The array has one dimension and no gaps. Appending n elements one by one copies less
    than 2 n. A slice would take seconds to compile.
    """
    b = np.empty(max(size, 2 * a.size), a.dtype)
    _copy(_pointer(b), 0, _pointer(a), 0, a.size)
    return b


@intrinsic
def reassoc_add(typingctx: Any, acc: Any, x: Any) -> tuple[Signature, Emit]:
    """Return the sum, in an order that LLVM may choose."""
    floats = (types.float32, types.float64)
    _require(acc in floats and x in floats, f"reassoc_add: floats, not {acc} and {x}")
    result = types.float64 if types.float64 in (acc, x) else types.float32

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args, flags=("reassoc",))

    return result(result, result), emit
