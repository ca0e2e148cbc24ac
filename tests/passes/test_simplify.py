"""Every rule of the table fires where it should, and keeps every bit."""

import numpy as np
import pytest

from retrograde.ir.func import Func, walk
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes.dce import dce
from retrograde.passes.rules import RULES
from retrograde.passes.simplify import simplify

SPECIAL = np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 1.5, -2.5, 1e-310]])
HEAD = "func @f(%x: f64[2,4], %k: i64[4], %c: bool[4]) -> "


def body(lines: str, result: str = "f64[2,4]") -> Func:
    rows = [row.strip() for row in lines.strip().splitlines()]
    f = parse("\n".join([HEAD + result + " {", *rows, "return %r", "}"]))
    verify(f)
    return f


def ops(f: Func) -> list[str]:
    return [n.op.name for n in walk(f.body)]


def simplified(f: Func) -> Func:
    """Simplify and check that no bit of the answer changes."""
    g = simplified_of(f)
    args = (SPECIAL, np.array([0, -1, 3, 7]), np.array([True, False, True, False]))
    with np.errstate(all="ignore"):
        for a, b in zip(run(f, *args), run(g, *args), strict=True):
            a, b = np.asarray(a), np.asarray(b)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
            if a.dtype.kind == "f":
                real = ~np.isnan(a)
                np.testing.assert_array_equal(np.signbit(a)[real], np.signbit(b)[real])
    return g


