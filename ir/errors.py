"""The errors of the project: what, where, why, and a way out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.function:
            where += f", in {self.function}"
        return f"{where}:    {self.text}" if self.text else where


class RetrogradeError(Exception):
    """Base of every error that this package raises on purpose.

    The message has up to four parts: what went wrong (the op and both types on one
    line), the user's file and line, the rule in words, and a hint that is an action.
    """

    def __init__(
        self,
        what: str,
        *,
        location: Location | None = None,
        rule: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.location = location
        self.rule = rule
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.location is not None:
            parts.append(f"  at {self.location}")
        if self.rule:
            parts.append(f"  {self.rule}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)


class ShapeError(RetrogradeError, ValueError):
    """Shapes that do not fit each other or the op."""


class DTypeError(RetrogradeError, TypeError):
    """A dtype that the op does not take, or a cast that NumPy refuses."""


class IndexRangeError(RetrogradeError, IndexError):
    """An index outside its axis, or too many indices."""


class LinAlgError(RetrogradeError, np.linalg.LinAlgError):
    """A matrix that a routine of linear algebra cannot take: singular, for instance."""


class UnsupportedError(RetrogradeError, NotImplementedError):
    """A program that is meaningful, but that this version cannot take."""


class MayShareError(UnsupportedError):
    """A write into an array that may or may not be another name's, too."""


class OpaqueError(RetrogradeError, NotImplementedError):
    """A custom Function whose code cannot be traced: the call runs uncompiled."""


class GradientError(RetrogradeError, RuntimeError):
    """A gradient that was asked for and cannot be given."""


class GradcheckError(GradientError):
    """A derivative that does not agree with differences."""


class MemoryLimitError(RetrogradeError, MemoryError):
    """A memory limit that a gradient cannot keep; says which one it could."""


class GradientBreakError(RetrogradeError, TypeError):
    """A conversion or write that would lose a gradient in silence."""


class MutationError(RetrogradeError, RuntimeError):
    """A saved value that was overwritten, or a write that is not allowed."""


class DeviceError(RetrogradeError, RuntimeError):
    """A device that is not there, or that cannot do what it was told."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device that has no room for an allocation."""


class OutcomeError(RetrogradeError, RuntimeError):
    """A computed value that is not the one for which the program was compiled.

    `number` is that of the assumption. The driver catches it: nothing has happened, and
    the call goes on with another program.
    """

    def __init__(
        self,
        what: str,
        *,
        number: int = -1,
        location: Location | None = None,
        rule: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(what, location=location, rule=rule, hint=hint)
        self.number = number


class UncompiledWarning(UserWarning):
    """A compiled function that runs uncompiled for some calls."""


class ConversionError(RetrogradeError, SyntaxError):
    """Python source that the converter cannot take."""


class IRError(RetrogradeError, ValueError):
    """Text or IR that breaks a rule of the language; quotes the guilty line."""


class InternalError(RetrogradeError, AssertionError):
    """A defect of the compiler itself: the pass, the IR line, how to reproduce it."""
