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

Note [products]
A product of matrices is a call of the host's, with loops that do the same where it is
small. A segment has the loops: its one block would not be enough for the rest.

Note [exchanged memory]
Buffers that exchange their memory (`Rotate`) are pointers that change places, of the
host or in a kernel. They get their own memory back after the loop; what lies between is
of one segment with the loop, so that the host need not know how often a kernel has
turned them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from ...ir import dims
from ...ir.bounds import upper
from ...ir.dims import Dim, Facts, Symbol
from ...ir.types import BOOL, DType
from ..apart import Range
from ..carried import Fold, names_read, neutral_of, uses_in
from ..emit import name_of
from ..kernels import at, compare
from ..nests import (
    Allocate,
    Apply,
    Bind,
    Buffer,
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
from .known import host_names, is_computed
from .lanes import lanes_of
from .share import (
    added_to,
    folds_of_rows,
    in_rows,
    inner_length,
    is_plain,
    shareable,
    shared,
    trips,
)
from .steps import (
    BLOCKS,
    ROWS,
    THREADS,
    THREADS_PER_BLOCK,
    TOGETHER,
    Inner,
    Launch,
    Merge,
    Step,
    all_of,
    assigned,
    clash,
    is_product,
    needs,
    reads,
    touched,
)
from .unordered import IrregularError, Unordered

SMALL = 1 << 13  # units of work that a block does at once
LARGE = 1 << 17  # units of an iteration that is worth a launch for each nest
SHORT = 32  # iterations of an inner loop that a single thread does
EACH = 4  # iterations of a fold that a thread has at least
SUMMED = 4  # iterations that a block adds up at least
ENOUGH = 1 << 14  # iterations that are enough for the threads of a grid
ROOM = 1 << 24  # elements of the rows of all blocks
FEWEST = 264  # blocks that have their rows in any case
MOST = 1056  # blocks: eight for each multiprocessor of an H200; smaller ones: 4 * MOST


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

    def block(
        self, body: Sequence[Statement], facts: Facts, exchanged: bool = False
    ) -> list[Step]:
        """Return the steps of a list of statements that the host runs.

        `exchanged`: what exchanges memory is the host's, too; see the note.
        """
        out: list[Step] = []
        pending: list[Inner] = []

        def flush() -> None:
            if pending:
                out.append(self.launch(TOGETHER, list(pending)))
                pending.clear()

        todo = list(body)
        while todo:
            count = 1 if exchanged else _turned(todo)
            group, todo = todo[:count], todo[count:]
            s = group[0]
            if count == 1 and self.is_host(s):
                steps, merges = [s], list[Inner]()
            elif exchanged and _rotated(s):
                steps, merges = self.step(s, facts), []
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
                return is_product(s)

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
            small = self.in_rows(s, facts)
            units = work_of(group)
            if small and (units is None or (isinstance(units, int) and units < LARGE)):
                return small, []
            return self.control(group, facts, small or ()), []
        if isinstance(s, If) and any(map(is_product, s.then)):
            return self.product(s, facts), []
        if not any(isinstance(t, Loop | While | If) for t in group):
            return [], []
        return self.control(group, facts), []

    def product(self, s: If, facts: Facts) -> list[Step]:
        """Return the steps of a product; see Note [products]."""
        if isinstance(s.condition, Lit):
            return self.block(s.then, facts)
        return self.step(s, facts)

    def launch(self, how: str, body: list[Inner]) -> Launch:
        body = in_loops(body)
        return Launch(f"kernel{next(self.numbers)}", how, body, self.uses)

    def symbol(self, hint: str) -> tuple[Symbol, Dim]:
        name = f"_{hint}_{next(self.numbers)}"
        return Symbol(name), dims.symbol(name)

    # Loops and branches of the program ----------------------------------------------

    def control(
        self,
        group: list[Statement],
        facts: Facts,
        small: Sequence[Step] = (),
    ) -> list[Step]:
        """Plan loops and branches, for the host or for a segment; [] for the latter.

        `small` does the same in another way, if iterations are not worth launches.
        """
        must = any(isinstance(s, Allocate | Grow) for s in every(group))
        units = work_of(group)
        if not must and (units is None or (isinstance(units, int) and units < LARGE)):
            return []
        first, *others = copies = list(map(copied, group))
        here = self.block(copies, facts, True) if others else self.step(first, facts)
        if not must and not any(
            is_product(s) or (isinstance(s, Launch) and s.how != TOGETHER)
            for s in all_of(here)
        ):
            return list(small)
        if must or units is None or isinstance(units, int):
            return here
        large = compare(">=", at(units), at(LARGE))
        together = small or [self.launch(TOGETHER, [copied(s) for s in group])]
        return [If(large, here, list(together))]

    def step(self, s: Statement, facts: Facts) -> list[Step]:
        """Return a statement as the host runs it."""
        match s:
            case Loop() if s.block:
                return [self.launch(TOGETHER, [s])]
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
        if not is_plain(loop) or not is_large(loop):
            return None
        if self.p.deterministic:
            sums = {b for b in added_to(loop) if b.dtype.kind == "f"}
            if sums:
                return self.unordered(loop, facts, sums)
        loop = replace(loop, body=list(map(copied, loop.body)))
        own = self.private(loop)
        found = shared(loop, facts, self.uses, own)
        if found is None:
            return None
        loops, folds = found
        few = self.in_rows(loop, facts) if loops[0].index != loop.index else None
        if few:
            many = compare(">=", at(trips(loops[0])), at(ENOUGH))
            symbol, grid = self.symbol("grid")
            return [
                If(many, self.form(THREADS, loops, [], [], (), symbol, grid), few)
            ], []
        symbol, grid = self.symbol("grid")
        partial = [self.partial(f.dtype) for f in folds]
        merges: list[Inner] = [Merge(folds, partial, grid)] if folds else []

        def form(how: str, loops: list[Loop]) -> list[Step]:
            return self.form(how, loops, folds, partial, own, symbol, grid)

        if own:
            return form(BLOCKS, loops[:1]), merges
        for x in map(Range.of, loops):
            facts = facts.having(*(x.facts if x else ()))
        group = loops[-1].body, facts, self.uses, self.p.deterministic
        length = inner_length(loops, set(shareable(*group)))
        if length is None or (isinstance(length, int) and length < SHORT):
            return form(THREADS, loops), merges
        if isinstance(length, int):
            return form(BLOCKS, loops[:1]), merges
        rows = compare(">=", at(length), at(SHORT))
        forms = form(BLOCKS, loops[:1]), form(THREADS, loops)
        return [If(rows, *forms)], merges

    def unordered(
        self, loop: Loop, facts: Facts, sums: Collection[Buffer]
    ) -> tuple[list[Step], list[Inner]] | None:
        """Return launches that make additions to `sums` the same in any order."""
        made, uses = len(self.made), self.uses
        taken = replace(loop, body=list(map(copied, loop.body)))
        additions = Unordered(self, sums)
        try:
            additions.take_out(taken)
            self.uses = (
                uses - Counter(names_read([loop])) + Counter(names_read([taken]))
            )
            found = self.nest(taken, facts)
        except IrregularError:
            found = None
        finally:
            self.uses = uses
        if found is None:
            del self.made[made:]
            return None
        steps, merges = found
        return [*additions.before, *steps, *additions.added_up()], merges

    def in_rows(self, loop: Loop, facts: Facts) -> list[Step] | None:
        """Return launches of blocks that fold into rows of their own, then fold these.

        None: the loop does not only fold into what its iterations share.
        """
        steps_of = folds_of_rows(loop)
        sums = sorted(steps_of, key=lambda b: b.name)
        if not sums or not is_plain(loop) or not is_large(loop):
            return None
        loop = replace(loop, body=list(map(copied, loop.body)))
        own: dict[Buffer, Buffer] = {}
        left: dict[Buffer, Buffer] = {}  # for the launches that add up
        for b in sums:
            own[b] = self.made_of(f"{b.name}_row", b.dtype, b.size, "row")
            left[b] = self.made_of(f"{b.name}_rows", b.dtype, b.size, ROWS)
        in_rows(loop.body, own)
        rows = {*self.private(loop), *own.values()}
        found = shared(loop, facts, self.uses, rows)
        if found is None:
            return None
        self.made += [*own.values(), *left.values()]
        loops, folds = found
        symbol, grid = self.symbol("grid")
        partial = [self.partial(f.dtype) for f in folds]
        rows |= set(left.values())
        group = folds, partial, rows, symbol, grid, SUMMED
        steps = self.form(BLOCKS, loops[:1], *group)
        launch = steps[-1]
        for b in sums:
            neutral = neutral_of(steps_of[b], b.dtype)
            assert neutral is not None
            launch.before.append(Fill(own[b], 0, b.size, neutral))
            launch.after.append(Move(left[b], 0, own[b], 0, b.size))
            steps += self.brought(b, steps_of[b], left[b], grid)
        if folds:
            steps.append(self.launch(TOGETHER, [Merge(folds, partial, grid)]))
        return steps

    def brought(self, b: Buffer, step: str, rows: Buffer, count: Dim) -> list[Step]:
        """Return the launch that folds rows into a buffer, a block for each element."""
        (column, j), (row, k) = self.symbol("j"), self.symbol("k")
        total = Reg(f"total_{next(self.numbers)}", b.dtype)
        more = Load(rows, dims.add(dims.mul(k, b.size), j), b.dtype)
        fold = Set(total.name, Apply(step, (total, more), b.dtype))
        body: list[Statement] = [
            Let(total.name, Load(b, j, b.dtype)),
            Loop(row, 0, count, 1, [fold]),
            Store(b, j, total),
        ]
        loop = Loop(column, 0, b.size, 1, body)
        return self.form(BLOCKS, [loop], [], [], (), *self.symbol("grid"))

    def private(self, loop: Loop) -> set[Buffer]:
        """Return the buffers that hold rows of an iteration."""
        inside = Counter(b for b, _ in touched(loop) if b.private)
        return {b for b, n in inside.items() if n == self.touches[b]}

    def form(
        self,
        how: str,
        loops: list[Loop],
        folds: list[Fold],
        partial: list[Buffer],
        own: Collection[Buffer],
        symbol: Symbol,
        grid: Dim,
        each: int = 1,
    ) -> list[Step]:
        """Return a launch, and before it the number of its blocks.

        A thread, or a block that shares out inner loops, does `each` iterations at
        least.
        """
        lanes = lanes_of(loops) if how == THREADS else None
        if how == THREADS:
            each = max(EACH if folds else 1, lanes.count if lanes else 1)
        blocks = blocks_of(dims.product(map(trips, loops)), how, each)
        for b in own:  # their rows together have bounds
            most = dims.maximum(dims.floordiv(ROOM, dims.maximum(b.size, 1)), FEWEST)
            blocks = dims.minimum(blocks, most)
        name, body = f"kernel{next(self.numbers)}", list(loops[-1].body)
        launch = Launch(name, how, body, self.uses, loops, grid, folds, partial, own)
        launch.lanes = lanes
        if how == BLOCKS:
            launch.length = inner_length(loops, flat=True) or 1
        return [Bind(symbol, at(blocks)), launch]

    def partial(self, dtype: DType) -> Buffer:
        b = self.made_of(f"f_{next(self.numbers)}", dtype, 4 * MOST, "arena")
        self.made.append(b)
        return b

    def made_of(self, name: str, dtype: DType, size: Dim, place: str) -> Buffer:
        self.p.scopes += 1
        return Buffer(name, dtype, size, place, self.p.scopes - 1)


def blocks_of(count: Dim, how: str, each: int) -> Dim:
    """Return how many blocks share iterations, at most MOST: sizes decide, no more."""
    each, most = (each, 4 * MOST) if how == BLOCKS else (each * THREADS_PER_BLOCK, MOST)
    return dims.minimum(dims.floordiv(dims.add(count, each - 1), each), most)


def in_loops(body: Sequence[Inner]) -> list[Inner]:
    """Return statements that have loops for products; see Note [products]."""
    out: list[Inner] = []
    for s in body:
        match s:
            case If() if any(map(is_product, s.then)):
                out += s.orelse
            case If():
                out.append(If(s.condition, in_loops(s.then), in_loops(s.orelse)))
            case Loop():
                out.append(replace(s, body=in_loops(s.body)))
            case While():
                out.append(While(in_loops(s.test), s.condition, in_loops(s.body)))
            case _:
                out.append(s)
    return out


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


def is_large(loop: Loop) -> bool:
    """Tell whether a loop may be worth a launch; sizes that are not known may be."""
    units = units_of([loop])
    return units is not None and not (isinstance(units, int) and units < SMALL)


def _is_short(size: Dim) -> bool:
    return isinstance(size, int) and size < SMALL


def _turned(todo: Sequence[Statement]) -> int:
    """Return how many statements belong together; see Note [exchanged memory]."""
    turned = _rotated(todo[0])
    if not turned or isinstance(todo[0], Rotate):
        return 1
    loops = [k for k, s in enumerate(todo) if not isinstance(s, Rotate)]
    last = [k for k in loops if _rotated(todo[k]) & turned]
    return last[-1] + 1


def _rotated(s: Statement) -> set[Buffer]:
    return {b for t in every([s]) if isinstance(t, Rotate) for b in t.buffers}
