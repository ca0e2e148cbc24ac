"""Whose code is whose, and where in the user's source we are."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from ..ir.errors import Location

_PACKAGE = __name__.partition(".")[0]
_PROGRAMS = frozenset({f"{_PACKAGE}.demo"})  # users' programs that we ship
_STANDARD = tuple(
    os.path.join(sysconfig.get_path(key), "") for key in ("stdlib", "platstdlib")
)
_INSTALLED = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")
)
_IS_LIBRARY: dict[str, bool] = {}


def is_user_code(code: CodeType, namespace: Mapping[str, Any]) -> bool:
    """Tell whether code is the user's: not a library's, not this package's."""
    module = namespace.get("__name__")
    if isinstance(module, str) and module.partition(".")[0] == _PACKAGE:
        # A doctest of ours is a user's program, too.
        return module in _PROGRAMS or code.co_filename.startswith("<")
    file = code.co_filename
    library = _IS_LIBRARY.get(file)
    if library is None:
        library = file.startswith(("<frozen", "<__array_function__", *_STANDARD))
        library = library or any(mark in file for mark in _INSTALLED)
        _IS_LIBRARY[file] = library
    return not library


def is_ours(code: CodeType, namespace: Mapping[str, Any]) -> bool:
    """Tell whether code belongs to this package."""
    module = namespace.get("__name__")
    return (
        isinstance(module, str)
        and module.partition(".")[0] == _PACKAGE
        and not is_user_code(code, namespace)
    )


def user_frame() -> FrameType | None:
    """Return the innermost frame of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code, frame.f_globals):
        frame = frame.f_back
    return frame


def user_location() -> Location | None:
    """Return the innermost line of the user's that is now running.

    Frames of this package, of the standard library and of installed packages are
    passed over.

    >>> def here():
    ...     return user_location()
    >>> here().function
    'here'
    """
    frame = user_frame()
    if frame is None:
        return None
    return location_of(frame, frame.f_lineno)


def location_of(frame: FrameType, line: int) -> Location:
    """Return a line of a frame as a location."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    return Location(code.co_filename, line, _function_name(code), text)


def _function_name(code: CodeType) -> str:
    """Return the name of the function that code stands in, through comprehensions."""
    parts = code.co_qualname.split(".<locals>.")
    while len(parts) > 1 and parts[-1].endswith(("comp>", "<genexpr>")):
        parts.pop()
    return parts[-1].rpartition(".")[2]
