"""From a pure Func to loop nests.

A value is either a scalar in a register (every 0-d value) or it is stored: a buffer and
the offset of its element at an index. Views and identities cost nothing, they are other
offsets into the same buffer. Each other node, or group of nodes in a `fused` region,
becomes one nest (`nest.py`); whole-array routines are in `routines.py`, loops and
branches of the program in `control.py`, parameters and results in
`lower.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.access import (
    Index,
    base_index,
    canonical,
    conditions,
    linear,
    place,
    steps_of,
    view_of,
)
from ..ir.bounds import upper
from ..ir.dims import Dim, Expr, Facts, Symbol
from ..ir.errors import (
    IndexRangeError,
    InternalError,
    Location,
    RetrogradeError,
    UnsupportedError,
)
from ..ir.func import Block, Func, Node, Operand, Value, free_values, type_of
from ..ir.op import Kind, Step
from ..ir.types import BOOL, I64, DType, Shape, Type
from .nests import (
    Allocate,
    Apply,
    At,
    Bind,
    Buffer,
    Cast,
    Check,
    Failure,
    Fill,
    Let,
    Lit,
    Load,
    Loop,
    Move,
    Reg,
    Scalar,
    Set,
    Statement,
    Store,
)
from .orders import orders_of
from .rows import Rows, has_calls, points

Kinds = Callable[["Lowering", Node], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in memory: the offset of its element at an index.

    `whole` says that the elements fill the buffer in C order.
    """

    buffer: Buffer
    at: Callable[[Index], Dim]
    shape: Shape
    whole: bool = False


Place = Stored | Scalar


def whole(buffer: Buffer, shape: Shape) -> Stored:
    return Stored(buffer, lambda index: linear(index, shape), shape, True)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """Convert a scalar to `dtype` as astype does; literals are converted at once."""
    if x.dtype == dtype:
        return x
    if isinstance(x, Lit):
        with np.errstate(all="ignore"):
            return Lit(np.asarray(x.value).astype(dtype).item(), dtype)
    return Cast(x, dtype)


def compare(sign: str, x: Scalar, y: Scalar) -> Scalar:
    return Apply(f"({{0}} {sign} {{1}})", (x, y), BOOL)


def either(*conditions: Scalar) -> Scalar:
    first, *rest = conditions
    for c in rest:
        first = Apply("({0} | {1})", (first, c), BOOL)
    return first


def at(d: Dim) -> Scalar:
    return Lit(d, I64) if isinstance(d, int) else At(d, I64)


