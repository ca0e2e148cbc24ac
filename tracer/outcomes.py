"""Outcomes: computed values that Python needs while a function is traced.

A bool that decides Python control flow and an int that chooses an object or a shape are
computed for the call that is being traced: the nodes so far are run. What came out is
taken for granted from there on, and an `expect` node checks it in the compiled program,
before anything that the caller sees is written. Where it fails, the driver takes
another program or traces the function again.

Note [disputes]
A program may round differently from the interpreter, and find another outcome for the
very call it was traced for. Its word counts: the function is traced again with the
outcome turned round where the programs part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..ir import dims
from ..ir.dims import Expr, Symbol
from ..ir.errors import (
    DTypeError,
    IRError,
    RetrogradeError,
    ShapeError,
    UnsupportedError,
)
from ..ir.func import Block, Node, Operand, Value, free_values
from ..ir.interp import Machine
from ..ir.op import OPS, Kind
from . import dispatch
from .location import user_location
from .program import Program, run_pass

if TYPE_CHECKING:
    from .tensor import Tensor
    from .trace import Trace

EXPECT = OPS["expect"]
INTERPRETED = 5000  # steps of a loop that are not worth compiling it
Answer: TypeAlias = bool | int
Path: TypeAlias = tuple[Answer, ...]


class Raised(Exception):
    """An error of the user's function, the cause, after computed values decided."""


class Outcomes:
    """What the computed values of one trace, and of those inside it, were taken to be.

    `path` holds the answers in order; `disputed` says what comes next after some paths
    (see Note [disputes]).
    """

    def __init__(self, root: Trace) -> None:
        self.root = root
        self.disputed: Mapping[Path, Answer] = {}
        self.path: list[Answer] = []
        self.settled: dict[Value, Answer] = {}  # scalars: they do not change
        root.assumptions.fix = self.fix

    def of(self, trace: Trace, t: Tensor, kind: str) -> Answer:
        """Return what `t` is in this call, and have the program check it.

        `kind` says what Python asked for: "bool", "int" or "index".
        """
        test = trace.test_of(t)
        one = _as_asked(trace, t, kind)
        x = trace.operand(one)
        if not isinstance(x, Value):
            return bool(x) if kind == "bool" else int(x)  # type: ignore[arg-type]
        if x in self.settled:
            return self.settled[x]
        found = trace.prefix.value(x).item()
        number, answer = self.next(bool(found) if kind == "bool" else int(found))
        trace.apply(EXPECT, (one,), {"value": answer, "number": number})
        trace.assumptions.learn(*(test.true if answer else test.false))
        if x.type.scalar:
            self.settled[x] = answer
        return answer

    def next(self, found: Answer) -> tuple[int, Answer]:
        """Enter an answer; returns its number, and the answer that counts."""
        answer = self.disputed.get(tuple(self.path), found)
        self.path.append(answer)
        return len(self.path) - 1, answer

    def fix(self, s: Symbol) -> bool:
        """Make an open symbol the number that it is in this call, if that can be."""
        found = self._definition(s)
        if found is None:
            return False
        trace, k = found
        node = trace.nodes[k]
        assert node.op.counts is not None
        number, value = self.next(trace.prefix.size(s))
        with trace.builder.block() as made, dims.deciding(trace.assumptions):
            trace.builder.loc = user_location()
            x = node.op.counts(trace.builder, *node.operands)
            trace.builder.apply(EXPECT, (x,), {"value": value, "number": number})
        trace.insert(k, made)
        trace.assumptions.substitute(s, value)
        return True

    def _definition(self, s: Symbol) -> tuple[Trace, int] | None:
        """Return where a symbol is defined: the trace, and the position there.

        There are no checks in regions: what is defined in one is not found.
        """
        trace: Any = dispatch.active_trace() or self.root
        while trace is not None:
            if trace.parent is None or not trace.parent.in_region:
                for k, node in enumerate(trace.nodes):
                    if _counted(node) == s and node.op.counts is not None:
                        return trace, k
            trace = trace.parent
        return None


def _counted(node: Node) -> Symbol | None:
    """Return the symbol that a node defines or checks."""
    count = node.attrs.get("count")
    return dims.as_symbol(count) if isinstance(count, Expr) else None


def _as_asked(trace: Trace, t: Tensor, kind: str) -> Any:
    """Return the scalar that Python asks for: a bool, or an integer."""
    type = trace.type_of(t)
    if any(int(d) != 1 for d in trace.shape_of(t)):
        raise _not_one(kind)
    if type.shape:
        t = trace.apply(OPS["reshape"], (t,), {"shape": ()})
    if kind == "bool" and type.dtype.kind != "b":
        return trace.apply(OPS["not_equal"], (t, 0), {})
    if kind == "index" and (type.dtype.kind not in "iu" or type.shape):
        raise DTypeError(
            "only integer scalar arrays can be converted to a scalar index",
            location=user_location(),
            rule=f"this is {type}",
        )
    if kind == "int" and type.dtype.kind not in "iu":
        if type.dtype.kind == "f":
            int(trace.prefix.value(trace.operand(t)))  # raises for nan and infinities
        return trace.apply(OPS["astype"], (t,), {"dtype": np.dtype(np.int64)})
    return t


