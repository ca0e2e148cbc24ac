"""The one place that decides: at once, on the tape, or into a trace.

`apply` runs an op, `write` is the only way memory changes. Everything else, the
functions of the NumPy namespace, operators, methods, is written in terms of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import numpy as np

from ..ir.errors import (
    DTypeError,
    IndexRangeError,
    LinAlgError,
    MutationError,
    RetrogradeError,
    ShapeError,
)
from ..ir.func import type_of
from ..ir.op import OPS, Op
from ..ir.types import Type, type_of_array
from ..runtime.devices import ARRAYS, OPENED, DeviceArray
from ..runtime.storage import Storage
from . import tape
from . import tensor as _tensor
from .fields import part
from .location import user_location
from .modes import HOME, STATE

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
NUMBERS = (int, float, complex)
NO_ATTRS: Mapping[str, Any] = {}


class Trace(Protocol):
    """What dispatch and Tensor ask of a trace."""

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Append an op; operands may be Tensors, arrays and numbers."""

    def write(self, target: Any, new: Any) -> None:
        """Append a write into the whole of `target`."""

    def shape_of(self, t: Any) -> tuple[Any, ...]:
        """Return the shape that Python code sees."""

    def convert_to_python(self, t: Any, kind: str) -> Any:
        """Return a Python value for `t`, or raise; `kind` says what asked."""

    def detach(self, t: Any) -> Any:
        """Return `t` without its derivative."""

    def item(self, t: Any, index: tuple[int, ...]) -> Any:
        """Return one element as a Python number, without its derivative."""

    @property
    def leaves(self) -> Any:
        """What Tensors are to the tape: a `Leaves`."""

    @property
    def in_region(self) -> bool:
        """Whether a loop or branch is being traced, which may never run."""

    @property
    def integers(self) -> Any:
        """The integers that the program computes: an `Integers`."""

    @property
    def placement(self) -> Any:
        """Where its arrays lie: a `Placement`."""

    @property
    def layouts(self) -> Any:
        """The strides of its values in this call: a `Layouts`."""

    def check_readable(self) -> None:
        """Raise where the values of this trace may not be read."""

    def stack_of(self, items: Sequence[Any]) -> Any:
        """Return the array whose rows a list got in a loop, if these are its items."""

    def check_complete(self, x: object) -> None:
        """Raise where a list is looked at that grows in a loop being traced."""


_ACTIVE: ContextVar[Trace | None] = ContextVar("retrograde_trace", default=None)


def active_trace() -> Trace | None:
    """Return the trace that operations of this context go into, if any."""
    return _ACTIVE.get()


def trace_of(operands: Sequence[Any]) -> Trace | None:
    """Return the trace that an operation on these operands belongs to."""
    trace = _ACTIVE.get()
    if trace is not None:
        return trace
    tensor = _tensor.Tensor
    for x in operands:
        if type(x) is tensor and x._trace is not None:
            return x._trace
    return None


def apply(op: Op, operands: Sequence[Any], attrs: Mapping[str, Any] = NO_ATTRS) -> Any:
    """Run an op on Tensors, ndarrays, NumPy scalars and Python numbers.

    Inside a trace it is appended to the trace. Otherwise it runs at once, and is
    recorded on the tape if an operand requires a gradient.
    """
    trace = _ACTIVE.get()
    if trace is not None:
        return trace.apply(op, operands, attrs)
    return run(op, operands, attrs, None)


