"""Modes of a thread: what is recorded, what a write may do, what tapes may take."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..ir.errors import DeviceError

P = ParamSpec("P")
T = TypeVar("T")


class Options(NamedTuple):
    """How captured programs are compiled.

    The tapes of gradients take at most `memory_limit` bytes; a `precise` program has
    the C library's elementary functions; kernels run on a `device`, or the processor.
    On a device, `fastmath` allows approximations, and a `deterministic` program gives
    the same bits in every run.
    """

    memory_limit: int | None = None
    precise: bool = False
    device: str | None = None
    fastmath: bool = False
    deterministic: bool = False

    def with_those(self, other: Options) -> Options:
        """Return the options of a function that is compiled again, with more of them.

        Of approximations and precision, the latter wins.
        """
        limit = self.memory_limit if other.memory_limit is None else other.memory_limit
        precise = self.precise or other.precise
        return Options(
            limit,
            precise,
            other.device or self.device,
            not precise and (self.fastmath or other.fastmath),
            self.deterministic or other.deterministic,
        )


class _Modes(threading.local):
    grad = True
    copy_on_write = False
    view_replay = False
    deterministic = False  # ops on Tensors of a device
    memory_limit: int | None = None  # of gradients that are captured, in bytes
    options = Options()  # of what is captured, but for the limit


STATE = _Modes()


class _Home(threading.local):
    """The device whose gradients a thread computes, if any: see `devices.at_home`."""

    place: Any = None


HOME = _Home()


def is_grad_enabled() -> bool:
    """Tell whether operations of this thread are recorded.

    >>> with no_grad():
    ...     is_grad_enabled()
    False
    """
    return STATE.grad


@contextmanager
def within(limit: int | None) -> Iterator[None]:
    """Let captured gradients keep a memory limit, and those around."""
    before = STATE.memory_limit
    limits = [x for x in (before, limit) if x is not None]
    STATE.memory_limit = min(limits, default=None)
    try:
        yield
    finally:
        STATE.memory_limit = before


@contextmanager
def capturing(options: Options) -> Iterator[None]:
    """Capture a program; it is precise, too, if a function that it calls is."""
    before, STATE.options = STATE.options, options
    try:
        with within(options.memory_limit):
            yield
    finally:
        STATE.options = before


@contextmanager
def calling(options: Options) -> Iterator[None]:
    """Capture the call of a compiled function as a part of the program.

    The program becomes precise or deterministic, too, but it approximates only where
    it was told so itself. Raises DeviceError where the function is for another device.
    """
    device = STATE.options.device
    if options.device not in (None, device):
        here = device or "the processor"
        raise DeviceError(
            f"a function for {options.device} is called in a program for {here}",
            rule="A compiled program runs on one device.",
            hint="compile the outer function for that device",
        )
    STATE.options = STATE.options.with_those(options._replace(fastmath=False))
    with within(options.memory_limit):
        yield


def options() -> Options:
    """Return how what is captured now is compiled."""
    return STATE.options._replace(memory_limit=STATE.memory_limit)


def run_on(device: str | None) -> None:
    """Let what is captured run on a device; None: on the processor."""
    STATE.options = STATE.options._replace(device=device)


class _Mode:
    """A context manager and decorator that sets one mode for its duration."""

    __slots__ = ("_before", "_value")
    _field = ""

    def __init__(self, value: bool) -> None:
        self._value = value
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(getattr(STATE, self._field))
        setattr(STATE, self._field, self._value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        setattr(STATE, self._field, self._before.pop())

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            with type(self)._again(self._value):
                return function(*args, **kwargs)

        return inner

    @classmethod
    def _again(cls, value: bool) -> _Mode:
        again = cls.__new__(cls)
        _Mode.__init__(again, value)
        return again


class no_grad(_Mode):
    """Switch recording off, as context manager or decorator.

    >>> @no_grad()
    ... def f():
    ...     return is_grad_enabled()
    >>> f()
    False
    """

    __slots__ = ()
    _field = "grad"

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_Mode):
    """Switch recording on, as context manager or decorator.

    >>> with no_grad(), enable_grad():
    ...     is_grad_enabled()
    True
    """

    __slots__ = ()
    _field = "grad"

    def __init__(self) -> None:
        super().__init__(True)


class _Switch(_Mode):
    """A mode that is set at once, and back at the end of a `with` block."""

    __slots__ = ("_first",)

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._first: bool | None = getattr(STATE, self._field)
        setattr(STATE, self._field, mode)

    def __enter__(self) -> None:
        if self._first is None:
            super().__enter__()
        else:
            self._before.append(self._first)
            self._first = None

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        if self._first is not None:
            setattr(STATE, self._field, self._first)
        return super().__call__(function)

    @classmethod
    def _again(cls, value: bool) -> _Mode:
        again = super()._again(value)
        assert isinstance(again, _Switch)
        again._first = None
        return again


class set_grad_enabled(_Switch):
    """Switch recording on or off, at once and, as context manager, until its end.

    >>> with set_grad_enabled(False):
    ...     is_grad_enabled()
    False
    """

    __slots__ = ()
    _field = "grad"


class set_deterministic(_Switch):
    """Let operations on Tensors of a device give the same bits in every run, or not.

    As with ``compile(deterministic=True)``, which compiled functions need themselves,
    floats at computed places are added in a form that knows no order. Each operation
    goes by the mode of the thread that runs it: those of gradients by that of the
    backward pass. On the processor all is deterministic in any case.

    >>> with set_deterministic(True):
    ...     pass
    """

    __slots__ = ()
    _field = "deterministic"


class set_view_replay(_Switch):
    """Choose what views become when their base is written: their ops, or one node.

    By default such a view has one `AsStridedBackward0`. With replay it has the nodes of
    the views that led to it, on the new base. The gradients are the same.

    >>> with set_view_replay(True):
    ...     pass
    """

    __slots__ = ()
    _field = "view_replay"


class allow_mutation_on_saved_tensors(_Mode):
    """Let saved values be overwritten: a write first copies what is still needed.

    >>> with allow_mutation_on_saved_tensors():
    ...     pass
    """

    __slots__ = ()
    _field = "copy_on_write"

    def __init__(self) -> None:
        super().__init__(True)
