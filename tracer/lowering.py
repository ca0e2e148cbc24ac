"""Replace jumps by flags, so that every block is entered and left at its ends.

After it a function has no `break`, `continue`, early `return`, `else` of a loop, bodies
of `match`, annotations of variables, or `global` and `nonlocal` statements left.

Note [exceptions in loops]: a `raise` or `assert` in a loop raises where Python runs it.
Where a region is traced, it is known only later whether it would: it leaves the
function like a `return`, with a flag, and the end of the function raises.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .scopes import SCOPES, TRIES, Scope, always_leaves, leaves

RETURN, VALUE, SUPPORT = "rg__return", "rg__value", "rg__"
RAISED = "rg__raised"


def load(name: str) -> ast.Name:
    """Return the syntax of reading a name."""
    return ast.Name(name, ast.Load())


def support(name: str) -> ast.expr:
    """Return the syntax of something that converted code finds in its support."""
    return ast.Attribute(load(SUPPORT), name, ast.Load())


def _assign(name: str, value: ast.expr, where: ast.AST) -> ast.Assign:
    node = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.copy_location(node, where)


def _none_of(flags: Iterable[str], test: ast.expr | None = None) -> ast.expr:
    """Return the expression `not flag and ... [and test]`."""
    parts: list[ast.expr] = [ast.UnaryOp(ast.Not(), load(f)) for f in flags]
    parts += [test] if test else []
    return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)


@dataclass(slots=True)
class _Loop:
    broken: str
    skipped: str


class Lower:
    """Replace jumps by flags, so that every block is entered and left at its ends."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.native_return = False
        self.read: set[str] = set()
        self.protected = 0  # blocks around that may catch what is raised
        self.raises: list[ast.stmt] = []  # see Note [exceptions in loops]

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        ends = isinstance(body[-1], ast.Return) if body else False
        early = leaves(body[:-1] if ends else body, loops=False)
        self.native_return = not early and not _may_raise(body)
        lowered, _ = self.block(body, None)
        if not self.native_return:
            call = ast.Call(support("returned"), [load(VALUE)], [])
            last = body[-1]
            lowered = [
                _assign(RETURN, ast.Constant(False), body[0]),
                _assign(VALUE, support("NO_VALUE"), body[0]),
                *self.later(lowered),
                ast.copy_location(ast.Return(call), last),
            ]
        prune = _PruneFlags(self.read)
        return [s for s in (prune.visit(s) for s in lowered) if s] or [ast.Pass()]

    def later(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Let a function raise at its end what its loops would have raised."""
        if not self.raises:
            return body
        first = self.raises[0]
        fails = ast.Raise(ast.Call(support("Failed"), [], []))
        check = ast.If(load(RAISED), [ast.copy_location(fails, first)], [])
        unset = _assign(RAISED, ast.Constant(False), body[0])
        return [unset, *body, ast.copy_location(check, first)]

    def soft_raise(
        self, node: ast.Raise, loop: _Loop
    ) -> tuple[list[ast.stmt], set[str]]:
        self.raises.append(node)
        region = ast.Call(support("in_region"), [], [])
        leave = _assign(RETURN, ast.Constant(True), node)
        choice = ast.copy_location(ast.If(load(RAISED), [leave], [node]), node)
        choice.rg__plain = True  # type: ignore[attr-defined]
        return [_assign(RAISED, region, node), choice], {RETURN}

    def block(
        self, body: Sequence[ast.stmt], loop: _Loop | None
    ) -> tuple[list[ast.stmt], set[str]]:
        """Return the lowered statements and the flags that they may have set."""
        done: list[ast.stmt] = []
        flags: set[str] = set()
        for at, node in enumerate(body):
            rest = list(body[at + 1 :])
            if isinstance(node, ast.If) and rest and leaves([node]):
                # One branch is left for good: what follows belongs to the other one,
                # so that both give their value and no flag is needed.
                if always_leaves(node.body):
                    node.orelse, rest = [*node.orelse, *rest], []
                elif always_leaves(node.orelse):
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
                set_value = _assign(VALUE, value, node)
                return [set_value, _assign(RETURN, ast.Constant(True), node)], {RETURN}
            case ast.Break() if loop:
                return [_assign(loop.broken, ast.Constant(True), node)], {loop.broken}
            case ast.Continue() if loop:
                return [_assign(loop.skipped, ast.Constant(True), node)], {loop.skipped}
            case ast.Raise(exc=ast.expr()) if loop and not self.protected:
                return self.soft_raise(node, loop)
            case ast.Assert() if loop and not self.protected and __debug__:
                parts = [node.msg] if node.msg else []
                error = ast.Call(support("AssertionError"), parts, [])
                fails = ast.copy_location(ast.Raise(error), node)
                test = ast.UnaryOp(ast.Not(), node.test)
                return self.statement(_if(test, fails, node), loop)
            case ast.If():
                node.body, one = self.block(node.body, loop)
                node.orelse, two = self.block(node.orelse, loop)
                return [node], one | two
            case ast.For() | ast.While():
                return self.loop(node, loop)
            case ast.With():
                self.protected += 1
                node.body, flags = self.block(node.body, loop)
                self.protected -= 1
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
        stops = [f for f in (loop.broken, RETURN) if f in flags]
        if stops:
            self.read |= set(stops)
            if isinstance(node, ast.While):
                node.test = ast.copy_location(_none_of(stops, node.test), node.test)
            else:
                _set_extra_test(node, _none_of(stops))
        orelse, node.orelse = node.orelse, []
        flags &= {RETURN}
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
        if node.orelse and leaves(node.body):
            return self.block(self.without_else(node), loop)
        self.protected += 1
        node.body, flags = self.block(node.body, loop)
        for handler in node.handlers:
            handler.body, more = self.block(handler.body, loop)
            flags |= more
        node.orelse, more = self.block(node.orelse, loop)
        node.finalbody, _ = self.block(node.finalbody, loop)
        self.protected -= 1
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
            ast.copy_location(ast.If(load(flag), orelse, []), orelse[0]),
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
            test = ast.Compare(load(flag), [ast.Eq()], [ast.Constant(number)])
            branch = ast.If(ast.copy_location(test, case.pattern), body, chain)
            chain = [ast.copy_location(branch, case.pattern)]
        none = _assign(flag, ast.Constant(0), node)
        lowered, flags = self.block(chain, loop)
        return [none, node, *lowered], flags


def _if(test: ast.expr, then: ast.stmt, where: ast.stmt) -> ast.If:
    return ast.copy_location(ast.If(ast.copy_location(test, where), [then], []), where)


def _may_raise(body: Sequence[ast.stmt], loop: bool = False) -> bool:
    """Tell whether there is a `raise` or `assert` that a loop may have to delay."""
    for node in body:
        if isinstance(node, ast.Raise | ast.Assert) and loop:
            return True
        if isinstance(node, (*SCOPES, *TRIES, ast.With)):
            continue
        inside = loop or isinstance(node, ast.For | ast.While)
        for part in ("body", "orelse"):
            if _may_raise(getattr(node, part, []), inside):
                return True
        if any(_may_raise(case.body, loop) for case in getattr(node, "cases", [])):
            return True
    return False


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
    ast.fix_missing_locations(ast.copy_location(test, node))
    node.rg__extra = test  # type: ignore[attr-defined]


def is_plain(node: ast.If) -> bool:
    """Tell whether Python knows the condition of an `if` of ours."""
    return getattr(node, "rg__plain", False)


def extra_test(node: ast.For) -> ast.expr | None:
    """Return the test that ends a lowered `for` before its iterable does."""
    return getattr(node, "rg__extra", None)


class _PruneFlags(ast.NodeTransformer):
    """Remove assignments to flags that nothing reads."""

    def __init__(self, read: set[str]) -> None:
        self.read = read

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        match node.targets:
            case [ast.Name(id=name)] if name == RETURN or name.startswith(
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
            if isinstance(node, TRIES) and not node.handlers and not node.finalbody:
                node.finalbody = [ast.Pass()]
        return node


def _place(node: ast.AST) -> ast.AST:
    return node.pattern if isinstance(node, ast.match_case) else node
