"""Containers of arguments and results: flatten to leaves, and put back together.

Tuples, lists, dicts, named tuples and dataclasses are containers, and so is every class
that was registered. Anything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ..ir.errors import UnsupportedError

Flatten = Callable[[Any], tuple[Sequence[Any], Hashable]]
Unflatten = Callable[[Hashable, Sequence[Any]], Any]

_REGISTERED: dict[type, tuple[Flatten, Unflatten]] = {}


def register_container(cls: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Make instances of `cls` containers for arguments and results.

    `flatten(x)` returns the children and hashable data; `unflatten(data, children)`
    makes an equal instance. Raises ValueError when `cls` is registered already.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_container(Pair, lambda p: ((p.a, p.b), None), lambda _, c: Pair(*c))
    >>> flatten_tree([Pair(1.0, 2.0), 3.0])[0]
    [1.0, 2.0, 3.0]
    """
    if cls in _REGISTERED:
        raise ValueError(f"{cls.__qualname__} is registered already")
    _REGISTERED[cls] = (flatten, unflatten)


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """The structure of a flattened object; `kind` None marks a leaf."""

    kind: type | None
    data: Hashable = None
    children: tuple[Tree, ...] = ()

    @property
    def leaves(self) -> int:
        """The number of leaves below."""
        return 1 if self.kind is None else sum(c.leaves for c in self.children)


LEAF = Tree(None)


def flatten_tree(
    x: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Tree]:
    """Return the leaves of `x` in order, and its structure.

    Containers for which `is_leaf` holds are leaves too.

    >>> leaves, tree = flatten_tree({"p": 1.0, "q": [2.0, (3.0,)]})
    >>> leaves
    [1.0, 2.0, 3.0]
    >>> unflatten_tree(tree, [v * 2 for v in leaves])
    {'p': 2.0, 'q': [4.0, (6.0,)]}
    """
    leaves: list[Any] = []
    return leaves, _flatten(x, leaves, (), is_leaf)


def _flatten(
    x: Any,
    leaves: list[Any],
    path: tuple[int, ...],
    is_leaf: Callable[[Any], bool] | None,
) -> Tree:
    parts = parts_of(x)
    if parts is None or (is_leaf is not None and is_leaf(x)):
        leaves.append(x)
        return LEAF
    if id(x) in path:
        raise UnsupportedError(
            f"a {type(x).__name__} contains itself",
            hint="pass containers without cycles",
        )
    children, data = parts
    inner = (*path, id(x))
    below = tuple(_flatten(c, leaves, inner, is_leaf) for c in children)
    return Tree(type(x), data, below)


def parts_of(x: Any) -> tuple[Iterable[Any], Hashable] | None:
    """Return the children and data of a container, or None for a leaf."""
    cls = type(x)
    if cls is tuple or cls is list:
        return x, None
    if cls is dict:
        return x.values(), tuple(x)
    if cls in _REGISTERED:
        return _REGISTERED[cls][0](x)
    if isinstance(x, tuple) and hasattr(cls, "_fields"):
        return x, None
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = tuple(f.name for f in dataclasses.fields(x))
        return [getattr(x, n) for n in names], names
    return None


def unflatten_tree(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Put leaves back into the structure they came from."""
    source = iter(leaves)
    return _unflatten(tree, source)


def _unflatten(tree: Tree, leaves: Any) -> Any:
    cls = tree.kind
    if cls is None:
        return next(leaves)
    children = [_unflatten(c, leaves) for c in tree.children]
    if cls is list:
        return children
    if cls is tuple:
        return tuple(children)
    if cls is dict:
        assert isinstance(tree.data, tuple)
        return dict(zip(tree.data, children, strict=True))
    if cls in _REGISTERED:
        return _REGISTERED[cls][1](tree.data, children)
    if issubclass(cls, tuple):
        return cls(*children)
    return _rebuild_dataclass(cls, tree.data, children)


def _rebuild_dataclass(cls: type, names: Any, children: Sequence[Any]) -> Any:
    """Make a dataclass without running its `__init__`, which may check or convert."""
    out: Any = object.__new__(cls)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(out, name, child)
    return out


def map_tree(f: Callable[[Any], Any], x: Any) -> Any:
    """Apply `f` to every leaf of `x`."""
    leaves, tree = flatten_tree(x)
    return unflatten_tree(tree, [f(v) for v in leaves])
