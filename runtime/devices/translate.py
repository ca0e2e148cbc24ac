"""Blocks of PTX -> Python functions over lanes.

Every block becomes one function of the frame of threads that executes it. Registers are
local variables: arrays of one value per lane, or NumPy scalars where all lanes agree,
which costs a tenth. Operators serve both; a table of rules says what each opcode
becomes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import arithmetic, conversions, exchange, instructions, rounding
from .emitter import Emitter, Rules
from .flow import Block, Flow, reads, writes
from .lanes import EXIT, Partial

__all__ = ["Program", "translate"]

RULES = Rules(instructions.RULES | conversions.RULES | exchange.RULES)


@dataclass(slots=True)
class Program:
    """A translated entry.

    `code` are the functions of the blocks, `sizes` their numbers of instructions and
    `live` their live slots as bits; `slots` numbers the registers that live across
    blocks and `names` tells them for errors.
    """

    flow: Flow
    code: list[Callable[[Any], int]]
    sizes: list[int]
    live: list[int]
    slots: dict[str, int]
    names: list[str]
    accesses: list[Any]
    source: str


def write_block(e: Emitter, number: int, block: Block) -> None:
    """Write the function of a block."""
    e.names, e.views = {}, {}
    body, e.lines = e.lines, []
    for item in block.code:
        e.now = item
        RULES.emit(e, item)
    code, e.lines = e.lines, body
    first: list[str] = []
    done: set[str] = set()
    for item in block.code:
        first.extend(r for r in reads(item) if r not in done and r not in first)
        done.update(writes(item))
    condition = block.condition
    if condition and condition.name not in done and condition.name not in first:
        first.append(condition.name)
    e.lines.append(f"def b{number}(F):")
    indented(e, "V = F.values")
    for register in first:
        read(e, block, register)
    indented(e, *code)
    after = frozenset().union(*(e.flow.blocks[t].live for t in block.targets))
    kept = [r for r in sorted(done) if r in after]
    for register in kept:
        indented(e, f"V[{e.slots[register]}] = {e.name(register)}")
    if kept:
        bits = sum(1 << e.slots[r] for r in kept)
        indented(e, f"F.dirty |= {bits:#x}")
    indented(e, *ending(e, block))


def indented(e: Emitter, *lines: str) -> None:
    e.lines.extend(f"    {line}" for line in lines)


def read(e: Emitter, block: Block, register: str) -> None:
    """Write the read of a register that another block wrote."""
    name, slot = e.name(register), e.slots[register]
    indented(e, f"{name} = V[{slot}]", f"if {name} is None: {name} = F.fetch({slot})")
    if register in block.doubtful:
        indented(e, f"if {name}.__class__ is Partial: F.unwritten({slot}, {name})")


def ending(e: Emitter, block: Block) -> list[str]:
    """Return the lines that say where the threads go on."""
    if block.end == "exit":
        return [f"return {EXIT}"]
    if block.end == "trap":
        return [f"F.trap({e.bind(block.last, 'i')})"]
    if block.end == "barrier":
        at = e.bind(block.last, "i")
        return [f"return F.barrier({block.targets[0]}, {at})"]
    if block.end == "jump":
        return [f"return {block.targets[0]}"]
    assert block.condition is not None
    if block.end == "switch":
        index = e.name(block.condition.name)
        return [f"return F.switch({index}, {block.targets})"]
    taken, other = block.targets
    if block.condition.negated:
        taken, other = other, taken
    name = e.name(block.condition.name)
    return [
        f"if {name}.__class__ is array: return F.part({name}, {taken}, {other})",
        f"return {taken} if {name} else {other}",
    ]


def translate(flow: Flow, helpers: dict[str, Any]) -> Program:
    """Translate the blocks of an entry; `helpers` are functions that they call."""
    registers = set(flow.inputs).union(*(block.live for block in flow.blocks))
    names = sorted(registers)
    slots = {name: slot for slot, name in enumerate(names)}
    both = vars(arithmetic) | vars(rounding)
    values = {k: v for k, v in both.items() if not k.startswith("__")}
    values |= helpers | {"Partial": Partial}
    emitter = Emitter(flow, slots, values)
    for number, block in enumerate(flow.blocks):
        write_block(emitter, number, block)
    source = "\n".join(emitter.lines)
    exec(compile(source, f"<{flow.entry.name[:40]}>", "exec"), values)
    return Program(
        flow=flow,
        code=[values[f"b{number}"] for number in range(len(flow.blocks))],
        sizes=[block.size for block in flow.blocks],
        live=[sum(1 << slots[r] for r in block.live) for block in flow.blocks],
        slots=slots,
        names=names,
        accesses=emitter.accesses,
        source=source,
    )
