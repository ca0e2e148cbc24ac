"""The machine: threads, control flow and memory, on hand-written PTX."""

import numpy as np
import pytest
from snippets import Run, error_of, zeros

from retrograde.runtime.devices.machine import PtxError, Space, launch

# Threads and control flow.


def test_special_registers() -> None:
    body = """
    mov.u32 %r4, %nctaid.x; mov.u32 %r5, %laneid; mov.u32 %r6, %warpid;
    mad.lo.u32 %r7, %r4, 1000, %r5;
    mad.lo.u32 %r7, %r6, 100, %r7;
    st.global.u32 [%d1], %r7;
    """
    run = Run(body, zeros(192))
    run(2, 96)
    thread = np.arange(96)
    expected = 2000 + thread % 32 + thread // 32 * 100
    assert run.read().tolist() == expected.tolist() * 2


def test_three_dimensions() -> None:
    body = """
    mov.u32 %r4, %tid.y; mov.u32 %r5, %ctaid.z; mov.u32 %r6, %ntid.y;
    mad.lo.u32 %r7, %r4, 10, %r0;
    mad.lo.u32 %r7, %r5, 100, %r7;
    mad.lo.u32 %r8, %r4, %r2, %r0;
    mul.lo.u32 %r9, %r2, %r6;
    mad.lo.u32 %r8, %r5, %r9, %r8;
    mul.wide.u32 %d5, %r8, 4;
    add.u64 %d5, %d0, %d5;
    st.global.u32 [%d5], %r7;
    """
    run = Run(body, zeros(24))
    launch(run.module, "k", (1, 1, 2), (4, 3), run.args, run.space)
    z, y, x = np.indices((2, 3, 4))
    assert run.read().tolist() == (z * 100 + y * 10 + x).ravel().tolist()


