"""What the forward of a Function keeps for its backward: `ctx`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..ir.errors import GradientError
from ..runtime.devices import ARRAYS
from .location import user_location
from .tape import TWICE, AccumulateGrad, Saved
from .tensor import Tensor

if TYPE_CHECKING:
    from .tape import Node


Keep: TypeAlias = "Callable[[Any], tuple[Saved, int | None]]"


class Context:
    """The `ctx` of one call of a Function.

    Once the call is over, Tensors on it are kept as saved values: taken out, they are
    checked not to have been overwritten, and connected to the graph as they were. A
    context holds its node weakly, and outputs without their node.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._to_save: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._constant: tuple[Any, ...] = ()
        self._materialize = True
        self._kept: Any = None  # of `_to_save`, after the call
        self._held: dict[str, tuple[Saved, int | None]] = {}  # attributes
        self._node: weakref.ref[Node] | None = None

    # What `forward` calls ---------------------------------------------------------

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep inputs and outputs for `backward`: it finds them in `saved_tensors`."""
        for k, t in enumerate(tensors):
            if t is not None and not isinstance(t, (Tensor, *ARRAYS, np.generic)):
                raise TypeError(
                    "save_for_backward can only save variables, but argument "
                    f"{k} is of type {type(t).__name__}"
                )
        self._to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep inputs and outputs for `jvp`, which they are not needed for here."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Say which inputs were written in place; they must be returned, too."""
        for k, t in enumerate(tensors):
            if not isinstance(t, Tensor):
                raise GradientError(
                    f"mark_dirty can only accept variables, but argument {k} is of "
                    f"type {type(t).__name__}",
                    location=user_location(),
                )
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say which outputs have no derivative."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether `backward` gets zeros, or None, where no gradient came."""
        self._materialize = value

    # What `backward` calls --------------------------------------------------------

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `forward` has saved."""
        if self._node is None:
            return self._to_save
        if self._kept is None:
            raise GradientError(TWICE)
        return tuple(None if x is None else self._taken(*x) for x in self._kept)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_held", {}).get(name)
        if held is None:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return self._taken(*held)

    def _taken(self, saved: Saved, nr: int | None) -> Any:
        node = None if self._node is None else self._node()
        assert node is not None
        t = saved.tensor(node, nr)
        leaf = t._node.variable if isinstance(t._node, AccumulateGrad) else None
        return leaf if leaf is not None and leaf._data is t._data else t

    # What the call does -----------------------------------------------------------

    def _pack(
        self,
        node: Node,
        keep: Callable[[Any], tuple[Saved, int | None]],
        memory: Sequence[Any],
    ) -> None:
        """Keep Tensors as saved values from now on.

        Arrays over the `memory` of inputs and outputs are copied: nothing would tell
        that they were overwritten.
        """
        self._node = weakref.ref(node)
        self._kept = tuple(None if t is None else keep(t) for t in self._to_save)
        self._to_save = ()
        for name, x in list(self.__dict__.items()):
            if isinstance(x, Tensor):
                self._held[name] = keep(x)
                del self.__dict__[name]
            elif isinstance(x, ARRAYS) and overlaps(x, memory):
                self.__dict__[name] = x.copy(order="K")

    def _release(self) -> None:
        """Drop what was saved; attributes stay."""
        if self._kept:
            self._kept = None


def overlaps(x: Any, others: Sequence[Any]) -> bool:
    """Tell whether an array, or that of a Tensor, lies in memory of others."""
    mine = x._data if isinstance(x, Tensor) else x
    data = [t._data if isinstance(t, Tensor) else t for t in others]
    return isinstance(mine, ARRAYS) and any(
        isinstance(a, ARRAYS) and np.may_share_memory(mine, a) for a in data
    )


def tensors_in(x: Any) -> list[Tensor]:
    """Return the Tensors in a container."""
    return list(_tensors_in(x))


def _tensors_in(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for item in x.values():
            yield from _tensors_in(item)
    elif isinstance(x, list | tuple | set):
        for item in x:
            yield from _tensors_in(item)
