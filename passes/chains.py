"""Multiply chains of matrices in the cheapest order, and compute no more than is used.

    %t: f64[n,n] = matmul %a, %b            %t: f64[n] = matmul %b, %v
    %y: f64[n] = matmul %t, %v              %y: f64[n] = matmul %a, %t

    %t: f64[n,n] = matmul %a, %b            %t: f64[n,n] = transpose %b {axes=(1, 0)}
    %d: f64[n] = diagonal %t {...}          %p: f64[n,n] = multiply %a, %t
                                            %d: f64[n] = sum %p {axis=(1,), ...}

It runs before differentiation, since cotangents of a cheap chain are cheap, and again
after it.

Note [order of a chain]
A chain is what matrix products make of matrices, where every product between has no
other use; transposes of products are products of transposes. All orders have the same
value but for rounding. Symbolic sizes count as equally large, so an order is changed
where a vector or a small literal size makes the difference, and only where that saves
half of the work: sizes that are not known do not reorder a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.dims import Dim
from ..ir.func import Func, Node, Operand, Value, type_of, walk
from ..ir.op import OPS, Kind
from .activity import declares_derivative
from .costs import estimate
from .rules import Definition
from .scope import ScopedBuilder
from .simplify import Rewriter

GAIN = 2.0  # how much cheaper another order must be
MANY = 12  # factors up to which all orders are compared
DEEPEST = 100  # products in a chain
TRANSPOSE, DIAGONAL = OPS["transpose"], OPS["diagonal"]


def chains(f: Func) -> Func:
    """Return `f` with chains of matrix products in the cheapest order.

    A Func with derivatives of its own stays as it is until they have been taken.
    """
    nodes = list(walk(f.body))
    products = sum(n.op.kind is Kind.CONTRACTION for n in nodes)
    if f.stage == "traced" or not products or any(map(declares_derivative, nodes)):
        return f
    return _Chains(f, {}, (diagonal_of_product, cheapest_order)).func(f)


class _Chains(Rewriter):
    """Knows in which block a node stands: no product moves into a loop."""

    def __init__(self, f: Func, *rules: Any) -> None:
        super().__init__(f, *rules)
        self.depths: dict[Node, int] = {}

    def append(self, node: Node) -> None:
        self.depths[node] = self.depth
        super().append(node)

    def inner(self, x: Operand) -> Node | None:
        """Return the node that makes an operand for one user in its block."""
        node = self.definition(x)
        if node is None or self.depths.get(node) != self.depth:
            return None
        return node if isinstance(x, Value) and self.used_once(x) else None


@dataclass(frozen=True, slots=True)
class Factor:
    """A matrix of a chain, or its transpose."""

    x: Operand
    turned: bool

    @property
    def ndim(self) -> int:
        return type_of(self.x).ndim

    def size(self, axis: int) -> Dim:
        """Return a size; a vector is a matrix of one row or column."""
        shape = type_of(self.x).shape
        return shape[1 - axis if self.turned else axis]

    def built(self, b: ScopedBuilder) -> Any:
        return b.transpose(self.x, axes=(1, 0)) if self.turned else self.x


Tree = Factor | tuple["Tree", "Tree"]


def cheapest_order(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return a product in its cheapest order; see Note [order of a chain]."""
    assert isinstance(b, _Chains)
    if node.op.kind is not Kind.CONTRACTION or node.result.type.ndim > 2:
        return None
    tree = _tree_of(b, node, False)
    factors = _leaves(tree)
    dtypes = {type_of(f.x).dtype for f in factors}
    if len(factors) < 3 or len(dtypes) > 1:
        return None
    sizes = _sizes(factors)
    best, cost = best_splits(sizes) if len(factors) <= MANY else _from_an_end(sizes)
    if cost * GAIN > _cost(tree, sizes, 0)[0]:
        return None
    return _build(b, factors, best, 0, len(factors))


def _tree_of(b: _Chains, node: Node, turned: bool, depth: int = 0) -> Tree:
    parts = [_factor(b, x, turned, depth) for x in node.operands]
    left, right = reversed(parts) if turned else parts
    return left, right


