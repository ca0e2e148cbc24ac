"""The rewrites of `simplify`: a table of patterns and what replaces them.

A pattern names an op and its operands: a string binds whatever stands there, a number
matches that literal, a pattern matches what defines the operand. A replacement gets the
builder and the match and returns an operand, or None where it does not apply after all.
A replacement of another type (dtype, shape, scalar or weak mark) is discarded, so that
`x * 1.0` stays where x is an integer array.

Values are kept bit for bit, NaN and the sign of zero included. So `x + 0.0`, which
turns -0.0 into 0.0, stays; so does `0 * x`, which is NaN for an infinite x. Exceptions
are powers, which NumPy's own operator also takes apart (`x ** 3` differs from pow in
the last bit, `x ** 0.5` at -0.0 and -inf), the sum of equal numbers, a product, and a
part that is set to zero and then added to: it keeps the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..ir import dims
from ..ir import ops as _ops  # noqa: F401  (the table below needs every record)
from ..ir.dims import Expr
from ..ir.func import Node, Operand, Value, type_of
from ..ir.op import OPS, Kind, Op
from .scope import ScopedBuilder


@dataclass(frozen=True, slots=True)
class Pattern:
    """An op applied to operands; each is a name, a number or a pattern."""

    op: Op
    operands: tuple[str | int | float | Pattern, ...]

    def __str__(self) -> str:
        return " ".join((self.op.name, *(f"({x})" for x in self.operands)))


@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern bound: operands by name, and the nodes, outermost first."""

    operands: Mapping[str, Operand]
    nodes: Sequence[Node]

    def __getitem__(self, name: str) -> Any:
        return self.operands[name]

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def inner(self) -> Node:
        return self.nodes[1]


