"""Rules of the instructions that move and convert values."""

from .emitter import Emitter, Rules, dtype_of, plain, width
from .instructions import is_float, mode_of
from .ptx import Immediate, Instruction, Operand, Register, Vector

__all__ = ["RULES"]

RULES = Rules()
rule = RULES.rule


@rule("mov")
def move(e: Emitter, item: Instruction) -> None:
    target, source = item.operands
    dtype = plain(item.opcode[-1])
    if isinstance(target, Vector):
        return unpack(e, target, e.get(source, dtype), dtype)
    if isinstance(source, Vector):
        return pack(e, target, source, dtype)
    if isinstance(source, Register) and "clock" in source.name:
        raise e.refuse("a clock: programs whose results depend on time are refused")
    kind = "s32" if not isinstance(target, Register) else e.flow.types[target.name]
    narrow = isinstance(source, Register) and dtype == "int64"
    if narrow and e.flow.types[source.name] == "u32":  # type: ignore[union-attr]
        return e.put(target, f"{e.get(source, 'uint32')}.astype(int64)", "int64")
    if isinstance(source, Immediate) and source.width:
        dtype = plain(kind)
    e.put(target, e.get(source, dtype), dtype)


def unpack(e: Emitter, target: Vector, source: str, dtype: str) -> None:
    """Write the parts of a wide value to the registers of a vector."""
    bits = 8 * width(dtype) // len(target.items)
    whole, part = dtype.replace("float", "int"), f"int{bits}"
    e.lines.append(f"t = {source}" if whole == dtype else f"t = {source}.view({whole})")
    for k, register in enumerate(target.items):
        if isinstance(register, Register) and register.name != "_":
            by = e.constant(bits * k, whole)
            e.put(register, f"(t >> {by}).astype({part})", part)


def pack(e: Emitter, target: Operand, source: Vector, dtype: str) -> None:
    """Join the registers of a vector to a wide value, the lowest part first."""
    whole = dtype.replace("float", "int")
    bits = int(whole[3:]) // len(source.items)
    parts = []
    for k, item in enumerate(source.items):
        x = f"{e.get(item, f'uint{bits}')}.astype({whole})"
        parts.append(f"({x} << {e.constant(bits * k, whole)})" if k else x)
    e.put(target, " | ".join(parts), whole)


@rule("undefined")
def undefined(e: Emitter, item: Instruction) -> None:
    """Set a register that the compiler lets hold anything to a conspicuous value."""
    (target,) = item.operands
    assert isinstance(target, Register)
    dtype = plain(e.flow.types[target.name])
    value = {"bool_": "bool_(True)"}.get(dtype, f"{dtype}(0x7A)")
    if dtype.startswith("float"):
        value = f"{dtype}('nan')"
    e.put(target, value, dtype)


@rule("cvta", "to global shared local const")
def convert_address(e: Emitter, item: Instruction) -> None:
    x = e.get(item.operands[1], "int64")
    windows = [p for p in item.opcode if p in ("shared", "local")]
    if windows:
        sign = "-" if "to" in item.opcode else "+"
        x = f"{x} {sign} {windows[0].upper()}"
    e.put(item.operands[0], x, "int64")


INTEGRAL = ("rni", "rzi", "rmi", "rpi")


@rule("cvt", "rn rz rm rp rni rzi rmi rpi ftz sat")
def convert(e: Emitter, item: Instruction) -> None:
    into, source = item.opcode[-2:]
    to, own = dtype_of(into), dtype_of(source)
    x = e.get(item.operands[1], own)
    integral = next((p for p in item.opcode if p in INTEGRAL), None)
    mode = mode_of(item)
    if "ftz" in item.opcode and source == "f32":
        x = f"flush({x})"
    if is_float(source) and is_float(into):
        x = float_to_float(x, own, to, mode, integral)
        if "ftz" in item.opcode and into == "f32":
            x = f"flush({x})"
        if "sat" in item.opcode:
            x = f"saturate({x})"
    elif is_float(source):
        if integral is None:
            raise e.refuse("a conversion to an integer without a rounding")
        x = f"float_to_integer({x}, {to}, {integral!r})"
    elif is_float(into):
        x = (
            f"integer_to_float({x}, {to}, {mode!r})"
            if mode != "rn"
            else f"{x}.astype({to})"
        )
    elif "sat" in item.opcode:
        x = f"integer_saturated({x}, {to})"
    elif to != own:
        x = (
            f"{x}.view({to})"
            if to.lstrip("u") == own.lstrip("u")
            else f"{x}.astype({to})"
        )
    e.put(item.operands[0], x, to)


def float_to_float(x: str, own: str, to: str, mode: str, integral: str | None) -> str:
    if integral is not None:
        return f"INTEGRAL[{integral!r}]({x})"
    if own == "float64" and to == "float32" and mode != "rn":
        return f"narrow({x}, float64(0), {mode!r})"
    return x if own == to else f"{x}.astype({to})"
