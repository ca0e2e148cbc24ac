"""Functions with a derivative of their own, inside a capture.

`forward` is traced in place, `backward` at once after it, into the rule of a `custom`
node: its parameters are the outputs and their cotangents, its results the cotangents of
the inputs. The node has the values that `forward` computed, and that derivative.

    %y: f64[n] = custom %t of %x params(%o: f64[n], %ct: f64[n]) {
      %dx: f64[n] = multiply %ct, %o
      yield %dx
    }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.errors import (
    GradientBreakError,
    GradientError,
    Location,
    OpaqueError,
    OutcomeError,
    RetrogradeError,
    UnsupportedError,
)
from ..ir.func import Block, Node, Operand, Value, type_of, walk
from ..ir.op import OPS, Kind
from ..ir.types import Type
from . import dispatch
from .assume import NeedsValue
from .builders import tensor_builder
from .context import Context
from .convert import convert
from .function import (
    Function,
    as_gradient,
    check_count,
    check_dirty,
    forward_of,
    outputs_of,
    packed,
    rule_of,
)
from .leaves import root_of
from .location import is_user_code, location_of, user_location
from .modes import STATE
from .state import State, Swap
from .tensor import Tensor
from .trace import Trace

COPY = OPS["copy"]


def apply_traced(cls: type[Function], trace: Any, args: Sequence[Any]) -> Any:
    """Trace a call of a Function."""
    assert isinstance(trace, Trace)
    with _opaque(cls):
        return _TracedCall(cls, trace, args).run()


@contextmanager
def _opaque(cls: type[Function]) -> Iterator[None]:
    """Say of which Function something cannot be traced: NumPy or compiled code."""
    try:
        yield
    except (NeedsValue, OutcomeError, OpaqueError):
        raise
    except Exception as error:
        ours = isinstance(error, RetrogradeError)
        if ours and not isinstance(error, GradientBreakError | UnsupportedError):
            raise
        if isinstance(error, NotImplementedError) and not ours:
            raise
        where = error.location if isinstance(error, RetrogradeError) else _line(error)
        what = error.what if isinstance(error, RetrogradeError) else str(error)
        raise OpaqueError(
            f"{cls.__name__}, a custom Function, cannot be traced: "
            f"{what.splitlines()[0] if what else type(error).__name__}",
            location=where or user_location(),
            rule="Its forward and backward become a part of the compiled program.",
            hint="write them in NumPy operations on their arguments, or call the "
            "Function outside of compiled functions",
        ) from error


def _line(error: Exception) -> Location | None:
    """Return the innermost line of the user's in the traceback of an error."""
    found, tb = None, error.__traceback__
    while tb is not None:
        if is_user_code(tb.tb_frame.f_code, tb.tb_frame.f_globals):
            found = location_of(tb.tb_frame, tb.tb_lineno)
        tb = tb.tb_next
    return found


@dataclass(frozen=True, slots=True)
class _Output:
    """An output that has a gradient: the value, and what stands for it in the rule."""

    raw: Tensor
    value: Operand
    shown: Tensor
    ct: Tensor


