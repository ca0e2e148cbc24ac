"""What the code of a function names: variables, attributes of modules, identities."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

# Python's ways to a variable by its name as a string.
BY_STRING = frozenset(
    ("getattr", "setattr", "globals", "vars", "attrgetter", "__dict__")
)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside it: lambdas, comprehensions, functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes, also those that strings may be."""
    every = list(codes(code))
    found = {name for c in every for name in c.co_names}
    if found & BY_STRING:
        texts = (x for c in every for x in c.co_consts if isinstance(x, str))
        found.update(filter(str.isidentifier, texts))
    return found


def chains(code: CodeType) -> set[tuple[str, ...]]:
    """Return the variables that code loads, with the attributes that follow at once."""
    found: set[tuple[str, ...]] = set()
    for c in codes(code):
        chain: tuple[str, ...] = ()
        for step in dis.get_instructions(c):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                chain = (step.argval,)
            elif chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                chain = (*chain, step.argval)
            else:
                chain = ()
                continue
            found.add(chain)
    return found


def compares_identity(code: CodeType) -> bool:
    """Tell whether code asks if two objects, none of them a constant, are one."""
    for c in codes(code):
        if "id" in c.co_names:
            return True
        before = ""
        for step in dis.get_instructions(c):
            if step.opname == "IS_OP" and not before.startswith("LOAD_CONST"):
                return True
            before = step.opname
    return False


def stored(code: CodeType) -> set[str]:
    """Return the globals and variables of outer functions that code binds."""
    stores = ("STORE_GLOBAL", "STORE_DEREF")
    return {
        step.argval
        for c in codes(code)
        for step in dis.get_instructions(c)
        if step.opname in stores
    }
