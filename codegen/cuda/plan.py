"""Cut a program of nests into kernels and what the host does between them.

Note [segments]
A large nest whose iterations are apart is a grid kernel. All between two of these is
one *segment*: a kernel of one block, whose threads run the statements together. So
numbers that the program computes stay on the device, and a launch does as much as it
can; the host waits only for what it must know: a size that the program computes, or the
condition of a loop with large nests.

Note [loops of the program]
A loop around large nests is run by the host, a launch per nest and iteration. With
small ones it belongs to a segment: a block needs a barrier between nests where the host
needs a launch. Sizes decide, so both forms are planned, and the kernel of one of them
is compiled when it is first needed.

Note [exchanged memory]
Buffers that exchange their memory (`Rotate`) are pointers that change places, of the
host or in a kernel. They get their own memory back after the loop; what lies between is
of one segment with the loop, so that the host need not know how often a kernel has
turned them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Container, Sequence
from dataclasses import replace

from ...ir import dims
from ...ir.bounds import upper
from ...ir.dims import Dim, Facts, Symbol
from ...ir.types import BOOL, I64, DType
from ..apart import Range
from ..carried import Fold, uses_in
from ..emit import name_of
from ..kernels import at, compare
from ..nests import (
    Allocate,
    Apply,
    At,
    Bind,
    Buffer,
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
    Program,
    Reg,
    Rotate,
    Scalar,
    Set,
    Statement,
    Store,
    While,
    copied,
    every,
)
from ..parallel import units_of
from .lanes import lanes_of
from .share import inner_length, is_plain, shared, trips
from .steps import (
    BLOCKS,
    THREADS,
    TOGETHER,
    Inner,
    Launch,
    Merge,
    Step,
    all_of,
    assigned,
    clash,
    names_in,
    needs,
    reads,
    touched,
)

SMALL = 1 << 13  # units of work that a block does at once
LARGE = 1 << 17  # units of an iteration that is worth a launch for each nest
SHORT = 32  # iterations of an inner loop that a single thread does
THREADS_PER_BLOCK = 256
EACH = 4  # iterations of a fold that a thread has at least
MOST = 1056  # blocks: eight for each multiprocessor of an H200
COMPUTED = frozenset(  # templates that the host evaluates, of integers and bools
    f"({{0}} {sign} {{1}})" for sign in "+ - * & | == != < <= > >=".split()
) | {"where({0}, {1}, {2})", "maximum({0}, {1})", "minimum({0}, {1})"}


class Planner:
    """Plans one program."""

    def __init__(self, p: Program) -> None:
        self.p = p
        self.uses = uses_in(p)
        self.touches = Counter(b for s in p.body for b, _ in touched(s))
        self.numbers = itertools.count()
        self.made: list[Buffer] = []
        self.host = host_names(p)

    def plan(self) -> list[Step]:
        return self.block(list(map(copied, self.p.body)), self.p.facts)

    # Lists ------------------------------------------------------------------------

    def block(self, body: Sequence[Statement], facts: Facts) -> list[Step]:
        """Return the steps of a list of statements that the host runs."""
        out: list[Step] = []
        pending: list[Inner] = []

        def flush() -> None:
            if pending:
                out.append(self.launch(TOGETHER, list(pending)))
                pending.clear()

        todo = list(body)
        while todo:
            count = _turned(todo)
            group, todo = todo[:count], todo[count:]
            s = group[0]
            if count == 1 and self.is_host(s):
                steps, merges = [s], list[Inner]()
            else:
                steps, merges = self.group(group, facts)
            if not steps:
                pending += group
                continue
            if must_wait(steps, pending):
                flush()
            out += steps
            pending += merges
        flush()
        return out

    def range(self, s: Move | Fill) -> list[Step]:
        """Return the launch that copies or fills a range."""
        index, i = self.symbol("i")
        if isinstance(s, Move):
            where = dims.add(s.source_offset, i)
            value: Scalar = Load(s.source, where, s.source.dtype)
            store = Store(s.target, dims.add(s.target_offset, i), value)
        else:
            store = Store(s.buffer, dims.add(s.offset, i), s.value)
        loop = Loop(index, 0, s.size, 1, [store])
        return self.form(THREADS, [loop], [], [], (), *self.symbol("grid"))

    def is_host(self, s: Statement) -> bool:
        """Tell whether a statement is the host's as it is."""
        match s:
            case Let() | Set():
                return s.name in self.host
            case Bind():
                return name_of(s.symbol) in self.host
            case Rotate() | Allocate() | Grow():
                return True
            case _:
                return False

    def group(
        self, group: list[Statement], facts: Facts
    ) -> tuple[list[Step], list[Inner]]:
        """Return the steps of statements; none where they belong to a segment."""
        s = group[0]
        if isinstance(s, Move | Fill) and not _is_short(s.size):
            return self.range(s), []
        if len(group) == 1 and isinstance(s, Loop) and not s.ordered:
            found = self.nest(s, facts)
            if found is not None:
                return found
        if not any(isinstance(t, Loop | While | If) for t in group):
            return [], []
        return self.control(group, facts), []

    def launch(self, how: str, body: list[Inner]) -> Launch:
        return Launch(f"kernel{next(self.numbers)}", how, body)

    def symbol(self, hint: str) -> tuple[Symbol, Dim]:
        name = f"_{hint}_{next(self.numbers)}"
        return Symbol(name), dims.symbol(name)

    # Loops and branches of the program ----------------------------------------------

    def control(self, group: list[Statement], facts: Facts) -> list[Step]:
        """Plan loops and branches, for the host or for a segment; [] for the latter."""
        must = any(isinstance(s, Allocate | Grow) for s in every(group))
        units = work_of(group)
        if not must and (units is None or (isinstance(units, int) and units < LARGE)):
            return []
        here = [t for s in group for t in self.step(copied(s), facts)]
        if not must and not any(
            isinstance(s, Launch) and s.how != TOGETHER for s in all_of(here)
        ):
            return []
        if must or units is None or isinstance(units, int):
            return here
        large = compare(">=", at(units), at(LARGE))
        together: list[Step] = [self.launch(TOGETHER, [copied(s) for s in group])]
        return [If(large, here, together)]

    def step(self, s: Statement, facts: Facts) -> list[Step]:
        """Return a statement as the host runs it."""
        match s:
            case Loop():
                run = Range.of(s)
                known = facts.having(*run.facts) if run else facts
                return [replace(s, body=self.block(s.body, known))]
            case While():
                test, condition = self.condition(s.test, s.condition)
                before, body = self.block(test, facts), self.block(s.body, facts)
                return [While(before, condition, body)]
            case If():
                test, condition = self.condition([], s.condition)
                then, orelse = (self.block(x, facts) for x in (s.then, s.orelse))
                return [*self.block(test, facts), If(condition, then, orelse)]
            case _:
                return self.block([s], facts)

    def condition(
        self, before: list[Statement], x: Scalar
    ) -> tuple[list[Statement], Scalar]:
        """Return a condition that the host can evaluate, and what computes it."""
        if is_computed(x, self.host) or isinstance(x, Reg):
            return before, x
        name = f"test_{next(self.numbers)}"
        return [*before, Let(name, x)], Reg(name, BOOL)

    # Nests ------------------------------------------------------------------------

    def nest(self, loop: Loop, facts: Facts) -> tuple[list[Step], list[Inner]] | None:
        """Return the launches of a nest, and what merges what they fold."""
        units = units_of([loop])
        if units is None or (isinstance(units, int) and units < SMALL):
            return None
        if not is_plain(loop):
            return None
        loop = replace(loop, body=list(map(copied, loop.body)))
        inside = Counter(b for b, _ in touched(loop) if b.private)
        own = {b for b, n in inside.items() if n == self.touches[b]}
        found = shared(loop, facts, self.uses, own)
        if found is None:
            return None
        loops, folds = found
        symbol, grid = self.symbol("grid")
        partial = [self.partial(f.dtype) for f in folds]
        merges: list[Inner] = [Merge(folds, partial, grid)] if folds else []

        def form(how: str, loops: list[Loop]) -> list[Step]:
            return self.form(how, loops, folds, partial, own, symbol, grid)

        if own:
            return form(BLOCKS, loops[:1]), merges
        length = inner_length(loops[-1])
        if length is None or (isinstance(length, int) and length < SHORT):
            return form(THREADS, loops), merges
        if isinstance(length, int):
            return form(BLOCKS, loops[:1]), merges
        rows = compare(">=", at(length), at(SHORT))
        forms = form(BLOCKS, loops[:1]), form(THREADS, loops)
        return [If(rows, *forms)], merges

    def form(
        self,
        how: str,
        loops: list[Loop],
        folds: list[Fold],
        partial: list[Buffer],
        own: Collection[Buffer],
        symbol: Symbol,
        grid: Dim,
    ) -> list[Step]:
        """Return a launch, and before it the number of its blocks."""
        lanes = lanes_of(loops) if how == THREADS else None
        each = max(EACH if folds else 1, lanes.count if lanes else 1)
        blocks = blocks_of(dims.product(map(trips, loops)), how, each)
        name, body = f"kernel{next(self.numbers)}", list(loops[-1].body)
        launch = Launch(name, how, [*body], loops, grid, folds, partial, own)
        launch.lanes = lanes
        if how == BLOCKS:
            launch.length = inner_length(loops[-1]) or 1
        return [Bind(symbol, at(blocks)), launch]

    def partial(self, dtype: DType) -> Buffer:
        self.p.scopes += 1
        name, scope = f"f_{next(self.numbers)}", self.p.scopes - 1
        self.made.append(Buffer(name, dtype, MOST, "arena", scope))
        return self.made[-1]


