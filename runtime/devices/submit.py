"""Batches of launches for a GPU: words, and the native code that reads them.

Note [batches]
Python pays a microsecond for each launch, most of it for packing and for the way to the
driver. Calls of a compiled function differ in their addresses and numbers only, so its
launches are packed once, as words of 64 bits:

    batch     the number of words, and the most arguments of a step
    step      function, grid, block, bytes of shared memory, number of arguments
    argument  a value or distance, and which of the given values is added to it: 0
              is none, and a negative number says that the sum becomes a float32

A fill is a step without a function: a value, a size, and its target as an argument. The
native code puts the arguments of a step together in its own frame and calls the driver,
so threads need no lock, and other threads of Python run meanwhile. It returns 0, or the
place of the step that failed and the driver's status.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

from ...ir.errors import DeviceError
from .interface import FORMATS, Fill, Function, Given, Step

HEAD = 2  # words of a batch before its steps
STEP = 5  # words of a step before its arguments
FAILED = 1 << 32  # what is returned: the place of a step times this, and the status
NARROW = -(1 << 63)  # added to the number of a value where the sum becomes a float32
WORD = 8

Words = ctypes.Array[ctypes.c_int64]


def encoded(kinds: Sequence[str], steps: Sequence[Step]) -> tuple[Words, list[int]]:
    """Return the words of a batch, and where each of its steps starts."""
    words = [0, 1]
    starts = []
    for step in steps:
        starts.append(len(words))
        if isinstance(step, Fill):
            words += [0, step.value, step.size, 0, 1]
            words += _argument(step.target, "pointer", kinds)
            continue
        f: Any = step.function
        args = step.args
        words += [f.handle, step.grid, step.block, step.shared, len(args)]
        words[1] = max(words[1], len(args))
        try:
            for kind, x in zip(f.code.kinds, args, strict=True):
                words += _argument(x, kind, kinds)
        except (struct.error, OverflowError, TypeError) as error:
            raise unfit(f, error) from error
    words[0] = len(words)
    return (ctypes.c_int64 * len(words))(*words), starts


def unfit(function: Function, error: Exception) -> DeviceError:
    """Return the error of arguments that are not of their kinds."""
    kinds = ", ".join(function.code.kinds)
    return DeviceError(
        f"launch of {function.code.entry}: {error}",
        rule=f"The arguments are to be ({kinds}).",
    )


def _argument(
    x: int | float | bool | Given, kind: str, kinds: Sequence[str]
) -> tuple[int, int]:
    """Return the two words of an argument."""
    if not isinstance(x, Given):
        return struct.unpack("=q", struct.pack("=" + _word(kind), x))[0], 0
    given = kinds[x.index]
    if given == kind:
        return x.offset, 1 + x.index
    if (given, kind) == ("float64", "float32"):
        return 0, NARROW + 1 + x.index
    raise TypeError(f"a {given} is given for a {kind}")


def packer(kinds: Sequence[str]) -> Callable[..., bytes]:
    """Return what packs the given values, behind the word that is none of them."""
    return struct.Struct(f"={WORD}x" + "".join(map(_word, kinds))).pack


def _word(kind: str) -> str:
    """Return the format of a word that begins with a value."""
    form = FORMATS[kind]
    return f"{form}{WORD - struct.calcsize(form)}x"


# The native code ------------------------------------------------------------------

I8, I32, I64 = map(ir.IntType, (8, 32, 64))
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
WORDS, POINTER = I64.as_pointer(), I8.as_pointer()
LAUNCH = ir.FunctionType(
    I32, [I64, I32, I32, I32, I32, I32, I32, I32, I64, WORDS.as_pointer(), POINTER]
)
FILL = ir.FunctionType(I32, [I64, I8, I64, I64])
ENTER = ir.FunctionType(I32, [I64])
SUBMIT = ir.FunctionType(I64, [WORDS, WORDS, I64])


class Driver(NamedTuple):
    """Addresses of functions of the driver, and a context that is to be entered."""

    launch: int  # cuLaunchKernel
    fill: int  # cuMemsetD8Async
    enter: int  # cuCtxSetCurrent
    context: int


def compiled(driver: Driver) -> Callable[[Any, bytes, int], int]:
    """Return the native code that takes a batch, the given values, and a stream."""
    module = ir.Module("retrograde_submit")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module.triple = llvm.get_process_triple()
    name = _Writer(module, driver).submit()
    target = llvm.Target.from_triple(module.triple).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), target)
    engine.finalize_object()
    kinds = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    address = engine.get_function_address(name)
    entry: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)
    entry.engine = engine  # which has the code
    return entry  # type: ignore[no-any-return]


class _Writer:
    """Writes the function; variables of its loops are on its stack."""

    def __init__(self, module: Any, driver: Driver) -> None:
        f = ir.Function(module, SUBMIT, "submit")
        self.driver = driver
        self.name: str = f.name
        self.b = ir.IRBuilder(f.append_basic_block())
        self.batch, self.values, self.stream = f.args
        most = self.word(1)
        self.sums = self.b.alloca(I64, most)
        self.pointers = self.b.alloca(WORDS, most)
        self.place, self.number = self.b.alloca(I64), self.b.alloca(I64)
        self.b.store(I64(0), self.place)

    def submit(self) -> str:
        """Write it all; return the name of the function."""
        b = self.b
        size = self.word(0)
        self.called("enter", ENTER, [I64(self.driver.context)])
        b.store(I64(HEAD), self.place)
        with self.loop(self.place, size):
            place = b.load(self.place)
            words = [self.word(b.add(place, I64(k))) for k in range(STEP)]
            function, grid, block, shared, count = words
            first = b.add(place, I64(STEP))
            self.arguments(first, count)
            with b.if_else(b.icmp_signed("!=", function, I64(0))) as (launch, fill):
                with launch:
                    shape = [b.trunc(x, I32) for x in (grid, block, shared)]
                    self.launch(function, *shape)
                with fill:
                    target = b.load(self.sums)
                    given = [target, b.trunc(grid, I8), block, self.stream]
                    self.called("fill", FILL, given)
            b.store(b.add(first, b.mul(count, I64(2))), self.place)
        b.ret(I64(0))
        return self.name

    def launch(self, function: Any, grid: Any, block: Any, shared: Any) -> None:
        one = I32(1)
        shape = [grid, one, one, block, one, one, shared]
        given = [function, *shape, self.stream, self.pointers, POINTER(None)]
        self.called("launch", LAUNCH, given)

    def arguments(self, first: Any, count: Any) -> None:
        """Put the arguments of a step into the frame, and pointers to them."""
        b = self.b
        b.store(I64(0), self.number)
        with self.loop(self.number, count):
            k = b.load(self.number)
            at = b.add(first, b.mul(k, I64(2)))
            source = self.word(b.add(at, I64(1)))
            value = b.load(b.gep(self.values, [b.and_(source, I64(~NARROW))]))
            total = b.add(self.word(at), value)
            narrow = b.fptrunc(b.bitcast(total, DOUBLE), FLOAT)
            narrow = b.zext(b.bitcast(narrow, I32), I64)
            total = b.select(b.icmp_signed("<", source, I64(0)), narrow, total)
            here = b.gep(self.sums, [k])
            b.store(total, here)
            b.store(here, b.gep(self.pointers, [k]))
            b.store(b.add(k, I64(1)), self.number)

    def word(self, place: Any) -> Any:
        """Load a word of the batch."""
        place = I64(place) if isinstance(place, int) else place
        return self.b.load(self.b.gep(self.batch, [place]))

    @contextlib.contextmanager
    def loop(self, variable: Any, end: Any) -> Iterator[None]:
        """Write a loop that runs while a variable is below its end."""
        b = self.b
        head, body, after = (b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(b.icmp_signed("<", b.load(variable), end), body, after)
        b.position_at_end(body)
        yield
        b.branch(head)
        b.position_at_end(after)

    def called(self, name: str, kind: Any, given: Sequence[Any]) -> None:
        """Call a function of the driver; return what it says unless that is 0."""
        b = self.b
        address = I64(getattr(self.driver, name))
        status = b.call(b.inttoptr(address, kind.as_pointer()), given)
        with b.if_then(b.icmp_signed("!=", status, I32(0)), likely=False):
            place = b.mul(b.load(self.place), I64(FAILED))
            b.ret(b.or_(place, b.zext(status, I64)))
