"""Hooks: what users have called before and after a node runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class RemovableHandle:
    """Takes a hook away again."""

    __slots__ = ("_hooks", "_key")
    _keys = itertools.count()

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Any) -> None:
        self._hooks = hooks
        self._key = next(self._keys)
        hooks[self._key] = hook

    def remove(self) -> None:
        """Take the hook away."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *args: object) -> None:
        self.remove()


class NodeHooks:
    """What is called before and after a node, or the gradient of a leaf."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: dict[int, Callable[..., Any]] = {}
        self.after: dict[int, Callable[..., Any]] = {}
