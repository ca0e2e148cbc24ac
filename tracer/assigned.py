"""Find the names of a function that surely have a value wherever they are read.

Of such a name nobody asks on the ways on which it has none: `x` below may be anything
where the loop goes on, and after a `break` it is what it is.

    while True:
        if ...:
            x = ...
            break
    return x
"""

import ast
from collections.abc import Iterable, Sequence

from .scopes import SCOPES, TRIES, Scope, bound_names, own_nodes, read_names

_State = frozenset[str] | None  # names that have a value; None where nobody comes


def sure_names(
    body: Sequence[ast.stmt], scope: Scope, given: Iterable[str]
) -> set[str]:
    """Return the names that `body` binds, and reads only where they have a value."""
    known = _Assigned()
    known.block(body, frozenset(given))
    names = bound_names(body) - known.unsure - scope.globals - scope.nonlocals
    for node in own_nodes(body):
        match node:
            case ast.Name(id=name, ctx=ast.Del()) | ast.ExceptHandler(name=str(name)):
                names.discard(name)
            case ast.NamedExpr():
                names -= bound_names([node.target])
        if isinstance(node, (*SCOPES, ast.GeneratorExp)):
            names -= read_names(node)
    return names


class _Assigned:
    """Follow which names have a value, and note those that may be read without."""

    def __init__(self) -> None:
        self.unsure: set[str] = set()
        self.breaks: list[_State] = []  # of the loops around, joined

    def block(self, body: Sequence[ast.stmt], state: _State) -> _State:
        for node in body:
            state = self.statement(node, state)
        return state

    def read(self, node: ast.AST, state: _State) -> None:
        if state is not None:
            self.unsure |= read_names(node) - state

    def statement(self, node: ast.stmt, state: _State) -> _State:
        match node:
            case ast.If():
                self.read(node.test, state)
                body = self.block(node.body, state)
                return _join(body, self.block(node.orelse, state))
            case ast.For() | ast.While():
                return self.loop(node, state)
            case ast.Try() | ast.TryStar():
                return self.tries(node, state)
            case ast.With():
                for item in node.items:
                    self.read(item, state)
                bound = bound_names([i for i in node.items])
                self.block(node.body, _with(state, bound))
                return _with(state, bound)  # it may swallow an exception
            case ast.Match():
                self.read(node.subject, state)
                out = state
                for case in node.cases:
                    inside = _with(state, bound_names([case.pattern]))
                    if case.guard is not None:
                        self.read(case.guard, inside)
                    out = _join(out, self.block(case.body, inside))
                return out
            case ast.Return() | ast.Raise():
                self.read(node, state)
                return None
            case ast.Break():
                self.breaks[-1] = _join(self.breaks[-1], state)
                return None
            case ast.Continue():
                return None
        self.read(node, state)
        return _with(state, bound_names([node]))

    def loop(self, node: ast.For | ast.While, state: _State) -> _State:
        # A name once bound stays bound, so the first iteration knows the fewest.
        inside = after = state
        if isinstance(node, ast.For):
            self.read(node.iter, state)
            inside = _with(state, bound_names([node.target]))
        else:
            self.read(node.test, state)
            if isinstance(node.test, ast.Constant) and node.test.value:
                after = None
        self.breaks.append(None)
        self.block(node.body, inside)
        left = self.breaks.pop()
        return _join(self.block(node.orelse, after), left)

    def tries(self, node: ast.Try | ast.TryStar, state: _State) -> _State:
        assert isinstance(node, TRIES)
        after = self.block(node.orelse, self.block(node.body, state))
        for handler in node.handlers:
            if handler.type is not None:
                self.read(handler.type, state)
            bound = {handler.name} if handler.name else set()
            after = _join(after, self.block(handler.body, _with(state, bound)))
        last = self.block(node.finalbody, state)
        return None if after is None or last is None else after | last


def _join(a: _State, b: _State) -> _State:
    """Return what has a value whichever way was taken."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _with(state: _State, names: set[str]) -> _State:
    return None if state is None else state | names
