"""Split a `for` into a loop over blocks, each of them a checkpoint.

The reverse of the outer loop saves its carries where a block starts, and that of a
block one block of the tape:

    %r = for i in 0..n carry(%p = %x) { ... yield %y }

    %r = for block in 0..-((-n)//8) carry(%q = %x) {
      %s = checkpoint {
        %t = for i in 8*block..min(n, 8*block + 8) carry(%p = %q) {most=8} { ... }
        yield %t
      }
      yield %s
    }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Dim, Strict
from ..ir.func import Block, Func, Node, Operand, Value, walk
from ..ir.op import OPS
from .ranges import Range
from .scope import ScopedBuilder, fresh_symbol, symbols_in, with_operands
from .vjp import replaced


def split_loops(f: Func, sizes: Mapping[Node, Sequence[Dim]]) -> tuple[Func, Parts]:
    """Return `f` with loops in blocks, and which loops each of them became.

    `sizes` gives for a loop the iterations of an innermost block, then how many blocks
    make a larger one, and so on.
    """
    splitter = _Splitter(f, sizes)
    with dims.deciding(Strict(splitter.b.facts)):
        body = splitter.block(f.body)
    return replace(f, body=body), splitter.parts


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Divide and round up."""
    return dims.mul(dims.floordiv(dims.mul(a, -1), b), -1)


Parts = dict[Node, list[Node]]  # innermost first


class _Splitter:
    def __init__(self, f: Func, sizes: Mapping[Node, Sequence[Dim]]) -> None:
        self.b = ScopedBuilder(f, names_in(f))
        self.symbols = symbols_in(f)
        self.sizes = sizes
        self.parts: Parts = {}

    def block(self, b: Block) -> Block:
        return Block(b.params, tuple(map(self.node, b.nodes)), b.results)

    def node(self, n: Node) -> Node:
        if not n.regions:
            return n
        with self.b.region(n):
            regions = tuple(map(self.block, n.regions))
        new = Node(n.op, n.operands, n.attrs, n.results, regions, n.loc)
        if n not in self.sizes:
            return new
        loops: list[Node] = []
        for size in self.sizes[n]:
            new, inner = self.split(new, size)
            loops.append(inner)
        self.parts[n] = [*loops, new]
        return new

    def split(self, n: Node, size: Dim) -> tuple[Node, Node]:
        """Return the loop over blocks of `size` iterations, and that over a block."""
        whole = Range.of(n)
        number = fresh_symbol("block", self.symbols)
        (body,) = n.regions
        starts = tuple(self.b.value(p.type, p.name) for p in body.params)
        changed = [k for k, p in enumerate(body.params) if body.results[k] is not p]
        ends, yielded = (
            tuple(self.b.value(body.params[k].type, n.results[k].name) for k in changed)
            for _ in range(2)
        )
        inits = tuple(starts[k] for k in changed)
        part = whole.part(self.b, number, size)
        region = self.region(body, starts, changed)
        inner = Node(n.op, inits, part.attrs(), ends, (region,), n.loc)
        block = Block((), (inner,), ends)
        checkpoint = Node(OPS["checkpoint"], (), {}, yielded, (block,), n.loc)
        results: list[Operand] = list(starts)
        for k, v in zip(changed, yielded, strict=True):
            results[k] = v
        over = Range(number, 0, ceildiv(whole.trips(self.b), size), 1)
        block = Block(starts, (checkpoint,), tuple(results))
        return Node(n.op, n.operands, over.attrs(), n.results, (block,), n.loc), inner

    def region(
        self, body: Block, starts: Sequence[Value], changed: Sequence[int]
    ) -> Block:
        """Return the body of an inner loop, which carries only what changes."""
        kept: dict[Value, Operand] = {
            p: q
            for k, (p, q) in enumerate(zip(body.params, starts, strict=True))
            if k not in changed
        }
        params = tuple(body.params[k] for k in changed)
        nodes = body.nodes
        if kept:
            nodes = tuple(with_operands(n, kept) for n in body.nodes)
            new = Block((), nodes)
            copies = dict(zip(walk(body), walk(new), strict=True))
            for n, loops in self.parts.items():
                self.parts[n] = [copies.get(x, x) for x in loops]
        results = (body.results[k] for k in changed)
        return Block(params, nodes, tuple(replaced(x, kept) for x in results))
