"""Matrix products: loops for small ones, BLAS for large ones, on views as they lie.

A product is a stack of `out[i, j] = sum over k of left[i, k] * right[k, j]`, a vector
being a matrix of one line. Operands are read where they are, through their offsets.

The loops have that index innermost along which no matrix takes long steps: a row-major
matrix times a vector sums along rows, a vector times a row-major matrix adds multiples
of rows. BLAS wants one unit step in each matrix; an operand without one is copied.

Note [loops or BLAS]
A call costs 40 to 150 ns and OpenBLAS is good at small sizes, so loops pay where sizes
are known, and for a matrix by a vector, where they are as fast up to about 32 x 32:
there the kernel decides, and in a stack of up to 8 x 8 if the layout is open (10 ns
each instead of 46). Products of two matrices of unknown sizes always go to BLAS:
loops are slower from 4 x 4 on, and would make every product longer to compile.

Note [products of a device]
A device multiplies two matrices with any steps, in stacks, by one call; a vector is
summed up by loops, which give rows to blocks. Small products are loops, too: they may
be a part of something larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..ir import dims
from ..ir.access import Index, linear, project
from ..ir.dims import Dim
from ..ir.func import Node, Operand, type_of
from ..ir.types import BOOL, F32, F64, I64, DType, Shape
from .folds import BLOCK
from .kernels import Stored, at, cast, compare, supported, whole
from .nests import (
    Apply,
    At,
    Buffer,
    Call,
    If,
    Lit,
    Load,
    Loop,
    Pointer,
    Reg,
    Scalar,
    Set,
    Store,
)
from .rows import points

if TYPE_CHECKING:
    from .kernels import Lowering

Flag: TypeAlias = bool | Scalar
Count: TypeAlias = Dim | Scalar

# Multiplications up to which loops are taken; see Note [loops or BLAS].
MATRIX_BY_MATRIX = 512
MATRIX_BY_VECTOR = 1024
TINY_MATRIX = 64  # of a stack, by a vector, where its layout is not known either
ON_DEVICE = 1 << 15  # of a stack; see Note [products of a device]


SUFFIX = {0: "", 1: "_add", -1: "_subtract"}
NOWHERE = Buffer("nowhere", F64, 0, "arena")


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand or a result as a stack of matrices."""

    buffer: Buffer
    at: Callable[[Index, Dim, Dim], Dim]  # index of the stack, row, column -> offset
    rows: Dim
    columns: Dim
    stack: Shape

    @property
    def shape(self) -> Shape:
        return (*self.stack, self.rows, self.columns)

    @property
    def transposed(self) -> Matrix:
        def swapped(index: Index, i: Dim, j: Dim) -> Dim:
            return self.at(index, j, i)

        return Matrix(self.buffer, swapped, self.columns, self.rows, self.stack)

    def where(self, index: Index, stack: Shape, i: Dim, j: Dim) -> Dim:
        """Return the offset of (i, j) at an index of `stack`, that of the product."""
        return self.at(project(index, stack, self.stack), i, j)

    def element(self, index: Index, stack: Shape, i: Dim, j: Dim) -> Scalar:
        offset = self.where(index, stack, i, j)
        return Load(self.buffer, offset, self.buffer.dtype)

    def steps(self) -> tuple[Dim | None, Dim | None]:
        """Return the steps to the next row and column; None where they vary.

        An axis of one element has step 0.
        """
        stack = tuple(dims.symbol(f"_m{k}") for k in range(len(self.stack)))
        i = 0 if self.rows == 1 else dims.symbol("_mi")
        j = 0 if self.columns == 1 else dims.symbol("_mj")
        d = self.at(stack, i, j)
        return slope(d, i), slope(d, j)

    def stack_steps(self, stack: Shape) -> list[Dim | None]:
        """Return the steps along the axes of `stack`, that of the product."""
        index = [0 if d == 1 else dims.symbol(f"_m{k}") for k, d in enumerate(stack)]
        d = self.where(tuple(index), stack, 0, 0)
        return [slope(d, i) for i in index]

    def step(self) -> Dim | None:
        """Return the step along the elements of a matrix of one line."""
        rows, columns = self.steps()
        if self.rows == 1 and self.columns == 1:
            return 1
        return columns if self.rows == 1 else rows

    def layout(self) -> tuple[bool, Dim] | None:
        """Return (is transposed, step from line to line), None without a unit step."""
        rows, columns = self.steps()
        if rows is None or columns is None:
            return None
        if self.columns == 1 or columns == 1:
            return False, self.columns if self.rows == 1 else rows
        if self.rows == 1 or rows == 1:
            return True, columns
        return None


