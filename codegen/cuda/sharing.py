"""Print loops whose iterations are given to threads.

Thread `me` of a team takes the iterations me, me + team, me + 2*team and so on.

Note [indices without division]
Loops that are given out together are one loop of so many iterations as all have. A
thread takes the number of its first iteration apart, and the distance to the next one;
from then on it adds digit by digit, as an odometer does: a division in each iteration
would take longer than many a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...ir.types import BOOL
from ..chains import QUOTIENT
from ..emit import Emitter, name_of
from ..invariants import Invariants
from ..nests import (
    Apply,
    Buffer,
    Check,
    If,
    Lit,
    Load,
    Loop,
    Program,
    Rotate,
    Scalar,
    Statement,
)
from .lanes import WideLoad, WideStore, chooses, in_lanes, lane
from .share import trips
from .steps import Lanes, Launch, all_of, meet, roots


class Sharing(Emitter):
    """Prints shared loops and what reads memory, of the kernel of one launch."""

    def __init__(self, p: Program, invariants: Invariants, launch: Launch) -> None:
        super().__init__(p)
        self.invariants = invariants
        self.launch = launch
        self.alone = False
        self.changed = roots([launch], True) | {
            b for s in all_of(launch.body) if isinstance(s, Rotate) for b in s.buffers
        }

    # Memory -----------------------------------------------------------------------

    def reader(self, b: Buffer) -> str:
        """Return the name of what loads from a buffer."""
        return "load" if meet([b.eldest()], self.changed) else "load_constant"

    def scalar(self, x: Scalar) -> str:
        if isinstance(x, Load):
            b = x.buffer
            return f"{self.reader(b)}(p_{b.name}, {self.offset(x.offset)})"
        if chooses(x):
            condition, one, other = map(self.scalar, x.args)
            return f"({one} if {condition} else {other})"  # that may not be written yet
        if isinstance(x, Apply) and x.template == QUOTIENT:
            return f"quotient({', '.join(map(self.scalar, x.args))})"
        return super().scalar(x)

    def several(self, s: WideLoad | WideStore, indent: str) -> Iterator[str]:
        where = f"p_{s.buffer.name}, {self.offset(s.offset)}"
        if isinstance(s, WideLoad):
            name = f"{self.reader(s.buffer)}_{s.count}"
            yield f"{indent}{s.name} = {name}({where})"
            for k in range(s.count):
                yield f"{indent}{lane(s.name, k)} = {s.name}[{k}]"
        else:
            values = ", ".join(map(self.scalar, s.values))
            yield f"{indent}store_{len(s.values)}({where}, {values})"

    # Loops ------------------------------------------------------------------------

    def shared_loops(
        self,
        loops: Sequence[Loop],
        indent: str,
        first: str,
        step: str,
        lanes: Lanes | None = None,
    ) -> Iterator[str]:
        """Give the iterations of loops, taken as one, to threads."""
        loop = replace(loops[-1], body=guarded(loops[-1].body))
        counts = [self.text(trips(x)) for x in loops]
        total = "*".join(f"({c})" for c in counts)
        q = f"q_{name_of(loop.index)}"
        alone, self.alone = self.alone, True
        if lanes is not None:
            n, wide = lanes.count, f"wide_{name_of(loop.index)}"
            yield f"{indent}{wide} = {total} >> {n.bit_length() - 1}"
            if lanes.starts:
                starts = " | ".join(f"({self.text(d)})" for d in lanes.starts)
                yield f"{indent}if ({starts}) & {n - 1}:"
                yield f"{indent}    {wide} = 0"
            several = replace(loop, body=in_lanes(loop, lanes), block=loop.block // n)
            yield f"{indent}{q} = {first}"
            number = self.started(loop, f"{n}*{q}")
            head = [f"{name_of(loop.index)} = {number}"]
            yield from self.rounds(several, indent, q, wide, step, head, [])
            first = f"{first} + {n}*{wide}"
        yield f"{indent}{q} = {first}"
        start, head, tail = self.digits(loops, counts, q, step)
        yield from (indent + line for line in start)
        yield from self.rounds(loop, indent, q, total, step, head, tail)
        self.alone = alone

    def rounds(
        self,
        loop: Loop,
        indent: str,
        q: str,
        total: str,
        step: str,
        head: Sequence[str],
        tail: Sequence[str],
    ) -> Iterator[str]:
        """Print the iterations of one thread, from `q` on."""
        deeper = indent + "    "
        yield f"{indent}while {q} < {total}:"
        if loop.block:
            yield from self.lines(loop.opening, deeper)
            stop = f"stop_{name_of(loop.index)}"
            yield f"{deeper}{stop} = min({q} + {step}*{loop.block}, {total})"
            yield f"{deeper}while {q} < {stop}:"
            yield from self.round(loop, deeper + "    ", q, step, head, tail)
            yield from self.lines(loop.closing, deeper)
        else:
            yield from self.round(loop, deeper, q, step, head, tail)

    def round(
        self,
        loop: Loop,
        indent: str,
        q: str,
        step: str,
        head: Sequence[str],
        tail: Sequence[str],
    ) -> Iterator[str]:
        yield from (indent + line for line in head)
        yield from self.lines(loop.body, indent)
        yield f"{indent}{q} += {step}"
        yield from (indent + line for line in tail)

    def digits(
        self, loops: Sequence[Loop], counts: Sequence[str], q: str, step: str
    ) -> tuple[list[str], list[str], list[str]]:
        """Return what stands before the loop, and at the start and end of its body.

        See Note [indices without division].
        """
        if len(loops) == 1:
            (loop,) = loops
            return [], [f"{name_of(loop.index)} = {self.started(loop, q)}"], []
        names = [name_of(x.index) for x in loops]
        pairs = [
            (names[k - 1], names[k], counts[k]) for k in range(len(loops) - 1, 0, -1)
        ]
        start, tail = list[str](), [f"d_{names[-1]} += e_{names[-1]}"]
        for x, number in (("d", q), ("e", step)):
            for outer, i, count in pairs:
                high = f"{x}_{outer}"
                start.append(f"{high} = divide({number}, {count})")
                start.append(f"{x}_{i} = {number} - {high}*({count})")
                number = high
        for outer, i, count in pairs:
            tail += [
                f"d_{outer} += e_{outer}",
                f"if d_{i} >= {count}:",
                f"    d_{i} -= {count}",
                f"    d_{outer} += 1",
            ]
        head = [
            f"{i} = {self.started(x, f'd_{i}')}"
            for i, x in zip(names, loops, strict=True)
        ]
        return start, head, tail

    def started(self, loop: Loop, number: str) -> str:
        """Return the index of an iteration by its number."""
        start = self.text(loop.start)
        if loop.step == 1:
            return number if loop.start == 0 else f"{start} + {number}"
        return f"{start} + {loop.step}*({number})"


def guarded(body: Sequence[Statement]) -> list[Statement]:
    """Return statements of which what follows a check is left out where it fails."""
    out: list[Statement] = []
    for k, s in enumerate(body):
        if isinstance(s, Check):
            failed: list[Statement] = [Check(Lit(True, BOOL), s.code)]
            return [*out, If(s.bad, failed, guarded(body[k + 1 :]))]
        match s:
            case Loop():
                s = replace(s, body=guarded(s.body))
            case If():
                s = If(s.condition, guarded(s.then), guarded(s.orelse))
        out.append(s)
    return out
