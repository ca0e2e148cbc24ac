"""Print the function that launches the kernels of a plan.

It is Python: integers for sizes and addresses, one call per launch. It gets addresses
of arrays, numbers and sizes, and returns 0 or the number of a failed check, followed by
the memory of the results; see `calls.returned`. Where a call can be replayed, all but
the memory and the last check is a function of its own, which is told how to launch and
fill: Note [graphs of calls].
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ...ir import dims
from ...ir.dims import Dim, Expr, Symbol
from ...ir.types import BOOL, F64
from ...runtime.devices import FORMATS
from ...runtime.devices.interface import SCRATCH
from ..chains import QUOTIENT
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
    names_in,
    parts,
    rows_of,
)

ALIGN = 256  # bytes, of every buffer of the arena
WORD = 8  # bytes of a slot
SOLE = 128  # threads of a block that is alone, and shares out loops
WARP = 32  # threads of one that does not
SHARED = 24 << 10  # bytes of shared memory for the rows of a block, at most
LEAST = 3  # launches that are worth a graph
ARENA, SLOTS = "q_arena", "q_slots"  # addresses of memory of a call
ENTER = "launch", "fill", "multiply"  # what enters steps of a call that may repeat


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
        if not self.repeats:
            lines = [f"def run({inputs}):", *head, *memory, *body, *tail]
            return "\n".join([*lines, ""])
        known, given = self.known(), self.given()
        key = [*known.values(), *given]
        key += [f"repr({x})" for x, kind in given.items() if kind.startswith("float")]
        few = _needed([*head, *self.slots()], [*memory, *tail])
        lines = [
            f"def work({', '.join([*ENTER, *known, *given])}):",
            "    trips = 0",
            *head,
            *body,
            "    return trips",
            f"def run({inputs}):",
            *[line for line in few if line in head],
            *memory,
            f"    key = {', '.join(key)},",
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

    @functools.cached_property
    def repeats(self) -> bool:
        """Whether calls can be recorded, and are worth it."""
        steps = list(all_of(self.plan))
        launches = [s for s in steps if isinstance(s, Launch)]
        entered = len(launches) + sum(map(is_product, steps))
        computed = [r.what for r in self.p.results if not isinstance(r.what, Buffer)]
        return (
            entered >= LEAST
            and not any(isinstance(s, ReadBack | Allocate | Grow) for s in steps)
            and self.sized is not None
            and all(x.name in self.homes.slots for x in computed)
            and not self.homes.read
            and not late_symbols(self.p)
        )

    @property
    def rows(self) -> dict[str, dict[str, Dim]]:
        """The rows of blocks that are in the arena: see `sized`."""
        return self.sized or {} if self.repeats else {}

    @functools.cached_property
    def sized(self) -> dict[str, dict[str, Dim]] | None:
        """The bytes of all rows of blocks, by the condition that these are needed.

        Their names are those of the launch and the buffer. They are not needed where
        rows are in shared memory, nor where nothing is launched. None: arguments do
        not tell.
        """
        symbols = self.invariants.known
        known = {*self.arguments(), *map(name_of, symbols)}
        out: dict[str, dict[str, Dim]] = {}
        for s, conditions in _launches(self.plan, ()):
            if not s.own:
                continue
            if not {name for x, _ in conditions for name in names_in(x)} <= known:
                return None
            starts, total = in_shared(s)
            when = [("" if then else "not ") + self.scalar(x) for x, then in conditions]
            grid = dims.substitute(s.grid, self.grids)
            for b in rows_of(s):
                size = dims.mul(grid, dims.mul(b.size, b.dtype.itemsize))
                if not dims.symbols_of(dims.add(size, total)) <= symbols:
                    return None
                needed = [*when]
                if b in starts:
                    needed.append(f"{self.text(total)} > {SHARED}")
                rows = out.setdefault(" and ".join(needed) or "True", {})
                rows[f"{s.name}_{b.name}"] = _rounded(size)
        return out

    @functools.cached_property
    def grids(self) -> dict[Symbol, Dim]:
        """The numbers of blocks that the host binds once, by their symbols."""
        binds = [s for s in all_of(self.plan) if isinstance(s, Bind)]
        bound = Counter(s.symbol for s in binds)
        return {
            s.symbol: s.value.dim
            for s in binds
            if bound[s.symbol] == 1 and isinstance(s.value, At)
        }

    def known(self) -> dict[str, str]:
        """Return the names that decide what is launched, with what tells them apart."""
        given = self.given()
        numbers = [x for x in self.p.params if isinstance(x, Reg)]
        out = {x.name: x.name for x in numbers if x.name not in given}
        # -0.0 is 0.0, and a bool is an int
        out |= {f"repr_{x}": f"repr({x})" for x in out}
        out |= {name_of(s): name_of(s) for s in self.p.symbols}
        return out | {name_of(s): name_of(s) for s, _, _ in self.p.sizes}

    def given(self) -> dict[str, str]:
        """Return the names of addresses, and of numbers for kernels, with their kinds.

        Addresses are those of arguments, constants, and what a call allocates.
        """
        p = self.p
        kinds = {
            x.name: x.dtype.name
            for x in p.params
            if isinstance(x, Reg) and x.name not in self.homes.by_host
        }
        out = {x: kind for x, kind in kinds.items() if kind in FORMATS}
        buffers = [x for x in p.params if isinstance(x, Buffer)]
        buffers += [b for b, _ in p.constants]
        buffers += [b for b in p.buffers if b.place == "result"]
        names = [name for name, _ in self.arena()] + [f"p_{b.name}" for b in buffers]
        return out | dict.fromkeys(names, "pointer")

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
            if name == ARENA:
                yield f"    size = {size}"
                yield "    arena = take(size)"
                yield f"    {name} = arena[0]"
                continue
            yield f"    {name[2:]} = allocate({size})"
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

    def arena(self) -> Iterator[tuple[str, str]]:
        """Yield addresses of memory of the call with the sizes: slots, and the rest.

        The slots are kept by a number that is a result; the rest is given back.
        """
        total: Dim = 0
        for size, _ in arena_slots(self.p):
            total = dims.add(total, _rounded(size))
        if self.words and self.apart:
            yield SLOTS, str(self.words * WORD)
        elif self.words:
            total = dims.add(total, _rounded(self.words * WORD))
        if any(map(is_product, all_of(self.plan))):
            yield "q_products", str(SCRATCH)
        if total != 0 or arena_slots(self.p) or self.rows:
            sizes = [self.text(total)]
            for condition, rows in self.rows.items():
                size = functools.reduce(dims.add, rows.values())
                sizes.append(f"({self.text(size)} if {condition} else 0)")
            yield ARENA, " + ".join(sizes)

    def layout(self) -> Iterator[str]:
        """Give slots and buffers their places in the memory of the call."""
        yield from self.slots()
        start = SLOTS if self.apart else ARENA
        if self.words:
            yield f"    fill({start}, 0, {self.words * WORD})"
        slots = arena_slots(self.p)
        if slots or self.rows:
            first = _rounded(self.words * WORD) if not self.apart else 0
            yield f"    q = {ARENA} + {self.text(first)}"
        for size, buffers in slots:
            for b in buffers:
                yield f"    p_{b.name} = q"
            yield f"    q += {self.text(_rounded(size))}"
        for condition, rows in self.rows.items():
            yield f"    if {condition}:"
            for name, size in rows.items():
                yield f"        q_{name} = q"
                yield f"        q += {self.text(size)}"

    def slots(self) -> Iterator[str]:
        start = SLOTS if self.apart else ARENA
        for k, b in enumerate(self.homes.slots.values()):
            yield f"    p_{b.name} = {start} + {k * WORD}"
        if self.p.failures:
            yield f"    p_status = {start} + {(self.words - 1) * WORD}"

    def tail(self) -> Iterator[str]:
        yield from self.left("    ")
        found = [x for r in self.p.results for x in self.result(r)]
        found += map(name_of, late_symbols(self.p))
        if any(name == ARENA for name, _ in self.arena()):
            yield "    give(size, arena)"
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
                if self.repeats:
                    yield f"{deeper}trips += 1"
                yield from self.lines(s.body, deeper)
                if not s.body:
                    yield f"{deeper}pass"
            case While():
                yield f"{indent}while True:"
                if self.repeats:
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
        call = f"launch({s.name}, " if self.repeats else f"{s.name}("
        if s.how == TOGETHER:
            shares = "team" in self.kernels[s.name].source
            yield f"{indent}{call}1, {SOLE if shares else WARP}, ({args}))"
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
            name, memory = f"w_{b.name}", f"q_{s.name}_{b.name}"
            if not self.repeats:
                size = f"{grid}*({self.text(b.size)})*{b.dtype.itemsize}"
                unless = "None if shared else " if b in starts else ""
                yield f"{deeper}m_{b.name} = {unless}allocate({size})"
                memory = f"m_{b.name}.address"
            if b in starts:
                yield f"{deeper}{name} = 0 if shared else {memory}"
            else:
                yield f"{deeper}p_{b.name} = {name} = {memory}"
        threads = f"threads_for({self.text(s.length)})"
        block = THREADS_PER_BLOCK if s.how == THREADS else threads
        yield f"{deeper}{call}{grid}, {block}, ({args}){shared})"

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
            case Apply() if x.template == QUOTIENT:
                return f"quotient({', '.join(map(self.scalar, x.args))})"
            case Apply():
                return x.template.format(*map(self.scalar, x.args))
            case _:
                raise TypeError(f"the host cannot load {x}")


Conditions = tuple[tuple[Scalar, bool], ...]


def _launches(
    plan: Sequence[Step], conditions: Conditions
) -> Iterator[tuple[Launch, Conditions]]:
    """Yield all launches, each with the conditions that it needs, or needs not."""
    for s in plan:
        match s:
            case Launch():
                yield s, conditions
            case If():
                yield from _launches(s.then, (*conditions, (s.condition, True)))
                yield from _launches(s.orelse, (*conditions, (s.condition, False)))
            case _:
                for part in parts(s):
                    yield from _launches(part, conditions)


def _rounded(size: Dim) -> Dim:
    return dims.mul(dims.floordiv(dims.add(size, ALIGN - 1), ALIGN), ALIGN)


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
