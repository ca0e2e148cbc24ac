"""einsum: diagonals, sums of lone labels, then one matmul or product per pair."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ...ir.errors import ShapeError
from ..index import alias
from .core import (
    apply,
    asarray,
    cast,
    finish,
    implements,
    product,
    shape_of,
    usual_size,
)
from .shapes import diagonal_size, permuted

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@implements(np.einsum)
def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
) -> Any:
    inputs, output, xs = _parse(operands)
    xs = [cast(x, dtype) for x in xs]
    terms = [_simple(x, labels) for x, labels in zip(xs, inputs, strict=True)]
    _check_sizes(terms)
    for p, q in _order(terms, output):
        (x, i), (y, j) = terms[p], terms[q]
        rest = [t for k, t in enumerate(terms) if k not in (p, q)]
        wanted = set(output).union(*(labels for _, labels in rest))
        terms = [_pair(x, i, y, j, wanted), *rest]
    ((x, labels),) = terms
    x, labels = _sum_out(x, labels, set(output))
    x = permuted(x, [labels.index(c) for c in output]) if labels != output else x
    if x is xs[0]:
        x = alias(x)
    if not shape_of(x) and not x.type.scalar and len(xs[0].shape):
        x = apply("item", x)
    return finish(x, out, casting)


# ---------------------------------------------------------------- reading the text


def _parse(operands: tuple[Any, ...]) -> tuple[list[str], str, list[Any]]:
    """Return the labels of the operands and of the result, with `...` spelled out."""
    if not operands:
        raise ShapeError("einsum: no operands")
    if isinstance(operands[0], str):
        text, xs = operands[0].replace(" ", ""), [asarray(x) for x in operands[1:]]
    else:
        text, xs = _from_lists(operands)
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(xs):
        raise ShapeError(
            f"einsum: {len(inputs)} subscripts are given for {len(xs)} operands"
        )
    used = set(text)
    spare = [c for c in _LETTERS if c not in used]
    widths = [
        len(x.shape) - len(s.replace("...", ""))
        for x, s in zip(xs, inputs, strict=True)
    ]
    dots = [w for w, s in zip(widths, inputs, strict=True) if "..." in s]
    broadcast = "".join(spare[: max(dots, default=0)])
    if not arrow:
        every = left.replace(",", "").replace("...", "")
        once = sorted(c for c in set(every) if every.count(c) == 1)
        output = ("..." if dots else "") + "".join(once)
    full = []
    for s, w in zip(inputs, widths, strict=True):
        if w < 0 or (w and "..." not in s):
            raise ShapeError(
                f"einsum: subscripts {s!r} do not fit an operand with {w + len(s)} axes"
            )
        full.append(s.replace("...", broadcast[len(broadcast) - w :]))
    output = output.replace("...", broadcast)
    known = set("".join(full))
    if len(set(output)) != len(output) or not set(output) <= known:
        raise ShapeError(
            f"einsum: the output subscripts {output!r} must be distinct labels of the "
            "inputs"
        )
    bad = known - set(_LETTERS)
    if bad:
        raise ShapeError(f"einsum: invalid subscripts {sorted(bad)}")
    return full, output, xs


def _from_lists(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Read the form einsum(x, [0, 1], y, [1, 2], [0, 2])."""
    pairs = operands[: len(operands) // 2 * 2]
    xs = [asarray(x) for x in pairs[::2]]
    text = ",".join(map(_from_numbers, pairs[1::2]))
    if len(operands) % 2:
        text += "->" + _from_numbers(operands[-1])
    return text, xs


def _from_numbers(labels: Any) -> str:
    return "".join("..." if k is Ellipsis else _LETTERS[k] for k in labels)


# ---------------------------------------------------------------- one operand


def _simple(x: Any, labels: str) -> tuple[Any, str]:
    """Return an operand in which each label occurs once: diagonals of the others."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i = labels.index(c)
            j = labels.index(c, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ShapeError(
                    f"einsum: dimensions of a repeated subscript {c!r} differ: "
                    f"{x.shape[i]} and {x.shape[j]}"
                )
            size = diagonal_size(x.shape[i], x.shape[j], 0)
            x = apply("diagonal", x, offset=0, axis1=i, axis2=j, size=size)
            labels = labels[:i] + labels[i + 1 : j] + labels[j + 1 :] + c
    return x, labels


def _is_one(d: Any) -> bool:
    return isinstance(d, int) and d == 1


def _check_sizes(terms: list[tuple[Any, str]]) -> None:
    """Check that sizes agree; drop nothing: axes of size 1 broadcast."""
    sizes: dict[str, Any] = {}
    for n, (x, labels) in enumerate(terms):
        for c, d in zip(labels, x.shape, strict=True):
            if c not in sizes or _is_one(sizes[c]):
                sizes[c] = d
            elif not _is_one(d) and d != sizes[c]:
                raise ShapeError(
                    f"einsum: operand {n} has size {d} for label {c!r}, which has size "
                    f"{sizes[c]} in an earlier operand"
                )


def _sum_out(x: Any, labels: str, wanted: set[str]) -> tuple[Any, str]:
    """Sum over the labels that nobody needs any more."""
    axes = tuple(k for k, c in enumerate(labels) if c not in wanted)
    if not axes:
        return x, labels
    x = apply("sum", x, axis=axes, keepdims=False)
    return x, "".join(c for c in labels if c in wanted)


# ---------------------------------------------------------------- the order of pairs

MANY = 5  # operands up to which all orders are tried


def _order(terms: list[tuple[Any, str]], output: str) -> list[tuple[int, int]]:
    """Return which two operands to combine, again and again; the result stands first.

    It is an order of the fewest multiplications, or, of many operands, one that takes
    the cheapest pair at each step. Sizes that are not known count as equal.
    """
    sizes: dict[str, float] = {}
    for x, labels in terms:
        for c, d in zip(labels, usual_size(x), strict=True):
            sizes[c] = max(d, sizes.get(c, 1.0))
    return _cheapest([labels for _, labels in terms], output, sizes)[1]


def _cheapest(
    given: list[str], output: str, sizes: dict[str, float]
) -> tuple[float, list[tuple[int, int]]]:
    if len(given) < 2:
        return 0.0, []
    choices = []
    for p, q in itertools.combinations(range(len(given)), 2):
        both = dict.fromkeys(given[p] + given[q])
        rest = [labels for k, labels in enumerate(given) if k not in (p, q)]
        left = "".join(c for c in both if c in "".join([output, *rest]))
        cost = math.prod(sizes[c] for c in both)
        choices.append((cost, (p, q), [left, *rest]))
    if len(given) > MANY:
        choices = [min(choices, key=lambda choice: choice[0])]
    found = []
    for cost, pair, rest in choices:
        more, pairs = _cheapest(rest, output, sizes)
        found.append((cost + more, [pair, *pairs]))
    return min(found, key=lambda f: f[0])


# ---------------------------------------------------------------- pairs


def _drop_ones(x: Any, labels: str, others: dict[str, Any]) -> tuple[Any, str]:
    """Drop axes of size 1 whose label is longer in the other operand."""
    axes = tuple(
        k
        for k, c in enumerate(labels)
        if _is_one(x.shape[k]) and c in others and not _is_one(others[c])
    )
    if axes:
        x = apply("squeeze", x, axis=axes)
    return x, "".join(c for k, c in enumerate(labels) if k not in axes)


def _pair(x: Any, i: str, y: Any, j: str, wanted: set[str]) -> tuple[Any, str]:
    """Combine two operands into one."""
    sizes_x = dict(zip(i, x.shape, strict=True))
    sizes_y = dict(zip(j, y.shape, strict=True))
    (x, i), (y, j) = _drop_ones(x, i, sizes_y), _drop_ones(y, j, sizes_x)
    x, i = _sum_out(x, i, wanted | set(j))
    y, j = _sum_out(y, j, wanted | set(i))
    both = [c for c in i if c in j]
    summed = [c for c in both if c not in wanted]
    stack = [c for c in both if c in wanted]
    rows = [c for c in i if c not in j]
    columns = [c for c in j if c not in i]
    if not summed:
        labels = "".join([*stack, *rows, *columns])
        x = _aligned(x, i, labels)
        y = _aligned(y, j, labels)
        return apply("multiply", x, y), labels
    sizes = dict(zip(i, x.shape, strict=True)) | dict(zip(j, y.shape, strict=True))
    left = _grouped(x, i, stack, rows, summed)
    right = _grouped(y, j, stack, summed, columns)
    r = apply("matmul", left, right)
    labels = "".join([*stack, *rows, *columns])
    shape = tuple(sizes[c] for c in labels)
    if len(rows) != 1 or len(columns) != 1:
        r = apply("reshape", r, shape=shape)
    return r, labels


def _aligned(x: Any, have: str, want: str) -> Any:
    """Return `x` with its axes in the order of `want`, of size 1 where it has none."""
    present = [c for c in want if c in have]
    if "".join(present) != have:
        x = permuted(x, [have.index(c) for c in present])
    missing = tuple(k for k, c in enumerate(want) if c not in have)
    return apply("expand_dims", x, axis=missing) if missing else x


def _grouped(
    x: Any, labels: str, stack: list[str], rows: list[str], columns: list[str]
) -> Any:
    """Return `x` as a stack of matrices with grouped rows and columns."""
    order = [labels.index(c) for c in (*stack, *rows, *columns)]
    if order != list(range(len(order))):
        x = permuted(x, order)
    if len(rows) == len(columns) == 1:
        return x
    n, m = len(stack), len(stack) + len(rows)
    shape = tuple(x.shape)
    return apply(
        "reshape", x, shape=(*shape[:n], product(shape[n:m]), product(shape[m:]))
    )
