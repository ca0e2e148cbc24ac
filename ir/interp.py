"""The interpreter: runs a Func with the eager functions of its ops.

It is the oracle: `interp` and compiled code must agree after every pass, and a traced
Func runs with real views and real writes, so it must agree with NumPy itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import dims
from .dims import Dim, Expr, Symbol
from .errors import IndexRangeError, IRError, RetrogradeError, ShapeError
from .func import Block, Func, Node, Operand, Value, custom_parts
from .op import Kind
from .types import type_of_array


def bind_symbols(
    f: Func, args: Sequence[Any], symbols: Mapping[Symbol, int] | None = None
) -> dict[Symbol, int]:
    """Solve the sizes of `args` for the symbols of `f`, and check its facts."""
    env = dict(symbols or {})
    waiting: list[tuple[Value, Dim, int]] = []
    for p, x in zip(f.params, args, strict=True):
        t = type_of_array(x)
        if t.dtype != p.type.dtype and not p.type.weak:
            raise ShapeError(f"argument %{p.name} is {t}, not {p.type}")
        if len(t.shape) != len(p.type.shape):
            raise ShapeError(f"argument %{p.name} is {t}, not {p.type}")
        for want, have in zip(p.type.shape, t.shape, strict=True):
            assert isinstance(have, int)
            s = dims.as_symbol(want)
            if s is not None and s not in env:
                env[s] = have
            else:
                waiting.append((p, want, int(have)))
    for p, want, have in waiting:
        if dims.evaluate(want, env) != have:
            raise ShapeError(
                f"argument %{p.name}: size {have} where {want} is expected"
            )
    for fact in f.facts.known:
        if dims.evaluate(fact, env) < 0:
            raise ShapeError(f"@{f.name} holds only where {fact} >= 0")
    return env


def run(f: Func, *args: Any, symbols: Mapping[Symbol, int] | None = None) -> list[Any]:
    """Run `f` on NumPy arrays and numbers; returns the results as a list.

    A traced Func writes into its arguments, and its results alias them, as NumPy's do.

    >>> from .text import parse
    >>> f = parse("func @f(%x: f64[n]) -> f64[n] {\\n  return %x\\n}")
    >>> run(f, np.ones(2))
    [array([1., 1.])]
    """
    machine = Machine(bind_symbols(f, args, symbols))
    for p, x in zip(f.params, args, strict=True):
        machine.values[p] = x
    machine.nodes(f.body)
    return [machine.get(x) for x in f.results]


class Machine:
    """Runs nodes one after the other; `values` and `symbols` are what is known."""

    def __init__(self, symbols: dict[Symbol, int]) -> None:
        self.symbols = symbols
        self.values: dict[Value, Any] = {}

    def get(self, x: Operand) -> Any:
        if isinstance(x, Value):
            return self.values[x]
        return dims.evaluate(x, self.symbols) if isinstance(x, Expr) else x

    def attr(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return dims.evaluate(a, self.symbols)
        return tuple(map(self.attr, a)) if isinstance(a, tuple) else a

    def nodes(self, b: Block) -> None:
        for node in b.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        match node.op.kind:
            case Kind.WRITE:
                target, new = map(self.get, node.operands)
                target[...] = new
            case Kind.FOR:
                self.loop(node)
            case Kind.WHILE:
                self.while_loop(node)
            case Kind.COND:
                taken = node.regions[0 if self.get(node.operands[0]) else 1]
                self.define(node.results, self.region(taken))
            case Kind.CUSTOM:
                values = custom_parts(node)[1]
                self.define(node.results, [self.get(x) for x in values])
            case Kind.CHECKPOINT | Kind.FUSED:
                self.define(node.results, self.region(node.regions[0]))
            case _:
                self.plain(node)

    def region(self, b: Block) -> list[Any]:
        """Run a region; the symbols that its nodes define end with it."""
        outer = dict(self.symbols)
        self.nodes(b)
        results = [self.get(x) for x in b.results]
        self.symbols = outer
        return results

    def plain(self, node: Node) -> None:
        attrs = dict(node.attrs)
        count = attrs.get("count")
        defines = dims.as_symbol(count) if isinstance(count, Expr) else None
        if defines in self.symbols:  # known already: the op checks it
            defines = None
        if defines is not None:
            attrs["count"] = None
        try:
            out = node.op.eager(
                *map(self.get, node.operands),
                **{k: self.attr(a) for k, a in attrs.items()},
            )
        except RetrogradeError as error:
            error.location = error.location or node.loc
            raise
        except IndexError as error:
            raise IndexRangeError(str(error), location=node.loc) from None
        if defines is not None:
            is_size = node.op.kind is Kind.SIZE
            self.symbols[defines] = int(out) if is_size else len(out)
        self.define(node.results, out if isinstance(out, tuple) else (out,))

    def define(self, results: Sequence[Value], values: Sequence[Any]) -> None:
        for v, x in zip(results, values, strict=True):
            self.check(v, x)
            self.values[v] = x.item() if v.type.weak and hasattr(x, "item") else x

    def check(self, v: Value, x: Any) -> None:
        t = type_of_array(x)
        shape = tuple(dims.evaluate(d, self.symbols) for d in v.type.shape)
        if t.shape != shape or (t.dtype != v.type.dtype and not v.type.weak):
            raise IRError(f"%{v.name} is declared {v.type}, but the value is {t}")

    def loop(self, node: Node) -> None:
        a = {k: self.attr(node.attrs[k]) for k in ("start", "stop", "step")}
        index = dims.as_symbol(node.attrs["index"])
        assert index is not None
        (body,) = node.regions
        state = [self.get(x) for x in node.operands]
        for i in range(a["start"], a["stop"], a["step"]):
            self.symbols[index] = i
            self.define(body.params, state)
            state = self.region(body)
        self.symbols.pop(index, None)
        self.define(node.results, state)

    def while_loop(self, node: Node) -> None:
        test, body = node.regions
        state = [self.get(x) for x in node.operands]
        outer = dict(self.symbols)
        carries, trips = len(state), 0
        stacks: list[list[Any]] = [[] for _ in node.results[carries:]]
        while True:
            self.define(test.params, state)
            self.nodes(test)  # the body sees what the test defines, symbols too
            if not self.get(test.results[0]):
                break
            state = self.region(body)
            for stack, x in zip(stacks, state[carries:], strict=True):
                stack.append(np.array(x))
            del state[carries:]
            self.symbols = dict(outer)
            trips += 1
        self.symbols = outer
        count = node.attrs.get("count")
        if count is not None:
            symbol = dims.as_symbol(count)
            assert symbol is not None
            self.symbols[symbol] = trips
        stacked = map(self.stacked, node.results[carries:], stacks)
        self.define(node.results, [*state, *stacked])

    def stacked(self, v: Value, entries: Sequence[Any]) -> Any:
        shape = tuple(dims.evaluate(d, self.symbols) for d in v.type.shape)
        return np.array(entries, v.type.dtype).reshape(shape)


def equal_results(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Tell whether two lists of results are equal bit for bit (NaN equals NaN)."""
    return len(a) == len(b) and all(
        np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind in "fc")
        for x, y in zip(a, b, strict=True)
    )
