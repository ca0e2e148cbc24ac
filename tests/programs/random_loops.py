"""Random programs with loops and branches as source text, for property tests.

A program is a function `program(x, y, A, s, k)` of two vectors (n and m long), a matrix
(n by m), a float and a small int. Its statements are nested loops over ranges and rows,
branches on data and on indices, jumps, writes through views and all that Python keeps
between iterations: numbers, lists, attributes, closures. Every program is legal for
all sizes of at least 4.
"""

from __future__ import annotations

import ast
import linecache
import random
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

HELPERS = """\
def damp(v):
    return 0.5 * np.sin(v)


def pick(a, b):
    if a > b:
        return a - 0.5 * b
    return 0.3 * b


def bump(v, i, a):
    v[i] += 0.1 * a
    return v[i]


class Box:
    def __init__(self, v):
        self.v = v
        self.n = 0

    def add(self, v):
        self.v = 0.5 * self.v + v
        self.n += 1


"""
SIGNATURE = "def program(x, y, A, s, k):\n"
LARGE = 30.0
MARGIN = 1e-3


@dataclass(frozen=True)
class LoopProgram:
    """A program as text, and the seed of its arguments."""

    source: str
    seed: int

    def function(self) -> Callable[..., Any]:
        """Compile the text; its lines are found by tracebacks and by the converter."""
        name = f"<program {hash(self.source):x}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[name] = (len(self.source), None, lines, name)
        scope: dict[str, Any] = {"np": np}
        exec(compile(self.source, name, "exec"), scope)
        f: Callable[..., Any] = scope["program"]
        return f

    def rebinds_arrays(self) -> bool:
        """Tell whether the data decides which array a name stands for at the end.

        Then NumPy may return an argument where compiled code returns a copy.
        """
        return bool(re.search(r"^ {8,}([xywB]|x, w|A, B) = ", self.source, re.M))

    def args(self, number: int = 0) -> list[Any]:
        """Return arguments; other numbers give other values and sizes."""
        rng = np.random.default_rng(self.seed + 1000 * number)
        n, m = (int(a) for a in rng.integers(4, 7, 2))
        x, y, a = (rng.uniform(-1.0, 1.0, shape) for shape in (n, m, (n, m)))
        k = int(np.random.default_rng(self.seed).integers(2, 5))
        return [x, y, a, float(rng.uniform(0.5, 1.5)), k]

    def __repr__(self) -> str:
        return f"{self.source}# seed {self.seed}\n"


class Unsmooth(Exception):
    """The program is at, or close to, a point where it has no derivative."""


class _Watch:
    """What comparisons are in a watched program: they tell how close they are."""

    def __init__(self) -> None:
        self.margin = np.inf

    def near(self, a: Any, b: Any) -> None:
        if not isinstance(a, int | str | type(None)) and np.size(a):
            self.margin = min(self.margin, float(np.min(np.abs(a - b))))

    def compare(self, names: tuple[str, ...], *operands: Any) -> bool:
        pairs = list(pairwise(operands))
        for (a, b), name in zip(pairs, names, strict=True):
            if name in ("Lt", "LtE", "Gt", "GtE"):
                self.near(a, b) if not isinstance(a, int) else self.near(b, a)
            answer = COMPARE[name](a, b)
            if not answer:
                return bool(answer)
        return True

    def max(self, a: Any, b: Any) -> Any:
        self.near(a, b)
        return max(a, b)

    def min(self, a: Any, b: Any) -> Any:
        self.near(a, b)
        return min(a, b)

    def abs(self, a: Any) -> Any:
        self.near(a, 0)
        return abs(a)

    def argmax(self, a: Any) -> Any:
        if np.size(a) > 1:
            first, second = np.sort(np.ravel(a))[:-3:-1]
            self.near(first, second)
        return np.argmax(a)


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": lambda a, b: a < b,
    "LtE": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtE": lambda a, b: a >= b,
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "Is": lambda a, b: a is b,
    "IsNot": lambda a, b: a is not b,
}


