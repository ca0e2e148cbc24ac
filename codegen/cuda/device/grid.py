"""Threads of a block: which one this is, barriers, and values from other threads."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba.cuda.extending import intrinsic

from ....runtime.intrinsics import Builder, Value, same

__all__ = [
    "all_threads",
    "any_thread",
    "barrier",
    "block",
    "blocks",
    "shuffle_xor",
    "thread",
    "threads",
]

types: Any = numba.types
INT32, INT64 = ir.IntType(32), ir.IntType(64)
LANES = 32  # of a warp

# The numba.cuda that is built into Numba, which compiles no kernels, has no such thing.
_extending: Any = importlib.import_module("numba.cuda.extending")
_register: Any = getattr(_extending, "register_jitable", lambda function: function)
F = TypeVar("F", bound=Callable[..., Any])


def device(function: F) -> F:
    """Let kernels call a function of Python."""
    return _register(function)  # type: ignore[no-any-return]


def nvvm(b: Builder, name: str, result: Any, *values: Value) -> Value:
    """Emit a call of one of NVVM's own functions."""
    symbol = f"llvm.nvvm.{name}"
    function = b.module.globals.get(symbol)
    if function is None:
        kind = ir.FunctionType(result, [v.type for v in values])
        function = ir.Function(b.module, kind, symbol)
    return b.call(function, values)


def register(b: Builder, name: str) -> Value:
    """Emit the value of a special register of 32 bits."""
    return nvvm(b, f"read.ptx.sreg.{name}", INT32)


def _index(name: str) -> Any:
    @intrinsic
    def function(typingctx: Any) -> tuple[Any, Any]:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.zext(register(b, name), INT64)

        return types.int64(), code

    return function


thread, threads = _index("tid.x"), _index("ntid.x")
block, blocks = _index("ctaid.x"), _index("nctaid.x")


def meet(b: Builder) -> None:
    """Emit a barrier of the block."""
    nvvm(b, "barrier0", ir.VoidType())


@intrinsic
def barrier(typingctx: Any) -> tuple[Any, Any]:
    """Wait for all threads of the block, and see what they have stored."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        meet(b)
        return context.get_dummy_value()

    return types.void(), code


def ask(b: Builder, how: str, flag: Value) -> Value:
    """Emit a barrier that combines a bool of all threads: "or" or "and"."""
    answer = nvvm(b, f"barrier0.{how}", INT32, b.zext(flag, INT32))
    return b.icmp_unsigned("!=", answer, INT32(0))


def _asking(how: str) -> Any:
    @intrinsic
    def function(typingctx: Any, flag: Any) -> tuple[Any, Any]:
        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return ask(b, how, args[0])

        return types.boolean(types.boolean), code

    return function


any_thread, all_threads = _asking("or"), _asking("and")  # barriers of the block


def exchange(b: Builder, x: Value, lanes: Value, how: str = "bfly") -> Value:
    """Emit the value that another lane of the warp has; all its lanes take part."""
    t = x.type
    bits = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(t) or t.width
    name, mask, last = f"shfl.sync.{how}.i32", INT32(-1), INT32(LANES - 1)

    def other(word: Value) -> Value:
        return nvvm(b, name, INT32, mask, word, lanes, last)

    if bits < 32:
        return b.trunc(other(b.zext(x, INT32)), t)
    if bits == 32:
        return b.bitcast(other(b.bitcast(x, INT32)), t)
    pair = words = b.bitcast(x, ir.VectorType(INT32, 2))
    for k in range(2):
        word = other(b.extract_element(pair, INT32(k)))
        words = b.insert_element(words, word, INT32(k))
    return b.bitcast(words, t)


@intrinsic
def shuffle_xor(typingctx: Any, x: Any, lanes: Any) -> tuple[Any, Any]:
    """Return the `x` of the lane with number ``lane ^ lanes``, from 1 to 31.

    All lanes of the warp have to call it.
    """
    t = same("shuffle_xor", x)

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return exchange(b, args[0], b.trunc(args[1], INT32))

    return t(t, types.int64), code
