"""The folders, the wheel and the import graph must agree, and ops stay in ir/ops/."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import retrograde

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "ir": set(),
    "runtime": set(),
    "passes": {"ir"},
    "codegen": {"ir", "runtime"},
    "tracer": {"ir", "passes", "codegen", "runtime"},
}
ERRORS = ("ir", "errors")  # open to all: what users catch has one home
SOURCES = [p for d in MAY_IMPORT for p in sorted((ROOT / d).rglob("*.py"))]
DOOR = sorted((ROOT / "retrograde").glob("*.py"))

# Places outside ir/ops/ that may compare with an op's name, each with its reason.
MAY_NAME_OPS: dict[tuple[str, str], str] = {}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield line, level and the parts of the name of every imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.level, tuple(node.module.split("."))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, (alias.name,)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_imports_point_down(path: Path) -> None:
    here, *rest = path.relative_to(ROOT).with_suffix("").parts
    depth = len(rest)
    for line, level, module in imports(ast.parse(path.read_text())):
        target = module[0]
        if level == 0:
            outside = target != "retrograde" and target not in MAY_IMPORT
            assert outside, f"line {line}: import {target} relatively"
        elif level > depth:
            allowed = target in MAY_IMPORT[here] or module == ERRORS
            assert allowed, f"line {line}: {here} may not import {target}"


def test_every_folder_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config = project["tool"]["setuptools"]
    on_disk = {
        f"retrograde.{'.'.join(p.relative_to(ROOT).parts[:-1])}" for p in SOURCES
    }
    assert set(config["packages"]) == on_disk | {"retrograde"}
    for package, folder in config["package-dir"].items():
        assert (ROOT / folder / "__init__.py").is_file(), package


def test_links_point_at_the_real_folders() -> None:
    for folder in MAY_IMPORT:
        link = ROOT / "retrograde" / folder
        assert link.is_symlink() or sys.platform == "win32"
        assert link.resolve() == ROOT / folder


def test_no_module_is_loaded_twice() -> None:
    for module in pkgutil.walk_packages(retrograde.__path__, "retrograde."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    bare = sorted(n for n in sys.modules if n.split(".")[0] in MAY_IMPORT)
    assert not bare, f"imported under a bare name: {bare}"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


# Branches on an op's name.

SPELLING = "<spelling>"  # stands for any op: code looks at how its name is spelled


def op_names() -> set[str]:
    importlib.import_module("retrograde.ir.ops")
    return set(importlib.import_module("retrograde.ir.op").OPS)


def strings(node: ast.AST) -> set[str]:
    """Return the string constants of a literal or a collection of literals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return set().union(*(strings(item) for item in node.elts))
    if isinstance(node, ast.Call) and len(node.args) == 1:  # frozenset({...})
        return strings(node.args[0])
    return set()


def is_op_name(node: ast.AST) -> bool:
    """Tell whether an expression is spelled like the name of a node's op."""
    if isinstance(node, ast.Attribute):
        return node.attr in {"name", "op"}
    return isinstance(node, ast.Name) and node.id in {"name", "op", "op_name"}


def is_spelling(node: ast.AST) -> bool:
    """Tell whether a method looks at how an op's name is spelled."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in {"startswith", "endswith", "removesuffix", "removeprefix"}
        and ast.unparse(node.value).endswith("op.name")
    )


def branches(tree: ast.AST, ops: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and op name wherever code decides by an op's name."""
    for node in ast.walk(tree):
        found: set[str] = set()
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_op_name(side) for side in sides):
                found = set().union(*(strings(side) for side in sides))
        elif isinstance(node, ast.Match) and is_op_name(node.subject):
            for case in node.cases:
                found |= set().union(*(strings(n) for n in ast.walk(case.pattern)))
        elif isinstance(node, ast.Dict):
            found = table({k for key in node.keys if key for k in strings(key)}, ops)
        elif isinstance(node, ast.Set):
            found = table(strings(node), ops)
        elif isinstance(node, ast.Call) and is_spelling(node.func):
            found = {SPELLING}
        yield from ((node.lineno, op) for op in sorted(found & (ops | {SPELLING})))


def table(keys: set[str], ops: set[str]) -> set[str]:
    """Return the ops among keys where two or more keys, mostly ops, make a table."""
    hits = keys & ops
    return hits if len(hits) >= 2 and 2 * len(hits) > len(keys) else set()


@pytest.mark.parametrize(
    "source",
    [
        "if node.op.name == 'sum': pass",
        "if 'sum' != node.op: pass",
        "if node.op.name in ('sum', 'sin'): pass",
        "if op.name not in frozenset({'sum'}): pass",
        "COSTS = {'sum': 1, 'sin': 10}",
        "CHEAP = {'sum', 'sin', 'cos'}",
        "match node.op.name:\n case 'sum' | 'sin': pass",
        "if node.op.name.endswith('_scatter'): pass",
    ],
)
def test_branch_on_a_name_is_found(source: str) -> None:
    assert list(branches(ast.parse(source), {"sum", "sin", "cos"}))


@pytest.mark.parametrize(
    "source",
    [
        "if node.op.kind == 'sum': pass",
        "b('sum', x)",
        "if parameter.name == 'self': pass",
        "OPTIONS = {'sum': 1, 'depth': 2}",
        "if alias.name != '*': pass",
    ],
)
def test_other_code_is_no_branch_on_a_name(source: str) -> None:
    assert not list(branches(ast.parse(source), {"sum", "sin", "cos"}))


def test_no_file_outside_ops_branches_on_an_op_name() -> None:
    ops = op_names()
    assert "sin" in ops
    paths = [p for p in [*SOURCES, *DOOR] if not name(p).startswith("ir/ops/")]
    found = {
        (name(path), op): f"{name(path)}:{line} branches on {op!r}"
        for path in paths
        for line, op in branches(ast.parse(path.read_text()), ops)
    }
    wrong = [text for key, text in found.items() if key not in MAY_NAME_OPS]
    assert not wrong, "\n".join(wrong)
    assert set(MAY_NAME_OPS) <= set(found), "the allow-list names what is gone"


HEAVY = "numba scipy rich opt_einsum platformdirs numpy.random json tempfile".split()


def test_import_is_cheap() -> None:
    """What takes long to import is imported where it is used."""
    script = "import sys, numpy; known = set(sys.modules); import retrograde; "
    script += f"print((set(sys.modules) - known) & {set(HEAVY)!r})"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
