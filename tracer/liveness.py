"""Find for each block the names whose value may be read after a run of it."""

import ast
from collections.abc import Sequence

from .lowering import extra_test
from .scopes import SCOPES, Scope, bound_names, own_nodes, read_names


class Liveness:
    """Find for each block the names whose value may be read after a run of it.

    For an `if` these are the names live behind it, for a loop also those that its next
    iteration reads. What a `try` or `with` may catch is live all the way through it,
    and names that a function inside this one reads are live everywhere."""

    def __init__(self, body: list[ast.stmt], scope: Scope) -> None:
        self.always = scope.globals | scope.nonlocals
        for node in own_nodes(body):
            if isinstance(node, (*SCOPES, ast.GeneratorExp)):
                self.always |= read_names(node)
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
                return branches | read_names(node.test)
            case ast.For() | ast.While():
                return self.loop(node, after, caught)
            case ast.Try() | ast.TryStar():
                final = self.block(node.finalbody, after, caught)
                caught = caught | final
                live = self.block(node.orelse, final, caught)
                handled = set(final)
                for handler in node.handlers:
                    handled |= self.block(handler.body, final, caught)
                    handled |= read_names(handler.type) if handler.type else set()
                return handled | self.block(node.body, live, caught | handled)
            case ast.With():
                items = set().union(*(read_names(i) for i in node.items))
                return items | self.block(node.body, after, caught | after)
        return (after - bound_names([node])) | read_names(node)

    def loop(
        self, node: ast.For | ast.While, after: set[str], caught: set[str]
    ) -> set[str]:
        test = node.test if isinstance(node, ast.While) else extra_test(node)
        head = after | (read_names(test) if test else set())
        target = bound_names([node.target]) if isinstance(node, ast.For) else set()
        while True:
            more = head | (self.block(node.body, head, caught) - target)
            if more == head:
                break
            head = more
        _set_live(node, head | self.always)
        return head | (read_names(node.iter) if isinstance(node, ast.For) else set())


def _set_live(node: ast.stmt, names: set[str]) -> None:
    node.rg__live = names  # type: ignore[attr-defined]


def live_names(node: ast.stmt) -> set[str]:
    """Return what the analysis found for a block."""
    names: set[str] = getattr(node, "rg__live", set())
    return names