class _Watched(ast.NodeTransformer):
    """Calls `watch` wherever a program compares."""

    def _call(self, name: str, args: list[ast.expr]) -> ast.expr:
        f = ast.Attribute(ast.Name("watch", ast.Load()), name, ast.Load())
        return ast.Call(f, args, [])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        names = [ast.Constant(type(op).__name__) for op in node.ops]
        whole = ast.Tuple(list(names), ast.Load())
        return self._call("compare", [whole, node.left, *node.comparators])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = ast.unparse(node.func).removeprefix("np.")
        return self._call(name, node.args) if name in WATCHED else node


WATCHED = ("max", "min", "abs", "argmax")


def margin(p: LoopProgram, args: list[Any]) -> float:
    """Run a program in NumPy; return how close the closest comparison is.

    Raises `Unsmooth` for values that are large.
    """
    tree = ast.fix_missing_locations(_Watched().visit(ast.parse(p.source)))
    watch = _Watch()
    scope: dict[str, Any] = {"np": np, "watch": watch}
    exec(compile(tree, "<watched>", "exec"), scope)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            out = scope["program"](*args)
        except (RuntimeWarning, ValueError) as error:  # an empty list is stacked
            raise Unsmooth from error
    values = [v for v in (*out, *args) if not isinstance(v, bool)]
    if any(np.size(v) and not np.max(np.abs(v)) < LARGE for v in values):
        raise Unsmooth
    return watch.margin


# ------------------------------------------------------------------------ drawing


@dataclass(frozen=True)
class Index:
    """An int with low <= it < size - high, where size is "n" or "m"."""

    size: str
    low: int
    high: int
    plain: bool = True  # the code says so, not only the data: slices may end there


@dataclass
class Scope:
    """The names that a block may read."""

    floats: list[str] = field(default_factory=list)
    vectors: dict[str, str] = field(default_factory=dict)  # name -> "n" or "m"
    matrices: list[str] = field(default_factory=list)
    indices: dict[str, Index] = field(default_factory=dict)
    ints: list[str] = field(default_factory=list)  # any non-negative value
    bools: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # kinds of the loops around


