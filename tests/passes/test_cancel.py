"""Writes that another write makes up for are cancelled, and only those."""

import copy
import random

import numpy as np
import pytest
from differences import check_joint, floats
from hypothesis import given, settings
from hypothesis import strategies as st

from retrograde.codegen import build
from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes import manager
from retrograde.passes.cancel import cancel
from retrograde.passes.vjp import vjp

HEAD = "func @f(%d: f64[n], %t: f64[], %g: f64[], %w: f64[n - 2], %k: i64)"
FACTS = "where n - 4 >= 0"
ZERO = "%a: f64[n] = select_scatter %d, 0, 0 {axis=0}"
BESIDE = "%b: f64[n] = select_scatter_add %a, %t, 1 {axis=0}"
AGAIN = "%c: f64[n] = select_scatter_add %b, %g, 0 {axis=0}"

# Lines, what is returned, and how many writes are left.
CANCELLED = {
    "zeros, then an addition": ((ZERO, BESIDE, AGAIN), "%c: f64[n]", 2),
    "another array of zeros": (
        (
            "%z: f64[n - 2] = full 0.0 {dtype=f64, shape=(n - 2,)}",
            "%a: f64[n] = slice_scatter %d, %z, 2 {axis=0, size=n - 2, step=1}",
            BESIDE,
            "%c: f64[n] = slice_scatter_add %b, %w, 2 {axis=0, size=n - 2, step=1}",
        ),
        "%c: f64[n]",
        2,
    ),
    "a broadcast addition": (
        (
            "%a: f64[n] = slice_scatter %d, 0, 2 {axis=0, size=n - 2, step=1}",
            BESIDE,
            "%c: f64[n] = slice_scatter_add %b, %w, 2 {axis=0, size=n - 2, step=1}",
        ),
        "%c: f64[n]",
        2,
    ),
    "a write, then another one": (
        (
            "%a: f64[n] = select_scatter_add %d, %t, 0 {axis=0}",
            BESIDE,
            "%c: f64[n] = select_scatter %b, %g, 0 {axis=0}",
        ),
        "%c: f64[n]",
        2,
    ),
    "reads of other parts": (
        (
            ZERO,
            BESIDE,
            "%r: f64[n - 1] = slice %b, 1 {axis=0, size=n - 1, step=1}",
            "%s: f64[n - 1] = sin %r",
            "%u: f64[n] = slice %b, 0 {axis=0, size=n, step=1}",
            "%v: f64[] = select %u, 2 {axis=0}",
            AGAIN,
        ),
        "%c: f64[n], %s: f64[n - 1], %v: f64[]",
        2,
    ),
    "what is there already": (
        (
            "%v: f64[n - 2] = slice %d, 2 {axis=0, size=n - 2, step=1}",
            "%s: f64[n - 2] = sin %v",
            "%a: f64[n] = select_scatter %d, %t, 0 {axis=0}",
            BESIDE,
            "%c: f64[n] = slice_scatter %b, %v, 2 {axis=0, size=n - 2, step=1}",
        ),
        "%c: f64[n], %s: f64[n - 2]",
        2,
    ),
    "taken out, zeroed and added again": (
        ("%v: f64[] = select %d, 0 {axis=0}", ZERO, BESIDE, AGAIN.replace("g", "v")),
        "%c: f64[n]",
        1,
    ),
    "changed, and changed back": (
        (
            "%v: f64[] = select %d, 0 {axis=0}",
            "%b: f64[n] = select_scatter_add %d, %t, 0 {axis=0}",
            "%c: f64[n] = select_scatter %b, %v, 0 {axis=0}",
        ),
        "%c: f64[n]",
        0,
    ),
    "the same computed index": (
        (
            "%a: f64[n] = select_scatter %d, 0, %k {axis=0}",
            "%c: f64[n] = select_scatter_add %a, %g, %k {axis=0}",
        ),
        "%c: f64[n]",
        1,
    ),
}
KEPT = {
    "the part is read": (
        (ZERO, BESIDE, "%v: f64[] = select %b, 0 {axis=0}", AGAIN),
        "%c: f64[n], %v: f64[]",
    ),
    "the part is read through views": (
        (
            ZERO,
            BESIDE,
            "%r: f64[n - 1] = slice %b, 0 {axis=0, size=n - 1, step=1}",
            "%v: f64[] = select %r, 0 {axis=0}",
            AGAIN,
        ),
        "%c: f64[n], %v: f64[]",
    ),
    "the whole is read": (
        (ZERO, BESIDE, "%s: f64[n] = sin %b", AGAIN),
        "%c: f64[n], %s: f64[n]",
    ),
    "the whole is a result": ((ZERO, BESIDE, AGAIN), "%c: f64[n], %a: f64[n]"),
    "a loop reads it": (
        (
            ZERO,
            BESIDE,
            "%s: f64 = for i in 0..n carry(%p: f64 = 0.0) {",
            "  %e: f64[] = select %b, i {axis=0}",
            "  %q: f64 = add %p, %e",
            "  yield %q",
            "}",
            AGAIN,
        ),
        "%c: f64[n], %s: f64",
    ),
    "parts that overlap": (
        (
            ZERO,
            "%b: f64[n] = slice_scatter_add %a, %w, 0 {axis=0, size=n - 2, step=1}",
            AGAIN,
        ),
        "%c: f64[n]",
    ),
    "parts that may overlap": (
        (
            "%a: f64[n] = select_scatter %d, 0, 3 {axis=0}",
            "%b: f64[n] = slice_scatter_add %a, %w, 0 {axis=0, size=n - 2, step=1}",
            "%c: f64[n] = select_scatter_add %b, %g, 3 {axis=0}",
        ),
        "%c: f64[n]",
    ),
    "a computed index": (
        (ZERO, "%b: f64[n] = select_scatter_add %a, %t, %k {axis=0}", AGAIN),
        "%c: f64[n]",
    ),
    "a larger part is added to": (
        (
            ZERO,
            BESIDE,
            "%c: f64[n] = slice_scatter_add %b, %w, 0 {axis=0, size=n - 2, step=1}",
        ),
        "%c: f64[n]",
    ),
    "not zero": ((ZERO.replace("0,", "1.0,", 1), BESIDE, AGAIN), "%c: f64[n]"),
    "added twice": ((ZERO.replace(" %d, 0", "_add %d, %t"), AGAIN), "%c: f64[n]"),
    "two histories": (
        (
            ZERO,
            BESIDE,
            AGAIN,
            "%e: f64[n] = select_scatter_add %a, %g, 2 {axis=0}",
        ),
        "%c: f64[n], %e: f64[n]",
    ),
    "the part was changed since": (
        (
            "%v: f64[] = select %d, 0 {axis=0}",
            "%b: f64[n] = slice_scatter_add %d, %w, 0 {axis=0, size=n - 2, step=1}",
            "%c: f64[n] = select_scatter %b, %v, 0 {axis=0}",
        ),
        "%c: f64[n]",
    ),
    "another part": (
        (
            "%v: f64[] = select %d, 1 {axis=0}",
            "%c: f64[n] = select_scatter %d, %v, 0 {axis=0}",
        ),
        "%c: f64[n]",
    ),
    "a check of the index": (
        (
            "%v: f64[] = select %d, %k {axis=0}",
            "%c: f64[n] = select_scatter %d, %v, %k {axis=0}",
        ),
        "%c: f64[n]",
    ),
}


def func(lines: tuple[str, ...], results: str) -> Func:
    if "%a" not in "".join(lines):
        lines = tuple(line.replace("%a,", "%d,") for line in lines)
    if not any(line.startswith("%b") for line in lines):
        lines = tuple(line.replace("%b,", "%a,") for line in lines)
    names, types = zip(*(r.split(": ") for r in results.split(", ")), strict=True)
    given = types[0] if len(types) == 1 else f"({', '.join(types)})"
    body = "\n".join((*lines, f"return {', '.join(names)}"))
    f = parse(f"{HEAD} -> {given} {FACTS} {{\n{body}\n}}")
    verify(f)
    return f


def writes(f: Func) -> int:
    return sum(n.op.kind is Kind.SCATTER for n in walk(f.body))


def check_values(f: Func, g: Func, sizes: tuple[int, ...] = (4, 5, 9)) -> None:
    verify(g)
    rng = np.random.default_rng(0)
    for n in sizes:
        d, w = rng.normal(size=n), rng.normal(size=n - 2)
        t, h = np.array(rng.normal()), np.array(rng.normal())
        for k in (0, 1, -1):
            args = [d, t, h, w, np.int64(k)]
            want = run(f, *copy.deepcopy(args))
            for x, y in zip(run(g, *copy.deepcopy(args)), want, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", CANCELLED)
def test_writes_are_cancelled(name: str) -> None:
    lines, results, left = CANCELLED[name]
    f = func(lines, results)
    g = cancel(f)
    assert writes(g) == left < writes(f)
    check_values(f, g)


@pytest.mark.parametrize("name", KEPT)
def test_writes_are_kept(name: str) -> None:
    f = func(*KEPT[name])
    g = cancel(f)
    assert str(g) == str(f)
    check_values(f, g)


def test_what_is_put_has_the_dtype_of_the_array() -> None:
    f = parse("""func @f(%d: f32[4], %v: f64[4], %t: f32[]) -> f32[4] {
      %a: f32[4] = select_scatter %d, 0, 0 {axis=0}
      %b: f32[4] = select_scatter_add %a, %t, 1 {axis=0}
      %x: f64[] = select %v, 0 {axis=0}
      %c: f32[4] = select_scatter_add %b, %x, 0 {axis=0}
      return %c
    }""")
    g = cancel(f)
    verify(g)
    d, v = np.ones(4, np.float32), np.full(4, 0.1)
    args = [d, v, np.array(2, np.float32)]
    (got,), (want,) = run(g, *args), run(f, *args)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_a_part_of_another_dtype_is_not_there_already() -> None:
    f = parse("""func @f(%d: f64[4]) -> f64[4] {
      %v: f64[] = select %d, 0 {axis=0}
      %s: f32[] = astype %v {dtype=f32}
      %c: f64[4] = select_scatter %d, %s, 0 {axis=0}
      return %c
    }""")
    assert str(cancel(f)) == str(f)


def test_elements_that_a_view_shows_twice_are_kept() -> None:
    """Of `as_strided` with overlap, additions meet, and the last write stays."""
    f = parse(
        """func @f(%d: f64[4], %g: f64[3,2]) -> f64[4] {
      %a: f64[4] = as_strided_scatter %d, 0, 0 {shape=(3, 2), strides=(1, 1)}
      %c: f64[4] = as_strided_scatter_add %a, %g, 0 {shape=(3, 2), strides=(1, 1)}
      return %c
    }""".replace(", 0 {", " {offset=0, ")
    )
    verify(f)
    assert str(cancel(f)) == str(f)


def test_duplicate_indices_are_kept() -> None:
    f = parse("""func @f(%d: f64[4], %i: i64[3], %g: f64[3]) -> f64[4] {
      %a: f64[4] = gather_scatter %d, 0.0, %i {axes=(0,), position=0}
      %c: f64[4] = gather_scatter_add %a, %g, %i {axes=(0,), position=0}
      return %c
    }""")
    verify(f)
    assert str(cancel(f)) == str(f)


def test_what_a_body_of_a_while_reads_is_kept() -> None:
    f = parse(
        """func @f(%d: f64[4]) -> (f64[4], f64[]) {
      %r: f64[4], %s: f64[] = while carry(%x: f64[4] = %d, %y: f64[] = %e) {
        %a: f64[4] = select_scatter %x, 0, 0 {axis=0}
        %c: f64[4] = select_scatter_add %a, 1.0, 0 {axis=0}
        %v: f64[] = select %c, 1 {axis=0}
        %t: bool = less %v, 3.0
        test %t
        %w: f64[] = select %a, 0 {axis=0}
        %z: f64[4] = select_scatter_add %c, 1.0, 1 {axis=0}
        yield %z, %w
      }
      return %r, %s
    }""".replace("%y: f64[] = %e", "%y: f64[] = %e0").replace(
            "{\n      %r", "{\n      %e0: f64[] = select %d, 0 {axis=0}\n      %r", 1
        )
    )
    verify(f)
    g = cancel(f)
    d = np.array([0.5, -1.0, 2.0, 3.0])
    for a, b in zip(run(g, d.copy()), run(f, d.copy()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert writes(g) == writes(f)


class Chain:
    """Writes a random chain of writes into one array, with reads in between."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.kept = ["%d"]
        self.shown: list[tuple[str, str]] = []  # views, and their sizes
        self.last, self.count = "%d", 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def place(self) -> tuple[str, str, str]:
        """Return a view, its index and attributes, and the type of the part."""
        rng = self.rng
        if rng.random() < 0.5:
            at = rng.choice(["0", "1", "2", "n - 1", "n - 2", "m"])
            return "select", f"{at} {{axis=0}}", "[]"
        at, size = rng.choice(
            [("0", "2"), ("2", "n - 2"), ("1", "m"), ("m", "-m + n"), ("n - 1", "1")]
        )
        return "slice", f"{at} {{axis=0, size={size}, step=1}}", f"[{size}]"

    def read(self) -> None:
        view, where, shape = self.place()
        x = self.rng.choice([self.last, self.last, self.rng.choice(self.kept)])
        v = self.name()
        self.lines.append(f"{v}: f64{shape} = {view} {x}, {where}")
        self.shown.append((v, f"f64{shape}"))

    def write(self) -> None:
        rng = self.rng
        view, where, shape = self.place()
        fitting = [v for v, t in self.shown if t == f"f64{shape}"]
        new = rng.choice(["0", "0", "0.5", *fitting[-2:]])
        twin = rng.choice(["scatter", "scatter_add"])
        if twin == "scatter_add" and not new.startswith("%"):
            new = rng.choice(["0.5", "1.5"])
        x = self.name()
        self.lines.append(f"{x}: f64[n] = {view}_{twin} {self.last}, {new}, {where}")
        self.last = x
        self.kept.append(x)

    def func(self, length: int) -> Func:
        for _ in range(length):
            self.rng.choice([self.read, self.write, self.write])()
        results = [(self.last, "f64[n]")]
        if self.shown:
            results += self.rng.sample(self.shown, min(len(self.shown), 3))
        names, types = zip(*results, strict=True)
        text = "\n".join((*self.lines, f"return {', '.join(names)}"))
        kind = f"({', '.join(types)})" if len(types) > 1 else types[0]
        head = f"func @f(%d: f64[n], %w: f64[m]) -> {kind} "
        return parse(f"{head} where m - 2 >= 0, n - m - 2 >= 0 {{\n{text}\n}}")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 14))
def test_random_chains_keep_their_values(seed: int, length: int) -> None:
    f = Chain(seed).func(length)
    verify(f)
    g = cancel(f)
    verify(g)
    assert writes(g) <= writes(f)
    rng = np.random.default_rng(seed)
    for n, m in ((4, 2), (5, 2), (7, 4), (9, 3)):
        args = [rng.normal(size=n), rng.normal(size=m)]
        want = run(f, *copy.deepcopy(args))
        for x, y in zip(run(g, *copy.deepcopy(args)), want, strict=True):
            np.testing.assert_array_equal(x, y)


# Programs that change parts of an array in place; reads and writes meet in some.
UPDATES = """traced @updates(%a: f64[n,n]) -> f64[n,n] where n - 3 >= 0 {
  for k in 0..n {
    %r: f64[n - k - 1,n] &%a = slice %a, k + 1 {axis=0, size=n - k - 1, step=1}
    %c: f64[n - k - 1] &%r = select %r, k {axis=1}
    %h: f64[n] &%a = select %a, k {axis=0}
    %p: f64[] &%h = select %h, k {axis=0}
    %q: f64[n - k - 1] = divide %c, %p
    %c <- %q
    %s: f64[n - k - 1,n - k - 1] &%r = slice %r, START {axis=1, size=n - k - 1, step=1}
    %e: f64[n - k - 1,1] &%c = expand_dims %c {axis=(1,)}
    %o: f64[n - k - 1] &%h = slice %h, k + 1 {axis=0, size=n - k - 1, step=1}
    %m: f64[n - k - 1,n - k - 1] = multiply %e, %o
    %t: f64[n - k - 1,n - k - 1] = subtract %s, %m
    %s <- %t
    yield
  }
  return %a
}"""


@pytest.mark.parametrize("start", ["k + 1", "k", "0"])
def test_gradients_of_updates_in_place(start: str) -> None:
    f = parse(UPDATES.replace("START", start))
    verify(f)
    f = manager.run(f, ("functionalize",), verify=True)
    joint = manager.run(vjp(f, floats(f)), manager.PIPELINES["optimize"], verify=True)
    lowered = manager.run(joint, ("shifts", "unnest", "cancel"), verify=True)
    kernel = build(manager.run(joint, manager.PIPELINES["lower"], verify=True))
    rng = np.random.default_rng(0)
    for n in (3, 4, 6):
        a = rng.normal(size=(n, n)) + n * np.eye(n)
        check_joint(f, lowered, [a], n)
        cts = [rng.normal(size=(n, n)) for r in f.results]
        args = [a, *cts]
        want = run(joint, *copy.deepcopy(args))
        for x, y in zip(kernel(copy.deepcopy(args)), want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_the_reverse_of_an_update_copies_and_zeroes_nothing() -> None:
    """Of the trailing block, the reverse of right-looking LU only reads."""
    f = parse(UPDATES.replace("START", "k + 1"))
    f = manager.run(f, ("functionalize",))
    joint = vjp(f, floats(f))
    names = (*manager.PIPELINES["optimize"], "shifts", "unnest", "cancel")
    f = manager.run(joint, names, verify=True)
    back = [n for n in f.nodes if n.op.kind is Kind.FOR][-1]
    (body,) = back.regions
    added = [n for n in body.nodes if n.op.kind is Kind.SCATTER]
    assert len(added) == 3
    assert all(len(n.operands[1].type.shape) < 2 for n in added)  # type: ignore[union-attr]