def blocks_of(count: Dim, how: str, each: int) -> Dim:
    """Return how many blocks share iterations, at most MOST: sizes decide, no more."""
    if how == BLOCKS:
        return dims.minimum(count, MOST)
    each *= THREADS_PER_BLOCK
    return dims.minimum(dims.floordiv(dims.add(count, each - 1), each), MOST)


def must_wait(steps: Sequence[Step], pending: Sequence[Inner]) -> bool:
    """Tell whether steps must come after statements that stand before them."""
    if any(isinstance(s, Check) for s in all_of(pending)):
        return bool(pending)
    made = {name for s in all_of(pending) for name, _ in assigned(s)}
    known = made | {name for s in all_of(pending) for name in reads(s)}
    for s in steps:
        if isinstance(s, Launch) and s.loops:
            used, changed = needs(s)[0], set[str]()
        else:
            used = {name for t in all_of([s]) for name in reads(t)}
            changed = {name for t in all_of([s]) for name, _ in assigned(t)}
        if used & made or changed & known or isinstance(s, Rotate | Allocate | Grow):
            return bool(pending)
    return clash(steps, pending)


# ---------------------------------------------------------------- what the host knows


def is_computed(x: Scalar, host: Container[str]) -> bool:
    """Tell whether the host can evaluate a scalar: integers of what it knows."""
    if x.dtype not in (I64, BOOL):
        return False
    match x:
        case Lit():
            return True
        case Reg() | At():
            return all(name in host for name in names_in(x))
        case Cast():
            return is_computed(x.arg, host)
        case Apply():
            known = x.template in COMPUTED
            return known and all(is_computed(a, host) for a in x.args)
        case _:
            return False


