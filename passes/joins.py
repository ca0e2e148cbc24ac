"""Write the parts of a joined array where they belong.

    %y: f64[n] = sin %x                   %e: f64[n + m] = empty {...}
    %z: f64[n + m] = concatenate %y, %w   %y: f64[n] = sin %x
                                          %a: f64[n + m] = slice_scatter %e, %y, 0
                                          %z: f64[n + m] = slice_scatter %a, %w, n

After it the passes know what a part is: `fuse` computes it in the nest that writes it,
a product is lowered into its place, and `reinplace` writes all parts into one array. A
join stays as it is where a part is not proven to lie inside, which cannot happen to
sizes that are sums of others.
"""

from __future__ import annotations

from typing import Any

from ..ir import dims
from ..ir.access import conditions
from ..ir.dims import Dim
from ..ir.func import Func, Node, type_of, walk
from ..ir.op import Kind
from .rules import Definition
from .scope import ScopedBuilder
from .simplify import Rewriter


def joins(f: Func) -> Func:
    """Return a pure Func in which joins are writes of their parts."""
    if f.stage == "traced" or all(n.op.kind is not Kind.JOIN for n in walk(f.body)):
        return f
    return Rewriter(f, {}, (written,)).func(f)


def written(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return a join as writes into an array that holds nothing yet."""
    if node.op.kind is not Kind.JOIN:
        return None
    t, axis = node.result.type, node.attrs["axis"]
    out = b.empty(shape=t.shape, dtype=t.dtype)
    start: Dim = 0
    for x in node.operands:
        size = type_of(x).shape[axis]
        out = b.slice_scatter(out, x, start, axis=axis, size=size, step=1)
        if any(True for _ in conditions(b.nodes[-1], b.facts)):
            return None
        start = dims.add(start, size)
    return out
