"""Capture: Tensors that hold IR values, and the trace that their ops are appended to.

A trace turns the ops that a Python function applies into a traced Func. Values from
outside it (arguments, captured arrays, values of an enclosing trace) are parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..ir import dims
from ..ir.build import IRBuilder
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import (
    GradientBreakError,
    GradientError,
    MutationError,
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
from ..ir.op import OPS, Fold, Kind, Op
from ..ir.ops.create import constant_attrs
from ..ir.types import I64, Type, broadcast_shapes, same_shape, type_of_array
from .assume import Assumptions, NeedsValue, Test, TraceInt
from .leaves import Leaves, root_of
from .location import user_location
from .modes import STATE, enable_grad
from .order import empty
from .outcomes import Outcomes, Prefix
from .symbols import SymInt
from .tensor import Tensor

WRITE, DETACH, OVERRIDE = OPS["write"], OPS["detach"], OPS["override"]
SELECT = OPS["select"]
# Whose results follow the order of their operands; the eager op tells how.
KEEPING = frozenset(
    {
        Kind.ELEMENTWISE,
        Kind.COPY,
        Kind.REDUCTION,
        Kind.SCAN,
        Kind.SORT,
        Kind.JOIN,
        Kind.GATHER,
    }
)
LARGE_CONSTANT = 4096  # elements; larger arrays made while tracing become parameters


class Static(NamedTuple):
    """An integer of a parameter that the program takes for granted: a guard."""

    parameter: Value
    steps: tuple[tuple[Op, Mapping[str, Any], tuple[int, ...]], ...]
    value: int | bool

    def holds(self, data: Any) -> bool:
        """Tell whether a parameter has the value."""
        return bool(self.read(data) == self.value)

    def read(self, data: Any) -> Any:
        for op, attrs, indices in self.steps:
            data = op.eager(data, *indices, **attrs)
        return data


class ReadOnlyError(MutationError, ValueError):
    """A write into memory that may not be written."""


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
        self.recorded: set[Value] = set()  # roots that were written, not under no_grad
        self.params: list[Value] = []
        self.captured: dict[int, tuple[Any, Value]] = {}
        self.stages: dict[str, Func] = {}  # of transforms that were captured inside
        self.origins: dict[Value, Any] = {}  # what captured parameters stand for
        self._pending: dict[Value, Any] = {}  # captured, not used yet
        self.layouts: dict[Value, Any] = {}  # strides of arguments, in this call
        self.layout_read: set[Value] = set()  # arguments whose layout was asked for
        self.known: dict[Value, Any] = {}  # numbers that are parameters, in this call
        self.statics: list[Static] = []
        self.stands_for: dict[Value, Operand] = {}  # parameters: values of the parent
        self.read_only: set[Value] = set()  # views
        self.orders: dict[Value, tuple[str, Any]] = {}  # of `order.ordered`
        self.written: set[Value] = set()  # roots that were written
        self.ended: set[Value] = set()  # values of regions that are finished
        self._nodes: dict[Value, Node] = {}
        self._constants: dict[Any, Tensor] = {}
        self.unrolled = False  # whether short loops are traced one by one
        self.replaced: dict[Value, Operand] = {}  # values by equal ones
        self.stacks: set[Operand] = set()  # arrays of what lists got in loops
        self.kept: set[Value] = set()  # roots of which lists have copies: see `Sharing`
        self._ints: dict[Value, Expr] = {}  # computed integers that are symbols
        self._keep: list[Any] = []

    # Parameters ------------------------------------------------------------------

    def parameter(self, type: Type, hint: str, like: Any = None) -> Tensor:
        """Add a parameter; `like` is the array it stands for in this call."""
        v = self.builder.value(type, hint)
        self.params.append(v)
        if isinstance(like, np.ndarray):
            self.layouts[v] = like
        return self.tensor(v)

    def argument(self, x: Any, hint: str) -> Any:
        """Add a parameter for a leaf of the arguments; ints become symbols."""
        if isinstance(x, Tensor):
            if x.is_traced:
                return self.parameter(x.type, hint)
            out = self.argument(x._data, hint)
            if isinstance(out, Tensor):
                self.leaves.enter(out._value, x)
            return out
        if isinstance(x, int) and not isinstance(x, bool):
            return self.integer(self.assumptions.symbol(x, [hint]))
        if isinstance(x, np.ndarray):
            sizes = tuple(self.assumptions.size(n) for n in x.shape)
            return self.parameter(Type(x.dtype, sizes), hint, x)
        t = self.parameter(type_of_array(x), hint)
        self.known[t._value] = x
        return t

    def capture(self, x: Any, hint: str = "c", *, shared: bool = True) -> Tensor:
        """Return an outside array, Tensor or number as a parameter.

        The parameter is added when it is first used. Without `shared` the same object
        may become several parameters: equal floats of different places are different.
        """
        known = self.captured.get(id(x)) if shared else None
        if known is not None:
            return self.tensor(known[1])
        if isinstance(x, Tensor) and x.is_traced:
            type = x.type
        else:
            data = x._data if isinstance(x, Tensor) else x
            type = type_of_array(data)
            if isinstance(data, np.ndarray):
                sizes = tuple(self.assumptions.size(n) for n in data.shape)
                type = Type(data.dtype, sizes)
        v = self.builder.value(type, hint)
        self._pending[v] = x
        self._keep.append(x)
        if isinstance(x, Tensor) and not x.is_traced:
            self.leaves.enter(v, x)
        if shared:
            self.captured[id(x)] = (x, v)
        return self.tensor(v)

    def _use(self, v: Value) -> None:
        """Add a captured value to the parameters."""
        x = self._pending.pop(v)
        self.params.append(v)
        self.origins[v] = x
        data = x._data if isinstance(x, Tensor) else x
        check_plain(data, "captured")
        if isinstance(data, np.ndarray):
            self.layouts[v] = data
        elif data is not None:
            self.known[v] = data

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
        return tuple(self.integer(d) for d in self.type_of(t).shape)

    def operand(self, x: Any) -> Operand:
        """Return what an op may take for `x`, capturing what comes from outside."""
        if isinstance(x, Tensor):
            v = x._value if x._trace is self else self._outside(x)._value
            if v in self._pending:
                self._use(v)
            elif v in self.ended:
                raise self._left_over(v)
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
        if isinstance(x, np.generic | np.ndarray):
            t = self._scalar(x) if isinstance(x, np.generic) else self._array(x)
            value: Operand = t._value
            return value
        if isinstance(x, Expr):
            return self.assumptions.resolve(x)
        raise UnsupportedError(
            f"a {type(x).__name__} is not an array or a number",
            location=user_location(),
            hint="convert it with np.asarray first",
        )

    def _left_over(self, v: Value) -> UnsupportedError:
        return UnsupportedError(
            f"a value that was computed in a checkpoint, {self.operand_type(v)}, is "
            "used after it",
            location=user_location(),
            rule="What a checkpoint computes leaves it as its result, or in variables "
            "and containers that its function names.",
            hint="return the value from the function",
        )

    def _outside(self, x: Tensor) -> Tensor:
        if isinstance(x._trace, HiddenTrace):
            x._trace.check()
        if x._trace is not None and not self._is_inside(x._trace):
            raise UnsupportedError(
                "a value of a finished trace is used",
                location=user_location(),
                rule="Values of a compiled function live only while it is traced.",
                hint="return the value from the function instead of storing it",
            )
        if isinstance(x._value, int | float | complex | Expr) and x._trace is not None:
            return self.tensor(x._value)
        known = self.captured.get(id(x))
        if known is not None:
            return self.tensor(known[1])
        if x._trace is None and not isinstance(x._data, np.ndarray):
            if not x.requires_grad:  # a number that our own functions wrapped
                return self.tensor(self.operand(x._data))
        base = x._base if x._trace is None else None
        if base is not None:
            return self._view_of(base, x)
        return self.capture(x)

    def _is_inside(self, other: Any) -> bool:
        trace = self.parent
        while trace is not None and trace is not other:
            trace = trace.parent
        return trace is not None

    def _view_of(self, base: Tensor, x: Tensor) -> Tensor:
        """Return an eager view of a captured base as a view of its parameter."""
        whole, part = base._data, x._data
        if not whole.flags.c_contiguous:
            raise UnsupportedError(
                "a view of a captured array that is not C-contiguous",
                location=user_location(),
                hint="capture the base, or pass the view as an argument",
            )
        item = whole.itemsize
        offset = (
            part.__array_interface__["data"][0] - (whole.__array_interface__["data"][0])
        )
        out = self.apply(
            OPS["as_strided"],
            (self.capture(base),),
            {
                "shape": part.shape,
                "strides": tuple(s // item for s in part.strides),
                "offset": offset // item,
            },
        )
        self.captured[id(x)] = (x, out._value)
        return out  # type: ignore[no-any-return]

    def _scalar(self, x: np.generic) -> Tensor:
        key = (x.dtype, x.tobytes())
        if key not in self._constants:
            array = self.apply(OPS["constant"], (), constant_attrs(np.asarray(x)))
            self._constants[key] = self.apply(OPS["item"], (array,), {})
        return self._constants[key]

    def constant(self, x: np.ndarray[Any, Any]) -> Tensor:
        """Write an array that the program makes itself into the program."""
        if x.size > LARGE_CONSTANT:
            x.flags.writeable = False
            return self.capture(x)
        return self.apply(OPS["constant"], (), constant_attrs(x))  # type: ignore[no-any-return]

    def _array(self, x: np.ndarray[Any, Any]) -> Tensor:
        known = self.captured.get(id(x))
        if known is not None:
            return self.tensor(self.operand(self.tensor(known[1])))
        if self.parent is not None:
            outer = self.parent.tensor(self.parent.operand(x))
            return self.tensor(self.operand(outer))
        if not x.ndim:  # what NumPy makes of its scalars in comparisons
            one: Any = x[()]
            return self._scalar(one)
        raise UnsupportedError(
            f"an array {type_of_array(x)} from outside the function that was not found "
            "in its variables",
            location=user_location(),
            rule="Arrays that a compiled function reads are inputs: arguments, or "
            "variables and attributes that it names.",
            hint="pass the array as an argument",
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

    def as_cotangent(self, ct: Any, like: Type) -> Any:
        """Return a cotangent with the type of the result it belongs to."""
        operand = self.operand(ct)
        have = self.operand_type(operand)
        want = like.substitute(self.assumptions.equal)
        with dims.deciding(self.assumptions):
            fits = same_shape(have.shape, want.shape)
        if not fits:
            raise GradientError(
                f"a cotangent {have} for a result {want}",
                location=user_location(),
                rule="A cotangent has the shape of its result.",
            )
        if have.dtype != want.dtype:
            return self.apply(OPS["astype"], (ct,), {"dtype": want.dtype})
        return ct

    def append(self, node: Node) -> None:
        """Append a node that was made elsewhere."""
        self.builder.append(node)
        for v in node.results:
            self._nodes[v] = node

    # Integers of the program ---------------------------------------------------------

    def computed(self, d: Dim) -> Tensor:
        """Return a dim as a value: as an index it wraps and is checked."""
        t: Tensor = self.apply(OPS["number"], (self.tensor(d),), {})
        return t

    def as_int(self, t: Any, letters: Sequence[str] = "cdefghij", *facts: Any) -> Any:
        """Return a computed 0-d integer as a `TraceInt` of a symbol of its own.

        `facts` are functions of the symbol: dims that are at least 0.
        """
        x = self.operand(t)
        if isinstance(x, int | Expr):
            return self.integer(x)
        static = None if self.in_region else self._static(x)
        if static is not None:
            self.root().statics.append(static)
            return static.value
        if x in self._ints:
            return self.integer(self._ints[x])
        sum_of_ints = self._arithmetic(x)
        if sum_of_ints is not None:
            return self.integer(sum_of_ints)
        s = self.assumptions.symbol(None, letters)
        self.apply(OPS["size"], (t,), {"count": s})
        assert isinstance(x, Value)
        self.assumptions.learn(*(f(s) for f in facts), *self._position_facts(x, s))
        if x.type.scalar:  # an array may hold another one later
            self._ints[x] = s
        return self.integer(s)

    def _arithmetic(self, x: Operand) -> Dim | None:
        """Return what arithmetic of computed integers is, in terms of their symbols."""
        node = self._computing(x)
        on_dims = node.op.on_dims if node is not None else None
        if node is None or on_dims is None or self.operand_type(x).dtype != I64:
            return None
        if any(self.operand_type(o).dtype != I64 for o in node.operands):
            return None
        ints = [self.as_int(self.tensor(o)) for o in node.operands]
        return on_dims(*(i if isinstance(i, int) else dims_of(i) for i in ints))

    def _computing(self, x: Operand) -> Node | None:
        """Return the node that computes a number, behind conversions.

        An array in between could be written.
        """
        while isinstance(x, Value) and x.type.scalar:
            node = self._nodes.get(x)
            if node is None or node.op.kind is not Kind.COPY:
                return node
            (x,) = node.operands[:1]
        return None

    def _position_facts(self, x: Value, s: Expr) -> tuple[Dim, ...]:
        """Return the bounds of what may be a position in an array, as argmax gives."""
        node = self._computing(x)
        fold = node.op.lower if node is not None else None
        if node is None or not isinstance(fold, Fold) or not fold.index:
            return ()
        shape = self.operand_type(node.operands[0]).shape
        size = dims.product([shape[k] for k in node.attrs["axis"]])
        return s, dims.add(dims.add(size, dims.mul(s, -1)), -1)

    def check_complete(self, x: object) -> None:
        """Raise where a list is looked at that grows in a loop being traced."""
        self.assumptions.check_complete(x)

    def stack_of(self, items: Sequence[Any]) -> Tensor | None:
        """Return the array whose rows a list got in a loop, if these are its items."""
        base: Operand | None = None
        for k, x in enumerate(items):
            v = x._value if isinstance(x, Tensor) else None
            node = self._nodes.get(v) if isinstance(v, Value) else None
            if node is not None and node.op.kind is Kind.COPY:
                made = node.operands[0]
                node = self._nodes.get(made) if isinstance(made, Value) else None
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

    def as_size(self, d: Dim) -> Any:
        """Return a dim as one that the program has checked to be at least 0."""
        s = self.assumptions.symbol(None, "cdefghij")
        self.apply(OPS["size"], (self.computed(d),), {"count": s, "checked": True})
        self.assumptions.learn(s)
        return self.integer(s)

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
        constants, captured = dict(self._constants), dict(self.captured)
        ints = dict(self._ints)
        try:
            with self.assumptions.scope(), self.builder.block() as nodes:
                self.assumptions.learn(*facts)
                yield nodes
        finally:
            self._constants, self._ints = constants, ints
            self.captured = {
                k: (x, v)
                for k, (x, v) in self.captured.items()
                if k in captured or v not in self._nodes
            }

    @contextmanager
    def reopened(self, nodes: list[Node]) -> Iterator[None]:
        """Append to a region that was traced before."""
        constants = dict(self._constants)
        with self.builder.block(nodes):
            yield
        self._constants = constants

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
            self._nodes[v] = self.builder.nodes[-1]
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
            try:
                out = self.builder.apply(op, xs, attrs, base=base)
            except ShapeError as error:
                raise self._named(error, op, xs) from None
        node = self.builder.nodes[-1]
        results = out if isinstance(out, tuple) else (out,)
        for v in results:
            self._nodes[v] = node
        if isinstance(out, tuple):
            return tuple(map(self.tensor, out))
        if not STATE.grad and op.views is None and out.type.is_inexact and op != DETACH:
            return self.apply(DETACH, (self.tensor(out),), {})
        return self.tensor(out)

    def _named(self, error: ShapeError, op: Op, xs: Sequence[Operand]) -> ShapeError:
        """Return an error that says which op got which types."""
        if error.what.startswith(f"{op.name}:"):
            return error
        types = ", ".join(str(self.operand_type(x)) for x in xs)
        return ShapeError(
            f"{op.name}: cannot take {types}",
            location=self.builder.loc,
            rule=error.what,
        )

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
        elif op.decides_layout and not self._keeps_memory(op, x, attrs):
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
            self._nodes.update((v, node) for v in node.results)

    def in_call(self, v: Value) -> Any:
        """Return what a parameter stands for in this call: an array or a number."""
        if v in self._pending or self.parent is not None:
            x = self.stands_for.get(v, self.origins.get(v, self._pending.get(v)))
            if self.parent is not None:
                outer = x if isinstance(x, Value) else self.parent.operand(x)
                return self.parent.prefix.value(outer)
            return x._data if isinstance(x, Tensor) else x
        return self.known.get(v, self.layouts.get(v))

    def node_of(self, v: Value) -> Node:
        """Return the node that computes `v`."""
        return self._nodes[v]

    def write(self, target: Tensor, new: Any) -> None:
        """Append a write into the whole of `target`, which may be a view."""
        where = self.operand(target)
        if not isinstance(where, Value):
            raise UnsupportedError(
                "a number cannot be written", location=user_location()
            )
        if not STATE.grad and where.type.is_inexact:
            with enable_grad():  # what was there keeps its derivative, as on the tape
                new = self.apply(OVERRIDE, (target, new), {})
        x = self.operand(new)
        self._check_writeable(where)
        self._check_fits(where, x)
        root = root_of(where)
        if root in self.kept:
            raise UnsupportedError(
                f"write: %{root.name} shares memory with items that a list got in a "
                "loop",
                location=user_location(),
                rule="The items of a list that grows in a loop are copies.",
                hint="append a copy",
            )
        self.leaves.before_write(root)
        self.builder.append(
            Node(WRITE, (where, x), {}, (), (), user_location() or self.builder.loc)
        )
        self.written.add(root)
        if STATE.grad:
            self.recorded.add(root)

    def detach(self, t: Tensor) -> Tensor:
        """Return the same values without a derivative."""
        return self.apply(DETACH, (t,), {})  # type: ignore[no-any-return]

    def item(self, t: Tensor, index: tuple[int, ...]) -> Tensor:
        """Return one element as a Python number, without its derivative."""
        t = self.detach(t)
        if index:
            t = t.flat[index[0]] if len(index) == 1 else t[index]
        elif t.shape:
            t = self.apply(OPS["reshape"], (t,), {"shape": ()})
        return self.apply(OPS["number"], (t,), {})  # type: ignore[no-any-return]

    def _check_writeable(self, target: Value) -> None:
        """Raise where NumPy's view is read-only: one that repeats its elements."""
        view: Value | None = target
        while view is not None and view.base is not None:
            if view in self.read_only:
                raise ReadOnlyError(
                    f"write: {self.operand_type(target)} is read-only",
                    location=user_location(),
                    rule="assignment destination is read-only: it shows the same "
                    "elements several times",
                    hint="copy the array first",
                )
            view = view.base

    def _check_fits(self, target: Value, new: Operand) -> None:
        """Raise where a value does not broadcast into what it is written to."""
        want, have = self.operand_type(target), self.operand_type(new)
        with dims.deciding(self.assumptions):
            try:
                shape = broadcast_shapes(want.shape, have.shape)
                fits = same_shape(shape, want.shape)
            except ShapeError:
                fits = False
            if not fits:
                raise ShapeError(
                    f"write: {have} does not fit its target {want}",
                    location=user_location(),
                    rule="What is written broadcasts to the target, never the target.",
                )

    def convert_to_python(self, t: Tensor, kind: str) -> Any:
        """Return a traced value as a Python object, or refuse."""
        if kind in ("len", "iter"):
            return self._rows(t, kind)
        if kind in ("bool", "index", "int"):
            static = self._static(self.operand(t))
            if static is not None:
                self.root().statics.append(static)
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

    def _static(self, v: Operand) -> Static | None:
        """Read an integer that a parameter holds, if that is what `v` is."""
        if not isinstance(v, Value):
            return None
        if v.type.shape or v.type.dtype.kind not in "biu":
            return None
        steps: list[tuple[Op, Mapping[str, Any], tuple[int, ...]]] = []
        trace = self
        while trace.parent is not None or v in trace._nodes:
            if v in trace._nodes:
                node = trace._nodes[v]
                x, *indices = node.operands or (None,)
                numbers = (*indices, *node.attrs.values())
                if node.op.kind not in (Kind.VIEW, Kind.COPY):
                    return None
                if any(isinstance(i, Value | Expr) for i in numbers):
                    return None
                steps.append((node.op, node.attrs, tuple(indices)))  # type: ignore[arg-type]
            else:  # a parameter: what it stands for in the trace around
                if v in trace.written or trace.parent is None:
                    return None
                origin = trace.origins.get(v)
                x = origin._value if isinstance(origin, Tensor) else None
                x = trace.stands_for.get(v, x)
                trace = trace.parent
            if not isinstance(x, Value):
                return None
            v = x
        data = trace.known.get(v, trace.layouts.get(v))
        if data is None or v not in trace.params or v in trace.written:
            return None
        found = Static(v, tuple(reversed(steps)), 0)
        value = np.asarray(found.read(data)).item()
        return found._replace(value=value)

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

    # Layouts -------------------------------------------------------------------------

    def _keeps_memory(self, op: Op, x: Value, attrs: Mapping[str, Any]) -> bool:
        """Tell whether a reshape of `x` is a view, as NumPy decides by strides."""
        if len(x.type.shape) < 2 and x.base is None:
            return True
        if _long(self._resolved_shape(x)) == _long(attrs["shape"]):
            return True
        dummy = self.layout(x)
        shape = tuple(self.assumptions.value(d) for d in attrs["shape"])
        try:
            np.reshape(dummy, shape, copy=False)
        except ValueError:
            return False
        return True

    def _resolved_shape(self, x: Value) -> Sequence[Dim]:
        return [self.assumptions.resolve(d) for d in x.type.shape]

    def layout(self, x: Value) -> np.ndarray[Any, Any]:
        """Return an array with the strides that `x` has in this call, not its data."""
        known = self.layouts.get(x)
        if known is not None:
            if x in self.params:
                self.layout_read.add(x)
            return known  # type: ignore[no-any-return]
        node = self._nodes.get(x)
        shape = tuple(self.assumptions.value(d) for d in x.type.shape)
        if x in self.orders:
            out = self._chosen(x, shape)
        elif node is None:
            out = np.empty(shape, x.type.dtype)
        elif node.op.views is not None and isinstance(node.operands[0], Value):
            base = self.layout(node.operands[0])
            rest = [self._hint_operand(i) for i in node.operands[1:]]
            attrs = {k: self._hint(a) for k, a in node.attrs.items()}
            out = node.op.eager(base, *rest, **attrs)
        elif node.op.kind is Kind.CHECKPOINT:
            inside = node.regions[0].results[node.results.index(x)]
            assert isinstance(inside, Value)
            out = self.layout(inside)
        else:
            out = self._laid_out(node, shape, x.type.dtype)
        self.layouts[x] = out
        return out

    def _chosen(self, x: Value, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the layout that a function of the front end has chosen."""
        order, like = self.orders[x]
        if order in "CF":
            return np.empty(shape, x.type.dtype, "F" if order == "F" else "C")
        if isinstance(like, Tensor):
            model = self.operand(like)
            like = self.layout(model) if isinstance(model, Value) else like._data
        if not isinstance(like, np.ndarray):
            return np.empty(shape, x.type.dtype)
        return empty(shape, x.type.dtype, order, like)

    def _laid_out(
        self, node: Node, shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray[Any, Any]:
        """Return the layout of a fresh result: the order of the operands, mostly."""
        kind = node.op.kind
        if len(shape) < 2 or 0 in shape or kind not in KEEPING:
            return np.empty(shape, dtype)
        arrays = [
            self.layout(i)
            for i in node.operands
            if isinstance(i, Value) and i.type.shape
        ]
        if kind == Kind.COPY and arrays[0].shape == shape:
            return np.empty_like(arrays[0], dtype=dtype, order="K", subok=False)
        if kind == Kind.ELEMENTWISE:
            return _like(arrays, shape, dtype)
        if kind == Kind.GATHER:
            arrays[1:] = [np.zeros(a.shape, a.dtype) for a in arrays[1:]]
        elif all(a.flags.c_contiguous for a in arrays):
            return np.empty(shape, dtype)
        attrs = {k: self._hint(a) for k, a in node.attrs.items()}
        with np.errstate(all="ignore"):
            return np.asarray(node.op.eager(*arrays, **attrs))

    def _hint_operand(self, x: Operand) -> int:
        return self.assumptions.value(x) if isinstance(x, int | Expr) else 0

    def _hint(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return self.assumptions.value(a)
        return tuple(map(self._hint, a)) if isinstance(a, tuple) else a

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
            s for v in self._pending for d in v.type.shape for s in dims.symbols_of(d)
        }
        known = (*self.assumptions.facts.known, *self.given)
        return Facts(tuple(e for e in known if not dims.symbols_of(e) & unused))


class HiddenTrace(Trace):
    """What stands for items of a list that a loop appends to: nobody may read them."""

    def __init__(self, assumptions: Assumptions) -> None:
        super().__init__()
        self.assumptions = assumptions

    def check(self) -> None:
        """Raise: an item is read."""
        self.assumptions.check_complete(self)

    def convert_to_python(self, t: Tensor, kind: str) -> Any:
        self.check()

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        self.check()


def check_plain(x: Any, role: str) -> None:
    """Refuse subclasses of ndarray, whose operators mean something else."""
    if isinstance(x, np.ndarray) and type(x) not in (np.ndarray, np.memmap):
        raise UnsupportedError(
            f"a {type(x).__name__} {role}",
            location=user_location(),
            rule="Subclasses of ndarray give operators another meaning.",
            hint="use np.asarray(x)",
        )


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


def dims_of(x: SymInt) -> Dim:
    assert isinstance(x, TraceInt)
    return x.dim


def _long(shape: Sequence[Dim]) -> list[Dim]:
    """Return the sizes that are not 1: adding and removing those moves nothing."""
    return [d for d in shape if d != 1]


def _like(
    arrays: Sequence[np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: Any
) -> np.ndarray[Any, Any]:
    """Return an array laid out as NumPy lays out the result of elementwise ops."""
    if not arrays:
        return np.empty(shape, dtype)
    if all(a.flags.c_contiguous and a.shape == shape for a in arrays):
        return np.empty(shape, dtype)
    flags = [["readonly"]] * len(arrays) + [["writeonly", "allocate"]]
    it = np.nditer(
        [*arrays, None],  # type: ignore[arg-type]
        flags=["zerosize_ok", "refs_ok"],
        op_flags=flags,  # type: ignore[arg-type]
        op_dtypes=[*(a.dtype for a in arrays), dtype],
    )
    return it.operands[-1]
