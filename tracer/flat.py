"""The iterator over the elements of an array, `x.flat`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .fields import part
from .index import as_value
from .tensor import Tensor


class Flat:
    """Reads and writes an array as if it were 1-D, in C order.

    Values that are written are taken in C order, again from the first one where there
    are too few.
    """

    def __init__(self, base: Tensor) -> None:
        self.base = base

    def _line(self) -> Any:
        return self.base.reshape(-1)

    def __len__(self) -> int:
        return len(self._line())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._line())

    def __getitem__(self, key: Any) -> Any:
        found = self._line()[key]
        return found.copy() if isinstance(found, Tensor) and found.shape else found

    def __setitem__(self, key: Any, value: Any) -> None:
        line = self._line().copy()
        value = as_value(value)
        if getattr(value, "shape", ()) and getattr(line[key], "shape", ()):
            value = part("functions").FUNCTIONS[np.resize](value, line[key].shape)
        line[key] = value
        self.base[...] = line.reshape(self.base.shape)

    def copy(self) -> Any:
        """Return the elements as a 1-D array."""
        return self.base.flatten()
