"""The verifier: re-infers every type and checks the rules of each level."""

from __future__ import annotations

from collections.abc import Sequence

from . import dims
from .dims import Expr, Facts, Strict, Symbol
from .errors import IRError, RetrogradeError
from .func import (
    Block,
    Func,
    Node,
    Operand,
    Value,
    custom_parts,
    dims_of_node,
    type_of,
)
from .op import Kind
from .text import show_node
from .types import Type, broadcast_shapes, same_shape


def verify(f: Func) -> None:
    """Check `f`; raises IRError with the guilty line.

    Checked are: definition before use, unique names, known symbols, declared against
    inferred types, alias marks, writes (only in traced Funcs, and fitting their
    target), and the signatures of regions.
    """
    _Verifier(f).run()
    f.verified = True


class _Verifier:
    def __init__(self, f: Func) -> None:
        self.f = f
        self.names: set[str] = set()
        self.symbols: set[Symbol] = set(f.symbols)
        self.counted: set[Symbol] = set()  # defined by nodes
        self.views: dict[Value, Operand] = {}
        self.regions = 0  # that are open
        self.overwritten = False  # something that the caller sees

    def run(self) -> None:
        for p in self.f.params:
            self.symbols.update(*(map(dims.symbols_of, p.type.shape)), ())
        try:
            for fact in self.f.facts.known:
                self.known(fact)
            self.block(self.f.body, self.f.size_facts(), frozenset())
            self.updates()
        except IRError as error:
            raise IRError(f"{error}\n  in @{self.f.name}") from None

    def block(
        self, b: Block, facts: Facts, outer: frozenset[Value]
    ) -> frozenset[Value]:
        scope = set(outer)
        for p in b.params:
            self.define(p)
            scope.add(p)
        for node in b.nodes:
            try:
                facts = self.node(node, facts, scope)
            except RetrogradeError as error:
                message = str(error)
                if not message.count("\n  line: "):
                    message += f"\n  line: {show_node(node)}"
                raise IRError(message) from None
        for x in b.results:
            self.use(x, scope)
        return frozenset(scope)

    def updates(self) -> None:
        for i, j in self.f.updates:
            p, have = self.f.params[j], type_of(self.f.results[i])
            if p.type.scalar or have.array() != p.type:
                raise IRError(f"result {i} is {have}, but updates %{p.name}: {p.type}")

    def define(self, v: Value) -> None:
        if v.name in self.names:
            raise IRError(f"%{v.name} is defined twice")
        self.names.add(v.name)

    def use(self, x: Operand, scope: set[Value]) -> None:
        if isinstance(x, Value) and x not in scope:
            raise IRError(f"%{x.name} is used before it is defined")
        if isinstance(x, Expr):
            self.known(x)

    def known(self, d: dims.Dim) -> None:
        symbols = dims.symbols_of(d)
        if not symbols <= self.symbols:
            names = ", ".join(sorted(s.name for s in symbols - self.symbols))
            raise IRError(f"symbol {names} is not defined here")

    def node(self, node: Node, facts: Facts, scope: set[Value]) -> Facts:
        for x in node.operands:
            self.use(x, scope)
        facts = self.defined_symbols(node, facts)
        with dims.deciding(Strict(facts)):
            if node.regions:
                self.control(node, facts, scope)
            elif node.op.kind is Kind.WRITE:
                self.write(node)
            elif node.op.kind is Kind.CHECK:
                self.check(node)
            else:
                self.plain(node)
        for d in dims_of_node(node):
            if node.op.kind is not Kind.FOR or d != node.attrs["index"]:
                self.known(d)
        for v in node.results:
            self.define(v)
            scope.add(v)
            if node.op.views is not None:
                self.views[v] = node.operands[node.op.views]
            self.marks(node, v)
        return facts

    def defined_symbols(self, node: Node, facts: Facts) -> Facts:
        count = node.attrs.get("count")
        s = dims.as_symbol(count) if isinstance(count, Expr) else None
        if count is None or s is None:
            return facts
        if s in self.symbols:
            checks = node.op.kind is not Kind.SIZE and not node.regions
            if not checks and s not in self.counted:
                raise IRError(f"symbol {s} is defined twice")
            return facts  # known already: the op checks it, or computes it again
        self.symbols.add(s)
        self.counted.add(s)
        return facts if node.op.kind is Kind.SIZE else facts.having(count)

    def plain(self, node: Node) -> None:
        inferred = node.op.infer(*map(type_of, node.operands), **node.attrs)
        types = inferred if isinstance(inferred, tuple) else (inferred,)
        declared = tuple(v.type for v in node.results)
        if len(types) != len(declared):
            raise IRError(
                f"{node.op.name} has {len(types)} results, not {len(declared)}"
            )
        for want, v in zip(types, node.results, strict=True):
            if want != v.type:
                raise IRError(
                    f"{node.op.name} gives {want}, but %{v.name} is declared {v.type}"
                )

    def write(self, node: Node) -> None:
        if self.f.stage != "traced":
            raise IRError("a write may not appear after functionalize")
        target, new = map(type_of, node.operands)
        if not isinstance(node.operands[0], Value) or target.scalar:
            raise IRError("a write needs an array as its target")
        if not same_shape(broadcast_shapes(target.shape, new.shape), target.shape):
            raise IRError(f"write: {new} does not fit its target {target}")

    def check(self, node: Node) -> None:
        self.plain(node)
        if self.regions:
            raise IRError(f"{node.op.name} may not stand in a region")
        if self.overwritten:
            raise IRError(
                f"{node.op.name} may not follow a write into memory of the caller"
            )

    def marks(self, node: Node, v: Value) -> None:
        is_view = node.op.views is not None
        if self.f.stage == "traced" and is_view != (v.base is not None):
            raise IRError(f"alias mark of %{v.name} disagrees with op {node.op.name!r}")
        if self.f.stage == "traced" and is_view and v.base is not node.operands[0]:
            raise IRError(f"%{v.name} must be marked as a view of its operand")
        if self.f.stage == "func" and v.base is not None:
            raise IRError("an alias mark may not appear after functionalize")
        self.overwritten |= self.is_updated(v)
        if v.reuses is not None and not node.regions:
            if (
                not (self.reads(node, v.reuses) or self.is_home(v.reuses))
                or v.reuses.type.array() != v.type.array()
            ):
                raise IRError(f"%{v.name} cannot reuse the buffer of %{v.reuses.name}")

    def is_home(self, x: Value) -> bool:
        """Tell whether a result's final place is the memory of `x`."""
        return any(self.f.params[j] is x for _, j in self.f.updates)

    def is_updated(self, v: Value) -> bool:
        """Tell whether a value is computed in the memory of a parameter."""
        while v.reuses is not None:
            v = v.reuses
            if v in self.f.params:
                return True
        return False

    def reads(self, node: Node, x: Value) -> bool:
        """Tell whether a node reads the memory of `x`, itself or through views."""
        for operand in node.operands:
            while isinstance(operand, Value):
                if operand is x:
                    return True
                operand = self.views.get(operand, 0)
        return False

    # Regions ----------------------------------------------------------------------

    def control(self, node: Node, facts: Facts, scope: set[Value]) -> None:
        outer = frozenset(scope)
        saved = set(self.symbols)
        self.regions += 1
        if "count" in node.attrs:  # known after the loop only
            self.symbols -= dims.symbols_of(node.attrs["count"])
        match node.op.kind:
            case Kind.FOR:
                index = node.attrs["index"]
                s = dims.as_symbol(index)
                if s is None or s in self.symbols:
                    raise IRError(f"loop index {index} is not a fresh symbol")
                self.symbols.add(s)
                self.block(node.regions[0], facts.having(*loop_facts(node)), outer)
                self.signature(node, node.regions[0].results)
            case Kind.WHILE:
                test, body = node.regions
                inner = self.block(test, facts, outer)
                self.predicate(test.results)
                self.block(body, facts, inner)
                count = len(test.params)
                self.signature(node, body.results[:count])
                self.stacked(node, body.results[count:])
            case Kind.COND:
                self.predicate(node.operands)
                for region in node.regions:
                    self.block(region, facts, outer)
                    self.yields(region.results, [v.type for v in node.results])
            case Kind.CUSTOM:
                self.custom(node, facts, outer)
            case _:
                self.block(node.regions[0], facts, outer)
                self.yields(node.regions[0].results, [v.type for v in node.results])
        self.symbols = saved
        self.regions -= 1

    def custom(self, node: Node, facts: Facts, outer: frozenset[Value]) -> None:
        (rule,) = node.regions
        inputs, values = custom_parts(node)
        types = [v.type for v in node.results]
        cts = [Type(t.dtype, t.shape, scalar=t.scalar) for t in types]
        self.yields(values, types)
        self.yields(rule.params, [*types, *cts])
        self.block(rule, facts, outer)
        self.yields(rule.results, list(map(type_of, inputs)))

    def predicate(self, results: Sequence[Operand]) -> None:
        if len(results) != 1:
            raise IRError("a condition is one value")
        t = type_of(results[0])
        if t.dtype.kind != "b" or t.shape:
            raise IRError(f"a condition is a 0-d bool, not {t}")

    def signature(self, node: Node, yielded: Sequence[Operand]) -> None:
        carries = [p.type for p in node.regions[0].params]
        self.yields(node.operands, carries)
        self.yields(yielded, carries)
        self.yields(node.results[: len(carries)], carries)

    def stacked(self, node: Node, yielded: Sequence[Operand]) -> None:
        """Check results that have one entry per iteration of a `while`."""
        if yielded and "count" not in node.attrs:
            raise IRError("a `while` that stacks values defines their count")
        trips = node.attrs.get("count", 0)
        types = [Type(t.dtype, (trips, *t.shape)) for t in map(type_of, yielded)]
        self.yields(node.results[len(node.operands) :], types)

    def yields(self, got: Sequence[Operand], want: Sequence[Type]) -> None:
        if len(got) != len(want):
            raise IRError(f"{len(want)} values are expected, not {len(got)}")
        for x, t in zip(got, want, strict=True):
            have = type_of(x)
            if have.array() != t.array():
                shown = f"%{x.name}" if isinstance(x, Value) else str(x)
                raise IRError(f"{shown} is {have}, but the region passes {t}")


def loop_facts(node: Node) -> tuple[dims.Dim, ...]:
    """Return what holds for the index inside the body of a `for`."""
    a = node.attrs
    index, start, stop, step = a["index"], a["start"], a["stop"], a["step"]
    if isinstance(step, int) and step < 0:
        return start - index, index - stop - 1
    return index - start, stop - index - 1
