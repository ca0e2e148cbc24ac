"""Reverse mode on pure Funcs: func -> the joint func.

`vjp(f, wrt)` computes f's results and then the cotangents of the parameters `wrt`, from
one extra parameter per differentiable result. The forward nodes stay as they are; the
reverse nodes follow them. A read of a part adds into that part of the cotangent:

    %v: f64[] = select %y, i {axis=0}     %dy.1: f64[n] = select_scatter_add %dy, %dv, i

A region is reversed as a region (loops: vjp_loops.py). Its reverse is built first, in
terms of values of the forward region; those that it turns out to read are then computed
again in front of it, or loaded from a tape that the forward loop writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import dims
from ..ir.access import view_of
from ..ir.build import names_in
from ..ir.dims import Dim, Expr, Strict, Symbol
from ..ir.errors import GradientError, RetrogradeError
from ..ir.func import (
    Attrs,
    Block,
    Func,
    Node,
    Operand,
    Value,
    custom_parts,
    free_values,
    type_of,
)
from ..ir.op import OPS, Kind, Op, Zero
from ..ir.types import F64, Type
from . import activity
from .contents import Contents, written
from .ranges import Range
from .scope import (
    Renamer,
    ScopedBuilder,
    defined_symbol,
    definers,
    fresh_symbol,
    symbols_in,
    with_operands,
)
from .sources import Sources
from .tape import Tape

Part = tuple[list[Node], Operand]  # views, first to last, and what the last one gets


class Cotangents(dict[Value, Operand]):
    """Cotangents of values, and what parts of values get that have none yet.

    Note [parts that wait]
    A part is added to a whole cotangent in place. If none is there, making one of zeros
    would cost a whole addition when another one comes: what the part gets waits for it,
    and zeros are made where the cotangent is asked for and none has come.
    """

    def __init__(self, known: Iterable[tuple[Value, Operand]] = ()) -> None:
        super().__init__(known)
        self.waiting: dict[Value, list[Part]] = {}


View = tuple[Op, tuple[Operand, ...], Attrs]  # with its indices and attributes


def vjp(
    f: Func,
    wrt: Sequence[int],
    cotangents: Sequence[int] | None = None,
    *,
    seed: Mapping[int, Operand] | None = None,
) -> Func:
    """Return the joint Func of `f`: its results, then cotangents of parameters `wrt`.

    `cotangents` names the results that get a cotangent parameter, in order; by default
    all float results without a seed. `seed` gives results a constant cotangent, such as
    1.0 for the gradient of a scalar. The updates of `f` are ordinary results here.

    >>> from ..ir.text import parse
    >>> f = parse('''func @f(%x: f64[n]) -> f64[n] {
    ...   %y: f64[n] = sin %x
    ...   return %y
    ... }''')
    >>> print(vjp(f, [0]))
    func @f.joint(%x: f64[n], %ct: f64[n]) -> (f64[n], f64[n]) {
      %y: f64[n] = sin %x
      %t: f64[n] = cos %x
      %dx: f64[n] = multiply %ct, %t
      return %y, %dx
    }
    """
    return differentiated(f, wrt, cotangents, seed=seed)[0]


def differentiated(
    f: Func,
    wrt: Sequence[int],
    cotangents: Sequence[int] | None = None,
    *,
    seed: Mapping[int, Operand] | None = None,
) -> tuple[Func, list[Tape]]:
    """Return what `vjp` returns, and the tapes of its loops."""
    seed = dict(seed or {})
    if cotangents is None:
        every = range(len(f.results))
        cotangents = [i for i in every if i not in seed and _is_float(f.results[i])]
    check_differentiable(f, wrt, (*cotangents, *seed))
    b = ScopedBuilder(f, names_in(f))
    reverser = Reverser(b, f, [f.params[j] for j in wrt])
    ct = Cotangents()
    params = []
    for i in cotangents:
        params.append(b.value(cotangent_type(type_of(f.results[i])), "ct"))
    with dims.deciding(Strict(b.facts)):
        for i, p in zip(cotangents, params, strict=True):
            reverser.accumulate(ct, f.results[i], p)
        for i, s in seed.items():
            reverser.accumulate(ct, f.results[i], reverser.seed(s, f.results[i]))
        steps = reverser.sweep(f.nodes, ct)
        grads = [reverser.gradient(ct, f.params[j]) for j in wrt]
    nodes = [n for s in steps for n in (s.replaced or (s.node,))]
    block = b.finish((*f.params, *params), (*f.results, *grads))
    block.nodes = (*nodes, *block.nodes)
    joint = Func(f"{f.name}.joint", "func", block, f.symbols, f.facts)
    return joint, reverser.tapes


def _is_float(x: Operand) -> bool:
    return type_of(x).is_inexact


def check_differentiable(f: Func, wrt: Sequence[int], results: Sequence[int]) -> None:
    if f.stage != "func":
        raise GradientError(f"@{f.name}: only a pure Func can be differentiated")
    for j in wrt:
        if not f.params[j].type.is_inexact:
            raise GradientError(
                f"@{f.name}: no derivative in parameter %{f.params[j].name}, "
                f"which is {f.params[j].type}",
                rule="only floats have derivatives.",
                hint="convert the argument to float64",
            )
    for i in results:
        if not _is_float(f.results[i]):
            raise GradientError(
                f"@{f.name}: no derivative of result {i}, {type_of(f.results[i])}",
                rule="only floats have derivatives.",
            )


def cotangent_type(t: Type) -> Type:
    """Return the type of the cotangent of a value: without the weak mark."""
    return Type(t.dtype, t.shape, scalar=t.scalar)


@dataclass(slots=True)
class Step:
    """A forward node, and what stands for it where the reverse needs more of it.

    `replaced` computes the node's results and also `extras`: tapes of a loop. `symbols`
    are defined by `replaced` only: the trip count of a `while`.
    """

    node: Node
    replaced: tuple[Node, ...] | None = None
    extras: tuple[Value, ...] = ()
    symbols: tuple[Symbol, ...] = ()


@dataclass(slots=True)
class Reversed:
    """The reverse of a region, still in terms of the values of the forward region."""

    steps: list[Step]
    params: tuple[Value, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    results: list[Operand] = field(default_factory=list)

    def needs(self) -> tuple[Value, ...]:
        block = Block(self.params, tuple(self.nodes), tuple(self.results))
        return free_values(block)


class Reverser:
    """Appends the reverse of nodes to a builder."""

    def __init__(self, b: ScopedBuilder, f: Func, wrt: Sequence[Value]) -> None:
        self.b = b
        self.symbols = symbols_in(f)
        self.definers = definers(f)
        self.active: set[Value] = set(wrt)
        activity.forward(f.nodes, self.active)
        self.makers: dict[Value, Node] = {}
        self.loops: list[Contents] = []  # the loops around what is being reversed
        self.tapes: list[Tape] = []

    # Cotangents -------------------------------------------------------------------

    def accumulate(self, ct: Cotangents, x: Operand, d: Operand | None) -> None:
        """Add `d` to the cotangent of `x`."""
        if d is None or not isinstance(x, Value) or x not in self.active:
            return
        if x in ct:
            d = self.b.apply(OPS["add"], (ct[x], d), {}, hint=f"d{x.name}")
        ct[x] = d
        self.settle(ct, x)

    def settle(self, ct: Cotangents, x: Value) -> None:
        """Add the parts that wait for a cotangent: see Note [parts that wait]."""
        for nodes, d in ct.waiting.pop(x, ()):
            # Views of all elements in another order are undone without any zeros.
            if x not in ct and all(map(_rearranges, (n.op for n in nodes[:-1]))):
                for n in reversed(nodes):
                    base = n.operands[0]
                    assert isinstance(base, Value)
                    c = self.contribution(n, 0, d, base)
                    assert c is not None
                    d = c
                ct[x] = d
                continue
            if x not in ct:
                ct[x] = self.zeros(x)
            self.add_part(nodes, d, ct)

    def known(self, ct: Cotangents, x: Value) -> Operand | None:
        """Return the cotangent of `x` and all parts that wait for it, if any came."""
        self.settle(ct, x)
        return ct.get(x)

    def add_or_wait(self, ct: Cotangents, nodes: list[Node], d: Operand) -> None:
        """Add to the part that views show, at once where there is a cotangent."""
        into = self.views_into(nodes[0], ct)
        if into is not None:
            self.add_part([*into, *nodes[1:]], d, ct)
            return
        x = nodes[0].operands[0]
        assert isinstance(x, Value)
        ct.waiting.setdefault(x, []).append((nodes, d))

    def passed_on(self, node: Node, ct: Cotangents) -> bool:
        """Let the only part of a view that waits be one of what the view shows."""
        if node.op.kind is not Kind.VIEW or _adding_twin(node.op) is None:
            return False
        if not self.wants(node.operands[0]):
            return False
        (v,) = node.results
        waiting = ct.waiting.get(v, ())
        if v in ct or len(waiting) != 1:
            return False
        ((nodes, d),) = ct.waiting.pop(v)
        self.add_or_wait(ct, [node, *nodes], d)
        return True

    def seed(self, s: Operand, result: Operand) -> Operand:
        """Return a constant cotangent as an operand of the right dtype and shape."""
        t = cotangent_type(type_of(result))
        if not t.shape and t.dtype == F64:
            return s
        full = self.b.apply(OPS["full"], (s,), {"shape": t.shape, "dtype": t.dtype})
        assert isinstance(full, Value)
        return full

    def zeros(self, like: Value) -> Operand:
        t = cotangent_type(like.type)
        attrs = {"shape": t.shape, "dtype": t.dtype}
        zero: Operand = self.b.apply(OPS["full"], (0.0,), attrs, hint=f"d{like.name}")
        return zero

    def total(self, ct: Cotangents, x: Value) -> Operand:
        """Return the cotangent of `x`: a value of its dtype, zeros if none came."""
        d = self.known(ct, x)
        if d is None:
            return self.zeros(x)
        have, want = type_of(d), cotangent_type(x.type)
        if isinstance(d, Value) and have.dtype == want.dtype and not have.weak:
            return d
        return self.seed(d, x) if not isinstance(d, Value) else self.b.cast(d, want)

    def gradient(self, ct: Cotangents, x: Value) -> Operand:
        """Return the total as a result: an array for an array, a scalar for others."""
        return self.as_declared(self.total(ct, x), x)

    def as_declared(self, d: Operand, x: Value) -> Operand:
        """Return a cotangent of `x` with the marks of its type."""
        want = cotangent_type(x.type)
        have = type_of(d)
        hint, attrs = f"d{x.name}", {"shape": (), "dtype": want.dtype}
        if have.weak or (have.scalar and not want.scalar):
            d = self.b.apply(OPS["full"], (d,), attrs, hint=hint)
        if want.scalar and (have.weak or not have.scalar):
            d = self.b.apply(OPS["item"], (d,), {}, hint=hint)
        return d

    def saved(
        self,
        loop: Node,
        capacity: Dim,
        types: Sequence[Type],
        uneven: Sequence[bool],
    ) -> None:
        """Note the tapes of a loop, and which have entries that lie side by side."""
        entry: Dim | None = 0
        rest: Dim = 0
        for t, whole in zip(types, uneven, strict=True):
            if whole:
                rest = dims.add(rest, dims.mul(dims.product(t.shape), t.dtype.itemsize))
                continue
            shape = [self.largest(d) for d in t.shape[1:]]
            if entry is not None and None not in shape:
                each = dims.product(d for d in shape if d is not None)
                entry = dims.add(entry, dims.mul(each, t.dtype.itemsize))
            else:
                entry = None
        self.tapes.append(Tape(loop, entry, self.largest(capacity), rest))

    def largest(self, d: Dim | None) -> Dim | None:
        """Return the largest value of a dim over the loops around, if it is known."""
        for around in reversed(self.loops):
            d = None if d is None else Range.of(around.loop).largest(self.b, d)
        return d

    # Nodes ------------------------------------------------------------------------

    def sweep(self, nodes: Sequence[Node], ct: Cotangents) -> list[Step]:
        """Reverse nodes, last first; `ct` is changed in place."""
        steps: list[Step] = []
        self.makers.update((v, n) for n in nodes for v in n.results)
        counts = [n.attrs["count"] for n in nodes if _counts(n)]
        with self.b.assuming(*counts):
            for node in reversed(nodes):
                self.b.loc = node.loc
                steps.append(self.step(node, ct))
        return steps[::-1]

    def step(self, node: Node, ct: Cotangents) -> Step:
        from .vjp_loops import reverse_for, reverse_while

        if self.passed_on(node, ct):
            return Step(node)
        for v in node.results:
            self.settle(ct, v)
        given = [ct.pop(v, None) for v in node.results]
        if all(d is None for d in given):
            return Step(node)
        match node.op.kind:
            case Kind.FOR:
                return reverse_for(self, node, given, ct)
            case Kind.WHILE:
                return reverse_while(self, node, given, ct)
            case Kind.COND | Kind.CHECKPOINT:
                return self.branches(node, given, ct)
            case Kind.CUSTOM:
                self.custom(node, given, ct)
                return Step(node)
            case Kind.FUSED:
                raise GradientError("fused: differentiate before fusing")
        (d,) = given
        assert d is not None
        self.plain(node, d, ct)
        return Step(node)

    def plain(self, node: Node, d: Operand, ct: Cotangents) -> None:
        op, xs = node.op, node.operands
        if op.kind is Kind.SCATTER:
            self.write(node, d, ct)
            return
        for k, x in enumerate(xs):
            if not isinstance(x, Value) or x not in self.active:
                continue
            if isinstance(op.derivative(k), Zero):
                continue
            if k == 0 and _adding_twin(op) is not None:
                self.add_or_wait(ct, [node], d)
                continue
            self.accumulate(ct, x, self.contribution(node, k, d, x))

    def write(self, node: Node, d: Operand, ct: Cotangents) -> None:
        """Reverse a scatter: read each part of the cotangent, then zero it there.

        What a write through views of views puts back unchanged is not touched.
        """
        for *outer, last in reversed(written(node, self.makers)):
            views = [(view_of(n), n.operands[2:], n.attrs) for n in outer]
            parts = self.parts(d, views)
            (base, new, *rest), part = last.operands, parts[-1]
            for k, x in (*enumerate((new, *rest), 1), (0, base)):
                if isinstance(last.op.derivative(k), Zero) or not self.wants(x):
                    continue
                assert isinstance(x, Value)
                c = self.contribution(last, k, part, x)
                if k:
                    self.accumulate(ct, x, c)
                elif c is not None:
                    d = self.put_back(c, parts, views)
        self.accumulate(ct, node.operands[0], d)

    def wants(self, x: Operand) -> bool:
        return isinstance(x, Value) and x in self.active

    def parts(self, x: Operand, views: Sequence[View]) -> list[Operand]:
        """Take views one after the other; returns all, `x` first."""
        found = [x]
        for op, where, attrs in views:
            found.append(self.b.apply(op, (found[-1], *where), attrs, hint="part"))
        return found

    def put_back(
        self, new: Operand, parts: Sequence[Operand], views: Sequence[View]
    ) -> Operand:
        """Put a changed part back into what it is a view of, up to the first."""
        for base, (op, where, attrs) in zip(
            reversed(parts[:-1]), reversed(views), strict=True
        ):
            assert op.scatter is not None
            hint = base.name.split(".")[0] if isinstance(base, Value) else "part"
            new = self.b.apply(OPS[op.scatter], (base, new, *where), attrs, hint=hint)
        return new

    def views_into(self, node: Node, ct: Cotangents) -> list[Node] | None:
        """Return the views that lead from a cotangent that is there to a node's part.

        Views that a cotangent of their own is wanted for anyway are not gone through.
        """
        views: list[Node] = []
        while _adding_twin(node.op) is not None:
            views.append(node)
            x = node.operands[0]
            if x in ct:
                return views[::-1]
            if not isinstance(x, Value) or not self.wants(x) or x not in self.makers:
                break
            node = self.makers[x]
            if node.op.kind is not Kind.VIEW:
                break
        return None

    def add_part(self, nodes: Sequence[Node], d: Operand, ct: Cotangents) -> None:
        """Add to a part of a cotangent: no zeros, no full-size addition."""
        *outer, last = nodes
        root = nodes[0].operands[0]
        twin = _adding_twin(last.op)
        assert isinstance(root, Value)
        assert twin is not None
        views = [(n.op, n.operands[1:], n.attrs) for n in outer]
        parts = self.parts(ct[root], views)
        # A count belongs to the read, which defines or checks it.
        attrs = {k: a for k, a in last.attrs.items() if k != "count"}
        into = (parts[-1], d, *last.operands[1:])
        hint = f"d{root.name}" if not outer else "part"
        ct[root] = self.put_back(
            self.b.apply(twin, into, attrs, hint=hint), parts, views
        )

    def contribution(self, node: Node, k: int, d: Operand, x: Value) -> Operand | None:
        """Apply the derivative rule of one operand, and name its result."""
        before = len(self.b.nodes)
        out = node.results[0] if len(node.results) == 1 else node.results
        try:
            c = node.op.cotangent(self.b, k, d, out, node.operands, node.attrs)
        except RetrogradeError as error:
            error.location = error.location or node.loc
            raise
        made = self.b.nodes[before:]
        if made and made[-1].results == (c,):
            c.name = self.b.name(f"d{x.name}")
        return c  # type: ignore[no-any-return]

    # Regions ----------------------------------------------------------------------

    def captured(self, node: Node, useful: set[Value]) -> list[Value]:
        """Return the outside values that regions read and that get a cotangent."""
        inside = set().union(*(activity.defined_in(r) for r in node.regions))
        found: dict[Value, None] = {}
        for region in node.regions:
            for v in free_values(region):
                if v in useful and v in self.active and v not in inside:
                    found.setdefault(v)
        return list(found)

    def branches(
        self, node: Node, given: Sequence[Operand | None], ct: Cotangents
    ) -> Step:
        """Reverse a cond or a checkpoint as one; regions compute again what they read.

        So of a checkpoint only what enters it is kept.
        """
        useful = {v for v, d in zip(node.results, given, strict=True) if d is not None}
        activity.backward([node], useful)
        outs = self.captured(node, useful)
        if not outs:
            return Step(node)
        for v in outs:
            self.settle(ct, v)
        blocks = []
        for region in node.regions:
            with self.b.region(node) as nodes:
                inner = Cotangents((v, ct[v]) for v in outs if v in ct)
                for y, d in zip(region.results, given, strict=True):
                    self.accumulate(inner, y, d)
                steps = self.sweep(region.nodes, inner)
                results = [self.total(inner, v) for v in outs]
            back = Reversed(steps, (), nodes, results)
            blocks.append(self.recomputing(node, region, back))
        types = [cotangent_type(v.type) for v in outs]
        hints = [f"d{v.name}" for v in outs]
        new = self.b.control(node.op, node.operands, {}, blocks, types, hints)
        ct.update(zip(outs, new, strict=True))
        return Step(node)

    def recomputing(self, node: Node, region: Block, back: Reversed) -> Block:
        """Put in front of a reversed branch the forward nodes that it reads."""
        sources = Sources(self.b, region, back.steps, None, self.definers)
        sources.want(back)
        with self.b.region(node) as before:
            values = self.replay(sources.again(), {})
        nodes = (*before, *(with_operands(n, values) for n in back.nodes))
        results = (replaced(x, values) for x in back.results)
        return Block((), nodes, tuple(results))

    def custom(
        self, node: Node, given: Sequence[Operand | None], ct: Cotangents
    ) -> None:
        """Put the rule of a custom node in the reverse, on its own cotangents."""
        inputs = custom_parts(node)[0]
        if not any(map(self.wants, inputs)):
            return
        pairs = zip(node.results, given, strict=True)
        got = Cotangents((v, d) for v, d in pairs if d is not None)
        cts = [self.gradient(got, v) for v in node.results]
        for x, d in zip(inputs, self.ruled(node, cts), strict=True):
            self.accumulate(ct, x, d)

    def ruled(self, node: Node, cts: Sequence[Operand]) -> list[Operand]:
        """Append the rule of a custom node; returns the cotangents of its inputs."""
        (rule,) = node.regions
        values = dict(zip(rule.params, (*node.results, *cts), strict=True))
        renamer = _FreshRenamer(self, values)
        for n in rule.nodes:
            new = renamer.node(n)
            self.b.append(new)
            self.b.learn(new)
        return list(map(renamer.operand, rule.results))

    def replay(
        self, nodes: Sequence[Node], values: Mapping[Value, Operand]
    ) -> dict[Value, Operand]:
        """Append copies of forward nodes; returns what their values became."""
        renamer = Renamer(self.b, values)
        for n in nodes:
            self.b.append(renamer.node(n))
        return renamer.values

    def fresh_symbol(self, hint: str) -> Expr:
        """Make a symbol that occurs nowhere in the Func."""
        new = fresh_symbol(hint, self.symbols)
        for loop in self.loops:
            loop.local |= dims.symbols_of(new)
        return new


class _FreshRenamer(Renamer):
    """Copies nodes under fresh names, and fresh symbols that they define."""

    def __init__(self, r: Reverser, values: Mapping[Value, Operand]) -> None:
        super().__init__(r.b, values)
        self.reverser = r

    def node(self, n: Node) -> Node:
        s = defined_symbol(n)
        if s is not None and n in self.reverser.definers:
            self.symbols[s] = self.reverser.fresh_symbol(s.name)
        return super().node(n)


def replaced(x: Operand, values: Mapping[Value, Operand]) -> Operand:
    """Return what stands for an operand after values were replaced."""
    return values.get(x, x) if isinstance(x, Value) else x


def _counts(node: Node) -> bool:
    return defined_symbol(node) is not None and node.op.kind is not Kind.SIZE


def _rearranges(op: Op) -> bool:
    """Tell whether a view shows all elements, each once."""
    twin = _adding_twin(op)
    return twin is not None and twin.decompose is not None


def _adding_twin(op: Op) -> Op | None:
    """Return the op that adds to the part that `op` reads, if it is to be used.

    Of a view that repeats elements the cotangents are summed up first.
    """
    return OPS[op.scatter_add] if op.scatter_add and not op.overlapping else None
