"""Compile the entry of a generated module without Numba's front end.

Note [the language of kernels]
Most of the time that Numba takes for a kernel goes into what generated source does not
need: bytecode, closures, rewrites, SSA form, type inference by fixed point. The source
is a small language: assignments to names, `for` over a `range`, `while True`, `if`,
`return`, and expressions of operators and of calls of what the module imports. A
variable has one type, that of its first assignment. So types are found in one walk over
the syntax tree, and instructions are written in another.

Meaning stays Numba's: each operator and each call is resolved by its typing context and
written by its implementation, once per function and types of arguments. What is not in
the language is refused.

`failed = parallel(part_0, chunks, a, b)` calls a function of the same source for every
chunk, on several threads (`runtime.threads`). It is a function beside the kernel's own,
with Numba's calling convention, and reads the arguments from a struct on the caller's
stack. The first of its own is the number of the chunk.

A name that is assigned once and read only in its own block (or deeper) is an SSA value.
Other names, and those that own memory, have a slot on the stack, which LLVM promotes.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir

from ..runtime import scalar, vecmath
from . import parts, split
from .large import DENSE, INTERLEAVED
from .parts import PARALLEL

# Numba's internals are untyped Python to mypy.
types: Any = numba.types
cgutils: Any = numba.core.cgutils
_codegen: Any = numba.core.codegen
_Compiler: Any = numba.core.compiler.CompilerBase
_BaseLower: Any = numba.core.lowering.BaseLower
_machinery: Any = numba.core.compiler_machinery
_typed: Any = numba.core.typed_passes
_untyped: Any = numba.core.untyped_passes
_target: Any = numba.core.registry.cpu_target
Type = Any
Value = Any

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

# Of integers; quicker to compile than what Numba has.
BUILTINS = {min: scalar.minimum, max: scalar.maximum}


def _refuse(node: ast.AST, why: str) -> Exception:
    return TypeError(f"generated source, {why}: {ast.unparse(node)}")


def _constant(node: ast.expr) -> ast.Constant | None:
    """Return a literal, with its sign taken in."""
    match node:
        case ast.Constant():
            return node
        case ast.UnaryOp(
            op=ast.USub(), operand=ast.Constant(value=int() | float() as x)
        ):
            return ast.Constant(-x)
    return None


def _call(node: ast.expr) -> tuple[Any, list[ast.expr]]:
    """Return what an expression calls, an operator or a name, and its operands."""
    match node:
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [node.left, node.right]
        case ast.UnaryOp(op=op) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [node.operand]
        case ast.Compare(ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [node.left, right]
        case ast.Call(ast.Name(name), args, keywords=[]):
            return name, args
    raise _refuse(node, "not an expression of kernels")


def _pairs(s: ast.Assign) -> list[tuple[str, ast.expr]]:
    """Return the names that a statement assigns, each with its expression."""
    match s:
        case ast.Assign(targets=[ast.Name(name)]):
            return [(name, s.value)]
        case ast.Assign(targets=[ast.Tuple(names)], value=ast.Tuple(values)):
            if all(isinstance(x, ast.Name) for x in names):
                ids = [x.id for x in names if isinstance(x, ast.Name)]
                return list(zip(ids, values, strict=True))
    raise _refuse(s, "not an assignment to names")


def _range(s: ast.For) -> tuple[str, list[ast.expr], int]:
    """Return index, start and stop, and step of a loop."""
    match s:
        case ast.For(
            target=ast.Name(name), iter=ast.Call(ast.Name(kind), args), orelse=[]
        ):
            args = args[1:] if kind == INTERLEAVED else args
            step = _constant(args[2]) if len(args) > 2 else ast.Constant(1)
            if step is not None and isinstance(step.value, int):
                bounds = args[:2] if len(args) > 1 else [ast.Constant(0), args[0]]
                return name, bounds, step.value
    raise _refuse(s, "not a loop over a range")


def _vectors(s: ast.For) -> int:
    """Return how many vectors a loop is asked to compute in turn; 0: LLVM decides."""
    match s.iter:
        case ast.Call(ast.Name(kind), [ast.Constant(int(count)), *_]):
            return count if kind == INTERLEAVED else 0
    return 0


def owns(t: Type) -> bool:
    """Tell whether values of a type are references to memory that is counted."""
    manager = _target.target_context.data_model_manager
    return bool(manager[t].contains_nrt_meminfo())


@dataclass(slots=True, eq=False)
class Call:
    """A function for one kind of arguments, and what writes its instructions."""

    function: Type
    signature: Any
    write: Callable[..., Value] | None = None


class Typing:
    """The types of one function: of its names, its calls and its result."""

    def __init__(
        self,
        context: Any,
        entry: ast.FunctionDef,
        space: Any,
        args: tuple[Type, ...],
        caller: Typing | None = None,
    ) -> None:
        self.context = context
        self.space = space
        self.syntax = entry
        self.uses: Counter[str] | None = None  # of names; see `split`
        self.args = dict(zip((a.arg for a in entry.args.args), args, strict=True))
        self.names: dict[str, Type] = dict(self.args)
        self.slots: set[str] = set()  # names that live on the stack
        self.indices: set[str] = set()
        self.calls: dict[ast.AST, Call] = {}
        self._scopes: list[set[str]] = [set(self.args)]
        self.parts: dict[ast.AST, Typing] = {}
        # Resolved once for a kernel and its parts.
        self._known: dict[tuple[Any, ...], Call] = caller._known if caller else {}
        self._globals: dict[str, Type] = caller._globals if caller else {}
        self._returned: list[Type] = []
        self._block(entry.body)
        self.result = context.unify_types(*self._returned)
        if self.result is None:
            raise _refuse(entry, "results of several types")
        if self.slots & self.indices:
            raise _refuse(entry, "an index that is also a variable")

    def value(self, name: str) -> Any:
        """Return what a global name stands for."""
        if name in self.space:
            return self.space[name]
        return BUILTINS[getattr(builtins, name)]

    # Statements -------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], *names: str) -> None:
        self._scopes.append(set(names))
        for s in body:
            self._statement(s)
        self._scopes.pop()

    def _statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign():
                found = [(name, self.of(x)) for name, x in _pairs(s)]
                for name, t in found:
                    self._assign(s, name, types.unliteral(t))
            case ast.AugAssign(target=ast.Name(name)):
                args = [self._read(name), self.of(s.value)]
                self._assign(s, name, self._call(s, OPERATORS[type(s.op)], args))
            case ast.For():
                name, bounds, _ = _range(s)
                for x in bounds:
                    self.of(x)
                self.indices.add(name)
                self.names[name] = types.int64
                self._block(s.body, name)
            case ast.While(test=ast.Constant(True), orelse=[]):
                self._block(s.body)
            case ast.If():
                self.of(s.test)
                self._block(s.body)
                self._block(s.orelse)
            case ast.Return(value=ast.Tuple(values)):
                parts = [types.unliteral(self.of(x)) for x in values]
                self._returned.append(types.BaseTuple.from_types(parts))
            case ast.Return(value=ast.expr() as x):
                self._returned.append(types.unliteral(self.of(x)))
            case ast.Expr():
                self.of(s.value)
            case ast.Pass() | ast.Break():
                pass
            case _:
                raise _refuse(s, "not a statement of kernels")

    def _assign(self, s: ast.stmt, name: str, t: Type) -> None:
        again = name in self.names
        known = self.names.setdefault(name, t)
        if name in self.args or known != t:
            raise _refuse(s, f"{name} is {known} already, not a variable of type {t}")
        if again or owns(t):
            self.slots.add(name)
        self._scopes[-1].add(name)

    # Expressions ------------------------------------------------------------------

    def of(self, x: ast.expr) -> Type:
        """Return the type of an expression."""
        literal = _constant(x)
        if literal is not None:
            if isinstance(literal.value, bool | int):
                return types.literal(literal.value)
            return self.context.resolve_value_type(literal.value)
        if isinstance(x, ast.Name):
            return self._read(x.id)
        function, operands = _call(x)
        if function == PARALLEL:
            return self._parallel(x, operands)
        args = [self.of(a) for a in operands]
        for a, t in zip(operands, args, strict=True):
            if owns(t) and not isinstance(a, ast.Name):
                raise _refuse(x, "memory without a name")
        return self._call(x, function, args)

    def _parallel(self, x: ast.expr, operands: list[ast.expr]) -> Type:
        part, *rest = operands
        given = [types.unliteral(self.of(a)) for a in rest]
        if not isinstance(part, ast.Name) or any(map(owns, given)):
            raise _refuse(x, "not a part with numbers and pointers")
        syntax = self.value(part.id)
        args = (types.int64, *given[1:])
        self.parts[x] = Typing(self.context, syntax, self.space, args, self)
        return types.int64

    def _read(self, name: str) -> Type:
        if name not in self.names:
            return self._global(name)
        if not any(name in scope for scope in self._scopes):
            self.slots.add(name)
        return self.names[name]

    def _global(self, name: str) -> Type:
        if name not in self._globals:
            self._globals[name] = self.context.resolve_value_type(self.value(name))
        return self._globals[name]

    def _call(self, x: ast.AST, function: Any, args: list[Type]) -> Type:
        # A helper in Python is compiled once for all numbers; intrinsics may need them.
        operator = not isinstance(function, str)
        if operator or isinstance(self._global(function), types.Dispatcher):
            args = [types.unliteral(t) for t in args]
        key = (function, *args)
        if key not in self._known:
            if isinstance(function, str):
                t = self._global(function)
            else:
                t = self.context.resolve_value_type(function)
            signature = self.context.resolve_function_type(t, tuple(args), {})
            if signature is None or len(signature.args) != len(args):
                raise _refuse(x, f"no such function of {args}")
            self._known[key] = Call(t, signature)
        self.calls[x] = self._known[key]
        return self.calls[x].signature.return_type


class _Hint(ir.values.MDValue):  # type: ignore[misc]
    """What LLVM is told about one loop: a node of metadata that names itself first."""

    def descr(self, buf: list[str]) -> None:
        listed = ", ".join(x.get_reference() for x in (self, *self.operands))
        buf += [f"distinct !{{ {listed} }}", "\n"]


def _interleaved(module: Any, vectors: int) -> _Hint:
    """Ask for several vectors in one iteration; see Note [large loops]."""
    count = ir.Constant(ir.IntType(32), vectors)
    asked = module.add_metadata(["llvm.loop.interleave.count", count])
    return _Hint(module, [asked], name=str(len(module.metadata)))


class Lower(_BaseLower):  # type: ignore[misc]
    """Writes the instructions of a function whose types are known."""

    def lower_normal_function(self, fndesc: Any) -> None:
        typing: Typing = fndesc.typemap[Typing]
        self.setup_function(fndesc)
        args = self.extract_function_arguments()
        self.pre_lower()
        self.body(typing, args)
        self.post_lower()

    def body(self, typing: Typing, args: list[Value]) -> None:
        """Write a whole function."""
        self.typing = typing
        self.values: dict[str, Value] = dict(zip(typing.args, args, strict=True))
        self.slots = {
            name: cgutils.alloca_once(
                self.builder,
                self.context.get_value_type(typing.names[name]),
                name=name,
                zfill=owns(typing.names[name]),
            )
            for name in sorted(typing.slots)
        }
        self.result = cgutils.alloca_once(
            self.builder, self.context.get_value_type(typing.result)
        )
        self.after: list[Any] = []  # of each loop, the block that follows it
        self.leave = self.function.append_basic_block("leave")
        self.block(typing.syntax.body)
        self.builder.position_at_end(self.leave)
        for name, slot in self.slots.items():
            self.drop(typing.names[name], self.builder.load(slot))
        value = self.builder.load(self.result)
        value = self.context.get_return_value(self.builder, typing.result, value)
        self.call_conv.return_value(self.builder, value)

    # Owned memory -----------------------------------------------------------------

    def keep(self, t: Type, value: Value) -> None:
        self.context.nrt.incref(self.builder, t, value)

    def drop(self, t: Type, value: Value) -> None:
        self.context.nrt.decref(self.builder, t, value)

    # Statements -------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> None:
        split.block(self, body)

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign():
                found = [(name, self.owned(x)) for name, x in _pairs(s)]
                for name, value in found:
                    self.assign(name, value)
            case ast.AugAssign(target=ast.Name(name)):
                args = [self.read(name), self.expression(s.value)]
                self.assign(name, self.call(s, args))
            case ast.For():
                self.loop(s)
            case ast.While():
                head = self.function.append_basic_block("while")
                self.after.append(self.function.append_basic_block("after"))
                self.builder.branch(head)
                self.builder.position_at_end(head)
                self.block(s.body)
                self.jump(head)
                self.builder.position_at_end(self.after.pop())
            case ast.If():
                self.choice(s)
            case ast.Return(value=ast.expr() as x):
                self.returns(x)
            case ast.Break():
                self.builder.branch(self.after[-1])
            case ast.Expr():
                t, value = self.owned(s.value)
                self.drop(t, value)

    def jump(self, to: Any) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(to)

    def owned(self, x: ast.expr) -> tuple[Type, Value]:
        """Return type and value of an expression, as a reference of its own."""
        t, value = self.expression(x)
        if isinstance(x, ast.Name):
            self.keep(t, value)
        return t, value

    def assign(self, name: str, new: tuple[Type, Value]) -> None:
        t = self.typing.names[name]
        value = self.cast(new, t)
        slot = self.slots.get(name)
        if slot is None:
            self.values[name] = value
        else:
            if owns(t):
                self.drop(t, self.builder.load(slot))
            self.builder.store(value, slot)

    def loop(self, s: ast.For) -> None:
        name, bounds, step = _range(s)
        start, stop = (self.cast(self.expression(x), types.int64) for x in bounds)
        before = self.builder.block
        head, body, after = map(
            self.function.append_basic_block, ("for", "body", "after")
        )
        self.builder.branch(head)
        self.builder.position_at_end(head)
        index = self.builder.phi(start.type, name)
        index.add_incoming(start, before)
        more = self.builder.icmp_signed("<" if step > 0 else ">", index, stop)
        self.builder.cbranch(more, body, after)
        self.builder.position_at_end(body)
        self.values[name] = index
        self.after.append(after)
        self.block(s.body)
        self.after.pop()
        if not self.builder.block.is_terminated:
            following = self.builder.add(index, start.type(step))
            index.add_incoming(following, self.builder.block)
            back = self.builder.branch(head)
            if split.loops_in(s.body) == 0:
                self.innermost(s, back)
        self.builder.position_at_end(after)

    def innermost(self, s: ast.For, back: Value) -> None:
        """Tell LLVM how to vectorise a loop; `back` is the branch to its head."""
        names = [x.id for x in ast.walk(s) if isinstance(x, ast.Name)]
        accesses = names.count("load") + names.count("store")
        if len(s.body) >= DENSE * accesses:
            vecmath.prefer_wide(self.context, self.function)
        vectors = _vectors(s)
        if vectors:
            hint = _interleaved(self.builder.module, vectors)
            back.set_metadata("llvm.loop", hint)

    def choice(self, s: ast.If) -> None:
        t, value = self.expression(s.test)
        condition = self.context.is_true(self.builder, t, value)
        then, after = map(self.function.append_basic_block, ("then", "after"))
        orelse = self.function.append_basic_block("else") if s.orelse else after
        self.builder.cbranch(condition, then, orelse)
        self.builder.position_at_end(then)
        self.block(s.body)
        self.jump(after)
        if s.orelse:
            self.builder.position_at_end(orelse)
            self.block(s.orelse)
            self.jump(after)
        self.builder.position_at_end(after)

    def returns(self, x: ast.expr) -> None:
        result = self.typing.result
        if isinstance(x, ast.Tuple):
            found = [self.owned(y) for y in x.elts]
            parts = [self.cast(v, t) for v, t in zip(found, result.types, strict=True)]
            value = self.context.make_tuple(self.builder, result, parts)
        else:
            value = self.cast(self.owned(x), result)
        self.builder.store(value, self.result)
        self.builder.branch(self.leave)

    # Expressions ------------------------------------------------------------------

    def expression(self, x: ast.expr) -> tuple[Type, Value]:
        literal = _constant(x)
        if literal is not None:
            return self.constant(self.typing.of(literal), literal.value)
        if isinstance(x, ast.Name):
            return self.read(x.id)
        if x in self.typing.parts:
            return types.int64, parts.call(self, x)
        return self.call(x, [self.expression(a) for a in _call(x)[1]])

    def constant(self, t: Type, value: Any) -> tuple[Type, Value]:
        plain = types.unliteral(t)
        return t, self.context.get_constant_generic(self.builder, plain, value)

    def read(self, name: str) -> tuple[Type, Value]:
        typing = self.typing
        if name not in typing.names:
            return self.constant(typing.of(ast.Name(name)), typing.value(name))
        if name in self.slots:
            return typing.names[name], self.builder.load(self.slots[name])
        return typing.names[name], self.values[name]

    def call(self, x: ast.AST, args: list[tuple[Type, Value]]) -> tuple[Type, Value]:
        call = self.typing.calls[x]
        signature = call.signature
        if call.write is None:
            call.write = self.context.get_function(call.function, signature)
        given = [self.cast(a, t) for a, t in zip(args, signature.args, strict=True)]
        return signature.return_type, call.write(self.builder, given)

    def cast(self, x: tuple[Type, Value], t: Type) -> Value:
        old, new = types.unliteral(x[0]), types.unliteral(t)
        return x[1] if old == new else self.context.cast(self.builder, x[1], old, new)


@_machinery.register_pass(mutates_CFG=False, analysis_only=False)
class Types(_machinery.FunctionPass):  # type: ignore[misc]
    """Finds the types of a kernel."""

    _name = "retrograde_types"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        stub = state.func_id.func
        typing = Typing(state.typingctx, stub.syntax, stub.__globals__, state.args)
        named = {f"arg.{name}": t for name, t in typing.args.items()}
        state.typemap = {Typing: typing, **named}
        state.return_type = typing.result
        state.calltypes = {}
        return True


UNBOXING = "wrapper"  # Numba's name of the module that takes arguments apart


class Library(_codegen.JITCodeLibrary):  # type: ignore[misc]
    """What a kernel is compiled in: Numba's, with fewer passes over single functions.

    Numba makes a pass manager for each function, declared ones too, and runs it over
    the wrapper that unboxes arguments, which the passes over the module bring to the
    same form: a tenth of the time of compiling a small kernel.
    """

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        if module.name == UNBOXING:
            return
        manager, builder = self._codegen._function_pass_manager()
        for f in module.functions:
            if not f.is_declaration:
                manager.run(f, builder)


@_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(_typed.BaseNativeLowering):  # type: ignore[misc]
    """Writes the instructions of a kernel."""

    _name = "retrograde_lowering"
    lowering_class = Lower

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.library = Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class Compiler(_Compiler):  # type: ignore[misc]
    """Numba's compiler for kernels; see Note [the language of kernels]."""

    def define_pipelines(self) -> list[Any]:
        manager = _machinery.PassManager("kernel")
        for step in (_untyped.TranslateByteCode, _untyped.FixupArgs, Types, Lowering):
            manager.add_pass(step, step.__name__)
        manager.add_pass(_typed.NoPythonBackend, "result")
        manager.finalize()
        return [manager]


def stubbed(source: str, entry: str) -> tuple[ast.Module, ast.FunctionDef]:
    """Return a module whose `entry` does nothing, and the syntax of the true one."""
    tree = ast.parse(source)
    found = {s.name: s for s in tree.body if isinstance(s, ast.FunctionDef)}
    true = found[entry]
    stub = ast.FunctionDef(entry, true.args, [ast.Pass()], [])
    tree.body[tree.body.index(true)] = ast.fix_missing_locations(
        ast.copy_location(stub, true)
    )
    return tree, true
