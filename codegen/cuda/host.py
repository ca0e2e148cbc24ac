"""Print the function that launches the kernels of a plan.

It is Python: integers for sizes and addresses, one call per launch. It gets addresses
of arrays, numbers and sizes, and returns 0 or the number of a failed check, followed by
the memory of the results; see `calls.returned`. Where a call can be replayed, all but
the memory and the last check is a function of its own: Note [graphs of calls].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...ir import dims
from ...ir.dims import Dim, Expr
from ...ir.types import BOOL, F64
from ...runtime.devices.interface import SCRATCH
from ..emit import arena_slots, dim_text, late_symbols, name_of
from ..invariants import Invariants
from ..nests import (
    Allocate,
    Apply,
    At,
    Bind,
    Buffer,
    Call,
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
    SIGNS,
    THREADS,
    THREADS_PER_BLOCK,
    TOGETHER,
    Inner,
    Launch,
    ReadBack,
    Step,
    all_of,
    in_shared,
    is_product,
    rows_of,
)

ALIGN = 256  # bytes, of every buffer of the arena
WORD = 8  # bytes of a slot
SOLE = 128  # threads of a block that is alone, and shares out loops
WARP = 32  # threads of one that does not
SHARED = 24 << 10  # bytes of shared memory for the rows of a block, at most
LEAST = 3  # launches that are worth a graph


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
        inputs = ", ".join(self.arguments())
        body = [*self.layout(), *self.lines(self.plan, "    ")]
        memory, tail = list(self.memory()), list(self.tail())
        head = list(self.head())  # it has the names of the rest
        if not self.repeats():
            lines = [f"def run({inputs}):", *head, *memory, *body, *tail]
            return "\n".join([*lines, ""])
        given = [*self.arguments(), *self.places()]
        given += [f"repr({x.name})" for x in self.p.params if _is_inexact(x)]
        few = _needed([*head, *self.slots()], [*memory, *tail])
        lines = [
            f"def work({', '.join([*self.arguments(), *self.places()])}, *_):",
            "    trips = 0",
            *head,
            *body,
            "    return trips",
            f"def run({inputs}):",
            *[line for line in few if line in head],
            *memory,
            f"    key = {', '.join(given)},",
            "    replay = graphs.pop(key, None)",
            "    if replay is None:",
            "        other(work, key)",
            "    else:",
            "        graphs[key] = replay",
            "        replay()",
            *[line for line in few if line not in head],
            *tail,
        ]
        return "\n".join([*lines, ""])

    def repeats(self) -> bool:
        """Tell whether calls can be recorded, and are worth it."""
        steps = list(all_of(self.plan))
        launches = [s for s in steps if isinstance(s, Launch)]
        entered = len(launches) + sum(map(is_product, steps))
        computed = [r.what for r in self.p.results if not isinstance(r.what, Buffer)]
        return (
            entered >= LEAST
            and not any(isinstance(s, ReadBack | Allocate | Grow) for s in steps)
            and not any(s.own for s in launches)
            and all(x.name in self.homes.slots for x in computed)
            and not self.homes.read
            and not late_symbols(self.p)
        )

    def places(self) -> list[str]:
        """Return the names of the addresses that a call allocates."""
        results = [f"p_{b.name}" for b in self.p.buffers if b.place == "result"]
        return [name for name, _ in self.arena()] + results

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
        for name, size in self.arena():
            yield f"    {name[2:]} = allocate({self.text(size)})"
            yield f"    {name} = {name[2:]}.address"
        for b in self.p.buffers:
            if b.place == "result":
                yield from self.allocated(b)

    def allocated(self, b: Buffer) -> Iterator[str]:
        size = f"({self.text(b.size)})*{b.dtype.itemsize}"
        yield f"    m_{b.name} = allocate({size})"
        yield f"    p_{b.name} = m_{b.name}.address"

    @property
    def words(self) -> int:
        """How many slots there are, with that of the status."""
        return len(self.homes.slots) + bool(self.p.failures)

    @property
    def apart(self) -> bool:
        """Whether slots have memory of their own.

        A number that is a result keeps the memory of all slots, but not the arena.
        """
        return any(in_slot(r, self.homes) for r in self.p.results)

    def arena(self) -> Iterator[tuple[str, Dim]]:
        """Yield addresses of memory of the call with the sizes: slots, and the rest."""
        total: Dim = 0
        for size, _ in arena_slots(self.p):
            total = dims.add(total, _rounded(size))
        if self.words and self.apart:
            yield "q_slots", self.words * WORD
        elif self.words:
            total = dims.add(total, _rounded(self.words * WORD))
        if total != 0 or arena_slots(self.p):
            yield "q_arena", total
        if any(map(is_product, all_of(self.plan))):
            yield "q_products", SCRATCH

    def layout(self) -> Iterator[str]:
        """Give slots and buffers their places in the memory of the call."""
        yield from self.slots()
        start = "q_slots" if self.apart else "q_arena"
        if self.words:
            yield f"    fill({start}, 0, {self.words * WORD})"
        slots = arena_slots(self.p)
        if slots:
            first = _rounded(self.words * WORD) if not self.apart else 0
            yield f"    q = q_arena + {self.text(first)}"
        for size, buffers in slots:
            for b in buffers:
                yield f"    p_{b.name} = q"
            yield f"    q += {self.text(_rounded(size))}"

    def slots(self) -> Iterator[str]:
        start = "q_slots" if self.apart else "q_arena"
        for k, b in enumerate(self.homes.slots.values()):
            yield f"    p_{b.name} = {start} + {k * WORD}"
        if self.p.failures:
            yield f"    p_status = {start} + {(self.words - 1) * WORD}"

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
            count = len(self.p.failures) + 1
            yield f"{indent}    return {count} - status{nothing},"

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
                if self.repeats():
                    yield f"{deeper}trips += 1"
                yield from self.lines(s.body, deeper)
                if not s.body:
                    yield f"{deeper}pass"
            case While():
                yield f"{indent}while True:"
                if self.repeats():
                    yield f"{deeper}trips += 1"
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
            case Call():
                yield f"{indent}{self.product(s)}"
            case _:
                raise TypeError(f"{type(s).__name__} is no step of the host")

    def product(self, s: Call) -> str:
        """Return the call of a product.

        Kernels of the project's own do nothing after a failed check. A library does
        not look, so that it may not write what the caller has then.
        """
        out = s.args[0]
        assert isinstance(out, tuple)
        status = "p_status" if self.p.failures else "0"
        by_library = not (self.p.failures and out[0].place == "param")
        args = [repr(out[0].dtype.name), str(SIGNS[s.function]), str(by_library)]
        args += [status, "q_products"]
        for x in s.args:
            if isinstance(x, tuple):
                b, where = x
                offset = self.text(dims.mul(where, b.dtype.itemsize))
                args.append(f"p_{b.name} + {offset}")
            else:
                assert isinstance(x, int | Expr)
                args.append(self.text(x))
        return f"multiply({', '.join(args)})"

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
        block = THREADS_PER_BLOCK if s.how == THREADS else threads
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


def _is_inexact(x: Buffer | Reg) -> bool:
    """Tell whether an argument is a number that may equal another one: -0.0 is 0.0."""
    return not isinstance(x, Buffer) and x.dtype.kind in "fc"


def _needed(lines: Sequence[str], users: Sequence[str]) -> list[str]:
    """Return which of some assignments other lines need, in order."""
    names = {name for line in users for name in re.findall(r"\w+", line)}
    out = []
    for line in reversed(lines):
        name, _, value = line.strip().partition(" = ")
        if name in names:
            names.update(re.findall(r"\w+", value))
            out.append(line)
    return out[::-1]
