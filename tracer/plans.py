"""Plans: calls of a kind seen before, without a search.

The kind of a call is what its specialisation and all sizes follow from: the structure
of the arguments, types and shapes of arrays, types of floats, values of everything
else. A plan keeps what was found for a kind, and checks the rest of what the program
takes for granted: captured variables, and memory that arguments share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.dims import Symbol
from .capture import Result
from .containers import Tree
from .specialisation import Specialisation
from .state import Place

DEEPEST = 8  # levels of containers
MOST = 256  # plans of one function; then it begins anew
MISS = object()  # what a plan returns that does not hold

_VALUES = frozenset({int, bool, str, type(None)})
_TYPES = frozenset({float, complex, np.float64, np.float32, np.int64, np.bool_})


def kind_of(
    args: Sequence[Any], leaves: list[Any], arrays: list[int], depth: int = 0
) -> Hashable:
    """Return the kind of some arguments, or None; append leaves and ids of arrays."""
    kinds: list[Any] = []
    add, leaf = kinds.append, leaves.append
    for x in args:
        cls = type(x)
        if cls is np.ndarray:
            add((x.dtype, x.shape))
            arrays.append(id(x))
            leaf(x)
        elif cls in _TYPES:
            add(cls)
            leaf(x)
        elif cls in _VALUES:
            add((cls, x))
            leaf(x)
        elif depth < DEEPEST and (cls is tuple or cls is list):
            add(cls)
            add(kind_of(x, leaves, arrays, depth + 1))
        elif depth < DEEPEST and cls is dict:
            add((dict, *x, *map(type, x)))  # 1, 1.0 and True are equal
            add(kind_of(tuple(x.values()), leaves, arrays, depth + 1))
        else:
            return None
        if kinds[-1] is None:
            return None
    return tuple(kinds)


@dataclass(frozen=True, slots=True)
class Plan:
    """A call of a specialisation for arguments of one kind."""

    spec: Specialisation
    captured: tuple[tuple[Place, Hashable], ...]  # with their kinds
    env: Mapping[Symbol, int]
    symbols: tuple[int, ...]
    kernel: Callable[[Sequence[Any], Sequence[int]], list[Any]]
    build: Callable[[list[Any]], Any] | None

    def run(self, args: tuple[Any, ...], leaves: Sequence[Any]) -> Any:
        """Return what the function returns, or `MISS`."""
        spec = self.spec
        if not spec.knows_state():
            return MISS
        values = [leaves[j] for j in spec.arguments]
        for place, kind in self.captured:
            x = place.get()
            if kind_of((x,), values, []) != kind:
                return MISS
        if spec.written:
            if spec.overlapping(values):
                return MISS
            spec.check_writable(values)
        results = self.kernel(values, self.symbols)
        if self.build is not None:
            return self.build(results)
        return spec.returned((args, {}), values, results, self.env)


def make_plan(
    spec: Specialisation, values: Sequence[Any], env: Mapping[Symbol, int]
) -> Plan | None:
    """Return a plan for the calls of a kind, or None where each must be looked at."""
    kernel = getattr(spec.program.kernel, "call", None)
    if kernel is None or not _follows(spec):
        return None
    captured = []
    for place, x in zip(spec.captured, values[len(spec.arguments) :], strict=True):
        kind = kind_of((x,), [], [])
        if not isinstance(place, Place) or kind is None:
            return None
        captured.append((place, kind))
    symbols = tuple(env[s] for s in spec.program.func.symbols)
    return Plan(spec, tuple(captured), env, symbols, kernel, _builder(spec))


def _follows(spec: Specialisation) -> bool:
    """Tell whether all that a program assumes follows from the kind of a call."""
    asks = (spec.layouts, spec.statics, spec.outcomes, spec.sizes)
    looks = (spec.bookkeeping, spec.same)
    changes = (spec.effects, spec.rearranged)
    ints = all(isinstance(j, int) for j in spec.ints)
    return ints and not any((*asks, *looks, *changes))


def _builder(spec: Specialisation) -> Callable[[list[Any]], Any] | None:
    """Return a function that puts results together, if all are results as they are."""
    numbers = []
    for out in spec.outs:
        if not isinstance(out.source, Result) or out.views:
            return None
        numbers.append(out.source.number)
    text = _expression(spec.tree, iter(numbers))
    if text is None:
        return None
    return eval(f"lambda results: {text}")  # type: ignore[no-any-return]


def _expression(tree: Tree, numbers: Any) -> str | None:
    """Write the expression that makes an object, of tuples and lists."""
    if tree.kind is None:
        return f"results[{next(numbers)}]"
    parts = [_expression(c, numbers) for c in tree.children]
    if tree.kind not in (tuple, list) or None in parts:
        return None
    inner = "".join(f"{p}, " for p in parts)
    return f"({inner})" if tree.kind is tuple else f"[{inner}]"
