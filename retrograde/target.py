"""Find the function and the arguments that a command line names: FILE.py:FUNCTION."""

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


class UsageError(Exception):
    """What the command line asked for does not exist; the message is one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function to work on, and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def find(spec: str, archive: str | None = None) -> Target:
    """Load the file and look its function and arguments up.

    Arguments are the arrays of an `.npz` file, named like the parameters, or what
    `FUNCTION_args()` of the same file returns: a tuple, or a dict of keywords.

    >>> find("missing.py:f")
    Traceback (most recent call last):
        ...
    retrograde.target.UsageError: no file missing.py
    """
    name, separator, function_name = spec.rpartition(":")
    if not separator or not name.endswith(".py") or not function_name:
        raise UsageError(f"{spec!r} is not of the form FILE.py:FUNCTION")
    module = _load(_existing(Path(name)))
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if _is_own(value, module)]
        near = _near(function_name, known)
        raise UsageError(f"no function {function_name} in {name}{near}")
    if archive is not None:
        return Target(function, (), _from_archive(_existing(Path(archive))))
    factory = getattr(module, f"{function_name}_args", None)
    if not callable(factory):
        raise UsageError(
            f"no arguments for {function_name}: write a function "
            f"{function_name}_args() into {name}, or give --args FILE.npz"
        )
    try:
        made = factory()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UsageError(f"{function_name}_args() in {name}: {told}") from error
    if isinstance(made, dict):
        return Target(function, (), made)
    return Target(function, made if isinstance(made, tuple) else (made,), {})


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"no file {path}: there is no folder {folder}")
    names = [p.name for p in folder.iterdir() if p.suffix == path.suffix]
    near = _near(path.name, names, folder)
    raise UsageError(f"no file {path}{near}")


def _near(name: str, known: Iterable[str], folder: Path | None = None) -> str:
    matches = difflib.get_close_matches(name, list(known), n=3)
    if not matches:
        return ""
    where = folder or Path()
    return "; did you mean " + " or ".join(str(where / match) for match in matches)


def _is_own(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _load(path: Path) -> ModuleType:
    """Import a file under a name that hides no other module; its folder is searched."""
    sys.path.insert(0, str(path.parent.resolve()))
    module_name = f"retrograde_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look it up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _from_archive(path: Path) -> dict[str, Any]:
    """Read arrays by name; numbers without a dimension become Python numbers."""
    try:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{path} is not an .npz archive; np.savez({path.stem + '.npz'!r}, x=x) "
            "writes one with an array for the parameter x"
        ) from error
    return {n: a.item() if a.ndim == 0 else a for n, a in arrays.items()}
