"""Plans as one flat function: the shortest way from a call to the compiled entry.

Note [flat plans]
A plan looks its kernel up by the kind of the arguments and hands them through three
functions. When it serves for the second time, one function is written that does all of
it for calls of that kind: it compares each argument with what the kind says, reads what
else the program takes for granted, allocates the results and calls the native entry. It
asks exactly what the plan asks, in one place of text per question; whatever it cannot
ask in a line makes it return `MISS`, and the call goes the longer way. Arguments that
the binder would copy go that way, too: here they must be aligned and in C order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.nests import OTHER
from ..runtime.devices import ARRAYS, DeviceArray
from ..runtime.pool import ALIGNED, LARGE, WRITEABLE
from .specialisation import Specialisation, captured_kind
from .state import MISSING, Place, stands_for

if TYPE_CHECKING:
    from ..codegen.recipe import Caller

MISS = object()  # what a plan returns that does not hold
PAIRS = 4  # arrays that are compared with each other one by one
Flat = Callable[[tuple[Any, ...]], Any]

# What reading a captured place raises where nothing is.
GONE = (LookupError, AttributeError, TypeError, ValueError)


def never(args: tuple[Any, ...]) -> Any:
    """Stand for a flat plan where there is none."""
    return MISS


class _Writer:
    """Collects the lines of one function, and the objects that they name."""

    def __init__(self, spec: Specialisation, caller: Caller) -> None:
        self.spec = spec
        self.caller = caller
        self.space: dict[str, Any] = {}
        self.lines: list[str] = []
        self.arrays: list[str] = []
        self.spaces: dict[int, str] = {}  # namespaces of modules, by identity
        self.leaves = self.containers = 0
        # Leaves that the kernel takes are called as its caller calls them.
        self.names = dict(zip(spec.arguments, caller.params, strict=False))

    def keep(self, x: Any) -> str:
        """Return a name for an object."""
        name = f"k{len(self.space)}_"
        self.space[name] = x
        return name

    def unless(self, bad: str) -> None:
        self.lines += [f"if {bad}:", "    return MISS"]

    def leaf(self, name: str, x: Any) -> None:
        """Ask whether a variable holds what has the kind of `x`."""
        cls = type(x)
        if cls is np.ndarray:
            bits = ALIGNED
            if name in [self.caller.params[k] for k in self.caller.written]:
                bits |= WRITEABLE
            self.unless(
                f"type({name}) is not ndarray or {name}.dtype is not "
                f"{self.keep(x.dtype)} or {name}.shape != {self.keep(x.shape)} or "
                f"{name}.flags.num & {bits} != {bits}"
            )
        elif cls is DeviceArray:
            written = name in [self.caller.params[k] for k in self.caller.written]
            self.unless(
                f"type({name}) is not {self.keep(cls)} or {name}.shape != "
                f"{self.keep(x.shape)} or {name}.dtype is not {self.keep(x.dtype)} or "
                f"{name}.place is not {self.keep(x.place)} or not {name}.ready"
                + (f" or not {name}.writable" if written else "")
            )
        elif cls in (int, bool, str, type(None)):
            self.unless(f"type({name}) is not {self.keep(cls)} or {name} != {x!r}")
        else:
            self.unless(f"type({name}) is not {self.keep(cls)}")

    def named(self, parts: Sequence[Any]) -> list[tuple[str, Any, Any]]:
        """Name values, depth first as `kind_of` counts leaves; with their parts."""
        out: list[tuple[str, Any, Any]] = []
        for x in parts:
            if isinstance(x, tuple | list | dict):
                self.containers += 1
                name = f"c{self.containers}"
                inside = x.values() if isinstance(x, dict) else x
                out.append((name, x, self.named(list(inside))))
            else:
                name = self.names.get(self.leaves, f"v{self.leaves}")
                self.leaves += 1
                if type(x) in ARRAYS:
                    self.arrays.append(name)
                out.append((name, x, None))
        return out

    def unpack(self, name: str, parts: Sequence[tuple[str, Any, Any]]) -> None:
        """Take a sequence apart, and ask about its parts."""
        if parts:
            names = ", ".join(n for n, _, _ in parts)
            self.lines += ["try:", f"    {names}, = {name}"]
            self.lines += ["except ValueError:", "    return MISS"]
        else:
            self.unless(f"len({name})")
        for n, x, inside in parts:
            if inside is None:
                self.leaf(n, x)
                continue
            self.unless(f"type({n}) is not {self.keep(type(x))}")
            if isinstance(x, dict):
                keys = self.keep((*x, *map(type, x)))
                self.unless(f"(*{n}, *map(type, {n})) != {keys}")
                self.lines.append(f"{n} = {n}.values()")
            self.unpack(n, inside)

    def distinct(self) -> None:
        """Ask whether no two arguments are one array."""
        names = self.arrays
        if len(names) > PAIRS:
            ids = ", ".join(f"id({n})" for n in names)
            self.unless(f"len({{{ids}}}) != {len(names)}")
        elif len(names) > 1:
            pairs = [f"{a} is {b}" for k, a in enumerate(names) for b in names[:k]]
            self.unless(" or ".join(pairs))

    def state(self) -> None:
        """Ask what `Specialisation.knows_state` asks."""
        spec = self.spec
        simple = not (spec.structures or spec.aliases or spec.rests)
        known = (*spec.constants, *spec.functions, *spec.unused)
        if not simple or any(x is MISSING for _, x in known):
            self.unless(f"not {self.keep(spec.knows_state)}()")
            return
        if not (known or spec.fixed):
            return
        self.lines.append("try:")
        if spec.fixed:
            bad = " or ".join(itertools.starmap(self.differs, spec.fixed))
            self.lines += [f"    if {bad}:", "        return MISS"]
        for k, (place, x) in enumerate(known):
            now, then = self.now(place), self.keep(x)
            if k >= len(spec.constants) + len(spec.functions):
                bad = f"captured_kind({now}) != {then}"
            elif k >= len(spec.constants):
                if stands_for(x) is not x or place.get() is not x:
                    now = f"stands_for({now})"
                bad = f"{now} is not {then}"
            else:
                self.lines.append(f"    now = {now}")
                bad = f"now is not {then} and (type(now) is not type({then}) "
                bad += f"or now != {then})"
            self.lines += [f"    if {bad}:", "        return MISS"]
        self.lines += ["except GONE:", "    return MISS"]

    def differs(self, names: dict[str, Any], name: str, x: Any) -> str:
        """Return the question whether a name of a module means something else."""
        space = self.spaces.setdefault(id(names), "") or self.keep(names)
        self.spaces[id(names)] = space
        if x is MISSING:
            return f"{name!r} in {space}"
        return f"{space}[{name!r}] is not {self.keep(x)}"

    def now(self, place: Place) -> str:
        """Return the expression that reads a captured place."""
        cell = isinstance(place.root, CellType)
        text = self.keep(place.root) + (".cell_contents" if cell else "")
        for kind, key in place.steps:
            text += f".__dict__[{key!r}]" if kind == "attr" else f"[{key!r}]"
        return text

    def captured(self, captured: Sequence[tuple[Place, Any]]) -> None:
        """Read captured variables, and ask for their kinds."""
        start = len(self.spec.arguments)
        for name, (place, x) in zip(self.caller.params[start:], captured, strict=True):
            self.lines += ["try:", f"    {name} = {self.now(place)}"]
            self.lines += ["except GONE:", "    return MISS"]
            self.leaf(name, x)

    def call(self) -> None:
        """Write what `Caller` says of arguments that need no copy."""
        caller = self.caller
        if caller.written:
            values = ", ".join(caller.params)
            self.unless(f"{self.keep(self.spec.overlapping)}(({values},))")
        self.lines += [f"g{k} = a{k}" for k in caller.written]
        self.lines += caller.body
        if caller.fits:
            self.unless(f"status == {OTHER}")
        self.lines += caller.checks


def make_flat(
    spec: Specialisation,
    args: tuple[Any, ...],
    captured: Sequence[tuple[Place, Any]],
    symbols: Sequence[int],
    kernel: Any,
    result: Callable[[Sequence[str]], str],
) -> Flat:
    """Return a function that runs calls of the kind of `args`, or else `MISS`.

    `captured` are places with what they hold now; `result` writes the expression of the
    function's result, of those of the kernel's results.
    """
    caller: Caller = kernel.caller
    w = _Writer(spec, caller)
    w.unpack("given", w.named(args))
    w.distinct()
    w.state()
    w.captured(captured)
    w.call()
    leaves: list[Any] = []
    _leaves(args, leaves)
    values = [leaves[j] for j in spec.arguments] + [x for _, x in captured]
    given = [type(values[k]) in ARRAYS for k in caller.arrays]
    in_order = all(at == "C" for _, at in spec.layouts)  # as all arrays are here
    if not in_order or not all(given) or len(w.names) != len(spec.arguments):
        return never
    space = {**kernel.space, **w.space}
    space.update(MISS=MISS, GONE=GONE, stands_for=stands_for)
    space.update(captured_kind=captured_kind)
    space.update(zip(caller.symbols, symbols, strict=True))
    space.update((s, values[k].shape[axis]) for s, k, axis in caller.sizes)
    space.update(_allocators(caller, space))
    # Each is made once, also where the function returns it twice.
    names = [f"result{k}_" for k in range(len(caller.results))]
    made = zip(names, caller.results, strict=True)
    lines = [*w.lines, *(f"{r} = {x}" for r, x in made), f"return {result(names)}"]
    text = "\n".join(["def flat(given):", *(f"    {line}" for line in lines)])
    exec(compile(text, f"<plan of {spec.program.func.name}>", "exec"), space)
    return space["flat"]  # type: ignore[no-any-return]


def _leaves(x: Any, out: list[Any]) -> None:
    if isinstance(x, tuple | list | dict):
        for y in x.values() if isinstance(x, dict) else x:
            _leaves(y, out)
    else:
        out.append(x)


def _allocators(caller: Caller, space: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield NumPy's own allocator for results that no pool would keep."""
    for name, dtype, shape in caller.allocated:
        try:
            size = math.prod(eval(shape, dict(space)))
        except NameError:  # only the run tells
            continue
        if size * np.dtype(dtype).itemsize < LARGE:
            yield f"empty_{name}", np.empty
