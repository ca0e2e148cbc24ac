"""Small PTX programs for tests: one entry round a few instructions."""

from collections.abc import Sequence

import numpy as np
import pytest

from retrograde.runtime.devices.machine import Counts, PtxError, Space, launch, parse

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"


def entry(body: str, parameters: int = 0, head: str = "") -> str:
    """Return the text of an entry `k` with the pointers ``k_0``, ``k_1``, ..."""
    declared = ",\n".join(f"    .param .u64 k_{n}" for n in range(parameters))
    return (
        f"{HEAD}{head}\n.visible .entry k(\n{declared}\n)\n{{\n{body}\n    ret;\n}}\n"
    )


def elementwise(
    body: str, inputs: Sequence[str], output: str, registers: str = ""
) -> str:
    """Return an entry that computes %d from %a, %b and %c of one element per thread.

    `inputs` and `output` are PTX types; predicates are kept in memory as bytes.
    """
    lines = [".reg .u64 %p<9>, %i, %o;", ".reg .u32 %t<4>;", registers]
    lines += [
        "mov.u32 %t0, %ctaid.x;",
        "mov.u32 %t1, %ntid.x;",
        "mov.u32 %t2, %tid.x;",
        "mad.lo.u32 %t3, %t0, %t1, %t2;",
        "cvt.u64.u32 %i, %t3;",
    ]
    for number, (name, kind) in enumerate(zip("abc", inputs, strict=False)):
        lines += [
            f".reg .{kind} %{name};",
            f"ld.param.u64 %p{number}, [k_{number}];",
            f"mad.lo.u64 %p{number}, %i, {size(kind)}, %p{number};",
        ]
        if kind == "pred":
            lines += [
                ".reg .b16 %m" + name + ";",
                f"ld.global.u8 %m{name}, [%p{number}];",
                f"setp.ne.s16 %{name}, %m{name}, 0;",
            ]
        else:
            lines.append(f"ld.global.{kind} %{name}, [%p{number}];")
    last = len(inputs)
    lines += [
        f".reg .{output} %d;",
        body,
        f"ld.param.u64 %p{last}, [k_{last}];",
        f"mad.lo.u64 %p{last}, %i, {size(output)}, %p{last};",
    ]
    if output == "pred":
        lines += [".reg .b16 %md;", "selp.b16 %md, 1, 0, %d;"]
        lines.append(f"st.global.u8 [%p{last}], %md;")
    else:
        lines.append(f"st.global.{output} [%p{last}], %d;")
    return entry("\n".join(f"    {line}" for line in lines), last + 1)


def size(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:]) // 8


def dtype(kind: str) -> np.dtype:
    if kind == "pred":
        return np.dtype(bool)
    return np.dtype({"f": "f", "s": "i", "u": "u", "b": "u"}[kind[0]] + str(size(kind)))


def compute(
    text: str, arrays: Sequence[np.ndarray], output: str, *, single: bool = False
) -> np.ndarray:
    """Run an elementwise entry on arrays of one length, and return its result.

    All elements run in one launch, in blocks of one thread, or each in its own.
    """
    module, space = parse(text), Space()
    count = len(arrays[0])
    args = []
    for values in arrays:
        args.append(space.allocate(values.nbytes))
        space.write(args[-1], values)
    result = np.empty(count, dtype(output))
    args.append(space.allocate(result.nbytes))
    if not single:
        launch(module, "k", count, 1, args, space)
        space.read(args[-1], result)
        return result
    for place in range(count):
        moved = [
            a + place * values.itemsize
            for a, values in zip(args, [*arrays, result], strict=True)
        ]
        launch(module, "k", 1, 1, moved, space)
    space.read(args[-1], result)
    return result


THREAD = """
    .reg .pred %p, %q; .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f32 %f<20>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r3, %r1, %r2, %r0;
    mul.wide.u32 %d3, %r3, 4;
    mul.wide.u32 %d4, %r0, 4;
    ld.param.u64 %d0, [k_0];
    add.u64 %d1, %d0, %d3;
"""


class Run:
    """A launch of a body behind THREAD, with arrays as its parameters."""

    def __init__(self, body: str, *arrays: np.ndarray, head: str = "") -> None:
        self.text = entry(THREAD + body, max(1, len(arrays)), head)
        self.module, self.space = parse(self.text), Space()
        self.arrays = arrays
        self.args = [self.space.allocate(a.nbytes) for a in arrays] or [0]
        for address, values in zip(self.args, arrays, strict=False):
            self.space.write(address, values)

    def __call__(self, grid: int, block: int, **options: bool | int) -> Counts:
        return launch(self.module, "k", grid, block, self.args, self.space, **options)

    def read(self, number: int = 0) -> np.ndarray:
        found = np.empty_like(self.arrays[number])
        self.space.read(self.args[number], found)
        return found


def error_of(run: Run, grid: int, block: int, **options: bool | int) -> str:
    with pytest.raises(PtxError) as error:
        run(grid, block, **options)
    return str(error.value)


def zeros(count: int, dtype: str = "i4") -> np.ndarray:
    return np.zeros(count, dtype)
