"""Rewrite the syntax tree of one function so that control flow becomes calls.

`rewrite(node)` takes a `def` or `lambda` as it stands in the user's file and returns a
tree that computes the same, in which

    for i in xs:            def rg__body_1(rg__item):
        s = s + f(i)            nonlocal i, s
                                i = rg__item
                                s = s + rg__ops().call(f, (i,), {})
                            ...
                            rg__ops().for_stmt(xs, None, rg__body_1, rg__get_1,
                                rg__set_1, ('i', 's'), ('s',), 'i')

`rg__ops()` gives the operators in force; `rg__` holds what needs no operator. Both are
closure cells that `convert` fills. Every name of the user stays where it was: a body
declares what it binds as `nonlocal`, so that unbound names, closures over loop
variables, `del` and exceptions in the middle of a loop mean what they mean in Python.
Nodes keep their place in the user's file, so the code compiled from them blames the
user's lines.

Three steps: `Lower` replaces `break`, `continue`, early `return`, `else` of loops and
`match` by flags and `if`; `Liveness` finds the names whose value matters after a block;
`_Emit` makes calls of what is left. A function in which a block cannot become a
function of its own (it yields, it awaits, it asks for `locals()`, it leaves a `finally`
by `return`) keeps its statements and has only its calls and expressions rewritten: the
reason is returned.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .assigned import sure_names
from .liveness import Liveness, live_names
from .lowering import Lower, extra_test, is_plain, load, support
from .scopes import (
    FunctionNode,
    Scope,
    bound_attributes,
    bound_names,
    first_line,
    frame_builtin,
    own_nodes,
    parameters_of,
    scope_of,
    why_whole,
)

_BLOCKS = (ast.If, ast.For, ast.While, ast.Match)
OPS, THUNK = "rg__ops", "rg__thunk"
PREFIX = "rg__"
ITEM, _STATE = "rg__item", "rg__state"

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


@dataclass(slots=True)
class Rewritten:
    """The new tree, and for functions that kept their statements the reason."""

    node: FunctionNode
    limits: dict[tuple[str, int], str] = field(default_factory=dict)


def rewrite(node: FunctionNode, rebound: frozenset[str] = frozenset()) -> Rewritten:
    """Return the tree of a function with its control flow and calls as operators.

    `rebound` holds the names of builtins that mean something else to this function.
    The given tree is consumed.
    """
    limits: dict[tuple[str, int], str] = {}
    return Rewritten(_function(node, rebound, limits), limits)


def _function(
    node: FunctionNode, rebound: frozenset[str], limits: dict[tuple[str, int], str]
) -> FunctionNode:
    scope, body = scope_of(node, rebound, limits)
    if isinstance(node, ast.Lambda):
        node.body = _Emit(scope, control=False).visit(node.body)
        return node
    reason = why_whole(node, scope)
    has_blocks = any(isinstance(n, _BLOCKS) for n in own_nodes(body))
    if reason and has_blocks:
        limits[node.name, first_line(node)] = reason
    if reason or not has_blocks:
        emit = _Emit(scope, control=False)
        node.body = emit.block(node.body)
        return node
    doc, statements = _split_docstring(node.body)
    declared = bound_names(statements) - scope.globals - scope.nonlocals
    scope.sure = sure_names(statements, scope, parameters_of(node.args))
    statements = Lower(scope).function(statements)
    for statement in statements:
        ast.fix_missing_locations(statement)
    Liveness(statements, scope)
    declared |= bound_names(statements) - scope.globals - scope.nonlocals
    emitted = _Emit(scope, control=True).block(statements)
    node.body = [*doc, *_preamble(node, scope, declared), *emitted]
    return node


def _split_docstring(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    match body[0]:
        case ast.Expr(value=ast.Constant(value=str())):
            return body[:1], body[1:]
    return [], body


def _preamble(node: FunctionNode, scope: Scope, declared: set[str]) -> list[ast.stmt]:
    """Declare the scope of every name, where all the bodies can see it.

    Note [names of a function]: an assignment that never runs makes a name local to the
    function without giving it a value, as the user's own assignments in blocks did.
    """
    result: list[ast.stmt] = []
    if scope.globals:
        result.append(ast.Global(sorted(scope.globals)))
    if scope.nonlocals:
        result.append(ast.Nonlocal(sorted(scope.nonlocals)))
    names = sorted(declared - set(parameters_of(node.args)))
    if names:
        targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
        never = ast.Assign(targets, ast.Constant(None))
        result.append(ast.If(ast.Constant(False), [never], []))
    return [ast.copy_location(s, node) for s in result]


def _operator(
    name: str, args: Sequence[ast.expr], where: ast.stmt | ast.expr
) -> ast.Call:
    """Return the call of an operator, as if it stood where the user's syntax does.

    Note [lines of calls]: Python blames a method call on the line on which the method
    is named. That has to be where the user named what is called, or began a block.
    """
    method = ast.Attribute(ast.Call(load(OPS), [], []), name, ast.Load())
    if isinstance(where, ast.Call):
        ast.copy_location(method, where.func)
    else:
        ast.copy_location(method, where)
        if where.end_lineno != where.lineno:
            method.end_lineno = where.lineno
            method.end_col_offset = where.col_offset + 1
    return ast.copy_location(ast.Call(method, list(args), []), where)


def _arguments(*names: str, thunk: bool = False) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(n) for n in names],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[ast.Constant(None)] if thunk else [],
    )


def _thunk(body: ast.expr) -> ast.expr:
    # The parameter only marks the code as ours; nobody passes it.
    return ast.copy_location(ast.Lambda(_arguments(THUNK, thunk=True), body), body)


def _define(
    name: str, parameters: Sequence[str], body: list[ast.stmt], where: ast.AST
) -> ast.stmt:
    node = ast.FunctionDef(
        name=name, args=_arguments(*parameters), body=body, decorator_list=[]
    )
    if "type_params" in ast.FunctionDef._fields:
        node.type_params = []  # type: ignore[attr-defined]
    return ast.copy_location(node, where)


def _strings(names: Iterable[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(n) for n in names], ast.Load())


def _can_delay(node: ast.expr) -> bool:
    """Tell whether an expression may move into a function of its own."""
    return not any(
        isinstance(n, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await)
        or (isinstance(n, ast.comprehension) and n.is_async)
        for n in own_nodes([node])
    )


def _repeatable(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Constant)


class _Emit(ast.NodeTransformer):
    """Turn calls, logic and, with `control`, blocks into calls of operators."""

    def __init__(self, scope: Scope, control: bool) -> None:
        self.scope = scope
        self.control = control

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for node in body:
            new = self.visit(node)
            result += new if isinstance(new, list) else [new]
        return result or [ast.Pass()]

    # Definitions ------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._nested(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._nested(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._nested(node)

    def _nested(self, node: FunctionNode) -> ast.AST:
        args = node.args
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]
        if not isinstance(node, ast.Lambda):
            node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return _function(node, self.scope.rebound, self.scope.limits)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        # Functions cannot see the names of a class body, so nothing in it may move
        # into one. Its methods are converted when they are called.
        return node

    # Expressions ------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.AST:
        direct = frame_builtin(node, self.scope)
        self.generic_visit(node)
        if direct == "super":
            return self._super(node)
        if direct in ("locals", "vars", "dir"):
            return ast.copy_location(ast.Call(support("visible"), [node], []), node)
        if direct:
            return node
        args = ast.Tuple(node.args, ast.Load())
        if any(k.arg is None for k in node.keywords):
            kwargs: ast.expr = ast.Call(support("keywords"), [], node.keywords)
        else:
            keys: list[ast.expr | None] = [ast.Constant(k.arg) for k in node.keywords]
            kwargs = ast.Dict(keys, [k.value for k in node.keywords])
        return _operator("call", [node.func, args, kwargs], node)

    def _super(self, node: ast.Call) -> ast.AST:
        if self.scope.first_parameter:
            node.args = [load("__class__"), load(self.scope.first_parameter)]
        return node

    def _delayable(self, *nodes: ast.expr) -> bool:
        return not self.scope.whole_frame and all(_can_delay(n) for n in nodes)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        delayable = self._delayable(*node.values[1:])
        self.generic_visit(node)
        if not delayable:
            return node
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        result = node.values[0]
        for value in node.values[1:]:
            result = _operator(name, [result, _thunk(value)], node)
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return _operator("not_", [node.operand], node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        delayable = self._delayable(node.body, node.orelse)
        self.generic_visit(node)
        if not delayable:
            return node
        branches = [_thunk(node.body), _thunk(node.orelse)]
        return _operator("if_exp", [node.test, *branches], node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        middle = node.comparators[:-1]
        delayable = self._delayable(*node.comparators[1:])
        simple = all(_repeatable(m) for m in middle)
        self.generic_visit(node)
        if not middle or not delayable:
            return node
        if not simple:
            names = _strings(_COMPARISONS[type(op)] for op in node.ops)
            rest = ast.Tuple([_thunk(c) for c in node.comparators], ast.Load())
            return _operator("chain", [node.left, names, rest], node)
        lefts = [node.left, *middle]
        result: ast.expr | None = None
        for left, op, right in zip(lefts, node.ops, node.comparators, strict=True):
            pair = ast.copy_location(ast.Compare(left, [op], [right]), node)
            result = _operator("and_", [result, _thunk(pair)], node) if result else pair
        assert result is not None
        return result

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._comprehension(node, "list_comp")

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return self._comprehension(node, "generator")

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp, operator: str
    ) -> ast.AST:
        """Give a comprehension over one iterable its items one by one."""
        (first, *more) = node.generators
        simple = not more and not first.ifs and not first.is_async
        delayable = simple and self._delayable(node.elt, first.iter)
        self.generic_visit(node)
        if not delayable:
            return node
        one = ast.Tuple([load(ITEM)], ast.Load())
        inside = ast.comprehension(first.target, one, [], 0)
        item = ast.ListComp(node.elt, [inside])
        unpacked = ast.Subscript(item, ast.Constant(0), ast.Load())
        for new in (one, item, unpacked):
            ast.copy_location(new, node)
        element = ast.copy_location(ast.Lambda(_arguments(ITEM), unpacked), node)
        return _operator(operator, [first.iter, element], node)

    # Statements -------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if node.msg and not self._delayable(node.msg):
            return self.generic_visit(node)
        self.generic_visit(node)
        if not __debug__:
            return ast.copy_location(ast.Pass(), node)
        message = _thunk(node.msg) if node.msg else ast.Constant(None)
        check = _operator("assert_stmt", [node.test, message], node)
        return ast.copy_location(ast.Expr(check), node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if not self.control or is_plain(node):
            return self.generic_visit(node)
        number = self.scope.number()
        inside = [*node.body, *node.orelse]
        then, other = f"rg__then_{number}", f"rg__else_{number}"
        state = _State(inside, node, number, self.scope)
        test = self.visit(node.test)
        orelse = self.block(node.orelse) if node.orelse else [ast.Pass()]
        operands = [test, load(then), load(other), *state.operands()]
        call = ast.Expr(_operator("if_stmt", operands, node))
        return [
            _define(then, [], [*state.declare(), *self.block(node.body)], node),
            _define(other, [], [*state.declare(), *orelse], node),
            *state.functions(),
            ast.copy_location(call, node),
        ]

    def visit_While(self, node: ast.While) -> ast.AST | list[ast.stmt]:
        if not self.control:
            return self.generic_visit(node)
        number = self.scope.number()
        test, body = f"rg__test_{number}", f"rg__body_{number}"
        state = _State([node.test, *node.body], node, number, self.scope)
        result = ast.copy_location(ast.Return(self.visit(node.test)), node.test)
        operands = [load(test), load(body), *state.operands()]
        call = ast.Expr(_operator("while_stmt", operands, node))
        return [
            _define(test, [], [*state.declare(), result], node),
            _define(body, [], [*state.declare(), *self.block(node.body)], node),
            *state.functions(),
            ast.copy_location(call, node),
        ]

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        if not self.control:
            return self.generic_visit(node)
        number = self.scope.number()
        body, extra = f"rg__body_{number}", f"rg__more_{number}"
        state = _State([node.target, *node.body], node, number, self.scope)
        target_text = ast.Constant(ast.unparse(node.target))
        iterable, test = self.visit(node.iter), extra_test(node)
        bind = ast.Assign([self.visit(node.target)], load(ITEM))
        ast.copy_location(bind, node.target)
        result: list[ast.stmt] = [
            _define(
                body, [ITEM], [*state.declare(), bind, *self.block(node.body)], node
            ),
            *state.functions(),
        ]
        more: ast.expr = ast.Constant(None)
        if test is not None:
            answer = ast.copy_location(ast.Return(self.visit(test)), node)
            result.append(_define(extra, [], [answer], node))
            more = load(extra)
        operands = [iterable, more, load(body), *state.operands(), target_text]
        call = ast.Expr(_operator("for_stmt", operands, node))
        return [*result, ast.copy_location(call, node)]


class _State:
    """The names and attributes that a block may change, and how to reach them."""

    def __init__(
        self, inside: Sequence[ast.AST], node: ast.stmt, number: int, scope: Scope
    ) -> None:
        self.node = node
        self.scope = scope
        self.simple = sorted(bound_names(inside))
        self.attributes = dict(sorted(bound_attributes(inside).items()))
        live = live_names(node)
        self.live = [n for n in self.simple if n in live] + list(self.attributes)
        self.get, self.set = f"rg__get_{number}", f"rg__set_{number}"

    def declare(self) -> list[ast.stmt]:
        """Return the declarations with which a body shares its function's names."""
        result: list[ast.stmt] = []
        outer = [n for n in self.simple if n in self.scope.globals]
        local = [n for n in self.simple if n not in self.scope.globals]
        if outer:
            result.append(ast.Global(outer))
        if local:
            result.append(ast.Nonlocal(local))
        return [ast.copy_location(s, self.node) for s in result]

    def operands(self) -> list[ast.expr]:
        names = _strings([*self.simple, *self.attributes])
        return [load(self.get), load(self.set), names, _strings(self.live)]

    def functions(self) -> list[ast.stmt]:
        names: list[ast.expr] = [ast.Name(n, ast.Load()) for n in self.simple]
        attributes = [_as(a, ast.Load()) for a in self.attributes.values()]
        reads: list[ast.expr] = []
        for place, name in zip(names, self.simple, strict=True):
            sure = ast.Constant(name in self.scope.sure)
            parts = [_thunk_of(place), ast.Constant(name), sure]
            reads.append(ast.Call(support("read"), parts, []))
        for a, name in zip(attributes, self.attributes, strict=True):
            assert isinstance(a, ast.Attribute)
            parts = [_thunk_of(a.value), ast.Constant(a.attr), ast.Constant(name)]
            reads.append(ast.Call(support("read_attribute"), parts, []))
        places = [*names, *attributes]
        give = ast.Return(ast.Tuple(reads, ast.Load()))
        writes: list[ast.stmt] = []
        for at, place in enumerate(places):
            writes += _write(place, at)
        return [
            _define(self.get, [], [give], self.node),
            _define(
                self.set, [_STATE], [*self.declare(), *writes, ast.Pass()], self.node
            ),
        ]


def _thunk_of(place: ast.expr) -> ast.expr:
    return ast.Lambda(_arguments(THUNK, thunk=True), place)


def _as(node: ast.Attribute, context: ast.expr_context) -> ast.expr:
    return ast.Attribute(_copy_path(node.value), node.attr, context)


def _copy_path(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Attribute):
        return _as(node, ast.Load())
    assert isinstance(node, ast.Name)
    return load(node.id)


def _write(place: ast.expr, at: int) -> list[ast.stmt]:
    """Return the statements that put one value back; an undefined one unbinds."""
    value = ast.Subscript(load(_STATE), ast.Constant(at), ast.Load())
    missing = ast.Call(support("is_undefined"), [value], [])
    if isinstance(place, ast.Name):
        store: ast.expr = ast.Name(place.id, ast.Store())
        unbind: list[ast.stmt] = [
            ast.Assign([ast.Name(place.id, ast.Store())], ast.Constant(None)),
            ast.Delete([ast.Name(place.id, ast.Del())]),
        ]
    else:
        assert isinstance(place, ast.Attribute)
        store, unbind = _as(place, ast.Store()), [ast.Pass()]
    return [ast.If(missing, unbind, [ast.Assign([store], value)])]