class Lowering:
    """Builds the program of one Func; the state is what has been lowered so far."""

    def __init__(self, f: Func, library: Collection[str]) -> None:
        self.f = f
        self.library = library  # the modules of routines that the target has
        self.values: dict[Value, Place] = {}
        self.blank: set[Value] = set()  # arrays in memory that nobody has written
        self.facts: Facts = f.size_facts()
        self.body: list[Statement] = []
        self.buffers: list[Buffer] = []
        self.constants: list[tuple[Buffer, Any]] = []
        self.failures: list[Failure] = []
        self.late: set[Symbol] = set()  # symbols that the program itself computes
        self.known: set[Symbol] = set(f.symbols)  # that have a value so far
        self.numbers = itertools.count()
        self.homes: dict[Value, int] = {}
        self.result_buffers: dict[int, Buffer] = {}
        self.ranges: dict[Symbol, tuple[Dim, Dim]] = {}  # of indices of open loops
        self.slots: dict[Dim, list[int]] = {}  # free scopes of the arena by bytes
        self.scopes = 0
        self.alive: list[dict[Buffer, int]] = []  # per open block: last use
        self.outer: list[tuple[set[Symbol], set[Symbol]]] = []  # symbols around blocks
        self.rows = Rows()
        self.orders = orders_of(f)

    # Names, checks, memory --------------------------------------------------------

    def fresh(self, hint: str) -> str:
        return f"{hint}{next(self.numbers)}"

    def symbol(self, hint: str) -> tuple[Symbol, Dim]:
        name = self.fresh("_" + hint)
        return Symbol(name), dims.symbol(name)

    def emit(self, s: Statement) -> None:
        self.body.append(s)

    @contextmanager
    def into(self) -> Iterator[list[Statement]]:
        """Collect statements into a list of their own."""
        saved, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = saved

    def let(self, x: Scalar, hint: str = "v") -> Scalar:
        """Bind a register; literals and registers need none."""
        if isinstance(x, Lit | Reg):
            return x
        name = self.fresh(hint)
        self.emit(Let(name, x))
        return Reg(name, x.dtype)

    def variable(self, x: Scalar, hint: str) -> Reg:
        name = self.fresh(hint)
        self.emit(Set(name, x))
        return Reg(name, x.dtype)

    def fail_where(
        self,
        bad: Scalar,
        error: type[RetrogradeError],
        message: str,
        location: Location | None,
        rule: str = "",
        **more: object,
    ) -> None:
        """Check a condition now; the kernel stops with the error where it holds."""
        failure = Failure(error, message, location, rule, tuple(more.items()))
        if failure in self.failures:
            code = self.failures.index(failure) + 1
        else:
            self.failures.append(failure)
            code = len(self.failures)
        self.emit(Check(bad, code))

    def scope(self) -> int:
        self.scopes += 1
        return self.scopes - 1

    def allocate(self, dtype: DType, shape: Shape, hint: str = "b") -> Buffer:
        """Make scratch memory: in the arena, or local where its size is not known."""
        supported(dtype)
        size = dims.product(map(self.bound, shape))
        late = bool(dims.symbols_of(size) & self.late)
        place = "local" if late else "arena"
        b = Buffer(self.fresh(hint), dtype, size, place)
        if late:
            self.emit(Allocate(b))
        else:
            free = self.slots.get(self.bytes_of(b))
            b.scope = free.pop() if free else self.scope()
        self.buffers.append(b)
        if self.alive:
            self.alive[-1].setdefault(b, -1)
        return b

    @staticmethod
    def bytes_of(b: Buffer) -> Dim:
        return dims.mul(b.size, b.dtype.itemsize)

    def bound(self, size: Dim) -> Dim:
        """Return an upper bound of `size` that no open loop's index occurs in."""
        if not dims.symbols_of(size) & self.ranges.keys():
            return size
        for s, (low, high) in reversed(self.ranges.items()):
            size = largest(size, s, low, high)
        return size

    def release(self, b: Buffer) -> None:
        if b.place == "arena" and b.scope >= 0:
            self.slots.setdefault(self.bytes_of(b), []).append(b.scope)

    def nonempty(self, d: Dim) -> bool:
        return self.facts.proves(dims.add(d, -1))

    # Values -----------------------------------------------------------------------

    def target(self, v: Value) -> Buffer:
        """Return the buffer that `v` is computed in."""
        if v.reuses is not None:
            reused = self.values[v.reuses]
            if not isinstance(reused, Stored) or not reused.whole:
                raise InternalError(f"%{v.name} reuses %{v.reuses.name}, a view")
            return reused.buffer
        home = self.homes.get(v)
        if home is not None and home not in self.result_buffers:
            return self.result_buffer(home, v.type)
        return self.allocate(v.type.dtype, v.type.shape)

    def result_buffer(self, i: int, t: Type) -> Buffer:
        supported(t.dtype)
        late = bool(dims.symbols_of(t.size) & self.late)
        b = Buffer(f"r{i}", t.dtype, t.size, "local" if late else "result")
        if late:
            self.emit(Allocate(b))
        else:
            b.scope = self.scope()
        self.buffers.append(b)
        self.result_buffers[i] = b
        return b

    def define(self, v: Value, x: Place) -> None:
        if isinstance(x, Stored) and not v.type.shape:
            x = self.let(Load(x.buffer, x.at(()), x.buffer.dtype))
        self.values[v] = x

    def element(self, x: Operand, index: Index) -> Scalar:
        """Return the element of an operand at an index."""
        if isinstance(x, Value):
            stored = self.values[x]
            if isinstance(stored, Stored):
                return Load(stored.buffer, stored.at(index), stored.buffer.dtype)
            return stored
        if isinstance(x, Expr):
            return At(x, I64)
        return Lit(x, type_of(x).dtype)

    def stored(self, x: Operand) -> Stored:
        """Return an operand in memory, which a 0-d one is put into."""
        found = self.values[x] if isinstance(x, Value) else None
        if isinstance(found, Stored):
            return found
        t = type_of(x)
        b = self.allocate(t.dtype, t.shape)
        self.emit(Fill(b, 0, t.size, cast(self.element(x, ()), t.dtype)))
        return whole(b, t.shape)

    def contiguous(self, x: Operand) -> Stored:
        """Return an operand in memory in C order, copied where it is a view."""
        s = self.stored(x)
        if self.fills(s):
            return whole(s.buffer, s.shape)
        b = self.allocate(s.buffer.dtype, s.shape)
        self.copy_into(b, s)
        return whole(b, s.shape)

    def fills(self, s: Stored) -> bool:
        """Tell whether elements fill the buffer in C order; see Note [rows apart]."""
        together = self.rows.together((s.buffer,))
        if s.whole or not together or dims.product(s.shape) != s.buffer.size:
            return s.whole
        index, position = points(s.shape)
        if dims.substitute(s.at(index), together) != position:
            return False
        self.rows.pack(s.buffer)
        return True

    def copy_into(self, b: Buffer, s: Stored, start: Dim = 0) -> None:
        """Copy all elements of `s` into `b` from `start` on, in C order."""
        if self.fills(s):
            self.emit(Move(b, start, s.buffer, 0, dims.product(s.shape)))
            return
        with self.loops(s.shape) as index:
            x = self.let(Load(s.buffer, s.at(index), s.buffer.dtype))
            self.emit(Store(b, dims.add(start, linear(index, s.shape)), x))

    @contextmanager
    def loops(self, shape: Shape) -> Iterator[Index]:
        """Open one loop per axis; what is emitted inside runs for every index."""
        space = [(*self.symbol("i"), d) for d in canonical(shape)]
        with self.into() as body:
            yield place(shape, [i for _, i, _ in space])
        for s, _, d in reversed(space):
            body = [Loop(s, 0, d, 1, body)]
        self.body.extend(body)

    # Indices ----------------------------------------------------------------------

    def given(self, node: Node) -> tuple[Dim, ...]:
        """Return the index operands of a view or scatter as dims, checked.

        An index computed by the program wraps and must be in range; what is not known
        to be in range of the others is checked too.
        """
        for c in conditions(node, self.facts):
            bad = compare("<", at(c.need), Lit(0, I64))
            if not self.nonempty(c.count):
                some = compare(">", at(c.count), Lit(0, I64))
                bad = Apply("({0} & {1})", (some, bad), BOOL)
            self.fail_where(
                bad,
                IndexRangeError,
                f"{node.op.name}: index out of range of axis {c.axis} of size {c.size}",
                node.loc,
            )
        return tuple(
            self.wrapped(node, step, x) if isinstance(x, Value) else self.as_dim(x)
            for step in steps_of(node)
            for x in step.indices
        )

    @staticmethod
    def as_dim(x: Operand) -> Dim:
        assert isinstance(x, int | Expr)
        return int(x) if isinstance(x, int) else x

    def wrapped(self, node: Node, step: Step, x: Value) -> Dim:
        """Bind a symbol to an index: negative ones count from the end."""
        axis = step.attrs["axis"]
        size = at(step.base.shape[axis])
        raw = self.let(cast(self.element(x, ()), I64))
        i = self.let(wrap(raw, size))
        count = step.attrs.get("size")
        bad = self.outside(i, size, count, step.attrs.get("step", 1))
        self.fail_where(
            bad,
            IndexRangeError,
            f"{node.op.name}: index is out of bounds for axis {axis} with size "
            f"{step.base.shape[axis]}",
            node.loc,
        )
        s, d = self.symbol("k")
        self.emit(Bind(s, i))
        return d

    def outside(self, i: Scalar, size: Scalar, count: Dim | None, step: Dim) -> Scalar:
        zero = Lit(0, I64)
        bad = either(compare("<", i, zero), compare(">=", i, size))
        if count is None:
            return bad
        reach = dims.mul(dims.add(count, -1), step)
        last = Apply("({0} + {1})", (i, at(reach)), I64)
        bad = either(bad, compare("<", last, zero), compare(">=", last, size))
        some = compare(">", at(count), zero)
        return Apply("({0} & {1})", (some, bad), BOOL)

    # Blocks -----------------------------------------------------------------------

    def block(self, b: Block, also: Sequence[Operand] = ()) -> None:
        """Lower the nodes of a block; memory of dead values is given free."""
        last = last_uses(b)
        for x in (*b.results, *also):
            if isinstance(x, Value):
                last[x] = len(b.nodes)
        alive: dict[Buffer, int] = {}
        self.alive.append(alive)
        self.outer.append((set(self.known), set(self.late)))
        waiting: dict[int, Node] = {}  # products to be lowered with their users
        for k, node in enumerate(b.nodes):
            user = self.later(b, k, waiting)
            if user is not None:
                waiting[user] = node
            elif k in waiting:
                self.with_product(waiting[k], node)
            else:
                self.node(node)
            for v in (*node.results, *(waiting[k].results if k in waiting else ())):
                p = self.values.get(v)
                if isinstance(p, Stored) and p.buffer in alive:
                    alive[p.buffer] = max(alive[p.buffer], last.get(v, -1))
            for buffer in [x for x, until in alive.items() if until <= k]:
                del alive[buffer]
                self.release(buffer)

    def later(self, b: Block, k: int, taken: Container[int]) -> int | None:
        """Return the user that a product is lowered with; see `destinations`."""
        from . import destinations

        if b.nodes[k].op.kind is not Kind.CONTRACTION:
            return None
        user = destinations.later(self, b, k, taken)
        if user is not None:
            destinations.keep(self, b.nodes[k], user)
        return user

    def with_product(self, product: Node, user: Node) -> None:
        from . import destinations

        if not destinations.lower(self, product, user):
            self.node(product)
            self.node(user)

    def close(self) -> None:
        """End a region: all that it allocated is free, its symbols are gone."""
        self.known, self.late = self.outer.pop()
        for buffer in self.alive.pop():
            self.release(buffer)

    def node(self, node: Node) -> None:
        from . import control, nest, routines, row_nest

        try:
            match node.op.kind:
                case Kind.VIEW:
                    self.view(node)
                case Kind.COPY:
                    self.identity(node)
                case Kind.CREATION if node.op.lower is None:
                    self.constant(node)
                case Kind.FOR:
                    control.loop(self, node)
                case Kind.WHILE:
                    control.while_loop(self, node)
                case Kind.COND:
                    control.branch(self, node)
                case Kind.SIZE:
                    control.size(self, node)
                case Kind.CHECK:
                    control.check(self, node)
                case Kind.FUSED if "rows" in node.attrs:
                    row_nest.lower(self, node)
                case Kind.FUSED:
                    region = node.regions[0]
                    order = node.attrs.get("order", ())
                    outs = node.results
                    nest.lower(self, region.nodes, region.results, outs, order)
                case kind if kind in nest.KINDS and view_of(node).kind is not Kind.MASK:
                    nest.lower(self, (node,), node.results, node.results)
                case _:
                    routines.lower(self, node)
        except RetrogradeError as error:
            if error.location is None:
                error.location = node.loc
            raise

    def view(self, node: Node) -> None:
        x = node.operands[0]
        v = node.result
        given = self.given(node)
        base = self.values[x] if isinstance(x, Value) else None
        if not isinstance(base, Stored):
            self.values[v] = self.element(x, ())  # the same at every index
            return

        def where(index: Index) -> Dim:
            return base.at(base_index(node, index, given))

        index, position = points(v.type.shape)
        if has_calls(where(index)):
            together = self.rows.together((base.buffer,))
            if not has_calls(dims.substitute(where(index), together)):
                self.rows.pack(base.buffer)  # it is reshaped as a whole
                self.define(
                    v,
                    Stored(
                        base.buffer,
                        lambda index: dims.substitute(where(index), together),
                        v.type.shape,
                    ),
                )
                return
        filled = where(index) == position and self.covers(base, v.type.shape)
        self.define(v, Stored(base.buffer, where, v.type.shape, filled))

    @staticmethod
    def covers(base: Stored, shape: Shape) -> bool:
        """Tell whether a view of that shape has all elements of the base's buffer."""
        size = dims.product(shape)
        return size == (dims.product(base.shape) if base.whole else base.buffer.size)

    def identity(self, node: Node) -> None:
        """Lower a copy: 0-d values are registers; arrays get memory of their own."""
        (x,) = node.operands
        v = node.result
        found = self.values[x] if isinstance(x, Value) else None
        if not isinstance(found, Stored) and not v.type.shape:
            self.values[v] = cast(self.element(x, ()), v.type.dtype)
            return
        found = self.stored(x)
        b = self.target(v)
        self.copy_into(b, found)
        self.define(v, whole(b, v.type.shape))

    def constant(self, node: Node) -> None:
        v = node.result
        data = np.array(node.attrs["data"], v.type.dtype).reshape(-1)
        if not v.type.shape:
            self.values[v] = Lit(data[0].item(), v.type.dtype)
            return
        supported(v.type.dtype)
        b = Buffer(
            self.fresh("const"), v.type.dtype, len(data), "constant", self.scope()
        )
        self.buffers.append(b)
        self.constants.append((b, data))
        self.values[v] = whole(b, v.type.shape)


