"""Make a loop whose iterations are independent operations on arrays.

A `for` without loops inside, whose iterations touch different parts of the carries or
only add to the same parts (`independent.py`), becomes its body once, each value with a
new axis that has one entry per iteration (`ir/ops/batch.py`). What is the same in all
iterations stays without it, sums become sums over the axis or products (`sums.py`).
Loops around it follow, as long as that succeeds. Before: a pure Func, simplified. Runs
before a Func is differentiated and again after.

    %c2 = for j in 0..m carry(%c = %a) {      %s: f64[n,m] = ...
      %x: f64[n] = select %c, j {axis=1}
      %y: f64[n] = sin %x                     %y: f64[n,m] = sin %a
      %d = select_scatter %c, %y, j {axis=1}
      yield %d }                              %c2 = %y

Whether it pays is decided by two rules (docs/loops.md): no value with the new axis is
larger than a part that the loop reads or writes, and there is something to gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..ir import dims
from ..ir.access import canonical, indices_of, may_fail, view_of
from ..ir.build import names_in
from ..ir.dims import Dim, Strict
from ..ir.errors import RetrogradeError
from ..ir.func import Block, Func, Node, Operand, Value, dims_of_node, type_of, walk
from ..ir.op import OPS, Kind, Op
from ..ir.ops.batch import Axis, Over, aligned, rule_of
from ..ir.types import Type
from .cse import cse
from .dce import dce
from .independent import Chain, Dependent, Iterations, Part, State, Write
from .ranges import Range
from .scope import ScopedBuilder, fresh_symbol, symbols_in
from .simplify import simplify
from .sums import total

PLAIN = (Kind.ELEMENTWISE, Kind.COPY, Kind.VIEW, Kind.CREATION, Kind.SCATTER)


def vectorize(f: Func) -> Func:
    """Return `f` with loops of independent iterations as array operations.

    >>> from ..ir.text import parse
    >>> print(vectorize(parse('''func @f(%x: f64[n], %y: f64[n]) -> f64[n] {
    ...   %z: f64[n] = for i in 0..n carry(%c: f64[n] = %y) {
    ...     %a: f64[] = select %x, i {axis=0}
    ...     %t: f64 = sin %a
    ...     %d: f64[n] = select_scatter %c, %t, i {axis=0}
    ...     yield %d
    ...   }
    ...   return %z
    ... }''')))
    func @f(%x: f64[n], %y: f64[n]) -> f64[n] {
      %t.2: f64[n] = sin %x
      return %t.2
    }
    """
    if f.stage == "traced" or not any(n.op.kind is Kind.FOR for n in walk(f.body)):
        return f
    while True:
        rewriter = _Vectorizer(f)
        new = rewriter.func(f)
        if not rewriter.changed:
            return f
        f = dce(cse(simplify(new)))


class _Vectorizer(ScopedBuilder):
    """Copies a Func; loops without loops inside become array operations."""

    def __init__(self, f: Func) -> None:
        super().__init__(f, names_in(f))
        self.symbols = symbols_in(f)
        self.values: dict[Value, Operand] = {}
        self.changed = False

    def func(self, f: Func) -> Func:
        with dims.deciding(Strict(self.facts)):
            for n in f.nodes:
                self.node(n)
        block = self.finish(f.params, tuple(map(self.operand, f.results)))
        return Func(f.name, f.stage, block, f.symbols, f.facts, f.updates)

    def operand(self, x: Operand) -> Operand:
        return self.values.get(x, x) if isinstance(x, Value) else x

    def node(self, n: Node) -> None:
        operands = tuple(map(self.operand, n.operands))
        regions = []
        for r in n.regions:
            with self.region(n) as nodes:
                for inner in r.nodes:
                    self.node(inner)
                results = tuple(map(self.operand, r.results))
            regions.append(Block(r.params, tuple(nodes), results))
        new = Node(n.op, operands, n.attrs, n.results, tuple(regions), n.loc)
        if n.op.kind is not Kind.FOR or not self.replaced(new):
            self.append(new)
            self.learn(new)

    def replaced(self, loop: Node) -> bool:
        """Add what computes the results of a loop, if it is done at once."""
        if any(n.regions for n in loop.regions[0].nodes):
            return False
        names, symbols = set(self.names), set(self.symbols)
        try:
            with self.block() as nodes, dims.deciding(Strict(self.facts)):
                batch = Batch(self, loop)
                results = batch.run()
                kept = _needed(nodes, results)
                batch.check(kept)
        except (Dependent, RetrogradeError):
            self.names, self.symbols = names, symbols
            return False
        for n in kept:
            self.append(n)
        self.values.update(zip(loop.results, results, strict=True))
        self.changed = True
        return True


def _needed(nodes: Sequence[Node], results: Sequence[Operand]) -> list[Node]:
    """Return the nodes that the results need."""
    used = {x for x in results if isinstance(x, Value)}
    kept: list[Node] = []
    for n in reversed(nodes):
        if any(v in used for v in n.results):
            used.update(x for x in n.operands if isinstance(x, Value))
            kept.append(n)
    return kept[::-1]


class Batch:
    """All iterations of a loop at once, built value by value."""

    def __init__(self, b: _Vectorizer, loop: Node) -> None:
        self.b, self.loop = b, loop
        self.iterations = Iterations.of(loop, b.facts)
        bounds = Range.of(loop)
        self.over = Over(_symbol(fresh_symbol("@t", b.symbols)), bounds.trips(b))
        if isinstance(self.over.size, int) and self.over.size < 2:
            raise Dependent
        self.last = False  # whether most arrays run along their last axis
        self.index = self.running(bounds)
        self.values: dict[Value, tuple[Operand, Axis]] = {}
        self.arrays: dict[tuple[int, State], Operand] = {}
        self.made: list[Operand] = []  # with the new axis, other than views
        self.covered: list[Counter[Dim]] = []  # the shapes of parts that are touched
        self.parts: set[Operand] = set()  # that are views of arrays
        self.gains = False  # a column is walked along, or a product is made of many
        self.vectors = False  # an iteration computes arrays

    def running(self, bounds: Range) -> Dim:
        """Return the index by the number of the iteration, so that arrays run up.

        On the way, see where most arrays have the axis that runs.
        """
        t = dims.symbol(self.over.symbol.name)
        up = dims.add(bounds.start, dims.mul(t, bounds.step))
        end = dims.add(dims.add(self.over.size, -1), dims.mul(t, -1))
        down = dims.add(bounds.start, dims.mul(end, bounds.step))
        signs = lasts = 0
        for n in self.loop.regions[0].nodes:
            if n.op.kind not in (Kind.VIEW, Kind.SCATTER):
                continue
            base, given = (
                type_of(n.operands[0]),
                [self.at(x, up) for x in indices_of(n)],
            )
            lines = [self.over.line(d) for d in given if self.over.varies(d)]
            signs += sum(1 if line[1] > 0 else -1 for line in lines if line is not None)
            rule = view_of(n).batch
            if lines and base.ndim > 1 and rule is not None:
                found = rule(base, None, *given, over=self.over, **n.attrs)
                if found is not None:
                    lasts += 1 if found[1] == base.ndim - 1 else -1
        self.last = lasts > 0
        return up if signs >= 0 else down

    def at(self, x: Any, index: Dim) -> Any:
        return dims.substitute(x, {self.iterations.index: index})

    def run(self) -> list[Operand]:
        """Build everything, and return the results of the loop."""
        for n in self.loop.regions[0].nodes:
            if n in self.iterations.live:
                self.b.loc = n.loc
                self.values[n.result] = self.node(n)
        found: list[Operand] = []
        for k, state in enumerate(self.iterations.results):
            x = self.array(k, state)
            found.append(conform(self.b, x, self.loop.results[k].type))
        return found

    # Operands ---------------------------------------------------------------------

    def operand(self, x: Operand) -> tuple[Operand, Axis]:
        """Return an operand and its new axis."""
        if isinstance(x, dims.Expr):
            d = self.at(x, self.index)
            return self.numbers(d) if self.over.varies(d) else (d, None)
        if not isinstance(x, Value):
            return x, None
        if x in self.values:
            return self.values[x]
        part = self.iterations.reads.get(x)
        if part is None:
            return x, None
        self.values[x] = found = self.read(part)
        return found

    def numbers(self, d: Dim) -> tuple[Operand, Axis]:
        """Return a dim as an array, one entry per iteration."""
        line = self.over.line(d)
        if line is None:
            raise Dependent
        first, step = line
        x = self.b.arange(size=self.over.size)
        if step != 1:
            x = self.b.multiply(x, step)
        return (x if first == 0 else self.b.add(x, first)), 0

    # Nodes ------------------------------------------------------------------------

    def node(self, n: Node) -> tuple[Operand, Axis]:
        """Build a node of the body."""
        if n.op.kind in (Kind.VIEW, Kind.SCATTER) and view_of(n).kind is Kind.VIEW:
            return self.touching(n)
        given = [self.operand(x) for x in n.operands]
        xs, axes = [x for x, _ in given], [p for _, p in given]
        if all(p is None for p in axes):
            return self.b.apply(n.op, xs, n.attrs, hint=n.result.name), None
        if n.op.kind is Kind.ELEMENTWISE and self.last:
            xs, axes = self.behind(xs, axes)
        rule = rule_of(n.op)
        found = (
            None
            if rule is None
            else rule(self.b, n.op, self.cast(n, xs, axes), axes, **n.attrs)
        )
        if found is None:
            raise Dependent
        out, axis = found
        self.confirm(out, axis, n.result.type)
        if n.op.kind is Kind.CONTRACTION:
            self.gains |= None in axes
        self.made.append(out)
        self.vectors |= bool(n.result.type.shape)
        return out, axis

    def behind(
        self, xs: list[Operand], axes: list[Axis]
    ) -> tuple[list[Operand], list[Axis]]:
        """Put the axis behind those of arrays that are combined with one number each.

        What is the same in all iterations may have the axis too, of size 1.
        """
        numbers = all(
            p is None or type_of(x).ndim == 1 for x, p in zip(xs, axes, strict=True)
        )
        if not numbers:
            return xs, axes
        for k, (x, p) in enumerate(zip(xs, axes, strict=True)):
            ndim = type_of(x).ndim
            if p is None and ndim:
                xs[k], axes[k] = self.b.expand_dims(x, axis=(ndim,)), ndim
        return xs, axes

    def cast(self, n: Node, xs: Sequence[Any], axes: Sequence[Axis]) -> list[Any]:
        """Convert what was a Python number, of no dtype, to what the op takes."""
        if n.op.computes is None:
            return list(xs)
        types = list(map(type_of, n.operands))
        wanted = n.op.computes(*types)
        return [
            x if p is None or not t.weak else self.b.cast(x, Type(dtype))
            for x, p, t, dtype in zip(xs, axes, types, wanted, strict=True)
        ]

    def confirm(self, x: Operand, axis: Axis, want: Type) -> None:
        """Refuse a value that is not of the type in every iteration."""
        t, shape = type_of(x), list(want.shape)
        if axis is not None:
            shape.insert(axis, self.over.size)
        if t.dtype != want.dtype or t.shape != tuple(shape):
            raise Dependent

    def touching(self, n: Node) -> tuple[Operand, Axis]:
        """Build a view or a scatter of a value that is no carry."""
        x, axis = self.operand(n.operands[0])
        chain = (n,)
        if n.op.kind is Kind.VIEW:
            out, at = self.through(x, axis, chain)
            self.confirm(out, at, n.result.type)
            return out, at
        new = self.operand(n.operands[1])
        if axis is None and (new[1] is not None or self.runs(chain)):
            shape = (self.over.size, *type_of(x).shape)
            x, axis = self.b.broadcast_to(x, shape=shape), 0
        out = self.put(x, axis, chain, new, n.op.accumulates)
        if axis is not None:
            self.made.append(out)
        return out, axis

    # Parts ------------------------------------------------------------------------

    def runs(self, chain: Chain) -> bool:
        """Tell whether an index of a chain differs between iterations."""
        s = self.iterations.index
        return any(s in dims.symbols_of(d) for n in chain for d in dims_of_node(n))

    def read(self, part: Part) -> tuple[Operand, Axis]:
        """Return a part of a carry."""
        return self.through(self.array(part.carry, part.state), None, part.chain)

    def through(self, x: Any, axis: Axis, chain: Chain) -> tuple[Operand, Axis]:
        """Return a view of a view of ... an operand."""
        for n in chain:
            steps, after = self.views(x, axis, n)
            for op, indices, attrs in steps:
                x = self.b.apply(op, (x, *indices), attrs)
            if after is not None and axis is None:
                self.covered.append(Counter(canonical(type_of(x).shape)))
            axis = after
        if axis is not None:
            self.parts.add(x)
            self.vectors |= type_of(x).ndim > 1
        return x, axis

    def is_part(self, x: Operand) -> bool:
        """Tell whether a value lies in memory already, as a part of an array."""
        return x in self.parts

    def views(
        self, x: Any, axis: Axis, n: Node
    ) -> tuple[list[tuple[Op, Any, Any]], Axis]:
        """Return the views of `x` that a view is, and the axis after them."""
        view = view_of(n)
        given = [self.at(i, self.index) for i in indices_of(n)]
        t = type_of(x)
        if axis is None and not any(map(self.over.varies, given)):
            return [(view, given, n.attrs)], None
        found = (
            None
            if view.batch is None
            else view.batch(t, axis, *given, over=self.over, **n.attrs)
        )
        if found is None:
            raise Dependent
        steps, after = found
        if axis is None:
            cut = steps[0].attrs["axis"]
            self.gains |= cut == t.ndim - 1 > 0
        return [(s.op, s.indices, s.attrs) for s in steps], after

    def array(self, carry: int, state: State) -> Operand:
        """Return a carry as the writes of a state leave it."""
        known = len(state)
        while known and (carry, state[:known]) not in self.arrays:
            known -= 1
        if known:
            x = self.arrays[carry, state[:known]]
        else:
            init, p = self.loop.operands[carry], self.loop.regions[0].params[carry]
            x = conform(self.b, init, p.type)
        for k in range(known, len(state)):
            x = self.write(x, state[k])
            self.arrays[carry, state[: k + 1]] = x
        return x

    def write(self, x: Any, w: Write) -> Operand:
        if not w.terms:
            adds = w.chain[-1].op.accumulates
            return self.put(x, None, w.chain, self.operand(w.new), adds)
        old, axis = self.through(x, None, w.chain)
        assert axis is None
        new = total(self, old, w.terms)
        return self.put(x, None, w.chain, (new, None), False) if w.chain else new

    def put(
        self, x: Any, axis: Axis, chain: Chain, new: tuple[Operand, Axis], adds: bool
    ) -> Operand:
        """Return `x` with `new` put into, or added to, the part of a chain."""
        n, *rest = chain
        steps, after = self.views(x, axis, n)
        bases = [x]
        for op, indices, attrs in steps if rest else steps[:-1]:
            bases.append(self.b.apply(op, (bases[-1], *indices), attrs))
        if rest:
            inner = self.put(bases.pop(), after, tuple(rest), new, adds)
        else:
            inner, at = new
            if at is not None or after is not None:
                if after is None:
                    raise Dependent
                op, indices, attrs = steps[-1]
                part = op.infer(type_of(bases[-1]), *map(type_of, indices), **attrs)
                self.covered.append(Counter(canonical(part.shape)))
                if type_of(inner).shape:
                    inner = aligned(self.b, inner, at, part.ndim - 1 - after)
        adds = adds and not rest
        for (op, indices, attrs), base in reversed(
            list(zip(steps, bases, strict=True))
        ):
            name = op.scatter_add if adds else op.scatter
            assert name is not None
            inner = self.b.apply(OPS[name], (base, inner, *indices), attrs)
            adds = False
        return inner

    # Whether it pays --------------------------------------------------------------

    def check(self, kept: Sequence[Node]) -> None:
        """Refuse where a value is too large, nothing is gained, or a check is early."""
        if any(may_fail(n, self.b.facts) for n in kept):
            raise Dependent
        there = {v for n in kept for v in n.results}
        for v in self.made:
            if isinstance(v, Value) and v in there and not self.is_covered(v.type):
                raise Dependent
        plain = all(n.op.kind in PLAIN for n in self.iterations.live)
        if not (self.gains or plain or not self.vectors):
            raise Dependent

    def is_covered(self, t: Type) -> bool:
        """Tell whether a value is no larger than a part that the loop touches."""
        mine = Counter(canonical(t.shape))
        return any(mine <= c for c in self.covered)


def _symbol(d: dims.Expr) -> dims.Symbol:
    s = dims.as_symbol(d)
    assert s is not None
    return s


def conform(b: ScopedBuilder, x: Any, want: Type) -> Any:
    """Return a value with the marks of a type: an array, a scalar, a Python number."""
    have = type_of(x)
    if have.dtype != want.dtype:
        x = b.astype(x, dtype=want.dtype)
        have = type_of(x)
    if have == want or want.shape:
        return x
    if want.weak:
        return b.number(x)
    if not want.scalar:
        return b.full(x, shape=(), dtype=want.dtype)
    return b.item(b.full(x, shape=(), dtype=want.dtype))
