"""An entry -> blocks of instructions, with its calls in place.

Note [calls]
A call is replaced by the code of the function, with registers and labels of its own for
every call site: blocks stay the only structure, and threads that call from the same
place meet again behind the call without a stack of return addresses. Parameters become
registers. What this cannot express, recursion and calls through pointers, is refused.

Note [liveness]
`live` of a block are the registers whose value some path from its start reads. Only
these move when threads part or meet, and only registers that live across blocks have a
slot; the others are local variables of the translated block. `doubtful` are registers
that a block reads though some path to it has not written them: an error for the threads
that come that way. All other reads need no check.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .ptx import (
    Address,
    Declaration,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    PtxError,
    Register,
    Symbol,
    Vector,
)

__all__ = ["CARRY", "Block", "Flow", "flow", "reads", "writes"]

CARRY = Register("%cc")  # the condition code of add.cc and its kind
NO_RESULT = {"st", "red", "bra", "brx", "ret", "exit", "trap", "membar", "fence"}
NO_RESULT |= {"barrier", "bar", "prefetch", "prefetchu", "nanosleep"}
ENDS = {"bra", "brx", "ret", "exit", "trap"}


@dataclass(slots=True)
class Block:
    """Instructions that the same threads execute, and how they go on.

    `end` is "jump", "branch" on `condition` (to the first of `targets` where it holds),
    "switch" on an index, "barrier", "exit" or "trap"; `last` is the instruction. `size`
    counts the instructions, branches included.
    """

    code: list[Instruction] = field(default_factory=list)
    end: str = "jump"
    targets: tuple[int, ...] = ()
    condition: Register | None = None
    last: Instruction | None = None
    size: int = 0
    live: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()


@dataclass(slots=True)
class Flow:
    """The blocks of an entry, its registers and the memory that it declares.

    `inputs` are registers that are set at the start: parameters (``param name``),
    addresses of global variables (``&name``) and special registers.
    """

    entry: Function
    blocks: list[Block]
    types: dict[str, str]
    inputs: tuple[str, ...]
    variables: dict[str, Declaration]
    shared: int
    local: int


def flow(module: Module, entry: str) -> Flow:
    """Return the blocks of an entry of a module."""
    function = module.functions.get(entry)
    if function is None or not function.entry:
        known = ", ".join(module.entries)
        raise PtxError(f"no entry {entry!r} in the module, which has: {known}")
    flat = Flattener(module)
    flat.entry(function)
    blocks = merge(cut(flat.code, flat.tables))
    analyse(blocks, set(flat.inputs))
    return Flow(
        entry=function,
        blocks=blocks,
        types=flat.types,
        inputs=tuple(flat.inputs),
        variables=flat.globals,
        shared=flat.shared,
        local=flat.local,
    )


def registers(operand: Operand) -> Iterator[str]:
    """Yield the names of the registers in an operand."""
    if isinstance(operand, Register):
        if operand.name != "_":
            yield operand.name
    elif isinstance(operand, Address):
        yield from registers(operand.base)
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers(item)


def has_result(instruction: Instruction) -> bool:
    opcode = instruction.opcode
    return opcode[0] not in NO_RESULT or (opcode[0] in ("bar", "barrier")) & (
        "red" in opcode
    )


def writes(instruction: Instruction) -> list[str]:
    """Return the registers that an instruction writes."""
    found: list[str] = []
    if has_result(instruction) and instruction.operands:
        found.extend(registers(instruction.operands[0]))
    if "cc" in instruction.opcode:
        found.append(CARRY.name)
    return found


def reads(instruction: Instruction) -> list[str]:
    """Return the registers that an instruction reads."""
    found: list[str] = []
    for operand in instruction.operands[has_result(instruction) :]:
        found.extend(registers(operand))
    if instruction.opcode[0] in ("addc", "subc", "madc"):
        found.append(CARRY.name)
    return found


class Flattener:
    """Collects the code of an entry and of the functions it calls."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.code: list[Instruction | Label] = []
        self.tables: dict[str, tuple[str, ...]] = {}
        self.types: dict[str, str] = {CARRY.name: "pred"}
        self.inputs: dict[str, None] = {}
        self.globals: dict[str, Declaration] = {}
        self.offsets: dict[str, int] = {}
        self.shared = self.local = self.calls = 0
        self.active: list[str] = []

    def entry(self, function: Function) -> None:
        self.lay_out_shared()
        slots = {p.name: f"param {p.name}" for p in function.parameters}
        for parameter in function.parameters:
            self.types[slots[parameter.name]] = parameter.type
        self.expand(function, "", slots, None)
        self.code.append(Instruction(("exit",), (), 0, "exit"))

    def lay_out_shared(self) -> None:
        """Place shared variables; the dynamic one begins behind all others."""
        found = list(self.module.variables.values())
        for function in self.module.functions.values():
            found.extend(function.variables.values())
        shared = [v for v in found if v.space == "shared"]
        for variable in sorted(shared, key=lambda v: v.dynamic):
            align = 16 if variable.dynamic else variable.align
            self.shared += -self.shared % align
            self.offsets[variable.name] = self.shared
            self.shared += variable.size

    def expand(
        self, function: Function, prefix: str, slots: dict[str, str], end: str | None
    ) -> None:
        """Append a function's code; Note [calls]. `slots` are its parameters."""
        if function.name in self.active:
            raise PtxError(f"recursion through {function.name} is not supported")
        self.active.append(function.name)
        scope = Scope(self, function, prefix, slots)
        for name, kind in function.registers.items():
            self.types[prefix + name] = kind
        for name, labels in function.tables.items():
            self.tables[prefix + name] = tuple(prefix + label for label in labels)
        for item in function.code:
            if isinstance(item, Label):
                self.code.append(Label(prefix + item.name))
            elif item.opcode[0] == "call":
                self.call(item, scope)
            elif item.opcode[0] == "ret" and end is not None:
                self.code.append(jump(end, item))
            elif "param" in item.opcode and item.opcode[0] in ("ld", "st"):
                self.code.extend(scope.parameter(item))
            else:
                self.code.append(scope.instruction(item))
        self.active.pop()

    def call(self, item: Instruction, scope: "Scope") -> None:
        named = [o for o in item.operands if isinstance(o, Symbol)]
        callee = self.module.functions.get(named[0].name) if named else None
        if callee is None:
            raise PtxError("a call of what is no function of the module", at=item)
        at = item.operands.index(named[0])
        groups = (item.operands[:at], item.operands[at + 1 : at + 2])
        formal = (callee.results, callee.parameters)
        slots: dict[str, str] = {}
        for declared, given in zip(formal, groups, strict=True):
            given_names = [n for g in given if isinstance(g, Vector) for n in g.items]
            for declaration, actual in zip(declared, given_names, strict=True):
                assert isinstance(actual, Symbol)
                slots[declaration.name] = scope.slots.get(
                    actual.name, f"{scope.prefix}{actual.name}"
                )
        self.calls += 1
        prefix = f"{self.calls}:"
        end = f"{prefix}#end"
        self.expand(callee, prefix, slots, end)
        self.code.append(Label(end))