def _not_one(kind: str) -> RetrogradeError:
    if kind == "bool":
        return ShapeError(
            "The truth value of an array with more than one element is ambiguous. Use "
            "a.any() or a.all()",
            location=user_location(),
        )
    return DTypeError(
        "only 0-dimensional arrays can be converted to Python scalars",
        location=user_location(),
    )


# ---------------------------------------------------------------- values in this call


class Prefix:
    """The values that the nodes of a trace have in this call; each runs once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.machine = _Runner(trace)
        self.done = 0  # nodes that have run

    def value(self, x: Operand) -> Any:
        """Return the value of an operand after the nodes so far."""
        self.catch_up()
        return np.asarray(self.machine.get(x))

    def size(self, s: Symbol) -> int:
        """Return the value of a symbol that a node has defined."""
        self.catch_up()
        return self.machine.symbols[s]

    def catch_up(self) -> None:
        nodes = self.trace.nodes
        while self.done < len(nodes):
            self.machine.run(nodes[self.done])
            self.done += 1


class _Runner(Machine):
    """Runs the nodes of a trace on copies of the arguments."""

    def __init__(self, trace: Trace) -> None:
        super().__init__({})
        self.trace = trace
        self.learned = (0, 0)

    def get(self, x: Operand) -> Any:
        if isinstance(x, Value) and x not in self.values:
            data = self.trace.inputs.in_call(x)
            copied = data.copy(order="K") if isinstance(data, np.ndarray) else data
            self.values[x] = copied
        self.learn()
        return super().get(x)

    def learn(self) -> None:
        """Take in the symbols that the trace has made, and what was assumed of them."""
        known = self.trace.assumptions
        now = len(known.hints), len(known.equal)
        if now == self.learned:
            return
        self.learned = now
        for s, k in known.hints.items():
            self.symbols.setdefault(s, k)
        for s, d in known.equal.items():
            if s not in self.symbols and dims.symbols_of(d) <= self.symbols.keys():
                self.symbols[s] = dims.evaluate(d, self.symbols)

    def run(self, node: Node) -> None:
        """Run a node of the outermost block."""
        self.learn()
        if node.op.kind is Kind.CHECK:
            return
        if node.regions and _steps(node, dict(self.symbols)) > INTERPRETED:
            try:
                self.compiled(node)
            except UnsupportedError:
                self.node(node)
        else:
            self.node(node)

    def plain(self, node: Node) -> None:
        count = node.attrs.get("count")
        if isinstance(count, Expr):  # assumed since: the op checks it
            known = self.trace.assumptions.resolve(count)
            node = replace(node, attrs={**node.attrs, "count": known})
        super().plain(node)

    def compiled(self, node: Node) -> None:
        """Run a node by compiled code, on what it reads and writes."""
        nodes: dict[Node, None] = {}
        roots: dict[Value, None] = {}

        def need(v: Value) -> None:
            if v.base is None:
                roots.setdefault(v)
                return
            view = self.trace.node_of(v)
            for x in view.operands:
                if isinstance(x, Value):
                    need(x)
            nodes.setdefault(view)

        for v in free_values(Block((), (node,))):
            need(v)
        s = _counted(node)
        sizes = () if s is None else (node.attrs["count"],)
        block = Block(tuple(roots), (*nodes, node), (*node.results, *sizes))
        func = self.trace.func(block)
        program = Program(run_pass(func, "functionalize"))
        args = [_declared(self.get(v), v) for v in roots]
        out = program.run(args, self.symbols)
        if s is not None:
            self.symbols[s] = int(out[len(node.results)])
        self.define(node.results, out[: len(node.results)])


def _declared(x: Any, v: Value) -> Any:
    return np.asarray(x)[()] if v.type.scalar else np.asarray(x)


def _steps(node: Node, symbols: dict[Symbol, int]) -> float:
    """Estimate how many nodes a control node runs."""
    times: float = 1
    if node.op.kind is Kind.WHILE:
        return math.inf
    if node.op.kind is Kind.FOR:
        a = node.attrs
        start, stop, step = (
            dims.evaluate(a[key], symbols) for key in ("start", "stop", "step")
        )
        times = len(range(start, stop, step))
        index = dims.as_symbol(a["index"])
        assert index is not None
        symbols[index] = start
    inner: Sequence[Node] = [n for r in node.regions for n in r.nodes]
    try:
        return times * sum(_steps(n, symbols) for n in inner) if inner else times
    except IRError:  # a size that the loop computes
        return math.inf
