"""NumPy's names, for Tensors: what `import retrograde.numpy as rnp` gives.

Creation functions make Tensors, functions take Tensors, arrays and lists of both, and
ufuncs, dtypes and constants are NumPy's own.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .functions import CREATION, FUNCTIONS
from .tensor import Tensor

_CONSTANTS = ("pi", "e", "inf", "nan", "newaxis", "euler_gamma", "little_endian")
_OTHERS = ("finfo", "iinfo", "errstate", "dtype", "s_", "index_exp", "ndindex")
_PLAIN = ("issubdtype", "promote_types", "isdtype", "iterable")


def _ours(value: Any) -> Any:
    """Return our version of a public name of NumPy, or None."""
    if isinstance(value, np.ufunc):
        return value
    if isinstance(value, type) and issubclass(value, np.generic):
        return value
    try:
        function = CREATION.get(value) or FUNCTIONS.get(value)
    except TypeError:  # not hashable
        return None
    return _named(value, function) if function is not None else None


def _named(original: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    function.__name__ = function.__qualname__ = original.__name__
    function.__doc__ = f"Do what numpy.{original.__name__} does, on tensors."
    return function


def _collect(source: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # Not dir(): it names submodules that NumPy imports only when they are used.
    for name, value in sorted(vars(source).items()):
        if not name.startswith("_"):
            ours = _ours(value)
            if ours is not None:
                found[name] = ours
    return found


class Namespace(types.ModuleType):
    """A module with NumPy's names; unknown ones say what to do."""

    _source: types.ModuleType = np

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        source = type(self)._source
        if hasattr(source, name):
            raise AttributeError(
                f"{full}: {source.__name__}.{name} is not there for tensors; call it "
                "on x.detach().numpy() if its gradient is not needed"
            )
        raise AttributeError(f"{full}: neither here nor in numpy")


class LinalgNamespace(Namespace):
    """A module with the names of numpy.linalg."""

    _source = np.linalg


def names() -> dict[str, Any]:
    """Return every name of the namespace.

    >>> names()["zeros"](2)
    tensor([0., 0.])
    """
    found = {k: getattr(np, k) for k in (*_CONSTANTS, *_OTHERS, *_PLAIN)}
    found |= _collect(np)
    linalg = LinalgNamespace("retrograde.numpy.linalg", "numpy.linalg for tensors.")
    vars(linalg).update(_collect(np.linalg))
    linalg.LinAlgError = np.linalg.LinAlgError  # type: ignore[attr-defined]
    found["linalg"] = linalg
    found["ndarray"] = Tensor
    return found


def namespace(name: str = "retrograde.numpy") -> Namespace:
    """Return a module object with NumPy's names for Tensors."""
    module = Namespace(name, __doc__)
    vars(module).update(names())
    return module