def _factor(b: _Chains, x: Operand, turned: bool, depth: int) -> Tree:
    node = b.inner(x)
    if node is None or type_of(x).ndim != 2 or depth == DEEPEST:
        return Factor(x, turned)
    if node.op is TRANSPOSE and node.attrs["axes"] == (1, 0):
        return _factor(b, node.operands[0], not turned, depth + 1)
    matrices = all(type_of(y).ndim == 2 for y in node.operands)
    if node.op.kind is Kind.CONTRACTION and matrices:
        return _tree_of(b, node, turned, depth + 1)
    return Factor(x, turned)


def _leaves(tree: Tree) -> list[Factor]:
    if isinstance(tree, Factor):
        return [tree]
    return [f for part in tree for f in _leaves(part)]


def _sizes(factors: Sequence[Factor]) -> list[float]:
    """Return estimates of the sizes between the factors, the outer ones included."""
    first, last = factors[0], factors[-1]
    found: list[float] = [1.0 if first.ndim == 1 else estimate(first.size(0))]
    found += [estimate(f.size(0)) for f in factors[1:]]
    found.append(1.0 if last.ndim == 1 else estimate(last.size(1)))
    return found


def _cost(tree: Tree, sizes: Sequence[float], start: int) -> tuple[float, int]:
    """Return the multiplications of a tree, and where it ends."""
    if isinstance(tree, Factor):
        return 0.0, start + 1
    left, middle = _cost(tree[0], sizes, start)
    right, end = _cost(tree[1], sizes, middle)
    return left + right + sizes[start] * sizes[middle] * sizes[end], end


Splits = Mapping[tuple[int, int], int]


def best_splits(sizes: Sequence[float]) -> tuple[Splits, float]:
    """Return where to split each part of a chain, and the multiplications.

    Matrix k of the chain is sizes[k] x sizes[k + 1].
    """
    n = len(sizes) - 1
    cost = {(i, i + 1): 0.0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(2, n + 1):
        for i in range(n - length + 1):
            j = i + length
            found = [
                (cost[i, k] + cost[k, j] + sizes[i] * sizes[k] * sizes[j], k)
                for k in range(i + 1, j)
            ]
            cost[i, j], split[i, j] = min(found)
    return split, cost[0, n]


def _from_an_end(sizes: Sequence[float]) -> tuple[Splits, float]:
    """Return the better of the orders from left to right and from right to left."""
    n = len(sizes) - 1
    left = sum(sizes[0] * sizes[j - 1] * sizes[j] for j in range(2, n + 1))
    right = sum(sizes[i] * sizes[i + 1] * sizes[n] for i in range(n - 1))
    if left <= right:
        return {(0, j): j - 1 for j in range(2, n + 1)}, left
    return {(i, n): i + 1 for i in range(n - 1)}, right


def _build(
    b: ScopedBuilder, factors: Sequence[Factor], split: Splits, i: int, j: int
) -> Any:
    if j == i + 1:
        return factors[i].built(b)
    k = split[i, j]
    left = _build(b, factors, split, i, k)
    return b.matmul(left, _build(b, factors, split, k, j))


def diagonal_of_product(b: ScopedBuilder, node: Node, definition: Definition) -> Any:
    """Return the diagonals of products as sums of products."""
    assert isinstance(b, _Chains)
    if node.op is not DIAGONAL:
        return None
    inner = b.inner(node.operands[0])
    if inner is None or inner.op.kind is not Kind.CONTRACTION:
        return None
    ndim, a = inner.result.type.ndim, node.attrs
    x, y = inner.operands
    if (a["offset"], a["axis1"], a["axis2"]) != (0, ndim - 2, ndim - 1):
        return None
    n, m = type_of(y).ndim, type_of(x).ndim
    if min(n, m) < 2:
        return None
    x = b.slice(x, 0, axis=m - 2, size=a["size"], step=1)
    y = b.slice(y, 0, axis=n - 1, size=a["size"], step=1)
    turned = b.transpose(y, axes=(*range(n - 2), n - 1, n - 2))
    return b.sum(b.multiply(x, turned), axis=(ndim - 1,), keepdims=False)