Replacement: TypeAlias = Callable[[ScopedBuilder, Match], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table."""

    pattern: Pattern
    replacement: Replacement


Definition: TypeAlias = Callable[[Operand], Node | None]
General: TypeAlias = Callable[[ScopedBuilder, Node, Definition], Any]


def pattern(op: str, *operands: str | int | float | Pattern) -> Pattern:
    return Pattern(OPS[op], operands)


def matched(p: Pattern, node: Node, definition: Definition) -> Match | None:
    """Match a node; `definition` gives the node that defines an operand."""
    operands: dict[str, Operand] = {}
    nodes: list[Node] = []
    return (
        Match(operands, nodes) if _fits(p, node, definition, operands, nodes) else None
    )


def _fits(
    p: Pattern,
    node: Node | None,
    definition: Definition,
    operands: dict[str, Operand],
    nodes: list[Node],
) -> bool:
    if node is None or node.op is not p.op or len(node.operands) != len(p.operands):
        return False
    nodes.append(node)
    for want, x in zip(p.operands, node.operands, strict=True):
        if isinstance(want, str):
            if not same_operand(operands.setdefault(want, x), x):
                return False
        elif isinstance(want, Pattern):
            if not _fits(want, definition(x), definition, operands, nodes):
                return False
        elif not is_number(x, want):
            return False
    return True


def is_number(x: Operand, want: float) -> bool:
    """Tell whether an operand is the literal `want`, of any type, sign included."""
    if isinstance(x, bool) or not isinstance(x, int | float) or x != want:
        return False
    return math.copysign(1, x) == math.copysign(1, want)


def same_operand(a: Operand, b: Operand) -> bool:
    """Tell whether two operands are the same value or equal literals."""
    if isinstance(a, Value) or isinstance(b, Value):
        return a is b
    return type(a) is type(b) and repr(a) == repr(b)


# ---------------------------------------------------------------- arithmetic


def _x(b: ScopedBuilder, m: Match) -> Any:
    return m["x"]


def _x_if_integer(b: ScopedBuilder, m: Match) -> Any:
    return m["x"] if type_of(m["x"]).dtype.kind in "iu" else None


def _cube(b: ScopedBuilder, m: Match) -> Any:
    return b.multiply(b.square(m["x"]), m["x"])


def _fourth(b: ScopedBuilder, m: Match) -> Any:
    return b.square(b.square(m["x"]))


def _rows(*rows: tuple[Pattern, Replacement]) -> Iterator[Rule]:
    for p, replacement in rows:
        yield Rule(p, replacement)


ARITHMETIC = _rows(
    (pattern("multiply", "x", 1), _x),
    (pattern("multiply", 1, "x"), _x),
    (pattern("multiply", "x", -1), lambda b, m: b.negative(m["x"])),
    (pattern("multiply", -1, "x"), lambda b, m: b.negative(m["x"])),
    (pattern("divide", "x", 1), _x),
    (pattern("subtract", "x", 0), _x),
    (pattern("add", "x", -0.0), _x),
    (pattern("add", -0.0, "x"), _x),
    (pattern("add", "x", 0), _x_if_integer),
    (pattern("add", 0, "x"), _x_if_integer),
    (
        pattern("add", "x", pattern("negative", "y")),
        lambda b, m: b.subtract(m["x"], m["y"]),
    ),
    (
        pattern("subtract", "x", pattern("negative", "y")),
        lambda b, m: b.add(m["x"], m["y"]),
    ),
    (pattern("negative", pattern("negative", "x")), _x),
    (pattern("positive", "x"), _x),
    (pattern("power", "x", 1), _x),
    (pattern("power", "x", 2), lambda b, m: b.square(m["x"])),
    (pattern("power", "x", 3), _cube),
    (pattern("power", "x", 4), _fourth),
    (pattern("power", "x", 0.5), lambda b, m: b.sqrt(m["x"])),
    (pattern("power", "x", -1), lambda b, m: b.reciprocal(m["x"])),
    (pattern("where", "c", "x", "x"), _x),
)

# ---------------------------------------------------------------- shapes


def _transposed_twice(b: ScopedBuilder, m: Match) -> Any:
    first, second = m.inner.attrs["axes"], m.node.attrs["axes"]
    return b.transpose(m["x"], axes=tuple(first[k] for k in second))


def _transposed_in_place(b: ScopedBuilder, m: Match) -> Any:
    axes = m.node.attrs["axes"]
    return m["x"] if axes == tuple(range(len(axes))) else None


def _same_axes(b: ScopedBuilder, m: Match) -> Any:
    return m["x"] if m.node.attrs["axis"] == m.inner.attrs["axis"] else None


def _reshaped_twice(b: ScopedBuilder, m: Match) -> Any:
    return b.reshape(m["x"], shape=m.node.attrs["shape"])


def _spread_twice(b: ScopedBuilder, m: Match) -> Any:
    return b.broadcast_to(m["x"], shape=m.node.attrs["shape"])


def _sliced_twice(b: ScopedBuilder, m: Match) -> Any:
    outer, inner = m.node.attrs, m.inner.attrs
    if outer["axis"] != inner["axis"] or not (is_dim(m["i"]) and is_dim(m["j"])):
        return None
    step = inner.get("step", 1)
    start = dims.add(m["i"], dims.mul(m["j"], step))
    step = dims.mul(step, outer.get("step", 1))
    return b.slice(m["x"], start, axis=outer["axis"], size=outer["size"], step=step)


def _selected_of_slice(b: ScopedBuilder, m: Match) -> Any:
    outer, inner = m.node.attrs, m.inner.attrs
    if outer["axis"] != inner["axis"] or not (is_dim(m["i"]) and is_dim(m["j"])):
        return None
    at = dims.add(m["i"], dims.mul(m["j"], inner.get("step", 1)))
    return b.select(m["x"], at, axis=outer["axis"])


def _is_all(m: Match) -> bool:
    a, x = m.node.attrs, type_of(m["x"])
    return bool(a.get("step", 1) == 1 and a["size"] == x.shape[a["axis"]])


def _all_of_it(b: ScopedBuilder, m: Match) -> Any:
    return m["x"] if _is_all(m) else None


def _all_replaced(b: ScopedBuilder, m: Match) -> Any:
    return filled(b, m["new"], m["x"]) if _is_all(m) else None


def is_dim(x: Operand) -> bool:
    """Tell whether an operand is an index known as a dim."""
    return isinstance(x, int | Expr) and not isinstance(x, bool)


def filled(b: ScopedBuilder, new: Operand, like: Value) -> Any:
    """Return `new` with the dtype and shape of `like`."""
    have, want = type_of(new), type_of(like)
    if have == want:
        return new
    if not have.shape and not (isinstance(new, Value) and want.shape):
        return b.full(new, shape=want.shape, dtype=want.dtype)
    new = b.cast(new, want)
    return new if have.shape == want.shape else b.broadcast_to(new, shape=want.shape)


def _elsewhere(b: ScopedBuilder, m: Match) -> Any:
    """Read around all writes at other indices of the same axis, however many."""
    axis, at, x = m.node.attrs["axis"], m["j"], m.node.operands[0]
    write: Node | None = m.inner
    while write is not None and write.op is m.inner.op:
        i = write.operands[2]
        if not (isinstance(i, int | Expr) and isinstance(at, int | Expr)):
            break
        if write.attrs["axis"] != axis or not b.facts.differ(i, at):
            break
        x = write.operands[0]
        write = b.definition(x) if isinstance(x, Value) else None
    return b.select(x, at, axis=axis) if x is not m.node.operands[0] else None


SHAPES = _rows(
    (pattern("transpose", pattern("transpose", "x")), _transposed_twice),
    (pattern("transpose", "x"), _transposed_in_place),
    (pattern("reshape", pattern("reshape", "x")), _reshaped_twice),
    (pattern("detached", "x"), _x),
    (pattern("reshape", "x"), _x),
    (pattern("broadcast_to", pattern("broadcast_to", "x")), _spread_twice),
    (pattern("broadcast_to", "x"), _x),
    (pattern("squeeze", pattern("expand_dims", "x")), _same_axes),
    (pattern("expand_dims", pattern("squeeze", "x")), _same_axes),
    (pattern("flip", pattern("flip", "x")), _same_axes),
    (pattern("slice", pattern("slice", "x", "i"), "j"), _sliced_twice),
    (pattern("slice", "x", 0), _all_of_it),
    (pattern("slice_scatter", "x", "new", 0), _all_replaced),
    (pattern("select", pattern("slice", "x", "i"), "j"), _selected_of_slice),
    (pattern("select", pattern("select_scatter", "x", "new", "i"), "j"), _elsewhere),
)

# ---------------------------------------------------------------- casts, creation, sums


def _cast_twice(b: ScopedBuilder, m: Match) -> Any:
    between = m.inner.attrs["dtype"]
    if not np.can_cast(type_of(m["x"]).dtype, between, "safe"):
        return None
    return b.astype(m["x"], dtype=m.node.attrs["dtype"])


def _sum_of_one(b: ScopedBuilder, m: Match) -> Any:
    return None if m.node.attrs["axis"] else m["x"]


def _x_of_value(b: ScopedBuilder, m: Match) -> Any:
    # A dim that was made a value is an index that wraps and is checked.
    return None if isinstance(m["x"], Expr) else m["x"]


def _sum_of_equals(b: ScopedBuilder, m: Match) -> Any:
    out, summed = m.node.result.type, type_of(m.node.operands[0])
    if summed.dtype != out.dtype or out.dtype.kind not in "fiu":
        return None
    count = dims.product(summed.shape[k] for k in m.node.attrs["axis"])
    one = b.full(m["x"], shape=out.shape, dtype=out.dtype)
    return b.multiply(one, count)


CASTS = _rows(
    (pattern("astype", "x"), _x),
    (pattern("astype", pattern("astype", "x")), _cast_twice),
    (pattern("item", "x"), _x),
    (pattern("number", "x"), _x_of_value),
    (pattern("sum", "x"), _sum_of_one),
    (pattern("sum", pattern("full", "x")), _sum_of_equals),
    (
        pattern("full", pattern("full", "x")),
        lambda b, m: (
            b.full(m["x"], **m.node.attrs)
            if m.node.attrs["dtype"] == m.inner.attrs["dtype"]
            else None
        ),
    ),
)


# ---------------------------------------------------------------- linear systems


def _swaps(node: Node) -> bool:
    """Tell whether a transpose is that of every matrix of a stack."""
    axes = node.attrs["axes"]
    n = len(axes)
    return bool(axes == (*range(n - 2), n - 1, n - 2))


def _of_transposed(b: ScopedBuilder, m: Match) -> Any:
    """Solve with the factors of the matrix itself, which may serve twice."""
    x, y = m["x"], m["y"]
    if not _swaps(m.inner) or type_of(x).dtype != type_of(y).dtype:
        return None
    return b.lu_solve(x, b.lu(x), y, transposed=True)


def _of_factor(b: ScopedBuilder, m: Match) -> Any:
    x = m.inner.result
    return b.triangular_solve(x, m["y"], lower=True, transposed=False)


def _of_transposed_factor(b: ScopedBuilder, m: Match) -> Any:
    x = m.nodes[2].result
    if not _swaps(m.inner):
        return None
    return b.triangular_solve(x, m["y"], lower=True, transposed=True)


SYSTEMS = _rows(
    (pattern("solve", pattern("cholesky", "x"), "y"), _of_factor),
    (
        pattern("solve", pattern("transpose", pattern("cholesky", "x")), "y"),
        _of_transposed_factor,
    ),
    (pattern("solve", pattern("transpose", "x"), "y"), _of_transposed),
)


def _table() -> dict[Op, tuple[Rule, ...]]:
    table: dict[Op, tuple[Rule, ...]] = {}
    for rule in (*ARITHMETIC, *SHAPES, *CASTS, *SYSTEMS):
        op = rule.pattern.op
        table[op] = (*table.get(op, ()), rule)
    return table


RULES: dict[Op, tuple[Rule, ...]] = _table()

# ---------------------------------------------------------------- by kind

FULL = OPS["full"]


def view_of_full(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return a view of equal elements as equal elements."""
    source = definition(node.operands[0]) if node.op.kind is Kind.VIEW else None
    if source is None or source.op is not FULL:
        return None
    out = node.result.type
    return b.full(source.operands[0], shape=out.shape, dtype=out.dtype)


def view_of_scatter(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return what was put into the part that is read.

    A part that was itself written into is read from the array all the same: what is
    never an array of its own is left to `unnest` as one write.
    """
    if node.op.kind is not Kind.VIEW or node.op.overlapping:
        return None
    new = _put(node, definition)
    made = definition(new)
    if new is None or (made is not None and made.op.kind is Kind.SCATTER):
        return None
    return filled(b, new, node.result)


def _put(view: Node, definition: Definition) -> Any:
    """Return what a scatter, or nested ones, put where a chain of views leads."""
    x = view.operands[0]
    source = definition(x)
    if source is not None and source.op.kind is Kind.VIEW:
        x = _put(source, definition)
        source = definition(x)
    if source is None or source.op.of != view.op.name or source.op.accumulates:
        return None
    if type_of(x) != type_of(view.operands[0]) or not same_place(view, source, 1):
        return None
    return source.operands[1]


def same_place(node: Node, scatter: Node, skip: int) -> bool:
    """Tell whether a view or scatter is of the part that a scatter replaces."""
    ours, theirs = node.operands[skip:], scatter.operands[2:]
    return (
        len(ours) == len(theirs)
        and all(map(same_operand, ours, theirs))
        and dict(node.attrs) == dict(scatter.attrs)
    )


def scatter_over_scatter(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Skip a write that the next one covers, and one of what is there or of nothing."""
    op = node.op
    if op.kind is not Kind.SCATTER or op.accumulates or op.overlapping:
        return None
    under = definition(node.operands[0])
    if under is not None and under.op is op and same_place(node, under, 2):
        if same_operand(node.operands[1], under.operands[1]):
            return under.result
        if b.used_once(under.result):  # two writes into one buffer: one must copy it
            return b.apply(op, (under.operands[0], *node.operands[1:]), node.attrs)
    new = definition(node.operands[1])
    if new is not None and new.op.arbitrary:
        return node.operands[0]
    if new is not None and op.of == new.op.name and same_place(new, node, 1):
        if new.operands[0] is node.operands[0]:
            return node.operands[0]
    return None


def added_to_zero(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Put into a part that was just set to zero, instead of adding to it."""
    op = node.op
    if not op.accumulates or op.overlapping:  # which may add to one element twice
        return None
    under = definition(node.operands[0])
    if under is None or under.op.of != op.of or under.op.accumulates:
        return None
    if not is_number(under.operands[1], 0) or not same_place(node, under, 2):
        return None
    if not b.used_once(under.result):
        return None
    return b.apply(under.op, (under.operands[0], *node.operands[1:]), node.attrs)


def decomposed(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Expand an op that declares how it is made of simpler ones."""
    rule = node.op.decompose
    return None if rule is None else rule(b, *node.operands, **node.attrs)


def folded(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Compute elementwise ops of numbers now."""
    xs = node.operands
    if node.op.kind is not Kind.ELEMENTWISE or not all(map(_is_literal, xs)):
        return None
    with np.errstate(all="ignore"):
        try:
            value = node.op.eager(*xs, **node.attrs)
        except (ArithmeticError, ValueError):  # left to fail where it is computed
            return None
    return np.asarray(value).item()


def _is_literal(x: Operand) -> bool:
    return not isinstance(x, Value | Expr)


def number_for_full(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Use the number itself where an elementwise op reads an array of it."""
    if node.op.kind is not Kind.ELEMENTWISE or len(node.operands) < 2:
        return None
    operands = list(node.operands)
    dtypes = {x.type.dtype for x in operands if isinstance(x, Value)}
    if len(dtypes) > 1:  # a float32 array of 0.1 is not 0.1 beside a float64 array
        return None
    for k, x in enumerate(operands):
        source = definition(x)
        if source is not None and source.op is FULL:
            number = source.operands[0]
            kinds = type_of(number).dtype.kind + type_of(x).dtype.kind
            if _is_literal(number) and kinds in ("ff", "if", "ii", "bb", "cc"):
                operands[k] = number
    if all(a is c for a, c in zip(operands, node.operands, strict=True)):
        return None
    if all(map(_is_literal, operands)):
        return None
    return b.apply(node.op, operands, node.attrs)


GENERAL: tuple[General, ...] = (
    folded,
    view_of_full,
    view_of_scatter,
    scatter_over_scatter,
    added_to_zero,
    number_for_full,
    decomposed,
)

__all__ = ["GENERAL", "RULES", "General", "Match", "Pattern", "Rule", "matched"]
