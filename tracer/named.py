"""What the code of a function names: variables, attributes of modules, identities."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from weakref import WeakKeyDictionary

# Python's ways to a variable by its name as a string.
BY_STRING = frozenset(
    ("getattr", "setattr", "globals", "vars", "attrgetter", "__dict__")
)
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
STORES = ("STORE_GLOBAL", "STORE_DEREF")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside it: lambdas, comprehensions, functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@dataclass(frozen=True, slots=True)
class Named:
    """What a code object names, with those inside it.

    `names` are globals and attributes, also those that strings may be; `chains` the
    variables that are loaded, with the attributes that follow at once; `stored` the
    globals and variables of outer functions that are bound. `compares` tells whether
    code asks if two objects, none of them a constant, are one.
    """

    names: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    stored: frozenset[str]
    compares: bool


_NAMED: WeakKeyDictionary[CodeType, Named] = WeakKeyDictionary()


def named(code: CodeType) -> Named:
    """Return what code names; it is read once, which takes as long as a small trace."""
    found = _NAMED.get(code)
    if found is None:
        found = _NAMED[code] = _read(list(codes(code)))
    return found


def _read(every: list[CodeType]) -> Named:
    chains: set[tuple[str, ...]] = set()
    stored: set[str] = set()
    compares = any("id" in c.co_names for c in every)
    for c in every:
        chain: tuple[str, ...] = ()
        before = ""
        for step in dis.get_instructions(c):
            name = step.opname
            if name in LOADS:
                chain = (step.argval,)
                chains.add(chain)
            elif chain and name in ("LOAD_ATTR", "LOAD_METHOD"):
                chain = (*chain, step.argval)
                chains.add(chain)
            else:
                chain = ()
            if name in STORES:
                stored.add(step.argval)
            compares |= name == "IS_OP" and not before.startswith("LOAD_CONST")
            before = name
    return Named(_names(every), frozenset(chains), frozenset(stored), compares)


def _names(every: list[CodeType]) -> frozenset[str]:
    found = {name for c in every for name in c.co_names}
    if found & BY_STRING:
        texts = (x for c in every for x in c.co_consts if isinstance(x, str))
        found.update(filter(str.isidentifier, texts))
    return frozenset(found)
