"""What converted code finds beside the names of its user, and the room it needs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import dispatch
from .rewrite import PREFIX


class Undefined:
    """Stand for the value of a name that has none, in the state of a block.

    `sure` says that nobody reads the name while it has none: see `assigned`.
    """

    __slots__ = ("name", "sure")

    def __init__(self, name: str, sure: bool = False) -> None:
        self.name, self.sure = name, sure

    def __repr__(self) -> str:
        """Return `<undefined x>`."""
        return f"<undefined {self.name}>"


class NoValue:
    """Stand for the value of a function that has not come to a `return`."""

    def __repr__(self) -> str:
        """Return `<no return value>`."""
        return "<no return value>"


NO_VALUE = NoValue()


def _read(load: Callable[[], Any], name: str, sure: bool = False) -> Any:
    try:
        return load()
    except (NameError, AttributeError):
        return Undefined(name, sure)


def _read_attribute(load: Callable[[], Any], attribute: str, name: str) -> Any:
    """Return an attribute, where it is Python's: those of an array are its memory."""
    owner = _read(load, name)
    if isinstance(owner, Undefined) or (
        hasattr(owner, "__array_function__") and hasattr(np.ndarray, attribute)
    ):
        return Undefined(name)
    return _read(lambda: getattr(owner, attribute), name)


class Failed(Exception):
    """What a traced function raises at its end where one of its loops would raise."""

    def __str__(self) -> str:
        """Return what there is to say before the program runs."""
        return "by a statement in a loop"


def _in_region() -> bool:
    """Tell whether a loop or branch is being traced, which may never run."""
    trace = dispatch.active_trace()
    return trace is not None and trace.in_region


def _is_undefined(value: Any) -> bool:
    return isinstance(value, Undefined)


def _returned(value: Any) -> Any:
    return None if value is NO_VALUE else value


def _visible(names: Any) -> Any:
    if isinstance(names, dict):
        return {k: v for k, v in names.items() if not k.startswith(PREFIX)}
    return [n for n in names if not n.startswith(PREFIX)]


NAMESPACE = SimpleNamespace(
    read=_read,
    read_attribute=_read_attribute,
    in_region=_in_region,
    Failed=Failed,
    AssertionError=AssertionError,
    is_undefined=_is_undefined,
    returned=_returned,
    visible=_visible,
    keywords=dict,
    NO_VALUE=NO_VALUE,
)


class Recursion:
    """Raise the recursion limit while any thread runs under operators.

    Note [recursion]: a converted call takes the frames of `call` and of the blocks
    around it besides its own, and the limit counts them all.
    """

    FRAMES_PER_CALL = 10

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.before = 0

    def enter(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.before = sys.getrecursionlimit()
                sys.setrecursionlimit(self.before * self.FRAMES_PER_CALL)
            self.depth += 1

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                with contextlib.suppress(RecursionError):
                    sys.setrecursionlimit(self.before)


RECURSION = Recursion()