def supported(dtype: DType) -> None:
    """Refuse dtypes which kernels cannot hold."""
    if dtype.kind == "c" or (dtype.itemsize == 2 and dtype.kind == "f"):
        raise UnsupportedError(
            f"compiled code has no {dtype.name} yet",
            rule="kernels compute with bool, integers, float32 and float64.",
            hint="convert with astype, or run the function uncompiled",
        )


def wrap(i: Scalar, size: Scalar) -> Scalar:
    negative = compare("<", i, Lit(0, I64))
    return Apply("where({0}, {1}, {2})", (negative, plus(i, size), i), I64)


def plus(x: Scalar, y: Scalar) -> Scalar:
    return Apply("({0} + {1})", (x, y), I64)


def largest(d: Dim, s: Symbol, low: Dim, high: Dim) -> Dim:
    """Return an upper bound of `d` for low <= s <= high, without s."""
    if s not in dims.symbols_of(d):
        return d
    bound = upper(d, s, low, high)
    if bound is not None:
        return dims.maximum(bound, 0)
    raise UnsupportedError(
        f"the size {d} of an array inside a loop over {s} is not linear in {s}"
    )


def last_uses(b: Block) -> dict[Value, int]:
    """Return the position of the last node of a block that uses each value."""
    last: dict[Value, int] = {}
    for k, node in enumerate(b.nodes):
        for x in node.operands:
            if isinstance(x, Value):
                last[x] = k
        for region in node.regions:
            for v in free_values(region):
                last[v] = k
    return last
