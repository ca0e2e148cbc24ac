"""Typed pointers on a device: loads, stores, atomic updates and shared memory.

Indices count elements and have 64 bits. Bools are bytes in memory.

Note [constant loads]
`load_constant` promises that nobody writes the buffer meanwhile: the load goes through
the cache for read-only data and may be moved over stores.

Note [aligned accesses]
`load_4` and the like are one access of up to 16 bytes. The index is a multiple of the
number of elements, in a buffer that starts at a multiple of as many bytes.

Note [words]
Atomic updates without an instruction of their own swap whole words of 32 or 64 bits; an
element of 8 or 16 bits is changed within the word around it. So a buffer of such
elements has room for whole words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba.core.errors import TypingError
from numba.cuda.extending import intrinsic

from ....runtime.intrinsics import Builder, Value, is_float, is_signed
from .grid import INT32, INT64, nvvm
from .operations import ADD, MAXIMUM, MINIMUM, MULTIPLY, Operation
from .scalars import converted

__all__ = [
    "atomic_add",
    "atomic_load",
    "atomic_maximum",
    "atomic_minimum",
    "atomic_multiply",
    "load",
    "load_2",
    "load_4",
    "load_constant",
    "load_constant_2",
    "load_constant_4",
    "offset",
    "own_row",
    "shared",
    "store",
    "store_2",
    "store_4",
]

types: Any = numba.types
WIDEST = 16  # bytes of one access
DYNAMIC = "retrograde_dynamic"  # the shared memory that a launch asks for
GLOBAL, SHARED = 1, 3  # address spaces


def _element(p: Any, name: str) -> Any:
    if not isinstance(p, types.CPointer):
        raise TypingError(f"{name} needs a pointer, not {p}")
    return p.dtype


def _at(b: Builder, p: Value, i: Value) -> Value:
    return b.gep(p, [i], inbounds=True)


def _constant(b: Builder, p: Value) -> Value:
    """Emit a pointer to global memory."""
    return b.addrspacecast(p, ir.PointerType(p.type.pointee, GLOBAL))


def _promise(b: Builder, instruction: Value) -> None:
    instruction.set_metadata("invariant.load", b.module.add_metadata([]))


def _wide(context: Any, b: Builder, t: Any, p: Value, count: int) -> tuple[Value, int]:
    """Return a pointer to a vector of elements, and its alignment."""
    element = context.get_data_type(t)
    vector = ir.PointerType(ir.VectorType(element, count), p.type.addrspace)
    size = count * context.get_abi_sizeof(element)
    return b.bitcast(p, vector), min(size, WIDEST)


@intrinsic
def offset(typingctx: Any, p: Any, i: Any) -> tuple[Any, Any]:
    """Return the pointer `i` elements further."""
    _element(p, "offset")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return _at(b, *args)

    return p(p, types.int64), code


@intrinsic
def own_row(typingctx: Any, p: Any, i: Any, start: Any) -> tuple[Any, Any]:
    """Return the pointer `i` elements further; where it is null, one to shared memory.

    That is the block's dynamic shared memory, from the byte `start` on.
    """
    _element(p, "own_row")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        p, i, start = args
        byte = ir.IntType(8)
        found = b.module.globals.get(DYNAMIC)
        if found is None:
            found = ir.GlobalVariable(b.module, ir.ArrayType(byte, 0), DYNAMIC, SHARED)
            found.align = WIDEST
        first = b.addrspacecast(b.gep(found, [INT32(0), INT32(0)]), byte.as_pointer())
        inside = b.bitcast(b.gep(first, [start]), p.type)
        null = b.icmp_unsigned("==", b.ptrtoint(p, INT64), INT64(0))
        return b.select(null, inside, _at(b, p, i))

    return p(p, types.int64, types.int64), code


def _loading(name: str, constant: bool) -> Any:
    @intrinsic
    def load(typingctx: Any, p: Any, i: Any) -> tuple[Any, Any]:
        t = _element(p, name)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p = _at(b, *args)
            raw = b.load(_constant(b, p) if constant else p)
            if constant:
                _promise(b, raw)
            return context.data_model_manager[t].from_data(b, raw)

        return t(p, types.int64), code

    return load


def _loading_several(name: str, count: int, constant: bool) -> Any:
    @intrinsic
    def load(typingctx: Any, p: Any, i: Any) -> tuple[Any, Any]:
        t = _element(p, name)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p = _at(b, *args)
            p, align = _wide(context, b, t, _constant(b, p) if constant else p, count)
            raw = b.load(p, align=align)
            if constant:
                _promise(b, raw)
            data = context.data_model_manager[t]
            parts = [
                data.from_data(b, b.extract_element(raw, INT32(k)))
                for k in range(count)
            ]
            return context.make_tuple(b, signature.return_type, parts)

        return types.UniTuple(t, count)(p, types.int64), code

    return load


load, load_constant = _loading("load", False), _loading("load_constant", True)
load_2, load_4 = (_loading_several(f"load_{n}", n, False) for n in (2, 4))
load_constant_2, load_constant_4 = (
    _loading_several(f"load_constant_{n}", n, True) for n in (2, 4)
)


@intrinsic
def store(typingctx: Any, p: Any, i: Any, x: Any) -> tuple[Any, Any]:
    """Set ``p[i] = x``, cast to the element type."""
    t, x = _element(p, "store"), types.unliteral(x)

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        value = converted(b, args[2], x, t)
        raw = context.data_model_manager[t].as_data(b, value)
        b.store(raw, _at(b, *args[:2]))
        return context.get_dummy_value()

    return types.void(p, types.int64, x), code


def _store_several(
    context: Any, b: Builder, t: Any, p: Value, i: Value, values: Sequence[Value]
) -> Value:
    data, count = context.data_model_manager[t], len(values)
    p, align = _wide(context, b, t, _at(b, p, i), count)
    vector = ir.Constant(p.type.pointee, ir.Undefined)
    for k, x in enumerate(values):
        vector = b.insert_element(vector, data.as_data(b, x), INT32(k))
    b.store(vector, p, align=align)
    return context.get_dummy_value()


@intrinsic
def store_2(typingctx: Any, p: Any, i: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Set ``p[i : i + 2]``; see Note [aligned accesses]."""
    t = _element(p, "store_2")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return _store_several(context, b, t, args[0], args[1], args[2:])

    return types.void(p, types.int64, t, t), code


