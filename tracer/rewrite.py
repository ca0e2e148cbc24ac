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
declares what it binds as `nonlocal`, so that unbound names, closures over loop variables,
`del` and exceptions in the middle of a loop mean what they mean in Python. Nodes keep
their place in the user's file, so the code compiled from them blames the user's lines.

Three steps: `_Lower` replaces `break`, `continue`, early `return`, `else` of loops and
`match` by flags and `if`; `_Liveness` finds the names whose value matters after a block;
`_Emit` makes calls of what is left. A function in which a block cannot become a function
of its own (it yields, it awaits, it asks for `locals()`, it leaves a `finally` by
`return`) keeps its statements and has only its calls and expressions rewritten: the
reason is returned.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TRIES = (ast.Try, ast.TryStar)
_LOOPS = (ast.For, ast.While)
_BLOCKS = (ast.If, ast.For, ast.While, ast.Match)

OPS, SUPPORT, THUNK = "rg__ops", "rg__", "rg__thunk"
PREFIX = "rg__"
_RETURN, _VALUE, _ITEM, _STATE = "rg__return", "rg__value", "rg__item", "rg__state"

# Builtins that look at the frame that calls them, with the number of arguments from
# which on they no longer do.
FRAME_BUILTINS = {
    "locals": 1,
    "globals": 1,
    "vars": 1,
    "dir": 1,
    "super": 1,
    "eval": 2,
    "exec": 2,
    "breakpoint": 99,
}
_NEED_WHOLE_FRAME = {"locals", "vars", "dir", "eval", "exec"}
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


def first_line(node: FunctionNode) -> int:
    """Return the line that a function's code object gives as its first."""
    if isinstance(node, ast.Lambda) or not node.decorator_list:
        return node.lineno
    return min(node.lineno, *(d.lineno for d in node.decorator_list))


def name_of(node: FunctionNode) -> str:
    """Return the name that a function's code object has."""
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


# ------------------------------------------------------------------ names and scopes


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes that run in the frame of the given ones, comprehensions too."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, _SCOPES):
            stack.extend(_outside(node))
        else:
            stack.extend(ast.iter_child_nodes(node))


