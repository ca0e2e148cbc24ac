"""Builders: what derivative rules, decompositions and passes write ops through.

A rule is written once against `Builder`. `IRBuilder` appends nodes, `ArrayBuilder`
computes with NumPy, and the tape has one that records; the rule cannot tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import dims
from .dims import Dim, Expr
from .errors import IRError, Location, RetrogradeError
from .func import Block, Func, Node, Operand, Value, type_of
from .op import OPS, Op
from .types import Type, type_of_array

PYTHON_NUMBERS = (bool, int, float, complex)


class Builder:
    """Applies ops; `b.sin(x)` is `b.apply(OPS["sin"], (x,), {})`."""

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def type_of(self, x: Any) -> Type:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            op = OPS[name]
        except KeyError:
            raise AttributeError(f"there is no op {name!r}") from None
        return lambda *operands, **attrs: self.apply(op, operands, attrs)

    # What rules may ask and say besides ops ---------------------------------------

    def shape(self, x: Any) -> tuple[Dim, ...]:
        return self.type_of(x).shape

    def size(self, x: Any, axis: int | tuple[int, ...] | None = None) -> Dim:
        """Return the number of elements along an axis, several axes, or all."""
        shape = self.shape(x)
        if axis is None:
            return dims.product(shape)
        axes = axis if isinstance(axis, tuple) else (axis,)
        return dims.product(shape[k] for k in axes)

    def scale(self, ct: Any, factor: Any) -> Any:
        """Return ct * factor; 1 and -1 cost nothing, a boolean factor chooses.

        Choosing keeps an infinite cotangent out of where the factor is zero.
        """
        if isinstance(factor, int | float) and factor == 1:
            return ct
        if isinstance(factor, int | float) and factor == -1:
            return self.negative(ct)
        if self.type_of(factor).dtype.kind == "b":
            return self.where(factor, ct, 0.0)
        return self.multiply(ct, factor)

    def unbroadcast(self, ct: Any, like: Any) -> Any:
        """Sum `ct` over the axes that `like` was broadcast along; cast to its dtype."""
        want, have = self.type_of(like), self.type_of(ct)
        extra = len(have.shape) - len(want.shape)
        axes = tuple(
            k
            for k, d in enumerate(have.shape)
            if k < extra or (want.shape[k - extra] == 1 and d != 1)
        )
        if axes:
            ct = self.sum(ct, axis=axes, keepdims=False)
            kept = tuple(k for k in (a - extra for a in axes) if k >= 0)
            if kept:
                ct = self.expand_dims(ct, axis=kept)
        return self.cast(ct, want)

    def cast(self, x: Any, like: Type) -> Any:
        """Convert to the dtype of `like`, where it differs."""
        have = self.type_of(x).dtype
        return x if have == like.dtype else self.astype(x, dtype=like.dtype)

    def zeros(self, like: Type) -> Any:
        """Return zeros of a type's shape and dtype."""
        zero = np.zeros((), like.dtype).item()
        return self.full(zero, shape=like.shape, dtype=like.dtype)

    def zeros_like(self, x: Any) -> Any:
        return self.zeros(self.type_of(x))

    def broadcast_like(self, x: Any, like: Any) -> Any:
        """Broadcast `x` to the shape of `like`."""
        shape = self.shape(like)
        return x if self.shape(x) == shape else self.broadcast_to(x, shape=shape)

    def add_cotangents(self, a: Any, b: Any) -> Any:
        """Return a + b, where either may be None for zero."""
        if a is None or b is None:
            return b if a is None else a
        return self.add(a, b)


class ArrayBuilder(Builder):
    """Computes at once, on NumPy arrays."""

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        out = op.eager(*operands, **attrs)
        if op.weak and all(type(x) in PYTHON_NUMBERS for x in operands):
            return out.item()  # NumPy makes a float64 of it, which is not weak
        return out

    def type_of(self, x: Any) -> Type:
        return x.type if isinstance(x, Shaped) else type_of_array(x)


