"""Plans: calls of a kind seen before, without a search.

The kind of a call is what its specialisation and all sizes follow from: the structure
of the arguments, types and shapes of arrays, types of floats, values of everything
else. A plan keeps what was found for a kind, and checks the rest of what the program
takes for granted: captured variables, and memory that arguments share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.dims import Symbol
from ..runtime.devices import DeviceArray
from .capture import Result
from .containers import Tree
from .fastcall import MISS, Flat, make_flat, never
from .specialisation import Specialisation
from .state import Place

DEEPEST = 8  # levels of containers
MOST = 256  # plans of one function; then it begins anew
FLAT = 3  # calls after which a plan becomes one function

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
        elif cls is DeviceArray:
            add((x.dtype, x.shape, x.place))
            arrays.append(id(x))
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


@dataclass(slots=True)
class Plan:
    """A call of a specialisation for arguments of one kind."""

    spec: Specialisation
    captured: tuple[tuple[Place, Hashable], ...]  # with their kinds
    env: Mapping[Symbol, int]
    symbols: tuple[int, ...]
    kernel: Any
    result: Callable[[Sequence[str]], str] | None  # see `_result`
    build: Callable[[list[Any]], Any] | None
    calls: int = 0
    flat: Flat = never

    def run(self, args: tuple[Any, ...], leaves: Sequence[Any]) -> Any:
        """Return what the function returns, or `MISS`."""
        out = self.flat(args)
        return out if out is not MISS else self._run(args, leaves)

    def _run(self, args: tuple[Any, ...], leaves: Sequence[Any]) -> Any:
        spec = self.spec
        if not spec.knows_state():
            return MISS
        values = [leaves[j] for j in spec.arguments]
        for place, kind in self.captured:
            x = place.get()
            if kind_of((x,), values, []) != kind:
                return MISS
        if not spec.laid_out(values):
            return MISS
        if spec.written:
            if spec.overlapping(values):
                return MISS
            spec.check_writable(values)
        results = self.kernel.call(values, self.symbols)
        if self.build is not None:
            return self.build(results)
        return spec.returned((args, {}), values, results, self.env)

    def flattened(self, args: tuple[Any, ...]) -> Flat:
        """Return one function for calls such as this one; see `fastcall`."""
        self.calls += 1
        if self.calls == FLAT and self.result is not None:
            captured = [(place, place.get()) for place, _ in self.captured]
            kinds = [kind_of((x,), [], []) for _, x in captured]
            if kinds == [kind for _, kind in self.captured]:
                self.flat = make_flat(
                    self.spec, args, captured, self.symbols, self.kernel, self.result
                )
        return self.flat


def make_plan(
    spec: Specialisation, values: Sequence[Any], env: Mapping[Symbol, int]
) -> Plan | None:
    """Return a plan for the calls of a kind, or None where each must be looked at."""
    kernel = spec.program.variant(values, env)
    if not hasattr(kernel, "caller") or not _follows(spec):
        return None
    captured = []
    for place, x in zip(spec.captured, values[len(spec.arguments) :], strict=True):
        kind = kind_of((x,), [], [])
        if not isinstance(place, Place) or kind is None:
            return None
        captured.append((place, kind))
    symbols = tuple(env[s] for s in spec.program.func.symbols)
    result = _result(spec)
    build = None
    if result is not None:
        count = len(spec.program.func.results)
        build = eval(
            f"lambda results: {result([f'results[{k}]' for k in range(count)])}"
        )
    return Plan(spec, tuple(captured), env, symbols, kernel, result, build)


def _follows(spec: Specialisation) -> bool:
    """Tell whether a plan asks, or the kind of a call tells, all that is assumed."""
    asks = (spec.statics, spec.outcomes, spec.sizes)
    looks = (spec.bookkeeping, spec.same, spec.identities)
    changes = (spec.effects, spec.rearranged)
    ints = all(isinstance(j, int) for j in spec.ints)
    return ints and not any((*asks, *looks, *changes))


def _result(spec: Specialisation) -> Callable[[Sequence[str]], str] | None:
    """Return what writes the result of the function, of the kernel's results.

    None where they are not all results as they are, in tuples and lists.
    """
    numbers = []
    for out in spec.outs:
        if not isinstance(out.source, Result) or out.views:
            return None
        numbers.append(out.source.number)
    if not _is_plain(spec.tree):
        return None
    return lambda names: _expression(spec.tree, (names[k] for k in numbers))


def _is_plain(tree: Tree) -> bool:
    inside = tree.kind in (tuple, list) and all(map(_is_plain, tree.children))
    return tree.kind is None or inside


def _expression(tree: Tree, names: Iterator[str]) -> str:
    """Write the expression that makes an object, of tuples and lists."""
    if tree.kind is None:
        return next(names)
    inner = "".join(f"{_expression(c, names)}, " for c in tree.children)
    return f"({inner})" if tree.kind is tuple else f"[{inner}]"
