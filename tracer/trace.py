"""Capture: Tensors that hold IR values, and the trace that their ops are appended to.

A trace turns the ops that a Python function applies into a traced Func. Values from
outside it (arguments, captured arrays, values of an enclosing trace) are parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.build import IRBuilder
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import (
    GradientBreakError,
    GradientError,
    ShapeError,
    UnsupportedError,
)
from ..ir.func import (
    Block,
    Func,
    Node,
    Operand,
    Value,
    dims_of_node,
    substitute,
    type_of,
    walk,
)
from ..ir.op import OPS, Kind, Op
from ..ir.types import Type, same_shape
from ..runtime.devices import ARRAYS, DeviceArray
from .assume import Assumptions, NeedsValue, Test
from .devices import outline_of
from .fields import part
from .inputs import Inputs, check_fits
from .integers import Integers, dims_of
from .layouts import Layouts
from .leaves import Leaves
from .location import user_location
from .modes import STATE, options
from .mutations import Mutations
from .outcomes import Outcomes, Prefix
from .placement import Placement
from .symbols import SymInt
from .tensor import Tensor
from .traceint import TraceInt

WRITE, DETACH, OVERRIDE = OPS["write"], OPS["detach"], OPS["override"]
SELECT = OPS["select"]


class Trace:
    """Appends ops to a Func while a function runs."""

    def __init__(self, parent: Trace | None = None, name: str = "f") -> None:
        self.parent = parent
        self.name = name
        self.assumptions: Assumptions = parent.assumptions if parent else Assumptions()
        # What holds in the region of the parent where this trace began.
        self.given = Facts().having(*self.assumptions.local).known
        self.builder = IRBuilder()
        self.outcomes: Outcomes = parent.outcomes if parent else Outcomes(self)
        self.prefix = Prefix(self)  # values in this call
        self.leaves = Leaves(self)
        self.inputs = Inputs(self)
        self.placement: Placement = (
            parent.placement if parent else Placement(name, options().device)
        )
        self.layouts = Layouts(self)
        self.integers = Integers(self)
        self.mutations = Mutations(self)
        self.params: list[Value] = []
        self.stages: dict[str, Func] = {}  # of transforms that were captured inside
        self.ended: set[Value] = set()  # values of regions that are finished
        self.definitions: dict[Value, Node] = {}
        self.unrolled = False  # whether short loops are traced one by one
        self.apart = False  # whether no name stands for one of two older arrays
        self.replaced: dict[Value, Operand] = {}  # values by equal ones
        self.stacks: set[Operand] = set()  # arrays of what lists got in loops

    # Parameters ------------------------------------------------------------------

    def parameter(self, type: Type, hint: str, like: Any = None) -> Tensor:
        """Add a parameter; `like` is the array it stands for in this call."""
        v = self.builder.value(type, hint)
        self.params.append(v)
        if isinstance(like, ARRAYS):
            self.layouts.known[v] = outline_of(like)
        return self.tensor(v)

    # Values ----------------------------------------------------------------------

    def tensor(self, value: Operand) -> Tensor:
        """Wrap an IR operand."""
        return Tensor.traced(self, value)

    def integer(self, d: Dim) -> Any:
        """Return a dim as the Python int or `TraceInt` that user code sees."""
        d = self.assumptions.resolve(d)
        return d if isinstance(d, int) else TraceInt(d, self)

    def number(self, d: Dim) -> Any:
        """Return a dim as a Tensor: a Python number of the trace."""
        d = self.assumptions.resolve(d)
        return d if isinstance(d, int) else self.tensor(d)

    def type_of(self, t: Tensor) -> Type:
        return type_of(t._value).substitute(self.assumptions.equal)

    def shape_of(self, t: Tensor) -> tuple[Any, ...]:
        if t._value in self.inputs.pending:  # its sizes are the program's from now on
            self.inputs.use(t._value)
        return tuple(self.integer(d) for d in self.type_of(t).shape)

    def operand(self, x: Any) -> Operand:
        """Return what an op may take for `x`, capturing what comes from outside."""
        if isinstance(x, Tensor):
            v = x._value if x._trace is self else self.inputs.outside(x)._value
            if v in self.inputs.pending:
                self.inputs.use(v)
            elif v in self.ended:
                raise self.inputs.left_over(v)
            if v in self.replaced:
                v = self.replaced[v]
            return self.assumptions.resolve(v) if isinstance(v, Expr) else v
        if isinstance(x, SymInt):
            d = dims_of(x)
            return self.assumptions.resolve(d)
        if isinstance(x, bool | int | float | complex) and not isinstance(
            x, np.generic
        ):  # np.float64 is a float too
            return x
        if isinstance(x, np.bool_):
            return bool(x)
        if isinstance(x, np.generic | np.ndarray | DeviceArray):
            t = (
                self.inputs.scalar(x)
                if isinstance(x, np.generic)
                else self.inputs.array(x)
            )
            value: Operand = t._value
            return value
        if isinstance(x, Expr):
            return self.assumptions.resolve(x)
        if isinstance(x, list | tuple):
            return self.operand(part("functions.core").asarray(x))
        raise UnsupportedError(
            f"a {type(x).__name__} is not an array or a number",
            location=user_location(),
            hint="convert it with np.asarray first",
        )

    def root(self) -> Trace:
        """Return the outermost trace."""
        return self if self.parent is None else self.parent.root()

    def operand_type(self, x: Operand) -> Type:
        return type_of(x).substitute(self.assumptions.equal)

    def fresh(self, x: Operand) -> Any:
        """Wrap an operand as a value that aliases nothing."""
        t = self.tensor(x)
        if isinstance(x, Value) and not x.type.scalar:
            return self.apply(OPS["copy"], (t,), {})
        return t

    def replace(self, old: Any, new: Any) -> None:
        """Let later uses of a traced value take another, equal one."""
        before, after = old._value, new._value
        if isinstance(before, Value) and before is not after:
            self.replaced[before] = after

    def as_cotangent(self, ct: Any, like: Type, what: str = "result") -> Any:
        """Return a cotangent with the type of the result it belongs to.

        Or a tangent, with that of an argument, as `what` says.
        """
        operand = self.operand(ct)
        have = self.operand_type(operand)
        want = like.substitute(self.assumptions.equal)
        with dims.deciding(self.assumptions):
            fits = same_shape(have.shape, want.shape)
        if not fits:
            name = "cotangent" if what == "result" else "tangent"
            raise GradientError(
                f"a {name} {have} for the {what} {want}",
                location=user_location(),
                rule=f"A {name} has the shape of its {what}.",
            )
        if have.weak or (have.scalar and not want.scalar):
            attrs = {"shape": (), "dtype": want.dtype}
            ct, have = self.apply(OPS["full"], (ct,), attrs), Type(want.dtype, ())
        if want.scalar and not have.scalar:
            ct = self.apply(OPS["item"], (ct,), {})
        if have.dtype != want.dtype:
            return self.apply(OPS["astype"], (ct,), {"dtype": want.dtype})
        return ct

    def append(self, node: Node) -> None:
        """Append a node that was made elsewhere."""
        self.builder.append(node)
        for v in node.results:
            self.definitions[v] = node

    def check_readable(self) -> None:
        """Raise where the values of this trace may not be read."""

    def check_complete(self, x: object) -> None:
        """Raise where a list is looked at that grows in a loop being traced."""
        self.assumptions.check_complete(x)

    def stack_of(self, items: Sequence[Any]) -> Tensor | None:
        """Return the array whose rows a list got in a loop, if these are its items."""
        base: Operand | None = None
        for k, x in enumerate(items):
            v = x._value if isinstance(x, Tensor) else None
            node = self.definitions.get(v) if isinstance(v, Value) else None
            if node is not None and node.op.kind is Kind.COPY:
                made = node.operands[0]
                node = self.definitions.get(made) if isinstance(made, Value) else None
            if node is None or node.op is not SELECT or node.operands[1] != k:
                return None
            if node.attrs["axis"] != 0 or node.operands[0] not in self.stacks:
                return None
            if base is not None and node.operands[0] is not base:
                return None
            base = node.operands[0]
        if base is None or self.operand_type(base).shape[0] != len(items):
            return None
        out: Tensor = self.apply(OPS["copy"], (self.tensor(base),), {})
        return out

    def test_of(self, condition: Any) -> Test:
        """Return what a computed bool says about dims."""
        value = condition._value if isinstance(condition, Tensor) else None
        return self.assumptions.tests.get(value, Test())

    # Regions -------------------------------------------------------------------------

    @property
    def in_region(self) -> bool:
        """Whether a loop or a branch is being traced, here or around."""
        inside = self.builder.depth > 0
        return inside or (self.parent is not None and self.parent.in_region)

    @contextmanager
    def region(self, *facts: Dim) -> Iterator[list[Node]]:
        """Collect the nodes of a region, under facts that hold inside it.

        Nothing that is remembered for later use may be one of its values.
        """
        constants, captured = dict(self.inputs.constants), dict(self.inputs.captured)
        ints = dict(self.integers.known)
        try:
            with self.assumptions.scope(), self.builder.block() as nodes:
                self.assumptions.learn(*facts)
                yield nodes
        finally:
            self.inputs.constants, self.integers.known = constants, ints
            self.inputs.captured = {
                k: (x, v)
                for k, (x, v) in self.inputs.captured.items()
                if k in captured or v not in self.definitions
            }

    @contextmanager
    def reopened(self, nodes: list[Node]) -> Iterator[None]:
        """Append to a region that was traced before."""
        constants = dict(self.inputs.constants)
        with self.builder.block(nodes):
            yield
        self.inputs.constants = constants

    def hidden(self, d: Dim) -> bool:
        """Tell whether a dim has symbols of regions that are closed."""
        return not self.assumptions.open(d) <= self.assumptions.visible

    def control(
        self,
        op: Op,
        operands: Sequence[Operand],
        attrs: Mapping[str, Any],
        regions: Sequence[Block],
        types: Sequence[Type],
        hints: Sequence[str],
    ) -> list[Tensor]:
        """Append a node with regions."""
        self.builder.loc = user_location()
        results = self.builder.control(op, operands, attrs, regions, types, hints)
        for v in results:
            self.definitions[v] = self.builder.nodes[-1]
        return list(map(self.tensor, results))

    # Ops ---------------------------------------------------------------------------

    def attr(self, a: Any) -> Any:
        if isinstance(a, SymInt):
            return self.assumptions.resolve(dims_of(a))
        if isinstance(a, tuple):
            return tuple(map(self.attr, a))
        if isinstance(a, np.integer):
            return int(a)
        if isinstance(a, Expr):
            return self.assumptions.resolve(a)
        return a

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Append an op; returns Tensors."""
        xs = tuple(self.operand(x) for x in operands)
        attrs = {k: self.attr(a) for k, a in attrs.items()}
        if "count" in attrs and attrs["count"] is None:
            count = self.assumptions.symbol(None, "cdefghij")
            self.assumptions.counts |= dims.symbols_of(count)
            self.assumptions.learn(count)
            if op.kind is Kind.MASK:
                of = self.operand_type(xs[1]).size
                self.assumptions.learn(dims.add(of, dims.mul(count, -1)))
            attrs["count"] = count
        self.builder.loc = user_location()
        base = None
        if op.views is not None:
            xs, base = self.viewed(op, xs, attrs)
        with dims.deciding(self.assumptions):
            xs = tuple(self._resolved(x) for x in xs)
            check_literals(op, xs, attrs)
            try:
                out = self.builder.apply(op, xs, attrs, base=base)
            except ShapeError as error:
                raise self._named(error, op, xs) from None
        node = self.builder.nodes[-1]
        results = out if isinstance(out, tuple) else (out,)
        for v in results:
            self.definitions[v] = node
        if isinstance(out, tuple):
            return tuple(map(self.tensor, out))
        if not STATE.grad and op.views is None and out.type.is_inexact and op != DETACH:
            return self.apply(DETACH, (self.tensor(out),), {})
        return self.tensor(out)

    def _named(self, error: ShapeError, op: Op, xs: Sequence[Operand]) -> ShapeError:
        """Return an error that says which op got which types, of which sizes."""
        types = [self.operand_type(x) for x in xs]
        what, rule = error.what, error.rule
        if not what.startswith(f"{op.name}:"):
            shown = ", ".join(map(str, types))
            what, rule = f"{op.name}: cannot take {shown}", what
        sizes = self.assumptions.sizes(d for t in types for d in t.shape)
        rule = "; ".join(filter(None, (rule, sizes)))
        return ShapeError(what, location=self.builder.loc, rule=rule, hint=error.hint)

    def _resolved(self, x: Operand) -> Operand:
        """Bring the type of an operand up to date with what was assumed since."""
        if isinstance(x, Value) and self.assumptions.equal:
            x.type = x.type.substitute(self.assumptions.equal)
        return x

    def viewed(
        self, op: Op, xs: tuple[Operand, ...], attrs: Mapping[str, Any]
    ) -> tuple[tuple[Operand, ...], Value]:
        """Return operands and base of a view; a literal or a copy gets memory first."""
        x = xs[0]
        if not isinstance(x, Value) or x.type.scalar:
            t = type_of(x)
            x = self.apply(
                OPS["full"], (self.tensor(x),), {"shape": (), "dtype": t.dtype}
            )._value
        elif op.decides_layout and not self.layouts.keeps_memory(op, x, attrs):
            x = self.apply(OPS["copy"], (self.tensor(x),), {})._value
        return (x, *xs[1:]), x

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the outermost block so far."""
        return self.builder.outermost

    def insert(self, k: int, nodes: Sequence[Node]) -> None:
        """Put nodes in front of the k-th, which has run in `prefix`."""
        self.nodes[k:k] = nodes
        self.prefix.done += len(nodes)
        for node in nodes:
            self.definitions.update((v, node) for v in node.results)

    def node_of(self, v: Value) -> Node:
        """Return the node that computes `v`."""
        return self.definitions[v]

    def write(self, target: Tensor, new: Any) -> None:
        """Append a write into the whole of `target`, which may be a view."""
        self.mutations.write(target, new)

    def detach(self, t: Tensor) -> Tensor:
        """Return the same values without a derivative: of an array, in its memory."""
        is_array = not self.type_of(t).scalar and not self.type_of(t).weak
        op = OPS["detached"] if is_array else DETACH
        return self.apply(op, (t,), {})  # type: ignore[no-any-return]

    def item(self, t: Tensor, index: tuple[int, ...]) -> Tensor:
        """Return one element as a Python number, without its derivative."""
        t = self.detach(t)
        if index:
            t = t.flat[index[0]] if len(index) == 1 else t[index]
        elif t.shape:
            t = self.apply(OPS["reshape"], (t,), {"shape": ()})
        return self.apply(OPS["number"], (t,), {})  # type: ignore[no-any-return]

    def convert_to_python(self, t: Tensor, kind: str) -> Any:
        """Return a traced value as a Python object, or refuse."""
        if kind in ("len", "iter"):
            return self._rows(t, kind)
        if kind in ("bool", "index", "int"):
            static = self.integers.static(self.operand(t))
            if static is not None:
                self.root().integers.statics.append(static)
                return static.value
        if self.in_region and kind in ("bool", "index", "int"):
            raise NeedsValue(
                f"a value of a loop or branch, {self.type_of(t)}, is needed as a "
                f"Python {kind}",
                location=user_location(),
                rule="The body of a loop is traced once, for all iterations.",
                hint="keep the value in NumPy operations",
            )
        if kind in ("bool", "index", "int"):
            return self.outcomes.of(self, t, kind)
        raise GradientBreakError(
            f"a traced value, {self.type_of(t)}, is needed as a Python {kind}",
            location=user_location(),
            rule="A compiled function computes with values that are not there yet.",
            hint="keep the value in NumPy operations, or compute it before the call",
        )

    def _rows(self, t: Tensor, kind: str) -> Any:
        """Return the length or the rows of an array; its first size becomes static."""
        shape = self.shape_of(t)
        if not shape:
            what = (
                "len() of unsized object" if kind == "len" else "iteration over a 0-d"
            )
            raise TypeError(what if kind == "len" else what + " array")
        n = int(shape[0])
        return n if kind == "len" else [t[k] for k in range(n)]

    # The result ----------------------------------------------------------------------

    def finish(self, results: Sequence[Operand]) -> Func:
        """Return the traced Func, with everything that was assumed put in."""
        return self.func(
            Block(tuple(self.params), tuple(self.builder.nodes), tuple(results))
        )

    def func(self, block: Block) -> Func:
        """Return a block of this trace as a traced Func."""
        f = Func(self.name, "traced", block, (), self._facts())
        return with_symbols(substitute(f, self.assumptions.equal))

    def _facts(self) -> Facts:
        """Return the facts, without those of captured arrays that were not used."""
        unused = {
            s
            for v in self.inputs.pending
            for d in v.type.shape
            for s in dims.symbols_of(d)
        }
        known = (*self.assumptions.facts.known, *self.given)
        return Facts(tuple(e for e in known if not dims.symbols_of(e) & unused))


class HiddenTrace(Trace):
    """What stands for items of a list that a loop appends to: nobody may read them."""

    def __init__(self, assumptions: Assumptions) -> None:
        super().__init__()
        self.assumptions = assumptions

    def check_readable(self) -> None:
        self.assumptions.check_complete(self)

    def convert_to_python(self, t: Tensor, kind: str) -> Any:
        self.check_readable()

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        self.check_readable()


def check_literals(op: Op, xs: Sequence[Operand], attrs: Mapping[str, Any]) -> None:
    """Raise as NumPy does where a Python int does not fit the integers it becomes."""
    if not any(type(x) is int for x in xs):
        return
    if op.lower == "{0}" and "dtype" in attrs:  # it only converts
        check_fits(xs[0], attrs["dtype"])
    elif isinstance(op.eager, np.ufunc) and op.computes is not None:
        for x, dtype in zip(xs, op.computes(*map(type_of, xs)), strict=True):
            check_fits(x, dtype)


def with_symbols(f: Func) -> Func:
    """Declare the symbols of `f` that no parameter and no node defines."""
    used: set[Symbol] = set()
    defined: set[Symbol] = set()
    for p in f.params:
        for d in p.type.shape:
            used |= dims.symbols_of(d)
            alone = dims.as_symbol(d)
            if alone is not None:
                defined.add(alone)
    for node in walk(f.body):
        for d in dims_of_node(node):
            used |= dims.symbols_of(d)
        for key in ("count", "index"):
            attr = node.attrs.get(key)
            alone = dims.as_symbol(attr) if isinstance(attr, Expr) else None
            if alone is not None:
                defined.add(alone)
    passed_on = [x for node in walk(f.body) for r in node.regions for x in r.results]
    for x in (*f.results, *passed_on, *f.facts.known):
        if isinstance(x, Expr):
            used |= dims.symbols_of(x)
    missing = tuple(sorted(used - defined, key=str))
    return replace(f, symbols=missing)