EXACT = {
    "times one": ("%r: f64[2,4] = multiply %x, 1.0", []),
    "one times": ("%r: f64[2,4] = multiply 1, %x", []),
    "times minus one": ("%r: f64[2,4] = multiply %x, -1.0", ["negative"]),
    "minus one times": ("%r: f64[2,4] = multiply -1, %x", ["negative"]),
    "negative zero plus": ("%r: f64[2,4] = add -0.0, %x", []),
    "expand of squeeze": (
        """%a: f64[1,2,4] = reshape %x {shape=(1, 2, 4)}
        %n: f64[1,2,4] = sin %a
        %b: f64[2,4] = squeeze %n {axis=(0,)}
        %e: f64[1,2,4] = expand_dims %b {axis=(0,)}
        %r: f64[2,4] = reshape %e {shape=(2, 4)}""",
        ["reshape", "sin", "reshape"],
    ),
    "detached": ("%r: f64[2,4] = detached %x", []),
    "over one": ("%r: f64[2,4] = divide %x, 1.0", []),
    "minus zero": ("%r: f64[2,4] = subtract %x, 0.0", []),
    "plus negative zero": ("%r: f64[2,4] = add %x, -0.0", []),
    "plus zero stays": ("%r: f64[2,4] = add %x, 0.0", ["add"]),
    "minus negative zero stays": ("%r: f64[2,4] = subtract %x, -0.0", ["subtract"]),
    "zero times stays": ("%r: f64[2,4] = multiply %x, 0.0", ["multiply"]),
    "double negation": (
        """%a: f64[2,4] = negative %x
        %r: f64[2,4] = negative %a""",
        [],
    ),
    "plus a negative": (
        """%a: f64[2,4] = negative %x
        %s: f64[2,4] = square %x
        %r: f64[2,4] = add %s, %a""",
        ["square", "subtract"],
    ),
    "minus a negative": (
        """%a: f64[2,4] = negative %x
        %s: f64[2,4] = square %x
        %r: f64[2,4] = subtract %s, %a""",
        ["square", "add"],
    ),
    "positive": ("%r: f64[2,4] = positive %x", []),
    "power one": ("%r: f64[2,4] = power %x, 1.0", []),
    "power two": ("%r: f64[2,4] = power %x, 2.0", ["square"]),
    "power minus one": ("%r: f64[2,4] = power %x, -1.0", ["reciprocal"]),
    "where of equals": ("%r: f64[2,4] = where %c, %x, %x", []),
    "transposes": (
        """%a: f64[4,2] = transpose %x {axes=(1, 0)}
        %r: f64[2,4] = transpose %a {axes=(1, 0)}""",
        [],
    ),
    "reshapes": (
        """%a: f64[8] = reshape %x {shape=(8,)}
        %r: f64[2,4] = reshape %a {shape=(2, 4)}""",
        [],
    ),
    "broadcasts": (
        """%a: f64[3,2,4] = broadcast_to %x {shape=(3, 2, 4)}
        %b: f64[5,3,2,4] = broadcast_to %a {shape=(5, 3, 2, 4)}
        %c2: f64[3,2,4] = select %b, 0 {axis=0}
        %r: f64[2,4] = select %c2, 0 {axis=0}""",
        ["broadcast_to", "select", "select"],
    ),
    "broadcast to the same": ("%r: f64[2,4] = broadcast_to %x {shape=(2, 4)}", []),
    "squeeze of expand": (
        """%a: f64[2,1,4] = expand_dims %x {axis=(1,)}
        %r: f64[2,4] = squeeze %a {axis=(1,)}""",
        [],
    ),
    "flips": (
        """%a: f64[2,4] = flip %x {axis=(1,)}
        %r: f64[2,4] = flip %a {axis=(1,)}""",
        [],
    ),
    "whole slice": ("%r: f64[2,4] = slice %x, 0 {axis=1, size=4, step=1}", []),
    "reversed slice stays": (
        "%r: f64[2,4] = slice %x, 3 {axis=1, size=4, step=-1}",
        ["slice"],
    ),
    "whole slice replaced": (
        """%a: f64[2,4] = square %x
        %r: f64[2,4] = slice_scatter %x, %a, 0 {axis=1, size=4, step=1}""",
        ["square"],
    ),
    "cast to the same": ("%r: f64[2,4] = astype %x {dtype=f64}", []),
    "copy": ("%r: f64[2,4] = copy %x", []),
    "scatter of a bijection": (
        """%a: f64[4,2] = transpose %x {axes=(1, 0)}
        %s: f64[4,2] = square %a
        %r: f64[2,4] = transpose_scatter %x, %s {axes=(1, 0)}""",
        ["transpose", "square", "transpose"],
    ),
    "put back": (
        """%a: f64[4] = select %x, 1 {axis=0}
        %r: f64[2,4] = select_scatter %x, %a, 1 {axis=0}""",
        [],
    ),
    "covered write": (
        """%a: f64[2,4] = select_scatter %x, 1.0, 1 {axis=0}
        %r: f64[2,4] = select_scatter %a, 2.0, 1 {axis=0}""",
        ["select_scatter"],
    ),
    "an array of one number": (
        """%a: f64[2,4] = full 2.5 {dtype=f64, shape=(2, 4)}
        %r: f64[2,4] = multiply %a, %x""",
        ["multiply"],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_rule(name: str) -> None:
    lines, expected = EXACT[name]
    assert ops(simplified(body(lines))) == expected


OTHER = {
    "an overlapping view of what was put": (
        """%a: f64[4] = select %x, 1 {axis=0}
        %b: f64[4] = as_strided_scatter %a, %k {offset=0, shape=(4,), strides=(0,)}
        %r: f64[4] = as_strided %b {offset=0, shape=(4,), strides=(0,)}""",
        "f64[4]",
        ["select", "as_strided_scatter", "as_strided"],
    ),
    "adding twice to what was set to zero": (
        """%i: i64[2] = constant {data=(1, 1), dtype=i64, shape=(2,)}
        %v: f64[2] = constant {data=(1.0, 2.0), dtype=f64, shape=(2,)}
        %s: f64[4] = select %x, 1 {axis=0}
        %a: f64[4] = gather_scatter %s, 0, %i {axes=(0,), position=0}
        %r: f64[4] = gather_scatter_add %a, %v, %i {axes=(0,), position=0}""",
        "f64[4]",
        ["constant", "constant", "select", "gather_scatter", "gather_scatter_add"],
    ),
    "adding once to what was set to zero": (
        """%s: f64[4] = select %x, 1 {axis=0}
        %a: f64[4] = select_scatter %s, 0, 2 {axis=0}
        %r: f64[4] = select_scatter_add %a, 1.5, 2 {axis=0}""",
        "f64[4]",
        ["select", "select_scatter"],
    ),
    "a scalar carry that stays in an array": (
        """%s: f64 = sum %x {axis=(0, 1)}
        %z: f32[] = full 0.0 {dtype=f32, shape=()}
        %q: f64[], %r: f32[] = for i in 0..3 carry(%p: f64[] = %s, %t: f32[] = %z) {
          %u: f32[] = astype %p {dtype=f32}
          yield %p, %u
        }""",
        "f32[]",
        ["sum", "full", "for", "astype"],
    ),
    "slice of slice": (
        """%a: f64[2,3] = slice %x, 1 {axis=1, size=3, step=1}
        %r: f64[2,2] = slice %a, 2 {axis=1, size=2, step=-1}""",
        "f64[2,2]",
        ["slice"],
    ),
    "select of slice": (
        """%a: f64[2,2] = slice %x, 3 {axis=1, size=2, step=-2}
        %r: f64[2] = select %a, 1 {axis=1}""",
        "f64[2]",
        ["select"],
    ),
    "select of slice of another axis": (
        """%a: f64[2,2] = slice %x, 3 {axis=1, size=2, step=-2}
        %r: f64[2] = select %a, 1 {axis=0}""",
        "f64[2]",
        ["slice", "select"],
    ),
    "select what was put": (
        """%a: f64[2,4] = select_scatter %x, 2.0, 1 {axis=0}
        %r: f64[4] = select %a, 1 {axis=0}""",
        "f64[4]",
        ["full"],
    ),
    "select beside what was put": (
        """%a: f64[2,4] = select_scatter %x, 2.0, 1 {axis=0}
        %r: f64[4] = select %a, 0 {axis=0}""",
        "f64[4]",
        ["select"],
    ),
    "select across what was put": (
        """%a: f64[2,4] = select_scatter %x, 2.0, 1 {axis=0}
        %r: f64[2] = select %a, 1 {axis=1}""",
        "f64[2]",
        ["select_scatter", "select"],
    ),
    "view of equals": (
        """%a: f64[2,4] = full 2.0 {dtype=f64, shape=(2, 4)}
        %r: f64[4,2] = transpose %a {axes=(1, 0)}""",
        "f64[4,2]",
        ["full"],
    ),
    "sum of equals": (
        """%a: f64[2,4] = full 0.5 {dtype=f64, shape=(2, 4)}
        %r: f64[4] = sum %a {axis=(0,), keepdims=False}""",
        "f64[4]",
        ["full", "multiply"],
    ),
    "lossless cast of cast": (
        """%a: f64[4] = astype %k {dtype=f64}
        %b: c128[4] = astype %a {dtype=c128}
        %r: f32[4] = astype %k {dtype=f32}""",
        "f32[4]",
        ["astype"],
    ),
    "lossy cast of cast": (
        """%a: f32[2,4] = astype %x {dtype=f32}
        %r: f64[2,4] = astype %a {dtype=f64}""",
        "f64[2,4]",
        ["astype", "astype"],
    ),
    "bools to floats": (
        """%a: i64[4] = astype %c {dtype=i64}
        %r: f64[4] = astype %a {dtype=f64}""",
        "f64[4]",
        ["astype"],
    ),
    "integers plus zero": ("%r: i64[4] = add %k, 0", "i64[4]", []),
    "zero plus integers": ("%r: i64[4] = add 0, %k", "i64[4]", []),
    "equals of equals": (
        """%a: f64[] = full 2.5 {dtype=f64, shape=()}
        %r: f64[3] = full %a {dtype=f64, shape=(3,)}""",
        "f64[3]",
        ["full"],
    ),
    "integers times a float": ("%r: f64[4] = multiply %k, 1.0", "f64[4]", ["multiply"]),
    "cube of integers": ("%r: i64[4] = power %k, 3", "i64[4]", ["square", "multiply"]),
    "fourth power of integers": (
        "%r: i64[4] = power %k, 4",
        "i64[4]",
        ["square", "square"],
    ),
    "numbers": (
        """%a: ~f64 = multiply 2.0, 3.0
        %b: bool = less %a, 7.0
        %r: f64[2] = cond %b {
          %u: f64[2] = full %a {dtype=f64, shape=(2,)}
          yield %u
        } else {
          %w: f64[2] = full 0.0 {dtype=f64, shape=(2,)}
          yield %w
        }""",
        "f64[2]",
        ["full"],
    ),
    "no iteration": (
        """%r: f64[2,4] = for i in 3..3 carry(%p: f64[2,4] = %x) {
          %q: f64[2,4] = sin %p
          yield %q
        }""",
        "f64[2,4]",
        [],
    ),
    "a carry that stays": (
        """%z: f64[4] = sum %x {axis=(0,)}
        %y: f64[4] = square %z
        %r: f64[4], %s: f64[4] = for i in 0..3 carry(%p: f64[4] = %y, %q: f64[4] = %z) {
          %t: f64[4] = maximum %p, %q
          yield %t, %q
        }""",
        "f64[4]",
        ["sum", "square", "for", "maximum"],
    ),
}


# Systems whose matrix has factors already: the lines, and the op that solves them.
SYSTEMS = {
    "a factor": (
        """%l: f64[n,n] = cholesky %a
        %r: f64[n,m] = solve %l, %b""",
        "triangular_solve",
    ),
    "a transposed factor": (
        """%l: f64[n,n] = cholesky %a
        %t: f64[n,n] = transpose %l {axes=(1, 0)}
        %r: f64[n,m] = solve %t, %b""",
        "triangular_solve",
    ),
    "a transposed matrix": (
        """%t: f64[n,n] = transpose %a {axes=(1, 0)}
        %r: f64[n,m] = solve %t, %b""",
        "lu_solve",
    ),
}


def system(name: str) -> Func:
    head = "func @f(%a: f64[n,n], %b: f64[n,m]) -> f64[n,m] {\n"
    return parse(head + SYSTEMS[name][0] + "\nreturn %r\n}")


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_take_the_factors_that_there_are(name: str) -> None:
    f = system(name)
    g = simplified_of(f)
    assert SYSTEMS[name][1] in ops(g)
    assert "solve" not in ops(g)
    assert "transpose" not in ops(g)
    a = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.25], [0.5, -0.25, 2.0]])
    a[0, 1] += 0.125 * (name == "a transposed matrix")
    b = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(run(g, a, b)[0], run(f, a, b)[0], rtol=1e-13)


