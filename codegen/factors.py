"""Factorisations and solutions of matrices as nests, for targets without LAPACK.

They compute what the functions of `runtime.linalg` do, in the same layout, one matrix
of a stack a time. A step of an algorithm copies the row and the column that it needs,
so that the iterations which update the rest are apart: a device shares them out among
the threads of a block, or among all blocks where the matrix is large, and the matrices
of a stack among blocks.

Note [exchanges in the update]
Partial pivoting exchanges two lines at places that the program computes, of which
nothing can be proved. So the update chooses what each element was before it: elements
of the two lines come from their copies. It runs over all lines, since factors that are
there already are exchanged, too: half as much work again as for the rest alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ..ir import dims
from ..ir.access import Index, linear
from ..ir.dims import Dim
from ..ir.errors import LinAlgError
from ..ir.func import Node, type_of
from ..ir.op import Routine
from ..ir.types import BOOL, I64, DType
from .kernels import Stored, at, cast, compare, whole
from .nests import Apply, Bind, Buffer, Lit, Load, Loop, Reg, Scalar, Set, Store

if TYPE_CHECKING:
    from .kernels import Lowering

Element: TypeAlias = Callable[[Dim, Dim], Scalar]


def lower(low: Lowering, node: Node, routine: Routine) -> None:
    """Lower a routine to nests, and a check of what can fail."""
    v = node.result
    stack = type_of(node.operands[0]).shape[:-2]
    out = low.target(v) if v.type.shape else low.allocate(v.type.dtype, ())
    m = Matrix(low, node, routine, out, len(stack))
    with low.loops(stack) as index:
        m.index = index
        ALGORITHMS[routine.name](m)
    if routine.error:
        bad = compare("!=", m.failed, Lit(0, I64))
        low.fail_where(bad, LinAlgError, routine.error, node.loc)
    low.define(v, whole(out, v.type.shape))


class Matrix:
    """One matrix of a stack, with the operands and the result of the node for it."""

    def __init__(
        self, low: Lowering, node: Node, routine: Routine, out: Buffer, axes: int
    ) -> None:
        self.low = low
        self.dtype = node.result.type.dtype
        self.sizes = tuple(routine.sizes(*map(type_of, node.operands)))
        self.flags = {name: bool(node.attrs[name]) for name in routine.flags}
        self.index: Index = ()
        self.out, self.shape, self.axes = out, node.result.type.shape, axes
        names = (*routine.reads, routine.over)
        self.operands: dict[str, Stored] = {
            name: low.stored(x)
            for name, x in zip(node.op.operands, node.operands, strict=True)
            if name in names
        }
        self.failed = low.variable(Lit(0, I64), "failed") if routine.error else NOTHING
        self.before = low.body

    # Memory -----------------------------------------------------------------------

    def scratch(self, dtype: DType, *shape: Dim) -> Buffer:
        """Return memory of the matrix's own."""
        low = self.low
        inner, low.body = low.body, self.before
        b = low.allocate(dtype, shape, "row")
        low.body = inner
        b.private = self.axes > 0
        return b

    def operand(self, name: str) -> Element:
        x = self.operands[name]

        def element(i: Dim, j: Dim) -> Scalar:
            value = self.load(x.buffer, x.at((*self.index, i, j)))
            return cast(value, self.dtype)

        return element

    def load(self, b: Buffer, offset: Dim) -> Scalar:
        return self.low.let(Load(b, offset, b.dtype))

    def place(self, *rest: Dim) -> Dim:
        """Return the offset of an element in the result."""
        return linear((*self.index, *rest), self.shape)

    def store(self, b: Buffer, offset: Dim, value: Scalar) -> None:
        self.low.emit(Store(b, offset, value))

    def copied(self, x: Element, rows: Dim, columns: Dim) -> Buffer:
        """Return a copy of a matrix in rows."""
        work = self.scratch(self.dtype, rows, columns)
        with self.elements(0, rows, 0, columns) as (i, j):
            self.store(work, at_row(i, columns, j), x(i, j))
        return work

    # Statements -------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Dim, stop: Dim) -> Iterator[Dim]:
        s, i = self.low.symbol("i")
        with self.low.into() as body:
            yield i
        self.low.emit(Loop(s, start, stop, 1, body))

    @contextmanager
    def elements(
        self, row: Dim, rows: Dim, column: Dim, columns: Dim
    ) -> Iterator[tuple[Dim, Dim]]:
        with self.loop(row, rows) as i, self.loop(column, columns) as j:
            yield i, j

    def bound(self, x: Scalar) -> Dim:
        """Return a dim that a computed integer is."""
        s, d = self.low.symbol("p")
        self.low.emit(Bind(s, x))
        return d

    def fold(self, acc: Reg, template: str, x: Scalar) -> None:
        self.low.emit(Set(acc.name, apply(template, acc, x)))

    def count(self, acc: Reg, *conditions: Scalar) -> None:
        """Count the conditions that hold."""
        for c in conditions:
            one = choose(c, Lit(1, I64), Lit(0, I64))
            self.fold(acc, "({0} + {1})", self.low.let(one))

    def number(self, value: float) -> Scalar:
        return cast(Lit(value, self.dtype), self.dtype)


