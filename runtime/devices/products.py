"""Products of matrices as a device is asked for them: sizes and steps, all integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

Steps = tuple[int, int]  # to the next row and to the next column, in elements
Axis = tuple[int, int, int, int]  # how many matrices; steps of result, left and right


@dataclass(frozen=True, slots=True)
class Product:
    """Describe a stack of `rows` x `terms` times `terms` x `columns` matrices.

    The results replace what is in memory, or are added to it `sign` times, 1 or -1. No
    size is 0 but that of the terms. `stack` has the innermost axis first.
    """

    dtype: str
    sign: int
    rows: int
    columns: int
    terms: int
    out: Steps
    left: Steps
    right: Steps
    stack: tuple[Axis, ...] = ()

    @property
    def count(self) -> int:
        """How many matrices the stack has."""
        return math.prod(n for n, *_ in self.stack)

    @property
    def work(self) -> int:
        """The multiplications."""
        return self.count * self.rows * self.columns * self.terms

    @property
    def turned(self) -> Product:
        """The same product with rows for columns."""
        out, left, right = (x[::-1] for x in (self.out, self.right, self.left))
        stack = tuple((n, c, b, a) for n, c, a, b in self.stack)
        return Product(
            self.dtype,
            self.sign,
            self.columns,
            self.rows,
            self.terms,
            out,
            left,
            right,
            stack,
        )


@functools.lru_cache(1024)
def described(dtype: str, sign: int, numbers: tuple[int, ...]) -> Product | None:
    """Return the product that compiled code asks for, None where there is no result.

    `numbers` are rows, columns and terms, the steps of result, left and right, and four
    of each axis of the stack, outermost first.
    """
    rows, columns, terms, *steps = numbers[:9]
    axes = [_axis(numbers[k : k + 4]) for k in range(9, len(numbers), 4)]
    out, left, right = ((steps[k], steps[k + 1]) for k in (0, 2, 4))
    p = Product(dtype, sign, rows, columns, terms, out, left, right, tuple(axes[::-1]))
    if 0 in (rows, columns, p.count):
        return None
    p = _merged(replace(p, stack=_joined(p.stack)))
    return _merged(p.turned).turned


def _axis(numbers: Sequence[int]) -> Axis:
    count, out, left, right = numbers
    return count, out, left, right


def _joined(stack: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return a stack of fewer axes: without those of one matrix, neighbours as one.

    >>> _joined([(3, 4, 0, 4), (1, 9, 9, 9), (5, 12, 0, 12)])
    ((15, 4, 0, 4),)
    """
    axes: list[Axis] = []
    for count, *steps in stack:
        if count == 1:
            continue
        if axes and steps == [axes[-1][0] * step for step in axes[-1][1:]]:
            axes[-1] = (axes[-1][0] * count, *axes[-1][1:])
        else:
            axes.append(_axis([count, *steps]))
    return tuple(axes)


def _merged(p: Product) -> Product:
    """Return a product with more rows, if those of the stack are those of one matrix.

    >>> p = Product("float32", 0, 2, 3, 4, (3, 1), (4, 1), (3, 1), ((5, 6, 8, 0),))
    >>> _merged(p).rows, _merged(p).stack
    (10, ())
    """
    while p.stack:
        (count, out, left, right), *rest = p.stack
        down, left_down = p.out[0], p.left[0]
        if p.rows == 1:  # the steps of one row may be anything
            down, left_down = out, left
        if right != 0 or (out, left) != (p.rows * down, p.rows * left_down):
            break
        p = replace(
            p,
            rows=p.rows * count,
            out=(down, p.out[1]),
            left=(left_down, p.left[1]),
            stack=tuple(rest),
        )
    return p
