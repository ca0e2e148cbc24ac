"""The text form: random Funcs read back byte for byte; wrong text is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrograde.ir.build import IRBuilder
from retrograde.ir.dims import Facts, Symbol, symbol
from retrograde.ir.errors import IRError, Location
from retrograde.ir.func import Block, Func, Node, Value
from retrograde.ir.op import OPS
from retrograde.ir.text import parse, parse_type, show
from retrograde.ir.types import F64, I64, NAMES, Type
from retrograde.ir.verify import verify

N, K = symbol("n"), symbol("k")
VECTOR = Type(F64, (N,))
LITERALS = st.one_of(
    st.floats(allow_nan=True),
    st.integers(-3, 3),
    st.booleans(),
    st.sampled_from([N - 1, 2 * N + 1, N // 2, K]),
)


class Writer:
    """Writes a random, valid Func; every value in `pool` is an f64[n]."""

    def __init__(self, draw: Any, stage: str) -> None:
        self.draw, self.stage = draw, stage
        self.b = IRBuilder(["n", "k"])

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def func(self) -> Func:
        b = self.b
        x, y = b.value(VECTOR, "x"), b.value(VECTOR, "y")
        weak, flag = b.value(Type(F64, weak=True), "w"), b.value(parse_type("bool"))
        self.scalars, self.flag = [weak], flag
        pool = self.statements([x, y], 2)
        results: list[Any] = [self.pick(pool) for _ in range(self.pick([1, 1, 2, 3]))]
        results += self.pick([[], [2.5], [N - 1]])
        facts = self.pick([Facts(), Facts().having(N - 2), Facts().having(N - K, K)])
        updates = self.pick([(), ((0, 1),)])
        body = b.finish([x, y, weak, flag], results)
        return Func("f.g", self.stage, body, (Symbol("k"),), facts, updates)

    def statements(self, pool: list[Value], depth: int) -> list[Value]:
        pool = list(pool)
        for _ in range(self.draw(st.integers(0, 3))):
            kinds = ["plain", "literal", "attributes", "view"]
            kinds += ["for", "while", "cond", "fused"] * (depth > 0)
            kinds += ["write"] * (self.stage == "traced")
            getattr(self, f"add_{self.pick(kinds)}")(pool, depth)
        return pool

    def add_plain(self, pool: list[Value], depth: int) -> None:
        op = OPS[self.pick(["add", "multiply", "maximum"])]
        pool.append(self.b.apply(op, (self.pick(pool), self.pick(pool)), {}, hint="p"))

    def add_literal(self, pool: list[Value], depth: int) -> None:
        literal = self.draw(LITERALS)
        operands = (self.pick(pool), self.pick([literal, *self.scalars]))
        pool.append(self.b.apply(OPS["add"], operands, {}, hint="l"))

    def add_attributes(self, pool: list[Value], depth: int) -> None:
        dtype = self.pick([NAMES["f32"], I64, NAMES["bool"], NAMES["c128"]])
        data = tuple(self.draw(st.lists(st.floats(), max_size=3)))
        self.b.constant(data=data, shape=(len(data),), dtype=F64)
        self.b.full(1, shape=(2, N + 1), dtype=dtype)
        pool.append(self.b.full(self.draw(LITERALS), shape=(N,), dtype=F64))

    def add_view(self, pool: list[Value], depth: int) -> None:
        x = self.pick(pool)
        base = x if self.stage == "traced" else None
        flip = self.b.apply(OPS["flip"], (x,), {"axis": (0,)}, hint="v", base=base)
        pool.append(flip)

    def add_write(self, pool: list[Value], depth: int) -> None:
        target = self.pick(pool)
        new = self.pick([self.pick(pool), 1.5, N])
        self.b.append(Node(OPS["write"], (target, new)))

    def region(self, pool: list[Value], params: list[Value], depth: int) -> Block:
        with self.b.block() as nodes:
            inner = self.statements(pool + params, depth - 1)
            result = self.pick(inner)
        return Block(tuple(params), tuple(nodes), (result,))

    def control(
        self, name: str, operands: list[Any], attrs: dict[str, Any], *regions: Block
    ) -> Value:
        (out,) = self.b.control(OPS[name], operands, attrs, regions, [VECTOR], ["r"])
        return out

    def add_for(self, pool: list[Value], depth: int) -> None:
        index = symbol(self.b.name("i").replace(".", "_"))
        attrs = {
            "index": index,
            "start": self.pick([0, 1, K, N - 1]),
            "stop": self.pick([N, N - 1, -1, N // 2]),
            "step": self.pick([1, 1, 2, -1]),
        }
        param = self.b.value(VECTOR, "c")
        body = self.region(pool, [param], depth)
        pool.append(self.control("for", [self.pick(pool)], attrs, body))

    def add_while(self, pool: list[Value], depth: int) -> None:
        b, param = self.b, self.b.value(VECTOR, "c")
        with b.block() as nodes:
            first = b.select(param, 0, axis=0) if self.stage == "func" else self.flag
            go = b.less(first, 1.0) if self.stage == "func" else self.flag
        test = Block((param,), tuple(nodes), (go,))
        body = self.region([*pool, param], [], depth)
        pool.append(self.control("while", [self.pick(pool)], {}, test, body))

    def add_cond(self, pool: list[Value], depth: int) -> None:
        yes, no = self.region(pool, [], depth), self.region(pool, [], depth)
        pool.append(self.control("cond", [self.flag], {}, yes, no))

    def add_fused(self, pool: list[Value], depth: int) -> None:
        pool.append(self.control("fused", [], {}, self.region(pool, [], depth)))


@st.composite
def funcs(draw: Any) -> Func:
    return Writer(draw, draw(st.sampled_from(["func", "traced"]))).func()


@settings(max_examples=150, deadline=None)
@given(funcs())
def test_random_funcs_verify_and_read_back_byte_for_byte(f: Func) -> None:
    verify(f)
    text = show(f)
    again = parse(text)
    assert show(again) == text
    assert again == f
    assert (again.facts, again.symbols, again.updates) == (
        f.facts,
        f.symbols,
        f.updates,
    )
    verify(again)


@settings(max_examples=50, deadline=None)
@given(funcs())
def test_types_and_marks_survive_the_text(f: Func) -> None:
    def marks(block: Block) -> list[Any]:
        out: list[Any] = []
        for node in block.nodes:
            out += [
                (v.name, v.type, v.base and v.base.name, v.reuses and v.reuses.name)
                for v in node.results
            ]
            out.append((node.op.name, sorted(node.attrs)))
            for region in node.regions:
                out += marks(region)
        return out

    assert marks(parse(show(f)).body) == marks(f.body)


ATTRIBUTES = st.recursive(
    st.one_of(
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
        st.text(max_size=8),
        st.sampled_from(list(NAMES.values())),
        st.sampled_from([N, N - 1, 2 * K * N]),
        st.complex_numbers(allow_nan=False),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(deadline=None)
@example("a # b")
@example(("it's", 'a "b"', "x = y, z <- {w}"))
@example((-0.0, 1e-300, (1 - 2j), (-0.0 - 1j)))
@given(ATTRIBUTES)
def test_any_attribute_reads_back(value: Any) -> None:
    node = Node(OPS["sum"], (1.0,), {"note": value}, (Value("s", parse_type("f64")),))
    f = Func("f", "func", Block((), (node,), ()))
    again = parse(show(f))
    assert repr(again.nodes[0].attrs["note"]) == repr(value)


def test_locations_are_shown_on_request_and_do_not_matter() -> None:
    f = parse("func @f(%x: f64[n]) -> f64[n] {\n  %y: f64[n] = sin %x\n  return %y\n}")
    f.nodes[0].loc = Location("train.py", 41, "loss", "np.sin(x)")
    assert "  %y: f64[n] = sin %x  # train.py:41" in show(f, loc=True)
    assert parse(show(f, loc=True)) == f
    assert "train.py" not in show(f)


def test_funcs_are_equal_by_text() -> None:
    text = "func @f(%x: f64[n]) -> f64[n] {\n  return %x\n}"
    assert parse(text) == parse(text)
    assert parse(text) != parse(text.replace("@f", "@g"))
    assert hash(parse(text)) == hash(parse(text))
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["f64[n,3]", "i64", "~f64", "bool[]", "f32[max(0, n - 1)]"]
)
def test_types_read_back(text: str) -> None:
    assert str(parse_type(text)) == text


# ---------------------------------------------------------------- wrong text

HEAD = "func @f(%x: f64[n], %p: bool) -> f64[n] {"
GOOD = "  %y: f64[n] = sin %x"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("  %y: f64[n] = sine %x", "unknown op 'sine'"),
        ("  %y: f64[n] = sin %z", "%z is used before it is defined"),
        ("  %y: f64[n] = sin %y", "%y is used before it is defined"),
        ("  %x: f64[n] = sin %x", "%x is defined twice"),
        ("  %y: q64[n] = sin %x", "'q64[n]' is not a type"),
        ("  %y: f64[n = sin %x", "a definition is expected"),
        ("  %y: f64[2.5] = sin %x", "'2.5' is not a dim"),
        ("  %y = sin %x", "is not a definition"),
        ("  %y: f64[n] sin %x", "a definition is expected"),
        ("  %y: f64[n] = sum %x {axis=[0]}", "is not a value"),
        ("  %y: f64[n] = add %x, (1,)", "'(1,)' is not an operand"),
        ("  %y: f64[n] = add %x, 1 +", "is not a value"),
        ("  %y: f64[n] = for i in 0 carry(%c: f64[n] = %x) {", "START..STOP"),
        ("  %y: f64[n] = for 0..n carry(%c: f64[n] = %x) {", "START..STOP"),
        ("  %y: f64[n] = sum %x axis=0}", "'{'"),
        ("  %y: f64[n] &%z = flip %x {axis=(0,)}", "%z is used before it is defined"),
    ],
)
def test_wrong_line_is_quoted_with_its_number(row: str, text: str) -> None:
    source = "\n".join([HEAD, "  # a comment", "", row, "  return %x", "}"])
    with pytest.raises(IRError) as caught:
        parse(source)
    assert text in str(caught.value)
    assert f"line 4: {row.strip()}" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text", "line"),
    [
        ("", "no function in the text", ""),
        ("hello", "a function header is expected", "line 1: hello"),
        (
            f"{HEAD}\n{GOOD}",
            "the text ends inside a function",
            f"line 2: {GOOD.strip()}",
        ),
        (f"{HEAD}\n  return 2.0\n}}", "the results are ~f64", "line 2: return 2.0"),
        (f"{HEAD} x\n  return %x\n}}", "the results are", "line"),
        (
            f"{HEAD[:-2]} where n > 0 {{\n  return %x\n}}",
            "'n > 0' is not a fact of the form `dim >= 0`",
            "line 1: ",
        ),
        (
            f"{HEAD[:-2]} into %z {{\n  return %x\n}}",
            "%z is not a parameter",
            "line",
        ),
        (
            f"{HEAD}\n  %y: f64[n] = cond %p {{\n  yield %x\n}}\n  return %y\n}}",
            "'} else {' is expected",
            "line 4: }",
        ),
    ],
)
def test_wrong_shape_of_the_text_is_an_error(source: str, text: str, line: str) -> None:
    with pytest.raises(IRError) as caught:
        parse(source)
    assert text in str(caught.value)
    assert line in str(caught.value)


def test_signed_zeros_and_infinities_keep_their_bits() -> None:
    b = IRBuilder()
    x = b.value(Type(F64, (3,)), "x")
    for literal in (-0.0, float("inf"), float("-inf"), 5e-324, 1e300, -1):
        b.add(x, literal)
    f = Func("f", "func", b.finish([x], [x]))
    again = parse(show(f))
    got = [n.operands[1] for n in again.nodes]
    want = [n.operands[1] for n in f.nodes]
    assert [repr(v) for v in got] == [repr(v) for v in want]
    assert np.signbit(got[0])
