"""Text of PTX -> entries and functions, their instructions and declarations.

`parse` reads what NVVM writes for one kernel: directives that only tell the assembler
something (versions, debug information, pragmas) are skipped, every other statement is
kept or refused with its line. Nothing is interpreted here: `flow` puts an entry and the
functions it calls into blocks, `translate` turns these into Python.

Note [guards]
An instruction with a guard, ``@%p add ...``, becomes a branch round it, so that guards
exist on branches only and a block is executed by all of its threads or by none.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = [
    "Address",
    "Declaration",
    "Function",
    "Immediate",
    "Instruction",
    "Label",
    "Module",
    "Operand",
    "PtxError",
    "Register",
    "Symbol",
    "Vector",
    "parse",
]


class PtxError(RuntimeError):
    """A program that breaks a rule of the machine, or that it does not know.

    The message names what went wrong, the instruction and its line, the rule and a way
    out, each on a line of its own.
    """

    def __init__(
        self, what: str, *, at: "Instruction | None" = None, rule: str = ""
    ) -> None:
        lines = [what]
        if at is not None:
            lines.append(f"  at line {at.line}: {at.text}")
        if rule:
            lines.append(f"  {rule}")
        super().__init__("\n".join(lines))
        self.what = what
        self.at = at


@dataclass(frozen=True, slots=True)
class Register:
    """A register, or a special one such as ``%tid.x``; `negated` for ``!%p``."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: an int, or the bits of a float of `width` bits."""

    value: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, parameter, function or label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]``."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``, ``a|b`` or the parameters of a call."""

    items: "tuple[Operand, ...]"


