"""The parser of PTX text: declarations, scopes, operands, guards, refusals."""

import numpy as np
import pytest
from snippets import HEAD, entry

from retrograde.runtime.devices.flow import flow
from retrograde.runtime.devices.ptx import (
    Address,
    Immediate,
    Instruction,
    Label,
    PtxError,
    Register,
    Symbol,
    Vector,
    parse,
    split,
)


def code(body: str) -> list[Instruction | Label]:
    return parse(entry(body)).functions["k"].code


def operands(instruction: str) -> tuple:
    first = code(f".reg .b32 %r<9>; .reg .pred %p<9>; {instruction}")[0]
    assert isinstance(first, Instruction)
    return first.operands


def test_entry_and_parameters() -> None:
    module = parse(entry("", 2))
    assert module.entries == ("k",)
    (first, second) = module.functions["k"].parameters
    assert (first.name, first.type, first.size) == ("k_0", "u64", 8)
    assert second.name == "k_1"


def test_variables_of_the_module() -> None:
    head = """
    .common .global .align 8 .u64 env;
    .global .align 4 .b8 table[8] = {1, 2, 255};
    .const .f32 scale[2] = {0f3F800000, 0f40000000};
    .visible .shared .align 16 .f32 tile[4][8];
    .extern .shared .align 4 .b8 rest[];
    """
    found = parse(entry("", 0, head)).variables
    assert found["env"].initial is None
    assert found["table"].initial == bytes([1, 2, 255, 0, 0, 0, 0, 0])
    assert np.frombuffer(found["scale"].initial, "f4").tolist() == [1, 2]
    assert (found["tile"].size, found["tile"].align) == (128, 16)
    assert found["rest"].dynamic
    assert not found["tile"].dynamic


def test_operands() -> None:
    assert operands("mov.u32 %r1, -5;") == (Register("%r1"), Immediate(-5))
    assert operands("mov.f32 %r1, 0f3F800000;")[1] == Immediate(0x3F800000, 32)
    assert operands("mov.f64 %r1, 0d4000000000000000;")[1] == Immediate(1 << 62, 64)
    assert operands("mov.u32 %r1, 0xff;")[1] == Immediate(255)
    assert operands("ld.u32 %r1, [%r2+-4];")[1] == Address(Register("%r2"), -4)
    assert operands("ld.u32 %r1, [name+8];")[1] == Address(Symbol("name"), 8)
    assert operands("setp.eq.u32 %p1|%p2, %r1, %r2;")[0] == Vector(
        (Register("%p1"), Register("%p2"))
    )
    assert operands("mov.b64 {_, %r1}, %r2;")[0].items[0] == Register("_")
    assert operands("selp.u32 %r1, 1, 0, !%p1;")[3] == Register("%p1", negated=True)


def test_lines_are_those_of_the_text() -> None:
    text = entry(
        "    // a comment\n    .reg .b32 %r1; /* two\n lines */ mov.u32 %r1, 1;"
    )
    first = parse(text).functions["k"].code[0]
    lines = text.split("\n")
    assert first.line == 1 + next(n for n, s in enumerate(lines) if "mov.u32" in s)


def test_statements_over_several_lines() -> None:
    first = code(".reg .b32 %r<3>; add.u32\n %r1,\n %r2,\n 1;")[0]
    assert first.text == "add.u32 %r1, %r2, 1"
    assert first.opcode == ("add", "u32")


def test_nested_scopes_have_registers_of_their_own() -> None:
    body = """
    .reg .b32 %t;
    mov.u32 %t, 1;
    { .reg .b64 %t; mov.u64 %t, 2; }
    { .reg .f32 %t; mov.f32 %t, 0f00000000; }
    mov.u32 %t, 3;
    """
    function = parse(entry(body)).functions["k"]
    names = [item.operands[0].name for item in function.code[:4]]
    assert names[0] == names[3] == "%t"
    assert len(set(names)) == 3
    kinds = [function.registers[name] for name in names]
    assert kinds == ["b32", "b64", "f32", "b32"]


def test_guard_becomes_a_branch() -> None:
    """Note [guards]"""
    body = ".reg .pred %p; .reg .b32 %r; @!%p mov.u32 %r, 1;"
    branch, moved, label = code(body)[:3]
    assert branch.opcode == ("bra",)
    assert branch.operands == (Register("%p"), Symbol(label.name))
    assert moved.opcode == ("mov", "u32")
    guarded = code(".reg .pred %p; X: @!%p bra X;")[1]
    assert guarded.operands == (Register("%p", negated=True), Symbol("X"))