def slope(d: Dim, i: Dim) -> Dim | None:
    """Return the constant step of `d` along the symbol `i`, 0 where `i` is none."""
    s = dims.as_symbol(i)
    if s is None:
        return 0
    zero = dims.substitute(d, {s: 0})
    step = dims.add(dims.substitute(d, {s: 1}), dims.mul(zero, -1))
    if dims.add(zero, dims.mul(step, i)) != d:
        return None
    return None if any(x.name.startswith("_m") for x in dims.symbols_of(step)) else step


def operand(low: Lowering, x: Operand, *, column: bool) -> Matrix:
    """Return an operand as matrices: a vector as a column or as a row."""
    s = low.stored(x)
    if len(s.shape) > 1:
        *stack, rows, columns = s.shape
        return Matrix(
            s.buffer, lambda n, i, j: s.at((*n, i, j)), rows, columns, tuple(stack)
        )
    (size,) = s.shape
    if column:
        return Matrix(s.buffer, lambda _, i, j: s.at((i,)), size, 1, ())
    return Matrix(s.buffer, lambda _, i, j: s.at((j,)), 1, size, ())


def in_order(b: Buffer, shape: Shape) -> Matrix:
    """Return the matrices that fill a buffer in C order."""
    *stack, rows, columns = shape
    return Matrix(
        b, lambda n, i, j: linear((*n, i, j), shape), rows, columns, tuple(stack)
    )


def lower(low: Lowering, node: Node) -> None:
    """Lower matmul."""
    v = node.result
    shape = v.type.shape
    order = low.orders.get(v, tuple(range(len(shape))))
    lies = tuple(shape[k] for k in order)

    def where(index: Index) -> Dim:
        return linear([index[k] for k in order], lies)

    p = of(low, node, where)
    if not shape:
        left, right = p.left, p.right
        low.values[v] = total(
            low,
            left.columns,
            p.dtype,
            lambda k: (left.element((), (), 0, k), right.element((), (), k, 0)),
        )
        return
    b = low.target(v)
    p.lower(b)
    index, position = points(shape)
    is_whole = where(index) == position
    low.define(v, whole(b, shape) if is_whole else Stored(b, where, shape))


def of(low: Lowering, node: Node, at: Callable[[Index], Dim], sign: int = 0) -> Product:
    """Return the product that a matmul is; `at` is the offset in the result's buffer.

    It is added to what is there, `sign` times, or replaces it where `sign` is 0.
    """
    x, y = node.operands
    t = node.result.type
    assert node.op.computes is not None
    dtype = node.op.computes(type_of(x), type_of(y))[0]
    supported(dtype)
    left = operand(low, x, column=False)
    right = operand(low, y, column=True)
    stack = t.shape[: max(len(left.stack), len(right.stack))]
    has_rows, has_columns = type_of(x).ndim > 1, type_of(y).ndim > 1

    def where(index: Index, i: Dim, j: Dim) -> Dim:
        rows, columns = (i,) if has_rows else (), (j,) if has_columns else ()
        return at((*index, *rows, *columns))

    out = Matrix(NOWHERE, where, left.rows, right.columns, stack)
    return Product(low, left, right, out, dtype, sign)


def total(
    low: Lowering,
    size: Dim,
    dtype: DType,
    factors: Callable[[Dim], tuple[Scalar, Scalar]],
    short: bool = False,
) -> Reg:
    """Emit a sum of products; floats are added in any order, by blocks if not short."""
    zero = Lit(np.zeros((), dtype).item(), dtype)
    acc = low.variable(zero, "acc")
    s, k = low.symbol("k")
    with low.into() as body:
        product = times(low, dtype, *factors(k))
        if dtype.kind != "f":
            low.emit(Set(acc.name, sum_of(acc, product)))
    loop = Loop(s, 0, size, 1, body)
    if dtype.kind == "f":
        short = short or (isinstance(size, int) and size <= BLOCK)
        part = acc if short else Reg(low.fresh("part"), dtype)
        body.append(Set(part.name, product, plus=True))
        if not short:
            loop.block = BLOCK
            loop.opening = [Set(part.name, zero)]
            loop.closing = [Set(acc.name, sum_of(acc, part))]
    low.emit(loop)
    return acc