Operand = Register | Immediate | Symbol | Address | Vector


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``add.s32`` is the opcode ("add", "s32")."""

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """A variable of `size` bytes in a state space; a dynamic one has no size.

    `initial` holds the bytes of a variable with an initialiser, else None.
    """

    name: str
    space: str
    type: str
    align: int
    size: int
    dynamic: bool = False
    initial: bytes | None = None


@dataclass(slots=True)
class Function:
    """An entry or a function: its parameters, registers, variables and code.

    `registers` maps names to types; a name of a nested scope has a suffix ``#scope``.
    """

    name: str
    entry: bool
    results: tuple[Declaration, ...]
    parameters: tuple[Declaration, ...]
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Declaration] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    code: list[Instruction | Label] = field(default_factory=list)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Module:
    """The functions and variables of one PTX text, by name.

    Hashed by identity: what is made from a module is kept for as long as it lives.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Declaration] = field(default_factory=dict)
    programs: dict[str, object] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the names of the entries, in order."""
        return tuple(name for name, f in self.functions.items() if f.entry)


def parse(text: str) -> Module:
    """Parse PTX text; raise PtxError for a statement that is not known."""
    return Parser(text).module()


COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
UNDEFINED = re.compile(r"//\s*implicit-def:\s*(%[\w$]+)[^\n]*")
SPACE = re.compile(r"\s*")
LINE_DIRECTIVE = re.compile(r"\.(version|target|address_size|loc|file)\b[^\n]*")
SECTION = re.compile(r"\.section\b[^{]*\{[^}]*\}")
LABEL = re.compile(r"([\w$%.]+)\s*:(?!:)")
HEADER = re.compile(r"((?:\.(?:visible|extern|weak)\s+)*)\.(entry|func)\b([^{;]*)")
STATEMENT = re.compile(r"[^;]*;")
GUARD = re.compile(r"@(!?)\s*(%[\w$]+)\s+")
VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(global|const|shared|local|param)\s+"
    r"(?:\.(?:ptr|global|const|shared|local)\s+)*(?:\.align\s+(\d+)\s+)?"
    r"(?:\.(v2|v4)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s*)*(?:\.align\s+\d+\s*)?)?"
    r"([\w$%.]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.DOTALL)
TABLE = re.compile(r"\.branchtargets\s+(.*)$", re.DOTALL)
INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)$")
DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?$")

WIDTHS = {"pred": 1} | {
    f"{kind}{width}": width // 8 for kind in "bsu" for width in (8, 16, 32, 64)
}
WIDTHS |= {"f16": 2, "f16x2": 4, "f32": 4, "f64": 8}


def split(text: str) -> list[str]:
    """Split at commas outside braces, brackets and parentheses.

    >>> split("{%a, %b}, [%c+4], (x, y)")
    ['{%a, %b}', '[%c+4]', '(x, y)']
    """
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[last:place].strip())
            last = place + 1
    parts.append(text[last:].strip())
    return [part for part in parts if part]


class Parser:
    """One pass over a text, statement by statement."""

    def __init__(self, text: str) -> None:
        text = UNDEFINED.sub(lambda m: f"undefined {m[1]};", text)
        self.text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
        self.place = 0
        self.counted = (0, 1)
        self.scopes: list[dict[str, str]] = []
        self.opened = 0
        self.skipped = 0

    @property
    def line(self) -> int:
        place, line = self.counted
        line += self.text.count("\n", place, self.place)
        self.counted = (self.place, line)
        return line

    def refuse(self, text: str, line: int) -> PtxError:
        short = " ".join(text.split())[:80]
        return PtxError(f"PTX that is not known, line {line}: {short}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern here, and step over it."""
        found = pattern.match(self.text, self.place)
        if found:
            self.place = found.end()
        return found

    def skip(self) -> bool:
        """Step over blanks and what only the assembler needs; False at the end."""
        while True:
            self.match(SPACE)
            if not (self.match(LINE_DIRECTIVE) or self.match(SECTION)):
                return self.place < len(self.text)

    def statement(self) -> str:
        line, start = self.line, self.place
        if not self.match(STATEMENT):
            raise self.refuse(self.text[start:], line)
        return self.text[start : self.place - 1].strip()

    def module(self) -> Module:
        module = Module()
        while self.skip():
            line = self.line
            header = self.match(HEADER)
            if header:
                function = self.header(header, line)
                self.match(SPACE)
                if self.text.startswith("{", self.place):
                    self.place += 1
                    self.body(function)
                    module.functions[function.name] = function
                else:
                    self.statement()
                continue
            variable = self.variable(self.statement(), line)
            module.variables[variable.name] = variable
        return module

    def header(self, found: re.Match[str], line: int) -> Function:
        text = found[3].strip()
        results: tuple[Declaration, ...] = ()
        if text.startswith("("):
            inner, text = text[1:].split(")", 1)
            results = self.parameters(inner, line)
        name, _, rest = text.partition("(")
        inner = rest.split(")", 1)[0]
        name = name.split()[0]
        return Function(
            name, found[2] == "entry", results, self.parameters(inner, line)
        )

    def parameters(self, text: str, line: int) -> tuple[Declaration, ...]:
        return tuple(self.variable(part, line) for part in split(text))

    def variable(self, text: str, line: int) -> Declaration:
        found = VARIABLE.match(text)
        if not found or found[4] not in WIDTHS:
            raise self.refuse(text, line)
        space, align, vector, kind, name, dims, initial = found.groups()
        width = WIDTHS[kind] * int(vector[1:] if vector else 1)
        size, dynamic = width, False
        for extent in re.findall(r"\[(\d*)\]", dims):
            dynamic |= not extent
            size *= int(extent or 0)
        data = None if initial is None else self.initial(initial, kind, size, line)
        return Declaration(name, space, kind, int(align or width), size, dynamic, data)

    def initial(self, text: str, kind: str, size: int, line: int) -> bytes:
        """Return the bytes of an initialiser, filled up with zeros."""
        width, data = WIDTHS[kind], b""
        for part in re.split(r"[{},\s]+", text.strip()):
            if not part:
                continue
            operand = self.operand(part)
            if not isinstance(operand, Immediate):
                raise self.refuse(text, line)
            mask = (1 << 8 * width) - 1
            data += (operand.value & mask).to_bytes(width, "little")
        return data.ljust(size, b"\0")

    def body(self, function: Function) -> None:
        """Parse to the brace that closes the function."""
        self.scopes = [{}]
        while True:
            if not self.skip():
                raise self.refuse(f"{function.name} has no end", self.line)
            letter = self.text[self.place]
            if letter == "{":
                self.place += 1
                self.scopes.append({})
                self.opened += 1
            elif letter == "}":
                self.place += 1
                self.scopes.pop()
                if not self.scopes:
                    return
            else:
                label = self.match(LABEL)
                if label:
                    function.code.append(Label(label[1]))
                else:
                    line = self.line
                    self.one(function, self.statement(), line)

    def one(self, function: Function, text: str, line: int) -> None:
        """Add a statement of a body."""
        registers = REGISTERS.match(text)
        table = TABLE.match(text)
        if registers:
            if registers[1] not in WIDTHS:
                raise self.refuse(text, line)
            self.registers(function, registers[1], registers[2])
        elif table:
            last = function.code.pop()
            assert isinstance(last, Label)
            function.tables[last.name] = tuple(split(table[1]))
        elif text.startswith(".pragma") or not text:
            return
        elif text.startswith("."):
            variable = self.variable(text, line)
            function.variables[variable.name] = variable
        else:
            function.code.extend(self.guarded(text, line))

    def registers(self, function: Function, kind: str, names: str) -> None:
        scope = self.scopes[-1]
        for name in split(names):
            family = re.match(r"([\w$%]+)<(\d+)>$", name)
            singles = (
                [f"{family[1]}{k}" for k in range(int(family[2]))] if family else [name]
            )
            for single in singles:
                nested = len(self.scopes) > 1
                scope[single] = f"{single}#{self.opened}" if nested else single
                function.registers[scope[single]] = kind

    def guarded(self, text: str, line: int) -> Iterator[Instruction | Label]:
        """Yield an instruction, behind a branch if it has a guard. Note [guards]"""
        guard = GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        parts = rest.split(None, 1)
        opcode = tuple(parts[0].split("."))
        operands = tuple(map(self.operand, split(parts[1] if len(parts) > 1 else "")))
        shown = " ".join(text.split())
        instruction = Instruction(opcode, operands, line, shown)
        if guard is None:
            yield instruction
            return
        taken = self.operand(guard[2])
        assert isinstance(taken, Register)
        negated = bool(guard[1])
        if opcode[0] == "bra":
            predicate = Register(taken.name, negated)
            yield Instruction(("bra",), (predicate, *operands), line, shown)
            return
        self.skipped += 1
        over = Label(f"#over{self.skipped}")
        predicate = Register(taken.name, not negated)
        yield Instruction(("bra",), (predicate, Symbol(over.name)), line, shown)
        yield instruction
        yield over

    def operand(self, text: str) -> Operand:
        if text[0] in "{(":
            return Vector(tuple(map(self.operand, split(text[1:-1]))))
        if text[0] == "[":
            return self.address(text[1:-1].strip())
        if "|" in text:
            return Vector(tuple(self.operand(p.strip()) for p in text.split("|")))
        if text[0] == "!":
            register = self.operand(text[1:].strip())
            assert isinstance(register, Register)
            return Register(register.name, True)
        if INTEGER.match(text):
            return Immediate(int(text.rstrip("U"), 0))
        number = FLOAT.match(text)
        if number:
            return Immediate(int(number[2], 16), 32 if number[1] in "fF" else 64)
        if DECIMAL.match(text):
            (bits,) = struct.unpack("<Q", struct.pack("<d", float(text)))
            return Immediate(bits, 64)
        for scope in reversed(self.scopes):
            if text in scope:
                return Register(scope[text])
        if text[0] == "%" or text == "_" or text == "WARP_SZ":
            return Register(text) if text != "WARP_SZ" else Immediate(32)
        return Symbol(text)

    def address(self, text: str) -> Address:
        found = re.match(r"([^+\s]+?)\s*(?:\+\s*(-?\w+))?$", text)
        if not found:
            raise self.refuse(text, self.line)
        base = self.operand(found[1])
        offset = int(found[2], 0) if found[2] else 0
        if isinstance(base, Immediate):
            return Address(Immediate(base.value + offset))
        assert isinstance(base, (Register, Symbol))
        return Address(base, offset)
