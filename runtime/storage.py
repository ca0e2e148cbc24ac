"""Storage: the memory behind tensors, its version, and who relies on its contents.

All views of one array share one Storage. Every write through a Tensor bumps the
version; values saved for a backward pass remember the version they were saved at.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Keeper(Protocol):
    """A saved value that relies on the contents of a storage."""

    def keep(self) -> None:
        """Take a private copy of the contents: they are about to change."""


_MAKING = threading.Lock()  # of locks, one for each storage that is written


class Storage:
    """A version counter shared by all tensors over the same memory.

    `shared` means that code outside can write without the counter noticing: an ndarray
    over the same memory is in the user's hands. What is saved from a shared storage is
    saved as a copy.

    Whoever writes, or brings a view up to date, holds `lock`, and takes no other
    storage's lock meanwhile.
    """

    __slots__ = (
        "_keepers",
        "_limit",
        "_lock",
        "epoch",
        "last_write",
        "repeats",
        "shared",
        "version",
    )

    def __init__(self, *, shared: bool = False) -> None:
        self.version = 0
        self.epoch = 0  # bumped whenever views must look at their base again
        self.shared = shared
        self.repeats = False  # a view shows elements several times
        self.last_write: object = None  # where; known only if something was saved
        self._keepers: set[weakref.ref[Keeper]] | None = None
        self._limit = 8
        self._lock: threading.RLock | None = None

    @property
    def lock(self) -> threading.RLock:
        """What keeps threads apart that write; made when it is first needed."""
        if self._lock is None:
            with _MAKING:
                if self._lock is None:
                    self._lock = threading.RLock()
        return self._lock

    @property
    def has_writers(self) -> bool:
        """Whether anyone has begun to write so far."""
        return self._lock is not None

    def wrote(self) -> None:
        """Count a write."""
        self.version += 1
        self.epoch += 1

    @property
    def has_keepers(self) -> bool:
        """Whether values saved from this storage may still be alive."""
        return self._keepers is not None

    def register(self, keeper: Keeper) -> None:
        """Remember a saved value for as long as it lives."""
        found = self._keepers
        if found is None:
            with _MAKING:
                found = self._keepers = self._keepers or set()
        elif len(found) >= self._limit:
            for r in list(found):  # others may add theirs meanwhile
                if r() is None:
                    found.discard(r)
            self._limit = max(8, 2 * len(found))
        found.add(weakref.ref(keeper))

    def release_keepers(self) -> None:
        """Have every live saved value copy what it relies on, before a write."""
        found, self._keepers = self._keepers, None
        for r in list(found or ()):  # others may add theirs meanwhile
            keeper = r()
            if keeper is not None:
                keeper.keep()

    def share(self) -> None:
        """Note that the memory is handed out to code that does not count writes."""
        if not self.shared:
            self.release_keepers()
            self.shared = True