def test_threads_that_part_meet_again() -> None:
    body = """
    and.b32 %r4, %r0, 1;
    setp.eq.u32 %p, %r4, 0;
    @%p bra even;
    mov.u32 %r5, 7;
    bra.uni join;
    even:
    mul.lo.u32 %r5, %r0, 2;
    join:
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(100))
    counts = run(4, 25)
    thread, block = np.arange(100) % 25, np.arange(100) // 25
    expected = np.where(thread % 2 == 0, thread * 2, 7) + block
    assert run.read().tolist() == expected.tolist()
    # Both arms once each, and everything behind them once for all.
    without = Run("st.global.u32 [%d1], %r0;", zeros(100))(4, 25)
    assert counts.instructions - without.instructions == 100 * 4 + 52 + 2 * 48


def test_loops_of_different_lengths() -> None:
    body = """
    mov.u32 %r4, 0; mov.u32 %r5, 0;
    loop:
    setp.ge.u32 %p, %r4, %r0;
    @%p bra done;
    add.u32 %r5, %r5, %r4;
    add.u32 %r4, %r4, 1;
    bra loop;
    done:
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(64))
    run(1, 64)
    assert run.read().tolist() == [n * (n - 1) // 2 for n in range(64)]


def test_guards_and_early_exits() -> None:
    body = """
    setp.lt.u32 %p, %r0, 5;
    mov.u32 %r4, 1;
    @%p mov.u32 %r4, 2;
    setp.ge.u32 %q, %r0, 8;
    @%q ret;
    st.global.u32 [%d1], %r4;
    """
    run = Run(body, zeros(10))
    run(1, 10)
    assert run.read().tolist() == [2] * 5 + [1] * 3 + [0] * 2


def test_branch_table() -> None:
    body = """
    and.b32 %r4, %r0, 3;
    table: .branchtargets A, B, C, A;
    brx.idx %r4, table;
    A: mov.u32 %r5, 10; bra join;
    B: mov.u32 %r5, 20; bra join;
    C: mov.u32 %r5, 30;
    join: st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(8))
    run(1, 8)
    assert run.read().tolist() == [10, 20, 30, 10] * 2


def test_many_blocks_run_in_groups() -> None:
    run = Run("st.global.u32 [%d1], %r3;", zeros(1 << 15))
    run(1 << 8, 1 << 7)
    assert run.read().tolist() == list(range(1 << 15))


def test_register_that_some_paths_do_not_write() -> None:
    body = """
    setp.lt.u32 %p, %r0, 5;
    @%p bra skip;
    mov.u32 %r4, 2;
    skip:
    @%p bra done;
    add.u32 %r4, %r4, 1;
    st.global.u32 [%d1], %r4;
    done:
    """
    run = Run(body, zeros(8))
    run(1, 8)
    assert run.read().tolist() == [0] * 5 + [3] * 3
    wrong = Run(body.replace("@%p bra done;", ""), zeros(8))
    assert "read of register %r4 that is not written, thread 0" in error_of(wrong, 1, 8)
    alone = Run("add.u32 %r4, %r5, 1;", zeros(8))
    assert "read of register %r5 that is not written, thread 0" in error_of(alone, 1, 8)


def test_register_that_may_hold_anything() -> None:
    body = "// implicit-def: %r4\n add.u32 %r5, %r4, 1; st.global.u32 [%d1], %r0;"
    run = Run(body, zeros(8))
    run(1, 8)
    assert run.read().tolist() == list(range(8))


def test_trap() -> None:
    body = "setp.eq.u32 %p, %r0, 3; @%p trap;"
    assert error_of(Run(body), 1, 8).startswith("trap, thread 3 of block 0\n")


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (1, 1025, "a block of 1025 threads, which has to have 1 to 1024"),
        (0, 32, "0 is no extent: one to three numbers from 1 on"),
    ],
)
def test_extents_are_checked(grid: int, block: int, message: str) -> None:
    assert error_of(Run(""), grid, block) == message


def test_number_of_arguments_is_checked() -> None:
    run = Run("")
    with pytest.raises(PtxError, match="2 arguments for 1 parameters"):
        launch(run.module, "k", 1, 1, [0, 0], run.space)


# Memory.


def test_vectors() -> None:
    body = """
    mul.wide.u32 %d5, %r0, 16;
    add.u64 %d5, %d0, %d5;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d5];
    st.global.v2.u32 [%d5], {%r7, %r6};
    st.global.v2.u32 [%d5+8], {%r5, %r4};
    """
    run = Run(body, np.arange(64, dtype="i4"))
    run(1, 16)
    assert run.read().reshape(16, 4).tolist() == [
        [4 * n + 3, 4 * n + 2, 4 * n + 1, 4 * n] for n in range(16)
    ]


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16"])
def test_narrow_memory_is_extended_and_cut(kind: str) -> None:
    code = kind.replace("s", "i")[0] + str(int(kind[1:]) // 8)
    source = np.arange(-20, 20).astype(code)
    body = f"""
    ld.param.u64 %d5, [k_1];
    mad.wide.u32 %d6, %r0, {int(kind[1:]) // 8}, %d5;
    ld.global.{kind} %r4, [%d6];
    st.global.u32 [%d1], %r4;
    add.u32 %r4, %r4, 1;
    st.global.{kind} [%d6], %r4;
    """
    run = Run(body, zeros(40), source)
    run(1, 40)
    assert run.read(0).tolist() == source.astype("i4").tolist()
    assert run.read(1).tolist() == (source + np.ones(1, code)).tolist()


def test_scattered_and_uniform_addresses() -> None:
    body = """
    sub.u32 %r4, 31, %r0;
    mul.wide.u32 %d5, %r4, 4;
    add.u64 %d5, %d0, %d5;
    ld.global.u32 %r5, [%d5];
    ld.global.u32 %r6, [%d0+40];
    add.u32 %r5, %r5, %r6;
    ld.param.u64 %d6, [k_1];
    add.u64 %d6, %d6, %d3;
    st.global.u32 [%d6], %r5;
    """
    run = Run(body, np.arange(32, dtype="i4"), zeros(32))
    run(1, 32)
    assert run.read(1).tolist() == [31 - n + 10 for n in range(32)]


def test_lanes_of_one_access_may_lie_in_several_allocations() -> None:
    body = """
    ld.param.u64 %d5, [k_1];
    and.b32 %r4, %r0, 1;
    setp.eq.u32 %p, %r4, 0;
    selp.u64 %d6, %d0, %d5, %p;
    add.u64 %d6, %d6, %d4;
    ld.global.u32 %r5, [%d6];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d6], %r5;
    atom.global.add.u32 %r6, [%d6], 5;
    """
    run = Run(body, np.arange(32, dtype="i4"), np.arange(100, 132, dtype="i4"))
    run(1, 32)
    thread = np.arange(32)
    assert run.read(0).tolist() == (thread + 6 * (thread % 2 == 0)).tolist()
    assert run.read(1).tolist() == (thread + 100 + 6 * (thread % 2)).tolist()


def test_generic_addresses() -> None:
    body = """
    .shared .align 4 .b8 tile[256]; .local .align 4 .b8 own[8];
    mov.u64 %d5, tile; cvta.shared.u64 %d5, %d5; add.u64 %d6, %d5, %d4;
    st.u32 [%d6], %r0;
    cvta.to.shared.u64 %d7, %d6; ld.shared.u32 %r4, [%d7];
    mov.u64 %d8, own; cvta.local.u64 %d8, %d8;
    st.u32 [%d8+4], %r4; ld.u32 %r5, [%d8+4];
    st.u32 [%d1], %r5;
    """
    run = Run(body, zeros(64))
    run(2, 32)
    assert run.read().tolist() == list(range(32)) * 2


def test_local_arrays_belong_to_threads() -> None:
    body = """
    .local .align 4 .b8 own[16];
    mov.u64 %d5, own;
    and.b32 %r4, %r0, 3;
    mad.wide.u32 %d6, %r4, 4, %d5;
    st.local.u32 [own+4], 5; st.local.u32 [%d5], 6; st.local.u32 [%d5+8], 7;
    st.local.u32 [%d5+12], 8;
    st.local.u32 [%d6], %r0;
    ld.local.u32 %r5, [own+4];
    st.global.u32 [%d1], %r5;
    """
    run = Run(body, zeros(64))
    run(2, 32)
    thread = np.arange(64) % 32
    assert run.read().tolist() == np.where(thread % 4 == 1, thread, 5).tolist()


def test_variables_of_the_module() -> None:
    head = ".global .align 4 .b8 table[16] = {1,0,0,0,2,0,0,0,3,0,0,0,4};"
    head += "\n.global .u32 sum;"
    body = """
    mov.u64 %d5, table; and.b32 %r4, %r0, 3; mad.wide.u32 %d6, %r4, 4, %d5;
    ld.global.u32 %r5, [%d6];
    st.global.u32 [%d1], %r5;
    red.global.add.u32 [sum], %r5;
    """
    run = Run(body, zeros(8), head=head)
    run(1, 8)
    run(1, 8)
    assert run.read().tolist() == [1, 2, 3, 4] * 2
    found = np.empty(1, "i4")
    run.space.read(run.space.globals[run.module]["sum"], found)
    assert found == 40


FAULTS = {
    "4-byte load out of bounds: offset 128 of allocation 1, which has 128 bytes, "
    "thread 31 of block 0": "add.u64 %d1, %d1, 4; ld.global.u32 %r4, [%d1];",
    "4-byte load at 0xfffffffc, where nothing is allocated, thread 1 of block 0": (
        "sub.u64 %d1, %d0, %d4; ld.global.u32 %r4, [%d1];"
    ),
    "4-byte store at 0x0, where nothing is allocated, thread 0 of block 0": (
        "st.global.u32 [0], %r0;"
    ),
    "misaligned 8-byte load at 0x100000004, thread 1 of block 0": (
        "and.b64 %d5, %d4, 4; add.u64 %d5, %d0, %d5; ld.global.u64 %d5, [%d5];"
    ),
    "misaligned 16-byte store at 0x100000004, thread 0 of block 0": (
        "mul.wide.u32 %d5, %r0, 0; add.u64 %d5, %d5, %d0;"
        "st.global.v4.u32 [%d5+4], {%r0, %r0, %r0, %r0};"
    ),
    "4-byte load out of bounds: offset 64 of shared memory, which has 64 bytes, "
    "thread 16 of block 0": (
        ".shared .align 4 .b8 tile[64]; mov.u64 %d5, tile; add.u64 %d5, %d5, %d4;"
        "st.shared.u32 [tile], 1; ld.shared.u32 %r4, [%d5];"
    ),
    "misaligned 4-byte store at 0x2, thread 0 of block 0": (
        ".shared .align 4 .b8 tile[64]; st.shared.u32 [tile+2], 1;"
    ),
    "4-byte load of memory that nobody has written: offset 8 of shared memory, "
    "thread 2 of block 0": (
        ".shared .align 4 .b8 tile[128]; mov.u64 %d5, tile; add.u64 %d5, %d5, %d4;"
        "setp.ne.u32 %p, %r0, 2; @%p st.shared.u32 [%d5], 1; ld.shared.u32 %r4, [%d5];"
    ),
    "4-byte load out of bounds: offset 16 of local memory, which has 16 bytes": (
        ".local .align 4 .b8 own[16]; ld.local.u32 %r4, [own+16];"
    ),
    "4-byte load of memory that nobody has written: offset 4 of local memory": (
        ".local .align 4 .b8 own[16]; st.local.u32 [own], 1; ld.local.u32 %r4, [own+4];"
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_fault_names_place_and_thread(message: str) -> None:
    found = error_of(Run(FAULTS[message], zeros(32)), 1, 32)
    assert found.startswith(message)
    assert "\n  at line " in found


def test_space_below_an_allocation_is_guarded() -> None:
    body = "ld.param.u64 %d5, [k_1]; ld.global.u32 %r4, [%d5+-4];"
    message = error_of(Run(body, zeros(32), zeros(32)), 1, 32)
    assert message.startswith("4-byte load out of bounds: offset 508 of allocation 1")


def test_use_after_free() -> None:
    run = Run("ld.global.u32 %r4, [%d1];", zeros(32))
    run(1, 32)
    run.space.free(run.args[0])
    message = error_of(run, 1, 32)
    assert message.startswith(
        "4-byte load of allocation 1 after it was freed, thread 0 of block 0"
    )
    with pytest.raises(PtxError, match="allocation 1 is freed twice"):
        run.space.free(run.args[0])
    with pytest.raises(PtxError, match="where no allocation begins"):
        run.space.free(run.args[0] + 4)


def test_unwritten_memory_is_an_error_on_both_sides() -> None:
    body = """
    ld.param.u64 %d5, [k_1]; add.u64 %d5, %d5, %d3;
    ld.global.u32 %r4, [%d5]; st.global.u32 [%d1], %r4;
    """
    run = Run(body, zeros(32), zeros(0))
    run.args[1] = run.space.allocate(128, "the buffer")
    assert "4-byte load of memory that nobody has written: offset 0" in error_of(
        run, 1, 32
    )
    run.space.write(run.args[1], np.arange(16, dtype="i4"))
    assert "written: offset 64 of the buffer, thread 16" in error_of(run, 1, 32)
    target = zeros(32)
    with pytest.raises(PtxError) as error:
        run.space.read(run.args[1], target)
    assert str(error.value) == (
        "read of the buffer: nobody has written byte 64 of 128, nor 63 others"
    )
    run.space.fill(run.args[1] + 64, 1, 64)
    run(1, 32)
    assert run.read().tolist() == [*range(16), *[0x01010101] * 16]


def test_copies_keep_what_is_unwritten() -> None:
    space = Space()
    a, b = space.allocate(8), space.allocate(8)
    space.write(a, np.arange(8, dtype="u1"))
    space.copy(b + 4, a, 4)
    found = np.empty(4, "u1")
    space.read(b + 4, found)
    assert found.tolist() == [0, 1, 2, 3]
    space.copy(a, b, 8)
    with pytest.raises(PtxError, match="nobody has written byte 0 of 8, nor 3 others"):
        space.read(a, np.empty(8, "u1"))
    with pytest.raises(PtxError, match="copy of 8 bytes from offset 4 of allocation 2"):
        space.copy(b + 4, a, 8)


def test_allocations_are_aligned_and_apart() -> None:
    space = Space()
    first, second, empty = space.allocate(1), space.allocate(300), space.allocate(0)
    assert first % 256 == second % 256 == empty % 256 == 0
    assert second - first >= 257
    assert empty - second >= 556
    with pytest.raises(PtxError, match="where nothing is allocated"):
        space.write(4, np.zeros(1))


def test_two_spaces_do_not_share_a_module_s_memory() -> None:
    run = Run("st.global.u32 [%d1], %r0;", zeros(8))
    run(1, 8)
    other = Space()
    address = other.allocate(32)
    launch(run.module, "k", 1, 8, [address], other)
    found = zeros(8)
    other.read(address, found)
    assert found.tolist() == list(range(8))
