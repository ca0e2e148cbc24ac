"""Random in-place NumPy programs as source text, for property tests.

A program is a function `program(x, y, s)` of two float arrays and a float. Its lines
take views of every kind, write through them, broadcast, reduce, gather and join. While
a program is drawn it is run with NumPy, line by line, so that shapes are known and
every line is legal.
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

UNARY = ("np.sin({0})", "np.tanh({0})", "np.exp(0.3 * {0})", "{0} * {0}", "-{0}")
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / (2.0 + {1} * {1})")
AUGMENTED = ("{0} += {1}", "{0} -= {1}", "{0} *= {1}")
SMALL = "0.5"


@dataclass(frozen=True)
class Program:
    """A program as text, and arguments for it."""

    source: str
    args: tuple[Any, ...]

    def function(self) -> Callable[..., Any]:
        """Compile the text; its lines are found by tracebacks and by the converter."""
        name = f"<program {hash(self.source):x}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[name] = (len(self.source), None, lines, name)
        scope: dict[str, Any] = {"np": np}
        exec(compile(self.source, name, "exec"), scope)
        f: Callable[..., Any] = scope["program"]
        return f

    def fresh(self) -> list[Any]:
        """Return copies of the arguments."""
        return [a.copy() if isinstance(a, np.ndarray) else a for a in self.args]

    def __repr__(self) -> str:
        shown = ", ".join(repr(a) for a in self.args)
        return f"{self.source}\n# arguments: {shown}"


class _Drawer:
    """Draws one program; `env` holds NumPy's values of its variables."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        n, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        rng = np.random.default_rng(draw(st.integers(0, 10_000)))
        x = rng.uniform(-1.0, 1.0, (n, m))
        y = rng.uniform(-1.0, 1.0, m)
        self.args = (x, y, float(rng.uniform(0.5, 1.5)))
        self.env: dict[str, Any] = {"x": x.copy(), "y": y.copy(), "s": self.args[2]}
        self.lines: list[str] = []

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def arrays(self, legal: Callable[[Any], bool] = lambda a: True) -> list[str]:
        found = [
            k for k, v in self.env.items() if isinstance(v, np.ndarray) and legal(v)
        ]
        return found or ["x"]

    def emit(self, line: str) -> bool:
        """Run a line in NumPy; drop it if it is illegal or its values are large."""
        trial = dict(self.env)
        saved = {k: v.copy() for k, v in trial.items() if isinstance(v, np.ndarray)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(line, {"np": np}, trial)
        except (ValueError, IndexError, TypeError, RuntimeWarning):
            return self._undo(saved)
        values = [v for v in trial.values() if isinstance(v, np.ndarray | np.generic)]
        big = any(v.size and np.max(np.abs(v)) > 20 for v in map(np.asarray, values))
        if big or any(np.ndim(v) > 3 or np.size(v) > 80 for v in values):
            return self._undo(saved)
        self.env = trial
        self.lines.append(line)
        return True

    def _undo(self, saved: dict[str, Any]) -> bool:
        for k, v in saved.items():
            np.copyto(self.env[k], v)
        return False

    def name(self) -> str:
        return f"v{len(self.lines)}"

    # Lines --------------------------------------------------------------------------

    def key(self, shape: tuple[int, ...]) -> str:
        parts = []
        for n in shape[: self.draw(st.integers(1, max(len(shape), 1)))]:
            kind = self.draw(st.integers(0, 7))
            if kind == 0 and n:
                parts.append(str(self.draw(st.integers(-n, n - 1))))
            elif kind == 1:
                parts.append("::-1")
            elif kind == 2:
                parts.append(f"{self.draw(st.integers(-2, 2))}:")
            elif kind == 3:
                parts.append(f":{self.draw(st.integers(-2, 5))}")
            elif kind == 4:
                parts.append("::2")
            elif kind == 5:
                parts += ["None", ":"]
            else:
                parts.append(":")
        if self.draw(st.booleans()) and len(parts) < len(shape):
            parts.insert(self.draw(st.sampled_from([0, len(parts)])), "...")
        return ", ".join(parts) or "..."

    def view_of(self, a: str) -> str:
        v = self.env[a]
        kinds = [f"{a}[{self.key(v.shape)}]"] * 3 + [f"{a}.T", f"{a}.reshape(-1)"]
        if v.ndim == 2:
            kinds += [
                f"np.diagonal({a}).copy()",
                f"np.flip({a}, 1)",
                f"{a}.swapaxes(0, 1)",
            ]
        if v.ndim >= 1:
            kinds += [f"np.flip({a})", f"{a}.ravel()", f"{a}[None]"]
        return str(self.pick(kinds))

    def part(self) -> str:
        """Return an array variable, or a part of one."""
        a = self.pick(self.arrays())
        v = self.env[a]
        if v.ndim and self.draw(st.booleans()):
            return f"{a}[{self.key(v.shape)}]"
        return str(a)

    def value(self) -> str:
        """Return an expression."""
        kind = self.draw(st.integers(0, 9))
        a, b = self.part(), self.part()
        if kind <= 2:
            return str(self.pick(UNARY)).format(a)
        if kind <= 5:
            return str(self.pick(BINARY)).format(a, b)
        if kind == 6:
            return str(self.pick([f"{a} * s", f"{SMALL} * {a}", f"{a} + s", "s"]))
        if kind == 7:
            axis = self.pick(["", "axis=0", "axis=-1", "axis=0, keepdims=True"])
            name = self.pick(["sum", "mean"])
            return f"np.{name}({a}, {axis})" if axis else f"np.{name}({a})"
        if kind == 8:
            return f"np.where({self.mask(a)}, {a}, {SMALL})"
        return a

    def mask(self, a: str) -> str:
        return f"np.arange({a}.size).reshape({a}.shape) % 2 == 0"

    def line(self) -> None:
        kind = self.draw(st.integers(0, 11))
        v = self.name()
        if kind <= 1:
            self.emit(f"{v} = {self.value()}")
        elif kind <= 4:
            self.emit(f"{v} = {self.view_of(self.pick(self.arrays()))}")
        elif kind <= 6:
            self.emit(f"{self.target()} = {self.value()}")
        elif kind <= 8:
            self.emit(str(self.pick(AUGMENTED)).format(self.target(), self.value()))
        elif kind == 9:
            self.emit(self.fancy(v))
        elif kind == 10:
            self.emit(self.joined(v))
        else:
            self.emit(self.out(v))

    def target(self) -> str:
        a = self.pick(self.arrays(lambda v: v.flags.writeable))
        return f"{a}[{self.key(self.env[a].shape)}]"

    def fancy(self, v: str) -> str:
        a = self.pick(self.arrays(lambda u: u.ndim >= 1 and len(u)))
        n = len(self.env[a])
        size = self.draw(st.integers(1, 3))
        index = [self.draw(st.integers(-n, n - 1)) for _ in range(size)]
        mask = [self.draw(st.booleans()) for _ in range(n)]
        return str(
            self.pick(
                [
                    f"{v} = {a}[{index}]",
                    f"{a}[{index}] = {self.value()}",
                    f"{a}[{index}] += {self.value()}",
                    f"np.add.at({a}, {index}, {SMALL})",
                    f"{a}[np.array({mask})] = {SMALL}",
                    f"{a}[np.array({mask})] *= s",
                ]
            )
        )

    def joined(self, v: str) -> str:
        a, b = self.part(), self.part()
        return str(
            self.pick(
                [
                    f"{v} = np.concatenate([{a}, {b}])",
                    f"{v} = np.stack([{a}, {b}])",
                    f"{v} = np.dot({a}, {b})",
                    f"{v} = np.cumsum({a})",
                    f"{v} = np.zeros({a}.shape)",
                    f"{v} = {a}.copy()",
                ]
            )
        )

    def out(self, v: str) -> str:
        a = self.pick(self.arrays(lambda u: u.flags.writeable and u.ndim >= 1))
        return str(
            self.pick(
                [
                    f"np.sin({a}, out={a})",
                    f"np.multiply({self.part()}, {SMALL}, out={a})",
                    f"np.add({a}, {self.part()}, out={a})",
                    f"{v} = {a} if s > 100.0 else {a}[...]",
                ][:3]
            )
        )


@st.composite
def programs(draw: Any, min_lines: int = 2, max_lines: int = 5) -> Program:
    """Draw a program of a few lines; it returns its arguments and its last values."""
    d = _Drawer(draw)
    for _ in range(draw(st.integers(min_lines, max_lines))):
        d.line()
    made = [k for k, v in d.env.items() if isinstance(v, np.ndarray | np.generic)]
    names = ["x", "y", *made[2:][-2:]]
    body = "\n".join(f"    {line}" for line in d.lines)
    source = f"def program(x, y, s):\n{body}\n    return {', '.join(names)},\n"
    return Program(source, d.args)
