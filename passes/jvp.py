"""Forward mode on pure Funcs: func -> values and tangents, in one sweep.

`jvp(f, wrt)` has one extra parameter for each parameter in `wrt`, its tangent, and one
extra result for each float result. Every node is followed by its derivative:

    %y: f64[n] = sin %x
    %t: f64[n] = cos %x
    %dy: f64[n] = multiply %dx, %t

Regions stay regions: a loop carries the tangents of its carries beside them, so that
nothing is saved. Derivatives are written once, in reverse, in the records of the ops.
The factor of an elementwise op serves both ways. Any other rule is linear in the
cotangent, so it is appended for a cotangent of zeros and reversed: what comes back is
the tangent, and what computed with the zeros is dead code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..ir import dims
from ..ir.build import names_in
from ..ir.dims import Strict
from ..ir.func import Block, Func, Node, Operand, Value, custom_parts, type_of
from ..ir.op import OPS, OUT, Kind, Partial, Zero
from ..ir.types import Type
from . import activity
from .scope import ScopedBuilder
from .vjp import Cotangents, Reverser, check_differentiable, cotangent_type

LOOPS = (Kind.FOR, Kind.WHILE)
_T = TypeVar("_T")


def jvp(f: Func, wrt: Sequence[int]) -> Func:
    """Return the Func of `f`'s results, then the tangents of its float results.

    The tangents of parameters `wrt` are extra parameters. The updates of `f` are
    ordinary results here.

    >>> from ..ir.text import parse
    >>> f = parse('''func @f(%x: f64[n]) -> f64[n] {
    ...   %y: f64[n] = sin %x
    ...   return %y
    ... }''')
    >>> print(jvp(f, [0]))
    func @f.jvp(%x: f64[n], %dx: f64[n]) -> (f64[n], f64[n]) {
      %y: f64[n] = sin %x
      %t: f64[n] = cos %x
      %dy: f64[n] = multiply %dx, %t
      return %y, %dy
    }
    """
    check_differentiable(f, wrt, ())
    b = ScopedBuilder(f, names_in(f))
    pusher = _Pusher(b, f, [f.params[j] for j in wrt])
    params = [pusher.tangent_of(f.params[j]) for j in wrt]
    with dims.deciding(Strict(b.facts)):
        pusher.sweep(f.nodes)
        tangents = [
            pusher.tangent(x, cotangent_type(type_of(x)), "d")
            for x in f.results
            if type_of(x).is_inexact
        ]
    block = b.finish((*f.params, *params), (*f.results, *tangents))
    return Func(f"{f.name}.jvp", "func", block, f.symbols, f.facts)


class _Pusher:
    """Appends nodes to a builder, each with the tangents of its results."""

    def __init__(self, b: ScopedBuilder, f: Func, wrt: Sequence[Value]) -> None:
        self.b = b
        self.tangents: dict[Value, Operand] = {}
        self.active: set[Value] = set(wrt)
        activity.forward(f.nodes, self.active)
        self.reverser = Reverser(b, f, ())

    def tangent(self, x: Operand, want: Type, hint: str) -> Operand:
        """Return the tangent of an operand as a value of a type; zeros for none."""
        d = self.tangents.get(x) if isinstance(x, Value) else None
        if d is None:
            attrs = {"shape": want.shape, "dtype": want.dtype}
            d = self.b.apply(OPS["full"], (0.0,), attrs, hint=hint)
        return self.marked(d, want)

    def marked(self, d: Operand, want: Type) -> Operand:
        """Return a tangent with the dtype and the marks of a type of its shape."""
        have = type_of(d)
        if have.dtype != want.dtype:
            d = self.b.cast(d, want)
            have = type_of(d)
        if not want.shape and (have.weak or (have.scalar and not want.scalar)):
            d = self.b.full(d, shape=(), dtype=want.dtype)
        if want.scalar and not type_of(d).scalar:
            d = self.b.item(d)
        return d

    def sweep(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.b.loc = node.loc
            self.b.learn(node)
            if not any(v in self.active for v in node.results):
                self.b.append(node)
            elif node.op.kind in LOOPS:
                self.loop(node)
            elif node.op.kind is Kind.CUSTOM:
                self.custom(node)
            elif node.regions:
                self.branches(node)
            else:
                self.plain(node)

    # Plain nodes --------------------------------------------------------------------

    def plain(self, node: Node) -> None:
        self.b.append(node)
        out = node.result
        total: Operand | None = None
        for k, x in enumerate(node.operands):
            if not isinstance(x, Value) or x not in self.tangents:
                continue
            rule = node.op.derivative(k)
            if isinstance(rule, Zero):
                continue
            if isinstance(rule, Partial):
                d: Operand | None = self.scaled(node, k, rule, self.tangents[x])
            else:
                d = self.transposed(node, k, self.tangents[x])
            total = self.b.add_cotangents(total, d)
        if total is None:
            return
        want = cotangent_type(out.type)
        if type_of(total).shape != want.shape:
            total = self.b.broadcast_to(total, shape=want.shape)
        total = self.b.cast(total, want)
        if isinstance(total, Value) and self.b.nodes[-1].results == (total,):
            total.name = self.b.name(f"d{out.name}")
        self.tangents[out] = total

    def scaled(self, node: Node, k: int, rule: Partial, d: Operand) -> Operand:
        """Multiply a tangent by the partial derivative of an elementwise op."""
        reads = [
            node.result if j == OUT else node.operands[j] for j in node.op.reads(k)
        ]
        scaled: Operand = self.b.scale(d, rule.rule(self.b, *reads))
        return scaled

    def transposed(self, node: Node, k: int, d: Operand) -> Operand | None:
        """Reverse the rule of an operand, which is linear in the cotangent."""
        x, out = node.operands[k], node.result
        assert isinstance(x, Value)
        zeros = self.b.zeros(cotangent_type(out.type))
        before = len(self.b.nodes)
        ct = node.op.cotangent(self.b, k, zeros, out, node.operands, node.attrs)
        if ct is None or ct is zeros:
            return None if ct is None else d
        rule = self.b.nodes[before:]
        reverser = self.reverser
        reverser.active.add(zeros)
        activity.forward(rule, reverser.active)
        found = Cotangents()
        reverser.accumulate(found, ct, d)
        reverser.sweep(rule, found)
        return reverser.known(found, zeros)

    def custom(self, node: Node) -> None:
        """Reverse the rule of a custom node, which is linear in its cotangents."""
        self.b.append(node)
        reverser, home = self.reverser, self.b.nodes
        zeros = [reverser.gradient(Cotangents(), v) for v in node.results]
        before = len(home)
        grads = reverser.ruled(node, zeros)
        rule = home[before:]
        reverser.active.update(z for z in zeros if isinstance(z, Value))
        activity.forward(rule, reverser.active)
        found = Cotangents()
        for x, g in zip(custom_parts(node)[0], grads, strict=True):
            if isinstance(x, Value):
                reverser.accumulate(found, g, self.tangents.get(x))
        steps = reverser.sweep(rule, found)
        home[before : before + len(rule)] = [
            n for s in steps for n in s.replaced or (s.node,)
        ]
        for v, z in zip(node.results, zeros, strict=True):
            d = reverser.known(found, z) if isinstance(z, Value) else None
            if d is not None:
                self.tangents[v] = self.marked(d, cotangent_type(v.type))

    # Regions ------------------------------------------------------------------------

    def loop(self, node: Node) -> None:
        """Carry the tangents of carries; what is stacked has stacked tangents."""
        first, last = node.regions[0], node.regions[-1]
        likes = [*first.params, *last.results[len(first.params) :]]
        params = [self.tangent_of(p) for p in first.params if p in self.active]
        inits = [
            self.tangent(node.operands[k], p.type, p.name)
            for k, p in zip(self.outs(node), params, strict=False)
        ]
        regions = []
        for region in node.regions:
            with self.b.region(node) as nodes:
                self.sweep(region.nodes)
                results = region.results
                if region is last:
                    new = self.yielded(node, region, likes)
                    results = _merged(results, new, len(first.params), len(params))
            head = (*region.params, *params) if region is first else ()
            regions.append(Block(head, tuple(nodes), results))
        self.replace(node, regions, inits)

    def branches(self, node: Node) -> None:
        """Let every region yield the tangents of what it yields."""
        regions = []
        for region in node.regions:
            with self.b.region(node) as nodes:
                self.sweep(region.nodes)
                new = self.yielded(node, region, node.results)
            regions.append(Block((), tuple(nodes), (*region.results, *new)))
        self.replace(node, regions, ())

    def outs(self, node: Node) -> list[int]:
        """Return the numbers of the results that have tangents."""
        return [k for k, v in enumerate(node.results) if v in self.active]

    def tangent_of(self, v: Value) -> Value:
        """Make a fresh value that is the tangent of `v`."""
        d = self.b.value(cotangent_type(v.type), f"d{v.name}")
        self.tangents[v] = d
        return d

    def yielded(
        self, node: Node, region: Block, likes: Sequence[Operand]
    ) -> list[Operand]:
        """Return the tangents that a region yields; `likes` have their types."""
        wanted = [(k, cotangent_type(type_of(likes[k]))) for k in self.outs(node)]
        return [self.tangent(region.results[k], t, "d") for k, t in wanted]

    def replace(
        self, node: Node, regions: Sequence[Block], inits: Sequence[Operand]
    ) -> None:
        """Append the node with the tangents of its results among its results."""
        new = [self.tangent_of(node.results[k]) for k in self.outs(node)]
        count = len(node.operands) if inits else 0
        results = _merged(node.results, new, count, len(inits))
        operands = (*node.operands, *inits)
        self.b.append(
            Node(node.op, operands, node.attrs, results, tuple(regions), node.loc)
        )


def _merged(
    old: Sequence[_T], new: Sequence[_T], count: int, carried: int
) -> tuple[_T, ...]:
    """Put tangents behind what they belong to: those of carries, then the others."""
    return (*old[:count], *new[:carried], *old[count:], *new[carried:])