def simplified_of(f: Func) -> Func:
    g = dce(simplify(f))
    verify(g)
    return g


@pytest.mark.parametrize("name", OTHER)
def test_other_rule(name: str) -> None:
    lines, result, expected = OTHER[name]
    assert ops(simplified(body(lines, result))) == expected


def test_powers_are_numpys_operator() -> None:
    x = np.array([0.0, 0.3, 1.7, 25.0, np.inf])
    for exponent, name in ((3.0, "multiply"), (4.0, "square"), (0.5, "sqrt")):
        f = parse(
            f"func @f(%x: f64[n]) -> f64[n] {{\n"
            f"  %y: f64[n] = power %x, {exponent}\n  return %y\n}}"
        )
        g = simplify(f)
        assert ops(g)[-1] == name
        np.testing.assert_allclose(run(g, x)[0], run(f, x)[0], rtol=1e-15)


def test_a_float32_array_of_a_number_beside_float64_stays() -> None:
    f = parse("""
    func @f(%x: f64[n]) -> f64[n] {
      %a: f32[n] = full 0.1 {dtype=f32, shape=(n,)}
      %r: f64[n] = add %a, %x
      return %r
    }""")
    assert ops(simplify(f)) == ["full", "add"]


def test_reads_around_writes_need_different_indices() -> None:
    text = """
    func @f(%x: f64[n], %v: f64) -> f64[n] where n - 2 >= 0 {{
      %r: f64[n] = for i in 1..n carry(%c: f64[n] = %x) {{
        %w: f64[n] = select_scatter %c, %v, i {{axis=0}}
        %p: f64[] = select %w, {at} {{axis=0}}
        %d: f64[n] = select_scatter %w, %p, 0 {{axis=0}}
        yield %d
      }}
      return %r
    }}"""

    def read(at: str) -> str:
        g = simplify(parse(text.format(at=at)))
        return next(str(n) for n in walk(g.body) if n.op.name == "select")

    assert "select %c, i - 1" in read("i - 1")
    assert "select %c, 0" in read("0")
    assert "select %w, -i + n" in read("n - i")