def _outside(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a definition that its enclosing scope evaluates."""
    found: list[ast.AST] = []
    if isinstance(node, ast.ClassDef):
        found += [*node.bases, *node.keywords]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        found += [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
    if not isinstance(node, ast.Lambda):
        found += getattr(node, "decorator_list", [])
    return found


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the simple names that the given nodes bind or delete in their frame."""
    names: set[str] = set()
    for node in own_nodes(nodes):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
    return names - _comprehension_only(nodes)


def _comprehension_only(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that only comprehensions bind, in frames of their own."""
    inside: set[int] = set()
    local: set[str] = set()
    for node in own_nodes(nodes):
        if isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                for target in ast.walk(generator.target):
                    if isinstance(target, ast.Name):
                        inside.add(id(target))
                        local.add(target.id)
    if not local:
        return local
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            if id(node) not in inside:
                local.discard(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            local.discard(node.name)
        elif isinstance(node, ast.alias):
            local.discard(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            local.discard(node.name or "")
        elif isinstance(node, ast.MatchMapping):
            local.discard(node.rest or "")
    return local


def _read_names(node: ast.AST) -> set[str]:
    """Return the names that a node may read, those of functions inside it too."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            names.add(inner.target.id)
    return names


def _attribute_path(node: ast.expr) -> str | None:
    """Return `a.b.c` for a chain of attributes of a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _attribute_path(node.value)
        return head and f"{head}.{node.attr}"
    return None


def _bound_attributes(nodes: Sequence[ast.AST]) -> dict[str, ast.Attribute]:
    """Return the attributes of names from outside that the given nodes assign."""
    local = bound_names(nodes)
    found: dict[str, ast.Attribute] = {}
    for node in own_nodes(nodes):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            path = _attribute_path(node)
            if path and path.partition(".")[0] not in local:
                found[path] = node
    return found


def _parameters(args: ast.arguments) -> list[str]:
    rest = [a for a in (args.vararg, args.kwarg) if a]
    return [a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, *rest]]


# ------------------------------------------------------------------------ one function


@dataclass(slots=True)
class _Scope:
    """What the rewriting of one function needs to know about it."""

    name: str
    first_parameter: str | None
    globals: set[str]
    nonlocals: set[str]
    rebound: frozenset[str]
    limits: dict[tuple[str, int], str]
    whole_frame: bool = False
    count: int = 0

    def number(self) -> int:
        self.count += 1
        return self.count


def _scope_of(
    node: FunctionNode, rebound: frozenset[str], limits: dict[tuple[str, int], str]
) -> tuple[_Scope, list[ast.AST]]:
    body: list[ast.AST] = (
        [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    )
    positional = [*node.args.posonlyargs, *node.args.args]
    parameters = _parameters(node.args)
    bound = bound_names(body) | set(parameters)
    scope = _Scope(
        name_of(node),
        positional[0].arg if positional else None,
        {n for s in own_nodes(body) if isinstance(s, ast.Global) for n in s.names},
        {n for s in own_nodes(body) if isinstance(s, ast.Nonlocal) for n in s.names},
        rebound | (bound & FRAME_BUILTINS.keys()),
        limits,
    )
    scope.whole_frame = any(
        _frame_builtin(n, scope) in _NEED_WHOLE_FRAME for n in own_nodes(body)
    )
    return scope, body


def _function(
    node: FunctionNode, rebound: frozenset[str], limits: dict[tuple[str, int], str]
) -> FunctionNode:
    scope, body = _scope_of(node, rebound, limits)
    if isinstance(node, ast.Lambda):
        node.body = _Emit(scope, control=False).visit(node.body)
        return node
    reason = _why_whole(node, scope)
    has_blocks = any(isinstance(n, _BLOCKS) for n in own_nodes(body))
    if reason and has_blocks:
        limits[node.name, first_line(node)] = reason
    if reason or not has_blocks:
        emit = _Emit(scope, control=False)
        node.body = emit.block(node.body)
        return node
    doc, statements = _split_docstring(node.body)
    declared = bound_names(statements) - scope.globals - scope.nonlocals
    statements = _Lower(scope).function(statements)
    _Liveness(statements, scope)
    declared |= bound_names(statements) - scope.globals - scope.nonlocals
    emitted = _Emit(scope, control=True).block(statements)
    node.body = [*doc, *_preamble(node, scope, declared), *emitted]
    return node


def _split_docstring(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    match body[0]:
        case ast.Expr(value=ast.Constant(value=str())):
            return body[:1], body[1:]
    return [], body


def _preamble(node: FunctionNode, scope: _Scope, declared: set[str]) -> list[ast.stmt]:
    """Declare the scope of every name, where all the bodies can see it.

    Note [names of a function]: an assignment that never runs makes a name local to the
    function without giving it a value, as the user's own assignments in blocks did.
    """
    result: list[ast.stmt] = []
    if scope.globals:
        result.append(ast.Global(sorted(scope.globals)))
    if scope.nonlocals:
        result.append(ast.Nonlocal(sorted(scope.nonlocals)))
    names = sorted(declared - set(_parameters(node.args)))
    if names:
        targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
        never = ast.Assign(targets, ast.Constant(None))
        result.append(ast.If(ast.Constant(False), [never], []))
    return [ast.copy_location(s, node) for s in result]


def _why_whole(node: FunctionNode, scope: _Scope) -> str | None:
    """Return why the statements of a function have to stay in one frame, if so."""
    assert not isinstance(node, ast.Lambda)
    if isinstance(node, ast.AsyncFunctionDef):
        return "it is a coroutine"
    for inner in own_nodes(node.body):
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return "it is a generator"
        if _frame_builtin(inner, scope) in _NEED_WHOLE_FRAME:
            return f"it calls {_frame_builtin(inner, scope)}()"
        if isinstance(inner, _TRIES) and _leaves(inner.finalbody):
            return "it leaves a `finally` by return, break or continue"
    return None


def _frame_builtin(node: ast.AST, scope: _Scope) -> str | None:
    """Return which builtin that looks at its caller's frame a call names."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if (
            name in FRAME_BUILTINS and name not in scope.rebound
        ):
            count = len(node.args) + len(node.keywords)
            return name if count < FRAME_BUILTINS[name] else None
    return None


# --------------------------------------------------------------------------- lowering


def _leaves(statements: Sequence[ast.stmt], loops: bool = True) -> bool:
    """Tell whether statements may leave by return, or by a jump of a loop outside."""
    for node in statements:
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Break | ast.Continue) and loops:
            return True
        if isinstance(node, _SCOPES):
            continue
        for part, inner_loops in _parts(node, loops):
            if _leaves(part, inner_loops):
                return True
    return False


