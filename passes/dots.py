"""Make products of vectors sums, and results that are parameters copies in a nest.

Before: a pure Func. After: the same values. A product of two float vectors is a pass
over both, like any sum of a product; as one it is fused with what computes the vectors,
and with other passes over them. The derivative of `x @ y` in x is y itself: a result
that is a parameter is copied by the nest that reads it, if one does.

    %t: f64 = matmul %x, %y               %m: f64[n] = multiply %x, %y
    return %t, %y                         %t: f64 = sum %m {axis=(0,)}
                                          %r: f64[n] = positive %y
                                          return %t, %r
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..ir.build import names_in
from ..ir.func import Func, Node, Operand, Value, type_of, walk
from ..ir.op import OPS, Kind
from .rules import Definition
from .scope import ScopedBuilder
from .simplify import Rewriter

POSITIVE = OPS["positive"]
NESTS = (Kind.ELEMENTWISE, Kind.REDUCTION)


def dots(f: Func) -> Func:
    """Return a pure Func in which products of vectors are sums.

    >>> from ..ir.text import parse
    >>> print(dots(parse('''func @f(%x: f64[n], %y: f64[n]) -> (f64, f64[n]) {
    ...   %t: f64 = matmul %x, %y
    ...   return %t, %y
    ... }''')))
    func @f(%x: f64[n], %y: f64[n]) -> (f64, f64[n]) {
      %t.1: f64[n] = multiply %x, %y
      %t: f64 = sum %t.1 {axis=(0,), keepdims=False}
      %y.1: f64[n] = positive %y
      return %t, %y.1
    }
    """
    if f.stage == "traced":
        return f
    if any(_is_dot(n) for n in walk(f.body)):
        f = Rewriter(f, {}, (summed,)).func(f)
    return _copied(f)


def _is_dot(n: Node) -> bool:
    if n.op.kind is not Kind.CONTRACTION or n.result.type.dtype.kind != "f":
        return False
    return all(type_of(x).ndim == 1 for x in n.operands)


def summed(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return a product of vectors as the sum of their products."""
    if not _is_dot(node):
        return None
    return b.sum(b.multiply(*node.operands), axis=(0,), keepdims=False)


def _copied(f: Func) -> Func:
    """Let the nests that read parameters copy those that are results."""
    updated = {i for i, _ in f.updates}
    read = {x for n in f.nodes if n.op.kind in NESTS for x in n.operands}
    b = ScopedBuilder(f, names_in(f))
    for n in f.nodes:
        b.append(n)
    results: list[Operand] = []
    for i, x in enumerate(f.results):
        plain = isinstance(x, Value) and x in f.params and x.type.dtype.kind == "f"
        if plain and i not in updated and x in read and type_of(x).shape:
            assert isinstance(x, Value)
            x = b.apply(POSITIVE, (x,), {}, hint=x.name)
        results.append(x)
    if tuple(results) == f.results:
        return f
    return replace(f, body=b.finish(f.params, tuple(results)))
