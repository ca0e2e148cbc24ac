"""Random stencils: arrays updated in boxes, from boxes of the same size elsewhere.

`stencil(seed)` gives a traced Func over symbolic sizes of at least 2 or 4: up to three
arrays of one to three axes, one to three updates, in a loop over time or not.
"""

import random
from typing import Any

import numpy as np

from retrograde.ir import dims
from retrograde.ir.build import IRBuilder
from retrograde.ir.dims import Dim, Facts, Strict, symbol
from retrograde.ir.func import Block, Func, Value
from retrograde.ir.op import OPS
from retrograde.ir.text import parse_type
from retrograde.ir.types import F64, Type

SIZES = tuple(symbol(s) for s in "nml")
STEPS = symbol("steps")
KINDS = ("plain", "number", "scalar", "array", "curve")


class Writer:
    """Writes one random stencil."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = IRBuilder()
        self.ndim = self.rng.choice([1, 1, 2, 2, 3])
        self.shape = SIZES[: self.ndim]

    def func(self) -> Func:
        b, rng = self.b, self.rng
        many = rng.randint(1, 3)
        self.arrays = [b.value(Type(F64, self.shape), "uvw"[k]) for k in range(many)]
        self.k = b.value(parse_type("f64"), "k")
        self.c = b.value(Type(F64, self.shape), "c")
        least = rng.choice([2, 4])  # of what size every axis is known to be
        facts = Facts().having(*(dims.add(d, -least) for d in self.shape))
        with dims.deciding(Strict(facts)):
            if rng.random() < 0.7:
                self.loop(rng.randint(1, 3))
            else:
                self.updates(rng.randint(1, 3))
            results = [b.copy(x) for x in self.arrays]
        params = (*self.arrays, self.k, self.c)
        body = b.finish(params, results)
        return Func("stencil", "traced", body, (dims.as_symbol(STEPS),), facts)  # type: ignore[arg-type]

    def loop(self, count: int) -> None:
        attrs = {"index": symbol("t"), "start": 0, "stop": STEPS, "step": 1}
        with self.b.block() as nodes:
            self.updates(count)
        self.b.control(OPS["for"], (), attrs, [Block((), tuple(nodes), ())], (), ())

    def updates(self, count: int) -> None:
        for _ in range(count):
            self.update()

    def update(self) -> None:
        """Write `box = sum of shifted boxes`, or `+=`."""
        b, rng = self.b, self.rng
        margins = [rng.choice([(0, 0), (1, 1), (1, 0), (0, 2)]) for _ in self.shape]
        target = rng.choice(self.arrays)
        box = self.view(target, [low for low, _ in margins], margins)
        self.usual = rng.choice(self.arrays), rng.choice(KINDS)
        total = box if rng.random() < 0.5 else self.term(margins)
        for _ in range(rng.randint(1, 5)):
            add = rng.choice([b.add, b.subtract])
            total = add(total, self.term(margins))
        b.apply(OPS["write"], (box, total), {})

    def term(self, margins: list[tuple[int, int]]) -> Value:
        b, rng = self.b, self.rng
        source, kind = self.usual
        if rng.random() < 0.2:
            source, kind = rng.choice(self.arrays), rng.choice(KINDS)
        read = self.view(source, [rng.randint(0, sum(m)) for m in margins], margins)
        match kind:
            case "number":
                return b.multiply(read, rng.choice([2, -4.0, 0.25]))  # type: ignore[no-any-return]
            case "scalar":
                return b.multiply(self.k, read)  # type: ignore[no-any-return]
            case "array":
                low = [a for a, _ in margins]
                return b.multiply(read, self.view(self.c, low, margins))  # type: ignore[no-any-return]
            case "curve":
                return b.multiply(b.sin(read), self.k)  # type: ignore[no-any-return]
        return read

    def view(self, x: Value, at: list[int], margins: list[tuple[int, int]]) -> Value:
        for axis, (start, (low, high)) in enumerate(zip(at, margins, strict=True)):
            size: Dim = dims.add(self.shape[axis], -low - high)
            if low + high or self.rng.random() < 0.3:
                attrs = {"axis": axis, "size": size, "step": 1}
                x = self.b.apply(OPS["slice"], (x, start), attrs, hint="s", base=x)
        return x


def stencil(seed: int) -> Func:
    """Return a random traced stencil."""
    return Writer(seed).func()


def arguments(f: Func, seed: int, size: int) -> list[Any]:
    """Return arguments whose sizes are `size` and about as much."""
    rng = np.random.default_rng(seed)
    least = 4 if any(f.facts.proves(dims.add(d, -4)) for d in SIZES) else 2
    sizes = {dims.as_symbol(d): max(size - k, least) for k, d in enumerate(SIZES)}
    args: list[Any] = []
    for p in f.params:
        shape = tuple(sizes[dims.as_symbol(d)] for d in p.type.shape)
        x = rng.uniform(-1, 1, shape)
        args.append(x if shape else np.float64(x))
    return args
