"""What a block of a function may change: names, captured variables, items.

A block (the body of a loop, a branch) is traced more than once, and Python runs it each
time. `Slots` finds everything that its code can reach, remembers what it holds, tells
what changed, and puts things back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CellType
from typing import Any, TypeAlias

from .assume import NeedsValue
from .location import user_location
from .state import Container, Contents, Place, State, contents, copied
from .support import Undefined

Key: TypeAlias = tuple[str, int, Hashable]  # kind, number, key of an item
_UNSET = Undefined("item")


class CannotCarry(NeedsValue):
    """A change that cannot be carried from one iteration to the next by values."""


class ComputesNothing(CannotCarry):
    """A loop that only arranges Python objects."""


class Differs(CannotCarry):
    """Two values that cannot be joined: their structures or types differ."""


@dataclass(slots=True)
class Snapshot:
    """What all slots hold at one moment."""

    names: list[Any]
    variables: list[Any]
    items: list[Contents] = field(default_factory=list)
    opaque: list[list[Any]] = field(default_factory=list)

    def get(self, key: Key) -> Any:
        kind, k, item = key
        if kind != "item":
            return (self.names if kind == "name" else self.variables)[k]
        held: Any = self.items[k]
        if isinstance(held, dict):
            return held.get(item, _UNSET)
        return held[item]

    def set(self, key: Key, value: Any) -> None:
        kind, k, item = key
        held: Any = self.items[k] if kind == "item" else None
        if held is None:
            (self.names if kind == "name" else self.variables)[k] = value
        elif value is _UNSET:
            held.pop(item, None)
        else:
            held[item] = value

    def copy(self) -> Snapshot:
        return Snapshot(
            list(self.names),
            list(self.variables),
            [copied(c) for c in self.items],
            self.opaque,
        )


class Slots:
    """The names, variables and containers that blocks of code can reach."""

    def __init__(
        self,
        blocks: Sequence[Callable[..., Any]],
        get_state: Callable[[], tuple[Any, ...]] = tuple,
        set_state: Callable[[tuple[Any, ...]], None] = lambda values: None,
        names: Sequence[str] = (),
        live: Sequence[str] = (),
    ) -> None:
        self.get_state, self.set_state = get_state, set_state
        self.names, self.live = names, frozenset(live)
        state = State()
        for block in blocks:
            state.search(block)
        own = {id(root) for block in blocks for root in _own_roots(block, names)}
        self.variables = [
            p
            for p in state.variables
            if id(p.root) not in own
            and not (p.name in names and not isinstance(p.root, CellType))
        ]
        self.containers: list[Container] = state.containers
        self.opaque = state.opaque
        self.iterators = {id(x) for x in state.iterators}
        self.same = self._same(blocks)
        held = enumerate(self.get_state())
        self.sure = {k for k, x in held if isinstance(x, Undefined) and x.sure}

    def _same(self, blocks: Sequence[Callable[..., Any]]) -> dict[int, Key]:
        """Return the attributes among the names that are items of containers, too."""
        numbers = {
            id(c.owner): k
            for k, c in enumerate(self.containers)
            if not isinstance(c.owner, list | dict)
        }
        places = {p.key: k for k, p in enumerate(self.variables)}
        out: dict[int, Key] = {}
        for k, name in enumerate(self.names):
            root, *path = name.split(".")
            if path and root not in self.names:
                owner = _named(blocks, root)
                for attribute in path[:-1]:
                    owner = getattr(owner, attribute, None)
                variable = places.get(Place(owner, (("attr", path[-1]),), "").key)
                if id(owner) in numbers:
                    out[k] = ("item", numbers[id(owner)], path[-1])
                elif variable is not None:
                    out[k] = ("variable", variable, None)
        return out

    def key_of(self, k: int) -> Key:
        """Return the slot of a name; an attribute may be the item of an object."""
        return self.same.get(k, ("name", k, None))

    def read(self) -> Snapshot:
        """Return what everything holds now."""
        return Snapshot(
            list(self.get_state()),
            [p.get() for p in self.variables],
            [copied(contents(c.owner)) for c in self.containers],
            [x.read() for _, x in self.opaque],
        )

    def restore(self, held: Snapshot) -> None:
        """Let everything hold what a snapshot says."""
        self.set_state(tuple(held.names))
        for place, x in zip(self.variables, held.variables, strict=True):
            if place.get() is not x:
                place.set(x)
        for c, items in zip(self.containers, held.items, strict=True):
            _refill(contents(c.owner), items)
        for (_, x), was in zip(self.opaque, held.opaque, strict=True):
            if not _holds(x.read(), was):
                x.restore(was)

    def changed(self, before: Snapshot, after: Snapshot) -> Iterator[Key]:
        """Yield the slots that hold another object, and whose value matters."""
        for k, name in enumerate(self.names):
            was, now = before.names[k], after.names[k]
            if name in self.live and k not in self.same and not _is_same(was, now):
                yield ("name", k, None)
        for k, x in enumerate(before.variables):
            if after.variables[k] is not x:
                yield ("variable", k, None)
        for k, (old, new) in enumerate(zip(before.items, after.items, strict=True)):
            for item in _keys(old, new):
                key: Key = ("item", k, item)
                if before.get(key) is not after.get(key):
                    yield key

    def untouched(self, before: Snapshot, after: Snapshot) -> bool:
        """Tell whether nothing that matters has changed."""
        same_items = all(
            len(a) == len(b) for a, b in zip(before.items, after.items, strict=True)
        )
        same_opaque = all(map(_holds, after.opaque, before.opaque))
        return same_items and same_opaque and not any(self.changed(before, after))

    def grown(self, before: Snapshot, after: Snapshot) -> dict[int, int]:
        """Return the lists that got items at their end: number -> how many.

        Raises where something has changed that cannot be carried.
        """
        for (place, x), was, now in zip(
            self.opaque, before.opaque, after.opaque, strict=True
        ):
            if not _holds(now, was):
                raise CannotCarry(
                    f"{place.name}: a {type(x.owner).__name__} that changes in a loop "
                    "or branch",
                    location=user_location(),
                    rule="What changes is carried in variables, lists, dicts and "
                    "attributes of ordinary objects.",
                    hint="keep what changes in an array or a variable",
                )
        out = {}
        for k, (old, new) in enumerate(zip(before.items, after.items, strict=True)):
            if isinstance(old, list) and len(new) > len(old):
                out[k] = len(new) - len(old)
            elif isinstance(old, list) and len(new) < len(old):
                raise CannotCarry(
                    f"{self.containers[k].name}: a list that gets shorter in a loop "
                    "or branch",
                    location=user_location(),
                    rule="The body of a loop is traced once; which items are left "
                    "would depend on the iteration.",
                    hint="keep the values in an array, and a count beside it",
                )
        return out

    def label(self, key: Key) -> str:
        """Return how the user calls a slot."""
        kind, k, item = key
        if kind == "name":
            return self.names[k]
        if kind == "variable":
            return self.variables[k].name
        owner = self.containers[k]
        shown = (
            f".{item}" if not isinstance(owner.owner, list | dict) else f"[{item!r}]"
        )
        return owner.name + shown

    def may_lack(self, key: Key) -> bool:
        """Tell whether nobody reads a slot where it has no value.

        So it is with the flags and values of lowered jumps, and see `assigned`.
        """
        if key[0] != "name":
            return False
        return self.names[key[1]].startswith("rg__") or key[1] in self.sure

    def unbind(self, held: Snapshot, before: Snapshot, after: Snapshot) -> None:
        """Unbind names that a block has bound, but whose value nobody may read."""
        for k, name in enumerate(self.names):
            if name not in self.live and not _is_same(before.names[k], after.names[k]):
                held.names[k] = Undefined(name)


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, Undefined) and isinstance(b, Undefined))


def _holds(now: list[Any], was: list[Any]) -> bool:
    return len(now) == len(was) and all(a is b for a, b in zip(now, was, strict=True))


def _own_roots(block: Callable[..., Any], names: Sequence[str]) -> Iterator[Any]:
    code = block.__code__
    for name, cell in zip(code.co_freevars, block.__closure__ or (), strict=True):
        if name in names or name.startswith("rg__"):
            yield cell


def _named(blocks: Sequence[Callable[..., Any]], name: str) -> Any:
    """Return what a name that the blocks do not bind stands for."""
    for block in blocks:
        free = block.__code__.co_freevars
        if name in free and block.__closure__:
            return Place(block.__closure__[free.index(name)], (), name).get()
    return blocks[0].__globals__.get(name)


def _keys(old: Contents, new: Contents) -> list[Any]:
    if isinstance(old, list):
        return list(range(min(len(old), len(new))))
    assert isinstance(new, dict)
    return [*old, *(k for k in new if k not in old)]


def _refill(held: Contents, items: Contents) -> None:
    if isinstance(held, list):
        if len(held) != len(items) or any(
            a is not b for a, b in zip(held, items, strict=True)
        ):
            held[:] = items
        return
    assert isinstance(items, dict)
    if list(held) != list(items):
        held.clear()
    for key, x in items.items():
        if key not in held or held[key] is not x:
            held[key] = x


__all__ = [
    "CannotCarry",
    "ComputesNothing",
    "Differs",
    "Key",
    "Place",
    "Slots",
    "Snapshot",
]
