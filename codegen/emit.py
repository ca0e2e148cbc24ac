"""Print a program of nests as Python source for Numba.

One function `entry`: pointers of all buffers first, then the statements. It returns 0,
or the number of the check that failed; results that are no arrays of the caller follow
it in a tuple. Every literal has its dtype: float32 kernels compute in float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims import Call as DimCall
from ..ir.dims import Dim, Expr, Symbol
from ..ir.types import BOOL, F64, I64, DType
from .invariants import Invariants
from .large import INTERLEAVED
from .nests import (
    OTHER,
    Allocate,
    Apply,
    At,
    Bind,
    Buffer,
    Call,
    Cast,
    Check,
    Fill,
    Grow,
    If,
    Let,
    Lit,
    Load,
    Loop,
    Move,
    Parallel,
    Program,
    Reg,
    Rotate,
    Scalar,
    Set,
    Statement,
    Store,
    While,
    every,
    leaves,
    scalars_of,
)

SCALARS = {"abs": "absolute"}  # templates that bear a builtin's name
_CALL = re.compile(r"\b([a-z_]\w*)\(")
_NAME = re.compile(r"\b[a-z]\w*")
_FLOAT = re.compile(r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?")
MEMORY = (
    "address cast convert copy fill freed grown load offset part pointer reassoc_add "
    "size stack store stride taken"
)
HEADER = (
    f"from retrograde.runtime.memory import {', '.join(MEMORY.split())}",
    "from numpy import bool_, empty, float32, float64, int8, int16, int32, int64",
    "from numpy import uint8, uint16, uint32, uint64",
    "from numpy import inf, nan",
)

_ASSIGNED = re.compile(r"^ *(?:for )?([a-z]\w*) (?:=|\+=|in) ", re.MULTILINE)
LANGUAGE = "for in range while if else pass break return not min max and or True False"
GLOBALS = frozenset([*_NAME.findall("\n".join(HEADER)), *LANGUAGE.split(), INTERLEAVED])
ALIGN = 64  # bytes, of every buffer in the arena


def type_name(dtype: DType) -> str:
    """Return the name that generated code has for a dtype."""
    return "bool_" if dtype == BOOL else dtype.name


def name_of(s: Symbol) -> str:
    """Return the variable that holds a symbol."""
    return s.name[1:] if s.name.startswith("_") else f"n_{s.name}"


def dim_text(d: Dim) -> str:
    """Print a dim as an expression of int64 variables.

    >>> dim_text(2 * dims.symbol("n") - 1)
    '2*n_n - 1'
    """
    if isinstance(d, int):
        return str(d)
    out = ""
    for monomial, coefficient in d.terms:
        factors = [_atom(a) for a in monomial]
        size = abs(coefficient)
        if size != 1 or not factors:
            factors.insert(0, str(size))
        text = "*".join(factors)
        if out:
            out += f" - {text}" if coefficient < 0 else f" + {text}"
        else:
            out = f"-{text}" if coefficient < 0 else text
    return out


def _atom(a: Any) -> str:
    if isinstance(a, Symbol):
        return name_of(a)
    assert isinstance(a, DimCall)
    args = [dim_text(x) for x in a.args]
    if a.kind == "floordiv":
        by = a.args[1]
        if isinstance(by, int) and by > 0 and by & (by - 1) == 0:
            return f"(({args[0]}) >> {by.bit_length() - 1})"  # has no branch
        return f"(({args[0]})//({args[1]}))"
    text = args[0]
    for x in args[1:]:
        text = f"{a.kind}({text}, {x})"
    return text


class Emitter:
    """Prints one program; collects the names and constants that the module needs."""

    def __init__(self, p: Program) -> None:
        self.p = p
        self.functions: dict[str, str] = {}  # name in the source -> module
        self.constants: dict[tuple[str, str], str] = {}
        self.total = max(p.scopes, 1)
        self.failed = "return %d"
        self.uses_blas = False
        self.parts: list[list[str]] = []  # functions that run on several threads
        self.shared: dict[Dim, str] = {}
        self.offsets = 0
        sizes, steps = (s for s, _, _ in p.sizes), (s.symbol for s in p.steps)
        self.invariants = Invariants([*p.symbols, *sizes, *steps])

    def source(self) -> str:
        """Return the whole module."""
        extra = self.returned()
        if extra:
            zeros = [self.zero(x) for x in extra]
            self.failed = f"return %d, {', '.join(zeros)}"
        lines = list(self.lines(self.p.body, "    "))
        head = list(self.head(lines))
        tail = [f"    {x}" for x in self.kept()]
        done = "    return 0"
        if extra:
            done += ", " + ", ".join(x.name for x in extra)
        imports = [
            f"from retrograde.runtime.{module} import {name}"
            for name, module in sorted(self.functions.items())
        ]
        constants = [f"{c} = {t}({v})" for (t, v), c in self.constants.items()]
        body = [
            f"def entry({', '.join(self.arguments())}):",
            *head,
            *lines,
            *tail,
            done,
        ]
        parts = [line for part in self.parts for line in part]
        return "\n".join([*HEADER, *imports, *constants, "", *parts, *body, ""])

    def returned(self) -> list[Reg | Buffer]:
        """Return what leaves by the return value: registers and local arrays."""
        found: list[Reg | Buffer] = []
        for r in self.p.results:
            local = isinstance(r.what, Buffer) and r.what.place == "local"
            if isinstance(r.what, Reg) or local:
                found.append(r.what)
        found += [Reg(name_of(s), I64) for s in late_symbols(self.p)]
        return found

    def zero(self, x: Reg | Buffer) -> str:
        if isinstance(x, Buffer):
            return f"empty(0, {type_name(x.dtype)})"
        return self.literal(np.zeros((), x.dtype).item(), x.dtype)

    def arguments(self) -> list[str]:
        p = self.p
        names = [x.name for x in p.params]
        names += [name_of(s) for s in p.symbols]
        names += [b.name for b in p.buffers if b.place == "result"]
        names += [b.name for b, _ in p.constants]
        if any(b.place == "arena" for b in p.buffers):
            names.append("arena")
        return names

    def head(self, body: list[str]) -> Iterator[str]:
        for s, k, axis in self.p.sizes:
            yield f"    {name_of(s)} = size(a{k}, {axis})"
        arena = list(self.arena())
        named = self.invariants.names.items()
        fixed = [f"    {name_of(s)} = {dim_text(d)}" for d, s in named]
        yield from self.limited()
        yield from self.steps([*body, *fixed])
        yield from fixed
        for b in self.p.buffers:
            if b.place in ("param", "result", "constant"):
                yield f"    p_{b.name} = pointer({b.name})"
            if b.place == "stack":
                yield f"    p_{b.name} = stack({b.size}, {type_name(b.dtype)})"
        yield from arena

    def limited(self) -> Iterator[str]:
        """Leave to the other variant what has too little or too much work."""
        if self.p.limit is not None:
            units, number, least = self.p.limit
            sign = "<" if least else ">="
            yield f"    if {dim_text(units)} {sign} {number}:"
            yield f"        {self.failed % OTHER}"

    def arena(self) -> Iterator[str]:
        slots = arena_slots(self.p)
        if slots:
            yield "    p_arena = pointer(arena)"
            yield "    q = 0"
        for size, buffers in slots:
            known: dict[DType, str] = {}
            for b in buffers:
                where = known.get(b.dtype, f"part(p_arena, q, {type_name(b.dtype)})")
                yield f"    p_{b.name} = {where}"
                known.setdefault(b.dtype, f"p_{b.name}")
            yield f"    q += {self.text(size)}"

    def steps(self, body: list[str]) -> Iterator[str]:
        """Read the steps of parameters that the body uses."""
        used = set(_NAME.findall("\n".join(body))) if self.p.steps else set()
        lines = []
        for s in reversed(self.p.steps):  # outer axes first: they need inner ones
            name = name_of(s.symbol)
            if name in used:
                step = f"max(stride(a{s.param}, {s.axis}), 1)"
                if s.least != 1:
                    least = dim_text(s.least)
                    used.update(_NAME.findall(least))
                    step = f"max({step}, {least})"
                lines.append(f"    {name} = {step}")
        yield from reversed(lines)

    def kept(self) -> Iterator[str]:
        """Use local arrays once more, so that they live until here."""
        for b in self.p.buffers:
            if b.place == "local":
                yield f"size({b.name}, 0)"

    # Statements -------------------------------------------------------------------

    def lines(self, body: list[Statement], indent: str) -> Iterator[str]:
        """Print statements; an offset that several of them use is computed once."""
        outer, shared = self.shared, repeated_offsets(body)
        self.shared = dict(outer)
        for s in body:
            for d in offsets_of(s) if shared else ():
                if d in shared and d not in self.shared:
                    name = f"o{self.offsets}"
                    self.offsets += 1
                    yield f"{indent}{name} = {self.text(d)}"
                    self.shared[d] = name
            yield from self.statement(s, indent)
        self.shared = outer

    def offset(self, d: Dim) -> str:
        return self.shared.get(d) or self.text(d)

    def text(self, d: Dim) -> str:
        """Print a dim that stands after the head."""
        return dim_text(self.invariants.hoisted(d))

    def statement(self, s: Statement, indent: str) -> Iterator[str]:
        match s:
            case Let():
                yield f"{indent}{s.name} = {self.scalar(s.value)}"
            case Set(plus=True):
                yield (
                    f"{indent}{s.name} = reassoc_add({s.name}, {self.scalar(s.value)})"
                )
            case Set():
                yield f"{indent}{s.name} = {self.scalar(s.value)}"
            case Bind():
                yield f"{indent}{name_of(s.symbol)} = {self.scalar(s.value)}"
            case Store():
                where = f"p_{s.buffer.name}, {self.offset(s.offset)}"
                yield (
                    f"{indent}store({where}, {self.scalar(s.value)}, "
                    f"{s.buffer.alias}, {self.total})"
                )
            case Loop():
                yield from self.loop(s, indent)
            case Parallel():
                yield from self.parallel(s, indent)
            case While():
                yield f"{indent}while True:"
                yield from self.lines(s.test, indent + "    ")
                yield f"{indent}    if not {self.scalar(s.condition)}:"
                yield f"{indent}        break"
                yield from self.lines(s.body, indent + "    ")
            case If():
                yield f"{indent}if {self.scalar(s.condition)}:"
                yield from self.lines(s.then, indent + "    ")
                if not s.then:
                    yield f"{indent}    pass"
                if s.orelse:
                    yield f"{indent}else:"
                    yield from self.lines(s.orelse, indent + "    ")
            case Check():
                yield f"{indent}if {self.scalar(s.bad)}:"
                yield f"{indent}    {self.failed % s.code}"
            case Move():
                yield (
                    f"{indent}copy(p_{s.target.name}, {self.text(s.target_offset)}, "
                    f"p_{s.source.name}, {self.text(s.source_offset)}, "
                    f"{self.text(s.size)})"
                )
            case Rotate():
                names = [f"p_{b.name}" for b in s.buffers]
                turned = ", ".join([*names[1:], names[0]])
                yield f"{indent}{', '.join(names)} = {turned}"
            case Fill():
                yield (
                    f"{indent}fill(p_{s.buffer.name}, {self.text(s.offset)}, "
                    f"{self.text(s.size)}, {self.scalar(s.value)})"
                )
            case Allocate():
                b = s.buffer
                shape = f"{self.text(b.size)}, {type_name(b.dtype)}"
                yield f"{indent}{b.name} = empty({shape})"
                yield f"{indent}p_{b.name} = pointer({b.name})"
            case Grow():
                b, size = s.buffer, self.text(s.size)
                yield f"{indent}if {size} > size({b.name}, 0):"
                yield f"{indent}    {b.name} = grown({b.name}, {size})"
                yield f"{indent}    p_{b.name} = pointer({b.name})"
            case Call():
                left = f"{s.result} = " if s.result else ""
                yield f"{indent}{left}{self.call(s)}"

    def loop(self, s: Loop, indent: str) -> Iterator[str]:
        i = name_of(s.index)
        deeper = indent + "    "
        run = f"{INTERLEAVED}({s.vectors}, " if s.vectors else "range("
        if s.block:
            start, stop = self.text(s.start), self.text(s.stop)
            yield f"{indent}for {i}b in range({start}, {stop}, {s.block}):"
            yield from self.lines(s.opening, deeper)
            yield f"{deeper}for {i} in {run}{i}b, min({i}b + {s.block}, {stop})):"
            yield from self.lines(s.body, deeper + "    ")
            yield from self.lines(s.closing, deeper)
            return
        bounds = [self.text(s.start), self.text(s.stop)]
        if s.step != 1:
            bounds.append(self.text(s.step))
        elif s.start == 0:
            bounds = bounds[1:]
        yield f"{indent}for {i} in {run}{', '.join(bounds)}):"
        yield from self.lines(s.body, deeper)
        if not s.body:
            yield f"{deeper}pass"

    def parallel(self, s: Parallel, indent: str) -> Iterator[str]:
        """Print a part of the kernel as a function of its own, and its call."""
        outer, self.failed = self.failed, "return %d"
        sizes = [f"{self.text(b.size)}, {type_name(b.dtype)}" for b in s.own]
        rows = [f"p_{b.name}" for b in s.own]
        lines = [
            *(f"    {p} = taken({n})" for p, n in zip(rows, sizes, strict=True)),
            *self.lines(s.body, "    "),
            *(f"    freed({p})" for p in rows),
            "    return 0",
        ]
        self.failed = outer
        own = [name_of(s.index)]
        text = "\n".join(lines)
        assigned = set(_ASSIGNED.findall(text))
        free = dict.fromkeys(_NAME.findall(text))
        given = [x for x in free if x not in assigned and x not in own]
        given = [x for x in given if x not in self.globals()]
        name = f"part_{len(self.parts)}"
        self.parts.append([f"def {name}({', '.join([*own, *given])}):", *lines, ""])
        call = f"parallel({', '.join([name, self.text(s.count), *given])})"
        if any(isinstance(x, Check) for x in every(s.body)):
            yield f"{indent}failed = {call}"
            yield f"{indent}if failed != 0:"
            yield f"{indent}    {self.failed.replace('%d', 'failed')}"
        else:
            yield f"{indent}{call}"

    def globals(self) -> set[str]:
        """Return the names of the module, and those of the language."""
        return {*GLOBALS, *self.functions, *self.constants.values()}

    def call(self, s: Call) -> str:
        module, _, name = s.function.partition(".")
        self.functions[name] = module
        self.uses_blas = self.uses_blas or module in ("blas", "linalg")
        args = []
        for a in s.args:
            match a:
                case (Buffer() as b, where):
                    p = f"p_{b.name}"
                    args.append(p if where == 0 else f"offset({p}, {self.text(where)})")
                case bool():
                    args.append(str(a))
                case Reg() | Lit():
                    args.append(self.scalar(a))
                case int() | Expr():
                    args.append(self.text(a))
        return f"{name}({', '.join(args)})"

    # Scalars ----------------------------------------------------------------------

    def scalar(self, x: Scalar) -> str:
        match x:
            case Reg():
                return x.name
            case Lit():
                return self.literal(x.value, x.dtype)
            case At():
                text = self.text(x.dim)
                return f"({text})" if isinstance(x.dim, Expr) else text
            case Load():
                b = x.buffer
                where = self.offset(x.offset)
                return f"load(p_{b.name}, {where}, {b.alias}, {self.total})"
            case Cast():
                inner = self.scalar(x.arg)
                if x.dtype == BOOL and x.arg.dtype.kind != "b":
                    zero = self.literal(0, x.arg.dtype)
                    return f"({inner} != {zero})"
                return f"convert({inner}, {type_name(x.dtype)})"
            case Apply():
                return self.apply(x)

    def literal(self, value: Any, dtype: DType) -> str:
        if dtype in (I64, BOOL):
            text = repr(value)
        else:
            text = repr(float(value)) if dtype.kind == "f" else repr(int(value))
        if dtype in (I64, F64, BOOL):
            if dtype == F64 and not math.isfinite(value):
                return f"({text})"
            return f"({text})" if text.startswith("-") else text
        key = (type_name(dtype), text)
        return self.constants.setdefault(key, f"c{len(self.constants)}_")

    def apply(self, x: Apply) -> str:
        kinds = {a.dtype for a in x.args}
        template = x.template
        dtype = next(iter(kinds)) if kinds else x.dtype
        if dtype == BOOL and x.dtype == BOOL:
            template = template.replace(" + ", " | ").replace(" * ", " & ")
        short = {d for d in (*kinds, x.dtype) if d.kind == "f"} == {np.dtype("f4")}
        if short:
            template = _FLOAT.sub(
                lambda m: self.literal(m[0], np.dtype("f4")), template
            )
        template = _CALL.sub(self.bind, template)
        text = template.format(*map(self.scalar, x.args))
        return (
            text if natural(template, x) else f"convert({text}, {type_name(x.dtype)})"
        )

    def bind(self, m: re.Match[str]) -> str:
        name = SCALARS.get(m[1], m[1])
        self.functions[name] = self.p.scalars
        return f"{name}("


def natural(template: str, x: Apply) -> bool:
    """Tell whether Numba gives the result the dtype it must have.

    Operators widen narrow integers to int64; functions and comparisons do not.
    """
    if x.dtype in (F64, np.dtype("f4"), BOOL, I64):
        return x.dtype != I64 or all(a.dtype == I64 or a.dtype == BOOL for a in x.args)
    return not template.startswith("(")


def offsets_of(s: Statement) -> Iterator[Dim]:
    """Yield the offsets of the loads and the store of one statement."""
    for x in scalars_of(s):
        for leaf in leaves(x):
            if isinstance(leaf, Load):
                yield leaf.offset
    if isinstance(s, Store):
        yield s.offset


def repeated_offsets(body: list[Statement]) -> set[Dim]:
    """Return the compound offsets that a list of statements uses more than once."""
    count: dict[Dim, int] = {}
    bound = {s.symbol for s in every(body) if isinstance(s, Bind)}
    for s in body:
        for d in offsets_of(s):
            if isinstance(d, Expr) and dims.as_symbol(d) is None:
                count[d] = count.get(d, 0) + 1
    return {d for d, n in count.items() if n > 1 and not dims.symbols_of(d) & bound}


def late_symbols(p: Program) -> list[Symbol]:
    """Return the symbols that only the program knows, of the shapes of results."""
    found: dict[Symbol, None] = {}
    early = {*p.symbols, *(s for s, _, _ in p.sizes)}
    for r in p.results:
        if isinstance(r.what, Buffer) and r.what.place == "local":
            for d in r.shape:
                found |= dict.fromkeys(dims.symbols_of(d) - early)
    return sorted(found, key=lambda s: s.name)


def arena_slots(p: Program) -> list[tuple[Dim, list[Buffer]]]:
    """Return the parts of the arena: bytes, and the buffers that share them."""
    slots: dict[int, tuple[Dim, list[Buffer]]] = {}
    for b in p.buffers:
        if b.place == "arena":
            size = dims.mul(b.size, b.dtype.itemsize)
            rounded = dims.mul(dims.floordiv(dims.add(size, ALIGN - 1), ALIGN), ALIGN)
            slots.setdefault(b.scope, (rounded, []))[1].append(b)
    return list(slots.values())
