"""The verifier refuses what breaks a rule, and quotes the line."""

from __future__ import annotations

import pytest

from retrograde.ir.build import IRBuilder
from retrograde.ir.dims import Facts, symbol
from retrograde.ir.errors import IRError
from retrograde.ir.func import Block, Func, Node, Value
from retrograde.ir.op import OPS
from retrograde.ir.text import parse, parse_type
from retrograde.ir.types import F64, Type
from retrograde.ir.verify import verify

HEAD = "(%x: f64[n], %y: f64[n], %s: f64, %p: bool, %k: i64) -> f64[n]"


def text(body: str, stage: str = "func", where: str = "n - 2 >= 0") -> str:
    return f"{stage} @f{HEAD} where {where} {{\n{body}\n  return %x\n}}"


GOOD = {
    "pure": "%a: f64[n] = add %x, %y",
    "weak": "%a: f64[n] = multiply %x, 2.0",
    "dim as a number": "%a: f64[n] = multiply %x, n - 1",
    "for": "%a: f64[n] = for i in 1..n carry(%c: f64[n] = %x) {\n"
    "%e: f64[] = select %c, i - 1 {axis=0}\n"
    "%d: f64[n] = select_scatter %c, %e, i {axis=0}\n"
    "yield %d\n}",
    "while": "%a: f64[n] = while carry(%c: f64[n] = %x) {\n"
    "%e: f64 = sum %c {axis=(0,)}\n%t: bool = less %e, 1.0\n"
    "test %t\n%d: f64[n] = add %c, %e\nyield %d\n}",
    "cond": "%a: f64[n] = cond %p {\nyield %x\n} else {\nyield %y\n}",
    "fused": "%a: f64[n] = fused {\n%e: f64[n] = sin %x\nyield %e\n}",
    "count": "%m: bool[n] = less %x, %y\n"
    "%a: f64[c] = mask_select %x, %m {count=c}\n%b: f64[c] = sin %a\n"
    "%d: f64[c] = mask_select %y, %m {count=c}",
    "size": "%a: i64 = size %k {count=c}\n"
    "%b: f64[c] = full 0.0 {dtype=f64, shape=(c,)}",
    "no nodes": "",
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_what_keeps_the_rules_is_accepted(body: str) -> None:
    verify(parse(text(body)))


def test_traced_funcs_may_hold_views_and_writes() -> None:
    body = "%v: f64[] &%x = select %x, 0 {axis=0}\n%v <- %s\n%x <- %y\n%v <- 1"
    verify(parse(text(body, "traced")))


@pytest.mark.parametrize(
    ("stage", "body", "message", "line"),
    [
        ("func", "%a: f64[m] = sin %x", "gives f64[n]", "%a: f64[m] = sin %x"),
        ("func", "%a: f32[n] = sin %x", "gives f64[n], but %a is declared f32[n]", ""),
        ("func", "%a: f64 = multiply 2.0, 3.0", "multiply gives ~f64", ""),
        (
            "func",
            "%a: f64[n] = sum %x {axis=(1,)}",
            "sum: axes (1,)",
            "%a: f64[n] = sum",
        ),
        (
            "func",
            "%a: f64[n] = for i in 0..n carry(%c: f64[n] = %s) {\nyield %x\n}",
            "%s is f64, but the region passes f64[n]",
            "%a: f64[n] = for i in 0..n",
        ),
        (
            "func",
            "%a: f64[n] = for i in 0..n carry(%c: f64[n] = %x) {\nyield %s\n}",
            "%s is f64, but the region passes f64[n]",
            "%a: f64[n] = for",
        ),
        (
            "func",
            "%a: f64[n] = for i in 0..n carry(%c: f64[n] = %x) {\nyield %x, %y\n}",
            "1 values are expected, not 2",
            "%a: f64[n] = for",
        ),
        (
            "func",
            "%a: f64 = for i in 0..n carry(%c: f64[n] = %x) {\nyield %c\n}",
            "%a is f64, but the region passes f64[n]",
            "%a: f64 = for",
        ),
        (
            "func",
            "%a: f64[n] = for n in 0..n carry(%c: f64[n] = %x) {\nyield %c\n}",
            "loop index n is not a fresh symbol",
            "%a: f64[n] = for",
        ),
        (
            "func",
            "for i in 0..n {\nyield\n}\n%b: f64 = add %s, i",
            "symbol i is not",
            "",
        ),
        (
            "func",
            "for i in 0..m {\nyield\n}",
            "symbol m is not defined here",
            "for i in",
        ),
        (
            "func",
            "%a: f64[n] = cond %s {\nyield %x\n} else {\nyield %y\n}",
            "a condition is a 0-d bool, not f64",
            "%a: f64[n] = cond %s",
        ),
        (
            "func",
            "%a: f64[n] = cond %p {\nyield %x\n} else {\nyield %s\n}",
            "%s is f64, but the region passes f64[n]",
            "%a: f64[n] = cond %p",
        ),
        (
            "func",
            "while {\ntest %p, %p\nyield\n}",
            "a condition is one value",
            "while {",
        ),
        ("func", "%a: f64[n] = fused {\nyield %x, %y\n}", "1 values are expected", ""),
        (
            "func",
            "%a: f64[n] = add %x, m",
            "symbol m is not defined here",
            "%a: f64[n]",
        ),
        (
            "func",
            "expect %k {number=0, value=True}",
            "expect: i64 cannot be True",
            "expect %k",
        ),
        ("func", "%x <- %y", "a write may not appear after functionalize", "%x <- %y"),
        ("traced", "%s <- 1.0", "a write needs an array as its target", "%s <- 1.0"),
        (
            "traced",
            "%v: f64[] &%x = select %x, 0 {axis=0}\n%v <- %y",
            "write: f64[n] does not fit its target f64[]",
            "%v <- %y",
        ),
        (
            "traced",
            "%v: f64[] = select %x, 0 {axis=0}",
            "alias mark of %v",
            "%v: f64[]",
        ),
        ("traced", "%v: f64[n] &%x = sin %x", "alias mark of %v", "%v: f64[n] &%x"),
        (
            "traced",
            "%v: f64[] &%y = select %x, 0 {axis=0}",
            "%v must be marked as a view of its operand",
            "%v: f64[] &%y",
        ),
        (
            "func",
            "%v: f64[] &%x = select %x, 0 {axis=0}",
            "an alias mark may not appear after functionalize",
            "%v: f64[] &%x",
        ),
        ("func", "%v: f64[n] !%y = sin %x", "%v cannot reuse the buffer of %y", "%v:"),
        (
            "func",
            "%v: f64 !%x = sum %x {axis=(0,)}",
            "%v cannot reuse the buffer",
            "%v:",
        ),
        (
            "func",
            "%m: bool[n] = less %x, %y\n%z: f64[n - 1] = slice %x, 0 "
            "{axis=0, size=n - 1, step=1}\n%q: f64[c] = mask_select %z, %m {count=c}",
            "mask_select: the mask bool[n] does not fit",
            "%q: f64[c]",
        ),
        (
            "func",
            "for i in 0..n {\n%e: f64[n] = sin %x\nyield\n}\n"
            "%a: f64[n] = for i in 0..n carry(%c: f64[n] = %x) {\n%z: f64[m] = sin %c\n"
            "yield %c\n}",
            "gives f64[n]",
            "%z: f64[m] = sin %c",
        ),
    ],
)
def test_broken_rule_is_named_with_its_line(
    stage: str, body: str, message: str, line: str
) -> None:
    with pytest.raises(IRError) as caught:
        verify(parse(text(body, stage)))
    assert message in str(caught.value)
    assert f"line: {line}" in str(caught.value)
    assert str(caught.value).endswith("in @f")


def test_open_question_about_sizes_is_an_error() -> None:
    verify(
        parse(text("%z: f64[m] = full 0.0 {dtype=f64, shape=(m,)}".replace("m", "n")))
    )
    source = "func @f(%x: f64[n], %y: f64[m]) -> f64[n] {\n"
    with pytest.raises(IRError, match="are not known to be equal"):
        verify(parse(source + "  %a: f64[n] = add %x, %y\n  return %a\n}"))


def test_an_update_must_have_the_type_of_its_parameter() -> None:
    source = "func @f(%x: f64[n], %s: f64) -> {} {{\n  return {}\n}}"
    verify(parse(source.format("f64[n] into %x", "%x")))
    for wrong in (("f64 into %x", "%s"), ("f64 into %s", "%s")):
        with pytest.raises(IRError, match="result 0 is f64, but updates"):
            verify(parse(source.format(*wrong)))


def test_a_fact_about_an_unknown_symbol_is_refused() -> None:
    with pytest.raises(IRError, match="symbol m is not defined here"):
        verify(parse(text("", where="m - 2 >= 0")))


# What text cannot say: the parser resolves names before the verifier sees them.


def chain(*nodes: Node, params: tuple[Value, ...], results: tuple[Value, ...]) -> Func:
    return Func("f", "func", Block(params, nodes, results))


def vector(name: str) -> Value:
    return Value(name, Type(F64, (symbol("n"),)))


def test_use_before_definition_is_refused() -> None:
    x, y, z = map(vector, "xyz")
    first = Node(OPS["sin"], (z,), {}, (y,))
    second = Node(OPS["sin"], (x,), {}, (z,))
    with pytest.raises(IRError, match="%z is used before it is defined") as caught:
        verify(chain(first, second, params=(x,), results=(y,)))
    assert "line: %y: f64[n] = sin %z" in str(caught.value)


def test_result_that_nothing_defines_is_refused() -> None:
    x, y = map(vector, "xy")
    with pytest.raises(IRError, match="%y is used before it is defined"):
        verify(chain(params=(x,), results=(y,)))


def test_two_values_of_one_name_are_refused() -> None:
    x, y, other = vector("x"), vector("y"), vector("y")
    nodes = [Node(OPS["sin"], (x,), {}, (v,)) for v in (y, other)]
    with pytest.raises(IRError, match="%y is defined twice"):
        verify(chain(*nodes, params=(x,), results=(y,)))


def test_value_of_a_region_ends_with_it() -> None:
    x, inner, out = map(vector, "xio")
    body = Block((), (Node(OPS["sin"], (x,), {}, (inner,)),), (inner,))
    fused = Node(OPS["fused"], (), {}, (out,), (body,))
    after = Node(OPS["cos"], (inner,), {}, (vector("z"),))
    with pytest.raises(IRError, match="%i is used before it is defined"):
        verify(chain(fused, after, params=(x,), results=(out,)))


def test_wrong_number_of_results_is_refused() -> None:
    x, y, z = map(vector, "xyz")
    node = Node(OPS["sin"], (x,), {}, (y, z))
    with pytest.raises(IRError, match="sin has 1 results, not 2"):
        verify(chain(node, params=(x,), results=(y,)))


def test_loop_bounds_are_facts_inside_the_body() -> None:
    b, n, i = IRBuilder(), symbol("n"), symbol("i")
    x = b.value(Type(F64, (n,)), "x")
    with b.block() as nodes:
        part = b.slice(x, 0, axis=0, size=i, step=1)
        b.add(part, b.slice(x, 0, axis=0, size=1, step=1))
    attrs = {"index": i, "start": 2, "stop": n, "step": 1}
    node = Node(OPS["for"], (), attrs, (), (Block((), tuple(nodes), ()),))
    verify(Func("f", "func", Block((x,), (node,), (x,)), (), Facts()))


def test_builder_and_verifier_infer_the_same() -> None:
    b = IRBuilder()
    x = b.value(parse_type("f32[n,3]"), "x")
    y = b.sum(b.multiply(x, 2.0), axis=(1,), keepdims=False)
    f = Func("f", "func", b.finish([x], [y]))
    verify(f)
    assert str(y.type) == "f32[n]"