class Drawer:
    """Draws one program: `choose(count)` gives a number below `count`."""

    def __init__(self, choose: Callable[[int], int], budget: int) -> None:
        self.choose = choose
        self.budget = budget
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.scope = Scope(
            floats=["s", "t"],
            vectors={"x": "n", "y": "m"},
            matrices=["A"],
            ints=["c"],
        )
        self.returns = "x, y, A"

    def pick(self, *options: Any) -> Any:
        return options[self.choose(len(options))]

    def chance(self, one_in: int) -> bool:
        return self.choose(one_in) == one_in - 1

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    @contextmanager
    def block(self, head: str, **more: Any) -> Iterator[Scope]:
        """Draw an indented block; what it binds is forgotten after it."""
        outer, self.scope = self.scope, deepcopy(self.scope)
        self.emit(head)
        self.depth += 1
        start = len(self.lines)
        try:
            yield self.scope
            if len(self.lines) == start:
                self.emit("pass")
        finally:
            self.depth -= 1
            self.scope = outer

    def program(self) -> str:
        """Return the source."""
        self.beginning()
        while self.budget > 0:
            self.statement()
        if not any(" for " in line or "while " in line for line in self.lines):
            self.for_loop()
        last = self.pick("x", "x[1:]", "A[0]", "A.T", "x", "A")
        if any("return" in line for line in self.lines):
            last = "x"
        self.emit(f"return t, {last}, {', '.join(self.kept)}")
        body = "\n".join(self.lines)
        return HELPERS * self.uses_helpers() + SIGNATURE + body + "\n"

    def uses_helpers(self) -> bool:
        names = ("damp(", "pick(", "bump(", "Box(")
        return any(name in line for line in self.lines for name in names)

    def beginning(self) -> None:
        self.emit("n, m = A.shape")
        self.emit(self.pick("t = 0.0", "t = s", "t = 0.5 * s", "t = x[0]", "t = 0"))
        self.emit("c = 0")
        self.kept = []
        if self.choose(3):
            self.emit(
                self.pick(
                    "w = np.zeros(n)",
                    "w = x.copy()",
                    "w = np.zeros_like(x)",
                    "w = 0.5 * x",
                    "w = np.ones(n)",
                )
            )
            self.scope.vectors["w"] = "n"
            self.kept.append("w")
        if self.chance(3):
            self.emit(self.pick("B = np.zeros((n, m))", "B = A.copy()", "B = A * s"))
            self.scope.matrices.append("B")
            self.kept.append("B")
        if self.chance(3):
            self.emit(f"found = {self.pick('False', 'True', 'x[0] > 0.1')}")
            self.scope.bools.append("found")
        if self.chance(5):
            self.emit(self.pick('d = {"a": 0.5, "b": s}', 'd = {"a": s, "b": t}'))
            self.scope.floats += ['d["a"]', 'd["b"]']
        if self.chance(5):
            self.emit(f"box = Box({self.pick('s', '0.5', 't')})")
            self.scope.floats.append("box.v")
            self.scope.ints.append("box.n")
        if self.chance(5):
            self.emit(
                "def push(v):",
                "    nonlocal t, c",
                "    t = 0.5 * t + v",
                "    c += 1",
                "    return t",
            )
            self.scope.functions.append("push")
        self.kept.append("c")

    # Statements -----------------------------------------------------------------

    def statement(self) -> None:
        """Draw one statement."""
        self.budget -= 1
        deep = len(self.scope.loops) >= 3 or self.depth > 5
        compound = [self.for_loop, self.for_loop, self.branch, self.while_loop]
        if not deep and self.choose(5) >= (2 if self.depth == 1 else 3):
            self.pick(*compound)()
        elif self.scope.loops and self.chance(9):
            self.jump()
        else:
            plain = self.pick(*[self.number] * 3, *[self.write] * 4, self.python)
            plain()

    def body(self, most: int = 3) -> None:
        self.statement()
        for _ in range(self.choose(most)):
            if self.budget > 0:
                self.statement()

    def number(self) -> None:
        """Bind a number again, or a new one."""
        kind = self.choose(10)
        e = self.scalar()
        names = [f for f in self.scope.floats if "(" not in f]
        target = self.pick("t", "t", *names)
        if target == "s" and self.choose(2):
            target = "t"
        if kind < 4:
            self.emit(f"{target} {self.pick('+=', '-=')} 0.2 * {self.closed(e)}")
        elif kind < 6:
            self.emit(f"{target} = 0.5 * {target} + {e}")
        elif kind == 6:
            self.emit(f"{target} = {self.unary(e)}")
        elif kind == 7 and self.scope.bools:
            self.emit(f"found = {self.condition()}")
        elif kind == 8:
            self.emit(self.pick("c += 1", "c += 1", "c = (c + 2) % n", "c = c + k"))
        else:
            v = self.fresh("v")
            self.emit(f"{v} = {e}")
            self.scope.floats.append(v)

    def write(self) -> None:
        """Write into an array."""
        kind = self.choose(12)
        if kind < 4:
            a = self.element()
            e = self.scalar()
            self.emit(
                self.pick(
                    f"{a} = {self.unary(e)}",
                    f"{a} += 0.2 * {self.closed(e)}",
                    f"{a} -= 0.1 * {self.closed(e)}",
                    f"{a} *= {self.pick('0.9', 's', '-0.5')}",
                    f"{a} = 0.5 * {a} + 0.3 * {self.closed(e)}",
                )
            )
        elif kind < 9:
            length = self.length()
            a = self.part(length)
            e = self.vector(length)
            self.emit(
                self.pick(
                    f"{a} = {e}",
                    f"{a} = 0.5 * {self.closed(e)}",
                    f"{a} += 0.2 * {self.closed(e)}",
                    f"{a} -= 0.1 * {self.closed(e)}",
                    f"{a} *= {self.pick('0.9', 's')}",
                    f"{a} = 0.2 * {self.closed(self.scalar())}",
                )
            )
        elif kind == 9:
            self.swap()
        elif kind == 10:
            self.rebind()
        else:
            self.matrix_write()

    def swap(self) -> None:
        i, j = self.index("n"), self.index("n")
        a = self.pick(*self.scope.matrices)
        v = self.fresh("v")
        ways: list[tuple[str, ...]] = [
            (f"{a}[[{i}, {j}]] = {a}[[{j}, {i}]]",),
            (f"x[{i}], x[{j}] = x[{j}], x[{i}]",),
            (f"{v} = {a}[{i}].copy()", f"{a}[{i}] = {a}[{j}]", f"{a}[{j}] = {v}"),
        ]
        if "B" in self.scope.matrices:
            ways.append(("A, B = B, A",) if self.chance(2) else ("B[:] = A.copy()",))
        self.emit(*self.pick(*ways))

    def rebind(self) -> None:
        ways = ["x = 0.5 * x", "x = np.sin(x)", "y = y * s"]
        if "w" in self.scope.vectors:
            ways += ["w = 0.5 * w + 0.2 * x", "w = np.tanh(x + t)", "w = x.copy()"]
            ways += ["x, w = w, x"] * 2
        if "B" in self.scope.matrices:
            ways += ["B = 0.5 * B + 0.1 * A", "B = np.sin(A)", "B = A[::-1] * 0.5"]
        self.emit(self.pick(*ways))

    def matrix_write(self) -> None:
        a, b = self.pick(*self.scope.matrices), self.pick(*self.scope.matrices)
        self.emit(
            self.pick(
                f"{a} *= 0.9",
                f"{a}[1:, 1:] += 0.1 * {b}[:-1, :-1]",
                f"{a}[1:-1, 1:-1] = 0.25 * ({b}[:-2, 1:-1] + {b}[2:, 1:-1])",
                f"{a}[:] = 0.5 * {b}[::-1]",
                f"{a} -= 0.1 * np.outer(x, y)",
                f"{a}[{self.index('n')}:, {self.index('m')}] *= 0.5",
            )
        )

    def python(self) -> None:
        """Draw what Python programs do besides."""
        ways = [self.local_buffer, self.row_view, self.comprehension, self.closure]
        ways += [self.computed_index, self.mutating_call]
        if len(self.scope.loops) < 2:
            ways += [self.appended]
        self.pick(*ways)()

    def local_buffer(self) -> None:
        size = self.pick("n", "m")
        v = self.fresh("u")
        found = self.bounds_of(size)
        if found and self.chance(2):
            i, source = self.pick(*found), self.pick(*self.of_size(size))
            self.emit(
                f"{v} = np.zeros({i} + 1)",
                f"{v}[:] = {self.pick(f'{source}[: {i} + 1]', 's', self.scalar())}",
                f"{v}[0] += {self.scalar()}",
            )
            self.scope.floats.append(f"np.sum({v})")
            return
        self.emit(
            self.pick(
                f"{v} = np.zeros({size})",
                f"{v} = {self.vector((size, 'all'))} + 0.0",
                f"{v} = np.full({size}, t)",
            )
        )
        self.scope.vectors[v] = size

    def row_view(self) -> None:
        v = self.fresh("r")
        a = self.pick(*self.scope.matrices)
        if self.chance(3):
            self.emit(f"{v} = {a}[:, {self.index('m')}]")
            self.scope.vectors[v] = "n"
        else:
            self.emit(f"{v} = {a}[{self.index('n')}]")
            self.scope.vectors[v] = "m"

    def comprehension(self) -> None:
        v = self.fresh("e")
        element = self.pick("x[q] * 0.5", "x[q] * s", "x[q] * q", "damp(x[q])", "x[-q]")
        self.emit(
            self.pick(
                f"{v} = sum([0.3 * {element} for q in range(n)])",
                f"{v} = sum(0.2 * {element} for q in range(n))",
                f"{v} = np.array([{element} for q in range(n)]).sum()",
                f"{v} = np.sum(np.stack([0.5 * r for r in A]))",
            )
        )
        self.scope.floats.append(v)

    def closure(self) -> None:
        g = self.fresh("g")
        outer = self.pick(*self.scope.floats)
        self.emit(f"{g} = lambda v: {self.pick('v * ', '0.5 * v + ')}{outer}")
        self.emit(f"t = 0.5 * {g}({self.scalar()})")

    def computed_index(self) -> None:
        p = self.fresh("p")
        i = self.pick("0", *self.bounds_of("n"))
        start = f"{i} + " if i != "0" else ""
        row = self.index("m")
        self.emit(
            self.pick(
                f"{p} = {start}np.argmax(x[{i}:])",
                f"{p} = {start}np.argmax(np.abs(A[{i}:, {row}]))",
                f"{p} = c % n",
                f"{p} = (c + {i}) % n",
                f"{p} = int(np.argmax(x))",
            )
        )
        self.scope.indices[p] = Index("n", 0, 0)

    def mutating_call(self) -> None:
        size = self.pick("n", "m")
        a = self.pick(*self.of_size(size))
        self.emit(f"t = 0.5 * bump({a}, {self.index(size)}, {self.scalar()})")

    def appended(self) -> None:
        """Draw a loop that appends to a list."""
        v, i = self.fresh("h"), self.fresh("i")
        self.emit(f"{v} = {self.pick('[]', '[]', '[s]')}")
        with self.block(f"for {i} in range({self.pick('n', 'k', '1, n', '3')}):") as sc:
            sc.loops.append("for")
            sc.indices[i] = Index("n", 0, 0)
            self.body(2)
            self.emit(f"{v}.append({self.scalar()})")
        total = self.pick(f"np.sum(np.stack({v}))", f"sum({v})", f"np.array({v}).sum()")
        self.emit(f"t = 0.5 * t + 0.1 * {total}")

    def jump(self) -> None:
        ways = ["break", "continue"]
        if self.chance(3):
            ways = [f"return {self.scalar()}, x, {', '.join(self.kept)}"]
        if self.scope.loops[-1] == "while":
            ways = [w for w in ways if w != "continue"]
        if not ways:
            return
        with self.block(f"if {self.condition()}:"):
            self.emit(self.pick(*ways))

    def branch(self) -> None:
        with self.block(f"if {self.condition()}:"):
            self.body(2)
        if self.chance(4):
            with self.block(f"elif {self.condition()}:"):
                self.body(2)
        if self.chance(2):
            with self.block("else:"):
                self.body(2)

    # Loops --------------------------------------------------------------------------

    def for_loop(self) -> None:
        head, names = self.pick(self.over_range, self.over_range, self.over_rows)()
        with self.block(f"for {head}:") as scope:
            scope.loops.append("for")
            names(scope)
            self.body()
        if self.chance(12) and "break" in "".join(self.lines[-6:]):
            with self.block("else:"):
                self.number()

    def over_range(self) -> tuple[str, Callable[[Scope], None]]:
        i = self.fresh("i")
        size = self.pick("n", "n", "m")
        outer = [k for k, v in self.scope.indices.items() if v.size == size]
        if outer and self.choose(3):
            o = self.pick(*outer)
            known = self.scope.indices[o]
            text, low, high = self.pick(
                (f"{o}", 0, known.high + 1),
                (f"{o} + 1", 0, known.high),
                (f"{o}, {size}", known.low, 0),
                (f"{o} + 1, {size}", known.low + 1, 0),
                (f"{o} - 1, -1, -1", 0, known.high + 1),
                (f"min({o}, 2)", 0, known.high + 1),
                (f"max(0, {o} - 1), min({size}, {o} + 2)", 0, 0),
                (f"0, {o}, 2", 0, known.high + 1),
            )
        else:
            text, low, high = self.pick(
                (size, 0, 0),
                (size, 0, 0),
                (f"1, {size}", 1, 0),
                (f"1, {size} - 1", 1, 1),
                (f"{size} - 1", 0, 1),
                (f"{size} - 1, -1, -1", 0, 0),
                (f"{size} - 2, -1, -1", 0, 1),
                (f"{size} - 1, 0, -1", 1, 0),
                (f"0, {size}, 2", 0, 0),
                (f"1, {size}, 2", 1, 0),
                (f"{size} - 1, 0, -2", 1, 0),
                ("3", 0, 1),
                ("k", 0, 0),
                ("2, 2", 0, 0),
                (f"{size}, {size}", 0, 0),
            )
        found = Index(size, low, high)
        return f"{i} in range({text})", lambda sc: sc.indices.update({i: found})

    def over_rows(self) -> tuple[str, Callable[[Scope], None]]:
        i, v, r = self.fresh("i"), self.fresh("v"), self.fresh("r")
        at = Index("n", 0, 0)
        a, b = self.pick(*self.scope.matrices), self.pick(*self.of_size("n"))

        def names(*kinds: str) -> Callable[[Scope], None]:
            def bind(sc: Scope) -> None:
                if "i" in kinds:
                    sc.indices[i] = at
                if "v" in kinds:
                    sc.floats.append(v)
                if "r" in kinds:
                    sc.vectors[r] = "m"

            return bind

        ways = [
            (f"{v} in {b}", names("v")),
            (f"{i}, {v} in enumerate({b})", names("i", "v")),
            (f"{r} in {a}", names("r")),
            (f"{i}, {r} in enumerate({a})", names("i", "r")),
            (f"{r}, {v} in zip({a}, {b})", names("r", "v")),
            (f"{v} in reversed({b})", names("v")),
            (f"{v} in {b}[1:]", names("v")),
            (f"{r} in {a}[::-1]", names("r")),
            (f"{i} in reversed(range(n))", names("i")),
            (f"{i}, ({r}, {v}) in enumerate(zip({a}, {b}))", names("i", "r", "v")),
        ]
        chosen: tuple[str, Callable[[Scope], None]] = self.pick(*ways)
        return chosen

    def while_loop(self) -> None:
        j = self.fresh("j")
        kind = self.choose(4)
        if kind == 0:
            self.emit(f"{j} = n")
            with self.block(f"while {j} > 1:") as scope:
                scope.loops.append("while")
                self.emit(f"{j} = {j} // 2")
                self.emit(f"x[:{j}] += 0.2 * x[{j} : 2 * {j}]")
                self.body(1)
            return
        self.emit(f"{j} = 0")
        test = self.pick(
            f"{j} < 4",
            f"{j} < n",
            f"{j} < n and {self.data()}",
            f"{self.data()} and {j} < 4",
            f"not ({j} >= k or {self.data()})",
        )
        head = "True" if kind == 1 else test
        with self.block(f"while {head}:") as scope:
            scope.loops.append("while")
            scope.indices[j] = Index("n", 0, 0, plain=kind != 1)
            self.body()
            if kind == 1:
                self.emit(f"if {j} >= {self.pick('3', 'n - 1', 'k - 1')}:", "    break")
            self.emit(f"{j} += 1")

    # Expressions --------------------------------------------------------------------

    def closed(self, e: str) -> str:
        return e if e.isidentifier() or (e.endswith(")") and "(" in e[:9]) else f"({e})"

    def unary(self, e: str) -> str:
        return str(
            self.pick(f"np.sin({e})", f"np.tanh({e})", f"0.5 * ({e})", f"-({e})")
        )

    def of_size(self, size: str) -> list[str]:
        return [v for v, d in self.scope.vectors.items() if d == size]

    def index(self, size: str) -> str:
        """Return an index that is in range for an axis."""
        found = [(k, v) for k, v in self.scope.indices.items() if v.size == size]
        if found and self.choose(5):
            i, v = self.pick(*found[-2:])
            options = [i, i, f"{i} - {v.low + 1}", f"-{i}", f"({i} + 2) % {size}"]
            if v.low:
                options += [f"{i} - 1"] * 2
            if v.high:
                options += [f"{i} + 1"] * 2
            options.append(f"{size} - 1 - {i}")
            return str(self.pick(*options))
        more = [f"c % {size}"] if self.chance(3) else []
        return str(self.pick("0", "1", "2", "-1", "-2", f"{size} - 1", *more))

    def bounds_of(self, size: str) -> list[str]:
        """Return the indices of an axis at which slices may start and end."""
        found = self.scope.indices.items()
        return [k for k, v in found if v.size == size and v.plain]

    def element(self) -> str:
        if self.chance(3):
            a = self.pick(*self.scope.matrices)
            return f"{a}[{self.index('n')}, {self.index('m')}]"
        size = self.pick("n", "n", "m")
        return f"{self.pick(*self.of_size(size))}[{self.index(size)}]"

    def scalar(self, depth: int = 1) -> str:
        """Return an expression of a float."""
        kind = self.choose(14)
        if kind < 4:
            return self.element()
        if kind < 6 or depth <= 0:
            return str(self.pick(*self.scope.floats))
        a = self.scalar(depth - 1)
        if kind == 6:
            return self.unary(a)
        if kind == 7:
            return f"{self.closed(a)} {self.pick('+', '-', '*')} {self.scalar(0)}"
        if kind == 8:
            return f"({a} if {self.condition()} else {self.scalar(0)})"
        if kind == 9:
            length = self.length()
            one = self.part(length)
            return str(
                self.pick(
                    f"np.sum({one})",
                    f"np.dot({one}, {self.part(length)})",
                    f"{one}.sum()",
                )
            )
        if kind == 10 and self.scope.indices:
            i = self.pick(*self.scope.indices)
            return str(self.pick(f"0.2 * {i} * {self.closed(a)}", f"float({i}) * 0.2"))
        if kind == 11:
            b = self.scalar(0)
            names = ["damp({0})", "pick({0}, {1})", "max({0}, {1})", "abs({0})"]
            names += [f"{f}({{0}})" for f in self.scope.functions]
            return str(self.pick(*names)).format(a, b)
        if kind == 12:
            return f"{self.closed(a)} / (2.0 + {self.closed(self.scalar(0))} ** 2)"
        return f"0.3 * {self.closed(a)} + {self.pick('0.1', 's', '0.1 * c', 'k * 0.1')}"

    def length(self) -> tuple[str, str]:
        """Return a length of vectors: the size of an axis, and which part of it."""
        size = self.pick("n", "n", "m")
        found = self.bounds_of(size)
        kinds = ["all"] * 3 + ["less one", "less two", "half"]
        if found:
            i = self.pick(*found)
            kinds += [f"{i} first"] * 2 + [f"{i} last"] * 2
        return size, self.pick(*kinds)

    def part(self, length: tuple[str, str]) -> str:
        """Return a part of a vector or of a row or column, of the given length."""
        size, kind = length
        if kind == "all":
            keys = [":"]
        elif kind == "less one":
            keys = ["1:", ":-1"]
        elif kind == "less two":
            keys = ["1:-1", ":-2", "2:"]
        elif kind == "half":
            keys = ["::2"]
        else:
            i, where = kind.split()
            last = f"{size} - {i}"
            keys = [f":{i}", f"{last}:"] if where == "first" else [f"{i}:", f":{last}"]
        key = self.pick(*keys)
        a = self.pick(*self.scope.matrices)
        if self.choose(3) == 0:
            if size == "m":
                return f"{a}[{self.index('n')}, {key}]"
            return f"{a}[{key}, {self.index('m')}]"
        v = self.pick(*self.of_size(size))
        return f"{v}[{key}]"

    def vector(self, length: tuple[str, str]) -> str:
        """Return an expression of a vector."""
        a = self.part(length)
        return str(
            self.pick(
                a,
                f"np.sin({a})",
                f"{a} + {self.part(length)}",
                f"{a} * {self.part(length)}",
                f"{a} * {self.closed(self.scalar(0))}",
                f"{a} - {self.closed(self.scalar(0))}",
                f"np.flip({a})",
                f"{a}[::-1]",
                f"np.cumsum({a})",
            )
        )

    def data(self) -> str:
        """Return a condition on data."""
        a = self.scalar(0)
        return str(
            self.pick(
                f"{a} > {self.pick('0.1', '-0.2', '0.3')}",
                f"{a} < {self.scalar(0)} + 0.05",
                f"-0.5 < {a} < 0.4",
                f"abs({a}) > 0.2",
            )
        )

    def condition(self) -> str:
        kind = self.choose(8)
        found = list(self.scope.indices)
        if kind < 3 or not found:
            out = self.data()
            if self.scope.bools and self.chance(3):
                out = self.pick("found", f"not found and {out}", f"found or {out}")
            return str(out)
        i, j = self.pick(*found), self.pick(*found)
        if kind < 6:
            return str(
                self.pick(
                    f"{i} > 0",
                    f"{i} % 2 == 0",
                    f"{i} <= {j}",
                    f"{i} == {j}",
                    f"{i} < n - 2",
                    f"1 <= {i} < 3",
                    f"{i} != 1",
                    "c > 1",
                    f"c % 3 == {i}",
                )
            )
        if kind == 6:
            return f"{i} > 0 {self.pick('and', 'or')} {self.data()}"
        return f"not ({self.data()})"


def loop_program(seed: int, least: int = 3, most: int = 7) -> LoopProgram:
    """Return the program of a few statements that has this number."""
    choose = random.Random(seed).randrange
    d = Drawer(choose, least + choose(most - least + 1))
    return LoopProgram(d.program(), choose(1000))


def loop_programs() -> st.SearchStrategy[LoopProgram]:
    """Draw programs; one number each, so that they differ in everything."""
    return st.integers(0, 2**48).map(loop_program)
