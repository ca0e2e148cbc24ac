"""What became of a kernel: its registers, and the instructions that a GPU runs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...ir.errors import DeviceError
from ...runtime.devices import Code, packages
from ...runtime.devices.interface import ARCHITECTURE
from .target import link

TARGET = re.compile(r"^\.target sm_(\d+)(\d)", re.MULTILINE)
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
DOUBLES = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX|MMA)\b|.*\.F64\b|MUFU\..*64H")
WIDE_LOADS = re.compile(r"LD[GS]?\..*\b128\b")
WIDE_STORES = re.compile(r"ST[GS]?\..*\b128\b")
LOCALS = re.compile(r"(LDL|STL)\b")
BARRIERS = re.compile(r"BAR\b")


@dataclass(frozen=True, slots=True)
class Report:
    """Describe a kernel's machine code.

    `spills` and `stack` are bytes of local memory of a thread, which is slow.
    `instructions` are the opcodes in order, with their modifiers, and `sass` is the
    whole text; both are empty where nvdisasm is not installed.
    """

    registers: int
    spills: int
    stack: int
    sass: str
    instructions: tuple[str, ...]

    def count(self, pattern: re.Pattern[str]) -> int:
        """Return how many instructions match from their beginning."""
        return sum(pattern.match(opcode) is not None for opcode in self.instructions)

    @property
    def doubles(self) -> int:
        """The instructions that compute in, or convert from or to, float64."""
        return self.count(DOUBLES)

    @property
    def wide_loads(self) -> int:
        """The loads of 16 bytes from global or shared memory."""
        return self.count(WIDE_LOADS)

    @property
    def wide_stores(self) -> int:
        """The stores of 16 bytes to global or shared memory."""
        return self.count(WIDE_STORES)

    @property
    def local_accesses(self) -> int:
        """The loads and stores of a thread's local memory."""
        return self.count(LOCALS)

    @property
    def barriers(self) -> int:
        """The barriers of a block."""
        return self.count(BARRIERS)


def inspect(code: Code) -> Report:
    """Assemble a kernel and report what came out; needs nvjitlink, but no GPU."""
    if not packages.can_link():
        raise DeviceError(
            f"{code.entry} cannot be inspected: nvjitlink is missing",
            rule="Registers and spills are known to the assembler.",
            hint=packages.LOCAL,
        )
    found = TARGET.search(code.ptx)
    architecture = (int(found[1]), int(found[2])) if found else ARCHITECTURE
    cubin, log = link(code.ptx, architecture, verbose=True)
    sass = disassemble(cubin)
    return Report(
        registers=_number(r"Used (\d+) registers", log),
        spills=_number(r"(\d+) bytes spill stores", log)
        + _number(r"(\d+) bytes spill loads", log),
        stack=_number(r"(\d+) bytes stack frame", log),
        sass=sass,
        instructions=tuple(INSTRUCTION.findall(sass)),
    )


def _number(pattern: str, log: str) -> int:
    """Return the largest number that the log has for a pattern."""
    return max(map(int, re.findall(pattern, log)), default=0)


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin as text, empty where nvdisasm is missing."""
    program = packages.disassembler()
    if program is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [program, "-c", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout
