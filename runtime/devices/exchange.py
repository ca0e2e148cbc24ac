"""Rules of the instructions through which threads meet: memory, warps and barriers."""

from .access import ATOMIC, READ, WRITE, Access
from .emitter import Emitter, Rules, dtype_of, plain, vector, width
from .ptx import Instruction, Operand, Register

__all__ = ["RULES"]

RULES = Rules()
rule = RULES.rule

SPACES = ("global", "shared", "local", "const")
CACHES = "ca cg cs lu cv wb wt nc volatile weak relaxed acquire release acq_rel"
SCOPES = "cta cluster gpu sys"
HINTS = "L1::evict_last L1::evict_first L1::evict_normal L1::no_allocate"
HINTS += " L1::evict_unchanged L2::64B L2::128B L2::256B L2::evict_last L2::evict_first"
MEMORY = f"global shared local const v2 v4 {CACHES} {SCOPES} {HINTS} shared::cta"


def access(e: Emitter, item: Instruction, dtype: str, count: int, kind: int) -> Access:
    """Return the access of an instruction."""
    space = next(
        (p.split(":")[0] for p in item.opcode if p.split(":")[0] in SPACES), ""
    )
    made = Access(item, dtype, count, "global" if space == "const" else space, kind)
    made.number = len(e.accesses)
    e.accesses.append(made)
    return made


def stored_type(e: Emitter, kind: str, register: Operand) -> str:
    """Return the dtype in which a register is moved to or from memory."""
    if isinstance(register, Register) and register.name != "_":
        own = plain(e.flow.types[register.name])
        if width(own) == width(dtype_of(kind)):
            return own
    return dtype_of(kind)


@rule("ld ldu", MEMORY)
def load(e: Emitter, item: Instruction) -> None:
    targets, kind = vector(item.operands[0]), item.opcode[-1]
    dtype = stored_type(e, kind, targets[0])
    made = access(e, item, dtype, len(targets), READ)
    address, made.offset = e.address(item.operands[1])
    call = f"{e.bind(made.load, 'm')}(F, {address})"
    if len(targets) == 1:
        return e.put(targets[0], call, dtype)
    e.lines.append(f"t = {call}")
    for k, target in enumerate(targets):
        if isinstance(target, Register) and target.name != "_":
            e.put(target, f"t[{k}]", dtype)


@rule("st", MEMORY)
def store(e: Emitter, item: Instruction) -> None:
    sources, kind = vector(item.operands[1]), item.opcode[-1]
    dtype = stored_type(e, kind, sources[0])
    made = access(e, item, dtype, len(sources), WRITE)
    address, made.offset = e.address(item.operands[0])
    values = ", ".join(e.get(source, dtype) for source in sources)
    e.lines.append(f"{e.bind(made.store, 'm')}(F, {address}, {values})")


OPERATIONS = "add min max and or xor exch cas inc dec"


@rule("atom red", f"{MEMORY} {OPERATIONS} noftz")
def atomic(e: Emitter, item: Instruction) -> None:
    how = next(p for p in item.opcode if p in OPERATIONS.split())
    kind = item.opcode[-1]
    dtype = dtype_of(kind)
    made = access(e, item, dtype, 1, ATOMIC)
    reduction = item.opcode[0] == "red"
    target = None if reduction else item.operands[0]
    operands = item.operands[not reduction :]
    address, made.offset = e.address(operands[0])
    values = [e.get(o, dtype) for o in operands[1:]]
    if how == "cas":
        values.reverse()
    unused = target is None or target == Register("_")
    if unused and how != "cas":
        call = e.bind(made.reduce, "m")
        e.lines.append(f"{call}(F, {address}, {how!r}, {values[0]})")
        return
    call = f"{e.bind(made.atomic, 'm')}(F, {address}, {how!r}, {', '.join(values)})"
    if target is None:
        e.lines.append(call)
    else:
        e.put(target, call, dtype)


@rule("membar fence", "gl sys cta gpu cluster sc acq_rel acquire release")
def fence(e: Emitter, item: Instruction) -> None:
    """Order nothing: all accesses of the interpreter are in order."""


@rule("prefetch prefetchu nanosleep", "global local L1 L2")
def hint(e: Emitter, item: Instruction) -> None:
    """Do nothing: a hint."""


# Warps.


@rule("shfl", "sync up down bfly idx")
def shuffle(e: Emitter, item: Instruction) -> None:
    targets = vector(item.operands[0])
    mode = item.opcode[2]
    a, b, c, mask = item.operands[1:5]
    source = e.get(a, "int32")
    rest = ", ".join(e.get(o, "int32") for o in (b, c, mask))
    at = e.bind(item, "i")
    e.lines.append(f"t, u = shuffle(F, {at}, {mode!r}, {source}, {rest})")
    e.put(targets[0], "t", "int32")
    if len(targets) > 1:
        e.put(targets[1], "u", "bool_")


@rule("vote", "sync all any uni ballot")
def vote(e: Emitter, item: Instruction) -> None:
    how = item.opcode[2]
    p, mask = e.get(item.operands[1], "bool_"), e.get(item.operands[2], "int32")
    call = f"vote(F, {e.bind(item, 'i')}, {how!r}, {p}, {mask})"
    e.put(item.operands[0], call, "int32" if how == "ballot" else "bool_")


@rule("match", "sync any all")
def match(e: Emitter, item: Instruction) -> None:
    targets = vector(item.operands[0])
    a = e.get(item.operands[1], plain(item.opcode[-1]))
    mask = e.get(item.operands[2], "int32")
    how = item.opcode[1]
    e.lines.append(f"t, u = match(F, {e.bind(item, 'i')}, {how!r}, {a}, {mask})")
    e.put(targets[0], "t", "int32")
    if len(targets) > 1:
        e.put(targets[1], "u", "bool_")


@rule("activemask")
def active(e: Emitter, item: Instruction) -> None:
    e.put(item.operands[0], "active(F)", "int32")


@rule("bar barrier", "warp sync red popc and or cta aligned")
def barrier(e: Emitter, item: Instruction) -> None:
    """Write the result of a barrier with a reduction, or the meeting of a warp."""
    if "warp" in item.opcode:
        mask = e.get(item.operands[0], "int32")
        e.lines.append(f"meet_warp(F, {e.bind(item, 'i')}, {mask})")
        return
    target, *rest = item.operands
    how = next(p for p in item.opcode if p in ("popc", "and", "or"))
    call = f"reduce_block(F, {how!r}, {e.get(rest[-1], 'bool_')})"
    e.put(target, call, "int32" if how == "popc" else "bool_")