def test_directives_for_the_assembler_are_skipped() -> None:
    body = '.pragma "nounroll"; .loc 1 2 3\n .reg .b32 %r; mov.u32 %r, 1;'
    text = entry(body, 0, '.file 1 "x.py"\n') + ".section .debug { .b8 1 \n .b8 2 }\n"
    assert [item.text for item in parse(text).functions["k"].code] == [
        "mov.u32 %r, 1",
        "ret",
    ]


def test_entry_with_a_limit_of_threads() -> None:
    text = HEAD + ".visible .entry k()\n.maxntid 128, 1, 1\n.minnctapersm 2\n{ ret; }"
    assert parse(text).entries == ("k",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry(".reg .b99 %r;"), "PTX that is not known, line 9: .reg .b99 %r"),
        (entry(".weird x;"), "PTX that is not known, line 9: .weird x"),
        (HEAD + ".tex t;", "PTX that is not known, line 4: .tex t"),
        (HEAD + ".entry k() {", "PTX that is not known, line 4: k has no end"),
    ],
)
def test_unknown_statement_is_named(text: str, message: str) -> None:
    with pytest.raises(PtxError) as error:
        parse(text)
    assert str(error.value) == message


def test_split_respects_brackets() -> None:
    assert split("{a, b}, [c], (d, e), f") == ["{a, b}", "[c]", "(d, e)", "f"]


FUNCTION = """
.func (.param .b64 result) twice(.param .b64 given)
{
    .reg .f64 %d<3>;
    ld.param.f64 %d1, [given];
    add.f64 %d2, %d1, %d1;
    st.param.f64 [result+0], %d2;
    ret;
}
"""
CALL = """
    { .param .b64 p; st.param.f64 [p+0], %d1;
    .param .b64 r;
    call.uni (r), twice, (p);
    ld.param.f64 %d1, [r+0]; }
"""


def test_calls_are_put_in_place() -> None:
    """Note [calls]"""
    body = ".reg .f64 %d<2>; mov.f64 %d1, 0d3FF0000000000000;" + CALL * 2
    found = flow(parse(entry(body, 0, FUNCTION)), "k")
    opcodes = [i.opcode for block in found.blocks for i in block.code]
    assert opcodes.count(("add", "f64")) == 2
    assert all(opcode[0] != "call" for opcode in opcodes)


def test_blocks_that_follow_each_other_are_one() -> None:
    body = ".reg .b32 %r; mov.u32 %r, 1; bra.uni A; A: add.u32 %r, %r, 1; bra B; B:"
    (only,) = flow(parse(entry(body)), "k").blocks
    assert [item.opcode[0] for item in only.code] == ["mov", "add"]
    assert only.end == "exit"


def test_live_and_doubtful_registers() -> None:
    """Note [liveness]"""
    body = """
    .reg .pred %p; .reg .b32 %a, %b, %c;
    mov.u32 %a, 1;
    setp.eq.u32 %p, %a, 1;
    @%p bra skip;
    mov.u32 %b, 2;
    skip:
    add.u32 %c, %a, %b;
    """
    first, middle, last = flow(parse(entry(body)), "k").blocks
    assert last.live == {"%a", "%b"}
    assert last.doubtful == {"%b"}
    assert middle.live == {"%a"}
    assert first.live == {"%b"}


@pytest.mark.parametrize(
    ("body", "head", "message"),
    [
        ("call.uni other, ();", "", "a call of what is no function of the module"),
        (
            "call.uni loop, ();",
            ".func loop() { call.uni loop, (); ret; }",
            "recursion through loop is not supported",
        ),
        (".reg .b64 %r; mov.u64 %r, nothing;", "", "nothing is not declared"),
    ],
)
def test_what_flow_refuses(body: str, head: str, message: str) -> None:
    with pytest.raises(PtxError) as error:
        flow(parse(entry(body, 0, head)), "k")
    assert str(error.value).split("\n")[0] == message


def test_missing_entry_names_the_others() -> None:
    with pytest.raises(PtxError, match="no entry 'x' in the module, which has: k"):
        flow(parse(entry("")), "x")
