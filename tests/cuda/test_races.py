"""Barriers, data races and counts, on hand-written PTX."""

import numpy as np
import pytest
from snippets import Run, error_of, zeros

# Barriers and races.


EXCHANGE = """
    .shared .align 4 .b8 tile[1024];
    mov.u64 %d5, tile; add.u64 %d6, %d5, %d4;
    st.shared.u32 [%d6], %r3;
    BARRIER
    xor.b32 %r4, %r0, 33; mad.wide.u32 %d7, %r4, 4, %d5;
    ld.shared.u32 %r5, [%d7];
    st.global.u32 [%d1], %r5;
"""


def test_shared_memory_of_blocks_behind_a_barrier() -> None:
    run = Run(EXCHANGE.replace("BARRIER", "bar.sync 0;"), zeros(256))
    run(4, 64)
    thread = np.arange(256)
    assert run.read().tolist() == (thread // 64 * 64 + (thread % 64 ^ 33)).tolist()


def test_missing_barrier_is_a_race() -> None:
    run = Run(EXCHANGE.replace("BARRIER", ""), zeros(256))
    message = error_of(run, 4, 64)
    lines = message.split("\n")
    assert lines[0] == "data race on offset 0 of shared memory:"
    assert lines[1].startswith("  store by thread 0 of block 0, line ")
    assert lines[1].endswith(": st.shared.u32 [%d6], %r3")
    assert lines[2].startswith("  load by thread 33 of block 0, line ")
    run(4, 64, races=False)


def test_meeting_of_a_warp_orders_its_threads_only() -> None:
    inside = EXCHANGE.replace("BARRIER", "bar.warp.sync 0xffffffff;")
    message = error_of(Run(inside, zeros(64)), 1, 64)
    assert message.startswith("data race on offset 0 of shared memory")
    run = Run(inside.replace("33", "1"), zeros(64))
    run(1, 64)
    assert run.read().tolist() == [n ^ 1 for n in range(64)]


def test_race_between_blocks() -> None:
    message = error_of(Run("st.global.u32 [%d0], %r0;", zeros(4)), 2, 1)
    lines = message.split("\n")
    assert lines[0] == "data race on offset 0 of allocation 1:"
    assert lines[1].startswith("  store by thread 0 of block 0, line ")
    assert lines[2].startswith("  store by thread 0 of block 1, line ")
    late = """
    setp.ne.u32 %p, %r1, 0; @%p bra skip; st.global.u32 [%d0], 1;
    skip: bar.sync 0; ld.global.u32 %r4, [%d0];
    """
    assert "data race on offset 0" in error_of(Run(late, zeros(4)), 2, 1)


def test_races_between_groups_of_blocks_are_found() -> None:
    body = """
    setp.ne.u32 %p, %r0, 0; @%p ret;
    mul.wide.u32 %d5, %r1, 4; and.b64 %d5, %d5, 127; add.u64 %d5, %d0, %d5;
    st.global.u32 [%d5], %r1;
    """
    Run(body, zeros(32))(32, 1024)
    assert "thread 0 of block 32" in error_of(Run(body, zeros(32)), 33, 1024)


def test_accesses_of_different_widths_overlap() -> None:
    body = """
    setp.ne.u32 %p, %r0, 0;
    @%p bra other;
    st.global.v4.u32 [%d0], {%r0, %r0, %r0, %r0};
    ret;
    other: ld.global.u8 %r4, [%d0+OFFSET];
    """
    message = error_of(Run(body.replace("OFFSET", "15"), zeros(8)), 1, 2)
    assert message.startswith("data race on offset 15 of allocation 1")
    Run(body.replace("OFFSET", "16"), zeros(8))(1, 2)


@pytest.mark.parametrize(
    ("body", "race"),
    [
        ("ld.global.u32 %r4, [%d0];", False),
        ("red.global.add.u32 [%d0], 1;", False),
        ("red.global.add.u32 [%d0], 1; ld.global.u32 %r4, [%d0];", True),
        ("ld.global.u32 %r4, [%d1]; st.global.u32 [%d1], %r4;", False),
        ("ld.global.u32 %r4, [%d1]; st.global.u32 [%d0], %r4;", True),
        ("st.global.u32 [%d1], 1; bar.sync 0; ld.global.u32 %r4, [%d0];", False),
        ("ld.global.u32 %r4, [%d0]; bar.sync 0; st.global.u32 [%d1], %r4;", False),
    ],
)
def test_what_is_a_race_in_a_block(body: str, race: bool) -> None:
    run = Run(body, zeros(64))
    if race:
        assert error_of(run, 1, 64).startswith("data race on offset 0 of allocation 1")
    else:
        run(1, 64)


def test_serial_accesses_of_single_threads_race_too() -> None:
    body = """
    setp.eq.u32 %p, %r0, 0; @%p st.global.u32 [%d0], 1;
    setp.eq.u32 %p, %r0, 40; @%p st.global.u32 [%d0], 2;
    """
    message = error_of(Run(body, zeros(4)), 1, 64)
    assert "store by thread 0 of block 0" in message
    assert "store by thread 40 of block 0" in message


def test_barrier_that_some_threads_never_reach() -> None:
    body = "setp.lt.u32 %p, %r0, 3; @%p ret; bar.sync 0;"
    message = error_of(Run(body), 2, 8)
    assert message.startswith(
        "thread 3 of block 0 waits at a barrier that thread 0 of block 0 never reaches"
    )


def test_divergent_barrier() -> None:
    body = """
    setp.lt.u32 %p, %r0, 3; @%p bra A; bar.sync 0; bra B; A: bar.sync 0; B:
    """
    message = error_of(Run(body), 1, 8)
    assert message.startswith(
        "divergent barrier: thread 0 of block 0 waits here, thread 3"
    )


def test_blocks_may_wait_at_different_barriers() -> None:
    body = """
    setp.eq.u32 %p, %r1, 0; @%p bra A;
    bar.sync 0; mov.u32 %r4, 1; bra B;
    A: bar.sync 0; bar.sync 0; mov.u32 %r4, 2;
    B: setp.eq.u32 %q, %r1, 2; @%q ret; bar.sync 0;
    st.global.u32 [%d1], %r4;
    """
    run = Run(body, zeros(24))
    run(3, 8)
    assert run.read().tolist() == [2] * 8 + [1] * 8 + [0] * 8


def test_threads_that_parted_meet_at_a_barrier() -> None:
    body = """
    mov.u32 %r5, 0;
    setp.lt.u32 %p, %r0, 3; @%p bra A; mov.u32 %r5, 1; bra B; A: mov.u32 %r5, 2; B:
    bar.sync 0;
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(16))
    run(2, 8)
    assert run.read().tolist() == ([2] * 3 + [1] * 5) * 2


def test_barriers_that_reduce() -> None:
    body = """
    setp.lt.u32 %p, %r0, %r1;
    barrier.sync.red.popc.u32 %r4, 0, %p;
    bar.red.and.pred %q, 0, %p; selp.u32 %r5, 100, 0, %q;
    bar.red.or.pred %q, 0, %p; selp.u32 %r6, 1000, 0, %q;
    add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6;
    st.global.u32 [%d1], %r4;
    """
    run = Run(body.replace("barrier.sync.red", "bar.red"), zeros(36))
    run(9, 4)
    expected = [min(b, 4) + 100 * (b >= 4) + 1000 * (b > 0) for b in range(9)]
    assert run.read().tolist() == np.repeat(expected, 4).tolist()


# Counts.


def test_counts_of_a_copy() -> None:
    body = """
    ld.param.u64 %d5, [k_1]; add.u64 %d6, %d5, %d3;
    ld.global.u32 %r4, [%d1]; st.global.u32 [%d6], %r4;
    """
    counts = Run(body, zeros(256), zeros(256))(4, 64)
    assert (counts.read, counts.written, counts.launches) == (1024, 1024, 1)
    assert (counts.sectors, counts.least, counts.efficiency) == (64, 64, 1.0)
    assert counts.instructions == 256 * (8 + 4 + 1)
    twice = counts + counts
    assert (twice.launches, twice.read, twice.efficiency) == (2, 2048, 1.0)


@pytest.mark.parametrize(
    ("address", "sectors", "least"),
    [
        ("mov.u64 %d5, %d1;", 4, 4),  # a row
        ("add.u64 %d5, %d1, 4;", 5, 4),  # a row that begins within a sector
        ("mad.wide.u32 %d5, %r0, 32, %d0;", 32, 4),  # a column
        ("mad.wide.u32 %d5, %r0, 8, %d0;", 8, 4),  # every second element
        ("mov.u64 %d5, %d0;", 1, 1),  # one element for all
        ("and.b32 %r4, %r0, 1; mad.wide.u32 %d5, %r4, 64, %d0;", 2, 1),
        ("xor.b32 %r4, %r0, 5; mad.wide.u32 %d5, %r4, 4, %d0;", 4, 4),  # permuted
    ],
)
def test_sectors_of_a_warp(address: str, sectors: int, least: int) -> None:
    counts = Run(address + "ld.global.u32 %r5, [%d5];", zeros(512))(1, 32)
    assert (counts.sectors, counts.least) == (sectors, least)
    part = address + "setp.gt.u32 %p, %r0, 63; @%p ret; ld.global.u32 %r5, [%d5];"
    counts = Run(part, zeros(2048))(1, 96)
    assert counts.sectors == 2 * sectors
    assert Run(part, zeros(512))(1, 32, sectors=False).sectors == 0


def test_sectors_of_blocks_that_fill_no_warp() -> None:
    counts = Run("ld.global.u32 %r5, [%d1];", zeros(40))(4, 10)
    assert (counts.sectors, counts.least) == (2 + 3 + 3 + 2 - 2, 8)