def _parts(node: ast.stmt, loops: bool) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield the statement lists in a statement; False where jumps end inside it."""
    for name in ("body", "orelse", "finalbody"):
        part = getattr(node, name, None)
        if part:
            yield part, loops and not (isinstance(node, _LOOPS) and name == "body")
    for holder in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield holder.body, loops


def _always_leaves(statements: Sequence[ast.stmt]) -> bool:
    match statements:
        case [*_, ast.Return() | ast.Break() | ast.Continue()]:
            return True
        case [*_, ast.If() as last]:
            return _always_leaves(last.body) and _always_leaves(last.orelse)
    return False


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr, where: ast.AST) -> ast.Assign:
    node = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.copy_location(node, where)


def _none_of(flags: Iterable[str], test: ast.expr | None = None) -> ast.expr:
    """Return the expression `not flag and ... [and test]`."""
    parts: list[ast.expr] = [ast.UnaryOp(ast.Not(), _load(f)) for f in flags]
    parts += [test] if test else []
    return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)


@dataclass(slots=True)
class _Loop:
    broken: str
    skipped: str


class _Lower:
    """Replace jumps by flags, so that every block is entered and left at its ends."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope
        self.native_return = False
        self.read: set[str] = set()

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        ends = isinstance(body[-1], ast.Return) if body else False
        self.native_return = not _leaves(body[:-1] if ends else body, loops=False)
        lowered, _ = self.block(body, None)
        if not self.native_return:
            call = ast.Call(_support("returned"), [_load(_VALUE)], [])
            last = body[-1]
            lowered = [
                _assign(_RETURN, ast.Constant(False), body[0]),
                _assign(_VALUE, _support("NO_VALUE"), body[0]),
                *lowered,
                ast.copy_location(ast.Return(call), last),
            ]
        prune = _PruneFlags(self.read)
        return [s for s in (prune.visit(s) for s in lowered) if s] or [ast.Pass()]

    def block(
        self, body: Sequence[ast.stmt], loop: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        """Return the lowered statements and the flags that they may have set."""
        done: list[ast.stmt] = []
        flags: set[str] = set()
        for at, node in enumerate(body):
            rest = list(body[at + 1 :])
            if isinstance(node, ast.If) and rest and _leaves([node]):
                # One branch is left for good: what follows belongs to the other one,
                # so that both give their value and no flag is needed.
                if _always_leaves(node.body):
                    node.orelse, rest = [*node.orelse, *rest], []
                elif _always_leaves(node.orelse):
                    node.body, rest = [*node.body, *rest], []
                if not rest:
                    new, set_here = self.statement(node, loop)
                    return [*done, *new], flags | set_here
            new, set_here = self.statement(node, loop)
            done += new
            flags |= set_here
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                break
            if set_here and rest:
                tail, set_there = self.block(rest, loop)
                self.read |= set_here
                guard = ast.If(_none_of(sorted(set_here)), tail, [])
                done.append(ast.copy_location(guard, rest[0]))
                return done, flags | set_there
        return done, flags

    def statement(
        self, node: ast.stmt, loop: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        match node:
            case ast.Return() if not self.native_return:
                value = node.value or ast.Constant(None)
                set_value = _assign(_VALUE, value, node)
                return [set_value, _assign(_RETURN, ast.Constant(True), node)], {
                    _RETURN
                }
            case ast.Break() if loop:
                return [_assign(loop.broken, ast.Constant(True), node)], {loop.broken}
            case ast.Continue() if loop:
                return [_assign(loop.skipped, ast.Constant(True), node)], {loop.skipped}
            case ast.If():
                node.body, one = self.block(node.body, loop)
                node.orelse, two = self.block(node.orelse, loop)
                return [node], one | two
            case ast.For() | ast.While():
                return self.loop(node, loop)
            case ast.With():
                node.body, flags = self.block(node.body, loop)
                return [node], flags
            case ast.Try() | ast.TryStar():
                return self.tries(node, loop)
            case ast.Match():
                return self.matches(node, loop)
            case ast.AnnAssign():
                return [_plain_assignment(node)], set()
            case ast.Global() | ast.Nonlocal():
                return [], set()  # declared once, for all the bodies
        return [node], set()

    def loop(
        self, node: ast.For | ast.While, outer: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        number = self.scope.number()
        loop = _Loop(f"rg__break_{number}", f"rg__continue_{number}")
        node.body, flags = self.block(node.body, loop)
        before: list[ast.stmt] = []
        if loop.skipped in flags:
            node.body.insert(0, _assign(loop.skipped, ast.Constant(False), node))
        if loop.broken in flags:
            before = [_assign(loop.broken, ast.Constant(False), node)]
        stops = [f for f in (loop.broken, _RETURN) if f in flags]
        if stops:
            self.read |= set(stops)
            if isinstance(node, ast.While):
                node.test = ast.copy_location(_none_of(stops, node.test), node.test)
            else:
                _set_extra_test(node, _none_of(stops))
        orelse, node.orelse = node.orelse, []
        flags &= {_RETURN}
        after: list[ast.stmt] = []
        if orelse:
            after, more = self.block(orelse, outer)
            flags |= more
            if stops:
                guard = ast.If(_none_of(stops), after, [])
                after = [ast.copy_location(guard, orelse[0])]
        return [*before, node, *after], flags

    def tries(
        self, node: ast.Try | ast.TryStar, loop: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        if node.orelse and _leaves(node.body):
            return self.block(self.without_else(node), loop)
        node.body, flags = self.block(node.body, loop)
        for handler in node.handlers:
            handler.body, more = self.block(handler.body, loop)
            flags |= more
        node.orelse, more = self.block(node.orelse, loop)
        node.finalbody, _ = self.block(node.finalbody, loop)
        return [node], flags | more

    def without_else(self, node: ast.Try | ast.TryStar) -> list[ast.stmt]:
        """Move the `else` of a `try` behind it, under a flag that the body sets."""
        flag = f"rg__passed_{self.scope.number()}"
        orelse, node.orelse = node.orelse, []
        final, node.finalbody = node.finalbody, []
        node.body.append(_assign(flag, ast.Constant(True), orelse[0]))
        statements: list[ast.stmt] = [
            _assign(flag, ast.Constant(False), node),
            node,
            ast.copy_location(ast.If(_load(flag), orelse, []), orelse[0]),
        ]
        if final:
            whole = ast.Try(statements, [], [], final)
            return [ast.copy_location(whole, node)]
        return statements

    def matches(
        self, node: ast.Match, loop: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        """Let `match` only number the case, and branch on the number."""
        flag = f"rg__case_{self.scope.number()}"
        chain: list[ast.stmt] = []
        for number in range(len(node.cases), 0, -1):
            case = node.cases[number - 1]
            body, case.body = case.body, []
            case.body = [_assign(flag, ast.Constant(number), body[0])]
            if number == len(node.cases) and _irrefutable(case):
                chain = body
                continue
            test = ast.Compare(_load(flag), [ast.Eq()], [ast.Constant(number)])
            branch = ast.If(ast.copy_location(test, case.pattern), body, chain)
            chain = [ast.copy_location(branch, case.pattern)]
        none = _assign(flag, ast.Constant(0), node)
        lowered, flags = self.block(chain, loop)
        return [none, node, *lowered], flags


def _irrefutable(case: ast.match_case) -> bool:
    match case:
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return True
    return False


def _plain_assignment(node: ast.AnnAssign) -> ast.stmt:
    """Drop an annotation: Python does not evaluate those inside functions."""
    new = ast.Assign([node.target], node.value) if node.value else ast.Pass()
    return ast.copy_location(new, node)


def _set_extra_test(node: ast.For, test: ast.expr) -> None:
    node.rg__extra = test  # type: ignore[attr-defined]


def _extra_test(node: ast.For) -> ast.expr | None:
    return getattr(node, "rg__extra", None)


class _PruneFlags(ast.NodeTransformer):
    """Remove assignments to flags that nothing reads."""

    def __init__(self, read: set[str]) -> None:
        self.read = read

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        match node.targets:
            case [ast.Name(id=name)] if name == _RETURN or name.startswith(
                ("rg__break_", "rg__continue_")
            ):
                return node if name in self.read else None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            if getattr(node, "body", None) == []:
                node.body = [ast.copy_location(ast.Pass(), _place(node))]  # type: ignore[union-attr]
            if isinstance(node, _TRIES) and not node.handlers and not node.finalbody:
                node.finalbody = [ast.Pass()]
        return node


def _place(node: ast.AST) -> ast.AST:
    return node.pattern if isinstance(node, ast.match_case) else node


# --------------------------------------------------------------------------- liveness


class _Liveness:
    """Find for each block the names whose value may be read after a run of it.

    For an `if` these are the names live behind it, for a loop also those that its next
    iteration reads. What a `try` or `with` may catch is live all the way through it, and
    names that a function inside this one reads are live everywhere.
    """

    def __init__(self, body: list[ast.stmt], scope: _Scope) -> None:
        self.always = scope.globals | scope.nonlocals
        for node in own_nodes(body):
            if isinstance(node, (*_SCOPES, ast.GeneratorExp)):
                self.always |= _read_names(node)
        self.block(body, set(), set())

    def block(
        self, body: Sequence[ast.stmt], after: set[str], caught: set[str]
    ) -> set[str]:
        live = set(after)
        for node in reversed(body):
            live = self.statement(node, live | caught, caught)
        return live

    def statement(self, node: ast.stmt, after: set[str], caught: set[str]) -> set[str]:
        match node:
            case ast.If():
                _set_live(node, after | self.always)
                branches = self.block(node.body, after, caught)
                branches |= self.block(node.orelse, after, caught)
                return branches | _read_names(node.test)
            case ast.For() | ast.While():
                return self.loop(node, after, caught)
            case ast.Try() | ast.TryStar():
                final = self.block(node.finalbody, after, caught)
                caught = caught | final
                live = self.block(node.orelse, final, caught)
                handled = set(final)
                for handler in node.handlers:
                    handled |= self.block(handler.body, final, caught)
                    handled |= _read_names(handler.type) if handler.type else set()
                return handled | self.block(node.body, live, caught | handled)
            case ast.With():
                items = set().union(*(_read_names(i) for i in node.items))
                return items | self.block(node.body, after, caught | after)
        return (after - bound_names([node])) | _read_names(node)

    def loop(
        self, node: ast.For | ast.While, after: set[str], caught: set[str]
    ) -> set[str]:
        test = node.test if isinstance(node, ast.While) else _extra_test(node)
        head = after | (_read_names(test) if test else set())
        target = bound_names([node.target]) if isinstance(node, ast.For) else set()
        while True:
            more = head | (self.block(node.body, head, caught) - target)
            if more == head:
                break
            head = more
        _set_live(node, head | self.always)
        return head | (_read_names(node.iter) if isinstance(node, ast.For) else set())


def _set_live(node: ast.stmt, names: set[str]) -> None:
    node.rg__live = names  # type: ignore[attr-defined]


# --------------------------------------------------------------------------- emission


def _support(name: str) -> ast.expr:
    return ast.Attribute(_load(SUPPORT), name, ast.Load())


def _operator(name: str, args: Sequence[ast.expr], where: ast.AST) -> ast.Call:
    active = ast.Call(_load(OPS), [], [])
    call = ast.Call(ast.Attribute(active, name, ast.Load()), list(args), [])
    return ast.copy_location(call, where)


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

    def __init__(self, scope: _Scope, control: bool) -> None:
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
        direct = _frame_builtin(node, self.scope)
        self.generic_visit(node)
        if direct == "super":
            return self._super(node)
        if direct in ("locals", "vars", "dir"):
            return ast.copy_location(ast.Call(_support("visible"), [node], []), node)
        if direct:
            return node
        args = ast.Tuple(node.args, ast.Load())
        if any(k.arg is None for k in node.keywords):
            kwargs: ast.expr = ast.Call(_support("keywords"), [], node.keywords)
        else:
            keys: list[ast.expr | None] = [ast.Constant(k.arg) for k in node.keywords]
            kwargs = ast.Dict(keys, [k.value for k in node.keywords])
        return _operator("call", [node.func, args, kwargs], node)

    def _super(self, node: ast.Call) -> ast.AST:
        if self.scope.first_parameter:
            node.args = [_load("__class__"), _load(self.scope.first_parameter)]
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
        if not self.control:
            return self.generic_visit(node)
        number = self.scope.number()
        inside = [*node.body, *node.orelse]
        then, other = f"rg__then_{number}", f"rg__else_{number}"
        state = _State(inside, node, number, self.scope)
        test = self.visit(node.test)
        orelse = self.block(node.orelse) if node.orelse else [ast.Pass()]
        operands = [test, _load(then), _load(other), *state.operands()]
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
        operands = [_load(test), _load(body), *state.operands()]
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
        iterable, test = self.visit(node.iter), _extra_test(node)
        bind = ast.Assign([self.visit(node.target)], _load(_ITEM))
        ast.copy_location(bind, node.target)
        result: list[ast.stmt] = [
            _define(
                body, [_ITEM], [*state.declare(), bind, *self.block(node.body)], node
            ),
            *state.functions(),
        ]
        more: ast.expr = ast.Constant(None)
        if test is not None:
            answer = ast.copy_location(ast.Return(self.visit(test)), node)
            result.append(_define(extra, [], [answer], node))
            more = _load(extra)
        operands = [iterable, more, _load(body), *state.operands(), target_text]
        call = ast.Expr(_operator("for_stmt", operands, node))
        return [*result, ast.copy_location(call, node)]


class _State:
    """The names and attributes that a block may change, and how to reach them."""

    def __init__(
        self, inside: Sequence[ast.AST], node: ast.stmt, number: int, scope: _Scope
    ) -> None:
        self.node = node
        self.scope = scope
        self.simple = sorted(bound_names(inside))
        self.attributes = dict(sorted(_bound_attributes(inside).items()))
        live: set[str] = getattr(node, "rg__live", set())
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
        return [_load(self.get), _load(self.set), names, _strings(self.live)]

    def functions(self) -> list[ast.stmt]:
        places: list[ast.expr] = [ast.Name(n, ast.Load()) for n in self.simple]
        places += [_as(a, ast.Load()) for a in self.attributes.values()]
        names = [*self.simple, *self.attributes]
        reads: list[ast.expr] = [
            ast.Call(_support("read"), [_thunk_of(p), ast.Constant(n)], [])
            for p, n in zip(places, names, strict=True)
        ]
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
    return _load(node.id)


def _write(place: ast.expr, at: int) -> list[ast.stmt]:
    """Return the statements that put one value back; an undefined one unbinds."""
    value = ast.Subscript(_load(_STATE), ast.Constant(at), ast.Load())
    missing = ast.Call(_support("is_undefined"), [value], [])
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


def shadowed_builtins(
    names: Iterable[str], namespace: dict[str, object]
) -> frozenset[str]:
    """Return the frame builtins that a function's globals or cells replace."""
    own = set(names)
    return frozenset(
        name
        for name in FRAME_BUILTINS
        if name in own
        or (name in namespace and namespace[name] is not getattr(builtins, name))
    )
