"""Random programs over rows: reductions along rows and columns, what uses them, writes.

`program(seed, size)` gives a pure Func over x: [rows, m], y: [rows, m], g: [m], s: [n],
k: [n] (columns); `arguments` arrays for it. Everything stays small and smooth but for
`max`, whose arguments have no ties.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import retrograde.ir.ops  # noqa: F401
from retrograde.ir import dims
from retrograde.ir.build import IRBuilder
from retrograde.ir.dims import Facts, Strict
from retrograde.ir.func import Func, Value
from retrograde.ir.types import I64, DType, Type

Sizes = tuple[int, ...]


def dims_for(sizes: Sizes, loose: bool) -> tuple[tuple[Any, ...], Facts]:
    """Return the dims of sizes: literal for 0 and 1, else symbols.

    `loose` ones are symbols in any case, of which nothing is known, as in loops.
    """
    found = tuple(
        dims.symbol("bnm"[k + 3 - len(sizes)]) if loose or d > 1 else d
        for k, d in enumerate(sizes)
    )
    least = 0 if loose else -2
    known = [dims.add(d, least) for d in found if not isinstance(d, int)]
    return found, Facts().having(*known)


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, sizes: Sizes, dtype: DType) -> None:
        self.rng = random.Random(seed)
        self.b = IRBuilder()
        self.loose = self.rng.random() < 0.3
        shape, self.facts = dims_for(sizes, self.loose)
        self.shape, self.rows = shape, shape[:-1]
        self.sizes = sizes
        self.params = [
            self.b.value(Type(dtype, shape), "x"),
            self.b.value(Type(dtype, shape), "y"),
            self.b.value(Type(dtype, shape[-1:]), "g"),
            self.b.value(Type(dtype, self.rows), "s"),
            self.b.value(Type(I64, self.rows[-1:]), "k"),
        ]
        x, y, g, s, self.columns = self.params
        self.full, self.stats, self.line = [x, y], [s], g
        self.out: list[Value] = []

    def func(self, size: int) -> Func:
        with dims.deciding(Strict(self.facts)):
            for _ in range(size):
                kinds = "unary binary binary spread spread spread fold fold fold stat"
                kinds += " whole elsewhere pick put where"
                getattr(self, self.rng.choice(kinds.split()))()
            results = [
                *self.out,
                self.rng.choice(self.full),
                self.rng.choice(self.stats),
            ]
            results += [v for v in (self.full[-1], self.stats[-1])]
        results = [v for v in dict.fromkeys(results) if v not in self.params]
        updates = []
        for j in range(2):
            fits = [i for i, v in enumerate(results) if v.type == self.params[j].type]
            fits = [i for i in fits if i not in dict(updates)]
            if fits and self.rng.random() < 0.6:
                updates.append((self.rng.choice(fits), j))
        body = self.b.finish(tuple(self.params), tuple(results))
        return Func("f", "func", body, (), self.facts, tuple(updates))

    def pick_full(self) -> Value:
        return self.rng.choice([*self.full, *self.full[-2:]])

    def small(self, x: Value) -> Value:
        return self.b.tanh(x) if self.rng.random() < 0.5 else x

    # Statements -------------------------------------------------------------------

    def unary(self) -> None:
        x = self.pick_full()
        name = self.rng.choice(["tanh", "sin", "negative", "exp", "square"])
        if name in ("exp", "square"):
            x = self.b.tanh(x)
        self.full.append(getattr(self.b, name)(x))

    def binary(self) -> None:
        name = self.rng.choice(["add", "subtract", "multiply"])
        other = self.rng.choice([self.pick_full(), self.line, 0.5])
        self.full.append(getattr(self.b, name)(self.small(self.pick_full()), other))

    def spread(self) -> None:
        """Combine a row with a number for each row."""
        s = self.rng.choice([*self.stats, self.stats[-1]])
        if s.type.ndim < len(self.shape):
            s = self.b.expand_dims(s, axis=(len(self.shape) - 1,))
        if self.rng.random() < 0.3:
            s = self.b.broadcast_to(s, shape=self.shape)
        name = self.rng.choice(["add", "subtract", "multiply", "divide"])
        if name == "divide":
            s = self.b.add(self.b.square(self.b.tanh(s)), 1.0)
        self.full.append(getattr(self.b, name)(self.pick_full(), s))

    def fold(self) -> None:
        x = self.pick_full()
        name = self.rng.choice(["sum", "sum", "max"])
        keep = self.rng.random() < 0.5
        axis = (len(self.shape) - 1,)
        if name == "sum" or self.shape[-1] == 0:
            x, name = self.b.tanh(x), "sum"
        self.stats.append(getattr(self.b, name)(x, axis=axis, keepdims=keep))

    def stat(self) -> None:
        s = self.rng.choice(self.stats)
        name = self.rng.choice(["tanh", "sin", "exp"])
        s = getattr(self.b, name)(self.b.tanh(s) if name == "exp" else s)
        if self.rng.random() < 0.5:
            fits = [t for t in self.stats if t.type.ndim == s.type.ndim]
            s = self.b.multiply(s, self.rng.choice(fits))
        self.stats.append(s)

    def whole(self) -> None:
        """Reduce over the rows, or over everything; perhaps use the result."""
        x = self.b.tanh(self.pick_full())
        rows = tuple(range(len(self.rows)))
        axis = self.rng.choice([rows, (0,), (*rows, len(rows))])
        r = self.b.sum(x, axis=axis, keepdims=False)
        self.out.append(r)
        if (self.rng.random() < 0.3 and axis != (0,)) or len(rows) == 1:
            if self.rng.random() < 0.4:
                self.full.append(self.b.multiply(self.pick_full(), self.b.sin(r)))

    def elsewhere(self) -> None:
        """Read a row at other places: shifted, backwards, or one element of it."""
        x, axis, m = self.pick_full(), len(self.shape) - 1, self.shape[-1]
        if isinstance(m, int) or self.loose:
            return
        kind = self.rng.choice(["flip", "shift", "first"])
        if kind == "flip":
            self.full.append(self.b.add(self.b.flip(x, axis=(axis,)), self.pick_full()))
        elif kind == "first":
            self.stats.append(self.b.select(x, self.rng.choice([0, m - 1]), axis=axis))
        else:
            at = {"axis": axis, "size": m - 1, "step": 1}
            part = self.b.slice(x, 1, **at)
            part = self.b.multiply(part, self.b.slice(self.pick_full(), 0, **at))
            name = self.rng.choice(["slice_scatter", "slice_scatter_add"])
            new = getattr(self.b, name)(
                self.pick_full(), part, self.rng.choice([0, 1]), **at
            )
            self.full.append(new)

    def indices(self) -> tuple[Value, Value] | None:
        if len(self.rows) != 1 or self.sizes[-1] == 0:
            return None
        return self.b.arange(size=self.rows[0]), self.columns

    def pick(self) -> None:
        """Read one element of each row."""
        found = self.indices()
        if found is not None:
            x = self.pick_full()
            self.stats.append(self.b.gather(x, *found, axes=(0, 1), position=0))

    def put(self) -> None:
        """Write one element of each row, or add to it."""
        found = self.indices()
        fits = [s for s in self.stats if s.type.ndim == 1]
        if found is not None and fits:
            name = self.rng.choice(["gather_scatter", "gather_scatter_add"])
            x, new = self.pick_full(), self.rng.choice(fits)
            put = getattr(self.b, name)
            self.full.append(put(x, new, *found, axes=(0, 1), position=0))

    def where(self) -> None:
        s = self.rng.choice(self.stats)
        if s.type.ndim < len(self.shape):
            s = self.b.expand_dims(s, axis=(len(self.shape) - 1,))
        x, y = self.pick_full(), self.pick_full()
        self.full.append(self.b.where(self.b.less(x, s), x, self.b.multiply(y, 0.5)))


def program(seed: int, size: int, sizes: Sizes, dtype: DType) -> Func:
    return Writer(seed, sizes, dtype).func(size)


def arguments(f: Func, seed: int, sizes: Sizes) -> list[Any]:
    rng = np.random.default_rng(seed)
    columns = rng.integers(-sizes[-1], max(sizes[-1], 1), sizes[-2])
    made = [
        rng.uniform(-1, 1, sizes),
        rng.uniform(-1, 1, sizes),
        rng.uniform(-1, 1, sizes[-1:]),
        rng.uniform(-1, 1, sizes[:-1]),
    ]
    floats = zip(made, f.params[:4], strict=True)
    out: list[Any] = [a.astype(p.type.dtype) for a, p in floats]
    out.append(columns if sizes[-1] else np.zeros(sizes[-2], np.int64))
    return out
