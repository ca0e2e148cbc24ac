"""Functions of a kernel that several threads run: its parts.

`parallel(part_0, chunks, a, b)` calls `part_0(chunk, a, b)` for every chunk. The
part is a function beside the kernel's own in the same LLVM module. It has Numba's
calling convention, since it may call what Numba has compiled, and takes the address of
a struct on the caller's stack that holds what it is given.
"""

from __future__ import annotations

import ast
from typing import Any

import numba
from llvmlite import ir

from ..runtime import forkjoin

# Numba's internals are untyped Python to mypy.
types: Any = numba.types
cgutils: Any = numba.core.cgutils

PARALLEL = "parallel"


def call(lower: Any, x: ast.expr) -> Any:
    """Write the call of a part for all chunks, and the part; return its code."""
    typing, builder = lower.typing.parts[x], lower.builder
    assert isinstance(x, ast.Call)
    _, chunks, *given = x.args
    count = lower.cast(lower.expression(chunks), types.int64)
    values = [
        lower.cast(lower.expression(a), t)
        for a, t in zip(given, list(typing.args.values())[1:], strict=True)
    ]
    kind = ir.LiteralStructType([v.type for v in values])
    context = cgutils.alloca_once(builder, kind, name="context")
    for k, v in enumerate(values):
        builder.store(v, cgutils.gep_inbounds(builder, context, 0, k))
    part = builder.bitcast(_part(lower, typing, kind), forkjoin.ENTRY.args[0])
    function = cgutils.get_or_insert_function(
        builder.module, forkjoin.ENTRY, forkjoin.PARALLEL
    )
    return builder.call(
        function, [part, builder.ptrtoint(context, forkjoin.I64), count]
    )


def _part(lower: Any, typing: Any, kind: Any) -> Any:
    """Write the function of a part; `kind` is the struct of what it is given."""
    convention = lower.call_conv
    given = (types.intp, types.int64)
    function_type = convention.get_function_type(types.int64, given)
    name = f"{lower.function.name}.{typing.syntax.name}"
    function = ir.Function(lower.builder.module, function_type, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    state = dict(vars(lower))
    lower.function = function
    lower.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
    address, chunk = convention.get_arguments(function)
    context = builder.inttoptr(address, kind.as_pointer())
    args = [
        builder.load(cgutils.gep_inbounds(builder, context, 0, k))
        for k in range(len(kind.elements))
    ]
    lower.body(typing, [chunk, *args])
    vars(lower).update(state)
    return function


def has_parts(source: str) -> bool:
    """Tell whether the source of a kernel may call a part."""
    return f"{PARALLEL}(" in source


def parts_of(tree: ast.Module, entry: ast.FunctionDef) -> dict[str, ast.FunctionDef]:
    """Take the parts of an entry out of its module; return their syntax."""
    names = {
        x.args[0].id
        for x in ast.walk(entry)
        if isinstance(x, ast.Call)
        and isinstance(x.func, ast.Name)
        and x.func.id == PARALLEL
        and isinstance(x.args[0], ast.Name)
    }
    found = {
        s.name: s
        for s in tree.body
        if isinstance(s, ast.FunctionDef) and s.name in names
    }
    tree.body = [s for s in tree.body if s not in found.values()]
    return found
