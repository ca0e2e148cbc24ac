"""Loops whose iterations need the one before: registers, and the order of sums.

Most tests run the generated source as plain Python, over memory that knows its bounds.
"""

import copy
import math
import random
import re
from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import build
from retrograde.codegen.emit import Emitter
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import drop_unused
from retrograde.ir.dims import Symbol
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.passes.manager import PIPELINES
from retrograde.passes.manager import run as run_passes
from retrograde.passes.vjp import vjp

PURE = (*PIPELINES["pure"],)
LOWER = (*PIPELINES["optimize"], *PIPELINES["lower"])


def load(p: Any, i: int, *scope: int) -> Any:
    assert 0 <= i < len(p)
    return p[i]


def store(p: Any, i: int, x: Any, *scope: int) -> None:
    assert 0 <= i < len(p)
    p[i] = x


def move(p: Any, i: int, q: Any, j: int, n: int) -> None:
    p[i : i + n] = q[j : j + n]


def fill(p: Any, i: int, n: int, x: Any) -> None:
    p[i : i + n] = x


MACHINE: dict[str, Any] = {
    "load": load,
    "store": store,
    "copy": move,
    "fill": fill,
    "size": np.size,
    "pointer": lambda a: a.reshape(-1),
    "reassoc_add": lambda x, y: x + y,
    "multiply_add": lambda x, y, z: x * y + z,
    "where": lambda c, x, y: x if c else y,
    "tanh": math.tanh,
    "cast": lambda p, dtype: p.view(dtype),
    "part": lambda p, i, dtype: p[i:].view(dtype),
    "offset": lambda p, i: p[i:],
    "float64": np.float64,
}


def source_of(f: Func) -> str:
    program = lower(run_passes(f, LOWER), "f")
    drop_unused(program)
    return Emitter(program).source()


def loop_of(source: str) -> str:
    """Return the innermost loop, the last one of the source."""
    lines = source.splitlines()
    start = max(k for k, line in enumerate(lines) if " for " in line)
    indent = lines[start].index("for")
    inside = [x for x in lines[start + 1 :] if len(x) - len(x.lstrip()) > indent]
    return "\n".join(inside)


def interpreted(source: str, f: Func, args: list[Any], **sizes: int) -> list[Any]:
    """Run the source as Python; return the results."""
    args = copy.deepcopy(args)
    lines = [x for x in source.splitlines() if not x.startswith("from ")]
    scope = dict(MACHINE)
    exec("\n".join(lines), scope)
    names = re.search(r"def entry\((.*)\)", source)
    assert names is not None
    memory: dict[str, Any] = {f"n_{name}": size for name, size in sizes.items()}
    memory |= {f"a{k}": x for k, x in enumerate(args)}
    memory |= {f"r{k}": np.empty_like(args[0]) for k, _ in enumerate(f.results)}
    memory["arena"] = np.zeros(1 << 14, np.uint8)
    assert scope["entry"](*(memory[x] for x in names[1].split(", "))) == 0
    updated = dict(f.updates)
    return [
        memory[f"a{updated[k]}" if k in updated else f"r{k}"]
        for k, _ in enumerate(f.results)
    ]


def held(f: Func, args: list[Any], **sizes: int) -> str:
    """Hold the source against the interpreter; return the source."""
    source = source_of(f)
    symbols = {Symbol(name): size for name, size in sizes.items()}
    want = run(f, *copy.deepcopy(args), symbols=symbols)
    for x, y in zip(interpreted(source, f, args, **sizes), want, strict=True):
        scale = np.max(np.abs(y), initial=1.0)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * scale)
    return source


def checked(body: str, sizes: tuple[int, ...] = (3, 4, 9), over: str = "1..n") -> str:
    """Hold a loop over j against the interpreter; return the source of its body.

    `%p` is a[j - 1], `%q` is a[j], `%y` is x[j]; the body defines `%u` and writes it.
    """
    text = f"""traced @f(%a: f64[n], %x: f64[n]) -> f64[n] where n - 3 >= 0 {{
      for j in {over} {{
        %p: f64[] &%a = select %a, j - 1 {{axis=0}}
        %q: f64[] &%a = select %a, j {{axis=0}}
        %y: f64[] &%x = select %x, j {{axis=0}}
        {body}
        yield
      }}
      return %a
    }}"""
    f = run_passes(parse(text), PURE)
    rng = np.random.default_rng(0)
    for n in sizes:
        source = held(f, [rng.normal(size=n), rng.normal(size=n)])
    return loop_of(source)


def loads(source: str) -> int:
    return source.count(" = load(")


# ---------------------------------------------------------------- order of sums


def test_late_operand_comes_last() -> None:
    body = checked("""
        %s: f64 = add %p, %q
        %t: f64 = add %s, %y
        %q <- %t""")
    known, last = re.findall(r"(v\d+) = \((v\d+) \+ (v\d+)\)", body)
    assert last[1] == known[0]  # (q + y) + p
    assert re.search(rf"{last[2]} = w\d+", body)


def test_number_goes_to_the_terms() -> None:
    body = checked("""
        %s: f64 = add %p, %q
        %t: f64 = subtract %s, %y
        %u: f64 = divide %t, 9.0
        %q <- %u""")
    assert body.count("multiply_add") == 1
    assert "/" not in body


@pytest.mark.parametrize(
    ("late", "template"),
    [
        ("%t: f64 = add %m, %y", "multiply_add(v"),
        ("%t: f64 = subtract %y, %m", "multiply_add(-v"),
        ("%t: f64 = subtract %m, %y", ", -v"),
    ],
    ids=["plus", "minus", "from"],
)
def test_late_product_is_added_by_one_operation(late: str, template: str) -> None:
    body = checked(f"""
        %m: f64 = multiply %p, %q
        {late}
        %q <- %t""")
    assert "multiply_add(" in body
    assert template in body


def test_sum_of_negative_terms_keeps_its_signs() -> None:
    checked("""
        %s: f64 = subtract %p, %q
        %t: f64 = subtract %s, %y
        %q <- %t""")
    checked("""
        %s: f64 = subtract %q, %p
        %r: f64 = subtract %s, %y
        %t: f64 = multiply %r, -0.25
        %q <- %t""")


def test_second_last_value_is_added_before_the_last() -> None:
    text = """traced @f(%a: f64[n], %x: f64[n]) -> f64[n] where n - 3 >= 0 {
      for j in 2..n {
        %o: f64[] &%a = select %a, j - 2 {axis=0}
        %p: f64[] &%a = select %a, j - 1 {axis=0}
        %q: f64[] &%a = select %a, j {axis=0}
        %y: f64[] &%x = select %x, j {axis=0}
        %b: f64 = multiply %p, 0.5
        %c: f64 = multiply %o, 0.25
        %s: f64 = add %b, %c
        %t: f64 = add %s, %y
        %q <- %t
        yield
      }
      return %a
    }"""
    f = run_passes(parse(text), PURE)
    for n in (3, 4, 9):
        source = held(f, [np.arange(n) * 1.5 - 2.0, np.arange(n) + 0.5])
    first, second = re.findall(r"multiply_add\(\w+, ([\d.]+), ", loop_of(source))
    assert (first, second) == ("0.25", "0.5")


@pytest.mark.parametrize(
    "body",
    [
        "%s: f64 = add %y, %y\n%t: f64 = add %s, %q\n%q <- %t",
        "%s: f64 = floor %p\n%t: f64 = divide %s, 9.0\n%q <- %t",
        "%s: f64 = add %q, %y\n%t: f64 = divide %s, 9.0\n%q <- %t",
        "%s: f64 = add %p, %q\n%t: f64 = divide %s, %y\n%q <- %t",
        "%s: f64 = add %p, %q\n%t: f64 = divide %s, 0.0\n%q <- %t",
        "%s: f64 = add %p, %q\n%t: f64 = divide %s, 1e-310\n%q <- %t",
    ],
    ids=["known", "no-sum", "known-quotient", "variable", "zero", "overflow"],
)
def test_other_quotients_and_sums_stay(body: str) -> None:
    with np.errstate(all="ignore"):
        known = run_passes(parse(traced(body)), PURE)
    assert "multiply_add" not in source_of(known)


def traced(body: str) -> str:
    return f"""traced @f(%a: f64[n], %x: f64[n]) -> f64[n] where n - 3 >= 0 {{
      for j in 1..n {{
        %p: f64[] &%a = select %a, j - 1 {{axis=0}}
        %q: f64[] &%a = select %a, j {{axis=0}}
        %y: f64[] &%x = select %x, j {{axis=0}}
        {body}
        yield
      }}
      return %a
    }}"""


def test_carried_scalar_is_late() -> None:
    text = """func @f(%a: f64[n], %x: f64[n]) -> f64[n] into %a where n - 3 >= 0 {
      %b: f64[n], %l: f64 = for j in 0..n carry(%c: f64[n] = %a, %s: f64 = 0.5) {
        %q: f64[] = select %c, j {axis=0}
        %y: f64[] = select %x, j {axis=0}
        %m: f64 = multiply %s, %q
        %t: f64 = add %m, %y
        %u: f64 = add %t, %q
        %d: f64[n] = select_scatter %c, %u, j {axis=0}
        yield %d, %u
      }
      return %b
    }"""
    source = held(parse(text), [np.arange(6) * 0.3 - 1.0, np.arange(6) + 0.5])
    assert loop_of(source).count("multiply_add") == 1


# ---------------------------------------------------------------- registers


def test_value_of_the_iteration_before_stays_in_a_register() -> None:
    body = checked("%s: f64 = multiply %p, %y\n%q <- %s", (3, 4, 9))
    assert loads(body) == 1  # x[j]


def test_loop_without_iterations_reads_nothing() -> None:
    body = "%s: f64 = multiply %p, %y\n%q <- %s"
    text = traced(body).replace("1..n", "1..n - 2")
    f = run_passes(parse(text), PURE)
    source = held(f, [np.ones(3), np.ones(3)])
    assert re.search(r"if .*> 0", source)
    held(f, [np.arange(5.0), np.arange(5.0)])


GRID = """traced @f(%a: f64[n,m]) -> f64[n,m] where n - 3 >= 0, m - 3 >= 0 {
  for i in 1..n - 1 {
    for j in 1..m - 1 {
      %up: f64[m] &%a = select %a, i - 1 {axis=0}
      %row: f64[m] &%a = select %a, i {axis=0}
      %down: f64[m] &%a = select %a, i + 1 {axis=0}
      BODY
      yield
    }
    yield
  }
  return %a
}"""


def grid(body: str, shapes: tuple[tuple[int, int], ...] = ((3, 3), (4, 7))) -> str:
    f = run_passes(parse(GRID.replace("BODY", body)), PURE)
    rng = np.random.default_rng(1)
    for shape in shapes:
        source = held(f, [rng.normal(size=shape)])
    return source


def read(name: str, row: str, lag: int) -> str:
    return f"%{name}: f64[] &%{row} = select %{row}, j + {lag} {{axis=0}}\n"


def test_rows_are_read_once() -> None:
    rows = ("up", "row", "down")
    places = [(f"x{r}{k}", row, k - 1) for r, row in enumerate(rows) for k in range(3)]
    body = "".join(read(*p) for p in places)
    body += "%s0: f64 = add %x00, %x01\n"
    names = [name for name, _, _ in places[2:]]
    for k, name in enumerate(names):
        body += f"%s{k + 1}: f64 = add %s{k}, %{name}\n"
    body += f"%t: f64 = divide %s{len(names)}, 9.0\n%x11 <- %t"
    source = loop_of(grid(body))
    assert loads(source) == 3
    assert source.count("store(") == 1


def scattered(row: str, lag: int, k: int) -> str:
    return (
        read(f"d{k}", row, lag) + f"%e{k}: f64 = add %d{k}, %g\n" + f"%d{k} <- %e{k}\n"
    )


def test_additions_become_running_sums() -> None:
    body = read("x", "row", 0) + "%g: f64 = multiply %x, 0.125\n"
    targets = [(row, lag) for row in ("up", "row", "down") for lag in (-1, 0, 1)]
    body += "".join(scattered(*t, k) for k, t in enumerate(targets))
    source = loop_of(grid(body))
    assert loads(source) == 3
    assert source.count("store(") == 3


def with_other_row(index: str, facts: str = "") -> Func:
    """Return a loop that reads another row beside what it writes in row i."""
    text = GRID.replace("@f(", "@f[q](").replace(
        "m - 3 >= 0 {", f"m - 3 >= 0{facts} {{"
    )
    text = text.replace("select %a, i + 1 {", f"select %a, {index} {{")
    body = read("x", "row", -1) + read("y", "down", 0) + read("v", "down", 1)
    body += read("z", "row", 0) + "%s: f64 = add %x, %y\n%t: f64 = add %s, %v\n"
    return run_passes(parse(text.replace("BODY", body + "%z <- %t")), PURE)


def test_rows_that_may_be_the_same_stay_in_memory() -> None:
    f = with_other_row("q", ", q >= 0, n - q - 1 >= 0")
    for q in (0, 2, 3):
        source = held(f, [np.random.default_rng(q).normal(size=(5, 6))], q=q)
    assert loads(loop_of(source)) == 3


def test_rows_that_differ_get_registers() -> None:
    f = with_other_row("i - 1")
    source = held(f, [np.random.default_rng(0).normal(size=(5, 6))], q=0)
    assert loads(loop_of(source)) == 1


def test_other_row_needs_a_proof() -> None:
    """A row is at most one row long only where the bounds of the loop say so."""
    text = """traced @f(%a: f64[n]) -> f64[n] where n - 9 >= 0 {
      for j in 2..n - 4 {
        %o: f64[] &%a = select %a, j + 4 {axis=0}
        %p: f64[] &%a = select %a, j - 1 {axis=0}
        %q: f64[] &%a = select %a, j {axis=0}
        %s: f64 = add %p, %q
        %q <- %s
        %t: f64 = multiply %o, %s
        %o <- %t
        yield
      }
      return %a
    }"""
    f = run_passes(parse(text), PURE)
    source = held(f, [np.linspace(-1, 1, 17)])
    assert loads(loop_of(source)) == 3