def run(
    op: Op,
    operands: Sequence[Any],
    attrs: Mapping[str, Any],
    overwritten: Storage | None,
) -> Any:
    """Run an op at once. What is saved from the storage `overwritten` is copied.

    Operands of a trace that is not active still belong to it.
    """
    tensor = _tensor.Tensor
    data = []
    for x in operands:
        if type(x) is tensor:
            if x._trace is not None:
                return x._trace.apply(op, operands, attrs)
            x = x._data
        data.append(x)
    try:
        if OPENED and (HOME.place or DeviceArray in map(type, data)):
            out = part("devices").run(op, operands, data, attrs)
        else:
            out = op.eager(*data, **attrs)
    except (TypeError, ValueError, IndexError, RetrogradeError) as error:
        raise located(error, op.name, data) from None
    if isinstance(out, ARRAYS):
        if op.views is not None:
            viewed = operands[op.views]
            if type(viewed) is not tensor:
                return _view_of_plain(data[op.views], out)
            if viewed._storage is not None and shares(out, viewed._data):
                return tape.make_view(op, viewed, out, data, attrs)
        result = tensor(out, Storage())
    else:
        if op.weak and isinstance(out, np.generic) and _all_numbers(data):
            out = out.item() if out.dtype.kind != "b" else out
        result = tensor(out)
    if STATE.grad:
        tape.record_op(op, operands, data, attrs, result, overwritten)
    return result


def _all_numbers(data: Sequence[Any]) -> bool:
    return all(type(x) in NUMBERS or type(x) is bool for x in data)


def _view_of_plain(viewed: Any, out: Any) -> Any:
    """Wrap a view of an array that is no Tensor; the user holds its memory."""
    is_view = isinstance(viewed, ARRAYS) and shares(out, viewed)
    return _tensor.Tensor(out, Storage(shared=is_view))


def shares(view: Any, x: Any) -> bool:
    """Tell whether the result of a view op lies in the memory of its operand."""
    if isinstance(view, DeviceArray):
        return isinstance(x, DeviceArray) and view.memory is x.memory
    base = view.base
    if base is None:
        return view is x
    return base is x or base is x.base or bool(np.may_share_memory(view, x))


def view(op: Op, t: Any, *indices: Any, **attrs: Any) -> Any:
    """Return a view of `t`: `apply` with the attributes spelled as keywords."""
    return apply(op, (t, *indices), attrs)


def located(error: Exception, name: str, data: Sequence[Any]) -> RetrogradeError:
    """Return the error of this package for an error raised by NumPy."""
    if isinstance(error, RetrogradeError):
        if error.location is None:
            error.location = user_location()
        return error
    kind: type[RetrogradeError] = DTypeError
    if isinstance(error, np.linalg.LinAlgError):
        return LinAlgError(str(error), location=user_location())
    if isinstance(error, IndexError):
        kind = IndexRangeError
    elif isinstance(error, ValueError):
        kind = ShapeError
    shown = ", ".join(_shown(x) for x in data)
    return kind(
        f"{name}: cannot take {shown}",
        location=user_location(),
        rule=str(error).split("\n")[0],
    )


def _shown(x: Any) -> str:
    try:
        return str(type_of_array(x))
    except RetrogradeError:
        return type(x).__name__


# ---------------------------------------------------------------- writes


class ReadOnlyError(RetrogradeError, ValueError):
    """A write into memory that may not be written."""


def refuse_complex(target: Any, new: Any) -> None:
    """Raise where a complex number of Python is written into a real array.

    Arrays and scalars of NumPy are cast there, with a warning.
    """
    if type(new) is complex and target.type.dtype.kind != "c":
        raise DTypeError(
            f"write: a complex number into {target.type}",
            rule="A real array takes no complex number.",
            hint="x.real is the real part",
            location=user_location(),
        )


def write(target: Any, new: Any, *, kind: Casting = "same_kind") -> None:
    """Write `new` into the whole of `target`, which may be a view.

    `new` was computed before, so overlapping operands were read first. It broadcasts
    to the target; `kind` is the casting rule: "same_kind" for `+=`, "unsafe" for
    assignment. The version of the storage is bumped and the graph rebased.
    """
    refuse_complex(target, new)
    trace = trace_of((target, new))
    if trace is not None:
        trace.write(target, _cast_for(target.type, new, kind))
    else:
        _write(target, new, kind, None)


