"""What names and frames a function's syntax tree involves."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TRIES = (ast.Try, ast.TryStar)
_LOOPS = (ast.For, ast.While)

# Builtins that look at the frame that calls them, with the number of arguments from
# which on they no longer do.
FRAME_BUILTINS = {
    "locals": 1,
    "globals": 1,
    "vars": 1,
    "dir": 1,
    "super": 1,
    "eval": 99,  # given None as globals it takes its caller's
    "exec": 99,
    "breakpoint": 99,
}
NEED_WHOLE_FRAME = {"locals", "vars", "dir", "eval", "exec"}


def first_line(node: FunctionNode) -> int:
    """Return the line that a function's code object gives as its first."""
    if isinstance(node, ast.Lambda) or not node.decorator_list:
        return node.lineno
    return min(node.lineno, *(d.lineno for d in node.decorator_list))


def name_of(node: FunctionNode) -> str:
    """Return the name that a function's code object has."""
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes that run in the frame of the given ones, comprehensions too."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, SCOPES):
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


def read_names(node: ast.AST) -> set[str]:
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


def bound_attributes(nodes: Sequence[ast.AST]) -> dict[str, ast.Attribute]:
    """Return the attributes of names from outside that the given nodes assign."""
    local = bound_names(nodes)
    found: dict[str, ast.Attribute] = {}
    for node in own_nodes(nodes):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            path = _attribute_path(node)
            if path and path.partition(".")[0] not in local:
                found[path] = node
    return found


def parameters_of(args: ast.arguments) -> list[str]:
    """Return the names of all parameters."""
    rest = [a for a in (args.vararg, args.kwarg) if a]
    return [a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, *rest]]


@dataclass(slots=True)
class Scope:
    """What the rewriting of one function needs to know about it."""

    name: str
    first_parameter: str | None
    globals: set[str]
    nonlocals: set[str]
    rebound: frozenset[str]
    limits: dict[tuple[str, int], str]
    whole_frame: bool = False
    sure: set[str] = field(default_factory=set)
    count: int = 0

    def number(self) -> int:
        """Return a number that no other block of the function has."""
        self.count += 1
        return self.count


def scope_of(
    node: FunctionNode, rebound: frozenset[str], limits: dict[tuple[str, int], str]
) -> tuple[Scope, list[ast.AST]]:
    """Return what there is to know about a function, and its body as a list."""
    body: list[ast.AST] = (
        [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    )
    positional = [*node.args.posonlyargs, *node.args.args]
    parameters = parameters_of(node.args)
    bound = bound_names(body) | set(parameters)
    scope = Scope(
        name_of(node),
        positional[0].arg if positional else None,
        {n for s in own_nodes(body) if isinstance(s, ast.Global) for n in s.names},
        {n for s in own_nodes(body) if isinstance(s, ast.Nonlocal) for n in s.names},
        rebound | (bound & FRAME_BUILTINS.keys()),
        limits,
    )
    scope.whole_frame = any(
        frame_builtin(n, scope) in NEED_WHOLE_FRAME for n in own_nodes(body)
    )
    return scope, body


def why_whole(node: FunctionNode, scope: Scope) -> str | None:
    """Return why the statements of a function have to stay in one frame, if so."""
    assert not isinstance(node, ast.Lambda)
    if isinstance(node, ast.AsyncFunctionDef):
        return "it is a coroutine"
    for inner in own_nodes(node.body):
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return "it is a generator"
        if frame_builtin(inner, scope) in NEED_WHOLE_FRAME:
            return f"it calls {frame_builtin(inner, scope)}()"
        if isinstance(inner, TRIES) and leaves(inner.finalbody):
            return "it leaves a `finally` by return, break or continue"
    return None


def frame_builtin(node: ast.AST, scope: Scope) -> str | None:
    """Return which builtin that looks at its caller's frame a call names."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if (
            name in FRAME_BUILTINS and name not in scope.rebound
        ):
            count = len(node.args) + len(node.keywords)
            return name if count < FRAME_BUILTINS[name] else None
    return None


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


def leaves(statements: Sequence[ast.stmt], loops: bool = True) -> bool:
    """Tell whether statements may leave by return, or by a jump of a loop outside."""
    for node in statements:
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Break | ast.Continue) and loops:
            return True
        if isinstance(node, SCOPES):
            continue
        for part, inner_loops in _parts(node, loops):
            if leaves(part, inner_loops):
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


def always_leaves(statements: Sequence[ast.stmt]) -> bool:
    """Tell whether every way through statements ends in a jump or a return."""
    match statements:
        case [*_, ast.Return() | ast.Break() | ast.Continue()]:
            return True
        case [*_, ast.If() as last]:
            return always_leaves(last.body) and always_leaves(last.orelse)
    return False
