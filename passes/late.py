"""Folds that nobody waits for are computed with what later groups read.

The sum of a loss is needed at the end only. Where a group of a later level goes over
the arrays that are summed, and nothing else does at the level of the sum, it moves
there: one pass over these arrays less.

    level 0: %s = sum (%w * %w)              level 1: %s, %d = fused {
    level 1: %d = %w * 2.0 + %g                         sum (%w * %w); %w * 2.0 + %g }
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ir.func import Value
from ..ir.op import Kind

if TYPE_CHECKING:
    from .fuse import Fuser

NEAR = 16  # nodes of the same space that are looked at


def late_folds(f: Fuser) -> bool:
    """Raise the levels of such folds, and of the scalars that are made of them.

    What is computed for a fold alone follows it in `Fuser.sink`. Returns whether any
    fold was moved.
    """
    moved = False
    alike: dict[object, list[int]] = {}
    for k, key in enumerate(f.keys):
        if key is not None:
            alike.setdefault(key, []).append(k)
    latest = _latest(f)
    for k in reversed(range(len(f.nodes))):
        node = f.nodes[k]
        if node.op.kind is not Kind.REDUCTION or f.keys[k] is None:
            continue
        near = alike[f.keys[k]][-NEAR:]
        if node.result.type.shape or all(f.level[j] <= f.level[k] for j in near):
            continue
        to = _better(f, k, near, latest[k] - 1)
        if to is not None:
            f.level[k] = to
            _raise(f, k, to + 1)
            latest = _latest(f)
            moved = True
    return moved


def _latest(f: Fuser) -> list[int]:
    """Return for each node the lowest level to which its users can be raised.

    Scalars made of a scalar can be raised with it.
    """
    latest = [max(f.level, default=0) + 2] * len(f.nodes)
    for k in reversed(range(len(f.nodes))):
        for u in f.users[k]:
            latest[k] = min(latest[k], latest[u] if _is_scalar(f, u) else f.level[u])
    return latest


def _is_scalar(f: Fuser, k: int) -> bool:
    node = f.nodes[k]
    return node.op.kind is Kind.ELEMENTWISE and f.keys[k] is None


def _raise(f: Fuser, k: int, level: int) -> None:
    stack = [k]
    while stack:
        for u in f.users[stack.pop()]:
            if f.level[u] < level:
                f.level[u] = level
                stack.append(u)


def _better(f: Fuser, k: int, near: list[int], limit: int) -> int | None:
    """Return a later level at which others read what a fold reads."""
    chain = set(_chain(f, k))
    read = _sources(f, chain)
    found: list[int] = []
    for j in near:
        if j in chain or not f.is_kept(j) or not read & _sources(f, set(_chain(f, j))):
            continue
        if f.level[j] == f.level[k]:
            return None
        if f.level[k] < f.level[j] <= limit:
            found.append(f.level[j])
    to = min(found, default=None)
    if to is None:
        return None
    users = (u for j in chain - {k} for u in f.users[j])
    return to if all(u in chain or f.level[u] >= to for u in users) else None


def _chain(f: Fuser, k: int) -> Iterator[int]:
    """Yield a node and those of its level that are computed in its iteration."""
    seen, stack = {k}, [k]
    while stack:
        j = stack.pop()
        yield j
        for x, leaf in f.reads[j]:
            i = f.at.get(leaf)
            if i is None or i in seen or f.level[i] != f.level[k]:
                continue
            if x is leaf and f.joins(j, leaf):
                seen.add(i)
                stack.append(i)


def _sources(f: Fuser, chain: set[int]) -> set[Value]:
    """Return the arrays in memory that a chain reads."""
    every = (leaf for j in chain for _, leaf in f.reads[j] if leaf.type.shape)
    return {v for v in every if f.at.get(v) not in chain}
