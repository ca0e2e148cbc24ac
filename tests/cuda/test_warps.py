"""Warps and atomics: what threads tell each other, on hand-written PTX."""

import numpy as np
import pytest
from snippets import Run, error_of, zeros

SHUFFLES = {
    "bfly": lambda lane, b, low, high: lane ^ b,
    "down": lambda lane, b, low, high: lane + b,
    "up": lambda lane, b, low, high: lane - b,
    "idx": lambda lane, b, low, high: low | b,
}


@pytest.mark.parametrize("mode", SHUFFLES)
@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("b", [0, 1, 5, 7])
def test_shuffle(mode: str, width: int, b: int) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = f"""
    mul.lo.u32 %r4, %r3, 3;
    shfl.sync.{mode}.b32 %r5|%p, %r4, {b}, {clamp}, 0xffffffff;
    selp.u32 %r6, 1000, 0, %p;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(128))
    run(2, 64)
    expected = []
    for thread in range(128):
        lane = thread % 32
        low = lane // width * width
        source = SHUFFLES[mode](lane, b, low, low + width - 1)
        inside = low <= source < low + width
        source = source if inside else lane
        expected.append((thread - lane + source) * 3 + 1000 * inside)
    assert run.read().tolist() == expected


def test_shuffle_by_a_register() -> None:
    body = """
    xor.b32 %r4, %r0, 21;
    shfl.sync.idx.b32 %r5, %r3, %r4, 31, -1;
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(64))
    run(1, 64)
    assert run.read().tolist() == [n // 32 * 32 + (n % 32 ^ 21) for n in range(64)]


def test_shuffle_among_a_part_of_a_warp() -> None:
    body = """
    mov.u32 %r5, 0;
    setp.ge.u32 %p, %r0, 8; @%p bra skip;
    shfl.sync.bfly.b32 %r5, %r0, 3, 31, 0xff;
    skip: st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(32))
    run(1, 32)
    assert run.read().tolist() == [n ^ 3 for n in range(8)] + [0] * 24
    message = error_of(Run(body.replace("3, 31", "8, 31"), zeros(32)), 1, 32)
    assert message.startswith("shuffle from lane 8, which is not here, thread 0")
    message = error_of(Run(body.replace("0xff", "0xffffffff"), zeros(32)), 1, 32)
    assert message.startswith(
        "member mask 0xffffffff, but the threads here are 0x000000ff, thread 0"
    )


def test_last_warp_may_be_short() -> None:
    body = """
    shfl.sync.down.b32 %r5, %r0, 1, 31, -1;
    st.global.u32 [%d1], %r5;
    """
    message = error_of(Run(body, zeros(40)), 1, 40)
    assert message.startswith("shuffle from lane 8, which is not here, thread 39")


def test_votes() -> None:
    body = """
    setp.lt.u32 %p, %r3, 40;
    vote.sync.ballot.b32 %r4, %p, -1;
    vote.sync.any.pred %q, %p, -1; selp.u32 %r5, 1, 0, %q;
    vote.sync.all.pred %q, %p, -1; selp.u32 %r6, 2, 0, %q;
    vote.sync.uni.pred %q, %p, -1; selp.u32 %r7, 4, 0, %q;
    popc.b32 %r4, %r4;
    mad.lo.u32 %r4, %r4, 10, %r5; add.u32 %r4, %r4, %r6; add.u32 %r4, %r4, %r7;
    st.global.u32 [%d1], %r4;
    """
    run = Run(body, zeros(96))
    run(1, 96)
    assert run.read().tolist() == [327] * 32 + [81] * 32 + [4] * 32


def test_matches_and_the_active_mask() -> None:
    body = """
    shr.u32 %r4, %r0, 2; and.b32 %r4, %r4, 3;
    match.any.sync.b32 %r5, %r4, -1;
    match.all.sync.b32 %r6|%p, %r4, -1;
    activemask.b32 %r7;
    popc.b32 %r7, %r7;
    add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r7;
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(32))
    run(1, 32)
    masks = [
        sum(1 << j for j in range(32) if j // 4 % 4 == n // 4 % 4) for n in range(32)
    ]
    found = run.read().view("u4").tolist()
    assert found == [m + 32 for m in masks]
    same = Run(body.replace("and.b32 %r4, %r4, 3", "mov.u32 %r4, 9"), zeros(32))
    same(1, 32)
    assert set(same.read().tolist()) == {-1 - 1 + 32}


INTEGERS = {
    "add.u32": (lambda old, v: old + v, 5),
    "min.s32": (min, 50),
    "max.s32": (max, 0),
    "and.b32": (lambda old, v: old & v, 0xFFFF),
    "or.b32": (lambda old, v: old | v, 64),
    "xor.b32": (lambda old, v: old ^ v, 1),
    "exch.b32": (lambda old, v: v, 7),
    "inc.u32": (lambda old, v: 0 if old >= v else old + 1, 3),
    "dec.u32": (lambda old, v: v if old == 0 or old > v else old - 1, 3),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("share", [0, 7, 31])
def test_atomics_happen_in_the_order_of_threads(name: str, share: int) -> None:
    """All threads at one place, at eight places, or each at its own."""
    apply, first = INTEGERS[name]
    body = f"""
    and.b32 %r4, %r0, {share}; mad.wide.u32 %d5, %r4, 4, %d0;
    mad.lo.u32 %r5, %r0, 3, 2; and.b32 %r5, %r5, 15;
    atom.global.{name} %r6, [%d5], %r5;
    ld.param.u64 %d6, [k_1]; add.u64 %d6, %d6, %d3;
    st.global.u32 [%d6], %r6;
    """
    run = Run(body, np.full(32, first, "i4"), zeros(32))
    run(1, 32)
    memory, seen = [first] * 32, []
    for thread in range(32):
        seen.append(memory[thread & share])
        memory[thread & share] = apply(memory[thread & share], thread * 3 + 2 & 15)
    assert run.read(1).tolist() == seen
    assert run.read(0).tolist() == memory
    reduced = body.replace("atom.", "red.").replace("%r6, [%d5]", "[%d5]")
    reduced = reduced.replace("[%d6], %r6", "[%d6], %r5")
    run = Run(reduced, np.full(32, first, "i4"), zeros(32))
    run(1, 32)
    assert run.read(0).tolist() == memory


@pytest.mark.parametrize("share", [0, 3])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_sums_are_added_one_by_one(kind: str, share: int) -> None:
    size = int(kind[1:]) // 8
    values = np.random.default_rng(3).normal(size=64).astype(f"f{size}")
    x = "f" if size == 4 else "x"
    body = f"""
    .reg .f64 %x<3>;
    ld.param.u64 %d5, [k_1]; mad.wide.u32 %d6, %r3, {size}, %d5;
    and.b32 %r4, %r0, {share}; mad.wide.u32 %d7, %r4, {size}, %d0;
    ld.global.{kind} %{x}1, [%d6];
    atom.global.add.{kind} %{x}2, [%d7], %{x}1;
    st.global.{kind} [%d6], %{x}2;
    """
    run = Run(body, zeros(4, f"f{size}"), values)
    run(2, 32)
    memory, seen = zeros(4, f"f{size}"), []
    for thread, value in enumerate(values):
        seen.append(memory[thread & share].copy())
        memory[thread & share] += value
    assert run.read(1).tolist() == np.array(seen).tolist()
    assert run.read(0).tolist() == memory.tolist()


def test_loop_of_compare_and_swap() -> None:
    body = """
    ld.global.u32 %r4, [%d0];
    again:
    add.u32 %r5, %r4, %r0;
    atom.global.cas.b32 %r6, [%d0], %r4, %r5;
    setp.ne.u32 %p, %r6, %r4;
    mov.u32 %r4, %r6;
    @%p bra again;
    """
    run = Run(body.replace("ld.global", "ld.volatile.global"), zeros(1))
    run(1, 16, races=False)
    assert run.read().tolist() == [120]


def test_shared_atomics_and_single_threads() -> None:
    body = """
    .shared .align 4 .b8 sum[4];
    setp.ne.u32 %p, %r0, 0;
    @%p bra skip; st.shared.u32 [sum], 0;
    skip: bar.sync 0;
    @%p bra rest; red.shared.add.u32 [sum], 100; atom.shared.exch.b32 %r5, [sum], 7;
    rest: bar.sync 0;
    red.shared.add.u32 [sum], %r0;
    bar.sync 0;
    ld.shared.u32 %r4, [sum];
    st.global.u32 [%d1], %r4;
    """
    run = Run(body, zeros(16))
    run(2, 8)
    assert run.read().tolist() == [35] * 16
