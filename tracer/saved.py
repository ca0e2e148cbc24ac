"""Values saved for the backward pass, and the check that nobody overwrote them."""

from __future__ import annotations

from typing import Any

from ..ir.errors import MutationError
from ..ir.types import type_of_array
from ..runtime.devices import ARRAYS
from ..runtime.storage import Storage
from . import tensor as _tensor
from .graph import AccumulateGrad, Edge, Node


class Saved:
    """A value kept for the backward pass, with the version it was saved at.

    `edge` is where its gradient goes; for a node's own output it is filled in when the
    value is taken out, since the node would own itself otherwise.
    """

    __slots__ = ("__weakref__", "_data", "_edge", "_storage", "_version")

    def __init__(
        self, t: _tensor.Tensor, edge: Edge | None, overwritten: Storage | None
    ) -> None:
        data, storage = t._data, t._storage
        if storage is not None and (storage.shared or storage is overwritten):
            data, storage = data.copy(), None
        self._data = data
        self._storage = storage
        self._edge = edge
        if storage is not None:
            self._watch(storage)

    def _watch(self, storage: Storage) -> None:
        """Have whoever writes from now on know of this value."""
        if not storage.has_writers:
            self._version = storage.version
            storage.register(self)
            if not storage.has_writers:
                return
        with storage.lock:  # another thread may be in the middle of a write
            if self._storage is not None:  # it has not kept a copy yet
                self._version = storage.version
                storage.register(self)

    def keep(self) -> None:
        """Take a private copy: the memory is about to be written."""
        if self._storage is not None and self._storage.version == self._version:
            self._data = self._data.copy()
            self._storage = None

    def array(self, owner: Node) -> Any:
        """Return the data, or raise where it was overwritten."""
        storage = self._storage
        if storage is not None and storage.version != self._version:
            raise self._overwritten(owner, storage)
        return self._data

    def tensor(self, owner: Node, nr: int | None = None) -> Any:
        """Return a tensor whose gradient goes where the saved one's did."""
        data = self.array(owner)
        storage = self._storage
        if storage is None and isinstance(data, ARRAYS):
            storage = Storage()
        t = _tensor.Tensor(data, storage)
        edge = self._edge if nr is None else (owner, nr)
        if edge is not None:
            t._node, t._nr = edge
        return t

    def _overwritten(self, owner: Node, storage: Storage) -> MutationError:
        source = ""
        if self._edge is not None and not isinstance(self._edge[0], AccumulateGrad):
            source = f", which is output {self._edge[1]} of {self._edge[0].name()},"
        where = storage.last_write
        return MutationError(
            f"{owner.name()}: one of the variables needed for gradient computation has "
            f"been modified by an inplace operation: [{type_of_array(self._data)}]"
            f"{source} is at version {storage.version}; expected version "
            f"{self._version} instead.",
            rule=f"it was last written at {where}" if where else "",
            hint="copy before writing, x = x.copy(), or run under "
            "rg.allow_mutation_on_saved_tensors()",
        )
