"""Compute a result that is a view of another value where the caller gets it.

Before: a pure Func. After: the same values. A result that shows an elementwise value in
another order, or with another shape, would be a copy at the end; it becomes a write
into new memory, which `fuse` puts into the nest that computes the value.

    %t: f64[l,k] = tanh %a                %t: f64[l,k] = tanh %a
    %y: f64[k,l] = transpose %t           %e: f64[k,l] = empty {...}
    return %y                             %y: f64[k,l] = transpose_scatter %e, %t

Note [passes]
A loop that stores with long steps has no vector instructions. That is no loss where a
value is computed by a few operations; where it takes an exp, twice the time is more
than that of another pass, so the value is stored as it is, and read by a nest of its
own: loops over both by tiles (1e6 elements, tanh: 5.3 ms against 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..ir.build import names_in
from ..ir.func import Func, Node, Operand, Value, type_of
from ..ir.op import OPS, Kind, Op
from ..ir.types import Type
from .dce import dce
from .scope import ScopedBuilder

COSTLY = 8  # of an elementwise op: an elementary function


def _transposed_back(attrs: Mapping[str, Any], base: Type) -> dict[str, Any]:
    axes = attrs["axes"]
    return {"axes": tuple(axes.index(k) for k in range(len(axes)))}


def _reshaped_back(attrs: Mapping[str, Any], base: Type) -> dict[str, Any]:
    return {"shape": base.shape}


def _same(attrs: Mapping[str, Any], base: Type) -> dict[str, Any]:
    return dict(attrs)


# A view of a whole array, what gives back the array, and its attributes.
Inverse = tuple[Op, Callable[[Mapping[str, Any], Type], dict[str, Any]]]
INVERSES: dict[Op, Inverse] = {
    OPS["transpose"]: (OPS["transpose"], _transposed_back),
    OPS["reshape"]: (OPS["reshape"], _reshaped_back),
    OPS["expand_dims"]: (OPS["squeeze"], _same),
    OPS["squeeze"]: (OPS["expand_dims"], _same),
    OPS["flip"]: (OPS["flip"], _same),
}


def results(f: Func) -> Func:
    """Return `f` with results that are views of computed values written as such.

    >>> from ..ir.text import parse
    >>> print(results(parse('''func @f(%x: f64[n,m]) -> f64[m,n] {
    ...   %y: f64[n,m] = negative %x
    ...   %z: f64[m,n] = transpose %y {axes=(1, 0)}
    ...   return %z
    ... }''')))
    func @f(%x: f64[n,m]) -> f64[m,n] {
      %y: f64[n,m] = negative %x
      %t: f64[m,n] = empty {dtype=f64, shape=(m, n)}
      %z.1: f64[m,n] = transpose_scatter %t, %y {axes=(1, 0)}
      return %z.1
    }
    """
    maker = {v: n for n in f.nodes for v in n.results}
    updated = {f.results[i] for i, _ in f.updates}  # in place, it would need no copy
    found = [
        x
        for x in f.results
        if isinstance(x, Value) and x not in updated and _chain(x, maker)
    ]
    if f.stage == "traced" or not found:
        return f
    b = ScopedBuilder(f, names_in(f))
    for n in f.nodes:
        b.append(n)
    new: dict[Operand, Operand] = {}
    for x in dict.fromkeys(found):
        new[x] = _written(b, x, maker)
    given = tuple(new.get(x, x) for x in f.results)
    return dce(replace(f, body=b.finish(f.params, given)))


def _chain(x: Value, maker: Mapping[Value, Node]) -> list[Node]:
    """Return the views that lead from a result to an elementwise value, if they do."""
    chain: list[Node] = []
    node = maker.get(x)
    while node is not None and node.op in INVERSES:
        chain.append(node)
        base = node.operands[0]
        node = maker.get(base) if isinstance(base, Value) else None
    return chain if node is not None and node.op.kind is Kind.ELEMENTWISE else []


def _written(b: ScopedBuilder, x: Value, maker: Mapping[Value, Node]) -> Any:
    """Write the value that views start from into new memory, through their inverses."""
    chain = _chain(x, maker)
    value = chain[-1].operands[0]
    if _moves(chain) and x.type.dtype.kind != "b" and _is_costly(value, maker):
        return b.apply(OPS["positive"], (x,), {}, hint=x.name)
    target: Any = b.empty(shape=x.type.shape, dtype=x.type.dtype)
    steps = []
    for view in chain:
        op, attrs = INVERSES[view.op]
        steps.append((op, attrs(view.attrs, type_of(view.operands[0]))))
    return _put(b, target, value, steps, x.name)


def _moves(chain: list[Node]) -> bool:
    """Tell whether views change which elements lie side by side."""
    return any(n.op is OPS["transpose"] for n in chain)


def _is_costly(x: Operand, maker: Mapping[Value, Node]) -> bool:
    """Tell whether a value takes an elementary function; see Note [passes]."""
    stack, seen = [x], {x}
    while stack:
        y = stack.pop()
        node = maker.get(y) if isinstance(y, Value) else None
        if node is None or node.op.kind is not Kind.ELEMENTWISE:
            continue
        if node.op.cost >= COSTLY:
            return True
        stack += [z for z in node.operands if z not in seen]
        seen.update(node.operands)
    return False


def _put(b: ScopedBuilder, base: Any, new: Operand, steps: Any, name: str) -> Any:
    """Write into a view of a view: each but the last is written back in turn."""
    (op, attrs), *inner = steps
    if inner:
        part = b.apply(op, (base,), attrs)
        new = _put(b, part, new, inner, name)
    assert op.scatter is not None
    return b.apply(OPS[op.scatter], (base, new), attrs, hint=name)