def test_every_row_of_the_table_is_reached() -> None:
    fired: set[int] = set()

    def watch(rule):  # type: ignore[no-untyped-def]
        def replacement(b, m):  # type: ignore[no-untyped-def]
            fired.add(id(rule))
            return rule.replacement(b, m)

        return type(rule)(rule.pattern, replacement)

    every = [(op, rule) for op, rules in RULES.items() for rule in rules]
    saved = dict(RULES)
    try:
        for op, rules in saved.items():
            RULES[op] = tuple(map(watch, rules))
        for lines, *_ in EXACT.values():
            simplify(body(lines))
        for lines, result, _ in OTHER.values():
            simplify(body(lines, result))
        for name in SYSTEMS:
            simplify(system(name))
        for text in ("item %s", "number %m", "power %s, 0.5"):
            simplify(
                parse(
                    "func @f(%s: f64, %m: ~f64) -> (f64) {\n"
                    f"  %r: {'~f64' if 'number' in text else 'f64'} = {text}\n"
                    "  return %s\n}".replace("(f64)", "f64")
                )
            )
    finally:
        RULES.update(saved)
    missed = [str(rule.pattern) for _, rule in every if id(rule) not in fired]
    assert missed == []


def test_a_write_is_kept_where_others_read_it() -> None:
    """Two writes into one array would need two arrays."""
    text = """
    func @f(%x: f64[n], %t: f64, %k: i64) -> f64[n] {
      %y: f64[n] = select_scatter %x, %t, 0 {axis=0}
      %v: f64[] = select %y, %k {axis=0}
      %z: f64[n] = select_scatter %y, %v, 0 {axis=0}
      return %z
    }"""
    assert len(dce(simplify(parse(text))).nodes) == 3
    unread = text.replace("%y, %k", "%x, %k")
    assert len(dce(simplify(parse(unread))).nodes) == 2


def test_a_write_of_the_same_again_goes() -> None:
    f = parse("""
    func @f(%x: f64[n], %t: f64) -> (f64[n], f64[n]) {
      %y: f64[n] = select_scatter %x, %t, 0 {axis=0}
      %z: f64[n] = select_scatter %y, %t, 0 {axis=0}
      return %y, %z
    }""")
    g = simplify(f)
    assert len(g.nodes) == 1
    assert g.results[0] is g.results[1]
