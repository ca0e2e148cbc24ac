"""What control flow and calls of converted code mean: eagerly, and while tracing.

While tracing, what Python can decide is left to Python. A branch on a computed value
becomes a `cond`; a loop over a range or over rows becomes a `for`, one with a computed
condition a `while`. What cannot be a region is unrolled where it is short, or decided
once and guarded, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import InternalError, UnsupportedError
from ..ir.func import Node
from ..ir.op import OPS, Kind
from . import dispatch
from .assume import NeedsValue, Test
from .branches import branch
from .containers import flatten_tree
from .convert import Operators
from .location import user_location
from .loops import Counted, ForLoop, WhileLoop
from .rows import Mapped, Range, Rows, rows_of
from .slots import ComputesNothing, Differs, Slots
from .tensor import Tensor
from .trace import Trace
from .traceint import dim_of, negated
from .unify import as_condition
from .values import lift

Thunk = Callable[[], Any]
SHORT = 2  # loops of so few iterations are unrolled
LIMIT = 128  # loops that cannot be regions are unrolled up to here


class EagerOperators(Operators):
    """Plain control flow; arrays that the function makes are Tensors."""

    def __init__(self) -> None:
        from .functions import INTERCEPTS

        super().__init__(INTERCEPTS)


class TraceOperators(EagerOperators):
    """Control flow while tracing.

    Calls whose answer changes from call to call are refused: it would be baked in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain: set[CodeType] = set()  # loops that cannot be regions

    # Calls ------------------------------------------------------------------------

    def call(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _home(f) in CHANGING:
            name = getattr(f, "__name__", repr(f))
            raise UnsupportedError(
                f"{_home(f)}.{name}: its answer changes from call to call",
                location=user_location(),
                rule="A compiled function is traced once: the answer would never "
                "change again.",
                hint="call it outside and pass the value as an argument",
            )
        out = super().call(f, args, kwargs)
        return _lifted(out) if _is_pure(f) and _is_static((args, kwargs)) else out

    # Branches ---------------------------------------------------------------------

    def if_stmt(
        self,
        condition: Any,
        body: Callable[[], None],
        orelse: Callable[[], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
    ) -> None:
        self._branch(
            condition,
            body,
            orelse,
            lambda: Slots([body, orelse], get_state, set_state, names, live),
        )

    def if_exp(self, condition: Any, body: Thunk, orelse: Thunk) -> Any:
        return self._branch(condition, body, orelse, lambda: Slots([body, orelse]))

    def _branch(
        self, condition: Any, body: Thunk, orelse: Thunk, slots: Callable[[], Slots]
    ) -> Any:
        trace = _trace()
        trace.assumptions.check_complete(condition)
        test = as_condition(trace, condition)
        if test is None:
            return body() if condition else orelse()
        try:
            return branch(trace, test, body, orelse, slots())
        except NeedsValue as error:
            reason: UnsupportedError = error
        except (UnsupportedError, InternalError, Counted):
            raise
        except Exception as error:  # one of the ways raises
            reason = _raises(error)
        if trace.in_region:
            raise reason
        try:
            taken = bool(test)
        except UnsupportedError:
            raise reason from None
        return body() if taken else orelse()

    def and_(self, left: Any, right: Thunk) -> Any:
        return self._logic(left, right, is_and=True)

    def or_(self, left: Any, right: Thunk) -> Any:
        return self._logic(left, right, is_and=False)

    def _logic(self, left: Any, right: Thunk, is_and: bool) -> Any:
        trace = _trace()
        trace.assumptions.check_complete(left)
        condition = as_condition(trace, left)
        if condition is None:
            return super().and_(left, right) if is_and else super().or_(left, right)
        tests = trace.assumptions.tests
        first = trace.test_of(condition)
        slots = Slots([right])
        before = slots.read()
        try:
            with trace.region(*(first.true if is_and else first.false)) as nodes:
                second = right()
                value = as_condition(trace, second)
            effect = not slots.untouched(before, slots.read())
        finally:
            slots.restore(before)
        simple = value is second and not effect and all(map(_is_harmless, nodes))
        if simple and value is not None and left is condition:
            for node in nodes:
                trace.append(node)
            op = OPS["logical_and" if is_and else "logical_or"]
            out = dispatch.apply(op, (condition, value))
        else:
            thunks = (right, lambda: left) if is_and else (lambda: left, right)
            out = self._branch(condition, *thunks, lambda: slots)
        last = trace.test_of(value)
        if isinstance(out, Tensor):
            both = (first, last)
            true = tuple(d for t in both for d in t.true if not trace.hidden(d))
            false = tuple(d for t in both for d in t.false if not trace.hidden(d))
            tests[out._value] = Test(true, ()) if is_and else Test((), false)
        return out

    def not_(self, value: Any) -> Any:
        trace = _trace()
        trace.assumptions.check_complete(value)
        condition = as_condition(trace, value)
        return (not value) if condition is None else negated(condition)

    # Loops ------------------------------------------------------------------------

    def for_stmt(
        self,
        iterable: Iterable[Any],
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
        target: str,
    ) -> None:
        trace, rows = _trace(), rows_of(iterable)
        trace.assumptions.check_complete(iterable)
        state = (get_state, set_state, names, live)
        if rows is None:
            self._unrolled(iter(iterable), extra_test, body, state)
            return
        self._rows(trace, rows, extra_test, body, state, target)

    def _rows(
        self,
        trace: Trace,
        rows: Rows,
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: Any,
        target: str,
        ways: Sequence[bool] = (True, False),
    ) -> None:
        """Trace a loop over rows; where types do not agree, the first apart."""
        reason: Exception | None = None
        for first in ways:
            if _key(body) in self.plain or self._is_short(trace, rows.length):
                break
            try:
                self._for_region(trace, rows, extra_test, body, state, target)
                return
            except NeedsValue as error:
                if _is_about_outer(trace, error):
                    raise
                reason = error
            except (UnsupportedError, InternalError):
                raise
            except Exception as error:  # in an iteration that there may never be
                reason = error
            if not (first and isinstance(reason, Differs)):
                break
            if not trace.assumptions.decide(dims.add(dims_of(rows.length), -1)):
                break
            body(rows.item(0))  # from the second iteration on the types may agree
            rows = rows.rest()
            if extra_test is not None:
                self._others(trace, rows, extra_test, body, state, target)
                return
        try:
            items = list(map(rows.item, range(_few(rows.length))))
        except NeedsValue as error:
            raise reason or error from None
        computes = not isinstance(reason, ComputesNothing)
        if len(items) > LIMIT and reason is not None and computes:
            raise _too_long(reason, len(items))
        if reason is not None:
            self.plain.add(_key(body))
        self._unrolled(iter(items), extra_test, body, state)

    def _others(
        self,
        trace: Trace,
        rows: Rows,
        extra_test: Callable[[], Any],
        body: Callable[[Any], None],
        state: Any,
        target: str,
    ) -> None:
        """Trace the iterations after the first, unless that has left the loop."""

        def others() -> None:
            self._rows(trace, rows, extra_test, body, state, target, ways=(False,))

        self.if_stmt(extra_test(), others, lambda: None, *state)

    def list_comp(self, iterable: Iterable[Any], element: Callable[[Any], Any]) -> Any:
        rows = rows_of(iterable)
        if rows is None:
            return super().list_comp(iterable, element)
        out: list[Any] = []

        def append(item: Any) -> None:
            out.append(element(item))

        self._each(rows, append, element)
        return out

    def generator(self, iterable: Iterable[Any], element: Callable[[Any], Any]) -> Any:
        rows = rows_of(iterable)
        if rows is None:
            return super().generator(iterable, element)
        return Mapped(rows, element)

    def sum_of(self, rows: Rows, start: Any) -> Any:
        """Return `sum(rows, start)`."""
        total = [start]

        def add(item: Any) -> None:
            total[0] = total[0] + item

        self._each(rows, add, rows.item)
        return total[0]

    def each(self, count: Any, body: Callable[[Any], None]) -> None:
        self._each(Range(0, count), body, body)

    def _each(
        self, rows: Rows, body: Callable[[Any], None], key: Callable[..., Any]
    ) -> None:
        """Run `body` for every item, as a loop of the user's function `key`."""
        body.__dict__["key"] = key.__code__
        self.for_stmt(rows, None, body, tuple, _nothing, (), (), "item")

    def _is_short(self, trace: Trace, length: Any) -> bool:
        """Tell whether a loop is traced iteration by iteration."""
        limit = LIMIT if trace.root().unrolled else SHORT
        d = trace.assumptions.resolve(dims_of(length))
        known = isinstance(d, int) or (
            trace.root().unrolled and not trace.assumptions.open(d)
        )
        return known and trace.assumptions.value(d) <= limit

    def _for_region(
        self,
        trace: Trace,
        rows: Rows,
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: Any,
        target: str,
    ) -> None:
        if extra_test is not None:
            self._leaving(trace, rows, extra_test, body, state)
            return
        slots = Slots([body], *state)
        targets = [t.strip(" ()[]*") for t in target.split(",")]
        ForLoop(trace, slots, rows, body, targets).run()

    def _leaving(
        self,
        trace: Trace,
        rows: Rows,
        extra_test: Callable[[], Any],
        body: Callable[[Any], None],
        state: Any,
    ) -> None:
        """Trace a `for` that may be left early as a `while` over its positions."""
        get_state, set_state, names, live = state
        length, at = rows.length, [0]

        def set_both(values: tuple[Any, ...]) -> None:
            set_state(values[:-1])
            at[0] = values[-1]

        def one() -> None:
            body(rows.item(at[0]))
            at[0] = at[0] + 1

        slots = Slots(
            [body, extra_test],
            lambda: (*get_state(), at[0]),
            set_both,
            (*names, "rg__position"),
            (*live, "rg__position"),
        )
        test = lambda: self.and_(at[0] < length, extra_test)  # noqa: E731
        _while(trace, slots, test, one)

    def _unrolled(
        self,
        items: Any,
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        state: Any,
    ) -> None:
        """Run the iterations one after the other; a computed test guards the rest."""
        for item in items:
            body(item)
            if extra_test is None:
                continue
            more = extra_test()
            if as_condition(_trace(), more) is not None:
                rest = list(items)
                if rest:

                    def others(rest: Any = rest) -> None:
                        self._unrolled(iter(rest), extra_test, body, state)

                    self.if_stmt(more, others, lambda: None, *state)
                return
            if not more:
                return

    def while_stmt(
        self,
        test: Callable[[], Any],
        body: Callable[[], None],
        get_state: Callable[[], tuple[Any, ...]],
        set_state: Callable[[tuple[Any, ...]], None],
        names: tuple[str, ...],
        live: tuple[str, ...],
    ) -> None:
        trace = _trace()
        reason: Exception | None = None
        for count in range(LIMIT):
            more = test() if count > 1 else None
            if count <= 1 or as_condition(trace, more) is not None:
                try:
                    slots = Slots([test, body], get_state, set_state, names, live)
                    _while(trace, slots, test, body)
                    return
                except NeedsValue as error:
                    if _is_about_outer(trace, error):
                        raise
                    reason = error
                except (UnsupportedError, InternalError):
                    raise
                except Exception as error:  # in an iteration that there may never be
                    reason = error
                more = test()
                if as_condition(trace, more) is not None:
                    raise reason
            if not more:
                return
            body()
        raise _too_long(reason, LIMIT)


def _while(
    trace: Trace, slots: Slots, test: Callable[[], Any], body: Callable[[], None]
) -> None:
    """Trace a `while`, as a `for` where a counter alone ends it."""
    try:
        WhileLoop(trace, slots, test, body).run()
    except Counted as counted:
        ForLoop(trace, slots, counted.rows, lambda _: body(), ()).run()


def _trace() -> Trace:
    trace = dispatch.active_trace()
    assert isinstance(trace, Trace)
    return trace


def _nothing(values: tuple[Any, ...]) -> None:
    """Set the state of a block that binds no names."""


def _key(body: Callable[..., Any]) -> CodeType:
    """Return what a loop is known by."""
    code: CodeType = body.__dict__.get("key", body.__code__)
    return code


def dims_of(length: Any) -> Dim:
    d = dim_of(length)
    assert d is not None
    return d


def _few(length: Any) -> int:
    """Return a length as an int, which becomes a guard."""
    return length if isinstance(length, int) else length.__index__()


def _is_about_outer(trace: Trace, error: NeedsValue) -> bool:
    """Tell whether unrolling the loops around would help, but not this one."""
    return bool(error.symbols) and error.symbols <= trace.assumptions.visible


def _too_long(reason: Exception | None, count: int) -> Exception:
    assert reason is not None
    if not isinstance(reason, NeedsValue):
        return reason
    return UnsupportedError(
        reason.what,
        location=reason.location,
        rule=f"{reason.rule} The loop around it cannot be unrolled: it has {count} "
        f"iterations or more, and the limit is {LIMIT}.",
        hint=reason.hint,
    )


def _raises(error: Exception) -> UnsupportedError:
    return UnsupportedError(
        f"{type(error).__name__} is raised in a branch: {error}",
        location=getattr(error, "location", None) or user_location(),
        rule="The condition is computed: whether the exception is raised is known "
        "only when the program runs.",
        hint="check before calling, or compute a flag and raise after the call",
    )


def _is_harmless(node: Node) -> bool:
    """Tell whether a node may run where the program does not ask for it."""
    plain = node.op.kind in (Kind.ELEMENTWISE, Kind.COPY) and not node.regions
    return plain and all(not v.type.shape for v in node.results)


def _is_pure(f: Any) -> bool:
    """Tell whether what NumPy's `f` makes of static values is a constant."""
    from .functions import FUNCTIONS

    try:
        return isinstance(f, np.ufunc) or f in FUNCTIONS
    except TypeError:  # not hashable
        return False


def _is_static(x: Any) -> bool:
    """Tell whether arguments hold no arrays: those may be others at the next call."""
    return not any(isinstance(leaf, np.ndarray | Tensor) for leaf in flatten_tree(x)[0])


def _lifted(x: Any) -> Any:
    """Make fresh arrays that NumPy returned part of the trace."""
    if isinstance(x, np.ndarray):
        return lift(x.copy())
    if type(x) in (tuple, list):
        return type(x)(map(_lifted, x))
    return x


CHANGING = frozenset(
    {"random", "time", "secrets", "uuid", "datetime", "numpy.random", "_random"}
)


def _home(f: Any) -> str:
    """Return the module that a callable, or the object it is a method of, is from."""
    owner = getattr(f, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        module = getattr(f, "__module__", None) or getattr(owner, "__name__", "")
    else:
        cls = owner if isinstance(owner, type) else type(owner)
        module = cls.__module__
    parts = str(module).split(".")
    return ".".join(parts[:2]) if parts[0] == "numpy" else parts[0]
