"""Long kernels as several functions.

Note [pieces]
LLVM's time for a function grows faster than its length: 100 loops take 1.7 s, 400 loops
17 s, of which 11 s are the optimiser's. So of a block with many loops runs of
statements become functions of their own, beside the kernel's in the same module. A
piece takes the address of a struct on its caller's stack: what it reads is put there,
and what it assigns is taken from there afterwards. Inside, names are registers as they
are in any function. A piece has Numba's calling convention, since it may call what
Numba has compiled, whose errors it hands on.

Statements stay where they are if they leave the block, own memory, or make a pointer
that is used elsewhere: it may be to the function's own stack.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numba
from llvmlite import ir

# Numba's internals are untyped Python to mypy.
types: Any = numba.types
cgutils: Any = numba.core.cgutils

MOST = 40  # loops of a block that stays whole
SIZE = 20  # loops of a piece
LOOPS = (ast.For, ast.While)


def loops_in(body: Sequence[ast.stmt]) -> int:
    """Count loops, inner ones too."""
    inner = (getattr(s, name, ()) for s in body for name in ("body", "orelse"))
    return sum(isinstance(s, LOOPS) for s in body) + sum(map(loops_in, inner))


def block(lower: Any, body: Sequence[ast.stmt]) -> None:
    """Write the statements of a block, in pieces if it is long."""
    if len(body) < 2 or loops_in(body) <= MOST:
        for s in body:
            lower.statement(s)
        return
    typing = lower.typing
    uses = typing.uses = typing.uses or Counter(_names(typing.syntax))
    for run in _runs(lower, body, uses):
        if len(run) > 1 and loops_in(run) > 1:
            _piece(lower, run, uses)
        else:
            for s in run:
                lower.statement(s)


def _names(*trees: ast.AST) -> Iterator[str]:
    for tree in trees:
        for x in ast.walk(tree):
            if isinstance(x, ast.Name):
                yield x.id


def _assigned(*trees: ast.AST) -> set[str]:
    found = (x for tree in trees for x in ast.walk(tree) if isinstance(x, ast.Name))
    return {x.id for x in found if isinstance(x.ctx, ast.Store)}


def _runs(
    lower: Any, body: Sequence[ast.stmt], uses: Counter[str]
) -> Iterator[list[ast.stmt]]:
    """Yield the statements of a block in runs: pieces, and what lies between."""
    run: list[ast.stmt] = []
    loops = 0
    for s in body:
        movable, more = _may_move(lower, s, uses), loops_in([s])
        if run and (not movable or loops + more > SIZE):
            yield run
            run, loops = [], 0
        if movable:
            run.append(s)
            loops += more
        else:
            yield [s]
    yield run


def _may_move(lower: Any, s: ast.stmt, uses: Counter[str]) -> bool:
    if _leaves(s):
        return False
    names, models = lower.typing.names, lower.context.data_model_manager
    inside = Counter(_names(s))
    if any(models[names[n]].contains_nrt_meminfo() for n in inside if n in names):
        return False
    return not any(
        isinstance(names[n], types.CPointer) and uses[n] > inside[n]
        for n in _assigned(s)
    )


def _leaves(s: ast.stmt) -> bool:
    """Tell whether a statement may return, or break out of a loop around it."""
    if isinstance(s, ast.Return | ast.Break):
        return True
    inner = [x for x in ast.iter_child_nodes(s) if isinstance(x, ast.stmt)]
    if isinstance(s, LOOPS):
        return any(isinstance(x, ast.Return) for x in ast.walk(s))
    return any(map(_leaves, inner))


def _piece(lower: Any, run: Sequence[ast.stmt], uses: Counter[str]) -> None:
    """Write the call of a piece, and the piece."""
    typing, builder = lower.typing, lower.builder
    inside, assigned = Counter(_names(*run)), _assigned(*run)
    variables = [n for n in inside if n in lower.slots and uses[n] > inside[n]]
    read = [n for n in inside if n in lower.values and n not in assigned]
    made = [
        n
        for n in inside
        if n in assigned - typing.indices and uses[n] > inside[n]
        if n not in lower.slots
    ]
    where = {n: k for k, n in enumerate([*variables, *read, *made])}
    kinds = [lower.context.get_value_type(typing.names[n]) for n in where]
    frame = cgutils.alloca_once(builder, ir.LiteralStructType(kinds), name="frame")

    def put(name: str, value: Any) -> None:
        builder.store(value, cgutils.gep_inbounds(builder, frame, 0, where[name]))

    def got(name: str) -> Any:
        return builder.load(cgutils.gep_inbounds(builder, frame, 0, where[name]))

    for n in variables:
        put(n, builder.load(lower.slots[n]))
    for n in read:
        put(n, lower.values[n])
    function = _function(lower, run, frame.type, where, variables, read)
    convention = lower.call_conv
    address = builder.ptrtoint(frame, lower.context.get_value_type(types.intp))
    status, _ = convention.call_function(
        builder, function, types.int64, (types.intp,), [address]
    )
    with cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    for n in variables:
        if n in assigned:
            builder.store(got(n), lower.slots[n])
    lower.values |= {n: got(n) for n in made}


def _function(
    lower: Any,
    run: Sequence[ast.stmt],
    kind: Any,
    where: dict[str, int],
    variables: Sequence[str],
    read: Sequence[str],
) -> Any:
    """Write the function of a piece; `where` are the places in its struct."""
    convention, context = lower.call_conv, lower.context
    module = lower.builder.module
    function = ir.Function(
        module,
        convention.get_function_type(types.int64, (types.intp,)),
        module.get_unique_name(f"{lower.function.name}.piece"),
    )
    function.linkage = "internal"
    function.attributes.add("noinline")
    state = dict(vars(lower))
    lower.function = function
    lower.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
    frame = builder.inttoptr(convention.get_arguments(function)[0], kind)

    def field(name: str) -> Any:
        return cgutils.gep_inbounds(builder, frame, 0, where[name])

    names = lower.typing.names
    lower.slots = {
        n: cgutils.alloca_once(builder, context.get_value_type(names[n]), name=n)
        for n in sorted({*_names(*run)} & lower.typing.slots)
    }
    for n in variables:
        builder.store(builder.load(field(n)), lower.slots[n])
    lower.values = {n: builder.load(field(n)) for n in read}
    lower.after = []
    for s in run:
        lower.statement(s)
    for n in where:
        if n in lower.slots:
            builder.store(builder.load(lower.slots[n]), field(n))
        elif n not in read:
            builder.store(lower.values[n], field(n))
    convention.return_value(builder, context.get_constant(types.int64, 0))
    vars(lower).update(state)
    return function