def jump(label: str, at: Instruction) -> Instruction:
    return Instruction(("bra",), (Symbol(label),), at.line, at.text)


@dataclass(slots=True)
class Scope:
    """Names of one call of a function, and what they stand for."""

    flat: Flattener
    function: Function
    prefix: str
    slots: dict[str, str]

    def instruction(self, item: Instruction) -> Instruction:
        operands = tuple(self.operand(o, item) for o in item.operands)
        return Instruction(item.opcode, operands, item.line, item.text)

    def operand(self, operand: Operand, item: Instruction) -> Operand:
        if isinstance(operand, Register):
            return self.register(operand)
        if isinstance(operand, Vector):
            return Vector(tuple(self.operand(o, item) for o in operand.items))
        if isinstance(operand, Address):
            base = self.operand(operand.base, item)
            if isinstance(base, Immediate):
                return Address(Immediate(base.value + operand.offset))
            assert isinstance(base, (Register, Symbol))
            return Address(base, operand.offset)
        if isinstance(operand, Symbol):
            return self.symbol(operand, item)
        return operand

    def register(self, register: Register) -> Register:
        name = register.name
        if name in self.function.registers:
            return Register(self.prefix + name, register.negated)
        if name != "_":
            self.flat.inputs[name] = None
            self.flat.types[name] = "u64" if "64" in name else "u32"
        return register

    def symbol(self, symbol: Symbol, item: Instruction) -> Operand:
        """Return the address of a variable, or the label itself in a branch."""
        flat, name = self.flat, symbol.name
        if item.opcode[0] in ("bra", "brx"):
            return Symbol(self.prefix + name)
        variable = self.function.variables.get(name) or flat.module.variables.get(name)
        if variable is None:
            raise PtxError(f"{name} is not declared", at=item)
        if variable.space == "shared":
            return Immediate(flat.offsets[name])
        if variable.space == "local":
            return Immediate(self.place(variable))
        flat.globals[name] = variable
        flat.inputs[f"&{name}"] = None
        flat.types[f"&{name}"] = "u64"
        return Register(f"&{name}")

    def place(self, variable: Declaration) -> int:
        """Return the place of a local variable in the memory of its thread."""
        flat, key = self.flat, f"{self.prefix}{variable.name}"
        if key not in flat.offsets:
            flat.local += -flat.local % max(variable.align, 8)
            flat.offsets[key] = flat.local
            flat.local += variable.size
        return flat.offsets[key]

    def parameter(self, item: Instruction) -> Iterator[Instruction]:
        """Yield the moves that a load or store of a parameter is."""
        store = item.opcode[0] == "st"
        address, values = item.operands if store else item.operands[::-1]
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise PtxError("a parameter's address is not supported", at=item)
        kind = item.opcode[-1]
        parts = values.items if isinstance(values, Vector) else (values,)
        for k, value in enumerate(parts):
            name = address.base.name
            slot = self.slots.get(name, f"{self.prefix}{name}")
            offset = address.offset + k * (int(kind[1:]) // 8)
            if offset:
                slot = f"{slot}+{offset}"
            if slot.startswith("param "):
                self.flat.inputs[slot] = None
            if store:
                self.flat.types.setdefault(slot, kind)
            if slot not in self.flat.types:
                raise PtxError("a part of a parameter that nobody wrote", at=item)
            pair = (Register(slot), self.operand(value, item))
            yield Instruction(
                ("cvt", kind, kind),  # a narrow one is extended as its type says
                pair if store else pair[::-1],
                item.line,
                item.text,
            )


def cut(
    code: list[Instruction | Label], tables: dict[str, tuple[str, ...]]
) -> list[Block]:
    """Cut code into blocks: at labels, and behind branches and barriers."""
    blocks: list[Block] = [Block()]
    starts: dict[str, int] = {}
    ends: list[tuple[Block, tuple[str, ...]]] = []
    fresh = True  # the last block is empty and may be begun

    def begin() -> None:
        nonlocal fresh
        if not fresh:
            blocks[-1].targets = blocks[-1].targets or (len(blocks),)
            blocks.append(Block())
            fresh = True

    def finish(block: Block, item: Instruction, end: str) -> None:
        nonlocal fresh
        block.end, block.last = end, item
        fresh = False

    for item in code:
        if isinstance(item, Label):
            begin()
            starts[item.name] = len(blocks) - 1
            continue
        if blocks[-1].last is not None:
            begin()
        block, name = blocks[-1], item.opcode[0]
        block.size += item.line > 0
        if name in ("bar", "barrier") and "warp" not in item.opcode:
            finish(block, item, "barrier")
            begin()
            if "red" in item.opcode:
                blocks[-1].code.append(item)
                fresh = False
        elif name == "bra":
            *condition, target = item.operands
            assert isinstance(target, Symbol)
            finish(block, item, "branch" if condition else "jump")
            if condition:
                assert isinstance(condition[0], Register)
                block.condition = condition[0]
            ends.append((block, (target.name,)))
        elif name == "brx":
            index, table = item.operands
            assert isinstance(index, Register)
            assert isinstance(table, Symbol)
            finish(block, item, "switch")
            block.condition = index
            ends.append((block, tables[table.name]))
        elif name in ENDS:
            finish(block, item, "trap" if name == "trap" else "exit")
        else:
            block.code.append(item)
            fresh = False
    resolve(blocks, starts, ends)
    return blocks


def resolve(
    blocks: list[Block],
    starts: dict[str, int],
    ends: list[tuple[Block, tuple[str, ...]]],
) -> None:
    """Put the numbers of blocks where branches name labels."""
    for block in blocks:
        if block.end in ("exit", "trap", "jump") and block.last is not None:
            block.targets = ()
    for block, labels in ends:
        found = tuple(starts[label] for label in labels)
        block.targets = (*found, *block.targets) if block.end == "branch" else found


def merge(blocks: list[Block]) -> list[Block]:
    """Join a block that jumps to one that no other goes to; drop the unreachable."""
    counts = [0] * len(blocks)
    counts[0] = 1
    seen, todo = {0}, [0]
    while todo:
        for target in blocks[todo.pop()].targets:
            counts[target] += 1
            if target not in seen:
                seen.add(target)
                todo.append(target)
    for number in sorted(seen):
        block = blocks[number]
        while number in seen and block.end == "jump":
            (target,) = block.targets
            if counts[target] > 1 or target == number:
                break
            other = blocks[target]
            seen.discard(target)
            block.code += other.code
            block.size += other.size
            block.end, block.targets = other.end, other.targets
            block.condition, block.last = other.condition, other.last
    order = sorted(seen)
    number_of = {old: new for new, old in enumerate(order)}
    kept = [blocks[old] for old in order]
    for block in kept:
        block.targets = tuple(number_of[target] for target in block.targets)
    return kept


def analyse(blocks: list[Block], inputs: set[str]) -> None:
    """Find the live and the doubtful registers of every block. Note [liveness]"""
    used: list[set[str]] = []
    written: list[set[str]] = []
    for block in blocks:
        first: set[str] = set()
        done: set[str] = set()
        for item in block.code:
            first.update(name for name in reads(item) if name not in done)
            done.update(writes(item))
        if block.condition is not None and block.condition.name not in done:
            first.add(block.condition.name)
        used.append(first)
        written.append(done)
    before: list[set[int]] = [set() for _ in blocks]
    for number, block in enumerate(blocks):
        for target in block.targets:
            before[target].add(number)
    live = [set(first) for first in used]

    def spread(number: int) -> bool:
        after = set().union(*(live[t] for t in blocks[number].targets))
        new = used[number] | (after - written[number])
        changed, live[number] = new != live[number], new
        return changed

    settle(len(blocks), spread, lambda n: before[n])
    everything = set().union(*written)
    sure = [set(everything) for _ in blocks]
    sure[0] = set()

    def meet(number: int) -> bool:
        if number == 0:
            return False
        new = set.intersection(*(sure[b] | written[b] for b in before[number]))
        changed, sure[number] = new != sure[number], new
        return changed

    settle(len(blocks), meet, lambda n: blocks[n].targets)
    for number, block in enumerate(blocks):
        block.live = frozenset(live[number])
        block.doubtful = frozenset(used[number] - sure[number] - inputs)


def settle(
    count: int,
    update: Callable[[int], bool],
    affected: "Callable[[int], set[int] | tuple[int, ...]]",
) -> None:
    """Update blocks until none changes any more."""
    todo = set(range(count))
    while todo:
        number = todo.pop()
        if update(number):
            todo.update(affected(number))