@intrinsic
def store_4(
    typingctx: Any, p: Any, i: Any, x: Any, y: Any, z: Any, w: Any
) -> tuple[Any, Any]:
    """Set ``p[i : i + 4]``; see Note [aligned accesses]."""
    t = _element(p, "store_4")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return _store_several(context, b, t, args[0], args[1], args[2:])

    return types.void(p, types.int64, t, t, t, t), code


# Shared memory -----------------------------------------------------------------------


def array(context: Any, b: Builder, t: Any, name: str, count: int) -> Value:
    """Return the pointer to an array in shared memory, the same for the same name."""
    element = context.get_data_type(t)
    symbol = f"retrograde_{name}_{count}_{t}"
    found = b.module.globals.get(symbol)
    if found is None:
        kind = ir.ArrayType(element, count)
        found = ir.GlobalVariable(b.module, kind, symbol, SHARED)
        found.linkage, found.align = "internal", WIDEST
        found.initializer = ir.Constant(kind, ir.Undefined)
    start = b.gep(found, [INT32(0), INT32(0)])
    return b.addrspacecast(start, element.as_pointer())


@intrinsic
def shared(
    typingctx: Any, number: Any, count: Any, dtype: Any
) -> tuple[Any, Any] | None:
    """Return a pointer to `count` elements that the threads of the block share.

    `number` and `count` are literals; calls with the same arguments give the same
    memory. It starts with any values.
    """
    literals = (number, count)
    if not all(isinstance(x, types.IntegerLiteral) for x in literals):
        return None  # Numba asks again with the literals
    which, n = (int(x.literal_value) for x in literals)
    t = dtype.dtype

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return array(context, b, t, f"shared{which}", n)

    return types.CPointer(t)(number, count, dtype), code


