"""Print the function that launches the kernels of a plan.

It is Python: integers for sizes and addresses, one call per launch. It gets addresses
of arrays, numbers and sizes, and returns 0 or the number of a failed check, followed by
the memory of the results; see `calls.returned`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir import dims
from ...ir.dims import Dim
from ...ir.types import BOOL, F64
from ..emit import arena_slots, dim_text, late_symbols, name_of
from ..invariants import Invariants
from ..nests import (
    Allocate,
    Apply,
    At,
    Bind,
    Buffer,
    Cast,
    Grow,
    If,
    Let,
    Lit,
    Loop,
    Program,
    Reg,
    Result,
    Rotate,
    Scalar,
    Set,
    While,
)
from .calls import in_slot, returned
from .homes import Homes
from .kernel import NARROW, Printed
from .steps import (
    BLOCK,
    THREADS,
    TOGETHER,
    Inner,
    Launch,
    ReadBack,
    Step,
    in_shared,
    rows_of,
)

ALIGN = 256  # bytes, of every buffer of the arena
WORD = 8  # bytes of a slot
SOLE = 128  # threads of a block that is alone, and shares out loops
WARP = 32  # threads of one that does not
SHARED = 24 << 10  # bytes of shared memory for the rows of a block, at most


class Host:
    """Prints the host function of one plan."""

    def __init__(
        self,
        p: Program,
        plan: Sequence[Step],
        homes: Homes,
        kernels: dict[str, Printed],
        invariants: Invariants,
    ) -> None:
        self.p = p
        self.plan = plan
        self.homes = homes
        self.kernels = kernels
        self.invariants = invariants

    def source(self) -> str:
        body = [*self.memory(), *self.lines(self.plan, "    "), *self.tail()]
        head = f"def run({', '.join(self.arguments())}):"
        lines = [head, *self.head(), *body]  # the head has the names of the rest
        return "\n".join([*lines, ""])

    def arguments(self) -> list[str]:
        p = self.p
        names = [f"p_{x.name}" if isinstance(x, Buffer) else x.name for x in p.params]
        names += [name_of(s) for s in p.symbols]
        names += [name_of(s) for s, _, _ in p.sizes]
        return names + [f"p_{b.name}" for b, _ in p.constants]

    def head(self) -> Iterator[str]:
        for step in self.p.steps:
            yield f"    {name_of(step.symbol)} = {dim_text(step.packed)}"
        for d, s in self.invariants.names.items():
            yield f"    {name_of(s)} = {dim_text(d)}"
        for name in sorted(self.homes.read):
            yield f"    {name} = 0"

    def memory(self) -> Iterator[str]:
        yield from self.arena()
        for b in self.p.buffers:
            if b.place == "result":
                yield from self.allocated(b)

    def allocated(self, b: Buffer) -> Iterator[str]:
        size = f"({self.text(b.size)})*{b.dtype.itemsize}"
        yield f"    m_{b.name} = allocate({size})"
        yield f"    p_{b.name} = m_{b.name}.address"

    def arena(self) -> Iterator[str]:
        """Lay out the memory of the call: slots, then what buffers share."""
        words = len(self.homes.slots) + bool(self.p.failures)
        slots = arena_slots(self.p)
        sizes = [_rounded(size) for size, _ in slots]
        # A number that is a result keeps the memory of all slots, but not the arena.
        apart = any(in_slot(r, self.homes) for r in self.p.results)
        if words and not apart:
            sizes.insert(0, _rounded(words * WORD))
        total: Dim = 0
        for d in sizes:
            total = dims.add(total, d)
        if apart:
            yield f"    slots = allocate({words * WORD})"
        if sizes:
            yield f"    arena = allocate({self.text(total)})"
            yield "    q = arena.address"
        if words:
            start = "slots.address" if apart else "q"
            yield f"    fill({start}, 0, {words * WORD})"
            for k, b in enumerate(self.homes.slots.values()):
                yield f"    p_{b.name} = {start} + {k * WORD}"
            if self.p.failures:
                yield f"    p_status = {start} + {(words - 1) * WORD}"
            if not apart:
                yield f"    q += {sizes.pop(0)}"
        for size, (_, buffers) in zip(sizes, slots, strict=True):
            for b in buffers:
                yield f"    p_{b.name} = q"
            yield f"    q += {self.text(size)}"

    def tail(self) -> Iterator[str]:
        yield from self.left("    ")
        found = [x for r in self.p.results for x in self.result(r)]
        found += map(name_of, late_symbols(self.p))
        yield f"    return {', '.join(['0', *found])},"

    def left(self, indent: str) -> Iterator[str]:
        """Return where a check has failed."""
        if self.p.failures:
            nothing = "".join(", None" for _ in returned(self.p, self.homes))
            yield f"{indent}status = read('int64', p_status)"
            yield f"{indent}if status:"
            code = f"{len(self.p.failures) + 1} - status"
            yield f"{indent}    return {code}{nothing},"

    def result(self, r: Result) -> list[str]:
        """Return what `calls.returned` names."""
        what = r.what
        if r.updates is not None:
            return []
        if isinstance(what, Buffer):
            return [f"m_{what.name}"]
        if in_slot(r, self.homes):
            return ["slots", f"p_{self.homes.slots[what.name].name}"]
        return [str(what.name)]

    # Statements -------------------------------------------------------------------

    def lines(self, body: Sequence[Inner], indent: str) -> Iterator[str]:
        for s in body:
            yield from self.statement(s, indent)

    def statement(self, s: Inner, indent: str) -> Iterator[str]:
        deeper = indent + "    "
        match s:
            case Let() | Set():
                yield f"{indent}{s.name} = {self.scalar(s.value)}"
            case Bind():
                yield f"{indent}{name_of(s.symbol)} = {self.scalar(s.value)}"
            case Launch():
                yield from self.launch(s, indent)
            case ReadBack():
                for name in s.names:
                    dtype = self.homes.dtypes[name].name
                    slot = self.homes.slots[name]
                    yield f"{indent}{name} = read({dtype!r}, p_{slot.name})"
                yield from self.left(indent)  # they may have no value then
            case Loop():
                bounds = ", ".join(map(self.text, (s.start, s.stop, s.step)))
                yield f"{indent}for {name_of(s.index)} in range({bounds}):"
                yield from self.lines(s.body, deeper)
                if not s.body:
                    yield f"{deeper}pass"
            case While():
                yield f"{indent}while True:"
                yield from self.lines(s.test, deeper)
                yield f"{deeper}if not {self.scalar(s.condition)}:"
                yield f"{deeper}    break"
                yield from self.lines(s.body, deeper)
            case If():
                yield f"{indent}if {self.scalar(s.condition)}:"
                yield from self.lines(s.then, deeper)
                if not s.then:
                    yield f"{deeper}pass"
                if s.orelse:
                    yield f"{indent}else:"
                    yield from self.lines(s.orelse, deeper)
            case Rotate():
                names = [f"p_{b.name}" for b in s.buffers]
                turned = ", ".join([*names[1:], names[0]])
                yield f"{indent}{', '.join(names)} = {turned}"
            case Allocate():
                yield from (indent[4:] + line for line in self.allocated(s.buffer))
            case Grow():
                b, size = s.buffer, f"({self.text(s.size)})*{s.buffer.dtype.itemsize}"
                yield f"{indent}if {size} > m_{b.name}.size:"
                yield f"{indent}    m_{b.name} = grown(m_{b.name}, {size})"
                yield f"{indent}    p_{b.name} = m_{b.name}.address"
            case _:
                raise TypeError(f"{type(s).__name__} is no step of the host")

    def launch(self, s: Launch, indent: str) -> Iterator[str]:
        starts, total = in_shared(s)
        names = [name for name, _ in self.kernels[s.name].params]
        args = "".join(f"{x.removesuffix(NARROW)}, " for x in names)
        if s.how == TOGETHER:
            shares = "team" in self.kernels[s.name].source
            yield f"{indent}{s.name}(1, {SOLE if shares else WARP}, ({args}))"
            return
        grid, deeper = self.text(s.grid), indent + "    "
        for b in rows_of(s):
            if b not in starts:
                yield f"{indent}p_{b.name} = 0"
        yield f"{indent}if {grid}:"
        shared = ""
        if starts:
            yield f"{deeper}shared = {self.text(total)}"
            yield f"{deeper}if shared > {SHARED}:"
            yield f"{deeper}    shared = 0"
            shared = ", shared"
        for b in rows_of(s):
            name = f"w_{b.name}"
            size = f"({self.text(b.size)})*{b.dtype.itemsize}"
            if b in starts:
                memory = f"None if shared else allocate({grid}*({size}))"
                yield f"{deeper}m_{b.name} = {memory}"
                yield f"{deeper}{name} = 0 if shared else m_{b.name}.address"
            else:
                yield f"{deeper}m_{b.name} = allocate({grid}*({size}))"
                yield f"{deeper}p_{b.name} = {name} = m_{b.name}.address"
        threads = f"threads_for({self.text(s.length)})"
        block = BLOCK if s.how == THREADS else threads
        yield f"{deeper}{s.name}({grid}, {block}, ({args}){shared})"

    # Scalars ----------------------------------------------------------------------

    def text(self, d: Dim) -> str:
        return dim_text(self.invariants.hoisted(d))

    def scalar(self, x: Scalar) -> str:
        match x:
            case Reg():
                return x.name
            case Lit():
                return repr(x.value)
            case At():
                return f"({self.text(x.dim)})"
            case Cast():
                kind = {BOOL: "bool", F64: "float"}.get(x.dtype, "int")
                return f"{kind}({self.scalar(x.arg)})"
            case Apply() if x.template == "({0} / {1})":
                return f"quotient({', '.join(map(self.scalar, x.args))})"
            case Apply():
                return x.template.format(*map(self.scalar, x.args))
            case _:
                raise TypeError(f"the host cannot load {x}")


def _rounded(size: Dim) -> Dim:
    return dims.mul(dims.floordiv(dims.add(size, ALIGN - 1), ALIGN), ALIGN)
