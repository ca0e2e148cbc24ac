"""Matrix products computed where their only user puts them.

A product whose one user writes it into a part of an array, or adds it to one, needs no
memory of its own: it is lowered at its user, and BLAS writes or adds in place.

    %t: f64[n,m] = matmul %x, %y                       gemm_add(..., c)
    %d: f64[n,m] !%c = add %c, %t

Note [later products]
To be lowered later, nothing may change what the product reads in between: the nodes
there must not reuse its operands' buffers, and these are kept alive. The user must not
write into them either. Where that is not known, the product gets memory as usual.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.access import Index, base_index, linear, part_type, view_of
from ..ir.dims import Dim
from ..ir.func import Block, Node, Operand, Value, free_values, walk
from ..ir.op import Kind
from . import products
from .kernels import Stored, whole
from .nest import buffer_of
from .nests import Buffer
from .rows import points

if TYPE_CHECKING:
    from .kernels import Lowering


@dataclass(frozen=True, slots=True)
class Use:
    """How a node uses a product: it writes `sign` times it into `root`'s result.

    With `old` the product is added to that value, else to what a scatter adds to.
    """

    root: Node
    sign: int
    old: Operand | None = None


def use_of(node: Node, v: Value) -> Use | None:
    """Return how a node uses a product, None where it does more than that."""
    region = node.regions[0] if node.op.kind is Kind.FUSED else None
    inside: Sequence[Node] = region.nodes if region is not None else (node,)
    results = region.results if region is not None else node.results
    makers: Mapping[Operand, Node] = {x: n for n in inside for x in n.results}
    if len(node.results) != 1 or not isinstance(results[0], Value):
        return None
    if "rows" in node.attrs:
        return None
    root = makers.get(results[0])
    if root is None or len(inside) > 2:
        return None
    scatters = root.op.kind is Kind.SCATTER and view_of(root).kind is Kind.VIEW
    if scatters and root.operands[1] is v:
        return Use(root, 1) if len(inside) == 1 else None
    term = makers.get(root.operands[1]) if scatters else root
    if term is None or (scatters and len(inside) != 2):
        return None
    accumulates = scatters and root.op.accumulates
    match term.op.signs, term.operands:
        case (sign,), (x,) if x is v and accumulates:
            return Use(root, sign)
        case (sign, 1), (x, y) if x is v and y is not v and not accumulates:
            return Use(root, sign, y)
        case (1, sign), (x, y) if y is v and x is not v and not accumulates:
            return Use(root, sign, x)
        case _:
            return None


def later(low: Lowering, b: Block, k: int, taken: Container[int]) -> int | None:
    """Return the position of the node at which to lower a product, if not at its own.

    See Note [later products].
    """
    node = b.nodes[k]
    v = node.result
    if not v.type.shape or v in b.results:
        return None
    users = [j for j, n in enumerate(b.nodes) if v in n.operands or _mentions(n, v)]
    if len(users) != 1 or use_of(b.nodes[users[0]], v) is None:
        return None
    (user,) = users
    if user in taken:
        return None
    read = _buffers(low, node)
    for n in b.nodes[k + 1 : user]:
        for x in _computed(n):
            if x.reuses is not None and _root(low, x) in (None, *read):
                return None
    return user


def _computed(n: Node) -> Iterator[Value]:
    """Yield what a node computes in the buffers of values around it."""
    yield from n.results
    if n.op.kind is Kind.COND:
        yield from (v for r in n.regions for m in walk(r) for v in m.results)


def _mentions(n: Node, v: Value) -> bool:
    return any(v in free_values(r) for r in n.regions)


def _buffers(low: Lowering, node: Node) -> list[Buffer]:
    places = [low.values[x] for x in node.operands if isinstance(x, Value)]
    return [p.buffer for p in places if isinstance(p, Stored)]


def _root(low: Lowering, v: Value) -> Buffer | None:
    """Return the buffer that a value is computed in, where it is known already."""
    while v not in low.values and v.reuses is not None:
        v = v.reuses
    found = low.values.get(v)
    return found.buffer if isinstance(found, Stored) else None


def keep(low: Lowering, node: Node, until: int) -> None:
    """Keep what a product reads until the node at which it is lowered."""
    alive = low.alive[-1]
    for b in _buffers(low, node):
        if b in alive:
            alive[b] = max(alive[b], until)


def lower(low: Lowering, product: Node, user: Node) -> bool:
    """Lower a product and its user as one, if they can be."""
    v = product.result
    use = use_of(user, v)
    (out,) = user.results
    if use is None or out.type.dtype != v.type.dtype:
        return False
    if out.reuses is not None and _root(low, out.reuses) in _buffers(low, product):
        return False
    if use.root.op.kind is Kind.SCATTER:
        return _into_part(low, product, use, out)
    if not isinstance(use.old, Value) or out.reuses is not use.old:
        return False
    shape = out.type.shape
    p = products.of(low, product, lambda index: linear(index, shape), use.sign)
    if shape != v.type.shape or not p.fits():
        return False
    b = low.target(out)
    p.lower(b)
    low.define(out, whole(b, shape))
    return True


def _into_part(low: Lowering, product: Node, use: Use, out: Value) -> bool:
    """Lower a product into a part of an array, as a scatter says."""
    root = use.root
    shape = out.type.shape
    if part_type(root).shape != product.result.type.shape:
        return False
    indices = low.given(root)

    def at(index: Index) -> Dim:
        return linear(base_index(root, index, indices), shape)

    if use.old is not None and not _is_part(low, use.old, root, indices):
        return False
    adds = use.old is not None or root.op.accumulates
    p = products.of(low, product, at, use.sign if adds else 0)
    if p.out.stack or not p.fits():
        return False
    b = buffer_of(low, root, out)
    assert b is not None
    p.lower(b)
    low.define(out, whole(b, shape))
    return True


def _is_part(low: Lowering, x: Operand, root: Node, indices: Sequence[Dim]) -> bool:
    """Tell whether a value is the very part of its base that a scatter writes."""
    base = root.operands[0]
    if not isinstance(x, Value) or not isinstance(base, Value):
        return False
    part, every = low.values.get(x), low.values.get(base)
    if not isinstance(part, Stored) or not isinstance(every, Stored):
        return False
    index, _ = points(part.shape)
    return (
        part.buffer is every.buffer
        and part.shape == part_type(root).shape
        and part.at(index) == every.at(base_index(root, index, indices))
    )
