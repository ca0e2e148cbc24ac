"""Random traced programs: views of every kind, overlapping writes, nested control flow.

`program(seed, size)` gives a traced Func over symbolic sizes, `arguments(f, seed)`
arrays that fit it. All values stay small and all float ops are smooth, so that
derivatives can be compared with differences; conditions compare sums with constants.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from retrograde.ir import dims
from retrograde.ir.build import IRBuilder
from retrograde.ir.dims import Dim, Facts, Strict, Symbol
from retrograde.ir.func import Block, Func, Value
from retrograde.ir.op import OPS
from retrograde.ir.text import parse_type
from retrograde.ir.types import F64, I64

N, M = dims.symbol("n"), dims.symbol("m")
FACTS = Facts().having(N - 2, M - 2)


def proves(a: Dim, b: Dim) -> bool:
    """Tell whether a >= b holds for all sizes."""
    return FACTS.proves(dims.add(a, dims.mul(b, -1)))


UNARY = ("sin", "cos", "tanh", "negative", "square")
BINARY = ("add", "subtract", "multiply", "add")


class Writer:
    """Writes one random program."""

    def __init__(self, seed: int, *, writes: bool = True, control: bool = True) -> None:
        self.rng = random.Random(seed)
        self.b = IRBuilder()
        self.writes, self.control = writes, control
        self.arrays: list[Value] = []
        self.scalars: list[Value] = []
        self.frozen: set[Value] = set()  # NumPy refuses writes through these
        self.contiguous: set[Value] = set()
        self.indices: list[tuple[Dim, Dim, Dim]] = []  # index, its start, its stop
        self.depth = 0

    # The program ------------------------------------------------------------------

    def func(self, size: int) -> Func:
        types = ("f64[n,m]", "f64[n]", "f64[m]", "f64", "f64[]", "f64[3,n]")
        params = [self.b.value(parse_type(t), "xyzsde"[k]) for k, t in enumerate(types)]
        position = self.b.value(parse_type("i64"), "k")
        for p in params:
            self.keep(p)
            self.contiguous.add(p)
        self.position = position
        with dims.deciding(Strict(FACTS)):
            for k in range(2):
                start = self.rng.choice(params[:3])
                fresh = self.apply("sin", start, hint="abc"[k])
                self.contiguous.add(fresh)
            self.statements(size)
            results = self.results()
        block = self.b.finish((*params, position), results)
        return Func("f", "traced", block, (), FACTS)

    def results(self) -> list[Value]:
        """Return a number that depends on everything, and two of the arrays."""
        chosen = [self.rng.choice(self.arrays) for _ in range(2)]
        everything = [*self.arrays, *self.scalars]
        total = self.total(chosen[0])
        for x in everything:
            total = self.apply("add", total, self.total(x), hint="total")
        return [total, *chosen]

    def statements(self, count: int) -> None:
        for _ in range(count):
            self.statement()

    def statement(self) -> None:
        kinds = ["view", "view", "compute", "compute", "reduce", "copy", "scalar"]
        kinds += ["gather", "mask", "mixed"]
        if self.writes:
            kinds += ["write"] * 5 + ["shift", "chain"]
        if self.control and self.depth < 2:
            kinds += ["loop", "loop", "cond", "repeat", "sweep"]
            kinds += ["exchange", "checkpoint"]
        getattr(self, self.rng.choice(kinds))()

    def keep(self, v: Value) -> Value:
        (self.scalars if v.type.scalar else self.arrays).append(v)
        return v

    def apply(self, op: str, *xs: Any, hint: str = "t", **attrs: Any) -> Value:
        is_view = OPS[op].views is not None and not xs[0].type.scalar
        base = xs[0] if is_view else None
        result = self.b.apply(OPS[op], xs, attrs, hint=hint, base=base)
        if is_view and (xs[0] in self.frozen or op == "broadcast_to"):
            self.frozen.add(result)
        return self.keep(result)

    # Statements -------------------------------------------------------------------

    def index(self, size: Dim) -> Any:
        """Return an index into an axis that is certainly in range."""
        choices: list[Any] = [0]
        if isinstance(size, int):
            choices.append(size - 1)
        else:
            choices += [size - 1, size - 1]
        for index, start, stop in self.indices:
            if proves(start, 0) and proves(size, stop):
                choices += [index] * 4
                if proves(start, 1):
                    choices += [index - 1] * 3
        if size in (N, M):
            choices += [1, self.position]
        return self.rng.choice(choices)

    def view(self) -> Value:
        x = self.rng.choice(self.arrays)
        shape, ndim = x.type.shape, x.type.ndim
        names = ["expand_dims"] if ndim < 3 else []
        if ndim:
            names += ["select"] * 3 + ["slice"] * 3 + ["flip"]
        if ndim >= 2:
            names += ["transpose", "transpose", "diagonal"]
        if 1 in shape:
            names += ["squeeze", "squeeze"]
        if x in self.contiguous and ndim:
            names += ["reshape", "reshape", "as_strided"]
        if ndim == 1:
            names.append("broadcast_to")
        name = self.rng.choice(names or ["expand_dims"])
        axis = self.rng.randrange(ndim) if ndim else 0
        match name:
            case "select" if not proves(shape[axis], 1):
                return self.slice(x, axis)
            case "select":
                at = self.index(shape[axis])
                return self.apply("select", x, at, axis=axis, hint="v")
            case "slice":
                return self.slice(x, axis)
            case "transpose":
                axes = list(range(ndim))
                self.rng.shuffle(axes)
                return self.apply("transpose", x, axes=tuple(axes), hint="v")
            case "flip":
                return self.apply("flip", x, axis=(axis,), hint="v")
            case "expand_dims":
                axis = self.rng.randrange(ndim + 1)
                return self.apply("expand_dims", x, axis=(axis,), hint="v")
            case "squeeze":
                return self.apply("squeeze", x, axis=(shape.index(1),), hint="v")
            case "diagonal":
                a, b = self.rng.sample(range(ndim), 2)
                size = dims.minimum(shape[a], shape[b])
                return self.apply(
                    "diagonal", x, offset=0, axis1=a, axis2=b, size=size, hint="v"
                )
            case "reshape":
                v = self.apply("reshape", x, shape=(x.type.size,), hint="v")
                self.contiguous.add(v)
                return v
            case "as_strided":
                size = x.type.size
                strides = self.rng.choice([(1,), (0,)])
                return self.apply(
                    "as_strided", x, shape=(size,), strides=strides, offset=0, hint="v"
                )
            case _:
                shape = (3, *shape)
                return self.apply("broadcast_to", x, shape=shape, hint="v")

    def slice(self, x: Value, axis: int) -> Value:
        size = x.type.shape[axis]
        whole = dims.add(size, -1)
        forms: list[tuple[Any, Dim, int]] = [(0, size, 1), (whole, size, -1)]
        if proves(size, 1):
            forms += [(0, whole, 1), (1, whole, 1), (whole, whole, -1)] * 2
            forms.append((0, dims.floordiv(dims.add(size, 1), 2), 2))
        for index, start, stop in self.indices:
            if proves(start, 0) and proves(size, stop):
                forms += [(0, index, 1), (0, index + 1, 1), (index, 1, 1)]
                rest = dims.add(size, dims.mul(index, -1))
                forms += [(index, rest, 1), (index + 1, rest - 1, 1)]
        at, count, step = self.rng.choice(forms)
        return self.apply("slice", x, at, axis=axis, size=count, step=step, hint="v")

    def compute(self) -> Value:
        x = self.rng.choice(self.arrays)
        return self.changed(x)

    def changed(self, x: Value) -> Value:
        """Return something of the shape of `x`, computed from it and others."""
        t = self.apply("tanh", self.apply(self.rng.choice(UNARY), x))
        if self.rng.random() < 0.7:
            other = self.partner(t)
            t = self.apply(self.rng.choice(BINARY), t, other)
        return self.apply("multiply", t, self.rng.choice([0.5, 0.9, -0.7]))

    def partner(self, x: Value) -> Any:
        """Return an operand that broadcasts into the shape of `x`."""
        fits = [0.5, *self.scalars]
        for y in self.arrays:
            shape, want = y.type.shape, x.type.shape
            tail = want[len(want) - len(shape) :]
            if len(shape) <= len(want) and all(
                d in (1, w) for d, w in zip(shape, tail, strict=True)
            ):
                fits += [y] * 3
        return self.rng.choice(fits)

    def reduce(self) -> Value:
        x = self.rng.choice(self.arrays)
        if not x.type.ndim:
            return self.apply("item", x)
        axis = (self.rng.randrange(x.type.ndim),)
        keep = self.rng.random() < 0.3
        r = self.apply("sum", x, axis=axis, keepdims=keep)
        return self.apply("tanh", r, hint="r")

    def total(self, x: Value) -> Value:
        if not x.type.ndim:
            return self.apply("sin", x)
        axis = tuple(range(x.type.ndim))
        s = self.apply("sum", x, axis=axis, keepdims=False)
        return self.apply("sin", s, hint="s")

    def scalar(self) -> Value:
        return self.total(self.rng.choice(self.arrays))

    def copy(self) -> Value:
        return self.apply("copy", self.rng.choice(self.arrays), hint="c")

    def gather(self) -> Value:
        """Read or replace elements by an integer array with duplicates."""
        x = self.rng.choice(self.arrays)
        axis = self.rng.randrange(x.type.ndim) if x.type.ndim else 0
        if not x.type.ndim or not proves(x.type.shape[axis], 2):
            return self.compute()
        data = tuple(self.rng.choice([-2, -1, 0, 1]) for _ in range(3))
        index = self.b.apply(
            OPS["constant"], (), {"data": data, "shape": (3,), "dtype": I64}
        )
        where = {"axes": (axis,), "position": axis}
        read = self.apply("gather", x, index, hint="g", **where)
        if self.rng.random() < 0.4:
            return read
        name = self.rng.choice(["gather_scatter", "gather_scatter_add"])
        return self.apply(name, x, self.changed(read), index, hint="g", **where)

    def mask(self) -> Value:
        """Read, and perhaps replace, what a mask selects: its size is data."""
        x = self.rng.choice(self.arrays)
        if not x.type.ndim:
            return self.compute()
        some = self.b.apply(OPS["greater"], (x, 0.03125), {}, hint="m")
        count = dims.symbol(self.b.name("q").replace(".", "_"))
        read = self.apply("mask_select", x, some, count=count, hint="g")
        total = self.total(read)
        if self.rng.random() < 0.5:
            return total
        name = self.rng.choice(["mask_scatter", "mask_scatter_add"])
        return self.apply(name, x, self.changed(read), some, hint="g")

    def mixed(self) -> Value:
        x = self.rng.choice(self.arrays)
        if not x.type.ndim:
            return self.compute()
        axis = self.rng.randrange(x.type.ndim)
        match self.rng.choice(["cumsum", "sort", "concatenate", "max", "maximum"]):
            case "max" if proves(x.type.shape[axis], 1):
                return self.apply("max", x, axis=(axis,), keepdims=False, hint="r")
            case "concatenate":
                y = self.apply("concatenate", x, self.changed(x), axis=axis)
                return self.slice(y, axis)
            case "maximum":
                return self.apply("maximum", x, self.partner(x))
            case "sort":
                return self.apply("sort", x, axis=axis)
            case _:
                return self.apply("tanh", self.apply("cumsum", x, axis=axis))

    def write(self) -> None:
        targets = [x for x in self.arrays if x not in self.frozen]
        target = self.rng.choice(targets)
        how = self.rng.random()
        if how < 0.5:
            value: Any = self.changed(target)
        elif how < 0.9:
            value = self.partner(target)
        else:
            value = 0.0
        self.b.apply(OPS["write"], (target, value), {})

    def shift(self) -> None:
        """Write a part of an array from another part of it, which may overlap."""
        targets = [x for x in self.arrays if x not in self.frozen and x.type.ndim]
        x = self.rng.choice(targets)
        axis = self.rng.randrange(x.type.ndim)
        size = x.type.shape[axis]
        if not proves(size, 2):
            return
        near, far = self.rng.choice([(0, 1), (1, 0)])
        attrs = {"axis": axis, "size": dims.add(size, -1), "step": 1}
        target = self.apply("slice", x, near, hint="v", **attrs)
        source = self.apply("slice", x, far, hint="v", **attrs)
        t = self.apply("add", self.apply("tanh", source), target)
        new = self.rng.choice([source, t, self.apply("multiply", t, 0.5)])
        self.b.apply(OPS["write"], (target, new), {})

    def chain(self) -> None:
        """Write through a view of a view of a view."""
        targets = [x for x in self.arrays if x not in self.frozen and x.type.ndim]
        x = self.rng.choice(targets)
        self.arrays, saved = [x], self.arrays
        for _ in range(3):
            self.arrays = [self.view()]
        (last,) = self.arrays
        self.arrays = [*saved, last]
        if last not in self.frozen:
            self.b.apply(OPS["write"], (last, self.changed(last)), {})

    # Control ----------------------------------------------------------------------

    @contextmanager
    def inner(self) -> Iterator[Any]:
        """Write a region; what it defines is gone after it."""
        saved = list(self.arrays), list(self.scalars), list(self.indices)
        self.depth += 1
        with self.b.block() as nodes:
            yield nodes
        self.depth -= 1
        self.arrays, self.scalars, self.indices = saved

    def carries(self) -> tuple[list[Value], list[Value]]:
        inits = [self.rng.choice(self.scalars)]
        if self.rng.random() < 0.6:
            inits.append(self.rng.choice(self.arrays))
        params = [self.b.value(x.type, "p") for x in inits]
        for p, x in zip(params, inits, strict=True):
            if not p.type.ndim or x in self.frozen or self.rng.random() < 0.6:
                self.frozen.add(p)
        return inits, params

    def loop(self) -> None:
        inits, params = self.carries()
        size = self.rng.choice([N, M, 3])
        start, stop, step = self.rng.choice(
            [(0, size, 1), (1, size, 1), (0, size, 2), (size - 1, 0, -1), (0, 0, 1)]
        )
        index = dims.symbol(self.b.name("i").replace(".", "_"))
        low, high = (start, stop) if step > 0 else (dims.add(stop, 1), start + 1)
        with self.inner() as nodes:
            self.indices.append((index, low, high))
            for p in params:
                self.keep(p)
            self.statements(self.rng.randint(1, 4))
            out = [self.next(p) for p in params]
            body = Block(tuple(params), tuple(nodes), tuple(out))
        attrs = {"index": index, "start": start, "stop": stop, "step": step}
        self.done("for", inits, attrs, [body], params)

    def exchange(self) -> None:
        """Write a for loop in which two arrays take each other's place."""
        x = self.rng.choice(self.arrays)
        inits = [self.changed(x), self.changed(x)]
        params = [self.b.value(v.type, "p") for v in inits]
        self.frozen.update(params)
        index = dims.symbol(self.b.name("i").replace(".", "_"))
        with self.inner() as nodes:
            for p in params:
                self.keep(p)
            self.statements(self.rng.randint(0, 2))
            a, b = params
            out = (self.rng.choice([b, self.changed(b)]), a)
            body = Block(tuple(params), tuple(nodes), out)
        stop = self.rng.choice([0, 1, 2, 3])
        attrs = {"index": index, "start": 0, "stop": stop, "step": 1}
        self.done("for", inits, attrs, [body], params)

    def sweep(self) -> None:
        """Write a loop that reads and writes neighbouring parts of one array."""
        arrays = [x for x in self.arrays if x not in self.frozen]
        choices = [(x, k) for x in arrays for k, d in enumerate(x.type.shape)]
        choices = [(x, k) for x, k in choices if x.type.shape[k] in (N, M)]
        if not choices:
            self.loop()
            return
        x, axis = self.rng.choice(choices)
        size = x.type.shape[axis]
        start, stop, step = self.rng.choice(
            [(1, size, 1), (size - 1, 0, -1), (1, size, 2), (1, size - 1, 1)]
        )
        index = dims.symbol(self.b.name("h").replace(".", "_"))
        with self.inner() as nodes:
            self.indices.append((index, 1, size))
            for _ in range(self.rng.randint(1, 3)):
                self.part_from_part(x, axis, index)
            body = Block((), tuple(nodes), ())
        attrs = {"index": index, "start": start, "stop": stop, "step": step}
        self.b.control(OPS["for"], (), attrs, [body], (), ())

    def part_from_part(self, x: Value, axis: int, index: Any) -> None:
        """Write a part of `x` that is computed from another one of the same shape."""
        size = x.type.shape[axis]
        rest = dims.add(size, dims.mul(index, -1))
        lengths: list[Any] = [index, rest, 1, rest - 1, None]
        length = self.rng.choice(lengths)
        if length is None:
            here, there = (
                self.apply("select", x, at, axis=axis, hint="v")
                for at in (index, self.rng.choice([index - 1, index, 0]))
            )
        else:
            last = dims.add(size, dims.mul(length, -1))
            here, there = (
                self.apply("slice", x, at, axis=axis, size=length, step=1, hint="v")
                for at in self.rng.choices([0, last], k=2)
            )
        new = self.changed(there)
        if self.rng.random() < 0.5:
            new = self.apply("add", new, self.apply("multiply", here, 0.5))
        self.b.apply(OPS["write"], (here, new), {})

    def repeat(self) -> None:
        """Write a while loop that counts to 2 or 3."""
        inits, params = self.carries()
        counter = self.b.value(parse_type("~f64"), "c")
        with self.inner() as nodes:
            test = self.b.apply(OPS["less"], (counter, self.rng.choice([2.0, 3.0])), {})
            first = Block((counter, *params), tuple(nodes), (test,))
            nodes.clear()
            for p in params:
                self.keep(p)
            self.statements(self.rng.randint(1, 3))
            step = self.b.apply(OPS["add"], (counter, 1.0), {})
            out = (step, *(self.next(p) for p in params))
            second = Block((), tuple(nodes), out)
        self.done("while", [0.0, *inits], {}, [first, second], [counter, *params])

    def next(self, p: Value) -> Value:
        """Return what a carry becomes: a new value, and sometimes itself."""
        if self.rng.random() < 0.15:
            return p
        if p.type.scalar:
            return self.apply("tanh", self.apply("add", p, self.total_of_any()))
        return self.changed(p)

    def total_of_any(self) -> Value:
        return self.total(self.rng.choice(self.arrays))

    def cond(self) -> None:
        test = self.b.apply(
            OPS["greater"], (self.rng.choice(self.scalars), 0.0625), {}, hint="test"
        )
        like = self.rng.choice(self.arrays)
        blocks = []
        for _ in range(2):
            with self.inner() as nodes:
                self.statements(self.rng.randint(0, 3))
                out = (self.changed(like), self.total_of_any())
                blocks.append(Block((), tuple(nodes), out))
        self.done("cond", [test], {}, blocks, [like, test])

    def checkpoint(self) -> None:
        like = self.rng.choice(self.arrays)
        with self.inner() as nodes:
            self.statements(self.rng.randint(1, 4))
            out = [self.changed(like), self.total_of_any()]
        if self.rng.random() < 0.3:  # what is outside comes out as it is
            out.append(like)
        block = Block((), tuple(nodes), tuple(out))
        self.done("checkpoint", [], {}, [block], [like, out[1], like][: len(out)])

    def done(
        self, name: str, operands: Any, attrs: Any, blocks: Any, like: list[Value]
    ) -> None:
        types = [x.type for x in blocks[-1].results]
        if blocks[0].params:  # a 0-d array or a scalar, as the carry is
            types = [p.type for p in blocks[0].params]
        hints = ["r"] * len(types)
        results = self.b.control(OPS[name], operands, attrs, blocks, types, hints)
        for v, p in zip(results, like, strict=True):
            if v.type.dtype == F64 and not v.type.weak:
                self.keep(v)
            if p in self.frozen or not v.type.ndim:
                self.frozen.add(v)


def program(seed: int, size: int = 8, **options: bool) -> Func:
    """Return a random traced Func of about `size` statements."""
    return Writer(seed, **options).func(size)


def arguments(f: Func, seed: int) -> list[Any]:
    """Return arrays for the parameters of a program."""
    rng = np.random.default_rng(seed)
    sizes = {Symbol("n"): int(rng.integers(2, 5)), Symbol("m"): int(rng.integers(2, 4))}
    args: list[Any] = []
    for p in f.params:
        shape = tuple(dims.evaluate(d, sizes) for d in p.type.shape)
        if p.type.dtype.kind == "i":
            args.append(np.int64(rng.integers(-1, 2)))
        elif p.type.scalar:
            args.append(np.float64(rng.uniform(-1, 1)))
        else:
            args.append(rng.uniform(-1, 1, shape))
    return args
