"""Where variables live that kernels compute: in device memory, or read by the host.

A variable that one kernel assigns and another one reads has a *slot*, an element of
device memory. Where the host needs it, too (a size, a condition), it reads the slot
after each kernel that assigns the variable; kernels then get its value as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...ir import dims
from ...ir.types import DType
from ..emit import name_of
from ..nests import Buffer, If, Loop, Program, Reg, While
from .steps import (
    Inner,
    Launch,
    ReadBack,
    Step,
    all_of,
    assigned,
    needs,
    reads,
)


@dataclass(slots=True)
class Homes:
    """The variables of a plan: their dtypes, slots, and which the host reads back."""

    dtypes: dict[str, DType] = field(default_factory=dict)
    slots: dict[str, Buffer] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    by_host: set[str] = field(default_factory=set)  # names that the host reads, or sets


def homes_of(p: Program, plan: list[Step]) -> Homes:
    """Find the homes of all variables, and put `ReadBack` steps into the plan."""
    homes = Homes()
    for x in p.params:
        if isinstance(x, Reg):
            homes.dtypes[x.name] = x.dtype
    for s in all_of(plan):
        homes.dtypes.update(assigned(s))
    launches = [s for s in all_of(plan) if isinstance(s, Launch)]
    made = {name for launch in launches for name in _assigned(launch)}
    needed = {name for launch in launches for name in needs(launch)[0]}
    by_host = set(_by_host(plan))
    shapes = {d for r in p.results for d in r.shape}
    by_host |= {name_of(s) for d in shapes for s in dims.symbols_of(d)}
    results = {r.what.name for r in p.results if isinstance(r.what, Reg)}
    homes.by_host, homes.read = by_host, made & by_host
    for name in sorted(made & (needed | by_host | results)):
        p.scopes += 1
        slot = Buffer(f"x_{name}", homes.dtypes[name], 1, "slot", p.scopes - 1)
        homes.slots[name] = slot
    _read_back(plan, homes)
    return homes


def _assigned(launch: Launch) -> Iterator[str]:
    """Yield the variables that a kernel may leave to others."""
    if not launch.loops:
        yield from (name for s in all_of(launch.body) for name, _ in assigned(s))


def _by_host(plan: Sequence[Inner]) -> Iterator[str]:
    """Yield the names that the host reads or assigns."""
    for s in plan:
        match s:
            case Launch():
                for d in (s.grid, s.length):
                    yield from map(name_of, dims.symbols_of(d))
            case Loop() | While() | If():
                yield from reads(s)
                if isinstance(s, Loop):
                    yield from _by_host(s.body)
                elif isinstance(s, While):
                    yield from _by_host([*s.test, *s.body])
                else:
                    yield from _by_host([*s.then, *s.orelse])
            case _:
                yield from reads(s)
                yield from (name for name, _ in assigned(s))


def _read_back(plan: list[Step], homes: Homes) -> None:
    out: list[Step] = []
    for s in plan:
        out.append(s)
        match s:
            case Launch():
                names = sorted(set(_assigned(s)) & homes.read)
                if names:
                    out.append(ReadBack(names))
            case Loop():
                _read_back(s.body, homes)
            case While():
                _read_back(s.test, homes)
                _read_back(s.body, homes)
            case If():
                _read_back(s.then, homes)
                _read_back(s.orelse, homes)
    plan[:] = out
