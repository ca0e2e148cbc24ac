"""Print what brings the threads of a block together: barriers and folds.

A barrier stands between a write and what another thread may read or write: the printer
follows what was touched since the last one. What threads have folded, each alone, is
brought together in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from ...ir.dims import Symbol
from ..carried import SUM, Fold
from ..invariants import Invariants
from ..nests import Apply, Program, Reg
from .sharing import Sharing
from .steps import Launch, Merge
from .touches import Touch

REDUCE = {
    SUM: "reduce_add",
    "maximum({0}, {1})": "reduce_maximum",
    "minimum({0}, {1})": "reduce_minimum",
    "logical_or({0}, {1})": "reduce_logical_or",
    "logical_and({0}, {1})": "reduce_logical_and",
    "({0} | {1})": "reduce_bitwise_or",
    "({0} * {1})": "reduce_multiply",
}


class Meeting(Sharing):
    """Prints barriers and folds of the kernel of one launch."""

    def __init__(self, p: Program, invariants: Invariants, launch: Launch) -> None:
        super().__init__(p, invariants, launch)
        self.touched: set[Touch] = set()  # since the last barrier

    # Barriers ---------------------------------------------------------------------

    def repeating(
        self, symbols: Collection[Symbol], lines: Callable[[], Iterator[str]]
    ) -> list[str]:
        """Return lines that may run again, with barriers for what they did before.

        They change `symbols` every time.
        """
        start = {t.after(symbols) for t in self.touched}
        while True:
            self.touched = set(start)
            out = list(lines())
            again = {t.after(symbols) for t in self.touched}
            if again <= start:
                self.touched = start
                return out
            start |= again

    def barrier(self, indent: str) -> Iterator[str]:
        yield f"{indent}barrier()"
        self.touched.clear()

    def clashes(self, touches: Collection[Touch]) -> bool:
        """Tell whether there must be a barrier before some accesses."""
        return any(a.clashes(b) for a in self.touched for b in touches)

    def meet(self, touches: Collection[Touch], indent: str) -> Iterator[str]:
        """Wait before accesses where it must be, and note them."""
        if self.clashes(touches):
            yield from self.barrier(indent)
        self.touched |= set(touches)

    # Folds ------------------------------------------------------------------------

    def brought(self, folds: Sequence[Fold], indent: str) -> Iterator[str]:
        """Fold what the threads have into what they all have, in a fixed order."""
        losses = {f.loss_of: f.name for f in folds if f.loss_of}
        if folds:
            self.touched.clear()  # to reduce is to meet
        for f in folds:
            if f.loss_of:
                continue
            if f.name in losses:
                loss = losses[f.name]
                yield f"{indent}{f.name}, {loss} = reduce_pair({f.name}, {loss})"
            else:
                yield f"{indent}{f.name} = {REDUCE[f.step]}({f.name})"

    def joined(self, folds: Sequence[Fold], indent: str) -> Iterator[str]:
        """Bring the old values of variables into what was folded: `x_0` into `x`."""
        for f in folds:
            if f.first:
                continue
            old, new = Reg(f"{f.name}_0", f.dtype), Reg(f.name, f.dtype)
            if f.loss_of:
                acc = f"{f.loss_of}_0", f.loss_of
                self.bind_name("lost")
                yield f"{indent}{f.name} = {old} + {new} + lost({', '.join(acc)})"
            else:
                continue
        for f in folds:
            if not f.first and not f.loss_of:
                pair = (Reg(f"{f.name}_0", f.dtype), Reg(f.name, f.dtype))
                yield f"{indent}{f.name} = {self.scalar(Apply(f.step, pair, f.dtype))}"

    def merged(self, s: Merge, indent: str) -> Iterator[str]:
        """Print the merge of partial results, each of a block."""
        deeper = indent + "    "
        for f in s.folds:
            if not f.first:
                yield f"{indent}{f.name}_0 = {f.name}"
            yield f"{indent}{f.name} = {self.scalar(f.neutral)}"
        (first, *_) = s.partial
        q = f"q_{first.name}"
        yield f"{indent}{q} = me"
        yield f"{indent}while {q} < {self.text(s.count)}:"
        values = {
            f.name: f"load(p_{b.name}, {q})"
            for f, b in zip(s.folds, s.partial, strict=True)
        }
        for f in s.folds:
            yield f"{deeper}{f.name}_1 = {values[f.name]}"
        for f in s.folds:
            if f.loss_of:
                self.bind_name("lost")
                lost = f"lost({f.loss_of}, {f.loss_of}_1)"
                yield f"{deeper}{f.name} = {f.name} + {f.name}_1 + {lost}"
        for f in s.folds:
            if not f.loss_of:
                pair = (Reg(f.name, f.dtype), Reg(f"{f.name}_1", f.dtype))
                yield f"{deeper}{f.name} = {self.scalar(Apply(f.step, pair, f.dtype))}"
        yield f"{deeper}{q} += team"
        yield from self.brought(s.folds, indent)
        yield from self.joined(s.folds, indent)

    def bind_name(self, name: str) -> None:
        self.functions[name] = self.p.scalars