def test_reads_ahead_get_no_registers() -> None:
    """No iteration reads what one before has written: nothing is carried."""
    text = """traced @f(%a: f64[n]) -> f64[n] where n - 3 >= 0 {
      for j in 0..n - 1 {
        %p: f64[] &%a = select %a, j + 1 {axis=0}
        %q: f64[] &%a = select %a, j {axis=0}
        %s: f64 = add %p, %q
        %q <- %s
        yield
      }
      return %a
    }"""
    source = held(run_passes(parse(text), PURE), [np.linspace(-1, 1, 5)])
    assert loads(loop_of(source)) == 2


def test_iteration_that_may_fail_reads_nothing_ahead() -> None:
    """The last row is found to be none by the first iteration, not before."""
    source = source_of(with_other_row("i + 2"))
    assert "return 1" in source
    assert not re.search(r"\bw\d+ = ", source)


# ---------------------------------------------------------------- random loops


def random_loop(rng: random.Random) -> str:
    """Return a loop over a grid that reads, writes and adds around its place."""
    body, values = "", ["0.5"]
    rows = rng.sample(("up", "row", "down"), rng.choice((1, 1, 2, 3)))
    for k in range(rng.randint(2, 9)):
        row, lag = rng.choice(rows), rng.choice((-1, 0, 0, 1))
        body += read(f"v{k}", row, lag)
        values.append(f"%v{k}")
        x, y = rng.choice(values), rng.choice(values)
        match rng.choice(("read", "write", "add", "mix", "mix")):
            case "write":
                body += f"%c{k}: f64 = multiply {x}, 0.75\n%v{k} <- %c{k}\n"
            case "add":
                body += f"%c{k}: f64 = multiply {x}, 0.25\n"
                body += f"%e{k}: f64 = add %v{k}, %c{k}\n%v{k} <- %e{k}\n"
            case "mix":
                op = rng.choice(("add", "subtract", "add", "multiply"))
                body += f"%c{k}: f64 = {op} {x}, {y}\n"
                body += f"%n{k}: f64 = {rng.choice(('tanh', 'negative'))} %c{k}\n"
                scaled = rng.choice((f"divide %c{k}, 3.0", f"multiply %c{k}, 0.5"))
                body += f"%f{k}: f64 = {scaled}\n"
                values.append(rng.choice((f"%c{k}", f"%n{k}", f"%f{k}")))
    last = f"%last: f64 = tanh {values[-1]}\n" + read("z", rows[0], 0)
    return body + last + "%z <- %last"


@pytest.mark.parametrize("part", range(4))
def test_random_loops_keep_their_meaning(part: int) -> None:
    for seed in range(part * 20, part * 20 + 20):
        body = random_loop(random.Random(seed))
        f = run_passes(parse(GRID.replace("BODY", body)), PURE)
        data = np.random.default_rng(seed)
        for shape in ((3, 3), (4, 4), (5, 7)):
            held(f, [data.normal(size=shape)])


@pytest.mark.parametrize("part", range(2))
def test_adjoints_of_random_loops_keep_their_meaning(part: int) -> None:
    """They run downwards, and add where the loop reads."""
    for seed in range(part * 20, part * 20 + 20):
        body = random_loop(random.Random(seed))
        f = run_passes(parse(GRID.replace("BODY", body)), PURE)
        both = vjp(f, [0], [0])
        data = np.random.default_rng(seed)
        for shape in ((3, 3), (5, 6)):
            held(both, [data.normal(size=shape), data.normal(size=shape)])


def test_compiled_code_agrees() -> None:
    body = read("l", "row", -1) + read("r", "row", 1) + read("u", "up", 0)
    body += read("x", "row", 0) + "%s: f64 = add %l, %r\n%t: f64 = subtract %s, %u\n"
    f = run_passes(
        parse(GRID.replace("BODY", body + "%q: f64 = divide %t, 3.0\n%x <- %q")), PURE
    )
    kernel = build(run_passes(vjp(f, [0], [0]), LOWER))
    assert "multiply_add" in kernel.source
    rng = np.random.default_rng(0)
    for shape in ((3, 3), (8, 5)):
        args = [rng.normal(size=shape), rng.normal(size=shape)]
        want = run(vjp(f, [0], [0]), *copy.deepcopy(args))
        for x, y in zip(kernel(copy.deepcopy(args)), want, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)
