"""Find the syntax tree of a running function in the file that it came from.

The tree is only given out when compiling it reproduces the function's own bytecode:
a file edited after it was imported, or code that an import hook changed, is not
mistaken for the source of what runs.
"""

import __future__

import ast
import copy
import linecache
import threading
from dataclasses import dataclass, field
from types import CodeType

from .scopes import FunctionNode, first_line, name_of, own_nodes

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


@dataclass(frozen=True, slots=True)
class Source:
    """A function's tree, ready to be changed, and the class whose body it stands in."""

    node: FunctionNode
    owner: str | None
    imports: tuple[str, ...]


@dataclass(slots=True)
class _File:
    lines: list[str]
    imports: tuple[str, ...] = ()
    functions: dict[tuple[int, str], list[tuple[FunctionNode, str | None]]] = field(
        default_factory=dict
    )


_FILES: dict[str, _File] = {}
_LOCK = threading.Lock()


def find_source(code: CodeType, namespace: dict[str, object]) -> Source | None:
    """Return the tree of the function that has this code, or None if there is none."""
    lines = linecache.getlines(code.co_filename, namespace)
    if not lines:
        return None
    with _LOCK:
        file = _FILES.get(code.co_filename)
        if file is None or file.lines != lines:
            file = _FILES[code.co_filename] = _index(lines)
    for node, owner in file.functions.get((code.co_firstlineno, code.co_name), ()):
        source = Source(_strip(copy.deepcopy(node)), owner, file.imports)
        native = compile_function(source, code.co_freevars, code)
        if _same_code(native, code) or _asserts_rewritten(code):
            return source
    return None


def compile_function(
    source: Source, freevars: tuple[str, ...], original: CodeType
) -> CodeType:
    """Compile a lone function with the free names that it had; return its code.

    Parameters of a function around it make the free names cells, and a class of its
    owner's name makes Python mangle private names and provide `__class__`. What the
    module imports is imported, since Python compiles calls of its attributes otherwise.
    """
    node, owner = source.node, source.owner
    inner: ast.stmt = ast.Expr(node) if isinstance(node, ast.Lambda) else node
    if owner is not None:
        inner = ast.ClassDef(owner, [], [], [inner], [])
        _no_type_params(inner)
    body = [inner]
    name = getattr(inner, "name", None)
    if name and name not in freevars:
        body.insert(0, ast.Global([name]))  # the function may name itself
    args = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in freevars],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[],
    )
    outer = ast.FunctionDef(name="rg__outer", args=args, body=body, decorator_list=[])
    _no_type_params(outer)
    imports = [ast.Import([ast.alias("rg", name)]) for name in source.imports]
    for made in (*imports, *body, outer):
        ast.copy_location(made, node)
    module = ast.fix_missing_locations(ast.Module([*imports, outer], []))
    flags = original.co_flags & _FUTURE
    code: CodeType = compile(
        module, original.co_filename, "exec", flags=flags, dont_inherit=True
    )
    for _ in range(2 if owner is None else 3):
        (code,) = (c for c in code.co_consts if isinstance(c, CodeType))
    return code


def _no_type_params(node: ast.stmt) -> None:
    if "type_params" in node._fields:
        node.type_params = []  # type: ignore[attr-defined]


def _index(lines: list[str]) -> _File:
    file = _File(lines)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return file
    file.imports = tuple(sorted(_module_imports(tree)))
    stack: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            key = first_line(node), name_of(node)
            file.functions.setdefault(key, []).append((node, owner))
        elif isinstance(node, ast.ClassDef):
            owner = node.name
        stack += [(child, owner) for child in ast.iter_child_nodes(node)]
    return file


def _module_imports(tree: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in own_nodes(tree.body)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name != "*"
    }


def _strip(node: FunctionNode) -> FunctionNode:
    """Remove what belongs to the place of definition: defaults, annotations, ..."""
    args = node.args
    args.defaults = []
    args.kw_defaults = [None] * len(args.kwonlyargs)
    rest = [a for a in (args.vararg, args.kwarg) if a]
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest):
        arg.annotation = None
    if not isinstance(node, ast.Lambda):
        node.decorator_list = []
        node.returns = None
        _no_type_params(node)
    return node


def _same_code(one: CodeType, two: CodeType) -> bool:
    """Tell whether two code objects do the same, wherever they stand."""
    if (
        one.co_code != two.co_code
        or one.co_names != two.co_names
        or one.co_varnames != two.co_varnames
        or set(one.co_freevars) != set(two.co_freevars)
        or len(one.co_consts) != len(two.co_consts)
    ):
        return False
    return all(map(_same_constant, one.co_consts, two.co_consts))


def _same_constant(one: object, two: object) -> bool:
    if isinstance(one, CodeType) and isinstance(two, CodeType):
        return _same_code(one, two)
    if isinstance(one, str) and isinstance(two, str) and "<locals>" in two:
        return True  # a qualified name: it says where a definition stands
    return type(one) is type(two) and (one == two or repr(one) == repr(two))


def _asserts_rewritten(code: CodeType) -> bool:
    """Tell whether pytest replaced the asserts of a test, and so its bytecode."""
    return any(name.startswith("@py_") for name in code.co_varnames) or any(
        isinstance(c, CodeType) and _asserts_rewritten(c) for c in code.co_consts
    )