class _TracedCall:
    """One call of a Function inside a trace."""

    def __init__(self, cls: type[Function], trace: Trace, args: Sequence[Any]) -> None:
        self.cls = cls
        self.trace = trace
        self.args = tuple(map(self.argument, args))
        self.ctx = Context(tuple(map(self.is_input, self.args)))

    def argument(self, x: Any) -> Any:
        """Return an argument as `forward` gets it: arrays as values of the trace."""
        if isinstance(x, Tensor | np.ndarray):
            if isinstance(x, Tensor) and x._trace is self.trace:
                return x
            return self.trace.tensor(self.trace.operand(x))
        return x

    def is_input(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.type.is_inexact

    def run(self) -> Any:
        trace = self.trace
        before = {
            id(x): trace.apply(COPY, (x,), {})
            for x in self.args
            if self.is_input(x) and not x.type.scalar
        }
        out = forward_of(self.cls, self.ctx, self.args, convert)
        outs = outputs_of(out, self.cls)
        check_dirty(self.args, outs, self.ctx)
        if not STATE.grad:
            return packed(out, list(outs))
        made = self.outputs(outs)
        values = {id(o.raw): o for o in made}
        rule, grads = self.rule(outs, values)
        wanted = [k for k, g in enumerate(grads) if g is not None]
        inputs = [self.before(self.args[k], before) for k in wanted]
        types = [type_of(o.value) for o in made]
        hints = [o.value.name if isinstance(o.value, Value) else "y" for o in made]
        operands = (*map(trace.operand, inputs), *(o.value for o in made))
        new = trace.control(OPS["custom"], operands, {}, [rule], types, hints)
        results = {id(o.raw): t for o, t in zip(made, new, strict=True)}
        return packed(out, [self.result(x, results) for x in outs])

    def is_dirty(self, x: Any) -> bool:
        return any(x is d for d in self.ctx._dirty)

    def before(self, x: Tensor, copies: dict[int, Tensor]) -> Tensor:
        """Return an input as it was before the call."""
        return copies[id(x)] if self.is_dirty(x) else x

    def outputs(self, outs: Sequence[Any]) -> list[_Output]:
        """Return the outputs that have a gradient, each once."""
        trace = self.trace
        found: dict[int, _Output] = {}
        for x in outs:
            constant = any(x is c for c in self.ctx._constant)
            if not self.is_input(x) or constant or id(x) in found:
                continue
            value = trace.operand(x)
            t = trace.operand_type(value)
            hint = value.name if isinstance(value, Value) else "y"
            shown = trace.builder.value(t, hint)
            ct = trace.builder.value(
                Type(t.dtype, t.shape, scalar=t.scalar or t.weak), f"d{hint}"
            )
            found[id(x)] = _Output(x, value, trace.tensor(shown), trace.tensor(ct))
        return list(found.values())

    # The rule -----------------------------------------------------------------------

    def rule(
        self, outs: Sequence[Any], made: dict[int, _Output]
    ) -> tuple[Block, list[Any]]:
        """Trace `backward`; returns its region, and the gradient of each argument."""
        trace, ctx = self.trace, self.ctx

        def inside(x: Any) -> Any:
            return made[id(x)].shown if id(x) in made else x

        ctx._to_save = tuple(map(inside, ctx._to_save))
        for name, x in list(ctx.__dict__.items()):
            if id(x) in made:
                setattr(ctx, name, inside(x))
        backward = rule_of(self.cls)
        state = State()
        state.search(backward)
        swap = Swap(state)
        swap.begin()
        try:
            with trace.region() as nodes:
                seen: set[int] = set()
                cts = [self.given(x, made, seen) for x in reversed(outs)][::-1]
                returned = convert(backward)(ctx, *cts)
                grads = self.gradients(returned)
                results = [trace.operand(g) for g in grads if g is not None]
        finally:
            changes = swap.restore()
        params = [o.shown._value for o in made.values()]
        params += [o.ct._value for o in made.values()]
        rule = Block(tuple(params), tuple(nodes), tuple(results))
        self.check(rule, changes)
        return rule, grads

    def given(self, x: Any, made: dict[int, _Output], seen: set[int]) -> Any:
        """Return the gradient of an output as `backward` gets it.

        Of an output that is returned twice only the last has one, as on the tape.
        """
        if not isinstance(x, Tensor | np.ndarray):
            return None
        if id(x) in made and id(x) not in seen:
            seen.add(id(x))
            return made[id(x)].ct
        if not self.ctx._materialize:
            return None
        t = self.trace.operand_type(self.trace.operand(x))
        zero = np.zeros((), t.dtype).item()
        attrs = {"shape": t.shape, "dtype": t.dtype}
        return self.trace.apply(OPS["full"], (zero,), attrs)

    def gradients(self, returned: Any) -> list[Any]:
        """Return a gradient for each argument, or None, of its type."""
        grads = returned if isinstance(returned, tuple) else (returned,)
        inputs = [isinstance(x, Tensor) for x in self.args]
        check_count(f"{self.cls.__name__}Backward", grads, inputs)
        return [
            self.fitted(g, x, k) if g is not None and self.is_input(x) else None
            for k, (g, x) in enumerate(zip(grads, self.args, strict=False))
        ]

    def fitted(self, g: Any, x: Tensor, k: int) -> Any:
        trace, t = self.trace, self.trace.operand_type(self.trace.operand(x))
        g = g if isinstance(g, Tensor) else as_gradient(g)
        have = trace.operand_type(trace.operand(g))
        g = tensor_builder().unbroadcast(g, x)
        try:
            return trace.as_cotangent(g, Type(t.dtype, t.shape, scalar=t.scalar))
        except GradientError:
            raise GradientError(
                f"Function {self.cls.__name__}Backward returned an invalid gradient at "
                f"index {k} - got {have} but expected shape compatible with {t}",
                location=user_location(),
            ) from None

    def check(self, rule: Block, changes: Any) -> None:
        """Refuse a `backward` that does more than to compute gradients."""
        inside = {*rule.params, *(v for n in walk(rule) for v in n.results)}
        inside |= {p for n in walk(rule) for r in n.regions for p in r.params}
        self.trace.ended |= inside
        name = ", ".join(
            [p.name for p, _ in changes.variables]
            + [c.name for c, _, _ in changes.containers]
        )
        writes = [n for n in walk(rule) if n.op.kind is Kind.WRITE]
        outer = [n for n in writes if not _writes_into(n, inside)]
        if not name and not outer:
            return
        raise OpaqueError(
            f"backward of {self.cls.__name__} changes {name or 'an array'}, which it "
            "did not make",
            location=outer[0].loc if outer else user_location(),
            rule="In a compiled function it only computes gradients.",
            hint="return a new value, or call the Function outside",
        )

    # Results ------------------------------------------------------------------------

    def result(self, x: Any, results: dict[int, Tensor]) -> Any:
        """Return what the caller gets for an output."""
        trace = self.trace
        if id(x) not in results:
            constant = isinstance(x, Tensor) and any(x is c for c in self.ctx._constant)
            return trace.detach(x) if constant and self.is_input(x) else x
        y = results[id(x)]
        if self.is_dirty(x):
            dispatch.write(x, y, kind="unsafe")
            return x
        v = x._value
        given = [a._value for a in self.args if isinstance(a, Tensor)]
        roots = {root_of(a) for a in given if isinstance(a, Value)}
        if isinstance(v, Value) and not v.type.scalar and root_of(v) in roots:
            text = (
                f"{self.cls.__name__} has returned memory of an input; writing into it "
                "would override the derivative of the Function"
            )
            trace.mutations.frozen[root_of(v)] = trace.mutations.frozen[y._value] = text
        return y


def _writes_into(node: Node, inside: set[Value]) -> bool:
    target = node.operands[0]
    return isinstance(target, Value) and root_of(target) in inside
