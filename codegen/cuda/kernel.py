"""Print one kernel as Python source for Numba's CUDA compiler.

Note [together and alone]
Where the threads of a block run statements *together*, all registers are the same in
all threads. A store is one thread's; an inner loop whose iterations are apart is shared
out, and each thread runs its part *alone*; what it folds is brought together at the
end, in a fixed order. All else every thread does as the others do. Between a write and
what another thread may read or write there is a barrier: the printer follows which
buffers were touched since the last one.

Note [sums]
A thread that adds up many elements does it by blocks of its own iterations, as CPU
kernels do, and the sums of blocks, of threads and of blocks of threads are added with
what they lose (`lost`): sums are as accurate as NumPy's, and the same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ir.types import F32, F64, I64
from ..apart import Range
from ..carried import Fold
from ..emit import GLOBALS, name_of
from ..invariants import Invariants
from ..nests import (
    Bind,
    Buffer,
    Cast,
    Check,
    Fill,
    If,
    Loop,
    Move,
    Program,
    Reg,
    Rotate,
    Scalar,
    Set,
    Store,
    While,
    copied,
)
from .homes import Homes
from .lanes import WideLoad, WideStore, lanes_of, lanes_of_rows, of_lane
from .meeting import Meeting
from .share import is_plain, shared, trips
from .steps import (
    BLOCKS,
    THREADS,
    TOGETHER,
    Inner,
    Lanes,
    Launch,
    Merge,
    all_of,
    assigned,
    in_shared,
    needs,
    rows_of,
)
from .touches import Touch, by_any, by_owners, changed

_NAME = re.compile(r"\b[a-z]\w*")
_ASSIGNED = re.compile(r"^ *(?:for )?([a-z]\w*) (?:=|in) ", re.MULTILINE)
FUNCTIONS = (
    "any_thread atomic_add atomic_load atomic_maximum barrier block blocks convert "
    "divide load load_2 load_4 load_constant load_constant_2 load_constant_4 offset "
    "own_row quotient reduce_add reduce_bitwise_or reduce_logical_and "
    "reduce_logical_or reduce_maximum reduce_minimum reduce_multiply reduce_pair store "
    "store_2 store_4 thread threads"
).split()
MODULE = "retrograde.codegen.cuda.device"
TYPES = (
    "bool_ float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 inf nan"
).split()
STATUS = Buffer("status", I64, 1, "arena")
POINTER = "*"
NARROW = "_float32"  # ends the name of a float64 of the host that is given as a float32


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel as text; `params` are its parameters with their kinds, in order.

    A kind is the name of a dtype, after a star that of what a pointer leads to.
    `at_once` is how many blocks a processor must have room for: four leave 64 registers
    to a thread, three leave 80.
    """

    source: str
    params: tuple[tuple[str, str], ...]
    at_once: int


