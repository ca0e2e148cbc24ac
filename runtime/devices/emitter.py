"""Python for the operands and results of instructions, and tables of rules.

A rule says what an opcode becomes. It names the modifiers that it knows; an instruction
with any other one is refused, so nothing is dropped in silence. The last part of an
opcode is its type.

Note [types]
PTX types operations, not registers: the 32 bits of ``%r1`` are signed in one
instruction and unsigned in the next. A register is kept as the signed integer, float or
bool of its width, and an instruction that wants another type of the same width takes a
view, once per block and value.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import arithmetic
from .flow import Flow
from .ptx import Address, Immediate, Instruction, Operand, PtxError, Register, Vector

__all__ = ["TYPES", "Emitter", "Rules", "dtype_of", "plain", "vector", "width"]

KINDS = {"b": "int", "s": "int", "u": "uint", "f": "float"}


def dtype_of(kind: str) -> str:
    """Return the dtype of a PTX type: ``u32`` is uint32, ``b32`` is int32."""
    if kind == "pred":
        return "bool_"
    if kind == "f16x2":
        return "int32"
    return f"{KINDS[kind[0]]}{kind[1:]}"


def plain(kind: str) -> str:
    """Return the dtype in which registers of a type are kept. Note [types]"""
    return dtype_of(kind).replace("uint", "int")


def width(dtype: str) -> int:
    return int(np.dtype(getattr(arithmetic, dtype)).itemsize)


@dataclass(slots=True)
class Emitter:
    """Writes the Python of one block after another."""

    flow: Flow
    slots: dict[str, int]
    values: dict[str, Any]
    accesses: list[Any] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    views: dict[tuple[str, str], str] = field(default_factory=dict)
    now: Instruction | None = None

    # Operands.

    def refuse(self, what: str) -> PtxError:
        return PtxError(what, at=self.now)

    def name(self, register: str) -> str:
        """Return the local variable of a register."""
        return self.names.setdefault(register, f"v{len(self.names)}")

    def bind(self, value: Any, kind: str = "k") -> str:
        """Return a global name for a value that generated code uses."""
        name = f"{kind}{len(self.values)}"
        self.values[name] = value
        return name

    def constant(self, value: int, dtype: str, bits: int = 0) -> str:
        """Return a constant of a dtype; `bits` is the width of a float's bits."""
        scalar = getattr(arithmetic, dtype)
        if dtype == "bool_":
            return self.shared(f"bool {value != 0}", np.bool(value != 0))
        size = width(dtype)
        if dtype.startswith("float") and bits != size * 8:
            number = float(value)
            if bits:
                code = "<f" if bits == 32 else "<d"
                (number,) = struct.unpack(code, value.to_bytes(bits // 8, "little"))
            return self.shared(f"{dtype} {number!r}", scalar(number))
        masked = value & ((1 << 8 * size) - 1)
        data = masked.to_bytes(size, "little")
        return self.shared(f"{dtype} {masked}", np.frombuffer(data, scalar)[0])

    def shared(self, key: str, value: Any) -> str:
        """Return the one global name of equal constants."""
        if key not in self.values:
            self.values[key] = self.bind(value, "c")
        name: str = self.values[key]
        return name

    def get(self, operand: Operand, dtype: str) -> str:
        """Return an expression of an operand's value in a dtype. Note [types]"""
        if isinstance(operand, Immediate):
            return self.constant(operand.value, dtype, operand.width)
        if not isinstance(operand, Register):
            raise self.refuse("an operand that is no value")
        own = plain(self.flow.types[operand.name])
        found = self.name(operand.name)
        if operand.negated:
            return f"(~{found})"
        if own == dtype:
            return found
        have, want = width(own), width(dtype)
        if have < want or "bool_" in (own, dtype):
            raise self.refuse(f"{operand.name} is too narrow for the instruction")
        key = (found, dtype)
        if key not in self.views:
            how = "view" if have == want else "astype"
            if have > want and own.startswith("float"):
                raise self.refuse(f"{operand.name} is too wide for the instruction")
            self.views[key] = f"{found}_{dtype}"
            self.lines.append(f"{found}_{dtype} = {found}.{how}({dtype})")
        return self.views[key]

    def wide(self, operand: Operand) -> str:
        """Return an expression of a float32 operand's value in float64."""
        found = self.get(operand, "float32")
        if isinstance(operand, Immediate):
            return self.shared(f"wide {found}", np.float64(self.values[found]))
        key = (found, "float64")
        if key not in self.views:
            self.views[key] = f"{found}_float64"
            self.lines.append(f"{found}_float64 = {found}.astype(float64)")
        return self.views[key]

    def put(self, operand: Operand, expression: str, dtype: str) -> None:
        """Assign an expression of a dtype to a register."""
        if not isinstance(operand, Register):
            raise self.refuse("a result that is no register")
        if operand.name == "_":
            self.lines.append(expression)
            return
        own = plain(self.flow.types[operand.name])
        if own != dtype:
            if "bool_" in (own, dtype) or width(own) < width(dtype):
                raise self.refuse(f"{operand.name} cannot hold the result")
            how = "view" if width(own) == width(dtype) else "astype"
            expression = f"({expression}).{how}({own})"
        name = self.name(operand.name)
        for key in [key for key in self.views if key[0] == name]:
            del self.views[key]
        self.lines.append(f"{name} = {expression}")

    def address(self, operand: Operand) -> tuple[str, int]:
        """Return the expression of an address without its offset, and the offset."""
        if not isinstance(operand, Address):
            raise self.refuse("an operand that is no address")
        base = operand.base
        if isinstance(base, Immediate):
            return self.constant(base.value, "int64"), operand.offset
        assert isinstance(base, Register)
        kind = plain(self.flow.types[base.name])
        if kind == "int32":
            return f"{self.get(base, 'uint32')}.astype(int64)", operand.offset
        return self.get(base, "int64"), operand.offset


def vector(operand: Operand) -> tuple[Operand, ...]:
    """Return the items of a vector operand; a single one otherwise."""
    return operand.items if isinstance(operand, Vector) else (operand,)


Rule = Callable[[Emitter, Instruction], None]
TYPES = frozenset(
    "pred b8 b16 b32 b64 s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64".split()
)


class Rules(dict[str, tuple[Rule, frozenset[str]]]):
    """Rules by opcode, each with the modifiers that it knows."""

    def rule(self, names: str, modifiers: str = "") -> Callable[[Rule], Rule]:
        """Register a function as the rule of opcodes."""

        def register(function: Rule) -> Rule:
            for name in names.split():
                self[name] = (function, frozenset(modifiers.split()))
            return function

        return register

    def emit(self, e: Emitter, item: Instruction) -> None:
        """Write the Python of an instruction."""
        name, *rest = item.opcode
        if name not in self:
            raise PtxError(f"unknown instruction {'.'.join(item.opcode)}", at=item)
        function, modifiers = self[name]
        for part in rest:
            if part not in modifiers and part not in TYPES:
                raise PtxError(f"unknown modifier .{part} of {name}", at=item)
        function(e, item)
