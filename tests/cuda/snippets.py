"""Small PTX programs for tests: one entry round a few instructions."""

from collections.abc import Sequence

import numpy as np

from retrograde.runtime.devices import machine, ptx

TYPES = {"b": "", "pred": ""}
HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"


def entry(body: str, parameters: int = 0, head: str = "") -> str:
    """Return the text of an entry `k` with pointers as parameters ``k_0``, ``k_1``..."""
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
    module, space = ptx.parse(text), machine.Space()
    count = len(arrays[0])
    args = []
    for values in arrays:
        args.append(space.allocate(values.nbytes))
        space.write(args[-1], values)
    result = np.empty(count, dtype(output))
    args.append(space.allocate(result.nbytes))
    if not single:
        machine.launch(module, "k", count, 1, args, space)
        space.read(args[-1], result)
        return result
    for place in range(count):
        moved = [
            a + place * values.itemsize
            for a, values in zip(args, [*arrays, result], strict=True)
        ]
        machine.launch(module, "k", 1, 1, moved, space)
    space.read(args[-1], result)
    return result