class Printer(Meeting):
    """Prints the kernel of one launch."""

    def __init__(
        self,
        p: Program,
        launch: Launch,
        homes: Homes,
        invariants: Invariants,
    ) -> None:
        super().__init__(p, invariants, launch)
        self.homes = homes
        self.slots = homes.slots
        self.facts = p.facts
        self.checks = bool(p.failures)
        self.own = {name for s in all_of([launch]) for name, _ in assigned(s)}
        self.known_loops: dict[Loop, tuple[list[Loop], list[Fold]] | None] = {}
        self.lanes: Lanes | None = None  # of the loops inside blocks
        if launch.how == BLOCKS:
            inside = launch.loops[-1].body
            self.lanes = lanes_of_rows(inside, launch.own, changed(launch.loops))

    # The function -----------------------------------------------------------------

    def printed(self) -> Printed:
        entered = list(self.entered())
        body = [*self.work(), *self.left()]
        lines = [*entered, *body]
        if any("team" in line for line in body):
            lines.insert(1, "    team = threads()")
        text = "\n".join(lines)
        names = dict.fromkeys(_NAME.findall(text))
        made = set(_ASSIGNED.findall(text)) - self.given()
        params = [x for x in names if x not in made and x not in self.known()]
        kinds = tuple((x, self.kind(x)) for x in params)
        constants = [f"{c} = {t}({v})" for (t, v), c in self.constants.items()]
        used = names.keys() | set(_NAME.findall("\n".join(constants)))
        functions = sorted(used & {*FUNCTIONS, *self.functions})
        imports = [f"from {MODULE} import {', '.join(functions)}"]
        imports += [f"from numpy import {x}" for x in TYPES if x in used]
        head = f"def {self.launch.name}({', '.join(params)}):"
        source = "\n".join([*imports, *constants, "", head, *lines, ""])
        return Printed(source, kinds, 3 if self.launch.own else 4)

    def given(self) -> set[str]:
        """Return the variables that are parameters though the kernel assigns them."""
        launch = self.launch
        found, _ = needs(launch)
        here = {name for s in all_of(launch.body) for name, _ in assigned(s)}
        turned = {
            f"p_{b.name}"
            for s in all_of(launch.body)
            if isinstance(s, Rotate)
            for b in s.buffers
        }
        return turned | (found & here - (self.slots.keys() - self.homes.read))

    def known(self) -> set[str]:
        own = {*FUNCTIONS, *TYPES, *self.functions, *self.constants.values()}
        return {*GLOBALS, *own, "me", "team"}

    def kind(self, name: str) -> str:
        """Return the kind of a parameter."""
        if name.startswith(("p_", "w_")):
            return POINTER + self.buffer(name[2:]).dtype.name
        if name.endswith(NARROW):
            return "float32"
        return self.homes.dtypes.get(name, I64).name

    def buffer(self, name: str) -> Buffer:
        for b in (*self.p.buffers, *self.launch.partial, *self.slots.values(), STATUS):
            if b.name == name:
                return b
        raise KeyError(name)

    def entered(self) -> Iterator[str]:
        """Leave if a check has failed before, and take variables out of their slots."""
        yield "    me = thread()"
        if self.checks and has_check(self.launch.body):
            yield from self.left_early("    ")
        elif self.checks:
            yield "    if load(p_status, 0) != 0:"
            yield "        return"
        starts, _ = in_shared(self.launch)
        for b in rows_of(self.launch):
            row = f"w_{b.name}, block()*({self.text(b.size)})"
            if b in starts:
                row = f"own_row({row}, {self.text(starts[b])})"
            else:
                row = f"offset({row})"
            yield f"    p_{b.name} = {row}"
        for name in self.loaded():
            self.touched.add(Touch(self.slots[name], False))
            yield f"    {name} = load(p_{self.slots[name].name}, 0)"
        for f in self.launch.folds:
            yield f"    {f.name} = {self.scalar(f.neutral)}"

    def left_early(self, indent: str) -> Iterator[str]:
        """Leave where a check has failed: all threads of the block, or none."""
        yield f"{indent}failed = me == 0 and atomic_load(p_status, 0) != 0"
        yield f"{indent}if any_thread(failed):"
        yield f"{indent}    return"

    def assigned(self) -> list[str]:
        """Return the variables of slots that the kernel assigns."""
        if self.launch.how != TOGETHER:
            return []
        names = [name for s in all_of(self.launch.body) for name, _ in assigned(s)]
        return [x for x in dict.fromkeys(names) if x in self.slots]

    def loaded(self) -> list[str]:
        """Return the variables of slots that the kernel needs, or may leave alone."""
        read, sure = needs(self.launch)
        wanted = read | (set(self.assigned()) - sure)
        return sorted(x for x in wanted if x in self.slots.keys() - self.homes.read)

    def left(self) -> Iterator[str]:
        """Put variables into their slots."""
        names = self.assigned()
        yield from self.meet([Touch(self.slots[x], True) for x in names], "    ")
        if names:
            yield "    if me == 0:"
        for name in names:
            yield f"        store(p_{self.slots[name].name}, 0, {name})"

    # The work ---------------------------------------------------------------------

    def work(self) -> Iterator[str]:
        launch = self.launch
        if launch.how == THREADS:
            group = "me + team*block()", "team*blocks()"
            yield from self.shared_loops(launch.loops, "    ", *group, launch.lanes)
            yield from self.partials()
        elif launch.how == BLOCKS:
            (loop,) = launch.loops
            yield from self.lines(launch.before, "    ")
            yield from self.together(loop, "    ", "block()", "blocks()")
            yield from self.lines(launch.after, "    ")
            yield from self.partials()
        else:
            yield from self.lines(launch.body, "    ")

    def partials(self) -> Iterator[str]:
        """Store what the block has folded."""
        folds, partial = self.launch.folds, self.launch.partial
        if not folds:
            return
        if self.launch.how == THREADS:
            yield from self.brought(folds, "    ")
        yield "    if me == 0:"
        for f, b in zip(folds, partial, strict=True):
            yield f"        store(p_{b.name}, block(), {f.name})"

    # Loops ------------------------------------------------------------------------

    def together(
        self, loop: Loop, indent: str, first: str = "", step: str = ""
    ) -> Iterator[str]:
        """Let all threads of the block run a loop; `first` and `step` are of blocks."""
        run = Range.of(loop)
        outer = self.facts
        self.facts = outer.having(*run.facts) if run else outer

        def lines() -> Iterator[str]:
            if first:
                yield from self.loop_of_blocks(loop, indent, first, step)
            else:
                yield from self.loop_together(loop, indent)

        yield from self.repeating(changed([loop]), lines)
        self.facts = outer

    def loop_of_blocks(
        self, loop: Loop, indent: str, first: str, step: str
    ) -> Iterator[str]:
        i, deeper = name_of(loop.index), indent + "    "
        q, count = f"q_{i}", self.text(trips(loop))

        def body(indent: str) -> Iterator[str]:
            yield f"{indent}{i} = {self.started(loop, q)}"
            yield from self.lines(loop.body, indent)
            yield f"{indent}{q} += {step}"
            own = set(self.launch.own)  # in other memory, iterations are apart
            self.touched = {t for t in self.touched if t.buffer in own}

        yield f"{indent}{q} = {first}"
        yield f"{indent}while {q} < {count}:"
        if not loop.block:
            yield from body(deeper)
            return
        yield from self.lines(loop.opening, deeper)
        yield f"{deeper}stop_{i} = min({q} + {step}*{loop.block}, {count})"
        yield f"{deeper}while {q} < stop_{i}:"
        inner = deeper + "    "
        yield from self.repeating(changed([loop]), lambda: body(inner))
        yield from self.lines(loop.closing, deeper)

    def loop_together(self, loop: Loop, indent: str) -> Iterator[str]:
        i, deeper = name_of(loop.index), indent + "    "
        start, stop, step = map(self.text, (loop.start, loop.stop, loop.step))
        if not loop.block:
            yield f"{indent}for {i} in range({start}, {stop}, {step}):"
            yield from self.lines(loop.body, deeper)
            if not loop.body:
                yield f"{deeper}pass"
            return
        yield f"{indent}for {i}_b in range({start}, {stop}, {loop.block}):"
        yield from self.lines(loop.opening, deeper)
        yield f"{deeper}for {i} in range({i}_b, min({i}_b + {loop.block}, {stop})):"
        inner = deeper + "    "
        body = loop.body
        yield from self.repeating(changed([loop]), lambda: self.lines(body, inner))
        yield from self.lines(loop.closing, deeper)

    # Statements -------------------------------------------------------------------

    def statement(self, s: Inner, indent: str) -> Iterator[str]:
        if self.alone:
            yield from self.by_itself(s, indent)
        else:
            yield from self.by_all(s, indent)

    def by_itself(self, s: Inner, indent: str) -> Iterator[str]:
        """Print what one thread runs."""
        match s:
            case Loop(block=0):
                bounds = ", ".join(map(self.text, (s.start, s.stop, s.step)))
                yield f"{indent}for {name_of(s.index)} in range({bounds}):"
                yield from self.lines(s.body, indent + "    ")
                if not s.body:
                    yield f"{indent}    pass"
            case Move() | Fill():
                yield from self.range(s, indent, "0", "1")
            case Check():
                yield f"{indent}{self.fail(s)}"
            case Store():
                yield f"{indent}{self.stored(s)}"
            case WideLoad() | WideStore():
                if isinstance(s, WideLoad):
                    self.own.add(s.name)
                yield from self.several(s, indent)
            case _:
                yield from self.plain(s, indent)

    def by_all(self, s: Inner, indent: str) -> Iterator[str]:
        """Print what the threads of a block run together."""
        match s:
            case Loop():
                yield from self.loop_of_all(s, indent)
            case While():
                yield from self.repeated(s, indent)
            case If():
                yield from self.meet(by_any(If(s.condition, [], [])), indent)
                yield from self.branches(s, indent)
            case Check():
                yield from self.meet(by_any(s), indent)
                yield f"{indent}if {self.scalar(s.bad)}:"
                yield f"{indent}    if me == 0:"
                yield f"{indent}        {self.fail(s)}"
                yield f"{indent}    return"
            case Move() | Fill():
                yield from self.meet(by_owners(s, []), indent)
                yield from self.range(s, indent, "me", "team")
            case Store():
                yield from self.meet(by_any(s), indent)
                yield f"{indent}if me == 0:"
                yield f"{indent}    {self.stored(s)}"
            case Merge():
                yield from self.meet(by_any(s), indent)
                yield from self.merged(s, indent)
            case _:
                yield from self.meet(by_any(s), indent)
                yield from self.plain(s, indent)
                if isinstance(s, Bind):
                    self.touched = {t.after([s.symbol]) for t in self.touched}

    def repeated(self, s: While, indent: str) -> Iterator[str]:
        """Print a `while`, whose condition is the same in all threads."""
        if self.clashes(by_any(s)):
            yield from self.barrier(indent)
        deeper = indent + "    "
        last: set[Touch] = set()  # the last test stands after the last barrier

        def lines() -> Iterator[str]:
            yield f"{indent}while True:"
            yield from self.lines(s.test, deeper)
            yield from self.meet(by_any(If(s.condition, [], [])), deeper)
            last.clear()
            last.update(self.touched)
            yield f"{deeper}if not {self.scalar(s.condition)}:"
            yield f"{deeper}    break"
            yield from self.lines(s.body, deeper)

        yield from self.repeating(changed([s]), lines)
        self.touched |= last

    def plain(self, s: Inner, indent: str) -> Iterator[str]:
        match s:
            case Set(plus=True):
                yield f"{indent}{s.name} = ({s.name} + {self.scalar(s.value)})"
            case If():
                yield from self.branches(s, indent)
            case _:
                yield from super().statement(s, indent)

    def branches(self, s: If, indent: str) -> Iterator[str]:
        start = set(self.touched)
        yield f"{indent}if {self.scalar(s.condition)}:"
        yield from self.lines(s.then, indent + "    ")
        if not s.then:
            yield f"{indent}    pass"
        then, self.touched = self.touched, start
        if s.orelse:
            yield f"{indent}else:"
            yield from self.lines(s.orelse, indent + "    ")
        self.touched |= then

    def loop_of_all(self, s: Loop, indent: str) -> Iterator[str]:
        if s not in self.known_loops:
            loop = copied(s)
            assert isinstance(loop, Loop)
            in_order = self.p.deterministic
            group = loop, self.facts, self.launch.uses, (), in_order
            found = shared(*group) if is_plain(loop) else None
            self.known_loops[s] = found
        found = self.known_loops[s]
        if found is None or (s.ordered and found[1]):
            if self.clashes(by_any(s)):  # the first iteration
                yield from self.barrier(indent)
            yield from self.together(s, indent)
            return
        loops, folds = found
        lanes = self.lanes if self.lanes and lanes_of(loops) else None
        yield from self.meet(by_owners(s, loops, lanes), indent)
        for f in folds:
            yield f"{indent}{f.name}_0 = {f.name}"
            yield f"{indent}{f.name} = {self.scalar(f.neutral)}"
        yield from self.shared_loops(loops, indent, "me", "team", lanes)
        yield from self.brought(folds, indent)
        yield from self.joined(folds, indent)
        if has_check([s]):
            yield from self.barrier(indent)
            yield from self.left_early(indent)

    def range(
        self, s: Move | Fill, indent: str, first: str, step: str
    ) -> Iterator[str]:
        """Print a loop that copies or fills a range."""
        if isinstance(s, Move):
            b, start = s.target, s.target_offset
            q = f"q_{b.name}"
            source = f"p_{s.source.name}, {self.text(s.source_offset)} + {q}"
            value = f"{self.reader(s.source)}({source})"
        else:
            b, start = s.buffer, s.offset
            q = f"q_{b.name}"
            value = self.scalar(s.value)
        yield f"{indent}{q} = {first}"
        yield f"{indent}while {q} < {self.text(s.size)}:"
        yield f"{indent}    store(p_{b.name}, {self.text(start)} + {q}, {value})"
        yield f"{indent}    {q} += {step}"

    def stored(self, s: Store) -> str:
        function = f"atomic_{s.combine}" if s.combine else "store"
        where = f"p_{s.buffer.name}, {self.offset(s.offset)}"
        return f"{function}({where}, {self.scalar(s.value)})"

    def scalar(self, x: Scalar) -> str:
        if isinstance(x, Cast) and x.dtype == F32 and isinstance(x.arg, Reg):
            name = x.arg.name
            own = name in self.own or name in self.slots or of_lane(name) in self.own
            if x.arg.dtype == F64 and not own:
                return name + NARROW
        return super().scalar(x)

    def fail(self, s: Check) -> str:
        """Note a failure: of several, the first in the program counts."""
        return f"atomic_maximum(p_status, 0, {len(self.p.failures) + 1 - s.code})"


def has_check(body: Sequence[Inner]) -> bool:
    return any(isinstance(s, Check) for s in all_of(body))