NOTHING = Reg("", I64)


def apply(template: str, *args: Scalar) -> Scalar:
    return Apply(template, args, args[0].dtype)


def choose(condition: Scalar, one: Scalar, other: Scalar) -> Scalar:
    return Apply("where({0}, {1}, {2})", (condition, one, other), one.dtype)


def both(x: Scalar, y: Scalar) -> Scalar:
    return Apply("({0} & {1})", (x, y), BOOL)


def less_product(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
    return apply("({0} - {1})", x, apply("({0} * {1})", y, z))


def at_row(i: Dim, columns: Dim, j: Dim) -> Dim:
    return dims.add(dims.mul(i, columns), j)


def before(n: Dim, i: Dim) -> Dim:
    """Return n - 1 - i."""
    return dims.add(dims.add(n, -1), dims.mul(i, -1))


# ---------------------------------------------------------------- LU


def lu(m: Matrix) -> None:
    """Factor x.T = P L U; row k of the memory is column k of what is factored."""
    (n,) = m.sizes
    work = m.copied(m.operand("x"), n, n)
    first, other, factors = (m.scratch(m.dtype, n) for _ in range(3))
    with m.loop(0, n) as k:
        p = _pivot(m, work, n, k)
        m.store(m.out, m.place(n, k), cast(at(p), m.dtype))
        with m.loop(0, n) as j:
            m.store(first, j, m.load(work, at_row(j, n, p)))
            m.store(other, j, m.load(work, at_row(j, n, k)))
        pivot = m.load(first, k)
        zero = compare("==", pivot, m.number(0))
        pivot = m.low.let(choose(zero, m.number(1), pivot))
        with m.loop(k, n) as i:
            here, there = m.load(work, at_row(k, n, i)), m.load(other, k)
            x = choose(compare("==", at(i), at(p)), there, here)
            m.store(factors, i, apply("({0} / {1})", x, pivot))
        with m.elements(0, n, k, n) as (j, i):
            _updated(m, work, (first, other, factors), (n, k, p), i, j)
    with m.elements(0, n, 0, n) as (i, j):
        m.store(m.out, m.place(i, j), m.load(work, at_row(i, n, j)))


def _pivot(m: Matrix, work: Buffer, n: Dim, k: Dim) -> Dim:
    """Return where the first of the largest elements from k on is, of row k."""
    largest = m.low.variable(m.number(-1), "largest")
    with m.loop(k, n) as i:
        size = m.low.let(apply("abs({0})", m.load(work, at_row(k, n, i))))
        m.fold(largest, "maximum({0}, {1})", size)
    last = at(dims.add(n, -1))  # also where there is a NaN
    place = m.low.variable(last, "place")
    with m.loop(k, n) as i:
        size = m.low.let(apply("abs({0})", m.load(work, at_row(k, n, i))))
        found = choose(compare("==", size, largest), at(i), last)
        m.fold(place, "minimum({0}, {1})", m.low.let(found))
    return m.bound(place)


def _updated(
    m: Matrix,
    work: Buffer,
    copies: tuple[Buffer, Buffer, Buffer],
    where: tuple[Dim, Dim, Dim],
    i: Dim,
    j: Dim,
) -> None:
    """Exchange and update one element; see Note [exchanges in the update]."""
    n, k, p = where
    first, other = (m.load(b, j) for b in copies[:2])
    factor = m.load(copies[2], i)
    old = m.load(work, at_row(j, n, i))
    moved = choose(compare("==", at(i), at(p)), other, old)
    moved = m.low.let(choose(compare("==", at(i), at(k)), first, moved))
    after = compare(">", at(i), at(k))
    new = choose(both(after, compare("==", at(j), at(k))), factor, moved)
    rest = both(after, compare(">", at(j), at(k)))
    new = choose(rest, less_product(moved, factor, first), new)
    m.store(work, at_row(j, n, i), new)


def lu_solve(m: Matrix) -> None:
    n, columns = m.sizes
    x, y, transposed = m.operand("factors"), m.operand("y"), m.flags["transposed"]
    _check_diagonal(m, x, n)
    order = _order(m, x, n, transposed)

    def exchanged(i: Dim, j: Dim) -> Scalar:
        return y(m.bound(m.load(order, i)), j)

    if transposed:
        work = m.copied(exchanged, n, columns)
        _substitute(m, lambda i, j: x(j, i), work, upwards=False, unit=True)
        _substitute(m, lambda i, j: x(j, i), work, upwards=True)
    else:
        work = m.copied(y, n, columns)
        _substitute(m, x, work, upwards=False)
        _substitute(m, x, work, upwards=True, unit=True)
    with m.elements(0, n, 0, columns) as (i, j):
        row = i if transposed else m.bound(m.load(order, i))
        m.store(m.out, m.place(i, j), m.load(work, at_row(row, columns, j)))


def _order(m: Matrix, x: Element, n: Dim, upwards: bool) -> Buffer:
    """Return which row comes to each place by the exchanges, in order or reversed."""
    order = m.scratch(I64, n)
    with m.loop(0, n) as i:
        m.store(order, i, at(i))
    with m.loop(0, n) as step:
        i = step if upwards else before(n, step)
        j = m.bound(cast(x(n, i), I64))
        one, other = m.load(order, i), m.load(order, j)
        m.store(order, i, other)
        m.store(order, j, one)
    return order


def _determinant(m: Matrix, result: Callable[[Matrix, Scalar, Scalar], Scalar]) -> None:
    (n,) = m.sizes
    x = m.operand("factors")
    odd, zeros = (m.low.variable(Lit(0, I64), name) for name in ("odd", "zeros"))
    log = m.low.variable(m.number(0), "log")
    with m.loop(0, n) as i:
        d = x(i, i)
        exchanged = compare("!=", x(n, i), cast(at(i), m.dtype))
        m.count(odd, compare("<", d, m.number(0)), exchanged)
        m.count(zeros, compare("==", d, m.number(0)))
        size = m.low.let(apply("log({0})", apply("abs({0})", d)))
        m.low.emit(Set(log.name, size, plus=True))
    is_odd = compare("!=", apply("({0} & {1})", odd, Lit(1, I64)), Lit(0, I64))
    sign = choose(is_odd, m.number(-1), m.number(1))
    sign = choose(compare(">", zeros, Lit(0, I64)), m.number(0), sign)
    m.store(m.out, m.place(), result(m, m.low.let(sign), log))


def lu_sign(m: Matrix) -> None:
    _determinant(m, lambda m, sign, log: sign)


def lu_log(m: Matrix) -> None:
    _determinant(m, lambda m, sign, log: log)


def lu_det(m: Matrix) -> None:
    def product(m: Matrix, sign: Scalar, log: Scalar) -> Scalar:
        return apply("({0} * {1})", sign, m.low.let(apply("exp({0})", log)))

    _determinant(m, product)


# ---------------------------------------------------------------- Cholesky, triangles


def cholesky(m: Matrix) -> None:
    (n,) = m.sizes
    work = m.copied(m.operand("x"), n, n)
    column = m.scratch(m.dtype, n)
    with m.loop(0, n) as k:
        d = m.load(work, at_row(k, n, k))
        good = compare(">", d, m.number(0))  # and no NaN
        m.count(m.failed, choose(good, Lit(False, BOOL), Lit(True, BOOL)))
        root = m.low.let(apply("sqrt({0})", d))
        with m.loop(k, n) as i:
            below = apply("({0} / {1})", m.load(work, at_row(i, n, k)), root)
            m.store(column, i, choose(compare("==", at(i), at(k)), root, below))
        with m.elements(k, n, k, n) as (i, j):
            left, right = m.load(column, i), m.load(column, j)
            old = m.load(work, at_row(i, n, j))
            new = choose(compare("==", at(j), at(k)), left, old)
            rest = both(*(compare(">", at(q), at(k)) for q in (i, j)))
            new = choose(rest, less_product(old, left, right), new)
            m.store(work, at_row(i, n, j), new)
    with m.elements(0, n, 0, n) as (i, j):
        x = m.load(work, at_row(i, n, j))
        inside = compare("<=", at(j), at(i))
        m.store(m.out, m.place(i, j), choose(inside, x, m.number(0)))


def triangular_solve(m: Matrix) -> None:
    n, columns = m.sizes
    x, transposed = m.operand("x"), m.flags["transposed"]
    _check_diagonal(m, x, n)
    work = m.copied(m.operand("y"), n, columns)
    triangle: Element = (lambda i, j: x(j, i)) if transposed else x
    _substitute(m, triangle, work, upwards=m.flags["lower"] == transposed)
    with m.elements(0, n, 0, columns) as (i, j):
        m.store(m.out, m.place(i, j), m.load(work, at_row(i, columns, j)))


def _check_diagonal(m: Matrix, x: Element, n: Dim) -> None:
    with m.loop(0, n) as i:
        m.count(m.failed, compare("==", x(i, i), m.number(0)))


def _substitute(
    m: Matrix, x: Element, work: Buffer, *, upwards: bool, unit: bool = False
) -> None:
    """Solve a triangular system for the columns of `work`, in place."""
    n, columns = m.sizes
    row = m.scratch(m.dtype, columns)
    with m.loop(0, n) as step:
        k = before(n, step) if upwards else step
        with m.loop(0, columns) as j:
            value = m.load(work, at_row(k, columns, j))
            if not unit:
                value = m.low.let(apply("({0} / {1})", value, x(k, k)))
            m.store(work, at_row(k, columns, j), value)
            m.store(row, j, value)
        first, last = (0, k) if upwards else (dims.add(k, 1), n)
        with m.elements(first, last, 0, columns) as (i, j):
            value = m.load(work, at_row(i, columns, j))
            new = less_product(value, x(i, k), m.load(row, j))
            m.store(work, at_row(i, columns, j), new)


ALGORITHMS: dict[str, Callable[[Matrix], None]] = {
    f.__name__: f
    for f in (lu, lu_solve, lu_det, lu_log, lu_sign, cholesky, triangular_solve)
}
