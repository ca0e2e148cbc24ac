"""What a specialisation assumed, and its cheap recheck.

The sizes of the parameters are solved for the symbols, then every other dim and every
fact is checked. The check is generated as a Python function, since dims are Python
expressions already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..ir import dims
from ..ir.dims import Dim, Expr, Symbol
from ..ir.types import Shape

Matcher: TypeAlias = Callable[[Sequence[Any], Sequence[int]], dict[Symbol, int] | None]


def make_matcher(
    shapes: Sequence[Shape], ints: Sequence[Dim], facts: Sequence[Expr]
) -> Matcher:
    """Return a function of actual shapes and ints: values of the symbols, or None.

    >>> n = dims.symbol("n")
    >>> match = make_matcher([(n, 2)], [], [n - 3])
    >>> match([(5, 2)], []), match([(5, 1)], []), match([(2, 2)], [])
    ({Symbol(name='n'): 5}, None, None)
    """
    names: dict[Symbol, str] = {}  # names of our own: a symbol may be called anything
    given = [
        (d, f"shapes[{j}][{k}]")
        for j, shape in enumerate(shapes)
        for k, d in enumerate(shape)
    ]
    given += [(d, f"ints[{j}]") for j, d in enumerate(ints)]
    lines: list[str] = []
    later: list[tuple[str, str, Dim]] = []
    for d, text in given:
        s = dims.as_symbol(d)
        if s is not None and s not in names:
            names[s] = f"s{len(names)}"
            lines.append(f"    {names[s]} = {text}")
        else:
            later.append((text, "!=", d))
    later += [("0", ">", fact) for fact in facts]
    renamed = {s: dims.symbol(name) for s, name in names.items()}
    if later:
        checks = [f"{a} {op} {dims.substitute(d, renamed)}" for a, op, d in later]
        lines += [f"    if {' or '.join(checks)}:", "        return None"]
    pairs = ", ".join(f"_{name}: {name}" for name in names.values())
    lines.append(f"    return {{{pairs}}}")
    source = "\n".join(["def match(shapes, ints):", *lines, ""])
    scope: dict[str, Any] = {f"_{name}": s for s, name in names.items()}
    exec(compile(source, "<guards>", "exec"), scope)
    return scope["match"]  # type: ignore[no-any-return]
