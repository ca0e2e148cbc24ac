"""Copies between arrays of a device that are not in C order, by a kernel of their own.

The kernel is PTX, written for a number of axes and a size of elements: it needs no
compiler, so that arrays can be handled where only the driver is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from .interface import Code, Device

BLOCK = 256  # threads
NARROW = 2**31  # elements that are counted with 32 bits: division costs a third
Axes: TypeAlias = "list[tuple[int, int, int]]"  # sizes, steps in target and source


def copy_strided(
    device: Device,
    target: int,
    source: int,
    shape: Sequence[int],
    steps: tuple[Sequence[int], Sequence[int]],
    itemsize: int,
) -> None:
    """Copy elements from one address to another; `steps` are strides in bytes of both.

    What is written and what is read must not overlap.
    """
    axes, unit = merged(shape, steps, itemsize)
    count = 1
    for size, _, _ in axes:
        count *= size
    if not count:
        return
    if len(axes) == 1 and axes[0][1:] == (unit, unit):
        device.copy(target, source, count * unit)
        return
    key = len(axes), unit, count < NARROW
    function = device.copiers.get(key)
    if function is None:
        function = device.copiers[key] = device.load(code(*key))
    numbers = [x for axis in axes for x in axis]
    grid = (count + BLOCK - 1) // BLOCK
    device.launch(function, grid, BLOCK, (target, source, count, *numbers))


def merged(
    shape: Sequence[int], steps: tuple[Sequence[int], Sequence[int]], itemsize: int
) -> tuple[Axes, int]:
    """Return as few axes as say the same, and the bytes that one thread copies.

    >>> merged((4, 3, 2), ((48, 16, 8), (480, 16, 8)), 8)
    ([(4, 48, 480), (6, 8, 8)], 8)
    """
    unit = min(itemsize, 8)
    axes = list(zip(shape, *steps, strict=True))
    if unit < itemsize:
        axes.append((itemsize // unit, unit, unit))
    out: Axes = []
    for size, to, of in axes:
        if size == 1:
            continue
        if out and out[-1][1:] == (size * to, size * of):
            size *= out.pop()[0]
        out.append((size, to, of))
    return out or [(1, unit, unit)], unit


def code(axes: int, unit: int, narrow: bool) -> Code:
    """Return the kernel for a number of axes and bytes of an element."""
    names = ["target", "source", "count"]
    for k in range(axes):
        names += [f"size{k}", f"to{k}", f"of{k}"]
    params = ",\n".join(f"\t.param .u64 {name}" for name in names)
    body = "\n".join(f"\t{line}" for line in _lines(axes, unit, narrow))
    ptx = (
        ".version 7.0\n.target sm_75\n.address_size 64\n\n"
        f".visible .entry copy_strided(\n{params}\n)\n{{\n{body}\n}}\n"
    )
    kinds = ("pointer", "pointer", *("int64",) * (len(names) - 2))
    return Code("copy_strided", kinds, ptx, b"", 0)


def _lines(axes: int, unit: int, narrow: bool) -> Iterator[str]:
    yield ".reg .pred %p<2>;"
    yield ".reg .b16 %rs<2>;"
    yield ".reg .b32 %r<8>;"
    yield ".reg .b64 %rd<10>;"
    yield "mov.u32 %r1, %ctaid.x;"
    yield "mov.u32 %r2, %ntid.x;"
    yield "mov.u32 %r3, %tid.x;"
    yield "mul.wide.u32 %rd1, %r1, %r2;"
    yield "cvt.u64.u32 %rd2, %r3;"
    yield "add.s64 %rd1, %rd1, %rd2;"
    yield "ld.param.u64 %rd2, [count];"
    yield "setp.ge.s64 %p1, %rd1, %rd2;"
    yield "@%p1 bra $DONE;"
    for name, register in (("target", "%rd3"), ("source", "%rd4")):
        yield f"ld.param.u64 {register}, [{name}];"
        yield f"cvta.to.global.u64 {register}, {register};"
    for k in reversed(range(axes)):
        place = "%rd1"
        if k:
            place = "%rd6"
            yield f"ld.param.u64 %rd5, [size{k}];"
            yield from _divided(narrow)
        yield f"ld.param.u64 %rd7, [to{k}];"
        yield f"mad.lo.s64 %rd3, {place}, %rd7, %rd3;"
        yield f"ld.param.u64 %rd7, [of{k}];"
        yield f"mad.lo.s64 %rd4, {place}, %rd7, %rd4;"
    register = {1: "%rs1", 2: "%rs1", 4: "%r7", 8: "%rd8"}[unit]
    yield f"ld.global.u{8 * unit} {register}, [%rd4];"
    yield f"st.global.u{8 * unit} [%rd3], {register};"
    yield "$DONE:"
    yield "ret;"


def _divided(narrow: bool) -> Iterator[str]:
    """Divide %rd1 by %rd5; the remainder goes into %rd6."""
    if narrow:
        yield "cvt.u32.u64 %r4, %rd1;"
        yield "cvt.u32.u64 %r5, %rd5;"
        yield "rem.u32 %r6, %r4, %r5;"
        yield "div.u32 %r4, %r4, %r5;"
        yield "cvt.u64.u32 %rd6, %r6;"
        yield "cvt.u64.u32 %rd1, %r4;"
    else:
        yield "rem.u64 %rd6, %rd1, %rd5;"
        yield "div.u64 %rd1, %rd1, %rd5;"