# Atomic updates ----------------------------------------------------------------------


def _whole_word(b: Builder, p: Value, size: int) -> tuple[Value, Value]:
    """Return the word of 32 bits around a shorter element, and the bits before."""
    address = b.ptrtoint(p, INT64)
    word = b.inttoptr(b.and_(address, INT64(-4)), INT32.as_pointer())
    place = b.and_(b.trunc(address, INT32), INT32(4 - size))
    return word, b.shl(place, INT32(3))


def _swap(context: Any, b: Builder, t: Any, p: Value, combine: Any) -> None:
    """Emit a loop that replaces an element by `combine` of it; see Note [words]."""
    data = context.data_model_manager[t]
    element = p.type.pointee
    size = context.get_abi_sizeof(element)
    bits = ir.IntType(8 * size)
    if size < 4:
        word, before = _whole_word(b, p, size)
    else:
        word, before = b.bitcast(p, bits.as_pointer()), None
    entry = b.block
    loop, done = (b.append_basic_block(f"atomic.{n}") for n in ("loop", "done"))
    b.branch(loop)
    b.position_at_end(loop)
    seen = b.phi(word.type.pointee)
    seen.add_incoming(seen.type(0), entry)  # a guess: the first swap tells the element
    part = seen if before is None else b.trunc(b.lshr(seen, before), bits)
    x = data.from_data(b, b.bitcast(part, element))
    new = b.bitcast(data.as_data(b, combine(x)), bits)
    if before is not None:
        mask = b.not_(b.shl(INT32(2 ** (8 * size) - 1), before))
        new = b.or_(b.and_(seen, mask), b.shl(b.zext(new, INT32), before))
    pair = b.cmpxchg(word, seen, new, "monotonic", "monotonic")
    seen.add_incoming(b.extract_value(pair, 0), b.block)
    b.cbranch(b.extract_value(pair, 1), done, loop)
    b.position_at_end(done)


def _native(b: Builder, t: Any, p: Value, x: Value, operation: Operation) -> bool:
    """Emit an update that is one instruction; False: there is none."""
    if is_float(t):
        if operation is not ADD:
            return False
        nvvm(b, f"atomic.load.add.f{t.bitwidth}.p0f{t.bitwidth}", x.type, p, x)
        return True
    if x.type.width < 32 or not operation.atomic:
        return False
    sign = "u" if operation.chooses and not is_signed(t) else ""
    b.atomic_rmw(sign + operation.atomic, p, x, "monotonic")
    return True


def _atomic(name: str, operation: Operation) -> Any:
    @intrinsic
    def update(typingctx: Any, p: Any, i: Any, x: Any) -> tuple[Any, Any]:
        t = _element(p, name)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            p, x = _at(b, *args[:2]), args[2]
            if not _native(b, t, p, x, operation):
                _swap(context, b, t, p, lambda old: operation.emit(b, t, old, x))
            return context.get_dummy_value()

        return types.void(p, types.int64, t), code

    return update


# Updates of an element that many threads may make, in any order: sums of floats are not
# the same from run to run.
atomic_add = _atomic("atomic_add", ADD)
atomic_multiply = _atomic("atomic_multiply", MULTIPLY)
atomic_maximum = _atomic("atomic_maximum", MAXIMUM)
atomic_minimum = _atomic("atomic_minimum", MINIMUM)


@intrinsic
def atomic_load(typingctx: Any, p: Any, i: Any) -> tuple[Any, Any]:
    """Return an integer that other threads may update at the same time."""
    t = _element(p, "atomic_load")

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = _at(b, *args)
        return b.atomic_rmw("or", pointer, pointer.type.pointee(0), "monotonic")

    return t(p, types.int64), code