def times(low: Lowering, dtype: DType, *factors: Scalar) -> Scalar:
    x, y = (low.let(cast(low.let(f), dtype)) for f in factors)
    return Apply("({0} * {1})", (x, y), dtype)


def sum_of(x: Scalar, y: Scalar) -> Scalar:
    return Apply("({0} + {1})", (x, y), x.dtype)


@dataclass(slots=True)
class Product:
    """One stack of products with a result in memory."""

    low: Lowering
    left: Matrix
    right: Matrix
    out: Matrix
    dtype: DType
    sign: int

    @property
    def sizes(self) -> tuple[Dim, Dim, Dim]:
        return self.left.rows, self.left.columns, self.right.columns

    def fits(self) -> bool:
        """Tell whether BLAS could write the result where it belongs."""
        m, _, n = self.sizes
        if 1 in (m, n):
            step = self.out.step()
            return step is not None and self.low.facts.differ(step, 0)
        found = self.out.layout()
        if found is None:
            return False
        transposed, length = found
        return not transposed and self.low.facts.proves(
            dims.add(length, dims.mul(n, -1))
        )

    @property
    def turned(self) -> Product:
        """The same product with rows for columns."""
        left, right, out = (x.transposed for x in (self.right, self.left, self.out))
        return replace(self, left=left, right=right, out=out)

    def merged(self) -> Product | None:
        """Return one product if the rows of the stack are those of one matrix.

        An array of the caller is taken to be packed.
        """
        if not self.out.stack or self.left.stack != self.out.stack:
            return None
        if any(d != 1 for d in self.right.stack):
            return None
        left, out = (self.together(x) for x in (self.left, self.out))
        if left is None or out is None:
            return None
        first = (0,) * len(self.right.stack)
        right = replace(
            self.right, at=lambda _, i, j: self.right.at(first, i, j), stack=()
        )
        return replace(self, left=left, right=right, out=out)

    def together(self, x: Matrix) -> Matrix | None:
        """Return a stack of matrices as one with all their rows, if it is one."""
        packed = self.low.rows.together((x.buffer,))
        shape = (*x.stack, x.rows)
        index, row = points(shape)
        column = dims.symbol("_mj")

        def at(_: Index, i: Dim, j: Dim) -> Dim:
            return dims.substitute(x.at((0,) * len(x.stack), i, j), packed)

        *stack, i = index
        where = dims.substitute(x.at(tuple(stack), i, column), packed)
        if where != at((), row, column):
            return None
        return Matrix(x.buffer, at, dims.product(shape), x.columns, ())

    def lower(self, b: Buffer) -> None:
        """Emit loops, a call, or both behind a test of the sizes."""
        self.out = replace(self.out, buffer=b)
        low = self.low
        p = self.merged() if "blas" in low.library else None
        if p is None:
            self.emit()
            return
        steps = low.rows.together((self.left.buffer,))
        open_ = [s for s in steps if s not in low.rows.packed]
        if not open_:
            p.emit()
            return
        with low.into() as once:
            p.emit()
        with low.into() as each:
            self.emit()
        packed = [
            compare("==", At(dims.symbol(s.name), I64), at(steps[s])) for s in open_
        ]
        low.emit(If(_all(packed), once, each))

    def emit(self) -> None:
        found = self.out.layout()
        if found is not None and found[0]:
            self.turned.emit()
            return
        low = self.low
        m, k, n = self.sizes
        vector = 1 in (m, n)
        limit = MATRIX_BY_VECTOR if vector else MATRIX_BY_MATRIX
        work = dims.product((m, k, n))
        small = low.facts.proves(dims.add(limit, dims.mul(work, -1)))
        is_open = self.is_open(self.left) or self.is_open(self.right)
        if "blas" not in low.library:
            self.on_device()
            return
        if self.dtype not in (F32, F64) or m == n == 1 or small:
            self.loops()
            return
        with low.into() as large:
            conditions = self.call()
        decides = vector and not isinstance(work, int)
        if is_open:  # steps that are not known make slow loops
            decides, limit = decides and bool(self.out.stack), TINY_MATRIX
        short = decides and not conditions and limit <= BLOCK
        if decides:
            conditions.insert(0, compare(">", at(work), at(limit)))
        if not conditions:
            low.body.extend(large)
            return
        with low.into() as loops:
            self.loops(short)
        low.emit(If(_all(conditions), large, loops))

    # Devices ----------------------------------------------------------------------

    def on_device(self) -> None:
        """Emit sums, or a call and sums; see Note [products of a device]."""
        low, limit = self.low, ON_DEVICE
        m, k, n = self.sizes
        work = dims.product((*self.out.stack, m, k, n))
        with low.into() as call:
            found = (
                "products" in low.library
                and self.dtype in (F32, F64)
                and 1 not in (m, n)
                and not low.facts.proves(dims.add(limit, dims.mul(work, -1)))
                and self.device_call()
            )
        with low.into() as loops, low.loops(self.out.stack) as index:
            self.sums(index, False)
        if not found:
            low.body.extend(loops)
            return
        always = low.facts.proves(dims.add(work, -limit - 1))
        condition = Lit(True, BOOL) if always else compare(">", at(work), at(limit))
        low.emit(If(condition, call, loops))

    def device_call(self) -> bool:
        """Emit the call of a product; False where the result has no steps."""
        stack, (m, k, n) = self.out.stack, self.sizes
        numbers: list[Dim] = [m, n, k]
        along: list[list[Dim]] = [list(stack)]
        pointers: list[Pointer] = []
        for x in (self.out, self.left, self.right):
            if x is not self.out and x.buffer.dtype != self.dtype:
                x = self.copied(x)
            found = (*x.steps(), *x.stack_steps(stack))
            if None in found and x is not self.out:
                x = self.copied(x)
                found = (*x.steps(), *x.stack_steps(stack))
            steps = [step for step in found if step is not None]
            if len(steps) != len(found):
                return False
            pointers.append((x.buffer, x.where((0,) * len(stack), stack, 0, 0)))
            numbers += steps[:2]
            along.append(steps[2:])
        for axis in zip(*along, strict=True):
            numbers += axis
        args = (*pointers, *numbers)
        self.low.emit(Call("products.multiply" + SUFFIX[self.sign], args))
        return True

    # Loops ------------------------------------------------------------------------

    def loops(self, short: bool = False) -> None:
        with self.low.loops(self.out.stack) as index:
            match self.innermost():
                case "k":
                    self.sums(index, short)
                case "j":
                    self.multiples(index)
                case _:
                    self.turned.multiples(index)

    def innermost(self) -> str:
        """Return the index whose loop takes the fewest long steps; k where equal."""
        m, _, n = self.sizes
        (li, lk), (rk, rj), (oi, oj) = (
            x.steps() for x in (self.left, self.right, self.out)
        )
        # The result is read and written in every iteration of a loop over i or j.
        costs = {"k": _far(lk) + _far(rk)}
        if n != 1:
            costs["j"] = _far(rj) + 2 * _far(oj)
        if m != 1:
            costs["i"] = _far(li) + 2 * _far(oi)
        return min(costs, key=lambda name: costs[name])

    def sums(self, index: Index, short: bool) -> None:
        """Emit one sum for every element; none is longer than a block if `short`."""
        low, stack = self.low, self.out.stack
        m, size, n = self.sizes
        with low.loops((m, n)) as (i, j):
            acc = total(
                low,
                size,
                self.dtype,
                lambda k: (
                    self.left.element(index, stack, i, k),
                    self.right.element(index, stack, k, j),
                ),
                short,
            )
            where = self.out.where(index, stack, i, j)
            low.emit(Store(self.out.buffer, where, self.added(where, acc)))

    def added(self, where: Dim, x: Scalar) -> Scalar:
        """Return what to store for a term or a sum."""
        if not self.sign:
            return x
        old = Load(self.out.buffer, where, self.dtype)
        template = "({0} + {1})" if self.sign > 0 else "({0} - {1})"
        return Apply(template, (old, x), self.dtype)

    def multiples(self, index: Index) -> None:
        """Emit additions of multiples of rows of `right` to rows of the result."""
        low, stack, b = self.low, self.out.stack, self.out.buffer
        m, size, n = self.sizes
        zero = Lit(np.zeros((), self.dtype).item(), self.dtype)
        adding = replace(self, sign=self.sign or 1)
        with low.loops((m,)) as (i,):
            if not self.sign:
                with low.loops((n,)) as (j,):
                    low.emit(Store(b, self.out.where(index, stack, i, j), zero))
            with low.loops((size,)) as (k,):
                factor = low.let(self.left.element(index, stack, i, k))
                with low.loops((n,)) as (j,):
                    other = self.right.element(index, stack, k, j)
                    product = times(low, self.dtype, factor, other)
                    where = self.out.where(index, stack, i, j)
                    low.emit(Store(b, where, adding.added(where, product)))

    # BLAS -------------------------------------------------------------------------

    def call(self) -> list[Scalar]:
        """Emit the call; returns what must hold beside the size."""
        conditions: list[Scalar] = []
        m, _, n = self.sizes
        left = self.ready(self.left, m == 1, conditions)
        right = self.ready(self.right, n == 1, conditions)
        with self.low.loops(self.out.stack) as index:
            self.call_one(left, right, index)
        return conditions

    def is_open(self, x: Matrix) -> bool:
        """Tell whether only the kernel knows if a matrix or its transpose has rows."""
        return frozenset(x.steps()) in self.low.rows.pairs

    def ready(self, x: Matrix, vector: bool, conditions: list[Scalar]) -> Matrix:
        """Return an operand that BLAS can take: the same, or a copy.

        A vector may have any step but 0, a matrix needs a unit step and a long enough
        one; where the length is open, it becomes a condition.
        """
        fits = x.buffer.dtype == self.dtype
        facts = self.low.facts
        if fits and vector:
            step = x.step()
            fits = step is not None and facts.differ(step, 0)
        elif fits and not self.is_open(x):
            found = x.layout()
            fits = found is not None
            if found is not None:
                transposed, length = found
                least = x.rows if transposed else x.columns
                if not facts.proves(dims.add(length, dims.mul(least, -1))):
                    conditions.append(compare(">=", at(length), at(least)))
        return x if fits else self.copied(x)

    def copied(self, x: Matrix) -> Matrix:
        low = self.low
        new = in_order(low.allocate(self.dtype, x.shape), x.shape)
        with low.loops(x.shape) as (*index, i, j):
            value = cast(low.let(x.element(tuple(index), x.stack, i, j)), self.dtype)
            low.emit(Store(new.buffer, new.at(tuple(index), i, j), value))
        return new

    def laid_out(self, x: Matrix) -> tuple[Flag, Count]:
        """Return whether BLAS is to transpose a matrix, and the step between lines."""
        if not self.is_open(x):
            found = x.layout()
            assert found is not None
            return found
        rows, columns = x.steps()
        assert rows is not None
        assert columns is not None
        turned = self.low.let(compare("!=", at(columns), Lit(1, I64)))
        # The step along an axis of one element may be anything.
        lengths = [dims.maximum(rows, columns, d) for d in (x.rows, x.columns)]
        return turned, self.chosen(turned, *lengths)

    def chosen(self, flag: Flag, x: Dim, y: Dim) -> Count:
        if isinstance(flag, bool) or x == y:
            return x if flag else y
        return self.low.let(Apply("where({0}, {1}, {2})", (flag, at(x), at(y)), I64))

    def call_one(self, left: Matrix, right: Matrix, index: Index) -> None:
        m, k, n = self.sizes
        a, b, c = (self.pointer(x, index) for x in (left, right, self.out))
        if n == 1:
            self.matrix_by_vector(left, a, right, b, c)
        elif m == 1:
            self.matrix_by_vector(right.transposed, b, left.transposed, a, c)
        else:
            (ta, lda), (tb, ldb) = self.laid_out(left), self.laid_out(right)
            _, ldc = self.laid_out(self.out)
            args = (ta, tb, m, n, k, a, lda, b, ldb, c, ldc)
            self.low.emit(Call("blas.gemm" + SUFFIX[self.sign], args))

    def matrix_by_vector(
        self, matrix: Matrix, a: Pointer, vector: Matrix, x: Pointer, y: Pointer
    ) -> None:
        turned, length = self.laid_out(matrix)
        rows = self.chosen(turned, matrix.columns, matrix.rows)
        columns = self.chosen(turned, matrix.rows, matrix.columns)
        along, out = vector.step(), self.out.step()
        assert along is not None
        assert out is not None
        args = (turned, rows, columns, a, length, x, along, y, out)
        self.low.emit(Call("blas.gemv" + SUFFIX[self.sign], args))

    def pointer(self, x: Matrix, index: Index) -> Pointer:
        return x.buffer, x.where(index, self.out.stack, 0, 0)


def _far(step: Dim | None) -> bool:
    """Tell whether a step leaves the neighbourhood in memory."""
    return step not in (-1, 0, 1)


def _all(conditions: list[Scalar]) -> Scalar:
    first, *rest = conditions
    for c in rest:
        first = Apply("({0} & {1})", (first, c), BOOL)
    return first
