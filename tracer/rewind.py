"""What a function captures, as it was once: for derivatives that are computed later.

The pullback of a compiled function runs the function again. What the function captures
may have been written since then, by the function itself or by others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..runtime.devices import ARRAYS
from .jit import LOCK
from .modes import enable_grad
from .state import Contents, Place, State, copied, replace_contents
from .state import contents as contents_of
from .tensor import Tensor


@dataclass(slots=True)
class _Held:
    """What the places of a state hold: objects, and what is in lists and dicts."""

    variables: list[tuple[Place, Any]] = field(default_factory=list)
    containers: list[tuple[Any, Contents]] = field(default_factory=list)

    @classmethod
    def of(cls, state: State) -> _Held:
        return cls(
            [(p, p.get()) for p in state.variables],
            [(c.owner, copied(contents_of(c.owner))) for c in state.containers],
        )

    def restore(self) -> None:
        for owner, held in self.containers:
            replace_contents(contents_of(owner), held)
        for place, x in self.variables:
            if place.get() is not x:
                place.set(x)


class Captured:
    """What a function captures, with copies of the arrays and Tensors in it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        state = State()
        state.search(fn)
        self.held = _Held.of(state)
        self.arrays = [
            (x, x.copy(order="K"))
            for x in {id(x): x for _, x in state.inputs}.values()
            if isinstance(x, ARRAYS) and x.flags.writeable
        ]
        with enable_grad():
            self.tensors = [
                (place, x, x._version, x.clone())
                for place, x in state.inputs
                if isinstance(x, Tensor)
            ]

    @contextmanager
    def as_then(self) -> Iterator[None]:
        """Let everything be as it was, for as long as this lasts."""
        with LOCK:
            state = State()
            state.search(self.fn)
            now = _Held.of(state)
            arrays = [(x, x.copy(order="K")) for x, _ in self.arrays]
            try:
                self._rewind()
                yield
            finally:
                for x, data in arrays:
                    x[...] = data
                self.held.restore()  # of what no longer is captured
                now.restore()

    def _rewind(self) -> None:
        self.held.restore()
        for x, data in self.arrays:
            x[...] = data
        for place, t, version, copy in self.tensors:
            if t._version != version:
                place.set(copy.clone())
