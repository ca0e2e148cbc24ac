"""Cancel writes that another write into the same part makes up for.

Before: a pure Func after `unnest`, so that writes go into the arrays at the root.
After: the same values, without

- a write into a part that is written again before anything reads it,
- a write of zeros into a part that is then added to: the addition becomes a write,
- a write of what is in the part already.

What stands between the two may read and write other parts. So the reverse of
`A[P] -= x`, which reads a part of the cotangent, zeroes it and adds it again, is left
with nothing to do, however many other parts are added to in between:

    %v: f64[n - 1] = slice %d, 1 {axis=0, size=n - 1, step=1}
    %a: f64[n] = slice_scatter %d, 0, 1 {axis=0, size=n - 1, step=1}
    %b: f64[n] = select_scatter_add %a, %t, 0 {axis=0}
    %c: f64[n] = slice_scatter_add %b, %v, 1 {axis=0, size=n - 1, step=1}

    %c: f64[n] = select_scatter_add %d, %t, 0 {axis=0}

That parts are apart is proven with their boxes (`boxes.py`); where it is not, or
something else reads the array in between, everything stays. As in `simplify`, what is
put instead of being added to zero keeps the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ..ir.access import may_fail, part_type, steps_of, view_of, writes_part
from ..ir.dims import Facts
from ..ir.func import Block, Func, Node, Operand, Value, free_values, type_of, walk
from ..ir.op import OPS, Kind
from ..ir.verify import loop_facts
from .boxes import Box, apart, box_of
from .dce import dce
from .rules import FULL, is_number, same_operand
from .scope import values_of, with_operands

NEAR = 16  # writes that are looked through
OUTSIDE = -1  # the position of what uses a value after the block


def cancel(f: Func) -> Func:
    """Return `f` without writes that have no effect.

    >>> from ..ir.text import parse
    >>> print(cancel(parse('''func @f(%d: f64[3], %t: f64[], %g: f64[]) -> f64[3] {
    ...   %a: f64[3] = select_scatter %d, 0, 0 {axis=0}
    ...   %b: f64[3] = select_scatter_add %a, %t, 1 {axis=0}
    ...   %c: f64[3] = select_scatter_add %b, %g, 0 {axis=0}
    ...   return %c
    ... }''')))
    func @f(%d: f64[3], %t: f64[], %g: f64[]) -> f64[3] {
      %b: f64[3] = select_scatter_add %d, %t, 1 {axis=0}
      %c: f64[3] = select_scatter %b, %g, 0 {axis=0}
      return %c
    }
    """
    if f.stage == "traced" or not any(map(writes_part, walk(f.body))):
        return f
    body = _cancelled(f.body, f.size_facts(), ())
    return dce(replace(f, body=body))


def _cancelled(block: Block, facts: Facts, used: Collection[Value]) -> Block:
    """Return a block without such writes; `used` are its values that are used after."""
    nodes = tuple(_inside(n, facts) for n in block.nodes)
    return _Canceller(Block(block.params, nodes, block.results), facts, used).block()


def _inside(node: Node, facts: Facts) -> Node:
    if not node.regions or node.op.kind is Kind.FUSED:
        return node
    if node.op.kind is Kind.FOR:
        facts = facts.having(*loop_facts(node))
    regions = []
    for k, region in enumerate(node.regions):
        later = (v for r in node.regions[k + 1 :] for v in free_values(r))
        regions.append(_cancelled(region, facts, set(later)))
    return Node(
        node.op, node.operands, node.attrs, node.results, tuple(regions), node.loc
    )


class _Canceller:
    """Looks at the writes of one block in order."""

    def __init__(self, block: Block, facts: Facts, used: Collection[Value]) -> None:
        self.params, self.facts = block.params, facts
        self.nodes: list[Node | None] = list(block.nodes)
        self.results = block.results
        self.at = {v: k for k, n in enumerate(block.nodes) for v in n.results}
        self.users: dict[Value, dict[int, None]] = {}
        for k, n in enumerate(block.nodes):
            for v in values_of(n):
                self.users.setdefault(v, {})[k] = None
        for x in (*block.results, *used):
            if isinstance(x, Value):
                self.users.setdefault(x, {})[OUTSIDE] = None

    def block(self) -> Block:
        for k, node in enumerate(self.nodes):
            if node is None or not writes_part(node):
                continue
            if type_of(node.operands[0]) == node.result.type:
                if self.is_there(node):
                    self.remove(k)
                else:
                    self.cancel(k, node)
        nodes = tuple(n for n in self.nodes if n is not None)
        return Block(self.params, nodes, self.results)

    def maker(self, x: Operand) -> Node | None:
        k = self.at.get(x) if isinstance(x, Value) else None
        return None if k is None else self.nodes[k]

    # What is there already --------------------------------------------------------

    def is_there(self, node: Node) -> bool:
        """Tell whether a write puts into a part what is in it."""
        new = node.operands[1]
        if node.op.accumulates or not isinstance(new, Value):
            return False
        if may_fail(node, self.facts):  # nobody else may check the index
            return False
        if new.type.array() != part_type(node).array():
            return False
        known = set(self.with_the_part(node))
        chain: tuple[Node, ...] = ()
        while (view := self.maker(new)) is not None and view.op.kind is Kind.VIEW:
            chain, new = (view, *chain), view.operands[0]
            if new in known and _same_part(chain, (node,)):
                return True
        return False

    def with_the_part(self, node: Node) -> Iterator[Value]:
        """Yield the arrays before a write that have the same in the part it writes."""
        box, x = box_of((node,)), node.operands[0]
        for _ in range(NEAR):
            if isinstance(x, Value):
                yield x
            write = self.maker(x)
            if write is None or not writes_part(write):
                return
            if not apart(box, box_of((write,)), self.facts):
                return
            x = write.operands[0]

    # What is written or added to again --------------------------------------------

    def cancel(self, k: int, node: Node) -> None:
        """Remove a write if a later one makes up for it."""
        later = self.same_again(node)
        if later is None:
            return
        again = self.nodes[later]
        assert again is not None
        if again.op.accumulates:
            if node.op.accumulates or not self.is_zero(node.operands[1]):
                return
            scatter = view_of(again).scatter
            assert scatter is not None
            self.nodes[later] = Node(
                OPS[scatter], again.operands, again.attrs, again.results, (), again.loc
            )
        self.remove(k)

    def is_zero(self, x: Operand) -> bool:
        full = self.maker(x)
        return is_number(full.operands[0] if full and full.op is FULL else x, 0)

    def same_again(self, node: Node) -> int | None:
        """Return the next write into the part that a node writes, if none reads it."""
        box, x = box_of((node,)), node.result
        for _ in range(NEAR):
            k = self.next_write(x, box)
            write = None if k is None else self.nodes[k]
            if write is None:
                return None
            if _same_part((write,), (node,)):
                return k
            if not apart(box, box_of((write,)), self.facts):
                return None
            x = write.result
        return None

    def next_write(self, x: Value, box: Box) -> int | None:
        """Return what writes into an array next, if all else reads it outside a box."""
        found: int | None = None
        for k in self.users.get(x, ()):
            node = self.nodes[k] if k != OUTSIDE else None
            if node is None:
                return None
            once = sum(v is x for v in node.operands) == 1
            if writes_part(node) and node.operands[0] is x and once:
                if found is not None:
                    return None
                found = k
            elif not self.reads_apart((node,), x, box):
                return None
        return found

    def reads_apart(self, chain: Sequence[Node], x: Value, box: Box) -> bool:
        """Tell whether a chain of views that starts at `x` shows nothing of a box."""
        *_, view = chain
        if view.op.kind is not Kind.VIEW or view.operands[0] is not x:
            return False
        if apart(box, box_of(chain), self.facts):
            return True
        part = view.result
        users = self.users.get(part, ())
        inner = (self.nodes[k] if k != OUTSIDE else None for k in users)
        return all(n and self.reads_apart((*chain, n), part, box) for n in inner)

    # Changes ----------------------------------------------------------------------

    def remove(self, k: int) -> None:
        """Let all that uses the result of a write use its base instead."""
        node = self.nodes[k]
        assert node is not None
        base = node.operands[0]
        assert isinstance(base, Value)
        self.nodes[k] = None
        for v in values_of(node):
            self.users[v].pop(k, None)
        swap: dict[Value, Operand] = {node.result: base}
        for j in self.users.pop(node.result, {}):
            self.users.setdefault(base, {})[j] = None
            user = self.nodes[j] if j != OUTSIDE else None
            if user is not None:
                self.nodes[j] = with_operands(user, swap)
        self.results = tuple(
            swap.get(x, x) if isinstance(x, Value) else x for x in self.results
        )


def _same_part(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """Tell whether two chains of views, or scatters, go the same way."""
    ours, theirs = ([s for n in c for s in steps_of(n)] for c in (a, b))
    return len(ours) == len(theirs) and all(
        s.op is t.op
        and dict(s.attrs) == dict(t.attrs)
        and all(map(same_operand, s.indices, t.indices))
        for s, t in zip(ours, theirs, strict=True)
    )
