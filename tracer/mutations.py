"""Writes into traced arrays: what may be written, and what has been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir import dims
from ..ir.errors import (
    GradientBreakError,
    MutationError,
    ShapeError,
    UnsupportedError,
)
from ..ir.func import Node, Operand, Value
from ..ir.op import OPS, Zero
from ..ir.types import broadcast_shapes, same_shape
from .inputs import check_fits
from .leaves import Tracker, root_of
from .location import user_location
from .modes import STATE, enable_grad
from .tensor import Tensor

if TYPE_CHECKING:
    from .trace import Trace

DETACH, OVERRIDE, WRITE = OPS["detach"], OPS["override"], OPS["write"]


class ReadOnlyError(MutationError, ValueError):
    """A write into memory that may not be written."""


class Mutations:
    """The writes of a trace. Roots are arrays that are views of no other."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.roots: set[Value] = set()  # that were written
        self.recorded: set[Value] = set()  # that were written, not under no_grad
        self.frozen: dict[Value, str] = {}  # roots that may not be written, and why
        self.kept: set[Value] = set()  # roots of which lists have copies: see `Sharing`
        self.read_only: set[Value] = set()  # views
        self.unshared: dict[Value, Value] = {}  # copies of what eager mode would share

    def write(self, target: Tensor, new: Any) -> None:
        """Append a write into the whole of `target`, which may be a view."""
        where = self.trace.operand(target)
        if not isinstance(where, Value):
            raise UnsupportedError(
                "a number cannot be written", location=user_location()
            )
        if not STATE.grad and where.type.is_inexact:
            with enable_grad():  # what was there keeps its derivative, as on the tape
                new = self.trace.apply(OVERRIDE, (target, new), {})
        x = self.trace.operand(new)
        self._check_writeable(where)
        self._check_fits(where, x)
        check_fits(x, where.type.dtype)
        root = root_of(where)
        detached = self.is_detached(where)
        if detached:
            self._check_detached(where, x)
        if root in self.unshared:
            self._end_unshared(self.unshared[root])
        if root in self.frozen:
            raise MutationError(self.frozen[root], location=user_location())
        if root in self.kept:
            raise UnsupportedError(
                f"write: %{root.name} shares memory with items that a list got in a "
                "loop",
                location=user_location(),
                rule="The items of a list that grows in a loop are copies.",
                hint="append a copy",
            )
        if not detached:
            self.trace.leaves.before_write(root)
        self.trace.builder.append(
            Node(
                WRITE, (where, x), {}, (), (), user_location() or self.trace.builder.loc
            )
        )
        self.roots.add(root)
        if STATE.grad and not detached:
            self.recorded.add(root)

    def unshare(self, t: Tensor) -> Value:
        """Give a detached array memory of its own: it becomes a leaf.

        What it shared memory with may not be written from now on, and not be read after
        the leaf was written.
        """
        base = root_of(t._value)
        t._value = self.trace.apply(DETACH, (t,), {})._value
        self.unshared[t._value] = base
        self.frozen[base] = (
            "a write into an array that a leaf was made of, which would see it"
        )
        leaf: Value = t._value
        return leaf

    def _end_unshared(self, base: Value) -> None:
        if base in self.trace.params:
            raise UnsupportedError(
                f"a write into a leaf that shares memory with {base!r}, an argument",
                location=user_location(),
                rule="A compiled function makes leaves of arrays of its own.",
                hint="copy it first: x = x.copy().requires_grad_()",
            )
        self.trace.ended.add(base)

    def is_detached(self, v: Value) -> bool:
        """Tell whether a value is, or is a view of, a detached view of an array."""
        while v.base is not None:
            if isinstance(self.trace.definitions[v].op.derivative(0), Zero):
                return True
            v = v.base
        return False

    def _check_detached(self, target: Value, new: Operand) -> None:
        """Refuse to write what has a derivative under a name that has none."""
        tracker = Tracker(
            self.trace, [v for v in self.trace.params if v.type.is_inexact]
        )
        tracker.catch_up()
        if STATE.grad and tracker.holds(new):
            raise GradientBreakError(
                f"a write into a detached array, {self.trace.operand_type(target)}, "
                "of a value that has a derivative",
                location=user_location(),
                rule="In a compiled function all names of an array share its graph.",
                hint="write into x.detach().copy(), or .detach() the value",
            )

    def _check_writeable(self, target: Value) -> None:
        """Raise where NumPy's view is read-only: one that repeats its elements."""
        view: Value | None = target
        while view is not None and view.base is not None:
            if view in self.read_only:
                raise ReadOnlyError(
                    f"write: {self.trace.operand_type(target)} is read-only",
                    location=user_location(),
                    rule="assignment destination is read-only: it shows the same "
                    "elements several times",
                    hint="copy the array first",
                )
            view = view.base

    def _check_fits(self, target: Value, new: Operand) -> None:
        """Raise where a value does not broadcast into what it is written to."""
        want, have = self.trace.operand_type(target), self.trace.operand_type(new)
        with dims.deciding(self.trace.assumptions):
            try:
                shape = broadcast_shapes(want.shape, have.shape)
                fits = same_shape(shape, want.shape)
            except ShapeError:
                fits = False
            if not fits:
                raise ShapeError(
                    f"write: {have} does not fit its target {want}",
                    location=user_location(),
                    rule="What is written broadcasts to the target, never the target.",
                )
