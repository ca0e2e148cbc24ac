"""Run a program of nests in Python, slowly: every access is checked against its buffer.

What a kernel would do, without compiling it. Memory starts as garbage (NaN), registers
do not exist before they are bound, and an access out of range is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrograde.codegen.nests import (
    Apply,
    At,
    Bind,
    Buffer,
    Cast,
    Check,
    Fill,
    Let,
    Lit,
    Load,
    Loop,
    Move,
    Program,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
)
from retrograde.ir import dims
from retrograde.ir.dims import Symbol
from retrograde.ir.func import Func
from retrograde.ir.interp import bind_symbols
from retrograde.ir.types import BOOL

FUNCTIONS: dict[str, Any] = {
    name: getattr(np, name)
    for name in "exp log tanh sin cos sqrt square isnan maximum minimum where abs "
    "logical_or logical_and logical_not sign reciprocal fmax fmin power".split()
}
FUNCTIONS["lost"] = lambda a, b: (a - (a + b - ((a + b) - a))) + (b - ((a + b) - a))
FUNCTIONS["__builtins__"] = {}
_FIELD = re.compile(r"\{(\d+)\}")


class Failed(Exception):
    """A check failed."""


class Runner:
    def __init__(self, p: Program, f: Func, args: Sequence[Any]) -> None:
        self.p = p
        self.symbols: dict[Symbol, int] = dict(bind_symbols(f, args, None))
        for s in p.steps:  # parameters are packed here
            self.symbols[s.symbol] = dims.evaluate(s.packed, self.symbols)
        self.registers: dict[str, Any] = {}
        self.memory: dict[Buffer, np.ndarray[Any, Any]] = {}
        for x, a in zip(p.params, args, strict=True):
            if isinstance(x, Reg):
                self.registers[x.name] = x.dtype.type(a)
            else:
                self.memory[x] = np.array(a, x.dtype).reshape(-1)
        for b, data in p.constants:
            self.memory[b] = np.array(data)
        for b in p.buffers:
            if b not in self.memory:
                size = dims.evaluate(b.size, self.symbols)
                fill = np.nan if b.dtype.kind == "f" else 1
                self.memory[b] = np.full(size, fill, b.dtype)

    def run(self) -> list[Any]:
        self.body(self.p.body)
        out: list[Any] = []
        for r in self.p.results:
            if isinstance(r.what, Reg):
                out.append(self.registers[r.what.name])
                continue
            shape = [dims.evaluate(d, self.symbols) for d in r.shape]
            out.append(self.memory[r.what].reshape(shape))
        return out

    def at(self, b: Buffer, offset: Any) -> int:
        i = dims.evaluate(offset, self.symbols)
        if not 0 <= i < len(self.memory[b]):
            raise IndexError(f"{b!r} at {offset} = {i}")
        return i

    def body(self, body: list[Statement]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Let():
                self.registers[s.name] = self.scalar(s.value)
            case Set():
                x = self.scalar(s.value)
                self.registers[s.name] = self.registers[s.name] + x if s.plus else x
            case Bind():
                self.symbols[s.symbol] = int(self.scalar(s.value))
            case Store():
                self.memory[s.buffer][self.at(s.buffer, s.offset)] = self.scalar(
                    s.value
                )
            case Fill():
                n = dims.evaluate(s.size, self.symbols)
                start = dims.evaluate(s.offset, self.symbols)
                self.memory[s.buffer][start : start + n] = self.scalar(s.value)
            case Move():
                n = dims.evaluate(s.size, self.symbols)
                to = dims.evaluate(s.target_offset, self.symbols)
                start = dims.evaluate(s.source_offset, self.symbols)
                new = self.memory[s.source][start : start + n].copy()
                self.memory[s.target][to : to + n] = new
            case Check():
                if self.scalar(s.bad):
                    raise Failed(self.p.failures[s.code - 1].message)
            case Loop():
                self.loop(s)
            case _:
                raise NotImplementedError(type(s).__name__)

    def loop(self, s: Loop) -> None:
        start, stop, step = (
            dims.evaluate(d, self.symbols) for d in (s.start, s.stop, s.step)
        )
        block = s.block or max(abs(stop - start), 1)
        for first in range(start, stop, block if step > 0 else -block):
            self.body(s.opening)
            last = min(first + block, stop) if step > 0 else max(first - block, stop)
            for i in range(first, last, step):
                self.symbols[s.index] = i
                self.body(s.body)
            self.body(s.closing)
        self.symbols.pop(s.index, None)

    def scalar(self, x: Scalar) -> Any:
        match x:
            case Lit():
                return x.dtype.type(x.value)
            case At():
                return np.int64(dims.evaluate(x.dim, self.symbols))
            case Reg():
                return self.registers[x.name]
            case Load():
                return self.memory[x.buffer][self.at(x.buffer, x.offset)]
            case Cast():
                return self.scalar(x.arg).astype(x.dtype)
            case Apply():
                args = {f"x{k}": self.scalar(a) for k, a in enumerate(x.args)}
                text = _FIELD.sub(r"x\1", x.template)
                found = np.asarray(eval(text, dict(FUNCTIONS), args))
                return found.astype(BOOL if x.dtype == BOOL else x.dtype)[()]


def run_nests(p: Program, f: Func, args: Sequence[Any]) -> list[Any]:
    """Return the results of a program; arguments are not changed."""
    with np.errstate(all="ignore"):
        return Runner(p, f, args).run()
