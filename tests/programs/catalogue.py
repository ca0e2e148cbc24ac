"""The catalogue of programs that say what autograd does with views and writes.

A test of one of its programs is marked with `@line`: number, what we do, the program as
PyTorch runs it, and what PyTorch prints. docs/semantics.md is made of these marks:

    python tests/programs/catalogue.py
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "semantics.md"
TESTS = "test_semantics_*.py"

Status = Literal["kept", "numpy", "better"]
SAYS: dict[str, str] = {
    "kept": "the same",
    "numpy": "NumPy's",
    "better": "better",
}
SECTIONS = {
    1: "Leaves, intermediates, no_grad",
    2: "Views and their bases",
    3: "Version counters and saved values",
    4: "backward, grad, retain_grad, hooks",
    5: "Overlap, broadcasting, dtypes, indexing",
    6: "Functions of one's own",
    7: "Compiled functions",
}

F = TypeVar("F", bound=Callable[..., object])


class Line(NamedTuple):
    """One program of the catalogue, and the test that holds us to it."""

    number: str
    status: Status
    program: str
    torch: str
    ours: str
    file: str = ""
    test: str = ""

    @property
    def key(self) -> tuple[int, ...]:
        """The number as it is sorted: "2.10" comes after "2.9"."""
        return tuple(map(int, self.number.split(".")))


def line(
    number: str, status: Status, program: str, *, torch: str, ours: str = ""
) -> Callable[[F], F]:
    """Mark the test of program `number`: "2.3" is the third of section 2.

    `program` runs under PyTorch after `PRELUDE`. `torch` is what it prints there: the
    lines joined by " | ", each perhaps cut to its beginning. `status` is "kept" where
    we do the same, "numpy" where values or aliasing are NumPy's instead, "better" where
    PyTorch is silently wrong or refuses what can be had; then `ours` says what we do.
    """
    assert status in SAYS, status
    assert bool(ours) == (status != "kept"), "say what we do where it is not the same"

    def mark(test: F) -> F:
        return test

    return mark


# What programs are written with.
PRELUDE = """
import torch, numpy as np
def L(*v): return torch.tensor([float(x) for x in v], requires_grad=True)
def Z(*v): return torch.tensor([float(x) for x in v])
def n(t): return t.grad_fn and t.grad_fn.name().split("::")[-1]
def C(f): return torch.compile(f, backend="aot_eager")
def E(f):
    try: f()
    except Exception as e: print(str(e).strip().split("\\n")[0])
"""


def lines() -> list[Line]:
    """Return the marks of all tests, in order, without running anything."""
    found: list[Line] = []
    for path in sorted((ROOT / "tests").rglob(TESTS)):
        found += _lines_of(path)
    return sorted(found, key=lambda x: x.key)


def _lines_of(path: Path) -> Iterator[Line]:
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "line":
                args = [ast.literal_eval(x) for x in mark.args]
                rest = {k.arg: ast.literal_eval(k.value) for k in mark.keywords}
                number, status, program = args
                yield Line(
                    number,
                    status,
                    program.strip(),
                    rest["torch"],
                    rest.get("ours", ""),
                    path.relative_to(ROOT).as_posix(),
                    node.name,
                )


# ---------------------------------------------------------------- the table

HEAD = """\
# What autograd does with views and writes

Values and aliasing are NumPy's, bookkeeping is PyTorch's, and nothing is silently
wrong. Each row is a program with what it prints under PyTorch, what we do, and the test
that says so: "the same", "NumPy's" where values or aliasing differ, "better" where
PyTorch is wrong in silence or refuses what can be had.

In the programs `L(*v)` is a float leaf that requires a gradient, `Z(*v)` one that does
not, `n(t)` the name of `t.grad_fn`, `E(f)` prints the error of `f()`, `C(f)` is the
compiled function. Lines that were printed are separated by `|` and cut.

Made by `python tests/programs/catalogue.py`.
"""


def table() -> str:
    """Return the text of docs/semantics.md."""
    out = [HEAD]
    section = 0
    for x in lines():
        if x.key[0] != section:
            section = x.key[0]
            out.append(f"\n## {section}. {SECTIONS[section]}\n\n")
            out.append("| | program | PyTorch | ours | test |\n|-|-|-|-|-|\n")
        says = SAYS[x.status] + (f": {x.ours}" if x.ours else "")
        cells = (x.number, _code(x.program), _code(x.torch), _text(says), _test(x))
        out.append("| " + " | ".join(cells) + " |\n")
    return "".join(out)


def _code(text: str) -> str:
    return "<br>".join(map(_code_line, text.splitlines()))


def _code_line(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    body = _text(text.strip())
    mark = "``" if "`" in body else "`"
    return "&emsp;" * (indent // 4) + f"{mark}{body}{mark}" if body else ""


def _text(text: str) -> str:
    return text.replace("|", "\\|")


def _test(x: Line) -> str:
    return f"[{x.test.removeprefix('test_')}](../{x.file})"


if __name__ == "__main__":
    TABLE.write_text(table())