class Shaped:
    """Stands for an operand of which a rule may ask only the type."""

    __slots__ = ("type",)

    def __init__(self, type: Type) -> None:
        self.type = type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape


class IRBuilder(Builder):
    """Appends nodes to blocks, with types inferred and names made unique."""

    def __init__(self, taken: Iterator[str] | Sequence[str] = ()) -> None:
        self.names: set[str] = set(taken)
        self._numbers: dict[str, Iterator[int]] = {}
        self._stack: list[list[Node]] = [[]]
        self.loc: Location | None = None

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the innermost open block."""
        return self._stack[-1]

    @property
    def outermost(self) -> list[Node]:
        """The nodes that stand in no region."""
        return self._stack[0]

    @property
    def depth(self) -> int:
        """The number of regions that are open."""
        return len(self._stack) - 1

    def name(self, hint: str) -> str:
        """Return `hint`, or the first free `hint.N`; it is taken from then on."""
        root = hint or "t"
        name = root
        counter = self._numbers.setdefault(root, itertools.count(1))
        while name in self.names:
            name = f"{root}.{next(counter)}"
        self.names.add(name)
        return name

    def value(self, type: Type, hint: str = "t", base: Value | None = None) -> Value:
        """Make a fresh value that no node defines yet: a parameter."""
        return Value(self.name(hint), type, base)

    def type_of(self, x: Any) -> Type:
        return x.type if isinstance(x, Shaped) else type_of(x)

    def infer(
        self, op: Op, operands: Sequence[Operand], attrs: Mapping[str, Any]
    ) -> Any:
        try:
            return op.infer(*map(type_of, operands), **attrs)
        except RetrogradeError as error:
            if error.location is None:
                error.location = self.loc
            raise

    def apply(
        self,
        op: Op,
        operands: Sequence[Any],
        attrs: Mapping[str, Any],
        *,
        hint: str | Sequence[str] = "t",
        base: Value | None = None,
    ) -> Any:
        types = self.infer(op, operands, attrs)
        many = isinstance(types, tuple)
        every = types if many else (types,)
        hints = (hint,) * len(every) if isinstance(hint, str) else hint
        results = tuple(
            self.value(t, h, base) for t, h in zip(every, hints, strict=True)
        )
        self.append(Node(op, tuple(operands), dict(attrs), results, (), self.loc))
        return results if many else results[0]

    def append(self, node: Node) -> None:
        """Add a finished node; its results must carry fresh names."""
        for v in node.results:
            self.names.add(v.name)
        self._stack[-1].append(node)

    @contextmanager
    def block(self, nodes: list[Node] | None = None) -> Iterator[list[Node]]:
        """Collect what is built inside into a list of its own, or at the end of one."""
        self._stack.append([] if nodes is None else nodes)
        try:
            yield self._stack[-1]
        finally:
            self._stack.pop()

    def control(
        self,
        op: Op,
        operands: Sequence[Operand],
        attrs: Mapping[str, Any],
        regions: Sequence[Block],
        types: Sequence[Type],
        hints: Sequence[str],
    ) -> tuple[Value, ...]:
        """Append a node with regions; its result types are given."""
        results = tuple(self.value(t, h) for t, h in zip(types, hints, strict=True))
        self.append(
            Node(op, tuple(operands), dict(attrs), results, tuple(regions), self.loc)
        )
        return results

    def finish(self, params: Sequence[Value], results: Sequence[Operand]) -> Block:
        """Return the outermost block."""
        if len(self._stack) != 1:
            raise IRError("a region is still open")
        return Block(tuple(params), tuple(self.nodes), tuple(results))


def names_in(f: Func) -> set[str]:
    """Return every value name of a Func, regions included."""
    found: set[str] = set()

    def visit(b: Block) -> None:
        found.update(p.name for p in b.params)
        for node in b.nodes:
            found.update(v.name for v in node.results)
            for region in node.regions:
                visit(region)

    visit(f.body)
    return found


def is_literal(x: object) -> bool:
    """Tell whether an operand is a number or a dim, not a value."""
    return isinstance(x, int | float | bool | complex | Expr)