def host_names(p: Program) -> set[str]:
    """Return the variables of a program that the host computes: see `is_computed`."""
    values: dict[str, list[Scalar]] = {}
    free: set[str] = {name_of(s) for s in (*p.symbols, *(s for s, _, _ in p.sizes))}
    free |= {name_of(s.symbol) for s in p.steps}
    free |= {x.name for x in p.params if isinstance(x, Reg)}
    plus: set[str] = set()
    for s in every(p.body):
        match s:
            case Let() | Set():
                values.setdefault(s.name, []).append(s.value)
                plus |= {s.name} if isinstance(s, Set) and s.plus else set()
            case Bind():
                values.setdefault(name_of(s.symbol), []).append(s.value)
            case Loop():
                free.add(name_of(s.index))
    found = set(values) - plus
    while True:
        lost = {
            name
            for name in found
            if not all(is_computed(x, found | free) for x in values[name])
        }
        if not lost:
            return found | free
        found -= lost


def work_of(group: Sequence[Statement]) -> Dim | None:
    """Estimate the units of work of an iteration, or of a branch; None: unknown."""
    (first, *_) = group
    units = units_of(first.body if isinstance(first, Loop | While) else group)
    if units is None:
        return None
    for s in every(list(group)):
        run = Range.of(s) if isinstance(s, Loop) else None
        if run is not None and run.symbol in dims.symbols_of(units):
            bound = upper(units, run.symbol, run.low, run.high)
            if bound is None:
                return None
            units = bound
    computed = {s.symbol for s in every(list(group)) if isinstance(s, Bind)}
    computed |= {s.index for s in every(list(group)) if isinstance(s, Loop)}
    return None if dims.symbols_of(units) & computed else units


def _is_short(size: Dim) -> bool:
    return isinstance(size, int) and size < SMALL


def _turned(todo: Sequence[Statement]) -> int:
    """Return how many statements belong together; see Note [exchanged memory]."""
    turned = _rotated(todo[0])
    if not turned or isinstance(todo[0], Rotate):
        return 1
    last = [k for k, s in enumerate(todo) if _rotated(s) & turned]
    return last[-1] + 1


def _rotated(s: Statement) -> set[Buffer]:
    return {b for t in every([s]) if isinstance(t, Rotate) for b in t.buffers}
