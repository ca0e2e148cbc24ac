"""Put the nodes of checkpoint regions in place of the regions.

Before: a pure Func, after `fuse`. After: the same values, without checkpoints. A region
keeps what is computed twice, once forward and again for the reverse, apart from each
other for as long as passes merge and group nodes; after them it has done its work.

    %r: f64[n] = checkpoint {               %y: f64[n] = sin %x
      %y: f64[n] = sin %x                   %z: f64[n] = cos %r
      yield %y                              (with %y for %r)
    }
    %z: f64[n] = cos %r
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import dims
from ..ir.build import IRBuilder, names_in
from ..ir.func import Block, Copier, Func, Node, Operand, type_of
from ..ir.op import Kind
from ..ir.types import Type
from .scope import defined_symbol, definers, symbols_in


def inline(f: Func) -> Func:
    """Return `f` with the nodes of checkpoints in place of them.

    >>> from ..ir.text import parse
    >>> print(inline(parse('''func @f(%x: f64) -> f64 {
    ...   %r: f64 = checkpoint {
    ...     %y: f64 = sin %x
    ...     yield %y
    ...   }
    ...   %z: f64 = cos %r
    ...   return %z
    ... }''')))
    func @f(%x: f64) -> f64 {
      %y: f64 = sin %x
      %z: f64 = cos %y
      return %z
    }
    """
    return replace(f, body=_Inliner(f).block(f.body))


class _Inliner(Copier):
    def __init__(self, f: Func) -> None:
        super().__init__()
        self.b = IRBuilder(tuple(names_in(f)))
        self.definers = definers(f)
        self.taken = symbols_in(f)
        self.defined: set[str] = set()  # by nodes that stand in the result so far

    def block(self, b: Block) -> Block:
        params = tuple(map(self.define, b.params))
        with self.b.block() as nodes:
            self.nodes(b)
        return Block(params, tuple(nodes), tuple(map(self.operand, b.results)))

    def nodes(self, b: Block) -> None:
        for n in b.nodes:
            if n.op.kind is not Kind.CHECKPOINT:
                self.rename(n)
                self.b.append(self.node(n))
                continue
            (region,) = n.regions
            outer = dict(self.symbols)
            self.nodes(region)
            self.b.loc = n.loc
            for v, x in zip(n.results, region.results, strict=True):
                t = v.type.substitute(self.symbols)
                self.values[v] = self.marked(self.operand(x), t)
            self.symbols = outer

    def marked(self, x: Operand, t: Type) -> Operand:
        """Return `x` with the marks of `t`: a region may yield a number as a scalar."""
        if type_of(x) == t:
            return x
        if t.weak:
            return self.b.number(x)  # type: ignore[no-any-return]
        if t.scalar and not type_of(x).scalar:
            return self.b.item(x)  # type: ignore[no-any-return]
        array = self.b.full(x, shape=(), dtype=t.dtype)
        return self.b.item(array) if t.scalar else array  # type: ignore[no-any-return]

    def rename(self, n: Node) -> None:
        """Give a symbol another name where two regions defined the same one."""
        s = defined_symbol(n)
        if s is None or n not in self.definers:
            return
        name, k = s.name, 0
        while name in (self.defined if k == 0 else self.taken):
            k += 1
            name = f"{s.name}{k}"
        self.defined.add(name)
        self.taken.add(name)
        if name != s.name:
            self.symbols[s] = dims.symbol(name)
