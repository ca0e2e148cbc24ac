"""NumPy's names, for Tensors: `import retrograde.numpy as rnp`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .tracer.namespace import Namespace, names

globals().update(names())
sys.modules[__name__].__class__ = Namespace

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