def _write(target: Any, new: Any, kind: Casting, result: Any) -> None:
    """Write at once; `result` is `new` where it was computed for this write."""
    data = target._data
    value = new._data if isinstance(new, _tensor.Tensor) else new
    if not isinstance(data, ARRAYS):
        raise _immutable(target)
    if kind != "unsafe" and getattr(value, "dtype", None) != data.dtype:
        _check_casting(type_of_array(data), _value_type(value), kind)
    is_recorded = STATE.grad and isinstance(new, _tensor.Tensor)
    edge = tape.edge_of(new) if is_recorded else None
    storage = target._storage
    with storage.lock:
        plan = tape.prepare_write(target, new, edge)
        if STATE.copy_on_write:
            storage.release_keepers()
        try:
            if OPENED and DeviceArray in (type(data), type(value)):
                part("devices").put(data, value)
            else:
                _put(data, value, storage.repeats)
        except ValueError as error:
            if not data.flags.writeable:
                raise ReadOnlyError(
                    f"write: {target.type} is read-only", location=user_location()
                ) from None
            raise located(error, "write", (data, value)) from None
        storage.wrote()
        if storage.has_keepers:
            storage.last_write = user_location()
        if plan is not None:
            tape.rebase(target, plan, result)


def _put(data: Any, value: Any, repeats: bool) -> None:
    if repeats:
        tape.put(data, value)
    else:
        np.copyto(data, value, casting="unsafe")


def update(op: Op, target: Any, *others: Any, **attrs: Any) -> None:
    """Set `target` to `op(target, *others)` in place, as `target += x` does."""
    apply_into(op, (target, *others), attrs, target)


def apply_into(
    op: Op, operands: Sequence[Any], attrs: Mapping[str, Any], target: Any
) -> None:
    """Write the result of an op into `target`, which may be one of the operands."""
    trace = trace_of((*operands, target))
    if trace is not None:
        new = trace.apply(op, operands, attrs)
        trace.write(target, _cast_for(target.type, new, "same_kind"))
        return
    if not isinstance(target._data, ARRAYS):
        raise _immutable(target)
    new = run(op, operands, attrs, target._storage)
    have, want = new.shape, target._data.shape
    if have != want and np.broadcast_shapes(have, want) != want:
        raise ShapeError(
            f"{op.name}: {target.type} cannot take a result {new.type} in place",
            location=user_location(),
            rule=f"non-broadcastable output operand: output with shape {list(want)} "
            f"doesn't match the broadcast shape {list(have)}",
        )
    _write(target, new, "same_kind", new)


def _immutable(target: Any) -> MutationError:
    return MutationError(
        f"write: {target.type} is a scalar and cannot be changed in place",
        location=user_location(),
        rule="NumPy scalars and Python numbers are immutable",
        hint="make a 0-d array: rg.tensor(x)",
    )


def _value_type(value: Any) -> Type:
    known = isinstance(value, NUMBERS) or isinstance(value, DeviceArray)
    return type_of_array(value if known else np.asarray(value))


def _check_casting(want: Type, have: Type, kind: Casting) -> None:
    if have.dtype == want.dtype or kind == "unsafe":
        return
    fits = np.can_cast(have.dtype, want.dtype, kind)
    if not fits and have.weak:
        fits = "bif c".index(have.dtype.kind) <= "bif c".index(want.dtype.kind)
    if not fits:
        raise DTypeError(
            f"write: cannot cast {have} to {want}",
            location=user_location(),
            rule=f"an in-place operation casts with casting rule {kind!r}",
            hint="convert first: x = x.astype(float)",
        )


def _cast_for(want: Type, new: Any, kind: Casting) -> Any:
    """Convert what is written to the dtype of the target, inside a trace."""
    if isinstance(new, _tensor.Tensor):
        have = new.type
    else:
        have = type_of(new) if isinstance(new, NUMBERS) else type_of_array(new)
    _check_casting(want, have, kind)
    if have.dtype == want.dtype and not have.weak:
        return new
    return apply(OPS["astype"], (new,), {"dtype": want.dtype})


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Let the operations of a block go into `trace`."""
    token = _ACTIVE.set(trace)
    try:
        yield
    finally:
        _ACTIVE.reset(token)
