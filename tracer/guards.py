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
    bound: dict[Symbol, str] = {}
    lines: list[str] = []
    later: list[str] = []
    values = [
        (d, f"s[{j}][{k}]")
        for j, shape in enumerate(shapes)
        for k, d in enumerate(shape)
    ]
    values += [(d, f"i[{j}]") for j, d in enumerate(ints)]
    for d, text in values:
        s = dims.as_symbol(d)
        if s is not None and s not in bound:
            bound[s] = s.name
            lines.append(f"    {s.name} = {text}")
        else:
            later.append(f"{text} != {d}")
    later += [f"{fact} < 0" for fact in facts]
    known = set(bound)
    checks = later
    body = "\n".join(lines)
    if checks:
        body += f"\n    if {' or '.join(checks)}:\n        return None"
    pairs = ", ".join(f"_{k}: {s.name}" for k, s in enumerate(known))
    source = f"def match(s, i):\n{body}\n    return {{{pairs}}}\n"
    scope: dict[str, Any] = {f"_{k}": s for k, s in enumerate(known)}
    exec(compile(source, "<guards>", "exec"), scope)
    return scope["match"]  # type: ignore[no-any-return]
